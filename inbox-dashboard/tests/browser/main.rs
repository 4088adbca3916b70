//! The dashboard in Chromium, through its WebDriver: what only a browser can tell, which is whether pages,
//! scripts and forms work together under the policy that they come with.
//!
//! Debian's `chromium-driver` has both; without it nothing is checked; with
//! `INBOX_TEST_BROWSER=required` that is a failure. Screenshots are left in the target directory's `tmp`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking"
)]

mod driver;

use std::{sync::Arc, time::Duration};

use axum::Router;
use inbox::{
    AfterDead, Filter, HandlerName, Inbox, Kind, Message, MessageId, Outcome, State, StoreExt,
    WorkerName,
};
use inbox_dashboard::dashboard;
use tokio::net::TcpListener;

use crate::driver::{Browser, WIDE};

const NAME: &str = "billing";

fn message(id: &str) -> Message {
    Message::new(
        HandlerName::new(NAME).unwrap(),
        MessageId::new(id).unwrap(),
        Kind::new("order.placed").unwrap(),
        r#"{"order": 7}"#,
    )
}

async fn die(store: &dyn Inbox, ids: impl Iterator<Item = String>, reason: &str) {
    let messages: Vec<_> = ids.map(|id| message(&id)).collect();
    store.receive(&messages).await.unwrap();
    let (handler, worker) = (
        HandlerName::new(NAME).unwrap(),
        WorkerName::new("w").unwrap(),
    );
    loop {
        let length = Duration::from_secs(60);
        let claims = store
            .claim_for(&handler, 500, length, &worker)
            .await
            .unwrap();
        if claims.leased.is_empty() {
            return;
        }
        for leased in claims.leased {
            let outcome = Outcome::Dead {
                reason: reason.to_owned(),
                after: AfterDead::Continue,
            };
            let settled = store.settle_one(&leased.lease, outcome).await.unwrap();
            assert_eq!(settled, inbox::Settled::Done);
        }
    }
}

async fn count(store: &dyn Inbox, state: State) -> u64 {
    let filter = Filter {
        states: vec![state],
        ..Filter::default()
    };
    store.count(&filter).await.unwrap()
}

/// An outage has made dead letters of three kinds: they are found, looked at and mended without leaving
/// the browser.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_mends_what_an_outage_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inbox.db");
    let store = inbox::connect(&format!("sqlite://{}", path.display())).await;
    let store = store.unwrap();
    store.create().await.unwrap();
    let refused = (0..700).map(|n| format!("refused-{n}"));
    die(store.as_ref(), refused, "http::Refused: the shop said no").await;
    let slow = (0..300).map(|n| format!("slow-{n}"));
    die(
        store.as_ref(),
        slow,
        "exit status: 65: no answer within 30 s",
    )
    .await;
    die(
        store.as_ref(),
        std::iter::once("odd".to_owned()),
        "json::Error: no order",
    )
    .await;
    let pages = dashboard(Arc::clone(&store)).title("Shop").into_router();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/ops/inbox", listener.local_addr().unwrap());
    let app = Router::new().nest("/ops/inbox", pages);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let Some(browser) = Browser::open(base).await else {
        return;
    };

    browser.go("overview").await;
    browser.shows("1,001").await;
    browser.keep("overview").await;
    browser.follow("Dead letters").await;
    browser.shows("http::Refused").await;
    browser.shows("exit status: #: no answer within # s").await;
    browser.keep("dead").await;

    // The largest group first.
    browser.follow("Replay…").await;
    browser.shows("700 messages would be replayed").await;
    browser.keep("confirm").await;
    browser.press("Replay").await;
    browser.shows("700 messages replayed").await;
    browser.shows("done").await;
    browser.keep("change").await;
    assert_eq!(count(store.as_ref(), State::Dead).await, 301);

    browser.go("dead").await;
    browser.follow("Replay…").await;
    browser.shows("300 messages would be replayed").await;
    browser.press("Replay").await;
    browser.shows("300 messages replayed").await;
    assert_eq!(count(store.as_ref(), State::Dead).await, 1);

    // The last one needs another payload.
    browser.go("message?handler=billing&id=odd").await;
    browser.shows("json::Error").await;
    browser.keep("message").await;
    browser.follow("Edit and replay…").await;
    browser.fill("payload", "{\"order\": }").await;
    browser.press("Replay with these").await;
    browser
        .shows("the payload is not JSON (line 1, column 11)")
        .await;
    browser.keep("edit").await;
    browser.fill("payload", "{\"order\": 8}").await;
    browser.press("Replay with these").await;
    browser.shows("1 message edited and replayed").await;
    assert_eq!(count(store.as_ref(), State::Pending).await, 1001);

    // Ticked in the list.
    browser
        .go("messages?state=pending&id=slow-1&id=slow-2")
        .await;
    browser.tick("Tick billing/slow-1").await;
    browser.press("Discard…").await;
    browser.shows("1 message would be discarded").await;
    browser.press("Discard").await;
    browser.shows("1 message discarded").await;
    assert_eq!(count(store.as_ref(), State::Discarded).await, 1);

    // Pages renew themselves.
    browser.go("overview").await;
    browser.press("Pause billing").await;
    browser.shows("paused").await;
    browser.press("Resume billing").await;
    store.receive(&[message("late")]).await.unwrap();
    browser.shows("1,001").await;

    // By keyboard alone: the first stop leads past the menu.
    browser.go("dead").await;
    browser.tab_and_enter().await;
    browser.is_at("#content").await;

    for (name, page) in [
        ("phone-overview", "overview"),
        ("phone-message", "message?handler=billing&id=odd"),
        ("phone-messages", "messages"),
    ] {
        browser.resize(390, 800).await;
        browser.go(page).await;
        browser.keep(name).await;
        assert!(browser.fits().await, "{page} is wider than a phone");
    }
    browser.resize(WIDE.0, WIDE.1).await;
    browser.close(1).await;
}
