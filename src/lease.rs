//! What this process knows of a lock that it holds: until when, and whether it is lost.
//!
//! ```text
//!          extend (renewal confirmed)
//!            ┌───┐
//!            ▼   │        give_back
//!  grant ──► Held ─────────────────────► GivenBack
//!            │   lose(reason), or the deadline has passed
//!            └─────────────────────────► Lost(reason)
//! ```
//!
//! **Invariant:** a lease that has left `Held` never returns to it, whatever the store says later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::clock::{Clock, Moment};

/// Why a lock was lost while it was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its ttl ran out, for instance because the process stood still.
    Expired,
    /// The key was gone before its time: deleted, evicted, flushed, or lost with the store's data.
    Deleted,
    /// The key carries another holder's token.
    TakenOver,
    /// No renewal could be confirmed before the local deadline: the store did not answer.
    Unconfirmed,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
}

impl LostReason {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Expired, Self::Deleted, Self::TakenOver, Self::Unconfirmed, Self::MaxHold];

    /// The reason as metrics and logs name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Deleted => "deleted",
            Self::TakenOver => "taken_over",
            Self::Unconfirmed => "unconfirmed",
            Self::MaxHold => "max_hold",
        }
    }
}

impl std::fmt::Display for LostReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    Held,
    GivenBack,
    Lost(LostReason),
}

const HELD: u8 = 0;
const GIVEN_BACK: u8 = 1;
const LOST: u8 = 2;

impl LeaseState {
    fn decode(raw: u8) -> Self {
        match raw {
            HELD => Self::Held,
            GIVEN_BACK => Self::GivenBack,
            lost => match LostReason::ALL.get(usize::from(lost - LOST)) {
                Some(&reason) => Self::Lost(reason),
                None => Self::GivenBack,
            },
        }
    }
}

/// How long a grant is good for: the store's ttl, and the margin by which we stop earlier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) ttl: Duration,
    pub(crate) margin: Duration,
}

impl Term {
    /// The local deadline of a grant whose winning command was sent at `sent`.
    pub(crate) fn deadline(self, sent: Moment) -> Moment {
        sent + self.ttl.saturating_sub(self.margin)
    }
}

#[derive(Debug)]
pub(crate) struct Lease {
    clock: Clock,
    term: Term,
    /// When the last command that the store confirmed was sent.
    confirmed: AtomicU64,
    state: AtomicU8,
    loss: Arc<Notify>,
}

impl Lease {
    pub(crate) fn new(clock: Clock, term: Term, sent: Moment) -> Self {
        Self {
            clock,
            term,
            confirmed: AtomicU64::new(sent.0),
            state: AtomicU8::new(HELD),
            loss: Arc::new(Notify::new()),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    fn confirmed(&self) -> Moment {
        Moment(self.confirmed.load(Ordering::Acquire))
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.term.deadline(self.confirmed())
    }

    /// Time left until the local deadline; zero once the lease has left `Held`.
    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            LeaseState::Held => self.deadline().since(self.now()),
            _ => Duration::ZERO,
        }
    }

    /// Share of the ttl that is left, from 0 to 1.
    pub(crate) fn remaining_share(&self) -> f64 {
        self.remaining().as_secs_f64() / self.term.ttl.as_secs_f64()
    }

    pub(crate) fn state(&self) -> LeaseState {
        LeaseState::decode(self.state.load(Ordering::Acquire))
    }

    /// The reason for which the lease would have to be lost right now, by the clock alone.
    pub(crate) fn overdue(&self) -> Option<LostReason> {
        let now = self.now();
        let confirmed = self.confirmed();
        if now < self.term.deadline(confirmed) {
            None
        } else if now < confirmed + self.term.ttl {
            Some(LostReason::Unconfirmed)
        } else {
            Some(LostReason::Expired)
        }
    }

    /// Why a key that the store no longer has is gone.
    pub(crate) fn reason_of_absence(&self) -> LostReason {
        if self.now() < self.confirmed() + self.term.ttl { LostReason::Deleted } else { LostReason::Expired }
    }

    /// Moves the deadline after a confirmed renewal that was sent at `sent`. A lease that was lost in the
    /// meantime stays lost.
    pub(crate) fn extend(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.0, Ordering::AcqRel);
    }

    /// Marks the lease lost. `true` for the one caller that got there first.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let code = LostReason::ALL.iter().position(|&r| r == reason).unwrap_or(0);
        self.leave(LOST + u8::try_from(code).unwrap_or(0))
    }

    /// Marks the lease given back. `true` for the one caller that got there first.
    pub(crate) fn give_back(&self) -> bool {
        self.leave(GIVEN_BACK)
    }

    fn leave(&self, state: u8) -> bool {
        self.state.compare_exchange(HELD, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Wakes those who wait for the loss.
    pub(crate) fn announce_loss(&self) {
        self.loss.notify_waiters();
    }

    /// Resolves when a loss is announced after this call. Check [`state`](Self::state) after making it, not
    /// before: what was announced earlier wakes nobody.
    pub(crate) fn loss(&self) -> OwnedNotified {
        self.loss.clone().notified_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { ttl: Duration::from_secs(10), margin: Duration::from_millis(102) };

    fn lease() -> (Lease, Clock) {
        let clock = Clock::tokio();
        (Lease::new(clock.clone(), TERM, clock.now()), clock)
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_counts_from_the_sending_of_the_winning_command() {
        let clock = Clock::tokio();
        let sent = clock.now();
        tokio::time::advance(Duration::from_secs(4)).await;
        let lease = Lease::new(clock, TERM, sent);
        assert_eq!(lease.remaining(), Duration::from_millis(5898));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_unconfirmed_between_margin_and_ttl_and_expired_after_it() {
        let (lease, _) = lease();
        tokio::time::advance(Duration::from_millis(9897)).await;
        assert_eq!(lease.overdue(), None);
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(lease.overdue(), Some(LostReason::Unconfirmed));
        tokio::time::advance(Duration::from_millis(102)).await;
        assert_eq!(lease.overdue(), Some(LostReason::Expired));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_is_never_revived() {
        let (lease, clock) = lease();
        assert!(lease.lose(LostReason::Deleted));
        lease.extend(clock.now());
        assert!(!lease.lose(LostReason::TakenOver), "only the first loss counts");
        assert!(!lease.give_back());
        assert_eq!(lease.state(), LeaseState::Lost(LostReason::Deleted));
        assert_eq!(lease.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_does_not_move_the_deadline_back() {
        let (lease, clock) = lease();
        let early = clock.now();
        tokio::time::advance(Duration::from_secs(2)).await;
        lease.extend(clock.now());
        lease.extend(early);
        assert_eq!(lease.remaining(), Duration::from_millis(9898));
    }

    #[tokio::test(start_paused = true)]
    async fn every_reason_survives_its_encoding() {
        for reason in LostReason::ALL {
            let (lease, _) = lease();
            lease.lose(reason);
            assert_eq!(lease.state(), LeaseState::Lost(reason));
        }
    }
}
