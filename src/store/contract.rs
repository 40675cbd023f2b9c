//! The contract of [`LockStore`] as tests, for every store there is and for yours.
//!
//! One async function for each clause. [`store_contract!`](crate::store_contract) stamps them all as
//! `#[tokio::test]` functions, so the crate that uses it needs `tokio` with `macros`, `rt` and `time` and
//! nothing else. What it is given makes a store for one test: any function or closure that returns a future
//! of a [`LockStore`], or of a pair of one and something that has to live as long (a server, a directory).
//! Stores of different tests may share their locks: every clause uses keys of its own.
//!
//! ```
//! mod in_memory {
//!     use tower_redis_lock::store::MemoryStore;
//!
//!     tower_redis_lock::store_contract!(|| async { MemoryStore::new() });
//! }
//! # fn main() {}
//! ```
//!
//! Customised: a store that needs a server, which ends with the test.
//!
//! ```no_run
//! # struct Server;
//! # impl Server { async fn start() -> Self { Self } fn url(&self) -> &str { "redis://127.0.0.1/" } }
//! mod on_a_server {
//! #   use super::Server;
//!     use tower_redis_lock::RedisStore;
//!
//!     async fn make_store() -> (RedisStore, Server) {
//!         let server = Server::start().await;
//!         let store = RedisStore::connect(server.url()).await.expect("a server");
//!         (store, server)
//!     }
//!
//!     tower_redis_lock::store_contract!(make_store);
//! }
//! # fn main() {}
//! ```
//!
//! The clauses take real time where locks have to expire, about a second in all. They cannot make a store
//! fail; what happens then (time limits, lost replies) is for the store's own tests.
//!
//! # Panics
//!
//! Each function panics where the store breaks the clause, with a message that says how.

mod claim;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use self::claim::{Claim, LIMIT, LONG, SHORT, TOLERANCE, done, drop_after, join_all, key};
use super::{
    Acquire, Attempt, Change, ChangeSink, Fence, Holder, LockStore, OwnerToken, Release, Renewal,
    StoreErrorKind,
};
use crate::clock::Clock;
use crate::key::LockKey;

/// Stamps each clause of the [contract](crate::store::contract) as a `#[tokio::test]`. Put it into a module
/// of its own for each store.
#[macro_export]
macro_rules! store_contract {
    ($make_store:expr) => {
        $crate::store_contract! { @stamp $make_store;
            a_taken_lock_is_refused_to_others_until_it_is_released
            of_concurrent_attempts_exactly_one_wins
            a_token_that_holds_the_lock_acquires_it_again_with_a_fresh_ttl
            every_lock_has_an_expiry_from_its_first_moment
            a_lock_is_free_when_its_ttl_is_over_and_not_before
            a_renewal_sets_the_ttl_anew
            a_renewal_never_creates_a_lock
            a_renewal_never_extends_the_lock_of_another
            a_release_never_frees_the_lock_of_another
            a_release_frees_the_lock_once
            a_hand_over_gives_the_lock_to_the_next_holder_in_one_step
            fencing_tokens_grow_strictly_over_all_holders
            fencing_tokens_grow_over_an_expiry
            only_the_holder_gets_a_fencing_token
            keys_are_kept_apart_byte_by_byte
            a_clean_up_frees_what_a_finished_acquire_took
            a_clean_up_frees_what_a_dropped_acquire_may_still_take
            a_clean_up_frees_what_a_timed_out_acquire_may_still_take
            a_clean_up_of_a_token_that_was_never_sent_leaves_the_holder_alone
            a_future_dropped_at_any_poll_leaves_the_store_usable
            the_keepers_handle_sees_the_same_locks
            a_watch_says_who_holds_the_lock_and_tells_of_the_next_change
        }
    };
    (@stamp $make_store:expr; $($clause:ident)+) => {
        $(
            #[tokio::test]
            async fn $clause() {
                let fixture = ($make_store)().await;
                $crate::store::contract::$clause($crate::store::contract::Fixture::store(&fixture)).await;
            }
        )+
    };
}

/// What a test runs on: a store, or a pair of a store and something that has to live as long.
pub trait Fixture {
    /// The store to be tested.
    type Store: LockStore;

    /// The store to be tested.
    fn store(&self) -> &Self::Store;
}

