//! From a request's head to a [`LockKey`].
//!
//! An extractor sees [`Parts`] and not the body, so deriving a key never consumes what the handler needs.
//! Any closure `Fn(&Parts) -> …` is one; it may return a key, an `Option` (`None`: nothing to lock, the
//! request passes through) or a `Result` (an error: 400).
//!
//! ```
//! use http::request::Parts;
//! use tower_redis_lock::{HeaderKey, JoinedKey, KeyExtractor, LockKey};
//!
//! // One lock for each tenant and order.
//! let key = JoinedKey::new(HeaderKey::new("x-tenant")?)
//!     .and(|parts: &Parts| LockKey::new(parts.uri.path()));
//! # fn check(_: impl KeyExtractor) {}
//! # check(key);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;

use http::header::{self, HeaderName, InvalidHeaderName};
use http::request::Parts;

use super::{KeyError, LockKey};

/// Derives the lock key of a request.
pub trait KeyExtractor {
    /// `Ok(None)` if there is nothing to lock.
    ///
    /// # Errors
    ///
    /// Why no key can be derived; the request is answered with 400.
    fn extract(&self, parts: &Parts) -> Result<Option<LockKey>, ExtractKeyError>;
}

impl<F, R> KeyExtractor for F
where
    F: Fn(&Parts) -> R,
    R: IntoExtracted,
{
    fn extract(&self, parts: &Parts) -> Result<Option<LockKey>, ExtractKeyError> {
        self(parts).into_extracted()
    }
}

/// What a closure may return as a key extractor.
pub trait IntoExtracted {
    /// The common form.
    ///
    /// # Errors
    ///
    /// Why no key can be derived.
    fn into_extracted(self) -> Result<Option<LockKey>, ExtractKeyError>;
}

impl IntoExtracted for LockKey {
    fn into_extracted(self) -> Result<Option<LockKey>, ExtractKeyError> {
        Ok(Some(self))
    }
}

impl IntoExtracted for Option<LockKey> {
    fn into_extracted(self) -> Result<Option<LockKey>, ExtractKeyError> {
        Ok(self)
    }
}

impl<T: IntoExtracted, E: Into<ExtractKeyError>> IntoExtracted for Result<T, E> {
    fn into_extracted(self) -> Result<Option<LockKey>, ExtractKeyError> {
        self.map_err(Into::into)?.into_extracted()
    }
}

/// Why no key could be derived from a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtractKeyError {
    /// A part of the key is absent or empty.
    Missing,
    /// A part of the key is there more than once.
    Ambiguous,
    /// A part of the key is not text.
    NotText,
    /// A reason of the application's own.
    Other(&'static str),
}

impl From<KeyError> for ExtractKeyError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Empty => Self::Missing,
        }
    }
}

impl fmt::Display for ExtractKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "a part of the lock key is missing or empty",
            Self::Ambiguous => "a part of the lock key is given more than once",
            Self::NotText => "a part of the lock key is not valid text",
            Self::Other(reason) => reason,
        })
    }
}

impl std::error::Error for ExtractKeyError {}

/// Derives the key from one header.
///
/// A header that is absent, blank, or given twice is an error (400), or nothing to lock after
/// [`optional`](Self::optional). `Authorization`, `Proxy-Authorization` and `Cookie` are hashed, see
/// [`LockKey::hashed`]; [`hashed`](Self::hashed) does the same for others that carry a secret.
#[derive(Clone, Debug)]
pub struct HeaderKey {
    name: HeaderName,
    hashed: bool,
    optional: bool,
}

impl HeaderKey {
    /// Takes the key from the header `name`.
    ///
    /// # Errors
    ///
    /// If `name` is no valid header name.
    pub fn new(name: &str) -> Result<Self, InvalidHeaderName> {
        let name: HeaderName = name.parse()?;
        let hashed =
            name == header::AUTHORIZATION || name == header::PROXY_AUTHORIZATION || name == header::COOKIE;
        Ok(Self { name, hashed, optional: false })
    }

    /// Uses a digest of the value, so that the value itself reaches neither the store nor a log.
    #[must_use]
    pub fn hashed(mut self) -> Self {
        self.hashed = true;
        self
    }

    /// Locks nothing when the header is absent or blank, in place of answering 400.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl KeyExtractor for HeaderKey {
    fn extract(&self, parts: &Parts) -> Result<Option<LockKey>, ExtractKeyError> {
        let mut values = parts.headers.get_all(&self.name).iter();
        let value = values.next().map(|value| value.as_bytes().trim_ascii()).filter(|v| !v.is_empty());
        if values.next().is_some() {
            return Err(ExtractKeyError::Ambiguous);
        }
        match value {
            Some(value) if self.hashed => Ok(Some(LockKey::hashed(value)?)),
            Some(value) => Ok(Some(LockKey::from_parts([value])?)),
            None if self.optional => Ok(None),
            None => Err(ExtractKeyError::Missing),
        }
    }
}

