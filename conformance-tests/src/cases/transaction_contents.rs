//! What a transaction writes is what the same call writes outside of one.

use std::time::Duration;

use inbox_api::{
    Bytes, Due, ErrorKind, Filter, HandlerName, Leased, Message, OrderingKey, Outcome, Page,
    Receipt, Record, Recorded, Settled, Settlement, State, StoreExt as _,
};

use super::{
    hostile::{small_limit, too_large, with_payload},
    transactions::{transactional, transactional_with},
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::Need,
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, dead_blocking, defer, ids, message,
        message_for, ordered, processed, retry, without_times,
    },
    transactions::AnyTransactions,
};

/// How leases are settled.
#[derive(Clone, Copy, Debug)]
enum Way {
    Alone,
    InTransaction,
    WithCommit,
}

impl Way {
    async fn settle(
        self,
        inbox: &TestInbox,
        transactions: &dyn AnyTransactions,
        settlements: &[Settlement],
    ) -> CaseResult {
        let settled = match self {
            Self::Alone => inbox.settle(settlements).await?,
            Self::InTransaction => {
                let mut transaction = transactions.open().await?;
                let settled = transaction.settle(settlements).await?;
                transaction.commit().await?;
                settled
            }
            Self::WithCommit => {
                let transaction = transactions.open().await?;
                transaction.settle_and_commit(settlements).await?
            }
        };
        let expected = vec![Settled::Done; settlements.len()];
        same(&format!("settled {self:?}"), &settled, &expected)
    }
}

/// Every kind of outcome by its name, in order of the names.
fn outcomes() -> Vec<(&'static str, Outcome)> {
    let result = |bytes: &'static [u8]| Outcome::Processed {
        result: Some(Bytes::from_static(bytes)),
    };
    let deferred_silently = Outcome::Defer {
        after: LONG,
        error: None,
    };
    let mut outcomes = vec![
        ("processed", processed()),
        ("processed with a result", result(b"receipt \xff\0")),
        ("processed with an empty result", result(b"")),
        ("tried again", retry(LONG)),
        ("dead", dead("gave up")),
        ("dead and blocking", dead_blocking("gave up for good")),
        ("deferred", defer(LONG)),
        ("deferred without an error", deferred_silently),
        ("released", Outcome::Release),
    ];
    outcomes.sort_by_key(|(name, _)| *name);
    outcomes
}

/// A message of `handler`, with an ordering key where the store has them.
fn keyed(inbox: &TestInbox, handler: &str, id: &str, key: &str) -> CaseResult<Message> {
    let message = message_for(handler, id)?;
    Ok(if inbox.capabilities().ordering {
        message.with_ordering_key(OrderingKey::new(key)?)
    } else {
        message
    })
}

/// What is due of `handler`, in order of the ids.
async fn claim_sorted(inbox: &TestInbox, handler: &str) -> CaseResult<Vec<Leased>> {
    let mut leased = claim(&*inbox.store, handler, 100, LONG).await?;
    leased.sort_by(|one, other| one.message.id().as_str().cmp(other.message.id().as_str()));
    Ok(leased)
}

fn settlements(leased: &[Leased], outcomes: impl IntoIterator<Item = Outcome>) -> Vec<Settlement> {
    let each = leased.iter().zip(outcomes);
    each.map(|(leased, outcome)| Settlement {
        lease: leased.lease.clone(),
        outcome,
    })
    .collect()
}

/// What is left of a handler's messages.
struct Left {
    /// Without times, and whether each is due later than it was at first.
    records: Vec<(Record, bool)>,
    due: Vec<String>,
}

