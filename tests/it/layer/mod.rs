//! The tower side, in process: what a request, its handler and its client see.

mod answers;
mod axum_routers;
mod plain_hyper;
mod requests;

use std::convert::Infallible;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::ServiceExt;
use tower_redis_lock::{KeyError, LockKey, Rejection};
use tower_service::Service;

pub(crate) type TestBody = Full<Bytes>;

/// The lock key is the path.
pub(crate) fn by_path(parts: &Parts) -> Result<LockKey, KeyError> {
    LockKey::new(parts.uri.path())
}

pub(crate) fn post(path: &str) -> Request<TestBody> {
    request(Method::POST, path)
}

pub(crate) fn request(method: Method, path: &str) -> Request<TestBody> {
    Request::builder().method(method).uri(path).body(Full::default()).unwrap()
}

pub(crate) fn done() -> Result<Response<TestBody>, Infallible> {
    Ok(Response::new(Full::from("done")))
}

/// A response whose body has been read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) rejection: Option<Rejection>,
    pub(crate) text: String,
}

/// Sends one request and reads the whole answer.
pub(crate) async fn send<S, B>(service: &S, request: Request<TestBody>) -> Answer
where
    S: Service<Request<TestBody>, Response = Response<B>> + Clone,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let response = service.clone().oneshot(request).await.expect("the service answers");
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.expect("a whole body").to_bytes();
    Answer {
        status: head.status,
        headers: head.headers,
        rejection: head.extensions.get::<Rejection>().cloned(),
        text: String::from_utf8(bytes.to_vec()).expect("text"),
    }
}
