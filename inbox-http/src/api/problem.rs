//! What goes wrong with a request, or with one element of it.

use std::borrow::Cow;

use axum::{
    http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE},
    response::{IntoResponse, Response},
};
use inbox::{Effect, Error, ErrorKind, Invalid};
use serde::{Serialize, Serializer};

use crate::problem;

/// What a caller should do. Each has one status, one code and one title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProblemType {
    /// The body is not JSON.
    Malformed,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    TooLarge,
    UnsupportedMediaType,
    /// It breaks a rule and never succeeds as it stands.
    Invalid,
    /// The inbox has to be set up or migrated.
    NotSetUp,
    /// The store refuses the credentials of this server, or it lacks a permission.
    Denied,
    Unsupported,
    /// More messages wait than are to.
    BacklogFull,
    /// More of all bodies is in memory than is to be.
    NoRoom,
    Unavailable,
    Failed,
}

impl ProblemType {
    /// What names it in the member `type`, together with its code.
    const NAMESPACE: &str = "urn:inbox:problem:";

    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The body is not JSON"),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "A bearer token is needed",
            ),
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "not-found",
                "There is nothing at this path",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "This path takes another method",
            ),
            Self::RequestTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                "request-timeout",
                "The body did not arrive in time",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The request is too large",
            ),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The body must be application/json",
            ),
            Self::Invalid => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                "The request breaks a rule",
            ),
            Self::NotSetUp => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "not-set-up",
                "The inbox is not set up",
            ),
            Self::Denied => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "denied",
                "The store denies access",
            ),
            Self::Unsupported => (
                StatusCode::NOT_IMPLEMENTED,
                "unsupported",
                "This store cannot do that",
            ),
            Self::BacklogFull => (
                StatusCode::SERVICE_UNAVAILABLE,
                "backlog-full",
                "Too many messages wait; repeat the request later",
            ),
            Self::NoRoom => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no-room",
                "Too many bodies are being read; repeat the request later",
            ),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "The store is unavailable; repeat the request later",
            ),
            Self::Failed => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed",
                "The store failed",
            ),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    of: ProblemType,
    detail: Cow<'static, str>,
    /// Whether what was asked for may have happened all the same.
    effect: Option<Effect>,
}

impl Problem {
    /// `detail` must not contain a payload or a secret.
    pub(super) fn new(of: ProblemType, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            of,
            detail: detail.into(),
            effect: None,
        }
    }

    pub(super) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ProblemType::Invalid, detail)
    }

    fn document(&self) -> problem::Problem {
        let (status, code, title) = self.of.parts();
        let document = problem::Problem::new(status, code, title)
            .kind(&format!("{}{code}", ProblemType::NAMESPACE))
            .detail(self.detail.clone());
        let document = match self.effect {
            None => document,
            Some(Effect::None) => document.member("effect", "none"),
            Some(Effect::Unknown) => document.member("effect", "unknown"),
        };
        match self.of {
            ProblemType::Unavailable => document.retry_after(1),
            ProblemType::BacklogFull | ProblemType::NoRoom => document.retry_after(problem::LATER),
            ProblemType::Unauthorized => {
                document.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            _ => document,
        }
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().document().serialize(serializer)
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let of = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Conflict => ProblemType::Unavailable,
            ErrorKind::SchemaMissing | ErrorKind::SchemaVersion => ProblemType::NotSetUp,
            ErrorKind::Invalid => ProblemType::Invalid,
            ErrorKind::Denied => ProblemType::Denied,
            ErrorKind::Unsupported => ProblemType::Unsupported,
            _ => ProblemType::Failed,
        };
        Self {
            of,
            detail: error.to_string().into(),
            effect: Some(error.effect()),
        }
    }
}

impl From<serde_json::Error> for Problem {
    /// Of a JSON text that came from the caller, who alone is told what is wrong with it.
    fn from(error: serde_json::Error) -> Self {
        let of = if error.is_data() {
            ProblemType::Invalid
        } else {
            ProblemType::Malformed
        };
        Self::new(of, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.document().response()
    }
}
