//! From an error of the redis crate to a [`StoreErrorKind`].

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::{StoreError, StoreErrorKind};

pub(super) fn store_error(error: &RedisError) -> StoreError {
    StoreError::new(kind(error), error.to_string()).with_source(error.clone())
}

/// Whether the connection must not be used again.
pub(super) fn breaks_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            kind(error),
            // A demoted server keeps its connections; a new one may lead to its successor.
            StoreErrorKind::ReadOnly | StoreErrorKind::Protocol | StoreErrorKind::Auth
        )
}

fn kind(error: &RedisError) -> StoreErrorKind {
    match error.kind() {
        ErrorKind::AuthenticationFailed => StoreErrorKind::Auth,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::RESP3NotSupported => {
            StoreErrorKind::Protocol
        }
        ErrorKind::Io if error.is_timeout() => StoreErrorKind::Timeout,
        ErrorKind::Io if mentions(error, &["tls", "certificate"]) => StoreErrorKind::Tls,
        ErrorKind::Io => StoreErrorKind::Connect,
        ErrorKind::Server(ServerErrorKind::ResponseError) => kind_in_text(error),
        ErrorKind::InvalidClientConfig if mentions(error, &["tls"]) => StoreErrorKind::Tls,
        ErrorKind::InvalidClientConfig => StoreErrorKind::Protocol,
        _ => error.code().and_then(kind_of_code).unwrap_or(StoreErrorKind::Server),
    }
}

fn kind_of_code(code: &str) -> Option<StoreErrorKind> {
    Some(match code {
        "WRONGPASS" | "NOAUTH" => StoreErrorKind::Auth,
        "READONLY" => StoreErrorKind::ReadOnly,
        "LOADING" | "MASTERDOWN" => StoreErrorKind::Loading,
        "OOM" => StoreErrorKind::OutOfMemory,
        "NOPERM" => StoreErrorKind::NoPermission,
        "WRONGTYPE" => StoreErrorKind::WrongType,
        "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => StoreErrorKind::Moved,
        "BUSY" => StoreErrorKind::Busy,
        "NOREPLICAS" | "MISCONF" => StoreErrorKind::NoReplicas,
        "CLUSTERDOWN" => StoreErrorKind::ClusterDown,
        _ => return None,
    })
}

/// Before Redis 7, an error inside a script arrives as `ERR Error running script …: -CODE …`; a missing
/// permission inside a script does so in Redis 7 too, in words.
fn kind_in_text(error: &RedisError) -> StoreErrorKind {
    if mentions(error, &["can't run this command", "can't access at least one"]) {
        return StoreErrorKind::NoPermission;
    }
    let words = error.detail().unwrap_or_default().split(|c: char| !c.is_ascii_uppercase());
    words.filter(|word| word.len() > 2).find_map(kind_of_code).unwrap_or(StoreErrorKind::Server)
}

fn mentions(error: &RedisError, words: &[&str]) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use redis::{ServerError, Value, parse_redis_value};

    use super::*;

    fn check(reply: &str, expected: StoreErrorKind) {
        let value = parse_redis_value(format!("-{reply}\r\n").as_bytes()).expect("well-formed");
        let Value::ServerError(error) = value else { panic!("{value:?} is no error") };
        let error: ServerError = error;
        assert_eq!(kind(&RedisError::from(error)), expected, "{reply}");
    }

    #[test]
    fn every_refusal_of_the_server_has_its_kind() {
        check("WRONGPASS invalid username-password pair", StoreErrorKind::Auth);
        check("NOAUTH Authentication required.", StoreErrorKind::Auth);
        check("READONLY You can't write against a read only replica.", StoreErrorKind::ReadOnly);
        check("LOADING Redis is loading the dataset in memory", StoreErrorKind::Loading);
        check("OOM command not allowed when used memory > 'maxmemory'.", StoreErrorKind::OutOfMemory);
        check("NOPERM this user has no permissions to run the 'set' command", StoreErrorKind::NoPermission);
        check("WRONGTYPE Operation against a key holding the wrong kind", StoreErrorKind::WrongType);
        check("MOVED 3999 127.0.0.1:6381", StoreErrorKind::Moved);
        check("BUSY Redis is busy running a script.", StoreErrorKind::Busy);
        check("NOREPLICAS Not enough good replicas to write.", StoreErrorKind::NoReplicas);
        check("MISCONF Redis is configured to save RDB snapshots", StoreErrorKind::NoReplicas);
        check("CLUSTERDOWN The cluster is down", StoreErrorKind::ClusterDown);
        check(
            "ERR Error running script (call to f_1): @user_script:2: -OOM command",
            StoreErrorKind::OutOfMemory,
        );
        check(
            "ERR The user executing the script can't run this command or subcommand",
            StoreErrorKind::NoPermission,
        );
        check("ERR unknown command", StoreErrorKind::Server);
    }
}