/// Joins the keys of several extractors, one-to-one (see [`LockKey::from_parts`]).
///
/// If one of them finds nothing to lock, there is nothing to lock.
#[derive(Clone)]
pub struct JoinedKey(Vec<Arc<dyn KeyExtractor + Send + Sync>>);

impl JoinedKey {
    /// Starts with one extractor.
    pub fn new(first: impl KeyExtractor + Send + Sync + 'static) -> Self {
        Self(vec![Arc::new(first)])
    }

    /// Adds another one.
    #[must_use]
    pub fn and(mut self, next: impl KeyExtractor + Send + Sync + 'static) -> Self {
        self.0.push(Arc::new(next));
        self
    }
}

impl KeyExtractor for JoinedKey {
    fn extract(&self, parts: &Parts) -> Result<Option<LockKey>, ExtractKeyError> {
        let mut keys = Vec::with_capacity(self.0.len());
        for extractor in &self.0 {
            let Some(key) = extractor.extract(parts)? else {
                return Ok(None);
            };
            keys.push(key);
        }
        Ok(Some(LockKey::from_parts(keys.iter().map(LockKey::as_bytes))?))
    }
}

impl fmt::Debug for JoinedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinedKey({} parts)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(headers: &[(&str, &[u8])]) -> Parts {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("valid").into_parts().0
    }

    fn check(
        extractor: &impl KeyExtractor,
        headers: &[(&str, &[u8])],
        expected: Result<Option<&[u8]>, ExtractKeyError>,
    ) {
        let key = extractor.extract(&parts(headers));
        let bytes = key.as_ref().map(|key| key.as_ref().map(LockKey::as_bytes)).map_err(Clone::clone);
        assert_eq!(bytes, expected);
    }

    // B57
    #[test]
    fn a_header_that_names_nothing_is_refused_or_skipped_but_never_shared() {
        let tenant = HeaderKey::new("x-tenant").expect("valid");
        check(&tenant, &[("x-tenant", b"acme")], Ok(Some(b"acme")));
        check(&tenant, &[("x-tenant", b"\xff\xfe")], Ok(Some(b"\xff\xfe")));
        for nothing in [&[][..], &[("x-tenant", &b""[..])], &[("x-tenant", b"  ")]] {
            check(&tenant, nothing, Err(ExtractKeyError::Missing));
            check(&tenant.clone().optional(), nothing, Ok(None));
        }
        let twice: &[(&str, &[u8])] = &[("x-tenant", b"a"), ("x-tenant", b"b")];
        check(&tenant, twice, Err(ExtractKeyError::Ambiguous));
        check(&tenant.optional(), twice, Err(ExtractKeyError::Ambiguous));
    }

    #[test]
    fn secrets_are_hashed_without_asking() {
        let session = HeaderKey::new("Authorization").expect("valid");
        let key = session.extract(&parts(&[("authorization", b"Bearer s3cret")])).expect("a key");
        assert_eq!(key, LockKey::hashed("Bearer s3cret").ok());
        assert!(!format!("{key:?}").contains("s3cret"));
    }

    // B56
    #[test]
    fn joined_keys_keep_their_parts_apart() {
        let both = JoinedKey::new(HeaderKey::new("a").expect("valid"))
            .and(HeaderKey::new("b").expect("valid").optional());
        check(&both, &[("a", b"1:2"), ("b", b"3")], Ok(Some(b"1%253A2:3")));
        check(&both, &[("a", b"1"), ("b", b"2:3")], Ok(Some(b"1:2%253A3")));
        check(&both, &[("a", b"1")], Ok(None));
        check(&both, &[("b", b"1")], Err(ExtractKeyError::Missing));
    }

    #[test]
    fn closures_may_return_a_key_an_option_or_a_result() {
        let key = LockKey::new("k").expect("valid");
        let always = |_: &Parts| LockKey::new("k");
        check(&always, &[], Ok(Some(b"k")));
        check(&move |_: &Parts| Some(key.clone()), &[], Ok(Some(b"k")));
        check(&|_: &Parts| None::<LockKey>, &[], Ok(None));
        check(&|_: &Parts| LockKey::new(""), &[], Err(ExtractKeyError::Missing));
    }
}
