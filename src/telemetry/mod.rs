//! The one place that names a metric.
//!
//! Metrics go through the [`metrics`] facade; the application installs a recorder, before or after it builds
//! layers. The [catalogue](names) is the list of what is exported. Every combination of known label values
//! exists at zero from the first acquisition, or from
//! [`Locker::register_metrics`](crate::Locker::register_metrics) if that comes first.
//!
//! Labels are closed sets: the static name of the lock or store, and enums. A lock key never is a label.

mod kept;
mod lock;
mod log;
pub mod names;
#[cfg(feature = "prometheus")]
pub mod prometheus;
mod registration;
mod store;

pub(crate) use lock::{
    Acquisition, AcquisitionOutcome, BypassReason, CleanupOutcome, HeldGauge, LockMetrics, RaisedGauge,
    ReleaseOutcome, RenewalOutcome, WakeCause,
};
pub use log::KeyDisplay;
pub(crate) use log::Throttle;
pub(crate) use registration::{Registered, register_lock, register_store};
pub(crate) use store::StoreMetrics;
