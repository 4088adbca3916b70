//! While another transaction holds a message: what waits, what passes it, and what is answered.

use std::time::{Duration, SystemTime};

use inbox_api::{
    AfterDead, Begun, Edit, Extended, Filter, Intervention, Operate as _, PurgeRequest, Recorded,
    Settled, Slice, State, Store as _, StoreExt as _, Transactional as _, from_micros,
};
use inbox_postgres::PostgresStore;

use crate::common::*;

/// What must not wait for a transaction that this test holds open.
async fn in_time<T>(doing: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(60), doing).await;
    answer.unwrap_or_else(|_| panic!("it waited for a transaction that holds another message"))
}

/// The inbox's clock.
async fn now(place: &TestInbox) -> SystemTime {
    let sql = "SELECT (extract(epoch FROM {schema}.inbox_now()) * 1000000)::bigint";
    from_micros(place.value(sql).await)
}

fn ten() -> Vec<inbox_api::Message> {
    (0..10).map(|n| message(&n.to_string())).collect()
}

async fn discard_all(store: &PostgresStore, limit: u32) -> (u64, u64) {
    let filter = Filter {
        states: vec![State::Pending, State::Dead],
        ..Filter::default()
    };
    let (mut changed, mut slices, mut after) = (0, 0, None);
    loop {
        let slice = Slice { after, limit };
        let progress = store.discard_slice(&filter, &slice).await.unwrap();
        changed += progress.changed;
        slices += 1;
        match progress.next {
            None => return (changed, slices),
            next => after = next,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_from_which_a_message_is_taken_is_not_the_last() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let _ = store.receive(&ten()).await.unwrap();
    let mut transaction = store.open().await.unwrap();
    let recorded = store.record_in(&mut transaction, &message("2"), None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    let discarding = {
        let store = store.clone();
        tokio::spawn(async move { discard_all(&store, 4).await })
    };
    wait_for_a_lock_wait(&ready.place).await;
    store.commit(transaction).await.unwrap();
    assert_eq!(discarding.await.unwrap(), (9, 3));

    // The same of a replay: dead ones, of which another operator takes one.
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let store = &place.store().await;
    let _ = store.receive(&ten()).await.unwrap();
    for leased in claim(store, 10).await {
        settle(store, &leased.lease, dead(AfterDead::Continue)).await;
    }
    let mut holding = connection(&place.url).await.unwrap();
    let sql = place.sql(
        "BEGIN; DELETE FROM {schema}.inbox_work WHERE seq = (
             SELECT seq FROM {schema}.inbox_message WHERE id = '2'
         )",
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut holding)
        .await
        .unwrap();
    let replaying = {
        let store = store.clone();
        tokio::spawn(async move {
            let slice = Slice {
                after: None,
                limit: 5,
            };
            store
                .replay_slice(&Filter::default(), &slice)
                .await
                .unwrap()
        })
    };
    wait_for_a_lock_wait(&place).await;
    sqlx::raw_sql("COMMIT").execute(&mut holding).await.unwrap();
    let progress = replaying.await.unwrap();
    assert_eq!(progress.changed, 4);
    assert!(progress.next.is_some());
}

#[tokio::test]
async fn a_purge_goes_on_behind_messages_whose_key_is_held() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let messages: Vec<_> = (0..600)
        .map(|n| ordered(&n.to_string(), &n.to_string()))
        .collect();
    let _ = store.receive(&messages).await.unwrap();
    for leased in claim(store, 600).await {
        settle(store, &leased.lease, dead(AfterDead::Block)).await;
    }
    let mut transaction = store.open().await.unwrap();
    let more: Vec<_> = (0..3)
        .map(|n| ordered(&format!("more {n}"), &n.to_string()))
        .collect();
    let _ = store.receive_in(&mut transaction, &more).await.unwrap();
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10_000).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 597);
    store.commit(transaction).await.unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 3);
    assert_eq!(claim(store, 10).await.len(), 3);
    check_consistent(&ready).await;
}

