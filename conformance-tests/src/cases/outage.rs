//! The store away, closed, restarted.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use inbox_api::{
    ClaimRequest, Due, Edit, Effect, ErrorKind, Extended, Filter, Inbox, Key, Message, Outcome,
    Page, PurgeRequest, Receipt, Record, Recorded, Result, Settled, Settlement, Slice, State,
    StoreExt,
};

use super::wakeups::{subscribed, wakes};
pub(crate) use super::{
    power_loss::each_answer_is_on_the_disk, purge_outages::a_purge_that_it_cuts_short_says_so,
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Restart, Unable},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, ids, message, message_for, processed, terms,
    },
};

/// Fails unless an error says in which method it was met.
fn names_operation(what: &str, error: &inbox_api::Error) -> CaseResult {
    let method = what.replace('-', "_");
    same(
        &format!("operation that the error of {what} names"),
        &error.operation(),
        &Some(method.as_str()),
    )
}

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
    let inbox = cx.fresh_to_disrupt().await?;
    let (known, new) = (message("known")?, message("new")?);
    inbox.accept(&known).await?;
    inbox.fixture.server().begin_outage().await?;
    let answers = [
        ("receive of a new key", inbox.receive_one(&new).await),
        ("receive of a known key", inbox.receive_one(&known).await),
    ];
    inbox.fixture.server().end_outage().await?;
    for (what, answer) in answers {
        retryable(what, answer)?;
    }
    // Sending again is safe, and loses and doubles nothing.
    let receipt = recovered(&inbox, &new).await?;
    ensure!(
        matches!(receipt, Receipt::Accepted | Receipt::Duplicate { .. }),
        "receipt of the repetition: saw {receipt:?}"
    );
    inbox.refuses_copy(&new, "after the outage").await?;
    let mut claimed = ids(&inbox.claim_up_to(10, LONG).await?);
    claimed.sort();
    same("claimed", &claimed, &vec!["known".into(), "new".into()])
}

/// The first receive that works after an outage; reconnecting may take a moment, and a pool may have
/// more connections that it does not know to be broken.
pub(super) async fn recovered(inbox: &TestInbox, message: &Message) -> CaseResult<Receipt> {
    const CONNECTIONS: usize = 20;
    // Of the runtime, whose time may run ahead.
    let until = tokio::time::Instant::now() + LONG;
    let receipt = loop {
        match inbox.receive_one(message).await {
            Err(error) if error.is_retryable() && tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => break answer?,
        }
    };
    for _ in 0..CONNECTIONS {
        match inbox.get(message.key()).await {
            Err(error) if error.is_retryable() => {}
            answer => drop(answer?),
        }
    }
    Ok(receipt)
}

