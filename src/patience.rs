//! How long the client of a request is going to wait for its answer.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::request::Parts;

type Timeout = dyn Fn(&Parts) -> Option<Duration> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Patience(Arc<Timeout>);

impl Patience {
    pub(crate) fn new(timeout: impl Fn(&Parts) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self(Arc::new(timeout))
    }

    pub(crate) fn limit(&self, head: &Parts, max_wait: Duration) -> Duration {
        (self.0)(head).map_or(max_wait, |timeout| timeout.min(max_wait))
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(|head| head.headers.get("grpc-timeout").and_then(grpc_timeout))
    }
}

/// At most eight digits and a unit; gRPC over HTTP/2, "Timeout".
fn grpc_timeout(value: &HeaderValue) -> Option<Duration> {
    let (&unit, digits) = value.as_bytes().split_last()?;
    if digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &'static str, expected: Option<Duration>) {
        assert_eq!(grpc_timeout(&HeaderValue::from_static(header)), expected, "{header}");
    }

    #[test]
    fn the_grpc_timeout_is_read_and_nonsense_is_not_a_timeout() {
        check("2H", Some(Duration::from_secs(7200)));
        check("3M", Some(Duration::from_secs(180)));
        check("1S", Some(Duration::from_secs(1)));
        check("250m", Some(Duration::from_millis(250)));
        check("99999999u", Some(Duration::from_micros(99_999_999)));
        check("7n", Some(Duration::from_nanos(7)));
        for nonsense in ["", "S", "-1S", "1", "1x", "1.5S", "123456789S"] {
            check(nonsense, None);
        }
    }

    #[test]
    fn the_client_can_only_shorten_the_wait() {
        let request = http::Request::builder().header("grpc-timeout", "1S").body(()).expect("valid");
        let head = request.into_parts().0;
        let patience = Patience::default();
        assert_eq!(patience.limit(&head, Duration::from_secs(5)), Duration::from_secs(1));
        assert_eq!(patience.limit(&head, Duration::ZERO), Duration::ZERO);
    }
}
