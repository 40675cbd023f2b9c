//! A store that does what a test tells it, and remembers what it was asked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tower_redis_lock::store::{
    Acquire, Attempt, Change, ChangeSink, Fence, Holder, KeyWatch, LockStore, Looking, MemoryStore,
    OpenedWatch, Owned, OwnerToken, Release, Renewal, StoreError, StoreErrorKind,
};
use tower_redis_lock::{Clock, LockKey};

use super::now;
use crate::support::eventually::secs;

/// What can be asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Acquire,
    Renew,
    Release,
    HandOver,
    Fence,
    CleanUp,
}

/// What the store does with one command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Does it.
    Do,
    /// Does it after a while.
    Slow(Duration),
    /// Does it, and answers after a while, whatever the time limit.
    LateReply(Duration),
    /// Does not do it, and says so.
    Fail(StoreErrorKind),
    /// Does it, but the answer does not come within the time limit.
    LoseReply,
    /// Does not do it, and does not answer within the time limit.
    Hang,
    /// Does it after so many polls.
    Pend(usize),
    /// Does it at the first poll, and answers after so many more.
    PendReply(usize),
}

/// One command that came.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) token: OwnerToken,
    pub(crate) number: Option<u32>,
    pub(crate) at: Instant,
    /// Came over the keeper's own handle.
    pub(crate) by_keeper: bool,
}

/// Locks in memory, behind a script. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct ScriptedStore {
    memory: MemoryStore,
    shared: Arc<Mutex<Shared>>,
    by_keeper: bool,
}

#[derive(Debug, Default)]
struct Shared {
    next: HashMap<Op, VecDeque<Act>>,
    always: HashMap<Op, Act>,
    calls: Vec<Call>,
    holders: HashMap<LockKey, OwnerToken>,
    watch: Watch,
}

/// The pushes of the store, if it has them.
#[derive(Debug, Default)]
struct Watch {
    supported: bool,
    refused: bool,
    opened: usize,
    sink: Option<ChangeSink>,
    looked_at: HashSet<LockKey>,
}

const LIMIT: Duration = secs(1);

impl ScriptedStore {
    /// A store on tokio's clock, which tests can pause.
    pub(crate) fn new() -> Self {
        Self::over(MemoryStore::with_clock(Clock::tokio()))
    }

    pub(crate) fn over(memory: MemoryStore) -> Self {
        Self { memory, shared: Arc::default(), by_keeper: false }
    }

    /// A store that tells of changes, as long as [`break_watch`](Self::break_watch) is not called.
    pub(crate) fn with_watch() -> Self {
        let store = Self::new();
        store.shared.lock().watch.supported = true;
        store
    }

    /// Closes the watch; another one cannot be opened until [`mend_watch`](Self::mend_watch).
    pub(crate) fn break_watch(&self) {
        let sink = {
            let watch = &mut self.shared.lock().watch;
            watch.refused = true;
            watch.looked_at.clear();
            watch.sink.take()
        };
        if let Some(sink) = sink {
            sink.send(Change::Closed);
        }
    }

    pub(crate) fn mend_watch(&self) {
        self.shared.lock().watch.refused = false;
    }

    /// How often a watch was opened.
    pub(crate) fn watches(&self) -> usize {
        self.shared.lock().watch.opened
    }

    /// Whether somebody is to be told of the next change of a key.
    pub(crate) fn is_watched(&self, key: &LockKey) -> bool {
        self.shared.lock().watch.looked_at.contains(key)
    }

    /// Tells of a change, true or not.
    pub(crate) fn push(&self, change: Change) {
        let sink = self.shared.lock().watch.sink.clone();
        if let Some(sink) = sink {
            sink.send(change);
        }
    }

    fn changed(&self, key: &LockKey) {
        let told = self.shared.lock().watch.looked_at.remove(key);
        if told {
            self.push(Change::Key(key.clone()));
        }
    }

    /// What to do with the next commands of a kind. After them, everything is as before.
    pub(crate) fn next(&self, op: Op, acts: impl IntoIterator<Item = Act>) {
        self.shared.lock().next.entry(op).or_default().extend(acts);
    }

    /// What to do with all commands of a kind from now on.
    pub(crate) fn always(&self, op: Op, act: Act) {
        self.shared.lock().always.insert(op, act);
    }

    /// The commands of a kind so far, in order.
    pub(crate) fn calls(&self, op: Op) -> Vec<Call> {
        self.shared.lock().calls.iter().filter(|call| call.op == op).cloned().collect()
    }

    pub(crate) fn count(&self, op: Op) -> usize {
        self.calls(op).len()
    }

    /// How many commands came, of any kind.
    pub(crate) fn commands(&self) -> usize {
        self.shared.lock().calls.len()
    }

    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    pub(crate) fn is_free(&self, key: &LockKey) -> bool {
        let probe = OwnerToken::random();
        let free = self.take_as(key, &probe, secs(1));
        if free {
            self.free_as(key, &probe);
        }
        free
    }

    /// Somebody else takes a free key for a minute.
    pub(crate) fn rival_takes(&self, key: &LockKey) -> OwnerToken {
        let rival = OwnerToken::random();
        assert!(self.take_as(key, &rival, secs(60)), "{key:?} is not free");
        rival
    }

    fn take_as(&self, key: &LockKey, token: &OwnerToken, ttl: Duration) -> bool {
        now(self.memory.acquire(Attempt::new(key, token, ttl, LIMIT))).unwrap() == Acquire::Acquired
    }

