//! The store away, closed, restarted.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use inbox_api::{
    ClaimRequest, Effect, ErrorKind, Extended, Filter, Inbox, Key, Message, Outcome, Page,
    PurgeRequest, Receipt, Record, Recorded, Result, Settled, Settlement, Slice, State, StoreExt,
};

use super::wakeups::{subscribed, wakes};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    harness::{Need, Restart, Unable},
    place::{
        Context, HANDLER, LONG, Place, claim, dead, ids, message, message_for, processed, terms,
    },
};

fn retryable<T: std::fmt::Debug>(what: &str, answer: Result<T>) -> CaseResult {
    match answer {
        Ok(answer) => Err(Unmet::Failed(format!(
            "{what} during an outage: expected a retryable error, saw {answer:?}"
        ))),
        Err(error) => {
            ensure!(
                error.is_retryable(),
                "{what} during an outage: expected a retryable error, saw {error}"
            );
            Ok(())
        }
    }
}

/// Defect: an unreachable database is taken for a unique violation.
pub(crate) async fn an_outage_is_never_a_duplicate(cx: Context) -> CaseResult {
    let place = cx.fresh_to_disrupt().await?;
    let (known, new) = (message("known")?, message("new")?);
    place.accept(&known).await?;
    place.fixture.begin_outage().await?;
    let answers = [
        ("receive of a new key", place.receive_one(&new).await),
        ("receive of a known key", place.receive_one(&known).await),
    ];
    place.fixture.end_outage().await?;
    for (what, answer) in answers {
        retryable(what, answer)?;
    }
    // Sending again is safe, and loses and doubles nothing.
    let receipt = recovered(&place, &new).await?;
    ensure!(
        matches!(receipt, Receipt::Accepted | Receipt::Duplicate),
        "receipt of the repetition: saw {receipt:?}"
    );
    place.refuses_copy(&new, "after the outage").await?;
    let mut claimed = ids(&place.claim_up_to(10, LONG).await?);
    claimed.sort();
    same("claimed", &claimed, &vec!["known".into(), "new".into()])
}

/// The first receive that works after an outage; reconnecting may take a moment, and a pool may have
/// more connections that it does not know to be broken.
pub(super) async fn recovered(place: &Place, message: &Message) -> CaseResult<Receipt> {
    const CONNECTIONS: usize = 20;
    let mut tries = 0;
    let receipt = loop {
        match place.receive_one(message).await {
            Err(error) if error.is_retryable() && tries < 50 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => break answer?,
        }
    };
    for _ in 0..CONNECTIONS {
        match place.get(message.key()).await {
            Err(error) if error.is_retryable() => {}
            answer => drop(answer?),
        }
    }
    Ok(receipt)
}

pub(crate) async fn writes_fail_as_retryable(cx: Context) -> CaseResult {
    let place = cx.fresh_to_disrupt().await?;
    place.accept(&message("1")?).await?;
    let leased = place.claim_one().await?;
    place.accept(&message("2")?).await?;
    place.fixture.begin_outage().await?;
    let settled = place.settle_one(&leased.lease, processed()).await;
    let begun = place.begin(&message("3")?, &terms(LONG)?).await;
    let handler = inbox_api::HandlerName::new(HANDLER)?;
    let claimed = place
        .claim_for(&handler, 5, LONG, &crate::place::worker()?)
        .await;
    place.fixture.end_outage().await?;
    retryable("settle", settled)?;
    retryable("begin", begun)?;
    retryable("claim", claimed)?;
    let _ = recovered(&place, &message("4")?).await?;
    same(
        "settling again",
        &place.settle_one(&leased.lease, processed()).await?,
        &Settled::Done,
    )?;
    place
        .has_state(leased.message.key(), State::Processed)
        .await
}

/// A change that is asked for during an outage.
struct Change<'a> {
    what: &'static str,
    /// A message that no other change is about.
    key: &'a Key,
    /// Its state when the change was done; `None` when it is gone.
    done: Option<State>,
    answer: BoxFuture<'a, Result<String>>,
}