#[tokio::test]
async fn an_extension_passes_a_lease_that_is_being_settled() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _ = store.receive(&ten()).await.unwrap();
    let leases: Vec<_> = claim(store, 10)
        .await
        .into_iter()
        .map(|l| l.lease)
        .collect();
    let mut transaction = store.open().await.unwrap();
    let settlement = inbox_api::Settlement {
        lease: leases[3].clone(),
        outcome: processed(),
    };
    let settled = store.settle_in(&mut transaction, &[settlement]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    let extended = in_time(store.extend(&leases, 10 * LEASE)).await.unwrap();
    for (n, extended) in extended.iter().enumerate() {
        let Extended::Until(until) = extended else {
            panic!("{n} is lost");
        };
        let left = until.duration_since(now(place).await).unwrap();
        // The one that is held stands as long as it did.
        assert_eq!(left > LEASE, n != 3, "{n}: {left:?}");
    }
    // Once it has run out, nobody says that it stands.
    place.advance(LEASE).await;
    let extended = in_time(store.extend(&leases, 10 * LEASE)).await.unwrap();
    for (n, extended) in extended.iter().enumerate() {
        assert_eq!(*extended == Extended::LeaseLost, n == 3, "{n}");
    }
    store.roll_back(transaction).await.unwrap();
    let extended = store.extend_one(&leases[3], LEASE).await.unwrap();
    assert!(matches!(extended, Extended::Until(_)), "{extended:?}");
    check_consistent(&ready).await;
}

/// A duplicate that was answered does not keep the message's holder waiting for the transaction's end.
#[tokio::test]
async fn a_duplicate_in_a_transaction_holds_nothing() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    for n in 0..2 {
        let sent = [message("a"), ordered("b", "k")];
        let _ = store.receive(&sent).await.unwrap();
        let leases: Vec<_> = claim(store, 10)
            .await
            .into_iter()
            .map(|l| l.lease)
            .collect();
        let mut transaction = store.open().await.unwrap();
        for message in &sent {
            let recorded = store
                .record_in(&mut transaction, message, None)
                .await
                .unwrap();
            assert!(matches!(recorded, Recorded::Busy { .. }), "{recorded:?}");
        }
        let outcome = match n {
            0 => retry(Duration::ZERO),
            _ => processed(),
        };
        for lease in &leases {
            in_time(settle(store, lease, outcome.clone())).await;
        }
        store.commit(transaction).await.unwrap();
    }
    check_consistent(&ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_begins_when_it_is_handed_out() {
    for ordering_key in [None, Some("k")] {
        let Some(ready) = ready().await else { return };
        let (place, store) = (&ready.place, &ready.store);
        // A clock that a function which is running sees moved.
        place
            .run(
                "CREATE SEQUENCE {schema}.ahead;
                 CREATE OR REPLACE FUNCTION {schema}.inbox_now() RETURNS timestamptz
                 LANGUAGE sql VOLATILE AS $$
                     SELECT clock_timestamp() + last_value * interval '1 second'
                     FROM {schema}.ahead
                 $$",
            )
            .await
            .unwrap();
        // Waits for the key of the message, or for its ordering key.
        let (sent, other) = match ordering_key {
            None => (message("1"), message("1")),
            Some(key) => (ordered("1", key), ordered("2", key)),
        };
        let mut transaction = store.open().await.unwrap();
        let _ = store.receive_in(&mut transaction, &[other]).await.unwrap();
        let beginning = {
            let store = store.clone();
            tokio::spawn(async move { store.begin(&sent, &terms()).await.unwrap() })
        };
        wait_for_a_lock_wait(place).await;
        let ahead = 2 * LEASE.as_secs();
        place
            .run(&format!("SELECT setval('{{schema}}.ahead', {ahead})"))
            .await
            .unwrap();
        store.roll_back(transaction).await.unwrap();
        let Begun::Run(leased) = beginning.await.unwrap() else {
            panic!("not run");
        };
        let now = now(place).await;
        assert!(
            leased.lease.until > now,
            "it had run out when it was handed out"
        );
        assert!(claim(store, 10).await.is_empty());
        settle(store, &leased.lease, processed()).await;
        check_consistent(&ready).await;
    }
}

/// A claim passes over what an extension has locked, and an extension what a claim has. Neither may leave the rest of a
/// run with its turn.
#[tokio::test]
async fn what_is_extended_late_has_no_turn_before_what_is_being_claimed() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let messages = ["1", "2", "3"].map(|id| ordered(id, "k"));
    let _ = store.receive(&messages).await.unwrap();
    let run = claim_runs(store, 10, 10).await;
    assert_eq!(ids(&run), ["1", "2", "3"]);
    place.advance(LEASE + Duration::from_secs(1)).await;

    // Another worker's claim has the first one and is not committed.
    let mut claiming = connection(&place.url).await.unwrap();
    let lock = place.sql("SELECT seq FROM {schema}.inbox_work WHERE claimable FOR UPDATE");
    sqlx::raw_sql("BEGIN").execute(&mut claiming).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock))
        .execute(&mut claiming)
        .await
        .unwrap();
    let leases: Vec<_> = run.iter().map(|one| one.lease.clone()).collect();
    let extended = store.extend(&leases, LEASE).await.unwrap();
    assert_eq!(extended, vec![Extended::LeaseLost; 3]);
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut claiming)
        .await
        .unwrap();

    for id in ["1", "2", "3"] {
        let leased = claim(store, 10).await;
        assert_eq!(ids(&leased), [id]);
        if id == "1" {
            settle(store, &leased[0].lease, retry(LEASE)).await;
            assert_eq!(ids(&claim(store, 10).await), [""; 0]);
            place.advance(LEASE).await;
            let again = claim(store, 10).await;
            assert_eq!(ids(&again), ["1"]);
            settle(store, &again[0].lease, processed()).await;
        } else {
            settle(store, &leased[0].lease, processed()).await;
        }
    }
    assert_eq!(place.broken_rules().await, [""; 0]);
}

