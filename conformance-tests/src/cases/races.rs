//! Two who want to change one message at the same time: a worker and the next one, a worker and an
//! operator, an operator and a purger. Over many messages, on two connections; judged by what they
//! were answered and by what is there in the end.
//!
//! Defect in all: a check, then a write that does not check again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use inbox_api::{
    Begun, ClaimRequest, Cursor, Edit, Extended, Filter, HandlerName, Inbox, Intervention, Key,
    Lease, Leased, Message, Outcome, PurgeRequest, Receipt, Settled, Settlement, Slice, State,
    StoreExt as _,
};

use super::concurrency::persist;
pub(crate) use super::sweep_races::{
    a_clearing_or_a_claim_wins, a_drop_of_payloads_or_a_replay_wins,
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, dead, message, numbered, processed, retry, terms,
    },
};

/// So many that every pair of steps meets.
pub(super) const MESSAGES: usize = 40;
/// How many a bulk operation takes at once.
pub(super) const SLICE: u32 = 4;

/// Runs both at once, each on a connection of its own where there are two.
pub(super) async fn at_once<A, B, F, G>(
    inbox: &TestInbox,
    one: impl FnOnce(Arc<dyn Inbox>) -> F,
    other: impl FnOnce(Arc<dyn Inbox>) -> G,
) -> CaseResult<(A, B)>
where
    A: Send + 'static,
    B: Send + 'static,
    F: Future<Output = CaseResult<A>> + Send + 'static,
    G: Future<Output = CaseResult<B>> + Send + 'static,
{
    let mut connections = inbox.connections(2).await?.into_iter();
    let mut next = || {
        connections
            .next()
            .unwrap_or_else(|| Arc::clone(&inbox.store))
    };
    let (one, other) = (tokio::spawn(one(next())), tokio::spawn(other(next())));
    Ok((one.await??, other.await??))
}

pub(super) type Ids = BTreeSet<String>;

fn id(key: &Key) -> String {
    key.id.to_string()
}

pub(super) fn ids_of(leased: &[Leased]) -> Ids {
    leased.iter().map(|leased| id(&leased.lease.key)).collect()
}

/// Messages whose first lease has run out.
async fn run_out(inbox: &TestInbox) -> CaseResult<Vec<Lease>> {
    inbox.accept_all(&numbered(MESSAGES)?).await?;
    let leased = inbox.claim_up_to(1000, inbox.brief()).await?;
    same("claimed", &leased.len(), &MESSAGES)?;
    inbox.pass(inbox.brief()).await?;
    let mut leases: Vec<Lease> = leased.into_iter().map(|leased| leased.lease).collect();
    leases.sort_by_key(|lease| id(&lease.key));
    Ok(leases)
}

