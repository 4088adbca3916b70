//! Inline use: begin under a lease, and record within a transaction. Both insert the message if
//! it is new and then try to change it, in one trip to SQLite's thread; for begin, the transaction
//! around it is part of the trip, which is what one message at a time costs most.

use inbox_api::{
    Attempts, Begun, Bytes, Due, Error, ErrorKind, FencingToken, Lease, LeaseTerms, Leased,
    Message, Recorded, Result, State, check_size, duration_micros, from_micros,
};
use sqlx::{
    Row as _, Sqlite, SqliteConnection,
    pool::PoolConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use tokio::time::Instant;

use crate::{
    connection::Database,
    error::{failed, is_busy},
    rows::{self, Stored},
};

/// What the two statements changed.
#[derive(Default)]
struct Changes {
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

fn read_changes(rows: &[SqliteRow]) -> sqlx::Result<Changes> {
    let mut changes = Changes::default();
    for row in rows {
        match row.try_get::<&str, _>(0)? {
            "accepted" => changes.accepted = true,
            _ => changes.taken = Some((row.try_get(1)?, row.try_get(2)?)),
        }
    }
    Ok(changes)
}

pub(crate) async fn begin(
    database: &Database,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    message.check_payload(database.options.payload_limit)?;
    database
        .run(|until| attempt(database, message, terms, until))
        .await
}

/// A connection that runs a transaction of which sqlx knows nothing. Closed, which rolls back, unless
/// all of it was run.
struct Scripted {
    connection: PoolConnection<Sqlite>,
    is_over: bool,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if !self.is_over {
            self.connection.close_on_drop();
        }
    }
}

async fn attempt(
    database: &Database,
    message: &Message,
    terms: &LeaseTerms,
    until: Instant,
) -> Result<Begun> {
    let mut scripted = Scripted {
        connection: database.writer(until).await?,
        is_over: false,
    };
    let outcome = begin_on(database, &mut scripted.connection, message, terms).await;
    if outcome.as_ref().is_err_and(is_busy) {
        // As a rule there is nothing to roll back, since it was refused at its beginning.
        let _ = sqlx::raw_sql("ROLLBACK")
            .execute(&mut *scripted.connection)
            .await;
        scripted.is_over = true;
    }
    let (begun, accepted) = outcome?;
    scripted.is_over = true;
    if accepted && !matches!(begun, Begun::Run(_)) {
        database.signal.raise();
    }
    Ok(begun)
}

/// Before any I/O: whether this store takes the message and the result.
pub(crate) fn check_record(
    database: &Database,
    message: &Message,
    result: Option<&Bytes>,
) -> Result<()> {
    let limit = database.options.payload_limit;
    message.check_payload(limit)?;
    check_size("result", result.map_or(0, Bytes::len), limit)?;
    Ok(())
}

/// In its own transaction, which may be left open when this fails or is dropped: the
/// connection is then of no more use. Answers also whether the message is new.
async fn begin_on(
    database: &Database,
    connection: &mut SqliteConnection,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<(Begun, bool)> {
    let now = database.now();
    let until = now.saturating_add(duration_micros(terms.length()));
    let query = bind(sqlx::query(database.statements.begin.clone()), message, now)
        .bind(until)
        .bind(terms.worker().as_str());
    let mut rows = query.fetch_all(connection).await.map_err(failed)?;
    // The last one is the message as it stands then.
    let row = rows.pop().ok_or(sqlx::Error::RowNotFound).map_err(failed)?;
    let changes = read_changes(&rows).map_err(failed)?;
    let lease = |seq: i64, token: i64| Lease {
        key: message.key().clone(),
        token: FencingToken::new(token),
        locator: seq.unsigned_abs(),
        until: from_micros(until),
    };
    if let (true, Some((seq, token))) = (changes.accepted, changes.taken) {
        let leased = Leased {
            message: message.clone().with_due(Due::Now),
            lease: lease(seq, token),
            attempts: Attempts {
                started: 1,
                finished: 0,
            },
            accepted_at: from_micros(now),
        };
        return Ok((Begun::Run(Box::new(leased)), true));
    }
    let stored = rows::read_one(&row, database.options.inbox.as_str(), now)?;
    if changes.taken.is_some() {
        let leased = Leased {
            message: stored.record.message().ok_or_else(|| {
                let place = format!("{}_message, seq {}", database.options.inbox, stored.seq);
                let reason = format!("{place}: payload is missing");
                Error::new(ErrorKind::Corrupt, reason)
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
    Ok((begun, changes.accepted))
}

/// Records on a connection that is in a transaction.
pub(crate) async fn record_on(
    database: &Database,
    connection: &mut SqliteConnection,
    message: &Message,
    result: Option<&Bytes>,
) -> Result<Recorded> {
    let now = database.now();
    let query = bind(
        sqlx::query(database.statements.record.clone()),
        message,
        now,
    )
    .bind(result.map(AsRef::<[u8]>::as_ref));
    let rows = query.fetch_all(&mut *connection).await.map_err(failed)?;
    let changes = read_changes(&rows).map_err(failed)?;
    if let Some((seq, _)) = changes.taken {
        if database.options.drop_processed_payloads {
            sqlx::query(database.statements.settle_drop_payloads.clone())
                .bind(format!("[{seq}]"))
                .execute(connection)
                .await
                .map_err(failed)?;
        }
        return Ok(Recorded::First);
    }
    let row = sqlx::query(database.statements.get.clone())
        .bind(message.handler().as_str())
        .bind(message.id().as_str())
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    let stored = rows::read_one(&row, database.options.inbox.as_str(), now)?;
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
