//! The driver's errors as the contract's, by SQLSTATE and never by a message's text.

use std::{borrow::Cow, io};

use inbox_api::{Effect, Error, ErrorKind};

pub(crate) const UNDEFINED_TABLE: &str = "42P01";
pub(crate) const UNDEFINED_FUNCTION: &str = "42883";
pub(crate) const UNDEFINED_COLUMN: &str = "42703";
const INVALID_SCHEMA: &str = "3F000";
/// A cached statement no longer fits a function that was replaced.
const FEATURE_NOT_SUPPORTED: &str = "0A000";

/// The five characters of SQL's own code, when the error is the server's.
pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Whether the error may come from a schema that is missing or of another version.
pub(crate) fn may_be_schema(code: &str) -> bool {
    matches!(
        code,
        UNDEFINED_TABLE
            | UNDEFINED_FUNCTION
            | UNDEFINED_COLUMN
            | INVALID_SCHEMA
            | FEATURE_NOT_SUPPORTED
    )
}

/// Whether the server refuses a value: class 22, data exceptions.
pub(crate) fn is_data_exception(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| code.starts_with("22"))
}

/// Returns a function for `map_err`, so that each call site names its operation only.
pub(crate) fn in_operation(operation: &'static str) -> impl Fn(sqlx::Error) -> Error + Copy {
    move |error| map(operation, error)
}

/// As [`in_operation`], for failures before the first statement: certainly nothing was changed.
pub(crate) fn before(operation: &'static str) -> impl Fn(sqlx::Error) -> Error + Copy {
    move |error| map(operation, error).with_effect(Effect::None)
}

fn map(operation: &'static str, error: sqlx::Error) -> Error {
    let (kind, context, effect) = classify(&error);
    Error::new(kind, operation, context)
        .with_effect(effect)
        .with_source(error)
}

fn classify(error: &sqlx::Error) -> (ErrorKind, Cow<'static, str>, Effect) {
    use ErrorKind::{Corrupt, Other, Unavailable};

    if let Some(code) = sqlstate(error) {
        return by_code(&code);
    }
    match error {
        sqlx::Error::PoolClosed => (Unavailable, "the store is closed".into(), Effect::None),
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection became free in time: the server does not answer, or the pool is \
             exhausted"
                .into(),
            Effect::None,
        ),
        sqlx::Error::Io(io) => of_connection(io.kind()),
        sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => (
            Unavailable,
            "the connection was lost".into(),
            Effect::Unknown,
        ),
        sqlx::Error::Tls(_) => (
            Unavailable,
            "an encrypted connection could not be made".into(),
            Effect::None,
        ),
        sqlx::Error::BeginFailed | sqlx::Error::InvalidSavePointStatement => (
            Unavailable,
            "the connection is in an earlier transaction".into(),
            Effect::None,
        ),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => (
            Corrupt,
            "a stored value has another type than was written".into(),
            Effect::None,
        ),
        sqlx::Error::Configuration(_) => (
            ErrorKind::Invalid,
            "the connection's settings are refused by the driver".into(),
            Effect::None,
        ),
        _ => (Other, "the driver failed".into(), Effect::None),
    }
}

/// Refused and not found are answers to connecting, so no statement was sent.
fn of_connection(failure: io::ErrorKind) -> (ErrorKind, Cow<'static, str>, Effect) {
    use io::ErrorKind as Io;

    let (context, effect) = match failure {
        Io::ConnectionRefused | Io::NotFound => (
            "nothing listens there: are host, port and socket right, and is the server running?",
            Effect::None,
        ),
        Io::InvalidData => (
            "what the server sent is not accepted: is its certificate valid for this host?",
            Effect::Unknown,
        ),
        _ => ("the connection was lost", Effect::Unknown),
    };
    (ErrorKind::Unavailable, context.into(), effect)
}

