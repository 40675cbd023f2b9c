//! One acquisition: its token, its attempts, and what has to be cleaned up if it ends early.

use std::sync::Arc;

use super::{AcquireError, Locker, Won};
use crate::clock::Moment;
use crate::guard::LockGuard;
use crate::hold::Grant;
use crate::keeper::{CleanUp, Doubt, Unfinished, WakeUp};
use crate::key::LockKey;
use crate::lease::Lease;
use crate::store::{Acquire, Attempt, OwnerToken, StoreError, StoreErrorKind};
use crate::telemetry::{Acquisition, AcquisitionOutcome};

/// An acquisition under way. Dropped with an attempt whose result is not known, it has the token removed.
pub(super) struct Pending<'a> {
    locker: &'a Locker,
    pub(super) key: LockKey,
    pub(super) token: OwnerToken,
    pub(super) acquisition: Acquisition,
    /// An attempt is on the wire, or an earlier one has no known result.
    unresolved: bool,
    /// A swap to our token may have been carried out, or may still be; until we are told that we hold the lock.
    pub(super) swap_in_doubt: bool,
    _unfinished: Unfinished,
}

impl<'a> Pending<'a> {
    pub(super) fn begin(locker: &'a Locker, key: LockKey) -> Self {
        Self {
            key,
            token: OwnerToken::random(),
            acquisition: locker.metrics.acquisition_started(&locker.settings),
            unresolved: false,
            swap_in_doubt: false,
            _unfinished: locker.core.keeper.outstanding().begin(),
            locker,
        }
    }

    /// Whether a grant whose command was sent at `sent` can still be used.
    pub(super) fn is_in_time(&self, sent: Moment) -> bool {
        self.locker.core.clock.now() < self.locker.term().deadline(sent)
    }

    /// What the keeper wakes when the lock is seen free.
    pub(super) fn wake_up(&self) -> Arc<WakeUp> {
        let timeout = self.locker.settings.command_timeout();
        Arc::new(WakeUp::new(self.key.clone(), self.token.clone(), timeout))
    }

    /// One attempt; on success, when it was sent.
    pub(super) async fn attempt(&mut self) -> Result<Moment, AcquireError> {
        let Locker { core, settings, .. } = self.locker;
        self.acquisition.attempt_sent();
        let earlier = std::mem::replace(&mut self.unresolved, true);
        let sent = core.clock.now();
        let attempt = Attempt {
            key: &self.key,
            token: &self.token,
            ttl: settings.ttl(),
            number: self.acquisition.attempts().max(1 + u32::from(earlier || self.swap_in_doubt)),
            timeout: settings.command_timeout(),
        };
        let result = core.store.acquire(attempt).await;
        match result {
            Ok(Acquire::Acquired) => {
                self.unresolved = earlier;
                if self.is_in_time(sent) {
                    self.swap_in_doubt = false;
                    return Ok(sent);
                }
                // Granted, but so long ago that it may have expired: ask again with the same token.
                self.unresolved = true;
                Err(AcquireError::Store(StoreError::new(
                    StoreErrorKind::Timeout,
                    "the store granted the lock too late to use it",
                )))
            }
            Ok(Acquire::Held { remaining }) => {
                self.unresolved = earlier;
                self.acquisition.found_taken();
                if remaining.is_none() {
                    self.locker.metrics.no_expiry(&self.key);
                }
                Err(AcquireError::held_by_another(remaining))
            }
            Err(error) => {
                self.unresolved = earlier || error.is_unresolved();
                Err(AcquireError::Store(error))
            }
        }
    }

    pub(super) fn finish(mut self, result: Result<Won, AcquireError>) -> Result<LockGuard, AcquireError> {
        let Won { sent, seat } = match result {
            Ok(won) => won,
            Err(error) => {
                self.acquisition.resolve(error.outcome());
                if let AcquireError::Contended(contended) = &error {
                    let metrics = &self.locker.metrics;
                    tracing::debug!(
                        lock = metrics.lock(),
                        key = metrics.show(&self.key),
                        remaining = ?contended.remaining(),
                        held_by_this_process = contended.is_held_here(),
                        attempts = self.acquisition.attempts(),
                        "somebody else holds the lock"
                    );
                }
                return Err(error);
            }
        };
        let Locker { core, settings, metrics } = self.locker;
        let guard = LockGuard::new(
            Grant {
                key: self.key.clone(),
                token: self.token.clone(),
                settings: Arc::clone(settings),
                metrics: metrics.clone(),
                store: Arc::clone(&core.store),
                keeper: core.keeper.clone(),
                lease: Lease::new(core.clock.clone(), self.locker.term(), sent),
                sent,
                unresolved: std::mem::take(&mut self.unresolved),
            },
            seat,
        );
        self.acquisition.resolve(AcquisitionOutcome::Acquired);
        Ok(guard)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let doubt = if self.swap_in_doubt { Doubt::HandOver } else { Doubt::Acquire };
        if self.unresolved || self.swap_in_doubt {
            let Locker { core, settings, metrics } = self.locker;
            core.keeper.clean_up(CleanUp {
                doubt,
                key: self.key.clone(),
                token: self.token.clone(),
                settings: Arc::clone(settings),
                metrics: metrics.clone(),
                _unfinished: core.keeper.outstanding().begin(),
            });
        }
    }
}
