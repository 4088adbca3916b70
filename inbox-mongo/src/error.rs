//! The driver's errors as the contract's, by code and label and never by a message's text.

use std::{borrow::Cow, fmt};

use inbox_api::{Effect, Error, ErrorKind};
use mongodb::{
    bson::{Bson, Document},
    error::{
        Error as DriverError, ErrorKind as Driver, NO_WRITES_PERFORMED, RETRYABLE_ERROR,
        RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR, TRANSIENT_TRANSACTION_ERROR,
        UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
    },
};

use crate::server_selection;

pub(crate) const DUPLICATE_KEY: i32 = 11000;
const INTERNAL_ERROR: i32 = 1;
pub(crate) const WRITE_CONFLICT: i32 = 112;
/// A transaction waits a few milliseconds for the lock of a collection that is being changed.
pub(crate) const LOCK_TIMEOUT: i32 = 24;
/// What a request took longer than its `maxTimeMS`, and what the server has no name for.
pub(crate) const TIME_OVER: i32 = 50;
pub(crate) const UNKNOWN_COMMAND: i32 = 59;
/// A look-up in a sharded collection, before MongoDB 5.1.
pub(crate) const LOOKUP_IN_SHARDS: i32 = 28769;
const NOT_PRIMARY: i32 = 10107;
const INTERRUPTED: i32 = 11601;
const OUT_OF_DISK_SPACE: i32 = 14031;

const REFUSED_CREDENTIALS: &str = "the server refused the credentials; is there a password, and \
                                   was the user made in the database of the URL, or in the one \
                                   that authSource names?";

const OVERLOADED: &str = "the server is overloaded, or is recovering";

