//! What is so of every route, found by walking all of them.

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use inbox_http::Token;
use serde_json::Value;
use tower::ServiceExt as _;

use super::*;
use crate::{Dashboard, dashboard};

const TOKEN: &str = "a-token-of-16-characters";

async fn on_memory() -> Dashboard {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    dashboard(store)
}

async fn send(
    router: &Router,
    method: &Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> (StatusCode, Response) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    (response.status(), response)
}

async fn text(response: Response) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    String::from_utf8(bytes.unwrap().to_vec()).unwrap()
}

fn content_type(path: &str) -> (&'static str, &'static str) {
    if path.starts_with("/api/") {
        ("content-type", "application/json")
    } else {
        ("content-type", "application/x-www-form-urlencoded")
    }
}

#[track_caller]
fn has_headers(path: &str, response: &Response) {
    let headers = response.headers();
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{path}");
    assert!(!policy.contains("unsafe"), "{path}");
    assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
    assert_eq!(headers["x-frame-options"], "DENY", "{path}");
    assert!(headers.contains_key("cache-control"), "{path}");
}

#[tokio::test]
async fn every_response_has_the_headers() {
    let open = on_memory().await.into_router();
    let token = Token::new(TOKEN).unwrap();
    let closed = on_memory().await.token(token).into_router();
    for (method, path, _) in all() {
        let (status, response) = send(&open, &method, path, &[], "").await;
        has_headers(path, &response);
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}");
        let (status, response) = send(&closed, &method, path, &[], "").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(response.headers().contains_key("www-authenticate"));
        has_headers(path, &response);
        let wrong = if method == Method::GET {
            Method::PUT
        } else {
            Method::DELETE
        };
        let (status, response) = send(&open, &wrong, path, &[], "").await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        has_headers(path, &response);
    }
    for path in ["/nowhere", "/api/nowhere", "/api", "/overview/"] {
        let (status, response) = send(&open, &Method::GET, path, &[], "").await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        has_headers(path, &response);
    }
}

#[tokio::test]
async fn read_only_refuses_every_change() {
    let router = on_memory().await.read_only().into_router();
    let (mut pages, mut operations) = (0, 0);
    for (method, path, _) in all() {
        if method != Method::POST {
            continue;
        }
        let (status, response) = send(&router, &method, path, &[content_type(path)], "{}").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        let told = text(response).await;
        if path.starts_with("/api/") {
            assert!(told.contains("\"code\":\"read-only\""), "{path}: {told}");
            operations += 1;
        } else {
            assert!(
                told.contains("This dashboard is read-only"),
                "{path}: {told}"
            );
            pages += 1;
        }
    }
    assert_eq!((pages, operations), (8, 7));
}

#[tokio::test]
async fn no_change_is_taken_from_another_site() {
    let router = on_memory().await.into_router();
    let foreign: [&[(&str, &str)]; 4] = [
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[
            ("origin", "https://evil.example"),
            ("host", "inbox.example"),
        ],
        &[("origin", "null")],
    ];
    for (method, path, _) in all() {
        if method != Method::POST {
            continue;
        }
        for headers in foreign {
            let (status, _) = send(&router, &method, path, headers, "").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{path} {headers:?}");
        }
        // What a form of another site could send, if the browser said nothing of it.
        let form = ("content-type", "application/x-www-form-urlencoded");
        let cookie = ("cookie", "inbox-form=0123456789abcdef0123456789abcdef");
        for (headers, body) in [
            (&[form][..], "key=a/1"),
            (&[form, cookie][..], "key=a/1"),
            (&[form, cookie][..], "form_token=&key=a/1"),
            (
                &[form, cookie][..],
                "form_token=0123456789abcdef0123456789abcdee&key=a/1",
            ),
            (&[form][..], "form_token=&key=a/1"),
            (&[("content-type", "text/plain")][..], "{\"keys\":[]}"),
        ] {
            let (status, _) = send(&router, &method, path, headers, body).await;
            let expected = if path.starts_with("/api/") {
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            } else {
                StatusCode::FORBIDDEN
            };
            assert_eq!(status, expected, "{path} {body}");
        }
    }
}

#[tokio::test]
async fn what_is_not_known_is_refused() {
    let router = on_memory().await.into_router();
    for (method, path, _) in all() {
        let has_none = [
            "/",
            "/style.css",
            "/htmx.js",
            "/icon.svg",
            "/api/openapi.json",
        ]
        .contains(&path);
        if method == Method::GET && !has_none {
            let path = format!("{path}?nonsense=1&handler=h&id=1&action=replay");
            let (status, _) = send(&router, &method, &path, &[], "").await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        }
        if method == Method::POST && path.starts_with("/api/") {
            for body in ["", "[]", "{\"nonsense\":1}", "{", "null", "{\"keys\":1}"] {
                let (status, response) =
                    send(&router, &method, path, &[content_type(path)], body).await;
                assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}");
                let told: Value = serde_json::from_str(&text(response).await).unwrap();
                assert_eq!(told["code"], "invalid");
            }
        }
    }
}

#[tokio::test]
async fn an_outage_is_told_on_every_page() {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    let router = dashboard(Arc::clone(&store)).into_router();
    store.close().await;
    let without_store = [
        "/",
        "/changes",
        "/change",
        "/api/changes",
        "/api/change",
        "/style.css",
        "/htmx.js",
        "/icon.svg",
        "/api/openapi.json",
    ];
    for (method, path, _) in all() {
        if method != Method::GET || without_store.contains(&path) {
            continue;
        }
        let path = match path {
            "/message" | "/payload" | "/result" | "/edit" | "/api/message" => {
                format!("{path}?handler=h&id=1")
            }
            "/confirm" => format!("{path}?action=replay"),
            path => path.to_owned(),
        };
        let (status, response) = send(&router, &method, &path, &[], "").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert_eq!(response.headers()["retry-after"], "5", "{path}");
        let told = text(response).await.to_lowercase();
        assert!(told.contains("the store is unavailable"), "{path}: {told}");
    }
}

#[test]
fn the_api_is_described_as_it_is() {
    let document: Value = serde_json::from_str(api::OPENAPI).unwrap();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut described = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            described.push((method.to_uppercase(), path.clone()));
        }
    }
    let routes = api::routes().into_iter();
    let mut routes: Vec<_> = routes
        .map(|(method, path, _)| (method.to_string(), path.to_owned()))
        .collect();
    described.sort();
    routes.sort();
    assert_eq!(routes, described);
}
