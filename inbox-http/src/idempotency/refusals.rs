//! The problem documents of requests that did not run.

use http::{StatusCode, header};

use super::settings::Settings;
use crate::{body::ReadError, problem::Problem};

/// How soon a client should ask again, in seconds.
const SOON: u64 = 1;
const LATER: u64 = 5;

/// Why a request was not let through, or its response not replayed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    KeyMissing,
    KeyMalformed(&'static str),
    Body(ReadError),
    KeyReused,
    InProgress,
    Unavailable,
    ResponseNotKept(Option<StatusCode>),
    Closed,
    Failed,
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::Body(error)
    }
}

impl Refusal {
    /// The problem document, with a link to what the service says of its keys.
    pub(super) fn problem(self, settings: &Settings) -> Problem {
        let problem = self.plain(settings);
        match &settings.documentation {
            Some((url, link)) => problem.kind(url).header(header::LINK, link.clone()),
            None => problem,
        }
    }

    fn plain(self, settings: &Settings) -> Problem {
        let new = Problem::new;
        match self {
            Self::KeyMissing => {
                let title = "Idempotency-Key is missing";
                new(StatusCode::BAD_REQUEST, "key-missing", title)
                    .detail("this operation requires the header Idempotency-Key")
            }
            Self::KeyMalformed(detail) => {
                let title = "Idempotency-Key is malformed";
                new(StatusCode::BAD_REQUEST, "key-malformed", title).detail(detail)
            }
            Self::Body(error) => body(error, settings),
            Self::KeyReused => {
                let title = "Idempotency-Key is used by another request";
                new(settings.key_reused, "key-reused", title)
                    .detail("another request needs another key")
            }
            Self::InProgress => {
                let title = "A request with this Idempotency-Key is under way";
                new(StatusCode::CONFLICT, "in-progress", title).retry_after(SOON)
            }
            Self::Unavailable => {
                let title = "Idempotency-Key cannot be checked at present";
                new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", title).retry_after(LATER)
            }
            Self::ResponseNotKept(status) => {
                let title = "The request is done, and its response was not kept";
                let problem = new(StatusCode::GONE, "response-not-kept", title);
                match status {
                    Some(status) => problem.member("original-status", status.as_u16()),
                    None => problem,
                }
            }
            Self::Closed => {
                let title = "This Idempotency-Key is closed: its request was given up";
                new(StatusCode::CONFLICT, "key-closed", title)
            }
            Self::Failed => {
                let title = "The request failed";
                new(StatusCode::INTERNAL_SERVER_ERROR, "failed", title)
            }
        }
    }
}

fn body(error: ReadError, settings: &Settings) -> Problem {
    match error {
        ReadError::TooLarge => {
            let title = "The request's body is too large";
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "request-too-large", title)
                .member("limit", settings.reading.most())
        }
        ReadError::TooSlow => {
            let title = "The request's body did not come in time";
            Problem::new(StatusCode::REQUEST_TIMEOUT, "request-too-slow", title)
        }
        ReadError::Broken => {
            let title = "The request's body broke off";
            Problem::new(StatusCode::BAD_REQUEST, "request-broken", title)
        }
        ReadError::NoRoom => Problem::no_room(),
    }
}
