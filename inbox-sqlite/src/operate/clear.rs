//! Clearing a handler: deleting its messages, whatever has become of them.

use inbox_api::{Filter, HandlerName, Progress, Result, Slice, State};

use super::slice::{Change, change_slice};
use crate::connection::Database;

pub(crate) async fn clear_slice(
    database: &Database,
    handler: &HandlerName,
    slice: &Slice,
) -> Result<Progress> {
    let all_but_leased: Vec<State> = State::ALL
        .into_iter()
        .filter(|state| *state != State::Leased)
        .collect();
    let filter = Filter {
        handler: Some(handler.clone()),
        states: all_but_leased.clone(),
        ..Filter::default()
    };
    let change = Change::new(&database.statements.clear, &all_but_leased, None);
    change_slice(database, &change, &filter, slice).await
}
