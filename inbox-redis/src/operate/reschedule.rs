//! Giving what is pending another due time.

use inbox_api::{
    Due, Edit, Filter, Intervention, InterventionKind, Key, OperatorName, Progress, Result, Slice,
    State,
};

use super::intervention::{Act, intervene, intervene_in_slice};
use crate::{connection::Connection, scripts::RESCHEDULE};

static WAITING: &[State] = &[State::Pending];

fn act<'a>(edit: &'a Edit, due: Due, by: Option<&'a OperatorName>) -> Act<'a> {
    Act {
        script: &RESCHEDULE,
        states: WAITING,
        edit,
        due,
        signature: by.map(|by| (InterventionKind::Rescheduled, by)),
    }
}

pub(super) async fn reschedule(
    connection: &Connection,
    key: &Key,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    intervene(connection, key, &act(&Edit::default(), due, by)).await
}

pub(super) async fn reschedule_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
    due: Due,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let edit = Edit::default();
    intervene_in_slice(connection, filter, slice, act(&edit, due, by), WAITING).await
}
