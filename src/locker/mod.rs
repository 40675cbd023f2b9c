//! The lock without HTTP: [`Locker`].

mod builder;
mod error;
mod pending;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

pub(crate) use self::builder::DEFAULT_PREFIX;
pub use self::builder::{BuildError, LockerBuilder};
pub use self::error::{AcquireError, Contended, WithLockError};
use self::pending::Pending;
use crate::clock::{Clock, Moment};
use crate::guard::{HeldLock, LockGuard};
use crate::keeper::Keeper;
use crate::key::LockKey;
use crate::lease::Term;
use crate::queue::{Front, Glance, Place, Promotion, QueueFull, Queues, Seat, Waiting};
use crate::settings::{LockSettings, OnLost};
use crate::store::{ErasedStore, LockStore};
use crate::telemetry::{LockMetrics, StoreMetrics, WakeCause};

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
    queues: Queues,
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
        LockerBuilder::new(store)
    }

    /// The same locker with other settings, for another route or job.
    #[must_use]
    pub fn with_settings(&self, settings: LockSettings) -> Self {
        Self { settings: Arc::new(settings), ..self.clone() }
    }

    /// The same locker under another name in metrics and logs. One name for each route or job.
    #[must_use]
    pub fn with_name(&self, name: &'static str) -> Self {
        Self { metrics: self.metrics.renamed(name), ..self.clone() }
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
    /// [`AcquireError::Contended`] if somebody else holds it all the time, [`AcquireError::QueueFull`] if too
    /// many of this process wait for it already, [`AcquireError::Store`] if the last attempt got no answer
    /// from the store, [`AcquireError::ShuttingDown`] after
    /// [`shutdown`](Self::shutdown) has begun.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time: waiting ends, and a lock that was taken at that very moment is released.
    pub async fn acquire(&self, key: &LockKey) -> Result<LockGuard, AcquireError> {
        self.acquire_within(key, self.settings.max_wait()).await
    }

    /// [`acquire`](Self::acquire) with another limit than the settings' `max_wait`, for a caller whose own
    /// deadline is nearer. Zero: one attempt.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, key: &LockKey, max_wait: Duration) -> Result<LockGuard, AcquireError> {
        self.acquire_limited(key, max_wait, self.settings.max_attempts()).await
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
        self.acquire_limited(key, Duration::ZERO, Some(1)).await
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

    async fn acquire_limited(
        &self,
        key: &LockKey,
        max_wait: Duration,
        max_attempts: Option<u32>,
    ) -> Result<LockGuard, AcquireError> {
        let mut pending = Pending::begin(self, key.prefixed(&self.core.prefix));
        let span = tracing::debug_span!(
            "lock.acquire",
            lock = self.metrics.lock(),
            key = self.metrics.show(&pending.key)
        );
        let result = pin!(self.win(&mut pending, max_wait, max_attempts)).instrument(span).await;
        pending.finish(result)
    }

    async fn win(
        &self,
        pending: &mut Pending<'_>,
        max_wait: Duration,
        max_attempts: Option<u32>,
    ) -> Result<Won, AcquireError> {
        let queues = &self.core.queues;
        let limits = Limits { give_up: pending.acquisition.started() + max_wait, max_attempts };
        if max_wait.is_zero() || max_attempts == Some(1) {
            return match queues.glance(&pending.key) {
                Glance::Free(seat) => self.compete(pending, Some(seat), limits).await,
                Glance::Unknown => self.compete(pending, None, limits).await,
                Glance::Taken(error) => {
                    pending.acquisition.found_taken();
                    Err(error)
                }
            };
        }
        let settings = &self.settings;
        match queues.join(&pending.key, &pending.token, settings.ttl(), settings.max_waiters()) {
            Err(QueueFull) => Err(AcquireError::QueueFull),
            Ok(Place::Front(seat)) => {
                pending.acquisition.queued(0);
                self.compete(pending, Some(seat), limits).await
            }
            Ok(Place::Behind(waiting, ahead)) => {
                pending.acquisition.queued(ahead + 1);
                pending.acquisition.found_taken();
                Box::pin(self.wait_in_line(pending, waiting, limits)).await
            }
        }
    }

    /// Waits for the turn, without a word to the store.
    async fn wait_in_line(
        &self,
        pending: &mut Pending<'_>,
        mut waiting: Waiting,
        limits: Limits,
    ) -> Result<Won, AcquireError> {
        let core = &*self.core;
        let closed = core.close.notified();
        if core.closing.load(Ordering::Acquire) {
            return Err(AcquireError::ShuttingDown);
        }
        let promotion = tokio::select! {
            biased;
            promotion = waiting.promoted() => promotion,
            () = closed => return Err(AcquireError::ShuttingDown),
            () = sleep(limits.give_up.since(core.clock.now())) => {
                return Err(waiting.verdict().unwrap_or_else(AcquireError::no_answer));
            }
        };
        pending.acquisition.woken(WakeCause::Local);
        match promotion {
            Promotion::HandedOver(lock) => {
                let (seat, sent) = lock.accept();
                if pending.is_in_time(sent) {
                    return Ok(Won { sent, seat: Some(seat) });
                }
                pending.swap_in_doubt = true;
                self.compete(pending, Some(seat), limits).await
            }
            Promotion::Compete { seat, in_doubt } => {
                if let Some(in_doubt) = in_doubt {
                    pending.swap_in_doubt = true;
                    in_doubt.claim();
                }
                if seat.makes_room() {
                    sleep(MAKE_ROOM.min(limits.give_up.since(core.clock.now()))).await;
                }
                self.compete(pending, Some(seat), limits).await
            }
        }
    }

    /// Asks the store until it grants the lock or the limits are reached. Those behind are told what it says.
    async fn compete(
        &self,
        pending: &mut Pending<'_>,
        seat: Option<Seat>,
        limits: Limits,
    ) -> Result<Won, AcquireError> {
        let core = &*self.core;
        let mut backoff = self.settings.backoff(pending.token.seed());
        let mut wake_up = None;
        loop {
            let closed = core.close.notified();
            if core.closing.load(Ordering::Acquire) {
                return Err(AcquireError::ShuttingDown);
            }
            let error = match pending.attempt().await {
                Ok(sent) => return Ok(Won { sent, seat }),
                Err(error) => error,
            };
            if let Some(seat) = &seat {
                seat.learnt(Front::Refused(error.clone()));
            }
            let now = core.clock.now();
            let last = limits.max_attempts.is_some_and(|most| pending.acquisition.attempts() >= most);
            if last || now >= limits.give_up || !error.may_pass() {
                return Err(error);
            }
            let wake_up = wake_up.get_or_insert_with(|| pending.wake_up());
            let mut expires = None;
            if let AcquireError::Contended(contended) = &error {
                core.keeper.watch_for(wake_up);
                expires = contended.remaining().map(|remaining| remaining + AFTER_EXPIRY);
            }
            let poll = backoff.next_delay();
            let pause = expires.map_or(poll, |expires| expires.min(poll)).min(limits.give_up.since(now));
            let cause = tokio::select! {
                () = wake_up.woken() => WakeCause::Push,
                () = closed => continue,
                () = sleep(pause) => {
                    if expires == Some(pause) { WakeCause::Ttl } else { WakeCause::Poll }
                }
            };
            pending.acquisition.woken(cause);
            if cause == WakeCause::Push {
                sleep(SPREAD.mul_f64(fastrand::f64())).await;
            }
        }
    }

    /// Whether `held` is this locker's lock on `key`.
    pub(crate) fn holds(&self, held: &HeldLock, key: &LockKey) -> bool {
        held.is_held() && held.key() == &key.prefixed(&self.core.prefix)
    }

    fn term(&self) -> Term {
        Term { ttl: self.settings.ttl(), margin: self.settings.margin() }
    }
}

/// A lock that was taken: when the winning command was sent, and the seat to keep while it is held.
struct Won {
    sent: Moment,
    seat: Option<Seat>,
}

/// When to stop asking.
#[derive(Clone, Copy)]
struct Limits {
    give_up: Moment,
    max_attempts: Option<u32>,
}

/// Head start of other processes after a lock was released for their sake: some round trips.
const MAKE_ROOM: Duration = Duration::from_millis(2);

/// All processes that wait for a lock are told of its release at the same moment. They ask for it at random
/// moments within this time, so that the first one's success reaches most of the others as a push.
const SPREAD: Duration = Duration::from_millis(1);

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
