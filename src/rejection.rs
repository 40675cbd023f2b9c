//! What the layer answers in place of the handler: the only place with status codes and bodies.
//!
//! A [`Rejection`] is the typed reason. It becomes a problem document (RFC 9457), or the gRPC status of the
//! same meaning for a request with `content-type: application/grpc…`, and goes into the response's extensions
//! for outer layers. A closure given to [`LockLayer::on_rejection`](crate::LockLayer::on_rejection) makes
//! other answers.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::key::ExtractKeyError;
use crate::lease::LostReason;
use crate::locker::AcquireError;
use crate::settings::LockSettings;
use crate::store::StoreErrorKind;

/// The statuses that [`Rejection::status`] gives, as metrics name them.
pub(crate) const STATUSES: [&str; 4] = ["400", "409", "500", "503"];

/// Why a request was answered by the layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// Somebody else holds the lock: 409.
    Contended {
        /// When to try again: the holder's remaining time, or less where locks of this name are usually held
        /// for less; whole seconds, at least 1 s, at most the ttl.
        retry_after: Duration,
    },
    /// Somebody else holds the lock, and too many wait for it already: 409.
    QueueFull {
        /// When to try again.
        retry_after: Duration,
    },
    /// The lock store cannot be used: 503.
    StoreUnavailable {
        /// The cause, for logs and for a closure that wants to tell; the default answer does not show it.
        kind: StoreErrorKind,
    },
    /// The service is shutting down: 503.
    ShuttingDown,
    /// No key can be derived from the request: 400.
    NoKey(ExtractKeyError),
    /// The lock was lost and the handler dropped: 500.
    LockLost(LostReason),
}

impl Rejection {
    /// `typical_hold` is how long locks of this name are held lately, if that is known.
    pub(crate) fn from_acquire(
        error: &AcquireError,
        settings: &LockSettings,
        typical_hold: Option<Duration>,
    ) -> Self {
        let retry_after = |remaining: Option<Duration>| {
            let bounds = [remaining, typical_hold].into_iter().flatten().chain([settings.ttl()]);
            Duration::from_secs(bounds.map(whole_seconds).min().unwrap_or(1))
        };
        match error {
            AcquireError::Contended(contended) => {
                Self::Contended { retry_after: retry_after(contended.remaining()) }
            }
            AcquireError::QueueFull => Self::QueueFull { retry_after: retry_after(None) },
            AcquireError::Store(error) => Self::StoreUnavailable { kind: error.kind() },
            AcquireError::ShuttingDown => Self::ShuttingDown,
        }
    }

    /// The status of the default answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Contended { .. } | Self::QueueFull { .. } => StatusCode::CONFLICT,
            Self::StoreUnavailable { .. } | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoKey(_) => StatusCode::BAD_REQUEST,
            Self::LockLost(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn status_label(&self) -> &'static str {
        let [no_key, contended, lost, unavailable] = STATUSES;
        match self {
            Self::Contended { .. } | Self::QueueFull { .. } => contended,
            Self::StoreUnavailable { .. } | Self::ShuttingDown => unavailable,
            Self::NoKey(_) => no_key,
            Self::LockLost(_) => lost,
        }
    }

