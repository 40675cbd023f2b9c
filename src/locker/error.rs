//! Why a lock was not taken, or not held to the end.

use std::fmt;
use std::time::Duration;

use crate::lease::LostReason;
use crate::store::{StoreError, StoreErrorKind};
use crate::telemetry::AcquisitionOutcome;

/// Why a lock was not taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else holds it.
    Contended(Contended),
    /// Somebody else holds it, and too many requests of this process wait for it already.
    QueueFull,
    /// The store cannot be used, so nobody knows who holds it.
    Store(StoreError),
    /// [`Locker::shutdown`](crate::Locker::shutdown) has begun.
    ShuttingDown,
}

impl AcquireError {
    pub(crate) fn held_by_another(remaining: Option<Duration>) -> Self {
        Self::Contended(Contended { remaining, held_here: false })
    }

    pub(crate) fn held_here(remaining: Duration) -> Self {
        Self::Contended(Contended { remaining: Some(remaining), held_here: true })
    }

    /// The store has answered nobody who asked for this lock.
    pub(super) fn no_answer() -> Self {
        Self::Store(StoreError::new(StoreErrorKind::Timeout, "no answer while waiting").never_sent())
    }

    /// Whether another attempt may go better.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Contended(_) => true,
            Self::Store(error) => error.kind().is_transient(),
            Self::QueueFull | Self::ShuttingDown => false,
        }
    }

    pub(super) fn outcome(&self) -> AcquisitionOutcome {
        match self {
            Self::Contended(_) => AcquisitionOutcome::Contended,
            Self::QueueFull => AcquisitionOutcome::QueueFull,
            Self::Store(_) => AcquisitionOutcome::Error,
            Self::ShuttingDown => AcquisitionOutcome::Cancelled,
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contended(_) => "somebody else holds the lock",
            Self::QueueFull => "too many wait for the lock already",
            Self::Store(_) => "the lock store cannot be used",
            Self::ShuttingDown => "no locks are taken any more, the locker is shutting down",
        })
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// What is known of the lock that somebody else holds.
#[derive(Clone, Debug)]
pub struct Contended {
    remaining: Option<Duration>,
    held_here: bool,
}

impl Contended {
    /// Time until the lock expires unless its holder renews it; `None` if its key has no expiry.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Whether another request of this process holds the lock; maybe one that waits for this one.
    pub fn is_held_here(&self) -> bool {
        self.held_here
    }
}

/// Why [`Locker::with_lock`](crate::Locker::with_lock) did not run its work to the end.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WithLockError {
    /// The lock was not taken; the work was not started.
    Acquire(AcquireError),
    /// The lock was lost; the work was stopped at an await.
    Lost(LostReason),
}

impl fmt::Display for WithLockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(_) => f.write_str("the lock was not taken"),
            Self::Lost(reason) => write!(f, "the lock was lost and the work stopped ({reason})"),
        }
    }
}

impl std::error::Error for WithLockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Acquire(error) => Some(error),
            Self::Lost(_) => None,
        }
    }
}
