//! Counts that are kept.

use inbox_api::ClockOffset;

use super::*;

/// Counts of a handler: pending, leased, processed.
async fn counts(store: &MongoStore) -> (u64, u64, u64) {
    let statistics = store.statistics().await.unwrap();
    let of = &statistics.handlers[0];
    (of.pending, of.leased, of.processed)
}

#[tokio::test]
async fn counts_of_closed_segments_are_kept_until_something_changes_there() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let old: Vec<_> = ["a", "b", "c"].map(message).into();
    let _ = store.receive(&old).await.unwrap();
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    // As if twenty thousand numbers had been drawn since.
    meta.update_one(
        doc! { "_id": "sequence" },
        doc! { "$set": { "last": 20_100_i64 } },
    )
    .await
    .unwrap();
    let _ = store.receive_one(&message("d")).await.unwrap();
    let kept = || async { meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap() };
    assert_eq!(counts(&store).await, (4, 0, 0));
    assert!(!kept().await.contains_key("counts"));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (4, 0, 0));
    assert_eq!(kept().await.get_array("counts").unwrap().len(), 1);
    // They are what is answered.
    meta.update_one(
        doc! { "_id": 0_i64 },
        doc! { "$set": { "counts.0.count": 41_i64 } },
    )
    .await
    .unwrap();
    assert_eq!(counts(&store).await, (42, 0, 0));
    // Until something changes: by this process, or by another one that knows nothing of it.
    let claims = store
        .claim_for(&handler(), 1, Duration::from_secs(3600), &worker())
        .await
        .unwrap();
    assert!(!kept().await.contains_key("counts"));
    assert_eq!(counts(&store).await, (3, 1, 0));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (3, 1, 0));
    assert!(kept().await.contains_key("counts"));
    let other = place.connect().await.unwrap();
    let lease = &claims.leased[0].lease;
    let _ = other
        .settle_one(lease, Outcome::Processed { result: None })
        .await
        .unwrap();
    assert_eq!(counts(&store).await, (3, 0, 1));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (3, 0, 1));
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    assert_eq!(counts(&store).await, (3, 0, 0));
}

/// As where the server's clock is set forward while a message is worked on, or another node's is ahead.
#[tokio::test]
async fn counts_are_not_kept_by_a_clock_that_is_ahead() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive(&["a", "b", "c"].map(message)).await.unwrap();
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    // As if all numbers of the segment had been drawn since.
    let drawn = doc! { "$set": { "last": 10_000_i64 } };
    let drawn = meta.update_one(doc! { "_id": "sequence" }, drawn);
    drawn.await.unwrap();
    assert_eq!(counts(&store).await, (3, 0, 0));
    let long = Duration::from_secs(3600);
    let claims = store.claim_for(&handler(), 1, long, &worker()).await;
    let lease = claims.unwrap().leased.remove(0).lease;
    let ahead = ClockOffset::default();
    ahead.advance(Duration::from_secs(1800));
    let options = place.options.clone().clock_offset(ahead);
    let other = MongoStore::connect(options).await.unwrap();
    assert_eq!(counts(&other).await, (2, 1, 0));
    let processed = Outcome::Processed { result: None };
    let _ = store.settle_one(&lease, processed).await.unwrap();
    assert_eq!(counts(&other).await, (2, 0, 1));
    assert_eq!(counts(&store).await, (2, 0, 1));
}

/// A clock that was ahead and is right again says of a segment that it is open for longer than it is.
#[tokio::test]
async fn an_opening_is_told_from_one_by_a_clock_that_was_ahead() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive(&["a", "b", "c"].map(message)).await.unwrap();
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    let drawn = doc! { "$set": { "last": 10_000_i64 } };
    let drawn = meta.update_one(doc! { "_id": "sequence" }, drawn);
    drawn.await.unwrap();
    assert_eq!(counts(&store).await, (3, 0, 0));
    let ahead = ClockOffset::default();
    ahead.advance(Duration::from_secs(1800));
    let options = place.options.clone().clock_offset(ahead);
    let other = MongoStore::connect(options).await.unwrap();
    let segment = || async {
        let segment = meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap();
        let until = segment.get_i64("openUntil").unwrap();
        (until, segment.get_object_id("opening").unwrap())
    };
    let long = Duration::from_secs(3600);
    let claims = other.claim_for(&handler(), 1, long, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
    let (later, first) = segment().await;
    let claims = store.claim_for(&handler(), 1, long, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
    let (until, second) = segment().await;
    assert!(until < later);
    assert_ne!(first, second);
    // So counts are kept once that opening is over.
    assert_eq!(counts(&store).await, (1, 2, 0));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (1, 2, 0));
    let kept = meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap();
    assert!(kept.contains_key("counts"));
}

