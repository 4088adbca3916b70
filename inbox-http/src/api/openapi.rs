//! `GET /v1/openapi.json`.

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};

pub(super) const PATH: &str = "/v1/openapi.json";

const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests;
