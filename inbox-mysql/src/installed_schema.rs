//! What stands in the database under the inbox's name, and whether it is a complete inbox.

use std::collections::{BTreeMap, BTreeSet};

use inbox_api::{Error, ErrorKind, InboxName, Result};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};

use crate::{
    consistency,
    error::before,
    options::{MySqlOptions, PayloadType, TABLES},
    statements::{ALL_ROWS, Names, in_database},
};

/// Step n brings an inbox from version n to n + 1. Never changed once released, but for comments. DDL commits by
/// itself here, so whatever a step does is harmless when repeated: `CREATE TABLE IF NOT EXISTS`; an `ALTER
/// TABLE` that the server refuses because it has been made; an `UPDATE` that does not find its rows again.
///
/// What the tables are like is read from the steps, so they are written by line: `CREATE` and `ALTER TABLE`
/// name one table, and each further line says one thing of it (see `read_line`).
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];
pub(crate) const VERSION: u32 = version_of(STEPS);
/// The oldest version whose builds work with what this one sets up. A newer one that only adds
/// what older ones can do without leaves it as it is, so that they go on working.
pub(crate) const WORKS_FROM: u32 = 1;
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
    Marked(Marked),
    Foreign,
}

#[derive(Clone, Copy)]
pub(crate) struct Marked {
    pub(crate) version: u32,
    /// The oldest version whose builds work with it.
    pub(crate) works_from: u32,
}

impl Marked {
    /// Whether a build of that version works with it.
    pub(crate) fn suits(self, build: u32) -> bool {
        self.version == build || (self.version > build && self.works_from <= build)
    }
}

/// The version that `steps` make.
pub(crate) const fn version_of(steps: &[&str]) -> u32 {
    steps.len() as u32
}

/// Columns, indexes and engine of each table, a line for each.
pub(crate) type Tables = BTreeMap<String, BTreeSet<String>>;

/// The tables that `steps` make, read from the statements themselves, so that there is no second
/// description of them.
pub(crate) fn expected(options: &MySqlOptions, steps: &[&str]) -> Tables {
    let mut tables = Tables::new();
    let mut lines = None;
    for line in steps.iter().flat_map(|step| step.lines()).map(str::trim) {
        let made = line.strip_prefix("CREATE TABLE IF NOT EXISTS {");
        let named = made.or_else(|| line.strip_prefix("ALTER TABLE {"));
        if let Some((table, _)) = named.and_then(|rest| rest.split_once('}')) {
            let table = tables.entry(table.to_owned()).or_default();
            if made.is_some() {
                table.insert("engine innodb".to_owned());
            }
            lines = Some(table);
        } else if let Some(lines) = &mut lines
            && !line.starts_with("--")
            && !line.starts_with(')')
        {
            read_line(
                line.trim_end_matches([',', ';']),
                options.payload_type,
                lines,
            );
        }
        if line.ends_with(';') {
            lines = None;
        }
    }
    tables
}

/// What a line of a statement says of its table.
fn read_line(line: &str, payload: PayloadType, lines: &mut BTreeSet<String>) {
    let mut forget = |begins: &[String]| {
        lines.retain(|line| !begins.iter().any(|begin| line.starts_with(begin)));
    };
    let mut added = line.strip_prefix("ADD ").unwrap_or(line);
    added = added.strip_prefix("COLUMN ").unwrap_or(added);
    if let Some(column) = line.strip_prefix("DROP COLUMN ") {
        return forget(&[format!("{column} ")]);
    } else if let Some(index) = line.strip_prefix("DROP KEY ") {
        return forget(&[format!("index {index} ("), format!("unique {index} (")]);
    } else if let Some(column) = line.strip_prefix("MODIFY COLUMN ") {
        let name = column.split(' ').next().unwrap_or_default();
        forget(&[format!("{name} ")]);
        added = column;
    }
    lines.insert(expected_line(added, payload));
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
    // Defaults do not show.
    let line = line.split_once(" DEFAULT ").map_or(line, |(line, _)| line);
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
    // in which they are NULL, and one in which a concatenation takes NULL for an empty text.
    let sql = format!(
        "SELECT HEX(table_name), HEX(CONCAT('engine ', LOWER(engine)))
         FROM information_schema.tables WHERE {within}
         UNION ALL
         SELECT HEX(table_name), HEX(CONCAT_WS(
             ' ', column_name, LOWER(column_type), IF(is_nullable = 'YES', 'null', 'not null'),
             IF(LOWER(extra) LIKE '%auto_increment%', 'auto_increment', NULL),
             IF(collation_name IS NULL, NULL, CONCAT('collate ', collation_name))
         ))
         FROM information_schema.columns WHERE {within}
         UNION ALL
         SELECT HEX(table_name), HEX(CONCAT_WS(
             ' ', '{INDEX_PART}', IF(non_unique = 0, 'unique', 'index'), index_name,
             LPAD(seq_in_index, 3, '0'), column_name, sub_part
         ))
         FROM information_schema.statistics WHERE {within}
         {ALL_ROWS}"
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
    steps: &[&str],
) -> sqlx::Result<Tables> {
    let mut last = present(connection, options).await?;
    for _ in 0..LOOKS {
        if last.is_empty() || difference(&expected(options, steps), &last).is_none() {
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
    steps: &[&str],
) -> sqlx::Result<(Found, Tables)> {
    let present = present_at_rest(connection, options, steps).await?;
    if present.is_empty() {
        return Ok((Found::Nothing, present));
    }
    if let Some(meta) = present.get("meta") {
        let columns = [
            "marker varbinary(32) not null",
            "version bigint not null",
            "works_from bigint not null",
        ];
        if !columns.iter().all(|column| meta.contains(*column)) {
            return Ok((Found::Foreign, present));
        }
        let sql =
            Names::new(options).expand("SELECT marker, version, works_from FROM {meta} LIMIT 1");
        let row = sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_optional(connection)
            .await?;
        if let Some(row) = row {
            let marker: &[u8] = row.try_get_unchecked(0)?;
            let number = |column: usize| row.try_get_unchecked::<i64, _>(column);
            let found = match (u32::try_from(number(1)?), u32::try_from(number(2)?)) {
                (Ok(version), Ok(works_from)) if marker == MARKER.as_bytes() => {
                    Found::Marked(Marked {
                        version,
                        works_from,
                    })
                }
                _ => Found::Foreign,
            };
            return Ok((found, present));
        }
    }
    // As far as a set-up has come.
    let is_unfinished = (1..=steps.len()).any(|taken| {
        let mut those_there = expected(options, steps.get(..taken).unwrap_or_default());
        those_there.retain(|table, _| present.contains_key(table));
        difference(&those_there, &present).is_none()
    });
    let found = if is_unfinished {
        Found::Unfinished
    } else {
        Found::Foreign
    };
    Ok((found, present))
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
    let (found, present) = find(connection, options, STEPS).await.map_err(before)?;
    match found {
        Found::Marked(marked) if marked.suits(VERSION) => {
            match difference(&expected(options, STEPS), &present) {
                None => Ok(()),
                Some((table, line)) => Err(incomplete(inbox, marked.version, table, line)),
            }
        }
        Found::Marked(marked) => Err(wrong_version(inbox, marked.version)),
        Found::Foreign => Err(foreign(inbox)),
        Found::Nothing | Found::Unfinished => Err(Error::new(
            ErrorKind::SchemaMissing,
            format!(
                "there is no inbox named {inbox} in the database; create or migrate sets one up"
            ),
        )),
    }
}
