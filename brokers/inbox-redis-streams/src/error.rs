//! What errors of the server and of the client mean. Their texts name no credentials.

use std::fmt;

use inbox_source::SourceError;
use redis::{ErrorKind, RedisError};

/// What will not pass until a person changes something, by the first word of the server's error.
const PERMANENT: [&str; 5] = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "MOVED"];

pub(crate) fn transient(doing: &str, error: impl fmt::Display) -> SourceError {
    SourceError::transient(format!("{doing}: {error}"))
}

pub(crate) fn failed(doing: &str, error: &RedisError) -> SourceError {
    let code = error.code().unwrap_or_default();
    let said = error.detail().unwrap_or_default();
    if error.kind() == ErrorKind::AuthenticationFailed {
        // Without the server's own words.
        return SourceError::permanent(format!("{doing}: user or password were refused"));
    }
    match code {
        "NOGROUP" => SourceError::permanent(format!(
            "{doing}: there is no such stream or group; create it, or let the source do so by `create`"
        )),
        "MOVED" => SourceError::permanent(format!(
            "{doing}: the stream is on another node; clusters are not supported"
        )),
        _ if PERMANENT.contains(&code) => SourceError::permanent(format!("{doing}: {code} {said}")),
        _ if said.starts_with("unknown command") => {
            SourceError::permanent(format!("{doing}: the server is older than Redis 6.2"))
        }
        _ => transient(doing, error),
    }
}

pub(crate) fn late(doing: &str) -> SourceError {
    transient(doing, "the server did not answer in time")
}

pub(crate) fn unreadable(doing: &str) -> SourceError {
    transient(doing, "the server's answer is not one to this command")
}
