//! Recording in a caller's transaction: the message is stored if it is new, and processed if its handler may
//! run. Its result may come later.

use inbox_api::{Bytes, Error, ErrorKind, Key, Message, Recorded, Result};

use crate::{
    context::Context,
    error::failed,
    lookup::{InlinePlaces, Obstacle, key_values},
    multi_statement::{Answers, Script},
    receive::{add_prepare_one, add_store_one},
    statement::{Secrecy, Statement},
    transaction_step::Step,
};

pub(crate) async fn record(
    mut step: Step<'_>,
    message: &Message,
    result: Option<Bytes>,
) -> Result<Recorded> {
    let context = step.context();
    context.check_message(message)?;
    if let Some(result) = &result {
        context.check_result(result)?;
    }
    // A look for the key comes first: see `add_store_one`.
    let mut script = step.script();
    add_prepare_one(context, &mut script, message);
    let look = script.fill(&context.sql.record_find, &key_values(message.key()));
    let answers = step.go_on(script).await?;
    let known = !answers.rows(look).is_empty();
    let secrecy = step.secrecy(&answers);
    let mut script = step.script();
    let places = add_record(
        context,
        &mut script,
        message,
        result.as_ref(),
        known,
        secrecy,
    );
    let answers = step.end_one(script).await?;
    if places.is_left_for_its_run(&answers)? {
        let mut script = step.script();
        let (key, result) = (message.key(), result.as_ref());
        let places = add_process(context, &mut script, key, result, true, secrecy);
        let answers = step.end(script).await?;
        return read_record(context, &answers, &places);
    }
    read_record(context, &answers, &places)
}

/// Keeps the result of what was recorded in the transaction.
pub(crate) async fn keep_result(mut step: Step<'_>, key: &Key, result: &Bytes) -> Result<()> {
    let context = step.context();
    context.check_result(result)?;
    let mut script = step.script();
    script.fill(&context.sql.find_lock, &key_values(key));
    let processed = script.all(&context.sql.keep_result_find);
    let answers = step.go_on(script).await?;
    if answers.rows(processed).is_empty() {
        // The step stays unfinished, so that nothing is committed.
        let context = "the message is not recorded in this transaction";
        return Err(Error::new(ErrorKind::Other, context));
    }
    let result = Statement::of_secret(result, step.secrecy(&answers));
    let mut script = step.script();
    script.fill(&context.sql.keep_result, &[("result", result)]);
    step.end(script).await.map(drop)
}

/// Adds a record to `script`.
fn add_record(
    context: &Context,
    script: &mut Script,
    message: &Message,
    result: Option<&Bytes>,
    known: bool,
    secrecy: Secrecy,
) -> InlinePlaces {
    add_store_one(context, script, message, known, secrecy);
    add_process(context, script, message.key(), result, false, secrecy)
}

/// Adds the processing of a stored message, if it may run now; if its lease has run out, also of one that
/// was leased `with_run`.
fn add_process(
    context: &Context,
    script: &mut Script,
    key: &Key,
    result: Option<&Bytes>,
    with_run: bool,
    secrecy: Secrecy,
) -> InlinePlaces {
    let sql = &context.sql;
    script.fill(&sql.find_lock, &key_values(key));
    script.all(&sql.lock_keys);
    let has_result = result.is_some();
    let result = match result {
        Some(result) => Statement::of_secret(result, secrecy),
        None => Statement::new("NULL"),
    };
    let kept = !context.options.drop_processed_payloads || has_result;
    let values = [
        ("kept", Statement::of_number(i64::from(kept))),
        ("result", result),
        ("no_run", sql.no_run(with_run)),
    ];
    script.fill(&sql.record, &values);
    let taken = script.changed();
    if with_run {
        script.fixed("SET @inbox_seqs = CONCAT('[', @inbox_taken, ']')");
        script.all(&sql.leave_run);
    }
    script.all(&sql.record_delete);
    if context.options.drop_processed_payloads {
        script.all(&sql.record_drop);
    }
    if with_run {
        script.all(&sql.next_of_run);
    }
    script.all(&sql.promote_key_heads);
    InlinePlaces {
        taken,
        found: script.all(&sql.get_found_lock),
    }
}

fn read_record(context: &Context, answers: &Answers, places: &InlinePlaces) -> Result<Recorded> {
    if answers.number(places.taken).map_err(failed)? == 1 {
        return Ok(Recorded::First);
    }
    let now = answers.now().map_err(failed)?;
    let found = places.read_found(context, answers)?;
    Ok(match Obstacle::of(found, now) {
        Obstacle::Processed { result } => Recorded::Processed { result },
        Obstacle::Busy { until } => Recorded::Busy { until },
        Obstacle::Blocked => Recorded::Blocked,
        Obstacle::Dead { reason } => Recorded::Dead { reason },
        Obstacle::Discarded => Recorded::Discarded,
    })
}
