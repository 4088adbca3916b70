//! Discarding: pending and dead messages are given up.

use inbox_api::{
    Filter, Intervention, InterventionKind, Key, OperatorName, Progress, Result, Slice, State,
};

use super::{
    change::{Change, change_one, change_slice, sign},
    selection::in_states,
};
use crate::{
    connection::Connection,
    context::Context,
    multi_statement::Script,
    rows::Stored,
    statement::{Secrecy, Statement},
};

struct Discard<'a> {
    by: Option<&'a OperatorName>,
}

impl Change for Discard<'_> {
    const ELIGIBLE: &'static [State] = &[State::Pending, State::Dead];
    const DEFAULT: &'static [State] = &[State::Dead];
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
        script.fill(&sql.discard_lock, &[("states", states)]);
        let changed = script.all(&sql.count_selected);
        script.all(&sql.leave_run);
        script.all(&sql.discard);
        sign(
            context,
            script,
            "done",
            InterventionKind::Discarded,
            self.by,
        );
        changed
    }

    fn refuse(&self, found: &Stored) -> Option<Intervention> {
        let state = found.record.state;
        (!Self::ELIGIBLE.contains(&state)).then_some(Intervention::WrongState(state))
    }
}

pub(super) async fn discard(
    connection: Connection<'_>,
    key: &Key,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    change_one(connection, key, &Discard { by }).await
}

pub(super) async fn discard_slice(
    connection: Connection<'_>,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    change_slice(connection, filter, slice, &Discard { by }).await
}
