//! The integration tests: one binary, a module for each room.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "the rules of src do not bind its tests")]

mod body;
mod cancellation;
mod doubles;
mod layer;
mod locker;
mod orders_acquire;
mod orders_chaos;
mod orders_connections;
mod orders_logs;
mod orders_ownership;
mod orders_promises;
mod orders_redis_states;
mod orders_release;
mod orders_renewal;
mod store_contract;
mod support;
mod telemetry;
mod tidy;
