//! What the URLs of sources and publishers have in common: settings behind the `?`, and errors that repeat no value.

use std::{borrow::Cow, fmt::Display, str::FromStr};

use inbox_api::{Error, ErrorKind, Result, error_text};

/// An error of kind `Invalid`.
pub fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Reads the value of a setting, of a type whose errors do not repeat what they could not read, such as a number.
///
/// # Errors
/// `Invalid`, with the setting's name and what is wrong, and without its value.
pub fn read<T>(key: &str, value: &str) -> Result<T>
where
    T: FromStr<Err: Display>,
{
    let read = value.parse::<T>();
    read.map_err(|wrong| invalid(format!("{key} does not take this value: {wrong}")))
}

/// The error for a setting that is not among the `known` ones, which it names.
#[must_use]
pub fn unknown(key: &str, known: &str) -> Error {
    let key = error_text(key);
    invalid(format!(
        "unknown setting {key:?} in the URL; known are {known}"
    ))
}
