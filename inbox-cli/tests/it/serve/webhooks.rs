//! Webhooks, from a signature to what is done for them.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha1::Sha1;
use sha2::{Sha256, Sha512};

use crate::{
    serve::service::{Service, on_both_stores},
    support::{Place, lines, wait_for},
};

const SECRET: &str = "a-secret-of-github";
const OLD: &str = "an-older-secret";

/// As a provider signs, with the hash that is in `M`.
fn mac<M: Mac + KeyInit>(secret: impl AsRef<[u8]>, text: &str) -> Vec<u8> {
    let mac = <M as KeyInit>::new_from_slice(secret.as_ref()).unwrap();
    mac.chain_update(text).finalize().into_bytes().to_vec()
}

fn hex_of(secret: &str, text: &str) -> String {
    hex::encode(mac::<Hmac<Sha256>>(secret, text))
}

fn sign(secret: &str, body: &str) -> String {
    format!("sha256={}", hex_of(secret, body))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// The answer to a webhook.
async fn send(
    service: &Service,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> reqwest::Response {
    let mut request = service.request(reqwest::Method::POST, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.to_owned()).send().await.unwrap()
}

/// The status of what GitHub would send.
async fn deliver(service: &Service, id: &str, body: &str, signature: &str) -> u16 {
    let request = service.request(reqwest::Method::POST, "/webhooks/github");
    let request = request
        .header("content-type", "application/json")
        .header("x-github-delivery", id)
        .header("x-github-event", "push")
        .header("x-hub-signature-256", signature)
        .body(body.to_owned());
    request.send().await.unwrap().status().as_u16()
}

#[test]
fn a_webhook_is_verified_stored_and_handled_once_for_each_handler() {
    on_both_stores(async |place: &Place| {
        place.file("secret", SECRET);
        place.file("old", OLD);
        place.file(
            "inbox.toml",
            r#"
            [[webhooks]]
            path = "/webhooks/github"
            provider = "github"
            secrets = [{ file = "secret" }, { file = "old" }]
            handlers = ["billing", "notify"]
            ordering = "/repository/id"

            [[handlers]]
            name = "billing"
            command = ["sh", "-c", "cat >> billing; echo $INBOX_KIND/$INBOX_ORDERING_KEY >> kinds"]

            [[handlers]]
            name = "notify"
            command = ["sh", "-c", "echo $INBOX_ID >> notify"]
            "#,
        );
        let service = Service::start(place, &["--config", "inbox.toml"]);
        let body = r#"{"repository":{"id":7},"n":1}"#;
        assert_eq!(
            deliver(&service, "d1", body, &sign(SECRET, body)).await,
            202
        );
        assert_eq!(
            deliver(&service, "d1", body, &sign(SECRET, body)).await,
            200
        );
        assert_eq!(deliver(&service, "d2", body, &sign(OLD, body)).await, 202);
        for wrong in [sign("another", body), sign(SECRET, "{}"), String::new()] {
            assert_eq!(deliver(&service, "d3", body, &wrong).await, 401);
        }
        wait_for("the handlers", || {
            lines(&place.path("notify")).len() == 2 && lines(&place.path("kinds")).len() == 2
        });
        assert_eq!(place.read("billing"), body.repeat(2));
        assert_eq!(lines(&place.path("kinds")), ["push/7", "push/7"]);
        assert_eq!(lines(&place.path("notify")), ["d1", "d2"]);
        let said = service.said();
        assert!(said.contains("webhooks of github at /webhooks/github, for `billing`, `notify`"));
        assert!(
            !said.contains(SECRET) && !said.contains("repository"),
            "{said}"
        );
        // The API was not configured.
        assert_eq!(service.post("/v1/claim", &json!({})).await.0, 404);
    });
}

#[tokio::test]
async fn a_webhook_needs_no_file() {
    let place = Place::new();
    let arguments = [
        "--webhook",
        "/webhooks/github",
        "--provider",
        "github",
        // Any variable will do.
        "--secret-env",
        "INBOX_TEST_TOKEN",
        "--",
        "sh",
        "-c",
        "cat >> handled",
    ];
    let service = Service::start(&place, &arguments);
    let signature = sign(super::service::TOKEN, "{}");
    assert_eq!(deliver(&service, "d1", "{}", &signature).await, 202);
    wait_for("the handler", || place.read("handled") == "{}");
}

const CONFIGURATION: &str = r#"
[api]
tokens = [{ env = "INBOX_TEST_TOKEN" }]

[[webhooks]]
path = "/stripe"
provider = "stripe"
secrets = [{ file = "secret" }]
handlers = ["h"]
tolerance = "1h"

[[webhooks]]
path = "/strict"
provider = "stripe"
secrets = [{ file = "secret" }]
handlers = ["h"]

[[webhooks]]
path = "/slack"
provider = "slack"
secrets = [{ file = "secret" }]
handlers = ["h"]

[[webhooks]]
path = "/shopify"
provider = "shopify"
secrets = [{ file = "secret" }]
handlers = ["h"]

[[webhooks]]
path = "/twilio"
provider = "twilio"
origin = "https://hooks.example.com"
secrets = [{ file = "secret" }]
handlers = ["h"]
ordering = "/To"

[[webhooks]]
path = "/standard"
provider = "standard-webhooks"
secrets = [{ file = "standard" }]
handlers = ["h"]

[[webhooks]]
path = "/cloudevents"
provider = "cloudevents"
secrets = [{ env = "INBOX_TEST_TOKEN" }]
handlers = ["h"]
ordering = "/partitionkey"

[[webhooks]]
path = "/own"
provider = "custom"
secrets = [{ file = "secret" }]
handlers = ["h"]
id_prefix = "own-"
tolerance = "1m"
[webhooks.custom]
header = "x-signature"
hash = "sha512"
encoding = "base64"
prefix = "v1,"
timestamp_header = "x-time"
signs = "{timestamp}|{body}"
id_field = "/meta/number"
kind = "own.event"
"#;

/// A path, the header with the signature and its value, more headers, and the body.
type Case<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str)], &'a str);

