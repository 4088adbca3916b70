//! Beginning inline: the message is stored if it is new, and leased if its handler may run, in one packet.

use inbox_api::{
    Attempts, Begun, Due, Effect, Key, LeaseTerms, Leased, Message, Result, duration_micros,
    from_micros,
};
use sqlx::Row as _;

use crate::{
    compact_counters::compact_sometimes,
    connection::Connection,
    context::Context,
    error::failed,
    lookup::{InlinePlaces, Obstacle, key_values},
    multi_statement::{Access, Answers, Script},
    procedures::Arguments,
    receive::{add_prepare_one, add_store_one, headers_value},
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
        let begun = begin_new(connection, message, terms).await?;
        if let Some(begun) = begun {
            compact_sometimes(connection).await;
            return Ok(begun);
        }
    }
    let mut script = connection.script(Access::Write);
    let (stored, mut places) = add_begin(context, &mut script, message, terms, secrecy);
    let mut answers = connection.run(Access::Write, script).await?;
    let accepted = answers.number(stored).map_err(failed)? == 1;
    if places.is_left_for_its_run(&answers)? {
        let mut script = connection.script(Access::Write);
        places = add_begin_of_run(context, &mut script, message.key(), terms);
        answers = connection.run(Access::Write, script).await?;
    }
    let begun = read_begin(context, &answers, &places, terms)?;
    if accepted && !matches!(begun, Begun::Run(_)) {
        connection.inner.signal.raise();
    }
    compact_sometimes(connection).await;
    Ok(begun)
}

/// Begins a message that a claim would take as soon as it is stored, unless its key is known.
async fn begin_new(
    connection: Connection<'_>,
    message: &Message,
    terms: &LeaseTerms,
) -> Result<Option<Begun>> {
    let context = connection.context;
    let arguments = arguments(context, message, terms, connection.secrecy());
    let called = connection.call(&context.sql.begin_procedure, &arguments);
    if let Some(answers) = called.await? {
        return read_begin_new(&answers, 0, message).map_err(failed);
    }
    let mut values = arguments;
    values.push(("time", Statement::new(context.now())));
    let mut script = connection.script_without_time();
    let file = &context.sql.begin_one;
    let at = script.fill(file, &values) + file.len() - 1;
    let answers = connection.run(Access::Write, script).await?;
    read_begin_new(&answers, at, message).map_err(failed)
}

fn arguments(
    context: &Context,
    message: &Message,
    terms: &LeaseTerms,
    secrecy: Secrecy,
) -> Arguments {
    let [handler, id] = key_values(message.key());
    let bytes = |text: &str| Statement::of_bytes(text.as_bytes());
    let content_type = match message.content_type() {
        Some(content_type) => bytes(content_type.as_str()),
        None => Statement::new("NULL"),
    };
    let mut payload = Statement::default();
    context.push_payload(&mut payload, message.payload(), secrecy);
    vec![
        handler,
        id,
        ("kind", bytes(message.kind().as_str())),
        ("content_type", content_type),
        ("headers", headers_value(message.headers(), secrecy)),
        ("batch", Statement::of_number(fastrand::i64(..))),
        (
            "fingerprint",
            Statement::of_number(message.fingerprint().get()),
        ),
        (
            "payload_bytes",
            Statement::of_number(message.payload().len() as i64),
        ),
        ("payload", payload),
        (
            "length",
            Statement::of_number(duration_micros(terms.length())),
        ),
        ("worker", bytes(terms.worker().as_str())),
        (
            "offset",
            Statement::of_number(context.options.clock.micros()),
        ),
    ]
}

/// The lease, unless the message's key was known.
fn read_begin_new(answers: &Answers, at: usize, message: &Message) -> sqlx::Result<Option<Begun>> {
    let Some(row) = answers.rows(at).first() else {
        return Ok(None);
    };
    let number = |column: usize| row.try_get_unchecked::<i64, _>(column);
    Ok(Some(Begun::Run(Box::new(Leased {
        message: message.clone(),
        lease: lease(message, number(0)?, number(1)?, false, number(2)?),
        attempts: Attempts {
            started: 1,
            finished: 0,
        },
        replays: 0,
        accepted_at: from_micros(number(3)?),
    }))))
}

/// Adds a begin to `script`. Also answers where it says whether the message was new.
fn add_begin(
    context: &Context,
    script: &mut Script,
    message: &Message,
    terms: &LeaseTerms,
    secrecy: Secrecy,
) -> (usize, InlinePlaces) {
    let sql = &context.sql;
    add_prepare_one(context, script, message);
    let stored = add_store_one(context, script, message, false, secrecy);
    script.fill(&sql.find_lock, &key_values(message.key()));
    // Whatever may be waited for is waited for here: the lease begins behind it.
    script.all(&sql.begin_lock);
    script.read_time();
    (stored, add_take(context, script, terms, sql.no_run(false)))
}

/// Adds a begin of a stored message whose lease may have run out, with the end of the run that it was in.
fn add_begin_of_run(
    context: &Context,
    script: &mut Script,
    key: &Key,
    terms: &LeaseTerms,
) -> InlinePlaces {
    let sql = &context.sql;
    script.fill(&sql.find, &key_values(key));
    script.all(&sql.select_keys);
    script.all(&sql.lock_keys);
    script.all(&sql.begin_lock);
    script.read_time();
    script.fill(&sql.end_runs, &[("queues", Statement::new("1"))]);
    let places = add_take(context, script, terms, sql.no_run(true));
    // The key may have lost its last open message before it was locked, which made its row again.
    script.all(&sql.promote_key_heads);
    places
}

fn add_take(
    context: &Context,
    script: &mut Script,
    terms: &LeaseTerms,
    no_run: Statement,
) -> InlinePlaces {
    let sql = &context.sql;
    let worker = Statement::of_bytes(terms.worker().as_str().as_bytes());
    let length = Statement::of_number(duration_micros(terms.length()));
    let values = [("worker", worker), ("length", length), ("no_run", no_run)];
    script.fill(&sql.begin, &values);
    InlinePlaces {
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
        let message = found.record.message().ok_or_else(|| {
            // It is leased by now.
            let error = context.corrupt(found.seq, "payload is missing".into());
            error.with_effect(Effect::Unknown)
        })?;
        return Ok(Begun::Run(Box::new(Leased {
            lease: lease(&message, found.seq, found.token, false, until),
            message,
            attempts: found.record.attempts,
            replays: found.record.replays,
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
