//! A provider without a name here: each thing that may be said of one.

use http::HeaderName;
use inbox_http::{
    Endpoint, Provider, WebhookReceiver,
    webhooks::{Part, Signature},
};

use super::base64_signature;
use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(
    ids_kinds_and_kept_headers_are_where_they_are_said_to_be,
    forms_are_taken_where_they_are_allowed,
    an_empty_text_is_as_good_as_none,
);

const SECRET: &[u8] = b"Jefe";

fn name(text: &'static str) -> HeaderName {
    HeaderName::from_static(text)
}

fn signature() -> Signature {
    // Text before the body, none after it, so that the order counts.
    Signature::sha1(name("x-signature"))
        .prefix("sha1=")
        .over([Part::Text("v1:"), Part::Body])
        .secrets([SECRET])
        .unwrap()
}

fn sign(body: &str) -> String {
    let mac = <hmac::Hmac<sha1::Sha1> as hmac::KeyInit>::new_from_slice(SECRET).unwrap();
    let mac = hmac::Mac::chain_update(mac, "v1:");
    let mac = hmac::Mac::chain_update(mac, body);
    format!(
        "sha1={}",
        hex::encode(hmac::Mac::finalize(mac).into_bytes())
    )
}

async fn site<P: Place>(place: &P, provider: Provider) -> Site {
    let receiver = WebhookReceiver::new(place.inbox())
        .endpoint("/own", Endpoint::new(provider, ["own"]).unwrap())
        .unwrap();
    Site::serve(receiver.into_router()).await
}

async fn ids_kinds_and_kept_headers_are_where_they_are_said_to_be<P: Place>(place: P) {
    let provider = Provider::new("own", signature())
        .id_header(name("x-id"))
        .kind_header(name("x-kind"))
        .keep_headers([name("x-shop"), name("x-absent")])
        .with_any_content_type();
    let site = site(&place, provider).await;
    let body = "\u{0}not JSON at all";
    let signed = sign(body);
    let headers = [
        ("content-type", "application/octet-stream"),
        ("x-signature", &signed),
        ("x-id", "7"),
        ("x-kind", "order.placed"),
        ("x-shop", "one"),
        ("x-other", "two"),
        ("traceparent", "00-1-2-01"),
    ];
    for status in [202, 200] {
        assert_eq!(site.post("/own", &headers, body).await.status, status);
    }
    let messages = place.messages().await;
    assert_eq!(messages.len(), 1);
    let message = &messages[0];
    assert_eq!(message.key.to_string(), "own/7");
    assert_eq!(message.kind.as_str(), "order.placed");
    assert_eq!(message.payload.as_deref(), Some(body.as_bytes()));
    assert_eq!(
        message.content_type.as_ref().unwrap().as_str(),
        "application/octet-stream"
    );
    let kept: Vec<_> = message.headers.iter().collect();
    let kept: Vec<_> = kept.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(kept, ["traceparent", "x-shop"]);

    // Another hash, and the same one of other bytes.
    for wrong in [
        "sha1=effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
        &sign("other"),
        &signed[..signed.len() - 2],
        &signed.replacen("sha1", "sha256", 1),
    ] {
        let headers = [headers[0], ("x-signature", wrong), headers[2], headers[3]];
        assert_eq!(
            site.post("/own", &headers, body).await.status,
            401,
            "{wrong}"
        );
    }
    assert_eq!(place.messages().await.len(), 1);
}

async fn forms_are_taken_where_they_are_allowed<P: Place>(place: P) {
    let body = "id=7&type=paid&note=a%20b";
    let signed = sign(body);
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-signature", &*signed),
    ];
    let without = site(&place, Provider::new("own", signature())).await;
    let refused = without.post("/own", &headers, body).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (415, "wrong-content-type")
    );
    let provider = Provider::new("own", signature())
        .id_field("id")
        .kind_field("type")
        .with_forms();
    let with = site(&place, provider).await;
    assert_eq!(with.post("/own", &headers, body).await.status, 202);
    let messages = place.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].key.to_string(), "own/7");
    assert_eq!(messages[0].kind.as_str(), "paid");
    assert_eq!(messages[0].payload.as_deref(), Some(body.as_bytes()));
}

async fn an_empty_text_is_as_good_as_none<P: Place>(place: P) {
    let own = Provider::new("own", signature())
        .with_forms()
        .with_any_content_type();
    let endpoint = |provider, handler: &str| Endpoint::new(provider, [handler]).unwrap();
    let own = endpoint(own, "own").ordering_field("of").id_prefix("p-");
    let shopify = endpoint(Provider::shopify(["hush"]).unwrap(), "shopify");
    let events = endpoint(Provider::cloud_events_from_anybody(), "events");
    let receiver = WebhookReceiver::new(place.inbox())
        .endpoint("/own", own)
        .and_then(|receiver| receiver.endpoint("/shopify", shopify))
        .and_then(|receiver| receiver.endpoint("/events", events.ordering_field("partitionkey")));
    let site = Site::serve(receiver.unwrap().into_router()).await;

    let send = async |content_type: &str, body: &str| {
        let signed = sign(body);
        let headers = [("content-type", content_type), ("x-signature", &*signed)];
        let answer = site.post("/own", &headers, body.to_owned()).await;
        answer.status.as_u16()
    };
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    assert_eq!(send(json, r#"{"id":"1","type":"t","of":""}"#).await, 202);
    assert_eq!(send(form, "id=2&type=t&of=").await, 202);
    assert_eq!(send("", r#"{"id":"3","type":"t"}"#).await, 202);
    assert_eq!(send(json, r#"{"id":"","type":"t"}"#).await, 422);
    assert_eq!(send(json, r#"{"id":"4","type":""}"#).await, 422);

    let signed = base64_signature("hush", "{}");
    let headers = [
        ("content-type", json),
        ("x-shopify-hmac-sha256", &*signed),
        ("x-shopify-event-id", ""),
        ("x-shopify-webhook-id", "w-1"),
        ("x-shopify-topic", "orders/create"),
    ];
    assert_eq!(site.post("/shopify", &headers, "{}").await.status, 202);
    let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","partitionkey":""}"#;
    let structured = [("content-type", "application/cloudevents+json")];
    assert_eq!(site.post("/events", &structured, event).await.status, 202);

    let messages = place.messages().await;
    let keys = messages.iter().map(|message| message.key.to_string());
    assert_eq!(
        keys.collect::<Vec<_>>(),
        [
            "own/p-1",
            "own/p-2",
            "own/p-3",
            "shopify/w-1",
            "events//s#1"
        ]
    );
    for message in messages {
        assert_eq!(message.ordering_key, None, "{}", message.key);
    }
}
