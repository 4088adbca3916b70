//! Claiming: what has been due for longest, with its run where runs are asked for, and then the leases on
//! it, in one transaction.

use std::{collections::HashSet, sync::atomic::Ordering};

use inbox_api::{
    ClaimRequest, Claims, FencingToken, Lease, Leased, Result, duration_micros, from_micros,
};
use sqlx::{Connection as _, SqliteConnection};
use tokio::time::Instant;

use crate::{
    batch::json,
    connection::Database,
    error::{failed, is_too_late},
    rows,
    statements::{BEGIN, BEGIN_READING},
};

pub(crate) async fn claim(database: &Database, request: &ClaimRequest) -> Result<Claims> {
    if request.handlers.is_empty() || request.limit == 0 {
        return Ok(Claims::default());
    }
    database
        .run(|until| attempt(database, request, until))
        .await
}

/// A worker that found nothing looks first the next time, without the write lock: those who wait
/// for work keep no others from writing. If there is something after all, the transaction goes
/// on with what it has read, unless another process has written meanwhile.
async fn attempt(database: &Database, request: &ClaimRequest, until: Instant) -> Result<Claims> {
    let idle = &database.idle;
    if idle.load(Ordering::Relaxed) {
        match claim_within(database, BEGIN_READING, request, until).await {
            Err(error) if is_too_late(&error) => idle.store(false, Ordering::Relaxed),
            outcome => return outcome,
        }
    }
    claim_within(database, BEGIN, request, until).await
}

/// Claims in a transaction that begins with that statement.
async fn claim_within(
    database: &Database,
    begin: &'static str,
    request: &ClaimRequest,
    until: Instant,
) -> Result<Claims> {
    let mut writer = database.writer(until).await?;
    let mut transaction = writer.begin_with(begin).await.map_err(failed)?;
    let claims = lease_due(database, &mut transaction, request, database.now()).await?;
    transaction.commit().await.map_err(failed)?;
    database.keep(writer);
    let idle = claims.leased.is_empty() && claims.corrupt.is_empty();
    database.idle.store(idle, Ordering::Relaxed);
    if !claims.corrupt.is_empty() {
        // What was set aside may have been first of its ordering key.
        database.signal.raise();
    }
    Ok(claims)
}

/// Leases what is due, and sets aside what cannot be read.
async fn lease_due(
    database: &Database,
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    now: i64,
) -> Result<Claims> {
    let statements = &database.statements;
    let handlers: HashSet<_> = request.handlers.iter().map(AsRef::as_ref).collect();
    let handlers: Vec<&str> = handlers.into_iter().collect();
    let with_runs = request.run_limit > 1;
    let text = if with_runs {
        &statements.claim_runs
    } else {
        &statements.claim
    };
    let mut query = sqlx::query(text.clone())
        .bind(json(&handlers)?)
        .bind(now)
        .bind(i64::from(request.limit));
    if with_runs {
        query = query.bind(i64::from(request.run_limit));
    }
    let returned = query.fetch_all(&mut *connection).await.map_err(failed)?;

    let inbox = database.options.inbox.as_str();
    let until = now.saturating_add(duration_micros(request.terms.length()));
    let mut claims = Claims::default();
    let (mut good, mut bad) = (Vec::with_capacity(returned.len()), Vec::new());
    // The first of the run in which a row could not be read: the rest is left to another claim.
    let mut cut = None;
    for row in &returned {
        let seq = rows::seq(row).map_err(failed)?;
        let first = if with_runs {
            rows::first_of_run(row).map_err(failed)?
        } else {
            seq
        };
        if cut == Some(first) {
            continue;
        }
        match rows::read_candidate(row) {
            Ok(found) => {
                good.push(seq);
                claims.leased.push(Leased {
                    lease: Lease {
                        key: found.message.key().clone(),
                        token: FencingToken::after(found.token, now),
                        locator: seq.unsigned_abs(),
                        until: from_micros(until),
                    },
                    message: found.message,
                    attempts: found.attempts,
                    replays: found.replays,
                    accepted_at: from_micros(found.accepted_at),
                });
            }
            Err(reason) => {
                cut = Some(first);
                tracing::error!(inbox, seq, %reason, "corrupt message set aside");
                bad.push((seq, format!("corrupt: {reason}")));
                claims.corrupt.push(rows::corrupt_row(inbox, seq, reason));
            }
        }
    }
    if !bad.is_empty() {
        sqlx::query(statements.claim_set_aside.clone())
            .bind(json(&bad)?)
            .bind(now)
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    if !good.is_empty() {
        sqlx::query(statements.claim_lease.clone())
            .bind(json(&good)?)
            .bind(now)
            .bind(until)
            .bind(request.terms.worker().as_str())
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    Ok(claims)
}