    /// When the client may try again, if that makes sense.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Contended { retry_after } | Self::QueueFull { retry_after } => Some(*retry_after),
            Self::StoreUnavailable { .. } | Self::ShuttingDown => Some(Duration::from_secs(1)),
            Self::NoKey(_) | Self::LockLost(_) => None,
        }
    }

    /// The last part of the problem's `type`, `urn:tower-redis-lock:…`.
    pub fn slug(&self) -> &'static str {
        match self {
            Self::Contended { .. } => "contended",
            Self::QueueFull { .. } => "queue-full",
            Self::StoreUnavailable { .. } => "store-unavailable",
            Self::ShuttingDown => "shutting-down",
            Self::NoKey(_) => "no-key",
            Self::LockLost(_) => "lock-lost",
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::Contended { .. } => "Another request for the same resource is in progress",
            Self::QueueFull { .. } => "Too many requests for the same resource are waiting",
            Self::StoreUnavailable { .. } => "The lock service is unavailable",
            Self::ShuttingDown => "The service is shutting down",
            Self::NoKey(_) => "The request does not say what it is about",
            Self::LockLost(_) => "The lock was lost before the request was done",
        }
    }

    fn grpc_status(&self) -> u8 {
        match self {
            Self::Contended { .. } | Self::QueueFull { .. } => 10,
            Self::StoreUnavailable { .. } | Self::ShuttingDown => 14,
            Self::NoKey(_) => 3,
            Self::LockLost(_) => 13,
        }
    }

    /// The default answer: a problem document, with no word of key, token or store.
    pub fn to_response(&self) -> Response<Bytes> {
        let status = self.status();
        let body = format!(
            r#"{{"type":"urn:tower-redis-lock:{}","title":"{}","status":{}}}"#,
            self.slug(),
            self.title(),
            status.as_u16()
        );
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        response
    }

    /// The default answer to a gRPC request: the same in the terms of gRPC, as a response of trailers only.
    pub fn to_grpc_response(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(u16::from(self.grpc_status())));
        headers.insert("grpc-message", HeaderValue::from_static(self.title()));
        response
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// The protocol that the client speaks, kept because the request is gone when the answer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if content_type.starts_with(b"application/grpc") { Self::Grpc } else { Self::Http }
    }
}

/// Makes the answer to a rejected request.
pub(crate) trait Answer: Send + Sync {
    fn answer(&self, rejection: &Rejection) -> Response<Bytes>;
}

impl<F: Fn(&Rejection) -> Response<Bytes> + Send + Sync> Answer for F {
    fn answer(&self, rejection: &Rejection) -> Response<Bytes> {
        self(rejection)
    }
}

/// The answer by `custom`, or the default one; with the rejection in its extensions either way.
pub(crate) fn respond(
    rejection: Rejection,
    custom: Option<&dyn Answer>,
    protocol: Protocol,
) -> Response<Bytes> {
    let mut response = match (custom, protocol) {
        (Some(custom), _) => custom.answer(&rejection),
        (None, Protocol::Http) => rejection.to_response(),
        (None, Protocol::Grpc) => rejection.to_grpc_response(),
    };
    response.extensions_mut().insert(rejection);
    response
}

/// Rounded up, at least 1.
fn whole_seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Rejection; 6] {
        [
            Rejection::QueueFull { retry_after: Duration::from_secs(1) },
            Rejection::Contended { retry_after: Duration::from_secs(7) },
            Rejection::StoreUnavailable { kind: StoreErrorKind::OutOfMemory },
            Rejection::ShuttingDown,
            Rejection::NoKey(ExtractKeyError::Missing),
            Rejection::LockLost(LostReason::Deleted),
        ]
    }

    #[test]
    fn every_rejection_is_a_problem_document_that_is_not_cached() {
        for rejection in all() {
            let response = rejection.to_response();
            let body: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
            assert_eq!(body["status"], response.status().as_u16());
            assert_eq!(body["type"], format!("urn:tower-redis-lock:{}", rejection.slug()));
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
            assert_eq!(rejection.status_label(), response.status().as_str());
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_within_one_second_and_the_ttl() {
        let settings = LockSettings::builder().ttl(Duration::from_millis(2500)).build().expect("valid");
        let check = |remaining: Option<u64>, typical: Option<u64>, seconds: &str| {
            let error = AcquireError::held_by_another(remaining.map(Duration::from_millis));
            let rejection = Rejection::from_acquire(&error, &settings, typical.map(Duration::from_millis));
            assert_eq!(rejection.to_response().headers()[RETRY_AFTER], seconds);
        };
        check(Some(0), None, "1");
        check(Some(1000), None, "1");
        check(Some(1001), None, "2");
        check(Some(9000), None, "3");
        check(None, None, "3");
        check(Some(2400), Some(40), "1");
        check(Some(400), Some(60_000), "1");
    }

    #[test]
    fn grpc_clients_get_the_status_of_the_same_meaning() {
        let statuses = all().map(|rejection| rejection.to_grpc_response().headers()["grpc-status"].clone());
        assert_eq!(statuses, ["10", "10", "14", "14", "3", "13"]);
    }
}
