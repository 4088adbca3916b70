//! The driver's errors as the contract's, by [SQLSTATE](crate::sqlstate).

use std::{borrow::Cow, io};

use inbox_api::{Effect, Error, ErrorKind};
use sqlx::{
    error::DatabaseError,
    postgres::{PgDatabaseError, PgSeverity},
};

use crate::sqlstate::{
    self, AMBIGUOUS_FUNCTION, FEATURE_NOT_SUPPORTED, INSUFFICIENT_PRIVILEGE, INTERNAL,
    INVALID_SCHEMA, LIMIT_EXCEEDED, LOCK_NOT_AVAILABLE, PREPARED_STATEMENT_EXISTS,
    PREPARED_STATEMENT_MISSING, PROTOCOL_VIOLATION, READ_ONLY, UNDEFINED_COLUMN,
    UNDEFINED_FUNCTION, UNDEFINED_TABLE, UNIQUE_VIOLATION, WRONG_OBJECT,
};

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
            | AMBIGUOUS_FUNCTION
            | WRONG_OBJECT
            | INVALID_SCHEMA
            | UNIQUE_VIOLATION
            | INTERNAL
            | FEATURE_NOT_SUPPORTED
    )
}

/// Whether what the connection has prepared is not what the server has: another connection works.
pub(crate) fn is_stale(code: &str) -> bool {
    matches!(
        code,
        FEATURE_NOT_SUPPORTED | PREPARED_STATEMENT_EXISTS | PREPARED_STATEMENT_MISSING
    )
}

/// The name of the operation that failed, for `map_err`. Once, where a trait's method is
/// implemented: what is below need not know it.
pub(crate) fn in_operation(operation: &'static str) -> impl FnOnce(Error) -> Error {
    move |error| error.in_operation(operation)
}

pub(crate) fn failed(error: sqlx::Error) -> Error {
    let (kind, context, effect) = classify(&error);
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(error)
}

/// As [`failed`], before the first statement: certainly nothing was changed.
pub(crate) fn before(error: sqlx::Error) -> Error {
    failed(error).with_effect(Effect::None)
}

/// Something was sent, and its answer did not come in time.
pub(crate) fn no_answer() -> Error {
    let context = "the server did not answer in time";
    Error::new(ErrorKind::Unavailable, context).with_effect(Effect::Unknown)
}

/// An answer that no function of this build gives.
pub(crate) fn unknown_answer() -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        "installed functions do not match this build; run `inbox schema migrate`",
    )
}

fn driver_error(error: &Error) -> Option<&sqlx::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Whether the server refuses a value: class 22, data exceptions, and of class 54 what is over its limits, such as
/// JSON that nests too deep for its stack.
pub(crate) fn is_refused_value(error: &Error) -> bool {
    let is_invalid = error.kind() == ErrorKind::Invalid;
    let code = driver_error(error).and_then(sqlstate);
    code.is_some_and(|code| code.starts_with("22") || (code.starts_with("54") && is_invalid))
}

/// Whether the server takes no writes.
pub(crate) fn refuses_writes(error: &Error) -> bool {
    driver_error(error).and_then(sqlstate).as_deref() == Some(READ_ONLY)
}

/// Whether a lock was waited for in vain.
pub(crate) fn is_lock_timeout(error: &Error) -> bool {
    driver_error(error).and_then(sqlstate).as_deref() == Some(LOCK_NOT_AVAILABLE)
}

