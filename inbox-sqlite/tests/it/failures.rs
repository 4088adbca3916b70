//! Dropped futures, a full disk, corrupt rows, several stores on one file, wake-ups.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use inbox_api::{
    AfterDead, Due, Edit, ErrorKind, Filter, Intervention, Operate, Outcome, Page, PurgeRequest,
    Receipt, Schema, Settled, Settlement, Slice, State, Store, StoreExt, Transactional,
};
use inbox_sqlite::SqliteStore;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::common::*;

/// Polls a future up to `times`, giving SQLite's thread time in between, then drops it. Whether
/// it completed.
async fn poll_and_drop<T>(times: u32, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_ready() {
            return true;
        }
        // Not a timer alone: tasks that return connections have to run as well.
        // Longer and longer, so that a slow machine gets to the end of the operation, too.
        let pause = Duration::from_micros(300 + u64::from(times) * 15);
        tokio::time::sleep(pause).await;
    }
    false
}

/// Runs `operation` cut off after 0, 1, 2 … polls until it completes, and checks after each that
/// the store works and is consistent.
async fn cut_everywhere<F, Fut, T>(inbox: &TestInbox, name: &str, operation: F)
where
    F: Fn(u32) -> Fut,
    Fut: Future<Output = T>,
{
    for times in 0..200 {
        let completed = poll_and_drop(times, operation(times)).await;
        // At once: nothing may be left that the next operation trips over.
        let receipt = inbox
            .store
            .receive_one(&message(&format!("{name} probe {times}")))
            .await
            .unwrap();
        assert_eq!(receipt, Receipt::Accepted);
        check_consistent(&inbox.store).await;
        // No write lock is left behind: another connection writes.
        let other = inbox.other().await;
        let receipt = other
            .receive_one(&message(&format!("{name} other probe {times}")))
            .await
            .unwrap();
        assert_eq!(receipt, Receipt::Accepted);
        other.close().await;
        if completed {
            assert!(times > 0);
            return;
        }
    }
    panic!("{name} never completed");
}

#[tokio::test]
async fn receive_can_be_dropped_anywhere() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    cut_everywhere(&inbox, "receive", async |times| {
        let batch: Vec<_> = (0..1500)
            .map(|n| message(&format!("{times}-{n}")))
            .collect();
        store.receive(&batch).await.unwrap()
    })
    .await;
    // Each batch, of two statements, is there whole or not at all.
    for times in 0..200 {
        let ids = [0, 999, 1000, 1499].map(|n| format!("{times}-{n}"));
        let mut found = 0;
        for id in &ids {
            found += usize::from(store.get(&key(id)).await.unwrap().is_some());
        }
        assert!(found == 0 || found == 4, "{times}: {found}");
    }
}

