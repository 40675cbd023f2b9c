//! A lock that is held: the owner's [`LockGuard`] and the handler's [`HeldLock`].

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::futures::OwnedNotified;

use crate::hold::{Grant, Hold};
use crate::key::LockKey;
use crate::lease::{LeaseState, LostReason};
use crate::queue::Seat;
use crate::store::{Fence, Release, StoreError};

/// Why a lock could not be given back as it should be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before. The store is left alone.
    Lost(LostReason),
    /// The store says that it was not ours any more; what is there is left alone.
    NotOwned,
    /// The store did not do it. The keeper goes on trying until the ttl is over.
    Store(StoreError),
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => write!(f, "the lock was lost before its release ({reason})"),
            Self::NotOwned => f.write_str("the lock was not ours any more when it was released"),
            Self::Store(_) => f.write_str("the store did not release the lock"),
        }
    }
}

impl std::error::Error for ReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

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
    pub(crate) fn new(grant: Grant, seat: Option<Seat>) -> Self {
        let hold = Arc::new(Hold::new(grant));
        if let Some(seat) = seat {
            hold.sit(seat);
        }
        hold.keeper.watch_over(&hold);
        Self { held: HeldLock { hold: Arc::clone(&hold) }, hold: Some(hold) }
    }

    /// The handler's view of the lock: cheap to clone, does not keep the lock held.
    pub fn held(&self) -> &HeldLock {
        &self.held
    }

    /// Gives the lock back and waits for the store's answer, at most one `command_timeout` (two, if the store
    /// refuses to pass it on to a waiter and is asked to release it).
    ///
    /// If somebody still [keeps](HeldLock::keep) the lock, it goes on being held, and the last one to let go
    /// releases it in the background.
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
        if !hold.let_go() {
            return Ok(());
        }
        hold.give_back().map_err(ReleaseError::Lost)?;
        let handed_over = HandOver { hold: Some(hold) };
        handed_over.finish().await
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.drop_claim();
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
        self.hold = None;
        match result {
            Ok(Release::Released) => Ok(()),
            Ok(_) => Err(ReleaseError::NotOwned),
            Err(error) => Err(ReleaseError::Store(error)),
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
        self.hold.lease().remaining()
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

    /// Keeps the lock held and renewed beyond the guard's life, until what is returned is dropped. For work
    /// that outlives the request, as in `tokio::spawn`. `None` if the lock is not held any more.
    pub fn keep(&self) -> Option<KeptLock> {
        (self.is_held() && self.hold.claim()).then(|| KeptLock { held: self.clone() })
    }

    pub(crate) fn loss_signal(&self) -> LossSignal {
        LossSignal { announced: Box::pin(self.hold.lease().loss()), hold: Arc::clone(&self.hold) }
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
    announced: Pin<Box<OwnedNotified>>,
}

impl LossSignal {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LostReason> {
        loop {
            match self.hold.state() {
                LeaseState::Lost(reason) => return Poll::Ready(reason),
                LeaseState::GivenBack => return Poll::Pending,
                LeaseState::Held => {}
            }
            ready!(self.announced.as_mut().poll(cx));
            self.announced = Box::pin(self.hold.lease().loss());
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldLock").field(&self.hold).finish()
    }
}

/// A share in a lock: it is released when its guard and all who keep it have let go. Dropping the last one
/// releases in the background.
#[derive(Debug)]
#[must_use = "the lock is kept only as long as this lives"]
pub struct KeptLock {
    held: HeldLock,
}

impl KeptLock {
    /// The view of the lock, to check and to be told of a loss.
    pub fn held(&self) -> &HeldLock {
        &self.held
    }
}

impl Drop for KeptLock {
    fn drop(&mut self) {
        Arc::clone(&self.held.hold).drop_claim();
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
