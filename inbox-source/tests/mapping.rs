//! Whatever comes, a mapping answers with a message that fits or a rejection, and always the same.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which the configuration for tests does not reach"
)]

use std::time::{Duration, SystemTime};

use inbox_api::{Headers, Kind, MessageId, OrderingKey};
use inbox_source::{Envelope, IdFrom, Mapping, Positions, TextFrom};
use proptest::prelude::*;

/// Names that mean something, and others.
fn name() -> impl Strategy<Value = String> {
    let known = [
        "ce_id",
        "ce-source",
        "cloudEvents:type",
        "ce_specversion",
        "ce_partitionkey",
        "ce_data",
        "content-type",
        "time",
        "source",
        "id",
    ];
    prop_oneof![
        proptest::sample::select(known.to_vec()).prop_map(String::from),
        any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = String> {
    let known = [
        "1.0",
        "7",
        "application/cloudevents+json",
        "",
        "{\"id\":1,\"id\":2}",
    ];
    prop_oneof![
        proptest::sample::select(known.to_vec()).prop_map(String::from),
        any::<String>(),
        "x{250,300}",
    ]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    let event = r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","data":{"id":1}}"#;
    prop_oneof![
        Just(event.as_bytes().to_vec()),
        Just(br#"{"id": {"a": [1, "b"]}, "id2": "\u0000"}"#.to_vec()),
        any::<Vec<u8>>(),
    ]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let texts = (
        proptest::option::of(value()),
        proptest::option::of(value()),
        proptest::option::of(value()),
        proptest::option::of(value()),
        proptest::option::of(value()),
    );
    let headers = proptest::collection::vec((name(), value()), 0..8);
    let seconds = proptest::option::of(any::<u32>());
    (payload(), headers, texts, value(), seconds).prop_map(
        |(payload, headers, (id, kind, key, position, content_type), address, seconds)| {
            let mut envelope = Envelope::new(address, payload);
            envelope.headers = headers;
            envelope.id = id;
            envelope.kind = kind;
            envelope.key = key;
            envelope.position = position;
            envelope.content_type = content_type;
            let since = seconds.map(|seconds| Duration::from_secs(seconds.into()));
            envelope.time = since.map(|since| SystemTime::UNIX_EPOCH + since);
            envelope
        },
    )
}

fn mappings() -> Vec<Mapping> {
    let new = || Mapping::new("billing").unwrap();
    vec![
        new(),
        new().id_from([IdFrom::Header("ID".into()), IdFrom::Field("/id/a/1".into())]),
        new()
            .id_from([IdFrom::Field("id2".into()), IdFrom::Property])
            .id_prefix("cluster-1/")
            .kind_from([TextFrom::Field("id".into()), TextFrom::Fixed("k".into())])
            .ordering_key_from([TextFrom::Header("source".into()), TextFrom::Address]),
    ]
}

proptest! {
    #[test]
    fn anything_is_a_message_that_fits_or_a_rejection(envelope in envelope()) {
        for mapping in mappings() {
            let message = mapping.message(&envelope);
            prop_assert_eq!(&message, &mapping.message(&envelope.clone()));
            let Ok(message) = message else { continue };
            prop_assert!(message.id().as_str().len() <= MessageId::MAX_BYTES);
            prop_assert!(message.kind().as_str().len() <= Kind::MAX_BYTES);
            let key = message.ordering_key().map_or(0, |key| key.as_str().len());
            prop_assert!(key <= OrderingKey::MAX_BYTES);
        }
        let _ = envelope.raw();
        let _ = format!("{envelope:?}");
    }

    /// Any bytes are a header, and a delivery with it is no less a message.
    #[test]
    fn any_bytes_are_a_header(value in any::<Vec<u8>>()) {
        let mut envelope = Envelope::new("orders", "payload");
        envelope.id = Some("1".into());
        envelope.add_header("odd", &value);
        prop_assert!(mappings()[0].message(&envelope).is_ok());
    }
}

#[test]
fn places_are_tried_in_their_order() {
    let mut envelope = Envelope::new("orders", r#"{"id":"from-field"}"#);
    envelope.position = Some("orders/0/7".into());
    let id = |mapping: &Mapping, envelope: &Envelope| {
        mapping
            .message(envelope)
            .map(|message| message.id().to_string())
    };
    let usual = Mapping::new("billing").unwrap();
    assert_eq!(id(&usual, &envelope).as_deref(), Ok("orders/0/7"));
    envelope.id = Some("from-property".into());
    assert_eq!(id(&usual, &envelope).as_deref(), Ok("from-property"));
    let by_header = usual.id_from([
        IdFrom::Header("Event-Id".into()),
        IdFrom::Field("id".into()),
    ]);
    assert_eq!(id(&by_header, &envelope).as_deref(), Ok("from-field"));
    // Of several headers of one name the last counts; one without a text counts as absent.
    envelope.headers = vec![
        ("event-id".into(), "1".into()),
        ("EVENT-ID".into(), "2".into()),
    ];
    assert_eq!(id(&by_header, &envelope).as_deref(), Ok("2"));
    envelope.headers.push(("event-id".into(), String::new()));
    assert_eq!(id(&by_header, &envelope).as_deref(), Ok("from-field"));
}

#[test]
fn what_is_too_long_or_has_control_characters_is_a_digest() {
    let mapping = Mapping::new("billing").unwrap();
    let id = |text: &str| {
        let mut envelope = Envelope::new("orders", "");
        envelope.id = Some(text.into());
        mapping.message(&envelope).unwrap().id().to_string()
    };
    assert!(id(&"x".repeat(256)).starts_with("sha256:"));
    assert!(id("a\nb").starts_with("sha256:"));
    assert_ne!(id("a\nb"), id("a\rb"));
    assert_eq!(id(&"x".repeat(255)), "x".repeat(255));
}

#[test]
fn positions_that_are_not_stable_are_refused_where_they_are_named() {
    let usual = Mapping::new("billing").unwrap();
    let unstable = Positions::Unstable("tags are counted again");
    assert_eq!(usual.check(unstable), Ok(()));
    let by_position = usual.clone().id_from([IdFrom::Property, IdFrom::Position]);
    assert!(by_position.check(unstable).is_err());
    assert_eq!(by_position.check(Positions::Stable), Ok(()));
    assert!(usual.id_from([]).check(Positions::Stable).is_err());
}

#[test]
fn a_content_type_that_is_none_does_not_reject_an_event() {
    let mut envelope = Envelope::new("orders", "data");
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", "7"),
        ("source", "/s"),
        ("type", "t"),
    ] {
        envelope.headers.push((format!("ce_{name}"), value.into()));
    }
    envelope.content_type = Some("text/\nplain".into());
    let message = Mapping::new("billing").unwrap().message(&envelope).unwrap();
    assert_eq!(message.content_type(), None);
    assert_eq!(message.headers().get("content-type"), Some("text/\nplain"));
}

/// Would take minutes if each header were compared with, or added to, all those before it.
#[test]
fn of_more_headers_than_fit_a_rejected_delivery_keeps_the_first() {
    let mut envelope = Envelope::new("orders", "payload");
    envelope.id = Some("1".into());
    let header = |n: u32| (format!("{n:06}"), String::new());
    envelope.headers = (0..500_000).rev().map(header).collect();
    let kept = envelope.raw().headers().clone();
    assert_eq!(kept.len(), Headers::MAX_TOTAL_BYTES / 6);
    assert_eq!(kept.get("499999"), Some(""));
    assert!(mappings()[0].message(&envelope).is_err());
    envelope.headers.truncate(10_000);
    let message = mappings()[0].message(&envelope).unwrap();
    // And the address, as `source`.
    assert_eq!(message.headers().len(), 10_001);
}

#[test]
fn of_several_headers_of_one_name_the_last_counts_also_with_an_event() {
    let mut envelope = Envelope::new(
        "orders",
        r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","region":"eu"}"#,
    );
    envelope.content_type = Some("application/cloudevents+json".into());
    for (name, value) in [("retry", "1"), ("region", "us"), ("retry", "2")] {
        envelope.headers.push((name.into(), value.into()));
    }
    let message = mappings()[0].message(&envelope).unwrap();
    let headers = message.headers();
    assert_eq!(headers.get("retry"), Some("2"));
    assert_eq!(headers.get("region"), Some("eu"));
}
