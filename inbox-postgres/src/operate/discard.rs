//! Discarding: giving pending and dead messages up.

use inbox_api::{Filter, Intervention, Key, OperatorName, Progress, Result, Slice, State};

use super::{
    records::get,
    selection::{Change, Selection, TRIES, change_slice, keeps_changing, read_numbers, signature},
};
use crate::{
    arguments::Arguments,
    connection::{Database, On},
};

pub(super) async fn discard(
    database: &Database,
    key: &Key,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    for _ in 0..TRIES {
        let arguments = Arguments::of_key(key)
            .with(database.options.notifications)
            .with(signature(by))
            .finish()?;
        let text = &database.statements.discard;
        let answer = database.run(On::Pool, text, arguments).await?;
        if !read_numbers(&answer)?.is_empty() {
            return Ok(Intervention::Done);
        }
        match get(database, key).await? {
            None => return Ok(Intervention::NotFound),
            // It became pending or dead just now.
            Some(record) if matches!(record.state, State::Pending | State::Dead) => {}
            Some(record) => return Ok(Intervention::WrongState(record.state)),
        }
    }
    Err(keeps_changing())
}

pub(super) async fn discard_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let texts = &database.statements.discard_slice;
    let selection = Selection::eligible(filter, &[State::Pending, State::Dead], State::Dead);
    change_slice(database, texts, selection, slice, Change::Any, by).await
}
