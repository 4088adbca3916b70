//! Transactions of the caller's: from the store, from another pool, and what handlers do in them.

use std::time::{Duration, Instant, SystemTime};

use conformance_tests::{BusinessWrites as _, Mishap};
use inbox_api::{
    Begun, Effect, ErrorKind, Extended, Operate as _, Outcome, Recorded, Settled, Settlement,
    State, Store as _, StoreExt as _, Transactional as _,
};
use inbox_mysql::{MySqlStore, conformance::Effects};
use sqlx::{MySql, MySqlPool, SqlSafeStr as _, Transaction, mysql::MySqlPoolOptions};

use crate::common::{
    self, TestInbox, accept, claim, claim_one, connect_options, key, message, on_each, processed,
    settle, waiting,
};

/// A pool of the caller's.
async fn pool(inbox: &TestInbox, session: &'static str) -> MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(2)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                sqlx::raw_sql(session).execute(connection).await?;
                Ok(())
            })
        })
        .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
        .await
        .unwrap()
}

async fn run(transaction: &mut Transaction<'static, MySql>, sql: &'static str) {
    sqlx::raw_sql(sql)
        .execute(&mut **transaction)
        .await
        .unwrap();
}

fn done(lease: &inbox_api::Lease) -> [Settlement; 1] {
    [Settlement {
        lease: lease.clone(),
        outcome: processed(),
    }]
}

/// Through the store of that pool, and through one that has its own connections.
#[test]
fn a_commit_of_another_pools_transaction_tells_what_became_of_it() {
    on_each(async |inbox, _| {
        let own = inbox.store().await;
        Effects::of(&inbox.options).create().await.unwrap();
        let pool = pool(&inbox, "DO 0").await;
        let over = MySqlStore::with_pool(pool.clone(), inbox.options.clone());
        let stores = [own, over.await.unwrap()];
        let effects = Effects::of(&inbox.options);
        for (n, store) in stores.iter().enumerate() {
            let sent = message(&format!("whole {n}"));
            let mut transaction = pool.begin().await.unwrap();
            assert_eq!(
                store
                    .record_in(&mut transaction, &sent, None)
                    .await
                    .unwrap(),
                Recorded::First
            );
            effects.write(&mut transaction, "1").await.unwrap();
            store.commit(transaction).await.unwrap();
            let record = store.get(sent.key()).await.unwrap().unwrap();
            assert_eq!(record.state, State::Processed);
            for mishap in [
                Mishap::RolledBackByServer,
                Mishap::Commit,
                Mishap::RollBack,
                Mishap::SchemaChange,
            ] {
                let sent = message(&format!("{mishap} {n}"));
                let mut transaction = pool.begin().await.unwrap();
                let recorded = store.record_in(&mut transaction, &sent, None).await;
                assert_eq!(recorded.unwrap(), Recorded::First);
                effects.mishap(&mut transaction, mishap).await.unwrap();
                let again = store.record_in(&mut transaction, &message("x"), None).await;
                let error = again.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Other, "{mishap}: {error}");
                assert_eq!(error.effect(), Effect::Unknown, "{mishap}");
                let error = store.commit(transaction).await.unwrap_err();
                let committed = matches!(mishap, Mishap::Commit | Mishap::SchemaChange);
                // What tells of a commit is gone as soon as another operation sums the tally up.
                if error.kind() != ErrorKind::Conflict {
                    assert_eq!(error.kind(), ErrorKind::Other, "{mishap}: {error}");
                    assert!(committed, "{mishap}: {error}");
                }
                assert_eq!(error.effect(), Effect::Unknown, "{mishap}");
                let stored = store.get(sent.key()).await.unwrap();
                assert_eq!(stored.is_some(), committed, "{mishap}");
                assert_eq!(store.get(&key("x")).await.unwrap(), None, "{mishap}");
            }
        }
        pool.close().await;
    });
}

