//! What servers are set to: none of it changes what the store does.

use std::{sync::Arc, time::Duration};

use inbox_api::{
    AfterDead, ErrorKind, Filter, Invalid, Operate as _, Receipt, Schema as _, Settled, Settlement,
    State, Store as _, StoreExt as _, Transactional as _, WorkerName,
};
use inbox_mysql::{MySqlOptions, MySqlStore, PayloadType, conformance::MySqlHarness};
use sqlx::mysql::MySqlPoolOptions;
use test_servers::{Kind, Server, find_own, or_skip};
use tokio::{sync::Barrier, time::timeout};

use crate::common::{
    self, TestInbox, accept, claim, connect_options, dead, handler, key, message, on_each, ordered,
    processed, report, settle,
};

fn own(kind: Kind, arguments: &[&str]) -> Option<Server> {
    or_skip(kind, find_own(kind, arguments)).unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// Groups of cases that go through every statement.
fn conforms(name: &'static str, server: &Server) {
    for group in [
        "duplicates::",
        "replay::",
        "ordering::",
        "transactions::",
        "commit::",
        "holding::",
        "statistics::",
    ] {
        let harness = MySqlHarness::new(MySqlOptions::from_url(server.url()).unwrap()).named(name);
        let report = block_on(report(harness, group));
        assert!(report.is_clean(), "{report}");
    }
    // Times are UTC: the server is on this machine, and an hour is the least that a time zone makes.
    block_on(async {
        let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        let accepted = store.get(&key("1")).await.unwrap().unwrap().accepted_at;
        let away = accepted.elapsed().unwrap_or_else(|ahead| ahead.duration());
        assert!(away < Duration::from_secs(600), "{away:?} away");
    });
}

#[test]
fn odd_settings_change_nothing_on_mariadb() {
    let arguments = [
        "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,IGNORE_SPACE,\
         NO_AUTO_VALUE_ON_ZERO,HIGH_NOT_PRECEDENCE,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT,\
         NO_UNSIGNED_SUBTRACTION,ONLY_FULL_GROUP_BY",
        "--transaction-isolation=SERIALIZABLE",
        "--autocommit=0",
        "--completion-type=CHAIN",
        "--default-time-zone=+05:30",
        "--group-concat-max-len=64",
        "--auto-increment-increment=7",
        "--auto-increment-offset=3",
    ];
    if let Some(server) = own(Kind::Mariadb, &arguments) {
        conforms("mariadb with odd settings", &server);
    }
}

#[test]
fn odd_settings_change_nothing_on_mysql() {
    let arguments = [
        "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,IGNORE_SPACE,\
         NO_AUTO_VALUE_ON_ZERO,HIGH_NOT_PRECEDENCE,NO_UNSIGNED_SUBTRACTION,ONLY_FULL_GROUP_BY",
        "--transaction-isolation=SERIALIZABLE",
        "--autocommit=0",
        "--completion-type=CHAIN",
        "--default-time-zone=+05:30",
        "--auto-increment-increment=7",
        "--auto-increment-offset=3",
    ];
    if let Some(server) = own(Kind::Mysql, &arguments) {
        conforms("mysql with odd settings", &server);
    }
}

/// Where a digit takes four bytes, Oracle's language is spoken, and changes without keys are refused.
#[test]
fn wide_texts_and_refused_changes_change_nothing() {
    for (kind, arguments) in [
        (
            Kind::Mariadb,
            &["--character-set-server=utf32", "--sql-mode=ORACLE"][..],
        ),
        (Kind::Mysql, &["--character-set-server=utf32"]),
    ] {
        let Some(server) = own(kind, arguments) else {
            continue;
        };
        block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            inbox.run("SET GLOBAL sql_safe_updates = 1").await.unwrap();
        });
        conforms("wide texts, refused changes", &server);
        block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            let sent = [ordered("1", "it's"), message("2"), message("3")];
            accept(&inbox.store().await, &sent).await;
            // The sessions of another pool are its owner's.
            let pool = MySqlPoolOptions::new()
                .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
                .await
                .unwrap();
            let store = MySqlStore::with_pool(pool, inbox.options.clone())
                .await
                .unwrap();
            let (handler, worker) = (handler("h"), WorkerName::new("w").unwrap());
            let claims = store.claim_for(&handler, 3, Duration::from_secs(60), &worker);
            let Err(error) = claims.await else {
                // MySQL does not call it unsafe.
                assert_eq!(kind, Kind::Mysql);
                return;
            };
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.context().contains("sql_safe_updates=0"), "{error}");
        });
    }
}

