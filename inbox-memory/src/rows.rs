//! How an entry is shown to handlers and operators, and which entries a filter selects.

use std::time::Duration;

use inbox_api::{
    Bytes, Cursor, ErrorType, Filter, History, Message, Record, State, duration_micros,
    from_micros, headers::CORRELATION_ID,
};

use crate::entry::{Entry, Standing};

impl Entry {
    /// The message as handlers get it.
    pub(crate) fn message(&self) -> Message {
        let mut message = Message::new(
            self.key.handler.clone(),
            self.key.id.clone(),
            self.kind.clone(),
            // A payload is missing only after processing, and a replay then brings a new one.
            self.payload.clone().unwrap_or_default(),
        )
        .with_headers(self.headers.clone());
        if let Some(content_type) = &self.content_type {
            message = message.with_content_type(content_type.clone());
        }
        if let Some(ordering_key) = &self.ordering_key {
            message = message.with_ordering_key(ordering_key.clone());
        }
        message
    }

    /// All that is known about it; payload, result and history only if asked for.
    pub(crate) fn record(&self, with_payload: bool, now: i64) -> Record {
        let state = self.visible_state(now);
        let lease_until = match self.standing {
            Standing::Leased { until } if state == State::Leased => Some(from_micros(until)),
            _ => None,
        };
        let history = if with_payload {
            self.history.clone()
        } else {
            History::default()
        };
        Record {
            key: self.key.clone(),
            kind: self.kind.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            ordering_key: self.ordering_key.clone(),
            payload: self.payload.clone().filter(|_| with_payload),
            payload_bytes: self.payload.as_ref().map(|payload| payload.len() as u64),
            fingerprint: self.fingerprint,
            state,
            attempts: self.attempts,
            replays: self.replays,
            accepted_at: from_micros(self.accepted_at),
            due_at: from_micros(self.due_at),
            lease_until,
            leased_at: self.leased_at.map(from_micros),
            worker: self.worker.clone(),
            finished_at: self.final_state().map(|(_, at)| from_micros(at)),
            last_error: self.last_error.clone(),
            history: history.attempts,
            interventions: history.interventions,
            blocks_ordering_key: self.blocks(),
            result: self.result().filter(|_| with_payload),
            cursor: Cursor::from(self.seq),
        }
    }

    /// What its handler stored, if it is processed.
    pub(crate) fn result(&self) -> Option<Bytes> {
        match &self.standing {
            Standing::Processed { result, .. } => result.clone(),
            _ => None,
        }
    }

    /// Whether `filter` selects this entry.
    pub(crate) fn matches(&self, filter: &Filter, now: i64) -> bool {
        let accepted_before = |age| self.accepted_at <= ago(age, now);
        let finished_at = self.final_state().map(|(_, at)| at);
        let due_by = |wait| self.due_at <= now.saturating_add(duration_micros(wait));
        let error = self.last_error.as_deref();
        (filter.states.is_empty() || filter.states.contains(&self.visible_state(now)))
            && filter
                .handler
                .as_ref()
                .is_none_or(|h| *h == self.key.handler)
            && filter.kind.as_ref().is_none_or(|k| *k == self.kind)
            && (filter.ordering_key.is_none() || filter.ordering_key == self.ordering_key)
            && filter.older_than.is_none_or(accepted_before)
            && filter.newer_than.is_none_or(|age| !accepted_before(age))
            && (filter.ids.is_empty() || filter.ids.contains(&self.key.id))
            && filter
                .correlation_id
                .as_deref()
                .is_none_or(|id| self.headers.get(CORRELATION_ID) == Some(id))
            && filter
                .finished_longer_ago
                .is_none_or(|age| finished_at.is_some_and(|at| at <= ago(age, now)))
            && filter
                .finished_within
                .is_none_or(|age| finished_at.is_some_and(|at| at > ago(age, now)))
            && filter.due_later_than.is_none_or(|wait| !due_by(wait))
            && filter.due_within.is_none_or(due_by)
            && filter
                .min_started
                .is_none_or(|least| self.attempts.started >= least)
            && filter
                .max_started
                .is_none_or(|most| self.attempts.started <= most)
            && (!filter.blocking || self.blocks())
            && filter
                .error_contains
                .as_deref()
                .is_none_or(|part| error.is_some_and(|error| error.contains(part)))
            && filter
                .error_type
                .as_ref()
                .is_none_or(|wanted| error.and_then(ErrorType::of).as_ref() == Some(wanted))
    }
}

fn ago(age: Duration, now: i64) -> i64 {
    now.saturating_sub(duration_micros(age))
}
