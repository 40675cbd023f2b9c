//! `LockStore` as a trait object, so that `Locker` need not be generic.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Acquire, Attempt, ChangeSink, Fence, LockStore, Opening, Owned, OwnerToken, Release, Renewal, StoreError,
};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

pub(crate) trait ErasedStore: std::fmt::Debug + Send + Sync {
    fn acquire<'a>(&'a self, attempt: Attempt<'a>) -> Boxed<'a, Acquire>;
    fn renew<'a>(&'a self, owned: Owned<'a>, ttl: Duration) -> Boxed<'a, Renewal>;
    fn release<'a>(&'a self, owned: Owned<'a>) -> Boxed<'a, Release>;
    fn hand_over<'a>(&'a self, owned: Owned<'a>, next: &'a OwnerToken, ttl: Duration) -> Boxed<'a, Release>;
    fn fence<'a>(&'a self, owned: Owned<'a>) -> Boxed<'a, Fence>;
    fn clean_up<'a>(&'a self, owned: Owned<'a>) -> Boxed<'a, Release>;
    fn open_watch(&self, changes: ChangeSink) -> Opening<'_>;
    fn for_keeper(&self) -> Arc<dyn ErasedStore>;
}

impl<S: LockStore> ErasedStore for S {
    fn acquire<'a>(&'a self, attempt: Attempt<'a>) -> Boxed<'a, Acquire> {
        Box::pin(LockStore::acquire(self, attempt))
    }

    fn renew<'a>(&'a self, owned: Owned<'a>, ttl: Duration) -> Boxed<'a, Renewal> {
        Box::pin(LockStore::renew(self, owned, ttl))
    }

    fn release<'a>(&'a self, owned: Owned<'a>) -> Boxed<'a, Release> {
        Box::pin(LockStore::release(self, owned))
    }

    fn hand_over<'a>(&'a self, owned: Owned<'a>, next: &'a OwnerToken, ttl: Duration) -> Boxed<'a, Release> {
        Box::pin(LockStore::hand_over(self, owned, next, ttl))
    }

    fn fence<'a>(&'a self, owned: Owned<'a>) -> Boxed<'a, Fence> {
        Box::pin(LockStore::fence(self, owned))
    }

    fn clean_up<'a>(&'a self, owned: Owned<'a>) -> Boxed<'a, Release> {
        Box::pin(LockStore::clean_up(self, owned))
    }

    fn open_watch(&self, changes: ChangeSink) -> Opening<'_> {
        Box::pin(LockStore::open_watch(self, changes))
    }

    fn for_keeper(&self) -> Arc<dyn ErasedStore> {
        Arc::new(LockStore::for_keeper(self))
    }
}
