//! Why a store could not do what it was asked.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The operations of a [`LockStore`](crate::LockStore), as metrics and logs name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Taking a lock.
    Acquire,
    /// Extending a lock.
    Renew,
    /// Giving a lock back, clean-ups included.
    Release,
    /// Minting a fencing token.
    Fence,
    /// Watching for changes of a key.
    Watch,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Acquire, Self::Renew, Self::Release, Self::Fence, Self::Watch];

    /// The operation as metrics and logs name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Fence => "fence",
            Self::Watch => "watch",
        }
    }
}

/// The closed list of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer within the time limit.
    Timeout,
    /// No connection: refused, reset, closed, or the name did not resolve.
    Connect,
    /// Wrong or missing credentials.
    Auth,
    /// TLS could not be agreed on.
    Tls,
    /// The server is a read-only replica.
    ReadOnly,
    /// The server is loading its data.
    Loading,
    /// The server is out of memory.
    OutOfMemory,
    /// The user lacks a permission.
    NoPermission,
    /// The key holds something that is not a lock.
    WrongType,
    /// The key lives on another node of a cluster.
    Moved,
    /// The server is busy with somebody's script.
    Busy,
    /// Too few replicas, or the server cannot persist: it refuses writes.
    NoReplicas,
    /// The cluster is down.
    ClusterDown,
    /// Another error reported by the server.
    Server,
    /// An answer that the protocol does not allow.
    Protocol,
}

impl StoreErrorKind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::Timeout,
        Self::Connect,
        Self::Auth,
        Self::Tls,
        Self::ReadOnly,
        Self::Loading,
        Self::OutOfMemory,
        Self::NoPermission,
        Self::WrongType,
        Self::Moved,
        Self::Busy,
        Self::NoReplicas,
        Self::ClusterDown,
        Self::Server,
        Self::Protocol,
    ];

    /// The kind as metrics and logs name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Auth => "auth",
            Self::Tls => "tls",
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::OutOfMemory => "oom",
            Self::NoPermission => "noperm",
            Self::WrongType => "wrongtype",
            Self::Moved => "moved",
            Self::Busy => "busy",
            Self::NoReplicas => "noreplicas",
            Self::ClusterDown => "clusterdown",
            Self::Server => "server",
            Self::Protocol => "protocol",
        }
    }

    /// Whether waiting a little may help.
    pub(crate) fn is_transient(self) -> bool {
        !matches!(
            self,
            Self::Auth | Self::Tls | Self::NoPermission | Self::WrongType | Self::Moved | Self::Protocol
        )
    }

    /// Whether the server answered, so that nothing was done and nothing is still under way.
    fn is_refusal(self) -> bool {
        !matches!(self, Self::Timeout | Self::Connect | Self::Protocol | Self::Server)
    }
}

/// A store that could not do what it was asked.
///
/// The message names the cause in words and never carries a password, key or token. [`source`](Error::source)
/// gives the client library's own error, where there is one.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    never_sent: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error of the given kind; `message` says more for the log.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), never_sent: false, source: None }
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Says that the command never left, so nothing can have been done.
    #[must_use]
    pub fn never_sent(mut self) -> Self {
        self.never_sent = true;
        self
    }

    /// Says in the message what was being done.
    #[must_use]
    pub(crate) fn in_step(mut self, step: &str) -> Self {
        self.message = format!("{step} failed: {}", self.message);
        self
    }

    /// The cause, from a closed list.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the command may have been carried out, or may still be.
    pub fn is_unresolved(&self) -> bool {
        !self.never_sent && !self.kind.is_refusal()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