pub(crate) async fn writes_fail_as_retryable(cx: Context) -> CaseResult {
    let inbox = cx.fresh_to_disrupt().await?;
    inbox.accept(&message("1")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.accept(&message("2")?).await?;
    inbox.fixture.server().begin_outage().await?;
    let settled = inbox.settle_one(&leased.lease, processed()).await;
    let begun = inbox.begin(&message("3")?, &terms(LONG)?).await;
    let handler = inbox_api::HandlerName::new(HANDLER)?;
    let claimed = inbox
        .claim_for(&handler, 5, LONG, &crate::test_inbox::worker()?)
        .await;
    inbox.fixture.server().end_outage().await?;
    retryable("settle", settled)?;
    retryable("begin", begun)?;
    retryable("claim", claimed)?;
    let _ = recovered(&inbox, &message("4")?).await?;
    same(
        "settling again",
        &inbox.settle_one(&leased.lease, processed()).await?,
        &Settled::Done,
    )?;
    inbox
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
    inbox: &TestInbox,
    change: (&'static str, &Key, Option<State>),
    before: Option<&Record>,
    effect: Effect,
) -> CaseResult {
    let (what, key, done) = change;
    let after = inbox.get(key).await?;
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
    let inbox = cx.fresh_to_disrupt().await?;
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
        ("reschedule", Some(State::Pending)),
        ("reschedule-slice", Some(State::Pending)),
        ("pause", Some(State::Pending)),
        ("resume", Some(State::Pending)),
        ("clear-slice", Some(State::Discarded)),
        ("drop-payloads", Some(State::Processed)),
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
            inbox.accept_in(&sent, first).await?;
            if state == State::Leased {
                // Longer than all operations take to find out.
                let leased = claim(&*inbox.store, handler, 1, 60 * LONG).await?;
                lease = leased.into_iter().next().map(|leased| leased.lease);
            }
        }
        let record = inbox.get(sent.key()).await?;
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
    let to_reschedule = of("reschedule-slice");
    let handler_of = |what: &str| message_of(what).handler();
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let processed_ones = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    let discarded_ones = PurgeRequest::new(State::Discarded, Duration::ZERO, 10)?;
    let with_payload = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?
        .for_handler(message_of("drop-payloads").handler().clone());
    let archived = [message_of("purge-archived").key().clone()];
    let request = ClaimRequest {
        handlers: vec![message_of("claim").handler().clone()],
        limit: 5,
        terms: terms(60 * LONG)?,
        run_limit: 1,
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
            "get": inbox.get(message_of("extend").key()),
            "list": inbox.list(&everything, &Page::first(10)),
            "count": inbox.count(&everything),
            "statistics": async {
                let statistics = inbox.statistics().await?;
                Ok::<_, inbox_api::Error>(statistics.handlers.iter().map(|h| h.pending).sum::<u64>())
            },
            "paused": inbox.paused(),
            "expired": inbox.expired(&processed_ones),
            "version": inbox.version(),
            "exists": inbox.exists(),
            "create": inbox.create(),
            "migrate": inbox.migrate(),
        }
    };
    let truth = join_all(looks()).await;
    let changes = changes! {
        "claim" => Some(State::Leased), inbox.claim(&request);
        "begin" => Some(State::Leased), inbox.begin(message_of("begin"), &request.terms);
        "receive" => Some(State::Pending), inbox.receive_one(message_of("receive"));
        "extend" => Some(State::Leased), inbox.extend_one(extended, 50 * LONG);
        "settle" => Some(State::Dead), inbox.settle_one(settled, dead("gave up"));
        "replay" => Some(State::Pending), inbox.replay(message_of("replay").key(), &Edit::default());
        "replay-slice" => Some(State::Pending), inbox.replay_slice(&to_replay, &slice);
        "reschedule" => Some(State::Pending), inbox.reschedule(message_of("reschedule").key(), Due::After(LONG));
        "reschedule-slice" => Some(State::Pending), inbox.reschedule_slice(&to_reschedule, &slice, Due::After(LONG));
        "pause" => Some(State::Pending), inbox.pause(handler_of("pause"));
        "resume" => Some(State::Pending), inbox.resume(handler_of("resume"));
        "clear-slice" => None, inbox.clear_slice(handler_of("clear-slice"), &slice);
        "drop-payloads" => Some(State::Processed), inbox.drop_payloads(&with_payload);
        "discard" => Some(State::Discarded), inbox.discard(message_of("discard").key());
        "discard-slice" => Some(State::Discarded), inbox.discard_slice(&to_discard, &slice);
        "purge" => None, inbox.purge(&processed_ones);
        "purge-archived" => None, inbox.purge_archived(&discarded_ones, &archived);
    };
    inbox.fixture.server().begin_outage().await?;
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
    inbox.fixture.server().end_outage().await?;
    let mut effects = Vec::new();
    for (change, answer) in changes {
        if let Err(error) = &answer {
            names_operation(change.0, error)?;
        }
        let effect = answer.as_ref().err().map(inbox_api::Error::effect);
        retryable(change.0, answer)?;
        effects.extend(effect.map(|effect| (change, effect)));
    }
    // Some can be read while nothing can be written.
    for ((what, answer), (_, truth)) in looks.into_iter().zip(truth) {
        if let Err(error) = &answer {
            names_operation(what, error)?;
        }
        if answer.is_err() || answer.as_ref().ok() != truth.as_ref().ok() {
            retryable(what, answer)?;
        }
    }
    let _ = recovered(&inbox, &message("after")?).await?;
    // What had arrived at the server is done by now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    for (change, effect) in effects {
        let before = subjects[change.0].1.as_ref();
        done_or_not(&inbox, change, before, effect).await?;
    }
    Ok(())
}

