//! Replaying: final messages become pending again.

use inbox_api::{Bytes, Filter, Intervention, Key, Progress, Result, Slice, State};

use super::{
    records::get,
    selection::{Selection, change_slice, read_numbers},
};
use crate::{
    arguments::Arguments,
    connection::{Database, On},
};

pub(super) async fn replay(
    database: &Database,
    key: &Key,
    payload: Option<Bytes>,
) -> Result<Intervention> {
    let options = &database.options;
    if let Some(payload) = &payload {
        options.check_replacement(payload)?;
    }
    loop {
        let arguments = options
            .payload_type
            .with_one(Arguments::of_key(key), payload.as_ref())
            .with(options.notifications)
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
            Some(record) if payload.is_none() && record.payload.is_none() => {
                return Ok(Intervention::PayloadDropped);
            }
            // It became final just now.
            Some(_) => {}
        }
    }
}

pub(super) async fn replay_slice(
    database: &Database,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    let eligible = [State::Processed, State::Dead, State::Discarded];
    let texts = &database.statements.replay_slice;
    let selection = Selection::eligible(filter, &eligible);
    change_slice(database, texts, selection, slice, true).await
}