/// What the driver said, without what it quotes: a server's reply may contain parts of documents.
#[derive(Debug)]
struct Cause {
    what: &'static str,
    code: Option<i32>,
    labels: Vec<String>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if let Some(code) = self.code {
            write!(f, ", code {code}")?;
        }
        for label in &self.labels {
            write!(f, ", {label}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Cause {}

type Class = (ErrorKind, Cow<'static, str>, Effect);

/// The error of a request that may have changed something.
pub(crate) fn failed(error: DriverError) -> Error {
    let (kind, context, effect) = classify(&error);
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(cause(&error))
}

/// The error of a request that only reads: certainly nothing was changed by it.
pub(crate) fn before(error: DriverError) -> Error {
    failed(error).with_effect(Effect::None)
}

/// The error of a connection that cannot be made with its settings. The driver's words are kept:
/// they say which setting and why, and there is no document yet that they could quote.
pub(crate) fn refused(error: &DriverError) -> Error {
    let context = match error.kind.as_ref() {
        Driver::InvalidArgument { message, .. } => {
            format!("the driver refuses a setting: {message}")
        }
        Driver::InvalidTlsConfig { message, .. } => {
            format!("the TLS settings cannot be used: {message}")
        }
        Driver::DnsResolve { message, .. } => {
            let context = format!("the server's name could not be resolved: {message}");
            return Error::new(ErrorKind::Unavailable, context);
        }
        _ => return before(error.clone()),
    };
    Error::new(ErrorKind::Invalid, context)
}

/// The error of a reply to a command with `writeErrors` or a `writeConcernError` in it, which the
/// driver hands on as a success.
pub(crate) fn in_reply(reply: &Document) -> Option<Error> {
    let first = reply
        .get_array("writeErrors")
        .ok()
        .and_then(|errors| errors.first())
        .and_then(|error| error.as_document());
    let concern = reply.get_document("writeConcernError").ok();
    let what = if first.is_some() {
        "a write error"
    } else {
        "a write concern error"
    };
    let code = first.or(concern)?.get_i32("code").unwrap_or(0);
    let labels = reply.get_array("errorLabels").into_iter().flatten();
    let labels: Vec<String> = labels.filter_map(Bson::as_str).map(str::to_owned).collect();
    let has_label = |label: &str| labels.iter().any(|has| has == label);
    let (kind, context, mut effect) = by_code_and_labels(code, has_label);
    if first.is_none() {
        // It was written; whether it lasts is not known.
        effect = Effect::Unknown;
    }
    Some(
        Error::new(kind, context)
            .with_effect(effect)
            .with_source(Cause {
                what,
                code: Some(code),
                labels,
            }),
    )
}

/// The error of one document that a batch could not insert.
pub(crate) fn of_code(code: i32) -> Error {
    let (kind, context, effect) = by_code(code);
    Error::new(kind, context)
        .with_effect(effect)
        .with_source(Cause {
            what: "a write error",
            code: Some(code),
            labels: Vec::new(),
        })
}

/// Whether the server met an error of its own, as FerretDB does with a collection that is dropped meanwhile.
pub(crate) fn is_internal(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|source| source.downcast_ref::<Cause>());
    cause.and_then(|cause| cause.code) == Some(INTERNAL_ERROR)
}

pub(crate) fn code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        Driver::Command(command) => Some(command.code),
        Driver::Write(WriteFailure::WriteError(write)) => Some(write.code),
        Driver::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        Driver::InsertMany(many) => many
            .write_errors
            .iter()
            .flatten()
            .map(|error| error.code)
            .chain(many.write_concern_error.iter().map(|error| error.code))
            .next(),
        _ => None,
    }
}

/// Whether an insertion of several documents failed only because some were there.
pub(crate) fn only_duplicates(error: &DriverError) -> bool {
    let Driver::InsertMany(many) = error.kind.as_ref() else {
        return false;
    };
    let mut errors = many.write_errors.iter().flatten();
    many.write_concern_error.is_none() && errors.all(|error| error.code == DUPLICATE_KEY)
}

fn cause(error: &DriverError) -> Cause {
    let mut labels: Vec<String> = error.labels().iter().cloned().collect();
    labels.sort_unstable();
    Cause {
        what: match error.kind.as_ref() {
            Driver::Command(_) => "a command failed",
            Driver::Write(_) | Driver::InsertMany(_) => "a write failed",
            Driver::Authentication { .. } => "authentication failed",
            Driver::Io(_) => "an input or output error",
            Driver::ConnectionPoolCleared { .. } => "the connection pool was cleared",
            Driver::ServerSelection { .. } => "no suitable server",
            Driver::DnsResolve { .. } => "the host name was not found",
            Driver::InvalidTlsConfig { .. } => "the TLS settings are not usable",
            Driver::InvalidArgument { .. } => "an invalid argument",
            Driver::InvalidResponse { .. } => "an invalid reply",
            Driver::Transaction { .. } => "a transaction error",
            Driver::Shutdown => "the client is shut down",
            _ => "an error of the driver",
        },
        code: code(error),
        labels,
    }
}

fn classify(error: &DriverError) -> Class {
    use ErrorKind::{Conflict, Corrupt, Denied, Invalid, Other, Unavailable, Unsupported};

    if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
        let context = "the transaction may have been committed; commit again, or look";
        return (Unavailable, context.into(), Effect::Unknown);
    }
    if error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
        let context = "the transaction was aborted; repeat it from its start";
        let kind = match error.kind.as_ref() {
            Driver::Io(_)
            | Driver::ConnectionPoolCleared { .. }
            | Driver::ServerSelection { .. } => Unavailable,
            _ => Conflict,
        };
        return (kind, context.into(), Effect::None);
    }
    if let Some(code) = code(error) {
        let written = matches!(
            error.kind.as_ref(),
            Driver::Write(WriteFailure::WriteConcernError(_))
        );
        let has_label = |label: &str| error.contains_label(label);
        let (kind, context, effect) = by_code_and_labels(code, has_label);
        return (
            kind,
            context,
            if written { Effect::Unknown } else { effect },
        );
    }
    let (kind, context, effect) = match error.kind.as_ref() {
        Driver::Authentication { .. } => (Denied, REFUSED_CREDENTIALS, Effect::None),
        Driver::Io(_) => (Unavailable, "the connection was lost", Effect::Unknown),
        // Also what was sent and not answered when the driver's monitor took the server for gone.
        Driver::ConnectionPoolCleared { .. } => (
            Unavailable,
            "the connections were given up after another one failed",
            Effect::Unknown,
        ),
        Driver::ServerSelection { message, .. } => {
            return (
                Unavailable,
                server_selection::explain(message).into(),
                Effect::None,
            );
        }
        Driver::DnsResolve { .. } => (
            Unavailable,
            "the server's name could not be resolved",
            Effect::None,
        ),
        Driver::InvalidTlsConfig { .. } => (
            Invalid,
            "the TLS settings are refused by the driver",
            Effect::None,
        ),
        Driver::InvalidArgument { .. } => (
            Invalid,
            "the request is refused by the driver",
            Effect::None,
        ),
        Driver::Shutdown => (Unavailable, "the store is closed", Effect::None),
        Driver::SessionsNotSupported | Driver::IncompatibleServer { .. } => (
            Unsupported,
            "the server does not support this",
            Effect::None,
        ),
        Driver::Transaction { .. } => (
            Invalid,
            "the session has no transaction in progress",
            Effect::None,
        ),
        Driver::BsonDeserialization(_) => (
            Corrupt,
            "a reply or a stored document cannot be read",
            Effect::Unknown,
        ),
        _ => (Other, "the driver failed", Effect::Unknown),
    };
    (kind, context.into(), effect)
}

