//! A store that counts and times what another store does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    Acquire, Attempt, ChangeSink, Fence, KeyWatch, LockStore, Looking, OpenedWatch, Operation, Owned,
    OwnerToken, Release, Renewal, StoreError,
};
use crate::clock::{Clock, Moment};
use crate::telemetry::{RaisedGauge, StoreMetrics};

#[derive(Debug)]
pub(crate) struct MeteredStore<S> {
    inner: S,
    metrics: StoreMetrics,
    clock: Clock,
    reconnects: AtomicU64,
}

impl<S: LockStore> MeteredStore<S> {
    pub(crate) fn new(inner: S, metrics: StoreMetrics, clock: Clock) -> Self {
        Self { inner, metrics, clock, reconnects: AtomicU64::new(0) }
    }

    // Not a function that takes the command's future: the command's bytes would be in memory three times.
    fn started(&self, operation: Operation) -> Started<'_> {
        Started::new(&self.metrics, &self.clock, operation)
    }

    fn finished<T>(&self, started: Started<'_>, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let result = started.finished(result);
        let reconnects = self.inner.reconnects();
        let counted = self.reconnects.fetch_max(reconnects, Ordering::Relaxed);
        if reconnects > counted {
            self.metrics.reconnected(reconnects - counted);
        }
        result
    }
}

impl<S: LockStore> LockStore for MeteredStore<S> {
    async fn acquire(&self, attempt: Attempt<'_>) -> Result<Acquire, StoreError> {
        let started = self.started(Operation::Acquire);
        let result = self.inner.acquire(attempt).await;
        self.finished(started, result)
    }

    async fn renew(&self, owned: Owned<'_>, ttl: Duration) -> Result<Renewal, StoreError> {
        let started = self.started(Operation::Renew);
        let result = self.inner.renew(owned, ttl).await;
        self.finished(started, result)
    }

    async fn release(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let started = self.started(Operation::Release);
        let result = self.inner.release(owned).await;
        self.finished(started, result)
    }

    async fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> Result<Release, StoreError> {
        let started = self.started(Operation::Release);
        let result = self.inner.hand_over(owned, next, ttl).await;
        self.finished(started, result)
    }

    async fn fence(&self, owned: Owned<'_>) -> Result<Fence, StoreError> {
        let started = self.started(Operation::Fence);
        let result = self.inner.fence(owned).await;
        self.finished(started, result)
    }

    async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        // A failure is no outage: it says that the order cannot be had, and a release follows.
        self.inner.clean_up(owned).await
    }

    async fn open_watch(&self, changes: ChangeSink) -> OpenedWatch {
        let started = self.started(Operation::Watch);
        let result = self.inner.open_watch(changes).await;
        let watch = self.finished(started, result)?;
        Ok(watch.map(|watch| {
            let watch = MeteredWatch { watch, metrics: self.metrics.clone(), clock: self.clock.clone() };
            Arc::new(watch) as Arc<dyn KeyWatch>
        }))
    }

    fn for_keeper(&self) -> Self {
        Self::new(self.inner.for_keeper(), self.metrics.clone(), self.clock.clone())
    }
}

#[derive(Debug)]
struct MeteredWatch {
    watch: Arc<dyn KeyWatch>,
    metrics: StoreMetrics,
    clock: Clock,
}

impl KeyWatch for MeteredWatch {
    fn look<'a>(&'a self, owned: Owned<'a>) -> Looking<'a> {
        Box::pin(async move {
            let started = Started::new(&self.metrics, &self.clock, Operation::Watch);
            let result = self.watch.look(owned).await;
            started.finished(result)
        })
    }
}

/// An operation under way.
struct Started<'a> {
    metrics: &'a StoreMetrics,
    clock: &'a Clock,
    operation: Operation,
    start: Moment,
    _pending: RaisedGauge,
}

impl<'a> Started<'a> {
    fn new(metrics: &'a StoreMetrics, clock: &'a Clock, operation: Operation) -> Self {
        Self { metrics, clock, operation, start: clock.now(), _pending: metrics.operation_started() }
    }

    fn finished<T>(self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let took = self.clock.now().since(self.start);
        self.metrics.operation_finished(self.operation, took, result.as_ref().err());
        result
    }
}
