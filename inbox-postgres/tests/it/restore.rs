//! Logical dumps of a live inbox, loaded whole and in parts, into empty databases and into ones
//! that are set up: what comes of it is right or refused, never wrong.

use std::{process::Command, time::Duration};

use inbox_api::{
    AfterDead, Due, Error, ErrorKind, Operate as _, Receipt, Schema as _, Settled, State,
    Store as _, StoreExt as _, Transactional as _,
};
use inbox_postgres::{Partitions, PostgresOptions, PostgresStore};
use test_servers::{Kind as ServerKind, NoServer, Skipped, or_skip};

use crate::common::*;

/// Runs one of PostgreSQL's own programs; what it says, and whether it went well.
fn program(name: &str, arguments: &[&str]) -> (String, bool) {
    let output = Command::new(name).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (said, output.status.success())
}

/// A fresh database on the shared server, as a URL.
async fn database(url: &str) -> String {
    let name = fresh_name();
    execute(
        url,
        &format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"),
    )
    .await
    .unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

/// A live inbox in its own database.
struct Original {
    place: TestInbox,
    store: PostgresStore,
    /// Of a lease that was given before the dump.
    lease: inbox_api::Lease,
    dump: tempfile::TempDir,
}

impl Original {
    async fn new(change: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Option<Self> {
        let url = shared_url()?;
        if let Err(error) = Command::new("pg_dump").arg("--version").output() {
            let reason = format!("no pg_dump: {error}");
            let skipped = Err(NoServer::Skipped(Skipped { reason }));
            or_skip(ServerKind::Postgres, skipped).unwrap()?;
        }
        let mut place = TestInbox::at(database(&url).await);
        place.options = change(place.options);
        let store = place.store().await;
        for n in 0..20 {
            let batch = [
                ordered(&format!("kept {n}"), &format!("k{}", n % 3)),
                message(&format!("free {n}")),
            ];
            let receipts = store.receive(&batch).await.unwrap();
            assert!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
        }
        let later = message("later").with_due(Due::After(LEASE * 100));
        let _ = store.receive_one(&later).await.unwrap();
        let leased = claim(&store, 9).await;
        for (n, leased) in leased.iter().enumerate() {
            match n {
                0..4 => settle(&store, &leased.lease, processed()).await,
                4 => settle(&store, &leased.lease, dead(AfterDead::Continue)).await,
                5 => settle(&store, &leased.lease, retry(LEASE)).await,
                _ => {}
            }
        }
        let mut transaction = store.open().await.unwrap();
        let recorded = message("recorded");
        let _ = store
            .record_in(&mut transaction, &recorded, None)
            .await
            .unwrap();
        store.commit(transaction).await.unwrap();
        Some(Self {
            place,
            store,
            lease: leased.last().unwrap().lease.clone(),
            dump: tempfile::tempdir().unwrap(),
        })
    }

    fn file(&self) -> String {
        let file = self.dump.path().join("dump.sql");
        file.to_str().unwrap().to_owned()
    }

    fn dump(&self, arguments: &[&str]) {
        let file = self.file();
        let mut all = vec!["--dbname", &self.place.url, "--file", &file];
        all.extend(arguments);
        let (said, well) = program("pg_dump", &all);
        assert!(well, "{said}");
    }

    /// A place for the same inbox in a database that is set up, or empty.
    async fn target(&self, set_up: bool) -> TestInbox {
        let mut target = TestInbox::at(database(&self.place.url).await);
        target.schema.name = self.place.schema.name.clone();
        target.options = self.place.options.clone();
        if set_up {
            target.store().await.close().await;
        }
        target
    }

    /// As people do, who may not stop at the first error.
    fn load(&self, target: &TestInbox) -> String {
        let file = self.file();
        program("psql", &["--dbname", &target.url, "--file", &file, "-q"]).0
    }

    fn table(&self, name: &str) -> String {
        format!("{}.inbox_{name}", self.place.schema.name)
    }

    /// What was there is there, and work goes on as it would have.
    async fn is_right(&self, target: TestInbox) {
        let store = target.connect().await.unwrap();
        store.create().await.unwrap();
        assert!(store.exists().await.unwrap());
        let (before, after) = (
            self.store.statistics().await.unwrap(),
            store.statistics().await.unwrap(),
        );
        for state in [
            State::Pending,
            State::Leased,
            State::Processed,
            State::Dead,
            State::Discarded,
        ] {
            assert_eq!(after.count(state), before.count(state), "{state}");
        }
        for id in ["free 0", "free 19", "kept 7", "later", "recorded"] {
            let receipt = store.receive_one(&message(id)).await.unwrap();
            assert_eq!(receipt, Receipt::Duplicate { differs: false }, "{id}");
        }
        // A lease of before stands until another worker has it; then it is stale.
        target.advance(LEASE * 2).await;
        let receipt = store.receive_one(&ordered("new", "k0")).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
        let mut seen = Vec::new();
        loop {
            let leased = claim(&store, 100).await;
            if leased.is_empty() {
                break;
            }
            for leased in leased {
                if leased.lease.key == self.lease.key {
                    assert!(leased.lease.token > self.lease.token);
                    let stale = store.settle_one(&self.lease, processed()).await;
                    assert_eq!(stale.unwrap(), Settled::LeaseLost);
                }
                seen.push(leased.message.id().to_string());
                settle(&store, &leased.lease, processed()).await;
            }
        }
        assert_eq!(seen.iter().filter(|id| *id == "new").count(), 1);
        let of_key: Vec<_> = seen
            .iter()
            .filter(|id| {
                let kept = id.strip_prefix("kept ").and_then(|n| n.parse::<u32>().ok());
                *id == "new" || kept.is_some_and(|n| n % 3 == 0)
            })
            .collect();
        assert_eq!(of_key.last().unwrap().as_str(), "new", "behind the others");
        check_consistent(&Ready {
            place: target,
            store,
        })
        .await;
    }

    /// Refused by whatever is asked first.
    async fn is_refused(&self, target: &TestInbox, why: &str, first_use: bool) {
        let store = target.connect().await.unwrap();
        let mut errors = vec![
            store.exists().await.unwrap_err(),
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
        ];
        if first_use {
            let new = [message("new")];
            errors.push(store.receive(&new).await.unwrap_err());
            errors.push(store.claim(&request(1)).await.unwrap_err());
        }
        for error in errors {
            refused(&error, why);
        }
    }
}

fn refused(error: &Error, why: &str) {
    assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
    assert!(error.context().contains(why), "{error}");
}

fn hourly(options: PostgresOptions) -> PostgresOptions {
    options.partitions(Some(Partitions::every(Duration::from_secs(3600))))
}

#[tokio::test]
async fn a_whole_dump_goes_on_in_an_empty_database() {
    for partitioned in [false, true] {
        let original = Original::new(|options| {
            if partitioned {
                hourly(options)
            } else {
                options
            }
        });
        let Some(original) = original.await else {
            return;
        };
        original.dump(&[]);
        let target = original.target(false).await;
        assert_eq!(original.load(&target), "");
        original.is_right(target).await;
    }
}

#[tokio::test]
async fn data_alone_goes_on_in_a_database_that_is_set_up() {
    for partitioned in [false, true] {
        let original = Original::new(|options| {
            if partitioned {
                hourly(options)
            } else {
                options
            }
        });
        let Some(original) = original.await else {
            return;
        };
        let mut arguments = vec!["--data-only".to_owned()];
        for what in ["meta", "partition"] {
            arguments.push(format!("--exclude-table-data={}", original.table(what)));
        }
        original.dump(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let target = original.target(true).await;
        assert_eq!(original.load(&target), "");
        original.is_right(target).await;
    }
}

/// The row that says what the tables are is there already: it is refused, and all else is loaded.
#[tokio::test]
async fn data_alone_with_the_marker_goes_on_too() {
    let Some(original) = Original::new(|options| options).await else {
        return;
    };
    original.dump(&["--data-only"]);
    let target = original.target(true).await;
    let said = original.load(&target);
    assert!(said.contains("inbox_meta"), "{said}");
    original.is_right(target).await;
}

#[tokio::test]
async fn tables_without_their_sequence_are_refused() {
    for partitioned in [false, true] {
        let original = Original::new(|options| {
            if partitioned {
                hourly(options)
            } else {
                options
            }
        });
        let Some(original) = original.await else {
            return;
        };
        let sequence = format!("--exclude-table={}", original.table("seq"));
        let meta = format!("--exclude-table-data={}", original.table("meta"));
        let partition = format!("--exclude-table-data={}", original.table("partition"));
        original.dump(&["--data-only", &sequence, &meta, &partition]);
        let target = original.target(true).await;
        // A process that has seen all to be well goes on, and finds out when it is told a number
        // that is taken.
        let running = target.connect().await.unwrap();
        running.statistics().await.unwrap();
        assert_eq!(original.load(&target), "");
        original
            .is_refused(&target, "the sequence inbox_seq is behind", true)
            .await;
        let new = message("new");
        let error = running.receive_one(&new).await.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        let error = running.receive_one(&new).await.unwrap_err();
        refused(&error, "the sequence inbox_seq is behind");

        // Done what the error says, all is well.
        target
            .run(
                "SELECT setval('{schema}.inbox_seq', (max(seq) / 1000 + 1) * 1000)
                 FROM {schema}.inbox_message",
            )
            .await
            .unwrap();
        original.is_right(target).await;
    }
}

#[tokio::test]
async fn a_set_up_inbox_with_a_part_of_the_tables_is_refused() {
    let whole: fn(PostgresOptions) -> PostgresOptions = |options| options;
    for (layout, missing, why) in [
        (whole, "work", "neither inbox_work nor inbox_done knows"),
        (whole, "done", "neither inbox_work nor inbox_done knows"),
        (whole, "message", "inbox_message is empty"),
        (whole, "ordering", "inbox_ordering lacks ordering keys"),
        (whole, "tally", "inbox_tally does not count"),
        (hourly, "ordering", "inbox_ordering lacks ordering keys"),
        (hourly, "tally", "inbox_tally does not count"),
        (hourly, "key", "messages without their keys in inbox_key"),
    ] {
        let Some(original) = Original::new(layout).await else {
            return;
        };
        let without = format!("--exclude-table-data={}", original.table(missing));
        let meta = format!("--exclude-table-data={}", original.table("meta"));
        let partition = format!("--exclude-table-data={}", original.table("partition"));
        original.dump(&["--data-only", &without, &meta, &partition]);
        let target = original.target(true).await;
        assert_eq!(original.load(&target), "", "{missing}");
        original.is_refused(&target, why, false).await;
    }
}

/// Partitions come into being one by one; a set-up database has the first two.
#[tokio::test]
async fn data_of_partitions_that_are_not_there_is_refused() {
    let Some(original) = Original::new(hourly).await else {
        return;
    };
    for n in 0..2 {
        original.place.advance(Duration::from_secs(3601)).await;
        let expired = inbox_api::PurgeRequest::new(State::Processed, LEASE * 10_000, 100).unwrap();
        original.store.purge(&expired).await.unwrap();
        let hourly = message(&format!("hour {n}"));
        let receipt = original.store.receive_one(&hourly).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
    original.dump(&["--data-only"]);
    let target = original.target(true).await;
    let said = original.load(&target);
    assert!(said.contains("inbox_message_2"), "{said}");
    original.is_refused(&target, "inbox_partition", false).await;

    // Whole, it is right.
    original.dump(&[]);
    let target = original.target(false).await;
    assert_eq!(original.load(&target), "");
    let store = target.connect().await.unwrap();
    // The clock of the original was moved, by a function of another text.
    store.migrate().await.unwrap();
    assert!(store.exists().await.unwrap());
    let receipt = store.receive_one(&message("hour 1")).await.unwrap();
    assert_eq!(receipt, Receipt::Duplicate { differs: false });
    let receipt = store.receive_one(&message("later hour")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
}
