//! The lock without HTTP: [`Locker`].

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::clock::{Clock, Moment};
use crate::guard::{Grant, HeldLock, LockGuard};
use crate::keeper::{CleanUp, Keeper, KeeperMode, StoreEnds, Unfinished};
use crate::key::LockKey;
use crate::lease::{Lease, LostReason, Term};
use crate::settings::{LockSettings, OnLost};
use crate::store::{
    Acquire, Attempt, ErasedStore, LockStore, MeteredStore, OwnerToken, StoreError, StoreErrorKind,
};
use crate::telemetry::{Acquisition, AcquisitionOutcome, LockMetrics, StoreMetrics};

pub(crate) const DEFAULT_PREFIX: &str = "lock:";
const DEFAULT_NAME: &str = "default";

/// Takes locks. Cheap to clone; clones share the store, the keeper and the settings.
///
/// ```
/// use std::time::Duration;
/// use tower_redis_lock::{Locker, LockKey, LockSettings, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker = Locker::new(MemoryStore::new())?;
/// let key = LockKey::from_parts(["invoice-run", "2026-12"])?;
///
/// let guard = locker.acquire(&key).await?;
/// assert!(guard.held().is_held());
/// assert!(locker.try_acquire(&key).await.is_err());
/// guard.release().await?;
///
/// // The same, customised: other settings and another name in the metrics, same store.
/// let patient = LockSettings::builder().max_wait(Duration::from_secs(10)).build()?;
/// let jobs = locker.with_settings(patient).with_name("jobs");
/// let sum = jobs.with_lock(&key, |_held| async { 1 + 1 }).await?;
/// assert_eq!(sum, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locker {
    core: Arc<Core>,
    settings: Arc<LockSettings>,
    metrics: LockMetrics,
}

struct Core {
    store: Arc<dyn ErasedStore>,
    store_metrics: StoreMetrics,
    keeper: Keeper,
    clock: Clock,
    prefix: Vec<u8>,
    closing: AtomicBool,
    close: Notify,
}

impl Locker {
    /// A locker with the default settings, the prefix `lock:` and a keeper thread of its own.
    ///
    /// # Errors
    ///
    /// If the keeper's thread cannot be started.
    pub fn new(store: impl LockStore) -> Result<Self, BuildError> {
        Self::builder(store).build()
    }

    /// Starts from the defaults of [`new`](Self::new).
    pub fn builder<S: LockStore>(store: S) -> LockerBuilder<S> {
        LockerBuilder {
            store,
            settings: LockSettings::default(),
            prefix: DEFAULT_PREFIX.into(),
            name: DEFAULT_NAME,
            store_name: DEFAULT_NAME,
            keeper: KeeperMode::default(),
            clock: Clock::system(),
        }
    }

    /// The same locker with other settings, for another route or job.
    #[must_use]
    pub fn with_settings(&self, settings: LockSettings) -> Self {
        Self { settings: Arc::new(settings), ..self.clone() }
    }

    /// The same locker under another name in metrics and logs. One name for each route or job.
    #[must_use]
    pub fn with_name(&self, name: &'static str) -> Self {
        Self { metrics: LockMetrics::new(name), ..self.clone() }
    }

    /// The settings.
    pub fn settings(&self) -> &LockSettings {
        &self.settings
    }

    /// Sets every series of this lock and its store to its start, in the recorder that is installed now.
    ///
    /// Optional: the first acquisition does the same. Call it right after installing a recorder, so that
    /// dashboards and alerts see the series before the first request comes.
    pub fn register_metrics(&self) {
        self.metrics.register(&self.settings);
        self.core.store_metrics.register();
    }

    pub(crate) fn metrics(&self) -> &LockMetrics {
        &self.metrics
    }

