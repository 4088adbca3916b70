//! The processor: claims batches under short leases and ends each attempt in one of the ways
//! there are.

use std::{collections::VecDeque, io, time::Duration};

use inbox_api::{
    AfterDead, ClaimRequest, Extended, HandlerName, Lease, LeaseTerms, Leased, Outcome,
    Result as StoreResult, Settled, Settlement, Store as _, error_text,
};

use tokio::time::timeout;

use super::{LEASES, Worker, handlers, pause_after, worker_name};
use crate::{
    crash::{
        history::{Answered, Asked, Ending, Kept, ended, held},
        log::now,
        options::Mode,
        point::Point,
        traffic::number_of,
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
/// The longest run that is asked for.
const LONGEST_RUN: u32 = 5;

pub(super) async fn run(worker: &Worker, mut random: fastrand::Rng) -> Result<(), BoxError> {
    let name = worker_name()?;
    let both = handlers()?;
    let has_runs = worker.opened.inbox.capabilities().runs;
    while !worker.finishing() {
        let wanted: Vec<HandlerName> = match random.u8(..4) {
            0 => vec![both[0].clone()],
            1 => vec![both[1].clone()],
            _ => both.to_vec(),
        };
        let length = Duration::from_millis(random.u64(LEASES));
        let request = ClaimRequest {
            handlers: wanted,
            limit: random.u32(1..=worker.batch),
            terms: LeaseTerms::new(length, name.clone())?,
            run_limit: match has_runs && random.bool() {
                true => random.u32(2..=LONGEST_RUN),
                false => 1,
            },
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
        run_limit: request.run_limit,
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
    for run in runs_of(leased) {
        let ended = work_run(worker, random, run, length, together).await?;
        batch.extend(ended);
    }
    if !batch.is_empty() {
        settle(worker, &batch).await?;
    }
    Ok(())
}

/// The messages of each ordering key together, as they stand in a claim's answer.
fn runs_of(leased: Vec<Leased>) -> Vec<VecDeque<Leased>> {
    let mut runs: Vec<VecDeque<Leased>> = Vec::new();
    for leased in leased {
        let with_it = runs.last_mut().filter(|run| {
            run.back().is_some_and(|last| {
                last.message.ordering_key().is_some()
                    && last.message.ordering_key() == leased.message.ordering_key()
                    && last.lease.key.handler == leased.lease.key.handler
            })
        });
        match with_it {
            Some(run) => run.push_back(leased),
            None => runs.push(VecDeque::from([leased])),
        }
    }
    runs
}

/// Works on the messages of a run in their order, and hands back what is behind one that has to come before them.
/// When nobody knows whether one has ended, those behind it are left until their leases run out; so is, now and then,
/// the rest of a run of several. Answers the settlements that are still to be made.
async fn work_run(
    worker: &Worker,
    random: &mut fastrand::Rng,
    mut run: VecDeque<Leased>,
    length: Duration,
    together: bool,
) -> Result<Vec<Settlement>, BoxError> {
    let transactions = worker
        .opened
        .transactions
        .as_ref()
        .filter(|_| worker.mode == Mode::Transactional);
    let all = run.len();
    let mut batch: Vec<Settlement> = Vec::new();
    let mut ends_are_known = true;
    while let Some(mut leased) = run.pop_front() {
        let mut has_lost = false;
        if run.len() + 1 < all {
            worker.pass(Point::WithinRun)?;
        }
        worker.pass(Point::DuringHandler)?;
        if random.u32(..4 * worker.scale()) == 0 {
            tokio::time::sleep(Duration::from_millis(random.u64(1..=8))).await;
        }
        match random.u32(..100 * worker.scale()) {
            0..10 => {
                let worked_on = batch.iter_mut().map(|settlement| &mut settlement.lease);
                let ahead = run.iter_mut().map(|leased| &mut leased.lease);
                let leases = worked_on.chain([&mut leased.lease]).chain(ahead);
                let mut leases: Vec<&mut Lease> = leases.collect();
                let extended = extend(worker, &mut leases, ends_are_known, length).await?;
                ends_are_known = extended.is_some();
                has_lost = extended == Some(false);
            }
            // Stays away for longer than its lease: its work is another worker's by now.
            10 if leased.attempts.started < PATIENCE => tokio::time::sleep(length * 2).await,
            // Leaves all that has not ended, as if it were killed.
            11..14 if all > 1 && leased.attempts.started < PATIENCE => return Ok(Vec::new()),
            _ => {}
        }
        let settlement = Settlement {
            outcome: outcome(random, &leased),
            lease: leased.lease,
        };
        let goes_on = Ending::of(&settlement.outcome).lets_the_next_through();
        if has_lost && goes_on {
            // Those behind are left, and this one is told what it has lost. Where it does not go on they are handed
            // back in any case: one that is still leased would pass this one.
            run.clear();
        }
        if let (Outcome::Processed { .. }, Some(transactions)) = (&settlement.outcome, transactions)
        {
            // Those before it have to have ended when it is committed.
            let before = std::mem::take(&mut batch);
            if !before.is_empty() && !settle(worker, &before).await? {
                break;
            }
            let end = match random.u8(..20) {
                0 => End::ChangeOfMind,
                1..10 => End::SettleAndCommit,
                _ => End::SettleThenCommit,
            };
            if !complete(worker, &**transactions, &settlement, end).await? {
                break;
            }
            continue;
        }
        batch.push(settlement);
        if !goes_on {
            batch.extend(run.drain(..).map(|behind| Settlement {
                lease: behind.lease,
                outcome: Outcome::Release,
            }));
        }
        if !together && !settle(worker, &std::mem::take(&mut batch)).await? {
            break;
        }
    }
    Ok(batch)
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
            after: match random.bool() {
                true => AfterDead::Block,
                false => AfterDead::Continue,
            },
        },
        _ => Outcome::Processed { result: None },
    }
}

/// Extends the leases of a run in one call, and notes their new ends; answers whether none of them is lost, if that is
/// known.
async fn extend(
    worker: &Worker,
    run: &mut [&mut Lease],
    ends_are_known: bool,
    length: Duration,
) -> Result<Option<bool>, BoxError> {
    let leases: Vec<Lease> = run.iter().map(|lease| (**lease).clone()).collect();
    let ends = leases
        .iter()
        .map(|lease| ends_are_known.then_some(lease.until));
    let ends: Vec<_> = ends.collect();
    let asked = Asked::Extend {
        leases: leases.iter().map(held).collect(),
        length: micros(length),
    };
    // No point of its own; kills at any time meet it too.
    let points = [Point::AnyTime, Point::AnyTime];
    let extended = worker
        .call(
            asked,
            points,
            worker.opened.inbox.extend(&leases, length),
            |extended| Answered::extended(extended, &ends),
        )
        .await?;
    match extended {
        Ok(extended) => {
            for (lease, extended) in run.iter_mut().zip(&extended) {
                if let Extended::Until(until) = extended {
                    lease.until = *until;
                }
            }
            Ok(Some(!extended.contains(&Extended::LeaseLost)))
        }
        Err(error) => {
            pause_after(&error).await;
            Ok(None)
        }
    }
}

/// Settles, and repeats it while the answer is unknown; answers whether all are known to be done.
async fn settle(worker: &Worker, batch: &[Settlement]) -> Result<bool, BoxError> {
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
            Ok(settled) => return Ok(settled.iter().all(|one| *one == Settled::Done)),
            Err(error) => pause_after(&error).await,
        }
    }
    Ok(false)
}

