//! Waiting for work.

use std::{future::poll_fn, task::Poll, time::Duration};

use inbox_api::{
    Begun, ClaimRequest, Due, Edit, ErrorKind, Filter, HandlerName, Inbox, Leased, Message,
    OrderingKey, Outcome, PurgeRequest, Settlement, Slice, State, Subscription, Wakeups,
};

use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, ensure, same},
    needs::{Corruption, Need},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, dead_blocking, defer, ids, message,
        message_for, ordered, processed, retry, terms,
    },
};

/// How long a wake-up may take.
pub(super) const SOON: Duration = Duration::from_secs(30);

pub(super) async fn subscribed(inbox: &dyn Inbox) -> CaseResult<Box<dyn Subscription>> {
    if inbox.capabilities().wakeups == Wakeups::None {
        return Err(Unmet::NotChecked(Need::Wakeups));
    }
    let mut subscription = inbox.subscribe(&[HandlerName::new(HANDLER)?]).await?;
    // Spurious wake-ups are allowed; those of the past are used up here.
    while tokio::time::timeout(Duration::from_millis(20), subscription.woken())
        .await
        .is_ok()
    {}
    Ok(subscription)
}

pub(super) async fn wakes(subscription: &mut dyn Subscription, cause: &str) -> CaseResult {
    tokio::time::timeout(SOON, subscription.woken())
        .await
        .map_err(|_| Unmet::Failed(format!("no wake-up within {SOON:?} of {cause}")))
}

pub(crate) async fn a_receive_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    for id in ["1", "2"] {
        inbox.accept(&message(id)?).await?;
        wakes(&mut *subscription, "a receive").await?;
    }
    Ok(())
}

pub(crate) async fn a_signal_before_waiting_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    inbox.accept(&message("1")?).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    wakes(&mut *subscription, "a receive before waiting began").await
}

pub(crate) async fn a_dropped_wait_loses_no_signal(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    for polls in 0..4 {
        let _ = drop_after(polls.min(1), subscription.woken()).await;
    }
    inbox.accept(&message("1")?).await?;
    wakes(
        &mut *subscription,
        "a receive after waits that were dropped",
    )
    .await
}

pub(crate) async fn work_that_comes_back_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    for (outcome, cause) in [
        (retry(Duration::ZERO), "a retry that is due at once"),
        (Outcome::Release, "a release"),
        (defer(Duration::ZERO), "a deferral that is due at once"),
    ] {
        let leased = inbox.claim_one().await?;
        let mut subscription = subscribed(&*inbox.store).await?;
        inbox.finish(&leased, outcome).await?;
        wakes(&mut *subscription, cause).await?;
    }
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead("gave up")).await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    let _ = inbox.replay(&leased.lease.key, &Edit::default()).await?;
    wakes(&mut *subscription, "a replay").await
}

async fn two_of_a_key(cx: &Context) -> CaseResult<TestInbox> {
    let inbox = cx.fresh_ordered().await?;
    inbox.accept(&ordered("1", "k")?).await?;
    inbox.accept(&ordered("2", "k")?).await?;
    Ok(inbox)
}

pub(crate) async fn the_next_of_an_ordering_key_wakes(cx: Context) -> CaseResult {
    for (outcome, cause) in [(processed(), "processed"), (dead("gave up"), "dead")] {
        let inbox = two_of_a_key(&cx).await?;
        let leased = inbox.claim_one().await?;
        let mut subscription = subscribed(&*inbox.store).await?;
        inbox.finish(&leased, outcome).await?;
        wakes(
            &mut *subscription,
            &format!("the one before it being {cause}"),
        )
        .await?;
    }
    let inbox = two_of_a_key(&cx).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead_blocking("gave up")).await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    let _ = inbox.discard(&leased.lease.key).await?;
    wakes(
        &mut *subscription,
        "the one that blocked it being discarded",
    )
    .await
}