    /// Takes the lock, waiting for it as long as the settings allow.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Contended`] if somebody else holds it all the time, [`AcquireError::Store`] if the
    /// last attempt got no answer from the store, [`AcquireError::ShuttingDown`] after
    /// [`shutdown`](Self::shutdown) has begun.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time: waiting ends, and a lock that was taken at that very moment is released.
    pub async fn acquire(&self, key: &LockKey) -> Result<LockGuard, AcquireError> {
        self.acquire_within(key, self.settings.max_wait(), self.settings.max_attempts()).await
    }

    /// Takes the lock if it is free: one attempt.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self, key: &LockKey) -> Result<LockGuard, AcquireError> {
        self.acquire_within(key, Duration::ZERO, Some(1)).await
    }

    /// Takes the lock, runs `work`, and gives the lock back. If the lock is lost, `work` is dropped at its
    /// next await, or only told with [`OnLost::Notify`].
    ///
    /// # Errors
    ///
    /// [`WithLockError::Acquire`] if the lock could not be taken, [`WithLockError::Lost`] if `work` was
    /// stopped. A failing release does not hide what `work` returned.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time: `work` is dropped and the lock released.
    pub async fn with_lock<F: Future>(
        &self,
        key: &LockKey,
        work: impl FnOnce(HeldLock) -> F,
    ) -> Result<F::Output, WithLockError> {
        let guard = self.acquire(key).await.map_err(WithLockError::Acquire)?;
        let work = work(guard.held().clone());
        let output = match self.settings.on_lost() {
            OnLost::Notify => work.await,
            OnLost::Abort => guard.held().run(work).await.map_err(WithLockError::Lost)?,
        };
        // Counted and logged where it failed.
        let _ = guard.release().await;
        Ok(output)
    }

    /// Refuses new acquisitions, ends those that wait, and waits at most `limit` until all held locks are
    /// given back and all releases have been answered. Call it when the server has drained.
    ///
    /// All clones and views of this locker are shut down with it. Locks that are still held afterwards go
    /// on being renewed as long as the process lives.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time; acquisitions stay refused. Call it again to go on waiting.
    pub async fn shutdown(&self, limit: Duration) -> ShutdownReport {
        self.core.closing.store(true, Ordering::Release);
        self.core.close.notify_waiters();
        let outstanding = self.core.keeper.outstanding();
        let _ = timeout(limit, outstanding.none_left()).await;
        ShutdownReport { unfinished: outstanding.count() }
    }

    async fn acquire_within(
        &self,
        key: &LockKey,
        max_wait: Duration,
        max_attempts: Option<u32>,
    ) -> Result<LockGuard, AcquireError> {
        let mut pending = Pending::begin(self, key.prefixed(&self.core.prefix));
        let result = self.compete(&mut pending, max_wait, max_attempts).await;
        pending.finish(result)
    }

    async fn compete(
        &self,
        pending: &mut Pending<'_>,
        max_wait: Duration,
        max_attempts: Option<u32>,
    ) -> Result<Moment, AcquireError> {
        let core = &*self.core;
        let give_up = pending.acquisition.started() + max_wait;
        let mut backoff = self.settings.backoff(pending.token.seed());
        loop {
            let closed = core.close.notified();
            if core.closing.load(Ordering::Acquire) {
                return Err(AcquireError::ShuttingDown);
            }
            let error = match pending.attempt().await {
                Ok(sent) => return Ok(sent),
                Err(error) => error,
            };
            let now = core.clock.now();
            let last = max_attempts.is_some_and(|most| pending.acquisition.attempts() >= most);
            if last || now >= give_up || !error.may_pass() {
                return Err(error);
            }
            let mut pause = backoff.next_delay();
            if let AcquireError::Contended(Contended { remaining: Some(remaining) }) = error {
                pause = pause.min(remaining + AFTER_EXPIRY);
            }
            let pause = pause.min(give_up.since(now));
            tokio::select! {
                () = sleep(pause) => {}
                () = closed => {}
            }
        }
    }

    fn term(&self) -> Term {
        Term { ttl: self.settings.ttl(), margin: self.settings.margin() }
    }
}

