//! What an inbox is called, and how names and layout get into SQL. This is the only place where they
//! do: they are validated identifiers, and the schema's is quoted.

use std::{fmt, sync::Arc};

use inbox_api::{History, InboxName, Invalid};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use crate::payload::PayloadType;

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

    /// A name that is known to be one.
    #[cfg(feature = "conformance")]
    pub(crate) fn of_plain_text(name: &str) -> Self {
        Self(name.into())
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

/// With which SQLSTATE functions refuse to run by themselves at another isolation level.
pub(crate) const NOT_READ_COMMITTED: &str = "IB001";

/// How many numbers a partition has. Single messages draw a thousand each, so that is ten thousand
/// million of them; and there are numbers for 900,000 partitions.
const PARTITION_WIDTH: &str = "10000000000000";

/// For how long everybody else may have to wait while a partition is taken out of its tables.
const PARTITION_LOCK_TIMEOUT: &str = "50ms";

/// First halves of advisory locks' numbers; the second is [`Names::number`].
const SETUP_LOCK: u32 = 0x1b0c_0001;
const TALLY_LOCK: u32 = 0x1b0c_0002;
const PARTITION_LOCK: u32 = 0x1b0c_0003;

/// Texts that several statements share.
const SHARED: &[(&str, &str)] = &[
    (
        "function_settings",
        include_str!("sql/function_settings.sql"),
    ),
    (
        "require_read_committed",
        include_str!("sql/require_read_committed.sql"),
    ),
    (
        "compact_counters_sometimes",
        include_str!("sql/compact_counters_sometimes.sql"),
    ),
    ("end_runs", include_str!("sql/end_runs.sql")),
    ("rest_on_others", include_str!("sql/rest_on_others.sql")),
    ("signed", include_str!("sql/signed.sql")),
    ("columns", include_str!("sql/list_columns.sql")),
    ("filter", include_str!("sql/list_filter.sql")),
];

/// One inbox, by its names and its layout.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: SchemaName,
    pub(crate) inbox: InboxName,
    pub(crate) payload_type: PayloadType,
    pub(crate) in_partitions: bool,
}

impl Names {
    /// `template` for this inbox.
    ///
    /// `{inbox}_work` is its table of that name, and so are its functions; `{prefix}_work` is the name
    /// without the schema's. `{keys}` is the table whose unique index is over the keys. What only
    /// partitions need stands between lines `-- {if partitioned}` and `-- {end}`, with
    /// `-- {else}` for what one pair of tables has instead.
    pub(crate) fn text(&self, template: &str) -> String {
        let template = self.choose_layout(template);
        let mut text = String::with_capacity(2 * template.len());
        let mut rest = template.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            text.push_str(before);
            let value = after
                .split_once('}')
                .and_then(|(name, after)| Some((self.value(name)?, after)));
            rest = match value {
                Some((value, after)) => {
                    text.push_str(&value);
                    after
                }
                // An array of SQL's.
                None => {
                    text.push('{');
                    after
                }
            };
        }
        text + rest
    }

    fn choose_layout(&self, template: &str) -> String {
        let (mut text, mut wanted) = (String::with_capacity(template.len()), true);
        for line in template.split_inclusive('\n') {
            match line.trim() {
                "-- {if partitioned}" => wanted = self.in_partitions,
                "-- {else}" => wanted = !self.in_partitions,
                "-- {end}" => wanted = true,
                _ if wanted => text.push_str(line),
                _ => {}
            }
        }
        text
    }

    fn value(&self, name: &str) -> Option<String> {
        if let Some((_, shared)) = SHARED.iter().find(|(shared, _)| *shared == name) {
            return Some(self.text(shared.trim_end()));
        }
        let as_text = self.payload_type.is_json();
        Some(match name {
            "inbox" => format!("\"{}\".{}", self.schema, self.inbox),
            "prefix" => self.inbox.to_string(),
            "schema" => format!("\"{}\"", self.schema),
            "schema_name" => self.schema.to_string(),
            "keys" if self.in_partitions => self.text("{inbox}_key"),
            "keys" => self.text("{inbox}_message"),
            "channel" => self.channel(),
            "payload" => self.payload_type.sql().to_owned(),
            "payload_out" if as_text => "convert_to(m.payload::text, 'UTF8')".to_owned(),
            "payload_out" => "m.payload".to_owned(),
            "payload_bytes" if as_text => "octet_length(m.payload::text)".to_owned(),
            "payload_bytes" => "octet_length(m.payload)".to_owned(),
            "kept_entries" => History::KEPT.to_string(),
            "refusal" => NOT_READ_COMMITTED.to_owned(),
            "width" => PARTITION_WIDTH.to_owned(),
            "lock_timeout" => PARTITION_LOCK_TIMEOUT.to_owned(),
            "setup_lock" => format!("{SETUP_LOCK}, {}", self.number()),
            "tally_lock" => format!("{TALLY_LOCK}, {}", self.number()),
            "partition_lock" => format!("{PARTITION_LOCK}, {}", self.number()),
            _ => return None,
        })
    }

    /// `template` for this inbox, as a statement.
    pub(crate) fn statement(&self, template: &str) -> SqlStr {
        AssertSqlSafe(Arc::<str>::from(self.text(template))).into_sql_str()
    }

    /// A number of 31 bits that is the same wherever this inbox's names are: for advisory locks, and
    /// for the names of channels that would be too long.
    fn number(&self) -> u32 {
        // FNV-1a: stable across builds and platforms, which the standard library's hashes are not.
        let mut hash: u32 = 0x811c_9dc5;
        let (schema, inbox) = (self.schema.as_str(), self.inbox.as_str());
        for byte in schema.bytes().chain([b'.']).chain(inbox.bytes()) {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
        hash & 0x7fff_ffff
    }

    /// The channel on which wake-ups are notified. PostgreSQL's limit is 63 bytes.
    pub(crate) fn channel(&self) -> String {
        let plain = format!("{}.{}", self.schema, self.inbox);
        if plain.len() <= 63 {
            plain
        } else {
            format!("{}.{}", self.inbox, self.number())
        }
    }
}

/// For errors.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inbox {} in schema {}", self.inbox, self.schema)
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

    fn names(schema: &str, inbox: &str, in_partitions: bool) -> Names {
        Names {
            schema: SchemaName::new(schema).unwrap(),
            inbox: InboxName::new(inbox).unwrap(),
            payload_type: PayloadType::Bytea,
            in_partitions,
        }
    }

    #[test]
    fn channels_fit_and_differ() {
        let inbox = "i".repeat(32);
        let one = names(&"s".repeat(63), &inbox, false).channel();
        let other = names(&"t".repeat(63), &inbox, false).channel();
        assert!(one.len() <= 63);
        assert_ne!(one, other);
        assert_eq!(names("public", "inbox", false).channel(), "public.inbox");
    }

    #[test]
    fn templates_have_names_and_one_layout() {
        let template = "SELECT '{}', '{1}' FROM {inbox}_work,\n  -- {if partitioned}\n  {keys}\n  \
                        -- {else}\n  {keys} AS m\n  -- {end}\nWHERE p = '{prefix}'\n";
        let text = |in_partitions| names("Shop", "orders", in_partitions).text(template);
        let (begin, end) = (
            "SELECT '{}', '{1}' FROM \"Shop\".orders_work,\n  ",
            "\nWHERE p = 'orders'\n",
        );
        assert_eq!(text(true), format!("{begin}\"Shop\".orders_key{end}"));
        assert_eq!(
            text(false),
            format!("{begin}\"Shop\".orders_message AS m{end}")
        );
    }
}
