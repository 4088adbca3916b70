//! The server's and the driver's errors as the contract's, by code and kind, and by a message's
//! text only where there is neither.

use std::borrow::Cow;

use inbox_api::{Effect, Error, ErrorKind};
use redis::{ErrorKind as DriverKind, RedisError, ServerErrorKind};

use crate::reply::Unexpected;

/// The code with which the scripts report that there is no inbox.
const MISSING: &str = "INBOXMISSING";
/// The code with which the scripts report an inbox of another version or shard count.
const OTHER: &str = "INBOXVERSION";
/// The code with which a command of the caller's own is reported as failed.
const COMMAND: &str = "INBOXCOMMAND";

const LOST: &str = "the connection was lost";

/// A command within a script that the user may not run has no code. Only this text,
/// which servers have had since permissions exist, tells it from a defect.
const SCRIPT_DENIED: &str = "The user executing the script";

/// The driver's words for a SELECT that the server has refused, whose code it does not keep.
const NO_DATABASE: &str = "refused to switch database";
/// The server's words, in a refusal whose code the driver does not keep.
const IS_BUSY: &str = "is busy running a script";
const BUSY: &str = "the server is busy with a script";

pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == DriverKind::Server(ServerErrorKind::NoScript)
}

/// Why there is no answer, and whether the server can have done what it was asked for.
#[derive(Clone)]
pub(crate) enum Failed {
    /// Nothing was sent.
    NotSent(RedisError),
    /// It was sent, and what became of it is unknown.
    Lost(RedisError),
}

pub(crate) fn late() -> RedisError {
    RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))
}

/// The error of an answer that is none.
pub(crate) fn garbled() -> RedisError {
    RedisError::from((DriverKind::Parse, "too few answers"))
}

/// The error of what could have changed something.
pub(crate) fn failed(error: RedisError) -> Error {
    let (kind, context, effect) = classify(&error);
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(error)
}

/// The error of what has certainly changed nothing.
pub(crate) fn before(error: RedisError) -> Error {
    failed(error).with_effect(Effect::None)
}

/// The error of making the first connection.
pub(crate) fn connecting(error: RedisError) -> Error {
    let said = error.to_string();
    let (kind, context) = match classify(&error) {
        _ if said.contains(NO_DATABASE) && said.contains(IS_BUSY) => {
            (ErrorKind::Unavailable, Cow::from(BUSY))
        }
        _ if said.contains(NO_DATABASE) => (
            ErrorKind::Invalid,
            Cow::from("the server has no database of this number, or this user may not choose it"),
        ),
        // With the operating system's words: an error is often shown without its source.
        (kind, LOST, _) => (kind, format!("the server cannot be reached: {said}").into()),
        (kind, context, _) => (kind, context.into()),
    };
    Error::new(kind, context).with_source(error)
}

impl From<Unexpected> for Error {
    fn from(_: Unexpected) -> Self {
        let context = "the server's answer is not one that the script gives";
        Self::new(ErrorKind::Other, context).with_effect(Effect::Unknown)
    }
}

/// Which kind of permission the user lacks. The server's own words may name keys.
fn missing_permission(error: &RedisError) -> &'static str {
    let words = error.detail().unwrap_or_default();
    if words.contains(" key") {
        "the user lacks a permission for the inbox's keys (compare its ACL rules with the store's)"
    } else if words.contains("channel") {
        "the user lacks a permission for the inbox's channels (compare its ACL rules with the store's)"
    } else {
        "the user lacks a permission for a command (compare its ACL rules with the store's)"
    }
}

fn classify(error: &RedisError) -> (ErrorKind, &'static str, Effect) {
    use ErrorKind::{Denied, Invalid, Other, SchemaMissing, SchemaVersion, Unavailable};

    // Errors that a script answers before it writes anything, or instead of running.
    let coded = |code: &str| {
        Some(match code {
            MISSING => (SchemaMissing, "there is no inbox here; create it first"),
            OTHER => (
                SchemaVersion,
                "there is an inbox of another version or another number of shards",
            ),
            "WRONGTYPE" => (
                SchemaVersion,
                "a key of the inbox holds something that is not an inbox's",
            ),
            "OOM" => (Unavailable, "the server is full (maxmemory)"),
            "MISCONF" => (
                Unavailable,
                "the server refuses writes because it cannot persist them",
            ),
            "NOREPLICAS" => (Unavailable, "the server has too few replicas for writes"),
            "BUSY" => (Unavailable, BUSY),
            "NOAUTH" | "WRONGPASS" => (Denied, "the credentials were refused"),
            "LOADING" => (Unavailable, "the server is loading its data"),
            "NOSCRIPT" => (Unavailable, "the server keeps forgetting scripts"),
            "READONLY" => (Unavailable, "the server is a replica that takes no writes"),
            "MOVED" | "ASK" | "TRYAGAIN" => (Unavailable, "the cluster is being rearranged"),
            "CLUSTERDOWN" | "MASTERDOWN" => (Unavailable, "a part of the cluster is down"),
            "NOPERM" => (Denied, missing_permission(error)),
            "CROSSSLOT" => (Invalid, "keys of several shards cannot be used together"),
            _ => return None,
        })
    };
    if error.code() == Some(COMMAND) {
        return of_command(error.detail().unwrap_or_default());
    }
    if let Some((kind, context)) = error.code().and_then(coded) {
        return (kind, context, Effect::None);
    }
    if error
        .detail()
        .is_some_and(|text| text.contains(SCRIPT_DENIED))
    {
        return (Denied, missing_permission(error), Effect::Unknown);
    }
    match error.kind() {
        DriverKind::AuthenticationFailed => (Denied, "the credentials were refused", Effect::None),
        DriverKind::InvalidClientConfig => (Invalid, "the settings do not fit", Effect::None),
        DriverKind::ClusterConnectionNotFound => (
            Unavailable,
            "no node of the cluster can be reached",
            Effect::Unknown,
        ),
        _ if error.is_connection_refusal() => (
            Unavailable,
            "the server refused the connection",
            Effect::None,
        ),
        _ if error.is_timeout() => (
            Unavailable,
            "the server did not answer in time",
            Effect::Unknown,
        ),
        DriverKind::Io => (Unavailable, LOST, Effect::Unknown),
        DriverKind::Parse | DriverKind::UnexpectedReturnType => (
            Unavailable,
            "the connection carried something that is not an answer",
            Effect::Unknown,
        ),
        _ => (Other, "the server or the driver failed", Effect::Unknown),
    }
}

