//! A service that ships orders, one request at a time per order.
//!
//! `cargo run --release --example orders` serves on an in-memory store; `--redis-url` uses a real Redis, and
//! then several instances share the locks. `--help` lists the options, each of which is an environment
//! variable too.

#![allow(clippy::print_stdout, missing_docs, reason = "a program, not a library")]
#![allow(clippy::disallowed_methods, reason = "a program has tasks of its own")]

mod options;
mod routes;
mod serve;

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use tower_redis_lock::telemetry::prometheus;
use tower_redis_lock::{BuildError, LockSettings, LockStore, Locker, MemoryStore, RedisStore};

use self::options::Options;

/// How long locks may take to be released after the server has drained.
const RELEASES: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let options = Options::parse();
    let settings = options.settings().unwrap_or_else(|error| options::refuse(&error));

    let recorder =
        prometheus::with_buckets(prometheus::metrics_exporter_prometheus::PrometheusBuilder::new())?
            .build_recorder();
    let metrics = recorder.handle();
    ::metrics::set_global_recorder(recorder)?;
    tokio::spawn(prometheus::upkeep(metrics.clone()));

    let locker = match &options.redis_url {
        Some(url) => {
            let store = RedisStore::new(url).unwrap_or_else(|error| options::refuse_url(&error));
            if let Err(error) = store.probe(&options.prefix).await {
                tracing::error!(%error, "the lock store cannot be used yet");
            }
            locker(store, &options, settings)?
        }
        None => {
            eprintln!("no --redis-url: locks are kept in the memory of this process only");
            locker(MemoryStore::new(), &options, settings)?
        }
    };
    locker.register_metrics();

    let app = routes::router(locker.clone(), metrics)?;
    let listener = tokio::net::TcpListener::bind(options.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve::until_terminated(listener, app).await?;
    let report = locker.shutdown(RELEASES).await;
    if report.unfinished() > 0 {
        tracing::warn!(unfinished = report.unfinished(), "locks are left to expire");
    }
    Ok(())
}

fn locker(store: impl LockStore, options: &Options, settings: LockSettings) -> Result<Locker, BuildError> {
    Locker::builder(store).prefix(&options.prefix).name("orders").settings(settings).build()
}
