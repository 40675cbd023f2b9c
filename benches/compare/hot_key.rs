//! One key that everybody wants, with about a millisecond of work per turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::monitor::counting;
use crate::peers::{Ideal, Ours, Peer, Rslock};
use crate::plan::Plan;
use crate::report::{Goal, Report, table};
use crate::rounds::{Lane, interleave, quantile};
use crate::server::Server;

const TASKS: usize = 64;
pub(crate) const WORK: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Sample {
    turns: f64,
    per_second: f64,
    /// Milliseconds of waiting for a turn.
    p50: f64,
    p99: f64,
    worst: f64,
}

/// Each task has `turns` turns.
async fn run<P: Peer>(peer: &P, key: &str, turns: usize) -> Sample {
    let peer = Arc::new(peer.clone());
    let start = Instant::now();
    let workers: Vec<_> = (0..TASKS)
        .map(|_| {
            let peer = Arc::clone(&peer);
            let key = peer.key(key);
            tokio::spawn(async move {
                let mut waits = Vec::with_capacity(turns);
                for _ in 0..turns {
                    let asked = Instant::now();
                    let held = peer.take(&key).await;
                    waits.push(asked.elapsed().as_secs_f64() * 1e3);
                    sleep(WORK).await;
                    peer.give_back(&key, held).await;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for worker in workers {
        waits.extend(worker.await.expect("a task ends"));
    }
    Sample {
        turns: waits.len() as f64,
        per_second: waits.len() as f64 / start.elapsed().as_secs_f64(),
        p50: quantile(waits.clone(), 0.5),
        p99: quantile(waits.clone(), 0.99),
        worst: quantile(waits, 1.0),
    }
}

pub(crate) async fn measure(server: &Server, plan: &Plan, report: &mut Report) {
    let ours = &Ours::new(server).await;
    let rslock = &Rslock::new(server);
    let ideal = &Ideal::new(server).await;
    // Whoever is unlucky in a lottery waits for seconds: the run has to be longer than that.
    let turns = plan.samples(30);
    let mut lanes = [
        Lane::new(Ours::NAME, || run(ours, "hot", turns)),
        Lane::new(Rslock::NAME, || run(rslock, "hot", turns)),
        Lane::new(Ideal::NAME, || run(ideal, "hot", turns)),
    ];
    interleave(&mut lanes, plan.rounds(3)).await;
    table(
        "64 tasks, one key, about 1 ms of work",
        &lanes,
        &[
            ("wait p50 ms", &|sample| sample.p50),
            ("p99 ms", &|sample| sample.p99),
            ("worst ms", &|sample| sample.worst),
            ("turns per second", &|sample| sample.per_second),
        ],
    );
    let [ours_p99, rslock_p99, ideal_p99] = lanes.map(|lane| lane.median(|sample| sample.p99));
    report.ratio("hot_key_p99_wait_vs_rslock", ours_p99, rslock_p99, Goal::AtMost(0.125));

    // Counted in runs of their own, which are not timed.
    let (ours_sample, ours_commands) = counting(server, "ours:counted", run(ours, "counted", turns)).await;
    let (rslock_sample, rslock_commands) =
        counting(server, "rslock:counted", run(rslock, "counted", turns)).await;
    println!("  client commands per turn:");
    println!("    ours    {}", ours_commands.show(ours_sample.turns));
    println!("    rslock  {}", rslock_commands.show(rslock_sample.turns));
    let ours_per_turn = ours_commands.total() / ours_sample.turns;
    let rslock_per_turn = rslock_commands.total() / rslock_sample.turns;
    report.ratio("hot_key_commands_vs_rslock", ours_per_turn, rslock_per_turn, Goal::AtMost(0.25));
    report.ratio("hot_key_p99_wait_vs_ideal", ours_p99, ideal_p99, Goal::AtMost(1.25));
    report.figure("hot_key_commands_per_turn", ours_per_turn, "commands", Goal::AtMost(1.2));
}

/// What the waiters of one process cost the server while another program holds the lock.
pub(crate) async fn measure_waiters(server: &Server, plan: &Plan, report: &mut Report) {
    let span = plan.span(Duration::from_secs(6));
    let mut per_second = Vec::new();
    println!("\nwaiters of one process for a lock that another program holds");
    for waiters in [1_usize, 1_000] {
        let ours = Ours::new(server).await;
        let key = format!("waiters:{waiters}");
        let mut set = redis::cmd("SET");
        set.arg(format!("ours:{key}")).arg("somebody").arg("PX").arg(60_000);
        set.exec_async(&mut server.connection().await).await.expect("SET");
        let waiting: Vec<_> = (0..waiters)
            .map(|_| {
                let (ours, key) = (ours.clone(), ours.key(&key));
                tokio::spawn(async move { drop(ours.0.acquire(&key).await) })
            })
            .collect();
        // Everybody has come, and the pauses between polls have grown.
        sleep(Duration::from_secs(2)).await;
        let ((), commands) = counting(server, &format!("ours:{key}"), sleep(span)).await;
        for waiter in waiting {
            waiter.abort();
        }
        let each_second = commands.total() / span.as_secs_f64();
        println!(
            "  {waiters:>5}: {each_second:.2} commands per second ({})",
            commands.show(span.as_secs_f64())
        );
        per_second.push(each_second);
    }
    report.figure("one_waiter_commands_per_second", per_second[0], "commands", Goal::None);
    report.figure("1000_waiters_commands_per_second", per_second[1], "commands", Goal::None);
}
