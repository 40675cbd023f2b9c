//! What the guard, the handler and the keeper share of one held lock, and how it ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::clock::Moment;
use crate::keeper::{CleanUp, Doubt, Keeper, Place, Unfinished};
use crate::key::LockKey;
use crate::lease::{Lease, LeaseState, LostReason};
use crate::queue::{Front, NextInLine, Seat};
use crate::settings::LockSettings;
use crate::store::{ErasedStore, Holder, Owned, OwnerToken, Release, Renewal, StoreError};
use crate::telemetry::{HeldGauge, LockMetrics, ReleaseOutcome, RenewalOutcome};

pub(crate) struct Hold {
    pub(crate) key: LockKey,
    pub(crate) token: OwnerToken,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) metrics: LockMetrics,
    pub(crate) store: Arc<dyn ErasedStore>,
    pub(crate) keeper: Keeper,
    lease: Lease,
    granted: Moment,
    /// An attempt before the winning one has no known result and may still arrive.
    unresolved: bool,
    pub(crate) fencing_token: OnceCell<u64>,
    open: Mutex<Option<Open>>,
    place: Place,
    renew_at: AtomicU64,
    renewing: AtomicBool,
    watched: AtomicBool,
    /// The guard, and everybody who keeps the lock beside it.
    claims: AtomicUsize,
    failures: AtomicU64,
}

/// What an acquisition hands over when it has won.
pub(crate) struct Grant {
    pub(crate) key: LockKey,
    pub(crate) token: OwnerToken,
    pub(crate) settings: Arc<LockSettings>,
    pub(crate) metrics: LockMetrics,
    pub(crate) store: Arc<dyn ErasedStore>,
    pub(crate) keeper: Keeper,
    pub(crate) lease: Lease,
    pub(crate) sent: Moment,
    pub(crate) unresolved: bool,
}

impl Hold {
    pub(crate) fn new(grant: Grant) -> Self {
        let Grant { key, token, settings, metrics, store, keeper, lease, sent, unresolved } = grant;
        let hold = Self {
            open: Mutex::new(Some(Open {
                seat: None,
                span: tracing::debug_span!("lock.hold", lock = metrics.lock(), key = metrics.show(&key)),
                _gauge: metrics.granted(),
                _unfinished: keeper.outstanding().begin(),
            })),
            granted: lease.now(),
            renew_at: AtomicU64::new(u64::MAX),
            key,
            token,
            settings,
            metrics,
            store,
            keeper,
            lease,
            unresolved,
            fencing_token: OnceCell::new(),
            place: Place::default(),
            renewing: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            claims: AtomicUsize::new(1),
            failures: AtomicU64::new(0),
        };
        hold.plan_renewal(sent, FIRST_JITTER);
        hold
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn owned(&self) -> Owned<'_> {
        Owned { key: &self.key, token: &self.token, timeout: self.settings.command_timeout() }
    }

    fn held_for(&self) -> Duration {
        self.lease.now().since(self.granted)
    }

    /// The next renewal, counted from when the last good command was sent, up to `jitter` of the pause
    /// earlier than set: locks that were taken together are not renewed together.
    fn plan_renewal(&self, sent: Moment, jitter: f64) {
        if let Some(pause) = self.settings.renew_every() {
            let pause = pause.mul_f64(1.0 - fastrand::f64() * jitter);
            self.renew_at.store((sent + pause).0, Ordering::Release);
        }
    }

    pub(crate) fn max_hold_end(&self) -> Option<Moment> {
        self.settings.max_hold().map(|limit| self.granted + limit)
    }

    /// When the keeper has to look at the lock next.
    pub(crate) fn next_look(&self) -> Moment {
        let mut next = self.lease.deadline();
        if !self.renewing.load(Ordering::Acquire) {
            next = next.min(Moment(self.renew_at.load(Ordering::Acquire)));
        }
        if !self.watched.load(Ordering::Relaxed) {
            next = next.min(self.watch_at());
        }
        self.max_hold_end().map_or(next, |end| next.min(end))
    }

    /// `true` if a renewal is due and nobody else is at it; the caller then has to call [`Self::renew`].
    pub(crate) fn start_renewal(&self, now: Moment) -> bool {
        now >= Moment(self.renew_at.load(Ordering::Acquire)) && !self.renewing.swap(true, Ordering::AcqRel)
    }

