//! What the tests stand on: real servers, real processes, and faults between them.
//!
//! One module per thing. Whatever is started here is stopped when its owner is dropped, and a
//! program that is missing fails the test with the package to install.

pub(crate) mod eventually;
pub(crate) mod http;
pub(crate) mod log_lines;
pub(crate) mod metrics_text;
pub(crate) mod orders_process;
pub(crate) mod overlap;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod raw_http;
pub(crate) mod redis_monitor;
pub(crate) mod redis_server;
pub(crate) mod resp;
mod rig_tests;
pub(crate) mod running;
pub(crate) mod settled;
pub(crate) mod wall_clock;