pub(crate) async fn every_subscription_is_woken(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut one = subscribed(&*inbox.store).await?;
    let mut other = subscribed(&*inbox.store).await?;
    inbox.accept(&message("1")?).await?;
    wakes(&mut *one, "a receive, of the first subscription").await?;
    wakes(&mut *other, "a receive, of the second subscription").await
}

pub(crate) async fn another_process_is_woken(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if inbox.capabilities().wakeups != Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(Need::WakeupsAcrossProcesses));
    }
    let other = inbox.fixture.second_connection().await?;
    let mut subscription = subscribed(&*other).await?;
    inbox.accept(&message("1")?).await?;
    wakes(&mut *subscription, "a receive by another process").await
}

/// Defect: other processes learn only of new messages.
pub(crate) async fn another_process_is_woken_by_work_that_comes_back(cx: Context) -> CaseResult {
    let inbox = two_of_a_key(&cx).await?;
    if inbox.capabilities().wakeups != Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(Need::WakeupsAcrossProcesses));
    }
    let other = inbox.fixture.second_connection().await?;
    for (outcome, cause) in [
        (retry(Duration::ZERO), "a retry in another process"),
        (Outcome::Release, "a release in another process"),
        (defer(Duration::ZERO), "a deferral in another process"),
        (
            processed(),
            "the one before it being processed in another process",
        ),
        (dead("gave up"), "a replay in another process"),
    ] {
        let leased = inbox.claim_one().await?;
        let replayed = matches!(outcome, Outcome::Dead { .. });
        if replayed {
            inbox.finish(&leased, outcome).await?;
            let mut subscription = subscribed(&*other).await?;
            let _ = inbox.replay(&leased.lease.key, &Edit::default()).await?;
            wakes(&mut *subscription, cause).await?;
        } else {
            let mut subscription = subscribed(&*other).await?;
            inbox.finish(&leased, outcome).await?;
            wakes(&mut *subscription, cause).await?;
        }
    }
    Ok(())
}

pub(crate) async fn subscriptions_are_given_or_refused(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let answer = inbox.subscribe(&[HandlerName::new(HANDLER)?]).await;
    if inbox.capabilities().wakeups != Wakeups::None {
        return Ok(answer.map(drop)?);
    }
    let kind = answer.err().map(|error| error.kind());
    same("kind of the error", &kind, &Some(ErrorKind::Unsupported))
}

/// Who waits for what is done here: another process, where wake-ups reach it.
async fn listener(inbox: &TestInbox) -> CaseResult<std::sync::Arc<dyn Inbox>> {
    let reached = usize::from(inbox.capabilities().wakeups == Wakeups::EveryProcess);
    Ok(inbox.connections(2).await?.swap_remove(reached))
}

/// Does `change` while a worker waits, who claims whenever it is woken and finds nothing but what a
/// signal announces. Fails unless it gets something.
async fn finds(
    inbox: &dyn Inbox,
    cause: &str,
    change: impl Future<Output = CaseResult>,
) -> CaseResult<Leased> {
    let mut subscription = subscribed(inbox).await?;
    let worker = async {
        let mut wakes = 0;
        loop {
            if tokio::time::timeout(SOON, subscription.woken())
                .await
                .is_err()
            {
                return Err(Unmet::Failed(match wakes {
                    0 => format!("no wake-up within {SOON:?} of {cause}"),
                    _ => format!(
                        "{cause}: a worker was woken ({wakes} times), claimed at once and got \
                         nothing, and no further wake-up came within {SOON:?}: the signal came \
                         before its cause could be seen"
                    ),
                }));
            }
            wakes += 1;
            if let Some(leased) = claim(inbox, HANDLER, 1, LONG).await?.pop() {
                return Ok(leased);
            }
        }
    };
    let (leased, changed) = tokio::join!(worker, change);
    changed?;
    leased
}

