//! Waiting in one process: in order of arrival, without a command, and handed on by one.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tower_redis_lock::telemetry::names::{CONTENTION, HANDOVERS, QUEUE_DEPTH, WAITING};
use tower_redis_lock::{AcquireError, Locker};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

/// Starts a waiter that holds for 10 ms and enters its name when it is inside.
async fn wait_as(
    name: usize,
    locker: &Locker,
    inside: &Arc<Mutex<Vec<usize>>>,
) -> Running<Result<(), AcquireError>> {
    let (locker, inside) = (locker.clone(), Arc::clone(inside));
    let waiter = Running::start(async move {
        let guard = locker.acquire(&key("k")).await?;
        inside.lock().push(name);
        sleep(ms(10)).await;
        guard.release().await.expect("a healthy store");
        Ok(())
    });
    // So that it is in line before the next one comes.
    tokio::task::yield_now().await;
    waiter
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_first_come_first_served_at_one_command_a_turn() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(60)));
    let inside = Arc::default();
    let guard = locker.acquire(&key("k")).await.unwrap();
    let mut waiters = Vec::new();
    for name in 0..20 {
        waiters.push(wait_as(name, &locker, &inside).await);
    }
    sleep(secs(1)).await;
    assert_eq!(store.count(Op::Acquire), 1, "waiting costs no command");
    let start = Instant::now();
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.end().await.unwrap();
    }
    assert_eq!(*inside.lock(), (0..20).collect::<Vec<_>>());
    assert!(start.elapsed() <= ms(20 * 10 + 25), "no pause between turns: {:?}", start.elapsed());
    assert_eq!((store.count(Op::Acquire), store.count(Op::HandOver), store.count(Op::Release)), (1, 20, 1));
    assert_eq!(recorded.sum(HANDOVERS, &[]), 20.0);
    assert_eq!(recorded.sum(CONTENTION, &[]), 20.0);
    assert_eq!(recorded.sum(&format!("{QUEUE_DEPTH}_count"), &[]), 21.0);
    recorded.check_settled(21).await;
    assert!(store.is_free(&key("k")));
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_is_released_for_real_after_a_number_of_turns_so_that_others_get_theirs() {
    let store = ScriptedStore::new();
    let ours = locker(store.clone(), quick().max_wait(secs(60)).hand_over(5, secs(60)));
    let inside = Arc::default();
    let guard = ours.acquire(&key("k")).await.unwrap();
    let mut waiters = Vec::new();
    for name in 0..30 {
        waiters.push(wait_as(name, &ours, &inside).await);
    }
    let other = locker(store.clone(), quick().max_wait(secs(60)).retry(ms(1), ms(1)));
    let theirs = Running::start({
        let inside = Arc::clone(&inside);
        async move {
            let guard = other.acquire(&key("k")).await.unwrap();
            inside.lock().push(usize::MAX);
            guard.release().await.unwrap();
        }
    });
    guard.release().await.unwrap();
    theirs.end().await;
    let turn = inside.lock().iter().position(|name| *name == usize::MAX).unwrap();
    assert!(turn <= 11, "the other process waited for {turn} turns");
    for waiter in waiters {
        waiter.end().await.unwrap();
    }
    let mut order = inside.lock().clone();
    order.retain(|name| *name != usize::MAX);
    assert_eq!(order, (0..30).collect::<Vec<_>>(), "in order of arrival all the same");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_local_holder_gives_up_exactly_when_its_wait_is_over() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(ms(700)));
    let guard = locker.acquire(&key("k")).await.unwrap();
    let start = Instant::now();
    let error = locker.acquire(&key("k")).await.unwrap_err();
    let waited = start.elapsed();
    assert!(waited >= ms(700) && waited <= ms(702), "{waited:?}");
    match error {
        AcquireError::Contended(contended) => {
            let remaining = contended.remaining().expect("what the holder has left");
            assert!(remaining > secs(1) && remaining <= secs(3), "{remaining:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.count(Op::Acquire), 1);
    guard.release().await.unwrap();
    recorded.check_settled(2).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_want_to_wait_learns_of_a_local_holder_without_a_command() {
    let store = ScriptedStore::new();
    let locker = locker(store.clone(), quick());
    let _guard = locker.acquire(&key("k")).await.unwrap();
    for _ in 0..100 {
        assert!(matches!(locker.acquire(&key("k")).await, Err(AcquireError::Contended(_))));
    }
    assert_eq!(store.count(Op::Acquire), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_line_turns_newcomers_away_at_once() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(60)).max_waiters(3, 4));
    let guard = locker.acquire(&key("k")).await.unwrap();
    let other = locker.acquire(&key("other")).await.unwrap();
    let start = |name: &'static str| {
        let locker = locker.clone();
        Running::start(async move { locker.acquire(&key(name)).await.map(drop) })
    };
    let waiters = [start("k"), start("k"), start("k"), start("other")];
    eventually("four to wait", secs(5), async || recorded.sum(WAITING, &[]) == 4.0).await;
    let now = Instant::now();
    for name in ["k", "other"] {
        let refused = locker.acquire(&key(name)).await;
        assert!(matches!(refused, Err(AcquireError::QueueFull)), "{name}: {refused:?}");
    }
    locker.acquire(&key("free")).await.expect("a free lock needs no place in line").release().await.unwrap();
    assert_eq!(now.elapsed(), ms(0));
    guard.release().await.unwrap();
    other.release().await.unwrap();
    for waiter in waiters {
        waiter.end().await.unwrap();
    }
    assert_eq!(recorded.acquisitions("queue_full"), 2.0);
    recorded.check_settled(9).await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_loses_its_lock_leaves_its_line_to_the_next() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(60)));
    let guard = locker.acquire(&key("k")).await.unwrap();
    let inside = Arc::default();
    let waiter = wait_as(1, &locker, &inside).await;
    let rival = store.take_over(&key("k"));
    guard.held().lost().await;
    sleep(secs(5)).await;
    assert!(!waiter.has_ended(), "the rival holds it now");
    store.free_as(&key("k"), &rival);
    waiter.end().await.unwrap();
    drop(guard);
    recorded.check_settled(2).await;
    assert!(store.is_free(&key("k")));
}
