//! Notifications: who is woken, how soon, and after what.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use inbox_api::{
    AfterDead, Due, Edit, ErrorKind, Filter, Operate as _, Outcome, PurgeRequest, Receipt,
    Settlement, Slice, State, Store as _, StoreExt as _, Subscription, Transactional as _, Wakeups,
};
use inbox_postgres::PostgresStore;
use sqlx::postgres::{PgListener, PgPoolOptions};
use test_servers::Server;

use crate::common::*;

const SOON: Duration = Duration::from_secs(60);
/// Long enough for a notification that was sent to arrive.
const QUIET: Duration = Duration::from_millis(150);

async fn is_woken(subscription: &mut Box<dyn Subscription>) -> bool {
    tokio::time::timeout(SOON, subscription.woken())
        .await
        .is_ok()
}

async fn is_quiet(subscription: &mut Box<dyn Subscription>) -> bool {
    tokio::time::timeout(QUIET, subscription.woken())
        .await
        .is_err()
}

async fn settle_down(subscription: &mut Box<dyn Subscription>) {
    while !is_quiet(subscription).await {}
}

/// Listens as a program of another kind would.
async fn listener(place: &TestInbox) -> PgListener {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(connection_options(&place.url))
        .await
        .unwrap();
    let mut listener = PgListener::connect_with(&pool).await.unwrap();
    listener
        .listen(&format!("{}.inbox", place.schema.name))
        .await
        .unwrap();
    listener
}

/// The payloads of all notifications so far: those before one of ours, since they come in order
/// of commits.
async fn notified(listener: &mut PgListener, place: &TestInbox) -> Vec<String> {
    const OURS: &str = "end";
    place
        .run(&format!("NOTIFY \"{}.inbox\", '{OURS}'", place.schema.name))
        .await
        .unwrap();
    let mut payloads = Vec::new();
    loop {
        let notification = listener.recv().await.unwrap();
        if notification.payload() == OURS {
            return payloads;
        }
        payloads.push(notification.payload().to_owned());
    }
}

#[tokio::test]
async fn a_statement_that_makes_work_available_notifies_once_and_without_a_payload() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let mut listener = listener(place).await;
    let once = [String::new()];
    let batch: Vec<_> = (0..600)
        .map(|n| match n % 3 {
            0 => ordered(&n.to_string(), &n.to_string()),
            _ => message(&n.to_string()),
        })
        .collect();
    store.receive(&batch).await.unwrap();
    assert_eq!(notified(&mut listener, place).await, once, "receive");
    store.receive(&batch).await.unwrap();
    assert_eq!(notified(&mut listener, place).await, [""; 0], "duplicates");
    let leased = claim(store, 600).await;
    assert_eq!(notified(&mut listener, place).await, [""; 0], "claim");
    let settle_all = async |some: &[inbox_api::Leased], outcome: Outcome| {
        let settlements: Vec<_> = some
            .iter()
            .map(|leased| Settlement {
                lease: leased.lease.clone(),
                outcome: outcome.clone(),
            })
            .collect();
        let _ = store.settle(&settlements).await.unwrap();
    };
    settle_all(&leased[..100], processed()).await;
    assert_eq!(
        notified(&mut listener, place).await,
        [""; 0],
        "nobody waits"
    );
    settle_all(&leased[100..200], Outcome::Release).await;
    assert_eq!(notified(&mut listener, place).await, once, "release");
    settle_all(&leased[200..300], retry(LEASE)).await;
    assert_eq!(notified(&mut listener, place).await, once, "retry");
    settle_all(&leased[400..500], defer(LEASE)).await;
    assert_eq!(notified(&mut listener, place).await, once, "deferral");
    settle_all(&leased[300..400], dead(AfterDead::Block)).await;
    assert_eq!(notified(&mut listener, place).await, [""; 0], "dead");
    let slice = Slice {
        after: None,
        limit: 100,
    };
    store
        .replay_slice(&Filter::default(), &slice)
        .await
        .unwrap();
    assert_eq!(notified(&mut listener, place).await, once, "replay");
    // What was behind another in its ordering key.
    let pair = [ordered("a1", "a"), ordered("a2", "a")];
    store.receive(&pair[1..]).await.unwrap();
    store.receive(&[ordered("a3", "a")]).await.unwrap();
    notified(&mut listener, place).await;
    let _ = store.discard(&key("a2")).await.unwrap();
    assert_eq!(notified(&mut listener, place).await, once, "discard");
    let lease = begin(store, &ordered("a3", "a")).await.lease;
    store.receive(&[pair[0].clone()]).await.unwrap();
    notified(&mut listener, place).await;
    settle(store, &lease, dead(AfterDead::Continue)).await;
    assert_eq!(
        notified(&mut listener, place).await,
        once,
        "the next may go"
    );
    let lease = begin(store, &pair[0]).await.lease;
    settle(store, &lease, dead(AfterDead::Block)).await;
    store.receive(&[ordered("a4", "a")]).await.unwrap();
    notified(&mut listener, place).await;
    let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 1000).unwrap();
    assert!(store.purge(&expired).await.unwrap() > 0);
    assert_eq!(
        notified(&mut listener, place).await,
        once,
        "the block is purged"
    );
}

