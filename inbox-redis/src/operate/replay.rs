//! Replaying what is final.

use inbox_api::{
    Bytes, Due, Edit, Filter, Intervention, InterventionKind, Key, OperatorName, Progress, Result,
    Slice, State, check_size,
};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::REPLAY};

static FINAL: &[State] = &[State::Processed, State::Dead, State::Discarded];

fn act<'a>(edit: &'a Edit, by: Option<&'a OperatorName>) -> Act<'a> {
    Act {
        script: &REPLAY,
        states: FINAL,
        edit,
        due: Due::Now,
        signature: by.map(|by| (InterventionKind::of_replay(edit), by)),
    }
}

pub(super) async fn replay(
    connection: &Connection,
    key: &Key,
    edit: &Edit,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    let limit = connection.options.payload_limit;
    check_size(
        "payload",
        edit.payload.as_ref().map_or(0, Bytes::len),
        limit,
    )?;
    intervene(connection, key, &act(edit, by)).await
}

pub(super) async fn replay_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let edit = Edit::default();
    intervene_in_slice(connection, filter, slice, act(&edit, by), &[State::Dead]).await
}
