//! Dropping waiters in the queue of this process, while their turn comes.

use tower_redis_lock::telemetry::names::{HANDOVERS, WAITING};

use super::{SLOW, check_clean, drop_after};
use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

#[tokio::test(start_paused = true)]
async fn a_waiter_dropped_at_any_moment_of_a_hand_over_does_not_keep_the_lock() {
    for act in SLOW.into_iter().chain([Act::Do]) {
        for turns in 0..8 {
            let what = format!("{act:?}, dropped {turns} turns after the release began");
            let (store, recorded) = (ScriptedStore::new(), Recorded::start());
            store.next(Op::HandOver, [act]);
            let locker = locker(store.clone(), quick().max_wait(secs(10)));
            let guard = locker.acquire(&key("/k")).await.unwrap();
            let waiter = Running::start({
                let locker = locker.clone();
                async move { locker.acquire(&key("/k")).await.map(drop) }
            });
            eventually("the waiter to wait", secs(5), async || recorded.sum(WAITING, &[]) == 1.0).await;
            let release = Running::start(guard.release());
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            drop(waiter);
            let _whatever_it_says = release.end().await;
            check_clean(&what, &store, &recorded, 2).await;
            let next = locker.acquire(&key("/k")).await;
            next.unwrap_or_else(|error| panic!("{what}: {error:?}")).release().await.unwrap();
        }
    }
}

/// The swap was carried out, nobody was told so, and the one who was to have the lock is gone.
#[tokio::test(start_paused = true)]
async fn a_waiter_dropped_while_the_answer_to_its_swap_is_lost_leaves_no_lock_for_a_ttl() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.next(Op::HandOver, [Act::LoseReply]);
    let locker = locker(store.clone(), quick().ttl(secs(60)).max_wait(secs(50)));
    let guard = locker.acquire(&key("/k")).await.unwrap();
    let waiter = Running::start({
        let locker = locker.clone();
        async move { locker.acquire(&key("/k")).await.map(drop) }
    });
    eventually("the waiter to wait", secs(5), async || recorded.sum(WAITING, &[]) == 1.0).await;
    let release = Running::start(guard.release());
    eventually("the swap to be sent", secs(5), async || store.count(Op::HandOver) == 1).await;
    drop(waiter);
    release.end().await.unwrap_err();
    // On the paused clock: long after every time limit, long before the ttl.
    tokio::time::sleep(secs(5)).await;
    assert!(store.is_free(&key("/k")));
    check_clean("after the clean-up", &store, &recorded, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_in_a_hand_over_leaves_the_lock_to_the_next_in_line() {
    for act in SLOW {
        for polls in 1..=5 {
            let what = format!("{act:?} dropped after {polls} polls");
            let (store, recorded) = (ScriptedStore::new(), Recorded::start());
            store.next(Op::HandOver, [act]);
            let locker = locker(store.clone(), quick().max_wait(secs(10)));
            let guard = locker.acquire(&key("/k")).await.unwrap();
            let waiter = Running::start({
                let locker = locker.clone();
                async move { locker.acquire(&key("/k")).await }
            });
            eventually("the waiter to wait", secs(5), async || recorded.sum(WAITING, &[]) == 1.0).await;
            let _ended = drop_after(polls, guard.release()).await;
            let next = waiter.end().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            tokio::time::sleep(secs(5)).await;
            assert_eq!(next.held().lost_reason(), None, "{what}: nobody takes it away again");
            assert!(!store.is_free(&key("/k")), "{what}");
            next.release().await.unwrap();
            check_clean(&what, &store, &recorded, 2).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn those_behind_a_waiter_that_went_away_get_their_turn() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(60)));
    let guard = locker.acquire(&key("/k")).await.unwrap();
    let mut waiters: Vec<_> = (0..20)
        .map(|_| {
            let locker = locker.clone();
            Some(Running::start(async move {
                let guard = locker.acquire(&key("/k")).await?;
                tokio::time::sleep(ms(100)).await;
                let _counted = guard.release().await;
                Ok::<_, tower_redis_lock::AcquireError>(())
            }))
        })
        .collect();
    eventually("all to wait", secs(5), async || recorded.sum(WAITING, &[]) == 20.0).await;
    // The first, the last, and some in between; one of them while it holds the lock.
    for index in [0, 4, 5, 19] {
        waiters[index] = None;
    }
    guard.release().await.unwrap();
    tokio::time::sleep(ms(150)).await;
    waiters[2] = None;
    for waiter in waiters.into_iter().flatten() {
        waiter.end().await.expect("its turn");
    }
    check_clean("in the end", &store, &recorded, 21).await;
    assert_eq!(recorded.acquisitions("cancelled"), 4.0);
    assert!(recorded.sum(HANDOVERS, &[]) > 0.0);
}