/// On a server that also differs in its isolation level, the third after the default and that of the
/// odd settings, and in what becomes of a transaction whose statement waits for a lock in vain.
#[test]
fn batches_over_max_allowed_packet_are_split_and_single_messages_refused() {
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let arguments = [
            "--max-allowed-packet=1M",
            "--transaction-isolation=READ-COMMITTED",
            "--innodb-rollback-on-timeout=ON",
        ];
        let Some(server) = own(kind, &arguments) else {
            continue;
        };
        conforms("read committed, with small packets", &server);
        block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            let store = inbox.store().await;
            let large = |id: &str, bytes: usize| {
                inbox_api::Message::new(
                    handler("h"),
                    inbox_api::MessageId::new(id).unwrap(),
                    inbox_api::Kind::new("k").unwrap(),
                    vec![0xff_u8; bytes],
                )
            };
            let mut batch: Vec<_> = (0..40).map(|n| large(&format!("{n}"), 100_000)).collect();
            batch.push(large("nearly", 1_000_000));
            batch.push(large("over", 1_048_576));
            let receipts = store.receive(&batch).await.unwrap();
            let (last, rest) = receipts.split_last().unwrap();
            assert!(rest.iter().all(|receipt| *receipt == Receipt::Accepted));
            assert!(
                matches!(
                    last,
                    Receipt::Refused(Invalid::TooLarge { what, .. })
                        if what.contains("max_allowed_packet")
                ),
                "{last:?}"
            );
            let leased = claim(&store, 50).await;
            assert_eq!(leased.len(), 41);
            // Results in one batch that is larger than a packet, too.
            let settlements: Vec<_> = leased
                .into_iter()
                .map(|leased| Settlement {
                    lease: leased.lease,
                    outcome: inbox_api::Outcome::Processed {
                        result: Some(vec![7_u8; 100_000].into()),
                    },
                })
                .collect();
            let settled = store.settle(&settlements).await.unwrap();
            assert!(settled.iter().all(|s| *s == inbox_api::Settled::Done));
            let record = store.get(&key("7")).await.unwrap().unwrap();
            assert_eq!(record.result.unwrap().len(), 100_000);
            long_errors_are_split(&store).await;
        });
    }
}

/// Each half of the batch takes more than a packet.
async fn long_errors_are_split(store: &MySqlStore) {
    let sent: Vec<_> = (0..300).map(|n| message(&format!("error {n}"))).collect();
    accept(store, &sent).await;
    let error = "it's \\".repeat(600);
    let settlements: Vec<_> = claim(store, 300)
        .await
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: inbox_api::Outcome::Dead {
                reason: error.clone(),
                after: AfterDead::Continue,
            },
        })
        .collect();
    let (own, within) = settlements.split_at(150);
    let settled = store.settle(own).await.unwrap();
    assert_eq!(settled, vec![Settled::Done; 150]);
    let mut transaction = store.open().await.unwrap();
    let settled = store.settle_in(&mut transaction, within).await.unwrap();
    assert_eq!(settled, vec![Settled::Done; 150]);
    store.commit(transaction).await.unwrap();
    for id in ["error 0", "error 299"] {
        let record = store.get(&key(id)).await.unwrap().unwrap();
        assert_eq!(record.last_error.as_ref(), Some(&error), "{id}");
    }
}

#[test]
fn the_payload_limit_is_what_the_server_takes() {
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let Some(server) = own(kind, &["--max-allowed-packet=4M"]) else {
            continue;
        };
        block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            let store = inbox.store().await;
            let limit = store.capabilities().payload_limit;
            assert!((4_000_000..4_194_304).contains(&limit), "{limit}");
            let sized = |id: &str, bytes: usize| {
                inbox_api::Message::new(
                    handler("h"),
                    inbox_api::MessageId::new(id).unwrap(),
                    inbox_api::Kind::new("k").unwrap(),
                    vec![0xff_u8; bytes],
                )
            };
            let batch = [sized("1", limit), sized("2", limit + 1), sized("3", limit)];
            let receipts = store.receive(&batch).await.unwrap();
            assert_eq!(receipts[0], Receipt::Accepted);
            assert!(matches!(receipts[1], Receipt::Refused(_)));
            assert_eq!(receipts[2], Receipt::Accepted);
            let leased = claim(&store, 10).await;
            let with = |n: usize, bytes: usize| Settlement {
                lease: leased[n].lease.clone(),
                outcome: inbox_api::Outcome::Processed {
                    result: Some(vec![n as u8; bytes].into()),
                },
            };
            let settled = store.settle(&[with(0, limit), with(1, limit)]).await;
            assert_eq!(settled.unwrap(), [Settled::Done, Settled::Done]);
            // A repeated settlement leaves it as it is.
            let settled = store
                .settle(&[with(1, limit - 1), with(0, limit + 1)])
                .await;
            let settled = settled.unwrap();
            assert_eq!(settled[0], Settled::Done);
            assert!(matches!(settled[1], Settled::Refused(_)));
            for (n, id) in ["1", "3"].into_iter().enumerate() {
                let record = store.get(&key(id)).await.unwrap().unwrap();
                assert_eq!(record.payload.unwrap().len(), limit);
                assert_eq!(record.result.unwrap(), vec![n as u8; limit]);
            }
        });
    }
}