    /// One renewal.
    pub(crate) async fn renew(&self, store: &dyn ErasedStore) {
        let sent = self.lease.now();
        let owned = self.owned();
        let timeout = owned.timeout.min(self.lease.remaining());
        let result = store.renew(Owned { timeout, ..owned }, self.settings.ttl()).await;
        if self.lease.state() == LeaseState::Held {
            self.renewed(sent, result);
        }
        self.renewing.store(false, Ordering::Release);
    }

    fn renewed(&self, sent: Moment, result: Result<Renewal, StoreError>) {
        let outcome = match &result {
            Ok(Renewal::Renewed) => RenewalOutcome::Renewed,
            Ok(_) => RenewalOutcome::NotOwned,
            Err(_) => RenewalOutcome::Error,
        };
        self.metrics.renewal_finished(outcome);
        match result {
            Ok(Renewal::Renewed) if self.lease.overdue().is_none() => {
                self.metrics.renewed_with(self.lease.remaining_share());
                self.lease.extend(sent);
                self.failures.store(0, Ordering::Relaxed);
                self.plan_renewal(sent, JITTER);
            }
            // Confirmed, but after the deadline: whoever asked in between was told that it is lost.
            Ok(Renewal::Renewed) => {}
            Ok(Renewal::Missing) => self.lose(self.lease.reason_of_absence()),
            Ok(Renewal::NotOwned) => self.lose(LostReason::TakenOver),
            Err(error) => {
                let failures = self.failures.fetch_add(1, Ordering::Relaxed);
                let pause = retry_pause(failures, self.settings.command_timeout());
                self.renew_at.store((self.lease.now() + pause).0, Ordering::Release);
                tracing::debug!(lock = self.metrics.lock(), %error, "a renewal failed and is tried again");
            }
        }
    }

    /// `true` once, when the lock has been held for long enough to be worth a watch.
    pub(crate) fn start_watch(&self, now: Moment) -> bool {
        now >= self.watch_at() && !self.watched.swap(true, Ordering::Relaxed)
    }

    fn watch_at(&self) -> Moment {
        self.granted + self.settings.watch_after()
    }

    /// What a look at the store has shown.
    pub(crate) fn found(&self, holder: Holder) {
        match holder {
            Holder::Us => {}
            Holder::Other => self.lose(LostReason::TakenOver),
            Holder::Nobody => self.lose(self.lease.reason_of_absence()),
        }
    }

    /// The reason for which the lock is lost right now by the clock alone. A renewal that was tried tells an
    /// unreachable store from a process that stood still.
    pub(crate) fn overdue(&self) -> Option<LostReason> {
        let reason = self.lease.overdue()?;
        let tried = self.renewing.load(Ordering::Acquire) || self.failures.load(Ordering::Relaxed) > 0;
        Some(if tried { LostReason::Unconfirmed } else { reason })
    }

    /// Marks the lock lost; whoever notices first is counted.
    pub(crate) fn lose(&self, reason: LostReason) {
        if self.lease.lose(reason) {
            self.closed(ReleaseOutcome::Skipped, || {
                self.metrics.lost(&self.key, reason, self.held_for());
            });
            // Counted first: whoever is woken by the loss finds it in the metrics.
            self.lease.announce_loss();
        }
    }

    /// The state by the store's answers and by the clock.
    pub(crate) fn state(&self) -> LeaseState {
        if self.lease.state() == LeaseState::Held
            && let Some(reason) = self.overdue()
        {
            self.lose(reason);
        }
        self.lease.state()
    }