impl<S: LockStore> Fixture for S {
    type Store = S;

    fn store(&self) -> &S {
        self
    }
}

impl<S: LockStore, L> Fixture for (S, L) {
    type Store = S;

    fn store(&self) -> &S {
        &self.0
    }
}

/// Exclusion: one holder at a time.
pub async fn a_taken_lock_is_refused_to_others_until_it_is_released<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "exclusive");
    let rival = holder.rival();
    holder.take(LONG).await;
    rival.refused().await;
    assert_eq!(holder.release().await, Release::Released);
    rival.take(LONG).await;
    holder.refused().await;
    assert_eq!(rival.release().await, Release::Released);
}

/// Exclusion, when many ask at once.
pub async fn of_concurrent_attempts_exactly_one_wins<S: LockStore>(store: &S) {
    let first = Claim::on(store, "concurrent");
    for _ in 0..20 {
        let claims: Vec<_> = (0..32).map(|_| first.rival()).collect();
        let answers = join_all(claims.iter().map(|claim| claim.acquire(LONG))).await;
        let winners = answers.iter().filter(|answer| **answer == Acquire::Acquired).count();
        assert_eq!(winners, 1, "winners of 32 concurrent attempts");
        let releases = join_all(claims.iter().map(Claim::release)).await;
        let released = releases.iter().filter(|release| **release == Release::Released).count();
        assert_eq!(released, 1, "32 releases of one lock: {releases:?}");
    }
}

/// A repeated attempt recognises its own token.
pub async fn a_token_that_holds_the_lock_acquires_it_again_with_a_fresh_ttl<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "again");
    let again = async |ttl, attempt: Attempt<'_>| {
        assert_eq!(done("acquire", store.acquire(attempt).await), Acquire::Acquired, "of its own lock");
        let remaining = holder.rival().refused().await;
        assert!(
            remaining <= ttl && remaining + LIMIT > ttl,
            "{remaining:?} of {ttl:?} after another attempt"
        );
    };
    holder.take(LIMIT * 3).await;
    again(LONG, holder.attempt(LONG).next()).await;
    // A first attempt that was sent twice, because its connection was cut.
    again(LONG * 2, holder.attempt(LONG * 2)).await;
    assert_eq!(holder.release().await, Release::Released);
}

/// No lock without expiry.
pub async fn every_lock_has_an_expiry_from_its_first_moment<S: LockStore>(store: &S) {
    for ttl in [Duration::from_millis(2500), LONG, Duration::from_secs(7 * 24 * 3600)] {
        let holder = Claim::on(store, "expiry");
        let rival = holder.rival();
        let (acquired, remaining) = (holder.acquire(ttl).await, rival.refused().await);
        assert_eq!(acquired, Acquire::Acquired);
        assert!(remaining <= ttl && remaining + LIMIT > ttl, "{remaining:?} left of {ttl:?}");
        assert_eq!(holder.release().await, Release::Released);
    }
}

/// The ttl is honoured, in both directions.
pub async fn a_lock_is_free_when_its_ttl_is_over_and_not_before<S: LockStore>(store: &S) {
    let clock = Clock::system();
    let holder = Claim::on(store, "expires");
    let next = holder.rival();
    let sent = clock.now();
    holder.take(SHORT).await;
    next.take_when_free().await;
    let lived = clock.now().since(sent);
    assert!(lived + TOLERANCE >= SHORT, "a lock of {SHORT:?} was free after {lived:?}");
    assert_eq!(holder.renew(LONG).await, Renewal::NotOwned);
    assert_eq!(holder.release().await, Release::NotOwned);
    assert_eq!(next.release().await, Release::Released);
}

/// A renewal counts from now, whether it extends or shortens.
pub async fn a_renewal_sets_the_ttl_anew<S: LockStore>(store: &S) {
    let clock = Clock::system();
    let holder = Claim::on(store, "renew");
    let rival = holder.rival();
    holder.take(LIMIT).await;
    assert_eq!(holder.renew(LONG).await, Renewal::Renewed);
    assert!(rival.refused().await > LIMIT, "a renewal did not extend the lock");
    let sent = clock.now();
    assert_eq!(holder.renew(SHORT).await, Renewal::Renewed);
    assert!(rival.refused().await <= SHORT, "a renewal did not set the ttl that it was given");
    rival.take_when_free().await;
    assert!(clock.now().since(sent) + TOLERANCE >= SHORT, "a renewed lock did not live for its ttl");
    assert_eq!(rival.release().await, Release::Released);
}

