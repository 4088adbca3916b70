//! What is stored, and what is refused.

use std::{sync::atomic::Ordering, time::Duration};

use axum::Router;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{HeaderName, Method};
use inbox::{BacklogGate, HandlerName, Kind, Message, MessageId, StoreExt as _};
use inbox_http::{
    Endpoint, Provider, WebhookReceiver,
    webhooks::{Part, Signature},
};

use super::{base64_signature, hex_signature, sign};
use crate::{
    logged::Log,
    places::{Away, Place, in_memory, on_each_store},
    server::{Answer, Site, seconds_now, until},
};

on_each_store!(
    an_event_is_stored_once_for_each_handler,
    nothing_is_stored_of_what_is_refused,
    secrets_are_changed_without_a_gap,
    every_provider_is_taken,
    ids_that_are_long_numbers_are_apart,
    twilio_signs_the_whole_address_of_a_nested_endpoint,
    while_the_gate_is_shut_nothing_comes_in,
    a_store_that_is_away_is_said_to_be,
    requests_at_the_same_time_are_stored_together,
);

const SECRET: &str = "It's a Secret to Everybody";

fn github() -> Endpoint {
    let provider = Provider::github([SECRET]).unwrap();
    Endpoint::new(provider, ["ci", "audit"]).unwrap()
}

fn receiver<P: Place>(place: &P) -> WebhookReceiver {
    WebhookReceiver::new(place.inbox())
        .endpoint("/github", github())
        .unwrap()
}

async fn deliver(site: &Site, secret: &str, id: &str, body: &str) -> Answer {
    let signature = format!("sha256={}", hex_signature(secret, body));
    let headers = [
        ("content-type", "application/json"),
        ("x-hub-signature-256", &signature),
        ("x-github-delivery", id),
        ("x-github-event", "push"),
        ("traceparent", "00-1-2-01"),
    ];
    site.post("/github", &headers, body.to_owned()).await
}

async fn an_event_is_stored_once_for_each_handler<P: Place>(place: P) {
    let ordered = github().ordering_field("/repository/id");
    let receiver = WebhookReceiver::new(place.inbox())
        .endpoint("/github", ordered)
        .unwrap();
    let site = Site::serve(receiver.into_router()).await;
    let body = r#"{"repository": {"id": 7}}"#;
    assert_eq!(deliver(&site, SECRET, "d-1", body).await.status, 202);
    assert_eq!(deliver(&site, SECRET, "d-1", body).await.status, 200);
    let messages = place.messages().await;
    let keys: Vec<String> = messages
        .iter()
        .map(|message| message.key.to_string())
        .collect();
    assert_eq!(keys, ["ci/d-1", "audit/d-1"]);
    for message in &messages {
        assert_eq!(message.kind.as_str(), "push");
        assert_eq!(message.payload.as_deref(), Some(body.as_bytes()));
        assert_eq!(message.ordering_key.as_ref().unwrap().as_str(), "7");
        assert_eq!(
            message.content_type.as_ref().unwrap().as_str(),
            "application/json"
        );
        assert_eq!(message.headers.get("traceparent"), Some("00-1-2-01"));
    }
}

