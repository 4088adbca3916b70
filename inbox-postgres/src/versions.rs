//! Which inbox is there, and whether this build works with it.

use inbox_api::{Error, ErrorKind, Result};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use crate::{
    ddl::{MARKER, STEPS, version_of},
    error::failed,
    names::Names,
};

/// The oldest version that this build works with.
const OLDEST: u32 = 1;

/// What stands in the schema under the inbox's name.
pub(crate) enum Found {
    Nothing,
    Inbox(Standing),
    /// In partitions where this store's options say otherwise, or the reverse.
    OtherLayout,
    Foreign,
}

/// Which inbox it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) version: u32,
    pub(crate) works_from: u32,
    pub(crate) revision: u32,
}

impl Standing {
    /// Whether a build of version `build`, which works with versions from `oldest` on, works with
    /// it.
    fn suits(self, oldest: u32, build: u32) -> bool {
        (oldest..=build).contains(&self.version)
            || (self.version > build && self.works_from <= build)
    }

    pub(crate) fn suits_this_build(self) -> bool {
        self.suits(OLDEST, version_of(STEPS))
    }
}

/// As one message without parameters, so that a pooler sends all of it to one server connection
/// although there is no transaction.
pub(crate) async fn ask(
    connection: &mut PgConnection,
    names: &Names,
    template: &str,
) -> sqlx::Result<Vec<PgRow>> {
    sqlx::raw_sql(names.statement(template))
        .fetch_all(connection)
        .await
}

pub(crate) async fn find(connection: &mut PgConnection, names: &Names) -> sqlx::Result<Found> {
    let rows = ask(connection, names, include_str!("sql/schema_find.sql")).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    match (row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?) {
        (0, _) => return Ok(Found::Nothing),
        (_, 4) => {}
        _ => return Ok(Found::Foreign),
    }
    let in_partitions: bool = row.try_get(2)?;
    let sql = "SELECT marker, version, works_from, revision FROM {inbox}_meta LIMIT 1";
    let rows = ask(connection, names, sql).await?;
    let number = |row: &PgRow, index: usize| u32::try_from(row.try_get::<i32, _>(index).ok()?).ok();
    let standing = rows.first().and_then(|row| {
        row.try_get::<&str, _>(0).ok().filter(|m| *m == MARKER)?;
        Some(Standing {
            version: number(row, 1)?,
            works_from: number(row, 2)?,
            revision: number(row, 3)?,
        })
    });
    Ok(match standing {
        // Of a version that does not suit, only the version matters.
        Some(standing) if standing.suits_this_build() && in_partitions != names.in_partitions => {
            Found::OtherLayout
        }
        Some(standing) => Found::Inbox(standing),
        None => Found::Foreign,
    })
}

/// Numbers that have been given out would be given out again: a new message would not be stored, or
/// overtake earlier ones of its ordering key.
pub(crate) async fn find_sequence_behind(
    connection: &mut PgConnection,
    names: &Names,
) -> sqlx::Result<Option<String>> {
    let rows = ask(connection, names, include_str!("sql/schema_numbers.sql")).await?;
    let behind = rows
        .first()
        .map_or(Ok(None), |row| row.try_get::<Option<bool>, _>(0))?;
    Ok((behind == Some(true)).then(|| {
        format!(
            "the sequence {}_seq is behind the numbers of messages; set it to more than the \
             highest, in thousands",
            names.inbox
        )
    }))
}

pub(crate) fn loaded_in_part(names: &Names, what: &str) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!("{names} is not whole; was a part of it loaded from a dump? {what}"),
    )
}

pub(crate) fn other_layout(names: &Names) -> Error {
    let what = if names.in_partitions {
        "not set up in partitions, and this store's options ask for them"
    } else {
        "set up in partitions, and this store's options do not say so"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        format!("{names} is {what}; every process on one inbox has to say the same"),
    )
}

pub(crate) fn wrong_version(names: &Names, found: u32, expected: u32) -> Error {
    let what = if found > expected {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        format!("{names} has schema version {found}, this build works with {expected}: {what}"),
    )
}

pub(crate) fn foreign(names: &Names, expected: u32) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "there are tables of the names of {names} that are not an inbox's (version unknown, \
             this build works with {expected}); choose another inbox name or schema"
        ),
    )
}

pub(crate) fn incomplete(names: &Names, version: u32, part: &str) -> Error {
    let other_type = part.starts_with(&format!("column {}_message.payload ", names.inbox));
    let hint = if other_type {
        "; was it set up with another payload type?"
    } else {
        ""
    };
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "{names} says version {version}, but this is missing or not as this build's version \
             {version} makes it: {part}{hint}"
        ),
    )
}

/// Fails unless an inbox that this build works with is there. Looks at the version, the payload's
/// type and the sequence only, so that it is cheap enough for the first use of every store.
pub(crate) async fn check_version(connection: &mut PgConnection, names: &Names) -> Result<()> {
    let expected = version_of(STEPS);
    let standing = match find(connection, names).await.map_err(failed)? {
        Found::Inbox(standing) => standing,
        Found::OtherLayout => return Err(other_layout(names)),
        Found::Foreign => return Err(foreign(names, expected)),
        Found::Nothing => {
            return Err(Error::new(
                ErrorKind::SchemaMissing,
                format!("there is no {names}; create or migrate sets one up"),
            ));
        }
    };
    if !standing.suits_this_build() {
        return Err(wrong_version(names, standing.version, expected));
    }
    let sql = "SELECT FROM pg_catalog.pg_attribute WHERE attrelid = '{inbox}_message'::regclass
        AND attname = 'payload' AND atttypid = '{payload}'::regtype";
    let found = ask(connection, names, sql).await.map_err(failed)?;
    if found.is_empty() {
        let part = names.text("column {prefix}_message.payload {payload}");
        return Err(incomplete(names, standing.version, &part));
    }
    match find_sequence_behind(connection, names)
        .await
        .map_err(failed)?
    {
        Some(behind) => Err(loaded_in_part(names, &behind)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_suit_within_their_stated_ranges() {
        // Version of the inbox, the oldest build that it suits; oldest inbox of the build, its
        // version.
        for (version, works_from, oldest, build, suits) in [
            (3, 3, 3, 3, true),
            (3, 3, 2, 4, true),
            (3, 3, 4, 4, false),
            (4, 3, 3, 3, true),
            (4, 4, 3, 3, false),
            (7, 2, 1, 2, true),
            (0, 0, 1, 1, false),
        ] {
            let standing = Standing {
                version,
                works_from,
                revision: 1,
            };
            assert_eq!(
                standing.suits(oldest, build),
                suits,
                "{standing:?} {oldest} {build}"
            );
        }
    }
}
