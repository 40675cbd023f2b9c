//! Who waits for what in this process: first come, first served for each key.
//!
//! Each key that somebody holds or waits for has a line. Whoever has the line's one [`Seat`] talks to the
//! store; it keeps the seat while it holds the lock. All others wait behind without a command. The seat
//! moves on in one of two ways: with the lock itself ([`NextInLine`], after the store has swapped the
//! tokens), or alone, when it is dropped; then the next in line has to compete for the lock.
//!
//! **Invariant:** a line exists exactly as long as its seat does, or is on its way to somebody. So no entry
//! stays for a key that nobody holds or waits for, and a waiter that goes away leaves no gap: what was sent
//! to it is dropped, and that moves the seat on.

#[cfg(tower_lock_shuttle)]
#[cfg(test)]
mod interleavings;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Moment;
use crate::hold::Hold;
use crate::keeper::{CleanUp, Keeper};
use crate::key::LockKey;
use crate::locker::AcquireError;
use crate::store::OwnerToken;
use crate::sync::Mutex;

#[derive(Clone, Debug, Default)]
pub(crate) struct Queues(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: HashMap<LockKey, Line>,
    waiting: usize,
}

#[derive(Debug)]
struct Line {
    /// In order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    arrivals: u64,
    front: Front,
}

/// What is known of the lock at the front of a line.
#[derive(Clone, Debug)]
pub(crate) enum Front {
    /// Nothing yet: the store has not answered.
    Asking,
    /// The store's last word to the one in the seat.
    Refused(AcquireError),
    /// Held by this process.
    Holding(Weak<Hold>),
}

#[derive(Debug)]
struct Waiter {
    token: OwnerToken,
    ttl: Duration,
    promote: oneshot::Sender<Promotion>,
}

/// What a waiter is told when its turn has come.
#[derive(Debug)]
pub(crate) enum Promotion {
    /// It has the seat and has to compete for the lock. With `in_doubt`, a swap to its token was sent and not
    /// answered, so it may hold the lock already, or come to.
    Compete { seat: Seat, in_doubt: Option<Unclaimed> },
    /// It has the lock.
    HandedOver(HandedLock),
}

/// Most waiters of one key, and of all keys together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) per_key: usize,
    pub(crate) total: usize,
}

/// Too many wait already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueFull;

pub(crate) enum Place {
    Front(Seat),
    /// With the number of those who waited before.
    Behind(Waiting, usize),
}

/// What somebody finds who does not want to wait.
pub(crate) enum Glance {
    /// Nobody of this process is at it.
    Free(Seat),
    /// Known to be taken.
    Taken(AcquireError),
    /// Somebody of this process is asking the store; ask it as well.
    Unknown,
}

impl Queues {
    pub(crate) fn join(
        &self,
        key: &LockKey,
        token: &OwnerToken,
        ttl: Duration,
        limits: Limits,
    ) -> Result<Place, QueueFull> {
        let mut lines = self.0.lock();
        let Lines { lines: by_key, waiting } = &mut *lines;
        let Some(line) = by_key.get_mut(key) else {
            by_key.insert(key.clone(), Line::new());
            return Ok(Place::Front(self.new_seat(key)));
        };
        let ahead = line.waiters.len();
        if ahead >= limits.per_key || *waiting >= limits.total {
            return Err(QueueFull);
        }
        *waiting += 1;
        let id = line.arrivals;
        line.arrivals += 1;
        let (promote, promotion) = oneshot::channel();
        line.waiters.insert(id, Waiter { token: token.clone(), ttl, promote });
        Ok(Place::Behind(Waiting { queues: self.clone(), key: key.clone(), id, promotion }, ahead))
    }

    pub(crate) fn glance(&self, key: &LockKey) -> Glance {
        let mut lines = self.0.lock();
        let Some(line) = lines.lines.get(key) else {
            lines.lines.insert(key.clone(), Line::new());
            return Glance::Free(self.new_seat(key));
        };
        match line.front.verdict() {
            Some(error @ AcquireError::Contended(_)) => Glance::Taken(error),
            _ => Glance::Unknown,
        }
    }

    fn new_seat(&self, key: &LockKey) -> Seat {
        Seat(Some(SeatParts { queues: self.clone(), key: key.clone(), run: None, makes_room: false }))
    }

