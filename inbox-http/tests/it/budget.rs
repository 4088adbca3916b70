//! What bodies take of the memory, together.

use std::time::Duration;

use axum::{Router, routing::post};
use inbox_http::{
    BodyBudget, Endpoint, IdempotencyLayer, Provider, WebhookReceiver,
    api::{Api, Token},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    places::{Away, Place, on_each_store},
    server::{Answer, Site, until},
    webhooks::hex_signature,
};

on_each_store!(
    slow_and_large_clients_neither_fill_the_memory_nor_keep_others_out,
    what_the_head_gives_away_is_refused_without_the_body,
    one_budget_is_for_all_endpoints,
    a_body_counts_until_its_request_is_answered,
    a_webhook_counts_until_it_is_stored,
);

const SECRET: &str = "It's a Secret to Everybody";
const NOBODYS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

async fn deliver(site: &Site, id: &str, body: String) -> Answer {
    let signature = format!("sha256={}", hex_signature(SECRET, &body));
    let headers = [
        ("content-type", "application/json"),
        ("x-hub-signature-256", &signature),
        ("x-github-delivery", id),
        ("x-github-event", "push"),
    ];
    site.post("/github", &headers, body).await
}

fn github<P: Place>(place: &P, budget: &BodyBudget) -> WebhookReceiver {
    let github = Provider::github([SECRET]).unwrap();
    WebhookReceiver::new(place.inbox())
        .body_budget(budget.clone())
        .endpoint("/github", Endpoint::new(github, ["ci"]).unwrap())
        .unwrap()
}

