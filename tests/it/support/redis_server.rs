//! A real `redis-server` of the test's own, on a private port, that can be hurt.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult};

use super::eventually::{eventually, ms, secs};
use super::process::Process;
use super::redis_monitor::Monitor;
use super::running::Running;

const HOW_TO_GET_IT: &str = "install redis-server (apt-get install redis-server)";

/// The server. Dropping it ends the process and removes its files.
#[derive(Debug)]
pub(crate) struct RedisServer {
    port: u16,
    folder: PathBuf,
    arguments: Vec<String>,
    process: Process,
}

impl RedisServer {
    /// Starts an empty server.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts an empty server with more options, for example `&["--maxmemory", "3mb"]`.
    pub(crate) async fn start_with(arguments: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("tower-redis-lock-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a temporary folder for redis-server");
        let arguments = owned(arguments);
        // Between the look for a free port and its use somebody else may take it.
        for _ in 0..20 {
            let port = free_port();
            let mut process = spawn(port, &folder, &arguments);
            if answers(port, &mut process).await {
                return Self { port, folder, arguments, process };
            }
        }
        panic!("redis-server did not start on any of 20 ports");
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The URL that a client uses.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr())
    }

    /// The URL of a user to whom client-side caching is forbidden, as it is behind many proxies: no key
    /// can be watched.
    pub(crate) async fn url_without_tracking(&self) -> String {
        let rules = ["ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-client|tracking"];
        let () = self.command(&rules).await;
        format!("redis://blind:secret@{}/", self.addr())
    }

    /// Stops it where it stands: connections stay open, nothing is answered.
    pub(crate) async fn pause(&mut self) {
        self.process.pause().await;
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub(crate) fn resume(&mut self) {
        self.process.resume();
    }

    /// Kills it. The port refuses connections until [`restart`](Self::restart).
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port, empty.
    pub(crate) async fn restart(&mut self) {
        self.process.kill();
        let _none_saved = std::fs::remove_file(self.folder.join("dump.rdb"));
        self.restart_with_data(&[]).await;
        eventually("redis-server to answer after its restart", secs(20), async || {
            self.try_command::<String>(&["PING"]).await.is_ok()
        })
        .await;
    }

    /// Starts it again on the same port with what it had saved, and more options. Returns at once:
    /// it may still be loading.
    pub(crate) async fn restart_with_data(&mut self, arguments: &[&str]) {
        self.process.kill();
        let more = arguments.iter().map(ToString::to_string);
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(more).collect();
        for _ in 0..50 {
            self.process = spawn(self.port, &self.folder, &arguments);
            if answers(self.port, &mut self.process).await {
                return;
            }
        }
        panic!("redis-server did not come back on port {}", self.port);
    }

    /// Runs one command on a connection of its own.
    ///
    /// # Panics
    ///
    /// When Redis answers with an error.
    pub(crate) async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Like [`command`](Self::command), for commands that may fail.
    pub(crate) async fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        run(self.url(), owned(words)).await
    }

    /// Runs one command at the same time as whatever the test does next.
    pub(crate) fn start_command(&self, words: &[&str]) -> Running<RedisResult<redis::Value>> {
        Running::start(run(self.url(), owned(words)))
    }

    /// Takes a key as another program would: for 30 s, whoever has it now.
    pub(crate) async fn rival_takes(&self, key: &str) {
        let () = self.command(&["SET", key, RIVAL, "PX", "30000"]).await;
    }

    /// The value of a string key.
    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        self.command(&["GET", key]).await
    }

    /// Remaining time of a key in milliseconds; -1 without expiry, -2 without key.
    pub(crate) async fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key]).await
    }

    /// Waits until a key is there.
    pub(crate) async fn until_key(&self, key: &str) {
        eventually(&format!("key {key} to be there"), secs(20), async || self.pttl(key).await != -2).await;
    }

    /// Waits until somebody is inside with an order: its lock is taken and its first fencing token
    /// minted. For the first holder of that order only.
    pub(crate) async fn until_inside(&self, order: &str) {
        eventually(&format!("order {order} to be worked on"), secs(20), async || {
            self.fencing_counters(order).await > 0
        })
        .await;
    }

    /// How many fencing counters there are of orders whose id starts with `order`.
    pub(crate) async fn fencing_counters(&self, order: &str) -> usize {
        let keys = self.keys(&format!("*order:{order}*")).await;
        keys.iter().filter(|(key, _left)| key.contains("fence")).count()
    }

    /// Waits until a key is gone.
    pub(crate) async fn until_no_key(&self, key: &str, bound: Duration) {
        eventually(&format!("key {key} to be gone"), bound, async || self.pttl(key).await == -2).await;
    }

    /// All keys that match, each with its remaining time, of one moment.
    pub(crate) async fn keys(&self, pattern: &str) -> Vec<(String, i64)> {
        let script = "local found = {} \
            for _, key in ipairs(redis.call('KEYS', ARGV[1])) do \
            found[#found + 1] = {key, redis.call('PTTL', key)} end return found";
        self.command(&["EVAL", script, "0", pattern]).await
    }

    /// The keys of locks on orders that are held, without the companions that live longer on purpose.
    pub(crate) async fn order_locks(&self) -> Vec<(String, i64)> {
        let mut keys = self.keys("orders:order:*").await;
        keys.retain(|(key, _left)| !key.contains("fence"));
        keys
    }

    /// Sets a configuration value.
    pub(crate) async fn config_set(&self, name: &str, value: &str) {
        let () = self.command(&["CONFIG", "SET", name, value]).await;
    }

    /// How often each command has been called, by lower-case name (subcommands as `client|id`).
    pub(crate) async fn calls(&self) -> BTreeMap<String, u64> {
        let text: String = self.command(&["INFO", "commandstats"]).await;
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        text.lines().filter_map(calls).collect()
    }

    /// Starts to record each command that the server runs.
    pub(crate) async fn monitor(&self) -> Monitor {
        Monitor::start(self.addr()).await
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

async fn run<T: FromRedisValue>(url: String, words: Vec<String>) -> RedisResult<T> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(secs(10)))
        .set_response_timeout(Some(secs(30)));
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut command = redis::Cmd::new();
    command.arg(words).query_async(&mut connection).await
}

/// The value that [`RedisServer::rival_takes`] writes.
pub(crate) const RIVAL: &str = "rival";

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.process.kill();
        let _left_to_the_system = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(port: u16, folder: &std::path::Path, arguments: &[String]) -> Process {
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(["--enable-debug-command", "yes"])
        .arg("--dir")
        .arg(folder)
        .args(arguments);
    Process::start(&mut command, HOW_TO_GET_IT)
}

/// Whether the server takes connections, `false` when it has ended instead (port taken).
async fn answers(port: u16, process: &mut Process) -> bool {
    let start = std::time::Instant::now();
    while process.exit_status().is_none() {
        let up = process.stdout.find("Ready to accept connections").is_some()
            || process.stdout.find("Server initialized").is_some();
        if up && tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return true;
        }
        assert!(start.elapsed() < secs(30), "redis-server is silent: {:?}", process.stdout.all());
        tokio::time::sleep(ms(5)).await;
    }
    false
}

/// A free port that no outgoing connection will take while the server is down for a moment: the
/// system gives those ports from 32768 up.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(12_000..22_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
