//! What every request goes through, and every response.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use inbox_http::problem::Problem;

use crate::{
    access::{FormToken, Operator, check_origin, only_looks},
    dashboard::Shared,
    fault::Fault,
    pages,
};

/// Nothing but our own files, no script or style within a page, and no page of ours within another.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What is the same of each response. Not `no-referrer`: browsers then name no origin with a form either.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Who looks, from which page.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) operator: Operator,
    pub(crate) form_token: FormToken,
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let visit = parts.extensions.get().cloned();
        visit.ok_or_else(Fault::unauthorized)
    }
}

pub(crate) async fn guard(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    shared.begin_watching();
    let is_api = request.uri().path().starts_with("/api/");
    let known = FormToken::of(request.headers());
    let new = if known.is_none() && !is_api {
        FormToken::random()
    } else {
        None
    };
    let visit = shared.access.admit(&request).and_then(|operator| {
        if !only_looks(request.method()) {
            check_origin(&request)?;
            if shared.options.is_read_only {
                return Err(Fault::read_only());
            }
        }
        Ok(operator)
    });
    let token = known.or_else(|| new.clone());
    let visit = visit.map(|operator| Visit {
        operator,
        // Without one no form is accepted.
        form_token: token.unwrap_or_else(FormToken::none),
    });
    let mut response = match &visit {
        Ok(visit) => {
            request.extensions_mut().insert(visit.clone());
            next.run(request).await
        }
        Err(fault) => fault.clone().into_response(),
    };
    if let Some(fault) = response.extensions_mut().remove::<Fault>() {
        let allow = response.headers_mut().remove(header::ALLOW);
        response = if is_api {
            problem(&fault)
        } else {
            pages::fault(&shared, visit.as_ref().ok(), &fault)
        };
        finish_fault(&fault, allow, response.headers_mut());
    }
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    if visit.is_ok()
        && let Some(cookie) = new.and_then(|token| token.set_cookie().parse().ok())
    {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

fn finish_fault(fault: &Fault, allow: Option<HeaderValue>, headers: &mut HeaderMap) {
    if let Some(allow) = allow {
        headers.insert(header::ALLOW, allow);
    }
    if fault.status.as_u16() == 503 {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    if fault.status.as_u16() == 401 {
        let basic = HeaderValue::from_static("Basic realm=\"inbox\", charset=\"UTF-8\"");
        headers.insert(header::WWW_AUTHENTICATE, basic);
    }
}

fn problem(fault: &Fault) -> Response {
    let problem = Problem::new(fault.status, fault.code, fault.title);
    problem
        .kind(&format!("urn:inbox:problem:{}", fault.code))
        .detail(fault.detail.clone())
        .response::<Body>()
}
