//! Messages and leases as JSON.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use inbox::{
    Bytes, ContentType, Due, FencingToken, HandlerName, Headers, Key, Kind, Lease, LeaseTerms,
    Leased, Message, MessageId, OrderingKey, WorkerName,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::problem::Problem;
use crate::times;

/// The content type of a payload that was given as JSON.
const JSON: &str = "application/json";

/// A message as a caller sends it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageIn {
    handler: HandlerName,
    id: MessageId,
    kind: Kind,
    #[serde(default, deserialize_with = "present")]
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<ContentType>,
    #[serde(default)]
    headers: Headers,
    ordering_key: Option<OrderingKey>,
    delay_seconds: Option<f64>,
    due_at: Option<String>,
}

impl MessageIn {
    pub(super) fn into_message(self) -> Result<Message, Problem> {
        let is_json = self.payload.is_some();
        let payload = content("payload", self.payload, self.payload_base64)?;
        let payload = payload.unwrap_or_default();
        let mut message = Message::new(self.handler, self.id, self.kind, payload)
            .with_headers(self.headers)
            .with_due(due(self.delay_seconds, self.due_at.as_deref())?);
        let content_type = match self.content_type {
            None if is_json => Some(ContentType::new(JSON)?),
            given => given,
        };
        if let Some(content_type) = content_type {
            message = message.with_content_type(content_type);
        }
        if let Some(key) = self.ordering_key {
            message = message.with_ordering_key(key);
        }
        Ok(message)
    }
}

fn due(delay_seconds: Option<f64>, due_at: Option<&str>) -> Result<Due, Problem> {
    match (delay_seconds, due_at) {
        (None, None) => Ok(Due::Now),
        (Some(delay), None) => Ok(Due::After(seconds("delay_seconds", delay)?)),
        (None, Some(time)) => Ok(Due::At(moment("due_at", time)?)),
        (Some(_), Some(_)) => Err(Problem::invalid("give delay_seconds or due_at, not both")),
    }
}

/// Bytes that were given as JSON, as base64, or not at all. Of JSON its text is kept as it stands.
pub(super) fn content(
    name: &'static str,
    json: Option<Box<RawValue>>,
    base64: Option<String>,
) -> Result<Option<Bytes>, Problem> {
    match (json, base64) {
        (None, None) => Ok(None),
        (Some(json), None) => Ok(Some(String::from(Box::<str>::from(json)).into())),
        (None, Some(text)) => match STANDARD.decode(text) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(_) => Err(Problem::invalid(format!(
                "{name}_base64 is not base64 (RFC 4648, with padding)"
            ))),
        },
        (Some(_), Some(_)) => Err(Problem::invalid(format!(
            "give {name} or {name}_base64, not both"
        ))),
    }
}

/// A field that is there, be its value `null`: that is JSON too.
pub(super) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// A number of seconds that is not negative.
pub(super) fn seconds(name: &'static str, seconds: f64) -> Result<Duration, Problem> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Problem::invalid(format!("{name} must be a number of seconds, zero or more")))
}

fn moment(name: &'static str, text: &str) -> Result<SystemTime, Problem> {
    times::parse(text).ok_or_else(|| {
        Problem::invalid(format!(
            "{name} must be a time with its offset, such as 2026-01-31T12:00:00Z"
        ))
    })
}

/// A moment to the microsecond, in UTC (RFC 3339).
pub(super) fn time(time: SystemTime) -> String {
    format!("{:.6}", times::written(time))
}

/// For how long, and for whom, a lease is asked for.
pub(super) fn terms(
    lease_seconds: Option<f64>,
    worker: Option<WorkerName>,
) -> Result<LeaseTerms, Problem> {
    /// Who holds a lease whose worker has not said its name.
    const NAMELESS: &str = "http";
    let worker = match worker {
        Some(worker) => worker,
        None => WorkerName::new(NAMELESS)?,
    };
    Ok(LeaseTerms::new(lease_length(lease_seconds)?, worker)?)
}

