//! Transactions that decide by what they have seen of one ordering key, while others change it.
//!
//! Defect in all: each sees the key as it was before the other, and both go on.

use std::{sync::Arc, time::Duration};

use inbox_api::{Message, Recorded, Result, Settlement, State};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Unable},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead_blocking, ids, ordered, processed,
    },
    transactions::{AnyTransaction, AnyTransactions},
};

/// How long a step may wait for the other transaction before that one ends.
const PATIENCE: Duration = Duration::from_millis(300);
/// When a step counts as one that does not end.
const HUNG: Duration = Duration::from_secs(60);

async fn transactional(cx: &Context) -> CaseResult<(TestInbox, Arc<dyn AnyTransactions>)> {
    let inbox = cx.fresh_ordered().await?;
    if !inbox.capabilities().transactions {
        return Err(Unmet::NotChecked(Need::Transactions));
    }
    if inbox.capabilities().exclusive_transactions {
        return Err(Unmet::NotChecked(Need::SharedWrites));
    }
    let transactions = inbox.fixture.transactions()?;
    Ok((inbox, transactions))
}

/// Opens a transaction that sees the database as it is now, in databases where the first statement
/// decides.
async fn opened(
    transactions: &dyn AnyTransactions,
    note: &str,
) -> CaseResult<Box<dyn AnyTransaction>> {
    let mut transaction = transactions.open().await?;
    match transaction.write(note).await {
        Ok(()) | Err(Unable::NotOffered(_)) => Ok(transaction),
        Err(failed) => Err(failed.into()),
    }
}

/// How the first transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
}

impl End {
    async fn of(self, transaction: Box<dyn AnyTransaction>) -> Result<()> {
        match self {
            Self::Commit => transaction.commit().await,
            Self::RollBack => transaction.roll_back().await,
        }
    }
}

/// Three messages of an ordering key of their own.
async fn three(inbox: &TestInbox, key: &str) -> CaseResult<Vec<Message>> {
    let all: Vec<Message> = (1..=3)
        .map(|n| ordered(&format!("{key} {n}"), key))
        .collect::<CaseResult<_>>()?;
    inbox.accept_all(&all).await?;
    Ok(all)
}

/// Claims and processes what is left of the key, one after the other; fails if it is not in order.
async fn rest_in_order(inbox: &TestInbox, all: &[Message], when: &str) -> CaseResult {
    let mut left = Vec::new();
    for message in all {
        let record = inbox.record(message.key()).await?;
        if record.state != State::Processed {
            left.push(message.id().to_string());
        }
    }
    let mut order = Vec::new();
    for _ in 0..=left.len() {
        let leased = claim(&*inbox.store, HANDLER, 10, LONG).await?;
        ensure!(
            leased.len() <= 1,
            "{when}: claimed {:?} of one ordering key at once",
            ids(&leased)
        );
        for leased in leased {
            order.push(leased.message.id().to_string());
            inbox.finish(&leased, processed()).await?;
        }
    }
    same(&format!("{when}: claimed of what was left"), &order, &left)
}