/// What is gone stays gone.
pub async fn a_renewal_never_creates_a_lock<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "renew-missing");
    assert_eq!(holder.renew(LONG).await, Renewal::Missing, "of a lock that never was");
    holder.take(LONG).await;
    assert_eq!(holder.release().await, Release::Released);
    assert_eq!(holder.renew(LONG).await, Renewal::Missing, "of a lock that was released");
    holder.rival().take(LONG).await;
}

/// Only the holder renews.
pub async fn a_renewal_never_extends_the_lock_of_another<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "renew-other");
    let rival = holder.rival();
    holder.take(LIMIT * 3).await;
    assert_eq!(rival.renew(LONG).await, Renewal::NotOwned);
    assert!(rival.refused().await <= LIMIT * 3, "a stranger extended a lock");
    assert_eq!(holder.release().await, Release::Released);
}

/// Only the holder releases.
pub async fn a_release_never_frees_the_lock_of_another<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "release-other");
    let rival = holder.rival();
    holder.take(LONG).await;
    assert_eq!(rival.release().await, Release::NotOwned);
    rival.refused().await;
    assert_eq!(holder.release().await, Release::Released);
}

/// `Missing` and `NotOwned` are told apart.
pub async fn a_release_frees_the_lock_once<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "release-twice");
    let rival = holder.rival();
    assert_eq!(holder.release().await, Release::Missing, "of a lock that never was");
    holder.take(LONG).await;
    assert_eq!(holder.release().await, Release::Released);
    assert_eq!(holder.release().await, Release::Missing, "for the second time");
    rival.take(LONG).await;
    assert_eq!(holder.release().await, Release::NotOwned, "of a lock that another has taken since");
    assert_eq!(rival.release().await, Release::Released);
}

/// A hand-over is a release and an acquire, with nobody in between.
pub async fn a_hand_over_gives_the_lock_to_the_next_holder_in_one_step<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "hand-over");
    let (next, rival) = (holder.rival(), holder.rival());
    assert_eq!(holder.hand_over(&next, LONG).await, Release::Missing, "of a lock that nobody holds");
    next.take(LONG).await;
    assert_eq!(holder.hand_over(&rival, LONG).await, Release::NotOwned, "of somebody else's lock");
    assert_eq!(next.hand_over(&holder, LONG).await, Release::Released);
    let earlier = holder.number().await;
    assert_eq!(holder.hand_over(&next, LIMIT * 3).await, Release::Released);
    let remaining = rival.refused().await;
    assert!(remaining <= LIMIT * 3 && remaining > LIMIT, "{remaining:?} of 15 s after a hand-over");
    assert_eq!(holder.renew(LONG).await, Renewal::NotOwned, "by the one who handed over");
    assert_eq!(holder.release().await, Release::NotOwned);
    let later = next.number().await;
    assert!(later > earlier, "{later} after {earlier}");
    assert_eq!(next.hand_over(&next, LONG).await, Release::Released, "to oneself");
    assert_eq!(next.release().await, Release::Released);
}

/// Fencing tokens order the holders.
pub async fn fencing_tokens_grow_strictly_over_all_holders<S: LockStore>(store: &S) {
    let first = Claim::on(store, "fence");
    let mut last = 0;
    for round in 0..50 {
        let holder = first.rival();
        holder.take(LONG).await;
        // One that renews, one that asks twice, one that does not ask.
        if round % 3 == 0 {
            holder.renew(LONG).await;
        }
        for _ in 0..round % 3 {
            let number = holder.number().await;
            assert!(number > last, "{number} after {last}");
            last = number;
        }
        assert_eq!(holder.release().await, Release::Released);
    }
}

/// Fencing tokens order the holders, also when one of them never released.
pub async fn fencing_tokens_grow_over_an_expiry<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "fence-expiry");
    let next = holder.rival();
    holder.take(LONG).await;
    let earlier = holder.number().await;
    assert_eq!(holder.renew(SHORT).await, Renewal::Renewed);
    next.take_when_free().await;
    let later = next.number().await;
    assert!(later > earlier, "{later} after {earlier}");
    assert_eq!(holder.fence().await, Fence::NotOwned, "a holder whose time was over got a number");
    assert_eq!(next.release().await, Release::Released);
}

