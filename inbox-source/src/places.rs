//! Where in a delivery a text is looked for, and how that is written in settings.

use std::str::FromStr;

/// Where a message's id is looked for.
///
/// Written as `cloudevent`, `property`, `header:NAME`, `field:NAME` or `position`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdFrom {
    /// Source and id of a CloudEvent, joined as [`CloudEvent::unique_id`](crate::cloudevents::CloudEvent::unique_id).
    CloudEvent,
    /// The broker's own property: [`Envelope::id`](crate::Envelope::id).
    Property,
    /// A header by its name, in any case.
    Header(String),
    /// A field of a JSON payload, by name or JSON pointer: [`Document::text`](crate::fields::Document::text).
    Field(String),
    /// The broker's position: [`Envelope::position`](crate::Envelope::position). A sender that repeats a message makes a second
    /// position of it, which the inbox cannot know as the same; and a topic that was deleted and made
    /// again has its positions twice ([`Mapping::id_prefix`](crate::Mapping::id_prefix) tells them apart).
    Position,
}

/// Where a kind or an ordering key is looked for.
///
/// Written as `cloudevent`, `property`, `header:NAME`, `field:NAME`, `address` or `fixed:TEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextFrom {
    /// The attribute of a CloudEvent: `type` for a kind, `partitionkey` for an ordering key.
    CloudEvent,
    /// The broker's own property: [`Envelope::kind`](crate::Envelope::kind), [`Envelope::key`](crate::Envelope::key).
    Property,
    /// A header by its name, in any case.
    Header(String),
    /// A field of a JSON payload, by name or JSON pointer: [`Document::text`](crate::fields::Document::text).
    Field(String),
    /// The topic, subject, routing key or queue: [`Envelope::address`](crate::Envelope::address).
    Address,
    /// The same for all.
    Fixed(String),
}

/// Why a text names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct UnknownPlace {
    expected: &'static str,
}

impl FromStr for IdFrom {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        Ok(match split(text) {
            ("cloudevent", None) => Self::CloudEvent,
            ("property", None) => Self::Property,
            ("position", None) => Self::Position,
            ("header", Some(name)) => Self::Header(name.into()),
            ("field", Some(name)) => Self::Field(name.into()),
            _ => {
                return Err(UnknownPlace {
                    expected: "cloudevent, property, header:NAME, field:NAME or position",
                });
            }
        })
    }
}

impl FromStr for TextFrom {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        Ok(match split(text) {
            ("cloudevent", None) => Self::CloudEvent,
            ("property", None) => Self::Property,
            ("address", None) => Self::Address,
            ("header", Some(name)) => Self::Header(name.into()),
            ("field", Some(name)) => Self::Field(name.into()),
            ("fixed", Some(text)) => Self::Fixed(text.into()),
            _ => {
                return Err(UnknownPlace {
                    expected: "cloudevent, property, header:NAME, field:NAME, address or fixed:TEXT",
                });
            }
        })
    }
}

/// The place, and which one of its sort. An empty name is none.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((place, name)) if !name.is_empty() => (place, Some(name)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        assert_eq!("position".parse(), Ok(IdFrom::Position));
        assert_eq!("header:a:b".parse(), Ok(IdFrom::Header("a:b".into())));
        assert_eq!("field:/a/b".parse(), Ok(TextFrom::Field("/a/b".into())));
        assert_eq!("fixed:k".parse(), Ok(TextFrom::Fixed("k".into())));
        for wrong in ["", "header", "header:", "position:1", "address", "Property"] {
            assert!(wrong.parse::<IdFrom>().is_err(), "{wrong}");
        }
        for wrong in ["", "fixed", "position", "address:x"] {
            let error = wrong.parse::<TextFrom>().unwrap_err().to_string();
            assert!(error.contains("fixed:TEXT"), "{error}");
        }
    }
}