/// Defect: a signal that comes before its cause can be seen. Who is woken by it looks too early, and
/// waits for the next one.
pub(crate) async fn who_is_woken_finds_the_cause(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let worker = listener(&inbox).await?;
    for round in 0..3 {
        let sent = message(&format!("{round}"))?;
        let mut leased = finds(&*worker, "a receive", inbox.accept(&sent)).await?;
        for (outcome, cause) in [
            (Outcome::Release, "a release"),
            (retry(Duration::ZERO), "a retry that is due at once"),
            (defer(Duration::ZERO), "a deferral that is due at once"),
        ] {
            leased = finds(&*worker, cause, inbox.finish(&leased, outcome)).await?;
        }
        inbox.finish(&leased, dead("gave up")).await?;
        let replay = async {
            let _ = inbox.replay(sent.key(), &Edit::default()).await?;
            Ok(())
        };
        leased = finds(&*worker, "a replay", replay).await?;
        inbox.finish(&leased, dead("gave up")).await?;
        let replay = async {
            let _ = inbox
                .replay_slice(&Filter::default(), &all_at_once())
                .await?;
            Ok(())
        };
        leased = finds(&*worker, "a replay of a slice", replay).await?;
        inbox.finish(&leased, processed()).await?;
    }
    Ok(())
}

/// Whether the future is ready when it is polled once.
async fn polled_once(waiting: &mut (impl Future<Output = ()> + Unpin)) -> bool {
    poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *waiting).poll(cx).is_ready())).await
}

/// Defect: a signal goes to a wait that is dropped before it has seen it, as in a `select!`, and is
/// gone.
pub(crate) async fn a_signal_to_a_wait_that_is_dropped_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    for round in 0..5 {
        let mut waiting = subscription.woken();
        while polled_once(&mut waiting).await {
            drop(waiting);
            waiting = subscription.woken();
        }
        inbox.accept(&message(&format!("{round}"))?).await?;
        // What carries the signal may take its time.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(waiting);
        wakes(
            &mut *subscription,
            "a receive during a wait that was then dropped",
        )
        .await?;
    }
    // Dropped when it has seen the signal, and does something else before it returns.
    for polls in 1..=3 {
        inbox.accept(&message(&format!("{polls} polls"))?).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if drop_after(polls, subscription.woken()).await.is_none() {
            let cause = format!("a receive before a wait that was dropped (polls: {polls})");
            wakes(&mut *subscription, &cause).await?;
        }
    }
    Ok(())
}

async fn begun(inbox: &TestInbox, message: &Message) -> CaseResult<Leased> {
    match inbox.begin(message, &terms(LONG)?).await? {
        Begun::Run(leased) => Ok(*leased),
        other => Err(Unmet::Failed(format!("begin: expected Run, saw {other:?}"))),
    }
}

/// Defect: only what was received and claimed wakes when it comes back.
pub(crate) async fn what_was_begun_and_comes_back_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    for (outcome, cause) in [
        (retry(Duration::ZERO), "a retry of what was begun"),
        (Outcome::Release, "a release of what was begun"),
        (defer(Duration::ZERO), "a deferral of what was begun"),
    ] {
        let leased = begun(&inbox, &sent).await?;
        let mut subscription = subscribed(&*inbox.store).await?;
        inbox.finish(&leased, outcome).await?;
        wakes(&mut *subscription, cause).await?;
    }
    if !inbox.capabilities().ordering {
        return Ok(());
    }
    let inbox = cx.fresh().await?;
    for (n, (outcome, cause)) in [(processed(), "processed"), (dead("gave up"), "dead")]
        .into_iter()
        .enumerate()
    {
        let (first, second) = (format!("{n}-1"), format!("{n}-2"));
        let key = format!("{n}");
        let leased = begun(&inbox, &ordered(&first, &key)?).await?;
        let behind = inbox.begin(&ordered(&second, &key)?, &terms(LONG)?).await?;
        same("begin behind another", &behind, &Begun::Blocked)?;
        let cause = format!("the one before it, which was begun, being {cause}");
        let next = finds(&*inbox.store, &cause, inbox.finish(&leased, outcome)).await?;
        same("claimed", &next.message.id().as_str(), &second.as_str())?;
    }
    Ok(())
}

