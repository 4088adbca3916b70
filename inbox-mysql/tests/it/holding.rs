//! What a caller's open transaction keeps from others: nothing but its own messages.

use inbox_api::{Message, Receipt, Recorded, Transactional as _};
use inbox_mysql::MySqlStore;
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};

use crate::common::{
    accept, claim, connect_options, message, on_each, ordered, processed, settle, waiting,
};

async fn others_go_on(store: &MySqlStore, round: &str) {
    // On both sides of what the transaction has, in the order of keys.
    let batch: Vec<Message> = ["0", "4", "5", "6", "z"]
        .map(|id| message(&format!("{id} {round} x")))
        .into();
    accept(store, &batch).await;
    accept(store, &[ordered(&format!("o {round}"), "other key")]).await;
    let again = store.receive_some(&batch).await;
    assert!(
        again
            .iter()
            .all(|receipt| *receipt == Receipt::Duplicate { differs: false })
    );
    let leased = claim(store, 100).await;
    assert_eq!(leased.len(), 6, "{round}");
    for leased in leased {
        settle(store, &leased.lease, processed()).await;
    }
}

trait ReceiveSome {
    async fn receive_some(&self, messages: &[Message]) -> Vec<Receipt>;
}

impl ReceiveSome for MySqlStore {
    async fn receive_some(&self, messages: &[Message]) -> Vec<Receipt> {
        inbox_api::Store::receive(self, messages).await.unwrap()
    }
}

/// With the server's default, `REPEATABLE READ`, too.
#[test]
fn new_and_known_messages_in_a_transaction_keep_no_others_waiting() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let pool: MySqlPool = MySqlPoolOptions::new()
            .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
            .await
            .unwrap();
        for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
            let id = |n: u32| format!("5 {isolation} {n}");
            accept(&store, &[message(&id(1)), message(&id(2)), message(&id(3))]).await;
            let leased = claim(&store, 3).await;
            for leased in leased.iter().take(2) {
                settle(&store, &leased.lease, processed()).await;
            }
            let mut transaction = pool.begin().await.unwrap();
            // Instead of the one that the driver has begun.
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
                "ROLLBACK; SET TRANSACTION ISOLATION LEVEL {isolation}; START TRANSACTION"
            )))
            .execute(&mut *transaction)
            .await
            .unwrap();
            let mut steps = 0;
            let mut step = || {
                steps += 1;
                format!("{isolation} {steps}")
            };

            let known = [message(&id(1)), message(&id(2))];
            let receipts = store.receive_in(&mut transaction, &known).await.unwrap();
            assert_eq!(
                receipts,
                [
                    Receipt::Duplicate { differs: false },
                    Receipt::Duplicate { differs: false }
                ]
            );
            others_go_on(&store, &step()).await;

            let recorded = store.record_in(&mut transaction, &known[0], None).await;
            assert_eq!(recorded.unwrap(), Recorded::Processed { result: None });
            others_go_on(&store, &step()).await;

            let new = [message(&id(4)), known[0].clone(), message(&id(5))];
            let receipts = store.receive_in(&mut transaction, &new).await.unwrap();
            let expected = [
                Receipt::Accepted,
                Receipt::Duplicate { differs: false },
                Receipt::Accepted,
            ];
            assert_eq!(receipts, expected);
            others_go_on(&store, &step()).await;

            let new = message(&id(6));
            let recorded = store.record_in(&mut transaction, &new, None).await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            others_go_on(&store, &step()).await;

            transaction.commit().await.unwrap();
            for leased in claim(&store, 10).await {
                settle(&store, &leased.lease, processed()).await;
            }
            settle(&store, &leased[2].lease, processed()).await;
        }
    });
}

/// Two transactions of one key: the second waits for the first, and no other transaction does. MariaDB would lock
/// all of the table's numbers for a conditional insert that waits. The key sorts before all others,
/// since an insert that waits keeps the gap in front of its key from them.
#[test]
fn a_transaction_that_waits_for_a_key_keeps_no_others_waiting() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let contended = message("!");
        let mut first = store.open().await.unwrap();
        let recorded = store.record_in(&mut first, &contended, None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        let second = tokio::spawn({
            let (store, contended) = (store.clone(), contended.clone());
            async move {
                let mut second = store.open().await.unwrap();
                let recorded = store.record_in(&mut second, &contended, None).await;
                store.commit(second).await.unwrap();
                recorded.unwrap()
            }
        });
        while waiting(&inbox).await == 0 {
            assert!(!second.is_finished(), "it did not wait");
        }
        others_go_on(&store, "while it waits").await;
        store.commit(first).await.unwrap();
        assert_eq!(second.await.unwrap(), Recorded::Processed { result: None });
    });
}
