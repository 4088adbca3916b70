//! What the file holds: a marker and a version tell an inbox from all else.

use inbox_api::ErrorKind;
use redb::{ReadableTable, TableError, TableHandle, WriteTransaction};

use crate::{
    error::Failure,
    tables::{DESCRIPTION, META, Tables},
};

pub(crate) const MARKER: &str = "inbox on redb";
/// Version 1 had no `count` table and counted the state rows for its statistics.
pub(crate) const VERSION: u32 = 2;

/// What the file holds.
pub(crate) enum Found {
    Nothing,
    /// A complete inbox of the expected version.
    Current,
    /// An inbox that says it has the expected version, and what it lacks.
    Incomplete(String),
    /// An inbox of another version.
    Other(u32),
    Foreign,
}

pub(crate) fn find(transaction: &WriteTransaction) -> Result<Found, Failure> {
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
        found => Err(refusal(found)),
    }
}

/// Why what was found cannot be used as it is: what it is, and what this build expects.
pub(crate) fn refusal(found: Found) -> Failure {
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