    pub(crate) fn claim(&self) -> bool {
        let one_more = |claims| (claims > 0).then_some(claims + 1);
        self.claims.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// `true` for the last one to let go, who has to release.
    pub(crate) fn let_go(&self) -> bool {
        self.claims.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Lets go without waiting: the keeper releases.
    pub(crate) fn drop_claim(self: Arc<Self>) {
        if self.let_go() && self.give_back().is_ok() {
            let keeper = self.keeper.clone();
            keeper.release_later(self, false);
        }
    }

    /// Ends the hold: nothing is renewed any more. Fails if the lock was lost before.
    pub(crate) fn give_back(&self) -> Result<(), LostReason> {
        if let LeaseState::Lost(reason) = self.state() {
            return Err(reason);
        }
        self.lease.give_back();
        self.keeper.forget(self);
        Ok(())
    }

    /// Sends the release; if it fails, the keeper goes on. `tried` says that one may have been sent before.
    pub(crate) async fn release_through(
        &self,
        store: &dyn ErasedStore,
        tried: bool,
    ) -> Result<Release, StoreError> {
        let next = if tried { None } else { self.next_in_line() };
        let result = match next {
            Some(next) => self.hand_over(store, next).await,
            None => match store.release(self.owned()).await {
                // The earlier try may have done it.
                Ok(Release::Missing | Release::NotOwned) if tried => Ok(Release::Released),
                result => result,
            },
        };
        let outcome = match &result {
            Ok(Release::Released) if self.lease.overdue().is_some() => ReleaseOutcome::Late,
            Ok(Release::Released) => ReleaseOutcome::Released,
            Ok(_) => ReleaseOutcome::NotOwned,
            Err(_) => ReleaseOutcome::Error,
        };
        // Begun before the hold is closed: a shutdown must not see a moment without work left.
        let clean_up = match &result {
            Err(_) => Some(self.clean_up(Doubt::Release)),
            Ok(_) if self.unresolved => Some(self.clean_up(Doubt::Acquire)),
            Ok(_) => None,
        };
        self.closed(outcome, || match (&result, outcome) {
            (Err(error), _) => self.metrics.unclean_release(&self.key, error),
            (_, ReleaseOutcome::NotOwned) => {
                self.metrics.unclean_release(&self.key, &"it was not ours any more");
            }
            _ => {}
        });
        if let Some(clean_up) = clean_up {
            self.keeper.clean_up(clean_up);
        }
        result
    }

    /// Keeps the seat until the hold ends, and tells those behind who holds the lock.
    pub(crate) fn sit(self: &Arc<Self>, seat: Seat) {
        seat.learnt(Front::Holding(Arc::downgrade(self)));
        if let Some(open) = &mut *self.open.lock() {
            open.seat = Some(seat);
        }
    }

    /// Whoever waits in this process, unless the lock has to be released for others now.
    fn next_in_line(&self) -> Option<NextInLine> {
        let mut open = self.open.lock();
        let open = open.as_mut()?;
        match open.seat.take()?.next(self.lease.now(), self.settings.hand_over()) {
            Ok(next) => Some(next),
            Err(seat) => {
                open.seat = Some(seat);
                None
            }
        }
    }

    /// Passes the lock on. A store that refuses to is asked to release.
    async fn hand_over(&self, store: &dyn ErasedStore, mut next: NextInLine) -> Result<Release, StoreError> {
        let token = next.claim().0.clone();
        next.sending(&self.keeper, CleanUp { token, ..self.clean_up(Doubt::HandOver) });
        let sent = self.lease.now();
        let (token, ttl) = next.claim();
        let result = match store.hand_over(self.owned(), token, ttl).await {
            Ok(Release::Released) => {
                self.metrics.handed_over();
                next.handed_over(sent);
                return Ok(Release::Released);
            }
            Err(error) if error.is_unresolved() => {
                drop(next);
                return Err(error);
            }
            Err(_) => store.release(self.owned()).await,
            not_ours => not_ours,
        };
        next.refused();
        result
    }

    fn clean_up(&self, doubt: Doubt) -> CleanUp {
        CleanUp {
            doubt,
            key: self.key.clone(),
            token: self.token.clone(),
            settings: Arc::clone(&self.settings),
            metrics: self.metrics.clone(),
            _unfinished: self.keeper.outstanding().begin(),
        }
    }

    /// Counts the end of the hold, once, and reports inside its span.
    fn closed(&self, outcome: ReleaseOutcome, report: impl FnOnce()) {
        let open = self.open.lock().take();
        if let Some(open) = open {
            open.span.in_scope(report);
            self.metrics.released(outcome, self.held_for());
        }
    }
}

/// Lives as long as the lock counts as held.
struct Open {
    /// The place at the front of this process' line for the key; left when the hold ends.
    seat: Option<Seat>,
    span: tracing::Span,
    _gauge: HeldGauge,
    _unfinished: Unfinished,
}

/// Spreads the first renewals of locks that were taken at the same moment; later ones stay spread.
const FIRST_JITTER: f64 = 0.6;
const JITTER: f64 = 0.15;

/// Short pauses at first: most of the lease is still left. Jittered, and never above one command time-out.
fn retry_pause(failures: u64, longest: Duration) -> Duration {
    let step = Duration::from_millis(10).saturating_mul(1 << failures.min(10));
    step.min(longest).mul_f64(0.5 + fastrand::f64() / 2.0)
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("state", &self.lease.state())
            .finish_non_exhaustive()
    }
}
