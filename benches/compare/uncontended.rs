//! Locks that nobody else wants: each task has a key of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::peers::{Bare, Bb8, Handwritten, Ours, Peer, Rslock};
use crate::plan::Plan;
use crate::report::{Goal, Report, table};
use crate::rounds::{Lane, interleave, quantile, warm_up};
use crate::server::{Server, own_cpu};

/// One round of one contender.
#[derive(Debug)]
struct Sample {
    per_second: f64,
    /// Microseconds of this process' processor time for one take and give back.
    own_cpu: f64,
    /// Microseconds of the server's.
    server_cpu: f64,
    /// Microseconds from the start of taking to the end of giving back.
    p50: f64,
    p99: f64,
}

/// `tasks` tasks take and give back, as fast as they can, for `span`.
async fn run<P: Peer>(server: &Server, peer: &P, tasks: usize, span: Duration) -> Sample {
    let peer = Arc::new(peer.clone());
    let cpu = (own_cpu(), server.cpu());
    let start = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let peer = Arc::clone(&peer);
            tokio::spawn(async move {
                let key = peer.key(&format!("uncontended:{task}"));
                let mut took = Vec::with_capacity(4096);
                let mut now = Instant::now();
                while now - start < span {
                    let held = peer.take(&key).await;
                    peer.give_back(&key, held).await;
                    let end = Instant::now();
                    took.push((end - now).as_secs_f64() * 1e6);
                    now = end;
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for worker in workers {
        took.extend(worker.await.expect("a task ends"));
    }
    let elapsed = start.elapsed().as_secs_f64();
    let turns = took.len() as f64;
    Sample {
        per_second: turns / elapsed,
        own_cpu: (own_cpu() - cpu.0).as_secs_f64() * 1e6 / turns,
        server_cpu: (server.cpu() - cpu.1).as_secs_f64() * 1e6 / turns,
        p50: quantile(took.clone(), 0.5),
        p99: quantile(took, 0.99),
    }
}

pub(crate) async fn measure(server: &Server, plan: &Plan, report: &mut Report) {
    let ours = &Ours::new(server).await;
    let handwritten = &Handwritten::new(server).await;
    let rslock = &Rslock::new(server);
    let bb8 = &Bb8::new(server).await;
    let bare = &Bare::new(server).await;

    let span = plan.span(Duration::from_millis(400));
    let mut lanes = [
        Lane::new(Ours::NAME, || run(server, ours, 64, span)),
        Lane::new(Handwritten::NAME, || run(server, handwritten, 64, span)),
        Lane::new(Rslock::NAME, || run(server, rslock, 64, span)),
        Lane::new(Bb8::NAME, || run(server, bb8, 64, span)),
        Lane::new(Bare::NAME, || run(server, bare, 64, span)),
    ];
    warm_up(&lanes).await;
    interleave(&mut lanes, plan.rounds(13)).await;
    table(
        "64 tasks, 64 keys, take and give back",
        &lanes,
        &[
            ("per second", &|sample| sample.per_second),
            ("own us", &|sample| sample.own_cpu),
            ("server us", &|sample| sample.server_cpu),
        ],
    );
    let [ours_per_second, handwritten_per_second, rslock_per_second, bb8_per_second, bare_per_second] =
        lanes.map(|lane| lane.median(|sample| sample.per_second));
    report.ratio(
        "uncontended_throughput_vs_handwritten",
        ours_per_second,
        handwritten_per_second,
        Goal::AtLeast(1.10),
    );
    report.ratio("uncontended_throughput_vs_rslock", ours_per_second, rslock_per_second, Goal::AtLeast(1.4));
    report.ratio("uncontended_throughput_vs_bb8", ours_per_second, bb8_per_second, Goal::AtLeast(2.2));
    let best = bare_per_second / handwritten_per_second;
    report.figure("bare_throughput_vs_handwritten", best, "", Goal::None);

    let mut lanes = [
        Lane::new(Ours::NAME, || run(server, ours, 1, span)),
        Lane::new(Handwritten::NAME, || run(server, handwritten, 1, span)),
        Lane::new(Rslock::NAME, || run(server, rslock, 1, span)),
        Lane::new(Bb8::NAME, || run(server, bb8, 1, span)),
        Lane::new(Bare::NAME, || run(server, bare, 1, span)),
    ];
    warm_up(&lanes).await;
    interleave(&mut lanes, plan.rounds(9)).await;
    table(
        "one task, take and give back",
        &lanes,
        &[
            ("p50 us", &|sample| sample.p50),
            ("p99 us", &|sample| sample.p99),
            ("own us", &|sample| sample.own_cpu),
        ],
    );
    let [ours_p50, handwritten_p50, ..] = lanes.map(|lane| lane.median(|sample| sample.p50));
    report.ratio("uncontended_latency_vs_handwritten", ours_p50, handwritten_p50, Goal::AtMost(1.10));

    let mut lanes = [
        Lane::new(Ours::NAME, || run(server, ours, 512, span)),
        Lane::new(Handwritten::NAME, || run(server, handwritten, 512, span)),
        Lane::new(Rslock::NAME, || run(server, rslock, 512, span)),
        Lane::new(Bare::NAME, || run(server, bare, 512, span)),
    ];
    warm_up(&lanes).await;
    interleave(&mut lanes, plan.rounds(9)).await;
    table(
        "512 tasks, 512 keys, take and give back",
        &lanes,
        &[
            ("p50 us", &|sample| sample.p50),
            ("p99 us", &|sample| sample.p99),
            ("per second", &|sample| sample.per_second),
        ],
    );
    let [ours_p99, handwritten_p99, ..] = lanes.map(|lane| lane.median(|sample| sample.p99));
    report.ratio("tail_vs_handwritten", ours_p99, handwritten_p99, Goal::AtMost(1.1));
}
