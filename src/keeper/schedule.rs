//! One timer structure for all locks: what is due when. Pure; somebody else sleeps.

use std::collections::BTreeMap;

use crate::clock::Moment;

/// Names an entry; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    due: Moment,
    id: u64,
}

#[derive(Debug)]
pub(super) struct Schedule<T> {
    entries: BTreeMap<Ticket, T>,
    next_id: u64,
    /// Until when the keeper sleeps; an entry that is due earlier has to wake it.
    sleeps_until: Option<Moment>,
}

impl<T> Schedule<T> {
    pub(super) const fn new() -> Self {
        Self { entries: BTreeMap::new(), next_id: 0, sleeps_until: None }
    }

    /// Adds an entry. The flag says whether the keeper has to be woken for it.
    pub(super) fn insert(&mut self, due: Moment, entry: T) -> (Ticket, bool) {
        let ticket = Ticket { due, id: self.next_id };
        self.next_id += 1;
        self.entries.insert(ticket, entry);
        (ticket, self.sleeps_until.is_none_or(|until| due < until))
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        self.entries.remove(&ticket);
    }

    /// Takes out the earliest entry if it is due.
    pub(super) fn pop_due(&mut self, now: Moment) -> Option<T> {
        let entry = self.entries.first_entry()?;
        (entry.key().due <= now).then(|| entry.remove())
    }

    /// When the next entry is due. The keeper promises to look again by then.
    pub(super) fn sleep_until_next(&mut self) -> Option<Moment> {
        self.sleeps_until = self.entries.keys().next().map(|ticket| ticket.due);
        self.sleeps_until
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_and_only_when_due() {
        let mut schedule = Schedule::new();
        schedule.insert(Moment(20), "b");
        schedule.insert(Moment(10), "a");
        let (removed, _) = schedule.insert(Moment(15), "removed");
        schedule.insert(Moment(30), "c");
        schedule.remove(removed);
        let due: Vec<_> = std::iter::from_fn(|| schedule.pop_due(Moment(20))).collect();
        assert_eq!(due, ["a", "b"]);
        assert_eq!(schedule.sleep_until_next(), Some(Moment(30)));
        assert!(!schedule.is_empty());
    }

    #[test]
    fn only_an_entry_that_is_due_before_the_planned_end_of_sleep_wakes() {
        let mut schedule = Schedule::new();
        assert!(schedule.insert(Moment(20), ()).1, "an idle keeper sleeps without end");
        schedule.sleep_until_next();
        assert!(!schedule.insert(Moment(20), ()).1);
        assert!(!schedule.insert(Moment(30), ()).1);
        assert!(schedule.insert(Moment(10), ()).1);
    }
}
