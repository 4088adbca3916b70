//! An HTTP POST per message.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use inbox::{Completion, Context, Failure, Handler, Key};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect,
};
use sha2::{Digest as _, Sha256};

use crate::args::wrong_usage;

/// The longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Posts each message to a URL.
#[derive(Debug)]
pub(super) struct Post {
    url: Url,
    client: Client,
}

impl Post {
    pub(super) fn new(url: &str) -> Result<Self> {
        let url = url
            .parse()
            .ok()
            .filter(|url: &Url| matches!(url.scheme(), "http" | "https"));
        let Some(url) = url else {
            wrong_usage("--post must be an http or https URL, such as http://localhost:8080/hook");
        };
        // Fails only when another part of the process has installed one; then that one serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("inbox/", env!("CARGO_PKG_VERSION")))
            // A redirected POST loses its body or goes where nobody configured it to.
            .redirect(redirect::Policy::none())
            .build()
            .context("cannot set up HTTP")?;
        Ok(Self { url, client })
    }
}

#[async_trait]
impl Handler for Post {
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let message = context.message();
        let response = self
            .client
            .post(self.url.clone())
            .headers(headers(context))
            .body(message.payload().clone())
            .send()
            .await
            // The URL may hold credentials.
            .map_err(|e| Failure::retry(chain(&e.without_url())))?;
        answer(&response)
    }
}

/// What the server's answer means for the message.
fn answer(response: &Response) -> Result<Completion, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(Completion::default());
    }
    let reason = format!("HTTP {status}");
    let hopeless = [
        StatusCode::BAD_REQUEST,
        StatusCode::GONE,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    if hopeless.contains(&status) {
        return Err(Failure::dead(reason));
    }
    let seconds = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Err(match seconds {
        Some(seconds) => {
            Failure::retry_after(Duration::from_secs(seconds).min(MAX_RETRY_AFTER), reason)
        }
        None => Failure::retry(reason),
    })
}

/// The facts about the message as headers. A name or value that HTTP cannot carry is left out:
/// the payload is what must arrive. Of names that differ in case only, the first counts.
fn headers(context: &Context) -> HeaderMap {
    let message = context.message();
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            headers.entry(name).or_insert(value);
        }
    };
    for (name, value) in super::facts(context.leased()) {
        set(&format!("inbox-{name}"), &value);
    }
    set("idempotency-key", &idempotency_key(message.key()));
    if let Some(content_type) = message.content_type() {
        set(CONTENT_TYPE.as_str(), content_type.as_str());
    }
    if let Some(traceparent) = message.headers().get(inbox::headers::TRACEPARENT) {
        set("traceparent", traceparent);
    }
    headers
}

/// The longest key that servers have to take.
const LONGEST_KEY: usize = 255;

/// A message's key as a structured-field string (RFC 9651), as the header has it. What cannot stand
/// in one, or is too long, is sent as its digest. So is a handler's name with a slash, since `a/b/c`
/// would be the key of two messages.
fn idempotency_key(key: &Key) -> String {
    let text = key.to_string();
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let text = if is_plain && text.len() <= LONGEST_KEY && !key.handler.as_str().contains('/') {
        text.replace('\\', "\\\\").replace('"', "\\\"")
    } else {
        let digest = Sha256::new()
            .chain_update(key.handler.as_str())
            // No text has one.
            .chain_update([0xff])
            .chain_update(key.id.as_str());
        format!("sha256:{}", hex::encode(digest.finalize()))
    };
    format!("\"{text}\"")
}

/// An error with its causes in one line: reqwest's own text alone says only *error sending
/// request*.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
