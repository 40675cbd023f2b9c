//! [`LockService`]: derives the key, never awaits; all else is its future's part.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::LockedBody;
use crate::future::ResponseFuture;
use crate::guard::HeldLock;
use crate::key::KeyExtractor;
use crate::layer::LayerParts;
use crate::rejection::Rejection;
use crate::telemetry::BypassReason;

/// Wraps a service; made by [`LockLayer`](crate::LockLayer).
///
/// Always ready: the inner service is made ready and called only after the lock is won, so a request that
/// waits for its lock occupies none of the inner service's permits.
pub struct LockService<S, K> {
    inner: S,
    parts: Arc<LayerParts<K>>,
}

impl<S, K> LockService<S, K> {
    pub(crate) fn new(inner: S, parts: Arc<LayerParts<K>>) -> Self {
        Self { inner, parts }
    }

    fn locks(&self, method: &Method) -> bool {
        match &self.parts.methods {
            Some(methods) => methods.contains(method),
            None => method != Method::OPTIONS,
        }
    }
}

impl<S, K, ReqBody, ResBody> Service<Request<ReqBody>> for LockService<S, K>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    S::Future: Send + 'static,
    K: KeyExtractor,
    ResBody: Body<Data = Bytes>,
{
    type Response = Response<LockedBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody, ResBody>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (head, body): (Parts, ReqBody) = request.into_parts();
        let LayerParts { locker, extractor, answer, patience, .. } = &*self.parts;
        locker.register_metrics();
        let inner = self.inner.clone();
        if !self.locks(&head.method) {
            locker.metrics().bypassed(BypassReason::Disabled);
            return ResponseFuture::passing(locker, inner, Request::from_parts(head, body));
        }
        match extractor.extract(&head) {
            // The layer stands twice around this handler: it has its lock already.
            Ok(Some(key))
                if head.extensions.get::<HeldLock>().is_some_and(|held| locker.holds(held, &key)) =>
            {
                ResponseFuture::passing(locker, inner, Request::from_parts(head, body))
            }
            Ok(Some(key)) => {
                let max_wait = patience.limit(&head, locker.settings().max_wait());
                let request = Request::from_parts(head, body);
                ResponseFuture::acquiring(locker, answer.clone(), key, max_wait, inner, request)
            }
            Ok(None) => {
                locker.metrics().bypassed(BypassReason::NoKey);
                ResponseFuture::passing(locker, inner, Request::from_parts(head, body))
            }
            Err(error) => {
                tracing::debug!(lock = locker.metrics().lock(), %error, "no lock key can be derived");
                ResponseFuture::refused(locker, answer.clone(), Rejection::NoKey(error), &head)
            }
        }
    }
}

impl<S: Clone, K> Clone for LockService<S, K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), parts: Arc::clone(&self.parts) }
    }
}

impl<S: fmt::Debug, K> fmt::Debug for LockService<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService").field("inner", &self.inner).field("layer", &self.parts).finish()
    }
}
