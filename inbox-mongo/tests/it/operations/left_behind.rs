//! What a crash leaves behind between two documents of an ordering key.

use super::*;

/// As a worker leaves it that is killed after its settlement, before the next message of the
/// ordering key was let through.
#[tokio::test]
async fn claims_find_what_a_crash_left_marked() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    for id in ["a", "b"] {
        let _ = store.receive_one(&in_order(id)).await.unwrap();
    }
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_one(
            doc! { "id": "a" },
            doc! { "$set": {
                "state": 2, "finishedAt": 1_i64, "visibleAt": 1_i64, "lane": 2,
                "mark": ObjectId::new(),
            }, "$unset": { "open": "" } },
        )
        .await
        .unwrap();
    assert_eq!(claim_ids(&store).await, ["b"]);
    let done = messages.find_one(doc! { "id": "a" }).await.unwrap();
    assert!(!done.unwrap().contains_key("lane"));
}

/// As a receiver leaves it that is killed between the two.
#[tokio::test]
async fn a_message_that_was_only_marked_is_handed_out_in_order() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b")])
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_many(
            doc! {},
            doc! { "$set": { "lane": 2, "mark": ObjectId::new() } },
        )
        .await
        .unwrap();
    assert_eq!(claim_ids(&store).await, ["a"]);
    assert_eq!(claim_ids(&store).await, Vec::<String>::new());
}

/// The lane of a message that a crash has left marked, as of one that was processed.
fn left_behind() -> Document {
    doc! { "$set": {
        "state": 2, "finishedAt": 1_i64, "visibleAt": 1_i64, "lane": 2, "mark": ObjectId::new(),
        "emptied": false,
    } }
}

#[tokio::test]
async fn a_claim_of_one_message_goes_past_marks() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let marked: Vec<_> = (0..20).map(|n| message(&format!("old-{n}"))).collect();
    let _ = store.receive(&marked).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages.update_many(doc! {}, left_behind()).await.unwrap();
    let _ = store.receive_one(&message("new")).await.unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
}

#[tokio::test]
async fn a_purge_goes_past_marks() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let marked: Vec<_> = (0..1100).map(|n| message(&format!("old-{n}"))).collect();
    let _ = store.receive(&marked).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages.update_many(doc! {}, left_behind()).await.unwrap();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 2000).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1100);
}

/// A call that ends below its limit has left nothing that can go: the janitor, and the command, end with it.
#[tokio::test]
async fn a_purge_goes_past_what_cannot_be_deleted_now() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let all: Vec<_> = (0..1500).map(|n| message(&format!("old-{n}"))).collect();
    let _ = store.receive(&all).await.unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let processed = doc! {
        "$set": { "state": 2, "finishedAt": 2_i64, "visibleAt": 1_i64, "emptied": false },
        "$unset": { "lane": "" },
    };
    messages.update_many(doc! {}, processed).await.unwrap();
    // As those whose marks an open transaction holds. They are the first ones.
    let held = doc! { "$set": { "finishedAt": 1_i64, "lane": 2 } };
    let first = doc! { "seq": { "$lte": 600_i64 } };
    let held = messages.update_many(first, held).await.unwrap();
    assert_eq!(held.modified_count, 600);
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 1000).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 900);
    assert_eq!(messages.count_documents(doc! {}).await.unwrap(), 600);
}

/// As a worker leaves it that is killed between leasing a message that is not the first of its
/// ordering key and finding that out.
#[tokio::test]
async fn a_lease_that_was_never_verified_is_no_precedence() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b")])
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    messages
        .update_one(
            doc! { "id": "b" },
            doc! { "$set": { "lane": 1, "state": 1, "visibleAt": 1_i64 } },
        )
        .await
        .unwrap();
    let mut handed_out = Vec::new();
    for _ in 0..3 {
        handed_out.extend(claim_ids(&store).await);
    }
    assert_eq!(handed_out, ["a"]);
}

/// Two looks at the same time may let two messages through; the second is handed back.
#[tokio::test]
async fn only_the_first_of_an_ordering_key_is_kept() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store
        .receive(&[in_order("a"), in_order("b"), message("c")])
        .await
        .unwrap();
    let raw = place.raw().await;
    let messages = raw.collection::<Document>("inbox_message");
    let both_in_front = || async {
        messages
            .update_one(doc! { "id": "b" }, doc! { "$set": { "lane": 1 } })
            .await
            .unwrap();
    };
    both_in_front().await;
    let mut ids = claim_ids(&store).await;
    ids.sort();
    assert_eq!(ids, ["a", "c"]);
    // While the first is leased, too.
    both_in_front().await;
    assert_eq!(claim_ids(&store).await, Vec::<String>::new());
    let begun = {
        both_in_front().await;
        let terms = inbox_api::LeaseTerms::new(LEASE, worker()).unwrap();
        store.begin(&in_order("b"), &terms).await.unwrap()
    };
    assert_eq!(begun, inbox_api::Begun::Blocked);
    let record = store.get(in_order("b").key()).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
    assert_eq!(record.attempts.started, 0);
}
