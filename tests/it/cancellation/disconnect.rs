//! A client that goes away while its handler runs, where that has to run to its end.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_redis_lock::{
    HeldLock, LockLayer, LockSettings, LockSettingsBuilder, Locker, MemoryStore, OnDisconnect, OnLost,
};

use super::{check_clean, returns};
use crate::doubles::gate::Gate;
use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::layer::{TestBody, by_path, done, post, send};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

fn to_the_end() -> LockSettingsBuilder {
    quick().on_disconnect(OnDisconnect::RunToEnd)
}

/// A service whose handler stops at the gate and counts when it has come to its end.
fn service(
    store: &ScriptedStore,
    settings: LockSettingsBuilder,
    gate: &Gate,
    ends: &Arc<AtomicUsize>,
) -> impl tower::Service<
    Request<TestBody>,
    Response = Response<tower_redis_lock::LockedBody<TestBody>>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let (gate, ends) = (gate.clone(), Arc::clone(ends));
    LockLayer::new(locker(store.clone(), settings), by_path).layer(service_fn(move |_: Request<TestBody>| {
        let (gate, ends) = (gate.clone(), Arc::clone(&ends));
        async move {
            gate.pass().await;
            ends.fetch_add(1, Ordering::Relaxed);
            done()
        }
    }))
}

// B27
#[tokio::test(start_paused = true)]
async fn by_default_the_handler_stops_with_its_client() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let ends = Arc::default();
    let service = service(&store, quick(), &gate, &ends);
    let request = Running::start(service.oneshot(post("/k")));
    gate.until_inside(1).await;
    drop(request);
    gate.open_for(1);
    check_clean("after the disconnect", &store, &recorded, 1).await;
    assert_eq!(ends.load(Ordering::Relaxed), 0);
}

