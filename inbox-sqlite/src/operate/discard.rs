//! Discarding: an operator's decision that a message is not to be processed.

use inbox_api::{Filter, Intervention, Key, OperatorName, Progress, Result, Slice, State};

use super::slice::{Change, change_one, change_slice};
use crate::connection::Database;

fn change<'a>(database: &'a Database, by: Option<&'a OperatorName>) -> Change<'a> {
    let eligible = [State::Pending, State::Dead];
    Change::new(&database.statements.discard, &eligible, by)
}

pub(crate) async fn discard(
    database: &Database,
    key: &Key,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    change_one(database, &change(database, by), key).await
}

pub(crate) async fn discard_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    change_slice(database, &change(database, by), filter, slice).await
}
