//! The wake-up of the one request of this process that competes with other processes for a lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::key::LockKey;
use crate::store::{Holder, Owned, OwnerToken};

/// Shared by the request, which waits, and the keeper, which watches the key for it.
#[derive(Debug)]
pub(crate) struct WakeUp {
    key: LockKey,
    token: OwnerToken,
    timeout: Duration,
    /// The store will tell of the next change.
    armed: AtomicBool,
    free: Notify,
}

impl WakeUp {
    pub(crate) fn new(key: LockKey, token: OwnerToken, timeout: Duration) -> Self {
        Self { key, token, timeout, armed: AtomicBool::new(false), free: Notify::new() }
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    pub(crate) fn owned(&self) -> Owned<'_> {
        Owned { key: &self.key, token: &self.token, timeout: self.timeout }
    }

    /// Whether the key has to be watched anew.
    pub(crate) fn start_watch(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }

    /// What a look at the store has shown.
    pub(crate) fn found(&self, holder: Holder) {
        if holder != Holder::Other {
            self.wake();
        }
    }

    /// The watch is gone, or nothing is to be waited for any more.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    fn wake(&self) {
        self.disarm();
        self.free.notify_one();
    }

    /// Resolves when the lock was seen free. Cancel safe.
    pub(crate) async fn woken(&self) {
        self.free.notified().await;
    }
}
