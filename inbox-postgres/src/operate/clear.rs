//! Clearing: deleting a handler's messages with their keys.

use inbox_api::{Filter, HandlerName, Progress, Result, Slice, State};

use super::selection::{Change, Selection, change_slice};
use crate::connection::Database;

pub(super) async fn clear_slice(
    database: &Database,
    handler: &HandlerName,
    slice: &Slice,
) -> Result<Progress> {
    let filter = Filter {
        handler: Some(handler.clone()),
        states: State::ALL
            .into_iter()
            .filter(|state| *state != State::Leased)
            .collect(),
        ..Filter::default()
    };
    let texts = &database.statements.clear_slice;
    let selection = Selection::of(&filter);
    change_slice(database, texts, Some(selection), slice, Change::Any, None).await
}
