//! The two rows of a message, and how they read.
//!
//! Both are JSON, so that a person with redb's own tools can read them. They are kept apart
//! because they are written at different times: [`MessageRow`] once, when the message is accepted,
//! [`StateRow`] at every step of its life. Payload and result have their own tables, so that
//! a step rewrites a few hundred bytes however large they are, and the errors of what has failed.

use inbox_api::{
    Attempts, Bytes, ContentType, Cursor, ErrorType, Filter, Fingerprint, Headers, History, Key,
    Kind, Message, OrderingKey, Record, State, WorkerName, duration_micros, from_micros,
};
use redb::AccessGuard;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What was received and is needed by handlers only. Changed by nothing but an edit of the headers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MessageRow {
    pub(crate) content_type: Option<ContentType>,
    pub(crate) headers: Headers,
}

/// Where a message stands, as stored, and all that indexes and filters look at.
///
/// The names in it are inbox-api's validated types, whose `Deserialize` checks again: a row that
/// breaks their rules does not decode, and is reported as corrupt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StateRow {
    pub(crate) seq: i64,
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) ordering_key: Option<OrderingKey>,
    /// Of the headers, this one can be asked for.
    pub(crate) correlation_id: Option<String>,
    /// `None` once the payload is dropped.
    pub(crate) payload_bytes: Option<u64>,
    pub(crate) has_result: bool,
    /// Of the message that was accepted, whatever becomes of its payload.
    pub(crate) fingerprint: i64,
    pub(crate) accepted_at: i64,
    pub(crate) due_at: i64,
    pub(crate) stage: Stage,
    /// The last token drawn. It stays after settling, so that a repeated settle is recognised.
    pub(crate) token: i64,
    pub(crate) started: u32,
    pub(crate) finished: u32,
    pub(crate) replays: u32,
    pub(crate) leased_at: Option<i64>,
    pub(crate) worker: Option<WorkerName>,
    pub(crate) last_error: Option<String>,
    /// A few entries of a message that has failed, none of the others.
    pub(crate) history: History,
}

/// The stored state with what belongs to it, so that a lease without an end or a processed
/// message without a time cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    Pending,
    Leased { until: i64 },
    Processed { at: i64 },
    Dead { at: i64, blocks: bool },
    Discarded { at: i64 },
}

impl Stage {
    pub(crate) fn state(self) -> State {
        match self {
            Self::Pending => State::Pending,
            Self::Leased { .. } => State::Leased,
            Self::Processed { .. } => State::Processed,
            Self::Dead { .. } => State::Dead,
            Self::Discarded { .. } => State::Discarded,
        }
    }

    /// Since when the message is final, if it is.
    pub(crate) fn finished_at(self) -> Option<i64> {
        match self {
            Self::Pending | Self::Leased { .. } => None,
            Self::Processed { at } | Self::Dead { at, .. } | Self::Discarded { at } => Some(at),
        }
    }

    /// Whether the message is dead and holds up its ordering key.
    pub(crate) fn blocks(self) -> bool {
        matches!(self, Self::Dead { blocks: true, .. })
    }

    /// Whether later messages of its ordering key have to wait for this one.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Leased { .. }) || self.blocks()
    }
}

impl StateRow {
    /// The state that the world sees. A lease that has run out is shown as pending everywhere,
    /// though nobody has touched the row: that is why nothing has to sweep for lost leases.
    pub(crate) fn visible_state(&self, now: i64) -> State {
        match self.stage {
            Stage::Leased { until } if until <= now => State::Pending,
            stage => stage.state(),
        }
    }

    pub(crate) fn attempts(&self) -> Attempts {
        Attempts {
            started: self.started,
            finished: self.finished,
        }
    }

    /// Whether there is a payload or a result.
    pub(crate) fn has_content(&self) -> bool {
        self.payload_bytes.is_some() || self.has_result
    }

