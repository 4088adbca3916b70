//! One error type whose kind says what the caller should do.

use std::{borrow::Cow, error::Error as StdError, fmt};

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached, is starting, is full or did not answer in time. Retry later.
    Unavailable,
    /// The store gave up this attempt in favour of another transaction (deadlock, serialization
    /// failure, lock time-out). Retry at once or after a short pause.
    Conflict,
    /// There is no inbox at this place. Set it up (`create` or `migrate`).
    SchemaMissing,
    /// There is an inbox of another version, an incomplete one, or tables that are not an
    /// inbox's. The message names what was found and what this build expects.
    SchemaVersion,
    /// The request breaks a rule and will never succeed as it stands.
    Invalid,
    /// The credentials were refused or a permission is missing. Retrying is pointless until
    /// it is granted.
    Denied,
    /// This store cannot do that, and says so in its [`Capabilities`](crate::Capabilities).
    Unsupported,
    /// A stored row does not read back as what was written.
    Corrupt,
    /// Anything else; look at the source.
    Other,
}

impl ErrorKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "store unavailable",
            Self::Conflict => "conflict",
            Self::SchemaMissing => "schema missing",
            Self::SchemaVersion => "wrong schema version",
            Self::Invalid => "invalid input",
            Self::Denied => "permission denied",
            Self::Unsupported => "unsupported",
            Self::Corrupt => "corrupt data",
            Self::Other => "store error",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the write that failed may nevertheless have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Certainly nothing was changed.
    None,
    /// The reply was lost, or only a part of the operation failed: the change may or may not be durable, or
    /// some of it is. Every operation of [`Store`](crate::Store) is safe to repeat then. Never with [`ErrorKind::Invalid`] and
    /// [`ErrorKind::Unsupported`]: what is refused is refused before anything is changed.
    Unknown,
}

/// Why a store operation failed.
///
/// `Display` is one line: kind, operation, context. It never contains credentials or payloads.
/// The driver's own error is the [`source`](StdError::source).
///
/// Implementors MUST classify: a unique violation is not an error at all, an unreachable database
/// is [`ErrorKind::Unavailable`], and a write whose reply was lost has [`Effect::Unknown`].
pub struct Error {
    kind: ErrorKind,
    operation: Option<&'static str>,
    context: Cow<'static, str>,
    effect: Effect,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` that certainly changed nothing. `context` must not contain credentials or
    /// payloads.
    ///
    /// What finds the error need not know which operation it was: the store's method says that,
    /// once for all that it calls, by [`in_operation`](Self::in_operation).
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            operation: None,
            context: context.into(),
            effect: Effect::None,
            source: None,
        }
    }

    /// Names the operation that failed, by the method's name. What was named before, keeps its name.
    #[must_use]
    pub fn in_operation(mut self, operation: &'static str) -> Self {
        self.operation.get_or_insert(operation);
        self
    }

    /// Says that the write may have happened all the same.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Of an operation that is done in several steps: says that the write may have happened if a step
    /// before the one that failed has `changed` anything.
    #[must_use]
    pub fn after_changes(self, changed: bool) -> Self {
        if changed {
            self.with_effect(Effect::Unknown)
        } else {
            self
        }
    }

    /// Keeps the driver's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operation that failed: the name of the method that was called. Every error that a store
    /// answers has one.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.operation
    }

    /// The details, without kind and operation.
    #[must_use]
    pub fn context(&self) -> &str {
        &self.context
    }

    /// Whether the write may have happened.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Whether the same call may succeed later without anybody changing anything:
    /// [`ErrorKind::Unavailable`] and [`ErrorKind::Conflict`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Conflict)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            Some(operation) => write!(f, "{} ({operation}): {}", self.kind, self.context),
            None => write!(f, "{}: {}", self.kind, self.context),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("operation", &self.operation)
            .field("context", &self.context)
            .field("effect", &self.effect)
            .field("source", &self.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// Why a value is refused before any I/O. Never repeats the value itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A text is empty.
    #[error("{what} is empty")]
    Empty {
        /// Which value.
        what: &'static str,
    },
    /// A text is longer than its limit.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Which value.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The longest accepted, in bytes.
        limit: usize,
    },
    /// A text contains a control character, such as NUL or a line break.
    #[error("{what} contains a control character")]
    ControlCharacter {
        /// Which value.
        what: &'static str,
    },
    /// A payload or result is over the store's limit.
    #[error("{what} has {bytes} bytes, this store's limit is {limit}")]
    TooLarge {
        /// Which value.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The largest accepted, in bytes.
        limit: usize,
    },
    /// A number or duration is outside its range.
    #[error("{what} must be {expected}")]
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// The range, for people to read.
        expected: &'static str,
    },
    /// A text is not of its form, such as a cursor or an SQL identifier.
    #[error("{what} must be {expected}")]
    Malformed {
        /// Which value.
        what: &'static str,
        /// The form, for people to read.
        expected: &'static str,
    },
}

impl Invalid {
    /// The same as an [`Error`] of kind [`ErrorKind::Invalid`], for calls in which there is no
    /// single message to report it for.
    #[must_use]
    pub fn in_operation(self, operation: &'static str) -> Error {
        Error::from(self).in_operation(operation)
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::new(ErrorKind::Invalid, invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_and_the_source_is_kept() {
        let error = Error::new(ErrorKind::Unavailable, "database is locked")
            .in_operation("claim")
            .with_effect(Effect::Unknown)
            .with_source(std::io::Error::other("driver"));
        assert_eq!(
            error.to_string(),
            "store unavailable (claim): database is locked"
        );
        assert_eq!(error.source().unwrap().to_string(), "driver");
        assert!(error.is_retryable());
        assert!(
            !Error::new(ErrorKind::Denied, "")
                .in_operation("claim")
                .is_retryable()
        );
    }
}
