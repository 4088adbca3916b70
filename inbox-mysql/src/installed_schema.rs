//! What stands in the database under the inbox's name, and whether it is a complete inbox.

use std::collections::{BTreeMap, BTreeSet};

use inbox_api::{Error, ErrorKind, InboxName, Result};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use crate::{
    consistency,
    error::before,
    options::{MySqlOptions, PayloadType, TABLES},
    statements::{Names, in_database},
};

pub(crate) const VERSION: u32 = 1;
/// The oldest build, by its version, that works with what this one sets up. A newer one that only adds
/// what older ones can do without leaves it as it is, so that they go on working.
pub(crate) const OLDEST: u32 = 1;
pub(crate) const MARKER: &str = "inbox.mysql";
/// Begins the lines of an index's columns; no column's name does.
const INDEX_PART: &str = "(part)";
/// How often, and how soon, tables are looked at again that are not (yet) complete.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: std::time::Duration = std::time::Duration::from_millis(100);

/// What stands in the database under the inbox's name.
pub(crate) enum Found {
    Nothing,
    /// Some tables as this build makes them, without a mark: a set-up that did not come to its
    /// end. DDL is not transactional here.
    Unfinished,
    /// Of this version, for builds from `oldest` on.
    Version {
        version: u32,
        oldest: u32,
    },
    Foreign,
}

/// Columns, indexes and engine of each table, a line for each.
pub(crate) type Tables = BTreeMap<String, BTreeSet<String>>;

/// The tables that the statements of `schema_1.sql` make, read from the statements themselves, so
/// that there is no second description of them.
pub(crate) fn expected(options: &MySqlOptions) -> Tables {
    let mut tables = Tables::new();
    let text = include_str!("sql/schema_1.sql");
    for table in TABLES {
        let start = format!("CREATE TABLE IF NOT EXISTS {{{table}}} (\n");
        let body = text.split_once(&start).map_or("", |(_, rest)| rest);
        let body = body.split_once("\n)").map_or("", |(body, _)| body);
        let mut lines: BTreeSet<String> = body
            .lines()
            .map(|line| line.trim().trim_end_matches(','))
            .filter(|line| !line.starts_with("--"))
            .map(|line| expected_line(line, options.payload_type))
            .collect();
        lines.insert("engine innodb".into());
        tables.insert(table.into(), lines);
    }
    tables
}

fn expected_line(line: &str, payload: PayloadType) -> String {
    if let Some(columns) = line.strip_prefix("PRIMARY KEY ") {
        return format!("unique PRIMARY {}", columns.replace(", ", ","));
    }
    let (unique, rest) = match line.strip_prefix("UNIQUE ") {
        Some(rest) => ("unique ", rest),
        None => ("index ", line),
    };
    if let Some(index) = rest.strip_prefix("KEY ") {
        return format!("{unique}{}", index.replace(", ", ","));
    }
    let payload_type = match payload {
        PayloadType::LongBlob => "longblob",
        PayloadType::Json => "json",
    };
    line.to_ascii_lowercase()
        .replace("{payload_type}", payload_type)
}

