//! What is put into an inbox that is kept for later builds, and what every later build has to answer of it:
//! the same as a memory store that was given the same.

use std::time::{Duration, SystemTime};

use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Clock, ContentType, Due, Edit, HandlerName, Headers,
    Inbox, Message, MessageId, OrderingKey, Outcome, PurgeRequest, Record, Settled, Settlement,
    State, StoreExt as _, WorkerName,
};
use inbox_memory::{MemoryOptions, MemoryStore};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{TestInbox, message_for, terms},
};

/// Most of the messages; those of the others are received in one batch, emptied, and paused.
const HANDLER: &str = "kept";
const BATCH: &str = "kept batch";
const EMPTIED: &str = "kept emptied";
const PAUSED: &str = "kept paused";

/// When messages are due that are to stay so: in the year 2100.
const LATER: Duration = Duration::from_secs(4_102_444_800);
const BRIEF: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(600);

fn is_ordered(id: &str) -> Option<&'static str> {
    match id {
        "first" | "second" | "third" => Some("in turn"),
        "blocking" | "blocked" => Some("held up"),
        _ => None,
    }
}

/// All messages, in the order in which they are received.
fn messages() -> CaseResult<Vec<Message>> {
    let longest = "x".repeat(MessageId::MAX_BYTES);
    let mut all = Vec::new();
    for id in [
        "pending",
        "later",
        "lapsed",
        "released",
        "retried",
        "retried later",
        "deferred",
        "first",
        "second",
        "third",
        "processed",
        "with result",
        "dead",
        "blocking",
        "blocked",
        "replayed",
        "edited",
        "discarded",
        "discarded dead",
        "empty",
        "bytes",
        "whole",
        "Case",
        "case",
        "case ",
        &longest,
    ] {
        let mut message = message_for(HANDLER, id)?;
        if let Some(ordering_key) = is_ordered(id) {
            message = message.with_ordering_key(OrderingKey::new(ordering_key)?);
        }
        all.push(match id {
            "later" => message.with_due(Due::At(SystemTime::UNIX_EPOCH + LATER)),
            "empty" => edited(&message, Bytes::new()),
            "bytes" => edited(&message, (0..=u8::MAX).collect::<Vec<u8>>().into()),
            "whole" => message
                .with_content_type(ContentType::new("application/json")?)
                .with_header("trace id", "ünïcödé 'quoted' \"twice\" \\")?
                .with_header("empty", "")?,
            _ => message,
        });
    }
    for (handler, count) in [(BATCH, 7), (EMPTIED, 1), (PAUSED, 2)] {
        for n in 1..=count {
            all.push(message_for(handler, &n.to_string())?);
        }
    }
    Ok(all)
}

/// The same message with another payload.
fn edited(message: &Message, payload: Bytes) -> Message {
    let (handler, id) = (message.handler().clone(), message.id().clone());
    Message::new(handler, id, message.kind().clone(), payload)
}

/// What becomes of the first attempt at a message, if it has one.
fn outcome(message: &Message) -> Option<Outcome> {
    let retry = |after| Outcome::Retry {
        after,
        error: "no luck: 'quoted' \\ ü".into(),
    };
    let dead = |after| Outcome::Dead {
        reason: "hopeless".into(),
        after,
    };
    let processed = |result: Option<&'static [u8]>| Outcome::Processed {
        result: result.map(Bytes::from_static),
    };
    Some(match (message.handler().as_str(), message.id().as_str()) {
        (EMPTIED, _) => processed(Some(b"dropped")),
        (BATCH, "2") => retry(Duration::ZERO),
        (BATCH, "4" | "5") | (HANDLER, "processed") => processed(None),
        (HANDLER, "released") => Outcome::Release,
        (HANDLER, "retried") => retry(Duration::ZERO),
        (HANDLER, "retried later") => retry(LATER),
        (HANDLER, "deferred") => Outcome::Defer {
            after: Duration::ZERO,
            error: Some("not now".into()),
        },
        (HANDLER, "with result") => processed(Some(b"\0result\xff")),
        (HANDLER, "dead" | "replayed" | "edited" | "discarded dead") => dead(AfterDead::Continue),
        (HANDLER, "blocking") => dead(AfterDead::Block),
        _ => return None,
    })
}

