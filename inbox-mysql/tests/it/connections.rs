//! What becomes of connections: silent ones are given up, and sessions of the caller's pool are left as
//! they were.

use std::time::Duration;

use conformance_tests::crash::proxy::Proxy;
use inbox_api::{
    Effect, ErrorKind, Extended, Operate as _, Outcome, Recorded, Settled, Settlement, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_mysql::MySqlStore;
use sqlx::{Executor as _, mysql::MySqlPoolOptions};
use test_servers::Kind;

use crate::common::{
    self, TestInbox, accept, claim, connect_options, key, message, on_each, own_server, terms,
};

const LIMIT: Duration = Duration::from_secs(1);
/// Where most calls are answered.
const PATIENCE: Duration = Duration::from_secs(5);
/// Far beyond the limit, on any machine.
const HUNG: Duration = Duration::from_secs(60);
/// How many calls may fail in turn: one that was silent, and one that waited for its place.
const MOST_FAILED: usize = 5;

/// Goes on until a call is answered.
async fn answered<T, F: Future<Output = inbox_api::Result<T>>>(
    what: &str,
    call: impl Fn() -> F,
) -> T {
    for _ in 0..MOST_FAILED {
        match tokio::time::timeout(HUNG, call()).await.unwrap() {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}"),
        }
    }
    panic!("{what}: {MOST_FAILED} calls failed one after the other");
}

async fn answers(store: &MySqlStore, what: &str) {
    let none = key("none");
    assert_eq!(answered(what, || store.get(&none)).await, None);
}

/// A store with room for one connection: one that is not given up is missed at once.
async fn with_one_connection(inbox: &mut common::TestInbox) -> (MySqlStore, Proxy) {
    inbox.store().await.close().await;
    let proxy = inbox.behind_proxy().await.unwrap();
    let options = inbox.options.clone().operation_timeout(LIMIT);
    let options = options.max_connections(1);
    let store = answered("connecting", || MySqlStore::connect(options.clone())).await;
    (store, proxy)
}

