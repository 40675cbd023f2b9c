//! What happens to a request on its way through the layer.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_redis_lock::store::StoreErrorKind;
use tower_redis_lock::telemetry::names::{ACQUISITIONS, BYPASSED, HANDLERS_ABORTED, REJECTIONS};
use tower_redis_lock::{
    HeldLock, KeyError, LockKey, LockLayer, LockService, LockedBody, LostReason, OnLost, OnStoreError,
    Rejection, ReleaseMode, Unguarded,
};

use super::{TestBody, by_path, done, post, request, send};
use crate::doubles::gate::Gate;
use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

#[tokio::test(start_paused = true)]
async fn a_handler_runs_with_its_lock_and_whoever_has_the_answer_can_lock_again() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let seen = store.clone();
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(service_fn(
        move |request: Request<TestBody>| {
            let held = request.extensions().get::<HeldLock>().expect("the lock").clone();
            assert!(request.extensions().get::<Unguarded>().is_none());
            assert!(held.is_held());
            assert_eq!(held.key(), &key("/orders/1"));
            assert!(!seen.is_free(&key("/orders/1")));
            async move { done() }
        },
    ));
    for _ in 0..3 {
        let response = service.clone().oneshot(post("/orders/1")).await.unwrap();
        assert!(store.is_free(&key("/orders/1")), "before the answer");
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!((store.count(Op::Acquire), store.count(Op::Release)), (3, 3));
    recorded.check_settled(3).await;
}

#[tokio::test(start_paused = true)]
async fn second_caller_gets_409_while_the_first_is_inside_and_others_are_not_bothered() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let inside = gate.clone();
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(service_fn(
        move |request: Request<TestBody>| {
            let (inside, first) = (inside.clone(), request.uri().path() == "/orders/1");
            async move {
                if first {
                    inside.pass().await;
                }
                done()
            }
        },
    ));
    let first = Running::start({
        let service = service.clone();
        async move { send(&service, post("/orders/1")).await.status }
    });
    gate.until_inside(1).await;
    assert_eq!(send(&service, post("/orders/1")).await.status, StatusCode::CONFLICT);
    assert_eq!(send(&service, post("/orders/2")).await.status, StatusCode::OK);
    gate.open_for(1);
    assert_eq!(first.end().await, StatusCode::OK);
    gate.open_for(1);
    assert_eq!(send(&service, post("/orders/1")).await.status, StatusCode::OK);
    assert_eq!(recorded.sum(REJECTIONS, &[("status", "409")]), 1.0);
    recorded.check_settled(4).await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_their_lock_hold_no_permit_of_the_inner_service() {
    let store = ScriptedStore::new();
    let rival = store.rival_takes(&key("/taken"));
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(locker(store.clone(), quick().max_wait(secs(30))), by_path))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(service_fn(|_: Request<TestBody>| async { done() }));
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let service = service.clone();
            Running::start(async move { send(&service, post("/taken")).await.status })
        })
        .collect();
    eventually("all five to wait", secs(5), async || store.count(Op::Acquire) >= 5).await;
    assert_eq!(send(&service, post("/free")).await.status, StatusCode::OK, "the only permit is free");
    store.free_as(&key("/taken"), &rival);
    for waiter in waiters {
        assert_eq!(waiter.end().await, StatusCode::OK);
    }
}

/// A service that is ready, or fails to be, when it is told.
struct Moody {
    gate: Gate,
    broken: Arc<AtomicBool>,
    readying: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Clone for Moody {
    /// Readiness is not cloned, as in a service that reserves something.
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), broken: Arc::clone(&self.broken), readying: None }
    }
}

impl Service<Request<TestBody>> for Moody {
    type Response = Response<TestBody>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.broken.load(Ordering::Relaxed) {
            return Poll::Ready(Err("never ready"));
        }
        let gate = self.gate.clone();
        let readying = self.readying.get_or_insert_with(|| Box::pin(async move { gate.pass().await }));
        readying.as_mut().poll(cx).map(Ok)
    }

    fn call(&mut self, _: Request<TestBody>) -> Self::Future {
        assert!(self.readying.take().is_some(), "called without being made ready");
        std::future::ready(Ok(Response::new(Full::from("done"))))
    }
}

type ByPath = fn(&Parts) -> Result<LockKey, KeyError>;

