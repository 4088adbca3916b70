//! Many tasks, and two connections where the harness offers a second, at the same keys.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use inbox_api::{
    Begun, ClaimRequest, ErrorKind, Filter, HandlerName, Inbox, Lease, Leased, Receipt, Result,
    Settled, Settlement, Slice, State, Store, StoreExt,
};
use std::sync::Arc;

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, ids, message, numbered, processed, terms, worker,
    },
};

const TASKS: usize = 16;

/// Repeats what the store gave up in favour of others, as every caller does.
pub(crate) async fn persist<T, F: Future<Output = Result<T>>>(
    mut operation: impl FnMut() -> F,
) -> Result<T> {
    let mut tries = 0;
    loop {
        match operation().await {
            Err(error) if error.kind() == ErrorKind::Conflict && tries < 100 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(tries)).await;
            }
            answer => return answer,
        }
    }
}

/// Runs `work` in `n` tasks at once, spread over the connections.
async fn in_tasks<T, F>(
    inbox: &TestInbox,
    n: usize,
    work: impl Fn(usize, Arc<dyn Inbox>) -> F,
) -> CaseResult<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = CaseResult<T>> + Send + 'static,
{
    let tasks: Vec<_> = inbox
        .connections(n)
        .await?
        .into_iter()
        .enumerate()
        .map(|(number, connection)| tokio::spawn(work(number, connection)))
        .collect();
    let mut results = Vec::new();
    for result in join_all(tasks).await {
        results.push(result??);
    }
    Ok(results)
}

/// Defect: exists, run, add: two concurrent deliveries are both accepted.
pub(crate) async fn one_key_is_accepted_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for round in 0..5 {
        let sent = message(&format!("{round}"))?;
        let receipts = in_tasks(&inbox, TASKS, |_, connection| {
            let sent = sent.clone();
            async move { Ok(persist(|| connection.receive_one(&sent)).await?) }
        })
        .await?;
        let accepted = receipts.iter().filter(|r| **r == Receipt::Accepted).count();
        same(
            &format!("times accepted, of {TASKS} at once"),
            &accepted,
            &1,
        )?;
        let duplicates = receipts
            .iter()
            .filter(|r| **r == Receipt::Duplicate { differs: false })
            .count();
        same("times a duplicate", &duplicates, &(TASKS - 1))?;
    }
    same(
        "messages claimable",
        &inbox.claim_up_to(100, LONG).await?.len(),
        &5,
    )
}

/// Defect: a settlement that had to wait for a renewal finds the row under its old place only, and
/// the message is finished and unfinished at the same time.
pub(crate) async fn a_renewal_during_a_settlement_changes_nothing(cx: Context) -> CaseResult {
    const ROUNDS: usize = 25;
    const MESSAGES: usize = 8;
    let inbox = cx.fresh().await?;
    let sent = numbered(ROUNDS * MESSAGES)?;
    for message in &sent {
        inbox.accept(message).await?;
    }
    for round in 0..ROUNDS {
        let leased = inbox.claim_up_to(8, LONG).await?;
        same("claimed", &leased.len(), &MESSAGES)?;
        let leases: Vec<Lease> = leased.iter().map(|leased| leased.lease.clone()).collect();
        let settlements: Vec<Settlement> = leases
            .iter()
            .map(|lease| Settlement {
                lease: lease.clone(),
                outcome: processed(),
            })
            .collect();
        let settled = in_tasks(&inbox, TASKS, |task, connection| {
            let (leases, settlements) = (leases.clone(), settlements.clone());
            async move {
                if task == round % TASKS {
                    return Ok(persist(|| connection.settle(&settlements)).await?);
                }
                let _ = persist(|| connection.extend(&leases, LONG)).await?;
                Ok(Vec::new())
            }
        })
        .await?;
        let settled: Vec<Settled> = settled.into_iter().flatten().collect();
        same("settled", &settled, &vec![Settled::Done; MESSAGES])?;
    }
    for message in &sent {
        inbox.has_state(message.key(), State::Processed).await?;
    }
    let statistics = inbox.statistics().await?;
    same(
        "processed",
        &statistics.count(State::Processed),
        &(sent.len() as u64),
    )?;
    same("leased", &statistics.count(State::Leased), &0)?;
    same(
        "listed",
        &inbox.count(&Filter::default()).await?,
        &(sent.len() as u64),
    )?;
    same(
        "claimable afterwards",
        &ids(&inbox.claim_up_to(100, LONG).await?),
        &Vec::new(),
    )
}

