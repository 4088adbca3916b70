//! Counts that are kept.

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
