//! The admin API: what the pages show and do, as JSON.

mod changes;
mod look;

use std::sync::Arc;

use axum::{
    http::{HeaderValue, Method, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use serde::Serialize;

use crate::{dashboard::Shared, export, fault::Fault};

/// Its description.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

pub(crate) fn routes() -> Vec<(Method, &'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        (Method::GET, "/api/openapi.json", get(openapi)),
        (Method::GET, "/api/statistics", get(look::statistics)),
        (Method::GET, "/api/messages", get(look::messages)),
        (Method::GET, "/api/message", get(look::message)),
        (Method::GET, "/api/dead", get(look::dead)),
        (Method::GET, "/api/scheduled", get(look::scheduled)),
        (Method::GET, "/api/keys", get(look::keys)),
        (Method::GET, "/api/workers", get(look::workers)),
        (Method::GET, "/api/export", get(export::ndjson)),
        (Method::GET, "/api/changes", get(changes::list)),
        (Method::GET, "/api/change", get(changes::show)),
        (Method::POST, "/api/replay", post(changes::replay)),
        (Method::POST, "/api/edit", post(changes::edit)),
        (Method::POST, "/api/discard", post(changes::discard)),
        (Method::POST, "/api/reschedule", post(changes::reschedule)),
        (Method::POST, "/api/stop", post(changes::stop)),
        (Method::POST, "/api/pause", post(changes::pause)),
        (Method::POST, "/api/resume", post(changes::resume)),
    ]
}

/// An answer as JSON.
fn json(value: &impl Serialize) -> Result<Response, Fault> {
    let text = serde_json::to_string(value);
    let text = text.map_err(|_| Fault::invalid("the answer cannot be written as JSON"))?;
    let of_json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, of_json)], text).into_response())
}

async fn openapi() -> Response {
    let of_json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, of_json)], OPENAPI).into_response()
}