/// SQLSTATEs of PostgreSQL, which FerretDB passes on where it has no code of MongoDB's for them.
mod sqlstate {
    pub(super) const READ_ONLY: i32 = packed(*b"25006");
    pub(super) const SERIALIZATION_FAILURE: i32 = packed(*b"40001");
    pub(super) const DEADLOCK: i32 = packed(*b"40P01");
    pub(super) const DISK_FULL: i32 = packed(*b"53100");
    pub(super) const OUT_OF_MEMORY: i32 = packed(*b"53200");
    pub(super) const TOO_MANY_CONNECTIONS: i32 = packed(*b"53300");
    pub(super) const LOCK_NOT_AVAILABLE: i32 = packed(*b"55P03");
    pub(super) const QUERY_CANCELED: i32 = packed(*b"57014");
    pub(super) const ADMIN_SHUTDOWN: i32 = packed(*b"57P01");
    pub(super) const CRASH_SHUTDOWN: i32 = packed(*b"57P02");
    pub(super) const CANNOT_CONNECT_NOW: i32 = packed(*b"57P03");
    pub(super) const IO_ERROR: i32 = packed(*b"58030");

    /// As PostgreSQL packs one into a number: six bits a character, the first one's lowest.
    const fn packed([a, b, c, d, e]: [u8; 5]) -> i32 {
        bits(a) | bits(b) << 6 | bits(c) << 12 | bits(d) << 18 | bits(e) << 24
    }

    const fn bits(character: u8) -> i32 {
        (character - b'0') as i32
    }
}

/// The code of MongoDB's that says the same.
fn of_mongodb(code: i32) -> i32 {
    match code {
        sqlstate::READ_ONLY | sqlstate::CANNOT_CONNECT_NOW => NOT_PRIMARY,
        sqlstate::QUERY_CANCELED | sqlstate::ADMIN_SHUTDOWN | sqlstate::CRASH_SHUTDOWN => {
            INTERRUPTED
        }
        sqlstate::DISK_FULL
        | sqlstate::OUT_OF_MEMORY
        | sqlstate::TOO_MANY_CONNECTIONS
        | sqlstate::IO_ERROR => OUT_OF_DISK_SPACE,
        code => code,
    }
}

/// What may be done again is an outage, whatever its code: newer servers have more of them than are listed here.
fn by_code_and_labels(code: i32, has_label: impl Fn(&str) -> bool) -> Class {
    let passes = [
        SYSTEM_OVERLOADED_ERROR,
        RETRYABLE_ERROR,
        RETRYABLE_WRITE_ERROR,
    ];
    let (kind, context, effect) = by_code(code);
    if !passes.into_iter().any(&has_label) {
        return (kind, context, effect);
    }
    let (context, effect) = match kind {
        ErrorKind::Unavailable => (context, effect),
        _ => (OVERLOADED.into(), Effect::Unknown),
    };
    if has_label(NO_WRITES_PERFORMED) {
        return (ErrorKind::Unavailable, context, Effect::None);
    }
    (ErrorKind::Unavailable, context, effect)
}

