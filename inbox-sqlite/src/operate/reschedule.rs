//! Rescheduling: another due time for what is pending.

use inbox_api::{Due, Filter, Intervention, Key, OperatorName, Progress, Result, Slice, State};

use super::slice::{Change, LastParameter, change_one, change_slice};
use crate::connection::Database;

fn change<'a>(database: &'a Database, due: Due, by: Option<&'a OperatorName>) -> Change<'a> {
    Change {
        last: LastParameter::Due(due),
        usual: State::Pending,
        ..Change::new(&database.statements.reschedule, &[State::Pending], by)
    }
}

pub(crate) async fn reschedule(
    database: &Database,
    key: &Key,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    change_one(database, &change(database, due, by), key).await
}

pub(crate) async fn reschedule_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    change_slice(database, &change(database, due, by), filter, slice).await
}
