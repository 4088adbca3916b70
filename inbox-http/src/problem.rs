//! Problem documents (RFC 9457): errors that both programs and people can read.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value};

/// The media type of problem documents.
pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// How soon to come again while the backlog is over its limit, there is no room for a body, or what sends
/// webhooks meets an outage of the store, in seconds.
pub(crate) const LATER: u64 = 5;

/// A problem document, with the status and headers of its response.
///
/// ```
/// use inbox_http::problem::Problem;
/// use http::{Response, StatusCode};
///
/// let problem = Problem::new(StatusCode::CONFLICT, "in-progress", "The first request is under way")
///     .retry_after(1);
/// let response: Response<bytes::Bytes> = problem.response();
/// assert_eq!(response.status(), 409);
/// assert_eq!(response.headers()["retry-after"], "1");
/// ```
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    members: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// A problem that `code` names for programs and `title` for people. The title says nothing of
    /// this one occurrence: that is the [detail](Self::detail).
    #[must_use]
    pub fn new(status: StatusCode, code: &str, title: &str) -> Self {
        let mut members = Map::new();
        members.insert("title".into(), title.into());
        members.insert("status".into(), status.as_u16().into());
        members.insert("code".into(), code.into());
        Self {
            status,
            members,
            headers: Vec::new(),
        }
    }

    /// A body that there is no room for at present.
    pub(crate) fn no_room() -> Self {
        let title = "Too many bodies are being read";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no-room", title).retry_after(LATER)
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Its code, the member `code`.
    #[must_use]
    pub fn code(&self) -> &str {
        let code = self.members.get("code");
        code.and_then(Value::as_str).unwrap_or_default()
    }

    /// Says what is wrong this time. Must not contain payloads or credentials.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> Self {
        self.member("detail", detail.into())
    }

    /// Sets the member `type`, a URI that identifies the kind of problem. Without one it is
    /// `about:blank`, which need not be said.
    #[must_use]
    pub fn kind(self, uri: &str) -> Self {
        self.member("type", uri)
    }

    /// Sets another member.
    #[must_use]
    pub fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.into(), value.into());
        self
    }

    /// Sets a header of the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Tells the client to come again after so many seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        self.header(header::RETRY_AFTER, seconds.into())
    }

    /// The document, without the status and headers of its response: for one element of many.
    #[must_use]
    pub fn document(&self) -> &Map<String, Value> {
        &self.members
    }

    /// The response.
    #[must_use]
    pub fn response<B: From<Bytes>>(self) -> Response<B> {
        let body = Bytes::from(Value::Object(self.members).to_string());
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}
