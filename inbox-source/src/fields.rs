//! Fields of a JSON document: where a message's id, kind or ordering key is in its payload.
//!
//! Parsers do not agree on which of two members of one name counts. So it must not be decided here
//! which of two ids is the message's: a field that is there twice is an error.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Why a field has no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// The document is not JSON.
    #[error(transparent)]
    NotJson(#[from] NotJson),
    /// A member on the way is there twice.
    #[error("has field {0} twice")]
    Twice(String),
    /// It is an object or an array.
    #[error("field {0} is not a text or a number")]
    NotAText(String),
}

/// Something is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson {
    column: Option<usize>,
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.column {
            Some(column) => write!(f, "not JSON: column {column}"),
            None => f.write_str("not JSON: it ends too early"),
        }
    }
}

impl std::error::Error for NotJson {}

impl From<serde_json::Error> for NotJson {
    fn from(error: serde_json::Error) -> Self {
        let column = (!error.is_eof()).then(|| error.column());
        Self { column }
    }
}

/// A JSON document of which some fields are of interest.
///
/// ```
/// use inbox_source::fields::Document;
///
/// # fn main() -> Result<(), inbox_source::fields::FieldError> {
/// let document = Document::parse(br#"{"order": {"id": 7}, "event": "placed"}"#)?;
/// assert_eq!(document.text("event")?.as_deref(), Some("placed"));
/// assert_eq!(document.text("/order/id")?.as_deref(), Some("7"));
/// assert_eq!(document.text("/order/customer")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Document<'a>(&'a RawValue);

impl<'a> Document<'a> {
    /// The document.
    ///
    /// # Errors
    /// [`NotJson`] when it is none.
    pub fn parse(json: &'a [u8]) -> Result<Self, NotJson> {
        Ok(Self(serde_json::from_slice(json)?))
    }

    /// The text of a field, by name, or by [JSON pointer](https://www.rfc-editor.org/rfc/rfc6901) if
    /// `field` begins with a slash. Numbers and booleans count as their text, as it stands there; null as absent.
    ///
    /// # Errors
    /// [`FieldError`]; it names the field, and repeats nothing of the document.
    pub fn text(&self, field: &str) -> Result<Option<String>, FieldError> {
        let Some(found) = find(self.0, field)? else {
            return Ok(None);
        };
        match scalar(found)? {
            None if found.get() == "null" => Ok(None),
            None => Err(FieldError::NotAText(field.into())),
            text => Ok(text),
        }
    }
}

/// One id of several fields, joined by `#`. A `#` within a field becomes `\#`, so that two messages do
/// not get one id because a `#` moved from one field into the next.
#[must_use]
pub fn join_ids<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> String {
    let escape = |part: T| part.as_ref().replace('\\', "\\\\").replace('#', "\\#");
    let escaped: Vec<String> = parts.into_iter().map(escape).collect();
    escaped.join("#")
}

/// The members of a JSON object. Values stay the very bytes of the document, since re-serialising a
/// payload would change it.
pub(crate) struct Members<'a> {
    by_name: BTreeMap<String, &'a RawValue>,
    twice: BTreeSet<String>,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let (mut by_name, mut twice) = (BTreeMap::new(), BTreeSet::new());
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    match by_name.entry(name) {
                        Entry::Vacant(entry) => {
                            entry.insert(value);
                        }
                        Entry::Occupied(entry) => {
                            twice.insert(entry.key().clone());
                        }
                    }
                }
                Ok(Members { by_name, twice })
            }
        }

        deserializer.deserialize_map(Visit)
    }
}

impl<'a> Members<'a> {
    /// All of them, unless there are two of one name, which is the error.
    pub(crate) fn into_unique(self) -> Result<BTreeMap<String, &'a RawValue>, String> {
        match self.twice.into_iter().next() {
            None => Ok(self.by_name),
            Some(name) => Err(name),
        }
    }

    fn get(&self, name: &str) -> Result<Option<&'a RawValue>, ()> {
        if self.twice.contains(name) {
            return Err(());
        }
        Ok(self.by_name.get(name).copied())
    }
}

