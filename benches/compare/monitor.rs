//! Counts what clients send about a key: Redis' own `MONITOR`, without what scripts do inside.

use std::collections::BTreeMap;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::server::Server;

/// Commands of a span of time, by name.
#[derive(Debug, Default)]
pub(crate) struct Commands(BTreeMap<String, u64>);

impl Commands {
    pub(crate) fn total(&self) -> f64 {
        self.0.values().sum::<u64>() as f64
    }

    /// For a line of the report, in calls per `unit`.
    pub(crate) fn show(&self, unit: f64) -> String {
        let each = self.0.iter().map(|(name, calls)| format!("{name} {:.2}", *calls as f64 / unit));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// Runs `work` and counts the commands that mention `key` meanwhile.
pub(crate) async fn counting<T>(server: &Server, key: &str, work: impl Future<Output = T>) -> (T, Commands) {
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).await.expect("a connection");
    socket.write_all(b"MONITOR\r\n").await.expect("sent");
    let mut lines = BufReader::new(socket).lines();
    lines.next_line().await.expect("an answer");
    let end = format!("end-{}", uuid::Uuid::new_v4());
    let (key, last) = (format!("\"{key}\""), end.clone());
    let counter = tokio::spawn(async move {
        let mut commands = Commands::default();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains(&last) {
                break;
            }
            if !line.contains(&key) || line.contains(" lua] ") {
                continue;
            }
            let name = line.split('"').nth(1).unwrap_or("?").to_ascii_uppercase();
            *commands.0.entry(name).or_default() += 1;
        }
        commands
    });
    let result = work.await;
    let mut connection = server.connection().await;
    redis::cmd("ECHO").arg(end).exec_async(&mut connection).await.expect("ECHO");
    (result, counter.await.expect("the counter ends"))
}
