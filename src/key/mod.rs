//! What is locked: [`LockKey`], and how it is derived from a request.
//!
//! A key is validated bytes. Two different things never get the same key, and one thing never gets two:
//! joining parts escapes the separator, empty parts are refused, and a key that would be too long keeps
//! its head and replaces the rest by a SHA-256 digest of the whole, at a length that no other key has.

mod extract;
mod template;

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use extract::{ExtractKeyError, HeaderKey, IntoExtracted, JoinedKey, KeyExtractor};
pub use template::{PathTemplate, TemplateError};

/// Longest key that is kept as it is, in bytes.
const MAX_LEN: usize = 256;
/// Length of a key whose tail was replaced by a digest; above [`MAX_LEN`], so that it equals no other key.
const DIGESTED_LEN: usize = MAX_LEN + 1 + DIGEST_LEN;
const DIGEST_LEN: usize = 64;

/// The name of one lock.
///
/// At most 256 bytes are kept as they are; a longer key becomes its first 256 bytes, `#` and a SHA-256
/// digest. Any bytes are allowed. `Debug` and `Display` show the key with control and non-ASCII bytes
/// escaped, or a digest in place of a key made from a secret.
///
/// ```
/// use tower_redis_lock::LockKey;
///
/// let key = LockKey::from_parts(["order", "42"])?;
/// assert_eq!(key.as_bytes(), b"order:42");
///
/// let tricky = LockKey::from_parts(["order:42", "items"])?;
/// assert_ne!(tricky, LockKey::from_parts(["order", "42:items"])?);
/// # Ok::<_, tower_redis_lock::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockKey(Arc<[u8]>);

impl LockKey {
    /// Takes the bytes as they are.
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`] for an empty key.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        Ok(Self(bounded(bytes)))
    }

    /// Joins parts with `:`, one-to-one: `:`, `%`, `{`, `}` and control bytes inside a part are written as
    /// `%` and two hexadecimal digits, so no two lists of parts give the same key, and braces in user text
    /// cannot move the key to another slot of a Redis Cluster.
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`] without parts or with an empty one.
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Result<Self, KeyError> {
        let mut joined = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let part = part.as_ref();
            if part.is_empty() {
                return Err(KeyError::Empty);
            }
            if index > 0 {
                joined.push(b':');
            }
            escape_into(&mut joined, part, b":");
        }
        Self::new(joined)
    }

    /// A key made from a secret: the SHA-256 digest of the bytes, in hexadecimal. The secret itself reaches
    /// neither the store nor a log. A digest of something short or guessable can still be guessed.
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`] for an empty secret.
    pub fn hashed(secret: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let secret = secret.as_ref();
        if secret.is_empty() {
            return Err(KeyError::Empty);
        }
        Ok(Self(digest(secret).into_bytes().into()))
    }

    /// The key as the store sees it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A key that came back from the store, prefix included.
    pub(crate) fn stored(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self(bytes.into()))
    }

    pub(crate) fn prefixed(&self, prefix: &[u8]) -> Self {
        if prefix.is_empty() {
            return self.clone();
        }
        Self([prefix, &self.0].concat().into())
    }

    /// A short digest for logs that must not show keys.
    pub(crate) fn fingerprint(&self) -> String {
        let mut digest = digest(&self.0);
        digest.truncate(16);
        digest
    }
}

fn bounded(bytes: &[u8]) -> Arc<[u8]> {
    if bytes.len() <= MAX_LEN {
        return bytes.into();
    }
    let mut key = Vec::with_capacity(DIGESTED_LEN);
    key.extend_from_slice(&bytes[..MAX_LEN]);
    key.push(b'#');
    key.extend_from_slice(digest(bytes).as_bytes());
    key.into()
}

fn digest(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(DIGEST_LEN);
    for byte in Sha256::digest(bytes) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Appends `part`, with `%`, braces, control bytes and the bytes of `also` percent-encoded.
fn escape_into(out: &mut Vec<u8>, part: &[u8], also: &[u8]) {
    for &byte in part {
        if matches!(byte, b'%' | b'{' | b'}') || byte.is_ascii_control() || also.contains(&byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockKey({self})")
    }
}

/// Bytes that cannot be a lock key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The key, or one of its parts, is empty.
    Empty,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a lock key and each of its parts must not be empty"),
        }
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn different_parts_never_share_a_key() {
        let parts: &[&[&str]] = &[
            &["a", "b"],
            &["a:b"],
            &["a%3Ab"],
            &["a", ":b"],
            &["a:", "b"],
            &["a%", "3Ab"],
            &["a\0", "b"],
            &["a", "\0b"],
            &["A", "b"],
        ];
        let keys: HashSet<_> =
            parts.iter().map(|p| LockKey::from_parts(p.iter()).expect("valid").as_bytes().to_vec()).collect();
        assert_eq!(keys.len(), parts.len());
    }

    #[test]
    fn empty_keys_and_parts_are_refused() {
        assert_eq!(LockKey::new(""), Err(KeyError::Empty));
        assert_eq!(LockKey::hashed(""), Err(KeyError::Empty));
        assert_eq!(LockKey::from_parts(["a", ""]), Err(KeyError::Empty));
        assert_eq!(LockKey::from_parts::<&str>([]), Err(KeyError::Empty));
    }

    // B58
    #[test]
    fn long_keys_are_bounded_and_stay_distinct() {
        let long = vec![b'x'; 60 * 1024];
        let mut other = long.clone();
        *other.last_mut().expect("not empty") = b'y';
        let [first, second] = [&long, &other].map(|bytes| LockKey::new(bytes).expect("valid"));
        assert_eq!(first.as_bytes().len(), DIGESTED_LEN);
        assert_ne!(first, second);
        let copied_by_a_client = LockKey::new(first.as_bytes()).expect("valid");
        assert_ne!(first, copied_by_a_client);
        assert_eq!(LockKey::new([b'x'; MAX_LEN]).expect("valid").as_bytes().len(), MAX_LEN);
    }

    #[test]
    fn braces_in_parts_cannot_move_the_cluster_slot() {
        let key = LockKey::from_parts(["a{b}c", "}{"]).expect("valid");
        assert_eq!(key.as_bytes(), b"a%7Bb%7Dc:%7D%7B");
    }

    #[test]
    fn debug_shows_odd_bytes_escaped() {
        let key = LockKey::new(b"a\r\n\xff").expect("valid");
        assert_eq!(format!("{key:?}"), r"LockKey(a\r\n\xff)");
    }
}