/// Puts into an empty inbox what is to be kept.
pub(crate) async fn fill(inbox: &dyn Inbox) -> CaseResult {
    let all = messages()?;
    let (batch, single): (Vec<_>, Vec<_>) =
        all.iter().partition(|one| one.handler().as_str() == BATCH);
    for messages in single.chunks(1).chain([batch.as_slice()]) {
        let messages: Vec<_> = messages.iter().map(|one| (*one).clone()).collect();
        let _ = inbox.receive(&messages).await?;
    }
    for message in &all {
        let outcome = outcome(message);
        let is_lapsed = message.id().as_str() == "lapsed";
        if outcome.is_some() || is_lapsed {
            let length = if is_lapsed { BRIEF } else { LONG };
            let begun = inbox.begin(message, &terms(length)?).await?;
            let Begun::Run(leased) = begun else {
                return Err(Unmet::Failed(format!("begin {}: {begun:?}", message.key())));
            };
            if let Some(outcome) = outcome {
                let settled = inbox.settle_one(&leased.lease, outcome).await?;
                same("settling", &settled, &Settled::Done)?;
            }
        }
        let key = message.key();
        let mut edit = Edit::default();
        match key.id.as_str() {
            "edited" => {
                let mut headers = Headers::new();
                headers.insert("edited", "yes")?;
                edit.payload = Some(Bytes::from_static(b"another"));
                edit.headers = Some(headers);
                let _ = inbox.replay(key, &edit).await?;
            }
            "replayed" => drop(inbox.replay(key, &edit).await?),
            "discarded" | "discarded dead" => drop(inbox.discard(key).await?),
            _ => {}
        }
    }
    let handler = HandlerName::new(EMPTIED)?;
    let request = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?.for_handler(handler);
    same("emptied", &inbox.drop_payloads(&request).await?, &1)?;
    inbox.pause(&HandlerName::new(PAUSED)?).await?;
    Ok(())
}

/// All of a record but for its times, unless these are always the same.
fn describe(record: &Record) -> String {
    let history = record.history.iter().map(|past| {
        let (worker, end) = (&past.worker, past.end);
        format!(
            "{}.{} {worker} {end:?} {}",
            past.replays, past.attempt, past.error
        )
    });
    let due = record.due_at.duration_since(SystemTime::UNIX_EPOCH).ok();
    format!(
        "{:?} {:?} replays={} due later={} leased={} until={} finished={} worker={:?} error={:?} \
         history={:?} blocks={} result={:?} payload={:?} bytes={:?} type={:?} headers={} key={:?} \
         fingerprint={:?}",
        record.state,
        record.attempts,
        record.replays,
        due >= Some(LATER),
        record.leased_at.is_some(),
        record.lease_until.is_some(),
        record.finished_at.is_some(),
        record.worker.as_ref().map(WorkerName::as_str),
        record.last_error,
        history.collect::<Vec<_>>(),
        record.blocks_ordering_key,
        record.result,
        record.payload,
        record.payload_bytes,
        record.content_type,
        record.headers.to_json(),
        record.ordering_key,
        record.fingerprint,
    )
}