#[test]
fn a_silent_connection_keeps_nobody_from_its_place() {
    on_each(async |mut inbox, _| {
        let (store, proxy) = with_one_connection(&mut inbox).await;
        // Also while the driver looks whether a connection that was given back is sound.
        for _ in 0..3 {
            answers(&store, "a silent connection").await;
            proxy.silence();
        }
        answers(&store, "a silent connection").await;
        let open = || answered("opening", || store.open());
        let transaction = open().await;
        proxy.silence();
        drop(transaction);
        answers(&store, "a dropped transaction").await;
        let mut transaction = open().await;
        proxy.silence();
        let sent = message("1");
        let recorded = store.record_in(&mut transaction, &sent, None).await;
        assert_eq!(recorded.unwrap_err().kind(), ErrorKind::Unavailable);
        let rolled_back = tokio::time::timeout(HUNG, store.roll_back(transaction)).await;
        assert_eq!(
            rolled_back.unwrap().unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        answers(&store, "a transaction that is rolled back").await;
        let transaction = open().await;
        proxy.silence();
        let committed = tokio::time::timeout(HUNG, store.commit(transaction)).await;
        assert_eq!(
            committed.unwrap().unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        answers(&store, "a transaction that is committed").await;
        proxy.silence();
        tokio::time::timeout(HUNG, store.close()).await.unwrap();
    });
}

/// An operation that waits for a lock is over when its time is, repetitions included.
#[test]
fn the_limit_is_that_of_the_whole_operation() {
    on_each(async |mut inbox, _| {
        let patient = inbox.store().await;
        let sent = message("1");
        accept(&patient, std::slice::from_ref(&sent)).await;
        inbox.options = inbox.options.operation_timeout(3 * LIMIT);
        // A lock is waited for so long, and then again.
        let pool = MySqlPoolOptions::new()
            .after_connect(|connection, _| {
                Box::pin(async move {
                    let set = "SET SESSION innodb_lock_wait_timeout = 1";
                    connection.execute(set).await?;
                    Ok(())
                })
            })
            .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
            .await
            .unwrap();
        let connect = || MySqlStore::with_pool(pool.clone(), inbox.options.clone());
        let store = answered("connecting", connect).await;
        let mut holding = inbox.connection().await.unwrap();
        sqlx::raw_sql("START TRANSACTION; SELECT * FROM inbox_message FOR UPDATE")
            .execute(&mut holding)
            .await
            .unwrap();
        let started = std::time::Instant::now();
        let terms = terms();
        let begun = tokio::time::timeout(HUNG, store.begin(&sent, &terms)).await;
        let error = begun.unwrap().unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(started.elapsed() >= 2 * LIMIT, "it was tried again");
        sqlx::raw_sql("ROLLBACK")
            .execute(&mut holding)
            .await
            .unwrap();
        let found = answered("free again", || store.get(sent.key())).await;
        assert!(found.is_some());
        let begun = patient.begin(&sent, &terms).await.unwrap();
        assert!(matches!(begun, inbox_api::Begun::Run(_)));
    });
}

#[test]
fn the_callers_pool_gets_rid_of_silent_connections() {
    on_each(async |mut inbox, _| {
        inbox.store().await.close().await;
        let proxy = inbox.behind_proxy().await.unwrap();
        let connect = inbox.options.connection().clone();
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .connect_with(connect)
            .await
            .unwrap();
        let options = inbox.options.clone().operation_timeout(LIMIT);
        let connect = || MySqlStore::with_pool(pool.clone(), options.clone());
        let store = answered("connecting", connect).await;
        answers(&store, "before").await;
        proxy.silence();
        answers(&store, "a silent connection").await;
    });
}

/// Transactions have every connection of the pool, and leases are renewed all the same.
async fn are_renewed(store: &MySqlStore, connections: usize) {
    accept(store, &[message("1"), message("2")]).await;
    let leases: Vec<_> = claim(store, 2).await;
    let leases: Vec<_> = leases.into_iter().map(|leased| leased.lease).collect();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(store.open().await.unwrap());
    }
    for _ in 0..3 {
        let (one, other) = tokio::join!(
            store.extend(&leases[..1], common::LEASE),
            store.extend(&leases[1..], common::LEASE)
        );
        for extended in [one.unwrap(), other.unwrap()] {
            assert!(matches!(extended[..], [Extended::Until(_)]), "{extended:?}");
        }
    }
    // All else waits.
    let refused = store.open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    drop(open);
    store.close().await;
}

#[test]
fn leases_are_renewed_while_transactions_have_all_connections() {
    on_each(async |inbox, _| {
        inbox.store().await.close().await;
        let options = inbox.options.clone().operation_timeout(PATIENCE);
        let store = MySqlStore::connect(options.max_connections(3))
            .await
            .unwrap();
        are_renewed(&store, 3).await;
    });
}

#[test]
fn leases_are_renewed_while_transactions_have_all_connections_of_the_callers_pool() {
    on_each(async |inbox, _| {
        inbox.store().await.close().await;
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
            .await
            .unwrap();
        let options = inbox.options.clone().operation_timeout(PATIENCE);
        let store = MySqlStore::with_pool(pool.clone(), options).await.unwrap();
        are_renewed(&store, 2).await;
        assert!(!pool.is_closed());
    });
}

#[test]
fn results_and_large_lists_do_not_stay_in_sessions() {
    on_each(async |inbox, _| {
        inbox.store().await.close().await;
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
            .await
            .unwrap();
        let store = MySqlStore::with_pool(pool.clone(), inbox.options.clone())
            .await
            .unwrap();
        let lists = "SELECT COALESCE(LENGTH(@inbox_settled), 0) \
                     + COALESCE(LENGTH(@inbox_claimed), 0) + COALESCE(LENGTH(@inbox_held), 0)";
        let all: Vec<_> = (0..4000).map(|n| message(&format!("{n}"))).collect();
        accept(&store, &all).await;
        let leased = claim(&store, 4000).await;
        let left: i64 = sqlx::query_scalar(lists).fetch_one(&pool).await.unwrap();
        assert_eq!(left, 0, "after a large claim");
        let leases: Vec<_> = leased.into_iter().map(|leased| leased.lease).collect();
        let extended = store.extend(&leases, common::LEASE).await.unwrap();
        assert_eq!(extended.len(), leases.len());
        let left: i64 = sqlx::query_scalar(lists).fetch_one(&pool).await.unwrap();
        assert_eq!(left, 0, "after a large extension");
        let settlements = |leases: &[inbox_api::Lease]| -> Vec<Settlement> {
            let settlement = |lease: &inbox_api::Lease| Settlement {
                lease: lease.clone(),
                outcome: Outcome::Processed {
                    result: Some("a secret".into()),
                },
            };
            leases.iter().map(settlement).collect()
        };
        let settled = store.settle(&settlements(&leases[..1])).await.unwrap();
        assert_eq!(settled, [Settled::Done]);
        let left: i64 = sqlx::query_scalar(lists).fetch_one(&pool).await.unwrap();
        assert_eq!(left, 0, "after a result");
        let mut transaction = pool.begin().await.unwrap();
        let settled = store
            .settle_in(&mut transaction, &settlements(&leases[1..2]))
            .await;
        assert_eq!(settled.unwrap(), [Settled::Done]);
        let left: i64 = sqlx::query_scalar(lists)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(left, 0, "after a result within a transaction");
        store.commit(transaction).await.unwrap();
    });
}

/// The worker's sessions, up to one of them.
struct Sessions<'a> {
    inbox: &'a TestInbox,
    newest: i64,
}

