//! The key in a request's header.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName};
use sfv::{BareItem, Item, Parser};

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key, in bytes.
const LONGEST: usize = 255;

/// The key of a request: an extension of it, for a handler that passes it on to systems which take one
/// themselves.
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IdempotencyKey").field(&self.0).finish()
    }
}

/// Reads the key, if there is one.
///
/// # Errors
/// What is wrong with it, without repeating it.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, &'static str> {
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err("there are two keys");
    }
    let value = value.as_bytes().trim_ascii();
    let key = if value.starts_with(b"\"") {
        string(value)?
    } else {
        bare(value)?
    };
    match key.len() {
        0 => Err("the key is empty"),
        1..=LONGEST => Ok(Some(IdempotencyKey(key.into()))),
        _ => Err("the key is longer than 255 bytes"),
    }
}

/// A structured-field string. Parameters mean nothing here.
fn string(value: &[u8]) -> Result<String, &'static str> {
    match Parser::new(value).parse::<Item>() {
        Ok(item) => match item.bare_item {
            BareItem::String(text) => Ok(text.as_str().to_owned()),
            _ => Err("the key is not a string"),
        },
        Err(_) => Err("the key is not a structured-field string"),
    }
}

/// What most clients send: the key without quotes.
fn bare(value: &[u8]) -> Result<String, &'static str> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\",;\\".contains(byte);
    match std::str::from_utf8(value) {
        Ok(text) if value.iter().all(is_plain) => Ok(text.to_owned()),
        _ => Err("the key is neither a structured-field string nor a token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(values: &[&[u8]]) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, value[..].try_into().unwrap());
        }
        let key = read(&headers)?;
        Ok(key.map(|key| key.as_str().to_owned()))
    }

    #[test]
    fn a_key_is_a_string_or_a_token_and_the_same_either_way() {
        let plain = Ok(Some("8e03978e-40d5".to_owned()));
        for value in [
            "\"8e03978e-40d5\"",
            "8e03978e-40d5",
            " \"8e03978e-40d5\";a=1 ",
        ] {
            assert_eq!(key(&[value.as_bytes()]), plain, "{value}");
        }
        assert_eq!(key(&[br#""a \"b\" \\""#]), Ok(Some(r#"a "b" \"#.into())));
        assert_eq!(key(&[]), Ok(None));
        let longest = format!("\"{}\"", "x".repeat(255));
        assert!(key(&[longest.as_bytes()]).is_ok());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let too_long = "x".repeat(256);
        let bad: [&[u8]; 10] = [
            b"",
            b"\"\"",
            b"\"open",
            b"a b",
            b"a,b",
            b"\"a\", \"b\"",
            b"caf\xc3\xa9",
            b"\"\xff\"",
            b"\"a\\n\"",
            too_long.as_bytes(),
        ];
        for value in bad {
            assert!(key(&[value]).is_err(), "{value:?}");
        }
        assert!(key(&[b"a", b"a"]).is_err());
    }
}