    /// Takes the next waiter out of the line; without one, the line ends.
    fn take_next(&self, key: &LockKey) -> Option<Waiter> {
        let mut lines = self.0.lock();
        let Lines { lines: by_key, waiting } = &mut *lines;
        let line = by_key.get_mut(key)?;
        while let Some((_, waiter)) = line.waiters.pop_first() {
            *waiting -= 1;
            if !waiter.promote.is_closed() {
                line.front.moves_on();
                return Some(waiter);
            }
        }
        by_key.remove(key);
        None
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        let lines = self.0.lock();
        lines.lines.is_empty() && lines.waiting == 0
    }
}

impl Line {
    fn new() -> Self {
        Self { waiters: BTreeMap::new(), arrivals: 0, front: Front::Asking }
    }
}

impl Front {
    /// The seat goes to the next one. What the store said last stays true enough for those behind.
    fn moves_on(&mut self) {
        if let Self::Holding(_) = self {
            *self = Self::Refused(AcquireError::held_here(Duration::ZERO));
        }
    }

    /// What to tell somebody who will not wait any longer.
    fn verdict(&self) -> Option<AcquireError> {
        match self {
            Self::Asking => None,
            Self::Refused(error) => Some(error.clone()),
            Self::Holding(hold) => {
                let remaining = hold.upgrade().map_or(Duration::ZERO, |hold| hold.lease().remaining());
                Some(AcquireError::held_here(remaining))
            }
        }
    }
}

/// A place behind the seat. Dropped, it is left.
#[derive(Debug)]
pub(crate) struct Waiting {
    queues: Queues,
    key: LockKey,
    id: u64,
    promotion: oneshot::Receiver<Promotion>,
}

impl Waiting {
    /// Cancel safe: call it again.
    pub(crate) async fn promoted(&mut self) -> Promotion {
        match (&mut self.promotion).await {
            Ok(promotion) => promotion,
            // Whoever takes a waiter out of the line promotes it.
            Err(_) => std::future::pending().await,
        }
    }

    /// What is known of the lock; `None` if the store has not answered anybody.
    pub(crate) fn verdict(&self) -> Option<AcquireError> {
        self.queues.0.lock().lines.get(&self.key).and_then(|line| line.front.verdict())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut lines = self.queues.0.lock();
        let Lines { lines: by_key, waiting } = &mut *lines;
        if by_key.get_mut(&self.key).is_some_and(|line| line.waiters.remove(&self.id).is_some()) {
            *waiting -= 1;
        }
    }
}

/// The right to talk to the store about a key. Dropped, it goes to the next in line.
#[derive(Debug)]
pub(crate) struct Seat(Option<SeatParts>);

#[derive(Debug)]
struct SeatParts {
    queues: Queues,
    key: LockKey,
    /// Hand-overs since the lock was last free.
    run: Option<Run>,
    /// The lock was released so that other processes get their turn.
    makes_room: bool,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    since: Moment,
    turns: u32,
}

/// How long the lock may be handed over in a row before it is released for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunLimit {
    pub(crate) turns: u32,
    pub(crate) span: Duration,
}

impl Seat {
    /// Tells those behind what is known of the lock.
    pub(crate) fn learnt(&self, front: Front) {
        if let Some(SeatParts { queues, key, .. }) = &self.0
            && let Some(line) = queues.0.lock().lines.get_mut(key)
        {
            line.front = front;
        }
    }

    /// Whether the lock was released a moment ago for the sake of other processes.
    pub(crate) fn makes_room(&self) -> bool {
        self.0.as_ref().is_some_and(|parts| parts.makes_room)
    }

