//! Workers that take messages while they are being stored.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use inbox_api::{
    Attempts, Begun, ClaimRequest, LeaseTerms, Operate as _, Outcome, Receipt, Settled, Settlement,
    State, Store as _, WorkerName,
};
use inbox_mysql::MySqlStore;

use crate::common::{self, handler, message, on_each, ordered, waiting};

const RECEIVERS: usize = 12;
const CLAIMERS: usize = 6;
const INLINE: usize = 6;
/// Of each receiver and each inline consumer.
const BATCHES: usize = 30;
/// Of each receiver's batch, of which one has an ordering key.
const BATCH: usize = 3;

fn terms() -> LeaseTerms {
    LeaseTerms::new(common::LEASE, WorkerName::new("w").unwrap()).unwrap()
}

fn done(lease: inbox_api::Lease) -> Settlement {
    Settlement {
        lease,
        outcome: Outcome::Processed { result: None },
    }
}

async fn receive(store: MySqlStore, receiver: usize) {
    for batch in 0..BATCHES {
        let id = |n: usize| format!("r{receiver}-{batch}-{n}");
        let mut messages: Vec<_> = (1..BATCH).map(|n| message(&id(n))).collect();
        messages.push(ordered(&id(0), &format!("key {}", batch % 10)));
        let receipts = store.receive(&messages).await.unwrap();
        // The first one may have been begun before.
        assert!(receipts[1..].iter().all(|r| *r == Receipt::Accepted));
    }
}

/// What a receiver stores, once more: it is either held by a worker, or done, or its turn.
async fn consume(store: MySqlStore, consumer: usize, processed: Arc<AtomicUsize>) {
    for batch in 0..BATCHES {
        let known = message(&format!("r{consumer}-{batch}-1"));
        let new = message(&format!("i{consumer}-{batch}"));
        for message in [known, new] {
            if let Begun::Run(leased) = store.begin(&message, &terms()).await.unwrap() {
                assert_eq!(leased.message.payload(), message.payload());
                let settled = store.settle(&[done(leased.lease)]).await.unwrap();
                assert_eq!(settled, [Settled::Done]);
                processed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

async fn work(store: MySqlStore, processed: Arc<AtomicUsize>, all: usize) {
    let request = ClaimRequest {
        handlers: vec![handler("h")],
        limit: 7,
        terms: terms(),
        run_limit: 1,
    };
    while processed.load(Ordering::Relaxed) < all {
        let claims = store.claim(&request).await.unwrap();
        assert_eq!(claims.corrupt, []);
        let mut settlements = Vec::new();
        for leased in claims.leased {
            let once = Attempts {
                started: 1,
                finished: 0,
            };
            assert_eq!(leased.attempts, once);
            settlements.push(done(leased.lease));
        }
        let settled = store.settle(&settlements).await.unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Done));
        processed.fetch_add(settled.len(), Ordering::Relaxed);
    }
}

/// On MariaDB, the locks on what was just stored are gone a moment before new snapshots show it.
#[test]
fn what_is_being_stored_is_taken_whole_and_counted_once() {
    on_each(|inbox, _| async move {
        inbox.store().await.close().await;
        let all = RECEIVERS * BATCHES * BATCH + INLINE * BATCHES;
        let processed = Arc::new(AtomicUsize::new(0));
        let options = inbox.options.clone().max_connections(24);
        let store = MySqlStore::connect(options).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for receiver in 0..RECEIVERS {
            tasks.spawn(receive(store.clone(), receiver));
        }
        for consumer in 0..INLINE {
            tasks.spawn(consume(store.clone(), consumer, Arc::clone(&processed)));
        }
        for _ in 0..CLAIMERS {
            tasks.spawn(work(store.clone(), Arc::clone(&processed), all));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        let statistics = store.statistics().await.unwrap();
        for state in State::ALL {
            let expected = if state == State::Processed { all } else { 0 };
            assert_eq!(statistics.count(state), expected as u64, "{state}");
        }
        store.close().await;
    });
}

/// What MariaDB shows for a moment, held on to: the row of the work is there and its content is not to
/// be seen yet.
#[test]
fn content_that_is_not_to_be_seen_yet_is_waited_for() {
    on_each(|inbox, _| async move {
        let store = inbox.store().await;
        common::accept(&store, &[message("1")]).await;
        inbox
            .run(
                "CREATE TABLE kept AS SELECT * FROM inbox_message; \
                 DELETE FROM inbox_message",
            )
            .await
            .unwrap();
        let mut storing = inbox.connection().await.unwrap();
        sqlx::raw_sql("START TRANSACTION; INSERT INTO inbox_message SELECT * FROM kept")
            .execute(&mut storing)
            .await
            .unwrap();
        let claiming = tokio::spawn({
            let store = store.clone();
            async move {
                let handlers = vec![handler("h")];
                let request = ClaimRequest {
                    handlers,
                    limit: 1,
                    terms: terms(),
                    run_limit: 1,
                };
                store.claim(&request).await.unwrap()
            }
        });
        while !claiming.is_finished() && waiting(&inbox).await == 0 {}
        sqlx::raw_sql("COMMIT").execute(&mut storing).await.unwrap();
        let claims = claiming.await.unwrap();
        assert_eq!(claims.corrupt, []);
        assert_eq!(claims.leased.len(), 1);
        assert_eq!(claims.leased[0].message, message("1"));
        store.close().await;
    });
}
