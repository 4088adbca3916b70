//! Stores with something in them, and a browser of sorts.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode},
};
use inbox::{
    AfterDead, Due, HandlerName, Inbox, Kind, Message, MessageId, OrderingKey, Outcome, StoreExt,
    WorkerName,
};
use serde_json::Value;
use tower::ServiceExt as _;

pub(crate) async fn memory() -> Arc<dyn Inbox> {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    store
}

/// A file, which is removed with the folder.
pub(crate) async fn sqlite(folder: &tempfile::TempDir) -> Arc<dyn Inbox> {
    let path = folder.path().join("inbox.db");
    let store = inbox::connect(&format!("sqlite://{}", path.display())).await;
    let store = store.unwrap();
    store.create().await.unwrap();
    store
}

pub(crate) fn handler(name: &str) -> HandlerName {
    HandlerName::new(name).unwrap()
}

pub(crate) fn message(name: &str, id: &str, payload: impl Into<inbox::Bytes>) -> Message {
    let (id, kind) = (
        MessageId::new(id).unwrap(),
        Kind::new("order.placed").unwrap(),
    );
    Message::new(handler(name), id, kind, payload)
}

pub(crate) async fn receive(store: &dyn Inbox, messages: &[Message]) {
    let receipts = store.receive(messages).await.unwrap();
    assert!(
        receipts.iter().all(|r| *r == inbox::Receipt::Accepted),
        "{receipts:?}"
    );
}

/// Claims what is due of a handler, and ends it so.
pub(crate) async fn end_all(store: &dyn Inbox, name: &str, outcome: Outcome) -> usize {
    let worker = WorkerName::new("worker-1").unwrap();
    let mut ended = 0;
    loop {
        let claimed = store
            .claim_for(&handler(name), 500, Duration::from_secs(60), &worker)
            .await
            .unwrap();
        if claimed.leased.is_empty() {
            return ended;
        }
        for leased in claimed.leased {
            let settled = store.settle_one(&leased.lease, outcome.clone()).await;
            assert_eq!(settled.unwrap(), inbox::Settled::Done);
            ended += 1;
        }
    }
}

pub(crate) fn dead(reason: &str) -> Outcome {
    Outcome::Dead {
        reason: reason.to_owned(),
        after: AfterDead::Block,
    }
}

/// Something in each state: `mail` with three dead ones of two errors, one of them blocking its key with
/// another behind, one scheduled; `bill` with one processed, one leased.
pub(crate) async fn filled(store: &dyn Inbox) {
    let mut ordered = Vec::new();
    for id in ["dead-1", "behind-1"] {
        let key = OrderingKey::new("customer-7").unwrap();
        ordered.push(message("mail", id, r#"{"to":"ada"}"#).with_ordering_key(key));
    }
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    ordered[0] = ordered[0]
        .clone()
        .with_header("traceparent", traceparent)
        .unwrap();
    receive(store, &ordered).await;
    assert_eq!(
        end_all(store, "mail", dead("smtp::Refused: mailbox full")).await,
        1
    );
    receive(
        store,
        &[
            message("mail", "dead-2", "{}"),
            message("mail", "dead-3", "{}"),
        ],
    )
    .await;
    assert_eq!(end_all(store, "mail", dead("exit code 1")).await, 2);
    let later = message("mail", "later-1", "{}").with_due(Due::After(Duration::from_secs(3600)));
    receive(store, &[later, message("bill", "done-1", "{}")]).await;
    let result = Outcome::Processed {
        result: Some("the result".into()),
    };
    assert_eq!(end_all(store, "bill", result).await, 1);
    receive(store, &[message("bill", "held-1", "{}")]).await;
    let worker = WorkerName::new("worker-2").unwrap();
    let held = store
        .claim_for(&handler("bill"), 1, Duration::from_secs(600), &worker)
        .await;
    assert_eq!(held.unwrap().leased.len(), 1);
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    #[track_caller]
    pub(crate) fn has(&self, all: &[&str]) {
        let text = self.text();
        for one in all {
            assert!(text.contains(one), "no {one:?} in {text}");
        }
    }

    #[track_caller]
    pub(crate) fn lacks(&self, all: &[&str]) {
        let text = self.text();
        for one in all {
            assert!(!text.contains(one), "{one:?} in {text}");
        }
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: to_bytes(body, usize::MAX).await.unwrap().to_vec(),
    }
}

pub(crate) async fn look(router: &Router, path: &str) -> Answer {
    send(router, Request::get(path).body(Body::empty()).unwrap()).await
}

pub(crate) async fn page(router: &Router, path: &str) -> Answer {
    let answer = look(router, path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
    answer
}

/// Where a page asks for more by itself.
pub(crate) fn more_of(page: &Answer) -> Option<String> {
    let text = page.text();
    let (_, behind) = text.split_once("hx-get=\"")?;
    let (path, _) = behind.split_once('"')?;
    Some(format!("/{}", path.replace("&amp;", "&")))
}

/// A page that has looked at all there is.
pub(crate) async fn whole_page(router: &Router, path: &str) -> Answer {
    let mut answer = page(router, path).await;
    while let Some(more) = more_of(&answer) {
        answer = page(router, &more).await;
    }
    answer
}

pub(crate) async fn post_json(router: &Router, path: &str, body: Value) -> Answer {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()));
    send(router, request.unwrap()).await
}

/// Opens a page for its secret, and sends a form with it as a browser does.
pub(crate) async fn submit(router: &Router, path: &str, fields: &[(&str, &str)]) -> Answer {
    let opened = page(router, "/overview").await;
    let cookie = opened.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.ends_with("; SameSite=Strict; HttpOnly"), "{cookie}");
    let (cookie, _) = cookie.split_once(';').unwrap();
    let (_, token) = cookie.split_once('=').unwrap();
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("form_token", token);
    form.extend_pairs(fields);
    let request = Request::post(path)
        .header("cookie", cookie)
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from(form.finish()));
    send(router, request.unwrap()).await
}

/// Where an answer leads.
#[track_caller]
pub(crate) fn location(answer: &Answer) -> &str {
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text());
    answer.headers["location"].to_str().unwrap()
}
