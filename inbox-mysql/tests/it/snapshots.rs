//! Transactions of the caller's whose snapshot is older than what they work on: in the servers'
//! default isolation, and in the strictest.

use std::time::Duration;

use inbox_api::{
    AfterDead, Edit, Operate as _, Outcome, Receipt, Recorded, Settled, Settlement, State,
    Store as _, Transactional as _,
};
use inbox_mysql::MySqlStore;
use sqlx::{MySql, MySqlPool, SqlSafeStr as _, Transaction, mysql::MySqlPoolOptions};

use crate::common::{
    self, TestInbox, accept, claim, claim_one, dead, defer, key, message, on_each, ordered,
    processed, settle,
};

const ISOLATIONS: [&str; 4] = [
    "READ UNCOMMITTED",
    "READ COMMITTED",
    "REPEATABLE READ",
    "SERIALIZABLE",
];

/// A caller's pool.
async fn pool(inbox: &TestInbox) -> MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(4)
        .connect_with(common::connect_options(&inbox.url, Some(&inbox.database)))
        .await
        .unwrap()
}

/// A transaction that sees nothing of what happens from now on, where its isolation says so.
async fn snapshot(pool: &MySqlPool, isolation: &str) -> Transaction<'static, MySql> {
    let begin = sqlx::AssertSqlSafe(format!(
        "SET TRANSACTION ISOLATION LEVEL {isolation}; \
         START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT COUNT(*) FROM inbox_meta"
    ));
    pool.begin_with(begin.into_sql_str()).await.unwrap()
}

