//! Rescheduling: another due time for what is pending.

use inbox_api::{Due, Filter, Intervention, Key, Progress, Result, Slice, State};

use super::slice::{Change, change_one, change_slice};
use crate::connection::Database;

fn change(database: &Database, due: Due) -> Change<'_> {
    Change {
        due: Some(due),
        usual: State::Pending,
        ..Change::new(&database.statements.reschedule, &[State::Pending])
    }
}

pub(crate) async fn reschedule(database: &Database, key: &Key, due: Due) -> Result<Intervention> {
    change_one(database, &change(database, due), key).await
}

pub(crate) async fn reschedule_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
    due: Due,
) -> Result<Progress> {
    change_slice(database, &change(database, due), filter, slice).await
}
