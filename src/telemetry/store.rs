//! What is counted about a store.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Gauge, Histogram, counter, gauge, histogram};

use super::kept::Kept;
use super::names::*;
use super::{RaisedGauge, Registered, Throttle, register_store};
use crate::clock::Clock;
use crate::store::{Operation, StoreError, StoreErrorKind};

/// The metrics of one store name.
#[derive(Clone, Debug)]
pub(crate) struct StoreMetrics {
    store: &'static str,
    registered: Registered,
    clock: Clock,
    /// One for each kind of error.
    throttles: Arc<[Throttle]>,
    series: Arc<Series>,
}

#[derive(Debug, Default)]
struct Series {
    pending: Kept<Gauge>,
    /// Of operations that succeed, by operation.
    durations: [Kept<Histogram>; Operation::ALL.len()],
}

/// Log lines per kind of error and period.
const BURST: u32 = 1;

impl StoreMetrics {
    pub(crate) fn new(store: &'static str, clock: Clock) -> Self {
        let throttles = StoreErrorKind::ALL.map(|_| Throttle::new());
        Self {
            store,
            registered: Registered::default(),
            clock,
            throttles: Arc::new(throttles),
            series: Arc::default(),
        }
    }

    pub(crate) fn register(&self) {
        self.registered.once_per_recorder(|| register_store(self.store));
    }

    pub(crate) fn watch_is_up(&self, up: bool) {
        self.register();
        gauge!(WATCH_UP, "store" => self.store).set(f64::from(u8::from(up)));
    }

    /// An operation is sent; it is pending until the guard is dropped.
    pub(crate) fn operation_started(&self) -> RaisedGauge {
        self.register();
        let look_up = || gauge!(STORE_PENDING_OPERATIONS, "store" => self.store);
        RaisedGauge::new(self.series.pending.with(self.clock.now(), look_up, Gauge::clone))
    }

    pub(crate) fn reconnected(&self, times: u64) {
        counter!(STORE_RECONNECTS, "store" => self.store).increment(times);
    }

    pub(crate) fn operation_finished(
        &self,
        operation: Operation,
        took: Duration,
        error: Option<&StoreError>,
    ) {
        let label = operation.as_str();
        let look_up = |outcome: &'static str| {
            let store = self.store;
            histogram!(STORE_OPERATION_DURATION, "store" => store, "operation" => label, "outcome" => outcome)
        };
        match (error, self.series.durations.get(operation as usize)) {
            (None, Some(kept)) => kept.with(self.clock.now(), || look_up("ok"), |series| series.record(took)),
            (None, None) => look_up("ok").record(took),
            (Some(error), _) => {
                look_up("error").record(took);
                self.failed(label, error);
            }
        }
    }

    fn failed(&self, operation: &'static str, error: &StoreError) {
        let kind = error.kind().as_str();
        counter!(STORE_ERRORS, "store" => self.store, "operation" => operation, "kind" => kind).increment(1);
        let throttle = StoreErrorKind::ALL.iter().position(|&kind| kind == error.kind());
        let throttle = throttle.and_then(|position| self.throttles.get(position));
        if let Some(suppressed) = throttle.and_then(|throttle| throttle.admit(BURST, &self.clock)) {
            tracing::error!(store = self.store, operation, %error, suppressed, "the lock store failed");
        }
    }
}
