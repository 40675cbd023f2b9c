//! The suite itself: for each promise of the contract a store that breaks it, and the clause that says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tower_redis_lock::LockKey;
use tower_redis_lock::store::{
    Acquire, Attempt, Fence, LockStore, MemoryStore, Owned, OwnerToken, Release, Renewal, StoreError,
    StoreErrorKind, contract,
};

/// What is wrong with a [`Broken`] store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    EverybodyWins,
    NoExpiry,
    HalfTheTtl,
    OwnTokenIsRefused,
    OwnTokenKeepsItsTtl,
    RenewalCreates,
    RenewalForAll,
    RenewalWithoutEffect,
    ReleaseForAll,
    ReleaseMixesItsAnswers,
    HandOverForAll,
    HandOverIsARelease,
    HandOverKeepsTheTtl,
    FenceForAll,
    FenceRepeats,
    FenceCountsForEachHolder,
    KeysEndAtNul,
    KeysFoldCase,
    KeysAreCut,
    CleanUpLooksAway,
    CleanUpForAll,
    DroppedCommandsBlock,
    KeeperIsElsewhere,
}

#[derive(Clone, Debug)]
struct Broken {
    fault: Fault,
    inner: MemoryStore,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Who took which key last, so that a command can act in the holder's name.
    holders: HashMap<LockKey, OwnerToken>,
    under_way: usize,
    minted: u64,
}

impl Broken {
    fn new(fault: Fault) -> Self {
        Self { fault, inner: MemoryStore::new(), seen: Arc::default() }
    }

    fn key(&self, key: &LockKey) -> LockKey {
        let bytes = match self.fault {
            Fault::KeysAreCut => &key.as_bytes()[..key.as_bytes().len().min(200)],
            _ => key.as_bytes(),
        };
        let own_part = bytes.windows(9).position(|w| w == b"contract:").unwrap_or(0);
        let (name, rest) = bytes.split_at(own_part);
        let name = match self.fault {
            Fault::KeysEndAtNul => name.split(|b| *b == 0).next().unwrap_or_default().to_vec(),
            Fault::KeysFoldCase => name.to_ascii_lowercase(),
            _ => name.to_vec(),
        };
        LockKey::new([&name, rest].concat()).unwrap()
    }

    fn holder(&self, key: &LockKey, token: &OwnerToken) -> OwnerToken {
        self.seen.lock().holders.get(key).unwrap_or(token).clone()
    }

    /// A command on its way: one await between sending and answering.
    async fn travel(&self) -> Result<(), StoreError> {
        self.seen.lock().under_way += 1;
        if self.fault == Fault::DroppedCommandsBlock && self.seen.lock().under_way > 1 {
            return Err(StoreError::new(StoreErrorKind::Server, "blocked by an earlier command"));
        }
        tokio::task::yield_now().await;
        self.seen.lock().under_way -= 1;
        Ok(())
    }
}

const LONG: Duration = Duration::from_secs(3600);

/// An acquire on the wire: it arrives, whether anybody waits for the answer or not.
struct OnTheWire<'a> {
    store: &'a Broken,
    key: LockKey,
    token: OwnerToken,
    ttl: Duration,
    arrived: bool,
}

impl OnTheWire<'_> {
    async fn arrive(mut self) -> Result<Acquire, StoreError> {
        self.arrived = true;
        let acquired = self
            .store
            .inner
            .acquire(Attempt::new(&self.key, &self.token, self.ttl, Duration::from_secs(1)))
            .await?;
        if acquired == Acquire::Acquired {
            self.store.seen.lock().holders.insert(self.key.clone(), self.token.clone());
        }
        Ok(acquired)
    }
}

impl Drop for OnTheWire<'_> {
    fn drop(&mut self) {
        if !self.arrived {
            let OnTheWire { store, key, token, ttl, .. } = self;
            let late = OnTheWire { store, key: key.clone(), token: token.clone(), ttl: *ttl, arrived: true };
            let _ = futures_util::FutureExt::now_or_never(late.arrive());
        }
    }
}

