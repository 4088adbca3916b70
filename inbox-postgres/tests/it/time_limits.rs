//! Connections that go silent: every call ends, and the next one uses another connection.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use conformance_tests::crash::proxy::Proxy;
use inbox_api::{
    Due, Edit, Effect, Error, ErrorKind, Filter, Operate as _, Page, PurgeRequest, Receipt,
    Schema as _, Settlement, Slice, State, Store as _, StoreExt as _, Transactional as _,
};
use inbox_postgres::{Partitions, PostgresOptions, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::common::*;

/// Longer than any call takes that is answered, even on a slow machine, as a rule.
const LIMIT: Duration = Duration::from_secs(2);
/// Longer than anything here takes, so that only a hang fails.
const FOR_EVER: Duration = Duration::from_secs(60);

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// An inbox on the shared server, which the store under test reaches through a proxy.
struct Silent {
    place: TestInbox,
    /// Past the proxy, for what has to be answered.
    patient: PostgresStore,
    proxy: Proxy,
    /// Through the proxy.
    url: String,
}

impl Silent {
    async fn new(change: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Option<Self> {
        let mut place = TestInbox::shared()?;
        place.options = change(place.options);
        let patient = place.store().await;
        place.options = place.options.operation_timeout(LIMIT).max_connections(1);
        let (proxy, url) = proxied(&place.url).await.unwrap();
        Some(Self {
            place,
            patient,
            proxy,
            url,
        })
    }

    fn connection(&self) -> PgConnectOptions {
        connection_options(&self.url)
    }

    /// A pool that trusts its one connection, so that a silent one is met in the call itself.
    fn pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .acquire_timeout(FOR_EVER)
            .connect_lazy_with(self.connection())
    }

    fn on_pool(&self) -> (PostgresStore, PgPool) {
        let pool = self.pool();
        let store = PostgresStore::with_pool(pool.clone(), self.place.options.clone());
        (store, pool)
    }

    /// Silences the pool's one connection while nobody uses it: the driver goes on using it for a
    /// moment after a call.
    async fn silence(&self, pool: &PgPool) {
        let started = Instant::now();
        while pool.num_idle() == 0 {
            assert!(started.elapsed() < FOR_EVER, "no connection");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.proxy.silence();
    }

    async fn on_own_pool(&self) -> PostgresStore {
        let options = self.place.options.clone().connect_with(self.connection());
        answered("connect", || PostgresStore::connect(options.clone())).await
    }
}

/// Ends, with this error.
async fn ends<T>(what: &str, call: impl Future<Output = Result<T, Error>>) -> Error {
    match tokio::time::timeout(FOR_EVER, call).await {
        Ok(Err(error)) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            error
        }
        Ok(Ok(_)) => panic!("{what} succeeded on a silent connection"),
        Err(_) => panic!("{what} does not end"),
    }
}

/// The one place of the pool is free, and another connection is made there.
async fn goes_on(what: &str, store: &PostgresStore) {
    let _ = answered(&format!("after {what}"), || store.statistics()).await;
}

/// Repeats what a slow machine does not answer in time.
async fn answered<T, F: Future<Output = Result<T, Error>>>(what: &str, call: impl Fn() -> F) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
                assert!(started.elapsed() < FOR_EVER, "{what}: {error}");
            }
        }
    }
}

/// All operations that use a connection of the pool.
fn calls(store: &PostgresStore) -> Vec<(&'static str, Call<'_>)> {
    macro_rules! call {
        ($name:literal, $call:expr) => {
            (
                $name,
                Box::pin(async move { $call.await.map(drop) }) as Call<'_>,
            )
        };
    }
    let expired = |state| PurgeRequest::new(state, Duration::ZERO, 10).unwrap();
    let slice = || Slice {
        after: None,
        limit: 10,
    };
    vec![
        call!("receive", store.receive(&[message("new")])),
        call!(
            "receive of more than a socket takes",
            store.receive(&[message_with("large", vec![b'x'; 15 << 20])])
        ),
        call!("claim", store.claim(&request(1))),
        call!("begin", store.begin(&message("new"), &terms())),
        call!("get", store.get(&key("1"))),
        call!("list", store.list(&Filter::default(), &Page::first(10))),
        call!("count", store.count(&Filter::default())),
        call!("statistics", store.statistics()),
        call!("replay", store.replay(&key("1"), &Edit::default())),
        call!("reschedule", store.reschedule(&key("1"), Due::Now)),
        call!("discard", store.discard(&key("1"))),
        call!("pause", store.pause(&handler("h"))),
        call!("resume", store.resume(&handler("h"))),
        call!("paused", store.paused()),
        call!(
            "reschedule_slice",
            store.reschedule_slice(&Filter::default(), &slice(), Due::Now)
        ),
        call!("clear_slice", store.clear_slice(&handler("h"), &slice())),
        call!(
            "drop_payloads",
            store.drop_payloads(&expired(State::Processed))
        ),
        call!(
            "replay_slice",
            store.replay_slice(&Filter::default(), &slice())
        ),
        call!(
            "discard_slice",
            store.discard_slice(&Filter::default(), &slice())
        ),
        call!("purge", store.purge(&expired(State::Processed))),
        call!("expired", store.expired(&expired(State::Dead))),
        call!(
            "purge_archived",
            store.purge_archived(&expired(State::Dead), &[key("1")])
        ),
        call!("exists", store.exists()),
        call!("version", store.version()),
        call!("create", store.create()),
        call!("migrate", store.migrate()),
        call!("open", store.open()),
    ]
}

