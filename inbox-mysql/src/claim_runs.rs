//! Claiming in runs: with the first message of an ordering key those that directly follow it.
//!
//! How many first messages it takes to have as many as were asked for is not known beforehand. So this locks as
//! many as were asked for, for a moment, and takes what is needed of them. In rounds of fewer, a lease of the
//! first round could run out before the last one, and the same message would come twice.

use inbox_api::{ClaimRequest, Claims, Result};

use crate::{
    claim::{Looks, Missed, Selection, add_lease, add_look, last_due, read_claims},
    connection::Connection,
    context::{CHUNK_ROWS, Context},
    error::failed,
    list_variables::most_heads,
    multi_statement::{Access, Script},
    statement::Statement,
};

/// What is selected of each first message.
const COLUMNS: &str = "seq, visible_at, queue, started, finished, handler, ordering_key";

pub(crate) async fn claim_in_runs(
    connection: Connection<'_>,
    request: &ClaimRequest,
) -> Result<Claims> {
    let (inner, context) = (connection.inner, connection.context);
    let most = most_heads(context).min(request.limit as usize);
    let mut looks = Looks::new(connection);
    let mut from = inner.claim_cursor.of(request);
    let (answers, at) = loop {
        let mut script = connection.script(Access::Write);
        let at = add_claim(context, &mut script, request, most, from);
        let answers = connection.run(Access::Write, script).await?;
        let last = last_due(&answers, at, most).map_err(failed)?;
        inner.claim_cursor.advance(request, last);
        if from.take().is_some() && answers.rows(at).is_empty() {
            continue;
        }
        let missed = Missed::read(&answers, at + 1).map_err(failed)?;
        if missed == Missed::Nothing || !looks.again().await {
            break (answers, at);
        }
    };
    read_claims(connection, request, &answers, at).await
}

fn add_claim(
    context: &Context,
    script: &mut Script,
    request: &ClaimRequest,
    most: usize,
    from: Option<i64>,
) -> usize {
    let sql = &context.sql;
    if most > CHUNK_ROWS {
        script.forget_lists();
    }
    let selection = Selection::new(context, request, from, COLUMNS, most);
    let number = |number: usize| Statement::of_number(number as i64);
    let run_limit = (request.run_limit.max(1) as usize).min(most);
    let values = [
        ("queues", selection.queues),
        ("limit", number(most)),
        ("run_limit", number(run_limit)),
        ("most_behind", number(run_limit - 1)),
    ];
    script.fill(&sql.claim_runs, &values);
    script.fill(&sql.end_runs, &[("queues", Statement::new("1"))]);
    script.all(&sql.claim_members);
    // Whatever may be waited for is waited for by now: the leases begin behind it.
    script.read_time();
    add_lease(context, script, request);
    add_look(context, script, selection.due)
}
