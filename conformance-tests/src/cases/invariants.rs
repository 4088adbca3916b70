//! What a store keeps in several inboxes at once: counts, queues, indexes, the heads of ordering keys. The
//! suite looks at them after every other case; here, after every step.

use std::time::Duration;

use inbox_api::{Begun, Due, Edit, Filter, Message, Outcome, PurgeRequest, Slice, State};

use crate::{
    check::{CaseResult, Unmet, ensure},
    needs::Need,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, dead_blocking, defer, message, message_for,
        ordered, processed, retry, terms,
    },
    watched::judge,
};

async fn agree(inbox: &TestInbox, when: &str) -> CaseResult {
    judge(when, &inbox.fixture.check_invariants().await?)
}

/// Of two handlers, some with ordering keys where the store honours them.
fn messages(inbox: &TestInbox) -> CaseResult<Vec<Message>> {
    let mut messages = vec![
        message("1")?,
        message("2")?,
        message("3")?,
        message("4")?,
        message("5")?,
        message("6")?,
        message_for("other", "1")?,
        message("delayed")?.with_due(inbox_api::Due::After(LONG)),
    ];
    if inbox.capabilities().ordering {
        for key in ["a", "b", "c", "d", "e"] {
            for n in 1..=3 {
                messages.push(ordered(&format!("{key}{n}"), key)?);
            }
        }
    }
    Ok(messages)
}

