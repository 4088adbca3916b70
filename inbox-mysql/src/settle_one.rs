//! Settling one processed message without an ordering key, in fewer and narrower steps than a batch.

use inbox_api::{Outcome, Result};

use crate::{
    connection::Connection,
    context::Context,
    error::failed,
    multi_statement::{Access, Answers, Script},
    procedures::Arguments,
    settle::{Applied, Ending},
    statement::{Secrecy, Statement},
    transaction_step::Step,
};

/// Whether an ending takes no more than `settle_one.sql` does.
pub(crate) fn is_simple(context: &Context, ending: &Ending<'_>) -> bool {
    let processed = matches!(ending.outcome, Outcome::Processed { .. });
    processed && !ending.row.ordered && !context.options.drop_processed_payloads
}

/// What `settle_one.sql` is filled with, but for the time.
fn values(ending: &Ending<'_>, secrecy: Secrecy) -> Arguments {
    let result = match ending.outcome {
        Outcome::Processed {
            result: Some(result),
        } => Statement::of_secret(result, secrecy),
        _ => Statement::new("NULL"),
    };
    vec![
        ("seq", Statement::of_number(ending.row.seq)),
        ("token", Statement::of_number(ending.row.token)),
        ("result", result),
    ]
}

/// In its own transaction: by a call where there is the procedure, and otherwise in a packet.
pub(crate) async fn settle(connection: Connection<'_>, ending: &Ending<'_>) -> Result<Applied> {
    let context = connection.context;
    let secrecy = connection.secrecy();
    let mut arguments = values(ending, secrecy);
    let offset = context.options.clock.micros();
    arguments.push(("offset", Statement::of_number(offset)));
    let called = connection.call(&context.sql.settle_procedure, &arguments);
    let (answers, at) = match called.await? {
        Some(answers) => (answers, 0),
        None => {
            let mut script = connection.script_without_time();
            add(context, &mut script, ending, secrecy);
            let at = script.changed();
            (connection.run(Access::Write, script).await?, at)
        }
    };
    applied(ending, &answers, at)
}

/// `at` is where it says whether the lease stood, as 1.
fn applied(ending: &Ending<'_>, answers: &Answers, at: usize) -> Result<Applied> {
    let mut applied = Applied::default();
    if answers.number(at).map_err(failed)? == 1 {
        applied.leases.insert(ending.row.seq_and_token());
    }
    Ok(applied)
}

/// The last script of a step in a caller's transaction.
pub(crate) async fn settle_in(
    step: Step<'_>,
    ending: &Ending<'_>,
    secrecy: Secrecy,
) -> Result<Applied> {
    let context = step.context();
    let mut script = step.script();
    add(context, &mut script, ending, secrecy);
    let at = script.changed();
    let answers = step.end(script).await?;
    applied(ending, &answers, at)
}

/// Adds the settlement. Its last statement changes a row if the lease stands.
pub(crate) fn add(context: &Context, script: &mut Script, ending: &Ending<'_>, secrecy: Secrecy) {
    let mut values = values(ending, secrecy);
    values.push(("time", Statement::new(context.now())));
    // The procedure's answer. A script's may be read in another packet.
    let statements = context.sql.settle_one.split_last();
    script.fill(statements.map_or(&[], |(_, rest)| rest), &values);
}