/// Nor do lists of ordering keys, leases and rows depend on what a packet takes.
#[test]
fn lists_over_max_allowed_packet_are_split() {
    const MANY: usize = 3000;
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let Some(server) = own(kind, &["--max-allowed-packet=1M"]) else {
            continue;
        };
        block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            let store = inbox.store().await;
            let batch: Vec<_> = (0..MANY)
                .map(|n| ordered(&format!("{n}"), &format!("{n:0>255}")))
                .collect();
            accept(&store, &batch).await;
            let leased = claim(&store, 10_000).await;
            assert_eq!(leased.len(), MANY);
            let leases: Vec<_> = leased.into_iter().map(|leased| leased.lease).collect();
            // Some more, which no transaction holds.
            let mut more = leases.clone();
            for n in 0..40_000 {
                let mut lease = leases[n % MANY].clone();
                lease.locator = u64::MAX / 4 - n as u64;
                more.push(lease);
            }
            let extended = store.extend(&more, common::LEASE).await.unwrap();
            let held = |n: &inbox_api::Extended| matches!(n, inbox_api::Extended::Until(_));
            assert!(extended[..MANY].iter().all(held));
            assert!(!extended[MANY..].iter().any(held));
            let settlements: Vec<_> = more
                .into_iter()
                .map(|lease| Settlement {
                    lease,
                    outcome: inbox_api::Outcome::Release,
                })
                .collect();
            let settled = store.settle(&settlements).await.unwrap();
            assert!(settled[..MANY].iter().all(|s| *s == Settled::Done));
            assert!(settled[MANY..].iter().all(|s| *s == Settled::LeaseLost));
            let pending = Filter {
                states: vec![State::Pending],
                ..Filter::default()
            };
            let mut slice = inbox_api::Slice {
                after: None,
                limit: 10_000,
            };
            let mut changed = 0;
            loop {
                let progress = store.discard_slice(&pending, &slice).await.unwrap();
                changed += progress.changed;
                slice.after = progress.next;
                if slice.after.is_none() {
                    break;
                }
            }
            assert_eq!(changed, MANY as u64);
            let mut transaction = store.open().await.unwrap();
            let again = store.receive_in(&mut transaction, &batch).await.unwrap();
            assert!(
                again
                    .iter()
                    .all(|receipt| *receipt == Receipt::Duplicate { differs: false })
            );
            store.commit(transaction).await.unwrap();
        });
    }
}