/// The inbox's tables as they are there.
pub(crate) async fn present(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<Tables> {
    let prefix = format!("{}_", options.inbox);
    let names: Vec<_> = TABLES.map(|table| format!("'{prefix}{table}'")).into();
    let within = format!(
        "{} AND table_name IN ({})",
        in_database(options),
        names.join(", ")
    );
    // As bytes: the servers differ in the types of these columns. No empty texts: there is a mode
    // in which they are NULL.
    let sql = format!(
        "SELECT HEX(table_name), HEX(CONCAT('engine ', LOWER(engine)))
         FROM information_schema.tables WHERE {within}
         UNION ALL
         SELECT HEX(table_name), HEX(CONCAT_WS(
             ' ', column_name, LOWER(column_type), IF(is_nullable = 'YES', 'null', 'not null'),
             IF(LOWER(extra) LIKE '%auto_increment%', 'auto_increment', NULL),
             CONCAT('collate ', collation_name)
         ))
         FROM information_schema.columns WHERE {within}
         UNION ALL
         SELECT HEX(table_name), HEX(CONCAT_WS(
             ' ', '{INDEX_PART}', IF(non_unique = 0, 'unique', 'index'), index_name,
             LPAD(seq_in_index, 3, '0'), column_name, sub_part
         ))
         FROM information_schema.statistics WHERE {within}"
    );
    let mut tables = Tables::new();
    for row in sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await?
    {
        let table = unhex(row.try_get_unchecked(0)?);
        let line = unhex(row.try_get_unchecked(1)?);
        let Some(table) = table.strip_prefix(&prefix) else {
            continue;
        };
        tables
            .entry(table.to_owned())
            .or_default()
            .insert(in_one_notation(&line));
    }
    for lines in tables.values_mut() {
        join_indexes(lines);
    }
    Ok(tables)
}

/// Makes one line of the parts of each index, which are in order.
fn join_indexes(lines: &mut BTreeSet<String>) {
    let mut indexes = BTreeMap::<String, Vec<String>>::new();
    for line in lines.iter() {
        let mut words = line.split(' ');
        if words.next() == Some(INDEX_PART)
            && let (Some(unique), Some(name), Some(_)) = (words.next(), words.next(), words.next())
        {
            let column = words.collect::<Vec<_>>().join(" ");
            indexes
                .entry(format!("{unique} {name}"))
                .or_default()
                .push(column);
        }
    }
    lines.retain(|line| !line.starts_with(INDEX_PART));
    for (index, columns) in indexes {
        lines.insert(format!("{index} ({})", columns.join(",")));
    }
}

/// MariaDB shows the widths of integers, and JSON as the text with a check that it is there.
fn in_one_notation(line: &str) -> String {
    if line == "payload longtext null collate utf8mb4_bin" {
        return "payload json null".into();
    }
    for integer in [" bigint(", " tinyint("] {
        if let Some((name, rest)) = line.split_once(integer)
            && let Some((_, rest)) = rest.split_once(')')
        {
            return format!("{name}{}{rest}", integer.trim_end_matches('('));
        }
    }
    line.to_owned()
}

fn unhex(text: &[u8]) -> String {
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    let bytes: Vec<u8> = text
        .chunks(2)
        .map(|pair| {
            pair.iter()
                .fold(0, |sum, byte| sum << 4 | digit(byte).unwrap_or(0))
        })
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What is missing or different, if anything.
pub(crate) fn difference<'a>(expected: &'a Tables, present: &Tables) -> Option<(&'a str, &'a str)> {
    expected.iter().find_map(|(table, lines)| {
        let there = present.get(table);
        lines
            .iter()
            .find(|line| !there.is_some_and(|there| there.contains(*line)))
            .map(|line| (table.as_str(), line.as_str()))
    })
}

/// As [`present`], but not while tables are being made: the server does not show them from one
/// moment, and a table without its columns would be taken for another program's.
async fn present_at_rest(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<Tables> {
    let mut last = present(connection, options).await?;
    for _ in 0..LOOKS {
        if last.is_empty() || difference(&expected(options), &last).is_none() {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let now = present(connection, options).await?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

pub(crate) async fn find(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<(Found, Tables)> {
    let present = present_at_rest(connection, options).await?;
    if present.is_empty() {
        return Ok((Found::Nothing, present));
    }
    if let Some(meta) = present.get("meta") {
        let columns = [
            "marker varbinary(32) not null",
            "version bigint not null",
            "oldest bigint not null",
        ];
        if !columns.iter().all(|column| meta.contains(*column)) {
            return Ok((Found::Foreign, present));
        }
        let sql = Names::new(options).expand("SELECT marker, version, oldest FROM {meta} LIMIT 1");
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_optional(connection)
            .await?;
        if let Some(row) = row {
            let marker: &[u8] = row.try_get_unchecked(0)?;
            let number = |column: usize| row.try_get_unchecked::<i64, _>(column);
            let found = match (u32::try_from(number(1)?), u32::try_from(number(2)?)) {
                (Ok(version), Ok(oldest)) if marker == MARKER.as_bytes() => {
                    Found::Version { version, oldest }
                }
                _ => Found::Foreign,
            };
            return Ok((found, present));
        }
    }
    let mut those_there = expected(options);
    those_there.retain(|table, _| present.contains_key(table));
    let found = match difference(&those_there, &present) {
        None => Found::Unfinished,
        Some(_) => Found::Foreign,
    };
    Ok((found, present))
}

/// Whether this build works with tables of that version, for builds from `oldest` on.
pub(crate) fn works_with(version: u32, oldest: u32) -> bool {
    version == VERSION || (version > VERSION && oldest <= VERSION)
}

pub(crate) fn wrong_version(inbox: &InboxName, found: u32) -> Error {
    let what = if found > VERSION {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "inbox {inbox} has schema version {found}, this build works with {VERSION}: {what}"
        ),
    )
}

pub(crate) fn foreign(inbox: &InboxName) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "the database has tables named {inbox}_… that are not an inbox's (version unknown, \
             this build works with {VERSION}); choose another inbox name"
        ),
    )
}

pub(crate) fn incomplete(inbox: &InboxName, version: u32, table: &str, line: &str) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "inbox {inbox} says version {version}, but table {inbox}_{table} is missing, not for \
             this user to see, or lacks this, or has it differently: {line}"
        ),
    )
}

/// Fails unless an inbox of the expected version is there, whose tables belong together.
pub(crate) async fn check(connection: &mut MySqlConnection, options: &MySqlOptions) -> Result<()> {
    check_version(connection, options).await?;
    consistency::check(connection, options).await
}

/// Fails unless an inbox of the expected version is there.
pub(crate) async fn check_version(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<()> {
    let inbox = &options.inbox;
    let (found, present) = find(connection, options).await.map_err(before)?;
    match found {
        Found::Version { version, oldest } if works_with(version, oldest) => {
            match difference(&expected(options), &present) {
                None => Ok(()),
                Some((table, line)) => Err(incomplete(inbox, version, table, line)),
            }
        }
        Found::Version { version, .. } => Err(wrong_version(inbox, version)),
        Found::Foreign => Err(foreign(inbox)),
        Found::Nothing | Found::Unfinished => Err(Error::new(
            ErrorKind::SchemaMissing,
            format!(
                "there is no inbox named {inbox} in the database; create or migrate sets one up"
            ),
        )),
    }
}
