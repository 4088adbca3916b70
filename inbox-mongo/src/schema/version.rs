//! Whether there is an inbox, and of which version.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use inbox_api::{Error, ErrorKind, Result};
use mongodb::{
    bson::{Document, doc},
    options::{ReadConcern, ReadPreference},
};
use tokio::time::sleep;

use crate::{
    connection::Database,
    error::{before, is_internal},
    layout::{MARKER, SCHEMA, VERSION, messages, meta},
    ordering::check_shards,
    rows::number,
};

/// How often collections without a mark are looked at before they are taken for another program's.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// As [`Database::task`], for what needs an inbox of the right version: looks once whether there is
/// one, and again where the server refuses something, since another process may have removed it.
pub(crate) async fn checked_task<T, F>(
    database: &Arc<Database>,
    work: impl FnOnce(Arc<Database>) -> F + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let checked = database.task(|database| async move {
        if !database.checked.load(Ordering::Relaxed) {
            check_version(&database).await?;
            database.checked.store(true, Ordering::Relaxed);
        }
        match work(Arc::clone(&database)).await {
            Err(error) if error.kind() == ErrorKind::Other || is_internal(&error) => {
                match check_version(&database).await {
                    Err(missing) if missing.kind() == ErrorKind::SchemaMissing => {
                        Err(missing.with_effect(error.effect()))
                    }
                    _ => Err(error),
                }
            }
            outcome => outcome,
        }
    });
    checked.await
}

/// What stands in the database under the inbox's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Marked(Marked),
    Foreign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marked {
    pub(super) version: u32,
    /// The oldest version whose builds work with it.
    pub(super) works_from: u32,
    pub(super) complete: bool,
}

impl Marked {
    /// Whether a build of that version works with it.
    pub(super) fn suits(self, build: u32) -> bool {
        self.version == build || (self.version > build && self.works_from <= build)
    }
}

/// A document of the inbox's own, or of another application with a collection of that name.
pub(super) async fn find_meta(database: &Database, filter: Document) -> Result<Option<Document>> {
    database
        .meta()
        .find_one(filter)
        .read_concern(ReadConcern::majority())
        .selection_criteria(ReadPreference::Primary.into())
        .await
        .map_err(before)
}

async fn find_mark(database: &Database) -> Result<Option<Document>> {
    find_meta(database, doc! { "_id": SCHEMA }).await
}

pub(super) fn read_mark(mark: &Document) -> Option<Marked> {
    let read = |field| number(mark, field).and_then(|number| u32::try_from(number).ok());
    mark.get_str("marker").ok().filter(|m| *m == MARKER)?;
    Some(Marked {
        version: read("version")?,
        works_from: read("worksFrom")?,
        complete: mark.get_bool("complete").unwrap_or(false),
    })
}

pub(super) async fn find(database: &Database) -> Result<Found> {
    let names = [
        messages(&database.options.inbox),
        meta(&database.options.inbox),
    ];
    // The looks are of different moments: another process may set up or remove the inbox between them.
    for _ in 0..LOOKS {
        if let Some(mark) = find_mark(database).await? {
            return Ok(read_mark(&mark).map_or(Found::Foreign, Found::Marked));
        }
        let present = database
            .handle()
            .list_collection_names()
            .filter(doc! { "name": { "$in": names.as_slice() } })
            .await
            .map_err(before)?;
        let used = present.contains(&names[0])
            || (present.contains(&names[1]) && find_meta(database, doc! {}).await?.is_some());
        if !used {
            return Ok(Found::Nothing);
        }
        sleep(BETWEEN_LOOKS).await;
    }
    let mark = find_mark(database).await?;
    let marked = mark.as_ref().and_then(read_mark);
    Ok(marked.map_or(Found::Foreign, Found::Marked))
}

pub(super) fn wrong_version(database: &Database, found: u32) -> Error {
    let what = if found > VERSION {
        "use a newer build"
    } else {
        "migrate it"
    };
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "the inbox {} has schema version {found}, this build works with {VERSION}: {what}",
            database.options.inbox
        ),
    )
}

pub(super) fn foreign(database: &Database) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "there are collections of the names of the inbox {0} without the mark of an inbox, the \
             document {SCHEMA:?} in {0}_meta (version unknown, this build works with {VERSION}); \
             choose another inbox name or database, or drop them if nobody needs them (remove does, \
             if they are what workers have left behind when the inbox was removed)",
            database.options.inbox
        ),
    )
}

pub(super) fn incomplete(database: &Database, part: &str) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "the inbox {} says version {VERSION}, but this is missing or not as this build's \
             version {VERSION} makes it: {part}; ddl shows it, for putting it right by hand",
            database.options.inbox
        ),
    )
}

pub(super) fn unfinished(database: &Database) -> Error {
    Error::new(
        ErrorKind::SchemaVersion,
        format!(
            "setting up the inbox {} in version {VERSION} was begun and not finished; create or \
             migrate finishes it",
            database.options.inbox
        ),
    )
}

/// Fails unless an inbox of the expected version is there. Looks at its mark only, so that it is
/// cheap enough for the first use of every store.
async fn check_version(database: &Database) -> Result<()> {
    match find(database).await? {
        Found::Marked(marked) if marked.suits(VERSION) => {
            if !marked.complete {
                return Err(unfinished(database));
            }
            check_shards(database).await
        }
        Found::Marked(marked) => Err(wrong_version(database, marked.version)),
        Found::Foreign => Err(foreign(database)),
        Found::Nothing => Err(Error::new(
            ErrorKind::SchemaMissing,
            format!(
                "there is no inbox {}; create or migrate sets one up",
                database.options.inbox
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::mark;

    #[test]
    fn marks_tell_versions_from_foreign_documents() {
        let marked = read_mark(&mark()).unwrap();
        assert!(marked.suits(VERSION) && !marked.complete);
        for foreign in [
            doc! { "_id": "schema", "version": 1, "worksFrom": 1 },
            doc! { "marker": MARKER, "version": 1 },
            doc! { "marker": MARKER, "version": -1, "worksFrom": 1 },
        ] {
            assert_eq!(read_mark(&foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_newer_version_suits_builds_from_the_one_that_it_names() {
        let newer = Marked {
            version: 4,
            works_from: 3,
            complete: true,
        };
        assert_eq!(
            [2, 3, 4, 5].map(|build| newer.suits(build)),
            [false, true, true, false]
        );
    }
}
