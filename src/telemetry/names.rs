//! The catalogue: every metric's name, and the bucket edges of the histograms.
//!
//! Names are in their final form: prefix, base unit, `_total`. Histograms in seconds unless named otherwise.

/// Counter {lock, outcome}: acquisitions finished.
pub const ACQUISITIONS: &str = "tower_lock_acquisitions_total";
/// Histogram {lock, outcome}: from just before the first store call to the outcome.
pub const ACQUIRE_DURATION: &str = "tower_lock_acquire_duration_seconds";
/// Histogram {lock}: store attempts of one finished acquisition.
pub const ACQUIRE_ATTEMPTS: &str = "tower_lock_acquire_attempts";
/// Counter {lock}: acquisitions whose first attempt found the lock taken.
pub const CONTENTION: &str = "tower_lock_contention_total";
/// Gauge {lock}: acquisitions under way.
pub const WAITING: &str = "tower_lock_waiting";
/// Gauge {lock}: locks that this process believes it holds.
pub const HELD: &str = "tower_lock_held";
/// Histogram {lock}: from the grant to the end of the release, or to the loss.
pub const HOLD_DURATION: &str = "tower_lock_hold_duration_seconds";
/// Counter {lock, outcome}: renewal attempts finished.
pub const RENEWALS: &str = "tower_lock_renewals_total";
/// Histogram {lock}, 0 to 1: share of the lease that was left when a renewal succeeded.
pub const RENEWAL_MARGIN: &str = "tower_lock_renewal_margin_ratio";
/// Counter {lock, reason}: locks lost while they were held.
pub const LOST: &str = "tower_lock_lost_total";
/// Counter {lock, outcome}: one for each lock that was granted and is not held any more.
pub const RELEASES: &str = "tower_lock_releases_total";
/// Counter {lock, reason}: requests that ran without a lock.
pub const BYPASSED: &str = "tower_lock_bypassed_total";
/// Counter {lock, status}: responses made by the layer in place of the handler.
pub const REJECTIONS: &str = "tower_lock_rejections_total";
/// Counter {lock}: handlers dropped because their lock was lost.
pub const HANDLERS_ABORTED: &str = "tower_lock_handlers_aborted_total";
/// Counter {store, operation, kind}: store operations that failed.
pub const STORE_ERRORS: &str = "tower_lock_store_errors_total";
/// Histogram {store, operation, outcome}: store operations.
pub const STORE_OPERATION_DURATION: &str = "tower_lock_store_operation_duration_seconds";
/// Gauge {store}: operations without an answer yet.
pub const STORE_PENDING_OPERATIONS: &str = "tower_lock_store_pending_operations";
/// Counter {store}: connections opened in place of a broken one.
pub const STORE_RECONNECTS: &str = "tower_lock_store_reconnects_total";
/// Gauge {store}: 1 while changes are pushed, 0 while the store is asked at intervals.
pub const WATCH_UP: &str = "tower_lock_watch_up";
/// Gauge {lock}: the ttl that is set.
pub const LEASE_TTL: &str = "tower_lock_lease_ttl_seconds";
/// Gauge {lock}: the `max_wait` that is set.
pub const ACQUIRE_TIMEOUT: &str = "tower_lock_acquire_timeout_seconds";
/// Histogram {lock}: requests of this process that were at the same key already, holding or waiting.
pub const QUEUE_DEPTH: &str = "tower_lock_queue_depth";
/// Counter {lock}: turns passed to a waiter of this process by swapping the token.
pub const HANDOVERS: &str = "tower_lock_handovers_total";
/// Counter {lock, cause}: what ended a wait between attempts.
pub const WAKEUPS: &str = "tower_lock_wakeups_total";
/// Counter {lock, outcome}: tokens of acquisitions without a known result, and of failed releases, removed.
pub const CLEANUPS: &str = "tower_lock_cleanups_total";
/// Gauge {version}, always 1.
pub const BUILD_INFO: &str = "tower_lock_build_info";

/// Bucket edges of [`ACQUIRE_DURATION`]. 0.25 is the edge of the latency objective.
pub const ACQUIRE_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Bucket edges of [`HOLD_DURATION`].
pub const HOLD_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Bucket edges of [`STORE_OPERATION_DURATION`]: Redis answers in well under a millisecond.
pub const STORE_BUCKETS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];
/// Bucket edges of [`ACQUIRE_ATTEMPTS`].
pub const ATTEMPTS_BUCKETS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0];
/// Bucket edges of [`RENEWAL_MARGIN`].
pub const MARGIN_BUCKETS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// Bucket edges of [`QUEUE_DEPTH`].
pub const QUEUE_BUCKETS: &[f64] = &[0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Every histogram with its bucket edges.
pub const BUCKETS: [(&str, &[f64]); 6] = [
    (QUEUE_DEPTH, QUEUE_BUCKETS),
    (ACQUIRE_DURATION, ACQUIRE_BUCKETS),
    (ACQUIRE_ATTEMPTS, ATTEMPTS_BUCKETS),
    (HOLD_DURATION, HOLD_BUCKETS),
    (RENEWAL_MARGIN, MARGIN_BUCKETS),
    (STORE_OPERATION_DURATION, STORE_BUCKETS),
];
