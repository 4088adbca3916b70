//! Accept once: a second copy is a duplicate, whatever has become of the first.

use inbox_api::{Begun, Bytes, Edit, Message, Outcome, Receipt, State};

use crate::{
    check::{CaseResult, ensure, same},
    needs::Settings,
    test_inbox::{Context, LONG, TestInbox, ids, message, numbered, processed, retry, terms},
};

async fn after_state(cx: &Context, state: State) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, state).await?;
    let before = inbox.record(sent.key()).await?;
    inbox.refuses_copy(&sent, &format!("while {state}")).await?;
    same(
        "the record after a refused copy",
        &inbox.record(sent.key()).await?,
        &before,
    )?;
    if state != State::Pending {
        inbox
            .nothing_due(&format!("its only message is {state}"))
            .await?;
    }
    Ok(())
}

pub(crate) async fn while_pending(cx: Context) -> CaseResult {
    after_state(&cx, State::Pending).await
}

pub(crate) async fn while_leased(cx: Context) -> CaseResult {
    after_state(&cx, State::Leased).await
}

/// Defect: the status is part of the unique key (or of the partition), so that a redelivery after
/// completion is accepted and run again.
pub(crate) async fn after_processed(cx: Context) -> CaseResult {
    after_state(&cx, State::Processed).await
}

pub(crate) async fn after_dead(cx: Context) -> CaseResult {
    after_state(&cx, State::Dead).await
}

pub(crate) async fn after_discarded(cx: Context) -> CaseResult {
    after_state(&cx, State::Discarded).await
}

pub(crate) async fn after_the_lease_ran_out(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    inbox.claim_single(inbox.brief()).await?;
    inbox.pass(inbox.brief()).await?;
    inbox.refuses_copy(&sent, "after its lease ran out").await?;
    same(
        "claimed",
        &ids(&inbox.claim_up_to(10, LONG).await?),
        &vec!["1".into()],
    )
}

pub(crate) async fn while_waiting_for_a_retry(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, retry(LONG)).await?;
    inbox
        .refuses_copy(&sent, "while it waits for a retry")
        .await?;
    inbox
        .nothing_due("the retry is a minute away and a copy must not bring it forward")
        .await
}

pub(crate) async fn after_a_replay(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Processed).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    inbox.refuses_copy(&sent, "after a replay").await
}

pub(crate) async fn after_its_payload_was_dropped(cx: Context) -> CaseResult {
    let settings = Settings {
        drop_processed_payloads: true,
        ..Settings::default()
    };
    let inbox = cx.fresh_with(&settings).await?;
    let sent = message("1")?;
    inbox.accept_in(&sent, State::Processed).await?;
    let record = inbox.record(sent.key()).await?;
    same("payload after dropping", &record.payload, &None)?;
    same(
        "payload length after dropping",
        &record.payload_bytes,
        &None,
    )?;
    inbox
        .refuses_copy(&sent, "after its payload was dropped")
        .await
}

/// Defect: a duplicate within a batch fails the batch.
pub(crate) async fn inside_one_batch_the_first_copy_wins(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let copy = |payload: &'static str| -> CaseResult<Message> {
        let plain = message("1")?;
        Ok(Message::new(
            plain.handler().clone(),
            plain.id().clone(),
            plain.kind().clone(),
            payload,
        ))
    };
    let batch = [
        copy("first")?,
        message("2")?,
        copy("second")?,
        copy("third")?,
    ];
    let expected = vec![
        Receipt::Accepted,
        Receipt::Accepted,
        Receipt::Duplicate { differs: true },
        Receipt::Duplicate { differs: true },
    ];
    same("receipts", &inbox.receive(&batch).await?, &expected)?;
    let stored = inbox.record(batch[0].key()).await?.payload;
    same(
        "payload as stored",
        &stored,
        &Some(Bytes::from_static(b"first")),
    )?;
    let leased = inbox.claim_up_to(10, LONG).await?;
    same("claimed", &ids(&leased), &vec!["1".into(), "2".into()])
}

/// Defect: one known key makes the whole batch fail, or be read as an outage.
pub(crate) async fn a_duplicate_does_not_fail_its_batch(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let batch = numbered(5)?;
    inbox.accept(&batch[1]).await?;
    inbox.accept(&batch[3]).await?;
    let expected = vec![
        Receipt::Accepted,
        Receipt::Duplicate { differs: false },
        Receipt::Accepted,
        Receipt::Duplicate { differs: false },
        Receipt::Accepted,
    ];
    same("receipts", &inbox.receive(&batch).await?, &expected)?;
    same(
        "messages claimable",
        &inbox.claim_up_to(10, LONG).await?.len(),
        &5,
    )
}

/// Defect: a member of a batch is answered as accepted and lost.
pub(crate) async fn every_accepted_member_of_a_batch_is_stored(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let batch = numbered(50)?;
    inbox.accept_all(&batch).await?;
    for message in &batch {
        inbox.has_state(message.key(), State::Pending).await?;
    }
    let expected: Vec<String> = batch.iter().map(|m| m.id().to_string()).collect();
    same(
        "claimed",
        &ids(&inbox.claim_up_to(100, LONG).await?),
        &expected,
    )
}

/// Defect: a put that overwrites.
pub(crate) async fn the_first_copy_stands(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let first = message("1")?.with_header("copy", "first")?;
    inbox.accept(&first).await?;
    let plain = message("1")?.with_header("copy", "second")?;
    let second = Message::new(
        plain.handler().clone(),
        plain.id().clone(),
        inbox_api::Kind::new("order.changed")?,
        "other",
    )
    .with_headers(plain.headers().clone());
    same(
        "receipt of a second copy with another content",
        &inbox.receive(&[second]).await?,
        &vec![Receipt::Duplicate { differs: true }],
    )?;
    let leased = inbox.claim_one().await?;
    ensure!(
        leased.message == first,
        "expected the first copy, {first:?}, saw {:?}",
        leased.message
    );
    Ok(())
}

pub(crate) async fn across_connections(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let other = inbox.fixture.second_connection().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let receipts = other.receive(std::slice::from_ref(&sent)).await?;
    same(
        "receipts at the other connection",
        &receipts,
        &vec![Receipt::Duplicate { differs: false }],
    )?;
    let leased = crate::test_inbox::claim(&*other, crate::test_inbox::HANDLER, 5, LONG).await?;
    same(
        "claimed at the other connection",
        &ids(&leased),
        &vec!["1".into()],
    )?;
    inbox.nothing_due("the other connection holds it").await
}

pub(crate) async fn receive_after_begin(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    let Begun::Run(leased) = begun else {
        return Err(crate::check::Unmet::Failed(format!(
            "begin of a new key: expected Run, saw {begun:?}"
        )));
    };
    inbox.refuses_copy(&sent, "while it runs inline").await?;
    inbox.finish(&leased, processed()).await?;
    inbox.refuses_copy(&sent, "after it ran inline").await
}

pub(crate) async fn begin_after_receive(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    finish_with(&inbox, b"done").await?;
    same(
        "begin of a processed key",
        &inbox.begin(&sent, &terms(LONG)?).await?,
        &Begun::Processed {
            result: Some(Bytes::from_static(b"done")),
        },
    )
}

async fn finish_with(inbox: &TestInbox, result: &'static [u8]) -> CaseResult {
    let leased = inbox.claim_one().await?;
    let result = Some(Bytes::from_static(result));
    inbox.finish(&leased, Outcome::Processed { result }).await
}
