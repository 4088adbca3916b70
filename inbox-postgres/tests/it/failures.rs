//! What a caller is told when something is wrong with the connections or the server, and that the
//! store goes on when it is right again.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inbox_api::{
    Edit, Effect, Error, ErrorKind, Operate as _, Receipt, Schema as _, State, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_postgres::PostgresStore;
use sqlx::postgres::PgPoolOptions;
use test_servers::{Kind as ServerKind, Server, or_skip};

use crate::common::*;

/// An inbox on a server of the test's own.
async fn alone() -> Option<(Arc<Mutex<Server>>, Ready)> {
    let server = own_server()?;
    let place = TestInbox::at(server.url().to_owned());
    let store = place.store().await;
    Some((Arc::new(Mutex::new(server)), Ready { place, store }))
}

fn unavailable(error: &Error, effect: Effect) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), effect, "{error}");
    assert!(error.is_retryable(), "{error}");
}

/// Until the store works again, which may take its pool some connections.
async fn recovers(store: &PostgresStore, id: &str) {
    let started = Instant::now();
    while let Err(error) = store.receive_one(&message(id)).await {
        assert!(started.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_exhausted_pool_says_so_and_has_changed_nothing() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    store.close().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy_with(connection_options(&place.url));
    let store = PostgresStore::with_pool(pool.clone(), place.options.clone());
    let started = Instant::now();
    // The time covers the making of the connection, too.
    let taken = loop {
        match pool.acquire().await {
            Ok(taken) => break taken,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "{error}"),
        }
    };
    for error in [
        store.receive_one(&message("1")).await.unwrap_err(),
        store.claim(&request(1)).await.unwrap_err(),
        store.begin(&message("1"), &terms()).await.unwrap_err(),
        store.statistics().await.unwrap_err(),
        store.exists().await.unwrap_err(),
        store.open().await.unwrap_err(),
    ] {
        unavailable(&error, Effect::None);
        assert!(error.to_string().contains("pool is exhausted"), "{error}");
    }
    drop(taken);
    let receipt = loop {
        match store.receive_one(&message("1")).await {
            Ok(receipt) => break receipt,
            Err(error) => unavailable(&error, Effect::None),
        }
        assert!(started.elapsed() < Duration::from_secs(60));
    };
    assert_eq!(receipt, Receipt::Accepted);
}

/// What has the address of the primary after a fail-over.
async fn standby_of(primary: &Arc<Mutex<Server>>) -> Option<Server> {
    let primary = Arc::clone(primary);
    let made = tokio::task::spawn_blocking(move || lock(&primary).standby());
    or_skip(ServerKind::Postgres, made.await.unwrap()).unwrap()
}

/// Until this message is there, too.
async fn replicated(store: &PostgresStore, id: &str) {
    let started = Instant::now();
    while store.get(&key(id)).await.ok().flatten().is_none() {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "not replicated"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A fail-over: the address that was the primary's is a standby's, until that is promoted.
#[tokio::test]
async fn a_standby_is_read_only_until_it_is_promoted() {
    let Some((primary, Ready { place, store })) = alone().await else {
        return;
    };
    let _ = store.receive_one(&message("1")).await.unwrap();
    let Some(standby) = standby_of(&primary).await else {
        return;
    };
    let mut options = place.options.clone();
    options = options.notifications(false);
    let after = PostgresStore::connect(options.connect_with(connection_options(standby.url())))
        .await
        .unwrap();
    replicated(&after, "1").await;
    // Looking works.
    assert!(after.exists().await.unwrap());
    assert_eq!(after.statistics().await.unwrap().count(State::Pending), 1);
    for error in [
        after.receive_one(&message("2")).await.unwrap_err(),
        after.claim(&request(1)).await.unwrap_err(),
        after.begin(&message("2"), &terms()).await.unwrap_err(),
        after.replay(&key("1"), &Edit::default()).await.unwrap_err(),
        after.discard(&key("1")).await.unwrap_err(),
    ] {
        unavailable(&error, Effect::None);
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    act(&primary, Server::kill).await;
    let standby = Arc::new(Mutex::new(standby));
    act(&standby, Server::promote).await;
    recovers(&after, "2").await;
    let claimed = claim(&after, 10).await;
    assert_eq!(ids(&claimed), ["1", "2"]);
}

/// The other kind of fail-over: the address moves, and what has connections to the former primary finds a server
/// there that lives on and only reads.
#[tokio::test]
async fn a_connection_to_a_server_that_only_reads_is_given_up() {
    let Some((primary, Ready { place, store })) = alone().await else {
        return;
    };
    let _ = store.receive_one(&message("1")).await.unwrap();
    let Some(standby) = standby_of(&primary).await else {
        return;
    };
    let (proxy, url) = proxied(standby.url()).await.unwrap();
    for in_transaction in [false, true] {
        proxy.redirect(address(standby.url()));
        let options = place
            .options
            .clone()
            .notifications(false)
            .max_connections(1);
        let after = PostgresStore::connect(options.connect_with(connection_options(&url)))
            .await
            .unwrap();
        replicated(&after, "1").await;
        let message = message(&format!("in a transaction: {in_transaction}"));
        let error = if in_transaction {
            let mut transaction = after.open().await.unwrap();
            proxy.redirect(address(&place.url));
            let recorded = after.record_in(&mut transaction, &message, None);
            let error = recorded.await.unwrap_err();
            after.roll_back(transaction).await.unwrap();
            error
        } else {
            proxy.redirect(address(&place.url));
            after.receive_one(&message).await.unwrap_err()
        };
        unavailable(&error, Effect::None);
        assert!(error.to_string().contains("read-only"), "{error}");
        let receipt = after.receive_one(&message).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
}

/// The address of the server in `url`.
fn address(url: &str) -> std::net::SocketAddr {
    let url = url::Url::parse(url).unwrap();
    url.socket_addrs(|| Some(5432)).unwrap()[0]
}

/// One that fails tells of the others.
#[tokio::test]
async fn all_connections_to_a_server_that_only_reads_are_given_up_at_once() {
    let Some((primary, Ready { place, store })) = alone().await else {
        return;
    };
    accept(&store, &[message("1")]).await;
    let Some(standby) = standby_of(&primary).await else {
        return;
    };
    let (proxy, url) = proxied(standby.url()).await.unwrap();
    let options = place.options.clone().notifications(false);
    let after = PostgresStore::connect(options.connect_with(connection_options(&url)))
        .await
        .unwrap();
    replicated(&after, "1").await;
    // A connection for each.
    let (one, two, three) =
        tokio::join!(after.statistics(), after.statistics(), after.statistics());
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    let held = after.open().await.unwrap();
    proxy.redirect(address(&place.url));
    let error = after.receive_one(&message("2")).await.unwrap_err();
    unavailable(&error, Effect::None);
    assert!(error.to_string().contains("read-only"), "{error}");
    // Also the one that was in use meanwhile.
    after.roll_back(held).await.unwrap();
    let (a, b, c, d) = (message("a"), message("b"), message("c"), message("d"));
    let (one, two, three, four) = tokio::join!(
        after.receive_one(&a),
        after.receive_one(&b),
        after.receive_one(&c),
        after.receive_one(&d)
    );
    for receipt in [one, two, three, four] {
        assert_eq!(receipt.unwrap(), Receipt::Accepted);
    }
}

/// The store itself has sent no write over it.
#[tokio::test]
async fn a_connection_whose_server_refuses_the_callers_own_writes_is_given_up() {
    let Some((primary, Ready { place, store })) = alone().await else {
        return;
    };
    accept(&store, &[message("1")]).await;
    let Some(standby) = standby_of(&primary).await else {
        return;
    };
    let (proxy, url) = proxied(standby.url()).await.unwrap();
    for commits in [false, true] {
        proxy.redirect(address(standby.url()));
        let options = place.options.clone().notifications(false);
        let options = options.connect_with(connection_options(&url));
        let after = PostgresStore::connect(options.max_connections(1))
            .await
            .unwrap();
        replicated(&after, "1").await;
        let mut transaction = after.open().await.unwrap();
        proxy.redirect(address(&place.url));
        let write = sqlx::raw_sql("CREATE TABLE callers_own ()");
        assert!(write.execute(&mut *transaction).await.is_err());
        if commits {
            let error = after.commit(transaction).await.unwrap_err();
            assert_eq!(error.effect(), Effect::None, "{error}");
        } else {
            after.roll_back(transaction).await.unwrap();
        }
        let next = message(&format!("commits: {commits}"));
        let receipt = after.receive_one(&next).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
}

/// The former primary lives on and takes no writes: nothing would be notified there any more.
#[tokio::test]
async fn wake_ups_follow_the_address_to_the_new_primary() {
    let Some((primary, Ready { place, store })) = alone().await else {
        return;
    };
    accept(&store, &[message("1")]).await;
    let Some(standby) = standby_of(&primary).await else {
        return;
    };
    let (proxy, url) = proxied(&place.url).await.unwrap();
    let options = place.options.clone();
    let after = PostgresStore::connect(options.connect_with(connection_options(&url)))
        .await
        .unwrap();
    let mut subscription = after.subscribe(&[handler("h")]).await.unwrap();
    assert_eq!(after.statistics().await.unwrap().count(State::Pending), 1);
    let address_of_next = address(standby.url());
    let standby = Arc::new(Mutex::new(standby));
    act(&standby, Server::promote).await;
    let settings = "ALTER SYSTEM SET default_transaction_read_only = 'on'";
    place.run(settings).await.unwrap();
    place.run("SELECT pg_reload_conf()").await.unwrap();
    let started = Instant::now();
    let reads = "SELECT current_setting('default_transaction_read_only')::boolean";
    while !place.value::<bool>(reads).await {
        assert!(started.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.redirect(address_of_next);
    let error = after.claim(&request(1)).await.unwrap_err();
    unavailable(&error, Effect::None);
    let woken = tokio::time::timeout(Duration::from_secs(60), subscription.woken()).await;
    assert!(woken.is_ok(), "by the new connection");
    accept(&after, &[message("2")]).await;
    let woken = tokio::time::timeout(Duration::from_secs(60), subscription.woken()).await;
    assert!(woken.is_ok(), "by the message");
}

/// The server has a code for everything unexpected, and words for what it is.
#[tokio::test]
async fn a_part_that_vanishes_under_a_statement_is_a_missing_schema() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    for (words, kind) in [
        (
            "could not open relation with OID 7",
            ErrorKind::SchemaMissing,
        ),
        (
            "cache lookup failed for function 7",
            ErrorKind::SchemaMissing,
        ),
        ("something else", ErrorKind::Other),
    ] {
        place
            .run(&format!(
                "CREATE OR REPLACE FUNCTION {{schema}}.fails() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION '{words}' USING ERRCODE = 'XX000'; END $$;
                 CREATE OR REPLACE TRIGGER fails BEFORE INSERT ON {{schema}}.inbox_message
                 FOR EACH ROW EXECUTE FUNCTION {{schema}}.fails()"
            ))
            .await
            .unwrap();
        let error = store.receive_one(&message("1")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{words}: {error}");
    }
}

/// Both have changed nothing, and say so.
#[tokio::test]
async fn time_outs_of_the_servers_own_undo_the_statement() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    let mut holder = store.open().await.unwrap();
    store
        .receive_in(&mut holder, &[message("1")])
        .await
        .unwrap();
    for (setting, kind) in [
        ("statement_timeout", ErrorKind::Unavailable),
        ("lock_timeout", ErrorKind::Conflict),
    ] {
        let pool = PgPoolOptions::new()
            .connect_with(connection_options(&place.url).options([(setting, "100")]))
            .await
            .unwrap();
        let impatient = PostgresStore::with_pool(pool, place.options.clone());
        // It waits for the first copy's transaction.
        let error = impatient.receive_one(&message("1")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{setting}: {error}");
        assert_eq!(error.effect(), Effect::None, "{setting}");
        assert!(error.is_retryable(), "{setting}");
    }
    store.commit(holder).await.unwrap();
    assert_eq!(
        store.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
}

/// A server of version 18 with settings of the test's.
fn newest_with(settings: &[&str]) -> Option<Server> {
    let arguments: Vec<&str> = settings.iter().flat_map(|s| ["-c", *s]).collect();
    let kind = ServerKind::Postgres18;
    or_skip(kind, test_servers::find_own(kind, &arguments)).unwrap()
}

/// A session that listens and does not read keeps all notifications of the server; when it is
/// gone, all goes on.
#[tokio::test]
async fn a_full_queue_of_notifications_is_waited_for() {
    let Some(server) = newest_with(&["max_notify_queue_pages=64"]) else {
        return;
    };
    let place = TestInbox::at(server.url().to_owned());
    let store = place.store().await;
    let mut listener = connection(&place.url).await.unwrap();
    for sql in ["LISTEN other", "BEGIN", "SELECT 1"] {
        sqlx::raw_sql(sql).execute(&mut listener).await.unwrap();
    }
    let mut filling = connection(&place.url).await.unwrap();
    for n in 0.. {
        let notify = format!("SELECT pg_notify('other', repeat('x', 7000) || {n})");
        let notified = sqlx::raw_sql(sqlx::AssertSqlSafe(notify))
            .execute(&mut filling)
            .await;
        if notified.is_err() {
            break;
        }
        assert!(n < 10_000, "the queue does not fill up");
    }
    let error = store.receive_one(&message("1")).await.unwrap_err();
    unavailable(&error, Effect::None);
    assert!(error.context().contains("notifications"), "{error}");
    drop(listener);
    recovers(&store, "1").await;
    assert_eq!(claim(&store, 10).await.len(), 1);
}

/// What else has the same code is over one of the server's limits, for good.
#[tokio::test]
async fn another_limit_of_the_servers_is_not_waited_for() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    place
        .run(
            "CREATE FUNCTION {schema}.limited() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'too large' USING ERRCODE = '54000'; END $$;
             CREATE TRIGGER limited BEFORE INSERT ON {schema}.inbox_message
             FOR EACH ROW EXECUTE FUNCTION {schema}.limited()",
        )
        .await
        .unwrap();
    let error = store.receive_one(&message("1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn a_transaction_that_the_server_finds_too_long_is_an_outage() {
    let Some(server) = newest_with(&[]) else {
        return;
    };
    let place = TestInbox::at(server.url().to_owned());
    let store = place.store().await;
    let mut holder = store.open().await.unwrap();
    store
        .receive_in(&mut holder, &[message("1")])
        .await
        .unwrap();
    let pool = PgPoolOptions::new()
        .connect_with(connection_options(&place.url).options([("transaction_timeout", "200")]))
        .await
        .unwrap();
    let impatient = PostgresStore::with_pool(pool, place.options.clone());
    let error = impatient.receive_one(&message("1")).await.unwrap_err();
    unavailable(&error, Effect::None);
    assert!(error.context().contains("transaction_timeout"), "{error}");
    store.commit(holder).await.unwrap();
}

/// The server ends a connection under a write: whether that was committed, nobody can say.
#[tokio::test]
async fn a_connection_that_is_ended_leaves_the_outcome_open() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    let mut holder = store.open().await.unwrap();
    store
        .receive_in(&mut holder, &[message("1")])
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.receive_one(&message("1")).await }
    });
    let started = Instant::now();
    loop {
        let ended: i64 = place
            .value(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%receive%'
                   AND pid <> pg_backend_pid()",
            )
            .await;
        if ended > 0 {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nobody waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unavailable(&waiting.await.unwrap().unwrap_err(), Effect::Unknown);
    store.roll_back(holder).await.unwrap();
    assert_eq!(
        store.receive_one(&message("1")).await.unwrap(),
        Receipt::Accepted,
        "repeating it is safe"
    );
}

#[tokio::test]
async fn a_server_that_comes_back_finds_the_store_working() {
    let Some((server, Ready { mut place, .. })) = alone().await else {
        return;
    };
    // For so long the error is waited for.
    place.options = place.options.acquire_timeout(Duration::from_secs(5));
    let store = place.other().await;
    for (round, down) in [Server::stop, Server::kill].into_iter().enumerate() {
        recovers(&store, &format!("before {round}")).await;
        act(&server, down).await;
        let error = store.statistics().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        act(&server, Server::start).await;
        recovers(&store, &format!("after {round}")).await;
    }
    assert_eq!(store.statistics().await.unwrap().count(State::Pending), 4);
}

/// Nothing that an error says, or what it was made from says, is a secret.
#[tokio::test]
async fn errors_keep_secrets() {
    let Some(Ready { place, .. }) = ready().await else {
        return;
    };
    let told = |error: &Error| {
        let mut text = format!("{error} {error:?}");
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            text += &format!(" {cause} {cause:?}");
            source = cause.source();
        }
        text
    };
    let options = connection_options(&place.url).password("hunter2");
    let refused = PostgresStore::connect(
        place
            .options
            .clone()
            .connect_with(options.clone().database("nowhere")),
    )
    .await
    .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SchemaMissing, "{refused}");
    let store = PostgresStore::connect(place.options.clone().connect_with(options.clone()))
        .await
        .unwrap();
    let sent = message_with("1", "4111111111111111");
    store.close().await;
    let closed = store.receive_one(&sent).await.unwrap_err();
    let unreachable = PostgresStore::connect(place.options.clone().connect_with(options.port(1)))
        .await
        .unwrap_err();
    unavailable(&unreachable, Effect::None);
    place
        .run("DROP TABLE {schema}.inbox_message CASCADE")
        .await
        .unwrap();
    let store = place.other().await;
    let missing = store.receive_one(&sent).await.unwrap_err();
    for error in [refused, closed, unreachable, missing] {
        let told = told(&error);
        assert!(!told.contains("hunter2"), "{told}");
        assert!(!told.contains("4111111111111111"), "{told}");
    }
}
