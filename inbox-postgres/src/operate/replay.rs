//! Replaying: final messages become pending again.

use inbox_api::{
    Edit, Filter, Headers, Intervention, Key, OperatorName, Progress, Result, Slice, State,
};

use super::{
    records::get,
    selection::{Change, Selection, TRIES, change_slice, keeps_changing, read_numbers, signature},
};
use crate::{
    arguments::Arguments,
    connection::{Database, On},
};

pub(super) async fn replay(
    database: &Database,
    key: &Key,
    edit: &Edit,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    let options = &database.options;
    if let Some(payload) = &edit.payload {
        options.check_replacement(payload)?;
    }
    for _ in 0..TRIES {
        let arguments = options
            .payload_type
            .with_one(Arguments::of_key(key), edit.payload.as_ref())
            .with(edit.headers.as_ref().map(Headers::to_json))
            .with(options.notifications)
            .with(signature(by))
            .finish()?;
        let answer = database
            .run(On::Pool, &database.statements.replay, arguments)
            .await
            .map_err(|error| options.payload_type.explain(error))?;
        if !read_numbers(&answer)?.is_empty() {
            return Ok(Intervention::Done);
        }
        match get(database, key).await? {
            None => return Ok(Intervention::NotFound),
            Some(record) if !record.state.is_final() => {
                return Ok(Intervention::WrongState(record.state));
            }
            Some(record) if edit.payload.is_none() && record.payload.is_none() => {
                return Ok(Intervention::PayloadDropped);
            }
            // It became final just now.
            Some(_) => {}
        }
    }
    Err(keeps_changing())
}

pub(super) async fn replay_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let eligible = [State::Processed, State::Dead, State::Discarded];
    let texts = &database.statements.replay_slice;
    let selection = Selection::eligible(filter, &eligible, State::Dead);
    change_slice(database, texts, selection, slice, Change::WithPayload, by).await
}
