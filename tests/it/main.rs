//! The integration tests: one binary, a module for each room.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;
