//! What is counted about a lock, at which moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tracing::field::DisplayValue;

use super::kept::Kept;
use super::log::ShownKey;
use super::names::*;
use super::{KeyDisplay, Registered, Throttle, register_lock};
use crate::clock::{Clock, Moment};
use crate::key::LockKey;
use crate::lease::LostReason;
use crate::settings::LockSettings;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

labels! {
    /// How an acquisition ended.
    AcquisitionOutcome {
        Acquired = "acquired",
        Contended = "contended",
        QueueFull = "queue_full",
        Error = "error",
        Cancelled = "cancelled",
    }
}
labels! {
    /// How a renewal attempt ended.
    RenewalOutcome { Renewed = "renewed", NotOwned = "not_owned", Error = "error" }
}
labels! {
    /// What became of a lock that was granted.
    ReleaseOutcome {
        Released = "released",
        Late = "late",
        NotOwned = "not_owned",
        Error = "error",
        Skipped = "skipped",
    }
}
labels! {
    /// What ended a wait between attempts.
    WakeCause { Push = "push", Ttl = "ttl", Poll = "poll", Local = "local" }
}
labels! {
    /// Why a request ran without a lock.
    BypassReason { FailOpen = "fail_open", NoKey = "no_key", Disabled = "disabled" }
}
labels! {
    /// How a clean-up ended.
    CleanupOutcome { Removed = "removed", NotOwned = "not_owned", Error = "error" }
}

/// The metrics of one lock name.
#[derive(Clone, Debug)]
pub(crate) struct LockMetrics {
    lock: &'static str,
    registered: Registered,
    clock: Clock,
    keys: KeyDisplay,
    /// A moving average of hold times, in nanoseconds; 0 = none yet.
    typical_hold: Arc<AtomicU64>,
    warnings: Arc<Warnings>,
    series: Arc<Series>,
}

/// What every lock counts in that is taken and given back without trouble.
#[derive(Debug, Default)]
struct Series {
    waiting: Kept<Gauge>,
    held: Kept<Gauge>,
    acquired: Kept<Counter>,
    acquired_duration: Kept<Histogram>,
    attempts: Kept<Histogram>,
    queue_depth: Kept<Histogram>,
    released: Kept<Counter>,
    hold_duration: Kept<Histogram>,
}

#[derive(Debug)]
struct Warnings {
    lost: Throttle,
    unclean_release: Throttle,
    no_expiry: Throttle,
}

/// Warnings of one kind per period.
const BURST: u32 = 5;

impl LockMetrics {
    pub(crate) fn new(lock: &'static str, keys: KeyDisplay, clock: Clock) -> Self {
        let warnings =
            Warnings { lost: Throttle::new(), unclean_release: Throttle::new(), no_expiry: Throttle::new() };
        let typical_hold = Arc::default();
        Self {
            lock,
            registered: Registered::default(),
            clock,
            keys,
            typical_hold,
            warnings: Arc::new(warnings),
            series: Arc::default(),
        }
    }

    /// The same under another name.
    pub(crate) fn renamed(&self, lock: &'static str) -> Self {
        Self::new(lock, self.keys, self.clock.clone())
    }

