//! Connections that go silent: what is sent on them neither arrives nor is refused.

use std::{fmt::Debug, time::Duration};

use futures_util::future::BoxFuture;
use inbox_api::{
    Due, Edit, Effect, ErrorKind, Filter, HandlerName, Inbox, Message, Page, PurgeRequest, Receipt,
    Recorded, Result, Settled, Slice, State, StoreExt as _,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Settings},
    test_inbox::{Context, HANDLER, LONG, TestInbox, message, processed, terms, worker},
};

/// How long the store's operations may take here.
const LIMIT: Duration = Duration::from_secs(2);
/// When a call counts as one that does not end: far beyond the limit, on any machine.
const HUNG: Duration = Duration::from_secs(60);
/// How many calls may meet a silent connection: a pool may hold several.
const MOST_SILENT: usize = 20;
/// How often a slow machine may be late in turn where no connection is silent.
const MOST_LATE: usize = 5;

async fn fresh(cx: &Context) -> CaseResult<TestInbox> {
    let inbox = cx
        .fresh_with(&Settings {
            operation_timeout: Some(LIMIT),
            disrupted: true,
            ..Settings::default()
        })
        .await?;
    // Not offered: better known before the store is filled.
    inbox.fixture.silence().await?;
    answers(&inbox).await?;
    Ok(inbox)
}

/// Goes on until a call is answered again.
async fn answers(inbox: &TestInbox) -> CaseResult {
    for _ in 0..MOST_SILENT {
        if ends("get", inbox.get(message("none")?.key()))
            .await?
            .is_ok()
        {
            return Ok(());
        }
    }
    Err(Unmet::Failed(format!(
        "new calls use new connections: saw {MOST_SILENT} fail one after the other"
    )))
}

/// Repeats what is not answered in time although no connection is silent.
async fn answered<T, F: Future<Output = Result<T>>>(call: impl Fn() -> F) -> CaseResult<T> {
    let mut late = 0;
    loop {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Unavailable && late < MOST_LATE => late += 1,
            answer => return Ok(answer?),
        }
    }
}

/// The answer of a call, which must come.
async fn ends<T>(what: &str, call: impl Future<Output = Result<T>>) -> CaseResult<Result<T>> {
    tokio::time::timeout(HUNG, call).await.map_err(|_| {
        Unmet::Failed(format!(
            "{what} on a silent connection: expected an answer after {LIMIT:?}, saw none in {HUNG:?}"
        ))
    })
}

/// `Ok`, where the store found out in time to use another connection, or unavailable.
fn told<T: Debug>(what: &str, answer: &Result<T>) -> CaseResult {
    if let Err(error) = answer {
        ensure!(
            error.kind() == ErrorKind::Unavailable,
            "{what} on a silent connection: expected that it is unavailable, saw {error}"
        );
    }
    Ok(())
}

pub(crate) async fn receive_ends(cx: Context) -> CaseResult {
    let inbox = fresh(&cx).await?;
    inbox.fixture.silence().await?;
    let sent = message("1")?;
    let answer = ends("receive", inbox.receive_one(&sent)).await?;
    told("receive", &answer)?;
    answers(&inbox).await?;
    let stored = answered(|| inbox.get(sent.key())).await?.is_some();
    match answer {
        Ok(receipt) => same("receipt", &(receipt, stored), &(Receipt::Accepted, true))?,
        Err(error) => ensure!(
            error.effect() == Effect::Unknown || !stored,
            "receive: it failed without effect ({error}), but the message is there"
        ),
    }
    let _ = answered(|| inbox.receive_one(&sent)).await?;
    same(
        "receipt of a second copy after a silence",
        &answered(|| inbox.receive_one(&sent)).await?,
        &Receipt::Duplicate { differs: false },
    )
}

pub(crate) async fn work_ends(cx: Context) -> CaseResult {
    let inbox = fresh(&cx).await?;
    let (handler, worker) = (HandlerName::new(HANDLER)?, worker()?);
    // One for each claim that may be late, and one more.
    for n in 0..=MOST_LATE + 1 {
        let sent = message(&format!("{n}"))?;
        let _ = answered(|| inbox.receive_one(&sent)).await?;
    }
    let claims = answered(|| inbox.claim_for(&handler, 1, 60 * LONG, &worker)).await?;
    let leased = claims.leased.into_iter().next();
    let leased =
        leased.ok_or_else(|| Unmet::Failed("claim: expected a message, saw none".into()))?;

    inbox.fixture.silence().await?;
    let claimed = ends("claim", inbox.claim_for(&handler, 5, LONG, &worker)).await?;
    told("claim", &claimed)?;
    answers(&inbox).await?;

    inbox.fixture.silence().await?;
    let extended = ends("extend", inbox.extend_one(&leased.lease, 60 * LONG)).await?;
    told("extend", &extended)?;
    answers(&inbox).await?;

    inbox.fixture.silence().await?;
    let begun = ends("begin", inbox.begin(&message("new")?, &terms(LONG)?)).await?;
    told("begin", &begun)?;
    answers(&inbox).await?;

    inbox.fixture.silence().await?;
    let settled = ends("settle", inbox.settle_one(&leased.lease, processed())).await?;
    told("settle", &settled)?;
    answers(&inbox).await?;
    same(
        "settling again",
        &answered(|| inbox.settle_one(&leased.lease, processed())).await?,
        &Settled::Done,
    )?;
    let record = answered(|| inbox.get(leased.message.key())).await?;
    same(
        "state",
        &record.map(|record| record.state),
        &Some(State::Processed),
    )
}

type Call = for<'a> fn(&'a dyn Inbox, &'a Message) -> BoxFuture<'a, Result<()>>;

