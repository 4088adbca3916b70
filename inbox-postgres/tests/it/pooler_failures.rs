//! PgBouncer with nothing behind it, with no connection left, in each of its modes, and with
//! settings that do not suit.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inbox_api::{
    Effect, Error, ErrorKind, Operate as _, Receipt, Recorded, Schema as _, State, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_postgres::{PostgresOptions, PostgresStore};
use sqlx::{Connection as _, postgres::PgPoolOptions};
use test_servers::{Kind as ServerKind, Server, or_skip};

use crate::common::*;

/// An inbox on a server of the test's own, and a store that reaches it through PgBouncer.
struct Pooled {
    server: Arc<Mutex<Server>>,
    _pooler: Server,
    /// Without the pooler.
    direct: TestInbox,
    /// Through the pooler.
    place: TestInbox,
}

impl Pooled {
    async fn new(settings: &'static [&'static str]) -> Option<Self> {
        let server = own_server()?;
        let (server, pooler) = tokio::task::spawn_blocking(move || {
            let pooler = or_skip(ServerKind::Pgbouncer, server.pgbouncer_with(settings));
            (server, pooler)
        })
        .await
        .unwrap();
        let pooler = pooler.unwrap()?;
        let direct = TestInbox::at(server.url().to_owned());
        direct.store().await.close().await;
        let mut place = TestInbox::at(pooler.url().to_owned());
        place.schema.name = direct.schema.name.clone();
        place.options = pooled(direct.options.clone());
        Some(Self {
            server: Arc::new(Mutex::new(server)),
            _pooler: pooler,
            direct,
            place,
        })
    }
}

/// What a pooler that keeps no prepared statements asks for.
fn pooled(options: PostgresOptions) -> PostgresOptions {
    options
        .prepared_statements(false)
        .notifications(false)
        .acquire_timeout(Duration::from_secs(30))
}

fn retryable(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!error.context().contains("prepared"), "{error}");
}

/// Until the store works again. Nothing on the way may be anything but an outage.
async fn recovers(store: &PostgresStore, id: &str) {
    let started = Instant::now();
    while let Err(error) = store.receive_one(&message(id)).await {
        retryable(&error);
        assert!(started.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn all_operations_fail_as_unavailable(store: &PostgresStore) {
    for error in [
        store.receive_one(&message("new")).await.unwrap_err(),
        store.claim(&request(1)).await.unwrap_err(),
        store.begin(&message("new"), &terms()).await.unwrap_err(),
        store.statistics().await.unwrap_err(),
        store.get(&key("1")).await.unwrap_err(),
        store.exists().await.unwrap_err(),
        store.migrate().await.unwrap_err(),
        store.open().await.unwrap_err(),
    ] {
        retryable(&error);
    }
}

/// Connections to PgBouncer stay open while the server behind it is away, and every statement on
/// them is answered with PgBouncer's one error code.
#[tokio::test]
async fn a_server_that_is_away_behind_the_pooler_is_an_outage() {
    let Some(pooled) = Pooled::new(&[]).await else {
        return;
    };
    let store = pooled.place.connect().await.unwrap();
    for (round, down) in [Server::stop, Server::kill].into_iter().enumerate() {
        recovers(&store, &format!("before {round}")).await;
        let mut transaction = store.open().await.unwrap();
        let recorded = message(&format!("recorded {round}"));
        let first = store.record_in(&mut transaction, &recorded, None).await;
        assert_eq!(first.unwrap(), Recorded::First);
        act(&pooled.server, down).await;
        let error = store.commit(transaction).await.unwrap_err();
        retryable(&error);
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        all_operations_fail_as_unavailable(&store).await;
        // The pooler itself lets clients in.
        let connected = pooled.place.connect().await.unwrap();
        retryable(&connected.statistics().await.unwrap_err());
        act(&pooled.server, Server::start).await;
        recovers(&store, &format!("after {round}")).await;
    }
    assert_eq!(store.statistics().await.unwrap().count(State::Pending), 4);
}

#[tokio::test]
async fn a_pooler_without_a_free_connection_is_an_outage() {
    let Some(pooled) = Pooled::new(&["default_pool_size = 1", "query_wait_timeout = 1"]).await
    else {
        return;
    };
    let store = pooled.place.connect().await.unwrap();
    recovers(&store, "1").await;
    let mut holder = connection(&pooled.place.url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::raw_sql("SELECT 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let error = store.receive_one(&message("2")).await.unwrap_err();
    retryable(&error);
    assert!(error.context().contains("query_wait_timeout"), "{error}");
    all_operations_fail_as_unavailable(&store).await;
    transaction.rollback().await.unwrap();
    recovers(&store, "2").await;
}

/// Everything works, wake-ups and prepared statements included.
#[tokio::test]
async fn in_session_mode_everything_works() {
    let Some(mut pooled) = Pooled::new(&["pool_mode = session", "default_pool_size = 20"]).await
    else {
        return;
    };
    pooled.place.options = pooled.direct.options.clone();
    let store = pooled.place.connect().await.unwrap();
    let mut subscription = store.subscribe(&[handler("h")]).await.unwrap();
    works(&store).await;
    let woken = tokio::time::timeout(Duration::from_secs(30), subscription.woken()).await;
    assert!(woken.is_ok());
}

#[tokio::test]
async fn in_transaction_mode_everything_but_wake_ups_works() {
    let Some(pooled) = Pooled::new(&[]).await else {
        return;
    };
    works(&pooled.place.connect().await.unwrap()).await;
}

async fn works(store: &PostgresStore) {
    store.create().await.unwrap();
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
    let lease = claim_one(store).await;
    settle(store, &lease, processed()).await;
    let mut transaction = store.open().await.unwrap();
    let first = store.record_in(&mut transaction, &message("2"), None).await;
    assert_eq!(first.unwrap(), Recorded::First);
    store.commit(transaction).await.unwrap();
    assert_eq!(store.statistics().await.unwrap().count(State::Processed), 2);
}

/// No transaction can be begun, and retrying does not help.
#[tokio::test]
async fn in_statement_mode_what_needs_a_transaction_says_so() {
    let Some(pooled) = Pooled::new(&["pool_mode = statement"]).await else {
        return;
    };
    let store = pooled.place.connect().await.unwrap();
    // Looking at the schema takes no transaction.
    assert!(store.exists().await.unwrap());
    for error in [
        store.receive_one(&message("1")).await.unwrap_err(),
        store.claim(&request(1)).await.unwrap_err(),
        store.open().await.unwrap_err(),
        store.migrate().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.context().contains("pool_mode"), "{error}");
        assert_eq!(error.effect(), Effect::None, "{error}");
    }
    let direct = pooled.direct.connect().await.unwrap();
    assert_eq!(direct.statistics().await.unwrap().count(State::Pending), 0);
}

/// The driver asks for a format of floating-point numbers when it connects.
#[tokio::test]
async fn the_pooler_need_not_ignore_what_the_driver_asks_for() {
    let Some(pooled) = Pooled::new(&["ignore_startup_parameters ="]).await else {
        return;
    };
    let store = pooled.place.connect().await.unwrap();
    works(&store).await;
    // A pool that was handed in is as its owner has made it; the error says what is wrong.
    let pool = PgPoolOptions::new().connect_lazy_with(connection_options(&pooled.place.url));
    let store = PostgresStore::with_pool(pool, pooled.place.options.clone());
    let error = store.statistics().await.unwrap_err();
    retryable(&error);
    assert!(error.context().contains("extra_float_digits"), "{error}");
}