    pub(crate) fn matches(&self, filter: &Filter, now: i64) -> bool {
        let ago = |age| now.saturating_sub(duration_micros(age));
        let accepted_before = |age| self.accepted_at <= ago(age);
        let finished_at = self.stage.finished_at();
        let due_by = |wait| self.due_at <= now.saturating_add(duration_micros(wait));
        let error = self.last_error.as_deref();
        let Filter {
            states,
            handler,
            kind,
            ordering_key,
            older_than,
            newer_than,
            error_contains,
            error_type,
            ids,
            correlation_id,
            finished_longer_ago,
            finished_within,
            due_later_than,
            due_within,
            min_started,
            max_started,
            blocking,
        } = filter;
        (states.is_empty() || states.contains(&self.visible_state(now)))
            && handler.as_ref().is_none_or(|h| *h == self.key.handler)
            && kind.as_ref().is_none_or(|k| *k == self.kind)
            && (ordering_key.is_none() || *ordering_key == self.ordering_key)
            && older_than.is_none_or(accepted_before)
            && newer_than.is_none_or(|age| !accepted_before(age))
            && (ids.is_empty() || ids.contains(&self.key.id))
            && (correlation_id.is_none() || *correlation_id == self.correlation_id)
            && finished_longer_ago.is_none_or(|age| finished_at.is_some_and(|at| at <= ago(age)))
            && finished_within.is_none_or(|age| finished_at.is_some_and(|at| at > ago(age)))
            && due_later_than.is_none_or(|wait| !due_by(wait))
            && due_within.is_none_or(due_by)
            && min_started.is_none_or(|least| self.started >= least)
            && max_started.is_none_or(|most| self.started <= most)
            && (!blocking || self.stage.blocks())
            && error_contains
                .as_deref()
                .is_none_or(|part| error.is_some_and(|error| error.contains(part)))
            && error_type
                .as_ref()
                .is_none_or(|wanted| error.and_then(ErrorType::of).as_ref() == Some(wanted))
    }

    /// The message as handlers get it.
    pub(crate) fn message(&self, row: MessageRow, payload: Bytes) -> Message {
        let Key { handler, id } = self.key.clone();
        let mut message =
            Message::new(handler, id, self.kind.clone(), payload).with_headers(row.headers);
        if let Some(content_type) = row.content_type {
            message = message.with_content_type(content_type);
        }
        if let Some(ordering_key) = &self.ordering_key {
            message = message.with_ordering_key(ordering_key.clone());
        }
        message
    }

    /// The message as operators see it.
    pub(crate) fn record(
        &self,
        row: MessageRow,
        payload: Option<Bytes>,
        result: Option<Bytes>,
        with_history: bool,
        now: i64,
    ) -> Record {
        let state = self.visible_state(now);
        let lease_until = match self.stage {
            Stage::Leased { until } if state == State::Leased => Some(from_micros(until)),
            _ => None,
        };
        let history = if with_history {
            self.history.clone()
        } else {
            History::default()
        };
        Record {
            key: self.key.clone(),
            kind: self.kind.clone(),
            content_type: row.content_type,
            headers: row.headers,
            ordering_key: self.ordering_key.clone(),
            payload,
            payload_bytes: self.payload_bytes,
            fingerprint: Fingerprint::new(self.fingerprint),
            state,
            attempts: self.attempts(),
            replays: self.replays,
            accepted_at: from_micros(self.accepted_at),
            due_at: from_micros(self.due_at),
            lease_until,
            leased_at: self.leased_at.map(from_micros),
            worker: self.worker.clone(),
            finished_at: self.stage.finished_at().map(from_micros),
            last_error: self.last_error.clone(),
            history: history.attempts,
            interventions: history.interventions,
            blocks_ordering_key: self.stage.blocks(),
            result,
            cursor: Cursor::from(self.seq),
        }
    }
}

/// A row that reads back, or what is wrong with it.
pub(crate) type Decoded<T> = Result<T, String>;

pub(crate) fn decode<T: DeserializeOwned>(
    table: &str,
    found: Option<AccessGuard<'_, &'static [u8]>>,
) -> Decoded<T> {
    let found = found.ok_or_else(|| format!("the {table} row is missing"))?;
    // serde_json's own message may repeat a value of the row; the place does not.
    serde_json::from_slice(found.value()).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("the {table} row does not read as it was written (line {line}, column {column})")
    })
}
