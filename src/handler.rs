//! The handler's future, which may outlive its client.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project::pin_project;

use crate::guard::{HeldLock, KeptLock};
use crate::keeper::run_in_background;
use crate::settings::OnLost;

#[pin_project(project = HandlerProjection)]
pub(crate) enum Handler<F: Future> {
    /// Stops when it is dropped.
    Attached(#[pin] F),
    /// Runs to its end when it is dropped.
    Detachable(Detachable<F::Output>),
}

impl<F> Handler<F>
where
    F: Future + Send + 'static,
{
    pub(crate) fn detachable(handler: F, held: Option<&HeldLock>, on_lost: OnLost) -> Self {
        let kept = held.and_then(HeldLock::keep);
        if held.is_some() && kept.is_none() && on_lost == OnLost::Abort {
            // Lost while the service was called: nothing is to go on without its lock.
            return Self::Attached(handler);
        }
        Self::Detachable(Detachable(Some(Box::new(Running { handler: Box::pin(handler), kept, on_lost }))))
    }
}

impl<F: Future> Future for Handler<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            HandlerProjection::Attached(handler) => handler.poll(cx),
            HandlerProjection::Detachable(handler) => handler.poll(cx),
        }
    }
}

/// Dropped unfinished, the work goes on in the background, with its share in the lock.
pub(crate) struct Detachable<T>(Option<Box<dyn Work<T> + Send>>);

impl<T> Detachable<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        // Out of its place while it is polled: work that panics is not polled again.
        let Some(mut work) = self.0.take() else { return Poll::Pending };
        let polled = work.poll(cx);
        if polled.is_pending() {
            self.0 = Some(work);
        }
        polled
    }
}

impl<T> Drop for Detachable<T> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work.detach();
        }
    }
}

/// What `Detachable` needs of a handler, without its type.
trait Work<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T>;
    fn detach(self: Box<Self>);
}

struct Running<F> {
    handler: Pin<Box<F>>,
    kept: Option<KeptLock>,
    on_lost: OnLost,
}

impl<F: Future + Send + 'static> Work<F::Output> for Running<F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.handler.as_mut().poll(cx)
    }

    fn detach(self: Box<Self>) {
        let Self { handler, kept, on_lost } = *self;
        let handler = async { drop(handler.await) };
        run_in_background(async move {
            match &kept {
                Some(kept) if on_lost == OnLost::Abort => drop(kept.held().run(handler).await),
                _ => handler.await,
            }
        });
    }
}
