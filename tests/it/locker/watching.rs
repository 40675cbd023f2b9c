//! What pushes bring: a loss noticed at once, a waiter woken at once; and what is left without them.

use tokio::time::{Instant, sleep};
use tower_redis_lock::LostReason;
use tower_redis_lock::store::Change;
use tower_redis_lock::telemetry::names::{LOST, WAKEUPS, WATCH_UP};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

async fn check_noticed_at_once(lose: impl FnOnce(&ScriptedStore), expected: LostReason) {
    let (store, recorded) = (ScriptedStore::with_watch(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let guard = locker.acquire(&key("k")).await.unwrap();
    sleep(ms(300)).await;
    assert!(store.is_watched(&key("k")));
    assert_eq!(recorded.sum(WATCH_UP, &[]), 1.0);
    let start = Instant::now();
    lose(&store);
    let reason = guard.held().lost().await;
    assert_eq!(start.elapsed(), ms(0));
    assert_eq!(reason, expected);
    assert_eq!(store.count(Op::Renew), 0);
    assert_eq!(recorded.sum(LOST, &[("reason", expected.as_str())]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_watched_lock_that_is_taken_over_is_lost_at_once() {
    check_noticed_at_once(|store| drop(store.take_over(&key("k"))), LostReason::TakenOver).await;
}

#[tokio::test(start_paused = true)]
async fn a_watched_lock_that_is_deleted_is_lost_at_once() {
    check_noticed_at_once(|store| store.delete(&key("k")), LostReason::Deleted).await;
}

#[tokio::test(start_paused = true)]
async fn a_short_hold_costs_no_look() {
    let store = ScriptedStore::with_watch();
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    sleep(ms(200)).await;
    guard.release().await.unwrap();
    sleep(secs(5)).await;
    assert_eq!(store.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_false_alarm_is_not_taken_for_a_loss() {
    let store = ScriptedStore::with_watch();
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    sleep(ms(300)).await;
    for _ in 0..50 {
        store.push(Change::Key(key("k")));
        store.push(Change::All);
        store.push(Change::Key(key("unheard-of")));
        sleep(ms(100)).await;
        assert!(guard.held().is_held());
    }
    assert!(store.is_watched(&key("k")), "and it is still watched");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_stays_watched_over_its_renewals() {
    let store = ScriptedStore::with_watch();
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    sleep(secs(20)).await;
    // As Redis does: our own renewal is a change too.
    store.push(Change::Key(key("k")));
    sleep(secs(20)).await;
    let start = Instant::now();
    store.delete(&key("k"));
    guard.held().lost().await;
    assert_eq!(start.elapsed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_release_of_another_process() {
    let (store, recorded) = (ScriptedStore::with_watch(), Recorded::start());
    let rival = store.rival_takes(&key("k"));
    let locker = locker(store.clone(), quick().max_wait(secs(60)).retry(secs(20), secs(20)));
    let waiter = Running::start(async move { locker.acquire(&key("k")).await.map(drop) });
    eventually("the waiter to watch", secs(5), async || store.is_watched(&key("k"))).await;
    let start = Instant::now();
    store.free_as(&key("k"), &rival);
    waiter.end().await.unwrap();
    assert!(start.elapsed() <= ms(1), "not at the next attempt: {:?}", start.elapsed());
    assert_eq!(recorded.sum(WAKEUPS, &[("cause", "push")]), 1.0);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_losses_are_noticed_at_renewals_and_waiters_ask_again() {
    let (store, recorded) = (ScriptedStore::with_watch(), Recorded::start());
    store.break_watch();
    let locker = locker(store.clone(), quick().max_wait(secs(60)));
    let guard = locker.acquire(&key("k")).await.unwrap();
    sleep(ms(300)).await;
    assert_eq!(recorded.sum(WATCH_UP, &[]), 0.0);
    let start = Instant::now();
    let rival = store.take_over(&key("k"));
    assert_eq!(guard.held().lost().await, LostReason::TakenOver);
    assert!(start.elapsed() > ms(100) && start.elapsed() <= secs(1), "{:?}", start.elapsed());
    let waiter = Running::start(async move { locker.acquire(&key("k")).await.map(drop) });
    sleep(secs(2)).await;
    let freed = Instant::now();
    store.free_as(&key("k"), &rival);
    waiter.end().await.unwrap();
    assert!(freed.elapsed() <= ms(502), "within one step of the retries: {:?}", freed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_is_opened_again_and_what_happened_meanwhile_is_found() {
    let (store, recorded) = (ScriptedStore::with_watch(), Recorded::start());
    let guard = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    sleep(ms(300)).await;
    store.break_watch();
    eventually("the break to be noticed", secs(5), async || recorded.sum(WATCH_UP, &[]) == 0.0).await;
    store.delete(&key("k"));
    store.mend_watch();
    let start = Instant::now();
    assert_eq!(guard.held().lost().await, LostReason::Deleted);
    assert!(start.elapsed() <= ms(600), "{:?}", start.elapsed());

    let again = locker(store.clone(), quick()).acquire(&key("k")).await.unwrap();
    eventually("it to be watched", secs(5), async || store.is_watched(&key("k"))).await;
    store.delete(&key("k"));
    again.held().lost().await;
    assert!(store.watches() >= 2);
}
