//! Mounted by an application.

use axum::{Router, body::Body, extract::Request, http::StatusCode, middleware};
use inbox_dashboard::{Operator, dashboard};
use inbox_http::Token;

use crate::support::*;

#[tokio::test]
async fn it_is_found_wherever_it_is() {
    let router = dashboard(memory().await).into_router();
    assert_eq!(location(&look(&router, "/").await), "overview");
    let nested = Router::new().nest("/ops/inbox", router.clone());
    assert_eq!(
        location(&look(&nested, "/ops/inbox").await),
        "inbox/overview"
    );
    let service = Router::new().nest_service("/ops/inbox", router);
    assert_eq!(
        location(&look(&service, "/ops/inbox").await),
        "inbox/overview"
    );
    assert_eq!(location(&look(&service, "/ops/inbox/").await), "overview");
    for path in [
        "overview",
        "messages",
        "dead",
        "api/statistics",
        "style.css",
    ] {
        let answer = page(&nested, &format!("/ops/inbox/{path}")).await;
        assert!(answer.headers.contains_key("content-security-policy"));
    }
    assert_eq!(
        look(&nested, "/ops/inbox/nowhere").await.status,
        StatusCode::NOT_FOUND
    );
    let problem = look(&nested, "/ops/inbox/api/nowhere").await;
    assert_eq!(problem.json()["code"], "not-found");
}

/// All pages are in one folder: no link of theirs leads out of it but for the API's.
#[tokio::test]
async fn links_are_relative() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let router = dashboard(store).into_router();
    for path in [
        "/overview",
        "/messages",
        "/message?handler=mail&id=dead-1",
        "/dead",
        "/changes",
    ] {
        let text = page(&router, path).await.text();
        for attribute in ["href=\"", "action=\"", "src=\"", "hx-get=\""] {
            for link in text.split(attribute).skip(1) {
                let link = link.split('"').next().unwrap();
                assert!(
                    !link.starts_with('/') && !link.contains("://"),
                    "{path}: {link}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_application_says_who_operates() {
    async fn sign_in(mut request: Request, next: middleware::Next) -> axum::response::Response {
        request.extensions_mut().insert(Operator::new("ada"));
        next.run(request).await
    }
    let pages = dashboard(memory().await).into_router();
    let router = Router::new()
        .nest("/inbox", pages)
        .layer(middleware::from_fn(sign_in));
    page(&router, "/inbox/overview").await.has(&["you are ada"]);
    let paused = post_json(
        &router,
        "/inbox/api/pause",
        serde_json::json!({"handler": "mail"}),
    )
    .await;
    assert_eq!(paused.status, StatusCode::OK, "{}", paused.text());
}

#[tokio::test]
async fn a_token_is_asked_for_and_opens() {
    let token = Token::new("a-token-of-16-characters").unwrap();
    let router = dashboard(memory().await).token(token).into_router();
    let closed = look(&router, "/overview").await;
    assert_eq!(closed.status, StatusCode::UNAUTHORIZED);
    closed.lacks(&["href=\"messages\""]);
    assert!(!closed.headers.contains_key("set-cookie"));
    // `ada:a-token-of-16-characters`
    let basic = "Basic YWRhOmEtdG9rZW4tb2YtMTYtY2hhcmFjdGVycw==";
    for (authorization, name) in [("Bearer a-token-of-16-characters", "token"), (basic, "ada")] {
        let request = Request::get("/overview").header("authorization", authorization);
        let open = send(&router, request.body(Body::empty()).unwrap()).await;
        assert_eq!(open.status, StatusCode::OK);
        open.has(&[&format!("you are {name}")]);
    }
}

#[tokio::test]
async fn other_hosts_are_not_served() {
    let router = dashboard(memory().await).host("localhost").into_router();
    for (host, status) in [
        ("localhost:8090", StatusCode::OK),
        ("evil.example", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let request = Request::get("/overview").header("host", host);
        let answer = send(&router, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{host}");
    }
}