async fn nothing_is_stored_of_what_is_refused<P: Place>(place: P) {
    let serve = async |receiver: WebhookReceiver| {
        let service = receiver.body_limit(1000).into_service();
        Site::serve(Router::new().fallback_service(service)).await
    };
    let site = serve(receiver(&place)).await;
    let body = "{}";
    let signature = format!("sha256={}", hex_signature(SECRET, body));
    let json = ("content-type", "application/json");
    let signed = ("x-hub-signature-256", signature.as_str());
    let (id, event) = (("x-github-delivery", "1"), ("x-github-event", "push"));
    let all = [json, signed, id, event];
    let wrong = ("x-hub-signature-256", "sha256=00");
    let sha1 = ("x-hub-signature", signature.as_str());
    let long = "x".repeat(1001);
    let unsigned = [json, id, event];
    let text = [("content-type", "text/xml"), signed, id, event];
    let huge_id = "x".repeat(256);
    let huge = [json, signed, ("x-github-delivery", &huge_id), event];
    let pieces = vec![Ok::<_, std::convert::Infallible>(vec![b'x'; 100]); 11];
    let in_pieces = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let refused = [
        (
            404,
            "unknown-endpoint",
            site.post("/gitlab", &all, body).await,
        ),
        (
            405,
            "method-not-allowed",
            site.send(Method::PUT, "/github", &all, body).await,
        ),
        (
            415,
            "wrong-content-type",
            site.post("/github", &text, body).await,
        ),
        (
            415,
            "wrong-content-type",
            site.post("/github", &[signed, id, event], body).await,
        ),
        (413, "too-large", site.post("/github", &all, long).await),
        (
            413,
            "too-large",
            site.post("/github", &all, in_pieces).await,
        ),
        (
            401,
            "signature-missing",
            site.post("/github", &unsigned, body).await,
        ),
        (
            401,
            "signature-missing",
            site.post("/github", &[json, sha1, id, event], body).await,
        ),
        (
            401,
            "signature-missing",
            site.post("/github", &[json, signed, signed, id, event], body)
                .await,
        ),
        (
            401,
            "wrong-signature",
            site.post("/github", &[json, wrong, id, event], body).await,
        ),
        (
            401,
            "wrong-signature",
            site.post("/github", &all, "{ }").await,
        ),
        (
            422,
            "not-an-event",
            site.post("/github", &[json, signed, event], body).await,
        ),
        (422, "not-an-event", site.post("/github", &huge, body).await),
    ];
    for (status, code, answer) in refused {
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_str()),
            (status, code)
        );
        match status {
            401 => assert_eq!(answer.header("www-authenticate"), Some("Signature")),
            405 => assert_eq!(answer.header("allow"), Some("POST")),
            _ => {}
        }
    }
    let slow = format!(
        "POST /github HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         x-hub-signature-256: {signature}\r\ncontent-length: 5\r\n\r\nabc"
    );
    // Too short a time for what is sent whole.
    let hasty = receiver(&place).read_timeout(Duration::from_millis(50));
    let slow = serve(hasty).await.raw(slow.as_bytes()).await;
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    assert!(slow.contains("too-slow"), "{slow}");
    assert!(place.messages().await.is_empty());
    assert_eq!(site.post("/github", &all, body).await.status, 202);
}

async fn secrets_are_changed_without_a_gap<P: Place>(place: P) {
    let with = |secrets: &[&str]| {
        let provider = Provider::github(secrets).unwrap();
        let endpoint = Endpoint::new(provider, ["ci"]).unwrap();
        WebhookReceiver::new(place.inbox())
            .endpoint("/github", endpoint)
            .unwrap()
            .into_router()
    };
    let (before, between, after) = (with(&["old"]), with(&["new", "old"]), with(&["new"]));
    for (app, old, new) in [(before, 202, 401), (between, 200, 202), (after, 401, 200)] {
        let site = Site::serve(app).await;
        assert_eq!(deliver(&site, "old", "1", "{}").await.status, old);
        assert_eq!(deliver(&site, "new", "2", "{}").await.status, new);
    }
}

