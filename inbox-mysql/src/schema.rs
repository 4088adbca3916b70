//! Setting up, and telling whether a complete inbox is there.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use inbox_api::{Effect, Error, ErrorKind, InboxName, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use tokio::time::Instant;

use crate::{
    error::{in_operation, without_effect},
    options::{MySqlOptions, PayloadColumn},
    script::{Access, Script, Sets, Statement, hex},
    statements::{Names, TABLES},
    store::MySqlStore,
    whole,
};

const VERSION: u32 = 1;
/// The oldest build, by its version, that works with what this one sets up. A newer one that only adds
/// what older ones can do without leaves it as it is, so that they go on working.
const OLDEST: u32 = 1;
const MARKER: &str = "inbox.mysql";
/// Begins the lines of an index's columns; no column's name does.
const INDEX_PART: &str = "(part)";
/// How often a set-up is tried when another node of a cluster is at it too.
const TRIES: u32 = 10;
/// How long between two tries.
const BETWEEN_TRIES: std::time::Duration = std::time::Duration::from_millis(50);

/// How often, and how soon, tables are looked at again that are not (yet) complete.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: std::time::Duration = std::time::Duration::from_millis(100);

/// What stands in the database under the inbox's name.
enum Found {
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
type Tables = BTreeMap<String, BTreeSet<String>>;

fn set_version(names: &Names) -> String {
    names.expand(&format!(
        "INSERT INTO {{meta}} (only_row, marker, version, oldest)\n\
         VALUES (1, '{MARKER}', {VERSION}, {OLDEST})\n\
         ON DUPLICATE KEY UPDATE version = {VERSION}, oldest = {OLDEST}"
    ))
}

pub(crate) fn ddl(options: &MySqlOptions) -> String {
    let names = Names::new(options);
    let tables = names.expand(include_str!("sql/schema_1.sql"));
    format!("{tables}\n{};\n", set_version(&names))
}

/// The tables that the statements of `schema_1.sql` make, read from the statements themselves, so
/// that there is no second description of them.
fn expected(options: &MySqlOptions) -> Tables {
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
            .map(|line| expected_line(line, options.payload_column))
            .collect();
        lines.insert("engine innodb".into());
        tables.insert(table.into(), lines);
    }
    tables
}

fn expected_line(line: &str, payload: PayloadColumn) -> String {
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
        PayloadColumn::LongBlob => "longblob",
        PayloadColumn::Json => "json",
    };
    line.to_ascii_lowercase()
        .replace("{payload_type}", payload_type)
}

/// The condition on a table of the server's information schema that it is in the inbox's database.
/// MariaDB finds a database by the very name, but compares names without regard to case.
pub(crate) fn in_database(options: &MySqlOptions) -> String {
    let mut name = Statement::default();
    match &options.database {
        Some(database) => name
            .push("CONVERT(")
            .bytes(database.as_bytes())
            .push(" USING utf8mb4)"),
        None => name.push("DATABASE()"),
    };
    let name = name.into_text();
    format!(
        "table_schema = {name} \
         AND (@@lower_case_table_names <> 0 OR HEX(table_schema) = HEX({name}))"
    )
}

/// The inbox's tables as they are there.
async fn present(connection: &mut MySqlConnection, options: &MySqlOptions) -> sqlx::Result<Tables> {
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
fn difference<'a>(expected: &'a Tables, present: &Tables) -> Option<(&'a str, &'a str)> {
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
async fn settled(connection: &mut MySqlConnection, options: &MySqlOptions) -> sqlx::Result<Tables> {
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

async fn find(
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> sqlx::Result<(Found, Tables)> {
    let present = settled(connection, options).await?;
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
fn works_with(version: u32, oldest: u32) -> bool {
    version == VERSION || (version > VERSION && oldest <= VERSION)
}

fn wrong_version(operation: &'static str, inbox: &InboxName, found: u32) -> Error {
    let what = if found > VERSION {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "inbox {inbox} has schema version {found}, this build works with {VERSION}: {what}"
        ),
    )
}

fn foreign(operation: &'static str, inbox: &InboxName) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "the database has tables named {inbox}_… that are not an inbox's (version unknown, \
             this build works with {VERSION}); choose another inbox name"
        ),
    )
}

fn incomplete(
    operation: &'static str,
    inbox: &InboxName,
    version: u32,
    table: &str,
    line: &str,
) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        operation,
        format!(
            "inbox {inbox} says version {version}, but table {inbox}_{table} is missing, not for \
             this user to see, or lacks this, or has it differently: {line}"
        ),
    )
}

