//! What calls leave behind whose futures are dropped: connections that do not come back, locks that
//! nobody opens, turns that nobody takes. Each operation is dropped 50 times, at each of its await
//! points in turn, which is more often than a pool has connections; then the others must answer.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use inbox_api::{
    ErrorKind, Filter, HandlerName, Lease, Message, Operate, Page, PurgeRequest, Result, Schema,
    Settlement, Slice, State, Store, StoreExt as _, Wakeups,
};

use crate::{
    cancel::drop_after,
    check::{CaseResult, Unmet, same},
    harness::Need,
    place::{Context, LONG, Place, claim, dead, message, message_for, processed, terms},
    transactions::AnyTransactions,
};

const TIMES: usize = 50;
/// More than any operation needs.
const MOST_POLLS: usize = 300;
/// How many plain operations are asked for at once: more than most pools have connections.
const AT_ONCE: usize = 12;
/// How long they may take together, on a store whose every operation takes a tenth of a second and
/// that does them one after the other; what the dropped ones left in the server ends in that time too.
const SOON: Duration = Duration::from_secs(15);

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
async fn nothing_is_left(place: &Place, what: &str, touched: &Message) -> CaseResult {
    let nobody = message_for("nobody", "nothing")?;
    let reads = join_all((0..AT_ONCE).map(|_| answers(place.get(nobody.key()))));
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
    let writes = join_all(others.iter().map(|other| answers(place.receive_one(other))));
    let mut answered = 0;
    for write in writes.await {
        answered += usize::from(write?);
    }
    if answered < AT_ONCE {
        return left(&format!(
            "a lock was left behind: reads are answered, but {answered} of {AT_ONCE} writes of other messages were"
        ));
    }
    if !answers(place.receive_one(touched)).await? {
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
    ($place:expr, $touched:expr, $what:literal, $call:expr) => {{
        let call = $call;
        drop_it(|time| {
            let doing = call(time);
            Box::pin(async move { doing.await.map(drop) })
        })
        .await?;
        nothing_is_left($place, $what, $touched).await?;
        answers_itself($what, call(TIMES)).await?;
    }};
}

pub(crate) async fn receiving_and_claiming_leave_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (inbox, sent) = (&place.inbox, message("1")?);
    place.accept(&sent).await?;
    let batch = [sent.clone(), message("2")?];
    dropped!(&place, &sent, "receive", |_| Store::receive(
        &**inbox, &batch
    ));
    let request = inbox_api::ClaimRequest {
        handlers: vec![sent.handler().clone()],
        limit: 2,
        terms: terms(LONG)?,
    };
    dropped!(&place, &sent, "claim", |_| Store::claim(&**inbox, &request));
    let terms = terms(LONG)?;
    let begun = message("begun")?;
    dropped!(&place, &begun, "begin", |_| Store::begin(
        &**inbox, &begun, &terms
    ));
    Ok(())
}

/// Leased messages.
async fn leased(place: &Place, n: usize) -> CaseResult<Vec<Lease>> {
    let all: Vec<Message> = (0..n)
        .map(|n| message_for("leased", &format!("{n}")))
        .collect::<CaseResult<_>>()?;
    place.accept_all(&all).await?;
    let leased = claim(&*place.inbox, "leased", 1000, 60 * LONG).await?;
    same("claimed", &leased.len(), &n)?;
    Ok(leased.into_iter().map(|leased| leased.lease).collect())
}

