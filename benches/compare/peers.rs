//! Who is compared: one way of taking and giving back a lock each.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8};
use redis::Script;
use redis::aio::{ConnectionManager, MultiplexedConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tower_redis_lock::{LockGuard, LockKey, LockSettings, Locker, RedisStore};
use uuid::Uuid;

use crate::server::Server;

pub(crate) const TTL: Duration = Duration::from_secs(30);
const TTL_MS: u64 = 30_000;

pub(crate) trait Peer: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type Key: Send + Sync + 'static;
    type Held: Send;

    fn key(&self, name: &str) -> Self::Key;

    fn take(&self, key: &Self::Key) -> impl Future<Output = Self::Held> + Send;

    fn give_back(&self, key: &Self::Key, held: Self::Held) -> impl Future<Output = ()> + Send;
}

/// This crate, with its defaults: renewal by the keeper, the watch, the local queue.
#[derive(Clone, Debug)]
pub(crate) struct Ours(pub(crate) Locker);

impl Ours {
    pub(crate) async fn new(server: &Server) -> Self {
        Self::at(&server.url()).await
    }

    pub(crate) async fn at(url: &str) -> Self {
        let settings = LockSettings::builder().ttl(TTL).max_wait(Duration::from_secs(120)).build();
        let store = RedisStore::connect(url).await.expect("a store");
        let locker = Locker::builder(store).prefix("ours:").name("bench").settings(settings.expect("valid"));
        Self(locker.build().expect("a locker"))
    }
}

impl Peer for Ours {
    const NAME: &'static str = "ours";
    type Key = LockKey;
    type Held = LockGuard;

    fn key(&self, name: &str) -> LockKey {
        LockKey::new(name).expect("valid")
    }

    async fn take(&self, key: &LockKey) -> LockGuard {
        self.0.acquire(key).await.expect("acquired")
    }

    async fn give_back(&self, _: &LockKey, held: LockGuard) {
        held.release().await.expect("released");
    }
}

static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
    )
});

/// `SET NX PX` and a compare-and-delete on redis' own connection manager: an afternoon's work.
#[derive(Clone)]
pub(crate) struct Handwritten(ConnectionManager);

impl Handwritten {
    pub(crate) async fn new(server: &Server) -> Self {
        Self(server.client().get_connection_manager().await.expect("a connection"))
    }

    /// The token, if the lock was free.
    pub(crate) async fn try_take(&self, key: &str) -> Option<String> {
        let token = Uuid::new_v4().to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&token).arg("NX").arg("PX").arg(TTL_MS);
        let taken: Option<String> = set.query_async(&mut self.0.clone()).await.expect("SET");
        taken.map(|_| token)
    }

    pub(crate) async fn release(&self, key: &str, token: &str) {
        let removed: i64 =
            RELEASE.key(key).arg(token).invoke_async(&mut self.0.clone()).await.expect("the script");
        assert_eq!(removed, 1, "nobody else takes {key}");
    }
}

impl Peer for Handwritten {
    const NAME: &'static str = "handwritten";
    type Key = String;
    type Held = String;

    fn key(&self, name: &str) -> String {
        format!("handwritten:{name}")
    }

    async fn take(&self, key: &String) -> String {
        self.try_take(key).await.expect("nobody else wants it")
    }

    async fn give_back(&self, key: &String, token: String) {
        self.release(key, &token).await;
    }
}

/// The same two commands on a bb8-redis pool as its documentation shows it: one check-out per command, so
/// that no connection is kept while the lock is held.
#[derive(Clone)]
pub(crate) struct Bb8(bb8::Pool<RedisConnectionManager>);

impl Bb8 {
    pub(crate) async fn new(server: &Server) -> Self {
        let manager = RedisConnectionManager::new(server.url()).expect("a valid URL");
        Self(bb8::Pool::builder().build(manager).await.expect("a pool"))
    }
}

impl Peer for Bb8 {
    const NAME: &'static str = "bb8";
    type Key = String;
    type Held = String;

    fn key(&self, name: &str) -> String {
        format!("bb8:{name}")
    }