/// Claims until nothing has been due for a while.
pub(super) async fn claim_all(inbox: Arc<dyn Inbox>) -> CaseResult<Vec<Leased>> {
    let request = ClaimRequest {
        handlers: vec![HandlerName::new(HANDLER)?],
        limit: SLICE,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    let (mut taken, mut idle) = (Vec::new(), 0);
    while idle < 5 {
        let leased = persist(|| inbox.claim(&request)).await?.leased;
        idle = if leased.is_empty() { idle + 1 } else { 0 };
        taken.extend(leased);
    }
    Ok(taken)
}

/// Begins every message, from the last to the first: somewhere both meet.
async fn begin_all(inbox: Arc<dyn Inbox>, messages: Vec<Message>) -> CaseResult<Vec<Leased>> {
    let terms = terms(LONG)?;
    let mut taken = Vec::new();
    for message in messages.iter().rev() {
        if let Begun::Run(leased) = persist(|| inbox.begin(message, &terms)).await? {
            taken.push(*leased);
        }
    }
    Ok(taken)
}

/// How the next worker takes a message over.
#[derive(Clone, Copy, Debug)]
enum TakeOver {
    Claim,
    Begin,
}

async fn take_over(inbox: Arc<dyn Inbox>, how: TakeOver) -> CaseResult<Vec<Leased>> {
    match how {
        TakeOver::Claim => claim_all(inbox).await,
        TakeOver::Begin => begin_all(inbox, numbered(MESSAGES)?).await,
    }
}

/// Settles one after the other; the ids of those that were done.
pub(super) async fn settle_all(
    inbox: Arc<dyn Inbox>,
    leases: Vec<Lease>,
    outcome: Outcome,
) -> CaseResult<Ids> {
    let mut done = Ids::new();
    for lease in leases {
        match persist(|| inbox.settle_one(&lease, outcome.clone())).await? {
            Settled::Done => drop(done.insert(id(&lease.key))),
            Settled::LeaseLost => {}
            refused @ Settled::Refused(_) => {
                return Err(Unmet::Failed(format!("settling: saw {refused:?}")));
            }
        }
    }
    Ok(done)
}

/// Fails unless every message went to exactly one of the two.
fn apart(one: (&str, &Ids), other: (&str, &Ids), messages: usize) -> CaseResult {
    let both: Vec<_> = one.1.intersection(other.1).collect();
    same(
        &format!("messages that were both {} and {}", one.0, other.0),
        &both,
        &Vec::new(),
    )?;
    let none = messages - one.1.len() - other.1.len();
    same(
        &format!("messages that were neither {} nor {}", one.0, other.0),
        &none,
        &0,
    )
}

pub(super) async fn all_in(inbox: &TestInbox, ids: &Ids, state: State, what: &str) -> CaseResult {
    let filter = Filter {
        states: vec![state],
        ..Filter::default()
    };
    let page = inbox_api::Page::first(1000);
    let listed = inbox.list(&filter, &page).await?.records;
    let listed: Ids = listed.iter().map(|record| id(&record.key)).collect();
    let missing: Vec<_> = ids.difference(&listed).collect();
    same(
        &format!("messages that were {what} and are not {state}"),
        &missing,
        &Vec::new(),
    )
}

pub(crate) async fn a_settlement_or_a_take_over_wins(cx: Context) -> CaseResult {
    for (how, outcome, state) in [
        (TakeOver::Claim, processed(), State::Processed),
        (TakeOver::Begin, dead("late"), State::Dead),
    ] {
        let inbox = cx.fresh().await?;
        let leases = run_out(&inbox).await?;
        let (settled, taken) = at_once(
            &inbox,
            |connection| settle_all(connection, leases, outcome),
            |connection| take_over(connection, how),
        )
        .await?;
        let taken_ids = ids_of(&taken);
        apart(
            ("settled by the lease that had run out", &settled),
            ("taken over", &taken_ids),
            MESSAGES,
        )?;
        all_in(&inbox, &settled, state, "settled").await?;
        all_in(&inbox, &taken_ids, State::Leased, "taken over").await?;
        let leases = taken.into_iter().map(|leased| leased.lease).collect();
        let done = settle_all(Arc::clone(&inbox.store), leases, processed()).await?;
        same("settled by the new holders", &done.len(), &taken_ids.len())?;
    }
    Ok(())
}

/// Claims one after the other until all have been taken, or nothing has come for long.
async fn claim_each(inbox: Arc<dyn Inbox>) -> CaseResult<usize> {
    let request = ClaimRequest {
        handlers: vec![HandlerName::new(HANDLER)?],
        limit: 1,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    let (mut taken, mut idle) = (0, 0);
    while taken < MESSAGES && idle < 10_000 {
        let leased = persist(|| inbox.claim(&request)).await?.leased;
        idle = if leased.is_empty() { idle + 1 } else { 0 };
        taken += leased.len();
        tokio::task::yield_now().await;
    }
    Ok(taken)
}

/// Defect: where one lease of a batch is lost, a look behind the settlement tells which of the others it has ended. One
/// that was handed back may be leased again by then.
pub(crate) async fn what_is_taken_again_at_once_was_handed_back(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("lost")?).await?;
    let lost = inbox.claim_one().await?;
    inbox.finish(&lost, dead("enough")).await?;
    let _ = inbox.replay(&lost.lease.key, &Edit::default()).await?;
    let newer = inbox.claim_one().await?;
    inbox.finish(&newer, processed()).await?;
    inbox.accept_all(&numbered(MESSAGES)?).await?;
    let leased = inbox.claim_up_to(1000, LONG).await?;
    same("claimed", &leased.len(), &MESSAGES)?;
    let hand_back = |inbox: Arc<dyn Inbox>| async move {
        let mut answers = Vec::new();
        for one in leased {
            let batch = [(&lost, processed()), (&one, Outcome::Release)];
            let batch = batch.map(|(leased, outcome)| Settlement {
                lease: leased.lease.clone(),
                outcome,
            });
            answers.push(persist(|| inbox.settle(&batch)).await?);
        }
        Ok(answers)
    };
    let (answers, taken) = at_once(&inbox, hand_back, claim_each).await?;
    let expected = vec![Settled::LeaseLost, Settled::Done];
    same("answers", &answers, &vec![expected; MESSAGES])?;
    let rest = inbox.claim_up_to(1000, LONG).await?.len();
    same("taken again", &(taken + rest), &MESSAGES)
}

/// Defect: an earlier holder hands back what another one holds now, and a third one gets it too.
pub(crate) async fn a_late_retry_hands_out_nothing_twice(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let leases = run_out(&inbox).await?;
    let old = leases.clone();
    let (settled, taken) = at_once(
        &inbox,
        |connection| settle_all(connection, old, retry(Duration::ZERO)),
        claim_all,
    )
    .await?;
    // Each was claimed once, whether it was handed back before or its lease had just run out.
    let mut tokens: BTreeMap<String, usize> = BTreeMap::new();
    for leased in &taken {
        *tokens.entry(id(&leased.lease.key)).or_default() += 1;
    }
    let twice: Vec<_> = tokens.iter().filter(|(_, times)| **times > 1).collect();
    same(
        "claimed more than once, under leases that all run, during late retries",
        &twice,
        &Vec::new(),
    )?;
    let rest = claim_all(Arc::clone(&inbox.store)).await?;
    let both: Vec<_> = ids_of(&rest)
        .intersection(&ids_of(&taken))
        .cloned()
        .collect();
    same("claimed again from under a lease", &both, &Vec::new())?;
    same(
        &format!("claimed in all ({} were handed back)", settled.len()),
        &(taken.len() + rest.len()),
        &MESSAGES,
    )
}

pub(crate) async fn an_extension_or_a_take_over_wins(cx: Context) -> CaseResult {
    for how in [TakeOver::Claim, TakeOver::Begin] {
        let inbox = cx.fresh().await?;
        let leases = run_out(&inbox).await?;
        let old = leases.clone();
        let extend = |connection: Arc<dyn Inbox>| async move {
            let mut extended = Ids::new();
            for lease in old {
                match persist(|| connection.extend_one(&lease, LONG)).await? {
                    Extended::Until(_) => drop(extended.insert(id(&lease.key))),
                    Extended::LeaseLost => {}
                }
            }
            Ok(extended)
        };
        let (extended, taken) =
            at_once(&inbox, extend, |connection| take_over(connection, how)).await?;
        let taken_ids = ids_of(&taken);
        apart(
            ("extended", &extended),
            ("taken over", &taken_ids),
            MESSAGES,
        )?;
        let leases = leases
            .into_iter()
            .filter(|lease| extended.contains(&id(&lease.key)))
            .collect();
        let done = settle_all(Arc::clone(&inbox.store), leases, processed()).await?;
        same("settled by whose lease was extended", &done, &extended)?;
        all_in(&inbox, &taken_ids, State::Leased, "taken over").await?;
    }
    Ok(())
}

/// Discards one by one, or by slices; how many.
async fn discard_all(inbox: Arc<dyn Inbox>, keys: Vec<Key>, by_slice: bool) -> CaseResult<u64> {
    let mut discarded = 0;
    if !by_slice {
        for key in keys {
            let answer = persist(|| inbox.discard(&key)).await?;
            discarded += u64::from(answer == Intervention::Done);
        }
        return Ok(discarded);
    }
    let filter = Filter {
        states: vec![State::Pending],
        ..Filter::default()
    };
    let mut after: Option<Cursor> = None;
    for _ in 0..10 * MESSAGES {
        let slice = Slice {
            after: after.take(),
            limit: SLICE,
        };
        let progress = persist(|| inbox.discard_slice(&filter, &slice)).await?;
        discarded += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(discarded),
        }
    }
    Err(Unmet::Failed(format!(
        "slices of {SLICE} over {MESSAGES} messages: saw no end"
    )))
}