#[tokio::test]
async fn subscriptions_wake_in_this_process_and_in_others_and_soon() {
    let Some(ready) = ready().await else { return };
    let other = ready.place.other().await;
    let mut waits = Vec::new();
    for store in [&ready.store, &other] {
        let mut subscription = ready.store.subscribe(&[handler("h")]).await.unwrap();
        for n in 0..20 {
            settle_down(&mut subscription).await;
            let id = format!("{store:p} {n}");
            let task = {
                let store = store.clone();
                tokio::spawn(async move {
                    let receipt = store.receive_one(&message(&id)).await.unwrap();
                    assert_eq!(receipt, Receipt::Accepted);
                    Instant::now()
                })
            };
            assert!(is_woken(&mut subscription).await);
            let woken = Instant::now();
            waits.push(woken.saturating_duration_since(task.await.unwrap()));
        }
    }
    waits.sort();
    // A busy machine is slow now and then, but not as a rule.
    assert!(
        waits[waits.len() / 2] < Duration::from_millis(500),
        "{waits:?}"
    );
}

#[tokio::test]
async fn what_makes_nothing_available_wakes_nobody() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let mut subscription = store.subscribe(&[handler("h")]).await.unwrap();
    assert!(is_quiet(&mut subscription).await);
    // Rolled back.
    let mut transaction = store.open().await.unwrap();
    store
        .receive_in(&mut transaction, &[message("1")])
        .await
        .unwrap();
    assert!(is_quiet(&mut subscription).await, "not yet");
    store.roll_back(transaction).await.unwrap();
    assert!(is_quiet(&mut subscription).await, "never");
    // Committed, and only then.
    let mut transaction = store.open().await.unwrap();
    store
        .receive_in(&mut transaction, &[message("1")])
        .await
        .unwrap();
    assert!(is_quiet(&mut subscription).await);
    store.commit(transaction).await.unwrap();
    assert!(is_woken(&mut subscription).await);
    settle_down(&mut subscription).await;
    let lease = claim_one(store).await;
    let _ = store.extend_one(&lease, LEASE * 2).await.unwrap();
    settle(store, &lease, processed()).await;
    let mut transaction = store.open().await.unwrap();
    let recorded = store.record_in(&mut transaction, &message("2"), None).await;
    assert_eq!(recorded.unwrap(), inbox_api::Recorded::First);
    store.commit(transaction).await.unwrap();
    store.get(&key("1")).await.unwrap();
    assert!(is_quiet(&mut subscription).await);
    let later = message("later").with_due(Due::After(LEASE));
    store.receive(&[later]).await.unwrap();
    // A wake-up for what is due later is allowed, and must not lead to a claim.
    assert_eq!(claim(store, 10).await, []);
}

#[tokio::test]
async fn without_notifications_there_are_none() {
    let Some(ready) = ready_with(|options| options.notifications(false)).await else {
        return;
    };
    let (place, store) = (&ready.place, &ready.store);
    let mut listener = listener(place).await;
    assert_eq!(store.capabilities().wakeups, Wakeups::None);
    let error = store.subscribe(&[handler("h")]).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    store
        .receive(&[ordered("1", "k"), ordered("2", "k")])
        .await
        .unwrap();
    let lease = claim_one(store).await;
    settle(store, &lease, Outcome::Release).await;
    let lease = claim_one(store).await;
    settle(store, &lease, dead(AfterDead::Continue)).await;
    let _ = store.replay(&key("1"), &Edit::default()).await.unwrap();
    let _ = store.discard(&key("1")).await.unwrap();
    let mut transaction = store.open().await.unwrap();
    let _ = store
        .record_in(&mut transaction, &ordered("2", "k"), None)
        .await
        .unwrap();
    store
        .receive_in(&mut transaction, &[message("3")])
        .await
        .unwrap();
    store.commit(transaction).await.unwrap();
    assert_eq!(notified(&mut listener, place).await, [""; 0]);
}

