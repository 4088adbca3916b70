//! `POST /v1/messages`: one message, or `{"messages": […]}`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use inbox::{Message, Receipt};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Shared,
    body::{Answer, check_batch, element, in_place, list},
    problem::{Problem, ProblemType},
    wire::MessageIn,
};

/// To see which of the two it is.
#[derive(Deserialize)]
struct Probe<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow, deserialize_with = "list")]
    messages: Vec<&'a RawValue>,
}

#[derive(Serialize)]
struct Receipts {
    receipts: Vec<Answer>,
}

pub(super) async fn receive(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    if shared.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
        let detail = "the backlog is over its limit; nothing was stored";
        return Err(Problem::new(ProblemType::BacklogFull, detail));
    }
    let body = shared.read(request).await?;
    if serde_json::from_slice::<Probe<'_>>(&body)?
        .messages
        .is_none()
    {
        return one(&shared, serde_json::from_slice::<MessageIn>(&body)?).await;
    }
    let batch: Batch<'_> = serde_json::from_slice(&body)?;
    check_batch(&batch.messages)?;
    let read = |json| element::<MessageIn>(json).and_then(MessageIn::into_message);
    let messages: Vec<_> = batch.messages.into_iter().map(read).collect();
    let good: Vec<Message> = messages.iter().flatten().cloned().collect();
    let receipts = shared.store.receive(&good).await?;
    let receipts = in_place(messages, receipts, |_, receipt| match receipt {
        Receipt::Accepted => Answer::plain("accepted"),
        Receipt::Duplicate { differs } => duplicate(differs),
        Receipt::Refused(invalid) => Answer::refused(invalid),
    });
    Ok(Json(Receipts { receipts }).into_response())
}

/// Its status says it, too: 201 for a message that was accepted, 200 for a duplicate.
async fn one(shared: &Shared, message: MessageIn) -> Result<Response, Problem> {
    let message = message.into_message()?;
    let receipts = shared.store.receive(&[message]).await?;
    match receipts.into_iter().next() {
        Some(Receipt::Accepted) => {
            Ok((StatusCode::CREATED, Json(Answer::plain("accepted"))).into_response())
        }
        Some(Receipt::Duplicate { differs }) => Ok(Json(duplicate(differs)).into_response()),
        Some(Receipt::Refused(invalid)) => Err(invalid.into()),
        None => Err(inbox::Error::new(
            inbox::ErrorKind::Other,
            "the store gave no answer for the message",
        )
        .into()),
    }
}

fn duplicate(differs: bool) -> Answer {
    Answer {
        differs: Some(differs),
        ..Answer::plain("duplicate")
    }
}