/// A question that changes nothing.
fn asked<'a>(
    what: &'static str,
    question: impl Future<Output = Result<String>> + Send + 'a,
) -> BoxFuture<'a, (&'static str, Result<String>)> {
    Box::pin(async move { (what, question.await) })
}

/// Fails unless a change that failed is done or not, and is not when its error says so.
async fn done_or_not(
    place: &Place,
    change: (&'static str, &Key, Option<State>),
    before: Option<&Record>,
    effect: Effect,
) -> CaseResult {
    let (what, key, done) = change;
    let after = place.get(key).await?;
    if effect == Effect::None {
        let what = format!("what {what} is about, which failed in an outage without effect");
        return same(&what, &after.as_ref(), &before);
    }
    let state = after.map(|record| record.state);
    let before = before.map(|record| record.state);
    ensure!(
        state == before || state == done,
        "what {what} is about, which failed in an outage with an unknown effect: expected {before:?} \
         as before, or {done:?}, saw {state:?}"
    );
    Ok(())
}

/// Defect: an outage is taken for an empty answer, or for one without effect.
pub(crate) async fn every_operation_says_so(cx: Context) -> CaseResult {
    let place = cx.fresh_to_disrupt().await?;
    // A message for each change, of a handler of its own.
    let mut subjects = HashMap::new();
    for (handler, state) in [
        ("claim", Some(State::Pending)),
        ("begin", Some(State::Pending)),
        ("receive", None),
        ("extend", Some(State::Leased)),
        ("settle", Some(State::Leased)),
        ("replay", Some(State::Dead)),
        ("replay-slice", Some(State::Dead)),
        ("discard", Some(State::Dead)),
        ("discard-slice", Some(State::Dead)),
        ("purge", Some(State::Processed)),
        ("purge-archived", Some(State::Discarded)),
    ] {
        let sent = message_for(handler, "1")?;
        let mut lease = None;
        if let Some(state) = state {
            let first = if state == State::Leased {
                State::Pending
            } else {
                state
            };
            place.accept_in(&sent, first).await?;
            if state == State::Leased {
                // Longer than all operations take to find out.
                let leased = claim(&*place.inbox, handler, 1, 60 * LONG).await?;
                lease = leased.into_iter().next().map(|leased| leased.lease);
            }
        }
        let record = place.get(sent.key()).await?;
        let state_seen = record.as_ref().map(|record| record.state);
        same(&format!("state of {handler}"), &state_seen, &state)?;
        subjects.insert(handler, (sent, record, lease));
    }
    let message_of = |handler: &str| &subjects[handler].0;
    let lease_of = |handler: &str| {
        let lease = subjects[handler].2.as_ref();
        lease.ok_or_else(|| Unmet::Failed("claim: expected the due message, saw none".into()))
    };
    let of = |handler: &str| Filter {
        handler: Some(message_of(handler).handler().clone()),
        ..Filter::default()
    };
    let everything = Filter::default();
    let (to_replay, to_discard) = (of("replay-slice"), of("discard-slice"));
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let processed_ones = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    let discarded_ones = PurgeRequest::new(State::Discarded, Duration::ZERO, 10)?;
    let archived = [message_of("purge-archived").key().clone()];
    let request = ClaimRequest {
        handlers: vec![message_of("claim").handler().clone()],
        limit: 5,
        terms: terms(60 * LONG)?,
    };
    let (extended, settled) = (lease_of("extend")?, lease_of("settle")?);
    macro_rules! changes {
        ($($what:literal => $done:expr, $call:expr;)*) => {
            vec![$(Change {
                what: $what,
                key: message_of($what).key(),
                done: $done,
                answer: Box::pin(async { $call.await.map(|answer| format!("{answer:?}")) }),
            },)*]
        };
    }
    macro_rules! looks {
        ($($what:literal: $call:expr,)*) => {
            vec![$(asked($what, async { $call.await.map(|answer| format!("{answer:?}")) }),)*]
        };
    }
    let looks = || {
        looks! {
            "get": place.get(message_of("extend").key()),
            "list": place.list(&everything, &Page::first(10)),
            "count": place.count(&everything),
            "statistics": async {
                let statistics = place.statistics().await?;
                Ok::<_, inbox_api::Error>(statistics.handlers.iter().map(|h| h.pending).sum::<u64>())
            },
            "expired": place.expired(&processed_ones),
            "version": place.version(),
            "exists": place.exists(),
            "create": place.create(),
            "migrate": place.migrate(),
        }
    };
    let truth = join_all(looks()).await;
    let changes = changes! {
        "claim" => Some(State::Leased), place.claim(&request);
        "begin" => Some(State::Leased), place.begin(message_of("begin"), &request.terms);
        "receive" => Some(State::Pending), place.receive_one(message_of("receive"));
        "extend" => Some(State::Leased), place.extend_one(extended, 50 * LONG);
        "settle" => Some(State::Dead), place.settle_one(settled, dead("gave up"));
        "replay" => Some(State::Pending), place.replay(message_of("replay").key(), None);
        "replay-slice" => Some(State::Pending), place.replay_slice(&to_replay, &slice);
        "discard" => Some(State::Discarded), place.discard(message_of("discard").key());
        "discard-slice" => Some(State::Discarded), place.discard_slice(&to_discard, &slice);
        "purge" => None, place.purge(&processed_ones);
        "purge-archived" => None, place.purge_archived(&discarded_ones, &archived);
    };
    place.fixture.begin_outage().await?;
    // Each may wait for its time limit, so they wait together. What is late and done in the end must not
    // be done before the questions are answered, or it would show in them.
    let asking = changes.into_iter().map(|change| async move {
        let Change {
            what,
            key,
            done,
            answer,
        } = change;
        ((what, key, done), answer.await)
    });
    let changes = join_all(asking).await;
    let looks = join_all(looks()).await;
    place.fixture.end_outage().await?;
    let mut effects = Vec::new();
    for (change, answer) in changes {
        let effect = answer.as_ref().err().map(inbox_api::Error::effect);
        retryable(change.0, answer)?;
        effects.extend(effect.map(|effect| (change, effect)));
    }
    // Some can be read while nothing can be written.
    for ((what, answer), (_, truth)) in looks.into_iter().zip(truth) {
        if answer.is_err() || answer.as_ref().ok() != truth.as_ref().ok() {
            retryable(what, answer)?;
        }
    }
    let _ = recovered(&place, &message("after")?).await?;
    // What had arrived at the server is done by now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    for (change, effect) in effects {
        let before = subjects[change.0].1.as_ref();
        done_or_not(&place, change, before, effect).await?;
    }
    Ok(())
}

