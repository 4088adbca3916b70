//! Logical dumps and what becomes of the numbers, the tokens and the keys when they are loaded.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{
    AfterDead, ErrorKind, Extended, Lease, Operate as _, PurgeRequest, Receipt, Schema as _,
    Settled, State, Store as _, StoreExt as _,
};
use inbox_mysql::MySqlStore;

use crate::common::{
    self, TestInbox, accept, claim, dead,
    dump::{available, dump, load, load_all},
    key, message, on_each, ordered, processed, settle,
};

/// Only rows; those that are there already, such as the mark of a set-up, stay.
const ROWS: [&str; 2] = ["--no-create-info", "--insert-ignore"];

/// An inbox with messages in every state, the newest of which were purged. Answers with the lease
/// that is out.
async fn live(inbox: &TestInbox) -> (MySqlStore, Lease) {
    let store = inbox.store().await;
    let batch: Vec<_> = (0..20)
        .map(|n| match n % 4 {
            0 => ordered(&format!("{n}"), "key"),
            _ => message(&format!("{n}")),
        })
        .collect();
    accept(&store, &batch).await;
    for (n, leased) in claim(&store, 9).await.into_iter().enumerate() {
        let outcome = match n % 3 {
            0 => dead(AfterDead::Continue),
            _ => processed(),
        };
        settle(&store, &leased.lease, outcome).await;
    }
    let discarded = store
        .list(&in_state(State::Pending), &inbox_api::Page::first(100))
        .await
        .unwrap();
    let _ = store.discard(&discarded.records[0].key).await.unwrap();
    // Not the one with the ordering key, which would keep the others of its key waiting.
    let (lease, others): (Vec<_>, Vec<_>) = claim(&store, 2)
        .await
        .into_iter()
        .partition(|leased| leased.message.ordering_key().is_none());
    for leased in others {
        settle(&store, &leased.lease, inbox_api::Outcome::Release).await;
    }
    let lease = lease[0].lease.clone();
    // A dump and its loading take longer than a lease on a busy machine.
    let hour = Duration::from_secs(60 * 60);
    let extended = store.extend(std::slice::from_ref(&lease), hour).await;
    assert!(matches!(extended.unwrap()[..], [Extended::Until(_)]));
    // Their numbers are the highest.
    accept(&store, &[message("gone 1"), message("gone 2")]).await;
    for id in ["gone 1", "gone 2"] {
        let _ = store.discard(&key(id)).await.unwrap();
    }
    let gone = PurgeRequest::new(State::Discarded, Duration::ZERO, 10).unwrap();
    let purged = store
        .purge_archived(&gone, &[key("gone 1"), key("gone 2")])
        .await
        .unwrap();
    assert_eq!(purged, 2);
    (store, lease)
}

fn in_state(state: State) -> inbox_api::Filter {
    inbox_api::Filter {
        states: vec![state],
        ..inbox_api::Filter::default()
    }
}

async fn counts(store: &MySqlStore) -> BTreeMap<String, u64> {
    let statistics = store.statistics().await.unwrap();
    State::ALL
        .iter()
        .map(|state| (state.to_string(), statistics.count(*state)))
        .collect()
}

