//! Locks in one Redis server.
//!
//! An uncontended lock costs two commands: `SET key token NX PX ttl` to take it, one script to give it back.
//! The value of the key is the token, so other programs that follow the same recipe share locks with us.
//! Needs Redis 6.0 or newer, and permission for `SET`, `GET`, `DEL`, `PEXPIRE`, `PTTL`, `TIME`, `EVAL` and
//! `EVALSHA` on the keys.

mod carrier;
mod classify;
mod companion;
mod connections;
mod script;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use self::carrier::Carriers;
use self::connections::{Connections, Dial};
use self::script::Script;
use self::watch::RedisWatch;
use super::{
    Acquire, Attempt, ChangeSink, Fence, LockStore, OpenedWatch, Owned, OwnerToken, Release, Renewal,
    StoreError, StoreErrorKind,
};
use crate::key::LockKey;

static ACQUIRE: Script = Script::new(include_str!("scripts/acquire.lua"));
static RENEW: Script = Script::new(include_str!("scripts/renew.lua"));
static RELEASE: Script = Script::new(include_str!("scripts/release.lua"));
static HAND_OVER: Script = Script::new(include_str!("scripts/hand_over.lua"));
static FENCE: Script = Script::new(include_str!("scripts/fence.lua"));

/// How long a fence counter outlives its last use. Longer than a lock can live without a renewal (7 days),
/// and what comes after it is greater anyway as long as the server's clock has not run back by as much.
const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of opening the watch connection.
const WATCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Keeps locks in one Redis server. Clones share connections.
///
/// Connections are shared, not checked out: commands of many tasks travel on the same one, in a bb8 pool
/// that replaces it after an I/O error, a time-out or a `READONLY` answer. It is opened when it is needed.
#[derive(Clone)]
pub struct RedisStore {
    connections: Connections,
    carriers: Arc<Carriers>,
}

