//! Locks and the runtimes that they outlive, on real time.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tower_redis_lock::store::MemoryStore;
use tower_redis_lock::{KeeperMode, LockGuard, LockSettings, Locker};

use crate::doubles::key;
use crate::support::eventually::{eventually, ms, secs};

const TTL: Duration = secs(1);

fn locker(store: &MemoryStore, keeper: KeeperMode) -> Locker {
    let settings = LockSettings::builder().ttl(TTL).max_wait(ms(0)).build().unwrap();
    Locker::builder(store.clone()).settings(settings).keeper(keeper).build().unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn until_free(store: &MemoryStore) {
    one_thread().block_on(eventually("the lock to be free", secs(5), async || store.is_empty()));
}

/// Takes a lock that does not expire by itself while the test looks.
fn take_long(locker: &Locker, runtime: &Runtime) -> LockGuard {
    let locker = locker.with_settings(LockSettings::default());
    runtime.block_on(locker.acquire(&key("k"))).unwrap()
}

#[test]
fn a_guard_dropped_on_a_plain_thread_releases() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Thread);
    let guard = take_long(&locker, &one_thread());
    std::thread::spawn(move || drop(guard)).join().expect("no panic in the drop");
    until_free(&store);
}

#[tokio::test]
async fn a_guard_dropped_on_a_plain_thread_releases_through_a_keeper_that_is_a_task() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Task).with_settings(LockSettings::default());
    let guard = locker.acquire(&key("k")).await.unwrap();
    std::thread::spawn(move || drop(guard)).join().expect("no panic in the drop");
    eventually("the lock to be free", secs(5), async || store.is_empty()).await;
}

#[test]
fn a_guard_that_outlives_its_runtime_releases() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Thread);
    let runtime = one_thread();
    let guard = take_long(&locker, &runtime);
    drop(runtime);
    assert!(guard.held().is_held());
    drop(guard);
    until_free(&store);
}

#[test]
fn a_guard_outlives_the_runtime_of_a_keeper_that_is_a_task_without_a_panic() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Task);
    let runtime = one_thread();
    let guard = take_long(&locker, &runtime);
    drop(runtime);
    drop(guard);
    assert!(!store.is_empty(), "there is nobody to release it");
    // The next runtime that takes a lock finishes what was handed over.
    let runtime = one_thread();
    runtime.block_on(async {
        let other = locker.acquire(&key("other")).await.unwrap();
        eventually("the first lock to be free", secs(5), async || store.len() == 1).await;
        other.release().await.unwrap();
    });
    assert!(store.is_empty());
}

#[test]
fn a_runtime_dropped_with_a_guard_in_a_task_releases() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Thread).with_settings(LockSettings::default());
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (inside, is_inside) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _guard = locker.acquire(&key("k")).await.unwrap();
        inside.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    is_inside.recv().unwrap();
    assert_eq!(store.len(), 1);
    drop(runtime);
    until_free(&store);
}

#[test]
fn the_last_locker_may_go_before_its_guard() {
    let store = MemoryStore::new();
    let runtime = one_thread();
    let guard = {
        let locker = locker(&store, KeeperMode::Thread);
        runtime.block_on(locker.acquire(&key("k"))).unwrap()
    };
    std::thread::sleep(TTL * 2);
    assert!(guard.held().is_held(), "its keeper still renews");
    drop(guard);
    until_free(&store);
}

/// Tries to take the lock from another runtime as long as `work` lasts.
fn check_stays_held_during(store: &MemoryStore, work: impl FnOnce() + Send) {
    let rival = locker(store, KeeperMode::Thread);
    std::thread::scope(|threads| {
        let work = threads.spawn(work);
        let runtime = one_thread();
        while !work.is_finished() {
            assert!(runtime.block_on(rival.acquire(&key("k"))).is_err(), "a rival took the lock");
            std::thread::sleep(ms(5));
        }
        work.join().expect("the work");
    });
}

#[test]
fn a_handler_that_blocks_the_only_thread_for_three_ttls_keeps_its_lock() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Thread);
    let runtime = one_thread();
    let guard = runtime.block_on(locker.acquire(&key("k"))).unwrap();
    check_stays_held_during(&store, || {
        runtime.block_on(async {
            std::thread::sleep(TTL * 3);
            assert!(guard.held().is_held());
        });
    });
    runtime.block_on(guard.release()).unwrap();
}

#[test]
fn handlers_that_block_every_worker_for_three_ttls_keep_the_lock() {
    let store = MemoryStore::new();
    let locker = locker(&store, KeeperMode::Thread);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let guard = runtime.block_on(locker.acquire(&key("k"))).unwrap();
    check_stays_held_during(&store, || {
        let blocked: Vec<_> = (0..2).map(|_| runtime.spawn(async { std::thread::sleep(TTL * 3) })).collect();
        for worker in blocked {
            runtime.block_on(worker).unwrap();
        }
        assert!(guard.held().is_held());
    });
    runtime.block_on(guard.release()).unwrap();
}
