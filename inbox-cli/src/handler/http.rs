//! An HTTP POST per message.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use async_trait::async_trait;
use inbox::{Completion, Context, Failure, Handler, Key, RetryPolicy};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use sha2::{Digest as _, Sha256};

use super::starts::{PAUSE, Starts};
use crate::{args::wrong_usage, http_client};

/// The longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest wait for a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// Posts each message to a URL.
#[derive(Debug)]
pub(super) struct Post {
    url: Url,
    client: Client,
    retry: RetryPolicy,
    starts: Arc<Starts>,
}

impl Post {
    /// Posts take no longer than `limit`, which is not up to this handler.
    pub(super) fn new(
        url: &str,
        retry: RetryPolicy,
        limit: Option<Duration>,
        starts: Arc<Starts>,
    ) -> Result<Self> {
        let Some(url) = http_client::parse(url) else {
            wrong_usage("--post must be an http or https URL, such as http://localhost:8080/hook");
        };
        let client =
            http_client::build(&url, |client| client.connect_timeout(connect_limit(limit)))?;
        Ok(Self {
            url,
            client,
            retry,
            starts,
        })
    }

    /// A server that cannot be reached has not seen the message, which that costs no attempt. What fails later may have
    /// had its effect.
    fn not_answered(&self, error: reqwest::Error) -> Failure {
        let is_unsent = error.is_connect();
        // The URL may hold credentials.
        let reason = chain(&error.without_url());
        if !is_unsent {
            self.starts.succeeded();
            return Failure::retry(reason);
        }
        let server = self.url.host_str().unwrap_or_default();
        self.starts.not_reached(server, &reason, Instant::now());
        Failure::pause(PAUSE, format!("cannot reach the server: {reason}"))
    }
}

/// How long a connection may take where a post may take `limit`: less, or the limit would end it first, and nothing
/// would tell that the message was not sent.
fn connect_limit(limit: Option<Duration>) -> Duration {
    let most = limit.map_or(LONGEST_CONNECT, |limit| limit.mul_f64(0.9));
    most.min(LONGEST_CONNECT)
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
            .map_err(|error| self.not_answered(error))?;
        self.starts.succeeded();
        let usual = self.retry.delay(context.attempts().started);
        answer(&response, usual)
    }
}

/// What the server's answer means for the message, where its next attempt would come after the `usual` wait.
fn answer(response: &Response, usual: Duration) -> Result<Completion, Failure> {
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
    let header = |name| response.headers().get(name)?.to_str().ok();
    let date = header(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    let now = date.unwrap_or_else(SystemTime::now);
    let asked = header(RETRY_AFTER).and_then(|value| retry_after(value, now));
    Err(match asked {
        // A server that says a second each time would have all attempts within seconds.
        Some(wait) => Failure::retry_after(wait.max(usual), reason),
        None => Failure::retry(reason),
    })
}

/// What a server asks for: a number of seconds, or a date (RFC 9110), where it is `now` by the server's clock as far as
/// that is known. A date that is over asks for nothing.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = httpdate::parse_http_date(value).ok()?;
            let wait = date.duration_since(now).ok();
            wait.filter(|wait| !wait.is_zero())?
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_ends_before_its_post_does() {
        let seconds = Duration::from_secs;
        assert_eq!(connect_limit(None), seconds(10));
        assert_eq!(connect_limit(Some(seconds(30))), seconds(10));
        assert_eq!(connect_limit(Some(seconds(10))), seconds(9));
    }

    #[test]
    fn a_server_asks_for_seconds_or_a_date() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let at = httpdate::parse_http_date(date).unwrap();
        let seconds = Duration::from_secs;
        for (value, now, wait) in [
            ("120", at, Some(seconds(120))),
            (" 0 ", at, Some(Duration::ZERO)),
            ("99999999", at, Some(MAX_RETRY_AFTER)),
            (date, at - seconds(90), Some(seconds(90))),
            (date, at, None),
            (date, at + seconds(90), None),
            (date, SystemTime::UNIX_EPOCH, Some(MAX_RETRY_AFTER)),
            (
                "Sunday, 06-Nov-94 08:49:37 GMT",
                at - seconds(1),
                Some(seconds(1)),
            ),
            ("soon", at, None),
            ("-1", at, None),
            ("", at, None),
        ] {
            assert_eq!(retry_after(value, now), wait, "{value}");
        }
    }
}
