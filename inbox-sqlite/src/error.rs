//! The driver's errors as the contract's, by SQLite's result codes and never by a message's text.

use std::borrow::Cow;

use inbox_api::{Effect, Error, ErrorKind};

/// Plain "SQL error": a table is missing, or a ROLLBACK found no transaction.
pub(crate) const GENERIC: i32 = 1;
const PERMISSION: i32 = 3;
pub(crate) const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NO_MEMORY: i32 = 7;
pub(crate) const READ_ONLY: i32 = 8;
const INTERRUPTED: i32 = 9;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
pub(crate) const CANNOT_OPEN: i32 = 14;
const SCHEMA_CHANGED: i32 = 17;
const TOO_BIG: i32 = 18;
const DENIED: i32 = 23;
pub(crate) const NOT_A_DATABASE: i32 = 26;
/// Another connection has written since this transaction began to read.
const BUSY_SNAPSHOT: i32 = BUSY | (2 << 8);

/// SQLite's extended result code, when the error is SQLite's.
pub(crate) fn extended_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// SQLite's primary result code.
pub(crate) fn primary_code(error: &sqlx::Error) -> Option<i32> {
    extended_code(error).map(|code| code & 0xff)
}

fn code_of(error: &Error) -> Option<i32> {
    let source = std::error::Error::source(error)?;
    extended_code(source.downcast_ref()?)
}

/// Whether another connection had a lock that this one needed, and nothing was done.
pub(crate) fn is_busy(error: &Error) -> bool {
    error.effect() == Effect::None
        && code_of(error).is_some_and(|code| code & 0xff == BUSY && code != BUSY_SNAPSHOT)
}

/// Whether that, or whether another connection has written since this one began to read.
pub(crate) fn is_too_late(error: &Error) -> bool {
    code_of(error).is_some_and(|code| code & 0xff == BUSY)
}

/// The driver's error as the contract's. The store's method says which operation it was.
pub(crate) fn failed(error: sqlx::Error) -> Error {
    let (kind, context, effect) = classify(&error);
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(error)
}

fn classify(error: &sqlx::Error) -> (ErrorKind, Cow<'static, str>, Effect) {
    use ErrorKind::{Conflict, Corrupt, Denied, Invalid, Other, Unavailable};

    if let Some(code) = extended_code(error) {
        if code == BUSY_SNAPSHOT {
            let context = "another transaction has written since this one began to read";
            return (Conflict, context.into(), Effect::None);
        }
        let (kind, context) = match code & 0xff {
            BUSY => (Unavailable, "another writer held the file for too long"),
            LOCKED => (Conflict, "a table is locked within this connection"),
            NO_MEMORY => (Unavailable, "SQLite is out of memory"),
            READ_ONLY => (Denied, "the file cannot be written"),
            PERMISSION | DENIED => (Denied, "access to the file was refused"),
            INTERRUPTED => (Unavailable, "it took longer than the operation's time-out"),
            // A failed write or sync may come before or after the commit took effect.
            IO => {
                let context = format!("the disk failed (SQLite code {code})");
                return (Unavailable, context.into(), Effect::Unknown);
            }
            CORRUPT => (Corrupt, "the file is damaged"),
            FULL => (Unavailable, "the disk is full"),
            CANNOT_OPEN => (Unavailable, "the file cannot be opened"),
            SCHEMA_CHANGED => (Conflict, "the tables were changed meanwhile"),
            TOO_BIG => (Invalid, "a value is larger than SQLite allows"),
            NOT_A_DATABASE => (Invalid, "the file is not an SQLite database"),
            _ => {
                return (Other, format!("SQLite code {code}").into(), Effect::None);
            }
        };
        return (kind, context.into(), Effect::None);
    }
    match error {
        sqlx::Error::PoolClosed => (Unavailable, "the store is closed".into(), Effect::None),
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection became free in time; is a transaction held open?".into(),
            Effect::None,
        ),
        sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => (
            Unavailable,
            "the connection was lost".into(),
            Effect::Unknown,
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
        _ => (Other, "the driver failed".into(), Effect::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_and_busy_pools_are_unavailable() {
        for error in [sqlx::Error::PoolClosed, sqlx::Error::PoolTimedOut] {
            let error = failed(error);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.effect(), Effect::None);
        }
        let lost = failed(sqlx::Error::WorkerCrashed);
        assert_eq!(lost.effect(), Effect::Unknown);
    }
}