/// Defect: a transaction is taken for committed because nothing says otherwise.
pub(crate) async fn a_commit_says_so(cx: Context) -> CaseResult {
    cx.unless_lacking(Need::Transactions)?;
    cx.unless_lacking(Need::SharedWrites)?;
    let place = cx.fresh_to_disrupt().await?;
    let capabilities = place.capabilities();
    if !capabilities.transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    if capabilities.exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let transactions = place.fixture.transactions()?;
    let (recorded, settled) = (message("recorded")?, message("settled")?);
    place.accept(&settled).await?;
    let lease = place.claim_single(60 * LONG).await?.lease;
    let settlement = Settlement {
        lease,
        outcome: processed(),
    };
    let mut transaction = transactions.open().await?;
    let first = transaction.record(&recorded, None).await?;
    same("record", &first, &Recorded::First)?;
    let done = transaction
        .settle(std::slice::from_ref(&settlement))
        .await?;
    same("settle", &done, &vec![Settled::Done])?;
    let writes = match transaction.write("effect").await {
        Ok(()) => true,
        Err(Unable::NotOffered(_)) => false,
        Err(failed) => return Err(failed.into()),
    };
    let mut other = transactions.open().await?;
    let (third, fourth) = (message("third")?, message("fourth")?);
    // Some databases are told of a transaction with its first step.
    let open = async {
        let mut opened = transactions.open().await?;
        opened.record(&fourth, None).await
    };
    place.fixture.begin_outage().await?;
    let (committed, step, opened) =
        tokio::join!(transaction.commit(), other.record(&third, None), open,);
    drop(other);
    place.fixture.end_outage().await?;
    let effect = committed.as_ref().err().map(inbox_api::Error::effect);
    retryable("commit", committed)?;
    retryable("record in a transaction", step)?;
    retryable("open and its first step", opened)?;
    let _ = recovered(&place, &message("after")?).await?;
    let found = |record: Option<Record>| record.map(|record| record.state);
    let mut whole = vec![
        found(place.get(recorded.key()).await?) == Some(State::Processed),
        found(place.get(settled.key()).await?) == Some(State::Processed),
    ];
    if writes {
        whole.push(!transactions.written().await?.is_empty());
    }
    ensure!(
        whole.iter().all(|part| *part == whole[0]),
        "record, settlement and write of the handler after a commit that failed in an outage: expected \
         all or none, saw {whole:?}"
    );
    if effect == Some(Effect::None) {
        same(
            "done by a commit that failed without effect",
            &whole[0],
            &false,
        )?;
    }
    Ok(())
}

