//! What the tests inside one process stand on: a store that follows a script, a recorder of the test's own,
//! and a gate that a handler waits at.

pub(crate) mod gate;
pub(crate) mod recorded;
pub(crate) mod scripted_store;

use tower_redis_lock::store::LockStore;
use tower_redis_lock::{
    Clock, KeeperMode, LockKey, LockSettings, LockSettingsBuilder, Locker, LockerBuilder,
};

use crate::support::eventually::secs;

/// A locker whose time is tokio's, so that it can be paused, without a prefix.
pub(crate) fn locker_builder<S: LockStore>(store: S, settings: LockSettingsBuilder) -> LockerBuilder<S> {
    Locker::builder(store)
        .prefix("")
        .settings(settings.build().unwrap())
        .keeper(KeeperMode::Task)
        .clock(Clock::tokio())
}

/// See [`locker_builder`].
pub(crate) fn locker(store: impl LockStore, settings: LockSettingsBuilder) -> Locker {
    locker_builder(store, settings).build().unwrap()
}

/// A ttl of 3 s, so a renewal each second; one attempt.
pub(crate) fn quick() -> LockSettingsBuilder {
    LockSettings::builder().ttl(secs(3)).max_wait(secs(0))
}

pub(crate) fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

/// Fails the test if a future is not there yet.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    futures_util::FutureExt::now_or_never(future).expect("an answer without waiting")
}
