//! The admin API, and whether its description tells of it what is so.

use axum::{Router, http::StatusCode};
use inbox::State;
use inbox_dashboard::dashboard;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::*;

struct Described {
    router: Router,
    document: Value,
}

impl Described {
    async fn new(router: Router) -> Self {
        let document = page(&router, "/api/openapi.json").await.json();
        Self { router, document }
    }

    /// The schema at this place, which its own references are resolved in.
    fn schema(&self, pointer: &str) -> Validator {
        let mut root = self.document.clone();
        assert!(root.pointer(pointer).is_some(), "no {pointer}");
        root["$ref"] = format!("#{pointer}").into();
        root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
        jsonschema::validator_for(&root).unwrap()
    }

    #[track_caller]
    fn conforms(&self, pointer: &str, value: &Value) {
        if let Err(error) = self.schema(pointer).validate(value) {
            panic!("{pointer}: {error} in {value}");
        }
    }

    fn operation(path: &str, method: &str) -> String {
        format!("/paths/{}/{method}", path.replace('/', "~1"))
    }

    /// Looks, and checks the answer, and that each parameter is one that is described.
    async fn get(&self, path: &str) -> Value {
        let answer = page(&self.router, path).await;
        let (bare, query) = path.split_once('?').unwrap_or((path, ""));
        let place = Self::operation(bare, "get");
        let parameters = self.document.pointer(&format!("{place}/parameters"));
        let names: Vec<_> = parameters
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|parameter| match parameter["$ref"].as_str() {
                Some(reference) => &self.document.pointer(&reference[1..]).unwrap()["name"],
                None => &parameter["name"],
            })
            .collect();
        for (name, _) in form_urlencoded::parse(query.as_bytes()) {
            assert!(names.iter().any(|own| **own == *name), "{path}: {name}");
        }
        let value = answer.json();
        self.conforms(
            &format!("{place}/responses/200/content/application~1json/schema"),
            &value,
        );
        value
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let place = Self::operation(path, "post");
        let content = "content/application~1json/schema";
        self.conforms(&format!("{place}/requestBody/{content}"), &body);
        let answer = post_json(&self.router, path, body).await;
        let status = answer.status.as_u16();
        let value = answer.json();
        self.conforms(&format!("{place}/responses/{status}/{content}"), &value);
        value
    }

    /// Something that neither the description nor the API takes.
    async fn refused(&self, path: &str, body: Value) -> Value {
        let place = Self::operation(path, "post");
        let answer = post_json(&self.router, path, body).await;
        assert!(answer.status.is_client_error(), "{}", answer.text());
        let problem = answer.json();
        let schema = "responses/default/content/application~1problem+json/schema";
        self.conforms(&format!("{place}/{schema}"), &problem);
        problem
    }
}

#[tokio::test]
async fn looking_is_as_described() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let api = Described::new(dashboard(store).into_router()).await;
    let statistics = api.get("/api/statistics").await;
    assert_eq!(statistics["handlers"][1]["dead"], 3);
    let some = api
        .get("/api/messages?state=dead&state=pending&limit=2&order=oldest")
        .await;
    assert_eq!(some["messages"][0]["id"], "dead-1");
    let next = some["next"].as_str().unwrap();
    let more = api
        .get(&format!("/api/messages?limit=2&order=oldest&after={next}"))
        .await;
    assert_eq!(more["messages"][0]["id"], "dead-2");
    for (filter, number) in [
        ("handler=mail", 5),
        ("id=dead-1&id=dead-2", 2),
        ("kind=order.placed", 7),
        ("ordering_key=customer-7", 2),
        ("correlation_id=x", 0),
        ("older_than=1h", 0),
        ("newer_than=1h", 7),
        ("finished_longer_ago=1h", 0),
        ("finished_within=1h", 4),
        ("due_later_than=0s&state=pending", 1),
        ("due_within=0s", 6),
        ("min_attempts=1", 5),
        ("blocking=false&min_attempts=1", 5),
        ("blocking=true", 1),
        ("error=exit", 2),
        ("error_type=smtp::Refused", 1),
        ("error_shape=exit+code+%23&state=dead", 2),
        ("no_error=true", 4),
    ] {
        let found = api.get(&format!("/api/messages?{filter}")).await;
        assert_eq!(
            found["messages"].as_array().unwrap().len(),
            number,
            "{filter}: {found}"
        );
    }
    let one = api.get("/api/message?handler=mail&id=dead-1").await;
    assert_eq!(one["payload"], r#"{"to":"ada"}"#);
    assert_eq!(one["history"][0]["end"], "dead");
    let dead = api.get("/api/dead?handler=mail").await;
    assert_eq!(dead["groups"][0]["messages"], 2);
    assert_eq!(dead["is_complete"], true);
    assert_eq!(
        api.get("/api/scheduled").await["groups"][0]["sample"],
        "mail/later-1"
    );
    assert_eq!(
        api.get("/api/keys").await["keys"][0]["ordering_key"],
        "customer-7"
    );
    assert_eq!(
        api.get("/api/workers").await["workers"][0]["worker"],
        "worker-2"
    );
    assert_eq!(
        page(&api.router, "/api/export?handler=mail")
            .await
            .text()
            .lines()
            .count(),
        5
    );
    let missing = look(&api.router, "/api/message?handler=mail&id=x").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(missing.headers["content-type"], "application/problem+json");
}