impl LockStore for Broken {
    async fn acquire(&self, attempt: Attempt<'_>) -> Result<Acquire, StoreError> {
        let key = self.key(attempt.key);
        let ttl = match self.fault {
            Fault::HalfTheTtl => attempt.ttl / 2,
            Fault::NoExpiry => Duration::from_secs(365 * 24 * 3600),
            _ => attempt.ttl,
        };
        let is_ours = self.seen.lock().holders.get(&key) == Some(attempt.token);
        let on_the_wire = OnTheWire { store: self, key, token: attempt.token.clone(), ttl, arrived: false };
        self.travel().await?;
        if is_ours && self.fault == Fault::OwnTokenKeepsItsTtl {
            std::mem::forget(on_the_wire);
            return Ok(Acquire::Acquired);
        }
        match (on_the_wire.arrive().await?, self.fault) {
            (Acquire::Held { .. }, Fault::EverybodyWins) => Ok(Acquire::Acquired),
            (Acquire::Held { .. }, Fault::NoExpiry) => Ok(Acquire::Held { remaining: None }),
            (Acquire::Acquired, Fault::OwnTokenIsRefused) if is_ours => {
                Ok(Acquire::Held { remaining: Some(attempt.ttl) })
            }
            (answer, _) => Ok(answer),
        }
    }

    async fn renew(&self, owned: Owned<'_>, ttl: Duration) -> Result<Renewal, StoreError> {
        self.travel().await?;
        let key = self.key(owned.key);
        let owned = Owned::new(&key, owned.token, owned.timeout);
        if self.fault == Fault::RenewalWithoutEffect && self.inner.fence(owned).await? != Fence::NotOwned {
            return Ok(Renewal::Renewed);
        }
        match (self.inner.renew(owned, ttl).await?, self.fault) {
            (Renewal::Missing, Fault::RenewalCreates) => {
                self.inner.acquire(Attempt::new(&key, owned.token, ttl, owned.timeout)).await?;
                Ok(Renewal::Renewed)
            }
            (Renewal::NotOwned, Fault::RenewalForAll) => {
                let holder = self.holder(&key, owned.token);
                self.inner.renew(Owned::new(&key, &holder, owned.timeout), ttl).await
            }
            (answer, _) => Ok(answer),
        }
    }

    async fn release(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        self.travel().await?;
        let key = self.key(owned.key);
        let owned = Owned::new(&key, owned.token, owned.timeout);
        match (self.inner.release(owned).await?, self.fault) {
            (Release::NotOwned, Fault::ReleaseForAll) => {
                let holder = self.holder(&key, owned.token);
                self.inner.release(Owned::new(&key, &holder, owned.timeout)).await
            }
            (Release::NotOwned, Fault::ReleaseMixesItsAnswers) => Ok(Release::Missing),
            (answer, _) => Ok(answer),
        }
    }

    async fn hand_over(
        &self,
        owned: Owned<'_>,
        next: &OwnerToken,
        ttl: Duration,
    ) -> Result<Release, StoreError> {
        self.travel().await?;
        let key = self.key(owned.key);
        let owned = Owned::new(&key, owned.token, owned.timeout);
        let ttl = if self.fault == Fault::HandOverKeepsTheTtl { LONG } else { ttl };
        let answer = match self.fault {
            Fault::HandOverIsARelease => return self.inner.release(owned).await,
            _ => self.inner.hand_over(owned, next, ttl).await?,
        };
        match (answer, self.fault) {
            (Release::NotOwned, Fault::HandOverForAll) => {
                let holder = self.holder(&key, owned.token);
                self.inner.hand_over(Owned::new(&key, &holder, owned.timeout), next, ttl).await
            }
            (answer, _) => Ok(answer),
        }
    }