/// Defect: messages lost although the inbox is durable, because the database was away for longer
/// than the retry.
pub(crate) async fn what_was_accepted_before_is_still_there(cx: Context) -> CaseResult {
    let place = cx.fresh_to_disrupt().await?;
    for id in ["1", "2", "3"] {
        place.accept(&message(id)?).await?;
    }
    let leased = place.claim_one().await?;
    place.fixture.begin_outage().await?;
    let _ = place.receive_one(&message("4")?).await;
    place.fixture.end_outage().await?;
    let _ = recovered(&place, &message("4")?).await?;
    place.finish(&leased, processed()).await?;
    let mut claimed = ids(&place.claim_up_to(10, LONG).await?);
    claimed.sort();
    same(
        "claimed",
        &claimed,
        &vec!["2".into(), "3".into(), "4".into()],
    )
}

fn closed<T>(what: &str, answer: Result<T>) -> CaseResult {
    let kind = answer.err().map(|error| error.kind());
    same(
        &format!("error of {what} after close"),
        &kind,
        &Some(ErrorKind::Unavailable),
    )
}

pub(crate) async fn a_closed_store_is_unavailable(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let sent = message("1")?;
    place.accept(&sent).await?;
    let leased = place.claim_one().await?;
    let inbox: &dyn Inbox = &*place.inbox;
    inbox.close().await;
    inbox.close().await;
    closed("receive", inbox.receive(std::slice::from_ref(&sent)).await)?;
    let handler = sent.handler().clone();
    closed(
        "claim",
        inbox
            .claim_for(&handler, 1, LONG, &crate::place::worker()?)
            .await,
    )?;
    closed("settle", inbox.settle_one(&leased.lease, processed()).await)?;
    closed("extend", inbox.extend_one(&leased.lease, LONG).await)?;
    closed("begin", inbox.begin(&sent, &terms(LONG)?).await)?;
    closed("get", inbox.get(sent.key()).await)?;
    closed(
        "list",
        inbox.list(&Filter::default(), &Page::first(1)).await,
    )?;
    closed("count", inbox.count(&Filter::default()).await)?;
    closed("statistics", inbox.statistics().await)?;
    closed("replay", inbox.replay(sent.key(), None).await)?;
    closed("discard", inbox.discard(sent.key()).await)?;
    let expired = inbox_api::PurgeRequest::new(State::Dead, Duration::ZERO, 1)?;
    closed("purge", inbox.purge(&expired).await)
}

pub(crate) async fn closing_one_connection_leaves_the_others(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let other = place.fixture.second_connection().await?;
    place.accept(&message("1")?).await?;
    place.inbox.close().await;
    let leased = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed at the other connection",
        &ids(&leased),
        &vec!["1".into()],
    )
}

