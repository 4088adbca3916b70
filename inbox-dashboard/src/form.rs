//! Bodies of requests: forms of our own pages, and JSON.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use inbox::{HandlerName, Key, MessageId};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{dashboard::Shared, fault::Fault, guard::Visit, query::Parameters};

/// How long a body may take to arrive.
const READ_TIME: Duration = Duration::from_secs(30);

/// The field with the secret.
pub(crate) const TOKEN_FIELD: &str = "form_token";

/// A form that one of our pages has made the browser send.
pub(crate) struct Form {
    pub(crate) visit: Visit,
    pub(crate) fields: Parameters,
}

impl FromRequest<Arc<Shared>> for Form {
    type Rejection = Fault;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Fault> {
        let visit: Visit = request
            .extensions()
            .get()
            .cloned()
            .ok_or_else(Fault::unauthorized)?;
        let body = read(request.into_body(), shared).await?;
        let mut fields = Parameters::parse(&body);
        let shown = fields.take(TOKEN_FIELD)?.unwrap_or_default();
        if !visit.form_token.is_repeated(&shown) {
            return Err(Fault::foreign(
                "the form is not one that this browser was given here; open the page again",
            ));
        }
        Ok(Self { visit, fields })
    }
}

/// A JSON text that is what it has to be.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Json<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Fault> {
        // A form of another site cannot say that it is JSON.
        if !is_json(request.headers()) {
            return Err(Fault::not_json());
        }
        let body = read(request.into_body(), shared).await?;
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            // Where, but not what: a payload may stand there.
            let (line, column) = (error.line(), error.column());
            let what = if error.is_data() {
                "the JSON is not what this path takes; see api/openapi.json"
            } else {
                "the body is not JSON"
            };
            Fault::invalid(format!("{what} (line {line}, column {column})"))
        })
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

async fn read(body: Body, shared: &Shared) -> Result<Bytes, Fault> {
    match timeout(READ_TIME, to_bytes(body, shared.options.body_limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_over_limit(&error) => Err(Fault::too_large()),
        _ => Err(Fault::body_broken()),
    }
}

fn is_over_limit(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(<dyn std::error::Error>::is::<LengthLimitError>)
}

/// A key in one field, its halves encoded, since both may have a slash.
pub(crate) fn key_text(key: &Key) -> String {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let (handler, id) = (key.handler.as_str(), key.id.as_str());
    format!("{}/{}", encoded(handler), encoded(id))
}

pub(crate) fn parse_key(text: &str) -> Result<Key, Fault> {
    let (handler, id) = text
        .split_once('/')
        .ok_or_else(|| Fault::invalid("key: expected a handler, a slash and an id"))?;
    let decoded = |text: &str| {
        let mut pairs = form_urlencoded::parse(text.as_bytes());
        pairs.next().map(|(name, _)| name.into_owned())
    };
    let handler = HandlerName::new(decoded(handler).unwrap_or_default())?;
    let id = MessageId::new(decoded(id).unwrap_or_default())?;
    Ok(Key::new(handler, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        for (handler, id) in [
            ("a", "1"),
            ("a/b", "c/d"),
            ("a=b&c", "x y+%20ä"),
            ("<", "\""),
        ] {
            let key = Key::new(
                HandlerName::new(handler).unwrap(),
                MessageId::new(id).unwrap(),
            );
            assert_eq!(parse_key(&key_text(&key)).unwrap(), key);
        }
        for wrong in ["", "a", "/", "a/", "/b"] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
