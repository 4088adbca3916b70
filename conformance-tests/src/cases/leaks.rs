//! What calls leave behind whose futures are dropped: connections that do not come back, locks that
//! nobody opens, turns that nobody takes. Each operation is dropped 50 times, at each of its await
//! points in turn, which is more often than a pool has connections; then the others must answer.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use inbox_api::{
    Edit, ErrorKind, Filter, HandlerName, Lease, Message, Operate, Page, PurgeRequest, Result,
    Schema, Settlement, Slice, State, Store, StoreExt as _, Wakeups,
};

use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, same},
    needs::Need,
    test_inbox::{Context, LONG, TestInbox, claim, dead, message, message_for, processed, terms},
    transactions::AnyTransactions,
};

const TIMES: usize = 50;
/// More than any operation needs.
const MOST_POLLS: usize = 300;
/// How many plain operations are asked for at once: more than most pools have connections.
const AT_ONCE: usize = 12;
/// How long they may take together, on a store whose every operation takes a tenth of a second and
/// that does them one after the other; what the dropped ones left in the server ends in that time too.
const SOON: Duration = Duration::from_secs(60);

/// Whether `doing` has an answer in time. One that gives up waiting for a connection has none; one that
/// gives way to a dropped call that still goes on has.
async fn answers<T>(doing: impl Future<Output = Result<T>>) -> CaseResult<bool> {
    match tokio::time::timeout(SOON, doing).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) => match error.kind() {
            ErrorKind::Conflict => Ok(true),
            ErrorKind::Unavailable => Ok(false),
            _ => Err(error.into()),
        },
        Err(_) => Ok(false),
    }
}