// B27
#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_to_its_end_keeps_its_lock_until_then() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let ends = Arc::default();
    let service = service(&store, to_the_end(), &gate, &ends);
    let request = Running::start(service.clone().oneshot(post("/k")));
    gate.until_inside(1).await;
    drop(request);
    tokio::time::sleep(secs(30)).await;
    assert!(!store.is_free(&key("/k")), "held and renewed");
    assert_eq!(send(&service, post("/k")).await.status, StatusCode::CONFLICT);
    gate.open_for(1);
    eventually("the handler to end", secs(5), async || ends.load(Ordering::Relaxed) == 1).await;
    check_clean("after its end", &store, &recorded, 2).await;
    assert_eq!(returns(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn with_its_client_there_nothing_is_different() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let ends = Arc::default();
    let service = service(&store, to_the_end(), &gate, &ends);
    gate.open_for(1);
    assert_eq!(send(&service, post("/k")).await.text, "done");
    assert!(store.is_free(&key("/k")), "before the answer");
    recorded.check_settled(1).await;
    assert_eq!(returns(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_while_it_waits_starts_nothing() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let ends = Arc::default();
    let rival = store.rival_takes(&key("/k"));
    let service = service(&store, to_the_end().max_wait(secs(60)), &gate, &ends);
    let request = Running::start(service.oneshot(post("/k")));
    eventually("it to wait", secs(5), async || store.count(Op::Acquire) > 0).await;
    drop(request);
    store.free_as(&key("/k"), &rival);
    check_clean("after the disconnect", &store, &recorded, 1).await;
    assert_eq!((gate.arrived(), ends.load(Ordering::Relaxed)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_detached_handler_whose_lock_is_lost_stops_unless_it_only_wants_to_know() {
    for (on_lost, expected_ends) in [(OnLost::Abort, 0), (OnLost::Notify, 1)] {
        let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
        let ends = Arc::default();
        let service = service(&store, to_the_end().on_lost(on_lost), &gate, &ends);
        let request = Running::start(service.oneshot(post("/k")));
        gate.until_inside(1).await;
        drop(request);
        store.delete(&key("/k"));
        tokio::time::sleep(secs(5)).await;
        gate.open_for(1);
        tokio::time::sleep(secs(5)).await;
        assert_eq!(ends.load(Ordering::Relaxed), expected_ends, "{on_lost:?}");
        check_clean("after the loss", &store, &recorded, 1).await;
    }
}

/// `call` itself takes so long that the lock is lost before there is a handler to detach.
#[tokio::test]
async fn a_handler_whose_lock_is_lost_while_it_is_called_does_not_go_on_in_the_background() {
    let ends = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ends);
    let settings = LockSettings::builder()
        .ttl(ms(100))
        .without_renewal()
        .on_disconnect(OnDisconnect::RunToEnd)
        .build()
        .unwrap();
    let locker = Locker::builder(MemoryStore::new()).settings(settings).build().unwrap();
    let service = LockLayer::new(locker, by_path).layer(service_fn(move |_: Request<TestBody>| {
        std::thread::sleep(ms(150));
        let ends = Arc::clone(&counted);
        async move {
            tokio::time::sleep(ms(50)).await;
            ends.fetch_add(1, Ordering::Relaxed);
            done()
        }
    }));
    let answer = service.oneshot(post("/k")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    tokio::time::sleep(ms(500)).await;
    assert_eq!(ends.load(Ordering::Relaxed), 0, "nothing went on without its lock");
}

#[tokio::test(start_paused = true)]
async fn a_detached_handler_that_panics_releases() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let inside = gate.clone();
    let handler = service_fn(move |_: Request<TestBody>| {
        let inside = inside.clone();
        async move {
            inside.pass().await;
            assert_eq!(inside.arrived(), 1, "on purpose");
            done()
        }
    });
    let service = LockLayer::new(locker(store.clone(), to_the_end()), by_path).layer(handler);
    let request = Running::start(service.oneshot(post("/k")));
    gate.until_inside(1).await;
    drop(request);
    gate.open_for(1);
    check_clean("after the panic", &store, &recorded, 1).await;
    assert_eq!(recorded.releases("released"), 1.0);
}

#[test]
fn a_detached_handler_without_a_runtime_is_dropped_and_releases() {
    let store = tower_redis_lock::MemoryStore::new();
    let locker = tower_redis_lock::Locker::builder(store.clone()).settings(to_the_end().build().unwrap());
    let service =
        LockLayer::new(locker.build().unwrap(), by_path).layer(service_fn(|_: Request<TestBody>| async {
            std::future::pending::<()>().await;
            done()
        }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut request = Box::pin(service.oneshot(post("/k")));
    runtime.block_on(async {
        eventually("the lock to be taken", secs(5), async || {
            let ended = tokio::time::timeout(ms(0), request.as_mut()).await;
            assert!(ended.is_err());
            store.len() == 1
        })
        .await;
    });
    drop(runtime);
    drop(request);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(eventually("the lock to be free", secs(5), async || store.is_empty()));
}

// B27
#[tokio::test(start_paused = true)]
async fn work_that_a_handler_spawns_can_keep_the_lock_beyond_the_answer() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let inside = gate.clone();
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(service_fn(
        move |request: Request<TestBody>| {
            let kept = request.extensions().get::<HeldLock>().unwrap().keep().expect("held");
            let inside = inside.clone();
            tokio::spawn(async move {
                inside.pass().await;
                drop(kept);
            });
            async { done() }
        },
    ));
    assert_eq!(send(&service, post("/k")).await.status, StatusCode::OK);
    tokio::time::sleep(secs(30)).await;
    assert!(!store.is_free(&key("/k")), "held and renewed by the work");
    assert_eq!(send(&service, post("/k")).await.status, StatusCode::CONFLICT);
    gate.open_for(1);
    check_clean("after the work", &store, &recorded, 2).await;
    assert_eq!(returns(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_or_given_back_cannot_be_kept() {
    let store = ScriptedStore::new();
    let locker = locker(store.clone(), quick());
    let guard = locker.acquire(&key("/k")).await.unwrap();
    let held = guard.held().clone();
    guard.release().await.unwrap();
    assert!(held.keep().is_none());

    let guard = locker.acquire(&key("/k")).await.unwrap();
    store.delete(&key("/k"));
    guard.held().lost().await;
    assert!(guard.held().keep().is_none());

    store.always(Op::Release, Act::Do);
    let guard = locker.acquire(&key("/k")).await.unwrap();
    let kept = [guard.held().keep().unwrap(), guard.held().keep().unwrap()];
    guard.release().await.unwrap();
    let [first, second] = kept;
    drop(first);
    tokio::task::yield_now().await;
    assert!(!store.is_free(&key("/k")), "one still keeps it");
    assert!(second.held().is_held());
    drop(second);
    eventually("the lock to be free", secs(5), async || store.is_free(&key("/k"))).await;
}
