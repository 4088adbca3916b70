//! Rescheduling: pending messages become due at another time.

use inbox_api::{Due, Filter, Intervention, Key, OperatorName, Progress, Result, Slice, State};

use super::{
    records::get,
    selection::{Change, Selection, TRIES, change_slice, keeps_changing, read_numbers, signature},
};
use crate::{
    arguments::{Arguments, due_parts},
    connection::{Database, On},
};

pub(super) async fn reschedule(
    database: &Database,
    key: &Key,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    let (at, after) = due_parts(due);
    for _ in 0..TRIES {
        let arguments = Arguments::of_key(key)
            .with(at)
            .with(after)
            .with(database.options.notifications)
            .with(signature(by))
            .finish()?;
        let text = &database.statements.reschedule;
        let answer = database.run(On::Pool, text, arguments).await?;
        if !read_numbers(&answer)?.is_empty() {
            return Ok(Intervention::Done);
        }
        match get(database, key).await? {
            None => return Ok(Intervention::NotFound),
            // It became pending just now.
            Some(record) if record.state == State::Pending => {}
            Some(record) => return Ok(Intervention::WrongState(record.state)),
        }
    }
    Err(keeps_changing())
}

pub(super) async fn reschedule_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let texts = &database.statements.reschedule_slice;
    let selection = Selection::eligible(filter, &[State::Pending], State::Pending);
    change_slice(database, texts, selection, slice, Change::Due(due), by).await
}
