//! Giving what is pending another due time.

use inbox_api::{Due, Edit, Filter, Intervention, Key, Progress, Result, Slice, State};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::RESCHEDULE};

static WAITING: &[State] = &[State::Pending];

fn act(edit: &Edit, due: Due) -> Act<'_> {
    Act {
        script: &RESCHEDULE,
        states: WAITING,
        edit,
        due,
    }
}

pub(super) async fn reschedule(
    connection: &Connection,
    key: &Key,
    due: Due,
) -> Result<Intervention> {
    intervene(connection, key, &act(&Edit::default(), due)).await
}

pub(super) async fn reschedule_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
    due: Due,
) -> Result<Progress> {
    let edit = Edit::default();
    intervene_in_slice(connection, filter, slice, act(&edit, due), WAITING).await
}
