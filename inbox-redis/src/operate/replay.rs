//! Replaying what is final.

use inbox_api::{
    Bytes, Due, Edit, Filter, Intervention, Key, Progress, Result, Slice, State, check_size,
};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::REPLAY};

static FINAL: &[State] = &[State::Processed, State::Dead, State::Discarded];

fn act(edit: &Edit) -> Act<'_> {
    Act {
        script: &REPLAY,
        states: FINAL,
        edit,
        due: Due::Now,
    }
}

pub(super) async fn replay(
    connection: &Connection,
    key: &Key,
    edit: &Edit,
) -> Result<Intervention> {
    let limit = connection.options.payload_limit;
    check_size(
        "payload",
        edit.payload.as_ref().map_or(0, Bytes::len),
        limit,
    )?;
    intervene(connection, key, &act(edit)).await
}

pub(super) async fn replay_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    let edit = Edit::default();
    intervene_in_slice(connection, filter, slice, act(&edit), &[State::Dead]).await
}
