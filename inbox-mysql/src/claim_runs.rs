//! Claiming in runs: with the first message of an ordering key those that directly follow it.
//!
//! How many first messages it takes to have as many as were asked for is not known beforehand, and each one
//! that is locked for nothing keeps others from it. So this goes in rounds, each with as many as are needed
//! if their runs are as long as those before; the first assumes that all are of full length.

use inbox_api::{ClaimRequest, Claims, Result};
use sqlx::Row as _;

use crate::{
    claim::{Looks, Missed, Selection, add_lease, add_look, read_claims},
    connection::Connection,
    context::{CHUNK_ROWS, Context},
    error::failed,
    list_variables::{most_heads, most_in_runs},
    multi_statement::{Access, Answers, Script},
    statement::Statement,
};

/// What is selected of each first message.
const COLUMNS: &str = "seq, visible_at, queue, started, finished, handler, ordering_key";

pub(crate) async fn claim_in_runs(
    connection: Connection<'_>,
    request: &ClaimRequest,
) -> Result<Claims> {
    let (inner, context) = (connection.inner, connection.context);
    let mut claims = Claims::default();
    let mut round = Round::first(context, request);
    let mut looks = Looks::new(connection);
    let mut from = inner.claim_cursor.of(request);
    loop {
        let (got, taken) = match take(connection, request, round, from).await {
            Ok(answer) => answer,
            Err(error) if claims == Claims::default() => return Err(error),
            // What is leased by now would be nobody's.
            Err(error) => {
                tracing::debug!(%error, "a claim ends early");
                return Ok(claims);
            }
        };
        let is_full = taken.firsts == round.heads || taken.messages == round.missing;
        let last = taken.last.filter(|_| is_full);
        inner.claim_cursor.advance(request, last);
        claims.leased.extend(got.leased);
        claims.corrupt.extend(got.corrupt);
        if from.take().is_some() && taken.messages == 0 {
            continue;
        }
        if taken.messages == 0 && claims == Claims::default() {
            if taken.missed == Missed::Nothing || !looks.again().await {
                return Ok(claims);
            }
            continue;
        }
        match round.next(&taken) {
            Some(next) => round = next,
            None => return Ok(claims),
        }
        from = inner.claim_cursor.of(request);
    }
}

/// What a round asks for.
#[derive(Clone, Copy)]
struct Round {
    /// How many messages.
    missing: usize,
    /// The most of one ordering key.
    run_limit: usize,
    /// How many first messages it selects.
    heads: usize,
    /// How many one round can select.
    most_heads: usize,
}

impl Round {
    fn first(context: &Context, request: &ClaimRequest) -> Self {
        let missing = most_in_runs(context).min(request.limit as usize);
        let most_heads = most_heads(context);
        let run_limit = (request.run_limit.max(1) as usize).min(missing);
        Self {
            missing,
            run_limit,
            heads: missing.div_ceil(run_limit).min(most_heads),
            most_heads,
        }
    }

    /// The one behind it, unless it has got all, or there was no more.
    fn next(self, taken: &Taken) -> Option<Self> {
        let missing = self.missing.saturating_sub(taken.messages);
        let is_over = missing == 0 || taken.firsts < self.heads || taken.messages == 0;
        // As long as those of this round.
        let heads = 1 + missing * taken.firsts / taken.messages.max(1);
        (!is_over).then_some(Self {
            missing,
            run_limit: self.run_limit.min(missing),
            heads: heads.min(missing).min(self.most_heads),
            most_heads: self.most_heads,
        })
    }
}

/// What a round got.
struct Taken {
    messages: usize,
    firsts: usize,
    /// When the last of its first messages became due.
    last: Option<i64>,
    missed: Missed,
}

async fn take(
    connection: Connection<'_>,
    request: &ClaimRequest,
    round: Round,
    from: Option<i64>,
) -> Result<(Claims, Taken)> {
    let mut script = connection.script(Access::Write);
    let at = add_claim(connection.context, &mut script, request, round, from);
    let answers = connection.run(Access::Write, script).await?;
    let (firsts, last) = read_firsts(&answers, at).map_err(failed)?;
    let taken = Taken {
        messages: answers.rows(at).len(),
        firsts,
        last,
        missed: Missed::read(&answers, at + 1).map_err(failed)?,
    };
    let claims = read_claims(connection, request, &answers, at).await?;
    Ok((claims, taken))
}

fn add_claim(
    context: &Context,
    script: &mut Script,
    request: &ClaimRequest,
    round: Round,
    from: Option<i64>,
) -> usize {
    let sql = &context.sql;
    if round.missing > CHUNK_ROWS {
        script.forget_lists();
    }
    let selection = Selection::new(context, request, from, COLUMNS, round.heads);
    let number = |number: usize| Statement::of_number(number as i64);
    let values = [
        ("queues", selection.queues),
        ("most_heads", number(round.heads)),
        ("run_limit", number(round.run_limit)),
        ("limit", number(round.missing)),
    ];
    script.fill(&sql.claim_runs, &values);
    script.fill(&sql.end_runs, &[("queues", Statement::new("1"))]);
    add_lease(context, script, request);
    script.all(&sql.claim_members);
    add_look(context, script, selection.due)
}

/// How many first messages a claim got, and when the last of them became due.
fn read_firsts(answers: &Answers, at: usize) -> sqlx::Result<(usize, Option<i64>)> {
    let (mut firsts, mut last) = (0, None);
    for row in answers.rows(at) {
        let (seq, first): (i64, i64) = (row.try_get_unchecked(0)?, row.try_get_unchecked(14)?);
        firsts += usize::from(seq == first);
        last = last.max(Some(row.try_get_unchecked(13)?));
    }
    Ok((firsts, last))
}