fn all_at_once() -> Slice {
    Slice {
        after: None,
        limit: 100,
    }
}

fn of(states: &[State]) -> Filter {
    Filter {
        states: states.to_vec(),
        ..Filter::default()
    }
}

/// The first of three of a key is dead and blocks it.
async fn blocked(cx: &Context) -> CaseResult<(TestInbox, Message)> {
    let inbox = cx.fresh_ordered().await?;
    let first = ordered("1", "k")?;
    inbox.accept(&first).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead_blocking("gave up")).await?;
    inbox
        .accept_all(&[ordered("2", "k")?, ordered("3", "k")?])
        .await?;
    Ok((inbox, first))
}

/// The first of three of a key is pending and not due for long.
async fn delayed(cx: &Context) -> CaseResult<(TestInbox, Message)> {
    let inbox = cx.fresh_ordered().await?;
    let first = ordered("1", "k")?;
    inbox
        .accept(&first.clone().with_due(Due::After(LONG)))
        .await?;
    inbox
        .accept_all(&[ordered("2", "k")?, ordered("3", "k")?])
        .await?;
    Ok((inbox, first))
}

/// Defect: an operator's change by slice, which lets an ordering key go on, wakes nobody.
pub(crate) async fn what_slices_set_free_wakes(cx: Context) -> CaseResult {
    let (inbox, _) = blocked(&cx).await?;
    let replay = async {
        let progress = inbox.replay_slice(&of(&[]), &all_at_once()).await?;
        same("replayed", &progress.changed, &1)
    };
    let next = finds(&*inbox.store, "a slice that replays what blocked", replay).await?;
    same("claimed", &next.message.id().as_str(), &"1")?;

    for state in [State::Dead, State::Pending] {
        let (inbox, _) = if state == State::Dead {
            blocked(&cx).await?
        } else {
            delayed(&cx).await?
        };
        let one = Slice {
            after: None,
            limit: 1,
        };
        let discard = async {
            let progress = inbox.discard_slice(&of(&[state]), &one).await?;
            same("discarded", &progress.changed, &1)
        };
        let cause = format!("a slice that discards the {state} first of an ordering key");
        let next = finds(&*inbox.store, &cause, discard).await?;
        same("claimed", &next.message.id().as_str(), &"2")?;
    }
    Ok(())
}

/// The same, of one message.
pub(crate) async fn what_an_operator_sets_free_wakes(cx: Context) -> CaseResult {
    let (inbox, first) = blocked(&cx).await?;
    let replay = async {
        let _ = inbox.replay(first.key(), &Edit::default()).await?;
        Ok(())
    };
    let next = finds(&*inbox.store, "a replay of what blocked", replay).await?;
    same("claimed", &next.message.id().as_str(), &"1")?;
    for (what, (inbox, first)) in [
        ("was dead and blocked it", blocked(&cx).await?),
        ("was not due", delayed(&cx).await?),
    ] {
        let discard = async {
            let _ = inbox.discard(first.key()).await?;
            Ok(())
        };
        let cause = format!("a discard of the first of an ordering key that {what}");
        let next = finds(&*inbox.store, &cause, discard).await?;
        same("claimed", &next.message.id().as_str(), &"2")?;
    }
    Ok(())
}

