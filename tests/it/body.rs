//! Responses that are streamed: how long the lock is held, and what the client gets.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_redis_lock::telemetry::names::{HANDLERS_ABORTED, HOLD_DURATION, LOST};
use tower_redis_lock::{
    HoldUntil, LockLayer, LockSettingsBuilder, LockedBody, LockedBodyError, LostReason, OnLost, ReleaseMode,
};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, now, quick};
use crate::layer::{TestBody, by_path, post, request};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::running::Running;

type Part = Result<Frame<Bytes>, BrokenOff>;

#[derive(Debug)]
struct BrokenOff;

impl std::fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken off")
    }
}

impl std::error::Error for BrokenOff {}

/// A body whose frames come when the test sends them. Polled after its end, it fails the test.
struct Parcel {
    parts: mpsc::UnboundedReceiver<Part>,
    /// Bytes to come, if that is known.
    size: Option<u64>,
    knows_its_end: bool,
    ended: bool,
    dropped: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Sender {
    parts: mpsc::UnboundedSender<Part>,
    dropped: Arc<AtomicUsize>,
}

fn parcel() -> (Sender, Parcel) {
    let (sender, parts) = mpsc::unbounded_channel();
    let dropped = Arc::<AtomicUsize>::default();
    let sender = Sender { parts: sender, dropped: Arc::clone(&dropped) };
    (sender, Parcel { parts, size: None, knows_its_end: false, ended: false, dropped })
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())])
}

impl Sender {
    fn data(&self, text: &'static str) {
        self.parts.send(Ok(Frame::data(Bytes::from_static(text.as_bytes())))).unwrap();
    }

    fn trailers(&self) {
        self.parts.send(Ok(Frame::trailers(trailers()))).unwrap();
    }

    fn fail(&self) {
        self.parts.send(Err(BrokenOff)).unwrap();
    }

    fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) > 0
    }
}

impl Body for Parcel {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        assert!(!self.ended, "polled after its end");
        let part = ready!(self.parts.poll_recv(cx));
        match &part {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.size = self.size.map(|size| size - bytes);
                assert_ne!(frame.data_ref().map(|data| &data[..]), Some(&b"panic"[..]), "in the body");
            }
            _ => self.ended = true,
        }
        Poll::Ready(part)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.knows_its_end && self.parts.is_closed() && self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.size.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a request got from a handler that answers with `body`.
async fn respond<B>(
    store: &ScriptedStore,
    settings: LockSettingsBuilder,
    body: B,
) -> Response<Pin<Box<LockedBody<B>>>>
where
    B: Body<Data = Bytes> + Send + 'static,
{
    let body = Arc::new(parking_lot::Mutex::new(Some(body)));
    let service = LockLayer::new(locker(store.clone(), settings), by_path).layer(service_fn(
        move |_: Request<TestBody>| {
            let body = body.lock().take().expect("one request");
            async move { Ok::<_, Infallible>(Response::new(body)) }
        },
    ));
    service.oneshot(post("/k")).await.unwrap().map(Box::pin)
}

async fn next<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> String
where
    B::Error: std::fmt::Debug,
{
    let frame = body.frame().await.expect("a frame").expect("no error");
    match frame.into_data() {
        Ok(data) => String::from_utf8(data.to_vec()).unwrap(),
        Err(frame) => format!("{:?}", frame.into_trailers().unwrap()),
    }
}

/// Whether the next frame is not there yet.
fn waits<B: Body + Unpin>(body: &mut B) -> bool {
    futures_util::FutureExt::now_or_never(body.frame()).is_none()
}

fn is_locked(store: &ScriptedStore) -> bool {
    !store.is_free(&key("/k"))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_complete_releases_before_the_response() {
    async fn check<B>(body: B, size: u64, text: &str)
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Debug,
    {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let response = respond(&store, quick(), body).await;
        assert!(!is_locked(&store), "{text:?}");
        recorded.check_settled(1).await;
        let body = response.into_body();
        assert_eq!(body.size_hint().exact(), Some(size));
        assert_eq!(body.collect().await.unwrap().to_bytes(), text);
    }
    check(Empty::new(), 0, "").await;
    check(Full::<Bytes>::from(""), 0, "").await;
    check(Full::<Bytes>::from("all of it"), 9, "all of it").await;
    check(Full::<Bytes>::from("boxed").boxed(), 5, "boxed").await;
    check(axum::body::Body::from("of axum"), 7, "of axum").await;
    for knows_its_end in [false, true] {
        let (sender, mut body) = parcel();
        (body.size, body.knows_its_end) = (Some(3), knows_its_end);
        sender.data("one");
        drop(sender);
        check(body, 3, "one").await;
    }
}

#[tokio::test(start_paused = true)]
async fn data_and_trailers_that_are_there_already_are_a_complete_body() {
    let store = ScriptedStore::new();
    let (sender, mut body) = parcel();
    body.knows_its_end = true;
    sender.data("one");
    sender.trailers();
    drop(sender);
    let response = respond(&store, quick(), body).await;
    assert!(!is_locked(&store));
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers()));
    assert_eq!(collected.to_bytes(), "one");
}