/// `None` is a loss of power.
async fn survives(cx: &Context, how: Option<Restart>) -> CaseResult {
    let mut place = cx.fresh_to_disrupt().await?;
    let ids_of_all = ["held", "done", "dead", "discarded", "replayed", "waiting"];
    for id in ids_of_all {
        place.accept(&message(id)?).await?;
    }
    let held = place.claim_one().await?;
    let extended = place.extend_one(&held.lease, 2 * LONG).await?;
    let done = place.claim_one().await?;
    let result = Some(Bytes::from_static(b"result"));
    let outcome = Outcome::Processed {
        result: result.clone(),
    };
    place.finish(&done, outcome).await?;
    let gone = place.claim_one().await?;
    place.finish(&gone, dead("gave up")).await?;
    let _ = place.discard(message("discarded")?.key()).await?;
    let replayed = place.claim_one().await?;
    place.finish(&replayed, dead("gave up")).await?;
    let _ = place.replay(replayed.message.key(), None).await?;
    let mut before = Vec::new();
    for id in ids_of_all {
        before.push(place.record(message(id)?.key()).await?);
    }

    match how {
        Some(how) => place.fixture.restart(how).await?,
        None => place.fixture.lose_power().await?,
    }
    place.inbox = place.fixture.inbox();
    let _ = recovered(&place, &message("later")?).await?;
    for expected in before {
        let seen = place.record(&expected.key).await?;
        same(&format!("record of {}", expected.key), &seen, &expected)?;
    }
    place.refuses_copy(&done.message, "after a restart").await?;
    let mut claimed = ids(&place.claim_up_to(10, LONG).await?);
    claimed.sort();
    same(
        "claimed",
        &claimed,
        &vec!["later".into(), "replayed".into(), "waiting".into()],
    )?;
    ensure!(
        matches!(extended, Extended::Until(_)),
        "extend: saw {extended:?}"
    );
    place.finish(&held, processed()).await
}

pub(crate) async fn a_restart_loses_nothing(cx: Context) -> CaseResult {
    survives(&cx, Some(Restart::Orderly)).await
}

pub(crate) async fn a_killed_server_loses_nothing(cx: Context) -> CaseResult {
    survives(&cx, Some(Restart::Killed)).await
}

pub(crate) async fn a_loss_of_power_loses_nothing(cx: Context) -> CaseResult {
    cx.unless_lacking(Need::PowerLoss)?;
    survives(&cx, None).await
}

/// Another process sees what one has been answered, and goes on when that one is gone.
pub(crate) async fn another_process_takes_over(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let other = place.fixture.second_connection().await?;
    place.accept(&message("1")?).await?;
    let stale = place.claim_single(place.brief()).await?;
    let held = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed elsewhere while held here",
        &ids(&held),
        &Vec::new(),
    )?;
    place.pass(place.brief()).await?;
    let leased = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed elsewhere after the lease",
        &ids(&leased),
        &vec!["1".into()],
    )?;
    let late = place.settle_one(&stale.lease, processed()).await?;
    same("settling here afterwards", &late, &Settled::LeaseLost)?;
    same(
        "state as shown here",
        &place.record(&stale.lease.key).await?.state,
        &State::Leased,
    )
}

/// Defect: a subscription ends with the connection that it had, and nobody learns of it: from then on
/// work waits for the next poll.
pub(crate) async fn a_subscription_outlives_it(cx: Context) -> CaseResult {
    let place = cx.fresh_to_disrupt().await?;
    let mut subscription = subscribed(&*place.inbox).await?;
    place.accept(&message("before")?).await?;
    wakes(&mut *subscription, "a receive before an outage").await?;
    place.fixture.begin_outage().await?;
    // What is done and what waits meanwhile may find out that the connection is broken.
    let amid = message("amid")?;
    let moment = Duration::from_millis(300);
    let _ = tokio::time::timeout(moment, place.receive_one(&amid)).await;
    let _ = tokio::time::timeout(moment, subscription.woken()).await;
    place.fixture.end_outage().await?;
    let _ = recovered(&place, &message("after")?).await?;
    wakes(&mut *subscription, "a receive after an outage").await?;
    // That may have been for the mending alone.
    while tokio::time::timeout(Duration::from_millis(300), subscription.woken())
        .await
        .is_ok()
    {}
    place.accept(&message("later")?).await?;
    wakes(&mut *subscription, "another receive after an outage").await
}
