//! What errors of the server and of the client mean. Their texts name no credentials.

use std::fmt;

use inbox_source::{SourceError, network};
use redis::{ErrorKind, RedisError};

/// What will not pass until a person changes something, by the first word of the server's error.
const PERMANENT: [&str; 5] = ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "MOVED"];

/// What the server says of a value that is larger than it takes, before it ends the connection.
const TOO_LARGE: &str = "Protocol error: invalid bulk length";
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

/// What the server said of one message that it did not add. Only what is wrong with the message, as its size, or where
/// it goes stays: another password, other rights or another server let the same message in.
pub(crate) fn refused(doing: &str, error: &RedisError) -> SourceError {
    let failure = failed(doing, error);
    match error.code() {
        Some("WRONGTYPE") => failure,
        _ if error
            .detail()
            .is_some_and(|said| said.starts_with(TOO_LARGE)) =>
        {
            SourceError::permanent(format!(
                "{doing}: it is larger than the server's proto-max-bulk-len"
            ))
        }
        _ => passing(&failure),
    }
}

/// The same, as one that passes: of a link, which says nothing of the messages.
pub(crate) fn passing(error: &SourceError) -> SourceError {
    SourceError::transient(error.to_string())
}

/// What a read or a claim failed with, of a source that makes its group where it is not there (`create`), or does not.
pub(crate) fn reading(doing: &str, error: &RedisError, create: bool) -> SourceError {
    if create && error.code() == Some("NOGROUP") {
        return transient(doing, "the stream or the group is gone; it is made again");
    }
    failed(doing, error)
}

/// As [`failed`], of a connection that could not be made; without an error, in time. A server without TLS takes
/// what comes for the beginning of a command, and waits for its end.
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

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn said(line: &str) -> RedisError {
        let Ok(Value::ServerError(error)) = parse_redis_value(format!("-{line}\r\n").as_bytes())
        else {
            panic!("no error: {line}");
        };
        error.into()
    }

    #[test]
    fn only_what_is_wrong_with_a_message_makes_it_a_dead_letter() {
        for (line, of_source, of_message) in [
            ("WRONGTYPE Operation against a key", false, false),
            ("WRONGPASS invalid username-password pair", false, true),
            ("NOAUTH Authentication required.", false, true),
            ("NOPERM User ann has no permissions", false, true),
            ("MOVED 3999 127.0.0.1:6381", false, true),
            ("ERR unknown command 'XADD'", false, true),
            ("READONLY You can't write against a replica", true, true),
            ("OOM command not allowed", true, true),
            ("ERR Protocol error: invalid bulk length", true, false),
        ] {
            let error = said(line);
            assert_eq!(
                failed("reading", &error).is_transient(),
                of_source,
                "{line}"
            );
            assert_eq!(
                refused("publishing", &error).is_transient(),
                of_message,
                "{line}"
            );
        }
    }

    #[test]
    fn a_missing_group_is_made_again_by_a_source_that_makes_it() {
        let error = said("NOGROUP No such key 'orders'");
        assert!(!reading("receiving", &error, false).is_transient());
        assert!(reading("receiving", &error, true).is_transient());
    }
}