pub(super) async fn number_of(inbox: &TestInbox, state: State) -> CaseResult<u64> {
    Ok(inbox.statistics().await?.count(state))
}

pub(crate) async fn a_discard_or_a_claim_wins(cx: Context) -> CaseResult {
    for by_slice in [false, true] {
        let inbox = cx.fresh().await?;
        let all = numbered(MESSAGES)?;
        inbox.accept_all(&all).await?;
        let keys = all.iter().map(|message| message.key().clone()).collect();
        let (discarded, taken) = at_once(
            &inbox,
            |connection| discard_all(connection, keys, by_slice),
            claim_all,
        )
        .await?;
        let what = if by_slice { "by slices" } else { "by key" };
        same(
            &format!("claimed, and discarded {what} at the same time, in all"),
            &(taken.len() as u64 + discarded),
            &(MESSAGES as u64),
        )?;
        all_in(&inbox, &ids_of(&taken), State::Leased, "claimed").await?;
        same(
            &format!("discarded {what} in the end"),
            &number_of(&inbox, State::Discarded).await?,
            &discarded,
        )?;
        inbox.nothing_due("all are claimed or discarded").await?;
        let leases: Vec<Lease> = taken.into_iter().map(|leased| leased.lease).collect();
        let expected = leases.len();
        let done = settle_all(Arc::clone(&inbox.store), leases, processed()).await?;
        same("settled of what was claimed", &done.len(), &expected)?;
    }
    Ok(())
}

