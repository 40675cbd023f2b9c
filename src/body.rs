//! [`LockedBody`]: keeps the guard until the end of the stream.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project::pin_project;

use crate::guard::{LockGuard, LossSignal};
use crate::lease::LostReason;
use crate::settings::{LockSettings, OnLost, ReleaseMode};

/// A release under way; it counts and logs its own outcome.
pub(crate) type Releasing = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) fn release(guard: LockGuard) -> Releasing {
    Box::pin(async move {
        let _ = guard.release().await;
    })
}

/// The response body: the inner service's own, or a short one that the layer made.
///
/// While the inner body is still coming, the lock is held and renewed. It is given back when the stream
/// ends, before the last frame is handed on (or in the background), or when the body is dropped. If the
/// lock is lost and the policy is to abort, the stream fails with [`LockedBodyError::LockLost`]. Frames,
/// trailers and size hint are the inner body's.
#[pin_project]
pub struct LockedBody<B: Body> {
    #[pin]
    content: Content<B>,
}

#[pin_project(project = ContentProjection)]
enum Content<B: Body> {
    /// Made by the layer.
    Answer(#[pin] Full<Bytes>),
    /// The inner service's, without a lock.
    Free(#[pin] B),
    /// The inner service's, polled before: boxed, because it must not move any more.
    Held(Pin<Box<Held<B>>>),
}

impl<B: Body<Data = Bytes>> LockedBody<B> {
    pub(crate) fn answer(bytes: Bytes) -> Self {
        Self { content: Content::Answer(Full::new(bytes)) }
    }

    pub(crate) fn free(body: B) -> Self {
        Self { content: Content::Free(body) }
    }

    /// Looks ahead, without waiting, whether the body is complete already. If so it does not need the guard
    /// any more and gives it back; otherwise it keeps it until its end.
    pub(crate) fn held(
        body: B,
        guard: LockGuard,
        settings: &LockSettings,
        cx: &mut Context<'_>,
    ) -> (Self, Option<LockGuard>) {
        if body.is_end_stream() {
            return (Self::free(body), Some(guard));
        }
        let mut held = Box::pin(Held { inner: Some(body), ahead: [None, None], hold: None });
        let guard = if held.as_mut().look_ahead(cx) {
            Some(guard)
        } else {
            let loss = (settings.on_lost() == OnLost::Abort).then(|| guard.held().loss_signal());
            *held.as_mut().project().hold = Some(Hold::Guarding { guard, loss, release: settings.release() });
            None
        };
        (Self { content: Content::Held(held) }, guard)
    }
}

#[pin_project]
struct Held<B: Body> {
    /// Dropped when it has ended or failed, and when the lock is lost: it is never polled again then.
    #[pin]
    inner: Option<B>,
    /// Polled, and not handed on yet: data and trailers of a body that was found complete, or what waits
    /// for the release at the end.
    ahead: [Option<Result<Frame<Bytes>, B::Error>>; 2],
    hold: Option<Hold>,
}

enum Hold {
    Guarding { guard: LockGuard, loss: Option<LossSignal>, release: ReleaseMode },
    Releasing(Releasing),
}

impl Hold {
    /// The stream has ended: what is left to wait for.
    fn give_back(self) -> Option<Self> {
        match self {
            Self::Guarding { guard, release: ReleaseMode::BeforeResponse, .. } => {
                Some(Self::Releasing(release(guard)))
            }
            Self::Guarding { guard, release: ReleaseMode::Background, .. } => {
                drop(guard);
                None
            }
            releasing => Some(releasing),
        }
    }
}

type PolledAhead<E> = Option<Result<Frame<Bytes>, E>>;
type PolledFrame<E> = Poll<Option<Result<Frame<Bytes>, LockedBodyError<E>>>>;

impl<B: Body<Data = Bytes>> Held<B> {
    /// Fills `ahead`. `true` if nothing comes after it.
    fn look_ahead(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        for index in 0..2 {
            match self.as_mut().poll_inner(cx) {
                Poll::Pending => return false,
                Poll::Ready((frame, last)) => {
                    self.as_mut().project().ahead[index] = frame;
                    if last {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The next frame of the inner body, and whether it is known to be the last.
    fn poll_inner(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(PolledAhead<B::Error>, bool)> {
        let mut this = self.project();
        let Some(mut inner) = this.inner.as_mut().as_pin_mut() else { return Poll::Ready((None, true)) };
        let frame = ready!(inner.as_mut().poll_frame(cx));
        let ended = !matches!(frame, Some(Ok(_)));
        let last = ended || inner.is_end_stream();
        if ended {
            this.inner.set(None);
        }
        Poll::Ready((frame, last))
    }

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<B::Error> {
        loop {
            let mut this = self.as_mut().project();
            match this.hold {
                Some(Hold::Guarding { loss: Some(loss), .. }) => {
                    if let Poll::Ready(reason) = loss.poll(cx) {
                        *this.hold = None;
                        *this.ahead = [None, None];
                        this.inner.set(None);
                        return Poll::Ready(Some(Err(LockedBodyError::LockLost(reason))));
                    }
                }
                Some(Hold::Releasing(release)) => {
                    ready!(release.as_mut().poll(cx));
                    *this.hold = None;
                }
                _ => {}
            }
            let [first, second] = &mut *this.ahead;
            if let Some(frame) = first.take() {
                *first = second.take();
                return Poll::Ready(Some(frame.map_err(LockedBodyError::Inner)));
            }
            let (frame, last) = ready!(self.as_mut().poll_inner(cx));
            let this = self.as_mut().project();
            match this.hold.take() {
                Some(hold) if last => {
                    this.ahead[0] = frame;
                    *this.hold = hold.give_back();
                }
                hold => {
                    *this.hold = hold;
                    return Poll::Ready(frame.map(|frame| frame.map_err(LockedBodyError::Inner)));
                }
            }
        }
    }
}

impl<B: Body<Data = Bytes>> Body for LockedBody<B> {
    type Data = Bytes;
    type Error = LockedBodyError<B::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.project().content.project() {
            ContentProjection::Answer(body) => body.poll_frame(cx).map_err(|never| match never {}),
            ContentProjection::Free(body) => body.poll_frame(cx).map_err(LockedBodyError::Inner),
            ContentProjection::Held(held) => held.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Answer(body) => body.is_end_stream(),
            Content::Free(body) => body.is_end_stream(),
            Content::Held(held) => {
                held.hold.is_none()
                    && held.ahead[0].is_none()
                    && held.inner.as_ref().is_none_or(Body::is_end_stream)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Answer(body) => body.size_hint(),
            Content::Free(body) => body.size_hint(),
            Content::Held(held) => {
                let ahead = held.ahead.iter().flatten().flatten().filter_map(Frame::data_ref);
                let ahead: u64 = ahead.map(|data| data.len() as u64).sum();
                let inner = held.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
                let mut hint = SizeHint::new();
                hint.set_lower(inner.lower() + ahead);
                if let Some(upper) = inner.upper() {
                    hint.set_upper(upper + ahead);
                }
                hint
            }
        }
    }
}

impl<B: Body> fmt::Debug for LockedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.content {
            Content::Answer(_) => "LockedBody(answer)",
            Content::Free(_) => "LockedBody(free)",
            Content::Held(_) => "LockedBody(held)",
        })
    }
}

/// Why a [`LockedBody`] failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockedBodyError<E> {
    /// The inner body failed.
    Inner(E),
    /// The lock was lost before the stream had ended.
    LockLost(LostReason),
}

impl<E> fmt::Display for LockedBodyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner(_) => f.write_str("the response body failed"),
            Self::LockLost(reason) => write!(f, "the lock was lost while the response was sent ({reason})"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for LockedBodyError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Inner(error) => Some(error),
            Self::LockLost(_) => None,
        }
    }
}
