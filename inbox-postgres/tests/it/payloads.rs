//! Payload columns of each type, and payloads at the edges.

use std::time::Duration;

use inbox_api::{
    Bytes, ErrorKind, Intervention, Invalid, Message, Operate as _, Receipt, Recorded, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_postgres::{PayloadType, PostgresOptions};

use crate::common::*;

async fn of_type(payload_type: PayloadType) -> Option<Ready> {
    ready_with(|options| options.payload_type(payload_type)).await
}

/// JSON that a database may be tempted to tidy up.
const ODD_JSON: &[&str] = &[
    r#"{ "b": 1,	"a": [ ],  "b": 2 }"#,
    "1.50",
    "1e5",
    "-0",
    "123456789012345678901234567890.10",
    "\"\\u00e9 \u{e9} \u{1f980} \\ud83e\\udd80 \\/\"",
    "  null ",
    "[1,\n2]\n",
    "true",
];

fn refused(receipt: &Receipt) -> bool {
    matches!(
        receipt,
        Receipt::Refused(Invalid::Malformed {
            what: "payload",
            ..
        })
    )
}

#[tokio::test]
async fn json_keeps_every_byte() {
    let Some(ready) = of_type(PayloadType::Json).await else {
        return;
    };
    let store = &ready.store;
    let batch: Vec<Message> = ODD_JSON
        .iter()
        .enumerate()
        .map(|(n, json)| message_with(&n.to_string(), *json))
        .collect();
    store.receive(&batch).await.unwrap();
    for (leased, json) in claim(store, 100).await.iter().zip(ODD_JSON) {
        assert_eq!(leased.message.payload(), json);
        let record = store.get(leased.message.key()).await.unwrap().unwrap();
        assert_eq!(record.payload.as_deref(), Some(json.as_bytes()));
        assert_eq!(record.payload_bytes, Some(json.len() as u64));
    }
    for (n, json) in ODD_JSON.iter().enumerate() {
        let message = message_with(&format!("begun {n}"), *json);
        assert_eq!(begin(store, &message).await.message, message);
        // Stored first and begun later: the stored one comes back.
        let message = message_with(&format!("stored {n}"), *json);
        store.receive(std::slice::from_ref(&message)).await.unwrap();
        assert_eq!(begin(store, &message).await.message, message);
    }
    // Such a text is JSON, and json does not look into it.
    let nul = message_with("nul", r#""\u0000""#);
    assert_eq!(store.receive_one(&nul).await.unwrap(), Receipt::Accepted);
    assert_eq!(begin(store, &nul).await.message, nul);
    let searched: String = ready
        .place
        .value("SELECT payload ->> 'b' FROM {schema}.inbox_message WHERE id = '0'")
        .await;
    assert_eq!(searched, "2");
}

#[tokio::test]
async fn jsonb_keeps_the_meaning_and_not_the_bytes() {
    let Some(ready) = of_type(PayloadType::Jsonb).await else {
        return;
    };
    let store = &ready.store;
    let sent = message_with("1", ODD_JSON[0]);
    store.receive(std::slice::from_ref(&sent)).await.unwrap();
    let leased = claim(store, 1).await.remove(0);
    assert_eq!(leased.message.payload(), r#"{"a": [], "b": 2}"#);
    assert_eq!(get(store, "1").await.payload_bytes, Some(17));
    // `begin` answers with what it was given when it is the first to store it, and with what is
    // stored otherwise.
    let other = message_with("2", "[ 1 ]");
    let lease = begin(store, &other).await.lease;
    settle(store, &lease, inbox_api::Outcome::Release).await;
    assert_eq!(begin(store, &other).await.message.payload(), "[1]");
}

#[tokio::test]
async fn what_is_not_json_is_refused_alone() {
    for payload_type in [PayloadType::Json, PayloadType::Jsonb] {
        let Some(ready) = of_type(payload_type).await else {
            return;
        };
        let store = &ready.store;
        let bad: [&[u8]; 8] = [
            b"",
            b"text",
            b"{",
            b"{} {}",
            b"'a'",
            b"\"\xff\"",
            b"[1,]",
            b"\0",
        ];
        let mut batch = vec![message_with("first", "{}")];
        for (n, payload) in bad.iter().enumerate() {
            batch.push(message_with(&format!("bad {n}"), payload.to_vec()));
        }
        batch.push(ordered_with("last", "{}"));
        let receipts = store.receive(&batch).await.unwrap();
        assert_eq!(receipts[0], Receipt::Accepted);
        assert_eq!(receipts[9], Receipt::Accepted);
        assert!(receipts[1..9].iter().all(refused), "{receipts:?}");
        for message in &batch[1..9] {
            let error = store.begin(message, &terms()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let mut transaction = store.open().await.unwrap();
            let error = store
                .record_in(&mut transaction, message, None)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            // Refused before anything was sent: the transaction goes on.
            let recorded = store
                .record_in(&mut transaction, &message_with("recorded", "1"), None)
                .await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            store.roll_back(transaction).await.unwrap();
        }
        assert_eq!(ids(&claim(store, 100).await), ["first", "last"]);
        check_consistent(&ready).await;
    }
}

fn ordered_with(id: &str, payload: &'static str) -> Message {
    message_with(id, payload).with_ordering_key(inbox_api::OrderingKey::new("k").unwrap())
}

/// Deeper than the server's stack.
fn deep_json() -> String {
    "[".repeat(50_000) + &"]".repeat(50_000)
}

/// Some JSON is only known by the server to be such that a column cannot hold.
#[tokio::test]
async fn what_json_cannot_hold_is_refused_alone() {
    refuses_alone(PayloadType::Json, &[&deep_json()]).await;
}

#[tokio::test]
async fn what_jsonb_cannot_hold_is_refused_alone() {
    let bad = [
        r#"{"a": "\u0000"}"#,
        r#""\ud800""#,
        "1e999999",
        &deep_json(),
    ];
    refuses_alone(PayloadType::Jsonb, &bad).await;
}

async fn refuses_alone(payload_type: PayloadType, all: &[&str]) {
    let Some(ready) = of_type(payload_type).await else {
        return;
    };
    let store = &ready.store;
    for (n, bad) in all.iter().enumerate() {
        let (good, more, wrong) = (
            ordered_with(&format!("good {n}"), "1"),
            message_with(&format!("more {n}"), "2"),
            message_with(&format!("bad {n}"), (*bad).to_owned()),
        );
        let batch = [good.clone(), wrong.clone(), more, good];
        let receipts = store.receive(&batch).await.unwrap();
        assert_eq!(receipts[0], Receipt::Accepted, "{n}");
        assert!(refused(&receipts[1]), "{n}: {receipts:?}");
        assert_eq!(
            receipts[2..],
            [Receipt::Accepted, Receipt::Duplicate { differs: false }]
        );
        assert_eq!(store.get(wrong.key()).await.unwrap(), None);

        let error = store.begin(&wrong, &terms()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{n}: {error}");
        assert!(!format!("{error:?} {error}").contains(bad), "{error:?}");
        let replaced = store
            .replay(batch[0].key(), &with_payload((*bad).to_owned()))
            .await;
        let mut transaction = store.open().await.unwrap();
        let error = store
            .record_in(&mut transaction, &wrong, None)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{n}: {error}");
        let _ = store.roll_back(transaction).await;
        let mut transaction = store.open().await.unwrap();
        let error = store
            .receive_in(&mut transaction, &batch)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{n}: {error}");
        let _ = store.roll_back(transaction).await;
        let error = replaced.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{n}: {error}");
    }
    check_consistent(&ready).await;
}

#[tokio::test]
async fn an_edited_payload_is_what_everybody_sees() {
    for payload_type in [PayloadType::Bytea, PayloadType::Json, PayloadType::Jsonb] {
        let Some(ready) = of_type(payload_type).await else {
            return;
        };
        let store = &ready.store;
        let sent = message_with("1", "[1]");
        let lease = begin(store, &sent).await.lease;
        settle(store, &lease, processed()).await;
        let edited = with_payload("[2]");
        let answer = store.replay(&key("1"), &edited).await.unwrap();
        assert_eq!(answer, Intervention::Done);
        let run = begin(store, &sent).await;
        assert_eq!(run.message.payload(), "[2]", "{payload_type:?}");
        assert!(run.lease.token > lease.token);
        settle(store, &run.lease, processed()).await;
        let edited = with_payload("[3]");
        let answer = store.replay(&key("1"), &edited).await.unwrap();
        assert_eq!(answer, Intervention::Done);
        let mut transaction = store.open().await.unwrap();
        let recorded = store.record_in(&mut transaction, &sent, None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        store.commit(transaction).await.unwrap();
        assert_eq!(get(store, "1").await.payload.as_deref(), Some(&b"[3]"[..]));
        if payload_type != PayloadType::Bytea {
            let bad = with_payload("not json");
            let error = store.replay(&key("1"), &bad).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        check_consistent(&ready).await;
    }
}

#[tokio::test]
async fn bytes_are_kept_whatever_they_are() {
    let Some(ready) = of_type(PayloadType::Bytea).await else {
        return;
    };
    let store = &ready.store;
    let all: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let batch = [
        message_with("empty", ""),
        message_with("all", all),
        message_with("nul", vec![0; 10]),
    ];
    store.receive(&batch).await.unwrap();
    let leased = claim(store, 10).await;
    for (leased, sent) in leased.iter().zip(&batch) {
        assert_eq!(&leased.message, sent);
    }
    assert_eq!(get(store, "empty").await.payload_bytes, Some(0));
}

/// One message of the protocol cannot hold it, so it goes in two, together or not at all.
#[tokio::test]
async fn a_batch_larger_than_one_statement_is_stored_together() {
    // A busy machine takes its time for 270 MiB.
    let patient = |options: PostgresOptions| options.operation_timeout(Duration::from_secs(300));
    let Some(ready) = ready_with(patient).await else {
        return;
    };
    let store = &ready.store;
    let large = Bytes::from(vec![7; 15 * 1024 * 1024]);
    let mut batch: Vec<Message> = (0..18)
        .map(|n| message_with(&n.to_string(), large.clone()))
        .collect();
    batch.push(message_with("3", "another copy"));
    let receipts = store.receive(&batch).await.unwrap();
    assert!(receipts[..18].iter().all(|r| *r == Receipt::Accepted));
    assert_eq!(receipts[18], Receipt::Duplicate { differs: true });
    let transactions: i64 = ready
        .place
        .value("SELECT count(DISTINCT xmin::text) FROM {schema}.inbox_message")
        .await;
    assert_eq!(transactions, 1);
    assert_eq!(ids(&claim(store, 2).await), ["0", "1"]);
    check_consistent(&ready).await;
}
