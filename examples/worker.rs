//! A background job that runs on every instance of a service, and does its work on one at a time.
//!
//! `cargo run --example worker` bills an account with a lock held, gives the lock's fencing token to the
//! write, and shows what the token is for: the write of a holder that was paused for too long comes after
//! its successor's, and the table refuses it.

#![allow(clippy::print_stdout, missing_docs, reason = "a program, not a library")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use tower_redis_lock::{HeldLock, LockKey, LockSettings, Locker, MemoryStore, RedisStore};

/// Stands for a database table with the columns `account`, `balance` and `fence`.
#[derive(Debug, Default)]
struct Balances(Mutex<HashMap<String, Row>>);

#[derive(Debug, Default)]
struct Row {
    balance: i64,
    fence: u64,
}

impl Balances {
    /// `UPDATE balances SET balance = balance - :amount, fence = :fence WHERE account = :account AND
    /// fence < :fence`, and whether a row was changed.
    ///
    /// One token is good for one write here. Where a holder writes more than once, ask for `fence <= :fence`.
    fn debit(&self, account: &str, amount: i64, fence: u64) -> bool {
        let mut rows = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let row = rows.entry(account.to_owned()).or_default();
        if row.fence >= fence {
            return false;
        }
        *row = Row { balance: row.balance - amount, fence };
        true
    }
}

async fn bill(held: HeldLock, balances: &Balances) -> Result<(), Box<dyn Error>> {
    let fence = held.fencing_token().await?;
    // The slow part: reading meters, asking other services. If the lock is lost here, the work stops here.
    tokio::time::sleep(Duration::from_millis(100)).await;
    if !balances.debit("acme", 30, fence) {
        return Err("somebody with a newer lock has billed this account".into());
    }
    println!("billed with the fencing token {fence}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Wait for the other instances for a minute, and stop a run that takes longer than ten.
    let settings = LockSettings::builder()
        .max_wait(Duration::from_secs(60))
        .max_hold(Duration::from_secs(600))
        .build()?;
    let locker = match std::env::var("REDIS_URL") {
        Ok(url) => {
            let store = RedisStore::new(&url)?;
            store.probe("billing:").await?;
            Locker::builder(store).prefix("billing:").name("billing").settings(settings).build()?
        }
        Err(_) => Locker::builder(MemoryStore::new())
            .prefix("billing:")
            .name("billing")
            .settings(settings)
            .build()?,
    };
    let key = LockKey::from_parts(["account", "acme"])?;
    let balances = Balances::default();

    // Two runs that are started together take turns.
    let run = || locker.with_lock(&key, |held| bill(held, &balances));
    let (first, second) = tokio::join!(run(), run());
    first??;
    second??;

    // A holder gets its number, and its process stands still for so long that the lock expires.
    let paused = locker.acquire(&key).await?;
    let old_number = paused.held().fencing_token().await?;
    paused.release().await?; // Stands for the expiry.
    // Somebody else does the work meanwhile.
    run().await??;
    // The first one wakes up and writes, before anybody could tell it that its lock is gone.
    assert!(!balances.debit("acme", 30, old_number));
    println!("refused the late write with the fencing token {old_number}");

    let report = locker.shutdown(Duration::from_secs(5)).await;
    println!("{} locks left to expire", report.unfinished());
    Ok(())
}