/// What an inbox answers that was filled some time ago, in words.
async fn answers(inbox: &dyn Inbox) -> CaseResult<Vec<String>> {
    let all = messages()?;
    let mut found = Vec::new();
    for message in &all {
        let record = inbox.get(message.key()).await?;
        let record = record.as_ref().map(describe);
        found.push(format!("get {}: {record:?}", message.key()));
    }
    for mut handler in inbox.statistics().await?.handlers {
        handler.lag = handler.lag.map(|_| Duration::MAX);
        handler.oldest_due_age = None;
        found.push(format!("statistics: {handler:?}"));
    }
    found.push(format!("paused: {:?}", inbox.paused().await?));
    found.push(format!("receive: {:?}", inbox.receive(&all).await?));
    let others: Vec<_> = all.iter().map(|one| edited(one, "other".into())).collect();
    let receipts = inbox.receive(&others).await?;
    found.push(format!("receive others: {receipts:?}"));
    for message in &all {
        let id = message.id().as_str();
        if [
            "processed",
            "with result",
            "dead",
            "discarded",
            "later",
            "blocked",
        ]
        .contains(&id)
        {
            let begun = inbox.begin(message, &terms(LONG)?).await?;
            found.push(format!("begin {}: {begun:?}", message.key()));
        }
    }
    found.append(&mut work(inbox).await?);
    for id in ["dead", "blocking", "processed", "pending"] {
        let key = message_for(HANDLER, id)?.key().clone();
        let replayed = inbox.replay(&key, &Edit::default()).await?;
        found.push(format!("replay {id}: {replayed:?}"));
    }
    found.append(&mut work(inbox).await?);
    for state in [State::Processed, State::Dead, State::Discarded] {
        let long_ago = PurgeRequest::new(state, LATER, 100)?;
        found.push(format!("purge: {:?}", inbox.purge(&long_ago).await?));
        let request = PurgeRequest::new(state, Duration::ZERO, 100)?;
        found.push(format!("purge: {:?}", inbox.purge(&request).await?));
    }
    let receipts = inbox.receive(&all).await?;
    found.push(format!("receive again: {receipts:?}"));
    Ok(found)
}

/// Claims and processes until nothing is due, and says which messages came in which round: those of one
/// round are due in no certain order.
async fn work(inbox: &dyn Inbox) -> CaseResult<Vec<String>> {
    let mut rounds = Vec::new();
    let request = ClaimRequest {
        handlers: vec![
            HandlerName::new(HANDLER)?,
            HandlerName::new(BATCH)?,
            HandlerName::new(PAUSED)?,
        ],
        limit: 100,
        run_limit: 1,
        terms: terms(LONG)?,
    };
    loop {
        let claims = inbox.claim(&request).await?;
        ensure!(claims.corrupt.is_empty(), "claim: {:?}", claims.corrupt);
        if claims.leased.is_empty() {
            return Ok(rounds);
        }
        let mut round = Vec::new();
        let mut settlements = Vec::new();
        for leased in claims.leased {
            round.push(format!("{} {:?}", leased.message.key(), leased.attempts));
            settlements.push(Settlement {
                lease: leased.lease,
                outcome: Outcome::Processed { result: None },
            });
        }
        round.sort();
        rounds.push(format!("claim: {round:?}"));
        let settled = inbox.settle(&settlements).await?;
        same(
            "settling",
            &settled,
            &vec![Settled::Done; settlements.len()],
        )?;
    }
}

/// Whether this is an inbox that was filled to be kept.
pub(crate) async fn is_filled(inbox: &dyn Inbox) -> CaseResult<bool> {
    let first = message_for(HANDLER, "pending")?;
    Ok(inbox.get(first.key()).await?.is_some())
}

/// Fails unless a kept inbox answers as the memory store does.
pub(crate) async fn check(inbox: &TestInbox) -> CaseResult {
    let newest = message_for(PAUSED, "2")?;
    let made_at = inbox.record(newest.key()).await?.accepted_at;
    // It may be that this machine's clock is behind that of the one on which it was made.
    if let Ok(ahead) = made_at.duration_since(SystemTime::now()) {
        inbox.pass(ahead + LONG).await?;
    }
    let clock = Clock::system();
    let model = MemoryStore::with(MemoryOptions::new().clock(clock.clone()));
    fill(&model).await?;
    clock.advance(Duration::from_secs(3600));
    let expected = answers(&model).await?;
    let found = answers(&**inbox).await?;
    for (found, expected) in found.iter().zip(&expected) {
        same("of a kept inbox", found, expected)?;
    }
    same("answers of a kept inbox", &found.len(), &expected.len())
}
