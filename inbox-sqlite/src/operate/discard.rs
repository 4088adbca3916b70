//! Discarding: an operator's decision that a message is not to be processed.

use inbox_api::{Filter, Intervention, Key, Progress, Result, Slice, State};

use super::slice::{Change, change_one, change_slice};
use crate::connection::Database;

fn change(database: &Database) -> Change<'_> {
    Change::new(&database.statements.discard, &[State::Pending, State::Dead])
}

pub(crate) async fn discard(database: &Database, key: &Key) -> Result<Intervention> {
    change_one(database, &change(database), key).await
}

pub(crate) async fn discard_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    change_slice(database, &change(database), filter, slice).await
}
