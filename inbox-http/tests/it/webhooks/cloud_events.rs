//! CloudEvents over HTTP: structured, binary, batched.

use inbox_http::{Endpoint, Provider, WebhookReceiver};

use crate::{
    places::{Place, on_each_store},
    server::{Answer, Site},
};

on_each_store!(
    events_come_in_every_layout,
    each_attribute_can_keep_events_in_order,
    a_batch_has_an_answer_for_each_event,
    a_batch_that_is_too_large_is_refused_as_a_whole,
    tokens_are_checked,
);

async fn site<P: Place>(place: &P) -> Site {
    let endpoint = |provider| {
        Endpoint::new(provider, ["orders"])
            .unwrap()
            .ordering_field("partitionkey")
    };
    let guarded = endpoint(Provider::cloud_events(["new token", "old-token"]).unwrap());
    let receiver = WebhookReceiver::new(place.inbox())
        .endpoint("/events", endpoint(Provider::cloud_events_from_anybody()))
        .and_then(|receiver| receiver.endpoint("/guarded", guarded));
    Site::serve(receiver.unwrap().into_router()).await
}

fn event(id: &str) -> String {
    format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"/shop","type":"order.placed","partitionkey":"p","data":{{"b": 1.0}}}}"#
    )
}

async fn structured(site: &Site, body: String) -> Answer {
    let header = (
        "content-type",
        "application/cloudevents+json; charset=utf-8",
    );
    site.post("/events", &[header], body).await
}

