//! What clients are told.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use inbox::{Receipt, receiver::Rejection};
use serde::Serialize;

use super::verify::VerifyError;
use crate::{
    body::ReadError,
    problem::{LATER, Problem},
};

/// The most messages of one batch: events, each for every handler. A larger one would not be stored before the answer is due, however often it came.
pub(super) const MAX_BATCH: usize = 10_000;

/// Why nothing of a request was stored, or may not have been.
#[derive(Debug)]
pub(super) enum Refusal {
    UnknownEndpoint,
    MethodNotAllowed,
    BacklogFull,
    WrongContentType,
    Encoded,
    Body(ReadError),
    NotVerified(VerifyError),
    /// The most events that it may have.
    BatchTooLarge(usize),
    NotAnEvent(String),
    Refused(String),
    Unavailable,
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::Body(error)
    }
}

impl Refusal {
    pub(super) fn problem(self) -> Problem {
        let new = Problem::new;
        match self {
            Self::UnknownEndpoint => new(
                StatusCode::NOT_FOUND,
                "unknown-endpoint",
                "No webhook comes here",
            ),
            Self::MethodNotAllowed => {
                let title = "Webhooks are sent by POST";
                new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", title)
                    .header(header::ALLOW, HeaderValue::from_static("POST"))
            }
            Self::BacklogFull => {
                let title = "Too much waits to be handled";
                new(StatusCode::SERVICE_UNAVAILABLE, "backlog-full", title).retry_after(LATER)
            }
            Self::WrongContentType => {
                let title = "The content type is not taken here";
                new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "wrong-content-type",
                    title,
                )
            }
            Self::Encoded => {
                let title = "Bodies are taken as they are, without encoding";
                new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "encoded", title).header(
                    header::ACCEPT_ENCODING,
                    HeaderValue::from_static("identity"),
                )
            }
            Self::Body(ReadError::TooLarge) => {
                let title = "The body is too large";
                new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", title)
            }
            Self::Body(ReadError::TooSlow) => {
                let title = "The body did not come in time";
                new(StatusCode::REQUEST_TIMEOUT, "too-slow", title)
            }
            Self::Body(ReadError::Broken) => {
                new(StatusCode::BAD_REQUEST, "broken", "The body broke off")
            }
            Self::Body(ReadError::NoRoom) => Problem::no_room(),
            Self::NotVerified(error) => {
                let code = match error {
                    VerifyError::Missing => "signature-missing",
                    VerifyError::Wrong => "wrong-signature",
                    VerifyError::OutOfTime => "out-of-time",
                };
                let challenge = HeaderValue::from_static("Signature");
                new(StatusCode::UNAUTHORIZED, code, "Not verified")
                    .detail(error.to_string())
                    .header(header::WWW_AUTHENTICATE, challenge)
            }
            Self::BatchTooLarge(most) => {
                let title = "The batch has too many events";
                new(StatusCode::PAYLOAD_TOO_LARGE, "batch-too-large", title)
                    .detail(format!("a batch may have up to {most} events"))
                    .member("limit", most)
            }
            Self::NotAnEvent(detail) => new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "not-an-event",
                "Not an event",
            )
            .detail(detail),
            Self::Refused(detail) => {
                let title = "The inbox refuses the event";
                new(StatusCode::UNPROCESSABLE_ENTITY, "refused", title).detail(detail)
            }
            Self::Unavailable => {
                let title = "The inbox cannot be reached";
                new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", title).retry_after(LATER)
            }
        }
    }
}

/// What became of one event.
pub(super) enum Fate {
    Accepted,
    Duplicate,
    Malformed(String),
    Refused(String),
}

impl Fate {
    /// Of the answers for an event's copies.
    pub(super) fn of(copies: &[Result<Receipt, Rejection>]) -> Self {
        let refusal = copies.iter().find_map(|copy| match copy {
            Ok(Receipt::Refused(invalid)) => Some(invalid.to_string()),
            Ok(_) => None,
            Err(rejection) => Some(rejection.to_string()),
        });
        match refusal {
            Some(reason) => Self::Refused(reason),
            None if copies.contains(&Ok(Receipt::Accepted)) => Self::Accepted,
            None => Self::Duplicate,
        }
    }

    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Malformed(_) => "not-an-event",
            Self::Refused(_) => "refused",
        }
    }

    pub(super) fn response(self) -> Response<Full<Bytes>> {
        match self {
            Self::Accepted => empty(StatusCode::ACCEPTED),
            Self::Duplicate => empty(StatusCode::OK),
            Self::Malformed(reason) => Refusal::NotAnEvent(reason).problem().response(),
            Self::Refused(reason) => Refusal::Refused(reason).problem().response(),
        }
    }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// One event of a batch, as the client is told of it.
#[derive(Serialize)]
struct Told<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

/// The answers for the events of a batch, in its order.
pub(super) fn batch(fates: &[Fate]) -> Response<Full<Bytes>> {
    let told = fates.iter().map(|fate| Told {
        status: fate.outcome(),
        detail: match fate {
            Fate::Malformed(reason) | Fate::Refused(reason) => Some(reason),
            Fate::Accepted | Fate::Duplicate => None,
        },
    });
    let told: Vec<Told<'_>> = told.collect();
    let count = |is_one: fn(&Fate) -> bool| fates.iter().filter(|fate| is_one(fate)).count();
    let refused = count(|fate| matches!(fate, Fate::Malformed(_) | Fate::Refused(_)));
    let status = if refused == 0 {
        match count(|fate| matches!(fate, Fate::Accepted)) {
            0 => StatusCode::OK,
            _ => StatusCode::ACCEPTED,
        }
    } else if refused < fates.len() {
        StatusCode::MULTI_STATUS
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    };
    // Texts always serialise; the fallback only spares a panic path.
    let body = serde_json::to_vec(&told).unwrap_or_default();
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