/// Begins a request, of which `sent` bytes of the body come at once and the others never.
async fn begin(site: &Site, path: &str, headers: &str, announced: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(site.address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         {headers}\r\ncontent-length: {announced}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server may have refused it by now.
    let _ = stream.write_all(&vec![b' '; sent]).await;
    stream
}

/// What came back, if the connection did not end before it was read.
async fn answered(mut stream: TcpStream) -> String {
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer).await.unwrap_or_default();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

async fn slow_and_large_clients_neither_fill_the_memory_nor_keep_others_out<P: Place>(place: P) {
    const LIMIT: usize = 4_000_000;
    let budget = BodyBudget::new(LIMIT);
    let receiver = github(&place, &budget)
        .body_limit(1_500_000)
        .read_timeout(Duration::from_secs(30));
    let site = Site::serve(receiver.into_router()).await;
    let large = |id: &'static str| deliver(&site, id, format!("\"{}\"", "x".repeat(1_400_000)));
    assert_eq!(large("before").await.status, 202);
    // They sign with what looks like a signature.
    let signature = format!("x-hub-signature-256: sha256={NOBODYS}");
    let slow = (0..100).map(|_| begin(&site, "/github", &signature, 1_400_000, 1_000_000));
    let slow = futures_util::future::join_all(slow);
    let watched = async {
        let mut most = 0;
        loop {
            most = most.max(budget.held());
            if most > LIMIT {
                return most;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let slow = tokio::select! {
        slow = slow => slow,
        most = watched => panic!("{most} bytes"),
    };
    assert!(budget.held() <= LIMIT);
    until(async || budget.held() >= LIMIT / 2).await;
    // A large one would be too much, and says so at once; a small one is not.
    let refused = large("meanwhile").await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (503, "no-room")
    );
    assert!(refused.header("retry-after").is_some());
    assert_eq!(deliver(&site, "small", "{}".into()).await.status, 202);
    // Nobody holds it for ever.
    until(async || budget.held() == 0).await;
    assert_eq!(large("after").await.status, 202);
    let mut refused = 0;
    for slow in slow {
        let answer = answered(slow).await;
        if answer.starts_with("HTTP/1.1 503 ") {
            assert!(answer.contains("\r\nretry-after: "), "{answer}");
            refused += 1;
        }
    }
    assert!(refused > 0);
    assert_eq!(place.messages().await.len(), 3);
}

/// No body comes at all, and none is waited for.
async fn what_the_head_gives_away_is_refused_without_the_body<P: Place>(place: P) {
    let standard = ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];
    let providers = [
        ("/github", Provider::github([SECRET]).unwrap()),
        ("/stripe", Provider::stripe([SECRET]).unwrap()),
        ("/slack", Provider::slack([SECRET]).unwrap()),
        ("/shopify", Provider::shopify([SECRET]).unwrap()),
        (
            "/twilio",
            Provider::twilio([SECRET], "https://a.example").unwrap(),
        ),
        ("/standard", Provider::standard_webhooks(standard).unwrap()),
        ("/events", Provider::cloud_events([SECRET]).unwrap()),
    ];
    let mut receiver = WebhookReceiver::new(place.inbox()).read_timeout(Duration::from_secs(300));
    for (path, provider) in providers {
        let endpoint = Endpoint::new(provider, ["h"]).unwrap();
        receiver = receiver.endpoint(path, endpoint).unwrap();
    }
    let site = Site::serve(receiver.into_router()).await;
    let now = crate::server::seconds_now();
    let standard = |time: u64, signature: &str| {
        format!("webhook-id: 1\r\nwebhook-timestamp: {time}\r\nwebhook-signature: {signature}")
    };
    let base64 = "qBvrsZF7RfB1iS6BX6IHqJTp5L911P7intnPeTPsH0I=";
    let cases = [
        ("/github", "x: y".to_owned(), "signature-missing"),
        (
            "/github",
            "x-hub-signature-256: 00".to_owned(),
            "signature-missing",
        ),
        (
            "/github",
            "x-hub-signature-256: sha256=00".to_owned(),
            "wrong-signature",
        ),
        (
            "/github",
            format!("x-hub-signature-256: sha256={}", NOBODYS.replace('0', "g")),
            "wrong-signature",
        ),
        ("/stripe", "x: y".to_owned(), "signature-missing"),
        (
            "/stripe",
            format!("stripe-signature: t={now}"),
            "signature-missing",
        ),
        (
            "/stripe",
            format!("stripe-signature: t={},v1={NOBODYS}", now - 301),
            "out-of-time",
        ),
        (
            "/stripe",
            format!("stripe-signature: t=x,v1={NOBODYS}"),
            "signature-missing",
        ),
        (
            "/slack",
            format!("x-slack-signature: v0={NOBODYS}"),
            "signature-missing",
        ),
        ("/shopify", "x: y".to_owned(), "signature-missing"),
        (
            "/shopify",
            "x-shopify-hmac-sha256: AA==".to_owned(),
            "wrong-signature",
        ),
        ("/twilio", "x: y".to_owned(), "signature-missing"),
        (
            "/twilio",
            "x-twilio-signature: AA==".to_owned(),
            "wrong-signature",
        ),
        (
            "/twilio",
            "x-twilio-signature: RSOYDt4T1cUTdK1PDd93/VVr8B8=".to_owned(),
            "signature-missing", // of JSON: the digest in the URL
        ),
        ("/standard", "x: y".to_owned(), "signature-missing"),
        ("/standard", standard(now, "v1,AA=="), "wrong-signature"),
        (
            "/standard",
            standard(now - 301, &format!("v1,{base64}")),
            "out-of-time",
        ),
        ("/events", "x: y".to_owned(), "signature-missing"),
        (
            "/events",
            "authorization: Bearer other".to_owned(),
            "wrong-signature",
        ),
    ];
    for (path, headers, code) in cases {
        let answer = answered(begin(&site, path, &headers, 1000, 0).await).await;
        assert!(
            answer.starts_with("HTTP/1.1 401 ") && answer.contains(&format!("\"{code}\"")),
            "{path} {headers}: {answer}"
        );
    }
    assert!(place.messages().await.is_empty());
}

async fn one_budget_is_for_all_endpoints<P: Place>(place: P) {
    const TOKEN: &str = "a-token-of-16-characters";
    let budget = BodyBudget::new(1000);
    let layer = IdempotencyLayer::new(place.inbox(), "payments").unwrap();
    let layer = layer.body_budget(budget.clone());
    let api = Api::builder(place.inbox())
        .token(Token::new(TOKEN).unwrap())
        .body_budget(budget.clone())
        .build();
    let app = Router::new()
        .route("/pay", post(|| async { "paid" }))
        .route_layer(layer)
        .merge(api.router())
        .merge(github(&place, &budget).into_router());
    let site = Site::serve(app).await;
    let pay = async |key: &str, bytes: usize| site.with_key("/pay", key, &" ".repeat(bytes)).await;
    let store = async |id: &str, bytes: usize| {
        let headers = [
            ("authorization", &*format!("Bearer {TOKEN}")),
            ("content-type", "application/json"),
        ];
        let message = format!(r#"{{"handler":"h","id":"{id}","kind":"k"}}"#);
        let body = format!("{message:bytes$}");
        site.post("/v1/messages", &headers, body).await
    };
    let webhook = async |id: &str, bytes: usize| {
        let body = format!("{:bytes$}", "{}");
        deliver(&site, id, body).await
    };
    // Never more than half.
    for answer in [
        pay("a", 501).await,
        store("a", 501).await,
        webhook("a", 501).await,
    ] {
        assert_eq!(answer.status, 413, "{answer:?}");
    }
    let told = |answer: &Answer| {
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        (answer.status.as_u16(), answer.problem())
    };
    let no_room = (503, "no-room".to_owned());
    let signature = format!("x-hub-signature-256: sha256={NOBODYS}");
    let slow = begin(&site, "/github", &signature, 490, 400).await;
    until(async || budget.held() == 400).await;
    assert_eq!(told(&pay("b", 301).await), no_room);
    assert_eq!(told(&store("b", 301).await), no_room);
    assert_eq!(told(&webhook("b", 301).await), no_room);
    assert_eq!(pay("b", 300).await.text(), "paid");
    assert_eq!(store("b", 300).await.status, 201);
    assert_eq!(webhook("b", 300).await.status, 202);
    drop(slow);
    until(async || budget.held() == 0).await;
    assert_eq!(pay("c", 500).await.text(), "paid");
    assert_eq!(store("c", 500).await.status, 201);
    assert_eq!(webhook("c", 500).await.status, 202);
    assert_eq!(budget.held(), 0);
}

async fn a_body_counts_until_its_request_is_answered<P: Place>(place: P) {
    let budget = BodyBudget::new(1000);
    let (inside, seen) = (budget.clone(), budget.clone());
    let handler = move |body: String| async move { format!("{} {}", body.len(), inside.held()) };
    let layer = IdempotencyLayer::new(place.inbox(), "payments").unwrap();
    let layer = layer.body_budget(budget);
    let app = Router::new().route("/pay", post(handler)).layer(layer);
    let site = Site::serve(app).await;
    // In pieces, whose number of bytes is not announced.
    let pieces = vec![Ok::<_, std::convert::Infallible>(vec![b'x'; 100]); 4];
    let pieces = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let answer = site.post("/pay", &[("idempotency-key", "k")], pieces).await;
    assert_eq!(answer.text(), "400 400");
    until(async || seen.held() == 0).await;
    let pieces = vec![Ok::<_, std::convert::Infallible>(vec![b'x'; 100]); 6];
    let pieces = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let answer = site.post("/pay", &[("idempotency-key", "l")], pieces).await;
    assert_eq!(answer.status, 413);
    until(async || seen.held() == 0).await;
}

/// Its request is answered before, where the store is away.
async fn a_webhook_counts_until_it_is_stored<P: Place>(place: P) {
    const EVENTS: &str = "a-token-of-16-characters";
    let budget = BodyBudget::new(20_000);
    let store = Away::new(place.inbox());
    let github = Provider::github([SECRET]).unwrap();
    let events = Provider::cloud_events([EVENTS]).unwrap();
    let receiver = WebhookReceiver::new(store.clone())
        .body_budget(budget.clone())
        .answer_timeout(Duration::from_millis(50))
        .endpoint("/github", Endpoint::new(github, ["ci", "audit"]).unwrap())
        .unwrap()
        .endpoint("/events", Endpoint::new(events, ["h"]).unwrap())
        .unwrap();
    let site = Site::serve(receiver.into_router()).await;
    store.set(true);
    let filling = "x".repeat(2_000);
    let event = |id: &str| {
        serde_json::json!({
            "specversion": "1.0", "id": id, "source": "/s", "type": "t", "data": filling,
        })
    };
    let batch = serde_json::json!([event("1"), event("2")]).to_string();
    let size = batch.len();
    let headers = [
        ("authorization", &*format!("Bearer {EVENTS}")),
        ("content-type", "application/cloudevents-batch+json"),
    ];
    let answer = site.post("/events", &headers, batch).await;
    assert_eq!(answer.problem(), "store-unavailable");
    assert_eq!(budget.held(), size);
    let mut waiting = 0;
    loop {
        let body = format!("\"{}\"", "x".repeat(998));
        let answer = deliver(&site, &waiting.to_string(), body).await;
        assert_eq!(answer.status, 503);
        match answer.problem().as_str() {
            "store-unavailable" => waiting += 1,
            code => {
                assert_eq!(code, "no-room");
                break;
            }
        }
        assert_eq!(budget.held(), size + waiting * 1_000);
        assert!(budget.held() <= 20_000);
    }
    assert!(waiting > 5, "{waiting}");
    store.set(false);
    until(async || budget.held() == 0).await;
    assert_eq!(place.messages().await.len(), 2 + 2 * waiting);
    // It may take longer to store than an answer may.
    until(async || {
        let answer = deliver(&site, "after", "{}".into()).await;
        answer.status.is_success()
    })
    .await;
}
