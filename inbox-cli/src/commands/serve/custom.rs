//! A provider of webhooks that has no name here: how it signs, and where an event's id and kind are.

use axum::http::HeaderName;
use inbox::{Invalid, Kind};
use inbox_http::webhooks::{Part, Provider, Signature};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{values::from_text, webhooks::Field};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Custom {
    /// The one with the signature.
    header: Header,
    #[serde(default)]
    hash: Hash,
    #[serde(default)]
    encoding: Encoding,
    /// What stands before the signature.
    #[serde(default)]
    prefix: String,
    timestamp_header: Option<Header>,
    #[serde(default = "body")]
    signs: Signed,
    id_header: Option<Header>,
    pub(super) id_field: Option<Field>,
    kind_header: Option<Header>,
    pub(super) kind_field: Option<Field>,
    /// That of all events.
    kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hash {
    #[default]
    Sha256,
    Sha512,
    Sha1,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Hex,
    Base64,
}

from_text!(
    /// The name of a header.
    Header(HeaderName),
    |text| {
        let expected = "expected a header's name, such as x-signature";
        text.parse().map_err(|_| expected.to_owned())
    }
);

from_text!(
    /// What is signed.
    Signed(Vec<Part>),
    |text| {
        let parts = parts(text);
        if let Some(place) = parts.iter().find_map(unknown_place) {
            Err(format!("{{{place}}} is unknown, expected {{timestamp}} or {{body}}"))
        } else if parts.contains(&Part::Body) {
            Ok(parts)
        } else {
            Err("expected what is signed, such as {timestamp}.{body}, with the body".to_owned())
        }
    }
);

fn body() -> Signed {
    Signed(vec![Part::Body])
}

/// A configuration is read once, so that its texts may stay for as long as the process lives.
fn keep(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// Takes a text apart at `{timestamp}` and `{body}`.
fn parts(text: &str) -> Vec<Part> {
    const PLACES: [(&str, Part); 2] = [("{timestamp}", Part::Timestamp), ("{body}", Part::Body)];
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let places = PLACES.iter().filter_map(|(name, part)| {
            let (before, after) = rest.split_once(name)?;
            Some((before, *part, after))
        });
        let first = places.min_by_key(|(before, ..)| before.len());
        let (before, part, after) = first.map_or((rest, None, ""), |(before, part, after)| {
            (before, Some(part), after)
        });
        if !before.is_empty() {
            parts.push(Part::Text(keep(before)));
        }
        parts.extend(part);
        rest = after;
    }
    parts
}

/// The name of what looks like a place and is none, such as `{time}`.
fn unknown_place(part: &Part) -> Option<&str> {
    let Part::Text(text) = part else { return None };
    let mut names = text.split('{').skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        Some(name)
    });
    names.find(|name| {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(is_word)
    })
}

impl Custom {
    pub(super) fn provider(&self, secrets: Vec<String>) -> Result<Provider, Invalid> {
        let header = self.header.0.clone();
        let mut signature = match self.hash {
            Hash::Sha256 => Signature::sha256(header),
            Hash::Sha512 => Signature::sha512(header),
            Hash::Sha1 => Signature::sha1(header),
        };
        if self.encoding == Encoding::Base64 {
            signature = signature.base64();
        }
        if let Some(header) = &self.timestamp_header {
            signature = signature.timestamp_header(header.0.clone());
        }
        let signature = signature
            .prefix(keep(&self.prefix))
            .over(self.signs.0.iter().copied())
            .secrets(secrets)?;
        let mut provider = Provider::new("custom", signature);
        match (&self.id_header, &self.id_field) {
            (Some(header), None) => provider = provider.id_header(header.0.clone()),
            (None, Some(field)) => provider = provider.id_field(&field.0),
            (None, None) => {}
            (Some(_), Some(_)) => return Err(twice("id")),
        }
        match (&self.kind_header, &self.kind_field, &self.kind) {
            (Some(header), None, None) => provider = provider.kind_header(header.0.clone()),
            (None, Some(field), None) => provider = provider.kind_field(&field.0),
            (None, None, Some(kind)) => provider = provider.with_kind(keep(kind.as_str())),
            (None, None, None) => {}
            _ => return Err(twice("kind")),
        }
        Ok(provider)
    }
}

fn twice(what: &'static str) -> Invalid {
    Invalid::Malformed {
        what,
        expected: "in one place",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_taken_apart() {
        use Part::{Body, Text, Timestamp};
        for (text, expected) in [
            ("{body}", vec![Body]),
            ("{timestamp}.{body}", vec![Timestamp, Text("."), Body]),
            (
                "v0:{timestamp}:{body}!",
                vec![Text("v0:"), Timestamp, Text(":"), Body, Text("!")],
            ),
            ("{body}{timestamp}", vec![Body, Timestamp]),
            ("{bod}", vec![Text("{bod}")]),
        ] {
            assert_eq!(parts(text), expected);
        }
        assert!(Signed::new("{timestamp}").is_err());
        for wrong in ["{time}.{body}", "{body}{Body}", "{{time}}{body}"] {
            assert!(
                Signed::new(wrong).unwrap_err().contains("is unknown"),
                "{wrong}"
            );
        }
        for right in ["{\"a\":{body}}", "{}{body}", "{ {body}", "}{body}"] {
            assert!(Signed::new(right).is_ok(), "{right}");
        }
    }
}
