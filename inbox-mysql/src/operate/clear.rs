//! Clearing: messages of a handler are deleted, whatever their state, unless they are leased.

use inbox_api::{Filter, HandlerName, Intervention, Progress, Result, Slice, State};

use super::{
    change::{Change, change_slice},
    selection::in_states,
};
use crate::{
    connection::Connection,
    context::Context,
    multi_statement::Script,
    rows::Stored,
    statement::{Secrecy, Statement},
};

struct Clear;

impl Change for Clear {
    const ELIGIBLE: &'static [State] = &[
        State::Pending,
        State::Processed,
        State::Dead,
        State::Discarded,
    ];
    const DEFAULT: &'static [State] = Self::ELIGIBLE;
    const CONDITION: &'static str = "";

    fn add(
        &self,
        context: &Context,
        script: &mut Script,
        states: &[State],
        _secrecy: Secrecy,
    ) -> usize {
        let sql = &context.sql;
        let states = Statement::new(in_states(states));
        script.fill(&sql.clear_lock, &[("states", states)]);
        let changed = script.all(&sql.count_selected);
        script.all(&sql.leave_run);
        script.all(&sql.clear);
        changed
    }

    fn refuse(&self, found: &Stored) -> Option<Intervention> {
        let state = found.record.state;
        (!Self::ELIGIBLE.contains(&state)).then_some(Intervention::WrongState(state))
    }
}

pub(super) async fn clear_slice(
    connection: Connection<'_>,
    handler: &HandlerName,
    slice: &Slice,
) -> Result<Progress> {
    let filter = Filter {
        handler: Some(handler.clone()),
        ..Filter::default()
    };
    change_slice(connection, &filter, slice, &Clear).await
}