/// By the server's own code: <https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml>.
fn by_code(code: i32) -> Class {
    use ErrorKind::{Conflict, Denied, Invalid, Other, SchemaMissing, Unavailable, Unsupported};

    let (kind, context) = match of_mongodb(code) {
        // HostUnreachable, HostNotFound, NetworkTimeout, SocketException, ShutdownInProgress,
        // the five of a primary that steps down or starts, ExceededTimeLimit and its like.
        // FerretDB answers so when its own database goes away.
        INTERNAL_ERROR | 8 => {
            let context = "the server met an error of its own";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        6 | 7 | 89 | 91 | 189 | 9001 | 10058 | NOT_PRIMARY | 11600 | 11602 | 13435 | 13436 => {
            let context = "the server is not the primary, or is starting or stopping";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        TIME_OVER | 202 | 262 => {
            let context = "the server ran out of time for this";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        64 | 100 => {
            let context = "the write concern was not met in time; are enough members up?";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        // Also a cursor or a plan that the server gave up.
        11 | 43 | 175 | 237 | INTERRUPTED => {
            let context = "the server interrupted this";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        // ReadConcernMajorityNotAvailableYet, TemporarilyUnavailable, and what a server answers that is overloaded: its
        // queue is full, a limit of its rate or of connections between servers is reached.
        134 | 365 | 433 | 449 | 450 | 462 | 463 | 473 => {
            return (Unavailable, OVERLOADED.into(), Effect::Unknown);
        }
        133 => (
            Unavailable,
            "no member of the replica set or of a shard may be used",
        ),
        148 => (
            Unsupported,
            "the server reads nothing that a majority has (enableMajorityReadConcern is false), \
             which this store needs",
        ),
        13 => (
            Denied,
            "the user lacks a privilege for this; SETUP.md of inbox-mongo has the roles, \
             under Permissions",
        ),
        73 => (
            Invalid,
            "the server does not take the name of the database or of the inbox: a database's has \
             at most 63 bytes, no blank and none of / \\ . \" $",
        ),
        13297 => (
            Invalid,
            "there is a database whose name differs only in upper and lower case; write it so",
        ),
        // BadValue and IndexNotFound: what requests get that name an index in vain, and writes
        // that are to be journaled where nothing is.
        2 | 27 => (
            Other,
            "the server refuses the request: an index is missing, which migrate makes, or it runs \
             without a journal (--nojournal), which this store needs",
        ),
        18 | 8000 => (Denied, REFUSED_CREDENTIALS),
        26 => (
            SchemaMissing,
            "there is no inbox of this name; create or migrate sets one up",
        ),
        LOCK_TIMEOUT | 46 | WRITE_CONFLICT | 225 | 244 | 246 | 251 => {
            (Conflict, "another operation changed the same documents")
        }
        290 => (
            Conflict,
            "the transaction took longer than the server allows (transactionLifetimeLimitSeconds)",
        ),
        // Of a bulk, some may have been done before.
        sqlstate::SERIALIZATION_FAILURE | sqlstate::DEADLOCK | sqlstate::LOCK_NOT_AVAILABLE => {
            let context = "the server gave this up in favour of another operation";
            return (Conflict, context.into(), Effect::Unknown);
        }
        DUPLICATE_KEY => (Conflict, "another operation inserted the same key"),
        146 | OUT_OF_DISK_SPACE => {
            let context = "the server is out of memory, disk or connections";
            return (Unavailable, context.into(), Effect::Unknown);
        }
        20 | UNKNOWN_COMMAND | 115 | 263 | 303 => (Unsupported, "the server does not support this"),
        10334 | 17419 | 17420 => (Invalid, "a document would be over the server's limit"),
        121 => (
            ErrorKind::SchemaVersion,
            "the collection's validator is not the one of this build's inbox",
        ),
        code => {
            return (Other, format!("server code {code}").into(), Effect::None);
        }
    };
    (kind, context.into(), Effect::None)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{deserialize_from_document, doc};

    use super::*;

    fn command(code: i32) -> DriverError {
        let reply = doc! {
            "code": code, "codeName": "Name", "errmsg": "with secret",
        };
        Driver::Command(deserialize_from_document(reply).unwrap()).into()
    }

    #[test]
    fn codes_say_what_to_do() {
        for (code, kind, effect) in [
            (10107, ErrorKind::Unavailable, Effect::Unknown),
            (189, ErrorKind::Unavailable, Effect::Unknown),
            (64, ErrorKind::Unavailable, Effect::Unknown),
            (50, ErrorKind::Unavailable, Effect::Unknown),
            (43, ErrorKind::Unavailable, Effect::Unknown),
            (133, ErrorKind::Unavailable, Effect::None),
            (148, ErrorKind::Unsupported, Effect::None),
            (175, ErrorKind::Unavailable, Effect::Unknown),
            (134, ErrorKind::Unavailable, Effect::Unknown),
            (365, ErrorKind::Unavailable, Effect::Unknown),
            (462, ErrorKind::Unavailable, Effect::Unknown),
            (463, ErrorKind::Unavailable, Effect::Unknown),
            (473, ErrorKind::Unavailable, Effect::Unknown),
            (290, ErrorKind::Conflict, Effect::None),
            (112, ErrorKind::Conflict, Effect::None),
            (251, ErrorKind::Conflict, Effect::None),
            // A serialization failure and a full disk below FerretDB.
            (16_777_220, ErrorKind::Conflict, Effect::Unknown),
            (4293, ErrorKind::Unavailable, Effect::Unknown),
            (13, ErrorKind::Denied, Effect::None),
            (18, ErrorKind::Denied, Effect::None),
            (26, ErrorKind::SchemaMissing, Effect::None),
            (73, ErrorKind::Invalid, Effect::None),
            (13297, ErrorKind::Invalid, Effect::None),
            (20, ErrorKind::Unsupported, Effect::None),
            (10334, ErrorKind::Invalid, Effect::None),
            (4711, ErrorKind::Other, Effect::None),
        ] {
            let error = failed(command(code));
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{code}");
        }
    }

    #[test]
    fn labels_say_what_may_be_done_again_whatever_the_code() {
        let labelled = |code: i32, labels: &[&str]| {
            let (kind, _, effect) = by_code_and_labels(code, |label| labels.contains(&label));
            (kind, effect)
        };
        let (away, unknown) = (ErrorKind::Unavailable, Effect::Unknown);
        for label in [
            "SystemOverloadedError",
            "RetryableError",
            "RetryableWriteError",
        ] {
            for code in [4711, 10107] {
                assert_eq!(labelled(code, &[label]), (away, unknown), "{code} {label}");
                let nothing = labelled(code, &[label, "NoWritesPerformed"]);
                assert_eq!(nothing, (away, Effect::None), "{code} {label}");
            }
        }
        // By itself it says nothing of what may be done.
        let other = labelled(4711, &["NoWritesPerformed"]);
        assert_eq!(other, (ErrorKind::Other, Effect::None));
        // Nothing was sent to a member.
        let none = labelled(133, &["RetryableWriteError"]);
        assert_eq!(none, (away, Effect::None));
    }

    #[test]
    fn what_the_server_quotes_is_not_repeated() {
        let error = failed(command(4711));
        assert!(!format!("{error:?} {error}").contains("secret"));
        assert!(format!("{error:?}").contains("4711"));
    }

    #[test]
    fn lost_connections_leave_the_outcome_open() {
        let lost = || DriverError::from(std::io::Error::other("reset"));
        let error = failed(lost());
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), Effect::Unknown);
        assert_eq!(before(lost()).effect(), Effect::None);
    }

    #[test]
    fn replies_to_commands_are_looked_through() {
        assert!(in_reply(&doc! { "ok": 1.0, "n": 3 }).is_none());
        let errors = doc! { "writeErrors": [{ "index": 0, "code": 112, "errmsg": "secret" }] };
        let error = in_reply(&errors).unwrap();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let concern = doc! { "n": 1, "writeConcernError": { "code": 64, "errmsg": "waiting" } };
        let error = in_reply(&concern).unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), Effect::Unknown);
        let errors = |labels: &[&str]| {
            in_reply(&doc! {
                "writeErrors": [{ "index": 0, "code": 4711 }], "errorLabels": labels,
            })
            .unwrap()
        };
        let error = errors(&["RetryableWriteError"]);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), Effect::Unknown);
        let error = errors(&["RetryableWriteError", "NoWritesPerformed"]);
        assert_eq!(error.effect(), Effect::None);
        let written = doc! {
            "n": 1, "writeConcernError": { "code": 91 },
            "errorLabels": ["RetryableWriteError", "NoWritesPerformed"],
        };
        assert_eq!(in_reply(&written).unwrap().effect(), Effect::Unknown);
        // Written, but perhaps not for good, whatever the code says.
        let concern = doc! { "n": 1, "writeConcernError": { "code": 4711 } };
        let error = in_reply(&concern).unwrap();
        assert_eq!(error.effect(), Effect::Unknown);
    }
}
