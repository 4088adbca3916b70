//! Answers that rest on what others wrote are as durable as one's own. With MariaDB's default of semi-synchronous
//! replication, others' commits are seen before a replica has them; a commit with a row waits for it, and one without
//! does not.

use inbox_api::{
    Begun, Outcome, Receipt, Recorded, Settled, Settlement, Store as _, StoreExt as _,
    Transactional as _,
};
use inbox_mysql::MySqlStore;
use test_servers::Kind;

use crate::common::{TestInbox, accept, claim, handler, message, own_server, processed, terms};

/// How many rows an operation has left in the tally.
async fn rows_of<T>(inbox: &TestInbox, operation: impl Future<Output = T>) -> (i64, T) {
    let rows = "SELECT COUNT(*) FROM inbox_tally";
    let before = inbox.number(rows).await;
    let answer = operation.await;
    (inbox.number(rows).await - before, answer)
}

/// Which of these answers had a row to commit.
async fn answers_with_rows(inbox: &TestInbox, store: &MySqlStore) -> Vec<&'static str> {
    let duplicate = Receipt::Duplicate { differs: false };
    let mut with_rows = Vec::new();
    let mut note = |what, rows: i64| {
        if rows > 0 {
            with_rows.push(what);
        }
    };
    let one = message("1");
    let others = [message("2"), message("3").for_handler(handler("other"))];

    let (rows, receipt) = rows_of(inbox, store.receive_one(&one)).await;
    assert_eq!(receipt.unwrap(), duplicate);
    note("receive", rows);
    let (rows, receipts) = rows_of(inbox, store.receive(&others)).await;
    assert_eq!(receipts.unwrap(), [duplicate.clone(), duplicate.clone()]);
    note("receive of several", rows);
    let (rows, receipts) = rows_of(inbox, async {
        let mut transaction = store.open().await.unwrap();
        let receipts = store.receive_in(&mut transaction, &others).await.unwrap();
        store.commit(transaction).await.unwrap();
        receipts
    })
    .await;
    assert_eq!(receipts, [duplicate.clone(), duplicate]);
    note("receive in a transaction", rows);
    let (rows, begun) = rows_of(inbox, store.begin(&one, &terms())).await;
    assert_eq!(begun.unwrap(), Begun::Processed { result: None });
    note("begin", rows);
    let (rows, recorded) = rows_of(inbox, async {
        let mut transaction = store.open().await.unwrap();
        let recorded = store.record_in(&mut transaction, &one, None).await.unwrap();
        store.commit(transaction).await.unwrap();
        recorded
    })
    .await;
    assert_eq!(recorded, Recorded::Processed { result: None });
    note("record", rows);
    with_rows
}

#[test]
fn answers_that_rest_on_others_wait_for_the_replica_as_theirs_do() {
    let Some(server) = own_server(Kind::Mariadb) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let inbox = TestInbox::at(server.url().to_owned()).await.unwrap();
        let store = inbox.store().await;
        let other = message("3").for_handler(handler("other"));
        accept(&store, &[message("1"), message("2"), other]).await;
        let leased = claim(&store, 1).await;
        let settle = async |outcome: Outcome| {
            let lease = leased[0].lease.clone();
            let settled = store.settle(&[Settlement { lease, outcome }]).await;
            assert_eq!(settled.unwrap(), [Settled::Done]);
        };
        settle(processed()).await;
        let (rows, ()) = rows_of(&inbox, settle(processed())).await;
        assert_eq!(rows, 0, "without replicas");
        assert!(answers_with_rows(&inbox, &store).await.is_empty());

        // Stores that are connected already are told, too.
        let waits = "SET GLOBAL rpl_semi_sync_master_enabled = ON";
        inbox.run(waits).await.unwrap();
        let (rows, ()) = rows_of(&inbox, settle(processed())).await;
        assert_eq!(rows, 1, "a repeated settlement");
        assert_eq!(
            answers_with_rows(&inbox, &store).await,
            [
                "receive",
                "receive of several",
                "receive in a transaction",
                "begin",
                "record"
            ]
        );

        let before_it_is_seen = "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'";
        inbox.run(before_it_is_seen).await.unwrap();
        let (rows, ()) = rows_of(&inbox, settle(processed())).await;
        assert_eq!(rows, 0, "nobody sees what the replica does not have");
        assert!(answers_with_rows(&inbox, &store).await.is_empty());
    });
}