async fn every_provider_is_taken<P: Place>(place: P) {
    let key = "C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let own = Signature::sha512(HeaderName::from_static("x-signature"))
        .timestamp_header(HeaderName::from_static("x-time"))
        .over([Part::Timestamp, Part::Body])
        .tolerance(Duration::from_secs(30))
        .secrets(["own"])
        .unwrap();
    let own = Provider::new("own", own)
        .id_field("/meta/number")
        .with_kind("own.event");
    let providers = [
        (
            "/standard",
            Provider::standard_webhooks([format!("whsec_{key}")]).unwrap(),
        ),
        ("/stripe", Provider::stripe([SECRET]).unwrap()),
        ("/slack", Provider::slack([SECRET]).unwrap()),
        ("/shopify", Provider::shopify([SECRET]).unwrap()),
        ("/own", own),
    ];
    let mut receiver = WebhookReceiver::new(place.inbox());
    for (path, provider) in providers {
        let endpoint = Endpoint::new(provider, [&path[1..]]).unwrap();
        receiver = receiver.endpoint(path, endpoint).unwrap();
    }
    let site = Site::serve(receiver.into_router()).await;
    let json = ("content-type", "application/json");
    let now = seconds_now().to_string();
    let long_ago = (seconds_now() - 301).to_string();

    let body = r#"{"id":"evt_1","type":"charge.succeeded"}"#;
    let stripe = |time: &str| {
        format!(
            "t={time},v1={}",
            hex_signature(SECRET, &format!("{time}.{body}"))
        )
    };
    let answer = site
        .post(
            "/stripe",
            &[json, ("stripe-signature", &stripe(&now))],
            body,
        )
        .await;
    assert_eq!(answer.status, 202);
    let late = site
        .post(
            "/stripe",
            &[json, ("stripe-signature", &stripe(&long_ago))],
            body,
        )
        .await;
    assert_eq!(
        (late.status.as_u16(), late.problem().as_str()),
        (401, "out-of-time")
    );

    let webhook = standardwebhooks::Webhook::new(key).unwrap();
    let signature = webhook.sign("msg_1", now.parse().unwrap(), b"{}").unwrap();
    let headers = [
        json,
        ("webhook-id", "msg_1"),
        ("webhook-timestamp", now.as_str()),
        ("webhook-signature", signature.as_str()),
    ];
    assert_eq!(site.post("/standard", &headers, "{}").await.status, 202);

    let slack = async |body: &str, content_type: &str| {
        let signature = format!("v0={}", hex_signature(SECRET, &format!("v0:{now}:{body}")));
        let headers = [
            ("content-type", content_type),
            ("x-slack-request-timestamp", now.as_str()),
            ("x-slack-signature", signature.as_str()),
        ];
        site.post("/slack", &headers, body.to_owned()).await
    };
    let event = r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}"#;
    assert_eq!(slack(event, "application/json").await.status, 202);
    let form = "command=%2Fdeploy&trigger_id=1.2.3";
    assert_eq!(
        slack(form, "application/x-www-form-urlencoded")
            .await
            .status,
        202
    );
    let check = r#"{"type":"url_verification","challenge":"3eZbrw1a"}"#;
    let answer = slack(check, "application/json").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "3eZbrw1a"));

    let headers = [
        json,
        ("x-shopify-hmac-sha256", &base64_signature(SECRET, "{}")),
        ("x-shopify-webhook-id", "w-1"),
        ("x-shopify-topic", "orders/create"),
        ("x-shopify-shop-domain", "a.myshopify.com"),
    ];
    assert_eq!(site.post("/shopify", &headers, "{}").await.status, 202);

    let body = r#"{"meta":{"number":7}}"#;
    let mac = <hmac::Hmac<sha2::Sha512> as hmac::KeyInit>::new_from_slice(b"own").unwrap();
    let signature = hmac::Mac::chain_update(mac, format!("{now}{body}"));
    let signature = hex::encode(hmac::Mac::finalize(signature).into_bytes());
    let headers = [
        json,
        ("x-time", now.as_str()),
        ("x-signature", signature.as_str()),
    ];
    assert_eq!(site.post("/own", &headers, body).await.status, 202);

    let messages = place.messages().await;
    let shown = messages
        .iter()
        .map(|message| format!("{} {}", message.key, message.kind));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            "stripe/evt_1 charge.succeeded",
            "standard/msg_1 webhook",
            "slack/Ev1 app_mention",
            "slack/1.2.3 /deploy",
            "shopify/w-1 orders/create",
            "own/7 own.event",
        ]
    );
    assert_eq!(
        messages[4].headers.get("x-shopify-shop-domain"),
        Some("a.myshopify.com")
    );
}

