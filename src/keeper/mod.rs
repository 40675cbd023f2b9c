//! Background work: renewals of all held locks, releases handed over by drops, clean-ups.
//!
//! By default the keeper runs on a thread of its own, with its own small runtime and its own connections,
//! so a handler that blocks every worker of the application's runtime does not starve renewal. What comes
//! in: holds to watch over, and jobs from `Drop` implementations, which neither block nor need a runtime.
//! A short-lived lock never wakes the keeper: it is entered into the schedule and taken out again.

mod jobs;
mod outstanding;
mod schedule;
mod wake;
mod watcher;

use std::future::Future;
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
pub(crate) use self::jobs::{CleanUp, Doubt, StoreEnds};
pub(crate) use self::outstanding::{Outstanding, Unfinished};
use self::schedule::{Schedule, Ticket};
pub(crate) use self::wake::WakeUp;
use self::watcher::{Changes, Observer, Watcher};
use crate::clock::{Clock, Moment};
use crate::hold::Hold;
use crate::lease::{LeaseState, LostReason};
use crate::store::{Holder, OpenedWatch, StoreError};
use crate::telemetry::StoreMetrics;

/// Longest sleep while locks are held. Timers stand still while a machine sleeps, the clock of the deadlines
/// does not: after waking up, an overdue lock is noticed within this time.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Runs work that lost its client, on the runtime that drops it. Without one the work is dropped.
pub(crate) fn run_in_background(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(work);
    }
}

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
    waiting: Mutex<Vec<Arc<WakeUp>>>,
    changes: Changes,
    store_metrics: StoreMetrics,
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
    pub(crate) fn start(
        mode: KeeperMode,
        clock: Clock,
        ends: StoreEnds,
        store_metrics: StoreMetrics,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            mode,
            clock,
            ends,
            schedule: Mutex::new(Schedule::new()),
            jobs: Mutex::default(),
            waiting: Mutex::default(),
            changes: Changes::default(),
            store_metrics,
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

    /// Watches the key for somebody who waits for it, if it is not watched already.
    pub(crate) fn watch_for(&self, wake_up: &Arc<WakeUp>) {
        if wake_up.start_watch() {
            self.shared.waiting.lock().push(Arc::clone(wake_up));
            self.shared.wake.notify_one();
            self.shared.ensure_running();
        }
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

    /// Takes out the clean-ups that are waiting to be run.
    #[cfg(all(test, tower_lock_shuttle))]
    pub(crate) fn unclaimed_tokens(&self) -> Vec<crate::store::OwnerToken> {
        let jobs = std::mem::take(&mut *self.shared.jobs.lock());
        let token = |job| match job {
            Job::CleanUp(clean_up) => Some(clean_up.token.clone()),
            Job::Release { .. } => None,
        };
        jobs.into_iter().filter_map(token).collect()
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

    async fn run(self: &Arc<Self>) {
        let mut tasks = JoinSet::new();
        let mut watcher = Watcher::new();
        loop {
            let now = self.clock.now();
            loop {
                let due = self.schedule.lock().pop_due(now);
                let Some(hold) = due else { break };
                self.look_at(hold, now, &mut watcher, &mut tasks);
            }
            for job in std::mem::take(&mut *self.jobs.lock()) {
                let ends = self.ends.clone();
                tasks.spawn(async move {
                    job.run(ends).await;
                    Done::Job
                });
            }
            for wake_up in std::mem::take(&mut *self.waiting.lock()) {
                watcher.add(Observer::Waiting(wake_up), &mut tasks);
            }
            for change in std::mem::take(&mut *self.changes.lock()) {
                watcher.changed(now, change, self, &mut tasks);
            }
            watcher.tend(now, self, &self.ends, &mut tasks);
            let next = self.schedule.lock().sleep_until_next();
            if self.closed.load(Ordering::Acquire) && self.is_idle() && tasks.is_empty() {
                self.store_metrics.watch_is_up(false);
                return;
            }
            let next = next.into_iter().chain(watcher.due_at()).min();
            let pause = next.map(|next| next.since(self.clock.now()).min(MAX_SLEEP));
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                Some(done) = tasks.join_next() => {
                    if let Ok(done) = done {
                        self.finished(done, &mut watcher, &mut tasks);
                    }
                }
            }
        }
    }

    fn finished(&self, done: Done, watcher: &mut Watcher, tasks: &mut JoinSet<Done>) {
        let now = self.clock.now();
        match done {
            Done::Job => {}
            Done::Renewed(hold) => self.plan(&hold, hold.next_look()),
            Done::Opened(result) => watcher.opened(now, result, self, tasks),
            Done::Looked { observer, result, number } => {
                watcher.looked(now, &observer, (result, number), self);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.schedule.lock().is_empty() && self.jobs.lock().is_empty()
    }

    /// A hold is due: it is over, or to be renewed or watched, or just to be looked at again later.
    fn look_at(&self, hold: Arc<Hold>, now: Moment, watcher: &mut Watcher, tasks: &mut JoinSet<Done>) {
        if hold.lease().state() != LeaseState::Held {
            return;
        }
        if let Some(reason) = hold.overdue() {
            return hold.lose(reason);
        }
        if hold.max_hold_end().is_some_and(|end| now >= end) {
            return hold.lose(LostReason::MaxHold);
        }
        if hold.start_watch(now) {
            watcher.add(Observer::Hold(Arc::clone(&hold)), tasks);
        }
        if hold.start_renewal(now) {
            let hold = Arc::clone(&hold);
            let store = self.ends.own();
            tasks.spawn(async move {
                hold.renew(&*store).await;
                Done::Renewed(hold)
            });
        }
        self.plan(&hold, hold.next_look());
    }
}

/// What one of the keeper's tasks brings back.
enum Done {
    Job,
    Renewed(Arc<Hold>),
    Opened(OpenedWatch),
    Looked { observer: Observer, result: Result<Holder, StoreError>, number: u64 },
}

/// Resets the flag also when the task is dropped with its runtime, so that another runtime can start it.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}
