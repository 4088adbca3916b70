//! The description against the routes: what they take and answer is what it says.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode, header},
};
use jsonschema::Validator;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::api::{Api, Token, routes};

const TOKEN: &str = "a-token-of-16-characters";

async fn api() -> Router {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    let token = Token::new(TOKEN).unwrap();
    Api::builder(store).token(token).build().router()
}

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// The schema at this place of the description, which its own references are resolved in.
fn schema(pointer: &str) -> Validator {
    let mut root = document();
    assert!(root.pointer(pointer).is_some(), "no {pointer}");
    root["$ref"] = format!("#{pointer}").into();
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    jsonschema::validator_for(&root).unwrap()
}

#[track_caller]
fn conforms(pointer: &str, value: &Value) {
    if let Err(error) = schema(pointer).validate(value) {
        panic!("{pointer}: {error} in {value}");
    }
}

async fn send(router: &Router, method: Method, path: &str, body: String) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let value = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).unwrap()
    };
    (status, value)
}

/// Sends a request that the description allows, and returns an answer that it allows.
async fn post(router: &Router, path: &str, body: Value) -> Value {
    let place = format!("/paths/{}/post", path.replace('/', "~1"));
    let asked = format!("{place}/requestBody/content/application~1json/schema");
    conforms(&asked, &body);
    let (status, answer) = send(router, Method::POST, path, body.to_string()).await;
    let code = status.as_u16();
    let answered = format!("{place}/responses/{code}/content/application~1json/schema");
    conforms(&answered, &answer);
    answer
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut routes: Vec<_> = routes().iter().map(|(path, _)| *path).collect();
    routes.push(PATH);
    routes.sort_unstable();
    let mut described: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    described.sort_unstable();
    assert_eq!(routes, described);
}

