//! Keeping a lock, and learning of its loss.

use std::time::Duration;

use tokio::time::{Instant, advance, sleep};
use tower_redis_lock::store::StoreErrorKind;
use tower_redis_lock::telemetry::names::{LOST, RENEWALS};
use tower_redis_lock::{FencingError, LockGuard, LockSettingsBuilder, Locker, LostReason, ReleaseError};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{ms, secs, within};
use crate::support::running::Running;

const TICK: Duration = ms(2);
/// Of the ttl of 3 s, less the margin of 1 % and 2 ms.
const DEADLINE: Duration = ms(3000 - 32);

async fn held(store: &ScriptedStore, settings: LockSettingsBuilder) -> (Locker, LockGuard) {
    let locker = locker(store.clone(), settings);
    let guard = locker.acquire(&key("k")).await.unwrap();
    (locker, guard)
}

async fn lost(guard: &LockGuard) -> (LostReason, Duration) {
    let start = Instant::now();
    let reason = within("the loss to be told", secs(600), guard.held().lost()).await;
    assert!(!guard.held().is_held());
    assert_eq!(guard.held().lost_reason(), Some(reason));
    assert_eq!(guard.held().remaining(), ms(0));
    (reason, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_a_lock_for_ten_ttls() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_locker, guard) = held(&store, quick()).await;
    let end = Instant::now() + secs(30);
    while Instant::now() < end {
        sleep(ms(100)).await;
        assert!(guard.held().is_held());
        assert!(guard.held().remaining() > secs(1), "{:?}", guard.held().remaining());
        assert!(!store.is_free(&key("k")));
    }
    let renewals = store.count(Op::Renew);
    assert!((29..=37).contains(&renewals), "{renewals} renewals in 30 s, one each 0.83 to 1 s");
    assert!(store.calls(Op::Renew).iter().all(|call| call.by_keeper), "on the keeper's own connections");
    guard.release().await.unwrap();
    assert_eq!(recorded.sum(RENEWALS, &[("outcome", "renewed")]), renewals as f64);
    assert_eq!(recorded.sum(LOST, &[]), 0.0);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_after_the_release_or_the_drop() {
    let store = ScriptedStore::new();
    let (locker, guard) = held(&store, quick()).await;
    guard.release().await.unwrap();
    drop(locker.acquire(&key("k")).await.unwrap());
    sleep(secs(30)).await;
    assert_eq!(store.count(Op::Renew), 0);
    assert_eq!(store.count(Op::Release), 2);
}

// B09
#[tokio::test(start_paused = true)]
async fn a_lock_survives_errors_that_pass_before_its_deadline() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_locker, guard) = held(&store, quick()).await;
    store.always(Op::Renew, Act::Fail(StoreErrorKind::Busy));
    sleep(ms(2500)).await;
    store.always(Op::Renew, Act::Do);
    sleep(secs(6)).await;
    assert!(guard.held().is_held());
    assert!(!store.is_free(&key("k")));
    assert!(recorded.sum(RENEWALS, &[("outcome", "error")]) >= 3.0);
    assert_eq!(recorded.sum(LOST, &[]), 0.0);
    guard.release().await.unwrap();
}

// B09: a server that hangs, then a lost answer.
#[tokio::test(start_paused = true)]
async fn a_lock_survives_silence_that_passes_before_its_deadline() {
    let store = ScriptedStore::new();
    store.next(Op::Renew, [Act::Hang, Act::LoseReply, Act::Hang]);
    let (_locker, guard) = held(&store, quick()).await;
    sleep(secs(9)).await;
    assert!(guard.held().is_held());
    guard.release().await.unwrap();
}

