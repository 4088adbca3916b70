//! Setting up: a marker, a version, and what leads from one version to the next.
//!
//! Every decision here is made inside a write transaction, of which redb runs one at a time: that
//! is the lock under which two set-ups or migrations cannot meet.

use async_trait::async_trait;
use inbox_api::{Migration, Result, Schema};
use redb::{ReadableTable, TableHandle as _, WriteTransaction};

use crate::{
    error::Failure,
    rows::{StateRow, decode},
    store::RedbStore,
    tables::{BLOCKING, COUNT, DESCRIPTION, META, STATE, Tables},
    version::{Found, MARKER, VERSION, find, refusal},
};

/// Makes the tables that are not there, and says which version they are.
fn set_up(transaction: &WriteTransaction) -> Result<(), Failure> {
    Tables::open(transaction)?;
    let mut meta = transaction.open_table(META)?;
    meta.insert("marker", MARKER)?;
    meta.insert("version", VERSION.to_string().as_str())?;
    Ok(())
}

/// From version 1 to 2: counts what version 1 left to be counted.
fn to_version_2(transaction: &WriteTransaction) -> Result<(), Failure> {
    let mut counts = transaction.open_table(COUNT)?;
    for entry in transaction.open_table(STATE)?.iter()? {
        let (_, bytes) = entry?;
        // A row that does not read is left as it is, and counted nowhere.
        if let Ok(row) = decode::<StateRow>("state", Some(bytes)) {
            let blocking = row.stage.blocks().then_some(BLOCKING);
            for code in [Some(row.stage.state().code()), blocking]
                .into_iter()
                .flatten()
            {
                let place = (row.key.handler.as_str(), code);
                let count = counts.get(place)?.map_or(0, |count| count.value());
                counts.insert(place, count + 1)?;
            }
        }
    }
    Ok(())
}

#[async_trait]
impl Schema for RedbStore {
    /// redb has no statements: the text names the tables that [`create`](Schema::create) makes.
    fn ddl(&self) -> String {
        let mut text =
            format!("-- redb makes tables by code: version {VERSION} of this inbox is\n");
        for (name, types) in DESCRIPTION {
            text.push_str(&format!("-- table {name}: {types}\n"));
        }
        text
    }

    /// In words: redb has no queries.
    fn exists_query(&self) -> String {
        format!(
            "-- redb has no queries: an inbox is complete when table meta has the marker {MARKER:?} and the \
             version {VERSION}, and all tables are there that the text of the set-up names\n"
        )
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        let look = |transaction: &WriteTransaction| match find(transaction)? {
            Found::Nothing => Ok((None, false)),
            Found::Current | Found::Incomplete(_) => Ok((Some(VERSION), false)),
            Found::Other(version) => Ok((Some(version), false)),
            Found::Foreign => Err(refusal(Found::Foreign)),
        };
        self.inner()
            .set_up(look)
            .await
            .map_err(|error| error.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        let look = |transaction: &WriteTransaction| {
            Ok((matches!(find(transaction)?, Found::Current), false))
        };
        self.inner()
            .set_up(look)
            .await
            .map_err(|error| error.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        let create = |transaction: &WriteTransaction| match find(transaction)? {
            Found::Current => Ok(((), false)),
            Found::Nothing => Ok((set_up(transaction)?, true)),
            found => Err(refusal(found)),
        };
        self.inner()
            .set_up(create)
            .await
            .map_err(|error| error.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        let migrate = |transaction: &WriteTransaction| {
            let from = match find(transaction)? {
                Found::Current => Some(VERSION),
                Found::Nothing => None,
                Found::Other(1) => {
                    to_version_2(transaction)?;
                    Some(1)
                }
                found => return Err(refusal(found)),
            };
            let is_changed = from != Some(VERSION);
            if is_changed {
                set_up(transaction)?;
            }
            let migration = Migration {
                from,
                to: VERSION,
                works_from: VERSION,
            };
            Ok((migration, is_changed))
        };
        self.inner()
            .set_up(migrate)
            .await
            .map_err(|error| error.in_operation("migrate"))
    }

    async fn remove(&self) -> Result<()> {
        let remove = |transaction: &WriteTransaction| match find(transaction)? {
            Found::Nothing => Ok(((), false)),
            Found::Current | Found::Incomplete(_) | Found::Other(..VERSION) => {
                for (name, _) in DESCRIPTION {
                    let tables = transaction.list_tables()?;
                    let table = tables.into_iter().find(|table| table.name() == name);
                    if let Some(table) = table {
                        transaction.delete_table(table)?;
                    }
                }
                Ok(((), true))
            }
            found => Err(refusal(found)),
        };
        self.inner()
            .set_up(remove)
            .await
            .map_err(|error| error.in_operation("remove"))
    }
}
