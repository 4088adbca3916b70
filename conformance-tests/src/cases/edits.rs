//! What an operator changes of a message by replaying it.

use std::time::Duration;

use inbox_api::{
    Begun, Bytes, ContentType, Edit, Headers, Intervention, Message, PurgeRequest, State,
};

use crate::{
    check::{CaseResult, Unmet, same},
    test_inbox::{Context, LONG, message, processed, terms},
};

fn headers(pairs: &[(&str, &str)]) -> CaseResult<Headers> {
    let mut headers = Headers::new();
    for (name, value) in pairs {
        headers.insert(*name, *value)?;
    }
    Ok(headers)
}

fn sent() -> CaseResult<Message> {
    Ok(message("1")?
        .with_content_type(ContentType::new("text/plain")?)
        .with_headers(headers(&[("correlation-id", "c-1"), ("gone", "soon")])?))
}

/// Defect: an edit that merges headers, or forgets what it does not name.
pub(crate) async fn headers_are_replaced_whole(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = sent()?;
    inbox.accept_in(&sent, State::Dead).await?;
    let edited = headers(&[("correlation-id", "c-2 \"'\\ \u{1f980}"), ("new", "")])?;
    let edit = Edit {
        headers: Some(edited.clone()),
        ..Edit::default()
    };
    same(
        "replay",
        &inbox.replay(sent.key(), &edit).await?,
        &Intervention::Done,
    )?;
    let expected = sent.clone().with_headers(edited.clone());
    let record = inbox.record(sent.key()).await?;
    same("headers of the record", &record.headers, &edited)?;
    let pairs = |headers: &Headers| -> Vec<(String, String)> {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        headers.iter().map(owned).collect()
    };
    same("their values", &pairs(&record.headers), &pairs(&edited))?;
    same(
        "the record's message",
        &record.message(),
        &Some(expected.clone()),
    )?;
    let leased = inbox.claim_one().await?;
    same("the message as claimed", &leased.message, &expected)
}

pub(crate) async fn headers_can_be_taken_away(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = sent()?;
    inbox.accept_in(&sent, State::Processed).await?;
    let edit = Edit {
        headers: Some(Headers::new()),
        ..Edit::default()
    };
    let _ = inbox.replay(sent.key(), &edit).await?;
    same(
        "headers as claimed",
        &inbox.claim_one().await?.message.headers().len(),
        &0,
    )
}

pub(crate) async fn what_is_not_edited_stays(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = sent()?;
    inbox.accept_in(&sent, State::Dead).await?;
    let edit = Edit {
        payload: Some(Bytes::from_static(b"edited")),
        ..Edit::default()
    };
    let _ = inbox.replay(sent.key(), &edit).await?;
    let leased = inbox.claim_one().await?;
    same("headers", leased.message.headers(), sent.headers())?;
    same(
        "payload",
        leased.message.payload(),
        &Bytes::from_static(b"edited"),
    )?;
    same(
        "content type",
        &leased.message.content_type(),
        &sent.content_type(),
    )?;
    inbox.finish(&leased, processed()).await?;
    let _ = inbox.replay(sent.key(), &Edit::default()).await?;
    // The edit stays with the message, and a begin gets what is stored.
    let begun = inbox.begin(&sent, &terms(LONG)?).await?;
    let Begun::Run(leased) = begun else {
        return Err(Unmet::Failed(format!("begin: expected Run, saw {begun:?}")));
    };
    same(
        "payload",
        leased.message.payload(),
        &Bytes::from_static(b"edited"),
    )?;
    same("headers", leased.message.headers(), sent.headers())
}

pub(crate) async fn a_refused_edit_changes_nothing(cx: Context) -> CaseResult {
    let inbox = cx.fresh().await?;
    let sent = sent()?;
    let edit = Edit {
        payload: Some(Bytes::from_static(b"edited")),
        headers: Some(headers(&[("new", "1")])?),
    };
    inbox.accept(&sent).await?;
    let before = inbox.record(sent.key()).await?;
    same(
        "edit of a pending message",
        &inbox.replay(sent.key(), &edit).await?,
        &Intervention::WrongState(State::Pending),
    )?;
    same(
        "record after that",
        &inbox.record(sent.key()).await?,
        &before,
    )?;
    let leased = inbox.claim_one().await?;
    same(
        "edit of a leased message",
        &inbox.replay(sent.key(), &edit).await?,
        &Intervention::WrongState(State::Leased),
    )?;
    inbox.finish(&leased, processed()).await?;
    let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10)?;
    same("payloads dropped", &inbox.drop_payloads(&all).await?, &1)?;
    let before = inbox.record(sent.key()).await?;
    let only_headers = Edit {
        payload: None,
        ..edit.clone()
    };
    same(
        "edit of the headers of a message without a payload",
        &inbox.replay(sent.key(), &only_headers).await?,
        &Intervention::PayloadDropped,
    )?;
    same(
        "record after that",
        &inbox.record(sent.key()).await?,
        &before,
    )?;
    same(
        "edit of both",
        &inbox.replay(sent.key(), &edit).await?,
        &Intervention::Done,
    )?;
    let leased = inbox.claim_one().await?;
    same(
        "payload",
        leased.message.payload(),
        &Bytes::from_static(b"edited"),
    )?;
    same("header", &leased.message.headers().get("new"), &Some("1"))
}
