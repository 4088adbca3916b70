//! Deleting a handler's messages.

use inbox_api::{Due, Edit, Filter, HandlerName, Progress, Result, Slice, State};

use super::intervention::{Act, intervene_in_slice};
use crate::{connection::Connection, scripts::CLEAR};

static NOT_LEASED: &[State] = &[
    State::Pending,
    State::Processed,
    State::Dead,
    State::Discarded,
];

pub(super) async fn clear_slice(
    connection: &Connection,
    handler: &HandlerName,
    slice: &Slice,
) -> Result<Progress> {
    let filter = Filter {
        handler: Some(handler.clone()),
        ..Filter::default()
    };
    let edit = Edit::default();
    let act = Act {
        script: &CLEAR,
        states: NOT_LEASED,
        edit: &edit,
        due: Due::Now,
        signature: None,
    };
    intervene_in_slice(connection, &filter, slice, act, NOT_LEASED).await
}
