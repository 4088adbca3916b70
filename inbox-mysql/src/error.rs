//! The driver's errors as the contract's, by the server's error numbers and never by a message's
//! text, but for the names of tables in it.

use std::{borrow::Cow, io};

use inbox_api::{Effect, Error, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

use crate::server_errors;

/// Also of procedures, none of which is called within a caller's transaction.
pub(crate) const NO_SUCH_SAVEPOINT: u16 = 1305;

/// A procedure that is not there, or not for this user to call, or was made with other parameters.
const CANNOT_CALL: [u16; 3] = [1305, 1318, 1370];

/// Of a subquery that stands for one value.
pub(crate) const SEVERAL_ROWS: u16 = 1242;

/// Of a number that is too large for its type.
pub(crate) const OUT_OF_RANGE: u16 = 1690;

/// Of a wait for a lock that timed out.
const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// Of a column or an index that is there already, or that is to be dropped and is not there.
const ALREADY_CHANGED: [u16; 3] = [1060, 1061, 1091];

/// Whether a change of a table was made before.
pub(crate) fn is_done_already(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|number| ALREADY_CHANGED.contains(&number))
}

/// The server's error number, when the error is the server's.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// The same of what is made from it.
fn number_of_source(error: &Error) -> Option<u16> {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.and_then(number)
}

/// Whether a wait for a lock of another transaction timed out.
pub(crate) fn is_lock_timeout(error: &Error) -> bool {
    number_of_source(error) == Some(LOCK_WAIT_TIMEOUT)
}

/// Whether the server takes no writes for now, or nothing at all.
pub(crate) fn refuses_writes(error: &Error) -> bool {
    number_of_source(error).is_some_and(server_errors::refuses_writes)
}

/// Whether the call of a procedure was refused, before anything was done.
pub(crate) fn cannot_call(error: &Error) -> bool {
    number_of_source(error).is_some_and(|number| CANNOT_CALL.contains(&number))
}

/// Whether a table or a column of the inbox may be missing.
pub(crate) fn may_lack_schema(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::SchemaMissing | ErrorKind::SchemaVersion
    )
}

/// For `map_err` where the statement may have had an effect: a lost connection leaves that open.
pub(crate) fn failed(error: sqlx::Error) -> Error {
    map(error, Effect::Unknown)
}

/// For `map_err` where nothing was asked of the server that changes anything.
pub(crate) fn before(error: sqlx::Error) -> Error {
    map(error, Effect::None)
}

/// Of a damaged table: its index, twice; crashed, twice.
const DAMAGED: [u16; 4] = [1034, 1035, 1194, 1195];
/// What they mean where the table is one of the server's own temporary ones: that their disk was full.
const TABLE_FULL: u16 = 1114;

/// Stands for anything.
const UNKNOWN_ERROR: u16 = 1105;
/// With this, in every language, an update of several tables was given up without a word: the server was stopping.
const GIVEN_UP: &str = "An error occurred in multi-table update";
/// The query was interrupted.
const INTERRUPTED: u16 = 1317;

/// The number that says what happened.
fn telling(number: u16, message: &str) -> u16 {
    // So they are called in every language, by their files and by themselves.
    let is_temporary = ["#sql", "(temporary)"]
        .iter()
        .any(|name| message.contains(name));
    if is_temporary && DAMAGED.contains(&number) {
        TABLE_FULL
    } else if number == UNKNOWN_ERROR && message == GIVEN_UP {
        INTERRUPTED
    } else {
        number
    }
}

fn map(error: sqlx::Error, when_lost: Effect) -> Error {
    let (kind, context, effect) = match (number(&error), error.as_database_error()) {
        (Some(number), Some(error)) => of_server(number, error.message()),
        _ => of_driver(&error),
    };
    let effect = match effect {
        Effect::Unknown => when_lost,
        Effect::None => Effect::None,
    };
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(error)
}

fn of_server(number: u16, message: &str) -> (ErrorKind, Cow<'static, str>, Effect) {
    let number = telling(number, message);
    match server_errors::meaning(number) {
        Some((kind, effect, context)) => {
            let denied = match kind {
                ErrorKind::Denied => server_errors::what_is_denied(message),
                _ => None,
            };
            let context = match denied {
                Some(what) => format!("{context}: {what}").into(),
                None => context.into(),
            };
            (kind, context, effect)
        }
        None => {
            let context = format!("server error {number}").into();
            (ErrorKind::Other, context, Effect::None)
        }
    }
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
    fn a_damaged_temporary_table_is_a_full_disk() {
        for (number, table, kind) in [
            (
                1034,
                "/tmp/#sql-temptable-5829-4-4.MAI",
                ErrorKind::Unavailable,
            ),
            (1034, "(temporary)", ErrorKind::Unavailable),
            (1034, "./app/inbox_work", ErrorKind::Corrupt),
            (1194, "#sql-temptable-1-2-3", ErrorKind::Unavailable),
            (1194, "inbox_work", ErrorKind::Corrupt),
            (
                126,
                "/tmp/#sql-temptable-5829-4-4.MAI",
                ErrorKind::Unavailable,
            ),
            (1062, "#sql", ErrorKind::Corrupt),
        ] {
            let message = format!("Index for table '{table}' is corrupt; try to repair it");
            let (found, _, effect) = of_server(number, &message);
            assert_eq!((found, effect), (kind, Effect::None), "{number} {table}");
        }
    }

    #[test]
    fn an_update_that_was_given_up_is_an_outage() {
        let (kind, _, effect) = of_server(UNKNOWN_ERROR, GIVEN_UP);
        assert_eq!((kind, effect), (ErrorKind::Unavailable, Effect::Unknown));
        let (kind, _, _) = of_server(UNKNOWN_ERROR, "Unknown error");
        assert_eq!(kind, ErrorKind::Other);
    }

    #[test]
    fn a_proxy_without_a_server_is_an_outage() {
        for number in [2003, 2013, 9001] {
            let (kind, _, effect) = of_server(number, "Lost connection to MySQL server");
            assert_eq!((kind, effect), (ErrorKind::Unavailable, Effect::Unknown));
        }
    }

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
            let error = failed(error);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.effect(), effect);
        }
        let read = before(sqlx::Error::WorkerCrashed);
        assert_eq!(read.effect(), Effect::None);
    }
}