    async fn take(&self, key: &String) -> String {
        let token = Uuid::new_v4().to_string();
        let mut connection = self.0.get().await.expect("a connection");
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&token).arg("NX").arg("PX").arg(TTL_MS);
        let taken: Option<String> = set.query_async(&mut *connection).await.expect("SET");
        taken.map(|_| token).expect("nobody else wants it")
    }

    async fn give_back(&self, key: &String, token: String) {
        let mut connection = self.0.get().await.expect("a connection");
        let removed: i64 =
            RELEASE.key(key).arg(token).invoke_async(&mut *connection).await.expect("the script");
        assert_eq!(removed, 1, "nobody else takes {key}");
    }
}

/// The crate rslock on one server, as its README shows it.
#[derive(Clone)]
pub(crate) struct Rslock(rslock::LockManager);

impl Rslock {
    pub(crate) fn new(server: &Server) -> Self {
        Self(rslock::LockManager::new(vec![server.url()]))
    }
}

impl Peer for Rslock {
    const NAME: &'static str = "rslock";
    type Key = String;
    type Held = rslock::LockGuard;

    fn key(&self, name: &str) -> String {
        format!("rslock:{name}")
    }

    async fn take(&self, key: &String) -> rslock::LockGuard {
        self.0.acquire(key.as_str(), TTL).await.expect("acquired")
    }

    async fn give_back(&self, _: &String, held: rslock::LockGuard) {
        held.release().await;
    }
}

/// The floor: the same two commands on one open connection, and nothing else. No time limit, no reconnecting,
/// no error but a panic, a token that could be guessed.
#[derive(Clone)]
pub(crate) struct Bare(MultiplexedConnection);

impl Bare {
    pub(crate) async fn new(server: &Server) -> Self {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = server.client().get_multiplexed_async_connection_with_config(&config).await;
        let bare = Self(connection.expect("a connection"));
        RELEASE.prepare_invoke().load_async(&mut bare.0.clone()).await.expect("the script is loaded");
        bare
    }
}

impl Peer for Bare {
    const NAME: &'static str = "bare";
    type Key = String;
    type Held = String;

    fn key(&self, name: &str) -> String {
        format!("bare:{name}")
    }

    async fn take(&self, key: &String) -> String {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::Cmd::with_capacity(6, 128);
        set.arg("SET").arg(key).arg(&token).arg("NX").arg("PX").arg(TTL_MS);
        let taken: Option<redis::Value> = set.query_async(&mut self.0.clone()).await.expect("SET");
        taken.map(|_| token).expect("nobody else wants it")
    }

    async fn give_back(&self, key: &String, token: String) {
        let mut script = redis::Cmd::with_capacity(5, 192);
        script.arg("EVALSHA").arg(RELEASE.get_hash()).arg(1).arg(key).arg(token);
        let removed: i64 = script.query_async(&mut self.0.clone()).await.expect("the script");
        assert_eq!(removed, 1, "nobody else takes {key}");
    }
}

/// Nobody can do better for waiters of one process: a fair mutex, and one script per turn on an open
/// connection. No timeout, no renewal, no other process.
#[derive(Clone)]
pub(crate) struct Ideal {
    turn: Arc<Mutex<()>>,
    connection: MultiplexedConnection,
}

static SWAP: LazyLock<Script> = LazyLock::new(|| {
    Script::new("redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1")
});

impl Ideal {
    pub(crate) async fn new(server: &Server) -> Self {
        Self { turn: Arc::default(), connection: server.connection().await }
    }
}

impl Peer for Ideal {
    const NAME: &'static str = "ideal";
    type Key = String;
    type Held = OwnedMutexGuard<()>;

    fn key(&self, name: &str) -> String {
        format!("ideal:{name}")
    }

    async fn take(&self, _: &String) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    async fn give_back(&self, key: &String, held: OwnedMutexGuard<()>) {
        let token = Uuid::new_v4().to_string();
        let mut swap = SWAP.key(key);
        let _one: i64 =
            swap.arg(token).arg(TTL_MS).invoke_async(&mut self.connection.clone()).await.expect("the script");
        drop(held);
    }
}