    /// Who is to get the lock from its holder, with the seat. If it has to be released for real, or nobody
    /// waits, the seat comes back.
    pub(crate) fn next(mut self, now: Moment, limit: RunLimit) -> Result<NextInLine, Self> {
        let Some(parts) = &mut self.0 else { return Err(self) };
        let run = parts.run.unwrap_or(Run { since: now, turns: 0 });
        if run.turns >= limit.turns || now.since(run.since) >= limit.span {
            parts.makes_room = limit.turns > 0;
            return Err(self);
        }
        // The line must not end here, so it is only looked at while nobody waits.
        let mut lines = parts.queues.0.lock();
        let Lines { lines: by_key, waiting } = &mut *lines;
        let next = by_key.get_mut(&parts.key).and_then(|line| {
            let (_, waiter) = line.waiters.pop_first()?;
            *waiting -= 1;
            line.front.moves_on();
            Some(waiter)
        });
        drop(lines);
        match next {
            Some(waiter) => {
                parts.run = Some(Run { turns: run.turns + 1, ..run });
                let Waiter { token, ttl, promote } = waiter;
                Ok(NextInLine { token, ttl, unclaimed: None, to: Some((promote, self)) })
            }
            None => Err(self),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(mut parts) = self.0.take() else { return };
        parts.run = None;
        let mut seat = Self(None);
        loop {
            let Some(waiter) = parts.queues.take_next(&parts.key) else { return };
            seat.0 = Some(parts);
            match waiter.promote.send(Promotion::Compete { seat, in_doubt: None }) {
                Err(Promotion::Compete { seat: mut returned, .. }) => {
                    let Some(returned_parts) = returned.0.take() else { return };
                    parts = returned_parts;
                    seat = Self(None);
                }
                _ => return,
            }
        }
    }
}

/// The waiter to which the holder passes the lock. Dropped without an answer from the store, the waiter has
/// to find out for itself.
#[derive(Debug)]
pub(crate) struct NextInLine {
    token: OwnerToken,
    ttl: Duration,
    unclaimed: Option<Unclaimed>,
    to: Option<(oneshot::Sender<Promotion>, Seat)>,
}

impl NextInLine {
    /// The token to be swapped in, and its ttl.
    pub(crate) fn claim(&self) -> (&OwnerToken, Duration) {
        (&self.token, self.ttl)
    }

    /// The swap is going to be sent. From now on the token is cleaned up if the waiter is gone.
    pub(crate) fn sending(&mut self, keeper: &Keeper, clean_up: CleanUp) {
        self.unclaimed = Some(Unclaimed(Some((keeper.clone(), clean_up))));
    }

    /// The store has swapped the tokens.
    pub(crate) fn handed_over(mut self, sent: Moment) {
        let unclaimed = self.unclaimed.take();
        if let Some((promote, seat)) = self.to.take() {
            // If the waiter is gone, dropping what comes back does the rest.
            drop(promote.send(Promotion::HandedOver(HandedLock { unclaimed, seat, sent })));
        }
    }

    /// The store has not swapped the tokens.
    pub(crate) fn refused(mut self) {
        if let Some(unclaimed) = self.unclaimed.take() {
            unclaimed.claim();
        }
        self.promote();
    }

    fn promote(&mut self) {
        let in_doubt = self.unclaimed.take();
        if let Some((promote, seat)) = self.to.take() {
            drop(promote.send(Promotion::Compete { seat, in_doubt }));
        }
    }
}

impl Drop for NextInLine {
    fn drop(&mut self) {
        self.promote();
    }
}

/// A token that was swapped in, or may have been, for a waiter. Dropped unclaimed, it is cleaned up.
pub(crate) struct Unclaimed(Option<(Keeper, CleanUp)>);

impl Unclaimed {
    /// The waiter sees to its token itself.
    pub(crate) fn claim(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some((keeper, clean_up)) = self.0.take() {
            keeper.clean_up(clean_up);
        }
    }
}

impl fmt::Debug for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unclaimed")
    }
}

/// A lock on its way to its next holder.
#[derive(Debug)]
pub(crate) struct HandedLock {
    // Dropped in this order: the next one competes when the clean-up is under way.
    unclaimed: Option<Unclaimed>,
    seat: Seat,
    sent: Moment,
}

impl HandedLock {
    /// The seat, and when the command was sent that swapped the tokens.
    pub(crate) fn accept(self) -> (Seat, Moment) {
        if let Some(unclaimed) = self.unclaimed {
            unclaimed.claim();
        }
        (self.seat, self.sent)
    }
}