/// Drops what `call` makes [`TIMES`] times, after one more poll each time, from the start again when it
/// completes. Gives up when there is no answer: what was left behind is found out then.
async fn drop_it<'a, T>(mut call: impl FnMut(usize) -> BoxFuture<'a, Result<T>>) -> CaseResult {
    let mut polls = 0;
    for time in 0..TIMES {
        polls = polls % MOST_POLLS + 1;
        match tokio::time::timeout(SOON, drop_after(polls, call(time))).await {
            Err(_) => return Ok(()),
            Ok(None) => {}
            Ok(Some(answer)) => {
                polls = 0;
                if !answers(std::future::ready(answer)).await? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Fails if nothing answers any more, and says what kind of thing was left behind.
async fn nothing_is_left(inbox: &TestInbox, what: &str, touched: &Message) -> CaseResult {
    let nobody = message_for("nobody", "nothing")?;
    let reads = join_all((0..AT_ONCE).map(|_| answers(inbox.get(nobody.key()))));
    let left = |kind: &str| {
        Err(Unmet::Failed(format!(
            "{kind}, {SOON:?} after {what} was dropped {TIMES} times"
        )))
    };
    let mut answered = 0;
    for read in reads.await {
        answered += usize::from(read?);
    }
    if answered < AT_ONCE {
        return left(&format!(
            "connections did not come back: {answered} of {AT_ONCE} reads were answered"
        ));
    }
    let others: Vec<Message> = (0..AT_ONCE)
        .map(|n| message_for("others", &format!("{what} {n}")))
        .collect::<CaseResult<_>>()?;
    let writes = join_all(others.iter().map(|other| answers(inbox.receive_one(other))));
    let mut answered = 0;
    for write in writes.await {
        answered += usize::from(write?);
    }
    if answered < AT_ONCE {
        return left(&format!(
            "a lock was left behind: reads are answered, but {answered} of {AT_ONCE} writes of other messages were"
        ));
    }
    if !answers(inbox.receive_one(touched)).await? {
        return left(
            "a lock on the message was left behind: others are received, but not a copy of it",
        );
    }
    Ok(())
}

/// Fails if the operation itself, asked for once more, has no answer.
async fn answers_itself<T>(what: &str, doing: impl Future<Output = Result<T>>) -> CaseResult {
    if answers(doing).await? {
        return Ok(());
    }
    Err(Unmet::Failed(format!(
        "a turn was left behind: other operations are answered, but not {what}, {SOON:?} after it was \
         dropped {TIMES} times"
    )))
}

/// Drops an operation, looks what is left, and does it.
macro_rules! dropped {
    ($inbox:expr, $touched:expr, $what:literal, $call:expr) => {{
        let call = $call;
        drop_it(|time| {
            let doing = call(time);
            Box::pin(async move { doing.await.map(drop) })
        })
        .await?;
        nothing_is_left($inbox, $what, $touched).await?;
        answers_itself($what, call(TIMES)).await?;
    }};
}

pub(crate) async fn receiving_and_claiming_leave_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (connection, sent) = (&inbox.store, message("1")?);
    inbox.accept(&sent).await?;
    let batch = [sent.clone(), message("2")?];
    dropped!(&inbox, &sent, "receive", |_| Store::receive(
        &**connection,
        &batch
    ));
    let request = inbox_api::ClaimRequest {
        handlers: vec![sent.handler().clone()],
        limit: 2,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    dropped!(&inbox, &sent, "claim", |_| Store::claim(
        &**connection,
        &request
    ));
    let terms = terms(LONG)?;
    let begun = message("begun")?;
    dropped!(&inbox, &begun, "begin", |_| Store::begin(
        &**connection,
        &begun,
        &terms
    ));
    Ok(())
}

/// Leased messages.
async fn leased(inbox: &TestInbox, n: usize) -> CaseResult<Vec<Lease>> {
    let all: Vec<Message> = (0..n)
        .map(|n| message_for("leased", &format!("{n}")))
        .collect::<CaseResult<_>>()?;
    inbox.accept_all(&all).await?;
    let leased = claim(&*inbox.store, "leased", 1000, 60 * LONG).await?;
    same("claimed", &leased.len(), &n)?;
    Ok(leased.into_iter().map(|leased| leased.lease).collect())
}

pub(crate) async fn settling_and_extending_leave_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (connection, leases) = (&inbox.store, leased(&inbox, TIMES + 1).await?);
    let touched = message_for("leased", "0")?;
    dropped!(&inbox, &touched, "extend", |time: usize| Store::extend(
        &**connection,
        std::slice::from_ref(&leases[time]),
        60 * LONG
    ));
    let ends: Vec<Settlement> = leases
        .iter()
        .map(|lease| Settlement {
            lease: lease.clone(),
            outcome: processed(),
        })
        .collect();
    dropped!(&inbox, &touched, "settle", |time: usize| Store::settle(
        &**connection,
        std::slice::from_ref(&ends[time])
    ));
    Ok(())
}

/// Dead messages.
async fn dead_ones(inbox: &TestInbox, n: usize) -> CaseResult<Vec<Message>> {
    let leases = leased(inbox, n).await?;
    let ends: Vec<Settlement> = leases
        .into_iter()
        .map(|lease| Settlement {
            lease,
            outcome: dead("gave up"),
        })
        .collect();
    let _ = inbox.settle(&ends).await?;
    (0..n)
        .map(|n| message_for("leased", &format!("{n}")))
        .collect()
}

pub(crate) async fn interventions_leave_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (connection, all) = (&inbox.store, dead_ones(&inbox, TIMES + 1).await?);
    let (touched, edit) = (&all[0], Edit::default());
    dropped!(&inbox, touched, "replay", |time: usize| Operate::replay(
        &**connection,
        all[time].key(),
        &edit
    ));
    dropped!(&inbox, touched, "discard", |time: usize| Operate::discard(
        &**connection,
        all[time].key()
    ));
    let filter = Filter {
        states: vec![State::Pending, State::Discarded],
        handler: Some(HandlerName::new("leased")?),
        ..Filter::default()
    };
    let slice = Slice {
        after: None,
        limit: 3,
    };
    dropped!(&inbox, touched, "replay of a slice", |_| {
        Operate::replay_slice(&**connection, &filter, &slice)
    });
    dropped!(&inbox, touched, "discard of a slice", |_| {
        Operate::discard_slice(&**connection, &filter, &slice)
    });
    Ok(())
}

pub(crate) async fn purging_leaves_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (connection, all) = (&inbox.store, dead_ones(&inbox, 2 * (TIMES + 1)).await?);
    let touched = message("1")?;
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 1)?;
    let archived: Vec<_> = all.iter().map(|message| message.key().clone()).collect();
    dropped!(&inbox, &touched, "purge of what was archived", |time| {
        let keys = archived.get(time..=time).unwrap_or_default();
        Operate::purge_archived(&**connection, &expired, keys)
    });
    dropped!(&inbox, &touched, "purge", |_| Operate::purge(
        &**connection,
        &expired
    ));
    Ok(())
}

