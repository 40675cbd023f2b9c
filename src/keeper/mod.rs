//! Background work: renewals of all held locks, releases handed over by drops, clean-ups.
//!
//! By default the keeper runs on a thread of its own, with its own small runtime and its own connections,
//! so a handler that blocks every worker of the application's runtime does not starve renewal. What comes
//! in: holds to watch over, and jobs from `Drop` implementations, which neither block nor need a runtime.
//! A short-lived lock never wakes the keeper: it is entered into the schedule and taken out again.

mod jobs;
mod outstanding;
mod schedule;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use self::jobs::Job;
pub(crate) use self::jobs::{CleanUp, StoreEnds};
pub(crate) use self::outstanding::{Outstanding, Unfinished};
use self::schedule::{Schedule, Ticket};
use crate::clock::{Clock, Moment};
use crate::guard::Hold;
use crate::lease::{LeaseState, LostReason};

/// Longest sleep while locks are held. Timers stand still while a machine sleeps, the clock of the deadlines
/// does not: after waking up, an overdue lock is noticed within this time.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Where the keeper runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeeperMode {
    /// On a thread of its own, with its own runtime and its own connections. The default.
    #[default]
    Thread,
    /// As a task on the runtime that first takes a lock. Renewal then depends on that runtime being polled:
    /// for tests with paused time, and for processes that must not start a thread.
    Task,
}

/// The application's end of the keeper. The keeper ends when the last one is gone and no work is left.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

#[derive(Debug)]
struct Shared {
    mode: KeeperMode,
    clock: Clock,
    ends: StoreEnds,
    schedule: Mutex<Schedule<Arc<Hold>>>,
    jobs: Mutex<Vec<Job>>,
    wake: Notify,
    running: AtomicBool,
    closed: AtomicBool,
    outstanding: Outstanding,
}

#[derive(Debug)]
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }
}

/// A hold's place in the schedule.
#[derive(Debug, Default)]
pub(crate) struct Place(Mutex<Option<Ticket>>);

impl Keeper {
    pub(crate) fn start(mode: KeeperMode, clock: Clock, ends: StoreEnds) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            mode,
            clock,
            ends,
            schedule: Mutex::new(Schedule::new()),
            jobs: Mutex::default(),
            wake: Notify::new(),
            running: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            outstanding: Outstanding::default(),
        });
        if mode == KeeperMode::Thread {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let shared = Arc::clone(&shared);
            shared.running.store(true, Ordering::Release);
            std::thread::Builder::new()
                .name("tower-redis-lock".to_owned())
                .spawn(move || runtime.block_on(shared.run()))?;
        }
        Ok(Self { _alive: Arc::new(Alive(Arc::clone(&shared))), shared })
    }

    pub(crate) fn outstanding(&self) -> &Outstanding {
        &self.shared.outstanding
    }

    /// Renews the lock and watches its deadline from now on.
    pub(crate) fn watch_over(&self, hold: &Arc<Hold>) {
        self.shared.plan(hold, hold.next_look());
        self.shared.ensure_running();
    }

    /// Does nothing more for the lock; it was given back.
    pub(crate) fn forget(&self, hold: &Hold) {
        if let Some(ticket) = hold.place().0.lock().take() {
            self.shared.schedule.lock().remove(ticket);
        }
    }

    /// Releases a lock that was dropped. `tried` says that a release may have been sent already.
    pub(crate) fn release_later(&self, hold: Arc<Hold>, tried: bool) {
        self.forget(&hold);
        let unfinished = self.shared.outstanding.begin();
        self.shared.add_job(Job::Release { hold, tried, unfinished });
    }

    /// Removes the token of an acquisition or a release whose result is not known.
    pub(crate) fn clean_up(&self, clean_up: CleanUp) {
        self.shared.add_job(Job::CleanUp(clean_up));
    }
}

impl Shared {
    fn plan(&self, hold: &Arc<Hold>, due: Moment) {
        let mut place = hold.place().0.lock();
        if hold.lease().state() != LeaseState::Held {
            return;
        }
        let (ticket, wakes) = self.schedule.lock().insert(due, Arc::clone(hold));
        if let Some(earlier) = place.replace(ticket) {
            self.schedule.lock().remove(earlier);
        }
        drop(place);
        if wakes {
            self.wake.notify_one();
        }
    }

    fn add_job(self: &Arc<Self>, job: Job) {
        self.jobs.lock().push(job);
        self.wake.notify_one();
        self.ensure_running();
    }

    /// Starts the task, in [`KeeperMode::Task`], if there is a runtime to start it on.
    fn ensure_running(self: &Arc<Self>) {
        if self.mode == KeeperMode::Task
            && let Ok(runtime) = Handle::try_current()
            && !self.running.swap(true, Ordering::AcqRel)
        {
            let running = Running(Arc::clone(self));
            runtime.spawn(async move { running.0.run().await });
        }
    }

    async fn run(&self) {
        let mut tasks = JoinSet::new();
        loop {
            let now = self.clock.now();
            loop {
                let due = self.schedule.lock().pop_due(now);
                let Some(hold) = due else { break };
                self.look_at(hold, &mut tasks);
            }
            for job in std::mem::take(&mut *self.jobs.lock()) {
                tasks.spawn(job.run(self.ends.clone()));
            }
            let next = self.schedule.lock().sleep_until_next();
            if self.closed.load(Ordering::Acquire) && self.is_idle() && tasks.is_empty() {
                return;
            }
            let pause = next.map(|next| next.since(self.clock.now()).min(MAX_SLEEP));
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                Some(renewed) = tasks.join_next() => {
                    if let Ok(Some(hold)) = renewed {
                        let due = hold.next_look();
                        self.plan(&hold, due);
                    }
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.schedule.lock().is_empty() && self.jobs.lock().is_empty()
    }

    /// A hold is due: it is over, or to be renewed, or just to be looked at again later.
    fn look_at(&self, hold: Arc<Hold>, tasks: &mut JoinSet<Option<Arc<Hold>>>) {
        if hold.lease().state() != LeaseState::Held {
            return;
        }
        let now = self.clock.now();
        if let Some(reason) = hold.lease().overdue() {
            hold.lose(reason);
        } else if hold.max_hold_end().is_some_and(|end| now >= end) {
            hold.lose(LostReason::MaxHold);
        } else {
            if hold.start_renewal(now) {
                tasks.spawn(Arc::clone(&hold).renew(self.ends.own()));
            }
            let due = hold.next_look();
            self.plan(&hold, due);
        }
    }
}

/// Resets the flag also when the task is dropped with its runtime, so that another runtime can start it.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}
