//! Beginning inline work on a message.

use inbox_api::{
    Attempts, Begun, Bytes, Due, Effect, FencingToken, InboxName, Lease, LeaseTerms, Leased,
    Message, Result, from_micros,
};
use sqlx::{Row as _, postgres::PgRow};

use crate::{
    arguments::{Arguments, due},
    connection::{Database, On},
    error::{failed, unknown_answer},
    options::PostgresOptions,
    rows::{self, only},
    time::{Instant, micros},
};

pub(crate) async fn begin(
    database: &Database,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    database.check_open()?;
    let options = &database.options;
    options.check_message(message)?;
    let arguments = arguments_of(options, message)
        .with(micros(terms.length()))
        .with(terms.worker().as_str())
        .finish()?;
    let answer = database
        .run(On::Pool, &database.statements.begin, arguments)
        .await
        .map_err(|error| options.payload_type.explain(error))?;
    read(only(&answer)?, message, &options.inbox)
}

/// Makes a message the first ten arguments.
pub(crate) fn arguments_of(options: &PostgresOptions, message: &Message) -> Arguments {
    let (at, after) = due(message);
    let arguments = Arguments::of_key(message.key())
        .with(message.kind().as_str())
        .with(message.content_type().map(AsRef::<str>::as_ref))
        .with(message.ordering_key().map(AsRef::<str>::as_ref))
        .with(message.headers().to_json());
    options
        .payload_type
        .with_one(arguments, Some(message.payload()))
        .with(at)
        .with(after)
        .with(message.fingerprint().get())
}

fn read(row: &PgRow, message: &Message, inbox: &InboxName) -> Result<Begun> {
    Ok(match row.try_get::<&str, _>(0).map_err(failed)? {
        "new" => {
            let seq = row.try_get(4).map_err(failed)?;
            Begun::Run(Box::new(Leased {
                message: message.clone().with_due(Due::Now),
                lease: Lease {
                    key: message.key().clone(),
                    token: FencingToken::new(row.try_get(5).map_err(failed)?),
                    locator: rows::locator(seq, message.ordering_key().is_some()),
                    until: from_micros(row.try_get::<Instant, _>(1).map_err(failed)?.0),
                },
                attempts: Attempts {
                    started: 1,
                    finished: 0,
                },
                replays: 0,
                accepted_at: from_micros(row.try_get::<Instant, _>(8).map_err(failed)?.0),
            }))
        }
        "run" => {
            let leased = rows::read_begun(row, message.key()).map_err(|reason| {
                let seq = row.try_get(4).unwrap_or_default();
                // It is leased by now.
                rows::corrupt(inbox, seq, reason).with_effect(Effect::Unknown)
            })?;
            Begun::Run(Box::new(leased))
        }
        "processed" => Begun::Processed {
            result: kept_result(row).map_err(failed)?,
        },
        "busy" => Begun::Busy {
            until: from_micros(row.try_get::<Instant, _>(1).map_err(failed)?.0),
        },
        "blocked" => Begun::Blocked,
        "dead" => Begun::Dead {
            reason: reason(row).map_err(failed)?,
        },
        "discarded" => Begun::Discarded,
        _ => return Err(unknown_answer()),
    })
}

/// Of a message that was processed before.
pub(crate) fn kept_result(row: &PgRow) -> sqlx::Result<Option<Bytes>> {
    Ok(row
        .try_get::<Option<&[u8]>, _>(3)?
        .map(Bytes::copy_from_slice))
}

/// Why a message is dead.
pub(crate) fn reason(row: &PgRow) -> sqlx::Result<String> {
    Ok(row.try_get::<Option<String>, _>(2)?.unwrap_or_default())
}
