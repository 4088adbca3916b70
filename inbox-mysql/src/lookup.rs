//! Looks at one message: where its key stands, and what it is now.

use std::time::SystemTime;

use inbox_api::{Bytes, Error, ErrorKind, Key, Result, State, from_micros};
use sqlx::Row as _;

use crate::{
    context::Context,
    error::failed,
    multi_statement::Answers,
    rows::{self, Stored},
    statement::Statement,
};

/// The values of a key for a statement.
pub(crate) fn key_values(key: &Key) -> [(&'static str, Statement); 2] {
    [
        (
            "handler",
            Statement::of_bytes(key.handler.as_str().as_bytes()),
        ),
        ("id", Statement::of_bytes(key.id.as_str().as_bytes())),
    ]
}

/// The one row of `get.sql` and its like, which stands at `place`.
pub(crate) fn read_one(
    context: &Context,
    answers: &Answers,
    place: usize,
) -> Result<Option<Stored>> {
    let now = answers.now().map_err(failed)?;
    let Some(row) = answers.rows(place).first() else {
        return Ok(None);
    };
    rows::read_stored(row, now).map(Some).map_err(|reason| {
        let seq = row.try_get_unchecked(0).unwrap_or_default();
        context.corrupt(seq, reason)
    })
}

/// Where the answers of an inline use stand.
pub(crate) struct InlinePlaces {
    /// Whether its handler may run.
    pub(crate) taken: usize,
    /// What it is now.
    pub(crate) found: usize,
}

impl InlinePlaces {
    /// Whether it was left as it is although it may be its turn, since its lease has run out and something
    /// has to be done about a run.
    pub(crate) fn is_left_for_its_run(&self, answers: &Answers) -> Result<bool> {
        let now = answers.now().map_err(failed)?;
        let taken = answers.number(self.taken).map_err(failed)? == 1;
        let found = answers.rows(self.found).first();
        Ok(!taken && found.is_some_and(|row| rows::has_run_out(row, now)))
    }

    /// What the message is now.
    pub(crate) fn read_found(&self, context: &Context, answers: &Answers) -> Result<Stored> {
        let found = read_one(context, answers, self.found)?;
        found.ok_or_else(|| {
            let reason = "the message was purged just now";
            Error::new(ErrorKind::Conflict, reason)
        })
    }
}

/// Why a handler may not run now.
pub(crate) enum Obstacle {
    Processed { result: Option<Bytes> },
    Busy { until: SystemTime },
    Blocked,
    Dead { reason: String },
    Discarded,
}

impl Obstacle {
    pub(crate) fn of(stored: Stored, now: i64) -> Self {
        let record = stored.record;
        match (stored.stored_state, stored.visible_at) {
            (State::Processed, _) => Self::Processed {
                result: record.result,
            },
            (State::Dead, _) => Self::Dead {
                reason: record.last_error.unwrap_or_default(),
            },
            (State::Discarded, _) => Self::Discarded,
            (State::Pending | State::Leased, Some(until)) if until > now => Self::Busy {
                until: from_micros(until),
            },
            (State::Pending | State::Leased, _) => Self::Blocked,
        }
    }
}