impl<'a> Sessions<'a> {
    const OF_WORKER: &'static str = "FROM information_schema.processlist WHERE user LIKE 'w%'";

    async fn of(inbox: &'a TestInbox) -> Self {
        let newest = format!("SELECT COALESCE(MAX(id), 0) {}", Self::OF_WORKER);
        let newest = inbox.number(&newest).await;
        assert!(newest > 0, "there is a session");
        Self { inbox, newest }
    }

    /// Waits until the server has seen that all of them are closed.
    async fn until_closed(self, what: &str) {
        let newest = self.newest;
        let left = format!("SELECT COUNT(*) {} AND id <= {newest}", Self::OF_WORKER);
        let mut looks = 0;
        while self.inbox.number(&left).await > 0 {
            looks += 1;
            assert!(looks < 600, "{what}: sessions of before are still used");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What a primary becomes in a fail-over, behind the address of which there is another one then.
async fn leaves_a_server_that_takes_no_writes(inbox: &TestInbox, store: &MySqlStore, name: &str) {
    let id = |what: &str| message(&format!("{name} {what}"));
    accept(store, &[id("before")]).await;
    let sessions = Sessions::of(inbox).await;
    inbox.run("SET GLOBAL read_only = ON").await.unwrap();
    let error = store.receive_one(&id("refused")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::None);
    sessions.until_closed("an operation").await;

    let mut transaction = store.open().await.unwrap();
    let sessions = Sessions::of(inbox).await;
    let recorded = store
        .record_in(&mut transaction, &id("refused"), None)
        .await;
    assert_eq!(recorded.unwrap_err().kind(), ErrorKind::Unavailable);
    store.roll_back(transaction).await.unwrap();
    sessions.until_closed("a transaction").await;

    inbox.run("SET GLOBAL read_only = OFF").await.unwrap();
    accept(store, &[id("refused")]).await;
    let mut transaction = store.open().await.unwrap();
    let recorded = store.record_in(&mut transaction, &id("after"), None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    let sessions = Sessions::of(inbox).await;
    inbox.run("SET GLOBAL read_only = ON").await.unwrap();
    let committed = store.commit(transaction).await;
    assert_eq!(committed.unwrap_err().kind(), ErrorKind::Unavailable);
    sessions.until_closed("a commit").await;
    inbox.run("SET GLOBAL read_only = OFF").await.unwrap();
}

#[test]
fn connections_to_a_server_that_takes_no_writes_are_closed() {
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let Some(server) = own_server(kind) else {
            continue;
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            inbox.store().await.close().await;
            let connect = inbox.add_worker().await;
            let options = inbox.options.clone().connect_with(connect.clone());
            let store = MySqlStore::connect(options.clone()).await.unwrap();
            leaves_a_server_that_takes_no_writes(&inbox, &store, "own").await;
            store.close().await;
            let pool = MySqlPoolOptions::new()
                .max_connections(2)
                .connect_with(connect)
                .await
                .unwrap();
            let store = MySqlStore::with_pool(pool, options).await.unwrap();
            leaves_a_server_that_takes_no_writes(&inbox, &store, "foreign").await;
        });
    }
}