/// Whatever was loaded, and however: nothing old is taken for new, nothing new vanishes, and all of
/// it ends.
async fn goes_on(inbox: &TestInbox, old: &BTreeMap<String, u64>) {
    let store = inbox.other().await;
    assert!(store.exists().await.unwrap());
    assert_eq!(&counts(&store).await, old);
    let known: Vec<_> = (0..20).map(|n| message(&format!("{n}"))).collect();
    let receipts = store.receive(&known).await.unwrap();
    assert!(
        receipts
            .iter()
            .all(|r| *r == Receipt::Duplicate { differs: false })
    );
    accept(&store, &[message("new")]).await;
    let new: Vec<_> = (0..200).map(|n| message(&format!("new {n}"))).collect();
    accept(&store, &new).await;
    accept(&store, &[ordered("last", "key"), message("gone 1")]).await;
    for id in ["new", "new 0", "new 199", "last", "gone 1"] {
        let record = store.get(&key(id)).await.unwrap();
        assert!(record.is_some(), "{id} was accepted and is not there");
    }
    let mut done = Vec::new();
    loop {
        let leased = claim(&store, 50).await;
        if leased.is_empty() {
            break;
        }
        for leased in leased {
            settle(&store, &leased.lease, processed()).await;
            done.push(leased.message.id().to_string());
        }
    }
    let mut once = done.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), done.len(), "something was done twice");
    let new_done = done.iter().filter(|id| id.starts_with("new ")).count();
    assert_eq!(new_done, 200);
    let place_of = |id: &str| done.iter().position(|done| done == id);
    for (first, then) in [("8", "12"), ("12", "16"), ("16", "last")] {
        assert!(place_of(first) < place_of(then), "{first} before {then}");
    }
    // Of the twenty, one was leased when the dump was written.
    let leased = old["leased"] as usize;
    assert_eq!(done.len(), old["pending"] as usize + 203);
    assert_eq!(
        inbox.number("SELECT COUNT(*) FROM inbox_work").await,
        leased as i64
    );
    store.close().await;
}