/// The connection that listens is lost in every way, and made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_listener_comes_back_and_wakes_once_for_what_it_missed() {
    let Some(server) = own_server() else { return };
    let place = TestInbox::at(server.url().to_owned());
    let server = Arc::new(Mutex::new(server));
    let store = place.store().await;
    let mut subscription = store.subscribe(&[handler("h")]).await.unwrap();
    settle_down(&mut subscription).await;
    let terminated: i64 = place
        .value(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE query LIKE 'LISTEN%'",
        )
        .await;
    assert_eq!(terminated, 1);
    assert!(is_woken(&mut subscription).await, "after the termination");
    settle_down(&mut subscription).await;
    receives(&store, "1").await;
    assert!(is_woken(&mut subscription).await, "a new message");

    let ends: [fn(&mut Server) -> _; 2] = [Server::stop, Server::kill];
    for (n, end) in ends.into_iter().enumerate() {
        settle_down(&mut subscription).await;
        act(&server, end).await;
        act(&server, Server::start).await;
        assert!(is_woken(&mut subscription).await, "after restart {n}");
        settle_down(&mut subscription).await;
        receives(&store, &format!("after {n}")).await;
        assert!(is_woken(&mut subscription).await, "after restart {n}");
    }
    // Away for a while.
    settle_down(&mut subscription).await;
    act(&server, Server::stop).await;
    assert!(is_quiet(&mut subscription).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    act(&server, Server::start).await;
    assert!(is_woken(&mut subscription).await);
    settle_down(&mut subscription).await;
    receives(&store, "last").await;
    assert!(is_woken(&mut subscription).await);
}

/// Although some connections of the pool may be stale.
async fn receives(store: &PostgresStore, id: &str) {
    for _ in 0..100 {
        match store.receive_one(&message(id)).await {
            Ok(_) => return,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server does not come back");
}

#[tokio::test]
async fn dropped_subscriptions_close_their_connection() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let listening = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{}%'",
        place.schema.name
    );
    let one = store.subscribe(&[handler("h")]).await.unwrap();
    let two = store.subscribe(&[handler("g")]).await.unwrap();
    assert_eq!(place.value::<i64>(&listening).await, 1, "they share it");
    drop(one);
    tokio::time::sleep(QUIET).await;
    assert_eq!(place.value::<i64>(&listening).await, 1);
    drop(two);
    let started = Instant::now();
    while place.value::<i64>(&listening).await > 0 {
        assert!(started.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut again = store.subscribe(&[handler("h")]).await.unwrap();
    settle_down(&mut again).await;
    store.receive(&[message("1")]).await.unwrap();
    assert!(is_woken(&mut again).await);
}

/// The application's pool of one connection serves everything, subscriptions included.
#[tokio::test]
async fn a_pool_of_one_connection_that_was_handed_in_is_enough() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    store.close().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(20))
        .connect_with(connection_options(&place.url))
        .await
        .unwrap();
    let store = PostgresStore::with_pool(pool.clone(), place.options.clone());
    assert!(store.exists_and_version().await);
    let mut subscription = store.subscribe(&[handler("h")]).await.unwrap();
    store
        .receive(&[message("1"), ordered("2", "k")])
        .await
        .unwrap();
    assert!(is_woken(&mut subscription).await);
    for leased in claim(&store, 5).await {
        settle(&store, &leased.lease, processed()).await;
    }
    let mut transaction = store.open().await.unwrap();
    let recorded = store.record_in(&mut transaction, &message("3"), None).await;
    assert_eq!(recorded.unwrap(), inbox_api::Recorded::First);
    store.commit(transaction).await.unwrap();
    assert_eq!(store.statistics().await.unwrap().count(State::Processed), 3);
    store.close().await;
    assert!(!pool.is_closed(), "it is the application's");
    let one: i32 = sqlx::query_scalar("SELECT 1")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(one, 1);
}

trait SetUp {
    async fn exists_and_version(&self) -> bool;
}

impl SetUp for PostgresStore {
    async fn exists_and_version(&self) -> bool {
        use inbox_api::Schema as _;

        self.exists().await.unwrap() && self.version().await.unwrap() == Some(1)
    }
}