#[cfg(not(tower_lock_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { per_key: 3, total: 5 };
    const TTL: Duration = Duration::from_secs(1);

    fn key(name: &str) -> LockKey {
        LockKey::new(name).expect("valid")
    }

    fn join(queues: &Queues, name: &str) -> Result<Place, QueueFull> {
        queues.join(&key(name), &OwnerToken::random(), TTL, LIMITS)
    }

    fn front(queues: &Queues, name: &str) -> Seat {
        match join(queues, name) {
            Ok(Place::Front(seat)) => seat,
            _ => panic!("somebody is at {name} already"),
        }
    }

    fn behind(queues: &Queues, name: &str) -> Waiting {
        match join(queues, name) {
            Ok(Place::Behind(waiting, _)) => waiting,
            _ => panic!("nobody is at {name}"),
        }
    }

    fn is_promoted(waiting: &mut Waiting) -> Option<Promotion> {
        waiting.promotion.try_recv().ok()
    }

    #[test]
    fn the_seat_goes_to_waiters_in_order_of_arrival_and_the_line_ends_with_the_last() {
        let queues = Queues::default();
        let seat = front(&queues, "a");
        let mut waiters: Vec<_> = (0..3).map(|_| behind(&queues, "a")).collect();
        drop(seat);
        for index in 0..3 {
            for later in &mut waiters[index + 1..] {
                assert!(is_promoted(later).is_none());
            }
            assert!(matches!(
                is_promoted(&mut waiters[index]),
                Some(Promotion::Compete { in_doubt: None, .. })
            ));
        }
        drop(waiters);
        assert!(queues.is_empty());
    }

    #[test]
    fn a_waiter_that_goes_away_before_during_or_after_its_promotion_leaves_no_gap() {
        let queues = Queues::default();
        let seat = front(&queues, "a");
        let gone_before = behind(&queues, "a");
        let gone_after = behind(&queues, "a");
        let mut last = behind(&queues, "a");
        drop(gone_before);
        drop(seat);
        drop(gone_after);
        let promotion = is_promoted(&mut last).expect("it is the last one's turn");
        drop(promotion);
        drop(last);
        assert!(queues.is_empty());
    }

    #[test]
    fn a_waiter_behind_a_full_line_is_refused() {
        let queues = Queues::default();
        let _seats = [front(&queues, "a"), front(&queues, "b")];
        let _three: Vec<_> = (0..3).map(|_| behind(&queues, "a")).collect();
        assert!(join(&queues, "a").is_err(), "per key");
        let mut others: Vec<_> = (0..2).map(|_| behind(&queues, "b")).collect();
        assert!(join(&queues, "b").is_err(), "in total");
        others.pop();
        assert!(join(&queues, "b").is_ok());
    }

    #[test]
    fn a_lock_is_handed_over_until_the_run_is_over() {
        let queues = Queues::default();
        let limit = RunLimit { turns: 2, span: TTL };
        let mut seat = front(&queues, "a");
        let _waiters: Vec<_> = (0..3).map(|_| behind(&queues, "a")).collect();
        for _ in 0..2 {
            let mut next = seat.next(Moment(0), limit).expect("somebody waits");
            seat = next.to.take().expect("the seat comes along").1;
        }
        let seat = seat.next(Moment(0), limit).expect_err("the run is over");
        assert!(seat.makes_room());
        drop(seat);
    }

    #[test]
    fn an_overlong_run_ends_by_time_too() {
        let queues = Queues::default();
        let limit = RunLimit { turns: 9, span: TTL };
        let seat = front(&queues, "a");
        let _waiters: Vec<_> = (0..2).map(|_| behind(&queues, "a")).collect();
        let mut next = seat.next(Moment(0), limit).expect("somebody waits");
        let seat = next.to.take().expect("the seat comes along").1;
        assert!(seat.next(Moment(0) + TTL, limit).is_err());
    }

    #[test]
    fn somebody_who_does_not_wait_is_told_what_is_known() {
        let queues = Queues::default();
        let Glance::Free(seat) = queues.glance(&key("a")) else { panic!("nobody is at it") };
        assert!(matches!(queues.glance(&key("a")), Glance::Unknown));
        seat.learnt(Front::Refused(AcquireError::held_by_another(None)));
        assert!(matches!(queues.glance(&key("a")), Glance::Taken(AcquireError::Contended(_))));
        seat.learnt(Front::Refused(AcquireError::ShuttingDown));
        assert!(matches!(queues.glance(&key("a")), Glance::Unknown));
    }
}
