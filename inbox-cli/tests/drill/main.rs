//! An operator's drill: what messages depend on goes away and answers in three ways that make dead letters; a
//! webhook is told; and all are found and replayed without leaving the browser.
//!
//! A small one of 1,200 messages, 60 of them in the outage. By hand with `INBOX_DRILL=100000` or another number,
//! of which a twentieth dies. Screenshots and alerts are left in the target directory's `tmp/screenshots`.
//!
//! A program of its own, since the browser's client changes what strings may be added to.
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, which fail by panicking, and of which this uses a part"
)]

#[path = "../../../inbox-dashboard/tests/browser/driver.rs"]
mod browser;
#[path = "../it/serve/service.rs"]
mod service;
#[path = "../it/support.rs"]
mod support;

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::Value;

use crate::{
    browser::{Browser, WIDE},
    service::{Service, on_both_stores},
    support::{Place, event},
};

/// The kinds of messages, and what the service answers to each while it is away.
const KINDS: [(&str, StatusCode); 3] = [
    ("order.placed", StatusCode::SERVICE_UNAVAILABLE),
    ("order.paid", StatusCode::INTERNAL_SERVER_ERROR),
    ("order.cancelled", StatusCode::UNPROCESSABLE_ENTITY),
];

/// How long one step may take, for each thousand messages.
const PATIENCE: Duration = Duration::from_secs(60);

/// What messages are posted to, and what is told of them.
#[derive(Default)]
struct Outside {
    is_away: AtomicBool,
    /// How often each message had its effect.
    effects: Mutex<BTreeMap<String, u32>>,
    alerts: Mutex<Vec<Value>>,
}

impl Outside {
    /// Listens, and returns its address.
    fn listen(self: &Arc<Self>) -> String {
        let (own, told) = (Arc::clone(self), Arc::clone(self));
        let charge = async move |headers: HeaderMap| {
            let kind = headers["inbox-kind"].to_str().unwrap();
            let of_kind = KINDS.iter().find(|(name, _)| *name == kind).unwrap();
            if own.is_away.load(Ordering::SeqCst) {
                return of_kind.1;
            }
            let id = headers["inbox-id"].to_str().unwrap().to_owned();
            *own.effects.lock().unwrap().entry(id).or_default() += 1;
            StatusCode::NO_CONTENT
        };
        let alert = async move |body: String| {
            let body = serde_json::from_str(&body).unwrap();
            told.alerts.lock().unwrap().push(body);
        };
        let app = Router::new()
            .route("/charge", post(charge))
            .route("/alert", post(alert));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let server = axum_server::from_tcp(listener).unwrap();
        tokio::spawn(server.serve(app.into_make_service()));
        address.to_string()
    }