/// Receives, claims, extends and settles five messages, some in a transaction.
async fn answers_about_all(store: &MySqlStore, name: &str) {
    let sent: Vec<_> = (0..5).map(|n| message(&format!("{name} {n}"))).collect();
    accept(store, &sent[..4]).await;
    let receipts = store.receive(&sent).await.unwrap();
    let is_new: Vec<_> = receipts
        .iter()
        .map(|one| *one == Receipt::Accepted)
        .collect();
    assert_eq!(is_new, [false, false, false, false, true], "{name}");
    let leased = claim(store, 5).await;
    assert_eq!(leased.len(), 5, "{name}");
    let leases: Vec<_> = leased.into_iter().map(|leased| leased.lease).collect();
    let extended = store.extend(&leases, common::LEASE).await.unwrap();
    let held = |n: &inbox_api::Extended| matches!(n, inbox_api::Extended::Until(_));
    assert!(extended.iter().all(held), "{name}: {extended:?}");
    let settlements: Vec<_> = leases
        .into_iter()
        .map(|lease| Settlement {
            lease,
            outcome: dead(AfterDead::Continue),
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert_eq!(settled, vec![Settled::Done; 5], "{name}");
    let all = Filter::default();
    let slice = inbox_api::Slice {
        after: None,
        limit: 10,
    };
    let progress = store.replay_slice(&all, &slice).await.unwrap();
    assert_eq!(progress.changed, 5, "{name}");
}

/// The same in a transaction, which may be of another pool.
async fn answers_about_all_within(
    store: &MySqlStore,
    mut transaction: sqlx::Transaction<'static, sqlx::MySql>,
    name: &str,
) {
    let before: Vec<_> = claim(store, 5).await;
    assert_eq!(before.len(), 5, "{name}");
    let settlements: Vec<_> = before
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: dead(AfterDead::Continue),
        })
        .collect();
    let settled = store.settle_in(&mut transaction, &settlements).await;
    assert_eq!(settled.unwrap(), vec![Settled::Done; 5], "{name}");
    let sent: Vec<_> = (0..8).map(|n| message(&format!("{name} {n}"))).collect();
    let receipts = store.receive_in(&mut transaction, &sent).await.unwrap();
    let (known, new) = receipts.split_at(5);
    let duplicate = Receipt::Duplicate { differs: false };
    assert!(known.iter().all(|one| *one == duplicate), "{receipts:?}");
    let accepted = Receipt::Accepted;
    assert!(new.iter().all(|one| *one == accepted), "{receipts:?}");
    store.commit(transaction).await.unwrap();
}

#[test]
fn the_server_s_limit_of_rows_leaves_nothing_out() {
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let Some(server) = own(kind, &[]) else {
            continue;
        };
        block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            inbox.run("SET GLOBAL sql_select_limit = 2").await.unwrap();
            let store = inbox.store().await;
            assert!(store.exists().await.unwrap());
            answers_about_all(&store, "own").await;
            let transaction = store.open().await.unwrap();
            answers_about_all_within(&store, transaction, "own").await;
            for state in [State::Dead, State::Pending] {
                let filter = Filter {
                    states: vec![state],
                    ..Filter::default()
                };
                let slice = inbox_api::Slice {
                    after: None,
                    limit: 10,
                };
                let _ = store.discard_slice(&filter, &slice).await.unwrap();
            }
            let pool = MySqlPoolOptions::new()
                .max_connections(2)
                .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
                .await
                .unwrap();
            let store = MySqlStore::with_pool(pool.clone(), inbox.options.clone()).await;
            let store = store.unwrap();
            answers_about_all(&store, "foreign").await;
            let transaction = pool.begin().await.unwrap();
            answers_about_all_within(&store, transaction, "foreign").await;
            let limit = "SELECT CAST(@@SESSION.sql_select_limit AS SIGNED)";
            let limit: i64 = sqlx::query_scalar(limit).fetch_one(&pool).await.unwrap();
            assert_eq!(limit, 2, "the session keeps what it was set to");
        });
    }
}