/// Asking late is safe: a stale owner is refused.
pub async fn only_the_holder_gets_a_fencing_token<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "fence-other");
    let rival = holder.rival();
    assert_eq!(holder.fence().await, Fence::NotOwned, "for a lock that nobody holds");
    holder.take(LONG).await;
    assert_eq!(rival.fence().await, Fence::NotOwned, "for somebody else's lock");
    holder.number().await;
    assert_eq!(holder.release().await, Release::Released);
    assert_eq!(holder.fence().await, Fence::NotOwned, "for a lock that was released");
}

/// Keys are bytes.
pub async fn keys_are_kept_apart_byte_by_byte<S: LockStore>(store: &S) {
    let long = vec![b'x'; 100_000];
    let longer = vec![b'x'; 100_001];
    let names: [&[u8]; 24] = [
        b"a",
        b"A",
        b"a ",
        b" a",
        b"a\0",
        b"a\0b",
        b"a\r\n",
        b"a\n",
        b"a\r\nDEL a\r\n",
        b"{a}",
        b"{a}b",
        b"a{",
        b"a}",
        b"}{",
        b"{}",
        b"{}a",
        b"a%00",
        b"*",
        b"\xff\xfe",
        "e\u{301}".as_bytes(),
        "é".as_bytes(),
        "🔒".as_bytes(),
        &long,
        &longer,
    ];
    let base = Claim::on(store, "bytes");
    let claims = names.map(|name| {
        // The name first, so that braces are what a cluster sees first.
        let key = key(&[name, base.key.as_bytes()]);
        Claim { key, token: OwnerToken::random(), store }
    });
    for claim in &claims {
        claim.take(LONG).await;
    }
    for claim in &claims {
        claim.rival().refused().await;
        assert_eq!(claim.renew(LONG).await, Renewal::Renewed, "{:?}", claim.key);
        claim.number().await;
    }
    for claim in &claims {
        assert_eq!(claim.release().await, Release::Released, "{:?}", claim.key);
    }
}

/// A clean-up is a release.
pub async fn a_clean_up_frees_what_a_finished_acquire_took<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "clean-up");
    holder.take(LONG).await;
    // The store knew the answer, so it may have forgotten the attempt: the lock goes one way or the other.
    if holder.clean_up().await != Release::Released {
        assert_eq!(holder.release().await, Release::Released);
    }
    holder.rival().take(LONG).await;
}

/// The caller has gone away with the attempt on the wire.
pub async fn a_clean_up_frees_what_a_dropped_acquire_may_still_take<S: LockStore>(store: &S) {
    for polls in 1..MOST_POLLS {
        let claim = Claim::on(store, "clean-up-dropped");
        let answer = drop_after(polls, store.acquire(claim.attempt(LONG))).await;
        if answer.is_some() {
            return;
        }
        claim.clean_up_unknown().await;
    }
    panic!("an acquire did not end within {MOST_POLLS} polls");
}

/// The attempt got no answer in time.
pub async fn a_clean_up_frees_what_a_timed_out_acquire_may_still_take<S: LockStore>(store: &S) {
    for micros in [0, 10, 100, 300, 1000] {
        let claim = Claim::on(store, "clean-up-timeout");
        let attempt = Attempt { timeout: Duration::from_micros(micros), ..claim.attempt(LONG) };
        match store.acquire(attempt).await {
            Ok(answer) => {
                assert_eq!(answer, Acquire::Acquired);
                assert_eq!(claim.release().await, Release::Released);
            }
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
                claim.clean_up_unknown().await;
            }
        }
    }
}

/// A clean-up is for the token only.
pub async fn a_clean_up_of_a_token_that_was_never_sent_leaves_the_holder_alone<S: LockStore>(store: &S) {
    let holder = Claim::on(store, "clean-up-other");
    let never_sent = holder.rival();
    assert_ne!(never_sent.clean_up().await, Release::Released, "of a free lock");
    holder.take(LONG).await;
    assert_ne!(never_sent.clean_up().await, Release::Released, "of somebody else's lock");
    never_sent.refused().await;
    assert_eq!(holder.release().await, Release::Released);
}

