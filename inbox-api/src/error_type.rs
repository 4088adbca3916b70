//! The type of an error, as it is written in an error text and read from there.

use std::fmt;

use serde::Serialize;

use crate::Invalid;

const SEPARATOR: &str = ": ";

/// The name of an error's type, such as `sqlx_core::error::Error`, by which dead letters are grouped.
///
/// An error text begins with it when the error has a type of its own: [`before`](Self::before) writes
/// it and [`of`](Self::of) reads it.
///
/// ```
/// use inbox_api::ErrorType;
///
/// let text = ErrorType::before("std::io::error::Error", "connection refused");
/// assert_eq!(text, "std::io::error::Error: connection refused");
/// let error_type = ErrorType::of(&text).unwrap();
/// assert_eq!(error_type.as_str(), "std::io::error::Error");
/// assert_eq!(ErrorType::of("timeout: the server did not answer"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ErrorType(String);

impl ErrorType {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// A path as Rust writes it: at least two names joined by `::`, and perhaps type parameters in
    /// angle brackets.
    ///
    /// # Errors
    /// [`Invalid::Malformed`] when it is none or longer than [`Self::MAX_BYTES`].
    pub fn new(name: impl Into<String>) -> Result<Self, Invalid> {
        let name = name.into();
        if is_type_name(&name) {
            Ok(Self(name))
        } else {
            Err(Invalid::Malformed {
                what: "error type",
                expected: "a path such as std::io::error::Error, of at most 1024 bytes",
            })
        }
    }

    /// The type at the beginning of an error text: what stands before the first colon and space, if
    /// it is the name of a type. An error without one is told from others by its text alone.
    #[must_use]
    pub fn of(error: &str) -> Option<Self> {
        let (name, _) = error.split_once(SEPARATOR)?;
        is_type_name(name).then(|| Self(name.into()))
    }

    /// An error text that begins with its type's name.
    #[must_use]
    pub fn before(name: &str, error: impl fmt::Display) -> String {
        format!("{name}{SEPARATOR}{error}")
    }

    /// How the error texts of this type begin, and no others: [`of`](Self::of) a text is this type
    /// exactly when the text begins with these bytes.
    #[must_use]
    pub fn prefix(&self) -> String {
        Self::before(&self.0, "")
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether this is a path of two names or more, and perhaps type parameters.
fn is_type_name(name: &str) -> bool {
    let (path, parameters) = name.split_at(name.find('<').unwrap_or(name.len()));
    let is_name = |segment: &str| {
        let mut chars = segment.chars();
        chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && chars.all(|c| c.is_alphanumeric() || c == '_')
    };
    name.len() <= ErrorType::MAX_BYTES
        && path.contains("::")
        && path.split("::").all(is_name)
        && (parameters.is_empty() || parameters.ends_with('>'))
        && !parameters.contains(SEPARATOR)
        && !parameters.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_where_one_is_written() {
        let generic = "app::Retry<alloc::boxed::Box<dyn core::error::Error + Send, u8>>";
        for name in ["std::io::error::Error", generic, "a::_b"] {
            let read = ErrorType::of(&ErrorType::before(name, "x: y"));
            assert_eq!(read.as_ref().map(ErrorType::as_str), Some(name));
        }
        for text in [
            "",
            "timeout: x",
            "a::b",
            "a::b:x",
            "a::: x",
            "::a: x",
            "http://a::b: x",
            "fe80::1: x",
            "two words::b: x",
            "a::b<c: x",
            "a::b<\n>: x",
        ] {
            assert_eq!(ErrorType::of(text), None, "{text}");
        }
        assert_eq!(ErrorType::of(&format!("a::{}: x", "b".repeat(1022))), None);
    }

    #[test]
    fn a_prefix_means_what_the_type_means() {
        let error_type = ErrorType::new("a::b").unwrap();
        for text in [
            "a::b: x",
            "a::b: ",
            "a::b",
            "a::bc: x",
            "x a::b: ",
            "a::b<c>: x",
            "a::b:: x",
        ] {
            let is_type = ErrorType::of(text).as_ref() == Some(&error_type);
            assert_eq!(is_type, text.starts_with(&error_type.prefix()), "{text}");
        }
        assert!(ErrorType::new("a::b:").is_err());
        assert!(ErrorType::new("a::b<c: d>").is_err());
    }
}