/// Settles the second attempt of a message with each outcome, and tells what is there afterwards.
async fn leave(
    inbox: &TestInbox,
    transactions: &dyn AnyTransactions,
    way: Way,
    together: bool,
) -> CaseResult<Left> {
    let handler = format!("{way:?} {together}");
    let outcomes = outcomes();
    let (mut first, mut next) = (Vec::new(), Vec::new());
    for (name, _) in &outcomes {
        first.push(keyed(inbox, &handler, name, name)?);
        next.push(keyed(inbox, &handler, &format!("{name}, next"), name)?);
    }
    inbox.accept_all(&first).await?;
    let leased = claim_sorted(inbox, &handler).await?;
    same("claimed", &leased.len(), &outcomes.len())?;
    let again = settlements(&leased, first.iter().map(|_| retry(Duration::ZERO)));
    Way::Alone.settle(inbox, transactions, &again).await?;
    let leased = claim_sorted(inbox, &handler).await?;
    same("claimed again", &leased.len(), &outcomes.len())?;
    if inbox.capabilities().ordering {
        inbox.accept_all(&next).await?;
    }
    let ends = settlements(&leased, outcomes.into_iter().map(|(_, outcome)| outcome));
    for ends in ends.chunks(if together { ends.len() } else { 1 }) {
        way.settle(inbox, transactions, ends).await?;
    }
    let filter = Filter {
        handler: Some(HandlerName::new(handler.as_str())?),
        ..Filter::default()
    };
    let page = Page {
        with_payload: true,
        ..Page::first(100)
    };
    let mut records = Vec::new();
    for record in inbox.list(&filter, &page).await?.records {
        let is_due_later = record.due_at >= record.accepted_at + LONG / 2;
        let mut record = without_times(record);
        record.key.handler = HandlerName::new(HANDLER)?;
        records.push((record, is_due_later));
    }
    let due = ids(&claim_sorted(inbox, &handler).await?);
    Ok(Left { records, due })
}

/// Defect: what a transaction settles has no result, no error, no history or another due time.
pub(crate) async fn a_settlement_in_a_transaction_is_the_same(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let expected = leave(&inbox, &*transactions, Way::Alone, false).await?;
    for (way, together) in [
        (Way::InTransaction, false),
        (Way::InTransaction, true),
        (Way::WithCommit, false),
        (Way::WithCommit, true),
    ] {
        let how = if together { "together" } else { "one by one" };
        let left = leave(&inbox, &*transactions, way, together).await?;
        same("records", &left.records.len(), &expected.records.len())?;
        for (seen, expected) in left.records.iter().zip(&expected.records) {
            let id = &expected.0.key.id;
            same(
                &format!("record and whether it is due later, of {id}, settled {way:?}, {how}"),
                seen,
                expected,
            )?;
        }
        same(
            &format!("due after all were settled {way:?}, {how}"),
            &left.due,
            &expected.due,
        )?;
    }
    Ok(())
}

/// What the message before a new one is.
#[derive(Clone, Copy, Debug)]
enum Before {
    Due,
    Leased,
    WaitingForARetry,
    DeadAndBlocking,
}

impl Before {
    const ALL: [Self; 4] = [
        Self::Due,
        Self::Leased,
        Self::WaitingForARetry,
        Self::DeadAndBlocking,
    ];

    /// Receives the message before, and brings it there.
    async fn bring(self, inbox: &TestInbox, first: &Message) -> CaseResult<Option<Leased>> {
        inbox.accept(first).await?;
        if matches!(self, Self::Due) {
            return Ok(None);
        }
        let leased = inbox.claim_one().await?;
        match self {
            Self::Due | Self::Leased => {}
            Self::WaitingForARetry => inbox.finish(&leased, retry(LONG)).await?,
            Self::DeadAndBlocking => inbox.finish(&leased, dead_blocking("gave up")).await?,
        }
        Ok(Some(leased))
    }

    /// Lets the ordering key go on; whether the message before is handed out again first.
    async fn let_go(
        self,
        inbox: &TestInbox,
        first: &Message,
        leased: Option<&Leased>,
    ) -> CaseResult<bool> {
        match self {
            Self::Due => return Ok(true),
            Self::Leased => {
                if let Some(leased) = leased {
                    inbox.finish(leased, processed()).await?;
                }
            }
            Self::WaitingForARetry => {
                let _ = inbox.reschedule(first.key(), Due::Now).await?;
                return Ok(true);
            }
            Self::DeadAndBlocking => {
                let _ = inbox.discard(first.key()).await?;
            }
        }
        Ok(false)
    }
}

/// Records a new message in a transaction that is committed, and receives it: whether the store kept it
/// from the first or not, it is there then.
async fn record_in_vain(
    inbox: &TestInbox,
    transactions: &dyn AnyTransactions,
    new: &Message,
) -> CaseResult<Recorded> {
    let mut transaction = transactions.open().await?;
    let recorded = transaction.record(new, None).await?;
    transaction.commit().await?;
    let _ = inbox.receive_one(new).await?;
    inbox.has_state(new.key(), State::Pending).await?;
    Ok(recorded)
}

