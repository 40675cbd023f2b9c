//! Dropping what a [`Locker`](tower_redis_lock::Locker) gives.

use tower_redis_lock::telemetry::names::{CLEANUPS, WAITING};

use super::{DOWN, SLOW, check_clean, drop_after, returns};
use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};

#[tokio::test(start_paused = true)]
async fn an_acquisition_dropped_after_any_poll_leaves_nothing_behind() {
    for act in SLOW {
        for polls in 1..=6 {
            let what = format!("{act:?} dropped after {polls} polls");
            let (store, recorded) = (ScriptedStore::new(), Recorded::start());
            store.next(Op::Acquire, [act]);
            let locker = locker(store.clone(), quick());
            let ended = drop_after(polls, locker.acquire(&key("/k"))).await;
            let outcome = match &ended {
                Some(Ok(_)) => "acquired",
                Some(Err(_)) => "error",
                None => "cancelled",
            };
            drop(ended);
            assert_eq!(recorded.sum(WAITING, &[]), 0.0, "{what}");
            check_clean(&what, &store, &recorded, 1).await;
            assert_eq!(recorded.acquisitions(outcome), 1.0, "{what}");
            let expected = if outcome == "acquired" { (1, 0) } else { (0, 1) };
            assert_eq!(returns(&store), expected, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_attempt_dropped_after_any_poll_leaves_nothing_behind() {
    for act in SLOW {
        for polls in 1..=8 {
            let what = format!("{act:?} dropped after {polls} polls");
            let (store, recorded) = (ScriptedStore::new(), Recorded::start());
            let rival = store.rival_takes(&key("/k"));
            store.next(Op::Acquire, [Act::Do, act]);
            let locker = locker(store.clone(), quick().max_wait(secs(5)).retry(ms(10), ms(10)));
            let acquire = async {
                let name = key("/k");
                let guard = locker.acquire(&name);
                let freed = async {
                    while store.count(Op::Acquire) < 1 {
                        tokio::task::yield_now().await;
                    }
                    store.free_as(&key("/k"), &rival);
                };
                tokio::join!(guard, freed).0
            };
            let ended = drop_after(polls, acquire).await;
            store.free_as(&key("/k"), &rival);
            drop(ended);
            check_clean(&what, &store, &recorded, 1).await;
            let (releases, clean_ups) = returns(&store);
            assert!(releases + clean_ups <= 2, "{what}: {releases} releases, {clean_ups} clean-ups");
            assert!(releases <= 1 && clean_ups <= 1, "{what}: {releases} and {clean_ups}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_clean_up_of_a_dropped_acquisition_outlives_an_outage() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.next(Op::Acquire, [Act::PendReply(3)]);
    store.always(Op::CleanUp, DOWN);
    store.always(Op::Release, DOWN);
    let locker = locker(store.clone(), quick());
    assert!(drop_after(1, locker.acquire(&key("/k"))).await.is_none());
    tokio::time::sleep(secs(1)).await;
    assert!(!store.is_free(&key("/k")));
    store.always(Op::Release, Act::Do);
    eventually("the key to be free", secs(2), async || store.is_free(&key("/k"))).await;
    recorded.check_settled(1).await;
    eventually("the clean-up to be counted", secs(5), async || {
        recorded.sum(CLEANUPS, &[("outcome", "removed")]) == 1.0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_never_removes_the_next_holder() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let rival = store.rival_takes(&key("/k"));
    store.next(Op::Acquire, [Act::Pend(3)]);
    let locker = locker(store.clone(), quick());
    assert!(drop_after(1, locker.acquire(&key("/k"))).await.is_none());
    tokio::time::sleep(secs(5)).await;
    assert_eq!(store.free_as(&key("/k"), &rival), tower_redis_lock::store::Release::Released);
    recorded.check_settled(1).await;
    assert_eq!(recorded.sum(CLEANUPS, &[("outcome", "removed")]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_after_any_poll_is_finished_once() {
    for act in SLOW {
        for polls in 1..=5 {
            let what = format!("{act:?} dropped after {polls} polls");
            let (store, recorded) = (ScriptedStore::new(), Recorded::start());
            store.next(Op::Release, [act]);
            let locker = locker(store.clone(), quick());
            let guard = locker.acquire(&key("/k")).await.unwrap();
            let ended = drop_after(polls, guard.release()).await;
            check_clean(&what, &store, &recorded, 1).await;
            if ended.is_none() {
                assert_eq!(recorded.releases("released"), 1.0, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lock_dropped_after_any_poll_gives_the_lock_back() {
    for polls in 1..=14 {
        let what = format!("dropped after {polls} polls");
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Acquire, [Act::PendReply(2)]);
        store.next(Op::Release, [Act::PendReply(2)]);
        store.next(Op::Fence, [Act::PendReply(2)]);
        let locker = locker(store.clone(), quick());
        let name = key("/k");
        let work = locker.with_lock(&name, |held| async move {
            held.fencing_token().await.unwrap();
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        let ended = drop_after(polls, work).await;
        assert_eq!(ended.is_some(), polls > 9, "{what}: 2 + 2 + 3 + 2 times pending");
        check_clean(&what, &store, &recorded, 1).await;
        assert_eq!(recorded.acquisitions(if polls <= 2 { "cancelled" } else { "acquired" }), 1.0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn asking_for_a_fencing_token_can_be_given_up_and_repeated() {
    let store = ScriptedStore::new();
    store.next(Op::Fence, [Act::PendReply(2), Act::Pend(2)]);
    let guard = locker(store.clone(), quick()).acquire(&key("/k")).await.unwrap();
    assert!(drop_after(1, guard.held().fencing_token()).await.is_none());
    assert!(drop_after(1, guard.held().fencing_token()).await.is_none());
    let number = guard.held().fencing_token().await.unwrap();
    assert_eq!(guard.held().fencing_token().await.unwrap(), number);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_for_a_loss_costs_nothing() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let guard = locker(store.clone(), quick()).acquire(&key("/k")).await.unwrap();
    for _ in 0..100 {
        assert!(drop_after(1, guard.held().lost()).await.is_none());
        assert!(drop_after(1, guard.held().run(std::future::pending::<()>())).await.is_none());
    }
    assert!(guard.held().is_held());
    guard.release().await.unwrap();
    check_clean("after the release", &store, &recorded, 1).await;
}
