//! Beginning inline: the message is stored if it is new, and leased if its handler may run, in one packet.

use inbox_api::{
    Attempts, Begun, Due, LeaseTerms, Leased, Message, Result, duration_micros, from_micros,
};
use sqlx::Row as _;

use crate::{
    compact_counters::compact_sometimes,
    connection::Connection,
    context::Context,
    error::failed,
    lookup::{InlinePlaces, Obstacle, key_values},
    multi_statement::{Access, Answers, Script},
    receive::{add_prepare_one, add_store_content, add_store_one},
    rows::lease,
    statement::{Secrecy, Statement},
};

pub(crate) async fn begin(
    connection: Connection<'_>,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Begun> {
    let (context, secrecy) = (connection.context, connection.secrecy());
    context.check_message(message)?;
    if message.ordering_key().is_none() && message.due() == Due::Now {
        let mut script = connection.script(Access::Write);
        let at = add_begin_new(context, &mut script, message, terms, secrecy);
        let answers = connection.run(Access::Write, script).await?;
        if let Some(begun) = read_begin_new(&answers, at, message, terms).map_err(failed)? {
            compact_sometimes(connection).await;
            return Ok(begun);
        }
    }
    let mut script = connection.script(Access::Write);
    let places = add_begin(context, &mut script, message, terms, secrecy);
    let answers = connection.run(Access::Write, script).await?;
    let begun = read_begin(context, &answers, &places, terms)?;
    let accepted = answers.number(places.stored).map_err(failed)? == 1;
    if accepted && !matches!(begun, Begun::Run(_)) {
        connection.inner.signal.raise();
    }
    compact_sometimes(connection).await;
    Ok(begun)
}

/// Adds a begin to `script` of a message that may be new, and that a claim would take as soon as
/// it is stored. Half the statements of [`add_begin`], and each has to be parsed.
fn add_begin_new(
    context: &Context,
    script: &mut Script,
    message: &Message,
    terms: &LeaseTerms,
    secrecy: Secrecy,
) -> usize {
    add_store_content(context, script, message, secrecy);
    script.read_time();
    let mut set = Statement::new("SET @inbox_lease = ");
    set.number(duration_micros(terms.length()));
    set.push(", @inbox_worker = ");
    set.bytes(terms.worker().as_str().as_bytes());
    script.add(set);
    let file = &context.sql.begin_new;
    script.all(file) + file.len() - 1
}

/// The lease, unless the message's key was known.
fn read_begin_new(
    answers: &Answers,
    at: usize,
    message: &Message,
    terms: &LeaseTerms,
) -> sqlx::Result<Option<Begun>> {
    let Some(row) = answers.rows(at).first() else {
        return Ok(None);
    };
    let accepted_at = row.try_get_unchecked(1)?;
    let now = answers.now()?;
    let until = now.saturating_add(duration_micros(terms.length()));
    Ok(Some(Begun::Run(Box::new(Leased {
        message: message.clone(),
        lease: lease(message, answers.number(at)?, now, until),
        attempts: Attempts {
            started: 1,
            finished: 0,
        },
        accepted_at: from_micros(accepted_at),
    }))))
}

/// Adds a begin to `script`.
fn add_begin(
    context: &Context,
    script: &mut Script,
    message: &Message,
    terms: &LeaseTerms,
    secrecy: Secrecy,
) -> InlinePlaces {
    let sql = &context.sql;
    add_prepare_one(context, script, message);
    let stored = add_store_one(context, script, message, false, secrecy);
    script.fill(&sql.find_lock, &key_values(message.key()));
    // Whatever may be waited for is waited for here: the lease begins behind it.
    script.all(&sql.begin_lock);
    script.read_time();
    let worker = Statement::of_bytes(terms.worker().as_str().as_bytes());
    let length = Statement::of_number(duration_micros(terms.length()));
    script.fill(&sql.begin, &[("worker", worker), ("length", length)]);
    InlinePlaces {
        stored,
        taken: script.changed(),
        found: script.all(&sql.get_found_lock),
    }
}

fn read_begin(
    context: &Context,
    answers: &Answers,
    places: &InlinePlaces,
    terms: &LeaseTerms,
) -> Result<Begun> {
    let now = answers.now().map_err(failed)?;
    let found = places.read_found(context, answers)?;
    if answers.number(places.taken).map_err(failed)? == 1 {
        let until = now.saturating_add(duration_micros(terms.length()));
        let message = found
            .record
            .message()
            .ok_or_else(|| context.corrupt(found.seq, "payload is missing".into()))?;
        return Ok(Begun::Run(Box::new(Leased {
            lease: lease(&message, found.seq, found.token, until),
            message,
            attempts: found.record.attempts,
            accepted_at: found.record.accepted_at,
        })));
    }
    Ok(match Obstacle::of(found, now) {
        Obstacle::Processed { result } => Begun::Processed { result },
        Obstacle::Busy { until } => Begun::Busy { until },
        Obstacle::Blocked => Begun::Blocked,
        Obstacle::Dead { reason } => Begun::Dead { reason },
        Obstacle::Discarded => Begun::Discarded,
    })
}
