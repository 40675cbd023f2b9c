//! Ours beside what else there is, and beside what it has to be.
//!
//! `cargo bench --bench compare` starts a Redis of its own on a private port, lets everybody take turns over
//! several rounds, and prints the medians: a table, one line `ratio <name> <value> (<ours> / <theirs>)` for each
//! comparison, one line `figure <name> <value>` for each other number. `COMPARE=quick` makes it short, and
//! other words in `COMPARE` choose sections (`uncontended`, `hot_key`, `waiters`, `foreign`, `losses`,
//! `processes`, `middleware`). Nothing is asserted: a slow machine prints slow numbers.

#![allow(clippy::print_stdout, missing_docs, reason = "a program, not a library")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "it may fail loudly")]
#![allow(clippy::disallowed_methods, reason = "the rules of src do not bind it")]

#[path = "compare/foreign.rs"]
mod foreign;
#[path = "compare/hot_key.rs"]
mod hot_key;
#[path = "compare/losses.rs"]
mod losses;
#[path = "compare/middleware.rs"]
mod middleware;
#[path = "compare/monitor.rs"]
mod monitor;
#[path = "compare/peers.rs"]
mod peers;
#[path = "compare/plan.rs"]
mod plan;
#[path = "compare/processes.rs"]
mod processes;
#[path = "compare/report.rs"]
mod report;
#[path = "compare/rounds.rs"]
mod rounds;
#[path = "compare/server.rs"]
mod server;
#[path = "compare/uncontended.rs"]
mod uncontended;

use self::plan::Plan;
use self::report::Report;
use self::server::Server;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(worker) = processes::Worker::from_arguments(&arguments) {
        return runtime.block_on(worker.run());
    }
    // `cargo test --all-targets` runs benches too, without this argument.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("nothing is measured here; run cargo bench --bench compare");
    }
    runtime.block_on(measure(Plan::from_environment()));
}

async fn measure(plan: Plan) {
    let mut server = Server::start().await;
    let mut report = Report::default();
    server.describe().await;
    if plan.includes("uncontended") {
        uncontended::measure(&server, &plan, &mut report).await;
    }
    if plan.includes("hot_key") {
        hot_key::measure(&server, &plan, &mut report).await;
    }
    if plan.includes("waiters") {
        hot_key::measure_waiters(&server, &plan, &mut report).await;
    }
    if plan.includes("foreign") {
        foreign::measure(&server, &plan, &mut report).await;
    }
    if plan.includes("losses") {
        losses::measure(&mut server, &plan, &mut report).await;
    }
    if plan.includes("processes") {
        processes::measure(&server, &plan, &mut report).await;
    }
    // Last: from here on there is a recorder, and it stays.
    if plan.includes("middleware") {
        middleware::measure(&server, &plan, &mut report).await;
    }
    report.print();
}