/// Defect: a slice chooses dead messages and then replays what it has chosen, whatever became of it
/// meanwhile: another operator replayed it, and it was processed.
pub(crate) async fn a_replay_of_the_dead_spares_what_was_processed(cx: Context) -> CaseResult {
    const MESSAGES: usize = 60;
    const REPLAYERS: usize = 3;
    let inbox = cx.fresh().await?;
    let sent = numbered(MESSAGES)?;
    inbox.accept_all(&sent).await?;
    let tries: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let finished = Arc::new(AtomicUsize::new(0));
    in_tasks(&inbox, 2 * REPLAYERS, |task, connection| {
        let (tries, finished) = (Arc::clone(&tries), Arc::clone(&finished));
        async move {
            let (all, slice) = (
                Filter::default(),
                Slice {
                    after: None,
                    limit: 20,
                },
            );
            let request = ClaimRequest {
                handlers: vec![HandlerName::new(HANDLER)?],
                limit: 8,
                terms: terms(LONG)?,
                run_limit: 1,
            };
            let started = Instant::now();
            while finished.load(Ordering::Relaxed) < MESSAGES {
                ensure!(
                    started.elapsed() < LONG,
                    "a message is neither processed nor dead"
                );
                // So that a store with one lock for all writers, or one that never waits, gets to
                // the others too.
                tokio::time::sleep(Duration::from_millis(2)).await;
                if task < REPLAYERS {
                    persist(|| connection.replay_slice(&all, &slice)).await?;
                    continue;
                }
                // The first time it fails for good, the second time it is processed.
                for leased in persist(|| connection.claim(&request)).await?.leased {
                    let before = {
                        let mut tries = tries.lock().unwrap_or_else(PoisonError::into_inner);
                        let tries = tries.entry(leased.message.id().to_string()).or_default();
                        *tries += 1;
                        *tries - 1
                    };
                    let outcome = if before == 0 {
                        dead("first")
                    } else {
                        processed()
                    };
                    let settled =
                        persist(|| connection.settle_one(&leased.lease, outcome.clone())).await?;
                    same("settled", &settled, &Settled::Done)?;
                    finished.fetch_add(usize::from(before == 1), Ordering::Relaxed);
                }
            }
            Ok(())
        }
    })
    .await?;
    let tries = tries.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let wrong: Vec<_> = tries.iter().filter(|(_, times)| **times != 2).collect();
    same("not tried twice, and how often", &wrong, &Vec::new())?;
    let statistics = inbox.statistics().await?;
    same(
        "processed",
        &statistics.count(State::Processed),
        &(MESSAGES as u64),
    )
}

/// Defect: batches that lock the same keys in different orders deadlock.
pub(crate) async fn overlapping_batches_accept_each_key_once(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all = numbered(60)?;
    let receipts = in_tasks(&inbox, 8, |number, connection| {
        let mut batch = all.clone();
        batch.rotate_left(number * 7);
        if number % 2 == 1 {
            batch.reverse();
        }
        async move {
            let receipts = persist(|| connection.receive(&batch)).await?;
            Ok(batch.into_iter().zip(receipts).collect::<Vec<_>>())
        }
    })
    .await?;
    let mut accepted: BTreeMap<String, usize> = BTreeMap::new();
    for (message, receipt) in receipts.into_iter().flatten() {
        *accepted.entry(message.id().to_string()).or_default() +=
            usize::from(receipt == Receipt::Accepted);
    }
    for (id, times) in accepted {
        same(&format!("times {id} was accepted"), &times, &1)?;
    }
    same(
        "messages stored",
        &inbox.count(&Filter::default()).await?,
        &60,
    )
}

/// Defect: two workers take the same message.
pub(crate) async fn claims_are_disjoint_and_complete(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(100)?).await?;
    let claimed = in_tasks(&inbox, 8, |_, connection| async move {
        let mut mine: Vec<Leased> = Vec::new();
        let mut idle = 0;
        // An empty answer may mean that others were just taking what is due.
        while idle < 5 {
            let handler = HandlerName::new(HANDLER)?;
            let worker = worker()?;
            let claims = persist(|| connection.claim_for(&handler, 7, LONG, &worker)).await?;
            idle = if claims.leased.is_empty() {
                idle + 1
            } else {
                0
            };
            mine.extend(claims.leased);
        }
        Ok(mine)
    })
    .await?;
    let mut seen = ids(&claimed.into_iter().flatten().collect::<Vec<_>>());
    let total = seen.len();
    seen.sort();
    seen.dedup();
    same(
        "messages claimed, each once",
        &(seen.len(), total),
        &(100, 100),
    )
}

