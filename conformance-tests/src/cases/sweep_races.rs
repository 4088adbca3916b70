//! Operators' sweeps that take something away, next to those who want to keep it.

use std::{sync::Arc, time::Duration};

use inbox_api::{
    Cursor, Filter, HandlerName, Inbox, Intervention, Lease, PurgeRequest, Receipt, Slice, State,
};

use super::{
    concurrency::persist,
    races::{
        MESSAGES, SLICE, all_in, at_once, claim_all, finished, ids_of, number_of, replay_all,
        settle_all,
    },
};
use crate::{
    check::{CaseResult, Unmet, same, same_bytes},
    test_inbox::{Context, HANDLER, TestInbox, numbered, processed},
};

/// Drops the payloads of all that is processed, in steps; how many.
async fn drop_all(inbox: Arc<dyn Inbox>) -> CaseResult<u64> {
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, SLICE)?;
    let (mut dropped, mut idle) = (0, 0);
    while idle < 3 {
        let step = persist(|| inbox.drop_payloads(&expired)).await?;
        idle = if step == 0 { idle + 1 } else { 0 };
        dropped += step;
    }
    Ok(dropped)
}

/// Fails unless what is pending has its payload, and all else has none.
async fn payloads_are_with_what_is_pending(inbox: &TestInbox, when: &str) -> CaseResult {
    for sent in numbered(MESSAGES)? {
        let record = inbox.record(sent.key()).await?;
        let expected = match record.state {
            State::Pending => Some(sent.payload()),
            _ => None,
        };
        same(
            &format!(
                "payload of {}, which is {}, {when}",
                sent.key(),
                record.state
            ),
            &record.payload.as_ref(),
            &expected,
        )?;
    }
    Ok(())
}

/// Defect: a message is replayed whose payload goes at the same time, and is handed out without it.
pub(crate) async fn a_drop_of_payloads_or_a_replay_wins(cx: Context) -> CaseResult {
    for by_slice in [false, true] {
        let inbox = cx.fresh().await?;
        let keys = finished(&inbox).await?;
        let (dropped, replayed) = at_once(&inbox, drop_all, |connection| {
            replay_all(connection, keys, by_slice, Intervention::PayloadDropped)
        })
        .await?;
        // A slice passes over what another one is working on.
        let dropped = dropped + drop_all(Arc::clone(&inbox.store)).await?;
        let how = if by_slice { "by slices" } else { "by key" };
        let when = format!("after {replayed} were replayed {how} and {dropped} payloads dropped");
        same(
            &format!("payloads dropped, and messages replayed {how} at the same time, in all"),
            &(dropped + replayed),
            &(MESSAGES as u64),
        )?;
        same(
            &format!("pending {when}"),
            &number_of(&inbox, State::Pending).await?,
            &replayed,
        )?;
        payloads_are_with_what_is_pending(&inbox, &when).await?;
        let claimed = claim_all(Arc::clone(&inbox.store)).await?;
        for leased in &claimed {
            let key = &leased.lease.key;
            same_bytes(
                &format!("payload of {key} as handed out {when}"),
                Some(leased.message.payload()),
                key.id.as_str().as_bytes(),
            )?;
        }
        same(
            &format!("claimable {when}"),
            &(claimed.len() as u64),
            &replayed,
        )?;
    }
    Ok(())
}

/// Clears the handler in slices; how many messages went.
async fn clear_all(inbox: Arc<dyn Inbox>) -> CaseResult<u64> {
    let handler = HandlerName::new(HANDLER)?;
    let (mut cleared, mut after): (u64, Option<Cursor>) = (0, None);
    for _ in 0..10 * MESSAGES {
        let slice = Slice {
            after: after.take(),
            limit: SLICE,
        };
        let progress = persist(|| inbox.clear_slice(&handler, &slice)).await?;
        cleared += progress.changed;
        match progress.next {
            Some(next) => after = Some(next),
            None => return Ok(cleared),
        }
    }
    Err(Unmet::Failed(format!(
        "slices of {SLICE} over {MESSAGES} messages: saw no end"
    )))
}

/// Defect: what a worker has just claimed is deleted under it.
pub(crate) async fn a_clearing_or_a_claim_wins(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all = numbered(MESSAGES)?;
    inbox.accept_all(&all).await?;
    let (cleared, taken) = at_once(&inbox, clear_all, claim_all).await?;
    same(
        "claimed, and cleared at the same time, in all",
        &(taken.len() as u64 + cleared),
        &(MESSAGES as u64),
    )?;
    all_in(&inbox, &ids_of(&taken), State::Leased, "claimed").await?;
    let left = inbox.count(&Filter::default()).await?;
    same("left", &left, &(taken.len() as u64))?;
    inbox.nothing_due("all are claimed or cleared").await?;
    let leases: Vec<Lease> = taken.into_iter().map(|leased| leased.lease).collect();
    let claimed = leases.len();
    let done = settle_all(Arc::clone(&inbox.store), leases, processed()).await?;
    same("settled of what was claimed", &done.len(), &claimed)?;
    let receipts = inbox.receive(&all).await?;
    let is_new = |receipt: &&Receipt| **receipt == Receipt::Accepted;
    let accepted = receipts.iter().filter(is_new).count() as u64;
    same("accepted again of what was cleared", &accepted, &cleared)
}
