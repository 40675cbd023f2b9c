//! Locks in the memory of one process: for tests, demonstrations and services that run as one instance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Acquire, Attempt, Fence, LockStore, Owned, OwnerToken, Release, Renewal, StoreError};
use crate::clock::{Clock, Moment, unix_micros};
use crate::key::LockKey;

/// Keeps locks in memory. Clones share them.
///
/// Only one process sees these locks: with a second instance of the service, both would hold them.
/// Memory is bounded by the locks that are held: whatever has expired is swept out now and then.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Mutex<Locks>>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Locks {
    held: HashMap<LockKey, Entry>,
    /// One counter for all keys: it grows for each of them.
    last_fence: u64,
    sweep_at: usize,
}

#[derive(Debug)]
struct Entry {
    token: OwnerToken,
    expires: Moment,
}

const MIN_SWEEP: usize = 1024;

impl MemoryStore {
    /// An empty store on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// An empty store whose locks expire by the given clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self { shared: Arc::default(), clock }
    }

    /// How many locks are held now.
    pub fn len(&self) -> usize {
        let now = self.clock.now();
        self.shared.lock().held.values().filter(|entry| entry.expires > now).count()
    }

    /// Whether no lock is held now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Locks {
    fn holder(&mut self, key: &LockKey, now: Moment) -> Option<&mut Entry> {
        self.held.get_mut(key).filter(|entry| entry.expires > now)
    }

    fn sweep(&mut self, now: Moment) {
        if self.held.len() >= self.sweep_at.max(MIN_SWEEP) {
            self.held.retain(|_, entry| entry.expires > now);
            self.sweep_at = self.held.len() * 2;
        }
    }
}

impl LockStore for MemoryStore {
    async fn acquire(&self, attempt: Attempt<'_>) -> Result<Acquire, StoreError> {
        let now = self.clock.now();
        let mut locks = self.shared.lock();
        match locks.holder(attempt.key, now) {
            Some(entry) if entry.token != *attempt.token => {
                return Ok(Acquire::Held { remaining: Some(entry.expires.since(now)) });
            }
            _ => {}
        }
        locks.sweep(now);
        let entry = Entry { token: attempt.token.clone(), expires: now + attempt.ttl };
        locks.held.insert(attempt.key.clone(), entry);
        Ok(Acquire::Acquired)
    }

    async fn renew(&self, owned: Owned<'_>, ttl: Duration) -> Result<Renewal, StoreError> {
        let now = self.clock.now();
        match self.shared.lock().holder(owned.key, now) {
            None => Ok(Renewal::Missing),
            Some(entry) if entry.token != *owned.token => Ok(Renewal::NotOwned),
            Some(entry) => {
                entry.expires = now + ttl;
                Ok(Renewal::Renewed)
            }
        }
    }

    async fn release(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let mut locks = self.shared.lock();
        match locks.holder(owned.key, self.clock.now()) {
            None => Ok(Release::Missing),
            Some(entry) if entry.token != *owned.token => Ok(Release::NotOwned),
            Some(_) => {
                locks.held.remove(owned.key);
                Ok(Release::Released)
            }
        }
    }

    async fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> Result<Release, StoreError> {
        let now = self.clock.now();
        match self.shared.lock().holder(owned.key, now) {
            None => Ok(Release::Missing),
            Some(entry) if entry.token != *owned.token => Ok(Release::NotOwned),
            Some(entry) => {
                *entry = Entry { token: next.clone(), expires: now + ttl };
                Ok(Release::Released)
            }
        }
    }

    async fn fence(&self, owned: Owned<'_>) -> Result<Fence, StoreError> {
        let mut locks = self.shared.lock();
        match locks.holder(owned.key, self.clock.now()) {
            Some(entry) if entry.token == *owned.token => {
                locks.last_fence = unix_micros().max(locks.last_fence.saturating_add(1));
                Ok(Fence::Minted(locks.last_fence))
            }
            _ => Ok(Fence::NotOwned),
        }
    }

    async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        self.release(owned).await
    }

    fn for_keeper(&self) -> Self {
        self.clone()
    }
}