const MOST_POLLS: usize = 200;

/// Every method is cancel safe.
pub async fn a_future_dropped_at_any_poll_leaves_the_store_usable<S: LockStore>(store: &S) {
    for operation in 0..6 {
        let mut ended = false;
        for polls in 1..MOST_POLLS {
            let claim = Claim::on(store, "dropped");
            claim.take(LONG).await;
            let owned = claim.owned();
            ended = match operation {
                0 => drop_after(polls, store.acquire(claim.attempt(LONG).next())).await.is_some(),
                1 => drop_after(polls, store.renew(owned, LONG)).await.is_some(),
                2 => drop_after(polls, store.release(owned)).await.is_some(),
                3 => drop_after(polls, store.fence(owned)).await.is_some(),
                4 => drop_after(polls, store.hand_over(owned, &claim.token, LONG)).await.is_some(),
                _ => drop_after(polls, store.clean_up(owned)).await.is_some(),
            };
            let other = Claim::on(store, "beside-dropped");
            other.take(LONG).await;
            other.number().await;
            assert_eq!(other.renew(LONG).await, Renewal::Renewed);
            assert_eq!(other.release().await, Release::Released);
            // Done or not done, nobody else has come in between.
            assert_ne!(claim.release().await, Release::NotOwned);
            if ended {
                break;
            }
        }
        assert!(ended, "operation {operation} did not end within {MOST_POLLS} polls");
    }
}

/// The keeper renews and releases what the application took.
pub async fn the_keepers_handle_sees_the_same_locks<S: LockStore>(store: &S) {
    let keeper = store.for_keeper();
    let holder = Claim::on(store, "keeper");
    let kept = Claim { store: &keeper, key: holder.key.clone(), token: holder.token.clone() };
    holder.take(LIMIT * 3).await;
    kept.rival().refused().await;
    assert_eq!(kept.renew(LONG).await, Renewal::Renewed);
    assert!(holder.rival().refused().await > LIMIT * 3);
    let earlier = holder.number().await;
    assert!(kept.number().await > earlier, "numbers do not grow across handles");
    assert_eq!(kept.release().await, Release::Released);
    assert_eq!(holder.renew(LONG).await, Renewal::Missing);
    let late = holder.rival();
    let answer = drop_after(1, store.acquire(late.attempt(LONG))).await;
    let late_kept = Claim { store: &keeper, key: late.key.clone(), token: late.token.clone() };
    if answer.is_none() {
        late_kept.clean_up_unknown().await;
    }
}

/// A watch, where the store has one: whoever has looked at a key is told of its next change.
pub async fn a_watch_says_who_holds_the_lock_and_tells_of_the_next_change<S: LockStore>(store: &S) {
    let (sender, mut changes) = mpsc::unbounded_channel();
    let sink = ChangeSink::new(move |change| drop(sender.send(change)));
    let Some(watch) = done("open_watch", store.open_watch(sink).await) else { return };
    let holder = Claim::on(store, "watch");
    let rival = holder.rival();
    let look = async |claim: &Claim<'_, S>| done("look", watch.look(claim.owned()).await);

    assert_eq!(look(&rival).await, Holder::Nobody);
    holder.take(LONG).await;
    until_told(&mut changes, &holder.key, "that a free lock was taken").await;

    assert_eq!(look(&holder).await, Holder::Us);
    assert_eq!(look(&rival).await, Holder::Other);
    assert_eq!(holder.release().await, Release::Released);
    until_told(&mut changes, &holder.key, "that a lock was released").await;

    rival.take(SHORT).await;
    while look(&holder).await != Holder::Nobody {
        until_told(&mut changes, &holder.key, "that a lock has expired").await;
    }
}

async fn until_told(changes: &mut mpsc::UnboundedReceiver<Change>, key: &LockKey, what: &str) {
    let told = async {
        loop {
            match changes.recv().await {
                Some(Change::Key(told)) if told == *key => return,
                Some(Change::All) => return,
                Some(_) => {}
                None => panic!("the watch was closed before it told {what}"),
            }
        }
    };
    if timeout(LIMIT, told).await.is_err() {
        panic!("a watch did not tell {what}");
    }
}