pub(crate) async fn a_discard_or_a_late_settlement_wins(cx: Context) -> CaseResult {
    for by_slice in [false, true] {
        let inbox = cx.fresh().await?;
        let leases = run_out(&inbox).await?;
        let mut keys: Vec<Key> = leases.iter().map(|lease| lease.key.clone()).collect();
        keys.reverse();
        let (settled, discarded) = at_once(
            &inbox,
            |connection| settle_all(connection, leases, processed()),
            |connection| discard_all(connection, keys, by_slice),
        )
        .await?;
        let what = if by_slice { "by slices" } else { "by key" };
        same(
            &format!("settled, and discarded {what} at the same time, in all"),
            &(settled.len() as u64 + discarded),
            &(MESSAGES as u64),
        )?;
        all_in(&inbox, &settled, State::Processed, "settled").await?;
        same(
            &format!("discarded {what} in the end"),
            &number_of(&inbox, State::Discarded).await?,
            &discarded,
        )?;
    }
    Ok(())
}

/// Processed messages.
pub(super) async fn finished(inbox: &TestInbox) -> CaseResult<Vec<Key>> {
    inbox.accept_all(&numbered(MESSAGES)?).await?;
    let leased = inbox.claim_up_to(1000, LONG).await?;
    let ends: Vec<Settlement> = leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: processed(),
        })
        .collect();
    let _ = inbox.settle(&ends).await?;
    same(
        "processed",
        &number_of(inbox, State::Processed).await?,
        &(MESSAGES as u64),
    )?;
    Ok(numbered(MESSAGES)?
        .iter()
        .map(|message| message.key().clone())
        .collect())
}

/// Purges all that is processed, in steps: by age, or by the keys that were archived.
async fn purge_all(inbox: Arc<dyn Inbox>, archived: Option<Vec<Key>>) -> CaseResult<u64> {
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, SLICE)?;
    let mut purged = 0;
    if let Some(keys) = archived {
        for keys in keys.chunks(SLICE as usize) {
            purged += persist(|| inbox.purge_archived(&expired, keys)).await?;
        }
        return Ok(purged);
    }
    let mut idle = 0;
    while idle < 3 {
        let step = persist(|| inbox.purge(&expired)).await?;
        idle = if step == 0 { idle + 1 } else { 0 };
        purged += step;
    }
    Ok(purged)
}

/// Replays one by one from the last, or by slices; how many. `lost` is the answer for one that something
/// else was sooner with.
pub(super) async fn replay_all(
    inbox: Arc<dyn Inbox>,
    keys: Vec<Key>,
    by_slice: bool,
    lost: Intervention,
) -> CaseResult<u64> {
    let (mut replayed, edit) = (0, Edit::default());
    if !by_slice {
        for key in keys.iter().rev() {
            match persist(|| inbox.replay(key, &edit)).await? {
                Intervention::Done => replayed += 1,
                answer if answer == lost => {}
                other => {
                    return Err(Unmet::Failed(format!(
                        "replay of {key} while its retention ended: expected Done or {lost:?}, saw {other:?}"
                    )));
                }
            }
        }
        return Ok(replayed);
    }
    let filter = Filter {
        states: vec![State::Processed],
        ..Filter::default()
    };
    let mut after: Option<Cursor> = None;
    for _ in 0..10 * MESSAGES {
        let slice = Slice {
            after: after.take(),
            limit: SLICE,
        };
        let progress = persist(|| inbox.replay_slice(&filter, &slice)).await?;
        replayed += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(replayed),
        }
    }
    Err(Unmet::Failed(format!(
        "slices of {SLICE} over {MESSAGES} messages: saw no end"
    )))
}

