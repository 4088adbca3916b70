//! Hostile input: whatever a sender can put into a message comes back as it was, or is refused
//! alone.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use inbox_api::{
    ContentType, Due, Edit, Effect, ErrorKind, FencingToken, Filter, Headers, Invalid, Kind, Lease,
    MAX_ERROR_BYTES, Message, OrderingKey, Outcome, Page, Receipt, Settled, State, StoreExt,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same, same_bytes},
    needs::{Need, Settings},
    test_inbox::{
        Context, LONG, TestInbox, claim, dead, defer, ids, message, message_for, numbered,
        processed, terms,
    },
};

/// Texts that break naive statements, keys and encodings.
const NASTY: [&str; 13] = [
    "'; DROP TABLE inbox; --",
    "\"quoted\"",
    "back\\slash",
    "`tick`",
    "%_%",
    "$1 ?1 :name @p",
    "{hash}tag",
    "{inbox} {schema} {message}",
    "*?[a-z]",
    "NULL",
    "\u{202e}txet\u{200b}",
    "\u{fffd}\u{10ffff}",
    "a\u{301}\u{1f468}\u{200d}\u{1f469}",
];

async fn round_trips(inbox: &TestInbox, sent: &Message) -> CaseResult {
    inbox.accept(sent).await?;
    let leased = claim(&*inbox.store, sent.handler().as_str(), 1, LONG).await?;
    let claimed: Vec<&Message> = leased.iter().map(|l| &l.message).collect();
    let expected = sent.clone().with_due(Due::Now);
    same_message("claimed", claimed.first().copied(), &expected)?;
    let stored = inbox.record(sent.key()).await?.message();
    same_message("stored", stored.as_ref(), &expected)
}

/// Compares all of a message, but shows no payload.
fn same_message(what: &str, seen: Option<&Message>, expected: &Message) -> CaseResult {
    let payload = seen.map(Message::payload);
    same_bytes(&format!("payload as {what}"), payload, expected.payload())?;
    same(&format!("message as {what}"), &seen, &Some(expected))
}

/// Defect: statements put together from input.
pub(crate) async fn quotes_and_wildcards_are_plain_text(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for nasty in NASTY {
        let mut sent = message_for(nasty, nasty)?.with_header(nasty, nasty)?;
        sent = sent.with_content_type(ContentType::new(nasty)?);
        round_trips(&inbox, &sent).await?;
        let leased = claim(&*inbox.store, nasty, 10, LONG).await?;
        same("claimed twice", &ids(&leased), &Vec::new())?;
    }
    same(
        "messages stored",
        &inbox.count(&inbox_api::Filter::default()).await?,
        &(NASTY.len() as u64),
    )
}

pub(crate) async fn error_texts_are_plain_text(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (number, nasty) in NASTY.iter().enumerate() {
        let sent = message(&number.to_string())?;
        inbox.accept(&sent).await?;
        let leased = inbox.claim_one().await?;
        inbox.finish(&leased, dead(nasty)).await?;
        let record = inbox.record(sent.key()).await?;
        same(
            "reason as stored",
            &record.last_error.as_deref(),
            &Some(*nasty),
        )?;
    }
    Ok(())
}

pub(crate) async fn binary_payloads_come_back_unchanged(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let all: Vec<u8> = (0..=255).cycle().take(4096).collect();
    for (number, bytes) in [
        all.as_slice(),
        b"\0",
        b"\0\0x",
        b"\xff\xfe",
        b"\xc3\x28",
        b"'",
    ]
    .into_iter()
    .enumerate()
    {
        let id = number.to_string();
        let sent = message(&id)?;
        let sent = Message::new(
            sent.handler().clone(),
            sent.id().clone(),
            sent.kind().clone(),
            Bytes::copy_from_slice(bytes),
        );
        round_trips(&inbox, &sent).await?;
    }
    Ok(())
}

pub(crate) async fn an_empty_payload_is_a_payload(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = with_payload("1", 0)?;
    round_trips(&inbox, &sent).await?;
    let record = inbox.record(sent.key()).await?;
    same("payload", &record.payload, &Some(Bytes::new()))?;
    same("payload length", &record.payload_bytes, &Some(0))
}