// B11
#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_confirmed_is_lost_exactly_at_its_deadline() {
    for act in [Act::Fail(StoreErrorKind::Connect), Act::Hang, Act::LoseReply] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.always(Op::Renew, act);
        let (_locker, guard) = held(&store, quick()).await;
        let (reason, after) = lost(&guard).await;
        assert_eq!(reason, LostReason::Unconfirmed, "{act:?}");
        assert!(after >= DEADLINE && after <= DEADLINE + TICK, "{act:?}: {after:?}, not {DEADLINE:?}");
        assert!(store.count(Op::Renew) >= 3, "{act:?}: retried until the end");

        let commands = store.commands();
        drop(guard);
        sleep(secs(10)).await;
        assert_eq!(store.commands(), commands, "{act:?}: a lost lock is left alone");
        assert_eq!(recorded.sum(LOST, &[("reason", "unconfirmed")]), 1.0);
        assert_eq!(recorded.releases("skipped"), 1.0);
        recorded.check_settled(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_the_last_renewal_that_was_confirmed() {
    let store = ScriptedStore::new();
    let (_locker, guard) = held(&store, quick()).await;
    sleep(ms(4500)).await;
    store.always(Op::Renew, Act::Hang);
    let confirmed = store.calls(Op::Renew).pop().unwrap().at;
    let (reason, _) = lost(&guard).await;
    let after = confirmed.elapsed();
    assert_eq!(reason, LostReason::Unconfirmed);
    assert!(after >= DEADLINE && after <= DEADLINE + TICK, "{after:?}, not {DEADLINE:?}");
}

// B14
#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_the_sending_of_a_renewal_and_not_from_its_answer() {
    let store = ScriptedStore::new();
    store.next(Op::Renew, [Act::LateReply(ms(1200))]);
    store.always(Op::Renew, Act::Hang);
    let (_locker, guard) = held(&store, quick()).await;
    assert_eq!(lost(&guard).await.0, LostReason::Unconfirmed);
    let after = store.calls(Op::Renew)[0].at.elapsed();
    assert!(after >= DEADLINE && after <= DEADLINE + TICK, "{after:?}, not {DEADLINE:?}");
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_after_the_deadline_does_not_revive_a_lock() {
    let store = ScriptedStore::new();
    store.next(Op::Renew, [Act::LateReply(secs(4))]);
    let (_locker, guard) = held(&store, quick()).await;
    assert_eq!(lost(&guard).await.0, LostReason::Unconfirmed);
    sleep(secs(10)).await;
    assert_eq!(guard.held().lost_reason(), Some(LostReason::Unconfirmed));
    assert_eq!(store.count(Op::Renew), 1, "nothing is renewed after a loss");
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(LostReason::Unconfirmed))));
}

// B02
#[tokio::test(start_paused = true)]
async fn a_deleted_key_stays_gone_and_its_holder_is_told_at_the_next_renewal() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_locker, guard) = held(&store, quick()).await;
    sleep(ms(100)).await;
    store.delete(&key("k"));
    let (reason, after) = lost(&guard).await;
    assert_eq!(reason, LostReason::Deleted);
    assert!(after <= secs(1), "{after:?}");
    assert!(store.is_free(&key("k")));
    sleep(secs(10)).await;
    assert!(store.is_free(&key("k")), "and stays free");
    assert_eq!(recorded.sum(LOST, &[("reason", "deleted")]), 1.0);
    assert_eq!(recorded.sum(RENEWALS, &[("outcome", "not_owned")]), 1.0);
}

// B01, B10
#[tokio::test(start_paused = true)]
async fn a_taken_over_key_is_left_to_its_new_owner_and_its_holder_is_told_at_the_next_renewal() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_locker, guard) = held(&store, quick()).await;
    let rival = store.take_over(&key("k"));
    let (reason, after) = lost(&guard).await;
    assert_eq!(reason, LostReason::TakenOver);
    assert!(after <= secs(1), "{after:?}");
    let commands = store.commands();
    drop(guard);
    sleep(secs(10)).await;
    assert_eq!(store.commands(), commands);
    assert_eq!(store.free_as(&key("k"), &rival), tower_redis_lock::store::Release::Released);
    assert_eq!(recorded.sum(LOST, &[("reason", "taken_over")]), 1.0);
    recorded.check_settled(1).await;
}

// B13
#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_for_longer_than_the_ttl_finds_its_lock_expired() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_locker, guard) = held(&store, quick()).await;
    advance(secs(5)).await;
    assert!(!guard.held().is_held(), "without asking anybody");
    assert_eq!(lost(&guard).await, (LostReason::Expired, ms(0)));
    assert_eq!(recorded.sum(LOST, &[("reason", "expired")]), 1.0);
}

// B13
#[tokio::test(start_paused = true)]
async fn work_is_not_polled_again_after_standing_still_for_longer_than_the_ttl() {
    let store = ScriptedStore::new();
    let (_locker, guard) = held(&store, quick()).await;
    let work = async {
        // As if the machine had been asleep: no timer fires, no keeper runs in between.
        let resumed = Instant::now() + secs(5);
        let mut slept = std::pin::pin!(advance(secs(5)));
        std::future::poll_fn(|cx| slept.as_mut().poll(cx)).await;
        panic!("polled {:?} after the machine woke up", resumed.elapsed());
    };
    let result: Result<(), LostReason> = guard.held().run(work).await;
    assert_eq!(result, Err(LostReason::Expired));
}