/// A key whose time is over is gone a little later than its remaining time says: Redis rounds down.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker")
            .field("name", &self.metrics.lock())
            .field("store", &self.core.store)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// An acquisition under way. Dropped with an attempt whose result is not known, it has the token removed.
struct Pending<'a> {
    locker: &'a Locker,
    key: LockKey,
    token: OwnerToken,
    acquisition: Acquisition,
    /// An attempt is on the wire, or an earlier one has no known result.
    unresolved: bool,
    _unfinished: Unfinished,
}

impl<'a> Pending<'a> {
    fn begin(locker: &'a Locker, key: LockKey) -> Self {
        Self {
            key,
            token: OwnerToken::random(),
            acquisition: locker.metrics.acquisition_started(&locker.core.clock, &locker.settings),
            unresolved: false,
            _unfinished: locker.core.keeper.outstanding().begin(),
            locker,
        }
    }

    /// One attempt; on success, when it was sent.
    async fn attempt(&mut self) -> Result<Moment, AcquireError> {
        let Locker { core, settings, .. } = self.locker;
        self.acquisition.attempt_sent();
        let earlier = std::mem::replace(&mut self.unresolved, true);
        let sent = core.clock.now();
        let attempt = Attempt {
            key: &self.key,
            token: &self.token,
            ttl: settings.ttl(),
            number: self.acquisition.attempts(),
            timeout: settings.command_timeout(),
        };
        let result = core.store.acquire(attempt).await;
        match result {
            Ok(Acquire::Acquired) => {
                self.unresolved = earlier;
                if core.clock.now() < self.locker.term().deadline(sent) {
                    return Ok(sent);
                }
                // Granted, but so long ago that it may have expired: ask again with the same token.
                self.unresolved = true;
                Err(AcquireError::Store(StoreError::new(
                    StoreErrorKind::Timeout,
                    "the store granted the lock too late to use it",
                )))
            }
            Ok(Acquire::Held { remaining }) => {
                self.unresolved = earlier;
                self.acquisition.found_taken();
                if remaining.is_none() {
                    tracing::warn!(
                        lock = self.locker.metrics.lock(), key = %self.key.fingerprint(),
                        "the key of a lock has no expiry, so it was not set by a lock"
                    );
                }
                Err(AcquireError::Contended(Contended { remaining }))
            }
            Err(error) => {
                self.unresolved = earlier || error.is_unresolved();
                Err(AcquireError::Store(error))
            }
        }
    }

    fn finish(mut self, result: Result<Moment, AcquireError>) -> Result<LockGuard, AcquireError> {
        let sent = match result {
            Ok(sent) => sent,
            Err(error) => {
                self.acquisition.resolve(error.outcome());
                return Err(error);
            }
        };
        let Locker { core, settings, metrics } = self.locker;
        let guard = LockGuard::new(Grant {
            key: self.key.clone(),
            token: self.token.clone(),
            settings: Arc::clone(settings),
            metrics: metrics.clone(),
            store: Arc::clone(&core.store),
            keeper: core.keeper.clone(),
            lease: Lease::new(core.clock.clone(), self.locker.term(), sent),
            sent,
            unresolved: std::mem::take(&mut self.unresolved),
        });
        self.acquisition.resolve(AcquisitionOutcome::Acquired);
        Ok(guard)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.unresolved {
            let Locker { core, settings, metrics } = self.locker;
            core.keeper.clean_up(CleanUp {
                key: self.key.clone(),
                token: self.token.clone(),
                settings: Arc::clone(settings),
                metrics: metrics.clone(),
                _unfinished: core.keeper.outstanding().begin(),
            });
        }
    }
}

/// Why a lock was not taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else holds it.
    Contended(Contended),
    /// The store cannot be used, so nobody knows who holds it.
    Store(StoreError),
    /// [`Locker::shutdown`] has begun.
    ShuttingDown,
}

impl AcquireError {
    /// Whether another attempt may go better.
    fn may_pass(&self) -> bool {
        match self {
            Self::Contended(_) => true,
            Self::Store(error) => error.kind().is_transient(),
            Self::ShuttingDown => false,
        }
    }