#[tokio::test]
async fn every_operation_on_a_silent_connection_ends_and_the_next_uses_another() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    let (store, pool) = silent.on_pool();
    for n in 0..calls(&store).len() {
        goes_on("the last one", &store).await;
        let (name, call) = calls(&store).swap_remove(n);
        silent.silence(&pool).await;
        let error = ends(name, call).await;
        let expected = match name {
            "open" => Effect::None,
            _ => Effect::Unknown,
        };
        assert_eq!(error.effect(), expected, "{name}: {error}");
        goes_on(name, &store).await;
    }
    // Those that need a lease.
    accept(&silent.patient, &[message("leased")]).await;
    let lease = claim_one(&silent.patient).await;
    silent.silence(&pool).await;
    ends("extend", store.extend_one(&lease, LEASE)).await;
    goes_on("extend", &store).await;
    silent.silence(&pool).await;
    ends("settle", store.settle_one(&lease, processed())).await;
    goes_on("settle", &store).await;
    settle(&silent.patient, &lease, processed()).await;
}

#[tokio::test]
async fn without_prepared_statements_they_end_too() {
    let Some(silent) = Silent::new(|options| options.prepared_statements(false)).await else {
        return;
    };
    let (store, pool) = silent.on_pool();
    for name in ["receive", "claim", "statistics", "list"] {
        goes_on("the last one", &store).await;
        let calls = calls(&store);
        let (_, call) = calls.into_iter().find(|(n, _)| *n == name).unwrap();
        silent.silence(&pool).await;
        ends(name, call).await;
        goes_on(name, &store).await;
    }
}

#[tokio::test]
async fn the_upkeep_of_partitions_ends() {
    let day = Duration::from_secs(24 * 3600);
    let Some(silent) =
        Silent::new(|options| options.partitions(Some(Partitions::every(day)))).await
    else {
        return;
    };
    let (store, pool) = silent.on_pool();
    goes_on("nothing", &store).await;
    silent.silence(&pool).await;
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
    ends("purge", store.purge(&expired)).await;
    goes_on("purge", &store).await;
}

#[tokio::test]
async fn every_operation_in_a_silent_transaction_ends_and_its_place_in_the_pool_is_free() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    for (round, own) in [false, true].into_iter().enumerate() {
        let store = if own {
            silent.on_own_pool().await
        } else {
            silent.on_pool().0
        };
        goes_on("nothing", &store).await;
        let id = |n: u32| format!("{round}-{n}");
        let open = || answered("open", || store.open());

        let mut transaction = open().await;
        silent.proxy.silence();
        let first = message(&id(1));
        let error = ends("record_in", store.record_in(&mut transaction, &first, None)).await;
        assert_eq!(error.effect(), Effect::Unknown);
        let batch = [message(&id(2))];
        ends("receive_in", store.receive_in(&mut transaction, &batch)).await;
        let error = ends("roll_back", store.roll_back(transaction)).await;
        assert_eq!(error.effect(), Effect::None);
        goes_on("roll_back", &store).await;

        accept(&silent.patient, &[message(&id(3))]).await;
        let lease = claim_one(&silent.patient).await;
        let mut transaction = open().await;
        silent.proxy.silence();
        let settlement = Settlement {
            lease,
            outcome: processed(),
        };
        ends(
            "settle_in",
            store.settle_in(&mut transaction, std::slice::from_ref(&settlement)),
        )
        .await;
        ends("roll_back", store.roll_back(transaction)).await;
        goes_on("settle_in", &store).await;
        let settlements = [settlement];
        let _ = answered("settle", || store.settle(&settlements)).await;

        let mut transaction = open().await;
        let fourth = message(&id(4));
        let _ = silent
            .patient
            .record_in(&mut transaction, &fourth, None)
            .await
            .unwrap();
        silent.proxy.silence();
        let error = ends("commit", store.commit(transaction)).await;
        assert_eq!(error.effect(), Effect::Unknown);
        goes_on("commit", &store).await;
        // The server has not learnt of it, and would wait for the rest of those transactions.
        silent.proxy.cut();
    }
}

