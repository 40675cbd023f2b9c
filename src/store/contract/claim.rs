//! What the clauses are written with: somebody who asks for a key, and futures that are dropped.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

use crate::clock::Clock;
use crate::key::LockKey;
use crate::store::{
    Acquire, Attempt, Fence, LockStore, Owned, OwnerToken, Release, Renewal, StoreError, StoreErrorKind,
};

/// Longer than any clause takes.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// Short enough to wait for.
pub(super) const SHORT: Duration = Duration::from_millis(300);
/// Against hanging, not a statement about speed.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// By how much the clocks of store and test may differ over [`SHORT`].
pub(super) const TOLERANCE: Duration = Duration::from_millis(20);

/// One key and somebody who asks for it.
pub(super) struct Claim<'a, S> {
    pub(super) store: &'a S,
    pub(super) key: LockKey,
    pub(super) token: OwnerToken,
}

impl<'a, S: LockStore> Claim<'a, S> {
    pub(super) fn on(store: &'a S, clause: &str) -> Self {
        let token = OwnerToken::random();
        Self { store, key: key(&[b"contract:", clause.as_bytes(), b":", token.as_str().as_bytes()]), token }
    }

    /// Somebody else who asks for the same key.
    pub(super) fn rival(&self) -> Self {
        Self { store: self.store, key: self.key.clone(), token: OwnerToken::random() }
    }

    pub(super) fn attempt(&self, ttl: Duration) -> Attempt<'_> {
        Attempt::new(&self.key, &self.token, ttl, LIMIT)
    }

    pub(super) fn owned(&self) -> Owned<'_> {
        Owned::new(&self.key, &self.token, LIMIT)
    }

    pub(super) async fn acquire(&self, ttl: Duration) -> Acquire {
        done("acquire", self.store.acquire(self.attempt(ttl)).await)
    }

    pub(super) async fn take(&self, ttl: Duration) {
        let acquired = self.acquire(ttl).await;
        assert_eq!(acquired, Acquire::Acquired, "{:?} was not free", self.key);
    }

    /// How long the holder has left, by the word that a rival gets.
    pub(super) async fn refused(&self) -> Duration {
        match self.acquire(LONG).await {
            Acquire::Held { remaining: Some(remaining) } => remaining,
            other => panic!("expected to be told how long {:?} is still held, got {other:?}", self.key),
        }
    }

    pub(super) async fn renew(&self, ttl: Duration) -> Renewal {
        done("renew", self.store.renew(self.owned(), ttl).await)
    }

    pub(super) async fn release(&self) -> Release {
        done("release", self.store.release(self.owned()).await)
    }

    pub(super) async fn hand_over(&self, next: &Self, ttl: Duration) -> Release {
        done("hand_over", self.store.hand_over(self.owned(), &next.token, ttl).await)
    }

    pub(super) async fn fence(&self) -> Fence {
        done("fence", self.store.fence(self.owned()).await)
    }

    pub(super) async fn number(&self) -> u64 {
        match self.fence().await {
            Fence::Minted(number) => number,
            Fence::NotOwned => panic!("the holder of {:?} got no fencing token", self.key),
        }
    }

    pub(super) async fn clean_up(&self) -> Release {
        done("clean_up", self.store.clean_up(self.owned()).await)
    }

    /// Cleans up after an acquire without a known result, and checks that nobody holds the lock then.
    pub(super) async fn clean_up_unknown(&self) {
        match self.store.clean_up(self.owned()).await {
            Ok(Release::Released | Release::Missing) => {}
            Ok(Release::NotOwned) => panic!("{:?} is held by a stranger", self.key),
            // The order is lost. What may still come, comes within a time limit.
            Err(error) if error.kind() == StoreErrorKind::Connect => {
                sleep(SHORT).await;
                self.release().await;
            }
            Err(error) => panic!("a clean-up may fail with `connect` only, not with: {error}"),
        }
        for _ in 0..2 {
            let next = self.rival();
            next.take(LONG).await;
            assert_eq!(next.release().await, Release::Released);
        }
    }

    /// Waits until the lock is free, and takes it.
    pub(super) async fn take_when_free(&self) {
        let clock = Clock::system();
        let start = clock.now();
        while self.acquire(LONG).await != Acquire::Acquired {
            assert!(clock.now().since(start) < LIMIT, "{:?} did not expire", self.key);
            sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(super) fn key(parts: &[&[u8]]) -> LockKey {
    LockKey::new(parts.concat()).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn done<T>(operation: &str, result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("{operation} failed: {error}"))
}

/// Drops the future after so many polls, unless it has ended by then.
pub(super) async fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut count = 0;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            count += 1;
            if count < polls { Poll::Pending } else { Poll::Ready(None) }
        }
    })
    .await
}

pub(super) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs = Vec::new();
    poll_fn(|cx| {
        running.retain_mut(|future| match future.as_mut().poll(cx) {
            Poll::Ready(output) => {
                outputs.push(output);
                false
            }
            Poll::Pending => true,
        });
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs
}
