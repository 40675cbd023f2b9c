//! Pushes: a store that tells of a change, so that nobody has to ask again and again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::{Owned, StoreError};
use crate::key::LockKey;

/// Something that a watch noticed. A hint, never a proof: changes may be told late, twice, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The key was set, extended, deleted, evicted, or has expired.
    Key(LockKey),
    /// Everything may have changed.
    All,
    /// No more changes will be told; the watch has to be opened anew.
    Closed,
}

/// Where a store sends the changes that it notices. Never blocks.
#[derive(Clone)]
pub struct ChangeSink(Arc<dyn Fn(Change) + Send + Sync>);

impl ChangeSink {
    /// A sink that calls `receive`, which must not block.
    pub fn new(receive: impl Fn(Change) + Send + Sync + 'static) -> Self {
        Self(Arc::new(receive))
    }

    /// Hands a change over.
    pub fn send(&self, change: Change) {
        (self.0)(change);
    }
}

impl fmt::Debug for ChangeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeSink")
    }
}

/// Who holds a lock, as a token sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// The token that asks.
    Us,
    /// Another one.
    Other,
    /// Nobody.
    Nobody,
}

/// The answer of [`KeyWatch::look`].
pub type Looking<'a> = Pin<Box<dyn Future<Output = Result<Holder, StoreError>> + Send + 'a>>;

/// An open watch.
pub trait KeyWatch: fmt::Debug + Send + Sync {
    /// Tells who holds the lock, and from then on the next change of the key. The change after it is told
    /// only if the key is looked at again.
    ///
    /// # Cancel safety
    ///
    /// Drop it at any time; the key may be watched or not.
    fn look<'a>(&'a self, owned: Owned<'a>) -> Looking<'a>;
}

/// How opening a watch ended: `None` if the store does not push at all.
pub type OpenedWatch = Result<Option<Arc<dyn KeyWatch>>, StoreError>;

/// Opens watches; see [`LockStore::open_watch`](super::LockStore::open_watch).
pub(crate) type Opening<'a> = Pin<Box<dyn Future<Output = OpenedWatch> + Send + 'a>>;