pub(crate) async fn an_empty_result_is_a_result(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    for (id, result) in [
        ("1", Some(Bytes::new())),
        ("2", None),
        ("3", Some(vec![0, 255].into())),
    ] {
        let sent = message(id)?;
        inbox.accept(&sent).await?;
        let leased = inbox.claim_one().await?;
        inbox
            .finish(
                &leased,
                Outcome::Processed {
                    result: result.clone(),
                },
            )
            .await?;
        same(
            "result as stored",
            &inbox.record(sent.key()).await?.result,
            &result,
        )?;
    }
    Ok(())
}

pub(super) fn with_payload(id: &str, bytes: usize) -> CaseResult<Message> {
    let plain = message(id)?;
    // Byte by byte, megabytes take seconds in a debug build.
    let mut payload = (0..=255).collect::<Vec<u8>>().repeat(bytes.div_ceil(256));
    payload.truncate(bytes);
    Ok(Message::new(
        plain.handler().clone(),
        plain.id().clone(),
        plain.kind().clone(),
        payload,
    ))
}

pub(crate) async fn a_payload_of_16_mib_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let limit = inbox_api::DEFAULT_PAYLOAD_LIMIT;
    if inbox.capabilities().payload_limit < limit {
        return Err(Unmet::NotChecked(Need::LargePayloads));
    }
    round_trips(&inbox, &with_payload("1", limit)?).await
}

pub(super) fn small_limit() -> Settings {
    Settings {
        payload_limit: Some(1000),
        ..Settings::default()
    }
}

pub(super) fn too_large(bytes: usize, what: &'static str) -> Invalid {
    Invalid::TooLarge {
        what,
        bytes,
        limit: 1000,
    }
}

pub(crate) async fn the_payload_limit_is_inclusive(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    same(
        "payload limit in the capabilities",
        &inbox.capabilities().payload_limit,
        &1000,
    )?;
    round_trips(&inbox, &with_payload("1", 1000)?).await?;
    let over = with_payload("2", 1001)?;
    same(
        "receipt of a payload one byte over the limit",
        &inbox.receive_one(&over).await?,
        &Receipt::Refused(too_large(1001, "payload")),
    )?;
    same(
        "a refused message is stored",
        &inbox.get(over.key()).await?.is_some(),
        &false,
    )
}

/// Defect: one bad message fails its whole batch.
pub(crate) async fn an_oversized_message_is_refused_alone(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    let batch = [
        with_payload("1", 10)?,
        with_payload("2", 2000)?,
        with_payload("3", 10)?,
    ];
    let expected = vec![
        Receipt::Accepted,
        Receipt::Refused(too_large(2000, "payload")),
        Receipt::Accepted,
    ];
    same("receipts", &inbox.receive(&batch).await?, &expected)?;
    let leased = inbox.claim_up_to(10, LONG).await?;
    same("claimed", &ids(&leased), &vec!["1".into(), "3".into()])
}

pub(crate) async fn a_copy_of_a_refused_message_is_judged_on_its_own(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    let batch = [
        with_payload("1", 2000)?,
        with_payload("1", 10)?,
        with_payload("1", 2000)?,
    ];
    let refused = Receipt::Refused(too_large(2000, "payload"));
    let receipts = inbox.receive(&batch).await?;
    let (Some(first), Some(second), Some(third)) =
        (receipts.first(), receipts.get(1), receipts.get(2))
    else {
        return Err(Unmet::Failed(format!(
            "expected three receipts, saw {receipts:?}"
        )));
    };
    same("receipt of the oversized copy", first, &refused)?;
    same("receipt of the copy that fits", second, &Receipt::Accepted)?;
    same("receipt of a third, oversized copy", third, &refused)?;
    let stored = inbox.record(batch[1].key()).await?.payload_bytes;
    same("payload length as stored", &stored, &Some(10))
}

pub(crate) async fn an_oversized_result_is_refused_and_the_lease_stands(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let leased = inbox.claim_one().await?;
    let outcome = Outcome::Processed {
        result: Some(vec![7; 1001].into()),
    };
    same(
        "settling with a result over the limit",
        &inbox.settle_one(&leased.lease, outcome).await?,
        &Settled::Refused(too_large(1001, "result")),
    )?;
    inbox.has_state(sent.key(), State::Leased).await?;
    inbox.finish(&leased, processed()).await
}