fn moody(store: &ScriptedStore) -> (Moody, LockService<Moody, ByPath>) {
    let inner = Moody { gate: Gate::new(), broken: Arc::default(), readying: None };
    let extractor: ByPath = by_path;
    (inner.clone(), LockLayer::new(locker(store.clone(), quick()), extractor).layer(inner))
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_is_made_ready_only_with_the_lock_held() {
    let store = ScriptedStore::new();
    let (inner, mut service) = moody(&store);
    let cx = &mut Context::from_waker(std::task::Waker::noop());
    assert!(service.poll_ready(cx).is_ready(), "the layer itself is always ready");
    assert_eq!(inner.gate.arrived(), 0);

    let rival = store.rival_takes(&key("/k"));
    assert_eq!(send(&service, post("/k")).await.status, StatusCode::CONFLICT);
    assert_eq!(inner.gate.arrived(), 0, "nobody asked the inner service");

    store.free_as(&key("/k"), &rival);
    let late = Running::start({
        let service = service.clone();
        async move { send(&service, post("/k")).await.status }
    });
    inner.gate.until_inside(1).await;
    assert!(!store.is_free(&key("/k")));
    sleep(secs(20)).await;
    assert!(!store.is_free(&key("/k")), "renewed while the inner service gets ready");
    inner.gate.open_for(1);
    assert_eq!(late.end().await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_before_the_inner_service_is_ready_stops_the_request() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (inner, service) = moody(&store);
    let late = Running::start(async move { send(&service, post("/k")).await });
    inner.gate.until_inside(1).await;
    store.take_over(&key("/k"));
    let answer = late.end().await;
    assert!(matches!(answer.rejection, Some(Rejection::LockLost(LostReason::TakenOver))), "{answer:?}");
    assert_eq!(recorded.sum(HANDLERS_ABORTED, &[]), 0.0, "no handler was running");
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_inner_service_are_its_own_and_release_the_lock() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (inner, service) = moody(&store);
    inner.broken.store(true, Ordering::Relaxed);
    let error: &'static str = service.oneshot(post("/k")).await.unwrap_err();
    assert_eq!(error, "never ready");
    assert!(store.is_free(&key("/k")), "before the error is there");

    let layer = LockLayer::new(locker(store.clone(), quick()), by_path);
    let failing = layer.layer(service_fn(|_: Request<TestBody>| async {
        Err::<Response<TestBody>, _>(std::io::Error::other("of the handler"))
    }));
    let error: std::io::Error = failing.oneshot(post("/k")).await.unwrap_err();
    assert_eq!(error.to_string(), "of the handler");
    assert!(store.is_free(&key("/k")));
    recorded.check_settled(2).await;
}

#[test]
fn the_error_type_stays_as_it_is() {
    fn check<S, B, E>(_: &S)
    where
        S: Service<Request<TestBody>, Response = Response<LockedBody<B>>, Error = E>,
        B: http_body::Body<Data = Bytes>,
    {
    }
    let layer = LockLayer::new(locker(ScriptedStore::new(), quick()), by_path);
    check::<_, TestBody, Infallible>(&layer.layer(service_fn(|_: Request<TestBody>| async { done() })));
}

// B63
#[tokio::test(start_paused = true)]
async fn options_requests_and_methods_that_were_not_chosen_do_not_lock() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    store.rival_takes(&key("/k"));
    let layer = LockLayer::new(locker(store.clone(), quick()), by_path);
    let handler = || {
        service_fn(|request: Request<TestBody>| {
            let locked = request.extensions().get::<HeldLock>().is_some();
            async move { Ok::<_, Infallible>(Response::new(Full::from(locked.to_string()))) }
        })
    };
    let all = layer.clone().layer(handler());
    let only_post = layer.methods([Method::POST]).layer(handler());
    let made_up = Method::from_bytes(b"ABC123").unwrap();

    let answer = send(&all, request(Method::OPTIONS, "/k")).await;
    assert_eq!((answer.status, &*answer.text), (StatusCode::OK, "false"));
    for method in [Method::GET, Method::HEAD, Method::PUT, made_up.clone()] {
        assert_eq!(send(&all, request(method.clone(), "/k")).await.status, StatusCode::CONFLICT, "{method}");
        assert_eq!(send(&only_post, request(method, "/k")).await.status, StatusCode::OK);
    }
    assert_eq!(send(&only_post, request(Method::POST, "/k")).await.status, StatusCode::CONFLICT);
    assert_eq!(recorded.sum(BYPASSED, &[("reason", "disabled")]), 5.0);
    recorded.check_settled(5).await;
}

// B57
#[tokio::test(start_paused = true)]
async fn requests_without_anything_to_lock_pass_and_those_without_a_key_are_refused() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let nothing = LockLayer::new(locker.clone(), |_: &Parts| None::<LockKey>);
    let empty = LockLayer::new(locker, |_: &Parts| LockKey::new(""));
    let handler = || service_fn(|_: Request<TestBody>| async { done() });
    assert_eq!(send(&nothing.layer(handler()), post("/")).await.status, StatusCode::OK);
    let answer = send(&empty.layer(handler()), post("/")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(matches!(answer.rejection, Some(Rejection::NoKey(_))));
    assert_eq!(store.commands(), 0);
    assert_eq!(recorded.sum(BYPASSED, &[("reason", "no_key")]), 1.0);
    assert_eq!(recorded.sum(REJECTIONS, &[("status", "400")]), 1.0);
}

// B71
#[tokio::test(start_paused = true)]
async fn an_unusable_store_means_503_unless_proceeding_was_chosen_and_then_the_handler_can_see_it() {
    let handler = || {
        service_fn(|request: Request<TestBody>| {
            let extensions = request.extensions();
            let (locked, unguarded) =
                (extensions.get::<HeldLock>().is_some(), extensions.get::<Unguarded>().is_some());
            async move { Ok::<_, Infallible>(Response::new(Full::from(format!("{locked} {unguarded}")))) }
        })
    };
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let closed = LockLayer::new(locker, by_path);
    let open = closed.clone().settings(quick().on_store_error(OnStoreError::Proceed).build().unwrap());
    let (closed, open) = (closed.layer(handler()), open.layer(handler()));

    store.always(Op::Acquire, Act::Fail(StoreErrorKind::Connect));
    let answer = send(&closed, post("/k")).await;
    assert_eq!(
        (answer.status, &answer.headers["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    let kind = answer.rejection.unwrap();
    assert!(matches!(kind, Rejection::StoreUnavailable { kind: StoreErrorKind::Connect }), "{kind:?}");
    assert_eq!(send(&open, post("/k")).await.text, "false true");
    assert_eq!(recorded.sum(BYPASSED, &[("reason", "fail_open")]), 1.0);

    store.always(Op::Acquire, Act::Do);
    assert_eq!(send(&open, post("/k")).await.text, "true false", "guarded again");
    store.rival_takes(&key("/k"));
    assert_eq!(send(&open, post("/k")).await.status, StatusCode::CONFLICT, "contention never falls open");
    assert_eq!(recorded.sum(BYPASSED, &[("reason", "fail_open")]), 1.0);
    recorded.check_settled(4).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_lock_is_lost_is_dropped_and_the_client_is_told() {
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let dropped = Arc::new(AtomicBool::new(false));
    let (inside, flag) = (gate.clone(), Arc::clone(&dropped));
    let layer = LockLayer::new(locker(store.clone(), quick()), by_path);
    let service = layer.layer(service_fn(move |_: Request<TestBody>| {
        let (inside, on_drop) = (inside.clone(), SetOnDrop(Arc::clone(&flag)));
        async move {
            inside.pass().await;
            drop(on_drop);
            panic!("polled without the lock");
            #[expect(unreachable_code, reason = "gives the block its type")]
            done()
        }
    }));
    let request = Running::start(async move { send(&service, post("/k")).await });
    gate.until_inside(1).await;
    let rival = store.take_over(&key("/k"));
    let answer = request.end().await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.text.contains("urn:tower-redis-lock:lock-lost"), "{answer:?}");
    assert!(matches!(answer.rejection, Some(Rejection::LockLost(LostReason::TakenOver))));
    assert!(dropped.load(Ordering::Relaxed));
    assert_eq!(recorded.sum(HANDLERS_ABORTED, &[]), 1.0);
    assert_eq!(recorded.releases("skipped"), 1.0);
    assert_eq!(store.free_as(&key("/k"), &rival), tower_redis_lock::store::Release::Released);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_only_told_answers_itself_and_the_loss_marks_its_response() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let settings = quick().on_lost(OnLost::Notify);
    let layer = LockLayer::new(locker(store.clone(), settings), by_path);
    let inner = store.clone();
    let service = layer.layer(service_fn(move |request: Request<TestBody>| {
        let (held, store) = (request.extensions().get::<HeldLock>().unwrap().clone(), inner.clone());
        async move {
            store.delete(&key("/k"));
            let reason = held.lost().await;
            Ok::<_, Infallible>(Response::new(Full::from(reason.to_string())))
        }
    }));
    let response = service.oneshot(post("/k")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.extensions().get::<LostReason>(), Some(&LostReason::Deleted));
    assert_eq!(recorded.sum(HANDLERS_ABORTED, &[]), 0.0);
    recorded.check_settled(1).await;
}

// B33, B34
#[tokio::test(start_paused = true)]
async fn a_failing_release_changes_neither_the_answer_nor_delays_it_beyond_its_bound() {
    let own = || {
        service_fn(|_: Request<TestBody>| async {
            let own = Response::builder().status(StatusCode::UNPROCESSABLE_ENTITY).header("x-own", "1");
            Ok::<_, Infallible>(own.body(Full::from("of the handler")).unwrap())
        })
    };
    let cases = [
        (Act::Fail(StoreErrorKind::Connect), ReleaseMode::BeforeResponse, ms(0)),
        (Act::Hang, ReleaseMode::BeforeResponse, ms(400)),
        (Act::Hang, ReleaseMode::Background, ms(0)),
        (Act::Slow(ms(200)), ReleaseMode::Background, ms(0)),
    ];
    for (act, mode, bound) in cases {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Release, [act]);
        let settings = quick().command_timeout(ms(400)).release(mode);
        let service = LockLayer::new(locker(store.clone(), settings), by_path).layer(own());
        let start = Instant::now();
        let answer = send(&service, post("/k")).await;
        let took = start.elapsed();
        assert!(took >= bound && took <= bound + ms(2), "{act:?} {mode:?}: {took:?}");
        assert_eq!((answer.status.as_u16(), &*answer.text), (422, "of the handler"));
        assert_eq!((&answer.headers["x-own"], answer.headers.len()), (&"1".parse().unwrap(), 1));
        eventually("the lock to be free", secs(5), async || store.is_free(&key("/k"))).await;
        recorded.check_settled(1).await;
        assert_eq!(recorded.sum(REJECTIONS, &[]), 0.0);
    }
}

// B33
#[tokio::test(start_paused = true)]
async fn the_handlers_own_409_is_left_alone_and_not_taken_for_contention() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(service_fn(
        |_: Request<TestBody>| async {
            let own = Response::builder().status(StatusCode::CONFLICT).header("etag", "\"7\"");
            Ok::<_, Infallible>(own.body(Full::from("version 7 is newer")).unwrap())
        },
    ));
    let answer = send(&service, post("/k")).await;
    assert_eq!((answer.status, &*answer.text), (StatusCode::CONFLICT, "version 7 is newer"));
    assert_eq!(answer.headers.len(), 1, "no Retry-After: {:?}", answer.headers);
    assert!(answer.rejection.is_none());
    assert_eq!(recorded.sum(REJECTIONS, &[]), 0.0);
    assert_eq!(recorded.sum(ACQUISITIONS, &[("outcome", "contended")]), 0.0);
    recorded.check_settled(1).await;
}

// B65
#[tokio::test(start_paused = true)]
async fn the_same_key_twice_in_one_request_is_taken_once() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(10)));
    let layer = LockLayer::new(locker.clone(), by_path);
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(LockLayer::new(locker.with_name("inner"), by_path))
        .layer(layer)
        .service(service_fn(|_: Request<TestBody>| async { done() }));
    let start = Instant::now();
    assert_eq!(send(&service, post("/k")).await.status, StatusCode::OK);
    assert_eq!((store.count(Op::Acquire), store.count(Op::Release)), (1, 1));
    assert_eq!(start.elapsed(), ms(0));
    recorded.check_settled(1).await;
}

