//! What a store keeps in several places at once: counts, queues, indexes, the heads of ordering keys. The
//! suite looks at them after every other case; here, after every step.

use std::time::Duration;

use inbox_api::{Begun, Filter, Message, Outcome, PurgeRequest, Slice, State};

use crate::{
    check::{CaseResult, Unmet, ensure},
    harness::Need,
    place::{
        Context, HANDLER, LONG, Place, claim, dead, dead_blocking, message, message_for, ordered,
        processed, retry, terms,
    },
    watched::judge,
};

async fn agree(place: &Place, when: &str) -> CaseResult {
    judge(when, &place.fixture.check_invariants().await?)
}

/// Of two handlers, some with ordering keys where the store honours them.
fn messages(place: &Place) -> CaseResult<Vec<Message>> {
    let mut messages = vec![
        message("1")?,
        message("2")?,
        message("3")?,
        message("4")?,
        message("5")?,
        message_for("other", "1")?,
        message("delayed")?.with_due(inbox_api::Due::After(LONG)),
    ];
    if place.capabilities().ordering {
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
    let place = cx.fresh().await?;
    agree(&place, "in an empty inbox").await?;
    let all = messages(&place)?;
    place.accept_all(&all).await?;
    agree(&place, "after a receive").await?;
    let _ = place.receive(&all).await?;
    agree(&place, "after a receive of duplicates").await?;

    let outcomes = [
        processed(),
        retry(LONG),
        dead("gave up"),
        dead_blocking("gave up"),
        Outcome::Release,
    ];
    let leased = place.claim_up_to(100, LONG).await?;
    ensure!(leased.len() >= 5, "claim: saw {} messages", leased.len());
    agree(&place, "after a claim").await?;
    // Each outcome for a message without an ordering key, and then for one with it.
    for (leased, outcome) in leased.iter().zip(outcomes.iter().cycle()) {
        place.finish(leased, outcome.clone()).await?;
        agree(&place, &format!("after the outcome {outcome:?}")).await?;
        place.finish(leased, outcome.clone()).await?;
        agree(&place, "after a repeated settlement").await?;
    }

    let brief = place.brief();
    let lost = claim(&*place.inbox, HANDLER, 100, brief).await?;
    let _ = claim(&*place.inbox, "other", 100, brief).await?;
    for leased in &lost {
        let _ = place
            .extend(std::slice::from_ref(&leased.lease), brief)
            .await?;
    }
    agree(&place, "after an extension").await?;
    place.pass(brief).await?;
    agree(&place, "after leases ran out").await?;
    if let Some(leased) = lost.first() {
        let _ = place.discard(&leased.lease.key).await?;
        agree(&place, "after a discard of a lease that ran out").await?;
    }
    let again = place.claim_up_to(100, LONG).await?;
    agree(&place, "after a claim of leases that ran out").await?;
    for leased in again {
        place.finish(&leased, Outcome::Release).await?;
    }
    agree(&place, "after releases").await?;

    match place.begin(&message("begun")?, &terms(LONG)?).await? {
        Begun::Run(leased) => {
            agree(&place, "after a begin").await?;
            place.finish(&leased, processed()).await?;
        }
        other => return Err(Unmet::Failed(format!("begin of a new message: {other:?}"))),
    }
    agree(&place, "after begin and settle").await?;

    // Of each state, of each kind of message, in an order that is not theirs.
    for (n, message) in all.iter().rev().enumerate() {
        let what = if n % 2 == 0 {
            let _ = place.discard(message.key()).await?;
            "discard"
        } else {
            let _ = place.replay(message.key(), None).await?;
            "replay"
        };
        agree(&place, &format!("after a {what} of {}", message.key())).await?;
    }
    for (n, leased) in place.claim_up_to(100, LONG).await?.iter().enumerate() {
        place.finish(leased, outcomes[n % 4].clone()).await?;
    }
    agree(&place, "after more outcomes").await?;

    let few = Slice {
        after: None,
        limit: 3,
    };
    let every = Filter::default();
    for _ in 0..2 {
        let _ = place.replay_slice(&every, &few).await?;
        agree(&place, "after a slice of replays").await?;
        let _ = place.discard_slice(&every, &few).await?;
        agree(&place, "after a slice of discards").await?;
        for state in [State::Dead, State::Processed, State::Discarded] {
            let one = PurgeRequest::new(state, Duration::ZERO, 1)?;
            let archived = place.expired(&one).await?;
            let keys: Vec<_> = archived.records.into_iter().map(|r| r.key).collect();
            let _ = place.purge_archived(&one, &keys).await?;
            agree(&place, &format!("after a purge of the archived {state}")).await?;
            let _ = place.purge(&one).await?;
            agree(&place, &format!("after a purge of the {state}")).await?;
        }
    }
    let _ = place.receive(&all).await?;
    agree(&place, "after a receive of what was purged").await?;
    let whole = Slice {
        after: None,
        limit: 100,
    };
    let _ = place.discard_slice(&every, &whole).await?;
    agree(&place, "after a discard of everything").await?;
    let whole = PurgeRequest::new(State::Discarded, Duration::ZERO, 100)?;
    let _ = place.purge(&whole).await?;
    agree(&place, "after a purge of everything").await
}
