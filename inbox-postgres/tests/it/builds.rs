//! Builds of several revisions and versions on one database, and inboxes of several names in one
//! schema.

use std::{collections::BTreeSet, time::Duration};

use inbox_api::{
    ErrorKind, InboxName, Operate as _, Receipt, Schema as _, State, Store as _, StoreExt as _,
    Transactional as _,
};
use inbox_postgres::{Partitions, PostgresOptions, PostgresStore};

use crate::common::*;

/// What another build's set-up sends: the same tables, and functions that are called in the same
/// way, with other comments and blanks in them.
fn of_another_build(options: &PostgresOptions, revision: u32) -> String {
    let ddl = options.ddl();
    let mut text = String::new();
    let mut in_body = false;
    for line in ddl.lines() {
        let toggles = line.matches("$$").count() % 2 == 1;
        if in_body && line.trim_start().starts_with("--") {
            continue;
        }
        text.push_str(line);
        if toggles && !in_body {
            text.push_str("\n    -- As another build says it.");
        }
        text.push('\n');
        in_body ^= toggles;
    }
    let recorded = "SELECT true, 'inbox.postgres', 1, 1, 1, ";
    assert!(text.contains(recorded), "the version is recorded elsewhere");
    text.replace(
        recorded,
        &format!("SELECT true, 'inbox.postgres', 1, 1, {revision}, "),
    )
}

async fn body(place: &TestInbox, function: &str) -> String {
    place
        .value(&format!(
            "SELECT prosrc FROM pg_proc WHERE oid = '{{schema}}.{function}'::regproc"
        ))
        .await
}

/// The working side, and a transaction.
async fn works(store: &PostgresStore, ids: [&str; 2]) {
    let [one, two] = ids;
    let receipt = store.receive_one(&ordered(one, "k")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
    let leased = claim(store, 1).await;
    settle(store, &leased[0].lease, processed()).await;
    let mut transaction = store.open().await.unwrap();
    let recorded = store.record_in(&mut transaction, &message(two), None).await;
    assert_eq!(recorded.unwrap(), inbox_api::Recorded::First);
    store.commit(transaction).await.unwrap();
}

#[tokio::test]
async fn an_older_build_works_with_a_newer_one_that_replaces_its_functions() {
    for partitions in [None, Some(Partitions::every(Duration::from_secs(3600)))] {
        let Some(mut place) = TestInbox::shared() else {
            return;
        };
        place.options = place.options.partitions(partitions);
        // Set up by an older build.
        execute(&place.url, &of_another_build(&place.options, 0))
            .await
            .unwrap();
        let old = body(&place, "inbox_receive").await;
        assert!(old.contains("another build"));
        // A process of this build, and one that stands for the older build's: it goes on calling
        // functions as it did, on connections that have prepared their statements.
        let older = place.other().await;
        works(&older, ["1", "2"]).await;
        let newer = place.other().await;
        assert!(newer.exists().await.unwrap());
        newer.create().await.unwrap();
        works(&newer, ["3", "4"]).await;
        assert_eq!(body(&place, "inbox_receive").await, old, "left alone");

        let migration = newer.migrate().await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(1), 1));
        let new = body(&place, "inbox_receive").await;
        assert!(!new.contains("another build"), "replaced");
        works(&older, ["5", "6"]).await;
        works(&newer, ["7", "8"]).await;

        // A newer revision is set up; now this build is the older one.
        let newest = of_another_build(&place.options, 2);
        let (_, functions) = newest.split_once("CREATE OR REPLACE FUNCTION").unwrap();
        execute(
            &place.url,
            &format!("CREATE OR REPLACE FUNCTION{functions}"),
        )
        .await
        .unwrap();
        works(&older, ["9", "10"]).await;
        // Also one that is started again, or sets up.
        let restarted = place.other().await;
        assert!(restarted.exists().await.unwrap());
        restarted.create().await.unwrap();
        restarted.migrate().await.unwrap();
        let last = body(&place, "inbox_receive").await;
        assert!(last.contains("another build"), "not taken back");
        works(&restarted, ["11", "12"]).await;
        let done = restarted.statistics().await.unwrap();
        assert_eq!(done.count(State::Processed), 12);
    }
}

