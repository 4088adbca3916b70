//! Slices of an operator's work over messages that others take, end or change meanwhile.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{
    Cursor, Filter, Inbox, Intervention, Key, Message, Outcome, Progress, Slice, State,
};
use tokio::task::JoinSet;

use crate::{
    check::{CaseResult, ensure, same},
    place::{Context, HANDLER, LONG, Place, claim, dead, numbered},
};

/// Enough for many slices and many claims at once.
const MESSAGES: usize = 1200;
const SLICE: u32 = 60;
/// Slices of [`SLICE`] over [`MESSAGES`] with a wide margin for rows that others have taken.
const MOST_SLICES: usize = 200;

#[derive(Clone, Copy)]
enum Change {
    Discard,
    Replay,
}

/// Runs all slices to their end; how many messages they changed.
async fn all_slices(inbox: &dyn Inbox, change: Change, states: &[State]) -> CaseResult<u64> {
    let filter = Filter {
        states: states.to_vec(),
        ..Filter::default()
    };
    let (mut after, mut changed): (Option<Cursor>, u64) = (None, 0);
    for _ in 0..MOST_SLICES {
        let slice = Slice {
            after: after.take(),
            limit: SLICE,
        };
        let progress: Progress = match change {
            Change::Discard => inbox.discard_slice(&filter, &slice).await?,
            Change::Replay => inbox.replay_slice(&filter, &slice).await?,
        };
        changed += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(changed),
        }
    }
    ensure!(
        false,
        "slices of {SLICE} over {MESSAGES} messages: saw no end after {MOST_SLICES}"
    );
    Ok(changed)
}

/// Defect: a slice of which others have taken a row says that the end is reached.
pub(crate) async fn a_discard_goes_on_past_messages_that_workers_take(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    place.accept_all(&numbered(MESSAGES)?).await?;
    let done = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for inbox in place.connections(2).await? {
        let done = Arc::clone(&done);
        workers.spawn(async move {
            let mut taken = 0;
            while !done.load(Ordering::Relaxed) {
                taken += claim(&*inbox, HANDLER, 3, LONG).await?.len();
                // Something is left for the next slices, however fast the store is.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(taken)
        });
    }
    let discarded = all_slices(&*place.inbox, Change::Discard, &[State::Pending]).await;
    done.store(true, Ordering::Relaxed);
    let mut taken = 0;
    while let Some(worker) = workers.join_next().await {
        let worker: CaseResult<usize> = worker?;
        taken += worker?;
    }
    let left = place.claim_up_to(10_000, LONG).await?.len();
    same(
        &format!(
            "pending messages that are left behind all slices ({} discarded, {taken} taken by workers)",
            discarded?
        ),
        &left,
        &0,
    )?;
    counted(&place, State::Leased, taken).await
}

/// Messages that are all dead.
async fn dead_ones(place: &Place) -> CaseResult<Vec<Message>> {
    let messages = numbered(MESSAGES)?;
    place.accept_all(&messages).await?;
    let leased = place.claim_up_to(10_000, LONG).await?;
    same("claimed", &leased.len(), &MESSAGES)?;
    let settlements: Vec<_> = leased
        .into_iter()
        .map(|leased| inbox_api::Settlement {
            lease: leased.lease,
            outcome: dead("gave up") as Outcome,
        })
        .collect();
    let _ = place.settle(&settlements).await?;
    counted(place, State::Dead, MESSAGES).await?;
    Ok(messages)
}

async fn counted(place: &Place, state: State, expected: usize) -> CaseResult {
    let filter = Filter {
        states: vec![state],
        ..Filter::default()
    };
    same(
        &format!("messages that are {state}"),
        &place.count(&filter).await?,
        &(expected as u64),
    )
}

/// The same, of dead messages that other operators discard one by one.
pub(crate) async fn a_replay_goes_on_past_messages_that_others_discard(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let messages = dead_ones(&place).await?;
    let mut others = JoinSet::new();
    for (n, inbox) in place.connections(2).await?.into_iter().enumerate() {
        let keys: Vec<Key> = messages
            .iter()
            .skip(n)
            .step_by(5)
            .map(|message| message.key().clone())
            .collect();
        others.spawn(async move {
            let mut discarded = BTreeSet::new();
            for key in keys {
                if inbox.discard(&key).await? == Intervention::Done {
                    discarded.insert(key.id.to_string());
                }
            }
            Ok(discarded.len())
        });
    }
    let replayed = all_slices(&*place.inbox, Change::Replay, &[State::Dead]).await;
    let mut discarded = 0;
    while let Some(other) = others.join_next().await {
        let other: CaseResult<usize> = other?;
        discarded += other?;
    }
    let replayed = replayed?;
    let left = place
        .count(&Filter {
            states: vec![State::Dead],
            ..Filter::default()
        })
        .await?;
    same(
        &format!(
            "dead messages that are left behind all slices ({replayed} replayed, {discarded} discarded by others)"
        ),
        &left,
        &0,
    )
}
