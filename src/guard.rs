//! A lock that is held: the owner's [`LockGuard`] and the handler's [`HeldLock`].

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::sync::futures::OwnedNotified;

use crate::clock::Moment;
use crate::keeper::{CleanUp, Keeper, Place, Unfinished};
use crate::key::LockKey;
use crate::lease::{Lease, LeaseState, LostReason};
use crate::settings::LockSettings;
use crate::store::{ErasedStore, Fence, Holder, Owned, OwnerToken, Release, Renewal, StoreError};
use crate::telemetry::{HeldGauge, LockMetrics, ReleaseOutcome, RenewalOutcome};

/// What the guard, the handler and the keeper share of one held lock.
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
    fencing_token: OnceCell<u64>,
    open: Mutex<Option<(HeldGauge, Unfinished)>>,
    place: Place,
    renew_at: AtomicU64,
    renewing: AtomicBool,
    watched: AtomicBool,
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
    fn new(grant: Grant) -> Self {
        let Grant { key, token, settings, metrics, store, keeper, lease, sent, unresolved } = grant;
        let hold = Self {
            open: Mutex::new(Some((metrics.granted(), keeper.outstanding().begin()))),
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
            failures: AtomicU64::new(0),
        };
        hold.plan_renewal(sent);
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

    /// The next renewal, counted from when the last good command was sent. Up to a sixth earlier than set,
    /// so that locks that were taken together are not renewed together.
    fn plan_renewal(&self, sent: Moment) {
        if let Some(pause) = self.settings.renew_every() {
            let pause = pause.mul_f64(1.0 - fastrand::f64() / 6.0);
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
                self.plan_renewal(sent);
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

    /// Marks the lock lost; whoever notices first is counted.
    pub(crate) fn lose(&self, reason: LostReason) {
        if self.lease.lose(reason) {
            self.metrics.lost(reason);
            self.closed(ReleaseOutcome::Skipped);
            tracing::warn!(
                lock = self.metrics.lock(), key = %self.key.fingerprint(), %reason, held_for = ?self.held_for(),
                "a lock was lost while it was held"
            );
        }
    }

    /// The state by the store's answers and by the clock.
    pub(crate) fn state(&self) -> LeaseState {
        if self.lease.state() == LeaseState::Held
            && let Some(reason) = self.lease.overdue()
        {
            self.lose(reason);
        }
        self.lease.state()
    }

    /// Ends the hold: nothing is renewed any more. Fails if the lock was lost before.
    fn give_back(&self) -> Result<(), LostReason> {
        if let LeaseState::Lost(reason) = self.state() {
            return Err(reason);
        }
        self.lease.give_back();
        self.keeper.forget(self);
        Ok(())
    }

    /// Sends the release. If it fails, the token has to be cleaned up.
    pub(crate) async fn release_through(
        &self,
        store: &dyn ErasedStore,
        tried: bool,
    ) -> Result<Release, CleanUp> {
        let result = match store.release(self.owned()).await {
            // The earlier try may have done it.
            Ok(Release::Missing) if tried => Ok(Release::Released),
            result => result,
        };
        let outcome = match &result {
            Ok(Release::Released) if self.lease.overdue().is_some() => ReleaseOutcome::Late,
            Ok(Release::Released) => ReleaseOutcome::Released,
            Ok(_) => ReleaseOutcome::NotOwned,
            Err(_) => ReleaseOutcome::Error,
        };
        if outcome == ReleaseOutcome::NotOwned {
            tracing::warn!(
                lock = self.metrics.lock(), key = %self.key.fingerprint(), found = ?result,
                "a lock to be released was not ours any more"
            );
        }
        let result = result.map_err(|error| {
            tracing::warn!(
                lock = self.metrics.lock(), key = %self.key.fingerprint(), %error,
                "a lock could not be released; trying until its ttl is over"
            );
            self.clean_up()
        });
        if result.is_ok() && self.unresolved {
            self.keeper.clean_up(self.clean_up());
        }
        self.closed(outcome);
        result
    }

    fn clean_up(&self) -> CleanUp {
        CleanUp {
            key: self.key.clone(),
            token: self.token.clone(),
            settings: Arc::clone(&self.settings),
            metrics: self.metrics.clone(),
            _unfinished: self.keeper.outstanding().begin(),
        }
    }

    fn closed(&self, outcome: ReleaseOutcome) {
        if self.open.lock().take().is_some() {
            self.metrics.released(outcome, self.held_for());
        }
    }
}

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

/// Why a lock could not be given back as it should be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before. The store is left alone.
    Lost(LostReason),
    /// The store says that it was not ours any more; what is there is left alone.
    NotOwned,
    /// The store did not do it. The keeper goes on trying until the ttl is over.
    Store,
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => write!(f, "the lock was lost before its release ({reason})"),
            Self::NotOwned => f.write_str("the lock was not ours any more when it was released"),
            Self::Store => f.write_str("the store did not release the lock"),
        }
    }
}

impl std::error::Error for ReleaseError {}

/// Holds a lock. [`release`](Self::release) gives it back and reports; dropping it gives it back too, in the
/// background, from any thread and without a runtime.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    /// Taken out by `release`.
    hold: Option<Arc<Hold>>,
    /// The same lock, as others see it.
    held: HeldLock,
}

impl LockGuard {
    pub(crate) fn new(grant: Grant) -> Self {
        let hold = Arc::new(Hold::new(grant));
        hold.keeper.watch_over(&hold);
        Self { held: HeldLock { hold: Arc::clone(&hold) }, hold: Some(hold) }
    }