/// A `begin` of one that is leased behind another changes nothing: a claim that takes the first one ends its
/// lease, too.
#[tokio::test]
async fn a_begin_that_has_to_wait_keeps_no_lease_of_a_run() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _ = store
        .receive(&["1", "2"].map(|id| ordered(id, "k")))
        .await
        .unwrap();
    let run = claim_runs(store, 10, 10).await;
    assert_eq!(ids(&run), ["1", "2"]);
    let second = &run[1].lease;
    let extended = store.extend_one(second, 10 * LEASE).await.unwrap();
    assert!(matches!(extended, Extended::Until(_)), "{extended:?}");
    place.advance(LEASE).await;

    // Not committed yet.
    let mut beginning = connection(&place.url).await.unwrap();
    let begin = place.sql(
        "SELECT answer FROM {schema}.inbox_begin(
             'h', '2', 'kind', NULL, 'k', '{}', '\\x00', NULL, NULL, 0, 1000000, 'another'
         )",
    );
    sqlx::raw_sql("BEGIN")
        .execute(&mut beginning)
        .await
        .unwrap();
    let answer: String = sqlx::query_scalar(sqlx::AssertSqlSafe(begin))
        .fetch_one(&mut beginning)
        .await
        .unwrap();
    assert_eq!(answer, "busy");
    let first = claim_one(store).await;
    assert_eq!(first.key.id.as_str(), "1");
    sqlx::raw_sql("COMMIT")
        .execute(&mut beginning)
        .await
        .unwrap();

    let extended = store.extend_one(second, LEASE).await.unwrap();
    assert_eq!(extended, Extended::LeaseLost);
    settle(store, &first, processed()).await;
    assert_eq!(ids(&claim(store, 10).await), ["2"]);
    check_consistent(&ready).await;
}

/// A replay that waits for a transaction which drops the payload revives nothing: there is nothing to run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_sees_that_the_payload_was_dropped_meanwhile() {
    for state in [State::Dead, State::Processed] {
        let Some(ready) = ready().await else { return };
        let (place, store) = (&ready.place, &ready.store);
        accept(store, &[ordered("1", "k"), ordered("2", "k")]).await;
        let outcome = match state {
            State::Dead => dead(AfterDead::Block),
            _ => processed(),
        };
        settle(store, &claim_one(store).await, outcome).await;

        let mut dropping = connection(&place.url).await.unwrap();
        let begun = sqlx::raw_sql("BEGIN").execute(&mut dropping).await;
        begun.unwrap();
        let number = if state == State::Dead { 3 } else { 2 };
        let drop =
            format!("SELECT {{schema}}.inbox_drop_payloads({number}::smallint, 0, '{{h}}', 10)");
        let drop = sqlx::AssertSqlSafe(place.sql(&drop));
        let dropped: i64 = sqlx::query_scalar(drop)
            .fetch_one(&mut dropping)
            .await
            .unwrap();
        assert_eq!(dropped, 1);
        let replaying = {
            let store = store.clone();
            tokio::spawn(async move { store.replay(&key("1"), &Edit::default()).await })
        };
        wait_for_a_lock_wait(place).await;
        let committed = sqlx::raw_sql("COMMIT").execute(&mut dropping).await;
        committed.unwrap();
        let replayed = replaying.await.unwrap().unwrap();
        assert_eq!(replayed, Intervention::PayloadDropped, "{state}");
        let record = get(store, "1").await;
        assert_eq!((record.state, record.replays), (state, 0));
        assert_eq!(record.blocks_ordering_key, state == State::Dead);
        check_consistent(&ready).await;
    }
}