/// A pool of the store's own gets its place back, too, when nobody ends the transaction.
#[tokio::test]
async fn a_silent_transaction_that_is_dropped_leaves_its_place() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    let store = silent.on_own_pool().await;
    let mut transaction = answered("open", || store.open()).await;
    let first = message("1");
    let recorded = silent.patient.record_in(&mut transaction, &first, None);
    assert_eq!(recorded.await.unwrap(), inbox_api::Recorded::First);
    silent.proxy.silence();
    drop(transaction);
    goes_on("a dropped transaction", &store).await;
}

#[tokio::test]
async fn calls_that_are_dropped_on_a_silent_connection_leave_their_places() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    let (store, pool) = silent.on_pool();
    for n in 0..calls(&store).len() {
        goes_on("the last one", &store).await;
        let (name, call) = calls(&store).swap_remove(n);
        silent.silence(&pool).await;
        let dropped = tokio::time::timeout(LIMIT / 20, call).await;
        assert!(dropped.is_err(), "{name} ended");
        goes_on(name, &store).await;
    }
    let transaction = answered("open", || store.open()).await;
    silent.proxy.silence();
    let dropped = tokio::time::timeout(LIMIT / 20, store.commit(transaction)).await;
    assert!(dropped.is_err(), "commit ended");
    goes_on("commit", &store).await;
}

#[tokio::test]
async fn a_call_that_never_gets_a_connection_ends_and_has_changed_nothing() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    let pool = silent.pool();
    let store = PostgresStore::with_pool(pool.clone(), silent.place.options.clone());
    let taken = pool.acquire().await.unwrap();
    for (name, call) in calls(&store) {
        let error = ends(name, call).await;
        assert_eq!(error.effect(), Effect::None, "{name}: {error}");
    }
    drop(taken);
    goes_on("nothing", &store).await;
}

/// A connection that was idle is tried first, and costs the call nothing when it is silent.
#[tokio::test]
async fn a_connection_that_went_silent_while_idle_is_found_out() {
    let Some(mut silent) = Silent::new(|options| options).await else {
        return;
    };
    silent.place.options = silent.place.options.operation_timeout(4 * LIMIT);
    let store = silent.on_own_pool().await;
    goes_on("nothing", &store).await;
    silent.proxy.silence();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
}

/// Wake-ups come back by themselves, with one for what was missed.
#[tokio::test]
async fn a_listener_that_goes_silent_is_found_out_and_replaced() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    let store = silent.on_own_pool().await;
    let other = &silent.patient;
    let mut subscription = store.subscribe(&[handler("h")]).await.unwrap();
    for round in 0..3 {
        let id = |what: &str| format!("{what} {round}");
        other.receive(&[message(&id("before"))]).await.unwrap();
        let woken = tokio::time::timeout(FOR_EVER, subscription.woken()).await;
        assert!(woken.is_ok(), "before");
        // Wake-ups of the same cause may be one or two.
        while tokio::time::timeout(Duration::from_millis(300), subscription.woken())
            .await
            .is_ok()
        {}
        silent.proxy.silence();
        other.receive(&[message(&id("meanwhile"))]).await.unwrap();
        let woken = tokio::time::timeout(FOR_EVER, subscription.woken()).await;
        assert!(woken.is_ok(), "for what was missed");
    }
    drop(subscription);
    let one = store.subscribe(&[handler("h")]).await.unwrap();
    drop(one);
}

#[tokio::test]
async fn subscribing_and_closing_end_on_a_server_that_says_nothing() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    let store = silent.on_own_pool().await;
    silent.proxy.stall();
    let error = ends("subscribe", store.subscribe(&[handler("h")])).await;
    assert_eq!(error.effect(), Effect::None);
    let connecting = PostgresStore::connect(
        silent
            .place
            .options
            .clone()
            .connect_with(silent.connection()),
    );
    let error = ends("connect", connecting).await;
    assert_eq!(error.effect(), Effect::None);
    tokio::time::timeout(FOR_EVER, store.close()).await.unwrap();
}

/// Neither the pool nor a connection for wake-ups outlives a close that comes while a subscription is being made.
#[tokio::test]
async fn closing_while_a_subscription_is_being_made_leaves_no_connection() {
    let Some(silent) = Silent::new(|options| options).await else {
        return;
    };
    // Connecting takes longer than the close.
    let options = silent.place.options.clone().operation_timeout(FOR_EVER);
    let name = fresh_name();
    let connection = silent.connection().application_name(&name);
    let store = PostgresStore::connect(options.connect_with(connection)).await;
    let store = store.unwrap();
    goes_on("nothing", &store).await;
    silent.proxy.stall();
    let handlers = [handler("h")];
    let (subscribed, ()) = tokio::join!(store.subscribe(&handlers), async {
        store.close().await;
        silent.proxy.forward();
    });
    let error = subscribed.err().expect("the store is closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.effect(), Effect::None, "{error}");
    let connected =
        format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
    let started = Instant::now();
    while silent.place.value::<i64>(&connected).await > 0 {
        assert!(started.elapsed() < FOR_EVER, "a connection is left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
