//! [`LockLayer`]: holds the parts, makes the service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};
use tower_layer::Layer;

use crate::locker::Locker;
use crate::patience::Patience;
use crate::rejection::{Answer, Rejection};
use crate::service::LockService;
use crate::settings::LockSettings;

/// Locks what a request touches while the wrapped service handles it.
///
/// Use it as axum's `route_layer` (after the routes were matched: a 404 locks nothing), in a
/// [`tower::ServiceBuilder`](https://docs.rs/tower/0.5/tower/struct.ServiceBuilder.html), or around any
/// service of `http` requests. `OPTIONS` requests are not locked; [`methods`](Self::methods) chooses.
///
/// axum's `Router::layer` and `Router::route_layer` also wrap the answer 405 of a path that has no handler
/// for the method: choose the methods, so that such a request locks nothing either, or wrap the handlers
/// alone with `post(…).route_layer(…)`.
///
/// ```
/// use tower_redis_lock::{LockLayer, Locker, MemoryStore, PathTemplate};
///
/// let locker = Locker::builder(MemoryStore::new()).prefix("orders:").name("orders").build()?;
/// let per_order = PathTemplate::new("order:{id}")?.route("/orders/{id}/ship")?;
/// let layer = LockLayer::new(locker, per_order);
/// # let _: LockLayer<_> = layer;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Customised: other methods, other answers.
///
/// ```
/// use http::{Method, Response, StatusCode};
/// use tower_redis_lock::{HeaderKey, LockLayer, Locker, MemoryStore, Rejection};
///
/// let locker = Locker::new(MemoryStore::new())?;
/// let layer = LockLayer::new(locker, HeaderKey::new("x-tenant")?)
///     .methods([Method::POST, Method::PUT])
///     .on_rejection(|rejection| match rejection {
///         Rejection::Contended { .. } => {
///             let mut response = Response::new("busy".into());
///             *response.status_mut() = StatusCode::LOCKED;
///             response
///         }
///         other => other.to_response(),
///     });
/// # drop(layer);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct LockLayer<K> {
    parts: Arc<LayerParts<K>>,
}

pub(crate) struct LayerParts<K> {
    pub(crate) locker: Locker,
    pub(crate) extractor: K,
    /// `None`: all but `OPTIONS`.
    pub(crate) methods: Option<Vec<Method>>,
    pub(crate) answer: Option<Arc<dyn Answer>>,
    pub(crate) patience: Patience,
}

impl<K> LockLayer<K> {
    /// Locks with `locker` what `extractor` derives from the request.
    pub fn new(locker: Locker, extractor: K) -> Self {
        let parts =
            LayerParts { locker, extractor, methods: None, answer: None, patience: Patience::default() };
        Self { parts: Arc::new(parts) }
    }

    fn change(self, change: impl FnOnce(&mut LayerParts<K>)) -> Self
    where
        K: Clone,
    {
        let mut parts = Arc::unwrap_or_clone(self.parts);
        change(&mut parts);
        Self { parts: Arc::new(parts) }
    }

    /// Only requests with one of these methods lock; others pass through. Default: all but `OPTIONS`.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self
    where
        K: Clone,
    {
        self.change(|parts| parts.methods = Some(methods.into_iter().collect()))
    }

    /// Settings of this layer, in place of the locker's.
    #[must_use]
    pub fn settings(self, settings: LockSettings) -> Self
    where
        K: Clone,
    {
        self.change(|parts| parts.locker = parts.locker.with_settings(settings))
    }

    /// How long the client is going to wait for its answer, if it says so: no request waits longer for its
    /// lock. Default: the `grpc-timeout` header.
    #[must_use]
    pub fn client_timeout(self, timeout: impl Fn(&Parts) -> Option<Duration> + Send + Sync + 'static) -> Self
    where
        K: Clone,
    {
        self.change(|parts| parts.patience = Patience::new(timeout))
    }

    /// Makes the answers of the layer. Default: [`Rejection::to_response`], and
    /// [`Rejection::to_grpc_response`] for gRPC. The rejection is put into the response's extensions too.
    #[must_use]
    pub fn on_rejection(self, answer: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static) -> Self
    where
        K: Clone,
    {
        self.change(|parts| parts.answer = Some(Arc::new(answer)))
    }
}

impl<S, K> Layer<S> for LockLayer<K> {
    type Service = LockService<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, Arc::clone(&self.parts))
    }
}

impl<K> Clone for LockLayer<K> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts) }
    }
}

impl<K: Clone> Clone for LayerParts<K> {
    fn clone(&self) -> Self {
        Self {
            locker: self.locker.clone(),
            extractor: self.extractor.clone(),
            methods: self.methods.clone(),
            answer: self.answer.clone(),
            patience: self.patience.clone(),
        }
    }
}

impl<K> fmt::Debug for LockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.fmt(f)
    }
}

impl<K> fmt::Debug for LayerParts<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("locker", &self.locker)
            .field("extractor", &std::any::type_name::<K>())
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}
