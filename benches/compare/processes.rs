//! Several processes: this program again, with other arguments.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::sleep;
use tower_redis_lock::{LockKey, LockSettings, Locker, RedisStore};

use crate::hot_key::WORK;
use crate::middleware;
use crate::monitor::counting;
use crate::peers::{Ours, Peer};
use crate::plan::Plan;
use crate::report::{Goal, Report};
use crate::rounds::median;
use crate::server::Server;

const WORKER: &str = "worker";

/// What a child does: gets ready and says so, begins when told, and answers with one line.
#[derive(Debug)]
pub(crate) enum Worker {
    /// Takes turns on one key, and tells how many it had.
    Hot { url: String, span: Duration, tasks: usize },
    /// Takes locks and tells when each was lost.
    Hold { url: String, ttl: Duration, locks: usize },
    /// Sends requests through the layer.
    Middleware { url: String, span: Duration, recorder: bool },
}

impl Worker {
    pub(crate) fn from_arguments(arguments: &[String]) -> Option<Self> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let [WORKER, kind, url, millis, more] = words[..] else { return None };
        let url = url.to_owned();
        let span = Duration::from_millis(millis.parse().expect("milliseconds"));
        Some(match kind {
            "hot" => Self::Hot { url, span, tasks: more.parse().expect("a number") },
            "hold" => Self::Hold { url, ttl: span, locks: more.parse().expect("a number") },
            "middleware" => Self::Middleware { url, span, recorder: more == "recorder" },
            other => panic!("no worker {other}"),
        })
    }

    pub(crate) async fn run(self) {
        match self {
            Self::Hot { url, span, tasks } => hot(&url, span, tasks).await,
            Self::Hold { url, ttl, locks } => hold(&url, ttl, locks).await,
            Self::Middleware { url, span, recorder } => {
                if recorder {
                    middleware::install_recorder();
                }
                let app = middleware::ours(&url).await;
                middleware::run(&app, Duration::from_millis(200)).await;
                until_told().await;
                let sample = middleware::run(&app, span).await;
                println!("{} {}", sample.per_second, sample.own_cpu);
            }
        }
    }
}

async fn until_told() {
    println!("ready");
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await.expect("told");
}

async fn hot(url: &str, span: Duration, tasks: usize) {
    let ours = Ours::at(url).await;
    until_told().await;
    let end = Instant::now() + span;
    let workers: Vec<_> = (0..tasks)
        .map(|_| {
            let ours = ours.clone();
            tokio::spawn(async move {
                let key = ours.key("processes");
                let mut turns = 0_u32;
                while Instant::now() < end {
                    let held = ours.take(&key).await;
                    sleep(WORK).await;
                    turns += u32::from(Instant::now() < end);
                    ours.give_back(&key, held).await;
                }
                turns
            })
        })
        .collect();
    let mut turns = 0;
    for worker in workers {
        turns += worker.await.expect("a task ends");
    }
    println!("{turns}");
}

async fn hold(url: &str, ttl: Duration, locks: usize) {
    let settings = LockSettings::builder().ttl(ttl).build().expect("valid");
    let store = RedisStore::connect(url).await.expect("a store");
    let locker = Locker::builder(store).prefix("paused:").settings(settings).build().expect("a locker");
    let mut holders = Vec::new();
    for index in 0..locks {
        let key = LockKey::new(format!("{}:{index}", std::process::id())).expect("valid");
        let guard = locker.acquire(&key).await.expect("acquired");
        holders.push(tokio::spawn(async move {
            let _reason = guard.held().lost().await;
            monotonic_now().as_nanos().to_string()
        }));
    }
    until_told().await;
    let mut told = Vec::new();
    for holder in holders {
        told.push(holder.await.expect("the holder is told"));
    }
    println!("{}", told.join(" "));
}

/// The same in all processes of the machine.
pub(crate) fn monotonic_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A worker that has got ready. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Child {
    process: tokio::process::Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Child {
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program's path"))
            .arg(WORKER)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program runs again");
        let stdin = process.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let mut child = Self { process, stdin, stdout };
        assert_eq!(child.line().await, "ready");
        child
    }

    pub(crate) async fn go(&mut self) {
        self.stdin.write_all(b"go\n").await.expect("told");
    }

    pub(crate) async fn line(&mut self) -> String {
        self.stdout.next_line().await.expect("read").expect("the worker answers")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        kill_process(pid, signal).expect("a signal is sent");
    }
}

/// How many turns each of `processes` processes had.
async fn turns(server: &Server, processes: usize, tasks: usize, span: Duration) -> Vec<f64> {
    let (url, span, tasks) = (server.url(), span.as_millis().to_string(), tasks.to_string());
    let mut children = Vec::new();
    for _ in 0..processes {
        children.push(Child::start(&["hot", &url, &span, &tasks]).await);
    }
    for child in &mut children {
        child.go().await;
    }
    let mut turns = Vec::new();
    for child in &mut children {
        turns.push(child.line().await.parse().expect("a number"));
    }
    turns
}

pub(crate) async fn measure(server: &Server, plan: &Plan, report: &mut Report) {
    let span = plan.span(Duration::from_secs(10));
    println!("\none key, {} s, about 1 ms of work", span.as_secs_f64());
    let mut per_second = Vec::new();
    for (processes, tasks) in [(1, 64), (4, 16)] {
        let work = turns(server, processes, tasks, span);
        let (turns, commands) = counting(server, "ours:processes", work).await;
        let total: f64 = turns.iter().sum();
        let shares: Vec<_> = turns.iter().map(|turns| format!("{:.3}", turns / total)).collect();
        println!(
            "  {processes} x {tasks} tasks: {:.0} turns per second, shares {}, commands per turn {}",
            total / span.as_secs_f64(),
            shares.join(" "),
            commands.show(total)
        );
        per_second.push(total / span.as_secs_f64());
        if processes > 1 {
            let least = turns.iter().copied().fold(f64::INFINITY, f64::min) / (total / processes as f64);
            report.figure("4_processes_least_share_of_even", least, "", Goal::AtLeast(0.5));
            report.figure("4_processes_commands_per_turn", commands.total() / total, "", Goal::AtMost(6.0));
        }
    }
    report.ratio("4_processes_turns_vs_one_process", per_second[1], per_second[0], Goal::AtLeast(0.7));
}

/// What metrics cost: the same requests in a process with a recorder and in one without.
pub(crate) async fn measure_metrics(server: &Server, plan: &Plan, report: &mut Report) {
    let url = server.url();
    let millis = plan.span(Duration::from_millis(600)).as_millis().to_string();
    let mut cpu = [Vec::new(), Vec::new()];
    for _ in 0..plan.rounds(9) {
        for (kind, cpu) in ["recorder", "none"].into_iter().zip(&mut cpu) {
            let mut child = Child::start(&["middleware", &url, &millis, kind]).await;
            child.go().await;
            let line = child.line().await;
            cpu.push(line.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a number"));
        }
    }
    let [with, without] = cpu.map(median);
    println!(
        "\nprocessor time per request: {with:.2} us with a Prometheus recorder, {without:.2} us without"
    );
    report.figure("metrics_cost_per_request", with - without, "us", Goal::None);
}
