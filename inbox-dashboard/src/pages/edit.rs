//! A dead message's payload and headers in a form, to be replayed with what is changed.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use inbox::{Bytes, Edit, Headers, Key, Record};
use maud::{Markup, html};

use super::{change, token_field, visited};
use crate::{
    dashboard::Shared,
    fault::Fault,
    form::Form,
    guard::Visit,
    jobs::{Action, Target},
    query::Parameters,
    reading::within,
    text,
};

/// The largest payload that can be edited in a page, in bytes.
const MOST: usize = 1024 * 1024;

/// What stands in the form.
struct Texts {
    payload: String,
    headers: String,
    is_json: bool,
    /// What is wrong with it.
    problem: Option<String>,
}

async fn editable(shared: &Shared, key: &Key) -> Result<Record, Fault> {
    if shared.options.hides_payloads {
        return Err(Fault::hidden());
    }
    let record = within(shared.store.get(key)).await?;
    record.ok_or_else(Fault::no_such_message)
}

/// The payload as a text that can be edited; of one that was dropped, an empty one.
fn old_payload(record: &Record) -> Result<&str, Fault> {
    let payload = record.payload.as_deref().unwrap_or_default();
    if payload.len() > MOST {
        return Err(Fault::invalid(
            "the payload is too large for a page; `inbox replay --payload FILE` replaces it",
        ));
    }
    std::str::from_utf8(payload).map_err(|_| {
        Fault::invalid("the payload is no text; `inbox replay --payload FILE` replaces it")
    })
}

pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    mut parameters: Parameters,
) -> Result<Response, Fault> {
    let key = parameters.key()?;
    parameters.end()?;
    if shared.options.is_read_only {
        return Err(Fault::read_only());
    }
    let record = editable(&shared, &key).await?;
    let payload = old_payload(&record)?;
    let texts = Texts {
        payload: payload.to_owned(),
        headers: written(&record.headers),
        is_json: is_json(payload),
        problem: None,
    };
    Ok(form(&shared, &visit, &key, &texts))
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn written(headers: &Headers) -> String {
    serde_json::to_string_pretty(headers).unwrap_or_default()
}

fn form(shared: &Shared, visit: &Visit, key: &Key, texts: &Texts) -> Response {
    let content = html! {
        p { "The message becomes pending again with what stands here. Its key stays, and so does what its "
            "key was accepted with: redeliveries are still duplicates." }
        @if let Some(problem) = &texts.problem { p.fault role="alert" #problem { (problem) } }
        form method="post" action="edit" {
            (token_field(visit))
            input type="hidden" name="handler" value=(key.handler.as_str());
            input type="hidden" name="id" value=(key.id.as_str());
            (area("payload", "Payload", &texts.payload, texts.problem.is_some()))
            p {
                label {
                    input type="checkbox" name="json" value="true" checked[texts.is_json];
                    " It has to be JSON"
                }
            }
            (area("headers", "Headers, as a JSON object of texts", &texts.headers, texts.problem.is_some()))
            button { "Replay with these" }
        }
    };
    let title = format!("Edit and replay {}", text::one_line(key.id.as_str(), 80));
    visited(shared, visit, "messages", &title, &content)
}

/// A line break behind the tag is no part of the text, so one more is written.
fn area(name: &str, label: &str, text: &str, is_wrong: bool) -> Markup {
    let rows = text.lines().count().clamp(4, 24) + 1;
    html! {
        label.block {
            span { (label) }
            textarea name=(name) rows=(rows) spellcheck="false" autocomplete="off"
                aria-describedby=[is_wrong.then_some("problem")] { "\n" (text) }
        }
    }
}

/// A text as a browser sends it back from a form: line breaks of any kind are CR LF, and what HTML cannot have
/// is a replacement character.
fn as_sent(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.replace('\n', "\r\n").replace('\0', "\u{fffd}")
}

/// What an operator has made of the text `before`. `None`: nothing. Where a browser would have changed more of it
/// than the operator did, it is refused.
fn edited(sent: &str, before: &str) -> Result<Option<String>, Fault> {
    if as_sent(sent) == as_sent(before) {
        return Ok(None);
    }
    let others = before.replace("\r\n", "");
    let has_both = others.contains('\n') && before.contains("\r\n");
    if has_both || others.contains('\r') || before.contains('\0') {
        return Err(Fault::invalid(
            "the payload has characters that a page cannot keep (line breaks of several kinds, or NUL); \
             `inbox replay --payload FILE` replaces it",
        ));
    }
    Ok(Some(if before.contains("\r\n") {
        sent.to_owned()
    } else {
        sent.replace("\r\n", "\n")
    }))
}

pub(crate) async fn submit(
    State(shared): State<Arc<Shared>>,
    Form { visit, mut fields }: Form,
) -> Result<Response, Fault> {
    let key = fields.key()?;
    let payload = fields.take("payload")?.unwrap_or_default();
    let headers = fields.take("headers")?.unwrap_or_default();
    let must_be_json = fields.has("json")?;
    fields.end()?;
    let record = editable(&shared, &key).await?;
    let old = old_payload(&record)?;
    let new_payload = edited(&payload, old)?;
    let read = read_headers(&headers).and_then(|headers| {
        if must_be_json {
            check_json(new_payload.as_deref().unwrap_or(old))?;
        }
        Ok(headers)
    });
    let new_headers = match read {
        Ok(headers) => headers,
        Err(problem) => {
            let texts = Texts {
                payload: new_payload.unwrap_or_else(|| old.to_owned()),
                headers,
                is_json: must_be_json,
                problem: Some(problem),
            };
            let mut page = form(&shared, &visit, &key, &texts);
            *page.status_mut() = axum::http::StatusCode::BAD_REQUEST;
            return Ok(page);
        }
    };
    // One that was dropped is replaced, also by an empty one.
    let new_payload = match &record.payload {
        Some(_) => new_payload,
        None => Some(new_payload.unwrap_or_default()),
    };
    let edit = Edit {
        payload: new_payload.map(Bytes::from),
        headers: (new_headers != record.headers).then_some(new_headers),
    };
    let target = Target::Keys {
        keys: vec![key],
        also_processed: false,
    };
    change::begin(&shared, visit.operator, Action::Edit(edit), target).await
}

/// What is wrong is said by its place, without the text.
fn check_json(text: &str) -> Result<(), String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(()),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            Err(format!(
                "the payload is not JSON (line {line}, column {column})"
            ))
        }
    }
}

fn read_headers(text: &str) -> Result<Headers, String> {
    if text.trim().is_empty() {
        return Ok(Headers::new());
    }
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("the headers are not a JSON object of texts (line {line}, column {column})")
    })
}