/// However many numbers were ever drawn.
#[tokio::test]
async fn documents_of_segments_with_few_messages_become_one() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive(&["a", "b", "c"].map(message)).await.unwrap();
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    // As if all numbers of two hundred segments, and of one more, had been drawn since.
    let drawn = doc! { "$set": { "last": 2_010_000_i64 } };
    let drawn = meta.update_one(doc! { "_id": "sequence" }, drawn);
    drawn.await.unwrap();
    let segments = || async {
        let segments = meta.count_documents(doc! { "_id": { "$gte": 0_i64 } });
        segments.await.unwrap()
    };
    let first_run = || async { meta.find_one(doc! { "_id": -1_i64 }).await.unwrap() };
    assert_eq!(counts(&store).await, (3, 0, 0));
    assert_eq!(segments().await, 201);
    place.offset.advance(Duration::from_secs(200));
    // They are counted and kept, then made one, and then deleted.
    for _ in 0..3 {
        assert_eq!(counts(&store).await, (3, 0, 0));
    }
    assert_eq!(segments().await, 1);
    assert!(!first_run().await.unwrap().contains_key("counts"));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (3, 0, 0));
    let kept = first_run().await.unwrap();
    assert_eq!(kept.get_array("counts").unwrap().len(), 1);
    // Until something changes in one of its segments.
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    assert_eq!(claims.unwrap().leased.len(), 1);
    assert!(!first_run().await.unwrap().contains_key("counts"));
    assert_eq!(counts(&store).await, (2, 1, 0));
    assert_eq!(segments().await, 1);
}

/// As a process leaves it that is killed in the middle, or two that do it at the same time.
#[tokio::test]
async fn a_document_of_a_segment_means_nothing_behind_that_of_its_run() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = place.store().await;
    let _ = store.receive(&["a", "b", "c"].map(message)).await.unwrap();
    let meta = place.raw().await.collection::<Document>("inbox_meta");
    let drawn = doc! { "$set": { "last": 1_000_000_i64 } };
    let drawn = meta.update_one(doc! { "_id": "sequence" }, drawn);
    drawn.await.unwrap();
    let wrong = doc! { "handler": "orders", "state": 0, "count": 7_i64 };
    let segment = doc! { "_id": 0_i64, "openUntil": 5_i64, "counts": [wrong] };
    meta.insert_many([segment, doc! { "_id": -1_i64 }])
        .await
        .unwrap();
    assert_eq!(counts(&store).await, (3, 0, 0));
    let segment = meta.find_one(doc! { "_id": 0_i64 }).await.unwrap();
    assert_eq!(segment, None);
}

#[tokio::test]
async fn counts_are_not_kept_beyond_an_expiry() {
    let Some(mut place) = TestInbox::shared() else {
        return;
    };
    let day = Duration::from_secs(24 * 3600);
    place.options = place.options.expire_processed_after(Some(day));
    let store = place.store().await;
    let _ = store.receive(&["a", "b"].map(message)).await.unwrap();
    let claims = store.claim_for(&handler(), 1, LEASE, &worker()).await;
    let lease = claims.unwrap().leased.remove(0).lease;
    let _ = store
        .settle_one(&lease, Outcome::Processed { result: None })
        .await
        .unwrap();
    let raw = place.raw().await;
    let meta = raw.collection::<Document>("inbox_meta");
    meta.update_one(
        doc! { "_id": "sequence" },
        doc! { "$set": { "last": 10_000_i64 } },
    )
    .await
    .unwrap();
    assert_eq!(counts(&store).await, (1, 0, 1));
    place.offset.advance(Duration::from_secs(200));
    assert_eq!(counts(&store).await, (1, 0, 1));
    let kept = meta.find_one(doc! { "_id": 0_i64 }).await.unwrap().unwrap();
    assert!(kept.contains_key("counts") && kept.contains_key("expires"));
    // As the server does by itself.
    let messages = raw.collection::<Document>("inbox_message");
    let gone = messages.delete_one(doc! { "expireAt": { "$exists": true } });
    assert_eq!(gone.await.unwrap().deleted_count, 1);
    place.offset.advance(day);
    assert_eq!(counts(&store).await, (1, 0, 0));
}
