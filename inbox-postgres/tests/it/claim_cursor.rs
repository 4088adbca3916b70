//! Claims while a transaction holds a snapshot: they do not step over what was processed since, and
//! pass over nothing that can be claimed, however it came to be behind.

use std::time::Duration;

use inbox_api::{
    AfterDead, Edit, Intervention, Lease, Message, Operate as _, Outcome, Recorded, Settlement,
    Store as _, StoreExt as _, Transactional as _,
};
use inbox_postgres::PostgresStore;
use sqlx::{Executor as _, PgConnection, postgres::PgPoolOptions};

use crate::common::*;

/// So many messages that claims start behind them.
const MANY: usize = 4000;

/// Holds a snapshot from now on, as a dump does.
async fn snapshot(place: &TestInbox) -> PgConnection {
    let mut holding = connection(&place.url).await.unwrap();
    let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT count(*) FROM pg_class";
    holding.execute(sqlx::raw_sql(sql)).await.unwrap();
    holding
}

/// Messages come and are processed.
async fn traffic(store: &PostgresStore) {
    for _ in 0..MANY / 100 {
        let batch: Vec<Message> = (0..100).map(|_| message(&fresh_name())).collect();
        let _ = store.receive(&batch).await.unwrap();
        let settlements: Vec<_> = claim(store, 100)
            .await
            .into_iter()
            .map(|leased| {
                assert!(batch.contains(&leased.message), "{:?}", leased.message);
                Settlement {
                    lease: leased.lease,
                    outcome: processed(),
                }
            })
            .collect();
        assert_eq!(settlements.len(), 100);
        let _ = store.settle(&settlements).await.unwrap();
    }
}

/// Takes the message that has just become claimable, and nothing else.
async fn takes(store: &PostgresStore, id: &str) -> Lease {
    let mut leased = claim(store, 10).await;
    assert_eq!(ids(&leased), [id]);
    leased.remove(0).lease
}

#[tokio::test]
async fn claims_do_not_step_over_what_was_processed_under_a_snapshot() {
    // Its own server, so that nobody's transactions are waited for.
    let Some(server) = own_server() else { return };
    let place = TestInbox::at(server.url().to_owned());
    place.store().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(connection_options(&place.url))
        .await
        .unwrap();
    let store = PostgresStore::with_pool(pool.clone(), place.options.clone());
    let entries = async || {
        // Backends report at intervals unless told to.
        pool.execute("SELECT pg_stat_force_next_flush()")
            .await
            .unwrap();
        pool.execute("SELECT 1").await.unwrap();
        let sql = format!(
            "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = '{}'",
            place.schema.name
        );
        place.value::<i64>(&sql).await
    };
    let _holding = snapshot(&place).await;
    traffic(&store).await;

    let sent = message("last");
    let _ = store.receive_one(&sent).await.unwrap();
    let before = entries().await;
    takes(&store, "last").await;
    let read = entries().await - before;
    assert!(read < MANY as i64 / 2, "{read} entries were read");
}

#[tokio::test]
async fn what_is_committed_late_or_comes_back_is_claimed() {
    let Some(ready) = ready().await else { return };
    let Ready { place, store } = &ready;
    let _holding = snapshot(place).await;
    let other = place.other().await;

    let mut transaction = other.open().await.unwrap();
    let late = message("late");
    let receipts = other
        .receive_in(&mut transaction, std::slice::from_ref(&late))
        .await;
    receipts.unwrap();
    traffic(store).await;
    other.commit(transaction).await.unwrap();
    let lease = takes(store, "late").await;

    traffic(store).await;
    settle(&other, &lease, Outcome::Release).await;
    let lease = takes(store, "late").await;

    traffic(store).await;
    settle(&other, &lease, retry(Duration::ZERO)).await;
    let lease = takes(store, "late").await;

    traffic(store).await;
    place.advance(2 * LEASE).await;
    let lease_of_another = takes(store, "late").await;
    assert_ne!(lease, lease_of_another);

    traffic(store).await;
    settle(&other, &lease_of_another, dead(AfterDead::Continue)).await;
    traffic(store).await;
    assert_eq!(
        other.replay(late.key(), &Edit::default()).await.unwrap(),
        Intervention::Done
    );
    takes(store, "late").await;
}

#[tokio::test]
async fn what_a_transaction_held_is_claimed_after_it() {
    let Some(ready) = ready().await else { return };
    let Ready { place, store } = &ready;
    let _holding = snapshot(place).await;
    let other = place.other().await;
    let held = message("held");
    let _ = store.receive_one(&held).await.unwrap();
    let mut transaction = other.open().await.unwrap();
    let recorded = other.record_in(&mut transaction, &held, None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    traffic(store).await;
    other.roll_back(transaction).await.unwrap();
    takes(store, "held").await;
}

#[tokio::test]
async fn the_next_of_an_ordering_key_is_claimed() {
    let Some(ready) = ready().await else { return };
    let Ready { place, store } = &ready;
    let _holding = snapshot(place).await;
    let other = place.other().await;
    let of_key: Vec<Message> = (1..=5).map(|n| ordered(&n.to_string(), "k")).collect();
    let _ = store.receive(&of_key).await.unwrap();
    let lease = takes(store, "1").await;
    traffic(store).await;
    settle(&other, &lease, processed()).await;

    let lease = takes(store, "2").await;
    settle(&other, &lease, dead(AfterDead::Block)).await;
    traffic(store).await;
    assert_eq!(
        other.discard(of_key[1].key()).await.unwrap(),
        Intervention::Done
    );
    let lease = takes(store, "3").await;
    traffic(store).await;

    settle(&other, &lease, Outcome::Release).await;
    assert_eq!(
        other.discard(of_key[2].key()).await.unwrap(),
        Intervention::Done
    );
    let lease = takes(store, "4").await;
    traffic(store).await;
    let mut transaction = other.open().await.unwrap();
    let settlement = Settlement {
        lease,
        outcome: processed(),
    };
    other
        .settle_in(&mut transaction, std::slice::from_ref(&settlement))
        .await
        .unwrap();
    traffic(store).await;
    other.commit(transaction).await.unwrap();
    takes(store, "5").await;
}

/// An open transaction with a higher number than all that are over: a snapshot does not list it.
#[tokio::test]
async fn what_the_newest_transaction_holds_back_is_claimed() {
    // Its own server, so that nobody else's transactions end in between.
    let Some(server) = own_server() else { return };
    let place = TestInbox::at(server.url().to_owned());
    let store = place.store().await;
    let other = place.other().await;
    // Sees to the schema's version, so that what follows draws no number before it.
    assert!(claim(&other, 1).await.is_empty());

    let mut transaction = other.open().await.unwrap();
    let late = message("late");
    let receipts = other
        .receive_in(&mut transaction, std::slice::from_ref(&late))
        .await;
    receipts.unwrap();
    // The first look. It finds nothing, so nothing ends behind the transaction.
    assert!(claim(&store, 1).await.is_empty());
    traffic(&store).await;
    other.commit(transaction).await.unwrap();
    takes(&store, "late").await;
}