/// Defect: a purge lets an ordering key go on and wakes nobody.
pub(crate) async fn a_purge_of_what_blocked_wakes(cx: Context) -> CaseResult {
    for archived in [false, true] {
        let (inbox, first) = blocked(&cx).await?;
        let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
        let keys = [first.key().clone()];
        let purge = async {
            let purged = if archived {
                inbox.purge_archived(&expired, &keys).await?
            } else {
                inbox.purge(&expired).await?
            };
            same("purged", &purged, &1)
        };
        let cause = if archived {
            "a purge of an archived message that blocked"
        } else {
            "a purge of what blocked"
        };
        let next = finds(&*inbox.store, cause, purge).await?;
        same("claimed", &next.message.id().as_str(), &"2")?;
    }
    Ok(())
}

/// Defect: only the first, or the last, of a batch decides whether there is a signal.
pub(crate) async fn any_member_of_a_batch_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let known = message("known")?;
    inbox.accept_in(&known, State::Processed).await?;
    for (n, at) in [0, 1, 2].into_iter().enumerate() {
        let mut batch = vec![
            known.clone(),
            message_for("other", &format!("{n}"))?.with_due(Due::After(LONG)),
        ];
        batch.insert(at, message(&format!("{n}"))?);
        let receive = async {
            let _ = inbox.receive(&batch).await?;
            Ok(())
        };
        let cause = format!("a receive whose member {at} of 3 is new and due");
        let leased = finds(&*inbox.store, &cause, receive).await?;
        inbox.finish(&leased, processed()).await?;
    }
    for at in 0..3 {
        let batch: Vec<Message> = (0..3)
            .map(|n| message(&format!("settled {at} {n}")))
            .collect::<CaseResult<_>>()?;
        inbox.accept_all(&batch).await?;
        let leased = inbox.claim_up_to(3, LONG).await?;
        same("claimed", &leased.len(), &3)?;
        let settlements: Vec<Settlement> = leased
            .into_iter()
            .enumerate()
            .map(|(n, leased)| Settlement {
                lease: leased.lease,
                outcome: if n == at {
                    Outcome::Release
                } else {
                    processed()
                },
            })
            .collect();
        let settle = async {
            let _ = inbox.settle(&settlements).await?;
            Ok(())
        };
        let cause = format!("settlements of which number {at} of 3 is a release");
        let leased = finds(&*inbox.store, &cause, settle).await?;
        inbox.finish(&leased, processed()).await?;
    }
    Ok(())
}

/// Defect: a subscription hears of one handler only.
pub(crate) async fn every_handler_of_a_subscription_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    drop(subscribed(&*inbox.store).await?);
    let names = ["a", "b", "c"];
    let handlers = names.map(HandlerName::new);
    let handlers: Vec<HandlerName> = handlers.into_iter().collect::<Result<_, _>>()?;
    let mut subscription = inbox.subscribe(&handlers).await?;
    for name in names.iter().rev().chain(&names) {
        // Spurious wake-ups are allowed; those of the past are used up here.
        while tokio::time::timeout(Duration::from_millis(20), subscription.woken())
            .await
            .is_ok()
        {}
        let id = format!("{}", inbox.count(&Filter::default()).await?);
        inbox.accept(&message_for(name, &id)?).await?;
        wakes(
            &mut *subscription,
            &format!("a receive for the handler {name}"),
        )
        .await?;
    }
    Ok(())
}

/// Defect: the next of an ordering key waits for the next poll when a corrupt row was before it.
pub(crate) async fn what_a_corrupt_row_held_up_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    let first = ordered("1", "k")?;
    inbox
        .accept_all(&[first.clone(), ordered("2", "k")?])
        .await?;
    inbox
        .fixture
        .corrupt(first.key(), Corruption::Headers)
        .await?;
    let mut subscription = subscribed(&*inbox.store).await?;
    let request = ClaimRequest {
        handlers: vec![HandlerName::new(HANDLER)?],
        limit: 10,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    let claims = inbox.claim(&request).await?;
    same("reported as corrupt", &claims.corrupt.len(), &1)?;
    if !claims.leased.is_empty() {
        return same("claimed", &ids(&claims.leased), &vec!["2".into()]);
    }
    wakes(
        &mut *subscription,
        "a claim that set the first of an ordering key aside as corrupt",
    )
    .await?;
    let next = claim(&*inbox.store, HANDLER, 10, LONG).await?;
    same("claimed", &ids(&next), &vec!["2".into()])
}

