//! The operator's side: counts that are summed up, silence where it is asked for, rows that are missing.

use std::time::Duration;

use inbox_api::{
    AfterDead, Edit, ErrorKind, Filter, Operate, Page, PurgeRequest, State, Store, StoreExt,
};

use crate::common::{self, *};

#[tokio::test]
async fn records_alone_do_not_make_the_counts_grow() {
    const RECORDS: i64 = 20_000;
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    place
        .run(&format!(
            "SELECT {{schema}}.inbox_record('h', n::text, 'k', NULL, NULL, '{{}}', '', NULL, NULL, 0,
                 NULL, false, false)
             FROM generate_series(1, {RECORDS}) AS n"
        ))
        .await
        .unwrap();
    let rows: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_tally")
        .await;
    // Once in 500 times on average.
    assert!(rows < RECORDS / 2, "{rows} rows for {RECORDS} records");
    let recorded = store.statistics().await.unwrap().count(State::Processed);
    assert_eq!(recorded, RECORDS.unsigned_abs());
    let limit = u32::try_from(RECORDS + 1).unwrap();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, limit).unwrap();
    let purged = store.purge(&expired).await.unwrap();
    assert_eq!(purged, RECORDS.unsigned_abs());
    let rows: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_tally")
        .await;
    assert_eq!(rows, 0, "a purge that comes to its end sums up");
    check_consistent(&ready).await;
}

#[tokio::test]
async fn other_operations_alone_do_not_make_the_counts_grow() {
    // Versions of one row that a transaction makes stay until it ends, and each call goes through them all.
    const TIMES: i64 = 100;
    const ROUNDS: i64 = 100;
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _ = store.receive_one(&message("1")).await.unwrap();
    for each in [
        "inbox_discard(
             ARRAY[(SELECT seq FROM {schema}.inbox_message) + 0 * n], '{0}', false, NULL
         ) AS discarded,
         LATERAL {schema}.inbox_replay(discarded, '{4}', NULL, NULL, false, NULL)",
        "inbox_begin('h', '1', 'k', NULL, NULL, '{}', '', NULL, 0 * n, 0, 60000000, 'w') AS b,
         LATERAL {schema}.inbox_settle(
             ARRAY[b.found_seq], ARRAY[b.new_token], '{0}', NULL, NULL, NULL, NULL, NULL,
             false, false, false, false, NULL
         )",
    ] {
        let sql = format!(
            "SELECT count(*) FROM generate_series(1, {TIMES}) AS n, LATERAL {{schema}}.{each}"
        );
        for _ in 0..ROUNDS {
            place.run(&sql).await.unwrap();
        }
        let rows: i64 = place
            .value("SELECT count(*) FROM {schema}.inbox_tally")
            .await;
        // Each time two rows; summed up once in 500 calls on average.
        assert!(rows < TIMES * ROUNDS, "{rows} rows");
        check_consistent(&ready).await;
    }
}

#[tokio::test]
async fn without_notifications_no_operation_notifies() {
    let Some(ready) = ready_with(|options| options.notifications(false)).await else {
        return;
    };
    let (place, store) = (&ready.place, &ready.store);
    let mut listener = sqlx::postgres::PgListener::connect(&place.url)
        .await
        .unwrap();
    let channel = format!("{}.inbox", place.schema.name);
    listener.listen(&channel).await.unwrap();
    let blocked = |id: &str| ordered(id, id);
    for id in ["purged", "archived", "discarded", "replayed"] {
        let _ = store
            .receive(&[blocked(id), ordered(&format!("{id} next"), id)])
            .await
            .unwrap();
    }
    let leases: Vec<_> = claim(store, 10)
        .await
        .into_iter()
        .map(|l| l.lease)
        .collect();
    assert_eq!(leases.len(), 4);
    settle(store, &leases[0], dead(AfterDead::Block)).await;
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    settle(store, &leases[1], dead(AfterDead::Block)).await;
    let purged = store.purge_archived(&expired, &[key("archived")]).await;
    assert_eq!(purged.unwrap(), 1);
    settle(store, &leases[2], dead(AfterDead::Block)).await;
    let _ = store.discard(&key("discarded")).await.unwrap();
    settle(store, &leases[3], dead(AfterDead::Block)).await;
    let _ = store
        .replay(&key("replayed"), &Edit::default())
        .await
        .unwrap();
    let leases = claim(store, 10).await;
    assert_eq!(leases.len(), 4);
    for leased in &leases {
        settle(store, &leased.lease, retry(Duration::ZERO)).await;
    }
    let sql = format!("NOTIFY \"{channel}\", 'the first'");
    common::execute(&place.url, &sql).await.unwrap();
    assert_eq!(listener.recv().await.unwrap().payload(), "the first");
}