/// How a transaction ends in which a message was handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Settled, and rolled back.
    ChangeOfMind,
    SettleThenCommit,
    SettleAndCommit,
}

/// Writes the effect and settles in one transaction. Once only: when its answer is unknown it may
/// have been committed, and a second one would find its settlement repeated, which is `Done` too,
/// and write the effect again. The lease is left to run out instead, and the worker that claims the message
/// then, if anybody can, does the work. Answers whether it is known to be done.
async fn complete(
    worker: &Worker,
    transactions: &dyn AnyTransactions,
    settlement: &Settlement,
    end: End,
) -> Result<bool, BoxError> {
    worker.pass(Point::BeforeSettle)?;
    let call = worker.log().start(Asked::Settle {
        endings: vec![ended(settlement)],
        transaction: true,
    })?;
    worker.pass(Point::DuringSettle)?;
    let answer = match in_transaction(worker, transactions, settlement, end).await {
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
    let is_done = answer == Answered::Settled(vec![Kept::Done]);
    worker.log().end(at, call, answer)?;
    Ok(is_done)
}

async fn in_transaction(
    worker: &Worker,
    transactions: &dyn AnyTransactions,
    settlement: &Settlement,
    end: End,
) -> Result<Answered, Unable> {
    let mut transaction = transactions.open().await?;
    let note = settlement.lease.key.to_string();
    // No time limit of the store's is for the caller's own statements.
    timeout(LONGEST_WRITE, transaction.write(&note))
        .await
        .map_err(|_| Unable::failed("no answer in time"))??;
    let settlements = std::slice::from_ref(settlement);
    if end == End::SettleAndCommit {
        worker.pass(Point::DuringCommit)?;
        let settled = transaction.settle_and_commit(settlements).await?;
        worker.pass(Point::AfterCommit)?;
        return Ok(Answered::settled(&settled));
    }
    let settled = transaction.settle(settlements).await?;
    worker.pass(Point::BeforeCommit)?;
    if end == End::ChangeOfMind || settled.first() != Some(&Settled::Done) {
        transaction.roll_back().await?;
        return Ok(if end == End::ChangeOfMind {
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
