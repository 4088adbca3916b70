//! The version that an inbox in the file says it has, and whether this build works with it.

use inbox_api::{Error, ErrorKind, InboxName, Result};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection, sqlite::SqliteRow};

use crate::error::failed;

/// Step n brings an inbox from version n to n + 1. Never changed once released, but for comments.
pub(crate) const STEPS: &[&str] = &[include_str!("sql/schema_1.sql")];

pub(crate) const MARKER: &str = "inbox.sqlite";

/// What stands in the file under the inbox's name.
pub(crate) enum Found {
    Nothing,
    Marked(Marked),
    /// A dump was loaded into what had been set up before, or without all of its tables.
    Loaded,
    Foreign,
}

#[derive(Clone, Copy)]
pub(crate) struct Marked {
    pub(crate) version: u32,
    pub(crate) works_from: u32,
    pub(crate) revision: u32,
}

impl Marked {
    /// Whether a build of that version works with it.
    pub(crate) fn suits(self, build: u32) -> bool {
        self.version == build || self.is_newer_but_suits(build)
    }

    pub(crate) fn is_newer_but_suits(self, build: u32) -> bool {
        self.version > build && self.works_from <= build
    }
}

/// The version that `steps` make.
pub(crate) fn version_of(steps: &[&str]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

pub(crate) async fn find(
    connection: &mut SqliteConnection,
    inbox: &InboxName,
) -> sqlx::Result<Found> {
    let tables =
        ["message", "state", "count", "paused", "meta"].map(|table| format!("{inbox}_{table}"));
    let row = sqlx::query(
        "SELECT
            (SELECT count(*) FROM sqlite_master WHERE lower(name) IN (?1, ?2, ?3, ?4, ?5)),
            (SELECT count(*) FROM pragma_table_info(?5)
             WHERE name IN ('marker', 'version', 'works_from', 'revision')),
            (SELECT count(*) FROM pragma_table_info(?3)
             WHERE name IN ('unfinished', 'processed', 'dead', 'discarded'))",
    )
    .bind(&tables[0])
    .bind(&tables[1])
    .bind(&tables[2])
    .bind(&tables[3])
    .bind(&tables[4])
    .fetch_one(&mut *connection)
    .await?;
    let count: i64 = row.try_get(0)?;
    match (count, row.try_get::<i64, _>(1)?) {
        (0, _) => return Ok(Found::Nothing),
        (_, 4) => {}
        _ => return Ok(Found::Foreign),
    }
    let meta = format!("SELECT marker, version, works_from, revision FROM {inbox}_meta LIMIT 2");
    let rows = sqlx::query(AssertSqlSafe(meta))
        .fetch_all(&mut *connection)
        .await?;
    // Tables of another layout are told as such.
    let has_counters = row.try_get::<i64, _>(2)? == 4;
    if count == 5 && has_counters && is_half_empty(connection, inbox).await? {
        return Ok(Found::Loaded);
    }
    Ok(match rows.as_slice() {
        [row] => read_mark(row).map_or(Found::Foreign, Found::Marked),
        [row, other] if read_mark(row).is_some() && read_mark(other).is_some() => Found::Loaded,
        _ => Found::Foreign,
    })
}

/// Whether there are messages without states or the reverse: all of a table's content is missing.
/// Single rows that are lost do not stop the others.
async fn is_half_empty(connection: &mut SqliteConnection, inbox: &InboxName) -> sqlx::Result<bool> {
    let sql = format!(
        "SELECT count(DISTINCT filled) FROM (
            SELECT EXISTS (SELECT 1 FROM {inbox}_message) AS filled
            UNION ALL SELECT EXISTS (SELECT 1 FROM {inbox}_state)
            UNION ALL SELECT EXISTS (
                SELECT 1 FROM {inbox}_count WHERE unfinished + processed + dead + discarded > 0
            )
        )"
    );
    let kinds: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await?;
    Ok(kinds > 1)
}

fn read_mark(row: &SqliteRow) -> Option<Marked> {
    let number = |index| u32::try_from(row.try_get::<i64, _>(index).ok()?).ok();
    let marked = Marked {
        version: number(1)?,
        works_from: number(2)?,
        revision: number(3)?,
    };
    (row.try_get::<&str, _>(0).ok()? == MARKER).then_some(marked)
}

pub(crate) fn wrong_version(inbox: &InboxName, found: u32, expected: u32) -> Error {
    let what = if found > expected {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "inbox {inbox} has schema version {found}, this build works with {expected}: {what}"
        ),
    )
}

pub(crate) fn foreign_tables(inbox: &InboxName, expected: u32) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "the file has tables named {inbox}_… that are not an inbox's (version unknown, this \
             build works with {expected}); choose another inbox name"
        ),
    )
}

pub(crate) fn loaded_dump(inbox: &InboxName) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "a dump was loaded into inbox {inbox} when that had been set up already, or without all \
             of its tables: its messages are not in their states; drop its tables and load a whole \
             dump, with its definitions, in their place"
        ),
    )
}

/// Fails unless an inbox of the expected version is there. Looks at the version only, so that it
/// is cheap enough for the first use of every store.
pub(crate) async fn check(connection: &mut SqliteConnection, inbox: &InboxName) -> Result<()> {
    let expected = version_of(STEPS);
    match find(connection, inbox).await.map_err(failed)? {
        Found::Marked(marked) if marked.suits(expected) => Ok(()),
        Found::Marked(marked) => Err(wrong_version(inbox, marked.version, expected)),
        Found::Foreign => Err(foreign_tables(inbox, expected)),
        Found::Loaded => Err(loaded_dump(inbox)),
        Found::Nothing => Err(Error::new(
            ErrorKind::SchemaMissing,
            format!("there is no inbox named {inbox} in the file; create or migrate sets one up"),
        )),
    }
}
