//! Scripts: called by digest, sent whole where the server does not know them (any more).

use std::sync::OnceLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind};

#[derive(Debug)]
pub(super) struct Script {
    source: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    pub(super) const fn new(source: &'static str) -> Self {
        Self { source, digest: OnceLock::new() }
    }

    fn digest(&self) -> &str {
        self.digest.get_or_init(|| redis::Script::new(self.source).get_hash().to_owned())
    }

    /// Runs the script. After `NOSCRIPT` the source itself is sent, not loaded first: a `SCRIPT FLUSH`
    /// between loading and calling would fail the call again.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> RedisResult<T> {
        let command = |name: &str, script: &str| {
            let bytes: usize = keys.iter().chain(args).map(|part| part.len()).sum();
            let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), script.len() + bytes + 16);
            command.arg(name).arg(script).arg(keys.len());
            for part in keys.iter().chain(args) {
                command.arg(*part);
            }
            command
        };
        match command("EVALSHA", self.digest()).query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let whole = command("EVAL", self.source);
                Box::pin(whole.query_async(connection)).await
            }
            result => result,
        }
    }
}
