//! Giving up what is pending or dead.

use inbox_api::{Due, Edit, Filter, Intervention, Key, Progress, Result, Slice, State};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::DISCARD};

static UNWANTED: &[State] = &[State::Pending, State::Dead];

fn act(edit: &Edit) -> Act<'_> {
    Act {
        script: &DISCARD,
        states: UNWANTED,
        edit,
        due: Due::Now,
    }
}

pub(super) async fn discard(connection: &Connection, key: &Key) -> Result<Intervention> {
    intervene(connection, key, &act(&Edit::default())).await
}

pub(super) async fn discard_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    let edit = Edit::default();
    intervene_in_slice(connection, filter, slice, act(&edit), &[State::Dead]).await
}
