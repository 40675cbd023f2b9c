//! The proof of ownership: who took a lock.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// The value under which a lock is taken: 122 random bits (UUID version 4), new for each acquisition.
///
/// Whoever knows the token can release the lock, so `Debug` shows only its first eight digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerToken(Arc<str>);

impl OwnerToken {
    /// A new token, unlike all others, from the operating system's random numbers.
    pub fn random() -> Self {
        let mut buffer = Uuid::encode_buffer();
        let text: &str = Uuid::new_v4().simple().encode_lower(&mut buffer);
        Self(text.into())
    }

    /// The token as the store keeps it: 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A number to seed jitter with, so that no two acquisitions knock in step.
    pub(crate) fn seed(&self) -> u64 {
        self.0.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)))
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerToken({}…)", &self.0[..8])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    // B05
    #[test]
    fn tokens_are_distinct() {
        let tokens: HashSet<_> = (0..10_000).map(|_| OwnerToken::random()).collect();
        assert_eq!(tokens.len(), 10_000);
    }
}
