//! Steps in a caller's transaction that do not come to their end, on a pool of the caller's. On the store's
//! own connections: the conformance suite.

use conformance_tests::BusinessWrites as _;
use inbox_api::{Effect, ErrorKind, Message, Receipt, Recorded, Store as _, Transactional as _};
use inbox_mysql::{MySqlStore, conformance::Effects};
use sqlx::{MySql, MySqlPool, Transaction, mysql::MySqlPoolOptions};

use crate::common::{TestInbox, claim, connect_options, message, on_each, waits};

/// With one connection, so that each transaction follows the others in its session.
async fn pool(inbox: &TestInbox, session: &'static str) -> MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(move |connection, _| {
            let session = sqlx::raw_sql(session);
            Box::pin(async move { session.execute(connection).await.map(drop) })
        })
        .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
        .await
        .unwrap()
}

async fn run(transaction: &mut Transaction<'static, MySql>, sql: &'static str) {
    sqlx::raw_sql(sql)
        .execute(&mut **transaction)
        .await
        .unwrap();
}

/// More than one statement's, the last of them stored by a transaction that is open.
struct Contended {
    batch: Vec<Message>,
    holder: Transaction<'static, MySql>,
}

impl Contended {
    async fn new(store: &MySqlStore, round: &str) -> Self {
        let batch: Vec<_> = (0..1100)
            .map(|n| message(&format!("{round} {n:04}")))
            .collect();
        let mut holder = store.open().await.unwrap();
        let last = &batch[batch.len() - 1..];
        let receipts = store.receive_in(&mut holder, last).await.unwrap();
        assert_eq!(receipts, [Receipt::Accepted]);
        Self { batch, holder }
    }

    /// Nothing of it is there, and all of it can be stored.
    async fn is_not_there(&self, store: &MySqlStore, round: &str) {
        let receipts = store.receive(&self.batch).await.unwrap();
        let new = receipts.iter().filter(|r| **r == Receipt::Accepted).count();
        assert_eq!(new, self.batch.len(), "{round}");
        let leased = claim(store, 2000).await;
        assert_eq!(leased.len(), self.batch.len(), "{round}");
    }
}

#[test]
fn a_step_that_has_failed_is_undone_and_not_committed() {
    on_each(async |inbox, kind| {
        let store = inbox.store().await;
        Effects::of(&inbox.options).create().await.unwrap();
        let effects = Effects::of(&inbox.options);
        let pool = pool(&inbox, "SET SESSION innodb_lock_wait_timeout = 1").await;
        for round in ["store", "driver", "drop", "roll back"] {
            eprintln!("{kind}, {round}");
            let contended = Contended::new(&store, round).await;
            let mut transaction = pool.begin().await.unwrap();
            effects.write(&mut transaction, round).await.unwrap();
            let received = store.receive_in(&mut transaction, &contended.batch).await;
            let error = received.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let other = message(&format!("other {round}"));
            let refused = store.record_in(&mut transaction, &other, None).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
            let Contended { batch, holder } = contended;
            store.roll_back(holder).await.unwrap();
            match round {
                "store" => {
                    let error = store.commit(transaction).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    assert_eq!(error.effect(), Effect::None, "{error}");
                }
                // Nothing is checked then, but nothing is there in parts.
                "driver" => transaction.commit().await.unwrap(),
                "drop" => drop(transaction),
                _ => store.roll_back(transaction).await.unwrap(),
            }
            let written = effects.written().await.unwrap();
            assert_eq!(written.contains(&round.to_owned()), round == "driver");
            let other = inbox.other().await;
            let contended = Contended {
                batch,
                holder: store.open().await.unwrap(),
            };
            contended.is_not_there(&other, round).await;
            other.close().await;
            // The session's next transaction is not concerned.
            let mut next = pool.begin().await.unwrap();
            let sent = message(&format!("next {round}"));
            let recorded = store.record_in(&mut next, &sent, None).await;
            assert_eq!(recorded.unwrap(), Recorded::First, "{round}");
            store.commit(next).await.unwrap();
        }
        pool.close().await;
    });
}

/// Also where the handler has let go of the savepoint that tells so.
#[test]
fn a_step_that_was_dropped_is_not_committed() {
    on_each(async |inbox, kind| {
        let store = inbox.store().await;
        let pool = pool(&inbox, "DO 0").await;
        for round in ["plain", "released", "rolled back to", "another step", "new"] {
            eprintln!("{kind}, {round}");
            let mut contended = Contended::new(&store, round).await;
            let mut transaction = pool.begin().await.unwrap();
            run(&mut transaction, "SAVEPOINT own").await;
            tokio::select! {
                received = store.receive_in(&mut transaction, &contended.batch) => {
                    panic!("{received:?}");
                }
                () = waits(&inbox) => {}
            }
            let holder = std::mem::replace(&mut contended.holder, store.open().await.unwrap());
            store.roll_back(holder).await.unwrap();
            match round {
                "released" => run(&mut transaction, "RELEASE SAVEPOINT own").await,
                "rolled back to" => run(&mut transaction, "ROLLBACK TO SAVEPOINT own").await,
                "another step" => {
                    run(&mut transaction, "RELEASE SAVEPOINT own").await;
                    let other = message("other");
                    let refused = store.record_in(&mut transaction, &other, None).await;
                    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
                }
                _ => {}
            }
            if round == "new" {
                drop(transaction);
            } else {
                let error = store.commit(transaction).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{round}: {error}");
            }
            let other = inbox.other().await;
            contended.is_not_there(&other, round).await;
            other.close().await;
            // At most the next transaction of the session is in doubt, once.
            let mut recorded = Err(ErrorKind::Other);
            for _ in 0..2 {
                let mut next = pool.begin().await.unwrap();
                let sent = message(&format!("next {round}"));
                let answer = store.record_in(&mut next, &sent, None).await;
                recorded = answer.map_err(|error| error.kind());
                if recorded.is_ok() {
                    store.commit(next).await.unwrap();
                    break;
                }
                assert_eq!(recorded, Err(ErrorKind::Conflict));
                assert_eq!(round, "new");
            }
            assert_eq!(recorded, Ok(Recorded::First), "{round}");
        }
        pool.close().await;
    });
}
