//! Claiming: one statement, now and then with a look before it that says where the claim may start.

use inbox_api::{AfterDead, ClaimRequest, Claims, Effect, Outcome, Result};
use sqlx::{Row as _, postgres::PgRow};

use crate::{
    arguments::Arguments,
    claim_cursor::{ClaimCursor, Seen, Since},
    connection::{Database, On},
    error::{before, failed},
    rows,
    settle::set_aside,
    time::{Instant, micros},
};

pub(crate) async fn claim(
    database: &Database,
    cursor: &ClaimCursor,
    request: &ClaimRequest,
) -> Result<Claims> {
    database.check_open()?;
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Claims::default());
    }
    let mut handlers: Vec<&str> = request.handlers.iter().map(AsRef::as_ref).collect();
    handlers.sort_unstable();
    handlers.dedup();
    let answer = match claim_rows(database, cursor, request, &handlers).await {
        Ok(answer) => answer,
        Err(error) => {
            cursor.forget();
            return Err(error);
        }
    };
    let mut claims = Claims::default();
    let mut unreadable = Vec::new();
    for row in &answer {
        match rows::read_leased(row) {
            Ok(leased) => claims.leased.push(leased),
            Err(reason) => {
                let row = rows::read_row_and_token(row).map_err(failed);
                let (seq, token) = row.map_err(|error| error.with_effect(Effect::Unknown))?;
                let dead = Outcome::Dead {
                    reason: format!("corrupt: {reason}"),
                    // They let the next of their ordering key through.
                    after: AfterDead::Continue,
                };
                unreadable.push(((seq, token), dead));
                let inbox = &database.options.inbox;
                claims.corrupt.push(rows::corrupt_row(inbox, seq, reason));
            }
        }
    }
    if !unreadable.is_empty() {
        let aside = set_aside(database, unreadable).await;
        // The leases are given by now.
        aside.map_err(|error| error.with_effect(Effect::Unknown))?;
    }
    Ok(claims)
}

async fn claim_rows(
    database: &Database,
    cursor: &ClaimCursor,
    request: &ClaimRequest,
    handlers: &[&str],
) -> Result<Vec<PgRow>> {
    if let Some(look) = cursor.look(handlers) {
        let arguments = handlers_since(handlers, &look.since).finish()?;
        let text = &database.statements.claim_cursor;
        let answer = database.run(On::Pool, text, arguments).await?;
        let seen: sqlx::Result<Vec<Seen>> = answer.iter().map(read_look).collect();
        cursor.learn(handlers, &look, &seen.map_err(before)?);
    }
    let count = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    let arguments = handlers_since(handlers, &cursor.since(handlers))
        .with(count(request.limit))
        .with(micros(request.terms.length()))
        .with(request.terms.worker().as_str());
    let statements = &database.statements;
    let (text, arguments) = match request.run_limit.min(request.limit) {
        0 | 1 => (&statements.claim, arguments),
        run => (&statements.claim_runs, arguments.with(count(run))),
    };
    let answer = database.run(On::Pool, text, arguments.finish()?).await?;
    cursor.count_taken(handlers, answer.len());
    Ok(answer)
}

fn handlers_since(handlers: &[&str], since: &[Since]) -> Arguments {
    let times = |of: fn(&Since) -> i64| since.iter().map(|s| Instant(of(s))).collect::<Vec<_>>();
    Arguments::new()
        .with(handlers)
        .with(times(|since| since.pending))
        .with(times(|since| since.leased))
}

/// Where the claims of one handler may start.
fn read_look(row: &PgRow) -> sqlx::Result<Seen> {
    let micros = |index| {
        let at: sqlx::Result<Option<Instant>> = row.try_get(index);
        Ok::<_, sqlx::Error>(at?.map(|at| at.0))
    };
    Ok(Seen {
        first_pending: micros(0)?,
        first_leased: micros(1)?,
        instant: row.try_get::<Instant, _>(2)?.0,
        running: row.try_get(3)?,
        next: row.try_get(4)?,
    })
}
