//! The queue and the hand-over under many interleavings of threads, chosen by shuttle.
//!
//! The store is a model: one cell that holds a token or nothing. Everything else is the real queue.

use std::sync::Arc;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;

use super::*;
use crate::clock::Clock;
use crate::keeper::{Doubt, KeeperMode, StoreEnds};
use crate::settings::LockSettings;
use crate::store::MemoryStore;
use crate::telemetry::{KeyDisplay, LockMetrics, StoreMetrics};

const TTL: Duration = Duration::from_secs(1);
const LIMITS: Limits = Limits { per_key: 100, total: 100 };
const RUN: RunLimit = RunLimit { turns: 2, span: TTL };
const ITERATIONS: usize = 3_000;

struct Model {
    queues: Queues,
    key: LockKey,
    keeper: Keeper,
    /// Who holds the lock, as the store sees it.
    store: Mutex<Option<OwnerToken>>,
    turns: Mutex<usize>,
}

impl Model {
    fn new() -> Arc<Self> {
        let clock = Clock::system();
        let ends = StoreEnds::new(Arc::new(MemoryStore::new()));
        let metrics = StoreMetrics::new("model", clock.clone());
        Arc::new(Self {
            queues: Queues::default(),
            key: LockKey::new("k").expect("valid"),
            keeper: Keeper::start(KeeperMode::Task, clock, ends, metrics).expect("no thread is started"),
            store: Mutex::new(None),
            turns: Mutex::new(0),
        })
    }

    fn clean_up(&self, token: OwnerToken) -> CleanUp {
        CleanUp {
            doubt: Doubt::Release,
            key: self.key.clone(),
            token,
            settings: Arc::new(LockSettings::default()),
            metrics: LockMetrics::new("model", KeyDisplay::Hashed, Clock::system()),
            _unfinished: self.keeper.outstanding().begin(),
        }
    }

    /// What the keeper would do: frees the lock of a token that nobody claimed.
    fn sweep(&self) {
        for token in self.keeper.unclaimed_tokens() {
            let mut store = self.store.lock().expect("not poisoned");
            if store.as_ref() == Some(&token) {
                *store = None;
            }
        }
    }

    /// Asks the store until it grants the lock.
    fn compete(&self, token: &OwnerToken) {
        loop {
            self.sweep();
            let mut store = self.store.lock().expect("not poisoned");
            match &*store {
                None => *store = Some(token.clone()),
                Some(holder) if holder == token => {}
                Some(_) => {
                    drop(store);
                    thread::yield_now();
                    continue;
                }
            }
            return;
        }
    }

    fn request(&self) {
        let token = OwnerToken::random();
        let seat = match self.queues.join(&self.key, &token, TTL, LIMITS).expect("there is room") {
            Place::Front(seat) => {
                self.compete(&token);
                seat
            }
            Place::Behind(mut waiting, _) => {
                if thread_rng().gen_bool(0.3) {
                    thread::yield_now();
                    return;
                }
                match block_on(waiting.promoted()) {
                    // Goes away with its promotion in its hands.
                    _ if thread_rng().gen_bool(0.2) => return,
                    Promotion::Compete { seat, in_doubt } => {
                        if let Some(in_doubt) = in_doubt {
                            in_doubt.claim();
                        }
                        self.compete(&token);
                        seat
                    }
                    Promotion::HandedOver(lock) => lock.accept().0,
                }
            }
        };
        assert_eq!(
            self.store.lock().expect("not poisoned").as_ref(),
            Some(&token),
            "the store says who holds"
        );
        thread::yield_now();
        *self.turns.lock().expect("not poisoned") += 1;
        self.give_up_the_lock(&token, seat);
    }

    fn give_up_the_lock(&self, token: &OwnerToken, seat: Seat) {
        match seat.next(Moment(0), RUN) {
            Ok(mut next) => {
                let next_token = next.claim().0.clone();
                next.sending(&self.keeper, self.clean_up(next_token.clone()));
                let swapped = thread_rng().gen_bool(0.7);
                let mut store = self.store.lock().expect("not poisoned");
                assert_eq!(store.as_ref(), Some(token));
                *store = swapped.then(|| next_token.clone());
                drop(store);
                if thread_rng().gen_bool(0.3) {
                    // The store's answer is lost.
                    drop(next);
                } else if swapped {
                    next.handed_over(Moment(0));
                } else {
                    next.refused();
                }
            }
            Err(seat) => {
                let mut store = self.store.lock().expect("not poisoned");
                assert_eq!(store.take().as_ref(), Some(token));
                drop(store);
                drop(seat);
            }
        }
    }
}

fn check(requests: usize) {
    let model = Model::new();
    let threads: Vec<_> = (0..requests)
        .map(|_| {
            let model = Arc::clone(&model);
            thread::spawn(move || model.request())
        })
        .collect();
    for thread in threads {
        thread.join().expect("no request fails");
    }
    model.sweep();
    assert!(model.store.lock().expect("not poisoned").is_none(), "nobody holds the lock in the end");
    assert!(model.queues.is_empty(), "no line stays");
    assert!(*model.turns.lock().expect("not poisoned") >= 1);
}

#[test]
fn everybody_gets_a_turn_alone_and_nothing_is_left_at_random() {
    shuttle::check_random(|| check(5), ITERATIONS);
}

#[test]
fn everybody_gets_a_turn_alone_and_nothing_is_left_with_few_preemptions() {
    shuttle::check_pct(|| check(4), ITERATIONS, 3);
}
