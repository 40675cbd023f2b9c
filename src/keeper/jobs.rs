//! What drops hand over: releases, and clean-ups of tokens whose fate is not known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Unfinished;
use crate::backoff::Backoff;
use crate::hold::Hold;
use crate::key::LockKey;
use crate::settings::LockSettings;
use crate::store::{ErasedStore, Owned, OwnerToken, Release, StoreError};
use crate::telemetry::{CleanupOutcome, LockMetrics};

/// The application's store, whose connections may still carry a command, and the keeper's own.
#[derive(Clone, Debug)]
pub(crate) struct StoreEnds {
    application: Arc<dyn ErasedStore>,
    own: Arc<dyn ErasedStore>,
}

impl StoreEnds {
    pub(crate) fn new(application: Arc<dyn ErasedStore>) -> Self {
        Self { own: application.for_keeper(), application }
    }

    pub(super) fn own(&self) -> Arc<dyn ErasedStore> {
        Arc::clone(&self.own)
    }
}

#[derive(Debug)]
pub(super) enum Job {
    Release { hold: Arc<Hold>, tried: bool, unfinished: Unfinished },
    CleanUp(CleanUp),
}

impl Job {
    pub(super) async fn run(self, ends: StoreEnds) {
        match self {
            Self::Release { hold, tried, unfinished: _unfinished } => {
                // Counted and logged there, and a failure handed on as a clean-up.
                let _ = hold.release_through(&*ends.own, tried).await;
            }
            Self::CleanUp(clean_up) => clean_up.run(&ends).await,
        }
    }
}

/// Whose result is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// A `SET` of the token may still be under way.
    Acquire,
    /// A swap to the token may have been carried out, or may still be.
    HandOver,
    /// The token was in the store and may be gone.
    Release,
}

/// A token that may or may not be in the store, and must not stay there.
#[derive(Debug)]
pub(crate) struct CleanUp {
    pub(crate) doubt: Doubt,
    pub(crate) key: LockKey,
    pub(crate) token: OwnerToken,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) metrics: LockMetrics,
    pub(crate) _unfinished: Unfinished,
}

impl CleanUp {
    /// After an acquisition: first on the connections that may still carry the token's `SET`, which keep the
    /// order. If that is not to be had, or not enough: on a connection of our own, again and again until the
    /// store answers or the ttl has passed.
    async fn run(&self, ends: &StoreEnds) {
        let owned = Owned { key: &self.key, token: &self.token, timeout: self.settings.command_timeout() };
        let in_order = match self.doubt {
            Doubt::Acquire | Doubt::HandOver => ends.application.clean_up(owned).await,
            Doubt::Release => Ok(Release::Missing),
        };
        let result = match in_order {
            Ok(Release::Released) => in_order,
            Ok(_) if self.doubt == Doubt::Acquire => in_order,
            _ => self.until_sure(&*ends.own, owned).await,
        };
        self.metrics.cleaned_up(match result {
            Ok(Release::Released) => CleanupOutcome::Removed,
            Ok(_) => CleanupOutcome::NotOwned,
            Err(error) => {
                tracing::warn!(
                    lock = self.metrics.lock(), key = self.metrics.show(&self.key), %error,
                    "a lock could not be cleaned up; it stays until its ttl is over"
                );
                CleanupOutcome::Error
            }
        });
    }

    /// What is still under way may arrive after the first answer, so that one is asked for again
    /// after a command time-out.
    async fn until_sure(&self, own: &dyn ErasedStore, owned: Owned<'_>) -> Result<Release, StoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY, self.token.seed());
        let mut waited = Duration::ZERO;
        let mut may_still_arrive = self.doubt != Doubt::Release;
        loop {
            let pause = match own.release(owned).await {
                Ok(release) if release == Release::Released || !may_still_arrive => return Ok(release),
                Ok(_) => {
                    may_still_arrive = false;
                    owned.timeout
                }
                Err(error) if waited >= self.settings.ttl() => return Err(error),
                Err(_) => backoff.next_delay(),
            };
            waited += pause;
            sleep(pause).await;
        }
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_millis(500);
