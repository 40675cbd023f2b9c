//! The example `orders` as a process of its own, as an operator runs it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::Signal;

use super::eventually::{eventually_some, secs};
use super::http::{Answer, HttpClient, Version};
use super::log_lines::LogLines;
use super::metrics_text::Metrics;
use super::process::Process;
use super::redis_server::RedisServer;
use super::running::Running;

/// The options of a process to be started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    options: Vec<(String, String)>,
    environment: Vec<(String, String)>,
}

impl Orders {
    /// With the in-memory store.
    pub(crate) fn in_memory() -> Self {
        Self::default().env("RUST_LOG", "info")
    }

    /// On a Redis server.
    pub(crate) fn on(redis: &RedisServer) -> Self {
        Self::at(&redis.url())
    }

    /// On whatever is behind a Redis URL.
    pub(crate) fn at(redis_url: &str) -> Self {
        Self::in_memory().option("--redis-url", redis_url)
    }

    /// Any option.
    pub(crate) fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// An environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `--ttl`
    pub(crate) fn ttl(self, duration: &str) -> Self {
        self.option("--ttl", duration)
    }

    /// `--max-wait`
    pub(crate) fn max_wait(self, duration: &str) -> Self {
        self.option("--max-wait", duration)
    }

    /// `--on-lost notify`: the handler goes on after its lock is lost.
    pub(crate) fn notify_on_lost(self) -> Self {
        self.option("--on-lost", "notify")
    }

    /// Starts the process without waiting for anything.
    pub(crate) fn spawn(self) -> Process {
        let mut command = Command::new(binary());
        // Options of the developer's shell are none of the test's.
        for name in ["LISTEN", "REDIS_URL", "RUST_LOG"] {
            command.env_remove(name);
        }
        for name in ["TTL", "MAX_WAIT", "RELEASE", "ON_LOST", "ON_STORE_ERROR", "MAX_HOLD", "PREFIX"] {
            command.env_remove(format!("LOCK_{name}"));
        }
        command.args(["--listen", "127.0.0.1:0"]);
        for (name, value) in &self.options {
            command.args([name, value]);
        }
        command.envs(self.environment);
        Process::start(&mut command, "build it with: cargo build --example orders")
    }

    /// Starts the process and waits until it listens.
    pub(crate) async fn start(self) -> RunningOrders {
        match self.try_start().await {
            Ok(running) => running,
            Err((status, stderr)) => panic!("`orders` ended with {status}: {:#?}", stderr.all()),
        }
    }

    /// Like [`start`](Self::start), for options with which it may end at once.
    pub(crate) async fn try_start(self) -> Result<RunningOrders, (ExitStatus, LogLines)> {
        let mut process = self.spawn();
        let started = eventually_some("`orders` to say where it listens", secs(60), async || {
            if let Some(status) = process.exit_status() {
                return Some(Err(status));
            }
            let line = process.stdout.find("listening on http://")?;
            Some(Ok(line.split("http://").nth(1)?.trim().parse().ok()?))
        })
        .await;
        match started {
            Ok(addr) => Ok(RunningOrders { http: HttpClient::new(addr, Version::H1), addr, process }),
            Err(status) => Err((status, process.stderr.clone())),
        }
    }
}

/// A process that listens. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RunningOrders {
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// An HTTP/1.1 client for it.
    pub(crate) http: HttpClient,
    process: Process,
}

impl RunningOrders {
    /// Ships an order: holds its lock for `work_ms`.
    pub(crate) async fn ship(&self, order: &str, work_ms: u64) -> Answer {
        self.http.post(&ship_path(order, work_ms)).await
    }

    /// Like [`ship`](Self::ship), at the same time as whatever the test does next.
    pub(crate) fn start_to_ship(&self, order: &str, work_ms: u64) -> Running<Answer> {
        let (http, path) = (self.http.clone(), ship_path(order, work_ms));
        Running::start(async move { http.post(&path).await })
    }

    /// What `/metrics` says.
    pub(crate) async fn metrics(&self) -> Metrics {
        // Over a connection of its own: those of the load may be cut by the test.
        let answer = HttpClient::new(self.addr, Version::H1).get("/metrics").await;
        assert_eq!(answer.status, http::StatusCode::OK, "{answer:?}");
        Metrics::parse(answer.text())
    }

    /// One series of the lock `orders`.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut all = vec![("lock", "orders")];
        all.extend(labels);
        self.metrics().await.value(name, &all)
    }

    /// `tower_lock_acquisitions_total` of one outcome.
    pub(crate) async fn acquisitions(&self, outcome: &str) -> f64 {
        self.metric("tower_lock_acquisitions_total", &[("outcome", outcome)]).await
    }

    /// The reasons for which locks were lost so far, one for each lock, in the order of the alphabet.
    pub(crate) async fn losses(&self) -> Vec<String> {
        let metrics = self.metrics().await;
        let mut losses = Vec::new();
        for reason in ["deleted", "expired", "max_hold", "taken_over", "unconfirmed"] {
            let labels = [("lock", "orders"), ("reason", reason)];
            let times = metrics.value("tower_lock_lost_total", &labels) as usize;
            losses.extend(std::iter::repeat_n(reason.to_owned(), times));
        }
        losses
    }

    /// `tower_lock_releases_total` of one outcome.
    pub(crate) async fn releases(&self, outcome: &str) -> f64 {
        self.metric("tower_lock_releases_total", &[("outcome", outcome)]).await
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> &LogLines {
        &self.process.stderr
    }

    /// SIGKILL: no line of its code runs after this.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM: asks it to end.
    pub(crate) fn terminate(&mut self) {
        self.process.signal(Signal::TERM);
    }

    /// SIGSTOP.
    pub(crate) async fn pause(&mut self) {
        self.process.pause().await;
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) {
        self.process.resume();
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn wait_exit(&mut self, bound: Duration) -> ExitStatus {
        self.process.wait_exit(bound).await
    }
}

/// The path that ships an order.
pub(crate) fn ship_path(order: &str, work_ms: u64) -> String {
    format!("/orders/{order}/ship?work_ms={work_ms}")
}

/// The Redis key of an order under the default prefix.
pub(crate) fn key_of(order: &str) -> String {
    format!("orders:order:{order}")
}

/// `cargo test` builds the examples beside the folder of the test binary.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test binary");
    let profile = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let path = profile.join("examples").join("orders");
    assert!(
        path.exists(),
        "{} is missing: run `cargo test` for the whole package, or `cargo build --example orders`",
        path.display()
    );
    path
}
