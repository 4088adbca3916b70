//! Behind PgBouncer in transaction mode: of the suite, each operation, and what happens to connections and
//! transactions. By hand, the whole: `INBOX_TEST_SETTINGS_ON=postgres cargo test -p inbox-postgres --test it pooler`.

use std::sync::LazyLock;

use inbox_api::{
    Effect, ErrorKind, Filter, Operate as _, Page, Receipt, Slice, Store as _, StoreExt as _,
    Wakeups,
};
use inbox_postgres::PostgresOptions;
use test_servers::{Error, Kind as ServerKind, Server, require_or_skip};

use crate::common::*;

static SERVER: LazyLock<Result<Option<Server>, Error>> =
    LazyLock::new(|| require_or_skip(ServerKind::Pgbouncer));

const PARTS: &[&str] = &[
    "begin::",
    "cancellation::",
    "clearing::",
    "concurrency::",
    "duplicates::",
    "fencing::",
    "holding::",
    "kept_results::",
    "leases::",
    "ordering::",
    "pauses::",
    "races::",
    "replay::",
    "retry::",
    "runs::",
    "schema::",
    "skew::",
    "transactions::",
];

fn shared() -> Option<String> {
    let server = SERVER.as_ref().unwrap_or_else(|error| panic!("{error}"));
    server.as_ref().map(|server| server.url().to_owned())
}

/// What the pooler asks for.
fn pooled(options: PostgresOptions) -> PostgresOptions {
    options.prepared_statements(false).notifications(false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_without_prepared_statements_and_notifications() {
    let Some(url) = shared() else { return };
    run_parts(PARTS, || {
        let harness = harness(pooled(patient(&url)), ServerKind::Pgbouncer, &[]);
        harness.named("postgres behind pgbouncer")
    })
    .await;
}

/// Several connections of the store and of others on few of the server's, so that consecutive
/// statements of one connection do go to different ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_clients_share_few_connections() {
    let Some(url) = shared() else { return };
    let mut place = TestInbox::at(url);
    place.options = pooled(place.options).max_connections(8);
    let store = place.store().await;
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..10 {
                    let message = ordered(&format!("{n}-{round}"), &n.to_string());
                    assert_eq!(
                        store.receive_one(&message).await.unwrap(),
                        Receipt::Accepted
                    );
                    for leased in claim(&store, 3).await {
                        settle(&store, &leased.lease, processed()).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let ready = Ready { place, store };
    check_consistent(&ready).await;
    assert_eq!(ready.store.capabilities().wakeups, Wakeups::None);
}

/// What people send now and then is not prepared under a name, with prepared statements either: it goes in two
/// steps, between which others have the server's connection. This pooler keeps track of none, and so tells what is
/// sent under a name.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn looks_and_interventions_do_not_meet_what_others_send() {
    let Some(url) = shared() else { return };
    let mut place = TestInbox::at(url);
    place.options = pooled(place.options);
    let store = place.store().await;
    let messages: Vec<_> = (0..4).map(|n| message(&n.to_string())).collect();
    let _ = store.receive(&messages).await.unwrap();
    let mut preparing = TestInbox::at(place.url.clone());
    preparing.schema.name = place.schema.name.clone();
    preparing.options = place
        .options
        .clone()
        .prepared_statements(true)
        .max_connections(16);
    let preparing = preparing.connect().await.unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let store = preparing.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    match n % 4 {
                        0 => assert_eq!(store.count(&Filter::default()).await.unwrap(), 4),
                        1 => {
                            let page = Page::first(3);
                            let listing = store.list(&Filter::default(), &page).await.unwrap();
                            assert_eq!(listing.records.len(), 3);
                        }
                        2 => assert!(store.get(&key("1")).await.unwrap().is_some()),
                        // Nothing is final.
                        _ => {
                            let slice = Slice {
                                after: None,
                                limit: 10,
                            };
                            let replayed = store.replay_slice(&Filter::default(), &slice).await;
                            assert_eq!(replayed.unwrap().changed, 0);
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    check_consistent(&Ready { place, store }).await;
}

/// Why the option is there: statements that were prepared on one of the server's connections are
/// not found on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_prepared_statements_it_fails_and_loses_nothing() {
    let Some(url) = shared() else { return };
    let mut place = TestInbox::at(url);
    place.options = pooled(place.options);
    let store = place.store().await;
    let mut preparing = TestInbox::at(place.url.clone());
    preparing.schema.name = place.schema.name.clone();
    preparing.options = place.options.clone().prepared_statements(true);
    let preparing = preparing.connect().await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = preparing.clone();
            tokio::spawn(async move {
                let mut errors = Vec::new();
                for round in 0..20 {
                    if let Err(error) = store.receive_one(&message(&format!("{n}-{round}"))).await {
                        errors.push(error);
                    }
                }
                errors
            })
        })
        .collect();
    let mut errors = Vec::new();
    for task in tasks {
        errors.extend(task.await.unwrap());
    }
    assert!(
        !errors.is_empty(),
        "this pooler keeps track of prepared statements"
    );
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Other, "{error}");
        assert!(
            error.context().contains("turn prepared_statements off"),
            "{error}"
        );
        assert_eq!(error.effect(), Effect::None, "{error}");
    }
    // The same store without them goes on.
    let receipt = store.receive_one(&message("after")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
    check_consistent(&Ready { place, store }).await;
}
