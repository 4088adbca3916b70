//! What goes wrong with a request, and how it is told: as a page, or as a problem document.

use std::borrow::Cow;

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use inbox::{Error, ErrorKind, Invalid};

/// One failure. Its texts never contain payloads or secrets.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    /// For programs.
    pub(crate) code: &'static str,
    /// For people, of every such failure.
    pub(crate) title: &'static str,
    /// For people, of this one.
    pub(crate) detail: Cow<'static, str>,
}

impl Fault {
    fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            title,
            detail: detail.into(),
        }
    }

    pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(status, "invalid", "The request breaks a rule", detail)
    }

    pub(crate) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(crate) fn no_such_message() -> Self {
        Self::not_found("there is no message of that handler and id; it may have been purged")
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "This path takes another method",
            "what only looks is GET, what changes is POST",
        )
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "Sign in first",
            "as `Authorization: Bearer …`, or by name and password",
        )
    }

    /// A request that another site may have made the browser send.
    pub(crate) fn foreign(detail: &'static str) -> Self {
        let title = "Refused: it may come from another site";
        Self::new(StatusCode::FORBIDDEN, "cross-site", title, detail)
    }

    pub(crate) fn read_only() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "read-only",
            "This dashboard is read-only",
            "nothing was changed",
        )
    }

    pub(crate) fn hidden() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "hidden",
            "Payloads are hidden here",
            "this dashboard was told not to show them",
        )
    }

    pub(crate) fn wrong_host() -> Self {
        Self::new(
            StatusCode::MISDIRECTED_REQUEST,
            "wrong-host",
            "This dashboard is not served under that name",
            "use the address that it listens at",
        )
    }

    pub(crate) fn paused_by_command(detail: String) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "paused-by-command",
            "A command has paused this handler",
            detail,
        )
    }

    pub(crate) fn too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "The request is too large",
            "send less at once",
        )
    }

    pub(crate) fn body_broken() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-timeout",
            "The body did not arrive",
            "send the request again",
        )
    }

    pub(crate) fn not_json() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "The body must be application/json",
            "set the header `content-type: application/json`",
        )
    }

    pub(crate) fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "Too many changes are under way",
            "wait for one to end, or stop one",
        )
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too-slow",
            "The store took too long",
            "narrow what is asked for, such as by handler or state, and try again",
        )
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let (status, code, title) = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Conflict => (
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "The store is unavailable",
            ),
            ErrorKind::SchemaMissing | ErrorKind::SchemaVersion => (
                StatusCode::SERVICE_UNAVAILABLE,
                "not-set-up",
                "The inbox is not set up",
            ),
            ErrorKind::Invalid => (
                StatusCode::BAD_REQUEST,
                "invalid",
                "The request breaks a rule",
            ),
            ErrorKind::Denied => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "denied",
                "The store denies access",
            ),
            ErrorKind::Corrupt => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "corrupt",
                "What is stored cannot be read",
            ),
            ErrorKind::Unsupported => (
                StatusCode::NOT_IMPLEMENTED,
                "unsupported",
                "This store cannot do that",
            ),
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed",
                "The store failed",
            ),
        };
        Self::new(status, code, title, error.to_string())
    }
}

impl From<Invalid> for Fault {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string())
    }
}

impl IntoResponse for Fault {
    /// The status alone: the guard writes the body, for it knows who is to read it.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