async fn ids_that_are_long_numbers_are_apart<P: Place>(place: P) {
    let endpoint = Endpoint::new(Provider::stripe([SECRET]).unwrap(), ["h"]).unwrap();
    let receiver = WebhookReceiver::new(place.inbox());
    let receiver = receiver
        .endpoint("/", endpoint.ordering_field("of"))
        .unwrap();
    let site = Site::serve(receiver.into_router()).await;
    let now = seconds_now();
    for id in ["12345678901234567890123", "12345678901234567890124", "7"] {
        let body = format!(r#"{{"id":{id},"type":"t","of":{id}}}"#);
        let signature = hex_signature(SECRET, &format!("{now}.{body}"));
        let headers = [
            ("content-type", "application/json"),
            ("stripe-signature", &format!("t={now},v1={signature}")),
        ];
        for status in [202, 200] {
            let answer = site.post("/", &headers, body.clone()).await;
            assert_eq!(answer.status, status, "{id}");
        }
        let messages = place.messages().await;
        let message = messages.last().unwrap();
        assert_eq!(message.key.id.as_str(), id);
        assert_eq!(message.ordering_key.as_ref().unwrap().as_str(), id);
    }
}

async fn twilio_signs_the_whole_address_of_a_nested_endpoint<P: Place>(place: P) {
    let receiver = || {
        let provider = Provider::twilio([SECRET], "https://hooks.example.com").unwrap();
        let endpoint = Endpoint::new(provider, ["calls"]).unwrap();
        let receiver = WebhookReceiver::new(place.inbox());
        receiver.endpoint("/twilio", endpoint).unwrap()
    };
    let app = Router::new()
        .nest("/hooks", receiver().into_router())
        .nest_service("/service", receiver().into_service());
    let site = Site::serve(app).await;
    for prefix in ["/hooks", "/service", ""] {
        let signed = format!("https://hooks.example.com{prefix}/twilio?a=1From{prefix}");
        let mac = <hmac::Hmac<sha1::Sha1> as hmac::KeyInit>::new_from_slice(SECRET.as_bytes());
        let mac = hmac::Mac::chain_update(mac.unwrap(), signed);
        let signature = BASE64.encode(hmac::Mac::finalize(mac).into_bytes());
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-twilio-signature", &signature),
        ];
        let sent = if prefix.is_empty() { "/hooks" } else { prefix };
        let answer = site
            .post(
                &format!("{sent}/twilio?a=1"),
                &headers,
                format!("From={prefix}"),
            )
            .await;
        let expected = if prefix.is_empty() { 401 } else { 202 };
        assert_eq!(answer.status, expected, "{prefix}");
    }
}

async fn while_the_gate_is_shut_nothing_comes_in<P: Place>(place: P) {
    let interval = Duration::from_millis(5);
    let gate = BacklogGate::builder(place.inbox(), 0)
        .interval(interval)
        .build()
        .unwrap();
    let site = Site::serve(receiver(&place).backlog_gate(gate.clone()).into_router()).await;
    let waiting = Message::new(
        HandlerName::new("ci").unwrap(),
        MessageId::new("waits").unwrap(),
        Kind::new("k").unwrap(),
        "",
    );
    let _ = place.store().receive_one(&waiting).await.unwrap();
    until(async || !gate.is_open()).await;
    let refused = deliver(&site, SECRET, "1", "{}").await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (503, "backlog-full")
    );
    assert!(refused.header("retry-after").is_some());
    assert_eq!(place.messages().await.len(), 1);
    use inbox::Operate as _;
    let _ = place.store().discard(waiting.key()).await.unwrap();
    until(async || gate.is_open()).await;
    assert_eq!(deliver(&site, SECRET, "1", "{}").await.status, 202);
}

