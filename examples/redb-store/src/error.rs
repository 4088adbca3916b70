//! redb's errors as the contract's.
//!
//! The kind says what the caller should do, so this is a question to answer for each error of the
//! driver: wait and repeat (`Unavailable`), set up (`SchemaVersion`), look at the data
//! (`Corrupt`), change the call (`Invalid`)? `Other` is for what nobody can act upon.

use std::{borrow::Cow, io};

use inbox_api::{Effect, Error, ErrorKind};

/// What can go wrong inside a transaction.
pub(crate) enum Failure {
    /// redb's own error.
    Redb(redb::Error),
    /// What this store finds itself.
    Found(ErrorKind, String),
}

impl Failure {
    pub(crate) fn corrupt(seq: i64, reason: &str) -> Self {
        Self::Found(ErrorKind::Corrupt, format!("seq {seq}: {reason}"))
    }
}

/// Each of redb's calls has its own error type, and all convert into [`redb::Error`].
impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

impl Failure {
    /// The contract's error. `effect` is for the caller to say: before the commit nothing has
    /// happened, and a commit that fails may have happened all the same.
    pub(crate) fn into_error(self, effect: Effect) -> Error {
        match self {
            Self::Found(kind, context) => Error::new(kind, context),
            Self::Redb(error) => {
                let (kind, context) = classify(&error);
                Error::new(kind, context)
                    .with_effect(effect)
                    .with_source(error)
            }
        }
    }
}

/// Before the commit, when nothing has happened.
pub(crate) fn before_commit(failure: Failure) -> Error {
    failure.into_error(Effect::None)
}

/// The blocking task did not come back: the runtime is shutting down, or the task panicked.
pub(crate) fn lost_task(error: tokio::task::JoinError) -> Error {
    let kind = if error.is_cancelled() {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Other
    };
    Error::new(kind, "the database's task did not finish")
        .with_effect(Effect::Unknown)
        .with_source(error)
}

/// Whether redb has met a failure of the disk, after which it refuses everything until the file is
/// opened again.
pub(crate) fn is_disk_failure(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    matches!(source, Some(redb::Error::Io(_) | redb::Error::PreviousIo))
}

fn classify(error: &redb::Error) -> (ErrorKind, Cow<'static, str>) {
    use ErrorKind::{Corrupt, Denied, Invalid, Other, SchemaVersion, Unavailable};
    use redb::Error as E;

    match error {
        E::Corrupted(_) | E::RepairAborted => (Corrupt, "the file is damaged".into()),
        E::ValueTooLarge(_) => (Invalid, "a value is larger than redb allows".into()),
        E::Io(error) => match error.kind() {
            // What redb reports for a file that does not start as its files do.
            io::ErrorKind::InvalidData => (Invalid, "the file is not a redb database".into()),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                (Denied, "access to the file was refused".into())
            }
            // A full disk, a mount that went away: once that is mended, the call succeeds.
            kind => (Unavailable, format!("the disk failed: {kind}").into()),
        },
        E::PreviousIo => (Unavailable, "the disk failed in another operation".into()),
        E::DatabaseClosed => (Unavailable, "the database is closed".into()),
        E::DatabaseAlreadyOpen => (
            Unavailable,
            "another process, or another store of this one, has the file open".into(),
        ),
        E::UpgradeRequired(found) => (
            SchemaVersion,
            format!("the file has redb's format {found}, which this build's redb cannot read")
                .into(),
        ),
        E::TableTypeMismatch { .. }
        | E::TableIsMultimap(_)
        | E::TableIsNotMultimap(_)
        | E::TypeDefinitionChanged { .. }
        | E::TableDoesNotExist(_) => (
            SchemaVersion,
            "a table is missing or has other types than this build's".into(),
        ),
        _ => (Other, "redb failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(error: impl Into<redb::Error>) -> ErrorKind {
        before_commit(Failure::from(error)).kind()
    }

    #[test]
    fn errors_say_what_to_do() {
        assert_eq!(
            kind(redb::DatabaseError::UpgradeRequired(1)),
            ErrorKind::SchemaVersion
        );
        assert_eq!(
            kind(redb::DatabaseError::DatabaseAlreadyOpen),
            ErrorKind::Unavailable
        );
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(kind(redb::StorageError::Io(full)), ErrorKind::Unavailable);
        let foreign = io::Error::from(io::ErrorKind::InvalidData);
        assert_eq!(kind(redb::StorageError::Io(foreign)), ErrorKind::Invalid);
        let damaged = redb::StorageError::Corrupted("page 7".into());
        assert_eq!(kind(damaged), ErrorKind::Corrupt);
    }

    #[test]
    fn a_failed_commit_may_have_happened() {
        let io = redb::StorageError::Io(io::Error::from(io::ErrorKind::StorageFull));
        let failure = Failure::from(redb::CommitError::from(io));
        let error = failure.into_error(Effect::Unknown);
        assert_eq!(error.effect(), Effect::Unknown);
    }
}