/// Defect: a key that is not known is recorded as processed, whatever is before it and whenever it is due.
pub(crate) async fn a_new_message_waits_its_turn(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    if !inbox.capabilities().ordering {
        return Err(Unmet::NotChecked(Need::Ordering));
    }
    for (n, before) in Before::ALL.into_iter().enumerate() {
        let key = format!("key {n}");
        let first = ordered(&format!("{key}, 1"), &key)?;
        let second = ordered(&format!("{key}, 2"), &key)?;
        let leased = before.bring(&inbox, &first).await?;
        let recorded = record_in_vain(&inbox, &*transactions, &second).await?;
        same(
            &format!("record of a new message, of which the one before is {before:?}"),
            &recorded,
            &Recorded::Blocked,
        )?;
        if !matches!(before, Before::Due) {
            inbox
                .nothing_due(&format!("the first of its ordering key is {before:?}"))
                .await?;
        }
        let comes_first = before.let_go(&inbox, &first, leased.as_ref()).await?;
        let order = if comes_first {
            vec![&first, &second]
        } else {
            vec![&second]
        };
        for sent in order {
            let leased = inbox.claim_up_to(10, LONG).await?;
            same(
                &format!("claimed behind one that was {before:?}"),
                &ids(&leased),
                &vec![sent.id().to_string()],
            )?;
            for leased in &leased {
                inbox.finish(leased, processed()).await?;
            }
        }
    }
    let later = message("later")?.with_due(Due::After(LONG));
    let earliest = inbox.now().await? + LONG / 2;
    let recorded = record_in_vain(&inbox, &*transactions, &later).await?;
    ensure!(
        matches!(recorded, Recorded::Busy { until } if until >= earliest),
        "record of a new message that is due in {LONG:?}: expected Busy until then, saw {recorded:?}"
    );
    inbox.nothing_due("it is due later").await
}

/// Fails unless a step in a transaction failed as this kind.
fn refused<T>(what: &str, answer: inbox_api::Result<T>, kind: ErrorKind) -> CaseResult {
    same(
        &format!("kind of the error of {what}"),
        &answer.err().map(|error| error.kind()),
        &Some(kind),
    )
}

pub(crate) async fn what_breaks_a_rule_is_refused(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional_with(&cx, &small_limit()).await?;
    let batch = [message("1")?, with_payload("2", 1001)?, message("3")?];
    let mut transaction = transactions.open().await?;
    let receipts = transaction.receive(&batch).await?;
    let expected = vec![
        Receipt::Accepted,
        Receipt::Refused(too_large(1001, "payload")),
        Receipt::Accepted,
    ];
    same("receipts in a transaction", &receipts, &expected)?;
    transaction.commit().await?;
    for (sent, is_stored) in batch.iter().zip([true, false, true]) {
        let found = inbox.get(sent.key()).await?;
        same(
            &format!("whether {} is stored", sent.key()),
            &found.is_some(),
            &is_stored,
        )?;
    }
    let large = Bytes::from(vec![b'x'; 1001]);
    for (what, sent, result) in [
        ("a message over the limit", with_payload("4", 1001)?, None),
        ("a result over the limit", message("5")?, Some(&large)),
        (
            "such a result of a known message",
            message("1")?,
            Some(&large),
        ),
    ] {
        let before = inbox.get(sent.key()).await?;
        let mut transaction = transactions.open().await?;
        let recorded = transaction.record(&sent, result.cloned()).await;
        refused(&format!("a record of {what}"), recorded, ErrorKind::Invalid)?;
        transaction.roll_back().await?;
        let after = inbox.get(sent.key()).await?;
        same(&format!("{} after {what}", sent.key()), &after, &before)?;
    }
    if inbox.capabilities().ordering {
        return Ok(());
    }
    let (plain, with_key) = (message("6")?, ordered("7", "k")?);
    let mut transaction = transactions.open().await?;
    let received = transaction
        .receive(&[plain.clone(), with_key.clone()])
        .await;
    let kind = ErrorKind::Unsupported;
    refused("a receive with an ordering key", received, kind)?;
    transaction.roll_back().await?;
    let mut transaction = transactions.open().await?;
    let recorded = transaction.record(&with_key, None).await;
    refused("a record with an ordering key", recorded, kind)?;
    transaction.roll_back().await?;
    for sent in [plain, with_key] {
        let is_stored = inbox.get(sent.key()).await?.is_some();
        same(
            &format!("whether {} is stored", sent.key()),
            &is_stored,
            &false,
        )?;
    }
    Ok(())
}