    pub(crate) fn free_as(&self, key: &LockKey, token: &OwnerToken) -> Release {
        let release = now(self.memory.release(Owned::new(key, token, LIMIT))).unwrap();
        if release == Release::Released {
            self.changed(key);
        }
        release
    }

    /// Deletes a key that the locker under test holds.
    pub(crate) fn delete(&self, key: &LockKey) {
        let holder = self.shared.lock().holders[key].clone();
        assert_eq!(self.free_as(key, &holder), Release::Released, "{key:?} was held");
    }

    /// Deletes a key, whoever holds it.
    pub(crate) fn delete_any(&self, key: &LockKey) {
        let holders: Vec<_> = self.shared.lock().calls.iter().map(|call| call.token.clone()).collect();
        let _one_of_them = holders.iter().find(|token| self.free_as(key, token) == Release::Released);
    }

    /// Gives a key that the locker under test holds to somebody else.
    pub(crate) fn take_over(&self, key: &LockKey) -> OwnerToken {
        self.delete(key);
        self.rival_takes(key)
    }

    fn begin(&self, op: Op, token: &OwnerToken, number: Option<u32>) -> Act {
        let mut shared = self.shared.lock();
        let (token, by_keeper) = (token.clone(), self.by_keeper);
        shared.calls.push(Call { op, token, number, at: Instant::now(), by_keeper });
        let next = shared.next.get_mut(&op).and_then(VecDeque::pop_front);
        next.or_else(|| shared.always.get(&op).copied()).unwrap_or(Act::Do)
    }

    async fn play<T>(
        &self,
        act: Act,
        limit: Duration,
        mut command: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match act {
            Act::Do => command(),
            Act::Slow(pause) => {
                sleep(pause).await;
                command()
            }
            Act::LateReply(pause) => {
                let answer = command();
                sleep(pause).await;
                answer
            }
            Act::Fail(kind) => Err(StoreError::new(kind, "as the script says")),
            Act::LoseReply => {
                let _lost = command();
                sleep(limit).await;
                Err(StoreError::new(StoreErrorKind::Timeout, "as the script says"))
            }
            Act::Hang => {
                sleep(limit).await;
                Err(StoreError::new(StoreErrorKind::Timeout, "as the script says"))
            }
            Act::Pend(polls) => {
                pending(polls).await;
                command()
            }
            Act::PendReply(polls) => {
                let answer = command();
                pending(polls).await;
                answer
            }
        }
    }
}

/// Ready after so many polls.
async fn pending(mut polls: usize) {
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl LockStore for ScriptedStore {
    async fn acquire(&self, attempt: Attempt<'_>) -> Result<Acquire, StoreError> {
        let act = self.begin(Op::Acquire, attempt.token, Some(attempt.number));
        self.play(act, attempt.timeout, || {
            let answer = now(self.memory.acquire(attempt));
            if let Ok(Acquire::Acquired) = answer {
                self.shared.lock().holders.insert(attempt.key.clone(), attempt.token.clone());
            }
            answer
        })
        .await
    }

    async fn renew(&self, owned: Owned<'_>, ttl: Duration) -> Result<Renewal, StoreError> {
        let act = self.begin(Op::Renew, owned.token, None);
        self.play(act, owned.timeout, || now(self.memory.renew(owned, ttl))).await
    }

    async fn release(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let act = self.begin(Op::Release, owned.token, None);
        self.play(act, owned.timeout, || now(self.memory.release(owned))).await
    }

    async fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> Result<Release, StoreError> {
        let act = self.begin(Op::HandOver, owned.token, None);
        self.play(act, owned.timeout, || {
            let answer = now(self.memory.hand_over(owned, next, ttl));
            if let Ok(Release::Released) = answer {
                self.shared.lock().holders.insert(owned.key.clone(), next.clone());
            }
            answer
        })
        .await
    }

    async fn fence(&self, owned: Owned<'_>) -> Result<Fence, StoreError> {
        let act = self.begin(Op::Fence, owned.token, None);
        self.play(act, owned.timeout, || now(self.memory.fence(owned))).await
    }

    async fn open_watch(&self, changes: ChangeSink) -> OpenedWatch {
        let watch = &mut self.shared.lock().watch;
        if !watch.supported {
            return Ok(None);
        }
        if watch.refused {
            return Err(StoreError::new(StoreErrorKind::Connect, "as the script says"));
        }
        watch.opened += 1;
        watch.sink = Some(changes);
        Ok(Some(Arc::new(self.clone())))
    }

    async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let act = self.begin(Op::CleanUp, owned.token, None);
        self.play(act, owned.timeout, || now(self.memory.clean_up(owned))).await
    }

    fn for_keeper(&self) -> Self {
        Self { by_keeper: true, ..self.clone() }
    }
}

impl KeyWatch for ScriptedStore {
    fn look<'a>(&'a self, owned: Owned<'a>) -> Looking<'a> {
        Box::pin(async move {
            let mut shared = self.shared.lock();
            if shared.watch.refused {
                return Err(StoreError::new(StoreErrorKind::Connect, "as the script says"));
            }
            shared.watch.looked_at.insert(owned.key.clone());
            drop(shared);
            // A number is minted for the holder only.
            if let Ok(Fence::Minted(_)) = now(self.memory.fence(owned)) {
                return Ok(Holder::Us);
            }
            let probe = OwnerToken::random();
            match now(self.memory.acquire(Attempt::new(owned.key, &probe, LIMIT, LIMIT)))? {
                Acquire::Acquired => {
                    now(self.memory.release(Owned::new(owned.key, &probe, LIMIT)))?;
                    Ok(Holder::Nobody)
                }
                _ => Ok(Holder::Other),
            }
        })
    }
}
