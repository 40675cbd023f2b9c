//! The watch connection: told of a change, the keeper looks at once who holds the lock.
//!
//! Entered here, under their keys, are holds that are older than `watch_after`, and requests that compete for
//! a lock that another process holds. Without a watch, a loss is noticed at the next renewal, and waiting
//! means asking again; the watch is opened anew with growing pauses as long as there is something to watch.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::jobs::StoreEnds;
use super::wake::WakeUp;
use super::{Done, Shared};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::hold::Hold;
use crate::key::LockKey;
use crate::lease::LeaseState;
use crate::store::{Change, ChangeSink, Holder, KeyWatch, OpenedWatch, Owned, StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// After a refusal, as by access rules or an old server: somebody has to change something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// How long a watch may be silent. A connection that is cut without a word tells of no change.
const CHECK_EVERY: Duration = Duration::from_secs(2);
const MIN_SWEEP: usize = 256;

/// Changes that were told and not looked at yet, each with the number of the watch that told it.
pub(super) type Changes = Mutex<Vec<(u64, Change)>>;

/// Who wants to know about a key.
#[derive(Clone, Debug)]
pub(super) enum Observer {
    Hold(Arc<Hold>),
    Waiting(Arc<WakeUp>),
}

impl Observer {
    fn key(&self) -> &LockKey {
        match self {
            Self::Hold(hold) => &hold.key,
            Self::Waiting(wake_up) => wake_up.key(),
        }
    }

    fn owned(&self) -> Owned<'_> {
        match self {
            Self::Hold(hold) => hold.owned(),
            Self::Waiting(wake_up) => wake_up.owned(),
        }
    }

    fn found(&self, holder: Holder) {
        match self {
            Self::Hold(hold) => hold.found(holder),
            Self::Waiting(wake_up) => wake_up.found(holder),
        }
    }

    fn unwatched(&self) {
        if let Self::Waiting(wake_up) = self {
            wake_up.disarm();
        }
    }

    fn downgrade(&self) -> WeakObserver {
        match self {
            Self::Hold(hold) => WeakObserver::Hold(Arc::downgrade(hold)),
            Self::Waiting(wake_up) => WeakObserver::Waiting(Arc::downgrade(wake_up)),
        }
    }
}

enum WeakObserver {
    Hold(Weak<Hold>),
    Waiting(Weak<WakeUp>),
}

impl WeakObserver {
    /// `None` once nobody wants to know any more.
    fn upgrade(&self) -> Option<Observer> {
        match self {
            Self::Hold(hold) => {
                hold.upgrade().filter(|hold| hold.lease().state() == LeaseState::Held).map(Observer::Hold)
            }
            Self::Waiting(wake_up) => wake_up.upgrade().map(Observer::Waiting),
        }
    }
}

/// Owned by the keeper's loop alone.
pub(super) struct Watcher {
    state: State,
    /// Counts watches, so that a late word from an earlier one is not taken for this one's.
    number: u64,
    watched: HashMap<LockKey, WeakObserver>,
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
    Open {
        watch: Arc<dyn KeyWatch>,
        check_at: Moment,
    },
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

    /// When the watch has to be opened again, or shown to be alive, if anything is to be watched.
    pub(super) fn due_at(&self) -> Option<Moment> {
        match self.state {
            _ if self.watched.is_empty() => None,
            State::Closed { retry_at } => Some(retry_at),
            State::Open { check_at, .. } => Some(check_at),
            State::Opening | State::Unsupported => None,
        }
    }

    pub(super) fn add(&mut self, observer: Observer, tasks: &mut JoinSet<Done>) {
        if matches!(self.state, State::Unsupported) {
            return observer.unwatched();
        }
        self.sweep();
        self.watched.insert(observer.key().clone(), observer.downgrade());
        self.look(observer, tasks);
    }

    fn sweep(&mut self) {
        if self.watched.len() >= self.sweep_at {
            self.watched.retain(|_, observer| observer.upgrade().is_some());
            self.sweep_at = MIN_SWEEP.max(self.watched.len() * 2);
        }
    }

    fn look(&self, observer: Observer, tasks: &mut JoinSet<Done>) {
        if let State::Open { watch, .. } = &self.state {
            let watch = Arc::clone(watch);
            let number = self.number;
            tasks.spawn(async move {
                let result = watch.look(observer.owned()).await;
                Done::Looked { observer, result, number }
            });
        }
    }

    fn look_at_all(&self, tasks: &mut JoinSet<Done>) {
        for observer in self.watched.values().filter_map(WeakObserver::upgrade) {
            self.look(observer, tasks);
        }
    }

    /// Opens the watch if it is time to, or asks one that was silent for long whether it is alive.
    pub(super) fn tend(
        &mut self,
        now: Moment,
        shared: &Arc<Shared>,
        ends: &StoreEnds,
        tasks: &mut JoinSet<Done>,
    ) {
        if self.due_at().is_none_or(|at| now < at) {
            return;
        }
        if let State::Open { check_at, .. } = &mut self.state {
            *check_at = now + CHECK_EVERY;
            match self.watched.values().find_map(WeakObserver::upgrade) {
                Some(observer) => self.look(observer, tasks),
                None => self.watched.clear(),
            }
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
                self.state = State::Open { watch, check_at: now + CHECK_EVERY };
                shared.store_metrics.watch_is_up(true);
                self.look_at_all(tasks);
            }
            Ok(None) => {
                self.state = State::Unsupported;
                self.disarm_waiting();
                self.watched = HashMap::new();
                tracing::info!("the lock store does not push changes: it is asked at intervals");
            }
            Err(error) => self.failed(now, &error, shared),
        }
    }

    fn failed(&mut self, now: Moment, error: &StoreError, shared: &Shared) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "changes cannot be watched: the lock store is asked at intervals");
        }
        let refused = !error.kind().is_transient() || error.kind() == StoreErrorKind::Server;
        let pause = if refused { REFUSED_PAUSE } else { self.backoff.next_delay() };
        self.close(now + pause, shared);
    }

    fn close(&mut self, retry_at: Moment, shared: &Shared) {
        self.state = State::Closed { retry_at };
        shared.store_metrics.watch_is_up(false);
        self.disarm_waiting();
    }

    fn disarm_waiting(&self) {
        for observer in self.watched.values().filter_map(WeakObserver::upgrade) {
            observer.unwatched();
        }
    }

    pub(super) fn changed(
        &mut self,
        now: Moment,
        (number, change): (u64, Change),
        shared: &Shared,
        tasks: &mut JoinSet<Done>,
    ) {
        match change {
            Change::Key(key) => match self.watched.get(&key).and_then(WeakObserver::upgrade) {
                Some(observer) => self.look(observer, tasks),
                None => {
                    self.watched.remove(&key);
                }
            },
            Change::All => self.look_at_all(tasks),
            Change::Closed if number == self.number && matches!(self.state, State::Open { .. }) => {
                let pause = self.backoff.next_delay();
                self.close(now + pause, shared);
            }
            Change::Closed => {}
        }
    }

    pub(super) fn looked(
        &mut self,
        now: Moment,
        observer: &Observer,
        (result, number): (Result<Holder, StoreError>, u64),
        shared: &Shared,
    ) {
        match result {
            Ok(holder) => {
                self.backoff = new_backoff();
                if std::mem::take(&mut self.complained) {
                    tracing::info!("changes are watched again");
                }
                observer.found(holder);
            }
            Err(error) if number == self.number && matches!(self.state, State::Open { .. }) => {
                self.failed(now, &error, shared);
            }
            Err(_) => {}
        }
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LAST_PAUSE, fastrand::u64(..))
}
