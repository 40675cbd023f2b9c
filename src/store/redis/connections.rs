//! The shared connections: few, multiplexed, opened when needed, replaced when broken.
//!
//! The bb8 pool hands out *slots*. Opening a slot's connection is left to the first command that uses it,
//! so that the command learns at once why there is no connection; bb8 itself would only let it wait.
//! A slot goes back to the pool before the command is sent, so that commands of many tasks share it, and
//! as long as its connection works, later commands take that without asking the pool.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8};
use parking_lot::RwLock;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::classify;
use crate::store::{StoreError, StoreErrorKind};

/// Commands of many tasks that travel together cost both ends fewer reads and writes than on connections
/// of their own.
const CONNECTIONS: u32 = 1;
/// Time limit of opening a connection, however little time its first command has.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// Commands that may queue on one connection before senders wait.
const PIPELINE: usize = 1024;

/// How a connection is opened.
#[derive(Clone, Debug)]
pub(super) enum Dial {
    Client(Box<redis::Client>),
    Pool(bb8::Pool<RedisConnectionManager>),
}

impl Dial {
    async fn open(&self) -> Result<Link, StoreError> {
        let opening = timeout(OPEN_LIMIT, self.connect()).await;
        let connection = opening.map_err(|_| {
            StoreError::new(StoreErrorKind::Timeout, format!("no connection within {OPEN_LIMIT:?}"))
                .never_sent()
        })?;
        let connection = connection.map_err(|error| classify::store_error(&error).never_sent())?;
        Ok(Link(Arc::new(LinkParts { connection, broken: AtomicBool::new(false) })))
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        match self {
            Self::Client(client) => {
                // Opening a connection and every command have time limits of their own.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(None)
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(PIPELINE);
                client.get_multiplexed_async_connection_with_config(&config).await
            }
            Self::Pool(pool) => pool.dedicated_connection().await.map(|mut connection| {
                connection.set_response_timeout(Duration::MAX);
                connection
            }),
        }
    }
}

/// An open connection and the word on whether it may be used again.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkParts>);

struct LinkParts {
    connection: MultiplexedConnection,
    broken: AtomicBool,
}

impl Link {
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.0.connection.clone()
    }

    fn evict(&self) {
        self.0.broken.store(true, Ordering::Release);
    }

    fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("broken", &self.is_broken()).finish_non_exhaustive()
    }
}

/// A place for one connection.
#[derive(Clone, Default)]
struct Slot(Arc<SlotParts>);

#[derive(Default)]
struct SlotParts {
    link: OnceLock<Link>,
    /// Whoever needs the connection first drives this on. It stays when a caller runs out of time, so that
    /// a connection which takes longer to open than a command may take is opened all the same.
    opening: Mutex<Option<Opening>>,
}

type Opening = Pin<Box<dyn Future<Output = Result<Link, StoreError>> + Send>>;

impl Slot {
    fn open_link(&self) -> Option<&Link> {
        self.0.link.get()
    }

    fn is_broken(&self) -> bool {
        self.open_link().is_some_and(Link::is_broken)
    }

    /// Cancel safe: the next call goes on where this one was dropped.
    async fn link(&self, dial: &Dial, opened: &AtomicU64) -> Result<Link, StoreError> {
        if let Some(link) = self.open_link() {
            return Ok(link.clone());
        }
        let mut opening = self.0.opening.lock().await;
        if let Some(link) = self.open_link() {
            return Ok(link.clone());
        }
        let dial = dial.clone();
        let result = opening.get_or_insert_with(|| Box::pin(async move { dial.open().await })).await;
        *opening = None;
        let link = result?;
        opened.fetch_add(1, Ordering::Relaxed);
        Ok(self.0.link.get_or_init(|| link).clone())
    }
}

struct Slots;

impl bb8::ManageConnection for Slots {
    type Connection = Slot;
    type Error = Infallible;

