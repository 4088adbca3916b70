//! Replaying: final messages become pending again.

use inbox_api::{Bytes, Filter, Intervention, Key, Progress, Result, Slice, State};

use super::{
    change::{Change, change_one, change_slice},
    selection::in_states,
};
use crate::{
    connection::Connection,
    context::Context,
    multi_statement::Script,
    rows::Stored,
    statement::{Secrecy, Statement},
};

struct Replay {
    payload: Option<Bytes>,
}

impl Change for Replay {
    const ELIGIBLE: &'static [State] = &[State::Processed, State::Dead, State::Discarded];
    const CONDITION: &'static str = " AND m.payload_bytes IS NOT NULL";

    fn add(
        &self,
        context: &Context,
        script: &mut Script,
        states: &[State],
        secrecy: Secrecy,
    ) -> usize {
        let sql = &context.sql;
        script.all(&sql.unclaim_heads);
        let payload_there = match self.payload {
            Some(_) => "TRUE",
            None => "m.payload_bytes IS NOT NULL",
        };
        let values = [
            ("states", Statement::new(in_states(states))),
            ("payload_there", Statement::new(payload_there)),
        ];
        script.fill(&sql.replay_lock, &values);
        let changed = script.all(&sql.count_selected);
        if let Some(payload) = &self.payload {
            let mut value = Statement::default();
            context.push_payload(&mut value, payload, secrecy);
            let bytes = Statement::of_number(payload.len() as i64);
            script.fill(&sql.replay_payload, &[("bytes", bytes), ("payload", value)]);
        }
        script.all(&sql.replay);
        changed
    }

    fn refuse(&self, found: &Stored) -> Option<Intervention> {
        if !found.stored_state.is_final() {
            return Some(Intervention::WrongState(found.record.state));
        }
        let lacks_payload = self.payload.is_none() && found.record.payload.is_none();
        lacks_payload.then_some(Intervention::PayloadDropped)
    }
}

pub(super) async fn replay(
    connection: Connection<'_>,
    key: &Key,
    payload: Option<Bytes>,
) -> Result<Intervention> {
    if let Some(payload) = &payload {
        connection.context.check_payload(payload, 0)?;
    }
    change_one(connection, key, &Replay { payload }).await
}

pub(super) async fn replay_slice(
    connection: Connection<'_>,
    filter: &Filter,
    slice: &Slice,
) -> Result<Progress> {
    change_slice(connection, filter, slice, &Replay { payload: None }).await
}