/// Not even another transaction in the place of the one that was opened passes for it.
#[test]
fn a_transaction_that_the_handler_begins_in_place_of_the_opened_one_is_not_committed() {
    on_each(async |inbox, _| {
        let mut store = inbox.store().await;
        Effects::of(&inbox.options).create().await.unwrap();
        accept(&store, &[message("settled")]).await;
        let lease = claim_one(&store).await;
        for sql in [
            "ROLLBACK; START TRANSACTION",
            "COMMIT AND CHAIN",
            "ROLLBACK; SET autocommit = 0; INSERT INTO inbox_effects (note) VALUES ('1')",
        ] {
            let sent = message(sql);
            let mut transaction = store.open().await.unwrap();
            let recorded = store.record_in(&mut transaction, &sent, None).await;
            assert_eq!(recorded.unwrap(), Recorded::First, "{sql}");
            run(&mut transaction, sql).await;
            let settled = store.settle_in(&mut transaction, &done(&lease)).await;
            // A session that begins transactions by itself is refused.
            assert!(settled.is_ok() || sql.contains("autocommit"), "{settled:?}");
            let error = store.commit(transaction).await.unwrap_err();
            assert_eq!(error.effect(), Effect::Unknown, "{sql}");
            store.close().await;
            store = inbox.other().await;
            let record = store.get(&lease.key).await.unwrap().unwrap();
            assert_eq!(record.state, State::Leased, "{sql}");
        }
    });
}

#[test]
fn savepoints_and_failures_of_the_handlers_own_do_not_keep_it_from_committing() {
    on_each(async |inbox, _| {
        let own = inbox.store().await;
        Effects::of(&inbox.options).create().await.unwrap();
        let pool = pool(&inbox, "DO 0").await;
        let over = MySqlStore::with_pool(pool.clone(), inbox.options.clone());
        for (n, store) in [own, over.await.unwrap()].iter().enumerate() {
            let (kept, undone) = (format!("kept {n}"), format!("undone {n}"));
            let mut transaction = store.open().await.unwrap();
            let recorded = store
                .record_in(&mut transaction, &message(&kept), None)
                .await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            run(&mut transaction, "SAVEPOINT own").await;
            let recorded = store
                .record_in(&mut transaction, &message(&undone), None)
                .await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            run(&mut transaction, "ROLLBACK TO SAVEPOINT own").await;
            // A statement that fails leaves the rest as it is.
            let duplicate = sqlx::query("INSERT INTO inbox_stock VALUES (1, 0)");
            duplicate.execute(&mut *transaction).await.unwrap_err();
            run(
                &mut transaction,
                "UPDATE inbox_stock SET changes = changes + 1",
            )
            .await;
            store.commit(transaction).await.unwrap();
            let record = store.get(&key(&kept)).await.unwrap().unwrap();
            assert_eq!(record.state, State::Processed);
            assert_eq!(store.get(&key(&undone)).await.unwrap(), None);
            let changes = inbox
                .number("SELECT SUM(changes) DIV 2 FROM inbox_stock")
                .await;
            assert_eq!(changes, n as i64 + 1);
        }
        pool.close().await;
    });
}

/// One that the server rolls back would be followed by another one, unnoticed.
#[test]
fn sessions_that_begin_transactions_by_themselves_are_refused() {
    on_each(async |inbox, _| {
        inbox.store().await;
        for session in ["SET autocommit = 0", "SET completion_type = CHAIN"] {
            let pool = pool(&inbox, session).await;
            let store = MySqlStore::with_pool(pool.clone(), inbox.options.clone())
                .await
                .unwrap();
            // Operations of the store's own do not mind.
            let sent = message(session);
            accept(&store, std::slice::from_ref(&sent)).await;
            let mut transaction = pool.begin().await.unwrap();
            let error = store
                .record_in(&mut transaction, &sent, None)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.context().contains("autocommit=1"), "{error}");
            store.roll_back(transaction).await.unwrap();
            let record = store.get(sent.key()).await.unwrap().unwrap();
            assert_eq!(record.state, State::Pending);
            pool.close().await;
        }
    });
}

/// A heartbeat for a whole batch, of which a transaction settles one.
#[test]
fn leases_are_extended_past_one_whose_row_a_transaction_holds() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &[message("0"), message("1"), message("2")]).await;
        let leases: Vec<_> = claim(&store, 3)
            .await
            .into_iter()
            .map(|l| l.lease)
            .collect();
        let mut transaction = store.open().await.unwrap();
        let settled = store.settle_in(&mut transaction, &done(&leases[1])).await;
        assert_eq!(settled.unwrap(), [Settled::Done]);
        let length = 10 * common::LEASE;
        let began = Instant::now();
        let extended = store.extend(&leases, length).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "it waited");
        for (lease, extended) in leases.iter().zip(extended) {
            let Extended::Until(until) = extended else {
                panic!("{}: {extended:?}", lease.key);
            };
            // It has been told what it has.
            let kept = lease.key == leases[1].key;
            assert_eq!(until == lease.until, kept, "{}", lease.key);
            let record = store.get(&lease.key).await.unwrap().unwrap();
            assert_eq!(record.lease_until, Some(until), "{}", lease.key);
        }
        // One that has run out is not known to stand.
        inbox.clock.advance(2 * common::LEASE);
        let extended = store.extend(&leases, length).await.unwrap();
        assert!(matches!(extended[0], Extended::Until(_)), "{extended:?}");
        assert_eq!(extended[1], Extended::LeaseLost);
        store.roll_back(transaction).await.unwrap();
        let extended = store.extend_one(&leases[1], length).await.unwrap();
        assert!(matches!(extended, Extended::Until(_)), "{extended:?}");
    });
}

