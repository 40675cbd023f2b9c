//! Taking a lock: how long it waits, how often it asks, what it says when it fails.

use std::error::Error;

use tokio::time::Instant;
use tower_redis_lock::store::StoreErrorKind;
use tower_redis_lock::telemetry::names::{CONTENTION, WAITING};
use tower_redis_lock::{AcquireError, LockSettings, LockSettingsBuilder, LostReason};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

/// Timers count in whole milliseconds.
const TICK: std::time::Duration = ms(2);

fn waiting(wait_ms: u64) -> LockSettingsBuilder {
    quick().max_wait(ms(wait_ms))
}

fn contended(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Contended(_))
}

fn store_error(error: &AcquireError) -> Option<StoreErrorKind> {
    match error {
        AcquireError::Store(error) => Some(error.kind()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_costs_one_command_to_take_and_one_to_give_back() {
    let store = ScriptedStore::new();
    let locker = locker(store.clone(), quick());
    let guard = locker.acquire(&key("k")).await.unwrap();
    assert!(guard.held().is_held());
    assert_eq!(guard.held().key(), &key("k"));
    assert!(!store.is_free(&key("k")));
    guard.release().await.unwrap();
    assert!(store.is_free(&key("k")));
    assert_eq!(store.commands(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_keeps_services_apart() {
    let store = ScriptedStore::new();
    let lockers = ["a:", "b:"]
        .map(|prefix| crate::doubles::locker_builder(store.clone(), quick()).prefix(prefix).build().unwrap());
    let guards = [lockers[0].acquire(&key("k")).await.unwrap(), lockers[1].acquire(&key("k")).await.unwrap()];
    assert_eq!(guards.map(|guard| guard.held().key().to_string()), ["a:k", "b:k"]);
}

// B25
#[tokio::test(start_paused = true)]
async fn without_a_wait_contention_is_told_after_one_attempt() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.rival_takes(&key("k"));
    for locker in [locker(store.clone(), waiting(0)), locker(store.clone(), waiting(9000).max_attempts(1))] {
        let (start, before) = (Instant::now(), store.count(Op::Acquire));
        let error = locker.acquire(&key("k")).await.unwrap_err();
        assert!(contended(&error), "{error:?}");
        assert_eq!(start.elapsed(), ms(0));
        assert_eq!(store.count(Op::Acquire), before + 1);
    }
    recorded.check_settled(2).await;
    assert_eq!(recorded.acquisitions("contended"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn trying_is_one_attempt_whatever_the_settings() {
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    let start = Instant::now();
    assert!(contended(&locker(store.clone(), waiting(9000)).try_acquire(&key("k")).await.unwrap_err()));
    assert_eq!((start.elapsed(), store.count(Op::Acquire)), (ms(0), 1));
}

// B25
#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_exactly_when_its_wait_is_over() {
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    for wait in [1, 200, 1000, 7777] {
        let start = Instant::now();
        let error = locker(store.clone(), waiting(wait)).acquire(&key("k")).await.unwrap_err();
        let waited = start.elapsed();
        assert!(contended(&error), "{error:?}");
        assert!(waited >= ms(wait) && waited <= ms(wait) + TICK, "{waited:?} of {wait} ms");
        let last = store.calls(Op::Acquire).pop().unwrap();
        assert!(last.at >= start + ms(wait), "the last attempt is made at the end of the wait");
    }
}

// B25, B84
#[tokio::test(start_paused = true)]
async fn a_waiter_gets_a_lock_that_comes_free_in_time() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let rival = store.rival_takes(&key("k"));
    let locker = locker(store.clone(), waiting(2000).retry(ms(50), ms(100)));
    let start = Instant::now();
    let waiter = Running::start(async move {
        let guard = locker.acquire(&key("k")).await.unwrap();
        let got = start.elapsed();
        guard.release().await.unwrap();
        got
    });
    tokio::time::sleep(ms(500)).await;
    store.free_as(&key("k"), &rival);
    let got = waiter.end().await;
    assert!(got >= ms(500) && got <= ms(600) + TICK, "within one retry step, not after {got:?}");
    assert_eq!(recorded.sum(CONTENTION, &[]), 1.0, "the first attempt found it taken");
    assert_eq!(recorded.acquisitions("acquired"), 1.0);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_a_lock_whose_holder_died_as_soon_as_it_expires() {
    let store = ScriptedStore::new();
    let rival = store.rival_takes(&key("k"));
    let start = Instant::now();
    let patient = locker(store.clone(), quick().max_wait(secs(100)).retry(secs(30), secs(30)));
    let guard = patient.acquire(&key("k")).await.unwrap();
    let took = start.elapsed();
    assert!(took >= secs(60) && took <= secs(60) + ms(5), "{took:?} for a lock of 60 s");
    assert_eq!(store.free_as(&key("k"), &rival), tower_redis_lock::store::Release::NotOwned);
    guard.release().await.unwrap();
}

// B22
#[tokio::test(start_paused = true)]
async fn no_pause_follows_the_last_attempt() {
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    let locker = locker(store.clone(), waiting(60_000).retry(ms(200), ms(200)).max_attempts(3));
    for round in 1..20 {
        let start = Instant::now();
        assert!(contended(&locker.acquire(&key("k")).await.unwrap_err()));
        assert_eq!(store.count(Op::Acquire), 3 * round);
        assert_eq!(store.calls(Op::Acquire).pop().unwrap().at, Instant::now(), "asked, told, done");
        let took = start.elapsed();
        assert!(took >= ms(40) && took <= ms(400) + TICK * 2, "two pauses of 20 to 200 ms, not {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_of_one_acquisition_share_a_token_and_are_counted() {
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    let locker = locker(store.clone(), waiting(60_000).max_attempts(4));
    locker.acquire(&key("k")).await.unwrap_err();
    locker.acquire(&key("k")).await.unwrap_err();
    let calls = store.calls(Op::Acquire);
    let numbers: Vec<_> = calls.iter().filter_map(|call| call.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 1, 2, 3, 4]);
    assert!(calls[..4].iter().all(|call| call.token == calls[0].token));
    assert!(calls[4..].iter().all(|call| call.token == calls[4].token));
    assert_ne!(calls[0].token, calls[4].token);
}

// B19
#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_asks_no_more() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.rival_takes(&key("k"));
    let locker = locker(store.clone(), waiting(600_000).retry(secs(10), secs(10)));
    let waiter = Running::start(async move { locker.acquire(&key("k")).await.map(drop) });
    eventually("the waiter to wait", secs(5), async || recorded.sum(WAITING, &[]) == 1.0).await;
    let asked = store.commands();
    drop(waiter);
    tokio::task::yield_now().await;
    recorded.check_settled(1).await;
    assert_eq!(recorded.acquisitions("cancelled"), 1.0);
    tokio::time::sleep(secs(60)).await;
    assert_eq!(store.commands(), asked, "nothing was sent that would have to be cleaned up");
}

// B20
#[tokio::test(start_paused = true)]
async fn an_unusable_store_is_not_taken_for_contention_nor_the_other_way_round() {
    use StoreErrorKind::{Connect, Timeout};
    let cases: [(&[Act], Option<StoreErrorKind>); 4] = [
        (&[Act::Fail(Connect), Act::Fail(Connect), Act::Fail(Timeout)], Some(Timeout)),
        // What is known last decides.
        (&[Act::Do, Act::Do, Act::Fail(Connect)], Some(Connect)),
        (&[Act::Fail(Connect), Act::Hang, Act::Do], None),
        (&[Act::Do, Act::Do, Act::Do], None),
    ];
    let recorded = Recorded::start();
    for (acts, expected) in cases {
        let store = ScriptedStore::new();
        store.rival_takes(&key("k"));
        store.next(Op::Acquire, acts.iter().copied());
        let locker = locker(store.clone(), waiting(60_000).max_attempts(3));
        let error = locker.acquire(&key("k")).await.unwrap_err();
        assert_eq!(store_error(&error), expected, "{acts:?}: {error:?}");
        assert_eq!(contended(&error), expected.is_none(), "{acts:?}");
        assert_eq!(error.source().is_some(), expected.is_some(), "the store's error is the source");
    }
    recorded.check_settled(4).await;
    assert_eq!((recorded.acquisitions("error"), recorded.acquisitions("contended")), (2.0, 2.0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_passes_within_the_wait_is_not_noticed() {
    let store = ScriptedStore::new();
    store.next(Op::Acquire, [Act::Fail(StoreErrorKind::Connect), Act::Fail(StoreErrorKind::Loading)]);
    let guard = locker(store.clone(), waiting(5000)).acquire(&key("k")).await.unwrap();
    assert_eq!(store.count(Op::Acquire), 3);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_waiting_cannot_heal_is_told_at_once() {
    use StoreErrorKind::{Auth, Moved, NoPermission, Tls, WrongType};
    for kind in [Auth, Moved, NoPermission, Tls, WrongType] {
        let store = ScriptedStore::new();
        store.always(Op::Acquire, Act::Fail(kind));
        let error = locker(store.clone(), waiting(60_000)).acquire(&key("k")).await.unwrap_err();
        assert_eq!((store_error(&error), store.count(Op::Acquire)), (Some(kind), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_given_up_within_the_wait_and_one_command_time_limit() {
    let store = ScriptedStore::new();
    store.always(Op::Acquire, Act::Hang);
    let settings = waiting(1000).command_timeout(ms(400));
    let start = Instant::now();
    let error = locker(store.clone(), settings).acquire(&key("k")).await.unwrap_err();
    assert_eq!(store_error(&error), Some(StoreErrorKind::Timeout));
    assert!(start.elapsed() <= ms(1400) + TICK, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_answer_was_lost_is_recognised_by_the_next() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.next(Op::Acquire, [Act::LoseReply]);
    let guard = locker(store.clone(), waiting(5000)).acquire(&key("k")).await.unwrap();
    assert_eq!(store.count(Op::Acquire), 2);
    assert!(guard.held().remaining() > ms(2900), "a fresh ttl: {:?}", guard.held().remaining());
    guard.release().await.unwrap();
    recorded.check_settled(1).await;
    eventually("the first attempt to be cleaned up", secs(5), async || store.count(Op::CleanUp) == 1).await;
    assert!(store.is_free(&key("k")));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_may_have_been_granted_is_cleaned_up_when_the_caller_is_told_no() {
    for act in [Act::LoseReply, Act::Hang, Act::Fail(StoreErrorKind::Connect)] {
        let store = ScriptedStore::new();
        store.next(Op::Acquire, [act]);
        let error = locker(store.clone(), waiting(0)).acquire(&key("k")).await.unwrap_err();
        assert!(store_error(&error).is_some(), "never contention: {error:?}");
        eventually("a clean-up", secs(5), async || store.count(Op::CleanUp) == 1).await;
        assert!(store.is_free(&key("k")), "after {act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_leaves_nothing_to_clean_up() {
    let store = ScriptedStore::new();
    store.next(Op::Acquire, [Act::Fail(StoreErrorKind::OutOfMemory)]);
    locker(store.clone(), waiting(0)).acquire(&key("k")).await.unwrap_err();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(store.commands(), 1);
}

// B14 (a)
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_waiter_is_as_long_as_any() {
    let store = ScriptedStore::new();
    let rival = store.rival_takes(&key("k"));
    let settings = LockSettings::builder().ttl(secs(1)).max_wait(secs(3)).retry(ms(10), ms(10));
    let locker = locker(store.clone(), settings);
    let waiter = Running::start(async move { locker.acquire(&key("k")).await.unwrap() });
    tokio::time::sleep(ms(1500)).await;
    store.free_as(&key("k"), &rival);
    let guard = waiter.end().await;
    assert!(guard.held().remaining() > ms(950), "{:?} of 1 s", guard.held().remaining());
    tokio::time::sleep(secs(4)).await;
    assert_eq!(guard.held().lost_reason(), None);
    guard.release().await.unwrap();
}

// B14 (b)
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_long_on_its_way_is_as_short_as_what_is_left_and_renewed_at_once() {
    let store = ScriptedStore::new();
    store.next(Op::Acquire, [Act::LateReply(ms(800))]);
    let locker = locker(store.clone(), LockSettings::builder().ttl(secs(1)));
    let guard = locker.acquire(&key("k")).await.unwrap();
    let left = guard.held().remaining();
    assert!(left <= ms(190), "{left:?} of a second that began 800 ms ago");
    eventually("a renewal", secs(5), async || store.count(Op::Renew) == 1).await;
    let waited = store.calls(Op::Renew)[0].at - store.calls(Op::Acquire)[0].at;
    assert!(waited <= ms(800) + TICK, "renewed at once, not after {waited:?}");
    tokio::time::sleep(secs(4)).await;
    assert!(guard.held().is_held());
}

// B14 (b)
#[tokio::test(start_paused = true)]
async fn a_grant_that_may_have_expired_on_its_way_is_refused() {
    let ttl = LockSettings::builder().ttl(secs(1));
    let store = ScriptedStore::new();
    store.next(Op::Acquire, [Act::LateReply(ms(995))]);
    let guard = locker(store.clone(), ttl.clone().max_wait(secs(5))).acquire(&key("k")).await.unwrap();
    assert_eq!(store.count(Op::Acquire), 2, "asked again, with the same token");
    assert!(guard.held().remaining() > ms(950));

    let store = ScriptedStore::new();
    store.next(Op::Acquire, [Act::LateReply(ms(995))]);
    let error = locker(store.clone(), ttl.max_wait(secs(0))).acquire(&key("k")).await.unwrap_err();
    assert_eq!(store_error(&error), Some(StoreErrorKind::Timeout), "{error:?}");
    eventually("a clean-up", secs(5), async || store.count(Op::CleanUp) == 1).await;
    assert!(store.is_free(&key("k")));
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_tells_how_long_the_holder_still_has() {
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    tokio::time::sleep(secs(20)).await;
    match locker(store, waiting(0)).acquire(&key("k")).await {
        Err(AcquireError::Contended(contended)) => assert_eq!(contended.remaining(), Some(secs(40))),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lock_returns_what_it_returns_and_the_lock_is_given_back() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let output = locker
        .with_lock(&key("k"), |held| async move {
            assert!(held.is_held());
            42
        })
        .await;
    assert_eq!(output.unwrap(), 42);
    assert_eq!(store.count(Op::Release), 1, "before the output is there");

    store.always(Op::Release, Act::Fail(StoreErrorKind::Connect));
    assert_eq!(locker.with_lock(&key("k"), |_| async { 43 }).await.unwrap(), 43, "whatever the release says");
    assert_eq!(recorded.releases("released"), 1.0);
    assert_eq!(recorded.releases("error"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn work_is_not_started_without_the_lock() {
    use tower_redis_lock::WithLockError;
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    let locker = locker(store.clone(), quick());
    let result: Result<(), _> = locker.with_lock(&key("k"), |_| async { panic!("must not run") }).await;
    let error = result.unwrap_err();
    assert!(matches!(&error, WithLockError::Acquire(error) if contended(error)), "{error:?}");
    assert!(error.source().is_some());
}

#[tokio::test(start_paused = true)]
async fn work_stops_at_an_await_when_its_lock_is_lost_unless_it_only_wants_to_know() {
    use tower_redis_lock::{OnLost, WithLockError};
    let store = ScriptedStore::new();
    let abort = locker(store.clone(), quick());
    let work = |store: ScriptedStore| async move {
        store.take_over(&key("k"));
        tokio::time::sleep(secs(30)).await;
        "to the end"
    };
    let error = abort.with_lock(&key("k"), |_| work(store.clone())).await.unwrap_err();
    assert!(matches!(error, WithLockError::Lost(LostReason::TakenOver)), "{error:?}");

    let store = ScriptedStore::new();
    let notify = locker(store.clone(), quick().on_lost(OnLost::Notify));
    let view = store.clone();
    let told = notify
        .with_lock(&key("k"), |held| async move {
            let output = work(store).await;
            (output, held.lost_reason())
        })
        .await;
    assert_eq!(told.unwrap(), ("to the end", Some(LostReason::TakenOver)));
    assert_eq!(view.count(Op::Release), 0, "a lost lock is left alone");
}

// B23
#[tokio::test(start_paused = true)]
async fn waiters_of_many_instances_do_not_knock_in_step() {
    const INSTANCES: usize = 200;
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    let start = Instant::now();
    let waiters: Vec<_> = (0..INSTANCES)
        .map(|_| {
            let locker = locker(store.clone(), waiting(5000));
            Running::start(async move { locker.acquire(&key("k")).await.map(drop) })
        })
        .collect();
    for waiter in waiters {
        assert!(contended(&waiter.end().await.unwrap_err()));
    }
    // After the first attempts, which come together, and before the last, which end the wait.
    let knocks: Vec<_> = store.calls(Op::Acquire).iter().map(|call| call.at - start).collect();
    let between: Vec<_> = knocks.into_iter().filter(|at| *at > ms(0) && *at < secs(5)).collect();
    let per_waiter = between.len() / INSTANCES;
    assert!((10..=40).contains(&per_waiter), "{per_waiter} attempts in 5 s of polling");
    for instant in (0..5000).step_by(10) {
        let together = between.iter().filter(|at| **at >= ms(instant) && **at < ms(instant + 10)).count();
        // In the first steps, of 50, 100 and 200 ms, they still have little room.
        let most = match instant {
            0..200 => INSTANCES / 2,
            200..800 => INSTANCES / 4,
            _ => INSTANCES / 8,
        };
        assert!(together <= most, "{together} of {INSTANCES} at {instant} ms");
    }
}
