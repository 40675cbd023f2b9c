//! Pushes from Redis: client-side-caching invalidations over a RESP3 connection.
//!
//! With `CLIENT TRACKING ON`, Redis remembers which keys this connection has read, and pushes one
//! invalidation when such a key is changed, deleted, evicted or expires, whoever did it; a null one when
//! everything was flushed.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::time::timeout;

use super::classify;
use crate::key::LockKey;
use crate::store::{Change, ChangeSink, Holder, KeyWatch, Looking, Owned, StoreError, StoreErrorKind};

#[derive(Debug)]
pub(super) struct RedisWatch {
    connection: MultiplexedConnection,
}

impl RedisWatch {
    pub(super) async fn open(
        client: &Client,
        changes: ChangeSink,
        limit: Duration,
    ) -> Result<Self, StoreError> {
        let info = client.get_connection_info().clone();
        let resp3 = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                for change in changes_in(push) {
                    changes.send(change);
                }
                Ok::<_, ()>(())
            });
        let opening = async {
            let client = Client::open(info.set_redis_settings(resp3))?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
            Ok(Self { connection })
        };
        match timeout(limit, opening).await {
            Ok(result) => result.map_err(|error| classify::store_error(&error)),
            Err(_) => Err(no_answer(limit)),
        }
    }
}

impl KeyWatch for RedisWatch {
    fn look<'a>(&'a self, owned: Owned<'a>) -> Looking<'a> {
        Box::pin(async move {
            let mut connection = self.connection.clone();
            let mut get = redis::cmd("GET");
            get.arg(owned.key.as_bytes());
            let holder = timeout(owned.timeout, get.query_async::<Option<Vec<u8>>>(&mut connection))
                .await
                .map_err(|_| no_answer(owned.timeout))?;
            match holder {
                Ok(None) => Ok(Holder::Nobody),
                Ok(Some(token)) if token == owned.token.as_str().as_bytes() => Ok(Holder::Us),
                Ok(Some(_)) => Ok(Holder::Other),
                Err(error) => match classify::store_error(&error) {
                    // Something that is no lock took the key's place.
                    error if error.kind() == StoreErrorKind::WrongType => Ok(Holder::Other),
                    error => Err(error),
                },
            }
        })
    }
}

fn no_answer(limit: Duration) -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, format!("no answer within {limit:?}"))
}

fn changes_in(push: PushInfo) -> Vec<Change> {
    match push.kind {
        PushKind::Disconnection => vec![Change::Closed],
        PushKind::Invalidate => match push.data.into_iter().next() {
            Some(Value::Array(keys)) => keys.into_iter().filter_map(changed_key).collect(),
            _ => vec![Change::All],
        },
        _ => Vec::new(),
    }
}

fn changed_key(key: Value) -> Option<Change> {
    match key {
        Value::BulkString(bytes) => LockKey::stored(bytes).map(Change::Key),
        _ => None,
    }
}