/// What waits for a transaction hands out leases that are measured from behind the wait.
#[test]
fn a_lease_that_was_waited_for_has_its_whole_length() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let (new, stored) = (message("new"), message("stored"));
        accept(&store, std::slice::from_ref(&stored)).await;
        for sent in [new, stored] {
            let mut transaction = store.open().await.unwrap();
            let recorded = store.record_in(&mut transaction, &sent, None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            let begin = async |store: MySqlStore| {
                let begun = store.begin(&sent, &common::terms()).await.unwrap();
                let Begun::Run(leased) = begun else {
                    panic!("{begun:?}");
                };
                leased.lease
            };
            let (lease, ended) = tokio::join!(
                begin(store.clone()),
                end_behind(&inbox, &store, transaction)
            );
            assert!(lease.until >= ended + common::LEASE, "begin");
            // Only the row of the work is held.
            inbox.clock.advance(2 * common::LEASE);
            let mut transaction = store.open().await.unwrap();
            let settled = store.settle_in(&mut transaction, &done(&lease)).await;
            assert_eq!(settled.unwrap(), [Settled::Done]);
            let (lease, ended) = tokio::join!(
                begin(store.clone()),
                end_behind(&inbox, &store, transaction)
            );
            assert!(lease.until >= ended + common::LEASE, "begin again");
            settle(&store, &lease, processed()).await;
        }
    });
}

/// The inbox's time, some time after a transaction has begun to wait for another.
async fn waited(inbox: &TestInbox) -> SystemTime {
    while waiting(inbox).await == 0 {}
    let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    inbox_api::from_micros(inbox.number(now).await + inbox.clock.micros())
}

async fn end_behind(
    inbox: &TestInbox,
    store: &MySqlStore,
    transaction: Transaction<'static, MySql>,
) -> SystemTime {
    let ended = waited(inbox).await;
    store.roll_back(transaction).await.unwrap();
    ended
}

/// A handler in a transaction of the servers' default isolation holds one message; the others' work
/// goes on.
#[test]
fn a_repeatable_read_transaction_leaves_the_others_their_messages() {
    on_each(async |mut inbox, kind| {
        inbox.store().await.close().await;
        inbox.options = inbox.options.operation_timeout(Duration::from_secs(15));
        let store = inbox.other().await;
        let pool = pool(&inbox, "DO 0").await;
        for what in ["record", "settle"] {
            let id = |n: usize| format!("{what} {n}");
            let all: Vec<_> = (0..6).map(|n| message(&id(n))).collect();
            accept(&store, &all).await;
            let begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION";
            let mut transaction = pool.begin_with(begin.into_sql_str()).await.unwrap();
            let mut leased = claim(&store, 3).await;
            if what == "settle" {
                let held = leased.remove(1);
                let settled = store.settle_in(&mut transaction, &done(&held.lease)).await;
                assert_eq!(settled.unwrap(), [Settled::Done]);
            } else {
                let held = message(&id(4));
                let recorded = store.record_in(&mut transaction, &held, None).await;
                assert_eq!(recorded.unwrap(), Recorded::First);
            }
            let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
            let extended = store.extend(&leases, common::LEASE).await.unwrap();
            assert_eq!(extended.len(), leases.len());
            for lease in &leases {
                settle(&store, lease, processed()).await;
            }
            let more = claim(&store, 10).await;
            assert_eq!(more.len(), if what == "settle" { 3 } else { 2 }, "{kind}");
            let outcome = Outcome::Retry {
                after: Duration::ZERO,
                error: "again".into(),
            };
            for leased in &more {
                settle(&store, &leased.lease, outcome.clone()).await;
            }
            let new: Vec<_> = ["", "0", "z"]
                .map(|id| message(&format!("{id}{what}")))
                .into();
            accept(&store, &new).await;
            store.commit(transaction).await.unwrap();
            for leased in claim(&store, 10).await {
                settle(&store, &leased.lease, processed()).await;
            }
        }
        pool.close().await;
    });
}
