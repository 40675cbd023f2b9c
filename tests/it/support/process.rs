//! A child process that is signalled by its id and never outlives its owner.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::eventually::eventually_some;
use super::log_lines::LogLines;

/// A running program, its output collected line by line.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// What it has written to stdout so far.
    pub(crate) stdout: LogLines,
    /// What it has written to stderr so far.
    pub(crate) stderr: LogLines,
}

impl Process {
    /// Starts `command`. A missing program fails with `how_to_get_it`.
    pub(crate) fn start(command: &mut Command, how_to_get_it: &str) -> Self {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => panic!("cannot start {command:?}: {error}; {how_to_get_it}"),
        };
        let stdout = LogLines::follow(child.stdout.take().expect("stdout is piped"));
        let stderr = LogLines::follow(child.stderr.take().expect("stderr is piped"));
        Self { child, stdout, stderr }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended, and how.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked for its status")
    }

    /// Sends a signal. A process that has ended already is left alone.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.exit_status().is_some() {
            return;
        }
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)
            .unwrap_or_else(|error| panic!("cannot send {signal:?} to {pid:?}: {error}"));
    }

    /// Stops it where it stands (SIGSTOP). Sockets stay open, nothing moves.
    ///
    /// Returns when the kernel shows the process as stopped.
    pub(crate) async fn pause(&mut self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.pid());
        super::eventually::eventually("the process to stand still", Duration::from_secs(10), async || {
            std::fs::read_to_string(&stat).is_ok_and(|text| {
                // The state letter follows the name, which is in brackets and may hold anything.
                text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
            })
        })
        .await;
    }

    /// Lets a stopped process go on (SIGCONT).
    pub(crate) fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _status = self.child.wait();
    }

    /// Waits until it ends by itself.
    pub(crate) async fn wait_exit(&mut self, bound: Duration) -> ExitStatus {
        let what = format!("process {} to end", self.pid());
        eventually_some(&what, bound, async || self.exit_status()).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}