#[tokio::test]
async fn a_newer_version_is_worked_with_if_it_says_so_and_refused_otherwise() {
    let Some(Ready { place, .. }) = ready().await else {
        return;
    };
    // Its functions are another build's, and it has parts that this one does not know.
    place
        .run(
            "ALTER TABLE {schema}.inbox_work ADD COLUMN novelty text;
             UPDATE {schema}.inbox_meta SET version = 2, works_from = 1",
        )
        .await
        .unwrap();
    let restarted = place.other().await;
    assert!(restarted.exists().await.unwrap());
    restarted.create().await.unwrap();
    let migration = restarted.migrate().await.unwrap();
    assert_eq!((migration.from, migration.to), (Some(2), 2));
    assert_eq!(restarted.version().await.unwrap(), Some(2));
    works(&restarted, ["1", "2"]).await;

    place
        .run("UPDATE {schema}.inbox_meta SET works_from = 2")
        .await
        .unwrap();
    let restarted = place.other().await;
    for error in [
        restarted.exists().await.unwrap_err(),
        restarted.create().await.unwrap_err(),
        restarted.migrate().await.unwrap_err(),
        restarted.receive(&[message("3")]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
        let both = "version 2, this build works with 1";
        assert!(error.context().contains(both), "{error}");
    }
}

/// The names of what `ddl` makes in one of PostgreSQL's name spaces.
fn made(ddl: &str, kinds: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in ddl.lines() {
        let Some(kind) = kinds.iter().find(|kind| line.starts_with(**kind)) else {
            continue;
        };
        let rest = &line[kind.len()..];
        let rest = rest.strip_prefix("\"public\".").unwrap_or(rest);
        let name = rest.split([' ', '(']).next().unwrap();
        names.insert(name.to_owned());
        if kind.contains("TABLE") {
            names.insert(format!("{name}_pkey"));
        }
    }
    names
}

/// Two inboxes have a name in common only if a name of one is the other's prefix and one of the
/// other's names.
#[test]
fn no_two_inboxes_of_one_schema_have_a_name_in_common() {
    let plain = PostgresOptions::new();
    let partitioned = plain
        .clone()
        .partitions(Some(Partitions::every(Duration::from_secs(3600))));
    let relations = [
        "CREATE TABLE ",
        "CREATE INDEX ",
        "CREATE UNIQUE INDEX ",
        "CREATE SEQUENCE ",
        "CREATE OR REPLACE VIEW ",
    ];
    for kinds in [&relations[..], &["CREATE OR REPLACE FUNCTION "]] {
        let mut names = made(&plain.ddl(), kinds);
        names.extend(made(&partitioned.ddl(), kinds));
        assert!(names.len() > 20, "{names:?}");
        let parts: BTreeSet<&str> = names
            .iter()
            .map(|name| name.strip_prefix("inbox_").unwrap())
            .collect();
        for part in &parts {
            for (at, _) in part.match_indices('_') {
                let (prefix, rest) = (&part[..at], &part[at + 1..]);
                assert!(
                    !parts.contains(rest),
                    "inbox a has a_{part}, and so has inbox a_{prefix}"
                );
            }
            // With the longest name, and the number of the last partition.
            assert!(
                InboxName::MAX_BYTES + "_".len() + part.len() + 6 <= 63,
                "{part}"
            );
        }
    }
}

#[tokio::test]
async fn inboxes_whose_names_continue_one_anothers_are_apart() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let mut stores = Vec::new();
    for name in [
        "inbox",
        "inbox_expired",
        "inbox_message",
        "inbox_done",
        "inbox_purge",
        "inbox_lock",
    ] {
        let options = place
            .options
            .clone()
            .inbox_name(InboxName::new(name).unwrap());
        let store = PostgresStore::connect(options).await.unwrap();
        store.create().await.unwrap();
        stores.push(store);
    }
    for store in &stores {
        assert!(store.exists().await.unwrap());
        works(store, ["1", "2"]).await;
    }
}