async fn events_come_in_every_layout<P: Place>(place: P) {
    let site = site(&place).await;
    assert_eq!(structured(&site, event("1")).await.status, 202);
    let binary = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/shop"),
        ("ce-type", "order.placed"),
        ("ce-subject", "Euro%20%E2%82%AC"),
        ("ce-partitionkey", "p"),
    ];
    // Another layout is no other event, and another source is one.
    assert_eq!(
        site.post("/events", &binary, r#"{"b": 1.0}"#).await.status,
        200
    );
    let mut elsewhere = binary;
    elsewhere[3] = ("ce-source", "/other");
    assert_eq!(
        site.post("/events", &elsewhere, r#"{"b": 1.0}"#)
            .await
            .status,
        202
    );
    let messages = place.messages().await;
    let ids: Vec<&str> = messages
        .iter()
        .map(|message| message.key.id.as_str())
        .collect();
    assert_eq!(ids, ["/shop#1", "/other#1"]);
    for message in &messages {
        assert_eq!(message.payload.as_deref(), Some(&br#"{"b": 1.0}"#[..]));
        assert_eq!(message.kind.as_str(), "order.placed");
        assert_eq!(
            message.content_type.as_ref().unwrap().as_str(),
            "application/json"
        );
        assert_eq!(message.ordering_key.as_ref().unwrap().as_str(), "p");
    }
    assert_eq!(messages[1].headers.get("subject"), Some("Euro \u{20ac}"));
    assert_eq!(messages[1].headers.get("source"), Some("/other"));

    let not_one = structured(&site, r#"{"specversion":"1.0","id":"2"}"#.into()).await;
    assert_eq!(not_one.problem(), "not-an-event");
    let broken = structured(&site, "{".into()).await;
    assert_eq!(broken.json()["detail"], "not JSON: it ends too early");
    let avro = [("content-type", "application/cloudevents+avro")];
    assert_eq!(site.post("/events", &avro, "").await.status, 422);
    assert_eq!(site.post("/events", &[], "").await.status, 422);
    assert_eq!(place.messages().await.len(), 2);
}

/// Defect: those that an event has in any case, but for the source, were not looked at, and nothing was in order.
async fn each_attribute_can_keep_events_in_order<P: Place>(place: P) {
    let attributes = [
        ("id", "1"),
        ("source", "/shop"),
        ("type", "order.placed"),
        ("/type", "order.placed"),
        ("datacontenttype", "application/json"),
        ("subject", "7"),
        ("partitionkey", "p"),
    ];
    let mut receiver = WebhookReceiver::new(place.inbox());
    for (number, (attribute, _)) in attributes.into_iter().enumerate() {
        let provider = Provider::cloud_events_from_anybody();
        let endpoint = Endpoint::new(provider, [format!("orders-{number}")]).unwrap();
        let endpoint = endpoint.ordering_field(attribute);
        receiver = receiver.endpoint(format!("/{number}"), endpoint).unwrap();
    }
    let site = Site::serve(receiver.into_router()).await;
    let headers = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "1"),
        ("ce-source", "/shop"),
        ("ce-type", "order.placed"),
        ("ce-subject", "7"),
        ("ce-partitionkey", "p"),
    ];
    for number in 0..attributes.len() {
        let answer = site.post(&format!("/{number}"), &headers, "{}").await;
        assert_eq!(answer.status, 202);
    }
    let messages = place.messages().await;
    let keys = messages.iter().map(|message| {
        let handler = message.key.handler.as_str().to_owned();
        (
            handler,
            message.ordering_key.as_ref().map(ToString::to_string),
        )
    });
    let mut keys: Vec<_> = keys.collect();
    keys.sort();
    let expected = attributes.into_iter().enumerate();
    let expected =
        expected.map(|(number, (_, key))| (format!("orders-{number}"), Some(key.to_owned())));
    assert_eq!(keys, expected.collect::<Vec<_>>());
}

async fn a_batch_has_an_answer_for_each_event<P: Place>(place: P) {
    let site = site(&place).await;
    let batch = async |events: &[String]| {
        let body = format!("[{}]", events.join(","));
        let header = ("content-type", "application/cloudevents-batch+json");
        site.post("/events", &[header], body).await
    };
    let told = |answer: &Answer| -> Vec<String> {
        let events = answer.json();
        let status = |event: &serde_json::Value| event["status"].as_str().unwrap().to_owned();
        events.as_array().unwrap().iter().map(status).collect()
    };
    let (one, two, three) = (event("1"), event("2"), event("3"));
    let all = batch(&[one.clone(), two.clone(), one.clone()]).await;
    assert_eq!(all.status, 202);
    assert_eq!(told(&all), ["accepted", "accepted", "duplicate"]);
    let known = batch(&[two, one.clone()]).await;
    assert_eq!(known.status, 200);
    assert_eq!(told(&known), ["duplicate", "duplicate"]);
    let long_id = event(&"x".repeat(300));
    let mixed = batch(&["{}".into(), three, one, long_id]).await;
    assert_eq!(mixed.status, 207);
    assert_eq!(
        told(&mixed),
        ["not-an-event", "accepted", "duplicate", "not-an-event"]
    );
    assert_eq!(
        mixed.json()[3]["detail"],
        "message id has 306 bytes, the limit is 255"
    );
    let none = batch(&["7".into()]).await;
    assert_eq!(none.status, 422);
    assert_eq!(told(&none), ["not-an-event"]);
    assert_eq!(batch(&[]).await.json(), serde_json::json!([]));
    let header = ("content-type", "application/cloudevents-batch+json");
    let no_array = site.post("/events", &[header], "{}").await;
    assert_eq!(no_array.problem(), "not-an-event");
    assert_eq!(place.messages().await.len(), 3);
}

async fn a_batch_that_is_too_large_is_refused_as_a_whole<P: Place>(place: P) {
    let site = site(&place).await;
    let batch = async |number: usize| {
        let body = format!("[{}]", vec!["{}"; number].join(","));
        let header = ("content-type", "application/cloudevents-batch+json");
        site.post("/events", &[header], body).await
    };
    let refused = batch(10_001).await;
    assert_eq!(refused.status, 413);
    assert_eq!(refused.problem(), "batch-too-large");
    assert_eq!(refused.json()["limit"], 10_000);
    assert_eq!(
        refused.json()["detail"],
        "a batch may have up to 10000 events"
    );
    // However small each is, none of it is kept in memory.
    let body = format!("[{}0]", "0,".repeat(500_000));
    let header = ("content-type", "application/cloudevents-batch+json");
    let refused = site.post("/events", &[header], body).await;
    assert_eq!(refused.problem(), "batch-too-large");
    // None of these is an event, but that is said of each.
    let each = batch(10_000).await;
    assert_eq!(each.status, 422);
    assert_eq!(each.json().as_array().unwrap().len(), 10_000);
}

async fn tokens_are_checked<P: Place>(place: P) {
    let site = site(&place).await;
    let send = async |authorization: &str, id: &str| {
        let headers = [
            ("content-type", "application/cloudevents+json"),
            ("authorization", authorization),
        ];
        site.post("/guarded", &headers, event(id))
            .await
            .status
            .as_u16()
    };
    assert_eq!(send("Bearer old-token", "1").await, 202);
    assert_eq!(send("bearer new token", "2").await, 202);
    for wrong in [
        "Bearer old-toke",
        "Bearer old-token2",
        "Bearer ",
        "Basic old-token",
        "old-token",
        "",
    ] {
        assert_eq!(send(wrong, "3").await, 401, "{wrong}");
    }
    assert_eq!(place.messages().await.len(), 2);
}