/// Each with its real signature, sent twice, and once with a wrong one.
#[test]
fn each_provider_is_received_once() {
    on_both_stores(async |place: &Place| {
        place.file("secret", SECRET);
        let key = "C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
        place.file("standard", format!("whsec_{key}"));
        place.file("inbox.toml", CONFIGURATION);
        let service = Service::start(place, &["--config", "inbox.toml"]);
        let now = now();
        let time = now.to_string();
        let json = ("content-type", "application/json");
        let form = ("content-type", "application/x-www-form-urlencoded");

        let charge = r#"{"id":"evt_1","type":"charge.succeeded"}"#;
        let stripe = |time: u64| {
            let signature = hex_of(SECRET, &format!("{time}.{charge}"));
            format!("t={time},v1={signature}")
        };
        // Within this path's tolerance, out of the usual one.
        let late = stripe(now - 1800);
        let event = r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}"#;
        let slack = format!("v0={}", hex_of(SECRET, &format!("v0:{time}:{event}")));
        let shopify = BASE64.encode(mac::<Hmac<Sha256>>(SECRET, "{}"));
        let call = "CallStatus=ringing&To=%2B1800";
        let called = "https://hooks.example.com/twilioCallStatusringingTo+1800";
        let twilio = BASE64.encode(mac::<Hmac<Sha1>>(SECRET, called));
        let signed =
            mac::<Hmac<Sha256>>(BASE64.decode(key).unwrap(), &format!("msg_1.{time}.{{}}"));
        let standard = format!("v1,{}", BASE64.encode(signed));
        let numbered = r#"{"meta":{"number":7}}"#;
        let signed = mac::<Hmac<Sha512>>(SECRET, &format!("{time}|{numbered}"));
        let own = format!("v1,{}", BASE64.encode(signed));

        let slack_time = ("x-slack-request-timestamp", time.as_str());
        let cases: [Case<'_>; 6] = [
            ("/stripe", "stripe-signature", &late, &[json], charge),
            (
                "/slack",
                "x-slack-signature",
                &slack,
                &[json, slack_time],
                event,
            ),
            (
                "/shopify",
                "x-shopify-hmac-sha256",
                &shopify,
                &[
                    json,
                    ("x-shopify-webhook-id", "w-1"),
                    ("x-shopify-event-id", "e-1"),
                    ("x-shopify-topic", "orders/create"),
                ],
                "{}",
            ),
            (
                "/twilio",
                "x-twilio-signature",
                &twilio,
                &[form, ("i-twilio-idempotency-token", "t-1")],
                call,
            ),
            (
                "/standard",
                "webhook-signature",
                &standard,
                &[json, ("webhook-id", "msg_1"), ("webhook-timestamp", &time)],
                "{}",
            ),
            (
                "/own",
                "x-signature",
                &own,
                &[json, ("x-time", &time)],
                numbered,
            ),
        ];
        for (path, header, signature, headers, body) in cases {
            let headers = |signature| [headers, &[(header, signature)]].concat();
            // Another one of the same form.
            let wrong = signature.replace(['a', 'b', 'c', 'd', 'e', 'f'], "0");
            assert_ne!(wrong, signature);
            for (signature, status) in [(&*wrong, 401), (signature, 202), (signature, 200)] {
                let answer = send(&service, path, &headers(signature), body).await;
                assert_eq!(answer.status(), status, "{path}");
            }
        }
        let cloud_event =
            r#"{"specversion":"1.0","id":"c-1","source":"/s","type":"t","partitionkey":"p"}"#;
        let structured = [("content-type", "application/cloudevents+json")];
        for status in [202, 200] {
            let answer = send(&service, "/cloudevents", &structured, cloud_event).await;
            assert_eq!(answer.status(), status);
        }
        let headers = [json, ("stripe-signature", late.as_str())];
        let refused = send(&service, "/strict", &headers, charge).await;
        assert_eq!(refused.status(), 401);

        let claimed = service.claim(100, 0).await;
        let mut kinds: Vec<_> = claimed
            .iter()
            .map(|m| m["kind"].as_str().unwrap())
            .collect();
        kinds.sort_unstable();
        let expected = [
            "app_mention",
            "charge.succeeded",
            "orders/create",
            "own.event",
            "ringing",
            "t",
            "webhook",
        ];
        assert_eq!(kinds, expected);
        let of_kind = |kind: &str| claimed.iter().find(|m| m["kind"] == kind).unwrap();
        assert_eq!(of_kind("own.event")["id"], "own-7");
        assert_eq!(of_kind("orders/create")["id"], "e-1/orders/create");
        assert_eq!(of_kind("t")["ordering_key"], "p");
        assert_eq!(of_kind("ringing")["ordering_key"], "+1800");
    });
}

