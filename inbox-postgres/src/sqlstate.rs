//! What each of PostgreSQL's error codes means to a caller: the one place that says so.
//!
//! Of appendix A of PostgreSQL's manual, 15 to 18. A code that is not listed means what its class
//! does, and a class that is not listed is [`ErrorKind::Other`].

use inbox_api::{
    Effect::{self, None as Undone, Unknown},
    ErrorKind::{
        self, Conflict, Corrupt, Denied, Invalid, Other, SchemaMissing, SchemaVersion, Unavailable,
    },
};

pub(crate) const UNDEFINED_TABLE: &str = "42P01";
pub(crate) const UNDEFINED_FUNCTION: &str = "42883";
pub(crate) const UNDEFINED_COLUMN: &str = "42703";
/// Two functions of one name, of two builds.
pub(crate) const AMBIGUOUS_FUNCTION: &str = "42725";
/// Something of another kind has the name.
pub(crate) const WRONG_OBJECT: &str = "42809";
/// A number that another message has: a sequence that is behind.
pub(crate) const UNIQUE_VIOLATION: &str = "23505";
pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";
pub(crate) const INVALID_SCHEMA: &str = "3F000";
/// Also: a statement that was prepared no longer fits the tables.
pub(crate) const FEATURE_NOT_SUPPORTED: &str = "0A000";
/// What poolers send for everything that is wrong with them.
pub(crate) const PROTOCOL_VIOLATION: &str = "08P01";
/// A standby, or what was the primary before a fail-over.
pub(crate) const READ_ONLY: &str = "25006";
pub(crate) const LIMIT_EXCEEDED: &str = "54000";
pub(crate) const INSUFFICIENT_PRIVILEGE: &str = "42501";
pub(crate) const PREPARED_STATEMENT_MISSING: &str = "26000";
pub(crate) const PREPARED_STATEMENT_EXISTS: &str = "42P05";
/// Among others: what a plan was made for is not there any more.
pub(crate) const INTERNAL: &str = "XX000";

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) kind: ErrorKind,
    pub(crate) effect: Effect,
    /// For people; none where the code itself says as much.
    pub(crate) context: Option<&'static str>,
}

type Row = (&'static str, ErrorKind, Effect, &'static str);

/// An error undoes the statement and the transaction around it. The effect is unknown only where
/// the connection ends with the error and a commit may have been under way.
const CODES: &[Row] = &[
    // Answers to connecting.
    ("08001", Unavailable, Undone, "no connection could be made"),
    (
        "08004",
        Unavailable,
        Undone,
        "the server refused the connection",
    ),
    (
        "08007",
        Unavailable,
        Unknown,
        "the server does not know how the transaction ended",
    ),
    (
        PROTOCOL_VIOLATION,
        Unavailable,
        Unknown,
        "a pooler gave the connection up",
    ),
    (
        FEATURE_NOT_SUPPORTED,
        Other,
        Undone,
        "the server refuses a statement; were the tables changed under the connection?",
    ),
    (
        "2200H",
        Other,
        Undone,
        "the inbox's sequence has come to its end",
    ),
    (
        "22P03",
        Other,
        Undone,
        "the server takes a value for another statement's",
    ),
    (
        "22021",
        Invalid,
        Undone,
        "the database's encoding cannot hold a text; it has to be UTF8",
    ),
    (
        "22P05",
        Invalid,
        Undone,
        "the database's encoding cannot hold a text; it has to be UTF8",
    ),
    // The one check that a row can fail: a partition that takes its number.
    (
        "23514",
        Conflict,
        Undone,
        "no partition takes the message's number",
    ),
    (
        READ_ONLY,
        Unavailable,
        Undone,
        "the server is read-only; is it a standby after a fail-over?",
    ),
    (
        "25P02",
        Other,
        Undone,
        "the transaction has failed before; roll it back",
    ),
    (
        "25P03",
        Unavailable,
        Undone,
        "the server ended a transaction that was idle for too long",
    ),
    (
        "25P04",
        Unavailable,
        Undone,
        "the server ended a transaction that took too long; is transaction_timeout too short?",
    ),
    (PREPARED_STATEMENT_MISSING, Other, Undone, PREPARED),
    (
        "3D000",
        SchemaMissing,
        Undone,
        "the database does not exist",
    ),
    (INVALID_SCHEMA, SchemaMissing, Undone, MISSING),
    (
        "40001",
        Conflict,
        Undone,
        "another transaction changed the same rows",
    ),
    (
        "40003",
        Unavailable,
        Unknown,
        "the server does not know how the transaction ended",
    ),
    (
        "40P01",
        Conflict,
        Undone,
        "a deadlock with another transaction was broken up",
    ),
    (
        INSUFFICIENT_PRIVILEGE,
        Denied,
        Undone,
        "a permission is missing; SETUP.md of inbox-postgres lists the grants",
    ),
    (UNDEFINED_COLUMN, SchemaVersion, Undone, OTHER_BUILD),
    (AMBIGUOUS_FUNCTION, SchemaVersion, Undone, OTHER_BUILD),
    (WRONG_OBJECT, SchemaVersion, Undone, OTHER_BUILD),
    (UNDEFINED_FUNCTION, SchemaMissing, Undone, MISSING),
    (UNDEFINED_TABLE, SchemaMissing, Undone, MISSING),
    (PREPARED_STATEMENT_EXISTS, Other, Undone, PREPARED),
    ("53100", Unavailable, Undone, "the server's disk is full"),
    (
        "53300",
        Unavailable,
        Undone,
        "the server has no connection left",
    ),
    // A queue that is full empties. What else has this code is told apart by its place in the
    // server's source: see `error`.
    (
        LIMIT_EXCEEDED,
        Unavailable,
        Undone,
        "the server's queue of notifications is full; is there a session that listens and does \
         not read, or an old transaction?",
    ),
    (
        "55000",
        Unavailable,
        Undone,
        "the server is not in a state for it; is it in recovery?",
    ),
    ("55006", Conflict, Undone, "another session is using it"),
    (
        LOCK_NOT_AVAILABLE,
        Conflict,
        Undone,
        "a lock did not become free in time",
    ),
    (
        "57014",
        Unavailable,
        Undone,
        "the server cancelled the statement; is statement_timeout too short?",
    ),
    (
        "57P03",
        Unavailable,
        Undone,
        "the server is starting or shutting down",
    ),
    // Of `keep_result.sql`.
    (
        "P0002",
        Other,
        Undone,
        "the message is not recorded in this transaction",
    ),
    ("XX001", Corrupt, Undone, "the server found damaged data"),
    ("XX002", Corrupt, Undone, "the server found a damaged index"),
];

