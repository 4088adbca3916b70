//! What the URLs of sources and publishers have in common: settings behind the `?`, and errors that repeat no value.

use std::{borrow::Cow, str::FromStr};

use inbox_api::{Error, ErrorKind, Result, error_text};

/// An error of kind `Invalid`.
pub fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Reads the value of a setting.
///
/// # Errors
/// `Invalid`, with the setting's name and without its value.
pub fn read<T: FromStr>(key: &str, value: &str) -> Result<T> {
    let bad = |_| invalid(format!("{key} does not take this value"));
    value.parse().map_err(bad)
}

/// The error for a setting that is not among the `known` ones, which it names.
#[must_use]
pub fn unknown(key: &str, known: &str) -> Error {
    let key = error_text(key);
    invalid(format!(
        "unknown setting {key:?} in the URL; known are {known}"
    ))
}
