//! Giving a lock back, in every way there is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::{Instant, sleep};
use tower_redis_lock::store::StoreErrorKind;
use tower_redis_lock::telemetry::names::CLEANUPS;
use tower_redis_lock::{LockGuard, ReleaseError};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_releases_once() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    drop(locker.acquire(&key("k")).await.unwrap());
    eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
    assert_eq!((store.count(Op::Release), store.count(Op::CleanUp)), (1, 0));
    recorded.check_settled(1).await;
    assert_eq!(recorded.releases("released"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn views_of_a_lock_do_not_keep_it_held() {
    let store = ScriptedStore::new();
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    let held = guard.held().clone();
    drop(guard);
    eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
    assert!(!held.is_held());
}

// B27
#[tokio::test(start_paused = true)]
async fn a_guard_can_be_moved_into_spawned_work_and_the_lock_lives_as_long_as_that() {
    let store = ScriptedStore::new();
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    let work = tokio::spawn(async move {
        sleep(secs(20)).await;
        guard.release().await
    });
    sleep(secs(19)).await;
    assert!(!store.is_free(&key("k")));
    work.await.unwrap().unwrap();
    assert!(store.is_free(&key("k")));
}

// B01
#[tokio::test(start_paused = true)]
async fn a_release_that_finds_another_owner_says_so_and_leaves_it_alone() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    let rival = store.take_over(&key("k"));
    assert!(matches!(guard.release().await, Err(ReleaseError::NotOwned)));
    assert_eq!(store.free_as(&key("k"), &rival), tower_redis_lock::store::Release::Released);
    assert_eq!(recorded.releases("not_owned"), 1.0);
    recorded.check_settled(1).await;
}

// B34
#[tokio::test(start_paused = true)]
async fn a_release_of_a_lock_that_is_gone_takes_no_time() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    store.delete(&key("k"));
    let start = Instant::now();
    assert!(matches!(guard.release().await, Err(ReleaseError::NotOwned)));
    assert_eq!((start.elapsed(), store.count(Op::Release)), (ms(0), 1));
    sleep(secs(10)).await;
    assert_eq!(
        (store.count(Op::Release), store.count(Op::CleanUp)),
        (1, 0),
        "it is not an error to be retried"
    );
    recorded.check_settled(1).await;
}

// B34
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_takes_one_command_time_limit_and_goes_on_in_the_background() {
    for act in [Act::Hang, Act::LoseReply] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Release, [act]);
        let guard = locker(store.clone(), quick().command_timeout(ms(400))).acquire(&key("k")).await.unwrap();
        let start = Instant::now();
        assert!(matches!(guard.release().await, Err(ReleaseError::Store(_))), "{act:?}");
        assert!(start.elapsed() <= ms(402), "{:?}", start.elapsed());
        eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
        assert_eq!(recorded.releases("error"), 1.0);
        recorded.check_settled(1).await;
    }
}

// B32
#[tokio::test(start_paused = true)]
async fn a_lock_whose_release_failed_can_be_taken_again_when_the_store_is_back() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let down = Act::Fail(StoreErrorKind::Connect);
    let locker = locker(store.clone(), quick());
    let guard = locker.acquire(&key("k")).await.unwrap();
    store.always(Op::Release, down);
    store.always(Op::CleanUp, down);
    assert!(matches!(guard.release().await, Err(ReleaseError::Store(_))));
    sleep(secs(1)).await;
    assert!(!store.is_free(&key("k")));
    store.always(Op::Release, Act::Do);
    eventually("the keeper's next try", secs(5), async || store.is_free(&key("k"))).await;
    drop(locker.acquire(&key("k")).await.unwrap());
    eventually("the clean-up to be counted", secs(5), async || {
        recorded.sum(CLEANUPS, &[("outcome", "removed")]) == 1.0
    })
    .await;
}

// B32
#[tokio::test(start_paused = true)]
async fn a_lock_whose_release_never_succeeds_is_left_to_its_ttl() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let down = Act::Fail(StoreErrorKind::Connect);
    let locker = locker(store.clone(), quick());
    let guard = locker.acquire(&key("k")).await.unwrap();
    store.always(Op::Release, down);
    store.always(Op::CleanUp, down);
    drop(guard);
    sleep(secs(3)).await;
    assert!(locker.acquire(&key("k")).await.is_ok(), "free after the ttl, on the same instance too");
    sleep(secs(60)).await;
    let tries = store.commands();
    sleep(secs(60)).await;
    assert_eq!(store.commands(), tries, "nobody tries for ever");
    assert!(recorded.sum(CLEANUPS, &[("outcome", "error")]) >= 1.0);
    assert_eq!(recorded.releases("error"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_deadline_is_counted_as_late() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.always(Op::Renew, Act::Hang);
    store.next(Op::Release, [Act::LateReply(secs(1))]);
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    sleep(ms(2500)).await;
    guard.release().await.unwrap();
    assert_eq!(recorded.releases("late"), 1.0);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_half_way_is_finished_in_the_background() {
    for act in [Act::Pend(3), Act::PendReply(3), Act::Hang, Act::LoseReply] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Release, [act]);
        let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
        let release = tokio::time::timeout(ms(0), guard.release());
        assert!(release.await.is_err(), "{act:?}: not finished yet");
        eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
        recorded.check_settled(1).await;
        assert_eq!(recorded.releases("released"), 1.0, "{act:?}");
    }
}

/// Drops a guard while its thread panics, again inside a drop that panics and is caught.
fn panic_with(guard: LockGuard, in_a_drop: bool) {
    struct PanicsInDrop(Option<LockGuard>);
    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            let guard = self.0.take();
            let second = catch_unwind(AssertUnwindSafe(|| {
                let _guard = guard;
                panic!("while unwinding");
            }));
            assert!(second.is_err());
        }
    }
    let first = catch_unwind(AssertUnwindSafe(|| {
        let _held = if in_a_drop { (None, Some(PanicsInDrop(Some(guard)))) } else { (Some(guard), None) };
        panic!("with a lock");
    }));
    assert!(first.is_err());
}

// B35
#[tokio::test(start_paused = true)]
async fn a_panic_releases_also_while_another_one_unwinds() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    for in_a_drop in [false, true] {
        panic_with(locker.acquire(&key("k")).await.unwrap(), in_a_drop);
        eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
    }
    recorded.check_settled(2).await;
    assert_eq!(recorded.releases("released"), 2.0);
}

// B35
#[tokio::test(start_paused = true)]
async fn work_that_panics_under_a_lock_releases_it_and_the_panic_travels_on() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = Arc::new(locker(store.clone(), quick()));
    for awaits_first in [false, true] {
        let locker = Arc::clone(&locker);
        let work = tokio::spawn(async move {
            let work = |_| async move {
                if awaits_first {
                    tokio::task::yield_now().await;
                }
                panic!("in the work");
            };
            let stopped: Result<(), _> = locker.with_lock(&key("k"), work).await;
            stopped
        });
        let panic = work.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"in the work"));
        eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
    }
    recorded.check_settled(2).await;
}

// B32
#[tokio::test(start_paused = true)]
async fn locks_that_were_given_back_leave_nothing_behind_in_the_store() {
    let store = ScriptedStore::new();
    let locker = locker(store.clone(), quick());
    for number in 0..5000 {
        drop(locker.acquire(&key(&format!("k{number}"))).await.unwrap());
    }
    eventually("all locks to be free", secs(30), async || store.memory().is_empty()).await;
    assert_eq!(store.count(Op::Release), 5000);
}
