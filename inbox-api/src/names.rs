//! Validated text: the names and identifiers that make up a message's identity.
//!
//! Every type here is refused at construction when it breaks its rule, so a store never sees an
//! identifier that it would have to check again. All of them compare **byte for byte**: case,
//! trailing spaces, Unicode normalisation forms and leading zeros distinguish.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::Invalid;

fn check(what: &'static str, text: &str, limit: usize) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::Empty { what });
    }
    if text.len() > limit {
        return Err(Invalid::TooLong {
            what,
            bytes: text.len(),
            limit,
        });
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::ControlCharacter { what });
    }
    Ok(())
}

/// These types share one shape and differ only in name and limit.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:literal) => {
        $(#[$doc])*
        ///
        /// Cloning is cheap (a reference count). Compares byte for byte.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest text accepted, in bytes of UTF-8.
            pub const MAX_BYTES: usize = $limit;

            /// Takes `text` as it stands, without trimming or folding.
            ///
            /// # Errors
            /// [`Invalid`] when the text is empty, longer than [`Self::MAX_BYTES`] or contains a
            /// control character.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
                let text = text.as_ref();
                check($what, text, Self::MAX_BYTES)?;
                Ok(Self(text.into()))
            }

            /// The text exactly as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Invalid;

            fn try_from(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().into()
            }
        }
    };
}

text_type!(
    /// The producer's identifier of a message: what is the same on every redelivery.
    MessageId,
    "message id",
    255
);
#[cfg(feature = "uuid")]
impl MessageId {
    /// A new id, unlike all others (a UUID of version 7), for a message whose producer gives it none
    /// and that is received once only: a redelivery would be given another id, and not be recognised.
    ///
    /// Needs the feature `uuid`.
    #[must_use]
    pub fn unique() -> Self {
        uuid::Uuid::now_v7().into()
    }
}

/// As text in lower case with hyphens, 36 bytes. Needs the feature `uuid`.
#[cfg(feature = "uuid")]
impl From<uuid::Uuid> for MessageId {
    fn from(id: uuid::Uuid) -> Self {
        let mut text = uuid::Uuid::encode_buffer();
        Self((&*id.hyphenated().encode_lower(&mut text)).into())
    }
}

text_type!(
    /// Who handles the message. Two handlers of one event each have their own state.
    HandlerName,
    "handler name",
    128
);
text_type!(
    /// The event type, by which the processor routes.
    Kind,
    "kind",
    255
);
text_type!(
    /// Messages of one handler that share this key are handed out in the order in which they
    /// were accepted, one at a time.
    OrderingKey,
    "ordering key",
    255
);
text_type!(
    /// The payload's media type, such as `application/json`.
    ContentType,
    "content type",
    255
);
text_type!(
    /// Who holds a lease, for people to read. Never used to decide anything: the
    /// [`FencingToken`](crate::FencingToken) does that.
    WorkerName,
    "worker name",
    128
);

text_type!(
    /// Who intervenes, for people to read: an operator, or the program that acts for one.
    OperatorName,
    "operator name",
    128
);

/// What makes a message unique in an inbox: the handler and the message id together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Who handles the message.
    pub handler: HandlerName,
    /// The producer's identifier.
    pub id: MessageId,
}

impl Key {
    /// Puts the two halves together.
    #[must_use]
    pub fn new(handler: HandlerName, id: MessageId) -> Self {
        Self { handler, id }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.handler, self.id)
    }
}

/// The name of one inbox among several in a database: a prefix of its tables, collections or
/// keys. An ASCII identifier, so that stores can put it into statements as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboxName(Arc<str>);

impl InboxName {
    /// The longest name, in bytes: short enough to leave room for suffixes within every
    /// database's limit on identifiers.
    pub const MAX_BYTES: usize = 32;

    /// Takes a name of lower-case ASCII letters, digits and underscores that starts with a
    /// letter.
    ///
    /// # Errors
    /// [`Invalid`] when it is anything else or longer than [`Self::MAX_BYTES`].
    pub fn new(name: impl AsRef<str>) -> Result<Self, Invalid> {
        let name = name.as_ref();
        check("inbox name", name, Self::MAX_BYTES)?;
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !plain || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(Invalid::Malformed {
                what: "inbox name",
                expected: "lower-case ASCII letters, digits and underscores, with a letter first",
            });
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for InboxName {
    /// `inbox`.
    fn default() -> Self {
        Self("inbox".into())
    }
}

impl fmt::Display for InboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for InboxName {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_count_bytes_not_characters() {
        assert!(MessageId::new("x".repeat(255)).is_ok());
        assert_eq!(
            MessageId::new("ä".repeat(128)),
            Err(Invalid::TooLong {
                what: "message id",
                bytes: 256,
                limit: 255
            })
        );
        assert!(HandlerName::new("h".repeat(128)).is_ok());
        assert!(HandlerName::new("h".repeat(129)).is_err());
    }

    #[test]
    fn empty_and_control_characters_are_refused() {
        assert_eq!(
            MessageId::new(""),
            Err(Invalid::Empty { what: "message id" })
        );
        for bad in ["a\0b", "a\nb", "\u{7f}", "\u{85}"] {
            assert_eq!(
                Kind::new(bad),
                Err(Invalid::ControlCharacter { what: "kind" })
            );
        }
    }

    #[test]
    fn inbox_names_are_plain_identifiers() {
        assert!(InboxName::new("orders_2").is_ok());
        for bad in ["", "2a", "_a", "A", "a-b", "a;drop", "ä", &"a".repeat(33)] {
            assert!(InboxName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_is_folded() {
        let distinct = ["a", "A", "a ", " a", "á", "a\u{301}", "01", "1"];
        for (i, one) in distinct.iter().enumerate() {
            for (j, other) in distinct.iter().enumerate() {
                assert_eq!(
                    i == j,
                    MessageId::new(one).unwrap() == MessageId::new(other).unwrap()
                );
            }
        }
    }

    #[test]
    fn deserialising_validates() {
        assert!(serde_json::from_str::<MessageId>("\"\"").is_err());
        assert_eq!(
            serde_json::from_str::<MessageId>("\"a\"").unwrap().as_str(),
            "a"
        );
    }

    #[cfg(feature = "uuid")]
    #[test]
    fn uuids_are_ids_and_new_ones_differ_and_grow() {
        let id = uuid::Uuid::from_u128(0xABCD);
        let expected = "00000000-0000-0000-0000-00000000abcd";
        assert_eq!(MessageId::from(id).as_str(), expected);
        let ids: Vec<_> = (0..1000).map(|_| MessageId::unique()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
    }
}