#[test]
fn an_existing_pool_is_used_and_left_open() {
    on_each(async |inbox, _| {
        inbox.store().await;
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .connect_with(connect_options(&inbox.url, None))
            .await
            .unwrap();
        // Whichever database the pool uses, the inbox's is named.
        let options = inbox
            .options
            .clone()
            .database(inbox.database.clone())
            .unwrap();
        let store = MySqlStore::with_pool(pool.clone(), options).await.unwrap();
        accept(&store, &[message("1"), ordered("2", "it's")]).await;
        let leased = claim(&store, 10).await;
        assert_eq!(leased[0].message.payload(), message("1").payload());
        for leased in leased {
            let result = inbox_api::Outcome::Processed {
                result: Some("kept".into()),
            };
            settle(&store, &leased.lease, result).await;
        }
        let record = store.get(&key("2")).await.unwrap().unwrap();
        assert_eq!(record.result.unwrap(), "kept");
        store.close().await;
        let error = store.claim(&common_request()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        sqlx::query("SELECT 1").execute(&pool).await.unwrap();
    });
}

fn common_request() -> inbox_api::ClaimRequest {
    inbox_api::ClaimRequest {
        handlers: vec![handler("h")],
        limit: 1,
        terms: common::terms(),
        run_limit: 1,
    }
}

#[test]
fn json_payloads_can_be_queried_and_others_are_refused() {
    on_each(async |mut inbox, _| {
        inbox.options = inbox.options.payload_type(PayloadType::Json);
        let store = inbox.store().await;
        assert!(store.exists().await.unwrap());
        let json = inbox_api::Message::new(
            handler("h"),
            inbox_api::MessageId::new("1").unwrap(),
            inbox_api::Kind::new("k").unwrap(),
            r#"{"order": 7, "note": "it's \"ä\""}"#,
        );
        let with = |id: &str, payload: String| {
            let id = inbox_api::MessageId::new(id).unwrap();
            inbox_api::Message::new(handler("h"), id, json.kind().clone(), payload)
        };
        let key = |length| format!("{{\"{}\": 1}}", "k".repeat(length));
        let batch = [
            json.clone(),
            message("2"),
            // The longest key that both servers take, and one that MySQL does not.
            with("3", key(65_535)),
            with("4", key(65_536)),
            with("5", format!("{{\"smile\": \"{}\"}}", ":[ :{ ".repeat(40))),
            with("6", "[".repeat(30) + &"]".repeat(30)),
            with("7", "[".repeat(31) + &"]".repeat(31)),
            // The server reads all of it, whatever counts in the end.
            with(
                "8",
                format!(
                    "{{\"a\": {}{}, \"a\": 1}}",
                    "[".repeat(120),
                    "]".repeat(120)
                ),
            ),
        ];
        let receipts = store.receive(&batch).await.unwrap();
        let accepted = receipts.iter().map(|one| *one == Receipt::Accepted);
        let accepted: Vec<bool> = accepted.collect();
        assert_eq!(
            accepted,
            [true, false, true, false, true, true, false, false]
        );
        assert!(matches!(
            receipts[1],
            Receipt::Refused(Invalid::Malformed { .. })
        ));
        let order = "SELECT JSON_EXTRACT(payload, '$.order') + 0 FROM inbox_message WHERE id = '1'";
        assert_eq!(inbox.number(order).await, 7);
        let leased = claim(&store, 1).await;
        let (back, sent): (serde_json::Value, serde_json::Value) = (
            serde_json::from_slice(leased[0].message.payload()).unwrap(),
            serde_json::from_slice(json.payload()).unwrap(),
        );
        assert_eq!(back, sent);
    });
}

#[test]
fn changed_columns_indexes_and_engines_are_noticed() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        for (spoil, mend) in [
            (
                "inbox_message MODIFY id VARCHAR(255) NOT NULL",
                "inbox_message MODIFY id VARBINARY(255) NOT NULL",
            ),
            (
                "inbox_done DROP INDEX expired",
                "inbox_done ADD INDEX expired (handler, state, kept, finished_at, seq)",
            ),
            ("inbox_tally ENGINE=MyISAM", "inbox_tally ENGINE=InnoDB"),
            (
                "inbox_message MODIFY seq BIGINT NOT NULL",
                "inbox_message MODIFY seq BIGINT NOT NULL AUTO_INCREMENT",
            ),
            (
                "inbox_work DROP COLUMN worker",
                "inbox_work ADD COLUMN worker VARBINARY(128) NULL",
            ),
        ] {
            inbox.run(format!("ALTER TABLE {spoil}")).await.unwrap();
            assert!(!store.exists().await.unwrap(), "{spoil}");
            let error = store.create().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{spoil}");
            inbox.run(format!("ALTER TABLE {mend}")).await.unwrap();
            assert!(store.exists().await.unwrap(), "{mend}");
        }
        // An index or a comment that the inbox has not made does no harm.
        for sql in [
            "CREATE INDEX mine ON inbox_message (kind)",
            "ALTER TABLE inbox_work COMMENT 'open', MODIFY due_at BIGINT NOT NULL COMMENT 'due'",
        ] {
            inbox.run(sql).await.unwrap();
        }
        assert!(store.exists().await.unwrap());
    });
}

