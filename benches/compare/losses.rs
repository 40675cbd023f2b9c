//! How soon a holder knows that its lock is lost.

use std::time::{Duration, Instant};

use redis::Cmd;
use rustix::process::Signal;
use tokio::time::sleep;
use tower_redis_lock::{LockGuard, LockKey, LockSettings, Locker, RedisStore};

use crate::plan::Plan;
use crate::processes::{Child, monotonic_now};
use crate::report::{Goal, Report};
use crate::rounds::quantile;
use crate::server::Server;

/// Of the locks that are cut off from Redis, or whose process is paused.
const SHORT_TTL: Duration = Duration::from_millis(1_500);

async fn locker(server: &Server, settings: LockSettings) -> Locker {
    let store = RedisStore::connect(&server.url()).await.expect("a store");
    Locker::builder(store).prefix("losses:").settings(settings).build().expect("a locker")
}

/// Takes a lock per name.
async fn take_all(locker: &Locker, names: impl Iterator<Item = String>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for name in names {
        let key = LockKey::new(name).expect("valid");
        guards.push(locker.acquire(&key).await.expect("acquired"));
    }
    guards
}

/// `damage` makes a command of a lock's key. From just before it is sent, and `delay` later, until the
/// holder knows.
async fn damaged(
    server: &Server,
    kind: &str,
    count: usize,
    delay: u64,
    damage: fn(&[u8]) -> Cmd,
) -> Vec<f64> {
    let locker = locker(server, LockSettings::default()).await;
    let guards = take_all(&locker, (0..count).map(|index| format!("{kind}:{index}"))).await;
    let holders: Vec<_> = guards
        .into_iter()
        .map(|guard| {
            let client = server.client();
            tokio::spawn(async move {
                let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
                sleep(Duration::from_millis(fastrand::u64(400..900))).await;
                let start = Instant::now();
                damage(guard.held().key().as_bytes()).exec_async(&mut connection).await.expect("damaged");
                let _reason = guard.held().lost().await;
                start.elapsed().as_secs_f64() * 1e3 - delay as f64
            })
        })
        .collect();
    let mut took = Vec::new();
    for holder in holders {
        took.push(holder.await.expect("the holder is told"));
    }
    took
}

/// Never renewed: from the expiry, counted from just before the lock was asked for. Negative: before it.
async fn expired(server: &Server, count: usize) -> Vec<f64> {
    let ttl = Duration::from_millis(800);
    let settings = LockSettings::builder().ttl(ttl).without_renewal().build().expect("valid");
    let locker = locker(server, settings).await;
    let mut took = Vec::new();
    for index in 0..count {
        let asked = Instant::now();
        let guards = take_all(&locker, std::iter::once(format!("expired:{index}"))).await;
        took.push(tokio::spawn(async move {
            let _reason = guards[0].held().lost().await;
            asked.elapsed().as_secs_f64() * 1e3 - ttl.as_secs_f64() * 1e3
        }));
    }
    let mut values = Vec::new();
    for holder in took {
        values.push(holder.await.expect("the holder is told"));
    }
    values
}

/// Redis stands still: from then until the holder gives up. At most ttl − margin.
async fn cut_off(server: &Server, count: usize) -> Vec<f64> {
    let settings = LockSettings::builder().ttl(SHORT_TTL).build().expect("valid");
    let locker = locker(server, settings).await;
    let guards = take_all(&locker, (0..count).map(|index| format!("cut-off:{index}"))).await;
    sleep(Duration::from_millis(900)).await;
    let start = Instant::now();
    server.pause();
    let holders: Vec<_> = guards
        .into_iter()
        .map(|guard| {
            tokio::spawn(async move {
                let _reason = guard.held().lost().await;
                start.elapsed().as_secs_f64() * 1e3
            })
        })
        .collect();
    let mut took = Vec::new();
    for holder in holders {
        took.push(holder.await.expect("the holder gives up"));
    }
    server.resume();
    took
}

/// The process stands still for longer than the ttl: from its going on until its handlers are told.
async fn paused(server: &Server, rounds: usize) -> Vec<f64> {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let ttl = SHORT_TTL.as_millis().to_string();
        let mut child = Child::start(&["hold", &server.url(), &ttl, "8"]).await;
        child.go().await;
        sleep(Duration::from_millis(300)).await;
        child.signal(Signal::STOP);
        sleep(SHORT_TTL + Duration::from_millis(200)).await;
        let start = monotonic_now();
        child.signal(Signal::CONT);
        for told in child.line().await.split(' ') {
            let told: Duration = Duration::from_nanos(told.parse().expect("a time"));
            took.push((told.saturating_sub(start)).as_secs_f64() * 1e3);
        }
    }
    took
}

pub(crate) async fn measure(server: &mut Server, plan: &Plan, report: &mut Report) {
    let count = plan.samples(40);
    println!("\nfrom a loss to the holder's knowing it, ms ({count} locks each)");
    let show = |name: &str, took: &[f64], report: &mut Report| {
        let at = |share| quantile(took.to_vec(), share);
        println!("  {name:<46} median {:>8.2}  p90 {:>8.2}  worst {:>8.2}", at(0.5), at(0.9), at(1.0));
        let name = name.split(':').next().unwrap_or(name).replace(' ', "_");
        report.figure(format!("loss_{name}_median"), at(0.5), "ms", Goal::None);
    };
    let deleted = damaged(server, "deleted", count, 0, |key| {
        let mut command = redis::cmd("DEL");
        command.arg(key);
        command
    });
    show("deleted", &deleted.await, report);
    let taken_over = damaged(server, "taken-over", count, 0, |key| {
        let mut command = redis::cmd("SET");
        command.arg(key).arg("a rival").arg("PX").arg(5_000);
        command
    });
    show("taken over", &taken_over.await, report);
    let shortened = damaged(server, "shortened", count, 50, |key| {
        let mut command = redis::cmd("PEXPIRE");
        command.arg(key).arg(50);
        command
    });
    show("expiry moved forward: from the new expiry", &shortened.await, report);
    show("expired without renewal: from the expiry", &expired(server, count).await, report);
    let name = format!("redis stands still: ttl {} ms", SHORT_TTL.as_millis());
    show(&name, &cut_off(server, count).await, report);
    show("process was paused: from its going on", &paused(server, plan.rounds(5)).await, report);
}
