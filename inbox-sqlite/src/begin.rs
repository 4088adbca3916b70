//! Inline use: begin under a lease, and record within a transaction. Both insert the message if
//! it is new and then try to change it, in one trip to SQLite's thread; for begin, the transaction
//! around it is part of the trip, which is what one message at a time costs most.

use inbox_api::{
    Attempts, Begun, Bytes, Error, ErrorKind, FencingToken, Lease, LeaseTerms, Leased, Message,
    Recorded, Result, State, check_size, duration_micros, from_micros,
};
use sqlx::{
    Row as _, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use crate::{
    error::in_operation,
    rows::{self, Stored},
    work::Work,
};

/// What the two statements changed.
#[derive(Default)]
struct Changed {
    accepted: bool,
    /// Row and token, if the message was there to be taken.
    taken: Option<(i64, i64)>,
}

/// Why a handler may not run now.
enum Standing {
    Processed { result: Option<Bytes> },
    Busy { until: i64 },
    Blocked,
    Dead { reason: String },
    Discarded,
}

fn standing(stored: Stored, now: i64) -> Standing {
    let record = stored.record;
    match stored.stored_state {
        State::Processed => Standing::Processed {
            result: record.result,
        },
        State::Dead => Standing::Dead {
            reason: record.last_error.unwrap_or_default(),
        },
        State::Discarded => Standing::Discarded,
        State::Pending | State::Leased if stored.visible_at > now => Standing::Busy {
            until: stored.visible_at,
        },
        State::Pending | State::Leased => Standing::Blocked,
    }
}

fn bind<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    message: &'q Message,
    now: i64,
) -> Query<'q, Sqlite, SqliteArguments> {
    query
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
        .bind(message.kind().as_str())
        .bind(message.content_type().map(AsRef::<str>::as_ref))
        .bind(message.headers().to_json())
        .bind(message.ordering_key().map(AsRef::<str>::as_ref))
        .bind(now)
        .bind(message.due().resolve(now))
        .bind(message.payload().as_ref())
}

fn changed(rows: &[SqliteRow]) -> sqlx::Result<Changed> {
    let mut changed = Changed::default();
    for row in rows {
        match row.try_get::<&str, _>(0)? {
            "accepted" => changed.accepted = true,
            _ => changed.taken = Some((row.try_get(1)?, row.try_get(2)?)),
        }
    }
    Ok(changed)
}

impl Work {
    fn stored(&self, operation: &'static str, row: &SqliteRow, now: i64) -> Result<Stored> {
        rows::stored(row, now).map_err(|reason| self.corrupt(operation, row, reason))
    }

    pub(crate) fn corrupt(
        &self,
        operation: &'static str,
        row: &SqliteRow,
        reason: String,
    ) -> Error {
        let found = rows::corrupt_row(&self.inbox, row.try_get(0).unwrap_or_default(), reason);
        Error::new(
            ErrorKind::Corrupt,
            operation,
            format!("{}: {}", found.place, found.reason),
        )
    }

    fn check(&self, operation: &'static str, message: &Message) -> Result<()> {
        message
            .check_payload(self.payload_limit)
            .map_err(|invalid| invalid.in_operation(operation))
    }

    /// Before any I/O: whether this store takes the message.
    pub(crate) fn check_begin(&self, message: &Message) -> Result<()> {
        self.check("begin", message)
    }

    /// Before any I/O: whether this store takes the message and the result.
    pub(crate) fn check_record(&self, message: &Message, result: Option<&Bytes>) -> Result<()> {
        self.check("record_in", message)?;
        check_size("result", result.map_or(0, Bytes::len), self.payload_limit)
            .map_err(|invalid| invalid.in_operation("record_in"))
    }

    /// In its own transaction, which may be left open when this fails or is dropped: the
    /// connection is then of no more use. Answers also whether the message is new.
    pub(crate) async fn begin(
        &self,
        connection: &mut SqliteConnection,
        message: &Message,
        terms: &LeaseTerms,
        now: i64,
    ) -> Result<(Begun, bool)> {
        const OPERATION: &str = "begin";
        let until = now.saturating_add(duration_micros(terms.length()));
        let query = bind(sqlx::query(self.statements.begin.clone()), message, now)
            .bind(until)
            .bind(terms.worker().as_str());
        let mapped = in_operation(OPERATION);
        let mut rows = query.fetch_all(connection).await.map_err(mapped)?;
        // The last one is the message as it stands then.
        let row = rows.pop().ok_or(sqlx::Error::RowNotFound).map_err(mapped)?;
        let changed = changed(&rows).map_err(mapped)?;
        let lease = |seq: i64, token: i64| Lease {
            key: message.key().clone(),
            token: FencingToken::new(token),
            locator: seq.unsigned_abs(),
            until: from_micros(until),
        };
        if let (true, Some((seq, token))) = (changed.accepted, changed.taken) {
            let leased = Leased {
                message: message.clone().with_due(inbox_api::Due::Now),
                lease: lease(seq, token),
                attempts: Attempts {
                    started: 1,
                    finished: 0,
                },
                accepted_at: from_micros(now),
            };
            return Ok((Begun::Run(Box::new(leased)), true));
        }
        let stored = self.stored(OPERATION, &row, now)?;
        if changed.taken.is_some() {
            let leased = Leased {
                message: stored.record.message().ok_or_else(|| {
                    let place = format!("{}_message, seq {}", self.inbox, stored.seq);
                    let reason = format!("{place}: payload is missing");
                    Error::new(ErrorKind::Corrupt, OPERATION, reason)
                })?,
                lease: lease(stored.seq, stored.token),
                attempts: stored.record.attempts,
                accepted_at: stored.record.accepted_at,
            };
            return Ok((Begun::Run(Box::new(leased)), false));
        }
        let begun = match standing(stored, now) {
            Standing::Processed { result } => Begun::Processed { result },
            Standing::Busy { until } => Begun::Busy {
                until: from_micros(until),
            },
            Standing::Blocked => Begun::Blocked,
            Standing::Dead { reason } => Begun::Dead { reason },
            Standing::Discarded => Begun::Discarded,
        };
        Ok((begun, changed.accepted))
    }

    pub(crate) async fn record(
        &self,
        connection: &mut SqliteConnection,
        message: &Message,
        result: Option<&Bytes>,
        now: i64,
    ) -> Result<Recorded> {
        const OPERATION: &str = "record_in";
        let mapped = in_operation(OPERATION);
        let query = bind(sqlx::query(self.statements.record.clone()), message, now)
            .bind(result.map(AsRef::<[u8]>::as_ref));
        let rows = query.fetch_all(&mut *connection).await.map_err(mapped)?;
        let changed = changed(&rows).map_err(mapped)?;
        if let Some((seq, _)) = changed.taken {
            if self.drop_processed_payloads {
                sqlx::query(self.statements.drop_payloads.clone())
                    .bind(format!("[{seq}]"))
                    .execute(connection)
                    .await
                    .map_err(mapped)?;
            }
            return Ok(Recorded::First);
        }
        let row = sqlx::query(self.statements.get.clone())
            .bind(message.handler().as_str())
            .bind(message.id().as_str())
            .fetch_one(connection)
            .await
            .map_err(mapped)?;
        let stored = self.stored(OPERATION, &row, now)?;
        Ok(match standing(stored, now) {
            Standing::Processed { result } => Recorded::Processed { result },
            Standing::Busy { until } => Recorded::Busy {
                until: from_micros(until),
            },
            Standing::Blocked => Recorded::Blocked,
            Standing::Dead { reason } => Recorded::Dead { reason },
            Standing::Discarded => Recorded::Discarded,
        })
    }
}