/// Fails unless an inbox of the expected version is there, and whole.
pub(crate) async fn check_whole(
    operation: &'static str,
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<()> {
    check_version(operation, connection, options).await?;
    whole::check(operation, connection, options).await
}

/// Fails unless an inbox of the expected version is there.
pub(crate) async fn check_version(
    operation: &'static str,
    connection: &mut MySqlConnection,
    options: &MySqlOptions,
) -> Result<()> {
    let inbox = &options.inbox;
    let (found, present) = find(connection, options)
        .await
        .map_err(without_effect(operation))?;
    match found {
        Found::Version { version, oldest } if works_with(version, oldest) => {
            match difference(&expected(options), &present) {
                None => Ok(()),
                Some((table, line)) => Err(incomplete(operation, inbox, version, table, line)),
            }
        }
        Found::Version { version, .. } => Err(wrong_version(operation, inbox, version)),
        Found::Foreign => Err(foreign(operation, inbox)),
        Found::Nothing | Found::Unfinished => Err(Error::new(
            ErrorKind::SchemaMissing,
            operation,
            format!(
                "there is no inbox named {inbox} in the database; create or migrate sets one up"
            ),
        )),
    }
}

impl MySqlStore {
    /// Sets the inbox up unless it is there. Under a lock of the server's by the inbox's name,
    /// so that of several at once one does it. In a cluster that lock would be one node's only;
    /// there the statements themselves, which are harmless when repeated and run in one order on
    /// all nodes, have to do.
    async fn apply(&self, operation: &'static str, until: Instant) -> Result<Migration> {
        let options = &self.inner.work.options;
        let mapped = in_operation(operation);
        let connections = &self.inner.connections;
        let mut guard = connections.guard(operation, until).await?;
        let work = async {
            let connection = guard.connection(operation)?;
            let lock = (!self.inner.work.server.galera).then(|| lock_name(options));
            if let Some(lock) = &lock {
                let seconds = options.operation_timeout.as_secs();
                take_lock(operation, connection, lock, seconds).await?;
            }
            self.begin_reading(operation, connection).await?;
            let (found, _) = find(connection, options).await.map_err(mapped)?;
            self.end_reading(operation, connection).await?;
            let from = match found {
                Found::Version { version, oldest } if works_with(version, oldest) => Some(version),
                Found::Version { version, .. } => {
                    return Err(wrong_version(operation, &options.inbox, version));
                }
                Found::Foreign => return Err(foreign(operation, &options.inbox)),
                Found::Nothing | Found::Unfinished => None,
            };
            if from.is_none() {
                for statement in &self.inner.work.sql.schema {
                    execute(connection, statement.clone())
                        .await
                        .map_err(mapped)?;
                }
                let mut mark = Script::default();
                mark.begin(Access::Write, Sets::default());
                mark.fixed(&set_version(&Names::new(options)));
                mark.commit();
                let server = &self.inner.work.server;
                mark.run(connection, server.max_packet, server.form())
                    .await
                    .map_err(mapped)?;
            }
            self.begin_reading(operation, connection).await?;
            let to = from.unwrap_or(VERSION);
            let present = present(connection, options).await.map_err(mapped)?;
            if let Some((table, line)) = difference(&expected(options), &present) {
                return Err(incomplete(operation, &options.inbox, to, table, line));
            }
            whole::check(operation, connection, options).await?;
            self.end_reading(operation, connection).await?;
            if let Some(lock) = &lock {
                execute(connection, format!("DO RELEASE_LOCK('{lock}')"))
                    .await
                    .map_err(mapped)?;
            }
            Ok(Migration { from, to })
        };
        let effect = Effect::Unknown;
        let migration = connections.in_time(operation, until, effect, work).await?;
        guard.give_back();
        Ok(migration)
    }

    async fn apply_again(&self, operation: &'static str, until: Instant) -> Result<Migration> {
        let mut tries = 1;
        loop {
            let answer = self.apply(operation, until).await;
            let again = Instant::now() + BETWEEN_TRIES;
            match answer {
                Err(error)
                    if error.kind() == ErrorKind::Conflict && tries < TRIES && again < until =>
                {
                    tokio::time::sleep_until(again).await;
                }
                answer => return answer,
            }
            tries += 1;
        }
    }

    /// What stands there, and whether that is a complete inbox that this build works with.
    async fn look(&self, operation: &'static str, until: Instant) -> Result<(Found, bool)> {
        let options = &self.inner.work.options;
        let connections = &self.inner.connections;
        let mut guard = connections.guard(operation, until).await?;
        let work = async {
            let connection = guard.connection(operation)?;
            self.begin_reading(operation, connection).await?;
            let mapped = without_effect(operation);
            let (found, present) = find(connection, options).await.map_err(mapped)?;
            let complete = match found {
                Found::Version { version, oldest } => {
                    works_with(version, oldest)
                        && difference(&expected(options), &present).is_none()
                }
                _ => false,
            };
            if complete {
                whole::check(operation, connection, options).await?;
            }
            self.end_reading(operation, connection).await?;
            Ok((found, complete))
        };
        let effect = Effect::None;
        let found = connections.in_time(operation, until, effect, work).await?;
        guard.give_back();
        Ok(found)
    }

    /// Whether a complete inbox of this version is there.
    async fn is_complete(&self, operation: &'static str, until: Instant) -> Result<bool> {
        let options = &self.inner.work.options;
        let (found, complete) = self.look(operation, until).await?;
        match found {
            Found::Nothing | Found::Unfinished => Ok(false),
            Found::Foreign => Err(foreign(operation, &options.inbox)),
            Found::Version { version, oldest }
                if version > VERSION && !works_with(version, oldest) =>
            {
                Err(wrong_version(operation, &options.inbox, version))
            }
            Found::Version { .. } => Ok(complete),
        }
    }
}

async fn execute(connection: &mut MySqlConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await?;
    Ok(())
}

/// Names of locks have at most 64 characters and are the whole server's.
fn lock_name(options: &MySqlOptions) -> String {
    let database = options
        .database
        .as_deref()
        .or(options.connect.get_database())
        .unwrap_or_default();
    // FNV-1a: two inboxes with one lock would only wait for each other.
    let hash = database
        .bytes()
        .chain([0])
        .chain(options.inbox.as_str().bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let mut name = "inbox.".to_owned();
    hex(&hash.to_be_bytes(), &mut name);
    name
}

async fn take_lock(
    operation: &'static str,
    connection: &mut MySqlConnection,
    lock: &str,
    seconds: u64,
) -> Result<()> {
    let sql = format!("SELECT COALESCE(GET_LOCK('{lock}', {}), 0)", seconds.max(1));
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await
        .map_err(without_effect(operation))?;
    let taken: i64 = row
        .try_get_unchecked(0)
        .map_err(without_effect(operation))?;
    if taken == 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        operation,
        "another process has been setting the inbox up for too long",
    ))
}

#[async_trait]
impl Schema for MySqlStore {
    fn ddl(&self) -> String {
        ddl(&self.inner.work.options)
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        const OPERATION: &str = "version";
        match self.look(OPERATION, self.until()).await?.0 {
            Found::Nothing | Found::Unfinished => Ok(None),
            Found::Version { version, .. } => Ok(Some(version)),
            Found::Foreign => Err(foreign(OPERATION, &self.inner.work.options.inbox)),
        }
    }

    async fn exists(&self) -> Result<bool> {
        const OPERATION: &str = "exists";
        self.is_complete(OPERATION, self.until()).await
    }

    async fn create(&self) -> Result<()> {
        const OPERATION: &str = "create";
        let until = self.until();
        if !self.is_complete(OPERATION, until).await? {
            self.apply_again(OPERATION, until).await?;
        }
        Ok(())
    }

    async fn migrate(&self) -> Result<Migration> {
        self.apply_again("migrate", self.until()).await
    }
}