async fn a_store_that_is_away_is_said_to_be<P: Place>(place: P) {
    let store = Away::new(place.inbox());
    let receiver = WebhookReceiver::new(store.clone())
        .endpoint("/github", github())
        .unwrap()
        .answer_timeout(Duration::from_millis(100));
    let site = Site::serve(receiver.into_router()).await;
    store.set(true);
    let refused = deliver(&site, SECRET, "1", "{}").await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (503, "store-unavailable")
    );
    assert!(refused.header("retry-after").is_some());
    store.set(false);
    // Perhaps it was stored in the meantime: then it is a duplicate.
    until(async || deliver(&site, SECRET, "1", "{}").await.status.is_success()).await;
    assert_eq!(place.messages().await.len(), 2);
}

async fn requests_at_the_same_time_are_stored_together<P: Place>(place: P) {
    let store = Away::new(place.inbox());
    let receiver = WebhookReceiver::new(store.clone())
        .endpoint("/github", github())
        .unwrap()
        .answer_timeout(Duration::from_secs(60));
    let site = Site::serve(receiver.into_router()).await;
    let ids: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let answers = ids.iter().map(|id| deliver(&site, SECRET, id, "{}"));
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.status, 202);
    }
    assert_eq!(place.messages().await.len(), 400);
    let receives = store.receives.load(Ordering::SeqCst);
    assert!(receives < 200, "{receives} calls for 200 requests");
}

#[tokio::test]
async fn what_cannot_be_an_endpoint_is_refused() {
    let receiver = WebhookReceiver::new(in_memory().await);
    for path in [
        "", "a", "/a/{b}", "/a?b", "/*a", "/a\n", "/:a", "/a/:b", "/a b",
    ] {
        assert!(receiver.clone().endpoint(path, github()).is_err(), "{path}");
    }
    // Whatever is taken can be routed.
    for path in ["/", "/a/", "//", "/a:b", "/a/b:", "/%20", "/a.b~c-d_e"] {
        let one = receiver.clone().endpoint(path, github()).unwrap();
        let _: Router = one.into_router();
    }
    let receiver = receiver.endpoint("/a", github()).unwrap();
    assert!(receiver.endpoint("/a", github()).is_err());
    let provider = || Provider::github([SECRET]).unwrap();
    let none: [&str; 0] = [];
    assert!(Endpoint::new(provider(), none).is_err());
    assert!(Endpoint::new(provider(), ["a\n"]).is_err());
    let header = || Signature::sha256(HeaderName::from_static("x"));
    // A time that is not signed could be any time.
    assert!(
        header()
            .timestamp_header(HeaderName::from_static("y"))
            .secrets(["a"])
            .is_err()
    );
    assert!(
        header()
            .over([Part::Timestamp, Part::Body])
            .secrets(["a"])
            .is_err()
    );
    assert!(header().over([Part::Text("a")]).secrets(["a"]).is_err());
}

/// In one thread, whose logs are all here, at their most talkative.
#[tokio::test]
async fn neither_secrets_nor_payloads_are_logged() {
    let (log, _guard) = Log::of(tracing::Level::TRACE);
    let receiver = WebhookReceiver::new(in_memory().await)
        .endpoint("/github", github())
        .unwrap();
    assert!(!format!("{receiver:?}").contains(SECRET));
    let site = Site::serve(receiver.into_router()).await;
    let body = r#"{"card":"4242-4242"}"#;
    assert_eq!(deliver(&site, SECRET, "1", body).await.status, 202);
    assert_eq!(deliver(&site, "wrong", "2", body).await.status, 401);
    assert_eq!(
        deliver(&site, SECRET, &"x".repeat(300), body).await.status,
        422
    );
    let logged = log.lines(&["inbox"]);
    let refusals = log.lines(&["webhook refused"]);
    assert_eq!(refusals.len(), 2, "{logged:#?}");
    let signature = hex::encode(sign(SECRET, body));
    let secrets = [SECRET, "4242-4242", &signature];
    for line in logged {
        for secret in secrets {
            assert!(!line.contains(secret), "{line}");
        }
    }
}
