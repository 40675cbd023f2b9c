//! A program that is not ours holds the lock: how soon after its end does a waiter run?

use std::time::{Duration, Instant};

use redis::Script;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::peers::{Ours, Peer};
use crate::plan::Plan;
use crate::report::{Goal, Report};
use crate::rounds::quantile;
use crate::server::Server;

async fn take(connection: &mut MultiplexedConnection, key: &str, ttl: u64) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg("foreign").arg("NX").arg("PX").arg(ttl);
    let taken: Option<String> = set.query_async(connection).await.expect("SET");
    taken.expect("the lock is free");
}

/// From just before the holder's compare-and-delete is sent until the waiter has the lock, in ms.
async fn release_to_run(server: &Server, ours: &Ours) -> f64 {
    let connection = &mut server.connection().await;
    let compare_and_delete = Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
    );
    take(connection, "ours:foreign", 30_000).await;
    let waiter = wait_for(ours, "foreign");
    sleep(Duration::from_millis(fastrand::u64(60..260))).await;
    let released = Instant::now();
    let _one: i64 = compare_and_delete
        .key("ours:foreign")
        .arg("foreign")
        .invoke_async(connection)
        .await
        .expect("the script");
    let ran = waiter.await.expect("the waiter gets it");
    ran.saturating_duration_since(released).as_secs_f64() * 1e3
}

/// From the expiry, counted from just before the holder's `SET` was sent, until the waiter has it, in ms.
async fn expiry_to_run(server: &Server, ours: &Ours) -> f64 {
    let connection = &mut server.connection().await;
    let ttl = fastrand::u64(150..250);
    let set = Instant::now();
    take(connection, "ours:expiring", ttl).await;
    let ran = wait_for(ours, "expiring").await.expect("the waiter gets it");
    ran.saturating_duration_since(set + Duration::from_millis(ttl)).as_secs_f64() * 1e3
}

/// When the waiter had the lock; it has given it back since.
fn wait_for(ours: &Ours, key: &str) -> tokio::task::JoinHandle<Instant> {
    let (ours, key) = (ours.clone(), ours.key(key));
    tokio::spawn(async move {
        let held = ours.take(&key).await;
        let ran = Instant::now();
        ours.give_back(&key, held).await;
        ran
    })
}

pub(crate) async fn measure(server: &Server, plan: &Plan, report: &mut Report) {
    let ours = Ours::new(server).await;
    let mut releases = Vec::new();
    let mut expiries = Vec::new();
    for _ in 0..plan.samples(40) {
        releases.push(release_to_run(server, &ours).await);
    }
    for _ in 0..plan.samples(24) {
        expiries.push(expiry_to_run(server, &ours).await);
    }
    println!("\na foreign holder ({} releases, {} expiries)", releases.len(), expiries.len());
    for (name, values) in [("release to run", &releases), ("expiry to run", &expiries)] {
        let at = |share| quantile(values.clone(), share);
        println!("  {name}: median {:.2} ms, p90 {:.2} ms, worst {:.2} ms", at(0.5), at(0.9), at(1.0));
    }
    report.figure("foreign_release_to_run_median", quantile(releases, 0.5), "ms", Goal::AtMost(5.0));
    report.figure("foreign_expiry_to_run_median", quantile(expiries, 0.5), "ms", Goal::AtMost(20.0));
}