pub(crate) async fn an_oversized_message_cannot_begin(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    let over = with_payload("1", 1001)?;
    let Err(error) = inbox.begin(&over, &terms(LONG)?).await else {
        return Err(Unmet::Failed(
            "begin with an oversized payload: expected an error, saw an answer".into(),
        ));
    };
    same("kind of the error", &error.kind(), &ErrorKind::Invalid)?;
    same(
        "a refused message is stored",
        &inbox.get(over.key()).await?.is_some(),
        &false,
    )
}

/// So that a caller that has to know whether it happened need not look.
pub(crate) async fn a_refusal_has_no_effect(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    let (known, over) = (message("1")?, with_payload("2", 1001)?);
    inbox.accept_in(&known, State::Dead).await?;
    let before = inbox.record(known.key()).await?;
    let edit = Edit {
        payload: Some(over.payload().clone()),
        ..Edit::default()
    };
    let refusals = [
        (
            "begin over the limit",
            inbox.begin(&over, &terms(LONG)?).await.err(),
        ),
        (
            "replay with a payload over the limit",
            inbox.replay(known.key(), &edit).await.err(),
        ),
        (
            "extend for no time",
            inbox.extend(&[], Duration::ZERO).await.err(),
        ),
    ];
    for (what, error) in refusals {
        same(
            &format!("kind and effect of the error of {what}"),
            &error.map(|error| (error.kind(), error.effect())),
            &Some((ErrorKind::Invalid, Effect::None)),
        )?;
    }
    same("record", &inbox.record(known.key()).await?, &before)?;
    same("stored", &inbox.get(over.key()).await?.is_some(), &false)
}

pub(crate) async fn a_copy_over_the_limit_is_refused(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    for state in [State::Pending, State::Processed] {
        let id = state.as_str();
        inbox.accept_in(&with_payload(id, 10)?, state).await?;
        let over = with_payload(id, 1001)?;
        same(
            &format!("receipt of an oversized copy of a {id} message"),
            &inbox.receive_one(&over).await?,
            &Receipt::Refused(too_large(1001, "payload")),
        )?;
        let begun = inbox.begin(&over, &terms(LONG)?).await;
        same(
            &format!("error of a begin with an oversized copy of a {id} message"),
            &begun.err().map(|error| error.kind()),
            &Some(ErrorKind::Invalid),
        )?;
        inbox.has_state(over.key(), state).await?;
        if state == State::Pending {
            let leased = inbox.claim_one().await?;
            inbox.finish(&leased, processed()).await?;
        }
    }
    Ok(())
}

pub(crate) async fn headers_come_back_unchanged(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?
        .with_header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )?
        .with_header("empty", "")?
        .with_header("lines", "a\r\nb\tc\u{1}")?
        .with_header("Case", "1")?
        .with_header("case", "2")?
        .with_header("json", r#"{"a":[1,null,"\u0041"]}"#)?
        .with_header("\u{1f980}", "\u{10ffff}")?;
    round_trips(&inbox, &sent).await?;
    let mut headers = Headers::new();
    headers.insert(
        "large",
        "\u{1f980}".repeat((Headers::MAX_TOTAL_BYTES - 5) / 4),
    )?;
    round_trips(&inbox, &message("2")?.with_headers(headers)).await
}

pub(crate) async fn the_longest_texts_are_kept_whole(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let plain = message("1")?;
    let mut sent = Message::new(
        plain.handler().clone(),
        plain.id().clone(),
        Kind::new("ä".repeat(127))?,
        "x",
    )
    .with_content_type(ContentType::new("c".repeat(255))?);
    if inbox.capabilities().ordering {
        sent = sent.with_ordering_key(OrderingKey::new("k".repeat(255))?);
    }
    round_trips(&inbox, &sent).await
}

pub(crate) async fn long_error_texts_are_cut(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    let text = format!("nul \0 {}", "ä".repeat(MAX_ERROR_BYTES));
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, dead(&text)).await?;
    let expected = inbox_api::error_text(&text).into_owned();
    let stored = inbox.record(sent.key()).await?.last_error;
    ensure!(
        stored.as_deref() == Some(expected.as_str()),
        "reason of {} bytes: expected it cut to {} bytes without NUL, saw {:?} bytes",
        text.len(),
        expected.len(),
        stored.map(|text| text.len())
    );
    Ok(())
}

