//! The watch connection: told of a change, the keeper looks at once who holds the lock.
//!
//! A hold that is older than `watch_after` is entered here, under its key. Without a watch, a loss is noticed
//! at the next renewal; the watch is opened again with growing pauses as long as there is something to
//! watch.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::jobs::StoreEnds;
use super::{Done, Shared};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::hold::Hold;
use crate::key::LockKey;
use crate::lease::LeaseState;
use crate::store::{Change, ChangeSink, Holder, KeyWatch, OpenedWatch, StoreError};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(5);
const MIN_SWEEP: usize = 256;

/// Changes that were told and not looked at yet, each with the number of the watch that told it.
pub(super) type Changes = Mutex<Vec<(u64, Change)>>;

/// Owned by the keeper's loop alone.
pub(super) struct Watcher {
    state: State,
    /// Counts watches, so that a late word from an earlier one is not taken for this one's.
    number: u64,
    watched: HashMap<LockKey, Weak<Hold>>,
    sweep_at: usize,
    backoff: Backoff,
    /// An outage was logged and its end was not.
    complained: bool,
}

enum State {
    Closed {
        retry_at: Moment,
    },
    Opening,
    Open(Arc<dyn KeyWatch>),
    /// The store does not push.
    Unsupported,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self {
            state: State::Closed { retry_at: Moment(0) },
            number: 0,
            watched: HashMap::new(),
            sweep_at: MIN_SWEEP,
            backoff: new_backoff(),
            complained: false,
        }
    }

    /// When the watch has to be opened again, if anything is to be watched.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        match self.state {
            State::Closed { retry_at } if !self.watched.is_empty() => Some(retry_at),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, hold: &Arc<Hold>, tasks: &mut JoinSet<Done>) {
        if matches!(self.state, State::Unsupported) {
            return;
        }
        self.sweep();
        self.watched.insert(hold.key.clone(), Arc::downgrade(hold));
        self.look(Arc::clone(hold), tasks);
    }

    fn sweep(&mut self) {
        if self.watched.len() >= self.sweep_at {
            self.watched.retain(|_, hold| hold.strong_count() > 0);
            self.sweep_at = MIN_SWEEP.max(self.watched.len() * 2);
        }
    }

    fn look(&self, hold: Arc<Hold>, tasks: &mut JoinSet<Done>) {
        if let State::Open(watch) = &self.state {
            let watch = Arc::clone(watch);
            let number = self.number;
            tasks.spawn(async move {
                let result = watch.look(hold.owned()).await;
                Done::Looked { hold, result, number }
            });
        }
    }

    fn look_at_all(&mut self, tasks: &mut JoinSet<Done>) {
        let holds: Vec<_> = self.watched.values().filter_map(Weak::upgrade).collect();
        for hold in holds {
            self.look(hold, tasks);
        }
    }

    /// Opens the watch if it is time to.
    pub(super) fn open_if_due(
        &mut self,
        now: Moment,
        shared: &Arc<Shared>,
        ends: &StoreEnds,
        tasks: &mut JoinSet<Done>,
    ) {
        if self.retry_at().is_none_or(|at| now < at) {
            return;
        }
        self.state = State::Opening;
        self.number += 1;
        let number = self.number;
        let told = Arc::downgrade(shared);
        let sink = ChangeSink::new(move |change| {
            if let Some(shared) = told.upgrade() {
                shared.changes.lock().push((number, change));
                shared.wake.notify_one();
            }
        });
        let store = ends.own();
        tasks.spawn(async move { Done::Opened(store.open_watch(sink).await) });
    }

    pub(super) fn opened(
        &mut self,
        now: Moment,
        result: OpenedWatch,
        shared: &Shared,
        tasks: &mut JoinSet<Done>,
    ) {
        match result {
            Ok(Some(watch)) => {
                self.state = State::Open(watch);
                shared.store_metrics.watch_is_up(true);
                self.look_at_all(tasks);
            }
            Ok(None) => {
                self.state = State::Unsupported;
                self.watched = HashMap::new();
                tracing::info!("the lock store does not push changes: a loss is noticed at the next renewal");
            }
            Err(error) => self.failed(now, &error, shared),
        }
    }

    fn failed(&mut self, now: Moment, error: &StoreError, shared: &Shared) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "changes cannot be watched: a loss is noticed at the next renewal");
        }
        self.close(now, shared);
    }

    fn close(&mut self, now: Moment, shared: &Shared) {
        self.state = State::Closed { retry_at: now + self.backoff.next_delay() };
        shared.store_metrics.watch_is_up(false);
    }

    pub(super) fn changed(
        &mut self,
        now: Moment,
        (number, change): (u64, Change),
        shared: &Shared,
        tasks: &mut JoinSet<Done>,
    ) {
        match change {
            Change::Key(key) => match self.watched.get(&key).and_then(Weak::upgrade) {
                Some(hold) if hold.lease().state() == LeaseState::Held => self.look(hold, tasks),
                _ => {
                    self.watched.remove(&key);
                }
            },
            Change::All => self.look_at_all(tasks),
            Change::Closed if number == self.number && matches!(self.state, State::Open(_)) => {
                self.close(now, shared);
            }
            Change::Closed => {}
        }
    }

    pub(super) fn looked(
        &mut self,
        now: Moment,
        hold: &Hold,
        (result, number): (Result<Holder, StoreError>, u64),
        shared: &Shared,
    ) {
        match result {
            Ok(holder) => {
                self.backoff = new_backoff();
                if std::mem::take(&mut self.complained) {
                    tracing::info!("changes are watched again");
                }
                hold.found(holder);
            }
            Err(error) if number == self.number && matches!(self.state, State::Open(_)) => {
                self.failed(now, &error, shared);
            }
            Err(_) => {}
        }
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LAST_PAUSE, fastrand::u64(..))
}
