//! Inline use: begin under a lease, and record within a transaction. Both insert the message if
//! it is new and then try to change it, in one trip to SQLite's thread; for begin, the transaction
//! around it is part of the trip, which is what one message at a time costs most, and is shared with
//! others that are called at the same time.

use std::{collections::HashMap, sync::Arc};

use inbox_api::{
    Attempts, Begun, Bytes, Due, Effect, Error, ErrorKind, FencingToken, Key, Lease, LeaseTerms,
    Leased, Message, Recorded, Result, State, check_size, duration_micros, from_micros,
};
use sqlx::{
    Row as _, Sqlite, SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};

use crate::{
    connection::Database,
    error::failed,
    receive::handler_and_id,
    rows::{self, Stored},
    shared_transaction,
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
    database: &Arc<Database>,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    message.check_payload(database.options.payload_limit)?;
    shared_transaction::begin(database, message.clone(), terms.clone()).await
}

/// Handler, id, lease end, worker: what the statements take of a message to begin.
pub(crate) type BeginRow<'a> = (&'a str, &'a str, i64, &'a str);

pub(crate) fn row<'a>(message: &'a Message, terms: &'a LeaseTerms, now: i64) -> BeginRow<'a> {
    (
        message.handler().as_str(),
        message.id().as_str(),
        lease_end(terms, now),
        terms.worker().as_str(),
    )
}

fn lease_end(terms: &LeaseTerms, now: i64) -> i64 {
    now.saturating_add(duration_micros(terms.length()))
}

/// The rows that the statements returned for all the messages that were begun in one transaction.
pub(crate) struct Rows<'r> {
    /// As they stood before, by handler and id.
    known: HashMap<(&'r str, &'r str), &'r SqliteRow>,
    /// The rows of those that were stored, and of known ones that differ, by handler and id.
    received: HashMap<(&'r str, &'r str), i64>,
    /// Tokens by row.
    leased: HashMap<i64, i64>,
}

impl<'r> Rows<'r> {
    pub(crate) fn new(
        known: &'r [SqliteRow],
        received: &'r [SqliteRow],
        leased: &'r [SqliteRow],
    ) -> sqlx::Result<Self> {
        let by_key = |row: &'r SqliteRow| Ok(((row.try_get(1)?, row.try_get(2)?), row));
        let received_key = |row: &'r SqliteRow| Ok((handler_and_id(row)?, row.try_get(2)?));
        Ok(Self {
            known: known.iter().map(by_key).collect::<sqlx::Result<_>>()?,
            received: received
                .iter()
                .map(received_key)
                .collect::<sqlx::Result<_>>()?,
            leased: leased
                .iter()
                .map(rows::seq_and_token)
                .collect::<sqlx::Result<_>>()?,
        })
    }

    /// The answer for one of the messages, and whether it has become claimable for others.
    pub(crate) fn answer(
        &self,
        inbox: &str,
        message: &Message,
        terms: &LeaseTerms,
        now: i64,
    ) -> Result<(Begun, bool)> {
        let key = (message.handler().as_str(), message.id().as_str());
        let until = lease_end(terms, now);
        let lease = |seq: i64, token: i64| Lease {
            key: message.key().clone(),
            token: FencingToken::new(token),
            locator: seq.unsigned_abs(),
            until: from_micros(until),
        };
        let known = self.known.get(&key);
        if known.is_none()
            && let Some(seq) = self.received.get(&key)
        {
            let due = message.due().resolve(now);
            return Ok(match self.leased.get(seq) {
                Some(token) => {
                    let leased = Leased {
                        message: message.clone().with_due(Due::Now),
                        lease: lease(*seq, *token),
                        attempts: Attempts {
                            started: 1,
                            finished: 0,
                        },
                        replays: 0,
                        accepted_at: from_micros(now),
                    };
                    (Begun::Run(Box::new(leased)), false)
                }
                None if due > now => {
                    let until = from_micros(due);
                    (Begun::Busy { until }, true)
                }
                None => (Begun::Blocked, true),
            });
        }
        let known = known.ok_or(sqlx::Error::RowNotFound).map_err(failed)?;
        let stored = rows::read_one(known, inbox, now)?;
        let Some(token) = self.leased.get(&stored.seq) else {
            let begun = match standing(stored, now) {
                Standing::Processed { result } => Begun::Processed { result },
                Standing::Busy { until } => Begun::Busy {
                    until: from_micros(until),
                },
                Standing::Blocked => Begun::Blocked,
                Standing::Dead { reason } => Begun::Dead { reason },
                Standing::Discarded => Begun::Discarded,
            };
            return Ok((begun, false));
        };
        let record = stored.record;
        let leased = Leased {
            message: record.message().ok_or_else(|| {
                let place = format!("{inbox}_message, seq {}", stored.seq);
                let reason = format!("{place}: payload is missing");
                // It is leased by now.
                Error::new(ErrorKind::Corrupt, reason).with_effect(Effect::Unknown)
            })?,
            lease: lease(stored.seq, *token),
            attempts: Attempts {
                started: record.attempts.started.saturating_add(1),
                ..record.attempts
            },
            replays: record.replays,
            accepted_at: record.accepted_at,
        };
        Ok((Begun::Run(Box::new(leased)), false))
    }
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

/// Keeps the result of what was recorded in the transaction that the connection is in.
pub(crate) async fn keep_result_on(
    database: &Database,
    connection: &mut SqliteConnection,
    key: &Key,
    result: &Bytes,
) -> Result<()> {
    let kept = sqlx::query(database.statements.keep_result.clone())
        .bind(key.handler.as_str())
        .bind(key.id.as_str())
        .bind(AsRef::<[u8]>::as_ref(result))
        .execute(connection)
        .await
        .map_err(failed)?;
    match kept.rows_affected() {
        0 => Err(Error::new(
            ErrorKind::Other,
            "the message is not recorded in this transaction",
        )),
        _ => Ok(()),
    }
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
    .bind(result.map(AsRef::<[u8]>::as_ref))
    .bind(message.fingerprint().get());
    let rows = query.fetch_all(&mut *connection).await.map_err(failed)?;
    let changes = read_changes(&rows).map_err(failed)?;
    if let Some((seq, _)) = changes.taken {
        if database.options.drop_processed_payloads {
            sqlx::query(database.statements.drop_payloads.clone())
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