/// Defect: a transaction is taken for committed because nothing says otherwise.
pub(crate) async fn a_commit_says_so(cx: Context) -> CaseResult {
    cx.unless_lacking(Need::Transactions)?;
    cx.unless_lacking(Need::SharedWrites)?;
    let inbox = cx.fresh_to_disrupt().await?;
    let capabilities = inbox.capabilities();
    if !capabilities.transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    if capabilities.exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let transactions = inbox.fixture.transactions()?;
    let (recorded, settled) = (message("recorded")?, message("settled")?);
    inbox.accept(&settled).await?;
    let lease = inbox.claim_single(60 * LONG).await?.lease;
    let settlement = Settlement {
        lease,
        outcome: processed(),
    };
    let at_once = message("settled with the commit")?;
    inbox.accept(&at_once).await?;
    let last = [Settlement {
        lease: inbox.claim_single(60 * LONG).await?.lease,
        outcome: processed(),
    }];
    let mut ending = transactions.open().await?;
    let _ = ending.record(&message("recorded before")?, None).await?;
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
    inbox.fixture.server().begin_outage().await?;
    let (committed, settled_last, step, opened) = tokio::join!(
        transaction.commit(),
        ending.settle_and_commit(&last),
        other.record(&third, None),
        open,
    );
    drop(other);
    inbox.fixture.server().end_outage().await?;
    let last_effect = settled_last.as_ref().err().map(inbox_api::Error::effect);
    retryable("settlement and commit", settled_last)?;
    let effect = committed.as_ref().err().map(inbox_api::Error::effect);
    retryable("commit", committed)?;
    retryable("record in a transaction", step)?;
    retryable("open and its first step", opened)?;
    let _ = recovered(&inbox, &message("after")?).await?;
    let found = |record: Option<Record>| record.map(|record| record.state);
    let mut whole = vec![
        found(inbox.get(recorded.key()).await?) == Some(State::Processed),
        found(inbox.get(settled.key()).await?) == Some(State::Processed),
    ];
    if writes {
        whole.push(!transactions.written().await?.is_empty());
    }
    ensure!(
        whole.iter().all(|part| *part == whole[0]),
        "record, settlement and write of the handler after a commit that failed in an outage: expected \
         all or none, saw {whole:?}"
    );
    let last = [
        at_once.key().clone(),
        message("recorded before")?.key().clone(),
    ];
    let mut both = Vec::new();
    for key in &last {
        both.push(found(inbox.get(key).await?) == Some(State::Processed));
    }
    ensure!(
        both == [true, true] || (both == [false, false]),
        "settlement and record after a settlement and commit that failed in an outage: expected both or \
         none, saw {both:?}"
    );
    if last_effect == Some(Effect::None) {
        same(
            "done by a settlement and commit that failed without effect",
            &both[0],
            &false,
        )?;
    }
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
    let inbox = cx.fresh_to_disrupt().await?;
    for id in ["1", "2", "3"] {
        inbox.accept(&message(id)?).await?;
    }
    let leased = inbox.claim_one().await?;
    inbox.fixture.server().begin_outage().await?;
    let _ = inbox.receive_one(&message("4")?).await;
    inbox.fixture.server().end_outage().await?;
    let _ = recovered(&inbox, &message("4")?).await?;
    inbox.finish(&leased, processed()).await?;
    let mut claimed = ids(&inbox.claim_up_to(10, LONG).await?);
    claimed.sort();
    same(
        "claimed",
        &claimed,
        &vec!["2".into(), "3".into(), "4".into()],
    )
}

fn closed<T>(what: &str, answer: Result<T>) -> CaseResult {
    let error = answer.err();
    same(
        &format!("error of {what} after close"),
        &error.as_ref().map(inbox_api::Error::kind),
        &Some(ErrorKind::Unavailable),
    )?;
    error.map_or(Ok(()), |error| names_operation(what, &error))
}

pub(crate) async fn a_closed_store_is_unavailable(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let connection: &dyn Inbox = &*inbox.store;
    connection.close().await;
    connection.close().await;
    closed(
        "receive",
        connection.receive(std::slice::from_ref(&sent)).await,
    )?;
    let handler = sent.handler().clone();
    closed(
        "claim",
        connection
            .claim_for(&handler, 1, LONG, &crate::test_inbox::worker()?)
            .await,
    )?;
    closed(
        "settle",
        connection.settle_one(&leased.lease, processed()).await,
    )?;
    closed("extend", connection.extend_one(&leased.lease, LONG).await)?;
    closed("begin", connection.begin(&sent, &terms(LONG)?).await)?;
    closed("get", connection.get(sent.key()).await)?;
    closed(
        "list",
        connection.list(&Filter::default(), &Page::first(1)).await,
    )?;
    closed("count", connection.count(&Filter::default()).await)?;
    closed("statistics", connection.statistics().await)?;
    closed(
        "replay",
        connection.replay(sent.key(), &Edit::default()).await,
    )?;
    closed("discard", connection.discard(sent.key()).await)?;
    closed(
        "reschedule",
        connection.reschedule(sent.key(), Due::Now).await,
    )?;
    closed("pause", connection.pause(&handler).await)?;
    closed("resume", connection.resume(&handler).await)?;
    closed("paused", connection.paused().await)?;
    let slice = Slice {
        after: None,
        limit: 1,
    };
    closed(
        "clear_slice",
        connection.clear_slice(&handler, &slice).await,
    )?;
    closed("remove", connection.remove().await)?;
    let expired = inbox_api::PurgeRequest::new(State::Dead, Duration::ZERO, 1)?;
    closed("drop_payloads", connection.drop_payloads(&expired).await)?;
    closed("purge", connection.purge(&expired).await)
}