/// For each isolation level, a fresh inbox on each server.
fn in_each<F: Future<Output = ()>>(test: impl Fn(MySqlStore, MySqlPool, &'static str) -> F) {
    on_each(async |inbox, kind| {
        for isolation in ISOLATIONS {
            eprintln!("{kind}, {isolation}");
            let mut own = TestInbox::at(inbox.url.clone()).await.unwrap();
            own.store().await.close().await;
            own.options = own.options.operation_timeout(Duration::from_secs(10));
            let store = own.other().await;
            let pool = pool(&own).await;
            test(store.clone(), pool.clone(), isolation).await;
            pool.close().await;
            store.close().await;
            let database = &own.database;
            own.run(format!("DROP DATABASE {database}")).await.unwrap();
        }
    });
}

fn settlement(lease: &inbox_api::Lease, outcome: Outcome) -> Settlement {
    Settlement {
        lease: lease.clone(),
        outcome,
    }
}

fn retry() -> Outcome {
    Outcome::Retry {
        after: Duration::ZERO,
        error: "again".into(),
    }
}

#[test]
fn what_a_transaction_settles_lets_the_next_of_its_key_through() {
    in_each(async |store, pool, isolation| {
        for (n, outcome, again) in [
            (0, processed(), false),
            (1, dead(AfterDead::Continue), false),
            (2, retry(), true),
            (3, Outcome::Release, true),
            (4, defer(Duration::ZERO), true),
        ] {
            let mut transaction = snapshot(&pool, isolation).await;
            let ids = [format!("{n}-1"), format!("{n}-2")];
            let ordering_key = format!("key {n}");
            for id in &ids {
                accept(&store, &[ordered(id, &ordering_key)]).await;
            }
            let lease = claim_one(&store).await;
            let settlements = [settlement(&lease, outcome)];
            let settled = store.settle_in(&mut transaction, &settlements).await;
            assert_eq!(settled.unwrap(), [Settled::Done]);
            store.commit(transaction).await.unwrap();
            let next = claim(&store, 10).await;
            assert_eq!(next.len(), 1, "of {ordering_key}");
            let expected = if again { &ids[0] } else { &ids[1] };
            assert_eq!(next[0].message.id().as_str(), expected);
            settle(&store, &next[0].lease, processed()).await;
            for rest in claim(&store, 10).await {
                settle(&store, &rest.lease, processed()).await;
            }
        }
    });
}

/// Everything that a transaction does is about what is there now.
#[test]
fn an_old_snapshot_changes_no_answer() {
    in_each(async |store, pool, isolation| {
        let mut transaction = snapshot(&pool, isolation).await;
        accept(
            &store,
            &(0..8).map(|n| message(&format!("{n}"))).collect::<Vec<_>>(),
        )
        .await;
        accept(&store, &[ordered("8", "k"), ordered("9", "k")]).await;
        let leases: Vec<_> = claim(&store, 6)
            .await
            .into_iter()
            .map(|l| l.lease)
            .collect();
        let outcomes = [
            processed(),
            dead(AfterDead::Continue),
            retry(),
            Outcome::Release,
            defer(Duration::ZERO),
        ];
        let settlements: Vec<_> = leases
            .iter()
            .zip(outcomes)
            .map(|(lease, outcome)| settlement(lease, outcome))
            .collect();
        let settled = store
            .settle_in(&mut transaction, &settlements)
            .await
            .unwrap();
        assert_eq!(settled, vec![Settled::Done; 5]);
        // Stored before: pending, leased, and one behind another of its key.
        let first = store.record_in(&mut transaction, &message("6"), None).await;
        assert_eq!(first.unwrap(), Recorded::First);
        let busy = store.record_in(&mut transaction, &message("5"), None).await;
        assert!(matches!(busy.unwrap(), Recorded::Busy { .. }));
        let blocked = store
            .record_in(&mut transaction, &ordered("9", "k"), None)
            .await;
        assert_eq!(blocked.unwrap(), Recorded::Blocked);
        let head = store
            .record_in(&mut transaction, &ordered("8", "k"), None)
            .await;
        assert_eq!(head.unwrap(), Recorded::First);
        let batch = [message("7"), message("new"), ordered("10", "k")];
        let receipts = store.receive_in(&mut transaction, &batch).await.unwrap();
        assert_eq!(
            receipts,
            [
                Receipt::Duplicate { differs: false },
                Receipt::Accepted,
                Receipt::Accepted
            ]
        );
        store.commit(transaction).await.unwrap();
        for (id, state) in [
            ("0", State::Processed),
            ("1", State::Dead),
            ("2", State::Pending),
            ("3", State::Pending),
            ("4", State::Pending),
            ("5", State::Leased),
            ("6", State::Processed),
            ("8", State::Processed),
            ("9", State::Pending),
            ("new", State::Pending),
        ] {
            let record = store.get(&key(id)).await.unwrap().unwrap();
            assert_eq!(record.state, state, "{id} in {isolation}");
        }
        let statistics = store.statistics().await.unwrap();
        for (state, count) in [
            (State::Processed, 3),
            (State::Dead, 1),
            (State::Leased, 1),
            (State::Pending, 7),
        ] {
            assert_eq!(statistics.count(state), count, "{state} in {isolation}");
        }
        let mut ids: Vec<_> = claim(&store, 20)
            .await
            .iter()
            .map(|leased| leased.message.id().to_string())
            .collect();
        ids.sort();
        assert_eq!(ids, ["2", "3", "4", "7", "9", "new"], "{isolation}");
    });
}

/// What others have replayed, discarded, purged or claimed since the snapshot is what is settled.
#[test]
fn what_others_have_changed_since_is_what_counts() {
    in_each(async |store, pool, isolation| {
        let outcomes = [
            ("processed", processed(), State::Processed),
            ("dead", dead(AfterDead::Continue), State::Dead),
            ("blocking", dead(AfterDead::Block), State::Dead),
            ("retry", retry(), State::Pending),
            ("release", Outcome::Release, State::Pending),
            ("deferral", defer(Duration::ZERO), State::Pending),
        ];
        for keyed in [false, true] {
            for (name, outcome, state) in &outcomes {
                let id = |what: &str| format!("{what} {name} {keyed}");
                let made = |what: &str| {
                    if keyed {
                        ordered(&id(what), &id("key"))
                    } else {
                        message(&id(what))
                    }
                };
                // Processed, dead and pending before the snapshot.
                for (what, end) in [
                    ("again", processed()),
                    ("revived", dead(AfterDead::Continue)),
                ] {
                    accept(&store, &[made(what)]).await;
                    settle(&store, &claim_one(&store).await, end).await;
                }
                accept(&store, &[made("stale")]).await;
                let stale = claim_one(&store).await;
                let mut transaction = snapshot(&pool, isolation).await;
                // Each of them in another state now.
                settle(&store, &stale, Outcome::Release).await;
                for what in ["again", "revived"] {
                    let _ = store
                        .replay(&key(&id(what)), &Edit::default())
                        .await
                        .unwrap();
                }
                let _ = store.discard(&key(&id("stale"))).await.unwrap();
                accept(&store, &[made("new")]).await;
                let lease = claim_one(&store).await;
                let settlements = [
                    settlement(&stale, processed()),
                    settlement(&lease, outcome.clone()),
                ];
                let settled = store.settle_in(&mut transaction, &settlements).await;
                let expected = [Settled::LeaseLost, Settled::Done];
                assert_eq!(settled.unwrap(), expected, "{name}, {keyed}");
                let discarded = store
                    .record_in(&mut transaction, &made("stale"), None)
                    .await;
                assert_eq!(discarded.unwrap(), Recorded::Discarded, "{name}, {keyed}");
                store.commit(transaction).await.unwrap();
                let record = store.get(&lease.key).await.unwrap().unwrap();
                assert_eq!(record.state, *state, "{name}, {keyed} in {isolation}");
                // All that is left can be worked on, in its order.
                if *name == "blocking" {
                    if keyed {
                        assert_eq!(claim(&store, 10).await.len(), 0, "{name}");
                    }
                    let _ = store.replay(&lease.key, &Edit::default()).await.unwrap();
                }
                let mut worked = 0;
                loop {
                    let leased = claim(&store, 10).await;
                    if leased.is_empty() {
                        break;
                    }
                    for leased in leased {
                        settle(&store, &leased.lease, processed()).await;
                        worked += 1;
                    }
                }
                let lasting = matches!(*name, "processed" | "dead");
                assert_eq!(worked, if lasting { 2 } else { 3 }, "{name}, {keyed}");
            }
        }
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Pending), 0, "{isolation}");
        assert_eq!(statistics.count(State::Leased), 0, "{isolation}");
        assert_eq!(statistics.count(State::Dead), 2, "{isolation}");
        assert_eq!(statistics.count(State::Discarded), 12, "{isolation}");
        assert_eq!(statistics.count(State::Processed), 34, "{isolation}");
    });
}