    /// The key as logs show it.
    pub(crate) fn show<'a>(&self, key: &'a LockKey) -> DisplayValue<ShownKey<'a>> {
        tracing::field::display(self.keys.show(key))
    }

    pub(crate) fn lock(&self) -> &'static str {
        self.lock
    }

    pub(crate) fn register(&self, settings: &LockSettings) {
        self.registered.once_per_recorder(|| register_lock(self.lock, settings));
    }

    /// An acquisition starts. The guard counts its end, as cancelled if it is dropped unresolved.
    pub(crate) fn acquisition_started(&self, settings: &LockSettings) -> Acquisition {
        self.register(settings);
        let started = self.clock.now();
        let waiting =
            self.series.waiting.with(started, || gauge!(WAITING, "lock" => self.lock), Gauge::clone);
        Acquisition {
            lock: self.lock,
            attempts: 0,
            contended: false,
            resolved: None,
            started,
            clock: self.clock.clone(),
            series: Arc::clone(&self.series),
            _waiting: RaisedGauge::new(waiting),
        }
    }

    pub(crate) fn granted(&self) -> HeldGauge {
        let look_up = || gauge!(HELD, "lock" => self.lock);
        HeldGauge { _held: RaisedGauge::new(self.series.held.with(self.clock.now(), look_up, Gauge::clone)) }
    }

    pub(crate) fn renewal_finished(&self, outcome: RenewalOutcome) {
        counter!(RENEWALS, "lock" => self.lock, "outcome" => outcome.as_str()).increment(1);
    }

    pub(crate) fn renewed_with(&self, share_left: f64) {
        histogram!(RENEWAL_MARGIN, "lock" => self.lock).record(share_left);
    }

    pub(crate) fn lost(&self, key: &LockKey, reason: LostReason, held_for: Duration) {
        counter!(LOST, "lock" => self.lock, "reason" => reason.as_str()).increment(1);
        if let Some(suppressed) = self.warnings.lost.admit(BURST, &self.clock) {
            tracing::warn!(
                lock = self.lock, key = self.show(key), %reason, ?held_for, suppressed,
                "a lock was lost while it was held"
            );
        }
    }

    /// The key that should be a lock has no expiry.
    pub(crate) fn no_expiry(&self, key: &LockKey) {
        if let Some(suppressed) = self.warnings.no_expiry.admit(1, &self.clock) {
            tracing::warn!(
                lock = self.lock,
                key = self.show(key),
                suppressed,
                "the key of a lock has no expiry, so it was not set by a lock"
            );
        }
    }

    /// The store did not release, or says that the lock was not ours.
    pub(crate) fn unclean_release(&self, key: &LockKey, reason: &dyn std::fmt::Display) {
        if let Some(suppressed) = self.warnings.unclean_release.admit(BURST, &self.clock) {
            tracing::warn!(
                lock = self.lock, key = self.show(key), %reason, suppressed,
                "a lock was not released as it should be"
            );
        }
    }

    pub(crate) fn released(&self, outcome: ReleaseOutcome, held_for: Duration) {
        let now = self.clock.now();
        let look_up = || counter!(RELEASES, "lock" => self.lock, "outcome" => outcome.as_str());
        match outcome {
            ReleaseOutcome::Released => self.series.released.with(now, look_up, |series| series.increment(1)),
            _ => look_up().increment(1),
        }
        let look_up = || histogram!(HOLD_DURATION, "lock" => self.lock);
        self.series.hold_duration.with(now, look_up, |series| series.record(held_for));
        let average = self.typical_hold().map_or(held_for, |typical| (typical * 7 + held_for) / 8);
        let nanos = u64::try_from(average.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.typical_hold.store(nanos, Ordering::Relaxed);
    }

    /// How long this lock was held lately, over all its keys; `None` before the first hold has ended.
    pub(crate) fn typical_hold(&self) -> Option<Duration> {
        match self.typical_hold.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    pub(crate) fn handed_over(&self) {
        counter!(HANDOVERS, "lock" => self.lock).increment(1);
    }

    pub(crate) fn cleaned_up(&self, outcome: CleanupOutcome) {
        counter!(CLEANUPS, "lock" => self.lock, "outcome" => outcome.as_str()).increment(1);
    }

    pub(crate) fn bypassed(&self, reason: BypassReason) {
        counter!(BYPASSED, "lock" => self.lock, "reason" => reason.as_str()).increment(1);
    }

    pub(crate) fn rejected(&self, status: &'static str) {
        counter!(REJECTIONS, "lock" => self.lock, "status" => status).increment(1);
    }

    pub(crate) fn handler_aborted(&self) {
        counter!(HANDLERS_ABORTED, "lock" => self.lock).increment(1);
    }
}

/// One acquisition under way.
#[derive(Debug)]
pub(crate) struct Acquisition {
    lock: &'static str,
    attempts: u32,
    contended: bool,
    resolved: Option<AcquisitionOutcome>,
    started: Moment,
    clock: Clock,
    series: Arc<Series>,
    _waiting: RaisedGauge,
}

impl Acquisition {
    pub(crate) fn attempt_sent(&mut self) {
        self.attempts += 1;
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Somebody of this process is at the lock, with `ahead` others waiting already.
    pub(crate) fn queued(&self, ahead: usize) {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let look_up = || histogram!(QUEUE_DEPTH, "lock" => self.lock);
        self.series.queue_depth.with(self.started, look_up, |series| series.record(ahead));
    }

    pub(crate) fn woken(&self, cause: WakeCause) {
        counter!(WAKEUPS, "lock" => self.lock, "cause" => cause.as_str()).increment(1);
    }

    /// The lock is taken; counted if it is so at the first sight.
    pub(crate) fn found_taken(&mut self) {
        if self.attempts <= 1 && !std::mem::replace(&mut self.contended, true) {
            counter!(CONTENTION, "lock" => self.lock).increment(1);
        }
    }

    pub(crate) fn started(&self) -> Moment {
        self.started
    }

    /// Decides what the drop will count.
    pub(crate) fn resolve(&mut self, outcome: AcquisitionOutcome) {
        self.resolved = Some(outcome);
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        let now = self.clock.now();
        let took = now.since(self.started);
        let outcome = self.resolved.unwrap_or(AcquisitionOutcome::Cancelled);
        let label = outcome.as_str();
        let count = || counter!(ACQUISITIONS, "lock" => self.lock, "outcome" => label);
        let duration = || histogram!(ACQUIRE_DURATION, "lock" => self.lock, "outcome" => label);
        if outcome == AcquisitionOutcome::Acquired {
            self.series.acquired.with(now, count, |series| series.increment(1));
            self.series.acquired_duration.with(now, duration, |series| series.record(took));
        } else {
            count().increment(1);
            duration().record(took);
        }
        let attempts = || histogram!(ACQUIRE_ATTEMPTS, "lock" => self.lock);
        self.series.attempts.with(now, attempts, |series| series.record(self.attempts));
    }
}

/// Raised while a lock is held.
#[derive(Debug)]
pub(crate) struct HeldGauge {
    _held: RaisedGauge,
}

/// A gauge that is one higher as long as this lives. It keeps the handle that it raised, so that the same
/// cell is lowered even if another recorder has been installed since.
pub(crate) struct RaisedGauge(Gauge);

impl RaisedGauge {
    pub(super) fn new(gauge: Gauge) -> Self {
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for RaisedGauge {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl std::fmt::Debug for RaisedGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RaisedGauge")
    }
}
