//! Dropping a request in each of its states; panics; time limits outside and inside of the lock.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_redis_lock::LockLayer;
use tower_redis_lock::telemetry::names::{HELD, WAITING};

use super::{check_clean, drop_after, returns};
use crate::doubles::gate::Gate;
use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::layer::{TestBody, by_path, done, post, send};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

/// Answers `Pending` so many times, and wakes at once.
fn pends(left: &mut usize, cx: &Context<'_>) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    cx.waker().wake_by_ref();
    true
}

/// A service that is pending twice in each of its states: becoming ready, working, streaming two frames.
#[derive(Clone)]
struct Dawdler {
    ready_in: usize,
    alive: Arc<AtomicUsize>,
}

/// Counts what is under way.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(alive))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct SlowBody {
    frames: usize,
    pending: usize,
    _alive: Alive,
}

impl Body for SlowBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if pends(&mut self.pending, cx) {
            return Poll::Pending;
        }
        if self.frames == 0 {
            return Poll::Ready(None);
        }
        (self.frames, self.pending) = (self.frames - 1, 2);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"chunk")))))
    }
}

impl Service<Request<TestBody>> for Dawdler {
    type Response = Response<SlowBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if pends(&mut self.ready_in, cx) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn call(&mut self, _: Request<TestBody>) -> Self::Future {
        let (handler, body) = (Alive::new(&self.alive), Alive::new(&self.alive));
        Box::pin(async move {
            let _handler = handler;
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            Ok(Response::new(SlowBody { frames: 2, pending: 2, _alive: body }))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_in_any_state_stops_its_handler_and_gives_its_lock_back_once() {
    // Two pending polls each: acquiring, becoming ready, working, three times in the body (one of them is
    // the look ahead), releasing.
    for polls in 1..=20 {
        let what = format!("dropped after {polls} polls");
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Acquire, [Act::PendReply(2)]);
        store.next(Op::Release, [Act::PendReply(2)]);
        let alive = Arc::<AtomicUsize>::default();
        let inner = Dawdler { ready_in: 2, alive: Arc::clone(&alive) };
        let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(inner);
        let request = async {
            let response = service.oneshot(post("/k")).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        };
        let ended = drop_after(polls, request).await;
        assert_eq!(ended.is_some(), polls > 13, "{what}");
        assert_eq!(alive.load(Ordering::Relaxed), 0, "{what}: handler and body are gone");
        assert_eq!(recorded.sum(WAITING, &[]), 0.0, "{what}");
        check_clean(&what, &store, &recorded, 1).await;
        assert_eq!(recorded.acquisitions(if polls <= 2 { "cancelled" } else { "acquired" }), 1.0, "{what}");
        // A release that is dropped half-way may have been done or not, so it is sent once more.
        let half_way = 12..=13;
        let expected = match polls {
            1..=2 => (0, 1),
            _ if half_way.contains(&polls) => (2, 0),
            _ => (1, 0),
        };
        assert_eq!(returns(&store), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_while_it_waits_for_a_rival_asks_no_more() {
    for polls in 1..=10 {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let rival = store.rival_takes(&key("/k"));
        let settings = quick().max_wait(secs(60)).retry(ms(10), ms(20));
        let service = LockLayer::new(locker(store.clone(), settings), by_path)
            .layer(service_fn(|_: Request<TestBody>| async { done() }));
        assert!(drop_after(polls, service.oneshot(post("/k"))).await.is_none());
        let asked = store.commands();
        store.free_as(&key("/k"), &rival);
        check_clean(&format!("after {polls} polls"), &store, &recorded, 1).await;
        assert_eq!(recorded.acquisitions("cancelled"), 1.0);
        assert_eq!(store.commands(), asked, "after {polls} polls");
    }
}

// B35
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_releases_and_the_panic_travels_on() {
    for before_first_await in [true, false] {
        for in_call in [true, false] {
            let (store, recorded) = (ScriptedStore::new(), Recorded::start());
            let handler = service_fn(move |_: Request<TestBody>| {
                assert!(!in_call, "of the handler");
                async move {
                    if !before_first_await {
                        tokio::task::yield_now().await;
                    }
                    assert!(in_call, "of the handler");
                    done()
                }
            });
            let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(handler);
            let request = tokio::spawn(service.oneshot(post("/k")));
            let panic = request.await.unwrap_err().into_panic();
            assert_eq!(panic.downcast_ref(), Some(&"of the handler"));
            check_clean("after a panic", &store, &recorded, 1).await;
            assert_eq!(returns(&store), (1, 0));
            assert_eq!(recorded.releases("released"), 1.0);
        }
    }
}

// B35: whoever catches the panic inside of the lock answers in the handler's place.
#[tokio::test(start_paused = true)]
async fn a_panic_that_is_caught_inside_of_the_lock_is_an_answer_like_any_other() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let handler = service_fn(|_: Request<TestBody>| async {
        let work = std::panic::AssertUnwindSafe(async { panic!("caught") });
        let caught: Result<(), _> = futures_util::FutureExt::catch_unwind(work).await;
        assert!(caught.is_err());
        let answer = Response::builder().status(500).body(TestBody::default()).unwrap();
        Ok::<_, Infallible>(answer)
    });
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(handler);
    let answer = send(&service, post("/k")).await;
    assert_eq!((answer.status.as_u16(), answer.rejection.is_none()), (500, true));
    assert!(store.is_free(&key("/k")), "before the answer");
    recorded.check_settled(1).await;
}

// B67
#[tokio::test(start_paused = true)]
async fn a_time_limit_outside_of_the_lock_ends_waiting_and_working() {
    for waiting in [true, false] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let rival = waiting.then(|| store.rival_takes(&key("/k")));
        let service = ServiceBuilder::new()
            .layer(TimeoutLayer::new(secs(1)))
            .layer(LockLayer::new(locker(store.clone(), quick().max_wait(secs(60))), by_path))
            .service(service_fn(|_: Request<TestBody>| async {
                std::future::pending::<()>().await;
                done()
            }));
        let error: BoxError = service.oneshot(post("/k")).await.map(drop).unwrap_err();
        assert!(error.is::<tower::timeout::error::Elapsed>(), "its own error: {error:?}");
        if let Some(rival) = rival {
            store.free_as(&key("/k"), &rival);
        }
        check_clean("after the time limit", &store, &recorded, 1).await;
        assert_eq!(recorded.acquisitions(if waiting { "cancelled" } else { "acquired" }), 1.0);
        assert_eq!(returns(&store), if waiting { (0, 0) } else { (1, 0) });
    }
}

// B67
#[tokio::test(start_paused = true)]
async fn a_time_limit_inside_of_the_lock_counts_work_only_and_its_error_releases() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let rival = store.rival_takes(&key("/k"));
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(locker(store.clone(), quick().max_wait(secs(60))), by_path))
        .layer(TimeoutLayer::new(secs(1)))
        .service(service_fn(|_: Request<TestBody>| async {
            std::future::pending::<()>().await;
            done()
        }));
    let request = Running::start(service.oneshot(post("/k")));
    tokio::time::sleep(secs(5)).await;
    assert!(!request.has_ended(), "waiting is not limited");
    store.free_as(&key("/k"), &rival);
    let error: BoxError = request.end().await.map(drop).unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error:?}");
    assert!(store.is_free(&key("/k")), "before the error is there");
    recorded.check_settled(1).await;
}

// B74
#[tokio::test(start_paused = true)]
async fn gauges_are_zero_and_outcomes_add_up_after_hundreds_of_aborts_of_every_kind() {
    let (store, recorded, gate) = (ScriptedStore::new(), Recorded::start(), Gate::new());
    let inside = gate.clone();
    let locker = locker(store.clone(), quick().max_wait(secs(60)));
    let service = LockLayer::new(locker, by_path).layer(service_fn(move |request: Request<TestBody>| {
        let inside = inside.clone();
        let panics = request.uri().path().starts_with("/panic");
        async move {
            inside.pass().await;
            assert!(!panics, "on purpose");
            done()
        }
    }));
    let start = |path: String| {
        let service = service.clone();
        tokio::spawn(async move { send(&service, post(&path)).await.status })
    };
    let rival = store.rival_takes(&key("/waiting"));
    let waiting: Vec<_> = (0..500).map(|_| start("/waiting".to_owned())).collect();
    let holding: Vec<_> = (0..500).map(|number| start(format!("/holding/{number}"))).collect();
    let panics: Vec<_> = (0..50).map(|number| start(format!("/panic/{number}"))).collect();
    gate.until_inside(550).await;
    eventually("500 to wait", secs(5), async || recorded.sum(WAITING, &[]) == 500.0).await;
    assert_eq!(recorded.sum(HELD, &[]), 550.0);

    for task in waiting.iter().chain(&holding) {
        task.abort();
    }
    gate.open_for(50);
    for panic in panics {
        assert!(panic.await.unwrap_err().is_panic());
    }
    for task in waiting.into_iter().chain(holding) {
        assert!(task.await.unwrap_err().is_cancelled());
    }
    store.free_as(&key("/waiting"), &rival);
    recorded.check_settled(1050).await;
    assert_eq!(recorded.acquisitions("cancelled"), 500.0);
    assert_eq!(recorded.releases("released"), 550.0);
    eventually("nothing to be locked", secs(5), async || store.memory().is_empty()).await;
    gate.open_for(1);
    assert_eq!(start("/waiting".to_owned()).await.unwrap(), 200);
}