/// Operators during an open transaction that settles: they wait for its message only, and see what
/// became of it.
#[test]
fn operators_see_what_a_transaction_has_settled() {
    in_each(async |store, pool, isolation| {
        for keyed in [false, true] {
            let made = |what: &str| {
                let id = format!("{what} {keyed}");
                if keyed {
                    ordered(&id, &format!("key of {id}"))
                } else {
                    message(&id)
                }
            };
            let id = |what: &str| key(&format!("{what} {keyed}"));
            let mut transaction = snapshot(&pool, isolation).await;
            accept(&store, &[made("settled"), made("revived"), made("idle")]).await;
            let leases = claim(&store, 2).await;
            let settlements = [
                settlement(&leases[0].lease, retry()),
                settlement(&leases[1].lease, dead(AfterDead::Block)),
            ];
            let settled = store.settle_in(&mut transaction, &settlements).await;
            assert_eq!(settled.unwrap(), [Settled::Done, Settled::Done]);
            // Not kept waiting; only the strictest level locks what is next to its rows.
            if isolation != "SERIALIZABLE" {
                let _ = store.discard(&id("idle")).await.unwrap();
                let _ = store.replay(&id("idle"), &Edit::default()).await.unwrap();
            }
            let discard = {
                let (store, key) = (store.clone(), id("settled"));
                tokio::spawn(async move { store.discard(&key).await })
            };
            let replay = {
                let (store, key) = (store.clone(), id("revived"));
                tokio::spawn(async move { store.replay(&key, &Edit::default()).await })
            };
            tokio::time::sleep(Duration::from_millis(300)).await;
            store.commit(transaction).await.unwrap();
            let (discarded, replayed) = (discard.await.unwrap(), replay.await.unwrap());
            let what = format!("{discarded:?}, {replayed:?} in {isolation}, {keyed}");
            // They say what is there, whichever came first.
            let state = store.get(&id("settled")).await.unwrap().unwrap().state;
            assert!(matches!(state, State::Discarded | State::Pending), "{what}");
            let state = store.get(&id("revived")).await.unwrap().unwrap().state;
            assert!(matches!(state, State::Dead | State::Pending), "{what}");
            let _ = store.replay(&id("revived"), &Edit::default()).await;
            let _ = store.discard(&id("settled")).await;
            let left = claim(&store, 10).await;
            assert_eq!(left.len(), 2, "{what}");
            for leased in left {
                settle(&store, &leased.lease, processed()).await;
            }
        }
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Pending), 0, "{isolation}");
        assert_eq!(statistics.count(State::Discarded), 2, "{isolation}");
        assert_eq!(statistics.count(State::Processed), 4, "{isolation}");
    });
}