/// An answer of the server's: the statement, and a transaction of its own around it, was undone,
/// unless the server is ending and may have committed before.
fn by_code(code: &str) -> (ErrorKind, Cow<'static, str>, Effect) {
    use ErrorKind::{Conflict, Corrupt, Denied, Invalid, Other, SchemaMissing, Unavailable};

    let class = code.get(..2).unwrap_or_default();
    let (kind, context) = match code {
        "40001" => (Conflict, "another transaction changed the same rows"),
        "40P01" => (
            Conflict,
            "a deadlock with another transaction was broken up",
        ),
        "55P03" => (Conflict, "a lock was not to be had in time"),
        // The one check that a row can fail: a partition that takes its number. A receive that
        // took so long that its partition has been dropped meanwhile.
        "23514" => (Conflict, "the message's partition was dropped meanwhile"),
        // The transaction was ending when its connection was cut.
        "40003" | "08007" => {
            let context = "the server does not know how the transaction ended";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        // Also while a commit waits for a standby, after it has become durable here.
        "57P01" | "57P02" | "57P04" | "57P05" => {
            let context = "the server ended the connection";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        "57P03" => (Unavailable, "the server is starting or shutting down"),
        "57014" => (
            Unavailable,
            "the server cancelled the statement; is statement_timeout too short?",
        ),
        "53300" => (Unavailable, "the server has no connection left"),
        "53100" => (Unavailable, "the server's disk is full"),
        "25006" => (
            Unavailable,
            "the server is read-only; is it a standby after a fail-over?",
        ),
        // A pooler has changed the server's connection between preparing and executing.
        "26000" | "42P05" | "08P01" => (
            Other,
            "a prepared statement is not where it was made; behind a pooler, turn \
             prepared_statements off",
        ),
        "25P02" => (Other, "the transaction has failed before; roll it back"),
        "25P03" => (
            Unavailable,
            "the server ended a transaction that was idle for too long",
        ),
        "42501" => (
            Denied,
            "a permission is missing; SETUP.md of inbox-postgres lists the grants",
        ),
        "3D000" => (SchemaMissing, "the database does not exist"),
        UNDEFINED_TABLE | UNDEFINED_FUNCTION | INVALID_SCHEMA => (
            SchemaMissing,
            "there is no inbox of this name; create or migrate sets one up",
        ),
        UNDEFINED_COLUMN => (
            ErrorKind::SchemaVersion,
            "the tables are not those of this build's inbox",
        ),
        "XX001" | "XX002" => (Corrupt, "the server found damaged data"),
        "22P05" | "22021" => (
            Invalid,
            "the database's encoding cannot hold a text; it has to be UTF8",
        ),
        _ => match class {
            "08" => {
                let context = "the connection was lost";
                return (Unavailable, context.into(), Effect::Unknown);
            }
            "28" => (Denied, "the server refused the credentials"),
            "53" => (Unavailable, "the server is out of resources"),
            "58" => (Unavailable, "the server's operating system failed"),
            "54" => (Invalid, "the request is over one of the server's limits"),
            _ => {
                return (Other, format!("SQLSTATE {code}").into(), Effect::None);
            }
        },
    };
    (kind, context.into(), Effect::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_what_to_do() {
        for (code, kind, effect) in [
            ("40001", ErrorKind::Conflict, Effect::None),
            ("40P01", ErrorKind::Conflict, Effect::None),
            ("57P01", ErrorKind::Unavailable, Effect::Unknown),
            ("57P03", ErrorKind::Unavailable, Effect::None),
            ("25006", ErrorKind::Unavailable, Effect::None),
            ("42501", ErrorKind::Denied, Effect::None),
            ("28P01", ErrorKind::Denied, Effect::None),
            ("42P01", ErrorKind::SchemaMissing, Effect::None),
            ("08006", ErrorKind::Unavailable, Effect::Unknown),
            ("53200", ErrorKind::Unavailable, Effect::None),
            ("P0001", ErrorKind::Other, Effect::None),
            ("", ErrorKind::Other, Effect::None),
        ] {
            let (found, _, unknown) = by_code(code);
            assert_eq!((found, unknown), (kind, effect), "{code}");
        }
    }

    #[test]
    fn a_lost_connection_leaves_the_outcome_open() {
        let lost = || sqlx::Error::Io(io::Error::other("reset"));
        assert_eq!(in_operation("settle")(lost()).effect(), Effect::Unknown);
        assert_eq!(before("settle")(lost()).effect(), Effect::None);
        let refused = sqlx::Error::Io(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(in_operation("settle")(refused).effect(), Effect::None);
        assert_eq!(
            in_operation("claim")(sqlx::Error::PoolTimedOut).kind(),
            ErrorKind::Unavailable
        );
    }
}
