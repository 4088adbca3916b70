//! The name of a schema, and what it and the inbox's name make of the tables' names.

use std::{fmt, sync::Arc};

use inbox_api::{InboxName, Invalid};

/// The schema that holds the inbox's tables: 1–63 ASCII letters, digits, underscores and hyphens,
/// not starting with a digit or hyphen. Case matters; the name is always quoted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SchemaName(Arc<str>);

impl SchemaName {
    /// The longest name, in bytes: PostgreSQL's own limit.
    pub const MAX_BYTES: usize = 63;

    /// Takes the name as it stands.
    ///
    /// # Errors
    /// [`Invalid`] when it is empty, too long, starts with `pg_` (which PostgreSQL reserves) or
    /// has other characters.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Invalid> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Invalid::Empty {
                what: "schema name",
            });
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Invalid::TooLong {
                what: "schema name",
                bytes: name.len(),
                limit: Self::MAX_BYTES,
            });
        }
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !plain || !starts_well || name.starts_with("pg_") {
            return Err(Invalid::Malformed {
                what: "schema name",
                expected: "ASCII letters, digits, underscores and hyphens, with a letter or \
                           underscore first, and not pg_…",
            });
        }
        Ok(Self(name.into()))
    }

    /// The name, without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SchemaName {
    /// `public`.
    fn default() -> Self {
        Self("public".into())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number of 31 bits that is the same wherever this inbox's names are: for advisory locks, and
/// for the names of channels that would be too long.
pub(crate) fn number(schema: &SchemaName, inbox: &InboxName) -> u32 {
    // FNV-1a: stable across builds and platforms, which the standard library's hashes are not.
    let mut hash: u32 = 0x811c_9dc5;
    for byte in schema
        .as_str()
        .bytes()
        .chain([b'.'])
        .chain(inbox.as_str().bytes())
    {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash & 0x7fff_ffff
}

/// The channel on which wake-ups are notified. PostgreSQL's limit is 63 bytes.
pub(crate) fn channel(schema: &SchemaName, inbox: &InboxName) -> String {
    let plain = format!("{schema}.{inbox}");
    if plain.len() <= 63 {
        plain
    } else {
        format!("{inbox}.{}", number(schema, inbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_names_are_plain_identifiers() {
        for good in ["public", "Billing", "_x", "my-schema", "a1"] {
            assert_eq!(SchemaName::new(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(64);
        for bad in ["", "1a", "a b", "a\"b", "a.b", "pg_temp", "ä", "a;b", &long] {
            assert!(SchemaName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn channels_fit_and_differ() {
        let inbox = InboxName::new("i".repeat(32)).unwrap();
        let one = SchemaName::new("s".repeat(63)).unwrap();
        let other = SchemaName::new("t".repeat(63)).unwrap();
        assert!(channel(&one, &inbox).len() <= 63);
        assert_ne!(channel(&one, &inbox), channel(&other, &inbox));
        assert_eq!(
            channel(&SchemaName::default(), &InboxName::default()),
            "public.inbox"
        );
    }
}