pub(crate) async fn settling_and_extending_leave_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (inbox, leases) = (&place.inbox, leased(&place, TIMES + 1).await?);
    let touched = message_for("leased", "0")?;
    dropped!(&place, &touched, "extend", |time: usize| Store::extend(
        &**inbox,
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
    dropped!(&place, &touched, "settle", |time: usize| Store::settle(
        &**inbox,
        std::slice::from_ref(&ends[time])
    ));
    Ok(())
}

/// Dead messages.
async fn dead_ones(place: &Place, n: usize) -> CaseResult<Vec<Message>> {
    let leases = leased(place, n).await?;
    let ends: Vec<Settlement> = leases
        .into_iter()
        .map(|lease| Settlement {
            lease,
            outcome: dead("gave up"),
        })
        .collect();
    let _ = place.settle(&ends).await?;
    (0..n)
        .map(|n| message_for("leased", &format!("{n}")))
        .collect()
}

pub(crate) async fn interventions_leave_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (inbox, all) = (&place.inbox, dead_ones(&place, TIMES + 1).await?);
    let touched = &all[0];
    dropped!(&place, touched, "replay", |time: usize| Operate::replay(
        &**inbox,
        all[time].key(),
        None
    ));
    dropped!(&place, touched, "discard", |time: usize| Operate::discard(
        &**inbox,
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
    dropped!(&place, touched, "replay of a slice", |_| {
        Operate::replay_slice(&**inbox, &filter, &slice)
    });
    dropped!(&place, touched, "discard of a slice", |_| {
        Operate::discard_slice(&**inbox, &filter, &slice)
    });
    Ok(())
}

pub(crate) async fn purging_leaves_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (inbox, all) = (&place.inbox, dead_ones(&place, 2 * (TIMES + 1)).await?);
    let touched = message("1")?;
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 1)?;
    let archived: Vec<_> = all.iter().map(|message| message.key().clone()).collect();
    dropped!(&place, &touched, "purge of what was archived", |time| {
        let keys = archived.get(time..=time).unwrap_or_default();
        Operate::purge_archived(&**inbox, &expired, keys)
    });
    dropped!(&place, &touched, "purge", |_| Operate::purge(
        &**inbox, &expired
    ));
    Ok(())
}

pub(crate) async fn looking_leaves_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (inbox, sent) = (&place.inbox, message("1")?);
    place.accept_in(&sent, State::Dead).await?;
    let (filter, page) = (Filter::default(), Page::first(10));
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10)?;
    dropped!(&place, &sent, "get", |_| Operate::get(&**inbox, sent.key()));
    dropped!(&place, &sent, "list", |_| Operate::list(
        &**inbox, &filter, &page
    ));
    dropped!(&place, &sent, "count", |_| Operate::count(
        &**inbox, &filter
    ));
    dropped!(&place, &sent, "statistics", |_| Operate::statistics(
        &**inbox
    ));
    dropped!(&place, &sent, "expired", |_| Operate::expired(
        &**inbox, &expired
    ));
    Ok(())
}

pub(crate) async fn setting_up_leaves_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    let (inbox, sent) = (&place.inbox, message("1")?);
    dropped!(&place, &sent, "version", |_| Schema::version(&**inbox));
    dropped!(&place, &sent, "exists", |_| Schema::exists(&**inbox));
    dropped!(&place, &sent, "create", |_| Schema::create(&**inbox));
    dropped!(&place, &sent, "migrate", |_| Schema::migrate(&**inbox));
    Ok(())
}

pub(crate) async fn subscriptions_leave_nothing(cx: Context) -> CaseResult {
    let place = cx.fresh().await?;
    if place.capabilities().wakeups == Wakeups::None {
        return Err(Unmet::NotChecked(Need::Wakeups));
    }
    let (inbox, sent) = (&place.inbox, message("1")?);
    let handlers = [sent.handler().clone()];
    dropped!(&place, &sent, "subscribe", |_| Store::subscribe(
        &**inbox, &handlers
    ));
    for _ in 0..TIMES {
        let mut subscription = place.subscribe(&handlers).await?;
        let _ = drop_after(1, subscription.woken()).await;
    }
    let mut subscription = place.subscribe(&handlers).await?;
    place.accept(&message("2")?).await?;
    let woken = tokio::time::timeout(super::wakeups::SOON, subscription.woken()).await;
    if woken.is_err() {
        return Err(Unmet::Failed(format!(
            "subscriptions are not heard of any more: no wake-up after {TIMES} that were dropped"
        )));
    }
    nothing_is_left(&place, "a subscription", &sent).await
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
    let place = cx.fresh().await?;
    if !place.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = &place.fixture.transactions()?;
    let all: Vec<Message> = (0..=TIMES)
        .map(|n| message(&format!("{n}")))
        .collect::<CaseResult<_>>()?;
    let all: Arc<[Message]> = all.into();
    dropped!(&place, &all[0], "a transaction that rolls back", |time| {
        transaction(&**transactions, &all[time], false)
    });
    dropped!(&place, &all[0], "a transaction that commits", |time| {
        transaction(&**transactions, &all[time], true)
    });
    Ok(())
}