#[test]
fn what_would_be_lost_or_out_of_order_is_refused_beforehand() {
    let place = Place::new();
    place.file("secret", SECRET);
    let own = |path: &str, more: &str| {
        format!(
            "[[webhooks]]\npath = \"{path}\"\nprovider = \"custom\"\nsecrets = [{{ file = \"secret\" }}]\n\
             handlers = [\"h\"]\n{more}[webhooks.custom]\nheader = \"x\"\nid_field = \"number\"\n"
        )
    };
    let event = |ordering: &str| {
        format!(
            "[[webhooks]]\npath = \"/e\"\nprovider = \"cloudevents\"\n\
             secrets = [{{ file = \"secret\" }}]\nordering = \"{ordering}\"\n"
        )
    };
    for (configuration, refusal) in [
        (
            own("/orders", "") + &own("/invoices", ""),
            Some("webhooks[1].id_prefix: `h` gets what comes to /orders too"),
        ),
        (
            own("/orders", "") + &own("/invoices", "id_prefix = \"i\"\n"),
            None,
        ),
        (
            event("/data/order"),
            Some("webhooks[0].ordering: expected the name of an attribute"),
        ),
        (event("partitionkey"), None),
    ] {
        place.file("inbox.toml", &configuration);
        let output = place
            .command(&["serve", "--config", "inbox.toml", "--check"])
            .output();
        let output = crate::support::finish(output.unwrap());
        match refusal {
            Some(refusal) => output.exits(2).complains(refusal),
            None => output.exits(0),
        };
    }
}

#[test]
fn webhooks_wait_while_the_backlog_is_over_its_limit() {
    on_both_stores(async |place: &Place| {
        place.file("secret", SECRET);
        place.file(
            "inbox.toml",
            r#"
            backlog_limit = 1
            [api]
            tokens = [{ env = "INBOX_TEST_TOKEN" }]
            [[webhooks]]
            path = "/webhooks/github"
            provider = "github"
            secrets = [{ file = "secret" }]
            handlers = ["h"]
            "#,
        );
        let service = Service::start(place, &["--config", "inbox.toml"]);
        let mut stored = 0;
        let refused = loop {
            let id = format!("d{stored}");
            let signature = sign(SECRET, "{}");
            let headers = [
                ("content-type", "application/json"),
                ("x-github-delivery", id.as_str()),
                ("x-github-event", "push"),
                ("x-hub-signature-256", signature.as_str()),
            ];
            let answer = send(&service, "/webhooks/github", &headers, "{}").await;
            if answer.status() != 202 {
                break answer;
            }
            stored += 1;
            // Its look at the backlog is once a second.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        };
        assert_eq!(refused.status(), 503);
        assert!(refused.headers().contains_key("retry-after"));
        assert!(refused.text().await.unwrap().contains("backlog-full"));
        // No new message comes in by the API either; what makes the backlog smaller is served.
        let message = serde_json::json!({"handler": "h", "id": "api", "kind": "k"});
        let (status, problem) = service.post("/v1/messages", &message).await;
        assert_eq!(status, 503);
        assert_eq!(problem["code"], "backlog-full", "{problem}");
        let claimed = service.claim(100, 0).await;
        assert_eq!(claimed.len(), stored, "what was refused is not stored");
        assert!(stored > 1);
        for message in &claimed {
            service.settle(message, "processed").await;
        }
        wait_for_a_webhook(&service).await;
        let (status, _) = service.post("/v1/messages", &message).await;
        assert_eq!(status, 201);
    });
}

/// Until the gate is open again.
async fn wait_for_a_webhook(service: &Service) {
    let signature = sign(SECRET, "{}");
    let taken = async {
        while deliver(service, "later", "{}", &signature).await != 202 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let taken = tokio::time::timeout(std::time::Duration::from_secs(60), taken).await;
    assert!(taken.is_ok(), "{}", service.said());
}
