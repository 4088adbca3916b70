//! The driver's errors as the contract's, by the server's error numbers and never by a message's
//! text.

use std::{borrow::Cow, io};

use inbox_api::{Effect, Error, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

pub(crate) const NO_SUCH_TABLE: u16 = 1146;
pub(crate) const UNKNOWN_DATABASE: u16 = 1049;
const UNKNOWN_COLUMN: u16 = 1054;
/// Also of routines, which the store does not have.
pub(crate) const NO_SUCH_SAVEPOINT: u16 = 1305;

/// The server's error number, when the error is the server's.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Whether a table or a column of the inbox may be missing.
pub(crate) fn may_lack_schema(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::SchemaMissing | ErrorKind::SchemaVersion
    )
}

/// For `map_err` where the statement may have had an effect: a lost connection leaves that open.
pub(crate) fn in_operation(operation: &'static str) -> impl Fn(sqlx::Error) -> Error + Copy {
    move |error| map(operation, error, Effect::Unknown)
}

/// For `map_err` where nothing was asked of the server that changes anything.
pub(crate) fn without_effect(operation: &'static str) -> impl Fn(sqlx::Error) -> Error + Copy {
    move |error| map(operation, error, Effect::None)
}

fn map(operation: &'static str, error: sqlx::Error, when_lost: Effect) -> Error {
    let (kind, context, effect) = match number(&error) {
        Some(number) => of_server(number),
        None => of_driver(&error),
    };
    let effect = match effect {
        Effect::Unknown => when_lost,
        Effect::None => Effect::None,
    };
    Error::new(kind, operation, context)
        .with_effect(effect)
        .with_source(error)
}

fn of_server(number: u16) -> (ErrorKind, Cow<'static, str>, Effect) {
    use ErrorKind::{Conflict, Corrupt, Denied, Invalid, Other, Unavailable, Unsupported};

    let (kind, context) = match number {
        1213 => (
            Conflict,
            "the server chose this transaction to end a deadlock",
        ),
        1205 => (Conflict, "a lock was not given in time"),
        1020 | 3572 => (
            Conflict,
            "a row was changed or locked by another transaction",
        ),
        1044 => (Denied, "the user has no privilege on the database"),
        1045 | 1698 => (Denied, "the server refused the user or the password"),
        1862 => (Denied, "the user's password has expired"),
        3118 | 4151 => (Denied, "the user's account is locked"),
        1095 | 1142 | 1143 | 1227 | 1370 => (
            Denied,
            "a privilege is missing; SETUP.md of inbox-mysql lists those needed",
        ),
        1290 | 1792 | 1836 => (Unavailable, "the server takes no writes at the moment"),
        1040 => (Unavailable, "the server has too many connections"),
        1203 | 1226 => (Unavailable, "the user may not have more connections"),
        1047 => (Unavailable, "this node of the cluster is not ready"),
        // Killed or shut down, perhaps while the commit was on its way.
        1053 | 1077..=1080 | 1180 | 1317 | 1927 | 1969 | 3024 | 4031 => {
            let context = "the server interrupted the operation";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        1152 | 1154..=1161 | 1184 => {
            let context = "the connection was lost";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        3 | 5 | 28 | 1021 | 1037 | 1038 | 1041 | 1114 | 1135 => {
            (Unavailable, "the server is out of disk space or memory")
        }
        1153 => (
            Invalid,
            "the server's max_allowed_packet is smaller than the message",
        ),
        3140 | 3141 | 3143 | 3144 | 3157 | 4025 => {
            (Invalid, "a payload is not JSON that the server takes")
        }
        1665 => (
            Unsupported,
            "with binlog_format=STATEMENT the server takes no READ COMMITTED transactions; \
             set ROW or MIXED",
        ),
        1034 | 1194 | 1712 => (Corrupt, "a table is damaged"),
        NO_SUCH_TABLE | UNKNOWN_DATABASE | 1051 => (
            ErrorKind::SchemaMissing,
            "the database or a table of the inbox does not exist",
        ),
        UNKNOWN_COLUMN | 1176 => (
            ErrorKind::SchemaVersion,
            "a column or an index of the inbox is missing",
        ),
        _ => return (Other, format!("server error {number}").into(), Effect::None),
    };
    (kind, context.into(), Effect::None)
}

/// Refused and not found are answers to connecting, so no statement was sent.
fn of_connection(failure: io::ErrorKind) -> (ErrorKind, Cow<'static, str>, Effect) {
    use io::ErrorKind as Io;

    let (context, effect) = match failure {
        Io::ConnectionRefused => (
            "nothing listens there: are host and port right, and is the server running?",
            Effect::None,
        ),
        Io::NotFound => (
            "a file is not there: the socket, or one of ssl-ca, ssl-cert and ssl-key",
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

fn of_driver(error: &sqlx::Error) -> (ErrorKind, Cow<'static, str>, Effect) {
    use ErrorKind::{Corrupt, Invalid, Other, Unavailable};

    match error {
        sqlx::Error::PoolClosed => (Unavailable, "the store is closed".into(), Effect::None),
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection became free in time".into(),
            Effect::None,
        ),
        sqlx::Error::Io(io) => of_connection(io.kind()),
        sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => (
            Unavailable,
            "the connection was lost".into(),
            Effect::Unknown,
        ),
        sqlx::Error::BeginFailed | sqlx::Error::InvalidSavePointStatement => (
            Unavailable,
            "the connection is in an earlier transaction".into(),
            Effect::None,
        ),
        sqlx::Error::Tls(_) => (
            Unavailable,
            "the encrypted connection could not be made".into(),
            Effect::None,
        ),
        sqlx::Error::Configuration(_) => (
            Invalid,
            "the connection's settings cannot be used".into(),
            Effect::None,
        ),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => (
            Corrupt,
            "a stored value has another type than was written".into(),
            Effect::None,
        ),
        _ => (Other, "the driver failed".into(), Effect::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_certainly_did_not_happen_is_said_so() {
        for (error, effect) in [
            (sqlx::Error::PoolClosed, Effect::None),
            (sqlx::Error::PoolTimedOut, Effect::None),
            (sqlx::Error::WorkerCrashed, Effect::Unknown),
            (
                sqlx::Error::Io(io::ErrorKind::ConnectionRefused.into()),
                Effect::None,
            ),
            (
                sqlx::Error::Io(io::ErrorKind::ConnectionReset.into()),
                Effect::Unknown,
            ),
        ] {
            let error = in_operation("settle")(error);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.effect(), effect);
        }
        let read = without_effect("get")(sqlx::Error::WorkerCrashed);
        assert_eq!(read.effect(), Effect::None);
    }

    #[test]
    fn deadlocks_and_lock_time_outs_are_conflicts() {
        for number in [1213, 1205] {
            assert_eq!(of_server(number).0, ErrorKind::Conflict);
        }
        assert_eq!(of_server(1227).0, ErrorKind::Denied);
        assert_eq!(of_server(1047).0, ErrorKind::Unavailable);
    }
}