    /// The handler's view of the lock: cheap to clone, does not keep the lock held.
    pub fn held(&self) -> &HeldLock {
        &self.held
    }

    /// Gives the lock back and waits for the store's answer, at most one `command_timeout`.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::Lost`] if it had been lost, [`ReleaseError::NotOwned`] if the store says so now, and
    /// [`ReleaseError::Store`] if the store did not do it; then the keeper goes on trying.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the keeper releases.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        let Some(hold) = self.hold.take() else { return Ok(()) };
        hold.give_back().map_err(ReleaseError::Lost)?;
        let handed_over = HandOver { hold: Some(hold) };
        handed_over.finish().await
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take()
            && hold.give_back().is_ok()
        {
            let keeper = hold.keeper.clone();
            keeper.release_later(hold, false);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.held.hold).finish()
    }
}

/// A release under way. Dropped unfinished, it goes to the keeper.
struct HandOver {
    hold: Option<Arc<Hold>>,
}

impl HandOver {
    async fn finish(mut self) -> Result<(), ReleaseError> {
        let Some(hold) = &self.hold else { return Ok(()) };
        let result = hold.release_through(&*hold.store, false).await;
        let hold = self.hold.take();
        match result {
            Ok(Release::Released) => Ok(()),
            Ok(_) => Err(ReleaseError::NotOwned),
            Err(clean_up) => {
                if let Some(hold) = hold {
                    hold.keeper.clean_up(clean_up);
                }
                Err(ReleaseError::Store)
            }
        }
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            let keeper = hold.keeper.clone();
            keeper.release_later(hold, true);
        }
    }
}

/// A view of a held lock, for the work that it protects. Found in a request's extensions.
///
/// Cheap to clone. It does not keep the lock held: that is the guard's part.
#[derive(Clone)]
pub struct HeldLock {
    hold: Arc<Hold>,
}

impl HeldLock {
    /// What is locked, prefix included.
    pub fn key(&self) -> &LockKey {
        &self.hold.key
    }

    /// Whether the lock is held at this moment, by the store's last word and by our clock.
    pub fn is_held(&self) -> bool {
        self.hold.state() == LeaseState::Held
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        match self.hold.state() {
            LeaseState::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// Time until the local deadline, if no renewal comes. Zero if the lock is not held.
    pub fn remaining(&self) -> Duration {
        self.hold.lease.remaining()
    }

    /// Resolves when the lock is lost, with the reason; never, if it is given back first.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time; call it again at any time.
    pub async fn lost(&self) -> LostReason {
        let mut loss = self.loss_signal();
        poll_fn(|cx| loss.poll(cx)).await
    }

    pub(crate) fn loss_signal(&self) -> LossSignal {
        LossSignal { ended: Box::pin(self.hold.lease.ended()), hold: Arc::clone(&self.hold) }
    }

    /// A number that is greater than those of all earlier holders of this key. Give it to what the lock
    /// protects, and let it refuse lower ones: a holder that was paused for too long cannot undo its
    /// successor's work then. Minted at the first call, one round trip; the same for all later calls.
    ///
    /// # Errors
    ///
    /// [`FencingError::Lost`] if the lock is not held any more, [`FencingError::Store`] if the store cannot
    /// be used.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time; a number that was minted for nobody is skipped.
    pub async fn fencing_token(&self) -> Result<u64, FencingError> {
        let hold = &self.hold;
        let mint = || async {
            if hold.state() != LeaseState::Held {
                return Err(FencingError::Lost);
            }
            match hold.store.fence(hold.owned()).await {
                Ok(Fence::Minted(number)) => Ok(number),
                Ok(Fence::NotOwned) => Err(FencingError::Lost),
                Err(error) => Err(FencingError::Store(error)),
            }
        };
        hold.fencing_token.get_or_try_init(mint).await.copied()
    }

    /// Runs `work` until it is done or the lock is lost, whichever comes first. `work` is dropped on a loss,
    /// which stops it at its next await.
    ///
    /// # Errors
    ///
    /// Why the lock was lost.
    ///
    /// # Cancel safety
    ///
    /// As `work`.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, LostReason> {
        let mut work = pin!(work);
        let mut loss = self.loss_signal();
        poll_fn(|cx| match loss.poll(cx) {
            Poll::Ready(reason) => Poll::Ready(Err(reason)),
            Poll::Pending => work.as_mut().poll(cx).map(Ok),
        })
        .await
    }
}

/// Tells of a loss. Every poll reads the clock, so that work which is polled after it is never polled past
/// the deadline, even if the whole process stood still and the keeper has not noticed yet.
pub(crate) struct LossSignal {
    hold: Arc<Hold>,
    /// Made before the state is read: a loss between the two is not missed.
    ended: Pin<Box<OwnedNotified>>,
}

impl LossSignal {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LostReason> {
        loop {
            match self.hold.state() {
                LeaseState::Lost(reason) => return Poll::Ready(reason),
                LeaseState::GivenBack => return Poll::Pending,
                LeaseState::Held => {}
            }
            ready!(self.ended.as_mut().poll(cx));
            self.ended = Box::pin(self.hold.lease.ended());
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldLock").field(&self.hold).finish()
    }
}

/// Why there is no fencing token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FencingError {
    /// The lock is not held any more.
    Lost,
    /// The store cannot be used.
    Store(StoreError),
}

impl fmt::Display for FencingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("the lock is not held any more, so it has no fencing token"),
            Self::Store(_) => f.write_str("the store did not mint a fencing token"),
        }
    }
}

impl std::error::Error for FencingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lost => None,
            Self::Store(error) => Some(error),
        }
    }
}