// B15
#[tokio::test(start_paused = true)]
async fn a_lock_is_held_for_max_hold_and_no_longer() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_locker, guard) = held(&store, quick().max_hold(secs(5))).await;
    let (reason, after) = lost(&guard).await;
    assert_eq!(reason, LostReason::MaxHold);
    assert!(after >= secs(5) && after <= secs(5) + TICK, "{after:?}");
    let renewals = store.count(Op::Renew);
    sleep(secs(3)).await;
    assert!(store.is_free(&key("k")), "after max_hold and a ttl at most");
    assert_eq!(store.count(Op::Renew), renewals, "renewal has ended");
    assert_eq!(recorded.sum(LOST, &[("reason", "max_hold")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn without_renewal_a_lock_lives_for_one_ttl() {
    let store = ScriptedStore::new();
    let (_locker, guard) = held(&store, quick().without_renewal()).await;
    let (_, after) = lost(&guard).await;
    assert!(after >= DEADLINE && after <= DEADLINE + TICK, "{after:?}");
    assert_eq!(store.count(Op::Renew), 0);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_counted_once_whoever_notices_it() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.always(Op::Renew, Act::Hang);
    let (_locker, guard) = held(&store, quick()).await;
    let views = vec![guard.held().clone(); 20];
    let told = views.into_iter().map(|held| Running::start(async move { held.lost().await }));
    let told: Vec<_> = told.collect();
    for view in told {
        assert_eq!(view.end().await, LostReason::Unconfirmed);
    }
    assert!(!guard.held().is_held());
    guard.release().await.unwrap_err();
    sleep(secs(5)).await;
    assert_eq!(recorded.sum(LOST, &[]), 1.0);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_given_back_is_never_told_to_be_lost() {
    let store = ScriptedStore::new();
    let (_locker, guard) = held(&store, quick()).await;
    let held = guard.held().clone();
    let waiting = Running::start({
        let held = held.clone();
        async move { held.lost().await }
    });
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    sleep(secs(60)).await;
    assert!(!waiting.has_ended());
    assert!(!held.is_held());
    assert_eq!(held.lost_reason(), None);
    assert_eq!(held.remaining(), ms(0));
}

// B72
#[tokio::test(start_paused = true)]
async fn a_fencing_token_is_minted_once_grows_with_each_holder_and_ends_with_the_lock() {
    let store = ScriptedStore::new();
    let (locker, guard) = held(&store, quick()).await;
    let first = guard.held().fencing_token().await.unwrap();
    sleep(secs(10)).await;
    assert_eq!(guard.held().clone().fencing_token().await.unwrap(), first, "renewal does not change it");
    assert_eq!(store.count(Op::Fence), 1);
    guard.release().await.unwrap();

    let guard = locker.acquire(&key("k")).await.unwrap();
    assert!(guard.held().fencing_token().await.unwrap() > first);
    let late = locker.acquire(&key("other")).await.unwrap();
    store.take_over(&key("other"));
    assert!(matches!(late.held().fencing_token().await, Err(FencingError::Lost)));

    store.next(Op::Fence, [Act::Fail(StoreErrorKind::Connect)]);
    let again = locker.acquire(&key("again")).await.unwrap();
    assert!(matches!(again.held().fencing_token().await, Err(FencingError::Store(_))));
    assert!(again.held().fencing_token().await.is_ok(), "an error is not remembered");
}

// B16
#[tokio::test(start_paused = true)]
async fn three_thousand_locks_are_renewed_spread_over_the_interval_and_none_is_lost() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let mut guards = Vec::new();
    for number in 0..3000 {
        guards.push(locker.acquire(&key(&format!("k{number}"))).await.unwrap());
    }
    let start = Instant::now();
    sleep(secs(20)).await;
    assert!(guards.iter().all(|guard| guard.held().is_held()));
    assert_eq!(recorded.sum(LOST, &[]), 0.0);

    let mut per_slot = [0_usize; 20 * 20];
    for call in store.calls(Op::Renew) {
        let slot = (call.at - start).as_millis() / 50;
        per_slot[slot as usize] += 1;
    }
    let renewals: usize = per_slot.iter().sum();
    assert!((57_000..=75_000).contains(&renewals), "{renewals} renewals of 3 000 locks in 20 intervals");
    let most = per_slot.iter().max().unwrap();
    assert!(*most <= 1200, "{most} of 3 000 renewals within 50 ms");
    let settled = per_slot[15 * 20..].iter().max().unwrap();
    assert!(*settled <= 450, "{settled} within 50 ms, when 150 are the mean, after 15 intervals");

    guards.clear();
    recorded.check_settled(3000).await;
    assert_eq!(store.count(Op::Release), 3000);
    assert!(store.memory().is_empty());
}