    async fn connect(&self) -> Result<Slot, Infallible> {
        Ok(Slot::default())
    }

    async fn is_valid(&self, _: &mut Slot) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, slot: &mut Slot) -> bool {
        slot.is_broken()
    }
}

#[derive(Clone)]
pub(super) struct Connections {
    dial: Dial,
    slots: bb8::Pool<Slots>,
    /// The one in use, so that the pool is asked only when it breaks.
    current: Arc<RwLock<Option<Link>>>,
    /// How many connections were opened so far.
    opened: Arc<AtomicU64>,
}

impl Connections {
    pub(super) fn new(dial: Dial) -> Self {
        // Without lifetimes bb8 starts no task, so that a store can be made outside a runtime.
        let slots = bb8::Pool::builder()
            .max_size(CONNECTIONS)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .queue_strategy(bb8::QueueStrategy::Fifo)
            .build_unchecked(Slots);
        Self { dial, slots, current: Arc::default(), opened: Arc::default() }
    }

    /// What opens connections that receive pushes; a user's pool cannot.
    pub(super) fn client(&self) -> Option<&redis::Client> {
        match &self.dial {
            Dial::Client(client) => Some(client),
            Dial::Pool(_) => None,
        }
    }

    /// How many connections were opened in place of a broken one.
    pub(super) fn reconnects(&self) -> u64 {
        self.opened.load(Ordering::Relaxed).saturating_sub(u64::from(CONNECTIONS))
    }

    /// Connections of their own to the same server.
    pub(super) fn for_keeper(&self) -> Self {
        Self::new(self.dial.clone())
    }

    async fn slot(&self) -> Result<Slot, StoreError> {
        loop {
            let slot = self.slots.get().await.map_err(|_| {
                StoreError::new(StoreErrorKind::Timeout, "no connection came free").never_sent()
            })?;
            if !slot.is_broken() {
                return Ok(slot.clone());
            }
        }
    }

    fn current(&self) -> Option<Link> {
        self.current.read().clone().filter(|link| !link.is_broken())
    }

    /// A connection, and whether it was open before.
    async fn link(&self) -> Result<(Link, bool), StoreError> {
        if let Some(link) = self.current() {
            return Ok((link, true));
        }
        // Boxed: seldom done, and large.
        Box::pin(self.new_link()).await
    }

    async fn new_link(&self) -> Result<(Link, bool), StoreError> {
        let slot = self.slot().await?;
        let was_open = slot.open_link().is_some();
        let link = slot.link(&self.dial, &self.opened).await?;
        *self.current.write() = Some(link.clone());
        Ok((link, was_open))
    }

    /// Runs one idempotent command within `limit`, connecting included. A connection that turns out to be
    /// dead, for instance because the server was restarted, is replaced and the command sent again; one that
    /// was opened for this command is not given a second chance.
    pub(super) async fn run<T, F>(
        &self,
        limit: Duration,
        command: impl Fn(Link) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let mut in_use = None;
        match timeout(limit, self.attempts(&mut in_use, command)).await {
            Ok(result) => result,
            Err(_) => {
                let error = StoreError::new(StoreErrorKind::Timeout, format!("no answer within {limit:?}"));
                match in_use {
                    Some(link) => {
                        link.evict();
                        Err(error)
                    }
                    None => Err(error.never_sent()),
                }
            }
        }
    }

    /// `in_use`: the connection that may carry the command at this moment.
    async fn attempts<T, F>(
        &self,
        in_use: &mut Option<Link>,
        command: impl Fn(Link) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        loop {
            *in_use = None;
            let (link, was_open) = self.link().await?;
            *in_use = Some(link.clone());
            let error = match command(link.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if classify::breaks_connection(&error) {
                link.evict();
                if was_open && was_cut(&error) {
                    continue;
                }
            }
            return Err(classify::store_error(&error));
        }
    }
}

fn was_cut(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_timeout()
}