pub(crate) async fn a_due_time_beyond_all_measure_is_kept(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let far = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(200 * 365 * 86_400));
    for (id, due) in [
        ("1", Due::After(Duration::MAX)),
        ("2", Due::At(far.unwrap_or(SystemTime::UNIX_EPOCH))),
    ] {
        let sent = message(id)?.with_due(due);
        inbox.accept(&sent).await?;
        inbox.has_state(sent.key(), State::Pending).await?;
        let due = inbox.record(sent.key()).await?.due_at;
        ensure!(
            Some(due) >= far,
            "due time of {due:?} for a message that is due in two centuries or more"
        );
    }
    inbox
        .nothing_due("both messages are due in centuries")
        .await?;
    inbox.accept(&message("3")?).await?;
    let leased = inbox.claim_one().await?;
    let forever = Outcome::Retry {
        after: Duration::MAX,
        error: "later".into(),
    };
    inbox.finish(&leased, forever).await?;
    inbox.accept(&message("4")?).await?;
    let leased = inbox.claim_one().await?;
    inbox.finish(&leased, defer(Duration::MAX)).await?;
    let due = inbox.record(&leased.lease.key).await?.due_at;
    ensure!(
        Some(due) >= SystemTime::now().checked_add(Duration::from_secs(100 * 365 * 86_400)),
        "due time of {due:?} for a message that was deferred for ever"
    );
    inbox.nothing_due("all messages are due in centuries").await
}

pub(crate) async fn empty_input_is_answered(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept(&message("1")?).await?;
    same(
        "receive of nothing",
        &inbox.receive(&[]).await?,
        &Vec::new(),
    )?;
    same("settle of nothing", &inbox.settle(&[]).await?, &Vec::new())?;
    same(
        "extend of nothing",
        &inbox.extend(&[], LONG).await?,
        &Vec::new(),
    )?;
    let none = inbox_api::ClaimRequest {
        handlers: Vec::new(),
        limit: 10,
        terms: terms(LONG)?,
        run_limit: 1,
    };
    same(
        "claim for no handlers",
        &inbox_api::Store::claim(&*inbox.store, &none)
            .await?
            .leased
            .len(),
        &0,
    )?;
    same(
        "claim of up to 0",
        &inbox.claim_up_to(0, LONG).await?.len(),
        &0,
    )?;
    same(
        "claim for an unknown handler",
        &claim(&*inbox.store, "unknown", 5, LONG).await?.len(),
        &0,
    )
}

pub(crate) async fn the_largest_limits_are_taken(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    inbox.accept_all(&numbered(3)?).await?;
    same(
        "claimed with the largest limit",
        &inbox.claim_up_to(u32::MAX, LONG).await?.len(),
        &3,
    )?;
    let all = inbox_api::PurgeRequest::new(State::Processed, Duration::MAX, u32::MAX)?;
    same(
        "purged of what is older than time itself",
        &inbox.purge(&all).await?,
        &0,
    )
}

