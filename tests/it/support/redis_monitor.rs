//! What a Redis server was told, and how long a key still lived: recorders beside the test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::eventually::{eventually, secs};
use super::redis_server::RedisServer;

/// One command as MONITOR shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Command {
    /// The server's clock, µs since 1970.
    pub(crate) at_us: u64,
    /// The client's address, or `lua` for a command that a script ran.
    pub(crate) from: String,
    /// The command and its arguments; the command in upper case.
    pub(crate) words: Vec<String>,
}

/// Records every command until it is dropped.
#[derive(Debug)]
pub(crate) struct Monitor {
    seen: Arc<Mutex<Vec<Command>>>,
    reading: AbortHandle,
}

impl Monitor {
    /// Returns when the server records for us.
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(server).await.expect("redis-server listens");
        stream.write_all(b"MONITOR\r\n").await.expect("redis-server reads");
        let mut lines = BufReader::new(stream).lines();
        let ok = lines.next_line().await.expect("redis-server answers");
        assert_eq!(ok.as_deref(), Some("+OK"), "MONITOR was refused");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                record.lock().unwrap().extend(parse(&line));
            }
        });
        Self { seen, reading: reading.abort_handle() }
    }

    /// All commands with this name that came from a client, so far.
    pub(crate) fn commands(&self, name: &str) -> Vec<Command> {
        self.pick(|command| command.from != "lua" && command.words[0] == name)
    }

    /// All commands with this name whose first argument is `key`, scripts' own included.
    pub(crate) fn commands_on(&self, name: &str, key: &str) -> Vec<Command> {
        self.pick(|command| command.words[0] == name && command.words.get(1).is_some_and(|word| word == key))
    }

    /// All commands from clients that name `text` as one of their arguments, so far.
    pub(crate) fn naming(&self, text: &str) -> Vec<Command> {
        self.pick(|command| command.from != "lua" && command.words.iter().any(|word| word == text))
    }

    /// All commands with this name, scripts' own included, so far.
    pub(crate) fn all(&self, name: &str) -> Vec<Command> {
        self.pick(|command| command.words[0] == name)
    }

    /// Waits until everything that the server has run by now is recorded.
    pub(crate) async fn catch_up(&self, redis: &RedisServer) {
        let mark = uuid::Uuid::new_v4().to_string();
        let _same: String = redis.command(&["ECHO", &mark]).await;
        eventually("the MONITOR record to catch up", secs(20), async || {
            !self.commands_on("ECHO", &mark).is_empty()
        })
        .await;
    }

    fn pick(&self, wanted: impl Fn(&Command) -> bool) -> Vec<Command> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|command| wanted(command)).cloned().collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// `+1339518083.107412 [0 127.0.0.1:60866] "set" "a key" "\x00"`
fn parse(line: &str) -> Option<Command> {
    let (time, rest) = line.strip_prefix('+')?.split_once(" [")?;
    let (origin, rest) = rest.split_once("] ")?;
    let (seconds, micros) = time.split_once('.')?;
    let at_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    let mut words = words(rest);
    words.first_mut()?.make_ascii_uppercase();
    Some(Command { at_us, from: origin.split_once(' ')?.1.to_owned(), words })
}

/// Quoted words; other escapes than that of the quote stay as MONITOR writes them.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, &mut word) {
            ('"', None) => word = Some(String::new()),
            ('"', Some(_)) => words.extend(word.take()),
            ('\\', Some(open)) => match letters.next() {
                Some('"') => open.push('"'),
                Some(other) => open.extend(['\\', other]),
                None => {}
            },
            (_, Some(open)) => open.push(letter),
            (_, None) => {}
        }
    }
    words
}

/// Looks at the remaining time of one key again and again until it is dropped.
#[derive(Debug)]
pub(crate) struct PttlSamples {
    seen: Arc<Mutex<Vec<i64>>>,
    looking: AbortHandle,
}

impl PttlSamples {
    /// Looks at `key` every `pause`, over one connection.
    pub(crate) async fn of(server: &RedisServer, key: &str, pause: Duration) -> Self {
        let client = redis::Client::open(server.url()).expect("a valid URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("redis-server listens");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let mut command = redis::cmd("PTTL");
        command.arg(key);
        let looking = tokio::spawn(async move {
            loop {
                if let Ok(left) = command.query_async(&mut connection).await {
                    record.lock().unwrap().push(left);
                }
                tokio::time::sleep(pause).await;
            }
        });
        Self { seen, looking: looking.abort_handle() }
    }

    /// What was seen since the last call: ms; -1 without expiry, -2 without key.
    pub(crate) fn take(&self) -> Vec<i64> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl Drop for PttlSamples {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

#[test]
fn a_monitor_line_is_taken_apart() {
    let line = r#"+1339518083.107412 [0 lua] "set" "say \"x\" y" "\x00" """#;
    let expected = Command {
        at_us: 1_339_518_083_107_412,
        from: "lua".to_owned(),
        words: ["SET", r#"say "x" y"#, r"\x00", ""].map(str::to_owned).to_vec(),
    };
    assert_eq!(parse(line), Some(expected));
}
