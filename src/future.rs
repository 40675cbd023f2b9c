//! [`ResponseFuture`]: the one state machine from a request to its response.
//!
//! ```text
//! Acquiring ──► Readying ──► Running ──► Releasing ──► response
//!     └────────────┴────────────┴──► answered by the layer
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project::pin_project;
use tower_service::Service;

use crate::body::{LockedBody, Releasing, release};
use crate::guard::{LockGuard, LossSignal};
use crate::handler::Handler;
use crate::key::LockKey;
use crate::lease::LostReason;
use crate::locker::{AcquireError, Locker};
use crate::rejection::{Answer, Protocol, Rejection, respond};
use crate::settings::{HoldUntil, OnDisconnect, OnLost, OnStoreError, ReleaseMode};
use crate::telemetry::BypassReason;

/// In the extensions of a request whose handler runs without the lock that it should have had, because the
/// store cannot be used and [`OnStoreError::Proceed`] was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unguarded;

type Acquiring = Pin<Box<dyn Future<Output = Result<LockGuard, AcquireError>> + Send>>;
type Answered<S, B, R> = Result<Response<LockedBody<R>>, <S as Service<Request<B>>>::Error>;

/// The future of [`LockService`](crate::LockService).
///
/// # Cancel safety
///
/// Dropped at any time, it stops waiting or drops the handler, and hands the release to the keeper.
#[pin_project]
pub struct ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
    R: Body,
{
    #[pin]
    state: State<S, B, R>,
    terms: Terms,
}

/// What stays the same from state to state.
struct Terms {
    locker: Locker,
    answer: Option<Arc<dyn Answer>>,
    protocol: Protocol,
}

#[pin_project(project = StateProjection)]
enum State<S, B, R>
where
    S: Service<Request<B>>,
    R: Body,
{
    /// The answer is known without asking anybody.
    Refused { rejection: Option<Rejection> },
    /// Waits for the lock.
    Acquiring { acquire: Acquiring, call: Option<(S, Request<B>)> },
    /// Waits for the inner service to become ready, with the lock held.
    Readying { guarded: Option<Guarded>, call: Option<(S, Request<B>)> },
    /// Waits for the handler and for a loss of the lock.
    Running {
        #[pin]
        handler: Handler<S::Future>,
        guarded: Option<Guarded>,
    },
    /// Waits for the release; the answer is ready.
    Releasing { release: Releasing, response: Option<Answered<S, B, R>> },
}

struct Guarded {
    guard: LockGuard,
    /// Only if a loss has to stop the handler.
    loss: Option<LossSignal>,
}

