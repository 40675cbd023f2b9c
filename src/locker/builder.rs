//! Puts a [`Locker`] together.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;

use super::{Core, Locker};
use crate::clock::Clock;
use crate::keeper::{Keeper, KeeperMode, StoreEnds};
use crate::queue::Queues;
use crate::settings::LockSettings;
use crate::store::{ErasedStore, LockStore, MeteredStore};
use crate::telemetry::{KeyDisplay, LockMetrics, StoreMetrics};

/// Prefix of all keys unless another one is set.
pub(crate) const DEFAULT_PREFIX: &str = "lock:";
const DEFAULT_NAME: &str = "default";

/// Collects what a [`Locker`] is made of.
#[derive(Debug)]
#[must_use]
pub struct LockerBuilder<S> {
    store: S,
    settings: LockSettings,
    prefix: Vec<u8>,
    name: &'static str,
    store_name: &'static str,
    keeper: KeeperMode,
    clock: Clock,
    keys: KeyDisplay,
}

impl<S: LockStore> LockerBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            settings: LockSettings::default(),
            prefix: DEFAULT_PREFIX.into(),
            name: DEFAULT_NAME,
            store_name: DEFAULT_NAME,
            keeper: KeeperMode::default(),
            clock: Clock::system(),
            keys: KeyDisplay::default(),
        }
    }

    /// The settings. Default [`LockSettings::default`].
    pub fn settings(mut self, settings: LockSettings) -> Self {
        self.settings = settings;
        self
    }

    /// What every key starts with, to keep services and environments that share a Redis apart. Default
    /// `lock:`. Braces in it choose the slot in a Redis Cluster.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().into();
        self
    }

    /// The lock's name in metrics and logs. Default `default`.
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// The store's name in metrics. Default `default`.
    pub fn store_name(mut self, name: &'static str) -> Self {
        self.store_name = name;
        self
    }

    /// Where the keeper runs. Default [`KeeperMode::Thread`].
    pub fn keeper(mut self, mode: KeeperMode) -> Self {
        self.keeper = mode;
        self
    }

    /// The clock of the lock deadlines. Default [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// How keys appear in logs and spans. Default [`KeyDisplay::Hashed`].
    pub fn show_keys(mut self, keys: KeyDisplay) -> Self {
        self.keys = keys;
        self
    }

    /// Starts the keeper.
    ///
    /// # Errors
    ///
    /// If the keeper's thread cannot be started.
    pub fn build(self) -> Result<Locker, BuildError> {
        let Self { store, settings, prefix, name, store_name, keeper, clock, keys } = self;
        let store_metrics = StoreMetrics::new(store_name, clock.clone());
        let store = MeteredStore::new(store, store_metrics.clone(), clock.clone());
        let store: Arc<dyn ErasedStore> = Arc::new(store);
        let ends = StoreEnds::new(Arc::clone(&store));
        let keeper =
            Keeper::start(keeper, clock.clone(), ends, store_metrics.clone()).map_err(BuildError::Keeper)?;
        let closing = AtomicBool::new(false);
        let metrics = LockMetrics::new(name, keys, clock.clone());
        Ok(Locker {
            core: Arc::new(Core {
                queues: Queues::default(),
                store,
                store_metrics,
                keeper,
                clock,
                prefix,
                closing,
                close: Notify::new(),
            }),
            settings: Arc::new(settings),
            metrics,
        })
    }
}

/// Why a [`Locker`] could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The keeper's thread or runtime could not be started.
    Keeper(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keeper(_) => f.write_str("the keeper could not be started"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Keeper(error) => Some(error),
        }
    }
}