    async fn fence(&self, owned: Owned<'_>) -> Result<Fence, StoreError> {
        self.travel().await?;
        let key = self.key(owned.key);
        let owned = Owned::new(&key, owned.token, owned.timeout);
        match (self.inner.fence(owned).await?, self.fault) {
            (Fence::NotOwned, Fault::FenceForAll) => Ok(Fence::Minted(u64::MAX)),
            (Fence::Minted(_), Fault::FenceRepeats) => Ok(Fence::Minted(7)),
            (Fence::Minted(_), Fault::FenceCountsForEachHolder) => {
                let minted = self.seen.lock().minted;
                self.seen.lock().minted = (minted + 1) % 2;
                Ok(Fence::Minted(minted + 1))
            }
            (answer, _) => Ok(answer),
        }
    }

    async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        match self.fault {
            Fault::CleanUpLooksAway => Ok(Release::Missing),
            Fault::CleanUpForAll => {
                let holder = self.holder(owned.key, owned.token);
                self.inner.release(Owned::new(owned.key, &holder, owned.timeout)).await
            }
            _ => self.release(owned).await,
        }
    }

    fn for_keeper(&self) -> Self {
        match self.fault {
            Fault::KeeperIsElsewhere => Self::new(self.fault),
            _ => self.clone(),
        }
    }
}

mod without_a_fault {
    use super::{Broken, Fault};

    tower_redis_lock::store_contract!(|| async { Broken::new(Fault::Nothing) });
}

/// Runs one clause on a store with a fault, and says whether the clause complained.
macro_rules! check_noticed {
    ($($fault:ident by $($clause:ident)+;)+) => {
        $($(
            let store = Broken::new(Fault::$fault);
            let verdict = tokio::spawn(async move { contract::$clause(&store).await }).await;
            let noticed = verdict.is_err_and(|error| error.is_panic());
            assert!(noticed, "{:?} was not noticed by {}", Fault::$fault, stringify!($clause));
        )+)+
    };
}

#[tokio::test]
async fn every_broken_promise_is_noticed_by_its_clause() {
    check_noticed! {
        EverybodyWins by a_taken_lock_is_refused_to_others_until_it_is_released
            of_concurrent_attempts_exactly_one_wins;
        NoExpiry by every_lock_has_an_expiry_from_its_first_moment;
        HalfTheTtl by a_lock_is_free_when_its_ttl_is_over_and_not_before;
        OwnTokenIsRefused by a_token_that_holds_the_lock_acquires_it_again_with_a_fresh_ttl;
        OwnTokenKeepsItsTtl by a_token_that_holds_the_lock_acquires_it_again_with_a_fresh_ttl;
        RenewalCreates by a_renewal_never_creates_a_lock;
        RenewalForAll by a_renewal_never_extends_the_lock_of_another;
        RenewalWithoutEffect by a_renewal_sets_the_ttl_anew the_keepers_handle_sees_the_same_locks;
        ReleaseForAll by a_release_never_frees_the_lock_of_another;
        ReleaseMixesItsAnswers by a_release_frees_the_lock_once;
        HandOverForAll by a_hand_over_gives_the_lock_to_the_next_holder_in_one_step;
        HandOverIsARelease by a_hand_over_gives_the_lock_to_the_next_holder_in_one_step;
        HandOverKeepsTheTtl by a_hand_over_gives_the_lock_to_the_next_holder_in_one_step;
        FenceForAll by only_the_holder_gets_a_fencing_token fencing_tokens_grow_over_an_expiry;
        FenceRepeats by fencing_tokens_grow_strictly_over_all_holders;
        FenceCountsForEachHolder by fencing_tokens_grow_strictly_over_all_holders;
        KeysEndAtNul by keys_are_kept_apart_byte_by_byte;
        KeysFoldCase by keys_are_kept_apart_byte_by_byte;
        KeysAreCut by keys_are_kept_apart_byte_by_byte;
        CleanUpLooksAway by a_clean_up_frees_what_a_dropped_acquire_may_still_take;
        CleanUpForAll by a_clean_up_of_a_token_that_was_never_sent_leaves_the_holder_alone;
        DroppedCommandsBlock by a_future_dropped_at_any_poll_leaves_the_store_usable;
        KeeperIsElsewhere by the_keepers_handle_sees_the_same_locks;
    }
}
