//! Replaying: final messages become pending again.

use inbox_api::{
    Edit, Filter, Intervention, InterventionKind, Key, OperatorName, Progress, Result, Slice, State,
};

use super::{
    change::{Change, change_one, change_slice, sign},
    selection::in_states,
};
use crate::{
    connection::Connection,
    context::Context,
    multi_statement::Script,
    receive::headers_value,
    rows::Stored,
    statement::{Secrecy, Statement},
};

struct Replay<'a> {
    edit: &'a Edit,
    by: Option<&'a OperatorName>,
}

impl Change for Replay<'_> {
    const ELIGIBLE: &'static [State] = &[State::Processed, State::Dead, State::Discarded];
    const DEFAULT: &'static [State] = &[State::Dead];
    const CONDITION: &'static str = " AND m.payload IS NOT NULL";

    fn add(
        &self,
        context: &Context,
        script: &mut Script,
        states: &[State],
        secrecy: Secrecy,
    ) -> usize {
        let sql = &context.sql;
        script.all(&sql.unclaim_heads);
        let payload_there = match self.edit.payload {
            Some(_) => "TRUE",
            None => "m.payload IS NOT NULL",
        };
        let values = [
            ("states", Statement::new(in_states(states))),
            ("payload_there", Statement::new(payload_there)),
        ];
        script.fill(&sql.replay_lock, &values);
        let changed = script.all(&sql.count_selected);
        if let Some(edits) = self.edits(context, secrecy) {
            script.fill(&sql.replay_edit, &[("edits", edits)]);
        }
        script.all(&sql.replay);
        let kind = InterventionKind::of_replay(self.edit);
        sign(context, script, "work", kind, self.by);
        changed
    }

    fn refuse(&self, found: &Stored) -> Option<Intervention> {
        if !found.stored_state.is_final() {
            return Some(Intervention::WrongState(found.record.state));
        }
        let lacks_payload = self.edit.payload.is_none() && found.record.payload.is_none();
        lacks_payload.then_some(Intervention::PayloadDropped)
    }
}

impl Replay<'_> {
    /// What is set in the messages, if anything.
    fn edits(&self, context: &Context, secrecy: Secrecy) -> Option<Statement> {
        let mut edits = Statement::default();
        if let Some(payload) = &self.edit.payload {
            edits
                .push("m.payload_bytes = ")
                .number(payload.len() as i64);
            edits.push(", m.payload = ");
            context.push_payload(&mut edits, payload, secrecy);
        }
        if let Some(headers) = &self.edit.headers {
            edits.push(if edits.is_empty() { "" } else { ", " });
            edits.push("m.headers = ");
            edits.append(&headers_value(headers, secrecy));
        }
        (!edits.is_empty()).then_some(edits)
    }
}

pub(super) async fn replay(
    connection: Connection<'_>,
    key: &Key,
    edit: &Edit,
    by: Option<&OperatorName>,
) -> Result<Intervention> {
    let context = connection.context;
    let headers = edit.headers.as_ref().map_or(0, |h| h.to_json().len());
    match &edit.payload {
        Some(payload) => context.check_payload(payload, headers)?,
        None => context.check_headers(headers)?,
    }
    change_one(connection, key, &Replay { edit, by }).await
}

pub(super) async fn replay_slice(
    connection: Connection<'_>,
    filter: &Filter,
    slice: &Slice,
    by: Option<&OperatorName>,
) -> Result<Progress> {
    let edit = &Edit::default();
    change_slice(connection, filter, slice, &Replay { edit, by }).await
}