impl Guarded {
    fn new(guard: LockGuard, on_lost: OnLost) -> Self {
        let loss = (on_lost == OnLost::Abort).then(|| guard.held().loss_signal());
        Self { guard, loss }
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<LostReason> {
        match &mut self.loss {
            Some(loss) => loss.poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    pub(crate) fn refused(
        locker: &Locker,
        answer: Option<Arc<dyn Answer>>,
        rejection: Rejection,
        head: &Parts,
    ) -> Self {
        let terms = Terms { locker: locker.clone(), answer, protocol: Protocol::of(&head.headers) };
        Self { state: State::Refused { rejection: Some(rejection) }, terms }
    }

    pub(crate) fn passing(locker: &Locker, inner: S, request: Request<B>) -> Self {
        let terms = Terms { locker: locker.clone(), answer: None, protocol: Protocol::Http };
        Self { state: State::Readying { guarded: None, call: Some((inner, request)) }, terms }
    }

    pub(crate) fn acquiring(
        locker: &Locker,
        answer: Option<Arc<dyn Answer>>,
        key: LockKey,
        max_wait: Duration,
        inner: S,
        request: Request<B>,
    ) -> Self {
        let protocol = Protocol::of(request.headers());
        let terms = Terms { locker: locker.clone(), answer, protocol };
        let locker = locker.clone();
        let acquire = Box::pin(async move { locker.acquire_within(&key, max_wait).await });
        let call = Some((inner, request));
        Self { state: State::Acquiring { acquire, call }, terms }
    }
}

impl Terms {
    fn answer<R: Body<Data = Bytes>>(&self, rejection: Rejection) -> Response<LockedBody<R>> {
        self.locker.metrics().rejected(rejection.status_label());
        respond(rejection, self.answer.as_deref(), self.protocol).map(LockedBody::answer)
    }

    /// The lock was lost: the handler has been dropped.
    fn aborted<R: Body<Data = Bytes>>(&self, reason: LostReason) -> Response<LockedBody<R>> {
        self.locker.metrics().handler_aborted();
        self.answer(Rejection::LockLost(reason))
    }

    /// Without the lock: `Ok` if the handler is to be called all the same.
    fn without_lock(&self, error: &AcquireError) -> Result<(), Rejection> {
        let metrics = self.locker.metrics();
        let settings = self.locker.settings();
        match error {
            AcquireError::Store(_) if settings.on_store_error() == OnStoreError::Proceed => {
                metrics.bypassed(BypassReason::FailOpen);
                Ok(())
            }
            error => Err(Rejection::from_acquire(error, settings, metrics.typical_hold())),
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Output = Answered<S, B, R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let terms = &*this.terms;
        let settings = terms.locker.settings();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Refused { rejection } => match rejection.take() {
                    Some(rejection) => return Poll::Ready(Ok(terms.answer(rejection))),
                    None => return Poll::Pending,
                },
                StateProjection::Acquiring { acquire, call } => {
                    let acquired = ready!(acquire.as_mut().poll(cx));
                    let Some((inner, mut request)) = call.take() else { return Poll::Pending };
                    let guarded = match acquired {
                        Ok(guard) => {
                            request.extensions_mut().insert(guard.held().clone());
                            Some(Guarded::new(guard, settings.on_lost()))
                        }
                        Err(error) => {
                            if let Err(rejection) = terms.without_lock(&error) {
                                return Poll::Ready(Ok(terms.answer(rejection)));
                            }
                            request.extensions_mut().insert(Unguarded);
                            None
                        }
                    };
                    State::Readying { guarded, call: Some((inner, request)) }
                }
                StateProjection::Readying { guarded, call } => {
                    if let Some(guarded) = guarded
                        && let Poll::Ready(reason) = guarded.poll_lost(cx)
                    {
                        *call = None;
                        return Poll::Ready(Ok(terms.answer(Rejection::LockLost(reason))));
                    }
                    let Some((inner, _)) = call else { return Poll::Pending };
                    match ready!(inner.poll_ready(cx)) {
                        Ok(()) => {
                            let Some((mut inner, request)) = call.take() else { return Poll::Pending };
                            let handler = inner.call(request);
                            let held = guarded.as_ref().map(|guarded| guarded.guard.held());
                            let handler = match settings.on_disconnect() {
                                OnDisconnect::Stop => Handler::Attached(handler),
                                OnDisconnect::RunToEnd => {
                                    Handler::detachable(handler, held, settings.on_lost())
                                }
                            };
                            State::Running { handler, guarded: guarded.take() }
                        }
                        Err(error) => match guarded.take() {
                            Some(guarded) => give_back(guarded.guard, settings.release(), Err(error)),
                            None => return Poll::Ready(Err(error)),
                        },
                    }
                }
                StateProjection::Running { handler, guarded } => {
                    if let Some(guarded) = guarded
                        && let Poll::Ready(reason) = guarded.poll_lost(cx)
                    {
                        let response = terms.aborted(reason);
                        this.state.set(State::Refused { rejection: None });
                        return Poll::Ready(Ok(response));
                    }
                    let result = ready!(handler.poll(cx));
                    let Some(Guarded { guard, .. }) = guarded.take() else {
                        return Poll::Ready(result.map(|response| response.map(LockedBody::free)));
                    };
                    let lost = guard.held().lost_reason();
                    let (response, guard) = match result {
                        Err(error) => (Err(error), Some(guard)),
                        Ok(mut response) => {
                            if let Some(reason) = lost {
                                response.extensions_mut().insert(reason);
                            }
                            let (head, body) = response.into_parts();
                            let (body, guard) = match settings.hold() {
                                HoldUntil::ResponseHead => (LockedBody::free(body), Some(guard)),
                                HoldUntil::BodyEnd => LockedBody::held(body, guard, settings, cx),
                            };
                            (Ok(Response::from_parts(head, body)), guard)
                        }
                    };
                    match guard {
                        Some(guard) => give_back(guard, settings.release(), response),
                        None => return Poll::Ready(response),
                    }
                }
                StateProjection::Releasing { release, response } => {
                    ready!(release.as_mut().poll(cx));
                    match response.take() {
                        Some(response) => return Poll::Ready(response),
                        None => return Poll::Pending,
                    }
                }
            };
            this.state.set(next);
        }
    }
}

fn give_back<S, B, R>(guard: LockGuard, mode: ReleaseMode, response: Answered<S, B, R>) -> State<S, B, R>
where
    S: Service<Request<B>>,
    R: Body,
{
    let release = match mode {
        ReleaseMode::BeforeResponse => release(guard),
        ReleaseMode::Background => {
            drop(guard);
            Box::pin(std::future::ready(()))
        }
    };
    State::Releasing { release, response: Some(response) }
}

impl<S, B, R> fmt::Debug for ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
    R: Body,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Refused { .. } => "Refused",
            State::Acquiring { .. } => "Acquiring",
            State::Readying { .. } => "Readying",
            State::Running { .. } => "Running",
            State::Releasing { .. } => "Releasing",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
