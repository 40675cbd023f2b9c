//! What drops hand over: releases, and clean-ups of tokens whose fate is not known.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Unfinished;
use crate::backoff::Backoff;
use crate::guard::Hold;
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
                if let Err(clean_up) = hold.release_through(&*ends.own, tried).await {
                    clean_up.run(&ends).await;
                }
            }
            Self::CleanUp(clean_up) => clean_up.run(&ends).await,
        }
    }
}

/// A token that may or may not be in the store, and must not stay there.
#[derive(Debug)]
pub(crate) struct CleanUp {
    pub(crate) key: LockKey,
    pub(crate) token: OwnerToken,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) metrics: LockMetrics,
    pub(crate) _unfinished: Unfinished,
}

impl CleanUp {
    /// First on the connections that may still carry the token's `SET`, which keep the order. If that is not
    /// to be had: at once and again after a command time-out on a connection of our own, for the `SET` may
    /// still be under way. A store that does not answer is asked again until the ttl has passed.
    async fn run(&self, ends: &StoreEnds) {
        let owned = Owned { key: &self.key, token: &self.token, timeout: self.settings.command_timeout() };
        let result = match ends.application.clean_up(owned).await {
            Err(_) => self.until_sure(&*ends.own, owned).await,
            sure => sure,
        };
        self.metrics.cleaned_up(match result {
            Ok(Release::Released) => CleanupOutcome::Removed,
            Ok(_) => CleanupOutcome::NotOwned,
            Err(error) => {
                tracing::warn!(
                    lock = self.metrics.lock(), key = %self.key.fingerprint(), %error,
                    "a lock could not be cleaned up; it stays until its ttl is over"
                );
                CleanupOutcome::Error
            }
        });
    }

    async fn until_sure(&self, own: &dyn ErasedStore, owned: Owned<'_>) -> Result<Release, StoreError> {
        let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY, self.token.seed());
        let mut waited = Duration::ZERO;
        let mut first_answer = None;
        loop {
            let pause = match (own.release(owned).await, first_answer) {
                (Ok(Release::Released), _) => return Ok(Release::Released),
                (Ok(release), None) => {
                    first_answer = Some(release);
                    owned.timeout
                }
                (Ok(_), Some(release)) => return Ok(release),
                (Err(error), _) if waited >= self.settings.ttl() => return Err(error),
                (Err(_), _) => backoff.next_delay(),
            };
            waited += pause;
            sleep(pause).await;
        }
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_millis(500);
