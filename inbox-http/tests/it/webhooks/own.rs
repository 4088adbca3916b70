//! A provider without a name here: each thing that may be said of one.

use http::HeaderName;
use inbox_http::{
    Endpoint, Provider, WebhookReceiver,
    webhooks::{Part, Signature},
};

use crate::{
    places::{Place, on_each_store},
    server::Site,
};

on_each_store!(
    ids_kinds_and_kept_headers_are_where_they_are_said_to_be,
    forms_are_taken_where_they_are_allowed,
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