    fn outcome(&self) -> AcquisitionOutcome {
        match self {
            Self::Contended(_) => AcquisitionOutcome::Contended,
            Self::Store(_) => AcquisitionOutcome::Error,
            Self::ShuttingDown => AcquisitionOutcome::Cancelled,
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contended(_) => "somebody else holds the lock",
            Self::Store(_) => "the lock store cannot be used",
            Self::ShuttingDown => "no locks are taken any more, the locker is shutting down",
        })
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// What is known of the lock that somebody else holds.
#[derive(Clone, Debug)]
pub struct Contended {
    remaining: Option<Duration>,
}

impl Contended {
    /// Time until the lock expires unless its holder renews it; `None` if its key has no expiry.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

/// Why [`Locker::with_lock`] did not run its work to the end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WithLockError {
    /// The lock was not taken; the work was not started.
    Acquire(AcquireError),
    /// The lock was lost; the work was stopped at an await.
    Lost(LostReason),
}

impl fmt::Display for WithLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(_) => f.write_str("the lock was not taken"),
            Self::Lost(reason) => write!(f, "the lock was lost and the work stopped ({reason})"),
        }
    }
}

impl std::error::Error for WithLockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Acquire(error) => Some(error),
            Self::Lost(_) => None,
        }
    }
}

/// What [`Locker::shutdown`] left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    unfinished: usize,
}

impl ShutdownReport {
    /// How many locks are still held, or handed over and not yet released. They expire with their ttl.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }
}

/// Collects what a [`Locker`] is made of.
#[derive(Debug)]
#[must_use]
pub struct LockerBuilder<S> {
    store: S,
    settings: LockSettings,
    prefix: Vec<u8>,
    name: &'static str,
    store_name: &'static str,
    keeper: KeeperMode,
    clock: Clock,
}

impl<S: LockStore> LockerBuilder<S> {
    /// The settings. Default [`LockSettings::default`].
    pub fn settings(mut self, settings: LockSettings) -> Self {
        self.settings = settings;
        self
    }

    /// What every key starts with, to keep services and environments that share a Redis apart. Default
    /// `lock:`. Braces in it choose the slot in a Redis Cluster.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().into();
        self
    }

    /// The lock's name in metrics and logs. Default `default`.
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// The store's name in metrics. Default `default`.
    pub fn store_name(mut self, name: &'static str) -> Self {
        self.store_name = name;
        self
    }

    /// Where the keeper runs. Default [`KeeperMode::Thread`].
    pub fn keeper(mut self, mode: KeeperMode) -> Self {
        self.keeper = mode;
        self
    }

    /// The clock of the lock deadlines. Default [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Starts the keeper.
    ///
    /// # Errors
    ///
    /// If the keeper's thread cannot be started.
    pub fn build(self) -> Result<Locker, BuildError> {
        let Self { store, settings, prefix, name, store_name, keeper, clock } = self;
        let store_metrics = StoreMetrics::new(store_name);
        let store = MeteredStore::new(store, store_metrics.clone(), clock.clone());
        let store: Arc<dyn ErasedStore> = Arc::new(store);
        let ends = StoreEnds::new(Arc::clone(&store));
        let keeper =
            Keeper::start(keeper, clock.clone(), ends, store_metrics.clone()).map_err(BuildError::Keeper)?;
        let closing = AtomicBool::new(false);
        Ok(Locker {
            core: Arc::new(Core {
                store,
                store_metrics,
                keeper,
                clock,
                prefix,
                closing,
                close: Notify::new(),
            }),
            settings: Arc::new(settings),
            metrics: LockMetrics::new(name),
        })
    }
}

/// Why a [`Locker`] could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The keeper's thread or runtime could not be started.
    Keeper(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keeper(_) => f.write_str("the keeper could not be started"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Keeper(error) => Some(error),
        }
    }
}