#[tokio::test]
async fn claim_begin_settle_and_extend_can_be_dropped_anywhere() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    cut_everywhere(&inbox, "claim", async |times| {
        store
            .receive(&[ordered(&format!("c{times}"), "a")])
            .await
            .unwrap();
        let claims = store.claim(&request(3)).await.unwrap();
        store
            .extend(
                &claims
                    .leased
                    .iter()
                    .map(|l| l.lease.clone())
                    .collect::<Vec<_>>(),
                LEASE,
            )
            .await
            .unwrap();
    })
    .await;
    cut_everywhere(&inbox, "begin", async |times| {
        store
            .begin(&message(&format!("b{times}")), &terms())
            .await
            .unwrap()
    })
    .await;
    store
        .receive(
            &(0..300)
                .map(|n| message(&format!("s{n}")))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    inbox.clock.advance(LEASE);
    let leases = std::cell::RefCell::new(claim(store, 10_000).await);
    cut_everywhere(&inbox, "settle", async |_| {
        let leased: Vec<_> = (0..3).filter_map(|_| leases.borrow_mut().pop()).collect();
        let settlements: Vec<_> = leased
            .into_iter()
            .zip([processed(), retry(LEASE), dead(AfterDead::Block)])
            .map(|(leased, outcome)| Settlement {
                lease: leased.lease,
                outcome,
            })
            .collect();
        store.settle(&settlements).await.unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_settlement_with_payloads_to_drop_can_be_dropped_anywhere() {
    let inbox = test_inbox_with(|options| options.drop_processed_payloads(true)).await;
    let store = &inbox.store;
    cut_everywhere(&inbox, "settle", async |times| {
        let lease = begin(store, &message(&format!("d{times}"))).await.lease;
        store.settle_one(&lease, processed()).await.unwrap()
    })
    .await;
    let listing = store
        .list(&Filter::default(), &Page::first(10_000))
        .await
        .unwrap();
    for record in listing.records {
        let dropped = record.payload_bytes.is_none();
        assert_eq!(dropped, record.state == State::Processed, "{record:?}");
    }
}

#[tokio::test]
async fn operators_and_transactions_can_be_dropped_anywhere() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let slice = Slice {
        after: None,
        limit: 5,
    };
    let all = Filter {
        states: State::ALL.to_vec(),
        ..Default::default()
    };
    cut_everywhere(&inbox, "discard", async |_| {
        store.discard_slice(&all, &slice).await.unwrap()
    })
    .await;
    cut_everywhere(&inbox, "replay", async |_| {
        store.replay_slice(&all, &slice).await.unwrap()
    })
    .await;
    cut_everywhere(&inbox, "list", async |_| {
        store.list(&all, &Page::first(10_000)).await.unwrap()
    })
    .await;
    let expired = PurgeRequest::new(State::Discarded, Duration::ZERO, 5).unwrap();
    cut_everywhere(&inbox, "purge", async |_| {
        store.purge(&expired).await.unwrap()
    })
    .await;
    cut_everywhere(&inbox, "migrate", async |_| store.migrate().await.unwrap()).await;
    cut_everywhere(&inbox, "transaction", async |times| {
        let mut transaction = store.open().await.unwrap();
        let message = message(&format!("t{times}"));
        let _ = store
            .record_in(&mut transaction, &message, None)
            .await
            .unwrap();
        store.commit(transaction).await.unwrap();
    })
    .await;
    cut_everywhere(&inbox, "roll back", async |times| {
        let mut transaction = store.open().await.unwrap();
        let message = message(&format!("r{times}"));
        let _ = store
            .record_in(&mut transaction, &message, None)
            .await
            .unwrap();
        store.roll_back(transaction).await.unwrap();
    })
    .await;
    for times in 0..200 {
        assert_eq!(store.get(&key(&format!("r{times}"))).await.unwrap(), None);
    }
}

async fn raw(inbox: &TestInbox) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(inbox.path());
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn damage(inbox: &TestInbox, sql: &str) {
    let mut connection = raw(inbox).await;
    let sql = format!("PRAGMA ignore_check_constraints = ON; {sql}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_passes() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    // A limit that holds for one connection: that of an open transaction.
    let mut transaction = store.open().await.unwrap();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    let sql = format!("PRAGMA max_page_count = {}", pages + 3);
    let _: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    store.commit(transaction).await.unwrap();

    let large = |id: &str| {
        let small = message(id);
        inbox_api::Message::new(
            small.handler().clone(),
            small.id().clone(),
            small.kind().clone(),
            vec![1; 100_000],
        )
    };
    // In a single statement, in a transaction of several, in begin and in the caller's.
    let error = store.receive(&[large("1")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.context(), "the disk is full");
    let mut transaction = store.open().await.unwrap();
    let error = store
        .record_in(&mut transaction, &large("2"), None)
        .await
        .unwrap_err();
    assert_eq!(error.context(), "the disk is full");
    store.roll_back(transaction).await.unwrap();
    let error = store.begin(&large("3"), &terms()).await.unwrap_err();
    assert_eq!(error.context(), "the disk is full");
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);

    // Room again. The connection may have been replaced meanwhile, and the limit gone with it.
    let mut transaction = store.open().await.unwrap();
    let _: i64 = sqlx::query_scalar("PRAGMA max_page_count = 1000000")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    store.commit(transaction).await.unwrap();
    let receipts = store.receive(&["1", "2", "3"].map(large)).await.unwrap();
    assert_eq!(
        receipts,
        [Receipt::Accepted, Receipt::Accepted, Receipt::Accepted]
    );
    check_consistent(store).await;
}

#[tokio::test]
async fn corrupt_rows_are_set_aside_and_stop_nobody() {
    for sql in [
        "UPDATE inbox_message SET headers = 'not json' WHERE id = 'bad'",
        "UPDATE inbox_message SET id = char(10) || 'bad' WHERE id = 'bad'",
        "UPDATE inbox_message SET kind = '' WHERE id = 'bad'",
        "UPDATE inbox_message SET kind = CAST(x'ff' AS TEXT) WHERE id = 'bad'",
        "UPDATE inbox_message SET payload = NULL WHERE id = 'bad'",
        "UPDATE inbox_message SET ordering_key = '' WHERE id = 'bad'",
        "UPDATE inbox_state SET state = 9 WHERE seq = 2",
        "UPDATE inbox_state SET started = -1 WHERE seq = 2",
        "UPDATE inbox_state SET started = 5000000000 WHERE seq = 2",
        "DROP TRIGGER inbox_purged; DELETE FROM inbox_message WHERE id = 'bad'",
    ] {
        let inbox = test_inbox().await;
        let store = &inbox.store;
        let batch = [
            message("1"),
            ordered("bad", "a"),
            ordered("next", "a"),
            message("2"),
        ];
        store.receive(&batch).await.unwrap();
        damage(&inbox, sql).await;
        let gone = sql.contains("DELETE");
        if !gone {
            let listing = store
                .list(&Filter::default(), &Page::first(10))
                .await
                .unwrap();
            let counted = listing.records.len() + listing.corrupt.len();
            assert_eq!(counted, 4, "{sql}");
        }
        store.statistics().await.unwrap();

        let claims = store.claim(&request(10)).await.unwrap();
        assert_eq!(ids(&claims.leased), ["1", "2"], "{sql}");
        assert_eq!(claims.corrupt.len(), 1, "{sql}");
        assert!(
            claims.corrupt[0].place.contains("seq 2"),
            "{:?}",
            claims.corrupt
        );
        let claims = store.claim(&request(10)).await.unwrap();
        assert_eq!(claims.corrupt, [], "reported once");
        assert_eq!(ids(&claims.leased), ["next"], "{sql}");
        store.statistics().await.unwrap();
        assert!(
            store.statistics().await.unwrap().count(State::Dead) == 1,
            "{sql}"
        );

        let expired = PurgeRequest::new(State::Dead, Duration::ZERO, 10).unwrap();
        let listing = store.expired(&expired).await.unwrap();
        assert_eq!(listing.records.len() + listing.corrupt.len(), 1, "{sql}");
        if gone {
            assert!(listing.corrupt[0].place.contains("seq 2"), "{listing:?}");
            assert_eq!(listing.corrupt[0].reason, "message is missing");
        }
        store.drop_payloads(&expired).await.unwrap();
        let again = store.drop_payloads(&expired).await.unwrap();
        assert_eq!(again, 0, "nothing is found twice: {sql}");
        assert_eq!(store.purge(&expired).await.unwrap(), 1, "{sql}");
        let left = store.statistics().await.unwrap();
        assert_eq!(left.count(State::Dead), 0, "{sql}");
    }
}

#[tokio::test]
async fn a_corrupt_row_fails_its_own_get_and_begin_only() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    store
        .receive(&[message("bad"), message("good")])
        .await
        .unwrap();
    damage(
        &inbox,
        "UPDATE inbox_message SET headers = 'secret' WHERE id = 'bad'",
    )
    .await;
    for error in [
        store.get(&key("bad")).await.unwrap_err(),
        store.begin(&message("bad"), &terms()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.context().contains("seq 1"), "{error}");
        assert!(!format!("{error:?}").contains("secret"));
    }
    assert_eq!(get(store, "good").await.state, State::Pending);
    let listing = store
        .list(&Filter::default(), &Page::first(1))
        .await
        .unwrap();
    assert_eq!((listing.records.len(), listing.corrupt.len()), (0, 1));
    assert!(listing.next.is_some());
}

#[tokio::test]
async fn a_message_without_a_state_is_corrupt() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    store
        .receive(&[message("bad"), message("good")])
        .await
        .unwrap();
    damage(&inbox, "DELETE FROM inbox_state WHERE seq = 1").await;
    let store = &inbox.other().await;
    let mut transaction = store.open().await.unwrap();
    for error in [
        store.get(&key("bad")).await.map(drop).unwrap_err(),
        store
            .record_in(&mut transaction, &message("bad"), None)
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.context().contains("seq 1"), "{error}");
    }
    store.roll_back(transaction).await.unwrap();
    let error = store.begin(&message("bad"), &terms()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(ids(&claim(store, 10).await), ["good"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_share_the_work_without_overlap() {
    let inbox = test_inbox().await;
    let stores = [inbox.store.clone(), inbox.other().await];
    let batch: Vec<_> = (0..400)
        .map(|n| match n % 2 {
            0 => message(&n.to_string()),
            _ => ordered(&n.to_string(), &format!("key {}", n % 10)),
        })
        .collect();
    let receivers = stores.clone().map(|store| {
        let batch = batch.clone();
        tokio::spawn(async move {
            let mut accepted = 0;
            for some in batch.chunks(20) {
                let receipts = store.receive(some).await.unwrap();
                accepted += receipts.iter().filter(|r| **r == Receipt::Accepted).count();
            }
            accepted
        })
    });
    let mut accepted = 0;
    for receiver in receivers {
        accepted += receiver.await.unwrap();
    }
    assert_eq!(accepted, 400);

    let workers: Vec<_> = (0..6)
        .map(|n| {
            let store: SqliteStore = stores[n % 2].clone();
            tokio::spawn(async move {
                let (mut done, mut idle) = (Vec::new(), 0);
                while idle < 5 {
                    let leased = claim(&store, 7).await;
                    if leased.is_empty() {
                        idle += 1;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        continue;
                    }
                    idle = 0;
                    for leased in leased {
                        let settled = store.settle_one(&leased.lease, processed()).await.unwrap();
                        assert_eq!(settled, Settled::Done);
                        assert_eq!(leased.attempts.started, 1);
                        done.push(leased.message.id().to_string());
                    }
                }
                done
            })
        })
        .collect();
    let mut done = Vec::new();
    for worker in workers {
        done.extend(worker.await.unwrap());
    }
    assert_eq!(done.len(), 400);
    done.sort();
    done.dedup();
    assert_eq!(done.len(), 400);
    check_consistent(&inbox.store).await;
}

async fn is_woken(subscription: &mut Box<dyn inbox_api::Subscription>) -> bool {
    tokio::time::timeout(Duration::from_secs(30), subscription.woken())
        .await
        .is_ok()
}

/// Waits until earlier commits have been seen.
async fn settle_down(subscription: &mut Box<dyn inbox_api::Subscription>) {
    while tokio::time::timeout(Duration::from_millis(120), subscription.woken())
        .await
        .is_ok()
    {}
}

#[tokio::test]
async fn subscriptions_wake_in_this_process_and_in_others() {
    let inbox = test_inbox().await;
    let other = inbox.other().await;
    for store in [&inbox.store, &other] {
        let mut subscription = inbox.store.subscribe(&[handler("h")]).await.unwrap();
        settle_down(&mut subscription).await;
        let id = format!("{store:p}");
        store.receive(&[message(&id)]).await.unwrap();
        assert!(is_woken(&mut subscription).await, "receive");
        // Dropping a wait loses no signal.
        settle_down(&mut subscription).await;
        assert!(!poll_and_drop(1, subscription.woken()).await);
        store.receive(&[message(&format!("{id} 2"))]).await.unwrap();
        assert!(is_woken(&mut subscription).await, "after dropped waits");
        store.receive(&[message(&format!("{id} 3"))]).await.unwrap();

        let leases: Vec<_> = claim(store, 10)
            .await
            .into_iter()
            .map(|l| l.lease)
            .collect();
        let back = [
            Outcome::Release,
            retry(Duration::ZERO),
            defer(Duration::ZERO),
        ];
        for (n, outcome) in back.into_iter().enumerate() {
            settle_down(&mut subscription).await;
            settle(store, &leases[n], outcome).await;
            assert!(is_woken(&mut subscription).await, "settle {n}");
        }
        for leased in claim(store, 10).await {
            settle(store, &leased.lease, dead(AfterDead::Continue)).await;
        }
        settle_down(&mut subscription).await;
        assert_eq!(
            store.replay(&key(&id), &Edit::default()).await.unwrap(),
            Intervention::Done
        );
        assert!(is_woken(&mut subscription).await, "replay");
        store
            .discard_slice(
                &Filter {
                    states: State::ALL.to_vec(),
                    ..Default::default()
                },
                &Slice {
                    after: None,
                    limit: 99,
                },
            )
            .await
            .unwrap();
        store
            .receive(&[
                ordered(&format!("{id} a1"), &id),
                ordered(&format!("{id} a2"), &id),
            ])
            .await
            .unwrap();
        let first = claim_one(store).await;
        settle_down(&mut subscription).await;
        settle(store, &first, processed()).await;
        assert!(
            is_woken(&mut subscription).await,
            "the next of an ordering key"
        );
    }
}

#[tokio::test]
async fn a_quiet_file_wakes_nobody_and_a_closed_store_neither() {
    let inbox = test_inbox().await;
    let mut subscription = inbox.store.subscribe(&[handler("h")]).await.unwrap();
    let later = message("later").with_due(Due::After(LEASE));
    inbox.store.receive(&[later]).await.unwrap();
    // The watcher may be late with what was before; it does not go on for ever.
    let mut quiet = false;
    for _ in 0..50 {
        let woken = tokio::time::timeout(Duration::from_millis(200), subscription.woken()).await;
        quiet = woken.is_err();
        if quiet {
            break;
        }
    }
    assert!(quiet);
    inbox.store.close().await;
    inbox.other().await.receive(&[message("1")]).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_millis(200), subscription.woken()).await;
    assert!(woken.is_err(), "the watcher has ended");
}

/// A caller who closes a store may move its file away, or put another one in its place. A connection that
/// closed later would delete the log of that.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_store_has_no_file_open() {
    for round in 0..30 {
        let inbox = test_inbox().await;
        let mut kept = None;
        for _ in 0..3 {
            // Others are dropped, and their connection may be closing when the next one begins.
            kept = Some(inbox.store.subscribe(&[handler("h")]).await.unwrap());
            if round % 2 == 0 {
                kept = None;
            }
        }
        inbox.store.receive(&[message("1")]).await.unwrap();
        inbox.store.close().await;
        let folder = inbox.folder.path();
        let open: Vec<_> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|path| path.starts_with(folder))
            .collect();
        assert!(open.is_empty(), "{open:?}");
        drop(kept);
    }
}