#[tokio::test]
async fn a_message_that_is_missing_is_reported_once_and_set_aside() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _ = store
        .receive(&[message("missing"), message("there")])
        .await
        .unwrap();
    place
        .run("DELETE FROM {schema}.inbox_message WHERE id = 'missing'")
        .await
        .unwrap();
    let claims = store.claim(&request(10)).await.unwrap();
    assert_eq!(ids(&claims.leased), ["there"]);
    assert_eq!(claims.corrupt.len(), 1);
    assert!(claims.corrupt[0].reason.contains("missing"), "{claims:?}");
    place.advance(2 * LEASE).await;
    let claims = store.claim(&request(10)).await.unwrap();
    assert_eq!((claims.leased.len(), claims.corrupt.len()), (1, 0));
    let dead = Filter {
        states: vec![State::Dead],
        ..Filter::default()
    };
    let listing = store.list(&dead, &Page::first(10)).await.unwrap();
    assert_eq!((listing.records.len(), listing.corrupt.len()), (0, 1));
    assert_eq!(store.statistics().await.unwrap().count(State::Dead), 1);
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    check_consistent(&ready).await;
}

#[tokio::test]
async fn a_history_that_cannot_be_read_is_reported_and_stops_nothing() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    for id in ["1", "2"] {
        let lease = begin(store, &message(id)).await.lease;
        settle(store, &lease, retry(Duration::ZERO)).await;
    }
    for (n, spoiled) in ["5", "{}", "[{\"attempt\": 1}]"].into_iter().enumerate() {
        let sql = "UPDATE {schema}.inbox_work SET history = 'spoiled'
            WHERE seq = (SELECT seq FROM {schema}.inbox_message WHERE id = '1')";
        place.run(&sql.replace("spoiled", spoiled)).await.unwrap();
        for leased in claim(store, 10).await {
            settle(store, &leased.lease, retry(Duration::ZERO)).await;
        }
        let corrupt = store.get(&key("1")).await.unwrap_err();
        assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
        assert_eq!(get(store, "2").await.history.len(), n + 2);
    }
}

#[tokio::test]
async fn a_finished_message_that_is_lost_is_reported_and_purged() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    accept(store, &[message("lost"), message("there")]).await;
    for leased in claim(store, 10).await {
        settle(store, &leased.lease, processed()).await;
    }
    place
        .run("DELETE FROM {schema}.inbox_message WHERE id = 'lost'")
        .await
        .unwrap();
    let old = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    let expired = store.expired(&old).await.unwrap();
    assert_eq!((expired.records.len(), expired.corrupt.len()), (1, 1));
    let reason = &expired.corrupt[0].reason;
    assert!(reason.contains("missing"), "{reason}");
    assert_eq!(store.purge(&old).await.unwrap(), 2);
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), 0);
    check_consistent(&ready).await;
}

/// More handlers than one statement is for.
#[tokio::test]
async fn retention_of_many_handlers_begins_with_the_longest_finished_and_leaves_nothing() {
    const HANDLERS: usize = 50;
    const MESSAGES: usize = 150;
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    place
        .run(&format!(
            "SELECT {{schema}}.inbox_record('h' || n % {HANDLERS}, n::text, 'k', NULL, NULL, '{{}}', '', NULL,
                 NULL, 0, NULL, false, false)
             FROM generate_series(1, {MESSAGES}) AS n"
        ))
        .await
        .unwrap();
    place
        .run(
            "UPDATE {schema}.inbox_done AS d
             SET finished_at = d.finished_at - (1000 - m.id::integer) * interval '1 minute'
             FROM {schema}.inbox_message AS m WHERE m.seq = d.seq",
        )
        .await
        .unwrap();
    let old = |limit| PurgeRequest::new(State::Processed, Duration::ZERO, limit).unwrap();
    assert_eq!(store.drop_payloads(&old(40)).await.unwrap(), 40);
    assert_eq!(store.drop_payloads(&old(1000)).await.unwrap(), 110);
    assert_eq!(store.drop_payloads(&old(1000)).await.unwrap(), 0);
    assert_eq!(store.purge(&old(10)).await.unwrap(), 10);
    let expired = store.expired(&old(1000)).await.unwrap();
    assert_eq!(expired.records.len(), MESSAGES - 10);
    assert_eq!(expired.records[0].key.id.as_str(), "11");
    assert_eq!(store.expired(&old(7)).await.unwrap().records.len(), 7);
    assert_eq!(store.purge(&old(1000)).await.unwrap(), 140);
    assert_eq!(store.purge(&old(1000)).await.unwrap(), 0);
    check_consistent(&ready).await;
}
