//! The numbers of messages: drawn by the table, and never taken for one another.

use std::{collections::HashSet, time::Duration};

use inbox_api::{
    ClaimRequest, ErrorKind, Operate as _, PurgeRequest, Receipt, Schema as _, State, Store as _,
};
use inbox_mysql::MySqlStore;
use sqlx::{Executor as _, mysql::MySqlPoolOptions};
use test_servers::Kind;

use crate::common::{
    self, TestInbox, accept, claim, connect_options, key, message, on_each, ordered, own_server,
    processed, settle,
};

/// A session that is made to draw a number which is in use: once, and again and again.
#[test]
fn a_number_that_is_in_use_is_no_duplicate() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        let number = inbox.number("SELECT MIN(seq) FROM inbox_message").await;
        let set: &'static str = Box::leak(format!("SET insert_id = {number}").into_boxed_str());
        for every_time in [false, true] {
            let pool = MySqlPoolOptions::new()
                .max_connections(1)
                .after_connect(move |connection, _| {
                    Box::pin(async move { connection.execute(set).await.map(drop) })
                })
                .before_acquire(move |connection, _| {
                    Box::pin(async move {
                        if every_time {
                            connection.execute(set).await?;
                        }
                        Ok(true)
                    })
                })
                .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
                .await
                .unwrap();
            let other = MySqlStore::with_pool(pool.clone(), inbox.options.clone())
                .await
                .unwrap();
            let new = message(&format!("new {every_time}"));
            let received = other.receive(std::slice::from_ref(&new)).await;
            if every_time {
                let error = received.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict);
                assert!(error.context().contains("number"), "{error}");
                assert!(store.get(new.key()).await.unwrap().is_none());
            } else {
                // The next number that it draws is a new one.
                assert_eq!(received.unwrap(), [Receipt::Accepted]);
                assert!(store.get(new.key()).await.unwrap().is_some());
            }
            pool.close().await;
        }
        let first = store.get(&key("1")).await.unwrap().unwrap();
        assert_eq!(first.payload.unwrap(), *message("1").payload());
        assert_eq!(claim(&store, 10).await.len(), 2);
    });
}

/// With a trigger on a table, the servers draw the numbers of a statement little by little, so that
/// those of others are in between.
#[test]
fn numbers_with_gaps_lose_nothing() {
    on_each(async |inbox, _| {
        const RECEIVERS: usize = 6;
        const BATCHES: usize = 8;
        const BATCH: usize = 40;
        let store = inbox.store().await;
        for sql in [
            "CREATE TABLE audit (n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, id VARBINARY(255))",
            "INSERT INTO audit (n, id) VALUES (100000, 'first')",
            "CREATE TRIGGER audited AFTER INSERT ON inbox_message FOR EACH ROW \
             INSERT INTO audit (id) VALUES (NEW.id)",
        ] {
            inbox.run(sql).await.unwrap();
        }
        let known: Vec<_> = (0..BATCHES)
            .map(|n| message(&format!("known {n}")))
            .collect();
        accept(&store, &known).await;
        let mut tasks = tokio::task::JoinSet::new();
        for receiver in 0..RECEIVERS {
            let store = inbox.other().await;
            tasks.spawn(async move {
                for batch in 0..BATCHES {
                    let id = |n: usize| format!("{receiver} {batch} {n}");
                    let mut messages: Vec<_> = (0..BATCH)
                        .map(|n| match n % 10 {
                            0 => ordered(&id(n), &format!("key {receiver}")),
                            _ => message(&id(n)),
                        })
                        .collect();
                    // All new, and not.
                    if batch % 2 == 1 {
                        messages.insert(BATCH / 2, message(&format!("known {batch}")));
                    }
                    let receipts = store.receive(&messages).await.unwrap();
                    for (message, receipt) in messages.iter().zip(receipts) {
                        let known = message.id().as_str().starts_with("known");
                        assert_eq!(
                            receipt == Receipt::Duplicate { differs: false },
                            known,
                            "{}",
                            message.id()
                        );
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let all = RECEIVERS * BATCHES * BATCH + BATCHES;
        let mut done = HashSet::new();
        loop {
            let leased = claim(&store, 500).await;
            if leased.is_empty() {
                break;
            }
            for leased in leased {
                settle(&store, &leased.lease, processed()).await;
                assert!(
                    done.insert(leased.message.id().clone()),
                    "{}",
                    leased.message.id()
                );
            }
        }
        assert_eq!(done.len(), all);
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Processed), all as u64);
        assert_eq!(statistics.handlers[0].backlog(), 0);
    });
}

/// It is reported once, and not handed out again and again.
#[test]
fn work_without_its_message_is_corrupt_and_set_aside() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(
            &store,
            &[message("1"), ordered("2", "key"), ordered("3", "key")],
        )
        .await;
        inbox
            .run("DELETE FROM inbox_message WHERE id IN ('1', '2')")
            .await
            .unwrap();
        let request = ClaimRequest {
            handlers: vec![common::handler("h")],
            limit: 10,
            terms: common::terms(),
            run_limit: 1,
        };
        let mut corrupt = HashSet::new();
        let mut leased = Vec::new();
        for _ in 0..3 {
            let claims = store.claim(&request).await.unwrap();
            for row in claims.corrupt {
                assert!(corrupt.insert(row.place), "reported twice");
            }
            leased.extend(claims.leased);
        }
        assert_eq!(corrupt.len(), 2);
        // What waited behind one of them goes on.
        assert_eq!(leased.len(), 1);
        assert_eq!(leased[0].message.id().as_str(), "3");
        settle(&store, &leased[0].lease, processed()).await;
        assert_eq!(inbox.number("SELECT COUNT(*) FROM inbox_work").await, 0);
        // Another process works at the same time.
        let other = inbox.other().await;
        assert!(other.exists().await.unwrap());
        accept(&other, &[message("4")]).await;
    });
}

/// Nor by a server that was killed: the number of a message that is gone is not given again.
#[test]
fn numbers_do_not_go_back_when_a_server_is_killed() {
    for kind in [Kind::Mariadb, Kind::Mysql] {
        let Some(mut server) = own_server(kind) else {
            continue;
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let inbox = runtime.block_on(async {
            let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
            let store = inbox.store().await;
            accept(&store, &[message("1"), message("2"), message("3")]).await;
            inbox
        });
        let newest = "SELECT MAX(seq) FROM inbox_message";
        let before = runtime.block_on(async {
            let before = inbox.number(newest).await;
            let store = inbox.other().await;
            for id in ["2", "3"] {
                let _ = store.discard(&key(id)).await.unwrap();
            }
            let gone = PurgeRequest::new(State::Discarded, Duration::ZERO, 10).unwrap();
            assert_eq!(store.purge(&gone).await.unwrap(), 2);
            store.close().await;
            before
        });
        server.kill().unwrap();
        server.start().unwrap();
        runtime.block_on(async {
            let store = inbox.other().await;
            assert!(store.exists().await.unwrap());
            accept(&store, &[message("4")]).await;
            assert!(inbox.number(newest).await > before, "{kind}");
        });
    }
}
