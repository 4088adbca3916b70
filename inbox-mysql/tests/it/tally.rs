//! The rows that statistics add up stay few.

use std::time::Duration;

use inbox_api::{Operate as _, Recorded, State, Store as _, Transactional as _};
use inbox_mysql::MySqlStore;
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};

use crate::common::{TestInbox, accept, connect_options, message, on_each};

/// The store sees nothing of such a commit.
#[test]
fn records_that_the_driver_commits_are_summed_up() {
    on_each(async |inbox, _| {
        const RECORDS: usize = 250;
        // Each leaves two; one of two hundred sums up those before it.
        const FEW: i64 = 450;
        let store = inbox.store().await;
        let pool: MySqlPool = MySqlPoolOptions::new()
            .max_connections(1)
            .connect_with(connect_options(&inbox.url, Some(&inbox.database)))
            .await
            .unwrap();
        for n in 0..RECORDS {
            let mut transaction = pool.begin().await.unwrap();
            let recorded = store
                .record_in(&mut transaction, &message(&format!("{n}")), None)
                .await;
            assert_eq!(recorded.unwrap(), Recorded::First);
            transaction.commit().await.unwrap();
        }
        // In the background, and what is still in transactions then is left for the next time.
        until_short(&inbox, FEW).await;
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Processed), RECORDS as u64);
        assert_eq!(statistics.handlers[0].backlog(), 0);
    });
}

/// Rows for handlers in turn, whose backlogs are each balanced if there is an even number of rows for each.
async fn add_rows(inbox: &TestInbox, rows: usize, handlers: usize) {
    let rows: Vec<_> = (0..rows)
        .map(|n| {
            let change = if (n / handlers).is_multiple_of(2) {
                1
            } else {
                -1
            };
            format!("('h{}', {change}, 0, 0, 0)", n % handlers)
        })
        .collect();
    let insert = "INSERT INTO inbox_tally (handler, backlog, processed, dead, discarded) VALUES";
    inbox
        .run(format!("{insert} {}", rows.join(", ")))
        .await
        .unwrap();
}

/// One of these operations looks whether the tally is to be summed up.
async fn operate_for_a_while(store: &MySqlStore) {
    for _ in 0..200 {
        let _ = store.receive(&[message("1")]).await.unwrap();
    }
}

/// Waits until no more than so many rows are left.
async fn until_short(inbox: &TestInbox, most: i64) {
    let mut looks = 0;
    while inbox.number("SELECT COUNT(*) FROM inbox_tally").await > most {
        looks += 1;
        assert!(looks < 600, "the tally stays long");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// As operations that touch many handlers leave them: each adds a row for each.
#[test]
fn all_that_has_come_together_is_summed_up_at_once() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        add_rows(&inbox, 20_000, 100).await;
        operate_for_a_while(&store).await;
        until_short(&inbox, 1000).await;
        let statistics = store.statistics().await.unwrap();
        let backlogs: Vec<_> = statistics
            .handlers
            .iter()
            .map(|counts| (counts.handler.as_str(), counts.backlog()))
            .collect();
        assert_eq!(backlogs, [("h", 1)]);
    });
}

/// Rows of one handler are further from each other than one transaction sums up.
#[test]
fn the_rows_of_many_handlers_meet() {
    on_each(async |inbox, _| {
        const HANDLERS: usize = 12_000;
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        // An odd number for each, of which one counts.
        add_rows(&inbox, 5 * HANDLERS, HANDLERS).await;
        operate_for_a_while(&store).await;
        until_short(&inbox, 2 * HANDLERS as i64).await;
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Pending), HANDLERS as u64 + 1);
    });
}

/// It would be as long as before.
#[test]
fn a_tally_of_a_row_for_each_handler_is_left_alone() {
    on_each(async |inbox, _| {
        const HANDLERS: usize = 6000;
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        add_rows(&inbox, HANDLERS, HANDLERS).await;
        let newest = inbox.number("SELECT MAX(n) FROM inbox_tally").await;
        operate_for_a_while(&store).await;
        let of_before = format!("SELECT COUNT(*) FROM inbox_tally WHERE n <= {newest}");
        assert_eq!(inbox.number(&of_before).await, HANDLERS as i64 + 1);
    });
}