/// Nothing is answered: neither by who sets up nor by who goes to work.
async fn is_refused(inbox: &TestInbox, what: &str) {
    for operation in [
        "exists",
        "create",
        "migrate",
        "receive",
        "claim",
        "statistics",
    ] {
        // Each as the first of its process.
        let store = inbox.other().await;
        let error = match operation {
            "exists" => store.exists().await.err(),
            "create" => store.create().await.err(),
            "migrate" => store.migrate().await.err(),
            "receive" => store.receive(&[message("new")]).await.err(),
            "claim" => store.claim(&common_request()).await.err(),
            _ => store.statistics().await.err(),
        };
        let error = error.unwrap_or_else(|| panic!("{what}: {operation} answered"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.context().contains("dump"), "{what}: {error}");
        store.close().await;
    }
}

fn common_request() -> inbox_api::ClaimRequest {
    inbox_api::ClaimRequest {
        handlers: vec![common::handler("h")],
        limit: 10,
        terms: common::terms(),
        run_limit: 1,
    }
}

async fn second(first: &TestInbox) -> TestInbox {
    TestInbox::at(first.url.clone()).await.unwrap()
}

async fn drop_database(inbox: &TestInbox) {
    let sql = format!("DROP DATABASE {}", inbox.database);
    inbox.run(sql).await.unwrap();
}

#[test]
fn rows_loaded_into_a_set_up_inbox_go_on() {
    if !available() {
        return;
    }
    on_each(async |inbox, _| {
        let (store, lease) = live(&inbox).await;
        let old = counts(&store).await;
        let rows = dump(&inbox, &ROWS);
        let other = second(&inbox).await;
        other.store().await.close().await;
        load_all(&other, &rows);
        goes_on(&other, &old).await;
        // Who holds a lease of before the dump still does.
        let restored = other.other().await;
        let settled = restored.settle_one(&lease, processed()).await.unwrap();
        assert_eq!(settled, Settled::Done);
        drop_database(&other).await;
    });
}

#[test]
fn a_whole_dump_goes_on_in_an_empty_database_and_in_place_of_an_inbox() {
    if !available() {
        return;
    }
    on_each(async |inbox, _| {
        let (store, lease) = live(&inbox).await;
        let old = counts(&store).await;
        let whole = dump(&inbox, &[]);
        let other = second(&inbox).await;
        load_all(&other, &whole);
        goes_on(&other, &old).await;
        drop_database(&other).await;

        // What happened after the dump is undone by loading it, and so are its leases: one of a
        // message that is gone names a number that a new message has by now.
        settle(&store, &lease, processed()).await;
        while !claim(&store, 50).await.is_empty() {}
        let later: Vec<_> = (0..50).map(|n| message(&format!("later {n}"))).collect();
        accept(&store, &later).await;
        let leases: Vec<_> = claim(&store, 50)
            .await
            .into_iter()
            .map(|l| l.lease)
            .collect();
        load_all(&inbox, &whole);
        let again: Vec<_> = (0..50).map(|n| message(&format!("again {n}"))).collect();
        accept(&store, &again).await;
        let renewed = claim(&store, 100).await;
        assert!(renewed.iter().any(|l| l.message.id().as_str() == "again 0"));
        for lease in leases {
            let settled = store.settle_one(&lease, processed()).await.unwrap();
            assert_eq!(settled, Settled::LeaseLost);
        }
        for leased in renewed {
            let outcome = inbox_api::Outcome::Release;
            settle(&store, &leased.lease, outcome).await;
        }
        store.close().await;
    });
}

/// `mariadb-dump` without `--insert-ignore` writes statements that fail at the mark of a set-up, and
/// `mariadb` stops there.
#[test]
fn a_load_that_stopped_at_the_mark_is_refused() {
    if !available() {
        return;
    }
    on_each(async |inbox, _| {
        live(&inbox).await.0.close().await;
        let rows = dump(&inbox, &["--no-create-info"]);
        let other = second(&inbox).await;
        other.store().await.close().await;
        assert!(!load(&other, &rows).status.success());
        is_refused(&other, "up to the mark").await;
        drop_database(&other).await;
    });
}

#[test]
fn some_of_the_tables_are_refused() {
    if !available() {
        return;
    }
    on_each(async |inbox, _| {
        live(&inbox).await.0.close().await;
        for table in [
            "message", "work", "dead", "done", "ordering", "open", "tally",
        ] {
            let ignored = format!("--ignore-table={}.inbox_{table}", inbox.database);
            let mut arguments = ROWS.to_vec();
            arguments.push(&ignored);
            let rows = dump(&inbox, &arguments);
            let other = second(&inbox).await;
            other.store().await.close().await;
            load_all(&other, &rows);
            is_refused(&other, &format!("all but {table}")).await;
            drop_database(&other).await;
        }
    });
}

/// The messages of a run are leased in the work, and not listed.
#[test]
fn all_but_the_runs_is_refused() {
    if !available() {
        return;
    }
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &["1", "2", "3"].map(|id| ordered(id, "key"))).await;
        let request = inbox_api::ClaimRequest {
            run_limit: 10,
            ..common_request()
        };
        let leased = store.claim(&request).await.unwrap().leased;
        assert_eq!(leased.len(), 3);
        store.close().await;
        let ignored = format!("--ignore-table={}.inbox_run", inbox.database);
        let mut arguments = ROWS.to_vec();
        arguments.push(&ignored);
        let rows = dump(&inbox, &arguments);
        let other = second(&inbox).await;
        other.store().await.close().await;
        load_all(&other, &rows);
        is_refused(&other, "all but run").await;
        drop_database(&other).await;
    });
}

/// The dump of one table is older than that of the others.
#[test]
fn tables_of_two_dumps_are_refused() {
    if !available() {
        return;
    }
    on_each(async |inbox, _| {
        let (store, _) = live(&inbox).await;
        for table in ["message", "work", "done", "tally"] {
            let only = |all: bool| {
                let tables = [
                    "message", "work", "dead", "done", "ordering", "open", "tally",
                ];
                let ignored = tables.iter().filter(|other| (**other == table) == all);
                let mut arguments: Vec<String> = ignored
                    .map(|table| format!("--ignore-table={}.inbox_{table}", inbox.database))
                    .collect();
                arguments.extend(ROWS.map(String::from));
                let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                dump(&inbox, &arguments)
            };
            let older = only(false);
            accept(&store, &[message(&format!("between {table}"))]).await;
            let leased = claim(&store, 1).await.remove(0);
            settle(&store, &leased.lease, processed()).await;
            accept(&store, &[message(&format!("between {table} 2"))]).await;
            let newer = only(true);
            let other = second(&inbox).await;
            other.store().await.close().await;
            load_all(&other, &older);
            load_all(&other, &newer);
            is_refused(&other, &format!("an older {table}")).await;
            drop_database(&other).await;
        }
        store.close().await;
    });
}
