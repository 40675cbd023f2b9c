//! The end of a locker.

use tokio::time::{Instant, sleep};
use tower_redis_lock::store::StoreErrorKind;
use tower_redis_lock::{AcquireError, LockSettings};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

#[tokio::test(start_paused = true)]
async fn a_locker_that_shuts_down_refuses_without_asking_the_store() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let start = Instant::now();
    let report = locker.shutdown(secs(10)).await;
    assert_eq!((report.unfinished(), start.elapsed()), (0, ms(0)), "nothing to wait for");
    let view = locker.with_name("view").with_settings(LockSettings::default());
    for locker in [locker.clone(), locker, view] {
        assert!(matches!(locker.acquire(&key("k")).await, Err(AcquireError::ShuttingDown)));
        assert!(matches!(locker.try_acquire(&key("k")).await, Err(AcquireError::ShuttingDown)));
    }
    assert_eq!(store.commands(), 0);
    recorded.check_settled(6).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_are_sent_away_at_once() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.rival_takes(&key("k"));
    let locker = locker(store.clone(), quick().max_wait(secs(600)).retry(secs(60), secs(60)));
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let locker = locker.clone();
            Running::start(async move { locker.acquire(&key("k")).await.map(drop) })
        })
        .collect();
    sleep(ms(10)).await;
    let start = Instant::now();
    assert_eq!(locker.shutdown(secs(10)).await.unfinished(), 0);
    for waiter in waiters {
        assert!(matches!(waiter.end().await, Err(AcquireError::ShuttingDown)));
    }
    assert_eq!(start.elapsed(), ms(0));
    recorded.check_settled(5).await;
}

// B30
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_held_locks_and_for_releases_under_way() {
    let store = ScriptedStore::new();
    store.always(Op::Release, Act::Slow(ms(50)));
    let locker = locker(store.clone(), quick());
    let mut holders = Vec::new();
    for number in 0..20 {
        let guard = locker.acquire(&key(&format!("k{number}"))).await.unwrap();
        holders.push(Running::start(async move {
            sleep(ms(500)).await;
            drop(guard);
        }));
    }
    let start = Instant::now();
    assert_eq!(locker.shutdown(secs(10)).await.unfinished(), 0);
    assert!(start.elapsed() >= ms(550) && start.elapsed() <= ms(600), "{:?}", start.elapsed());
    assert!(store.memory().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_at_its_limit_and_reports_what_is_left() {
    let store = ScriptedStore::new();
    let locker = locker(store.clone(), quick());
    let held = locker.acquire(&key("held")).await.unwrap();
    let dropped = locker.acquire(&key("dropped")).await.unwrap();
    store.always(Op::Release, Act::Fail(StoreErrorKind::Connect));
    store.always(Op::CleanUp, Act::Fail(StoreErrorKind::Connect));
    drop(dropped);
    let start = Instant::now();
    assert_eq!(locker.shutdown(secs(1)).await.unfinished(), 2);
    assert!(start.elapsed() >= secs(1) && start.elapsed() <= ms(1002), "{:?}", start.elapsed());
    assert!(held.held().is_held(), "what is still held goes on being renewed");
    sleep(secs(30)).await;
    assert!(held.held().is_held());

    store.always(Op::Release, Act::Do);
    held.release().await.unwrap();
    assert_eq!(locker.shutdown(secs(10)).await.unfinished(), 0, "a second call goes on waiting");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_is_dropped_still_refuses() {
    let locker = locker(ScriptedStore::new(), quick());
    let _held = locker.acquire(&key("k")).await.unwrap();
    assert!(tokio::time::timeout(ms(10), locker.shutdown(secs(60))).await.is_err());
    assert!(matches!(locker.acquire(&key("other")).await, Err(AcquireError::ShuttingDown)));
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_wins_while_the_locker_shuts_down_is_waited_for() {
    let store = ScriptedStore::new();
    store.next(Op::Acquire, [Act::LateReply(ms(300))]);
    let locker = locker(store.clone(), quick());
    let winner = Running::start({
        let locker = locker.clone();
        async move {
            let guard = locker.acquire(&key("k")).await?;
            sleep(secs(1)).await;
            Ok::<_, AcquireError>(guard.release().await)
        }
    });
    sleep(ms(10)).await;
    assert_eq!(locker.shutdown(secs(10)).await.unfinished(), 0);
    match winner.end().await {
        Ok(released) => released.unwrap(),
        Err(error) => assert!(matches!(error, AcquireError::ShuttingDown), "{error:?}"),
    }
    eventually("the lock to be free", secs(5), async || store.is_free(&key("k"))).await;
}