const CLASSES: &[Row] = &[
    ("08", Unavailable, Unknown, "the connection was lost"),
    ("22", Invalid, Undone, "the server refuses a value"),
    ("28", Denied, Undone, "the server refused the credentials"),
    (
        "40",
        Conflict,
        Undone,
        "the server rolled the transaction back",
    ),
    ("53", Unavailable, Undone, "the server is out of resources"),
    (
        "54",
        Invalid,
        Undone,
        "the request is over one of the server's limits",
    ),
    // Also while a commit waits for a standby, after it has become durable here.
    (
        "57",
        Unavailable,
        Unknown,
        "the server ended the connection",
    ),
    (
        "58",
        Unavailable,
        Undone,
        "the server's operating system failed",
    ),
    (
        "72",
        Conflict,
        Undone,
        "the server no longer has what the transaction is to see",
    ),
];

const MISSING: &str = "there is no inbox of this name; create or migrate sets one up";
const OTHER_BUILD: &str = "the tables and functions are not those of this build's inbox";
const PREPARED: &str = "a prepared statement is not where it was made; behind a pooler, turn \
                        prepared_statements off";

/// What an error of the server's with this code means.
pub(crate) fn meaning(code: &str) -> Meaning {
    let class = code.get(..2).unwrap_or_default();
    let find = |rows: &'static [Row], name: &str| rows.iter().find(|row| row.0 == name);
    match find(CODES, code).or_else(|| find(CLASSES, class)) {
        Some(&(_, kind, effect, context)) => Meaning {
            kind,
            effect,
            context: Some(context),
        },
        None => Meaning {
            kind: Other,
            effect: Undone,
            context: None,
        },
    }
}

/// Whether these are the server's own words for a permission that is missing, in English, which name nothing but its
/// objects. A function may raise an error with the same code and any words.
pub(crate) fn names_what_is_denied(message: &str) -> bool {
    ["permission denied for ", "must be owner of "]
        .iter()
        .any(|words| message.starts_with(words))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_the_servers_own_words_name_what_is_denied() {
        assert!(names_what_is_denied(
            "permission denied for table inbox_messages"
        ));
        assert!(names_what_is_denied(
            "must be owner of table inbox_messages"
        ));
        assert!(!names_what_is_denied("card 4711 may not be charged"));
    }

    /// All codes of PostgreSQL 15 to 18 but for warnings, with what each is to mean.
    const EXPECTED: &str = include_str!("sqlstate_expected.txt");

    fn expected() -> BTreeMap<&'static str, (&'static str, &'static str)> {
        let mut all = BTreeMap::new();
        for line in EXPECTED.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (kind, effect) = (words.next().unwrap(), words.next().unwrap());
            for code in words {
                assert!(all.insert(code, (kind, effect)).is_none(), "{code} twice");
            }
        }
        all
    }

    #[test]
    fn every_code_means_what_the_table_says() {
        let expected = expected();
        assert_eq!(expected.len(), 252);
        for (code, (kind, effect)) in expected {
            let found = meaning(code);
            assert_eq!(
                (format!("{:?}", found.kind), format!("{:?}", found.effect)),
                (kind.to_owned(), effect.to_owned()),
                "{code}"
            );
        }
    }

    #[test]
    fn no_row_is_for_a_code_that_does_not_exist() {
        let expected = expected();
        for (code, ..) in CODES {
            assert!(expected.contains_key(code), "{code}");
        }
        for (class, ..) in CLASSES {
            assert!(
                expected.keys().any(|code| code.starts_with(class)),
                "{class}"
            );
        }
    }

    #[test]
    fn a_code_of_a_later_version_means_what_its_class_does() {
        for (code, kind, effect) in [
            ("57P99", Unavailable, Unknown),
            ("40P99", Conflict, Undone),
            ("ZZ000", Other, Undone),
            ("é", Other, Undone),
            ("", Other, Undone),
        ] {
            let found = meaning(code);
            assert_eq!((found.kind, found.effect), (kind, effect), "{code}");
        }
    }
}