pub(crate) async fn what_is_kept_twice_agrees_after_every_step(cx: Context) -> CaseResult {
    cx.unless_lacking(Need::Invariants)?;
    let inbox = cx.fresh().await?;
    agree(&inbox, "in an empty inbox").await?;
    let all = messages(&inbox)?;
    inbox.accept_all(&all).await?;
    agree(&inbox, "after a receive").await?;
    let _ = inbox.receive(&all).await?;
    agree(&inbox, "after a receive of duplicates").await?;

    let outcomes = [
        processed(),
        retry(LONG),
        dead("gave up"),
        dead_blocking("gave up"),
        defer(LONG),
        Outcome::Release,
    ];
    let leased = inbox.claim_up_to(100, LONG).await?;
    ensure!(
        leased.len() >= outcomes.len(),
        "claim: saw {} messages",
        leased.len()
    );
    agree(&inbox, "after a claim").await?;
    // Each outcome for a message without an ordering key, and then for one with it.
    for (leased, outcome) in leased.iter().zip(outcomes.iter().cycle()) {
        inbox.finish(leased, outcome.clone()).await?;
        agree(&inbox, &format!("after the outcome {outcome:?}")).await?;
        inbox.finish(leased, outcome.clone()).await?;
        agree(&inbox, "after a repeated settlement").await?;
    }

    let brief = inbox.brief();
    let lost = claim(&*inbox.store, HANDLER, 100, brief).await?;
    let _ = claim(&*inbox.store, "other", 100, brief).await?;
    for leased in &lost {
        let _ = inbox
            .extend(std::slice::from_ref(&leased.lease), brief)
            .await?;
    }
    agree(&inbox, "after an extension").await?;
    inbox.pass(brief).await?;
    agree(&inbox, "after leases ran out").await?;
    if let Some(leased) = lost.first() {
        let _ = inbox.discard(&leased.lease.key).await?;
        agree(&inbox, "after a discard of a lease that ran out").await?;
    }
    let again = inbox.claim_up_to(100, LONG).await?;
    agree(&inbox, "after a claim of leases that ran out").await?;
    for leased in again {
        inbox.finish(&leased, Outcome::Release).await?;
    }
    agree(&inbox, "after releases").await?;

    match inbox.begin(&message("begun")?, &terms(LONG)?).await? {
        Begun::Run(leased) => {
            agree(&inbox, "after a begin").await?;
            inbox.finish(&leased, processed()).await?;
        }
        other => return Err(Unmet::Failed(format!("begin of a new message: {other:?}"))),
    }
    agree(&inbox, "after begin and settle").await?;

    // Of each state, of each kind of message, in an order that is not theirs.
    for (n, message) in all.iter().rev().enumerate() {
        let what = if n % 2 == 0 {
            let _ = inbox.discard(message.key()).await?;
            "discard"
        } else {
            let _ = inbox.replay(message.key(), &Edit::default()).await?;
            "replay"
        };
        agree(&inbox, &format!("after a {what} of {}", message.key())).await?;
    }
    for (n, leased) in inbox.claim_up_to(100, LONG).await?.iter().enumerate() {
        inbox.finish(leased, outcomes[n % 5].clone()).await?;
    }
    agree(&inbox, "after more outcomes").await?;

    for (n, message) in all.iter().enumerate() {
        let due = [Due::Now, Due::After(LONG)][n % 2];
        let _ = inbox.reschedule(message.key(), due).await?;
        agree(&inbox, &format!("after a reschedule of {}", message.key())).await?;
    }
    for (n, leased) in claim(&*inbox.store, HANDLER, 4, brief)
        .await?
        .iter()
        .enumerate()
    {
        let due = [Due::Now, Due::After(LONG)][n % 2];
        inbox.pass(brief).await?;
        let _ = inbox.reschedule(&leased.lease.key, due).await?;
        agree(&inbox, "after a reschedule of a lease that ran out").await?;
    }
    let paused = all[0].handler();
    inbox.pause(paused).await?;
    let _ = inbox.claim_up_to(100, LONG).await?;
    agree(&inbox, "after a claim while paused").await?;
    let _ = inbox.receive(&all).await?;
    inbox.resume(paused).await?;
    agree(&inbox, "after a resume").await?;

    let few = Slice {
        after: None,
        limit: 3,
    };
    let every = Filter::default();
    for _ in 0..2 {
        let _ = inbox.replay_slice(&every, &few).await?;
        agree(&inbox, "after a slice of replays").await?;
        let _ = inbox.discard_slice(&every, &few).await?;
        agree(&inbox, "after a slice of discards").await?;
        for state in [State::Dead, State::Processed, State::Discarded] {
            let one = PurgeRequest::new(state, Duration::ZERO, 1)?;
            let archived = inbox.expired(&one).await?;
            let _ = inbox.drop_payloads(&one).await?;
            agree(
                &inbox,
                &format!("after payloads of the {state} were dropped"),
            )
            .await?;
            let keys: Vec<_> = archived.records.into_iter().map(|r| r.key).collect();
            let _ = inbox.purge_archived(&one, &keys).await?;
            agree(&inbox, &format!("after a purge of the archived {state}")).await?;
            let _ = inbox.purge(&one).await?;
            agree(&inbox, &format!("after a purge of the {state}")).await?;
        }
    }
    let _ = inbox.receive(&all).await?;
    agree(&inbox, "after a receive of what was purged").await?;
    let _ = inbox
        .reschedule_slice(&every, &few, Due::After(LONG))
        .await?;
    agree(&inbox, "after a slice of reschedules").await?;
    let _ = inbox.claim_up_to(3, LONG).await?;
    let cleared = inbox.clear_slice(paused, &few).await?;
    agree(&inbox, "after a slice was cleared").await?;
    let rest = Slice {
        after: cleared.next,
        limit: 100,
    };
    let _ = inbox.clear_slice(paused, &rest).await?;
    agree(&inbox, "after a handler was cleared").await?;
    let _ = inbox.receive(&all).await?;
    agree(&inbox, "after a receive of what was cleared").await?;
    let whole = Slice {
        after: None,
        limit: 100,
    };
    let _ = inbox.discard_slice(&every, &whole).await?;
    agree(&inbox, "after a discard of everything").await?;
    let whole = PurgeRequest::new(State::Discarded, Duration::ZERO, 100)?;
    let _ = inbox.purge(&whole).await?;
    agree(&inbox, "after a purge of everything").await
}
