//! The lock without HTTP, on paused time where time matters.

mod acquire;
mod in_line;
mod release;
mod renewal;
mod runtimes;
mod shutdown;
mod watching;