/// Defect: two concurrent identical requests both reach the handler.
pub(crate) async fn of_many_begins_one_runs(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for round in 0..5 {
        let sent = message(&format!("{round}"))?;
        let begun = in_tasks(&inbox, TASKS, |_, connection| {
            let sent = sent.clone();
            async move {
                let terms = terms(LONG)?;
                Ok(persist(|| connection.begin(&sent, &terms)).await?)
            }
        })
        .await?;
        let runs = begun.iter().filter(|b| matches!(b, Begun::Run(_))).count();
        let busy = begun
            .iter()
            .filter(|b| matches!(b, Begun::Busy { .. }))
            .count();
        same(
            &format!("Run and Busy of {TASKS} at once"),
            &(runs, busy),
            &(1, TASKS - 1),
        )?;
    }
    Ok(())
}

pub(crate) async fn begins_and_claims_share_one_lease(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for round in 0..10 {
        let sent = message(&format!("{round}"))?;
        inbox.accept(&sent).await?;
        let taken = in_tasks(&inbox, 8, |number, connection| {
            let sent = sent.clone();
            async move {
                if number % 2 == 0 {
                    let terms = terms(LONG)?;
                    let begun = persist(|| connection.begin(&sent, &terms)).await?;
                    return Ok(usize::from(matches!(begun, Begun::Run(_))));
                }
                let (handler, worker) = (sent.handler().clone(), worker()?);
                Ok(persist(|| connection.claim_for(&handler, 1, LONG, &worker))
                    .await?
                    .leased
                    .len())
            }
        })
        .await?;
        same(
            "holders of one message",
            &taken.into_iter().sum::<usize>(),
            &1,
        )?;
    }
    Ok(())
}

/// Everything at once: receivers with copies, workers that claim, settle, retry and release.
pub(crate) async fn nothing_is_lost_or_run_twice_under_load(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all = numbered(80)?;
    let total = all.len();
    let runs = in_tasks(&inbox, 8, |number, connection| {
        let all = all.clone();
        async move {
            let mut finished = Vec::new();
            if number < 4 {
                for chunk in all.chunks(9) {
                    let _ = persist(|| connection.receive(chunk)).await?;
                }
            }
            let mut idle = 0;
            while idle < 10 {
                let handler = HandlerName::new(HANDLER)?;
                let worker = worker()?;
                let leased = persist(|| connection.claim_for(&handler, 5, LONG, &worker))
                    .await?
                    .leased;
                if leased.is_empty() {
                    idle += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                idle = 0;
                finished.extend(work_off(&*connection, &leased).await?);
            }
            Ok(finished)
        }
    })
    .await?;
    let mut finished: Vec<String> = runs.into_iter().flatten().collect();
    finished.sort();
    let expected: Vec<String> = all.iter().map(|m| m.id().to_string()).collect();
    same("messages finished, each once", &finished, &expected)?;
    let counted = inbox.statistics().await?.count(State::Processed);
    same("processed in the statistics", &counted, &(total as u64))
}

/// Finishes a message at its second attempt or later, and sends it back at its first.
async fn work_off(connection: &dyn Inbox, leased: &[Leased]) -> CaseResult<Vec<String>> {
    let settlements: Vec<Settlement> = leased
        .iter()
        .map(|leased| Settlement {
            lease: leased.lease.clone(),
            outcome: if leased.attempts.started > 1 {
                processed()
            } else {
                crate::test_inbox::retry(Duration::ZERO)
            },
        })
        .collect();
    let answers = persist(|| Store::settle(connection, &settlements)).await?;
    ensure!(
        answers
            .iter()
            .all(|answer| *answer == inbox_api::Settled::Done),
        "settling held leases: expected Done for all, saw {answers:?}"
    );
    Ok(leased
        .iter()
        .filter(|leased| leased.attempts.started > 1)
        .map(|leased| leased.message.id().to_string())
        .collect())
}

/// Defect: settlements that lock rows in the order of their input deadlock.
pub(crate) async fn settling_in_opposite_orders_does_not_fail(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(50)?).await?;
    let leased = inbox.claim_up_to(50, LONG).await?;
    let settlements: Vec<Settlement> = leased
        .iter()
        .map(|leased| Settlement {
            lease: leased.lease.clone(),
            outcome: processed(),
        })
        .collect();
    let answers = in_tasks(&inbox, 8, |number, connection| {
        let mut batch = settlements.clone();
        if number % 2 == 1 {
            batch.reverse();
        }
        async move { Ok(persist(|| connection.settle(&batch)).await?) }
    })
    .await?;
    for answer in answers.into_iter().flatten() {
        if answer != inbox_api::Settled::Done {
            return Err(Unmet::Failed(format!(
                "settling twice: expected Done, saw {answer:?}"
            )));
        }
    }
    same(
        "processed",
        &inbox.statistics().await?.count(State::Processed),
        &50,
    )?;
    let record = inbox.record(numbered(1)?[0].key()).await?;
    same(
        "attempts finished by eight repetitions",
        &record.attempts.finished,
        &1,
    )
}