/// What became of the caller's own commands, by the number of the one that failed, from 1, and its code. Those before
/// it stand.
fn of_command(failure: &str) -> (ErrorKind, &'static str, Effect) {
    let (number, code) = failure.split_once(' ').unwrap_or_default();
    let kind = match code {
        "OOM" | "MISCONF" | "NOREPLICAS" => ErrorKind::Unavailable,
        "NOPERM" => ErrorKind::Denied,
        _ if number == "1" => ErrorKind::Invalid,
        _ => ErrorKind::Other,
    };
    match number {
        "1" => (
            kind,
            "the first of the caller's own commands failed; nothing was done",
            Effect::None,
        ),
        _ => (
            kind,
            "one of the caller's own commands failed; those before it were done, and the lease was not settled",
            Effect::Unknown,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(line: &str) -> RedisError {
        let parsed = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        parsed
            .and_then(redis::Value::extract_error)
            .expect_err("an error")
    }

    #[test]
    fn codes_tell_what_to_do() {
        for (line, kind) in [
            ("OOM command not allowed", ErrorKind::Unavailable),
            ("LOADING Redis is loading", ErrorKind::Unavailable),
            ("READONLY You can't write", ErrorKind::Unavailable),
            ("BUSY Redis is busy", ErrorKind::Unavailable),
            ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable),
            ("TRYAGAIN Multiple keys", ErrorKind::Unavailable),
            ("MOVED 1 127.0.0.1:1", ErrorKind::Unavailable),
            ("NOAUTH Authentication required.", ErrorKind::Denied),
            ("WRONGPASS invalid username", ErrorKind::Denied),
            ("NOPERM this user has no permissions", ErrorKind::Denied),
            ("INBOXMISSING 0", ErrorKind::SchemaMissing),
            ("INBOXCOMMAND 1 ERR", ErrorKind::Invalid),
            ("INBOXCOMMAND 1 OOM", ErrorKind::Unavailable),
            ("INBOXCOMMAND 2 WRONGTYPE", ErrorKind::Other),
            ("INBOXCOMMAND 12 NOPERM", ErrorKind::Denied),
            ("INBOXVERSION 2 1 0", ErrorKind::SchemaVersion),
            (
                "WRONGTYPE Operation against a key",
                ErrorKind::SchemaVersion,
            ),
            ("ERR something", ErrorKind::Other),
        ] {
            assert_eq!(failed(server(line)).kind(), kind, "{line}");
        }
        assert_eq!(failed(server("OOM full")).effect(), Effect::None);
        let of_command = |number| failed(server(&format!("INBOXCOMMAND {number} ERR"))).effect();
        assert_eq!(
            [of_command(1), of_command(2), of_command(10)],
            [Effect::None, Effect::Unknown, Effect::Unknown]
        );
    }

    #[test]
    fn a_first_connection_that_fails_says_why() {
        let nowhere = RedisError::from(std::io::Error::other("Name or service not known"));
        let error = connecting(nowhere);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(
            error.context(),
            "the server cannot be reached: Name or service not known"
        );
        let kind = DriverKind::Server(ServerErrorKind::ResponseError);
        let words = "Redis server refused to switch database";
        let refused = |detail: &str| connecting(RedisError::from((kind, words, detail.to_owned())));
        let busy =
            "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
        assert_eq!(refused(busy).kind(), ErrorKind::Unavailable);
        let error = refused("DB index is out of range");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.context().contains("no database of this number"),
            "{error}"
        );
    }

    #[test]
    fn a_lost_answer_is_unknown_only_for_writes() {
        let lost = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(failed(lost()).effect(), Effect::Unknown);
        assert_eq!(before(lost()).effect(), Effect::None);
        assert_eq!(before(lost()).kind(), ErrorKind::Unavailable);
    }
}