pub(crate) async fn closing_one_connection_leaves_the_others(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    inbox.accept(&message("1")?).await?;
    inbox.store.close().await;
    let leased = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed at the other connection",
        &ids(&leased),
        &vec!["1".into()],
    )
}

/// Fails unless the handler of `waiting` is paused until it is resumed.
async fn stays_paused(inbox: &TestInbox, waiting: &Message) -> CaseResult {
    let handler = waiting.handler();
    let paused = inbox.paused().await?;
    same("paused after a restart", &paused, &vec![handler.clone()])?;
    for (when, expected) in [
        ("paused", vec![]),
        ("resumed", vec![waiting.id().to_string()]),
    ] {
        let claimed = claim(&*inbox.store, handler.as_str(), 10, LONG).await?;
        same(
            &format!("claimed of a handler that is {when}, after a restart"),
            &ids(&claimed),
            &expected,
        )?;
        inbox.resume(handler).await?;
    }
    Ok(())
}

/// `None` is a loss of power.
async fn survives(cx: &Context, how: Option<Restart>) -> CaseResult {
    let mut inbox = cx.fresh_to_disrupt().await?;
    let ids_of_all = ["held", "done", "dead", "discarded", "replayed", "waiting"];
    for id in ids_of_all {
        inbox.accept(&message(id)?).await?;
    }
    let held = inbox.claim_one().await?;
    let extended = inbox.extend_one(&held.lease, 2 * LONG).await?;
    let done = inbox.claim_one().await?;
    let result = Some(Bytes::from_static(b"result"));
    let outcome = Outcome::Processed {
        result: result.clone(),
    };
    inbox.finish(&done, outcome).await?;
    let gone = inbox.claim_one().await?;
    inbox.finish(&gone, dead("gave up")).await?;
    let _ = inbox.discard(message("discarded")?.key()).await?;
    let replayed = inbox.claim_one().await?;
    inbox.finish(&replayed, dead("gave up")).await?;
    let _ = inbox
        .replay(replayed.message.key(), &Edit::default())
        .await?;
    let paused = message_for("paused", "1")?;
    inbox.accept(&paused).await?;
    inbox.pause(paused.handler()).await?;
    let mut before = Vec::new();
    for id in ids_of_all {
        before.push(inbox.record(message(id)?.key()).await?);
    }

    match how {
        Some(how) => inbox.fixture.server().restart(how).await?,
        None => inbox.fixture.server().lose_power().await?,
    }
    inbox.store = inbox.fixture.inbox();
    let _ = recovered(&inbox, &message("later")?).await?;
    stays_paused(&inbox, &paused).await?;
    for expected in before {
        let seen = inbox.record(&expected.key).await?;
        same(&format!("record of {}", expected.key), &seen, &expected)?;
    }
    inbox.refuses_copy(&done.message, "after a restart").await?;
    let mut claimed = ids(&inbox.claim_up_to(10, LONG).await?);
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
    inbox.finish(&held, processed()).await
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
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    inbox.accept(&message("1")?).await?;
    let stale = inbox.claim_single(inbox.brief()).await?;
    let held = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed elsewhere while held here",
        &ids(&held),
        &Vec::new(),
    )?;
    inbox.pass(inbox.brief()).await?;
    let leased = claim(&*other, HANDLER, 5, LONG).await?;
    same(
        "claimed elsewhere after the lease",
        &ids(&leased),
        &vec!["1".into()],
    )?;
    let late = inbox.settle_one(&stale.lease, processed()).await?;
    same("settling here afterwards", &late, &Settled::LeaseLost)?;
    same(
        "state as shown here",
        &inbox.record(&stale.lease.key).await?.state,
        &State::Leased,
    )
}

/// Defect: a subscription ends with the connection that it had, and nobody learns of it: from then on
/// work waits for the next poll.
pub(crate) async fn a_subscription_outlives_it(cx: Context) -> CaseResult {
    let inbox = cx.fresh_to_disrupt().await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    inbox.accept(&message("before")?).await?;
    wakes(&mut *subscription, "a receive before an outage").await?;
    inbox.fixture.server().begin_outage().await?;
    // What is done and what waits meanwhile may find out that the connection is broken.
    let amid = message("amid")?;
    let moment = Duration::from_millis(300);
    let _ = tokio::time::timeout(moment, inbox.receive_one(&amid)).await;
    let _ = tokio::time::timeout(moment, subscription.woken()).await;
    inbox.fixture.server().end_outage().await?;
    let _ = recovered(&inbox, &message("after")?).await?;
    wakes(&mut *subscription, "a receive after an outage").await?;
    // That may have been for the mending alone.
    while tokio::time::timeout(Duration::from_millis(300), subscription.woken())
        .await
        .is_ok()
    {}
    inbox.accept(&message("later")?).await?;
    wakes(&mut *subscription, "another receive after an outage").await
}