    /// The texts of events of dead letters that were told so far.
    fn told(&self, state: &str) -> Vec<String> {
        let alerts = self.alerts.lock().unwrap();
        let events = alerts
            .iter()
            .flat_map(|alert| alert["events"].as_array().unwrap());
        events
            .filter(|event| event["about"] == "dead" && event["state"] == state)
            .map(|event| event["text"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// A process that ends with the test, however that ends.
struct Ending(std::process::Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stores messages, in turn of each kind.
fn ingest(place: &Place, numbers: std::ops::Range<usize>) {
    let lines: String = numbers
        .map(|n| event(&format!("order-{n}"), KINDS[n % 3].0, "{\"order\": 7}"))
        .collect();
    place
        .inbox_with(&["ingest", "--handler", "billing", "-"], lines.as_bytes())
        .exits(0);
}

/// Waits, long enough for so many messages, without keeping what runs in this process from running.
async fn until(what: &str, messages: usize, condition: impl Fn() -> bool) {
    let patience = PATIENCE * u32::try_from(messages / 1000 + 1).unwrap();
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < patience, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// With commas, as the pages have it.
fn with_commas(number: usize) -> String {
    let mut text = number.to_string();
    let mut place = text.len();
    while place > 3 {
        place -= 3;
        text.insert(place, ',');
    }
    text
}

#[test]
fn an_outage_is_told_of_found_and_mended_in_the_browser() {
    let all: usize = std::env::var("INBOX_DRILL").map_or(1200, |number| number.parse().unwrap());
    let of_a_kind = all / 60;
    let in_outage = of_a_kind * 3;
    on_both_stores(async |place: &Place| {
        let outside = Arc::new(Outside::default());
        let address = outside.listen();
        place.file(
            "inbox.toml",
            format!(
                "[notify]\nwebhook = \"http://{address}/alert\"\ninterval = \"200ms\"\n\
                 at_most_every = \"200ms\"\nmax_lag = \"1h\"\ntitle = \"Shop\"\n\
                 [[handlers]]\nname = \"billing\"\npost = \"http://{address}/charge\"\n\
                 concurrency = 16\nmax_attempts = 3\nretry_delay = \"100ms\""
            ),
        );
        place.inbox(&["schema", "create"]).exits(0);
        let service = Service::start(place, &["--config", "inbox.toml"]);
        let (pages, _said, base) = place.dashboard(&["--title", "Shop"]);
        let _pages = Ending(pages);

        // Work as usual, an outage, and work as usual.
        let before = (all - in_outage) / 2;
        ingest(place, 0..before);
        until("usual work", all, || {
            place.stats().processed == before as u64
        })
        .await;
        outside.is_away.store(true, Ordering::SeqCst);
        ingest(place, before..before + in_outage);
        until("dead letters", all, || {
            place.stats().dead == in_outage as u64
        })
        .await;
        outside.is_away.store(false, Ordering::SeqCst);
        ingest(place, before + in_outage..all);
        let alive = (all - in_outage) as u64;
        until("usual work", all, || place.stats().processed == alive).await;

        // The operator is woken, and opens the browser.
        until("the alert", all, || outside.told("begun").len() == 3).await;
        let Some(browser) = Browser::open(base).await else {
            return;
        };
        let store = place.kind();
        let keep = async |step: &str| browser.keep(&format!("drill-{store}-{step}")).await;
        browser.go("overview").await;
        browser.shows("billing").await;
        browser.shows(&with_commas(in_outage)).await;
        keep("1-overview").await;
        browser.follow("Dead letters").await;
        for (kind, status) in KINDS {
            browser.shows(kind).await;
            let reason = status.canonical_reason().unwrap();
            browser.shows(&format!("HTTP # {reason}")).await;
        }
        browser.lacks("Looking:").await;
        browser.resize(WIDE.0, 720).await;
        keep("2-dead-letters").await;
        browser.resize(WIDE.0, WIDE.1).await;
        browser.follow("the newest of them").await;
        browser.shows("Attempts").await;
        keep("3-message").await;

        // Group by group. A page that is left does not end what it has begun.
        for step in 0..3 {
            browser.go("dead").await;
            browser.lacks("Looking:").await;
            browser.follow("Replay…").await;
            let number = format!("{} messages would be replayed", with_commas(of_a_kind));
            browser.shows(&number).await;
            browser.lacks("At least").await;
            if step == 0 {
                keep("4-replay").await;
            }
            browser.press("Replay").await;
            browser
                .shows(&format!("{} messages replayed", with_commas(of_a_kind)))
                .await;
            browser.shows("done").await;
            keep(&format!("{}-replayed", step + 5)).await;
        }
        browser.go("dead").await;
        browser.shows("No dead messages").await;
        until("the replayed", all, || {
            place.stats().processed == all as u64
        })
        .await;
        browser.go("overview").await;
        browser.shows(&with_commas(all)).await;
        keep("8-over").await;
        browser.close(0).await;
        until("the all-clear", all, || {
            let alerts = outside.alerts.lock().unwrap();
            alerts
                .last()
                .is_some_and(|alert| alert["all_clear"] == true)
        })
        .await;

        let alerts = serde_json::to_string_pretty(&*outside.alerts.lock().unwrap()).unwrap();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
        std::fs::write(folder.join(format!("drill-{store}-alerts.json")), &alerts).unwrap();
        // Each trouble was told once, and once that it is over.
        let begun = outside.told("begun");
        assert_eq!(
            (begun.len(), outside.told("over").len()),
            (3, 3),
            "{alerts}"
        );
        for (kind, _) in KINDS {
            assert!(begun.iter().any(|text| text.contains(kind)), "{alerts}");
        }
        let effects = outside.effects.lock().unwrap();
        assert_eq!(effects.len(), all);
        assert!(effects.values().all(|times| *times == 1), "an effect twice");
        drop(service);
    });
}