impl RedisStore {
    /// A store that connects to `url` (`redis://[user:password@]host:port/db`, or `rediss://` with the
    /// feature `tls-rustls`) when it is first used.
    ///
    /// # Errors
    ///
    /// If the URL is malformed. It is not shown, for it may hold a password.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let client = redis::IntoConnectionInfo::into_connection_info(url).and_then(|info| {
            // Commands are small and somebody waits for each: no Nagle delay.
            let tcp = info.tcp_settings().clone().set_nodelay(true);
            redis::Client::open(info.set_tcp_settings(tcp))
        });
        client.map(Self::from_client).map_err(|error| classify::store_error(&error).never_sent())
    }

    /// A store that connects with settings the user has made already.
    pub fn from_client(client: redis::Client) -> Self {
        Self::dialling(Dial::Client(Box::new(client)))
    }

    /// A store that opens its connections through the manager of a pool that the user already has, so
    /// that address and credentials are configured once.
    ///
    /// The store's connections are shared, and beside those of the pool: bb8-redis cannot take a broken
    /// connection out of its pool, and a lock must not wait for one. There is no watch: its manager cannot
    /// open a connection that receives pushes, so losses are noticed at renewals.
    pub fn from_pool(pool: bb8::Pool<RedisConnectionManager>) -> Self {
        Self::dialling(Dial::Pool(pool))
    }

    fn dialling(dial: Dial) -> Self {
        Self { connections: Connections::new(dial), carriers: Arc::default() }
    }

    /// Like [`new`](Self::new), and takes, renews and releases a lock below the default prefix at once, so
    /// that a wrong address or a missing permission shows before the first request does.
    ///
    /// # Errors
    ///
    /// If the URL is malformed, or as [`probe`](Self::probe).
    ///
    /// # Cancel safety
    ///
    /// As [`probe`](Self::probe).
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let store = Self::new(url)?;
        store.probe(crate::locker::DEFAULT_PREFIX).await?;
        Ok(store)
    }

    /// Takes, contends for, renews, fences and releases a lock of its own whose key starts with `prefix`.
    ///
    /// # Errors
    ///
    /// The first step that failed; the message names it.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the probe's lock expires within two seconds.
    pub async fn probe(&self, prefix: &str) -> Result<(), StoreError> {
        let token = OwnerToken::random();
        let key = LockKey::from_parts(["probe", token.as_str()])
            .map(|key| key.prefixed(prefix.as_bytes()))
            .map_err(|error| StoreError::new(StoreErrorKind::Protocol, error.to_string()))?;
        let attempt =
            Attempt { key: &key, token: &token, ttl: PROBE_TIMEOUT, number: 1, timeout: PROBE_TIMEOUT };
        let owned = Owned { key: &key, token: &token, timeout: PROBE_TIMEOUT };
        let step = |name: &'static str| move |error: StoreError| error.in_step(name);
        self.acquire(attempt).await.map_err(step("taking a lock"))?;
        self.acquire(Attempt { number: 2, ..attempt }).await.map_err(step("taking a lock by script"))?;
        let rival = Attempt { token: &OwnerToken::random(), ..attempt };
        self.acquire(rival).await.map_err(step("asking how long a lock is held"))?;
        self.renew(owned, PROBE_TIMEOUT).await.map_err(step("renewing a lock"))?;
        self.mint(owned, PROBE_TIMEOUT).await.map_err(step("minting a fencing token"))?;
        self.release(owned).await.map_err(step("releasing a lock"))?;
        Ok(())
    }

    async fn mint(&self, owned: Owned<'_>, counter_ttl: Duration) -> Result<Fence, StoreError> {
        let counter = companion::fence_counter(owned.key.as_bytes());
        let ttl = millis(counter_ttl).to_string();
        let keys = &[owned.key.as_bytes(), &counter];
        let args = &[owned.token.as_str().as_bytes(), ttl.as_bytes()];
        let reply: Value = self
            .connections
            .run(owned.timeout, |link| async move { FENCE.call(&mut link.connection(), keys, args).await })
            .await?;
        match &reply {
            Value::Nil => Ok(Fence::NotOwned),
            // Text, so that no other script's answer can pass for a number.
            Value::BulkString(text) => match str::from_utf8(text).ok().and_then(|text| text.parse().ok()) {
                Some(number) => Ok(Fence::Minted(number)),
                None => Err(unexpected(&reply)),
            },
            _ => Err(unexpected(&reply)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

impl LockStore for RedisStore {
    async fn acquire(&self, attempt: Attempt<'_>) -> Result<Acquire, StoreError> {
        let ttl = millis(attempt.ttl);
        let reply: Vec<i64> = self
            .connections
            .run(attempt.timeout, |link| async move {
                let carried = self.carriers.sending(attempt.token, &link);
                let reply = acquire_on(&mut link.connection(), attempt, ttl).await;
                carried.answered(&reply);
                reply
            })
            .await?;
        match reply[..] {
            [1] => Ok(Acquire::Acquired),
            [0, remaining] => {
                Ok(Acquire::Held { remaining: u64::try_from(remaining).ok().map(Duration::from_millis) })
            }
            _ => Err(unexpected(&reply)),
        }
    }

    async fn renew(&self, owned: Owned<'_>, ttl: Duration) -> Result<Renewal, StoreError> {
        let ttl = millis(ttl).to_string();
        let args = &[owned.token.as_str().as_bytes(), ttl.as_bytes()];
        let reply: i64 = self
            .connections
            .run(owned.timeout, |link| async move {
                RENEW.call(&mut link.connection(), &[owned.key.as_bytes()], args).await
            })
            .await?;
        match reply {
            1 => Ok(Renewal::Renewed),
            0 => Ok(Renewal::Missing),
            -1 => Ok(Renewal::NotOwned),
            other => Err(unexpected(&other)),
        }
    }

    async fn release(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let tries = AtomicU32::new(0);
        let reply = self
            .connections
            .run(owned.timeout, |link| {
                tries.fetch_add(1, Ordering::Relaxed);
                async move { release_on(&mut link.connection(), owned).await }
            })
            .await?;
        match decode_release(reply)? {
            // The first try may have freed it before its connection was cut.
            Release::Missing if tries.into_inner() > 1 => Ok(Release::Released),
            release => Ok(release),
        }
    }

    async fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> Result<Release, StoreError> {
        let ttl = millis(ttl).to_string();
        let args = &[owned.token.as_str().as_bytes(), next.as_str().as_bytes(), ttl.as_bytes()];
        let reply: i64 = self
            .connections
            .run(owned.timeout, |link| async move {
                HAND_OVER.call(&mut link.connection(), &[owned.key.as_bytes()], args).await
            })
            .await?;
        decode_release(reply)
    }

    async fn fence(&self, owned: Owned<'_>) -> Result<Fence, StoreError> {
        self.mint(owned, FENCE_TTL).await
    }

    async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        self.carriers.clean_up(owned).await
    }

    async fn open_watch(&self, changes: ChangeSink) -> OpenedWatch {
        match self.connections.client() {
            Some(client) => {
                let watch = RedisWatch::open(client, changes, WATCH_TIMEOUT).await?;
                Ok(Some(Arc::new(watch)))
            }
            None => Ok(None),
        }
    }

    fn reconnects(&self) -> u64 {
        self.connections.reconnects()
    }

    fn for_keeper(&self) -> Self {
        Self { connections: self.connections.for_keeper(), carriers: Arc::clone(&self.carriers) }
    }
}

/// The well-known command for a first attempt. Whoever finds the lock taken, or asks again, runs the script,
/// which recognises our own token and tells how long the holder still has.
async fn acquire_on(
    connection: &mut MultiplexedConnection,
    attempt: Attempt<'_>,
    ttl: u64,
) -> RedisResult<Vec<i64>> {
    let key = attempt.key.as_bytes();
    let token = attempt.token.as_str();
    if attempt.number == 1 {
        let mut set = redis::Cmd::with_capacity(6, key.len() + token.len() + 32);
        set.arg("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(ttl);
        let set: Option<Value> = set.query_async(connection).await?;
        if set.is_some() {
            return Ok(vec![1]);
        }
    }
    let ttl = ttl.to_string();
    Box::pin(ACQUIRE.call(connection, &[key], &[token.as_bytes(), ttl.as_bytes()])).await
}

async fn release_on(connection: &mut MultiplexedConnection, owned: Owned<'_>) -> RedisResult<i64> {
    RELEASE.call(connection, &[owned.key.as_bytes()], &[owned.token.as_str().as_bytes()]).await
}

fn decode_release(reply: i64) -> Result<Release, StoreError> {
    match reply {
        1 => Ok(Release::Released),
        0 => Ok(Release::Missing),
        -1 => Ok(Release::NotOwned),
        other => Err(unexpected(&other)),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn unexpected(reply: &impl fmt::Debug) -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, format!("a script answered {reply:?}"))
}
