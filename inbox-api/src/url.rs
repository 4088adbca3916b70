//! What may be said about a URL.

use crate::Error;

/// An error about `url`, without what may be a part of a password.
///
/// Errors about URLs repeat the name of a setting that is not known. Where a `?` in a password was not written as `%3F`,
/// the rest of the password is read as settings, and an `@` is behind it. Of such a URL the error repeats nothing; any
/// other is as it was. Stores and brokers pass each error of their `from_url` through this.
///
/// ```
/// use inbox_api::{Error, ErrorKind, hide_password};
///
/// let unknown = Error::new(ErrorKind::Invalid, "unknown setting \"word@db.example/shop\"");
/// let said = hide_password("mysql://app:1?word@db.example/shop", unknown).to_string();
/// assert!(!said.contains("word@"));
/// ```
#[must_use]
pub fn hide_password(url: &str, error: Error) -> Error {
    let may_be_password = url
        .split_once('?')
        .is_some_and(|(_, settings)| settings.contains('@'));
    if !may_be_password {
        return error;
    }
    let hidden = Error::new(
        error.kind(),
        "what is behind the ? of the URL cannot be read. It may be the rest of a password, so it is not \
         repeated: write ? and @ in user and password as %3F and %40",
    );
    match error.operation() {
        Some(operation) => hidden.in_operation(operation),
        None => hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn only_what_may_be_a_password_is_hidden() {
        let of = |url| {
            let error = Error::new(ErrorKind::Invalid, "unknown setting \"x\"");
            hide_password(url, error.in_operation("from_url"))
        };
        for told in ["mysql://app:1@h/d?x=1", "mysql://h/d", "mysql://h/d?x"] {
            assert_eq!(of(told).context(), "unknown setting \"x\"", "{told}");
        }
        for hidden in ["mysql://app:1?x@h/d", "mysql://app:1@2?x@h/d", "a?x=1&y@h"] {
            let error = of(hidden);
            assert!(!error.context().contains("\"x\""), "{hidden}: {error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(error.operation(), Some("from_url"));
        }
    }
}
