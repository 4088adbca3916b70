//! The arguments of a statement.

use inbox_api::{Due, Error, ErrorKind, Key, Message, Result};
use sqlx::{Encode, Postgres, Type, postgres::PgArguments};

use crate::time::{Instant, micros};

/// Collects a statement's arguments.
#[derive(Default)]
pub(crate) struct Arguments {
    list: PgArguments,
    failed: Option<Error>,
}

impl Arguments {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// With room for so many bytes, so that a large batch is not moved again and again while it grows.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        use sqlx::Arguments as _;

        let mut arguments = Self::default();
        arguments.list.reserve(0, bytes);
        arguments
    }

    /// Those of a statement whose first two are a message's key.
    pub(crate) fn of_key(key: &Key) -> Self {
        Self::new().with(key.handler.as_str()).with(key.id.as_str())
    }

    pub(crate) fn with<'t, T: Encode<'t, Postgres> + Type<Postgres>>(mut self, value: T) -> Self {
        use sqlx::Arguments as _;

        if let Err(error) = self.list.add(value) {
            let context = "a value cannot be sent";
            self.failed = Some(Error::new(ErrorKind::Invalid, context).with_source(error));
        }
        self
    }

    pub(crate) fn finish(self) -> Result<PgArguments> {
        self.failed.map_or(Ok(self.list), Err)
    }
}

/// What no message of a batch has, such as a due time, is not sent as an array of nothing.
pub(crate) fn unless_all_none<T>(each: impl Iterator<Item = Option<T>>) -> Option<Vec<Option<T>>> {
    let all: Vec<Option<T>> = each.collect();
    all.iter().any(Option::is_some).then_some(all)
}

/// When a message is due.
pub(crate) fn due(message: &Message) -> (Option<Instant>, Option<i64>) {
    due_parts(message.due())
}

/// Due at a time, or after a delay; neither means now.
pub(crate) fn due_parts(due: Due) -> (Option<Instant>, Option<i64>) {
    match due {
        Due::Now => (None, None),
        Due::At(time) => (Some(Instant(inbox_api::to_micros(time))), None),
        Due::After(delay) => (None, Some(micros(delay))),
    }
}