#[test]
fn every_schema_is_sound() {
    assert!(!schema("/components/schemas/Lease").is_valid(&json!({})));
    for name in document()["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
    {
        schema(&format!("/components/schemas/{name}"));
    }
}

#[tokio::test]
async fn the_life_of_messages_is_as_described() {
    let router = api().await;
    let message = |id: &str| json!({"handler": "h", "id": id, "kind": "k", "payload": {"n": 1}});
    let one = post(&router, "/v1/messages", message("1")).await;
    assert_eq!(one["status"], "accepted");
    let again = post(&router, "/v1/messages", message("1")).await;
    assert_eq!(again, json!({"status": "duplicate", "differs": false}));
    let mut other = message("1");
    other["payload"] = json!({"n": 2});
    let differing = json!({"status": "duplicate", "differs": true});
    assert_eq!(
        post(&router, "/v1/messages", other.clone()).await,
        differing
    );
    let batch = json!({"messages": [
        other,
        {"handler": "h", "id": "2", "kind": "k", "payload_base64": "AP8=", "content_type": "x/y",
            "headers": {"a": "b"}, "ordering_key": "o", "delay_seconds": 0.0},
        {"handler": "h", "id": "3", "kind": "k", "payload_base64": "?"},
    ]});
    let many = post(&router, "/v1/messages", batch).await;
    assert_eq!(many["receipts"][0], differing);
    assert_eq!(many["receipts"][1], json!({"status": "accepted"}));
    assert_eq!(many["receipts"][2]["problem"]["code"], "invalid");

    let claim = json!({"handlers": ["h"], "limit": 10, "worker": "w", "wait_seconds": 1});
    let claimed = post(&router, "/v1/claim", claim.clone()).await;
    let leases: Vec<_> = claimed["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["lease"])
        .collect();
    assert_eq!(leases.len(), 2);
    assert_eq!(claimed["messages"][1]["payload_base64"], "AP8=");
    let mut stale = leases[0].clone();
    stale["token"] = "1".into();
    let mut odd = stale.clone();
    odd["token"] = "99999999999999999999999".into();
    let extended = post(
        &router,
        "/v1/extend",
        json!({"leases": [leases[0], stale, odd]}),
    )
    .await;
    assert_eq!(extended["leases"][0]["status"], "extended");
    assert_eq!(extended["leases"][1]["status"], "lease_lost");
    assert_eq!(extended["leases"][2]["status"], "refused");
    let settlements = json!({"settlements": [
        {"lease": leases[0], "outcome": "processed", "result": [1, 2]},
        {"lease": leases[1], "outcome": "dead", "error": "no", "ordering_key": "block"},
        {"lease": stale, "outcome": "release"},
    ]});
    let settled = post(&router, "/v1/settle", settlements).await;
    assert_eq!(
        settled["settlements"][0],
        json!({"status": "done", "outcome": "processed"})
    );
    assert_eq!(settled["settlements"][1]["outcome"], "dead");
    assert_eq!(settled["settlements"][2]["status"], "lease_lost");
    let nothing = post(&router, "/v1/claim", json!({"handlers": ["h"]})).await;
    assert_eq!(nothing, json!({"messages": []}));
}

#[tokio::test]
async fn every_answer_of_begin_is_as_described() {
    let router = api().await;
    let begin = |id: &str| json!({"message": {"handler": "h", "id": id, "kind": "k"}});
    let run = post(&router, "/v1/begin", begin("1")).await;
    assert_eq!(run["status"], "run");
    let busy = post(&router, "/v1/begin", begin("1")).await;
    assert_eq!(busy["status"], "busy");
    let lease = &run["message"]["lease"];
    let settlement = json!({"lease": lease, "outcome": "processed", "result": {"receipt": 7}});
    post(&router, "/v1/settle", json!({"settlements": [settlement]})).await;
    let processed = post(&router, "/v1/begin", begin("1")).await;
    assert_eq!(
        processed,
        json!({"status": "processed", "result": {"receipt": 7}})
    );
    let other = post(&router, "/v1/begin", begin("2")).await;
    let settlement = json!({"lease": other["message"]["lease"], "outcome": "dead", "error": "bad"});
    post(&router, "/v1/settle", json!({"settlements": [settlement]})).await;
    let dead = post(&router, "/v1/begin", begin("2")).await;
    assert_eq!(dead, json!({"status": "dead", "reason": "bad"}));
}

#[tokio::test]
async fn problems_are_as_described() {
    let router = api().await;
    for (path, body, code, status) in [
        ("/v1/messages", "{", "malformed", 400),
        ("/v1/messages", "[]", "invalid", 422),
        (
            "/v1/messages",
            r#"{"handler":"h","id":"","kind":"k"}"#,
            "invalid",
            422,
        ),
        ("/v1/claim", r#"{"handlers":[]}"#, "invalid", 422),
        (
            "/v1/claim",
            r#"{"handlers":["h"],"wait_seconds":61}"#,
            "invalid",
            422,
        ),
        (
            "/v1/claim",
            r#"{"handlers":["h"],"limit":101}"#,
            "invalid",
            422,
        ),
        (
            "/v1/claim",
            r#"{"handlers":["h"],"lease_seconds":1e9}"#,
            "invalid",
            422,
        ),
        (
            "/v1/extend",
            r#"{"leases":[],"lease_seconds":0}"#,
            "invalid",
            422,
        ),
        ("/v1/settle", r#"{"settlements":[],"x":1}"#, "invalid", 422),
    ] {
        let (found, answer) = send(&router, Method::POST, path, body.to_owned()).await;
        assert_eq!(
            (found.as_u16(), &answer["code"]),
            (status, &json!(code)),
            "{body}: {answer}"
        );
        conforms("/components/schemas/Problem", &answer);
    }
    let many = json!({"messages": vec![json!({}); 1001]}).to_string();
    let (status, answer) = send(&router, Method::POST, "/v1/messages", many).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (413, &json!("too-large"))
    );
    let (status, answer) = send(&router, Method::GET, "/v1/claim", String::new()).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (405, &json!("method-not-allowed"))
    );
}
