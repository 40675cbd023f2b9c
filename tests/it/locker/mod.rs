//! The lock without HTTP, on paused time where time matters.

mod acquire;
mod release;
mod renewal;
mod runtimes;
mod shutdown;
