//! A store that counts and times what another store does.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{
    Acquire, Attempt, ChangeSink, Fence, KeyWatch, LockStore, Looking, OpenedWatch, Operation, Owned,
    OwnerToken, Release, Renewal, StoreError,
};
use crate::clock::Clock;
use crate::telemetry::StoreMetrics;

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

    async fn metered<T>(
        &self,
        operation: Operation,
        command: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let result = metered(&self.metrics, &self.clock, operation, command).await;
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
        self.metered(Operation::Acquire, self.inner.acquire(attempt)).await
    }

    async fn renew(&self, owned: Owned<'_>, ttl: Duration) -> Result<Renewal, StoreError> {
        self.metered(Operation::Renew, self.inner.renew(owned, ttl)).await
    }

    async fn release(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        self.metered(Operation::Release, self.inner.release(owned)).await
    }

    async fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> Result<Release, StoreError> {
        self.metered(Operation::Release, self.inner.hand_over(owned, next, ttl)).await
    }

    async fn fence(&self, owned: Owned<'_>) -> Result<Fence, StoreError> {
        self.metered(Operation::Fence, self.inner.fence(owned)).await
    }

    async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        // A failure is no outage: it says that the order cannot be had, and a release follows.
        self.inner.clean_up(owned).await
    }

    async fn open_watch(&self, changes: ChangeSink) -> OpenedWatch {
        let watch = self.metered(Operation::Watch, self.inner.open_watch(changes)).await?;
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
        Box::pin(metered(&self.metrics, &self.clock, Operation::Watch, self.watch.look(owned)))
    }
}

async fn metered<T>(
    metrics: &StoreMetrics,
    clock: &Clock,
    operation: Operation,
    command: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let _pending = metrics.operation_started();
    let start = clock.now();
    let result = command.await;
    metrics.operation_finished(operation, clock.now().since(start), result.as_ref().err());
    result
}
