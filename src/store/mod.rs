//! The door to where locks are kept: the contract in words, and its implementations.
//!
//! A [`LockStore`] does five things to a key, each atomically and each bounded in time. `contract` (with
//! the feature `store-contract`) holds the tests that every store has to pass.

#[cfg(feature = "store-contract")]
pub mod contract;
mod erased;
mod error;
mod memory;
mod metered;
mod redis;
mod token;
mod watch;

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

pub(crate) use erased::ErasedStore;
pub use error::{Operation, StoreError, StoreErrorKind};
pub use memory::MemoryStore;
pub(crate) use metered::MeteredStore;
pub use redis::RedisStore;
pub use token::OwnerToken;
pub(crate) use watch::Opening;
pub use watch::{Change, ChangeSink, Holder, KeyWatch, Looking, OpenedWatch};

use crate::key::LockKey;

/// One attempt to take a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// The key, prefix included.
    pub key: &'a LockKey,
    /// Who asks; the same for all attempts of one acquisition, and for no other acquisition.
    pub token: &'a OwnerToken,
    /// How long the lock lives from now on if the attempt succeeds.
    pub ttl: Duration,
    /// Counts from 1 within one acquisition. From 2 on, the lock may be the token's already.
    pub number: u32,
    /// Time limit of this attempt.
    pub timeout: Duration,
}

impl<'a> Attempt<'a> {
    /// The first attempt of an acquisition.
    pub const fn new(key: &'a LockKey, token: &'a OwnerToken, ttl: Duration, timeout: Duration) -> Self {
        Self { key, token, ttl, number: 1, timeout }
    }

    /// The attempt after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), ..self }
    }
}

/// A command about a lock that `token` took, or may have taken.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Owned<'a> {
    /// The key, prefix included.
    pub key: &'a LockKey,
    /// Who asks.
    pub token: &'a OwnerToken,
    /// Time limit of this command.
    pub timeout: Duration,
}

impl<'a> Owned<'a> {
    /// A command about the lock `key` by the owner of `token`.
    pub const fn new(key: &'a LockKey, token: &'a OwnerToken, timeout: Duration) -> Self {
        Self { key, token, timeout }
    }
}

/// What an attempt to take a lock found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquire {
    /// The lock is ours, for `ttl` from the moment at which the store carried the command out.
    Acquired,
    /// Somebody else holds it.
    Held {
        /// Time until it expires; `None` if the key has no expiry, so it was not set by a lock.
        remaining: Option<Duration>,
    },
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// The token holds the lock, for `ttl` more.
    Renewed,
    /// Nobody holds the lock.
    Missing,
    /// Somebody else holds it.
    NotOwned,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// The lock was the token's and is free now.
    Released,
    /// Nobody held the lock.
    Missing,
    /// Somebody else holds it; untouched.
    NotOwned,
}

/// What a request for a fencing token found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// A number greater than all that were minted for this key before.
    Minted(u64),
    /// The token does not hold the lock (any more); nothing was minted.
    NotOwned,
}

/// Where locks are kept.
///
/// # Contract
///
/// Every method is one atomic step per key, and answers within the `timeout` that it is given, with
/// [`StoreErrorKind::Timeout`] if need be.
///
/// - [`acquire`](Self::acquire) takes the lock only if it is free, and sets its expiry in the same step. A
///   token that already holds the lock acquires it again, with a fresh ttl: an attempt whose answer was
///   lost is thereby recognised by the next one.
/// - [`renew`](Self::renew) sets the expiry to `ttl` from now, only if the token holds the lock. It never
///   creates a lock.
/// - [`release`](Self::release) frees the lock only if the token holds it.
/// - [`hand_over`](Self::hand_over) is `release` and the next holder's `acquire` in one step: nobody else can
///   take the lock in between.
/// - [`fence`](Self::fence) mints a number, only if the token holds the lock. Numbers of one key grow
///   strictly, over all holders.
/// - [`clean_up`](Self::clean_up) is `release`, ordered after every `acquire` of the same token that this
///   store has sent, also one whose future was dropped or that timed out. If that order can no longer be
///   had, it fails with a [`StoreErrorKind::Connect`].
/// - A lock that was not renewed for its ttl is free.
///
/// An error means that the outcome is unknown, unless [`StoreError::is_unresolved`] says that nothing was
/// done.
///
/// # Cancel safety
///
/// Futures may be dropped at any await. The command may then be carried out or not; the store stays usable.
pub trait LockStore: Debug + Send + Sync + 'static {
    /// Takes the lock if it is free or already the token's.
    fn acquire(&self, attempt: Attempt<'_>) -> impl Future<Output = Result<Acquire, StoreError>> + Send;

    /// Extends the lock to `ttl` from now if the token holds it.
    fn renew(
        &self,
        owned: Owned<'_>,
        ttl: Duration,
    ) -> impl Future<Output = Result<Renewal, StoreError>> + Send;

    /// Frees the lock if the token holds it.
    fn release(&self, owned: Owned<'_>) -> impl Future<Output = Result<Release, StoreError>> + Send;

    /// Gives the lock to `next`, for `ttl` from now, if the token holds it: [`Release::Released`] then.
    fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> impl Future<Output = Result<Release, StoreError>> + Send;

    /// Mints the next fencing token of the key if the token holds the lock.
    fn fence(&self, owned: Owned<'_>) -> impl Future<Output = Result<Fence, StoreError>> + Send;

    /// Frees the lock if the token holds it, after every `acquire` of the token that is still under way.
    fn clean_up(&self, owned: Owned<'_>) -> impl Future<Output = Result<Release, StoreError>> + Send;

    /// Opens a watch that sends changes to `changes`. `None`, the default, if the store does not push; losses
    /// are noticed at renewals then, and waiting means asking again.
    fn open_watch(&self, changes: ChangeSink) -> impl Future<Output = OpenedWatch> + Send {
        drop(changes);
        std::future::ready(Ok(None))
    }

    /// How many connections were opened in place of a broken one so far, for the metrics. Default 0.
    fn reconnects(&self) -> u64 {
        0
    }

    /// A handle onto the same locks that shares no connection and no task with `self`. The keeper asks for
    /// one, so that an application that blocks its runtime does not block renewal.
    fn for_keeper(&self) -> Self
    where
        Self: Sized;
}