fn find<'a>(value: &'a RawValue, field: &str) -> Result<Option<&'a RawValue>, FieldError> {
    let member = |of: &'a RawValue, name: &str| {
        let Ok(members) = serde_json::from_str::<Members<'a>>(of.get()) else {
            return Ok(None);
        };
        let found = members.get(name);
        found.map_err(|()| FieldError::Twice(field.into()))
    };
    let Some(pointer) = field.strip_prefix('/') else {
        return member(value, field);
    };
    let mut found = value;
    for step in pointer.split('/') {
        let next = if found.get().starts_with('[') {
            let is_number = step == "0" || !step.starts_with(['0', '+']);
            let index = step.parse::<usize>().ok().filter(|_| is_number);
            let items: Vec<&RawValue> = serde_json::from_str(found.get()).unwrap_or_default();
            index.and_then(|index| items.get(index).copied())
        } else {
            member(found, &step.replace("~1", "/").replace("~0", "~"))?
        };
        let Some(next) = next else {
            return Ok(None);
        };
        found = next;
    }
    Ok(Some(found))
}

/// The text of what is neither an object nor an array nor null. That of a number as it stands: two
/// that differ may be one as floats.
pub(crate) fn scalar(value: &RawValue) -> Result<Option<String>, NotJson> {
    let text = value.get();
    Ok(match text.as_bytes().first() {
        Some(b'"') => Some(serde_json::from_str(text)?),
        Some(b'{' | b'[' | b'n') => None,
        _ => Some(text.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_lead_through_objects_and_lists() {
        let json = br#" {"a~b":[{"c/d":[1,"x"]}],"":{"e":true},"n":null} "#;
        let document = Document::parse(json).unwrap();
        let text = |field| document.text(field);
        assert_eq!(text("/a~0b/0/c~1d/1").unwrap().as_deref(), Some("x"));
        assert_eq!(text("/a~0b/0/c~1d/0").unwrap().as_deref(), Some("1"));
        assert_eq!(text("//e").unwrap().as_deref(), Some("true"));
        for nothing in ["/a~0b/00", "/a~0b/+0", "/a~0b/1", "/n", "n", "/n/x", "b"] {
            assert_eq!(text(nothing).unwrap(), None, "{nothing}");
        }
        assert!(text("a~b").is_err());
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        let json = br#"{"o":{"id":1,"id":2},"free":1,"free":2}"#;
        let document = Document::parse(json).unwrap();
        assert!(document.text("/o/id").is_err());
        assert!(document.text("free").is_err());
        assert_eq!(document.text("x"), Ok(None));
    }

    #[test]
    fn numbers_that_differ_have_texts_that_differ() {
        let json = br#"{"n": [12345678901234567890123, 12345678901234567890124, 0.1,
            0.10000000000000000001, 18446744073709551616, 1e400, -7, 7.50 ], "s": " \u00e4 "}"#;
        let document = Document::parse(json).unwrap();
        let text = |field: &str| document.text(field).unwrap().unwrap();
        let numbers = (0..8).map(|index| text(&format!("/n/{index}")));
        assert_eq!(
            numbers.collect::<Vec<_>>(),
            [
                "12345678901234567890123",
                "12345678901234567890124",
                "0.1",
                "0.10000000000000000001",
                "18446744073709551616",
                "1e400",
                "-7",
                "7.50",
            ]
        );
        assert_eq!(text("s"), " \u{e4} ");
        let problem = document.text("n").unwrap_err();
        assert_eq!(problem, FieldError::NotAText("n".into()));
    }

    #[test]
    fn joined_ids_are_as_different_as_their_fields() {
        let pairs = [("a#b", "c"), ("a", "b#c"), ("a\\", "b#c"), ("a\\#b", "c")];
        let ids: BTreeSet<String> = pairs.map(|(a, b)| join_ids([a, b])).into();
        assert_eq!(ids.len(), pairs.len());
    }
}