const FIVE: Slice = Slice {
    after: None,
    limit: 5,
};

/// What people do, by name.
const LOOKS_AND_CHANGES: &[(&str, Call)] = &[
    ("get", |connection, sent| {
        Box::pin(async { connection.get(sent.key()).await.map(drop) })
    }),
    ("list", |connection, _| {
        Box::pin(async {
            let page = Page::first(5);
            connection.list(&Filter::default(), &page).await.map(drop)
        })
    }),
    ("count", |connection, _| {
        Box::pin(async { connection.count(&Filter::default()).await.map(drop) })
    }),
    ("statistics", |connection, _| {
        Box::pin(async { connection.statistics().await.map(drop) })
    }),
    ("replay", |connection, sent| {
        Box::pin(async {
            connection
                .replay(sent.key(), &Edit::default())
                .await
                .map(drop)
        })
    }),
    ("discard", |connection, sent| {
        Box::pin(async { connection.discard(sent.key()).await.map(drop) })
    }),
    ("replay_slice", |connection, _| {
        Box::pin(async {
            connection
                .replay_slice(&Filter::default(), &FIVE)
                .await
                .map(drop)
        })
    }),
    ("reschedule", |connection, sent| {
        Box::pin(async { connection.reschedule(sent.key(), Due::Now).await.map(drop) })
    }),
    ("reschedule_slice", |connection, _| {
        Box::pin(async {
            connection
                .reschedule_slice(&Filter::default(), &FIVE, Due::Now)
                .await
                .map(drop)
        })
    }),
    ("clear_slice", |connection, sent| {
        Box::pin(async {
            connection
                .clear_slice(sent.handler(), &FIVE)
                .await
                .map(drop)
        })
    }),
    ("pause", |connection, sent| {
        Box::pin(async { connection.pause(sent.handler()).await })
    }),
    ("resume", |connection, sent| {
        Box::pin(async { connection.resume(sent.handler()).await })
    }),
    ("paused", |connection, _| {
        Box::pin(async { connection.paused().await.map(drop) })
    }),
    ("drop_payloads", |connection, _| {
        Box::pin(async {
            let expired = expired("drop_payloads")?;
            connection.drop_payloads(&expired).await.map(drop)
        })
    }),
    ("discard_slice", |connection, _| {
        Box::pin(async {
            connection
                .discard_slice(&Filter::default(), &FIVE)
                .await
                .map(drop)
        })
    }),
    ("purge", |connection, _| {
        Box::pin(async { connection.purge(&expired("purge")?).await.map(drop) })
    }),
    ("expired", |connection, _| {
        Box::pin(async { connection.expired(&expired("expired")?).await.map(drop) })
    }),
    ("purge_archived", |connection, sent| {
        Box::pin(async {
            let keys = [sent.key().clone()];
            let expired = expired("purge_archived")?;
            connection.purge_archived(&expired, &keys).await.map(drop)
        })
    }),
    ("version", |connection, _| {
        Box::pin(async { connection.version().await.map(drop) })
    }),
    ("exists", |connection, _| {
        Box::pin(async { connection.exists().await.map(drop) })
    }),
    ("create", |connection, _| {
        Box::pin(async { connection.create().await })
    }),
    ("migrate", |connection, _| {
        Box::pin(async { connection.migrate().await.map(drop) })
    }),
];

fn expired(operation: &'static str) -> Result<PurgeRequest> {
    PurgeRequest::new(State::Dead, Duration::from_secs(3600), 5)
        .map_err(|invalid| invalid.in_operation(operation))
}

pub(crate) async fn looking_and_intervening_end(cx: Context) -> CaseResult {
    let inbox = fresh(&cx).await?;
    let sent = message("1")?;
    let _ = answered(|| inbox.receive_one(&sent)).await?;
    for (what, call) in LOOKS_AND_CHANGES {
        inbox.fixture.silence().await?;
        told(what, &ends(what, call(&*inbox.store, &sent)).await?)?;
        answers(&inbox).await?;
    }
    Ok(())
}

pub(crate) async fn transactions_end(cx: Context) -> CaseResult {
    let inbox = fresh(&cx).await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    let transactions = inbox.fixture.transactions()?;

    inbox.fixture.silence().await?;
    let opened = ends("open", transactions.open()).await?;
    told("open", &opened.map(drop))?;
    answers(&inbox).await?;

    let mut transaction = answered(|| transactions.open()).await?;
    inbox.fixture.silence().await?;
    let recorded = ends("record_in", transaction.record(&message("1")?, None)).await?;
    told("record_in", &recorded)?;
    let rolled_back = ends("roll_back", transaction.roll_back()).await?;
    told("roll_back", &rolled_back)?;
    answers(&inbox).await?;

    let sent = message("2")?;
    let record = || async {
        let mut transaction = transactions.open().await?;
        let recorded = transaction.record(&sent, None).await?;
        Ok::<_, inbox_api::Error>((transaction, recorded))
    };
    let (transaction, recorded) = answered(record).await?;
    same("record", &recorded, &Recorded::First)?;
    inbox.fixture.silence().await?;
    let committed = ends("commit", transaction.commit()).await?;
    told("commit", &committed)?;
    answers(&inbox).await?;
    let effect = committed.err().map(|error| error.effect());
    let recorded = answered(|| inbox.get(sent.key())).await?.is_some();
    ensure!(
        effect == Some(Effect::Unknown) || recorded == effect.is_none(),
        "commit on a silent connection: expected the truth or an unknown effect, saw effect \
         {effect:?} although the record is there: {recorded}"
    );
    Ok(())
}