/// Defect: what a transaction makes claimable wakes nobody, or wakes before the commit and then no
/// more.
pub(crate) async fn a_commit_wakes(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = inbox.fixture.transactions()?;
    let receive = async {
        let mut transaction = transactions.open().await?;
        let _ = transaction.receive(&[message("1")?]).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(transaction.commit().await?)
    };
    let mut leased = finds(&*inbox.store, "a receive in a transaction", receive).await?;
    for (outcome, cause) in [
        (retry(Duration::ZERO), "a retry in a transaction"),
        (Outcome::Release, "a release in a transaction"),
        (defer(Duration::ZERO), "a deferral in a transaction"),
    ] {
        let settle = async {
            let settlement = [Settlement {
                lease: leased.lease.clone(),
                outcome,
            }];
            let mut transaction = transactions.open().await?;
            let _ = transaction.settle(&settlement).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(transaction.commit().await?)
        };
        leased = finds(&*inbox.store, cause, settle).await?;
    }
    inbox.finish(&leased, processed()).await?;
    if !inbox.capabilities().ordering {
        return Ok(());
    }
    let (first, second) = (ordered("2", "k")?, ordered("3", "k")?);
    inbox.accept_all(&[first.clone(), second]).await?;
    let mut transaction = transactions.open().await?;
    // Before the listener, whose claims would take it.
    let recorded = transaction.record(&first, None).await?;
    same("record", &recorded, &inbox_api::Recorded::First)?;
    let commit = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(transaction.commit().await?)
    };
    let next = finds(&*inbox.store, "a record of the one before it", commit).await?;
    same("claimed", &next.message.id().as_str(), &"3")
}

/// Defect: other processes do not learn of what operators do.
pub(crate) async fn another_process_is_woken_by_operators(cx: Context) -> CaseResult {
    let inbox = cx.fresh_ordered().await?;
    if inbox.capabilities().wakeups != Wakeups::EveryProcess {
        return Err(Unmet::NotChecked(Need::WakeupsAcrossProcesses));
    }
    let other = inbox.fixture.second_connection().await?;
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    for (n, cause) in ["replay", "discard", "purge", "purge of the archived"]
        .into_iter()
        .enumerate()
    {
        let key = OrderingKey::new(cause)?;
        let first = message(&format!("{n}-1"))?.with_ordering_key(key.clone());
        inbox.accept(&first).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, dead_blocking("gave up")).await?;
        let second = message(&format!("{n}-2"))?.with_ordering_key(key.clone());
        inbox.accept(&second).await?;
        let filter = Filter {
            states: vec![State::Dead],
            ordering_key: Some(key),
            ..Filter::default()
        };
        let mut subscription = subscribed(&*other).await?;
        let changed = match n {
            0 => inbox.replay_slice(&filter, &all_at_once()).await?.changed,
            1 => inbox.discard_slice(&filter, &all_at_once()).await?.changed,
            2 => inbox.purge(&expired).await?,
            _ => {
                let keys = [first.key().clone()];
                inbox.purge_archived(&expired, &keys).await?
            }
        };
        same(&format!("changed by a {cause}"), &changed, &1)?;
        wakes(
            &mut *subscription,
            &format!("a {cause} in another process of what blocked"),
        )
        .await?;
        let next = claim(&*other, HANDLER, 10, LONG).await?;
        ensure!(
            next.len() == 1,
            "claimed after a {cause}: expected the next, saw {:?}",
            ids(&next)
        );
        inbox.finish(&next[0], processed()).await?;
        if n == 0 {
            let next = inbox.claim_one().await?;
            inbox.finish(&next, processed()).await?;
        }
    }
    Ok(())
}
