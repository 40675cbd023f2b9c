//! A small HTTP client, and what the answers of `orders` mean.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::eventually::within;
use super::overlap::Holding;

/// No request of a test takes longer than this.
const BOUND: Duration = Duration::from_secs(60);

/// HTTP/1.1, or HTTP/2 without TLS and without asking first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// HTTP/1.1.
    H1,
    /// HTTP/2 by prior knowledge: all requests share one connection.
    H2,
}

/// A client of one server. Clones share their connections.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    client: Client<HttpConnector, Empty<Bytes>>,
    server: SocketAddr,
}

impl HttpClient {
    /// A client that has no connection yet.
    pub(crate) fn new(server: SocketAddr, version: Version) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(version == Version::H2);
        Self { client: builder.build_http(), server }
    }

    /// Sends a GET and waits for the whole answer.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.must_answer(Method::GET, path).await
    }

    /// Sends a POST without a body and waits for the whole answer.
    pub(crate) async fn post(&self, path: &str) -> Answer {
        self.must_answer(Method::POST, path).await
    }

    /// Sends a request; an error when no whole answer came.
    pub(crate) async fn send(&self, method: Method, path: &str) -> Result<Answer, String> {
        let what = format!("{method} {path}");
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.server))
            .body(Empty::new())
            .expect("a valid request");
        let exchange = async {
            let answer = self.client.request(request).await;
            let (head, body) = answer.map_err(|error| format!("{error:?}"))?.into_parts();
            let body = body.collect().await.map_err(|error| format!("{error:?}"))?;
            Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
        };
        within(&what, BOUND, exchange).await
    }

    async fn must_answer(&self, method: Method, path: &str) -> Answer {
        let answer = self.send(method, path).await;
        answer.unwrap_or_else(|error| panic!("no answer to {path}: {error}"))
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: StatusCode,
    /// Its headers.
    pub(crate) headers: HeaderMap,
    /// Its body.
    pub(crate) body: Bytes,
}

impl Answer {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of text")
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in the body of {self:?}"))
    }

    /// What a shipment that was done reports about itself.
    ///
    /// # Panics
    ///
    /// When it was not done.
    pub(crate) fn shipped(&self) -> Holding {
        assert_eq!(self.status, StatusCode::OK, "not shipped: {self:?}");
        let json = self.json();
        let number =
            |field: &str| json[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {json}"));
        Holding {
            key: json["order"].to_string(),
            instance: json["instance"].to_string(),
            start_us: number("started_at_us"),
            end_us: number("finished_at_us"),
            fencing_token: number("fencing_token"),
        }
    }

    /// Asserts that the lock refused the request, in the way it should.
    pub(crate) fn refused(&self, refusal: Refusal) {
        assert_eq!(self.status, refusal.status(), "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self:?}");
        let json = self.json();
        assert_eq!(json["type"], refusal.problem_type(), "{self:?}");
        if matches!(refusal, Refusal::LockLost) {
            return;
        }
        let seconds: u64 = self
            .header("retry-after")
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no whole seconds in Retry-After: {self:?}"));
        assert!(seconds >= 1, "Retry-After too early: {self:?}");
    }
}

/// The ways in which the lock says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Somebody else holds the key.
    Contended,
    /// Redis cannot be used.
    StoreUnavailable,
    /// The lock was lost while the handler ran.
    LockLost,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::Contended => StatusCode::CONFLICT,
            Self::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::LockLost => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn problem_type(self) -> &'static str {
        match self {
            Self::Contended => "urn:tower-redis-lock:contended",
            Self::StoreUnavailable => "urn:tower-redis-lock:store-unavailable",
            Self::LockLost => "urn:tower-redis-lock:lock-lost",
        }
    }
}
