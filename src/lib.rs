//! A tower [`Layer`](tower_layer::Layer) that serialises requests which touch the same thing.
//!
//! It derives a lock key from each request, takes the lock in Redis with a bounded wait, answers 409 while
//! somebody else holds it, renews it while the handler runs, stops (or tells) the handler when the lock is
//! lost, releases it on every way out, and exports all of it as metrics.
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_redis_lock::{LockLayer, Locker, MemoryStore, PathTemplate};
//!
//! async fn ship() -> &'static str {
//!     "shipped"
//! }
//!
//! // In production: RedisStore::new("redis://127.0.0.1/")?
//! let locker = Locker::builder(MemoryStore::new()).prefix("orders:").name("orders").build()?;
//! let per_order = PathTemplate::new("order:{id}")?.route("/orders/{id}/ship")?;
//! let app: Router = Router::new()
//!     .route("/orders/{id}/ship", post(ship))
//!     .route_layer(LockLayer::new(locker, per_order));
//! # drop(app);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a request
//!
//! ```text
//! request
//!   │  service       derives the key from the head; never touches Redis
//!   ├──────────────► nothing to lock: inner service, untouched
//!   ├──────────────► no key can be derived: 400
//!   ▼
//! acquire            bounded by max_wait and max_attempts
//!   ├──────────────► held by another: 409 + Retry-After
//!   ├──────────────► store unusable: 503 + Retry-After (or proceed unguarded, if chosen)
//!   ▼
//! handler            with a HeldLock in the request's extensions
//!   │                the keeper renews at ttl/3; lost: handler dropped, 500 (or only told, if chosen)
//!   ▼
//! response head ───► body complete? release, then answer
//!               └──► still streaming? answer, hold and renew, release at the end of the body
//! ```
//!
//! # What it promises, and what not
//!
//! Two live holders of one key never both believe that they hold it for longer than the lease's own safety
//! margin allows, on one healthy Redis. A lock always has an expiry, so a dead holder's lock is free after
//! at most one ttl. A holder learns of a loss no later than the sending of its last confirmed renewal + ttl
//! − margin, by its own monotonic clock, even when Redis cannot be reached.
//!
//! It does not promise exactly-once effects, nor mutual exclusion across a Redis fail-over: give
//! [`HeldLock::fencing_token`] to what the lock protects, and let it refuse lower numbers. A handler that
//! blocks its thread cannot be stopped: dropping a future stops it at its next await.
//!
//! # Features
//!
//! All off by default; each only adds.
//!
//! - `axum`: [`PathTemplate`] sees the whole path in nested routers.
//! - `prometheus`: buckets for metrics-exporter-prometheus, and a `/metrics` service.
//! - `store-contract`: the tests that every [`LockStore`] has to pass, for stores of your own.
//! - `tls-rustls`: `rediss://` URLs.
//!
//! # Metrics
//!
//! See [`telemetry::names`].

// In the order in which a request walks through them.
mod layer;
mod service;
mod patience;
mod future;
mod handler;
mod body;
mod rejection;
mod key;
mod settings;
mod locker;
mod queue;
mod backoff;
mod hold;
mod guard;
mod lease;
mod clock;
mod sync;
mod keeper;
pub mod store;
pub mod telemetry;

pub use bb8_redis;
pub use metrics;

pub use crate::body::{LockedBody, LockedBodyError};
pub use crate::clock::Clock;
pub use crate::future::{ResponseFuture, Unguarded};
pub use crate::guard::{FencingError, HeldLock, KeptLock, LockGuard, ReleaseError};
pub use crate::keeper::KeeperMode;
pub use crate::key::{
    ExtractKeyError, HeaderKey, IntoExtracted, JoinedKey, KeyError, KeyExtractor, LockKey, PathTemplate,
    TemplateError,
};
pub use crate::layer::LockLayer;
pub use crate::lease::LostReason;
pub use crate::locker::{
    AcquireError, BuildError, Contended, Locker, LockerBuilder, ShutdownReport, WithLockError,
};
pub use crate::rejection::Rejection;
pub use crate::service::LockService;
pub use crate::settings::{
    HoldUntil, LockSettings, LockSettingsBuilder, OnDisconnect, OnLost, OnStoreError, ReleaseMode,
    SettingsError,
};
pub use crate::store::{LockStore, MemoryStore, RedisStore};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