#[tokio::test(start_paused = true)]
async fn a_streamed_body_holds_its_lock_until_the_end_of_the_stream_and_not_until_the_drop() {
    for knows_its_end in [false, true] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let (sender, mut body) = parcel();
        body.knows_its_end = knows_its_end;
        let mut body = respond(&store, quick(), body).await.into_body();
        for _ in 0..5 {
            assert!(waits(&mut body));
            sender.data("chunk");
            assert_eq!(next(&mut body).await, "chunk");
            sleep(secs(5)).await;
            assert!(is_locked(&store), "held and renewed");
        }
        sender.data("last");
        drop(sender);
        assert_eq!(next(&mut body).await, "last");
        if !knows_its_end {
            assert!(is_locked(&store), "nobody knows that it was the last");
            assert!(body.frame().await.is_none());
        }
        assert!(!is_locked(&store), "and the body is still there");
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
        recorded.check_settled(1).await;
        assert_eq!((store.count(Op::Release), store.count(Op::CleanUp)), (1, 0));
        let held = recorded.sum(&format!("{HOLD_DURATION}_sum"), &[]);
        assert!((25.0..25.1).contains(&held), "{held} s");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_frame_comes_after_the_release() {
    let store = ScriptedStore::new();
    store.next(Op::Release, [Act::Slow(ms(200))]);
    let (sender, mut body) = parcel();
    body.knows_its_end = true;
    let mut body = respond(&store, quick(), body).await.into_body();
    sender.data("last");
    drop(sender);
    let start = Instant::now();
    assert!(waits(&mut body));
    assert!(!body.is_end_stream(), "there is a frame to come");
    assert_eq!(next(&mut body).await, "last");
    assert!(!is_locked(&store));
    assert!(start.elapsed() >= ms(200));
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_delays_the_end_of_a_stream_by_one_time_limit_at_most() {
    for (mode, bound) in [(ReleaseMode::BeforeResponse, ms(400)), (ReleaseMode::Background, ms(0))] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Release, [Act::Hang]);
        let (sender, body) = parcel();
        let settings = quick().command_timeout(ms(400)).release(mode);
        let mut body = respond(&store, settings, body).await.into_body();
        sender.data("last");
        drop(sender);
        let start = Instant::now();
        assert_eq!(next(&mut body).await, "last");
        assert!(body.frame().await.is_none());
        assert!(start.elapsed() >= bound && start.elapsed() <= bound + ms(2), "{:?}", start.elapsed());
        eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
        recorded.check_settled(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_trailers_and_size_hint_are_those_of_the_inner_body() {
    let store = ScriptedStore::new();
    let (sender, mut body) = parcel();
    body.size = Some(12);
    sender.data("one ");
    let mut body = respond(&store, quick(), body).await.into_body();
    assert_eq!(body.size_hint().exact(), Some(12), "what was read ahead counts");
    assert!(!body.is_end_stream());
    assert_eq!(next(&mut body).await, "one ");
    assert_eq!(body.size_hint().exact(), Some(8));
    sender.data("more");
    sender.data("then");
    sender.trailers();
    drop(sender);
    assert_eq!(next(&mut body).await, "more");
    assert_eq!(body.size_hint().exact(), Some(4));
    assert_eq!(next(&mut body).await, "then");
    assert!(is_locked(&store), "trailers are part of the stream");
    assert_eq!(next(&mut body).await, format!("{:?}", trailers()));
    assert!(body.frame().await.is_none());
    assert!(!is_locked(&store));
    assert!(body.frame().await.is_none(), "again and again");
}

// B26
#[tokio::test(start_paused = true)]
async fn a_body_dropped_at_any_point_releases_once() {
    for frames in 0..4 {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let (sender, body) = parcel();
        let mut body = respond(&store, quick(), body).await.into_body();
        for _ in 0..frames {
            sender.data("chunk");
            next(&mut body).await;
        }
        assert!(is_locked(&store));
        drop(body);
        assert!(sender.is_dropped());
        eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
        recorded.check_settled(1).await;
        assert_eq!((store.count(Op::Release), store.count(Op::CleanUp)), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_dropped_while_its_release_is_under_way_is_released() {
    for act in [Act::Hang, Act::Pend(3), Act::PendReply(3)] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        store.next(Op::Release, [act]);
        let (sender, body) = parcel();
        let mut body = respond(&store, quick(), body).await.into_body();
        drop(sender);
        assert!(waits(&mut body), "{act:?}");
        drop(body);
        eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
        recorded.check_settled(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_body_releases_and_travels_on() {
    for frames in [0, 1, 3] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let (sender, body) = parcel();
        let mut body = respond(&store, quick(), body).await.into_body();
        for _ in 0..frames {
            sender.data("chunk");
            next(&mut body).await;
        }
        sender.fail();
        let error = body.frame().await.unwrap().unwrap_err();
        assert!(matches!(error, LockedBodyError::Inner(BrokenOff)), "{error:?}");
        assert!(!is_locked(&store), "before the error is handed on");
        assert!(body.frame().await.is_none());
        recorded.check_settled(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_there_already_releases_before_the_response() {
    let store = ScriptedStore::new();
    let (sender, body) = parcel();
    sender.data("half");
    sender.fail();
    let mut body = respond(&store, quick(), body).await.into_body();
    assert!(!is_locked(&store));
    assert_eq!(next(&mut body).await, "half");
    assert!(matches!(body.frame().await, Some(Err(LockedBodyError::Inner(BrokenOff)))));
    assert!(body.frame().await.is_none());
}

// B35
#[tokio::test(start_paused = true)]
async fn a_body_that_panics_releases() {
    for frames in [0, 1] {
        let (store, recorded) = (ScriptedStore::new(), Recorded::start());
        let (sender, body) = parcel();
        let reading = Running::start({
            let store = store.clone();
            async move {
                let body = respond(&store, quick(), body).await.into_body();
                let _never = body.collect().await;
            }
        });
        for _ in 0..frames {
            sender.data("chunk");
            tokio::task::yield_now().await;
        }
        sender.data("panic");
        let panic = std::panic::AssertUnwindSafe(reading.end());
        assert!(futures_util::FutureExt::catch_unwind(panic).await.is_err());
        eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
        recorded.check_settled(1).await;
        assert_eq!(recorded.releases("released"), 1.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_ends_the_stream_with_an_error_and_drops_the_inner_body_unread() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (sender, body) = parcel();
    let mut body = respond(&store, quick(), body).await.into_body();
    sender.data("chunk");
    assert_eq!(next(&mut body).await, "chunk");
    let rival = store.take_over(&key("/k"));
    // The reader waits for a frame that never comes; the loss wakes it.
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, LockedBodyError::LockLost(LostReason::TakenOver)), "{error:?}");
    assert!(error.to_string().contains("taken_over"));
    drop(body);
    assert!(sender.is_dropped());
    assert_eq!(recorded.sum(LOST, &[("reason", "taken_over")]), 1.0);
    assert_eq!(recorded.releases("skipped"), 1.0);
    assert_eq!(recorded.sum(HANDLERS_ABORTED, &[]), 0.0, "the handler had returned");
    assert_eq!(store.free_as(&key("/k"), &rival), tower_redis_lock::store::Release::Released);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn frames_of_a_lost_lock_are_not_handed_on() {
    let store = ScriptedStore::new();
    let (sender, body) = parcel();
    sender.data("read ahead");
    let mut body = respond(&store, quick(), body).await.into_body();
    sender.data("waiting");
    store.delete(&key("/k"));
    sleep(secs(2)).await;
    assert!(matches!(body.frame().await, Some(Err(LockedBodyError::LockLost(LostReason::Deleted)))));
    drop(sender);
    assert!(!matches!(now(body.frame()), Some(Ok(_))), "nothing comes after the loss");
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_the_body_is_at_its_end() {
    let store = ScriptedStore::new();
    let (_sender, body) = parcel();
    let mut body = respond(&store, quick(), body).await.into_body();
    store.delete(&key("/k"));
    assert!(matches!(body.frame().await, Some(Err(LockedBodyError::LockLost(_)))));
    assert!(now(body.frame()).is_none(), "and does not wait for more");
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_only_wants_to_know_goes_on_after_a_loss() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (sender, body) = parcel();
    let mut body = respond(&store, quick().on_lost(OnLost::Notify), body).await.into_body();
    store.delete(&key("/k"));
    sleep(secs(5)).await;
    sender.data("chunk");
    assert_eq!(next(&mut body).await, "chunk");
    drop(sender);
    assert!(body.frame().await.is_none());
    assert_eq!(recorded.sum(LOST, &[]), 1.0);
    assert_eq!(store.count(Op::Release), 0);
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_until_the_response_head_does_not_wait_for_the_body() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (sender, body) = parcel();
    let mut body = respond(&store, quick().hold(HoldUntil::ResponseHead), body).await.into_body();
    assert!(!is_locked(&store));
    recorded.check_settled(1).await;
    sender.data("chunk");
    assert_eq!(next(&mut body).await, "chunk");
    assert_eq!(store.commands(), 2);
}

// B15
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_never_read_to_its_end_is_bounded_by_max_hold() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_sender, body) = parcel();
    let mut body = respond(&store, quick().max_hold(secs(5)), body).await.into_body();
    sleep(secs(9)).await;
    assert!(!is_locked(&store), "after max_hold and a ttl, without anybody polling the body");
    assert_eq!(recorded.sum(LOST, &[("reason", "max_hold")]), 1.0);
    assert!(matches!(body.frame().await, Some(Err(LockedBodyError::LockLost(LostReason::MaxHold)))));
}

/// An upgrade takes the connection away from HTTP: the lock covers the handshake only.
#[tokio::test(start_paused = true)]
async fn an_upgrade_is_not_locked_any_more_once_it_is_answered() {
    let store = ScriptedStore::new();
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(service_fn(
        |_: Request<TestBody>| async {
            let switching = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            Ok::<_, Infallible>(switching.body(Empty::<Bytes>::new()).unwrap())
        },
    ));
    let response = service.oneshot(post("/k")).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert!(!is_locked(&store));
}

/// A handler behind hyper, over a connection in memory, that answers with one parcel.
async fn behind_hyper(
    store: &ScriptedStore,
    body: Parcel,
) -> (hyper::client::conn::http1::SendRequest<TestBody>, [Running<()>; 2]) {
    let body = Arc::new(parking_lot::Mutex::new(Some(body)));
    let service = LockLayer::new(locker(store.clone(), quick()), by_path).layer(service_fn(
        move |_: Request<hyper::body::Incoming>| {
            let body = body.lock().take().expect("one request");
            async move { Ok::<_, Infallible>(Response::new(body)) }
        },
    ));
    let (ours, theirs) = tokio::io::duplex(1024);
    let server = Running::start(async move {
        let connection = hyper::server::conn::http1::Builder::new();
        let service = TowerToHyperService::new(service);
        let _broken_off_on_purpose = connection.serve_connection(TokioIo::new(theirs), service).await;
    });
    let (client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
    let client_side = Running::start(async move {
        let _broken_off_on_purpose = connection.await;
    });
    (client, [server, client_side])
}

#[tokio::test(start_paused = true)]
async fn content_length_is_what_the_inner_body_says() {
    let store = ScriptedStore::new();
    let (sender, mut body) = parcel();
    body.size = Some(6);
    sender.data("one");
    let (mut client, _connection) = behind_hyper(&store, body).await;
    let response = client.send_request(post("/k")).await.unwrap();
    assert_eq!(response.headers()["content-length"], "6");
    assert!(!response.headers().contains_key("transfer-encoding"));
    assert!(is_locked(&store));
    sender.data("two");
    drop(sender);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "onetwo");
    eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_in_a_stream_releases() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (sender, body) = parcel();
    let (mut client, connections) = behind_hyper(&store, body).await;
    let response = client.send_request(post("/k")).await.unwrap();
    sender.data("chunk");
    assert_eq!(next(&mut response.into_body()).await, "chunk");
    assert!(is_locked(&store));
    let [_server, ours] = connections;
    drop((client, ours));
    eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
    assert!(sender.is_dropped());
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_request_whose_body_nobody_polls_releases() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let (_sender, mut body) = parcel();
    body.size = Some(6);
    let (mut client, _connection) = behind_hyper(&store, body).await;
    let response = client.send_request(request(Method::HEAD, "/k")).await.unwrap();
    assert_eq!(response.headers()["content-length"], "6");
    eventually("the lock to be free", secs(5), async || !is_locked(&store)).await;
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_in_a_stream_breaks_the_response_off_so_that_the_client_can_tell() {
    let store = ScriptedStore::new();
    let (sender, body) = parcel();
    let (mut client, _connection) = behind_hyper(&store, body).await;
    let response = client.send_request(post("/k")).await.unwrap();
    sender.data("half");
    let mut body = response.into_body();
    assert_eq!(next(&mut body).await, "half");
    store.take_over(&key("/k"));
    let end = body.frame().await.expect("not a proper end");
    assert!(end.is_err(), "a client must not take half of the body for all of it");
}