// B65
#[tokio::test(start_paused = true)]
async fn different_keys_in_one_request_are_both_held() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let view = store.clone();
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(locker.clone(), by_path))
        .layer(LockLayer::new(locker, |_: &Parts| LockKey::new("inner")))
        .service(service_fn(move |_: Request<TestBody>| {
            let held = [key("/k"), key("inner")].map(|key| !view.is_free(&key));
            async move {
                assert_eq!(held, [true, true]);
                done()
            }
        }));
    assert_eq!(send(&service, post("/k")).await.status, StatusCode::OK);
    assert!(store.memory().is_empty());
    recorded.check_settled(2).await;
}

// B65
#[tokio::test(start_paused = true)]
async fn layers_in_crossed_order_end_by_the_wait_budget() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(2)));
    let on = |name: &'static str| LockLayer::new(locker.clone(), move |_: &Parts| LockKey::new(name));
    let handler = || {
        service_fn(|_: Request<TestBody>| async {
            sleep(ms(5)).await;
            done()
        })
    };
    let ab = ServiceBuilder::new().layer(on("a")).layer(on("b")).service(handler());
    let ba = ServiceBuilder::new().layer(on("b")).layer(on("a")).service(handler());
    let requests: Vec<_> = (0..20)
        .map(|number| {
            let (ab, ba) = (ab.clone(), ba.clone());
            Running::start(async move {
                match number % 2 {
                    0 => send(&ab, post("/")).await.status,
                    _ => send(&ba, post("/")).await.status,
                }
            })
        })
        .collect();
    let start = Instant::now();
    let mut statuses = BTreeSet::new();
    for request in requests {
        statuses.insert(request.end().await.as_u16());
    }
    assert!(start.elapsed() <= secs(5), "never longer than two budgets: {:?}", start.elapsed());
    assert!(statuses.is_subset(&BTreeSet::from([200, 409])), "{statuses:?}");
    eventually("both to be free", secs(5), async || store.memory().is_empty()).await;
    assert_eq!(recorded.sum(tower_redis_lock::telemetry::names::WAITING, &[]), 0.0);
}