fn classify(error: &sqlx::Error) -> (ErrorKind, Cow<'static, str>, Effect) {
    use ErrorKind::{Corrupt, Other, Unavailable};

    if let Some(answer) = error.as_database_error() {
        return by_code(&answer.code().unwrap_or_default(), answer);
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

/// An answer of the server's, or of a pooler's in front of it.
fn by_code(code: &str, answer: &dyn DatabaseError) -> (ErrorKind, Cow<'static, str>, Effect) {
    let server = answer.try_downcast_ref::<PgDatabaseError>();
    let mut meaning = sqlstate::meaning(code);
    let mut context: Cow<'static, str> = meaning
        .context
        .map_or_else(|| format!("SQLSTATE {code}").into(), Cow::from);
    if code == PROTOCOL_VIOLATION {
        // PgBouncer has one code for everything that is wrong, and says what it is in words that
        // hold no more than names.
        let message = one_line(answer.message());
        // Retrying does not help then; nothing but the words tells it from an outage.
        if message.contains("statement pooling mode") {
            meaning.kind = ErrorKind::Unsupported;
            meaning.effect = Effect::None;
            context = "the pooler lets nobody begin a transaction; set its pool_mode to \
                       transaction or session"
                .into();
        } else {
            context = format!("{context}: {message}").into();
        }
    }
    if code == INSUFFICIENT_PRIVILEGE && sqlstate::names_what_is_denied(answer.message()) {
        context = format!("{context}: {}", one_line(answer.message())).into();
    }
    // These words are in no other language.
    if code == INTERNAL
        && VANISHED
            .iter()
            .any(|words| answer.message().starts_with(*words))
    {
        meaning.kind = ErrorKind::SchemaMissing;
        context = "a part of the inbox was removed while it was in use".into();
    }
    if code == LIMIT_EXCEEDED
        && let Some(file) = server.and_then(PgDatabaseError::file)
        && file != NOTIFICATIONS
    {
        meaning.kind = ErrorKind::Invalid;
        context = "the request is over one of the server's limits".into();
    }
    let severity = server.map(PgDatabaseError::severity);
    if severity == Some(PgSeverity::Fatal) && meaning.kind == ErrorKind::Other && code == INTERNAL {
        // Such as a file that a new session cannot write, as the disk is full.
        meaning.kind = ErrorKind::Unavailable;
        meaning.effect = Effect::Unknown;
        context = "the server ended the session for an error of its own".into();
    }
    if severity == Some(PgSeverity::Panic) {
        // The server went down, perhaps while it committed.
        meaning.effect = Effect::Unknown;
    }
    (meaning.kind, context, meaning.effect)
}

/// How the server tells that a table or function is gone which a plan was made for.
const VANISHED: [&str; 2] = [
    "could not open relation with OID",
    "cache lookup failed for ",
];

/// Where PostgreSQL's source keeps notifications.
const NOTIFICATIONS: &str = "async.c";

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use sqlx::{
        Connection as _, PgConnection,
        postgres::{PgConnectOptions, PgSslMode},
    };

    use super::*;

    /// What becomes of connecting where the server answers this.
    async fn refused(severity: &str, code: &str, text: &str) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let fields = format!("S{severity}\0V{severity}\0C{code}\0M{text}\0\0");
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            assert_ne!(client.read(&mut [0; 1_000]).unwrap(), 0);
            let length = u32::try_from(fields.len() + 4).unwrap();
            let answer = [b"E", &length.to_be_bytes()[..], fields.as_bytes()].concat();
            client.write_all(&answer).unwrap();
        });
        let options = PgConnectOptions::new_without_pgpass();
        let options = options.host("127.0.0.1").port(port).username("app");
        let options = options.ssl_mode(PgSslMode::Disable);
        let error = PgConnection::connect_with(&options).await.unwrap_err();
        server.join().unwrap();
        failed(error)
    }

    #[tokio::test]
    async fn a_session_that_cannot_begin_is_an_outage() {
        let text = "could not write init file";
        let error = refused("FATAL", INTERNAL, text).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.effect(), Effect::Unknown);
        let error = refused("ERROR", INTERNAL, text).await;
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        let error = refused("FATAL", "42704", "unrecognized parameter").await;
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
    }

    #[test]
    fn a_lost_connection_leaves_the_outcome_open() {
        let lost = || sqlx::Error::Io(io::Error::other("reset"));
        assert_eq!(failed(lost()).effect(), Effect::Unknown);
        assert_eq!(before(lost()).effect(), Effect::None);
        let refused = sqlx::Error::Io(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(failed(refused).effect(), Effect::None);
        let full = failed(sqlx::Error::PoolTimedOut);
        assert_eq!(full.kind(), ErrorKind::Unavailable);
    }
}
