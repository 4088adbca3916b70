//! Results that are kept in a caller's transaction, behind the record of their message.

use std::time::Duration;

use inbox_api::{Begun, Bytes, ErrorKind, Message, PurgeRequest, Recorded, State};

use super::transactions::{record_first, transactional, transactional_with, write, written};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::Settings,
    test_inbox::{Context, LONG, message, numbered, terms},
    transactions::AnyTransactions,
};

/// Records a message in a transaction, keeps these results one after the other, and commits.
async fn record_and_keep(
    transactions: &dyn AnyTransactions,
    sent: &Message,
    results: &[&Bytes],
) -> CaseResult {
    let mut transaction = transactions.open().await?;
    record_first(&mut *transaction, sent).await?;
    write(&mut *transaction, sent.id().as_str()).await?;
    for result in results {
        transaction
            .keep_result(sent.key(), (*result).clone())
            .await?;
    }
    Ok(transaction.commit().await?)
}

/// A message that is new and one that was received, a result that is empty and one that comes twice.
pub(crate) async fn a_result_is_kept_with_the_work(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let batch = numbered(3)?;
    inbox.accept(&batch[1]).await?;
    let (receipt, empty) = (Bytes::from_static(b"receipt \xff\0"), Bytes::new());
    let kept = [&receipt, &receipt, &empty];
    record_and_keep(&*transactions, &batch[0], &[&empty, &receipt]).await?;
    record_and_keep(&*transactions, &batch[1], &[&receipt]).await?;
    record_and_keep(&*transactions, &batch[2], &[&empty]).await?;
    for (sent, result) in batch.iter().zip(kept) {
        let result = Some(result.clone());
        let record = inbox.record(sent.key()).await?;
        same("state", &record.state, &State::Processed)?;
        same("result", &record.result, &result)?;
        let begun = inbox.begin(sent, &terms(LONG)?).await?;
        let processed = Begun::Processed {
            result: result.clone(),
        };
        same("begin", &begun, &processed)?;
        let mut transaction = transactions.open().await?;
        same(
            "record of a copy",
            &transaction.record(sent, None).await?,
            &Recorded::Processed { result },
        )?;
        transaction.roll_back().await?;
    }
    written(&*transactions, &["00001", "00002", "00003"]).await
}

pub(crate) async fn a_result_is_rolled_back_with_the_work(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let mut transaction = transactions.open().await?;
    record_first(&mut *transaction, &sent).await?;
    let result = Bytes::from_static(b"receipt");
    transaction.keep_result(sent.key(), result).await?;
    transaction.roll_back().await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Pending)?;
    same("result", &record.result, &None)?;
    record_and_keep(&*transactions, &sent, &[]).await?;
    let record = inbox.record(sent.key()).await?;
    same("result of the next transaction", &record.result, &None)
}

/// Defect: the work is rolled back because its result is too long.
pub(crate) async fn a_result_over_the_limit_leaves_its_transaction_usable(
    cx: Context,
) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let (sent, limit) = (message("1")?, inbox.capabilities().payload_limit);
    let mut transaction = transactions.open().await?;
    record_first(&mut *transaction, &sent).await?;
    write(&mut *transaction, "1").await?;
    let large = Bytes::from(vec![b'x'; limit + 1]);
    let error = match transaction.keep_result(sent.key(), large).await {
        Ok(()) => return Err(Unmet::Failed("a result over the limit was kept".into())),
        Err(error) => error,
    };
    same("kind of error", &error.kind(), &ErrorKind::Invalid)?;
    transaction.commit().await?;
    let record = inbox.record(sent.key()).await?;
    same("state", &record.state, &State::Processed)?;
    same("result", &record.result, &None)?;
    written(&*transactions, &["1"]).await
}

pub(crate) async fn a_result_is_kept_only_of_what_is_processed(cx: Context) -> CaseResult {
    let (inbox, transactions) = transactional(&cx).await?;
    let (waiting, unknown) = (message("1")?, message("2")?);
    inbox.accept(&waiting).await?;
    for sent in [&waiting, &unknown] {
        let mut transaction = transactions.open().await?;
        let result = Bytes::from_static(b"receipt");
        let kept = transaction.keep_result(sent.key(), result).await;
        ensure!(
            kept.is_err(),
            "the result of {} was kept, which is not processed",
            sent.key()
        );
        transaction.roll_back().await?;
    }
    same(
        "result of the one that waits",
        &inbox.record(waiting.key()).await?.result,
        &None,
    )
}

/// Defect: retention goes by the payload, which had gone when the result came. A message that is new and
/// one that was received.
pub(crate) async fn a_kept_result_without_a_payload_is_dropped(cx: Context) -> CaseResult {
    let settings = Settings {
        drop_processed_payloads: true,
        ..Settings::default()
    };
    let (inbox, transactions) = transactional_with(&cx, &settings).await?;
    let batch = numbered(3)?;
    inbox.accept(&batch[1]).await?;
    let receipt = Bytes::from_static(b"receipt");
    record_and_keep(&*transactions, &batch[0], &[&receipt]).await?;
    record_and_keep(&*transactions, &batch[1], &[&Bytes::new()]).await?;
    record_and_keep(&*transactions, &batch[2], &[]).await?;
    let result = inbox.record(batch[0].key()).await?.result;
    same("result", &result, &Some(receipt))?;
    let request = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("dropped", &inbox.drop_payloads(&request).await?, &2)?;
    for sent in &batch {
        let record = inbox.record(sent.key()).await?;
        same("payload", &record.payload, &None)?;
        same("result afterwards", &record.result, &None)?;
    }
    same("dropped again", &inbox.drop_payloads(&request).await?, &0)
}