// B69
#[tokio::test]
async fn a_closure_of_the_user_that_panics_once_fails_that_request_only() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let marked = |parts: &Parts, what: &str| parts.headers.get("x-panic").is_some_and(|value| value == what);
    let extractor = move |parts: &Parts| {
        assert!(!marked(parts, "key"), "in the key extractor");
        by_path(parts)
    };
    let answers = Arc::new(AtomicUsize::new(0));
    let layer = LockLayer::new(locker(store.clone(), quick()), extractor).on_rejection({
        let answers = Arc::clone(&answers);
        move |rejection| {
            assert_ne!(answers.fetch_add(1, Ordering::Relaxed), 0, "in the first answer");
            rejection.to_response()
        }
    });
    let service = layer.layer(service_fn(|request: Request<TestBody>| async move {
        assert!(request.headers().get("x-panic").is_none(), "in the handler");
        done()
    }));
    let with = |path: &str, what: &'static str| {
        let mut request = post(path);
        request.headers_mut().insert("x-panic", what.parse().unwrap());
        request
    };
    let spawn = |request| {
        let service = service.clone();
        tokio::spawn(async move { send(&service, request).await.status })
    };
    store.rival_takes(&key("/taken"));

    let mut calm = Vec::new();
    for round in 0..50 {
        calm.push(spawn(post(&format!("/calm/{round}"))));
        match round {
            10 => assert!(spawn(with("/k", "key")).await.unwrap_err().is_panic()),
            20 => assert!(spawn(with("/k", "handler")).await.unwrap_err().is_panic()),
            30 => assert!(spawn(post("/taken")).await.unwrap_err().is_panic()),
            _ => {}
        }
    }
    for request in calm {
        assert_eq!(request.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(spawn(post("/taken")).await.unwrap(), StatusCode::CONFLICT);
    eventually("the lock of the handler that panicked", secs(5), async || store.is_free(&key("/k"))).await;
    assert_eq!(spawn(post("/k")).await.unwrap(), StatusCode::OK);
    // 50 calm ones, one panic in its handler, two turned away, one after all that; the one without key
    // never began to acquire.
    recorded.check_settled(54).await;
}

#[tokio::test(start_paused = true)]
async fn a_locker_that_shuts_down_answers_503() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick());
    let service =
        LockLayer::new(locker.clone(), by_path).layer(service_fn(|_: Request<TestBody>| async { done() }));
    locker.shutdown(secs(1)).await;
    let answer = send(&service, post("/k")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(matches!(answer.rejection, Some(Rejection::ShuttingDown)));
    assert_eq!(recorded.sum(REJECTIONS, &[("status", "503")]), 1.0);
}
