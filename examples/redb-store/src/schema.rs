//! Setting up: a marker, a version, and what leads from one version to the next.
//!
//! Every decision here is made inside a write transaction, of which redb runs one at a time: that
//! is the lock under which two set-ups or migrations cannot meet.

use async_trait::async_trait;
use inbox_api::{ErrorKind, Migration, Result, Schema};
use redb::{ReadableTable, TableError, TableHandle, WriteTransaction};

use crate::{
    RedbStore,
    error::Failure,
    rows::{StateRow, decode},
    tables::{BLOCKING, COUNT, DESCRIPTION, META, STATE, Tables},
};

const MARKER: &str = "inbox on redb";
/// Version 1 had no `count` table and counted the state rows for its statistics.
const VERSION: u32 = 2;

/// What the file holds.
enum Found {
    Nothing,
    /// A complete inbox of the expected version.
    Current,
    /// An inbox that says it has the expected version, and what it lacks.
    Incomplete(String),
    /// An inbox of another version.
    Other(u32),
    Foreign,
}

fn find(transaction: &WriteTransaction) -> Result<Found, Failure> {
    let names = transaction
        .list_tables()?
        .map(|table| table.name().to_owned());
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return Ok(Found::Nothing);
    }
    // Opening a table that is missing would make it, so its name is looked for first.
    let is_missing = |table: &str| !names.iter().any(|name| name == table);
    if is_missing(META.name()) {
        return Ok(Found::Foreign);
    }
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::Storage(error)) => return Err(error.into()),
        Err(_other_types) => return Ok(Found::Foreign),
    };
    let marker = meta.get("marker")?;
    let version = meta
        .get("version")?
        .and_then(|text| text.value().parse().ok());
    let Some(version) = version.filter(|_| marker.is_some_and(|m| m.value() == MARKER)) else {
        return Ok(Found::Foreign);
    };
    if version != VERSION {
        return Ok(Found::Other(version));
    }
    // Names are not enough: opening a table compares the types of its keys and values, too.
    if let Some((table, _)) = DESCRIPTION.iter().find(|(table, _)| is_missing(table)) {
        return Ok(Found::Incomplete(format!("table {table} is missing")));
    }
    match Tables::open(transaction) {
        Ok(_) => Ok(Found::Current),
        Err(TableError::Storage(error)) => Err(error.into()),
        Err(_) => Ok(Found::Incomplete("a table has other types".into())),
    }
}

/// Fails unless the file holds a complete inbox of the expected version.
pub(crate) fn check(transaction: &WriteTransaction) -> Result<(), Failure> {
    match find(transaction)? {
        Found::Current => Ok(()),
        found => Err(refused(found)),
    }
}

/// Why what was found cannot be used as it is: what it is, and what this build expects.
fn refused(found: Found) -> Failure {
    let what = match found {
        Found::Nothing => {
            let context = "the file holds no inbox: create it".into();
            return Failure::Found(ErrorKind::SchemaMissing, context);
        }
        Found::Current => format!("an inbox of version {VERSION}"),
        Found::Incomplete(lack) => format!("an inbox of version {VERSION} of which {lack}"),
        Found::Other(version) => format!("an inbox of version {version}"),
        Found::Foreign => "tables that are no inbox's, without a version".into(),
    };
    let context =
        format!("the file holds {what}; this build expects an inbox of version {VERSION}");
    Failure::Found(ErrorKind::SchemaVersion, context)
}

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

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        let look = |transaction: &WriteTransaction| match find(transaction)? {
            Found::Nothing => Ok((None, false)),
            Found::Current | Found::Incomplete(_) => Ok((Some(VERSION), false)),
            Found::Other(version) => Ok((Some(version), false)),
            Found::Foreign => Err(refused(Found::Foreign)),
        };
        self.inner().set_up("version", look).await
    }

    async fn exists(&self) -> Result<bool> {
        let look = |transaction: &WriteTransaction| {
            Ok((matches!(find(transaction)?, Found::Current), false))
        };
        self.inner().set_up("exists", look).await
    }

    async fn create(&self) -> Result<()> {
        let create = |transaction: &WriteTransaction| match find(transaction)? {
            Found::Current => Ok(((), false)),
            Found::Nothing => Ok((set_up(transaction)?, true)),
            found => Err(refused(found)),
        };
        self.inner().set_up("create", create).await
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
                found => return Err(refused(found)),
            };
            let is_changed = from != Some(VERSION);
            if is_changed {
                set_up(transaction)?;
            }
            Ok((Migration { from, to: VERSION }, is_changed))
        };
        self.inner().set_up("migrate", migrate).await
    }
}
