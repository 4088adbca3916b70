//! What errors of the server and of the client mean. Their texts name no credentials.

use std::fmt;

use inbox_source::{SourceError, network};
use redis::{ErrorKind, RedisError};

/// What will not pass until a person changes something, by the first word of the server's error.
const PERMANENT: [&str; 5] = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "MOVED"];

const LATE: &str = "the server did not answer in time";

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
        _ => transient(doing, network::advise(&error.to_string())),
    }
}

/// As [`failed`], of a connection that could not be made; without an error, in time. A server without TLS takes what comes for
/// the beginning of a command, and waits for its end.
pub(crate) fn connecting(error: Option<&RedisError>, tls: bool) -> SourceError {
    let doing = "connecting";
    match error.filter(|error| !error.is_timeout()) {
        Some(error) => failed(doing, error),
        None if tls => transient(doing, format!("{LATE}; does it speak TLS at this port?")),
        None => late(doing),
    }
}

pub(crate) fn late(doing: &str) -> SourceError {
    transient(doing, LATE)
}

pub(crate) fn unreadable(doing: &str) -> SourceError {
    transient(doing, "the server's answer is not one to this command")
}
