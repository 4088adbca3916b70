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
    /// The reply was lost: the change may or may not be durable. Every operation of
    /// [`Store`](crate::Store) is safe to repeat then. Never with [`ErrorKind::Invalid`] and
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
    operation: &'static str,
    context: Cow<'static, str>,
    effect: Effect,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` in `operation` (a method's name) that certainly changed nothing.
    /// `context` must not contain credentials or payloads.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        operation: &'static str,
        context: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind,
            operation,
            context: context.into(),
            effect: Effect::None,
            source: None,
        }
    }

    /// Says that the write may have happened all the same.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
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

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
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
        write!(f, "{} ({}): {}", self.kind, self.operation, self.context)
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
        Error::new(ErrorKind::Invalid, operation, self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_and_the_source_is_kept() {
        let error = Error::new(ErrorKind::Unavailable, "claim", "database is locked")
            .with_effect(Effect::Unknown)
            .with_source(std::io::Error::other("driver"));
        assert_eq!(
            error.to_string(),
            "store unavailable (claim): database is locked"
        );
        assert_eq!(error.source().unwrap().to_string(), "driver");
        assert!(error.is_retryable());
        assert!(!Error::new(ErrorKind::Denied, "claim", "").is_retryable());
    }
}