async fn replay_during_purge(cx: &Context, archived: bool) -> CaseResult {
    for by_slice in [false, true] {
        let inbox = cx.fresh().await?;
        let keys = finished(&inbox).await?;
        let taken = archived.then(|| keys.clone());
        let (purged, replayed) = at_once(
            &inbox,
            |connection| purge_all(connection, taken),
            |connection| replay_all(connection, keys, by_slice, Intervention::NotFound),
        )
        .await?;
        let left = number_of(&inbox, State::Processed).await?;
        let how = if by_slice { "by slices" } else { "by key" };
        same(
            &format!("purged, and replayed {how} at the same time, and left as they were, in all"),
            &(purged + replayed + left),
            &(MESSAGES as u64),
        )?;
        same(
            &format!("pending after {replayed} were replayed {how} and {purged} purged"),
            &number_of(&inbox, State::Pending).await?,
            &replayed,
        )?;
        let claimed = claim_all(Arc::clone(&inbox.store)).await?.len() as u64;
        same(
            &format!("claimable after {replayed} were replayed {how} and {purged} purged"),
            &claimed,
            &replayed,
        )?;
    }
    Ok(())
}

pub(crate) async fn a_purge_or_a_replay_wins(cx: Context) -> CaseResult {
    replay_during_purge(&cx, false).await
}

pub(crate) async fn a_purge_of_the_archived_or_a_replay_wins(cx: Context) -> CaseResult {
    replay_during_purge(&cx, true).await
}

/// Defect: a copy that comes during the purge of its key is refused as a duplicate of what is gone, or
/// accepted and purged with it.
pub(crate) async fn a_copy_during_a_purge_is_new_or_a_duplicate(cx: Context) -> CaseResult {
    for archived in [false, true] {
        let inbox = cx.fresh().await?;
        let keys = finished(&inbox).await?;
        let taken = archived.then(|| keys.clone());
        let receive = |connection: Arc<dyn Inbox>| async move {
            let mut accepted = Ids::new();
            for message in numbered(MESSAGES)?.iter().rev() {
                match persist(|| connection.receive_one(message)).await? {
                    Receipt::Accepted => drop(accepted.insert(id(message.key()))),
                    Receipt::Duplicate { .. } => {}
                    refused @ Receipt::Refused(_) => {
                        return Err(Unmet::Failed(format!("receive: saw {refused:?}")));
                    }
                }
            }
            Ok(accepted)
        };
        let (purged, accepted) =
            at_once(&inbox, |connection| purge_all(connection, taken), receive).await?;
        let purged = purged + purge_all(Arc::clone(&inbox.store), None).await?;
        same(
            "purged, of messages that were all processed, while copies of them came",
            &purged,
            &(MESSAGES as u64),
        )?;
        let claimed = ids_of(&claim_all(Arc::clone(&inbox.store)).await?);
        same("accepted during the purge, as claimed", &claimed, &accepted)?;
        same(
            "left in all",
            &inbox.count(&Filter::default()).await?,
            &(accepted.len() as u64),
        )?;
    }
    Ok(())
}

/// Defect: of several settlements of one lease at the same time, with other outcomes, more than one
/// counts.
pub(crate) async fn of_two_outcomes_one_counts(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(MESSAGES)?).await?;
    let mut leases: Vec<Lease> = inbox
        .claim_up_to(1000, LONG)
        .await?
        .into_iter()
        .map(|leased| leased.lease)
        .collect();
    leases.sort_by_key(|lease| id(&lease.key));
    let other = leases.clone();
    let (one, two) = at_once(
        &inbox,
        |connection| settle_all(connection, leases, processed()),
        |connection| settle_all(connection, other, dead("gave up")),
    )
    .await?;
    same(
        "answered Done, as the first or as its repetition",
        &(one.len(), two.len()),
        &(MESSAGES, MESSAGES),
    )?;
    let statistics = inbox.statistics().await?;
    same(
        "processed and dead in all",
        &(statistics.count(State::Processed) + statistics.count(State::Dead)),
        &(MESSAGES as u64),
    )?;
    for message in numbered(MESSAGES)? {
        let record = inbox.record(message.key()).await?;
        ensure!(
            record.attempts.finished == 1
                && (record.state == State::Dead) == record.last_error.is_some(),
            "{}, which was settled as processed and as dead at the same time: expected one of them \
             to count, saw {record:?}",
            message.key()
        );
    }
    Ok(())
}