/// Defect: an end is reckoned that no clock has, and the call panics.
pub(crate) async fn the_longest_time_limit_is_taken(cx: Context) -> CaseResult {
    let inbox = cx
        .fresh_with(&Settings {
            operation_timeout: Some(Duration::MAX),
            ..Settings::default()
        })
        .await?;
    let sent = numbered(3)?;
    inbox.accept_all(&sent).await?;
    for leased in inbox.claim_up_to(2, LONG).await? {
        inbox.finish(&leased, processed()).await?;
    }
    let _ = inbox.begin(&sent[2], &terms(LONG)?).await?;
    let all = inbox_api::PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("purged", &inbox.purge(&all).await?, &2)?;
    let listing = inbox.list(&Filter::default(), &Page::first(10)).await?;
    same("listed", &listing.records.len(), &1)?;
    if inbox.capabilities().transactions {
        let transactions = inbox.fixture.transactions()?;
        let mut transaction = transactions.open().await?;
        let _ = transaction.receive(&[message("in a transaction")?]).await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// Defect: a limit on parameters per statement is met only in production.
pub(crate) async fn a_batch_of_thousands_is_handled(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let mut batch = numbered(3000)?;
    if inbox.capabilities().ordering {
        for message in batch.iter_mut().step_by(2) {
            let own = OrderingKey::new(message.id().as_str())?;
            *message = message.clone().with_ordering_key(own);
        }
    }
    // The copies of the first ones are far behind them in one batch.
    let with_copies = [batch.as_slice(), &batch[..100]].concat();
    let mut expected = vec![Receipt::Accepted; 3000];
    expected.resize(3100, Receipt::Duplicate { differs: false });
    same("receipts", &inbox.receive(&with_copies).await?, &expected)?;
    let leased = inbox.claim_up_to(4000, LONG).await?;
    same("claimed", &leased.len(), &3000)?;
    // What is stored together becomes due together.
    let in_order = ids(&leased).is_sorted();
    let together = inbox.capabilities().receive_atomicity == inbox_api::ReceiveAtomicity::Batch;
    ensure!(
        in_order || !together,
        "claimed in order of acceptance: saw another"
    );
    let leases: Vec<Lease> = leased.iter().map(|l| l.lease.clone()).collect();
    let extended = inbox.extend(&leases, LONG).await?;
    let until = |e: &inbox_api::Extended| matches!(e, inbox_api::Extended::Until(_));
    same(
        "extended",
        &extended.iter().filter(|e| until(e)).count(),
        &3000,
    )?;
    let settlements: Vec<inbox_api::Settlement> = leases
        .into_iter()
        .map(|lease| inbox_api::Settlement {
            lease,
            outcome: processed(),
        })
        .collect();
    let settled = inbox.settle(&settlements).await?;
    same("settled", &settled, &vec![Settled::Done; 3000])
}

/// Defect: a receiver that gathers by bytes meets the size of a packet, a statement or a script only in
/// production, and again with each redelivery.
pub(crate) async fn a_batch_of_80_mib_is_stored(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let most = inbox_api::DEFAULT_PAYLOAD_LIMIT;
    let each = inbox.capabilities().payload_limit.min(most);
    let count = (5 * most).div_ceil(each.max(most / 16));
    let batch = (0..count)
        .map(|n| with_payload(&n.to_string(), each))
        .collect::<CaseResult<Vec<_>>>()?;
    inbox.accept_all(&batch).await?;
    let last = batch
        .last()
        .ok_or_else(|| Unmet::Failed("nothing was sent".into()))?;
    // A claim may be cut by bytes.
    let mut leased = Vec::new();
    loop {
        let more = inbox.claim_up_to(u32::MAX, LONG).await?;
        if more.is_empty() {
            break;
        }
        leased.extend(more);
    }
    same("claimed", &leased.len(), &batch.len())?;
    let found = leased
        .iter()
        .find(|leased| leased.message.key() == last.key());
    same(
        "bytes of the last payload",
        &found.map(|leased| leased.message.payload().len()),
        &Some(last.payload().len()),
    )
}

pub(crate) async fn a_made_up_lease_changes_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = message("1")?;
    inbox.accept(&sent).await?;
    for (token, locator) in [(0, 0), (-1, 1), (i64::MAX, u64::MAX), (i64::MIN, 1 << 63)] {
        for key in [sent.key(), message("unknown")?.key()] {
            let lease = Lease {
                key: key.clone(),
                token: FencingToken::new(token),
                locator,
                until: SystemTime::now(),
            };
            let what = format!("settling with the made-up token {token}");
            // A message that was never claimed may carry the token 0: nothing to lose then.
            let settled = inbox.settle_one(&lease, processed()).await?;
            ensure!(
                settled == Settled::LeaseLost || (token == 0 && settled == Settled::Done),
                "{what}: expected LeaseLost, saw {settled:?}"
            );
            let extended = inbox.extend_one(&lease, LONG).await?;
            same(
                "extending the same",
                &extended,
                &inbox_api::Extended::LeaseLost,
            )?;
        }
    }
    inbox.has_state(sent.key(), State::Pending).await
}

/// Defect: payloads and header values in logs.
pub(crate) async fn errors_do_not_show_payloads(cx: Context) -> CaseResult {
    let inbox = cx.fresh_with(&small_limit()).await?;
    let secret = "s3cr3t-".repeat(200);
    let plain = message("1")?;
    let sent = Message::new(
        plain.handler().clone(),
        plain.id().clone(),
        plain.kind().clone(),
        secret,
    );
    let Err(error) = inbox.begin(&sent, &terms(LONG)?).await else {
        return Err(Unmet::Failed(
            "begin with an oversized payload: expected an error, saw an answer".into(),
        ));
    };
    let shown = format!("{error} {error:?}");
    ensure!(
        !shown.contains("s3cr3t"),
        "the error shows the payload's bytes"
    );
    same("lines of the error", &error.to_string().lines().count(), &1)
}
