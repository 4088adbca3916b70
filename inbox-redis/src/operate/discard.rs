//! Giving up what is pending or dead.

use inbox_api::{
    Due, Edit, Filter, Intervention, InterventionKind, Key, OperatorName, Progress, Result, Slice,
    State,
};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::DISCARD};

static UNWANTED: &[State] = &[State::Pending, State::Dead];

fn act<'a>(edit: &'a Edit, by: Option<&'a OperatorName>) -> Act<'a> {
    Act {
        script: &DISCARD,
        states: UNWANTED,
        edit,
        due: Due::Now,
        signature: by.map(|by| (InterventionKind::Discarded, by)),
    }
}

pub(super) async fn discard(
    connection: &Connection,
    key: &Key,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    intervene(connection, key, &act(&Edit::default(), by)).await
}

pub(super) async fn discard_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let edit = Edit::default();
    intervene_in_slice(connection, filter, slice, act(&edit, by), &[State::Dead]).await
}
