//! What is counted about a store.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use super::names::*;
use super::{Registered, register_store};
use crate::store::{Operation, StoreError};

/// The metrics of one store name.
#[derive(Clone, Debug)]
pub(crate) struct StoreMetrics {
    store: &'static str,
    registered: Registered,
}

impl StoreMetrics {
    pub(crate) fn new(store: &'static str) -> Self {
        Self { store, registered: Registered::default() }
    }

    pub(crate) fn register(&self) {
        self.registered.once_per_recorder(|| register_store(self.store));
    }

    pub(crate) fn watch_is_up(&self, up: bool) {
        self.register();
        gauge!(WATCH_UP, "store" => self.store).set(f64::from(u8::from(up)));
    }

    pub(crate) fn operation_finished(
        &self,
        operation: Operation,
        took: Duration,
        error: Option<&StoreError>,
    ) {
        self.register();
        let operation = operation.as_str();
        let outcome = if error.is_none() { "ok" } else { "error" };
        histogram!(
            STORE_OPERATION_DURATION,
            "store" => self.store, "operation" => operation, "outcome" => outcome
        )
        .record(took);
        if let Some(error) = error {
            let kind = error.kind().as_str();
            counter!(STORE_ERRORS, "store" => self.store, "operation" => operation, "kind" => kind)
                .increment(1);
        }
    }
}