pub(crate) async fn looking_leaves_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (connection, sent) = (&inbox.store, message("1")?);
    inbox.accept_in(&sent, State::Dead).await?;
    let (filter, page) = (Filter::default(), Page::first(10));
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    dropped!(&inbox, &sent, "get", |_| Operate::get(
        &**connection,
        sent.key()
    ));
    dropped!(&inbox, &sent, "list", |_| Operate::list(
        &**connection,
        &filter,
        &page
    ));
    dropped!(&inbox, &sent, "count", |_| Operate::count(
        &**connection,
        &filter
    ));
    dropped!(&inbox, &sent, "statistics", |_| Operate::statistics(
        &**connection
    ));
    dropped!(&inbox, &sent, "expired", |_| Operate::expired(
        &**connection,
        &expired
    ));
    Ok(())
}

pub(crate) async fn setting_up_leaves_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (connection, sent) = (&inbox.store, message("1")?);
    dropped!(&inbox, &sent, "version", |_| Schema::version(&**connection));
    dropped!(&inbox, &sent, "exists", |_| Schema::exists(&**connection));
    dropped!(&inbox, &sent, "create", |_| Schema::create(&**connection));
    dropped!(&inbox, &sent, "migrate", |_| Schema::migrate(&**connection));
    Ok(())
}

pub(crate) async fn subscriptions_leave_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if inbox.capabilities().wakeups == Wakeups::None {
        return Err(Unmet::NotChecked(Need::Wakeups));
    }
    let (connection, sent) = (&inbox.store, message("1")?);
    let handlers = [sent.handler().clone()];
    dropped!(&inbox, &sent, "subscribe", |_| Store::subscribe(
        &**connection,
        &handlers
    ));
    for _ in 0..TIMES {
        let mut subscription = inbox.subscribe(&handlers).await?;
        let _ = drop_after(1, subscription.woken()).await;
    }
    let mut subscription = inbox.subscribe(&handlers).await?;
    inbox.accept(&message("2")?).await?;
    let woken = tokio::time::timeout(super::wakeups::SOON, subscription.woken()).await;
    if woken.is_err() {
        return Err(Unmet::Failed(format!(
            "subscriptions are not heard of any more: no wake-up after {TIMES} that were dropped"
        )));
    }
    nothing_is_left(&inbox, "a subscription", &sent).await
}

/// Opens, records and ends a transaction, which is dropped with whatever step it is at.
async fn transaction(
    transactions: &dyn AnyTransactions,
    message: &Message,
    commit: bool,
) -> Result<()> {
    let mut transaction = transactions.open().await?;
    let _ = transaction.record(message, None).await?;
    if commit {
        transaction.commit().await
    } else {
        transaction.roll_back().await
    }
}

pub(crate) async fn transactions_leave_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = &inbox.fixture.transactions()?;
    let all: Vec<Message> = (0..=TIMES)
        .map(|n| message(&format!("{n}")))
        .collect::<CaseResult<_>>()?;
    let all: Arc<[Message]> = all.into();
    dropped!(&inbox, &all[0], "a transaction that rolls back", |time| {
        transaction(&**transactions, &all[time], false)
    });
    dropped!(&inbox, &all[0], "a transaction that commits", |time| {
        transaction(&**transactions, &all[time], true)
    });
    Ok(())
}
