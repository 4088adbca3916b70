//! Which path leads where.

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, Method, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};

use crate::{api, dashboard::Shared, export, fault::Fault, guard, pages};

/// Each path with its method and what it does. All pages are in one folder, so that their links to each
/// other are the same wherever it is mounted.
pub(crate) fn all() -> Vec<(Method, &'static str, MethodRouter<Arc<Shared>>)> {
    let mut all: Vec<(Method, &'static str, MethodRouter<Arc<Shared>>)> = vec![
        (Method::GET, "/", get(pages::overview::entrance)),
        (Method::GET, "/overview", get(pages::overview::show)),
        (Method::GET, "/messages", get(pages::messages::show)),
        (Method::GET, "/message", get(pages::message::show)),
        (Method::GET, "/payload", get(pages::content::payload)),
        (Method::GET, "/result", get(pages::content::result)),
        (Method::GET, "/dead", get(pages::groups::dead)),
        (Method::GET, "/scheduled", get(pages::groups::scheduled)),
        (Method::GET, "/keys", get(pages::keys::show)),
        (Method::GET, "/workers", get(pages::workers::show)),
        (Method::GET, "/changes", get(pages::changes::list)),
        (Method::GET, "/change", get(pages::changes::show)),
        (Method::GET, "/confirm", get(pages::confirm::by_link)),
        (Method::GET, "/edit", get(pages::edit::show)),
        (Method::GET, "/export", get(export::ndjson)),
        (Method::GET, "/style.css", get(style)),
        (Method::GET, "/htmx.js", get(htmx)),
        (Method::GET, "/icon.svg", get(icon)),
        (Method::POST, "/confirm", post(pages::confirm::by_form)),
        (Method::POST, "/replay", post(pages::change::replay)),
        (Method::POST, "/discard", post(pages::change::discard)),
        (Method::POST, "/reschedule", post(pages::change::reschedule)),
        (Method::POST, "/edit", post(pages::edit::submit)),
        (Method::POST, "/pause", post(pages::change::pause)),
        (Method::POST, "/resume", post(pages::change::resume)),
        (Method::POST, "/stop", post(pages::change::stop)),
    ];
    all.extend(api::routes());
    all
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let mut router = Router::new();
    for (_, path, route) in all() {
        router = router.route(path, route);
    }
    router
        .fallback(async || Fault::not_found("there is no such page"))
        .method_not_allowed_fallback(async || Fault::method_not_allowed())
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            guard::guard,
        ))
        .layer(middleware::map_request(inbox_http::linger::lingering))
        .with_state(shared)
}

const STYLE: &str = include_str!("assets/style.css");

const ICON: &str = include_str!("assets/icon.svg");

/// htmx 2.0.11, see `assets/htmx.LICENSE`.
const HTMX: &str = include_str!("assets/htmx.min.js");

/// Asked for with the version in the query, so that it may be kept.
fn kept(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (
            header::CACHE_CONTROL,
            HeaderValue::from_static("private, max-age=86400"),
        ),
    ];
    (headers, text).into_response()
}

async fn style() -> Response {
    kept("text/css; charset=utf-8", STYLE)
}

async fn htmx() -> Response {
    kept("text/javascript; charset=utf-8", HTMX)
}

async fn icon() -> Response {
    kept("image/svg+xml", ICON)
}

#[cfg(test)]
mod tests;