/// The length of a lease, [`LEASE`] unless it is given.
pub(super) fn lease_length(lease_seconds: Option<f64>) -> Result<Duration, Problem> {
    const LEASE: Duration = Duration::from_secs(60);
    let length = match lease_seconds {
        Some(length) => seconds("lease_seconds", length)?,
        None => LEASE,
    };
    LeaseTerms::check_length(length)?;
    Ok(length)
}

/// A lease as a worker gets it, and sends it back as it was. What has more digits than a JavaScript
/// number are texts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseView {
    handler: HandlerName,
    id: MessageId,
    token: String,
    locator: String,
    attempt: u32,
    until: String,
}

impl LeaseView {
    fn new(leased: &Leased) -> Self {
        let lease = &leased.lease;
        Self {
            handler: lease.key.handler.clone(),
            id: lease.key.id.clone(),
            token: lease.token.to_string(),
            locator: lease.locator.to_string(),
            attempt: leased.attempts.started,
            until: time(lease.until),
        }
    }

    /// The number of the attempt, the first being 1.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(super) fn into_lease(self) -> Result<Lease, Problem> {
        let number = |name: &str| {
            Problem::invalid(format!(
                "the lease's {name} must be as it was given: digits, as a text"
            ))
        };
        Ok(Lease {
            key: Key::new(self.handler, self.id),
            token: FencingToken::new(self.token.parse().map_err(|_| number("token"))?),
            locator: self.locator.parse().map_err(|_| number("locator"))?,
            until: moment("the lease's until", &self.until)?,
        })
    }
}

/// Bytes on their way out: JSON as it stands, if that is what they are, or base64.
enum Content<'a> {
    Json(&'a RawValue),
    Base64(String),
}

impl<'a> Content<'a> {
    /// JSON goes as JSON only where every caller can read it: what is nested deeper than JSON
    /// libraries go, has half characters or numbers beyond all bounds would spoil the whole answer.
    fn new(bytes: &'a [u8], is_json: bool) -> Self {
        let is_plain = is_json && serde_json::from_slice::<serde_json::Value>(bytes).is_ok();
        match serde_json::from_slice(bytes) {
            Ok(json) if is_plain => Self::Json(json),
            _ => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    fn halves(self) -> (Option<&'a RawValue>, Option<String>) {
        match self {
            Self::Json(json) => (Some(json), None),
            Self::Base64(text) => (None, Some(text)),
        }
    }
}

fn is_json(content_type: &ContentType) -> bool {
    let essence = content_type.as_str().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    essence == JSON || essence.ends_with("+json")
}

/// A message with its lease, as a worker gets it.
#[derive(Serialize)]
pub(super) struct LeasedView<'a> {
    handler: &'a str,
    id: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    content_type: Option<&'a str>,
    headers: &'a Headers,
    ordering_key: Option<&'a str>,
    accepted_at: String,
    attempt: u32,
    attempts_crashed: u32,
    replays: u32,
    lease: LeaseView,
}

impl<'a> LeasedView<'a> {
    /// With the payload as base64 in any case, if `base64` is set.
    pub(super) fn new(leased: &'a Leased, base64: bool) -> Self {
        let message = &leased.message;
        let is_json = !base64 && message.content_type().is_some_and(is_json);
        let (payload, payload_base64) = Content::new(message.payload(), is_json).halves();
        Self {
            handler: message.handler().as_str(),
            id: message.id().as_str(),
            kind: message.kind().as_str(),
            payload,
            payload_base64,
            content_type: message.content_type().map(ContentType::as_str),
            headers: message.headers(),
            ordering_key: message.ordering_key().map(OrderingKey::as_str),
            accepted_at: time(leased.accepted_at),
            attempt: leased.attempts.started,
            attempts_crashed: leased.attempts.crashed(true),
            replays: leased.replays,
            lease: LeaseView::new(leased),
        }
    }
}

/// A stored result: JSON if it reads as that, unless `base64` is set.
#[derive(Serialize)]
pub(super) struct ResultView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_base64: Option<String>,
}

