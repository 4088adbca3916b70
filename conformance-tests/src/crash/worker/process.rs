//! The processor: claims batches under short leases and ends each attempt in one of the ways
//! there are.

use std::{io, time::Duration};

use inbox_api::{
    AfterDead, ClaimRequest, HandlerName, LeaseTerms, Leased, Outcome, Result as StoreResult,
    Settled, Settlement, error_text,
};

use tokio::time::timeout;

use super::{LEASES, Worker, handlers, pause_after, receive::number_of, worker_name};
use crate::{
    crash::{
        history::{Answered, Asked, ended, held},
        log::now,
        options::Mode,
        point::Point,
    },
    needs::{BoxError, Unable},
    transactions::AnyTransactions,
};

/// Attempts after which a handler only succeeds, so that every run comes to its end.
const PATIENCE: u32 = 12;
/// How long a handler waits for its own write: its connection may have gone silent.
const LONGEST_WRITE: Duration = Duration::from_secs(10);
/// How often a settlement is repeated whose answer is unknown.
const REPEATS: u32 = 4;

pub(super) async fn run(worker: &Worker, mut random: fastrand::Rng) -> Result<(), BoxError> {
    let name = worker_name()?;
    let both = handlers()?;
    while !worker.finishing() {
        let wanted: Vec<HandlerName> = match random.u8(..4) {
            0 => vec![both[0].clone()],
            1 => vec![both[1].clone()],
            _ => both.to_vec(),
        };
        let length = Duration::from_millis(random.u64(LEASES));
        let request = ClaimRequest {
            handlers: wanted,
            limit: random.u32(1..=10),
            terms: LeaseTerms::new(length, name.clone())?,
            run_limit: 1,
        };
        let leased = match claim(worker, &request).await? {
            Ok(leased) => leased,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        if leased.is_empty() {
            tokio::time::sleep(Duration::from_millis(random.u64(2..=10))).await;
            continue;
        }
        worker.pass(Point::AfterClaim)?;
        work(worker, &mut random, leased, length).await?;
    }
    Ok(())
}

async fn claim(worker: &Worker, request: &ClaimRequest) -> io::Result<StoreResult<Vec<Leased>>> {
    let asked = Asked::Claim {
        handlers: request.handlers.clone(),
        limit: request.limit,
        length: micros(request.terms.length()),
    };
    // Its answer is noted before anything else happens; what follows has a point of its own.
    let points = [Point::DuringClaim, Point::AnyTime];
    let claims = worker
        .call(
            asked,
            points,
            worker.opened.inbox.claim(request),
            Answered::claims,
        )
        .await?;
    Ok(claims.map(|claims| claims.leased))
}

pub(super) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// Runs the handler for each message, and ends the attempts one by one or all together.
pub(super) async fn work(
    worker: &Worker,
    random: &mut fastrand::Rng,
    leased: Vec<Leased>,
    length: Duration,
) -> Result<(), BoxError> {
    let together = random.bool();
    let mut batch = Vec::new();
    for leased in leased {
        worker.pass(Point::DuringHandler)?;
        if random.u8(..4) == 0 {
            tokio::time::sleep(Duration::from_millis(random.u64(1..=8))).await;
        }
        match random.u8(..100) {
            0..10 => extend(worker, &leased, length).await?,
            // Stays away for longer than its lease: its work is another worker's by now.
            10 if leased.attempts.started < PATIENCE => tokio::time::sleep(length * 2).await,
            _ => {}
        }
        let settlement = Settlement {
            outcome: outcome(random, &leased),
            lease: leased.lease,
        };
        let transactions = worker
            .opened
            .transactions
            .as_ref()
            .filter(|_| worker.mode == Mode::Transactional);
        match (&settlement.outcome, transactions) {
            (Outcome::Processed { .. }, Some(transactions)) => {
                let change_of_mind = random.u8(..20) == 0;
                complete(worker, &**transactions, &settlement, change_of_mind).await?;
            }
            _ if together => batch.push(settlement),
            _ => settle(worker, &[settlement]).await?,
        }
    }
    if !batch.is_empty() {
        settle(worker, &batch).await?;
    }
    Ok(())
}

fn outcome(random: &mut fastrand::Rng, leased: &Leased) -> Outcome {
    let poison = number_of(&leased.lease.key).is_some_and(|number| number % 31 == 7);
    let impatient = leased.attempts.started >= PATIENCE;
    match random.u8(..100) {
        0..12 if !impatient => Outcome::Retry {
            after: Duration::from_millis(random.u64(..=60)),
            error: "not yet".into(),
        },
        12..18 if !impatient => Outcome::Release,
        18..24 if !impatient => Outcome::Defer {
            after: Duration::from_millis(random.u64(..=60)),
            error: random.bool().then(|| "not now".into()),
        },
        // Now and then it is handled after all, so that one that is replayed may be.
        _ if poison && random.u8(..4) > 0 => Outcome::Dead {
            reason: "poison".into(),
            after: AfterDead::Continue,
        },
        _ => Outcome::Processed { result: None },
    }
}

async fn extend(worker: &Worker, leased: &Leased, length: Duration) -> Result<(), BoxError> {
    let leases = [leased.lease.clone()];
    let asked = Asked::Extend {
        leases: vec![held(&leased.lease)],
        length: micros(length),
    };
    // No point of its own; kills at any time meet it too.
    let points = [Point::AnyTime, Point::AnyTime];
    let extended = worker
        .call(
            asked,
            points,
            worker.opened.inbox.extend(&leases, length),
            |extended| Answered::extended(extended),
        )
        .await?;
    if let Err(error) = extended {
        pause_after(&error).await;
    }
    Ok(())
}

/// Settles, and repeats it while the answer is unknown.
async fn settle(worker: &Worker, batch: &[Settlement]) -> Result<(), BoxError> {
    for _ in 0..REPEATS {
        worker.pass(Point::BeforeSettle)?;
        let asked = Asked::Settle {
            endings: batch.iter().map(ended).collect(),
            transaction: false,
        };
        let points = [Point::DuringSettle, Point::AfterSettle];
        let settled = worker
            .call(
                asked,
                points,
                worker.opened.inbox.settle(batch),
                |settled| Answered::settled(settled),
            )
            .await?;
        match settled {
            Ok(_) => return Ok(()),
            Err(error) => pause_after(&error).await,
        }
    }
    Ok(())
}

/// Writes the effect and settles in one transaction. Once only: when its answer is unknown it may
/// have been committed, and a second one would find its settlement repeated, which is `Done` too,
/// and write the effect again. The lease is left to run out instead, and the worker that claims the message
/// then, if anybody can, does the work.
async fn complete(
    worker: &Worker,
    transactions: &dyn AnyTransactions,
    settlement: &Settlement,
    change_of_mind: bool,
) -> Result<(), BoxError> {
    worker.pass(Point::BeforeSettle)?;
    let call = worker.log().start(Asked::Settle {
        endings: vec![ended(settlement)],
        transaction: true,
    })?;
    worker.pass(Point::DuringSettle)?;
    let answer = match in_transaction(worker, transactions, settlement, change_of_mind).await {
        Ok(answer) => answer,
        Err(Unable::Failed(error)) => match error.downcast::<inbox_api::Error>() {
            Ok(error) => {
                // The lease runs out and another worker does it again, or it was committed.
                pause_after(&error).await;
                Answered::failed(&error)
            }
            // An error of the harness's own statement: the transaction was not committed.
            Err(error) => Answered::Failed {
                error: format!("in the handler's write: {}", error_text(&error.to_string())),
                retryable: true,
                unknown: false,
            },
        },
        Err(unable) => return Err(unable.into()),
    };
    let at = now()?;
    worker.log().end(at, call, answer)?;
    Ok(())
}

async fn in_transaction(
    worker: &Worker,
    transactions: &dyn AnyTransactions,
    settlement: &Settlement,
    change_of_mind: bool,
) -> Result<Answered, Unable> {
    let mut transaction = transactions.open().await?;
    let note = settlement.lease.key.to_string();
    // No time limit of the store's is for the caller's own statements.
    timeout(LONGEST_WRITE, transaction.write(&note))
        .await
        .map_err(|_| Unable::failed("no answer in time"))??;
    let settled = transaction.settle(std::slice::from_ref(settlement)).await?;
    worker.pass(Point::BeforeCommit)?;
    if change_of_mind || settled.first() != Some(&Settled::Done) {
        transaction.roll_back().await?;
        return Ok(if change_of_mind {
            Answered::RolledBack
        } else {
            Answered::settled(&settled)
        });
    }
    worker.pass(Point::DuringCommit)?;
    transaction.commit().await?;
    worker.pass(Point::AfterCommit)?;
    Ok(Answered::settled(&settled))
}
