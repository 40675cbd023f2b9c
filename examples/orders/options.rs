//! The command line, checked; bad options end the program with exit code 2.

use std::net::SocketAddr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use tower_redis_lock::store::StoreError;
use tower_redis_lock::{LockSettings, OnLost, OnStoreError, ReleaseMode, SettingsError};

/// Ships orders, one request at a time per order.
#[derive(Debug, Parser)]
#[command(name = "orders")]
pub(crate) struct Options {
    /// Address to listen on; port 0 takes any free one
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,

    /// Redis to keep the locks in; absent, they are kept in memory
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub(crate) redis_url: Option<String>,

    /// How long a lock lives without a renewal
    #[arg(long, env = "LOCK_TTL", default_value = "30s", value_parser = humantime::parse_duration)]
    ttl: Duration,

    /// How long a request waits for its lock; 0s = one attempt
    #[arg(long, env = "LOCK_MAX_WAIT", default_value = "1s", value_parser = humantime::parse_duration)]
    max_wait: Duration,

    /// When the lock is given back
    #[arg(long, env = "LOCK_RELEASE", default_value = "before-response")]
    release: Release,

    /// What happens to the handler when its lock is lost
    #[arg(long, env = "LOCK_ON_LOST", default_value = "abort")]
    on_lost: Lost,

    /// What happens to a request when Redis cannot be used
    #[arg(long, env = "LOCK_ON_STORE_ERROR", default_value = "reject")]
    on_store_error: StoreFailure,

    /// How long a lock may be held; absent, as long as the handler runs
    #[arg(long, env = "LOCK_MAX_HOLD", value_parser = humantime::parse_duration)]
    max_hold: Option<Duration>,

    /// What every key starts with
    #[arg(long, env = "LOCK_PREFIX", default_value = "orders:")]
    pub(crate) prefix: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Release {
    BeforeResponse,
    Background,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Lost {
    Abort,
    Notify,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreFailure {
    Reject,
    Proceed,
}

impl Options {
    pub(crate) fn settings(&self) -> Result<LockSettings, SettingsError> {
        let settings = LockSettings::builder()
            .ttl(self.ttl)
            .max_wait(self.max_wait)
            .release(match self.release {
                Release::BeforeResponse => ReleaseMode::BeforeResponse,
                Release::Background => ReleaseMode::Background,
            })
            .on_lost(match self.on_lost {
                Lost::Abort => OnLost::Abort,
                Lost::Notify => OnLost::Notify,
            })
            .on_store_error(match self.on_store_error {
                StoreFailure::Reject => OnStoreError::Reject,
                StoreFailure::Proceed => OnStoreError::Proceed,
            });
        match self.max_hold {
            Some(limit) => settings.max_hold(limit).build(),
            None => settings.build(),
        }
    }
}

/// Ends the program with the name of the option and the rule that it breaks.
pub(crate) fn refuse(error: &SettingsError) -> ! {
    end(&error.field().replace('_', "-"), error.rule())
}

pub(crate) fn refuse_url(error: &StoreError) -> ! {
    end("redis-url", &error.to_string())
}

fn end(option: &str, rule: &str) -> ! {
    Options::command().error(ErrorKind::ValueValidation, format!("--{option} {rule}")).exit()
}