impl<'a> ResultView<'a> {
    pub(super) fn new(result: Option<&'a Bytes>, base64: bool) -> Self {
        let halves = result.map(|bytes| Content::new(bytes, !base64).halves());
        let (result, result_base64) = halves.unwrap_or_default();
        Self {
            result,
            result_base64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Message, Problem> {
        serde_json::from_str::<MessageIn>(json)?.into_message()
    }

    #[test]
    fn a_payload_is_kept_as_its_text_stands() {
        let with = |payload: &str| {
            read(&format!(
                r#"{{"handler":"h","id":"1","kind":"k","payload":{payload}}}"#
            ))
            .unwrap()
        };
        for text in [
            r#"{"b" : 1.0,  "a":12345678901234567890}"#,
            "null",
            r#""x""#,
        ] {
            let message = with(text);
            assert_eq!(message.payload(), text.as_bytes());
            assert_eq!(message.content_type().unwrap().as_str(), JSON);
        }
        let bytes = read(r#"{"handler":"h","id":"1","kind":"k","payload_base64":"AP8="}"#).unwrap();
        assert_eq!(bytes.payload(), [0, 255].as_slice());
        assert_eq!(bytes.content_type(), None);
        let none = read(r#"{"handler":"h","id":"1","kind":"k"}"#).unwrap();
        assert!(none.payload().is_empty());
    }

    #[test]
    fn contradictions_are_refused() {
        for fields in [
            r#""payload":1,"payload_base64":"AA==""#,
            r#""payload_base64":"A""#,
            r#""delay_seconds":1,"due_at":"2026-01-31T12:00:00Z""#,
            r#""delay_seconds":-1"#,
            r#""delay_seconds":1e300"#,
            r#""due_at":"2026-01-31T12:00:00""#,
            r#""due_at":"soon""#,
        ] {
            let json = format!(r#"{{"handler":"h","id":"1","kind":"k",{fields}}}"#);
            assert!(read(&json).is_err(), "{fields}");
        }
        assert!(read(r#"{"handler":"h","id":"1","kind":"k","paylaod":1}"#).is_err());
    }

    #[test]
    fn json_that_some_cannot_read_goes_as_base64() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for odd in [deep.as_str(), r#""\ud800""#, "1e999", "{", ""] {
            assert!(matches!(
                Content::new(odd.as_bytes(), true),
                Content::Base64(_)
            ));
        }
        assert!(matches!(
            Content::new(b" {\"a\":1}\n", true),
            Content::Json(_)
        ));
        assert!(matches!(Content::new(b"{}", false), Content::Base64(_)));
    }

    #[test]
    fn a_lease_comes_back_as_it_was() {
        let lease = Lease {
            key: Key::new(HandlerName::new("h").unwrap(), MessageId::new("1").unwrap()),
            token: FencingToken::new(i64::MAX),
            locator: u64::MAX,
            until: SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456),
        };
        let leased = Leased {
            message: read(r#"{"handler":"h","id":"1","kind":"k"}"#).unwrap(),
            lease: lease.clone(),
            attempts: inbox::Attempts {
                started: 3,
                finished: 1,
            },
            replays: 2,
            accepted_at: SystemTime::UNIX_EPOCH,
        };
        let view = serde_json::to_value(LeasedView::new(&leased, false)).unwrap();
        assert_eq!(view["lease"]["token"], i64::MAX.to_string());
        assert_eq!(view["attempts_crashed"], 1);
        assert_eq!(view["replays"], 2);
        let back: LeaseView = serde_json::from_value(view["lease"].clone()).unwrap();
        assert_eq!(back.attempt(), 3);
        assert_eq!(back.into_lease().unwrap(), lease);
    }
}
