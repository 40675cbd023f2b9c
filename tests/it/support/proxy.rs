//! A TCP proxy in front of a Redis server that does to the traffic what networks do.
//!
//! It runs on the test's own runtime. Bytes that are held back (delay, freeze) are kept and arrive
//! later in their order, as they would after a cut in the network. A swallowed reply never arrives, and
//! neither does anything after it on that connection: TCP loses nothing out of the middle, and a
//! client that shares its connection could not tell which reply is missing.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::resp::{command_name, frame_len, is_push};

/// What is wrong with the network at the moment.
#[derive(Clone, Debug)]
struct Faults {
    target: SocketAddr,
    frozen: bool,
    refusing: bool,
    delay_commands: Duration,
    delay_replies: Duration,
    /// Connections of an older generation are closed.
    generation: u64,
}

/// Connections still to be silenced, and the command at whose reply: one by name, or any.
type Swallows = Arc<Mutex<Vec<(Option<String>, usize)>>>;

/// The proxy. Dropping it closes everything.
#[derive(Debug)]
pub(crate) struct Proxy {
    addr: SocketAddr,
    faults: watch::Sender<Faults>,
    swallows: Swallows,
    accepting: AbortHandle,
}

impl Proxy {
    /// Listens on a free loopback port and passes everything on to `target`.
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port for the proxy");
        let addr = listener.local_addr().expect("a bound address");
        let (faults, seen) = watch::channel(Faults {
            target,
            frozen: false,
            refusing: false,
            delay_commands: Duration::ZERO,
            delay_replies: Duration::ZERO,
            generation: 0,
        });
        let swallows = Swallows::default();
        let accepting = tokio::spawn(accept(listener, seen, Arc::clone(&swallows))).abort_handle();
        Self { addr, faults, swallows, accepting }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL that a Redis client uses to go through the proxy.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// Keeps all sockets open and moves no byte, on new connections neither.
    pub(crate) fn freeze(&self) {
        self.faults.send_modify(|faults| faults.frozen = true);
    }

    /// Delivers what has been held back, and goes on.
    pub(crate) fn unfreeze(&self) {
        self.faults.send_modify(|faults| faults.frozen = false);
    }

    /// From now on each command reaches the server this much later.
    pub(crate) fn delay_commands(&self, by: Duration) {
        self.faults.send_modify(|faults| faults.delay_commands = by);
    }

    /// From now on each reply reaches the client this much later.
    pub(crate) fn delay_replies(&self, by: Duration) {
        self.faults.send_modify(|faults| faults.delay_replies = by);
    }

    /// Lets the next command through and swallows its reply and all that follow, on `count` connections.
    pub(crate) fn swallow(&self, count: usize) {
        self.add_swallow(None, count);
    }

    /// Like [`swallow`](Self::swallow), beginning with a reply to this command.
    pub(crate) fn swallow_replies_to(&self, command: &str, count: usize) {
        self.add_swallow(Some(command.to_ascii_uppercase()), count);
    }

    /// Whether everything that was to be swallowed has been.
    pub(crate) fn has_swallowed_all(&self) -> bool {
        let waiting = self.swallows.lock().expect("no pump panics here");
        waiting.iter().all(|(_command, left)| *left == 0)
    }

    /// New connections go to another server, old ones stay where they are.
    pub(crate) fn repoint(&self, target: SocketAddr) {
        self.faults.send_modify(|faults| faults.target = target);
    }

    /// Closes every connection.
    pub(crate) fn close_all(&self) {
        self.faults.send_modify(|faults| faults.generation += 1);
    }

    /// Resets each new connection at once.
    pub(crate) fn refuse(&self) {
        self.faults.send_modify(|faults| faults.refusing = true);
    }

    /// Takes new connections again.
    pub(crate) fn accept_again(&self) {
        self.faults.send_modify(|faults| faults.refusing = false);
    }

    fn add_swallow(&self, command: Option<String>, count: usize) {
        let mut waiting = self.swallows.lock().expect("no pump panics here");
        waiting.push((command, count));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, faults: watch::Receiver<Faults>, swallows: Swallows) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _from)) = listener.accept().await else {
            continue;
        };
        while connections.try_join_next().is_some() {}
        if faults.borrow().refusing {
            let _reset = client.set_zero_linger();
            continue;
        }
        connections.spawn(carry(client, faults.clone(), Arc::clone(&swallows)));
    }
}

/// One connection, from its first byte to its last.
async fn carry(client: TcpStream, faults: watch::Receiver<Faults>, swallows: Swallows) {
    let (target, born) = {
        let now = faults.borrow();
        (now.target, now.generation)
    };
    let Ok(server) = TcpStream::connect(target).await else {
        let _reset = client.set_zero_linger();
        return;
    };
    let _no_nagle = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The commands that wait for their reply on this connection, oldest first.
    let unanswered = Mutex::new(VecDeque::new());
    let silenced = AtomicBool::new(false);

    let commands = |frame: &[u8], now: &Faults| {
        unanswered.lock().unwrap().push_back(command_name(frame));
        Some(now.delay_commands)
    };
    let replies = |frame: &[u8], now: &Faults| {
        if !is_push(frame) && !silenced.load(Ordering::Relaxed) {
            let command = unanswered.lock().unwrap().pop_front().unwrap_or_default();
            silenced.store(is_to_be_swallowed(&swallows, &command), Ordering::Relaxed);
        }
        (!silenced.load(Ordering::Relaxed)).then_some(now.delay_replies)
    };
    let traffic = async {
        tokio::join!(
            pump(from_client, to_server, faults.clone(), commands),
            pump(from_server, to_client, faults.clone(), replies),
        )
    };
    let mut closing = faults.clone();
    tokio::select! {
        _ended = traffic => {}
        _closed = closing.wait_for(|now| now.generation != born) => {}
    }
}

fn is_to_be_swallowed(swallows: &Swallows, command: &str) -> bool {
    let mut waiting = swallows.lock().expect("no pump panics here");
    let due = waiting
        .iter_mut()
        .find(|(wanted, left)| *left > 0 && wanted.as_deref().is_none_or(|wanted| wanted == command));
    due.map(|(_command, left)| *left -= 1).is_some()
}

/// Carries one direction. `verdict` gives each frame its delay, or `None` to drop it.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    faults: watch::Receiver<Faults>,
    verdict: impl Fn(&[u8], &Faults) -> Option<Duration>,
) {
    let (held_back, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let faults_now = faults.clone();
    let read = async move {
        let mut bytes = Vec::new();
        while let Ok(1..) = from.read_buf(&mut bytes).await {
            while let Some(length) = frame_len_of_nonempty(&bytes) {
                let frame: Vec<u8> = bytes.drain(..length).collect();
                let now = faults_now.borrow().clone();
                if let Some(delay) = verdict(&frame, &now) {
                    let _closing = held_back.send((Instant::now() + delay, frame));
                }
            }
        }
    };
    let mut thaw = faults;
    let write = async move {
        while let Some((at, frame)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            if thaw.wait_for(|now| !now.frozen).await.is_err() || to.write_all(&frame).await.is_err() {
                return;
            }
        }
        // The end of a stream is news too, and stays behind the bytes.
        let _open = thaw.wait_for(|now| !now.frozen).await.is_ok();
        let _shut = to.shutdown().await;
    };
    tokio::join!(read, write);
}

fn frame_len_of_nonempty(bytes: &[u8]) -> Option<usize> {
    (!bytes.is_empty()).then(|| frame_len(bytes)).flatten()
}