#[tokio::test]
async fn changing_is_as_described() {
    let store = memory().await;
    filled(store.as_ref()).await;
    let api = Described::new(dashboard(store.clone()).into_router()).await;
    let dry = api
        .post(
            "/api/replay",
            json!({"filter": {"handler": "mail"}, "dry_run": true}),
        )
        .await;
    assert_eq!(
        dry,
        json!({"dry_run": true, "matching": 3, "is_exact": true})
    );
    let group = json!({"filter": {"error_type": "smtp::Refused", "state": ["dead"]}});
    let change = api.post("/api/replay", group).await;
    assert_eq!(change["changed"], 1);
    assert_eq!(change["stands"], "done");
    let edited =
        json!({"handler": "mail", "id": "dead-2", "payload_base64": "AP8=", "headers": {"a": "b"}});
    assert_eq!(api.post("/api/edit", edited).await["changed"], 1);
    let one = api.get("/api/message?handler=mail&id=dead-2").await;
    assert_eq!(
        (&one["payload_base64"], &one["headers"]["a"]),
        (&json!("AP8="), &json!("b"))
    );
    let keys = json!({"keys": [{"handler": "mail", "id": "dead-3"}, {"handler": "x", "id": "y"}]});
    let discarded = api.post("/api/discard", keys).await;
    assert_eq!(
        (&discarded["changed"], &discarded["refused"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(discarded["refusals"][0]["message"], "x/y");
    let moved =
        json!({"keys": [{"handler": "mail", "id": "later-1"}], "due": "2100-01-01T00:00:00Z"});
    assert_eq!(api.post("/api/reschedule", moved).await["changed"], 1);
    let later = api.get("/api/message?handler=mail&id=later-1").await;
    assert_eq!(later["due_at"], "2100-01-01T00:00:00.000Z");
    let at_once = json!({"filter": {"due_later_than": "1h"}, "after": "0s"});
    assert_eq!(api.post("/api/reschedule", at_once).await["changed"], 1);
    let again = json!({"keys": [{"handler": "bill", "id": "done-1"}]});
    assert_eq!(api.post("/api/replay", again.clone()).await["refused"], 1);
    let mut sure = again;
    sure["also_processed"] = true.into();
    assert_eq!(api.post("/api/replay", sure).await["changed"], 1);
    assert_eq!(
        api.post("/api/pause", json!({"handler": "mail"})).await["paused"],
        true
    );
    assert_eq!(api.get("/api/statistics").await["paused"], json!(["mail"]));
    assert_eq!(
        api.post("/api/resume", json!({"handler": "mail"})).await["paused"],
        false
    );
    let changes = api.get("/api/changes").await;
    let id = changes["changes"][0]["id"].as_u64().unwrap();
    assert_eq!(api.get(&format!("/api/change?id={id}")).await["id"], id);
    assert_eq!(
        api.post("/api/stop", json!({"id": id})).await["stands"],
        "done"
    );
    assert_eq!(store.statistics().await.unwrap().count(State::Dead), 0);
}

#[tokio::test]
async fn what_breaks_a_rule_is_refused_as_described() {
    let api = Described::new(dashboard(memory().await).into_router()).await;
    for (path, body) in [
        ("/api/replay", json!({})),
        ("/api/replay", json!({"keys": [], "filter": {}})),
        ("/api/replay", json!({"filter": {"state": ["lost"]}})),
        ("/api/replay", json!({"filter": {"older_than": "5"}})),
        ("/api/replay", json!({"filter": {"handlr": "x"}})),
        // Defect: these meant all messages, as if nothing had been said.
        ("/api/discard", json!({"filter": {"id": []}})),
        ("/api/discard", json!({"filter": {"state": []}})),
        ("/api/discard", json!({"filter": {"handler": null}})),
        ("/api/discard", json!({"filter": {"older_than": null}})),
        ("/api/discard", json!({"filter": {"min_attempts": null}})),
        ("/api/discard", json!({"filter": {"error": ""}})),
        ("/api/replay", json!({"filter": {}, "after": "1s"})),
        ("/api/replay", json!({"filter": {}, "also_processed": true})),
        ("/api/replay", json!({"keys": [{"handler": "", "id": "1"}]})),
        ("/api/discard", json!({"filter": {"state": ["processed"]}})),
        ("/api/reschedule", json!({"filter": {}})),
        (
            "/api/reschedule",
            json!({"filter": {}, "after": "1s", "due": "2030-01-01T00:00:00Z"}),
        ),
        ("/api/reschedule", json!({"filter": {}, "due": "tomorrow"})),
        ("/api/edit", json!({"handler": "h"})),
        (
            "/api/edit",
            json!({"handler": "h", "id": "1", "payload": "a", "payload_base64": "AA=="}),
        ),
        (
            "/api/edit",
            json!({"handler": "h", "id": "1", "payload_base64": "?"}),
        ),
        (
            "/api/edit",
            json!({"handler": "h", "id": "1", "headers": {"a": 1}}),
        ),
        // And with this one the old payload was replayed.
        (
            "/api/edit",
            json!({"handler": "h", "id": "1", "payload": null}),
        ),
        ("/api/pause", json!({"handler": "\n"})),
        ("/api/stop", json!({"id": 99})),
    ] {
        api.refused(path, body).await;
    }
}

#[tokio::test]
async fn every_schema_is_sound() {
    let api = Described::new(dashboard(memory().await).into_router()).await;
    let schemas = api.document["components"]["schemas"].as_object().unwrap();
    for name in schemas.keys() {
        assert!(
            !api.schema(&format!("/components/schemas/{name}"))
                .is_valid(&json!(1.5)),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_failed_change_is_no_success() {
    let store = memory().await;
    let router = dashboard(store.clone()).into_router();
    store.close().await;
    let answer = post_json(
        &router,
        "/api/replay",
        json!({"keys": [{"handler": "h", "id": "1"}]}),
    )
    .await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.json()["stands"], "failed");
}