/// Records `message` while another transaction, which `end`s then, has the one before it; whether it
/// is processed by that.
async fn behind(
    first: Box<dyn AnyTransaction>,
    mut second: Box<dyn AnyTransaction>,
    message: &Message,
    end: End,
    when: &str,
) -> CaseResult<bool> {
    let recorded = {
        let mut recording = second.record(message, None);
        match tokio::time::timeout(PATIENCE, &mut recording).await {
            Ok(recorded) => {
                if let Ok(recorded) = &recorded {
                    same(
                        &format!("{when}: record behind a message that another transaction has"),
                        recorded,
                        &Recorded::Blocked,
                    )?;
                }
                End::of(end, first).await?;
                recorded
            }
            // It waits for the other transaction.
            Err(_) => {
                End::of(end, first).await?;
                let late = tokio::time::timeout(HUNG, recording).await;
                late.map_err(|_| {
                    Unmet::Failed(format!(
                        "{when}: record behind a message saw no answer within {HUNG:?} of the end of \
                         the other transaction"
                    ))
                })?
            }
        }
    };
    match recorded {
        Ok(Recorded::First) => {
            ensure!(
                end == End::Commit,
                "{when}: record behind a message whose transaction rolled back: expected Blocked, saw \
                 First"
            );
            match second.commit().await {
                Ok(()) => Ok(true),
                Err(error) if error.is_retryable() => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
        Ok(_) => {
            second.roll_back().await?;
            Ok(false)
        }
        Err(error) if error.is_retryable() => {
            second.roll_back().await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Two transactions, of the first message and of the second, open at the same time.
pub(crate) async fn two_records_of_a_key_keep_the_order(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    for (n, end) in [End::Commit, End::RollBack, End::Commit, End::RollBack]
        .into_iter()
        .enumerate()
    {
        let key = format!("key {n}");
        let all = three(&inbox, &key).await?;
        let when = format!("of two transactions the first ended by {end:?}");
        // Whichever was opened first.
        let (mut first, second) = if n < 2 {
            let first = opened(&*transactions, &format!("{n} first")).await?;
            (first, opened(&*transactions, &format!("{n} second")).await?)
        } else {
            let second = opened(&*transactions, &format!("{n} second")).await?;
            (opened(&*transactions, &format!("{n} first")).await?, second)
        };
        same(
            "record of the first of an ordering key",
            &first.record(&all[0], None).await?,
            &Recorded::First,
        )?;
        let claimed = claim(&*inbox.store, HANDLER, 10, LONG).await?;
        same(
            &format!("{when}: claimed while it was open"),
            &ids(&claimed),
            &Vec::new(),
        )?;
        let done = behind(first, second, &all[1], end, &when).await?;
        let expected = match end {
            End::Commit => State::Processed,
            End::RollBack => State::Pending,
        };
        inbox.has_state(all[0].key(), expected).await?;
        if done {
            inbox.has_state(all[1].key(), State::Processed).await?;
        }
        rest_in_order(&inbox, &all, &when).await?;
    }
    Ok(())
}

/// A transaction that settles the first as a message that blocks, and one that records the second.
pub(crate) async fn a_record_during_a_death_keeps_the_order(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    for (n, end) in [End::Commit, End::RollBack].into_iter().enumerate() {
        let all = three(&inbox, &format!("key {n}")).await?;
        let when = format!("a death that blocks, in a transaction that ended by {end:?}");
        let leased = inbox.claim_one().await?;
        let second = opened(&*transactions, &format!("{n} second")).await?;
        let mut first = opened(&*transactions, &format!("{n} first")).await?;
        let settlement = [Settlement {
            lease: leased.lease.clone(),
            outcome: dead_blocking("gave up"),
        }];
        let _ = first.settle(&settlement).await?;
        // Never its turn: the first is leased, or dead and blocks.
        let recorded = {
            let mut second = second;
            let answer = {
                let mut recording = second.record(&all[1], None);
                match tokio::time::timeout(PATIENCE, &mut recording).await {
                    Ok(answer) => {
                        End::of(end, first).await?;
                        answer
                    }
                    Err(_) => {
                        End::of(end, first).await?;
                        recording.await
                    }
                }
            };
            second.roll_back().await?;
            answer
        };
        match recorded {
            Ok(recorded) => same(
                &format!("record of the one behind it, {when}"),
                &recorded,
                &Recorded::Blocked,
            )?,
            Err(error) => ensure!(
                error.is_retryable(),
                "record of the one behind it, {when}: saw {error}"
            ),
        }
        if end == End::Commit {
            inbox
                .nothing_due("a dead message blocks its ordering key")
                .await?;
            let _ = inbox.discard(all[0].key()).await?;
        } else {
            inbox.finish(&leased, processed()).await?;
        }
        rest_in_order(&inbox, &all[1..], &when).await?;
    }
    Ok(())
}

/// Two transactions that each record a new message of one ordering key.
pub(crate) async fn two_new_messages_of_a_key_leave_it_whole(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    for (n, end) in [End::Commit, End::RollBack].into_iter().enumerate() {
        let key = format!("key {n}");
        let when = format!("two new messages, the first transaction ended by {end:?}");
        let new = [
            ordered(&format!("{key} new 1"), &key)?,
            ordered(&format!("{key} new 2"), &key)?,
        ];
        let mut first = opened(&*transactions, &format!("{n} first")).await?;
        let mut second = opened(&*transactions, &format!("{n} second")).await?;
        let _ = first.record(&new[0], None).await?;
        let recorded = {
            let mut recording = second.record(&new[1], None);
            match tokio::time::timeout(PATIENCE, &mut recording).await {
                Ok(recorded) => {
                    End::of(end, first).await?;
                    recorded
                }
                Err(_) => {
                    End::of(end, first).await?;
                    recording.await
                }
            }
        };
        let committed = match recorded {
            Ok(Recorded::First) => second.commit().await,
            Ok(_) => second.roll_back().await.map(drop),
            Err(error) => {
                let _ = second.roll_back().await;
                Err(error)
            }
        };
        if let Err(error) = committed {
            ensure!(
                error.is_retryable(),
                "{when}: the second saw the error {error}"
            );
        }
        // Whatever became of them, what comes next is handed out, one after the other.
        let next = three(&inbox, &key).await?;
        let mut all = Vec::new();
        for message in &new {
            let receipts = inbox.receive(std::slice::from_ref(message)).await?;
            if receipts != vec![inbox_api::Receipt::Duplicate { differs: false }] {
                all.push(message.clone());
            }
        }
        let expected = usize::from(end == End::RollBack);
        ensure!(
            all.len() >= expected,
            "{when}: a message whose transaction rolled back is known"
        );
        let in_order: Vec<Message> = next.into_iter().chain(all).collect();
        rest_in_order(&inbox, &in_order, &when).await?;
        let statistics = inbox.statistics().await?;
        same(
            &format!("pending and leased in the end, {when}"),
            &(
                statistics.count(State::Pending),
                statistics.count(State::Leased),
            ),
            &(0, 0),
        )?;
    }
    Ok(())
}
