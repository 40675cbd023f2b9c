//! A `redis-server` of the benchmark's own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};

/// Dropping it ends the process and removes its files.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("compare-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        // Between the look for a free port and its use somebody else may take it.
        for _ in 0..20 {
            let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
            let port = port.expect("a free port").port();
            let child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no", "--dir"])
                .arg(&folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server has to be installed (apt-get install redis-server)");
            let mut server = Self { child, port, folder: folder.clone() };
            if server.answers().await {
                return server;
            }
        }
        panic!("redis-server did not start on any of 20 ports");
    }

    async fn answers(&mut self) -> bool {
        for _ in 0..500 {
            if self.child.try_wait().expect("a child can be asked").is_some() {
                return false;
            }
            if let Ok(mut connection) = self.client().get_multiplexed_async_connection().await
                && redis::cmd("PING").exec_async(&mut connection).await.is_ok()
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server is silent");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("a valid URL")
    }

    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        self.client().get_multiplexed_async_connection().await.expect("a connection")
    }

    /// Stops it where it stands.
    pub(crate) fn pause(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("a signal is sent");
    }

    pub(crate) fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("a signal is sent");
    }

    /// Processor time that it has used so far.
    pub(crate) fn cpu(&self) -> Duration {
        cpu_of_process(self.child.id())
    }

    pub(crate) async fn describe(&self) {
        let info: String =
            redis::cmd("INFO").arg("server").query_async(&mut self.connection().await).await.expect("INFO");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?").to_owned();
        println!(
            "{cores} cores, redis-server {version} on the same machine, load average {load} at the start"
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
        let _left_to_the_system = std::fs::remove_dir_all(&self.folder);
    }
}

/// Processor time of all threads of a process, to the nanosecond where the kernel tells.
fn cpu_of_process(pid: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let nanos = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Processor time of this process.
pub(crate) fn own_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
