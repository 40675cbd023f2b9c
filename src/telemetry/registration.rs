//! Every series at zero before it first counts.
//!
//! A counter that appears with the value 1 has no rate and no increase, so the first lost lock would raise
//! no alarm. Describing and registering happens once per recorder: a recorder that is installed later, or in
//! place of another one, gets its zeros with the next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, with_recorder,
};

use super::lock::{
    AcquisitionOutcome, BypassReason, CleanupOutcome, ReleaseOutcome, RenewalOutcome, WakeCause,
};
use super::names::*;
use crate::lease::LostReason;
use crate::rejection::STATUSES;
use crate::settings::LockSettings;
use crate::store::{Operation, StoreErrorKind};

/// Remembers for which recorder something was done last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registered(Arc<AtomicUsize>);

impl Registered {
    pub(crate) fn once_per_recorder(&self, register: impl FnOnce()) {
        let current = current_recorder();
        if self.0.load(Ordering::Relaxed) != current {
            self.0.store(current, Ordering::Relaxed);
            register();
        }
    }
}

/// Tells recorders apart that live at the same time.
pub(super) fn current_recorder() -> usize {
    with_recorder(|recorder| std::ptr::from_ref(recorder).cast::<()>().addr())
}

/// Gives the current recorder the descriptions of all metrics.
fn describe() {
    describe_counter!(ACQUISITIONS, "Acquisitions finished, by outcome.");
    describe_histogram!(ACQUIRE_DURATION, Unit::Seconds, "Time from the first store call to the outcome.");
    describe_histogram!(ACQUIRE_ATTEMPTS, "Store attempts of one finished acquisition.");
    describe_counter!(CONTENTION, "Acquisitions whose first attempt found the lock taken.");
    describe_gauge!(WAITING, "Acquisitions under way.");
    describe_gauge!(HELD, "Locks that this process believes it holds.");
    describe_histogram!(HOLD_DURATION, Unit::Seconds, "Time from the grant to the release or the loss.");
    describe_counter!(RENEWALS, "Renewal attempts finished, by outcome.");
    describe_histogram!(RENEWAL_MARGIN, "Share of the lease that was left when a renewal succeeded.");
    describe_counter!(LOST, "Locks lost while they were held, by reason.");
    describe_counter!(RELEASES, "Locks that were granted and are not held any more, by outcome.");
    describe_counter!(BYPASSED, "Requests that ran without a lock, by reason.");
    describe_counter!(REJECTIONS, "Responses made by the layer in place of the handler, by status.");
    describe_counter!(HANDLERS_ABORTED, "Handlers dropped because their lock was lost.");
    describe_counter!(STORE_ERRORS, "Store operations that failed, by operation and kind.");
    describe_histogram!(STORE_OPERATION_DURATION, Unit::Seconds, "Duration of one store operation.");
    describe_gauge!(STORE_PENDING_OPERATIONS, "Store operations without an answer yet.");
    describe_counter!(STORE_RECONNECTS, "Connections opened in place of a broken one.");
    describe_gauge!(WATCH_UP, "1 while changes are pushed, 0 while the store is asked at intervals.");
    describe_gauge!(LEASE_TTL, Unit::Seconds, "Configured ttl of the lock.");
    describe_gauge!(ACQUIRE_TIMEOUT, Unit::Seconds, "Configured longest wait for the lock.");
    describe_histogram!(
        QUEUE_DEPTH,
        "Requests of this process that were at the same key already, holding or waiting."
    );
    describe_counter!(HANDOVERS, "Turns passed to a waiter of this process by swapping the token.");
    describe_counter!(WAKEUPS, "Waits between attempts that ended, by cause.");
    describe_counter!(CLEANUPS, "Clean-ups of tokens whose acquisition or release had no known result.");
    describe_gauge!(BUILD_INFO, "Always 1; the label carries the version of the crate.");
}

/// Sets every series of the lock `lock` to its start.
pub(crate) fn register_lock(lock: &'static str, settings: &LockSettings) {
    describe();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1);
    gauge!(LEASE_TTL, "lock" => lock).set(settings.ttl().as_secs_f64());
    gauge!(ACQUIRE_TIMEOUT, "lock" => lock).set(settings.max_wait().as_secs_f64());
    gauge!(WAITING, "lock" => lock).increment(0);
    gauge!(HELD, "lock" => lock).increment(0);
    counter!(CONTENTION, "lock" => lock).increment(0);
    counter!(HANDLERS_ABORTED, "lock" => lock).increment(0);
    counter!(HANDOVERS, "lock" => lock).increment(0);
    for cause in WakeCause::ALL {
        counter!(WAKEUPS, "lock" => lock, "cause" => cause.as_str()).increment(0);
    }
    for outcome in AcquisitionOutcome::ALL {
        counter!(ACQUISITIONS, "lock" => lock, "outcome" => outcome.as_str()).increment(0);
        drop(histogram!(ACQUIRE_DURATION, "lock" => lock, "outcome" => outcome.as_str()));
    }
    for outcome in RenewalOutcome::ALL {
        counter!(RENEWALS, "lock" => lock, "outcome" => outcome.as_str()).increment(0);
    }
    for outcome in ReleaseOutcome::ALL {
        counter!(RELEASES, "lock" => lock, "outcome" => outcome.as_str()).increment(0);
    }
    for outcome in CleanupOutcome::ALL {
        counter!(CLEANUPS, "lock" => lock, "outcome" => outcome.as_str()).increment(0);
    }
    for reason in LostReason::ALL {
        counter!(LOST, "lock" => lock, "reason" => reason.as_str()).increment(0);
    }
    for reason in BypassReason::ALL {
        counter!(BYPASSED, "lock" => lock, "reason" => reason.as_str()).increment(0);
    }
    for status in STATUSES {
        counter!(REJECTIONS, "lock" => lock, "status" => status).increment(0);
    }
    for name in [ACQUIRE_ATTEMPTS, HOLD_DURATION, QUEUE_DEPTH, RENEWAL_MARGIN] {
        drop(histogram!(name, "lock" => lock));
    }
}

/// Sets every series of the store `store` to its start.
pub(crate) fn register_store(store: &'static str) {
    describe();
    gauge!(WATCH_UP, "store" => store).increment(0);
    gauge!(STORE_PENDING_OPERATIONS, "store" => store).increment(0);
    counter!(STORE_RECONNECTS, "store" => store).increment(0);
    for operation in Operation::ALL {
        let operation = operation.as_str();
        for outcome in ["ok", "error"] {
            drop(histogram!(
                STORE_OPERATION_DURATION,
                "store" => store, "operation" => operation, "outcome" => outcome
            ));
        }
        for kind in StoreErrorKind::ALL {
            counter!(STORE_ERRORS, "store" => store, "operation" => operation, "kind" => kind.as_str())
                .increment(0);
        }
    }
}