/// A process of this build next to newer ones, which have added what it can do without.
#[test]
fn a_newer_inbox_is_used_as_far_as_it_allows() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &[message("0")]).await;
        for sql in [
            "ALTER TABLE inbox_work ADD COLUMN more BIGINT NULL",
            "ALTER TABLE inbox_message ADD INDEX by_kind (kind)",
            "CREATE TABLE inbox_more (n BIGINT NOT NULL PRIMARY KEY)",
            "UPDATE inbox_meta SET version = 2",
        ] {
            inbox.run(sql).await.unwrap();
        }
        let older = inbox.other().await;
        assert!(older.exists().await.unwrap());
        older.create().await.unwrap();
        let migration = older.migrate().await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(2), 2));
        assert_eq!(older.version().await.unwrap(), Some(2));
        accept(&older, &[message("1"), ordered("2", "a")]).await;
        for leased in claim(&older, 10).await {
            settle(&older, &leased.lease, processed()).await;
        }
        inbox
            .run("UPDATE inbox_meta SET works_from = 2")
            .await
            .unwrap();
        // Who is at work goes on; who starts is refused.
        accept(&store, &[message("3")]).await;
        for operation in ["exists", "create", "migrate", "receive"] {
            let older = inbox.other().await;
            let error = match operation {
                "exists" => older.exists().await.err(),
                "create" => older.create().await.err(),
                "migrate" => older.migrate().await.err(),
                _ => older.receive(&[message("4")]).await.err(),
            };
            let error = error.unwrap_or_else(|| panic!("{operation} answered"));
            assert_eq!(error.kind(), ErrorKind::SchemaVersion);
            let context = error.context();
            assert!(
                context.contains("version 2") && context.contains("with 1"),
                "{error}"
            );
        }
    });
}

/// The servers compare the names of databases in other ways where they look them up than where they
/// list them.
#[test]
fn a_database_whose_name_differs_in_case_is_another_one() {
    on_each(async |inbox, _| {
        if inbox.number("SELECT @@lower_case_table_names").await != 0 {
            return;
        }
        inbox.store().await;
        let upper = inbox.database.to_uppercase();
        inbox.run(format!("CREATE DATABASE {upper}")).await.unwrap();
        let named = inbox.options.clone().database(upper.clone()).unwrap();
        let connect = connect_options(&inbox.url, Some(&upper));
        let connected = inbox.options.clone().connect_with(connect);
        for options in [named, connected] {
            let store = MySqlStore::connect(options).await.unwrap();
            assert!(!store.exists().await.unwrap());
            assert_eq!(store.version().await.unwrap(), None);
        }
        inbox.run(format!("DROP DATABASE {upper}")).await.unwrap();
    });
}

#[test]
fn the_ddl_sets_up_what_create_does() {
    on_each(async |inbox, _| {
        let store = inbox.other().await;
        inbox.run(store.ddl()).await.unwrap();
        assert!(store.exists().await.unwrap());
        assert_eq!(store.version().await.unwrap(), Some(1));
    });
}

/// Eight receive what their neighbours receive, and then each claims until it has its eighth. One
/// that is slow finds its share left, so that nothing here hangs on who is faster.
#[test]
fn eight_processors_meet_no_deadlock_and_each_gets_its_share() {
    on_each(async |inbox, _| {
        const MESSAGES: usize = 4000;
        const SHARE: usize = MESSAGES / 8;
        inbox.store().await;
        let received = Arc::new(Barrier::new(8));
        let mut workers = Vec::new();
        for n in 0..8 {
            let store = inbox.other().await;
            let received = Arc::clone(&received);
            workers.push(tokio::spawn(async move {
                let from = n / 2 * (MESSAGES / 4);
                let mut batch: Vec<_> = (from..from + MESSAGES / 4)
                    .map(|m| match m % 4 {
                        0 => ordered(&format!("{m}"), &format!("key {}", m % 40)),
                        _ => message(&format!("{m}")),
                    })
                    .collect();
                if n % 2 == 1 {
                    batch.reverse();
                }
                for some in batch.chunks(100) {
                    let _ = store.receive(some).await.unwrap();
                }
                received.wait().await;
                let mut done = 0;
                while done < SHARE {
                    let limit = (SHARE - done).min(50);
                    let leased = claim(&store, u32::try_from(limit).unwrap()).await;
                    if leased.is_empty() {
                        // What is left waits for its turn behind what others have in hand.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        continue;
                    }
                    let settlements: Vec<_> = leased
                        .into_iter()
                        .rev()
                        .map(|leased| Settlement {
                            lease: leased.lease,
                            outcome: processed(),
                        })
                        .collect();
                    let settled = store.settle(&settlements).await.unwrap();
                    assert!(settled.iter().all(|s| *s == Settled::Done));
                    done += settled.len();
                }
            }));
        }
        for worker in workers {
            // Longer: one that never gets its share.
            let ended = timeout(Duration::from_secs(120), worker).await;
            ended.unwrap().unwrap();
        }
        let store = inbox.other().await;
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Processed), MESSAGES as u64);
        assert_eq!(statistics.handlers[0].backlog(), 0);
        assert_eq!(inbox.number("SELECT COUNT(*) FROM inbox_ordering").await, 0);
        assert_eq!(inbox.number("SELECT COUNT(*) FROM inbox_open").await, 0);
    });
}
