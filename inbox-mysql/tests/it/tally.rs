//! The rows that statistics add up stay few.

use std::time::Duration;

use inbox_api::{Operate as _, Recorded, State, Store as _, Transactional as _};
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};

use crate::common::{accept, connect_options, message, on_each};

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
        let mut looks = 0;
        while inbox.number("SELECT COUNT(*) FROM inbox_tally").await > FEW {
            looks += 1;
            assert!(looks < 600, "nothing was summed up");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let statistics = store.statistics().await.unwrap();
        assert_eq!(statistics.count(State::Processed), RECORDS as u64);
        assert_eq!(statistics.handlers[0].backlog(), 0);
    });
}

/// As operations that touch many handlers leave them: each adds a row for each.
#[test]
fn all_that_has_come_together_is_summed_up_at_once() {
    on_each(async |inbox, _| {
        const ROWS: usize = 20_000;
        const HANDLERS: usize = 100;
        // One of two hundred sums up what is there.
        const OPERATIONS: usize = 200;
        let store = inbox.store().await;
        accept(&store, &[message("1")]).await;
        let rows: Vec<_> = (0..ROWS)
            .map(|n| {
                let change = if n < ROWS / 2 { 1 } else { -1 };
                format!("('h{}', {change}, 0, 0, 0)", n % HANDLERS)
            })
            .collect();
        let insert =
            "INSERT INTO inbox_tally (handler, backlog, processed, dead, discarded) VALUES";
        inbox
            .run(format!("{insert} {}", rows.join(", ")))
            .await
            .unwrap();
        for _ in 0..OPERATIONS {
            let _ = store.receive(&[message("1")]).await.unwrap();
        }
        let left = inbox.number("SELECT COUNT(*) FROM inbox_tally").await;
        assert!(left < 1000, "{left} rows are left");
        let statistics = store.statistics().await.unwrap();
        let backlogs: Vec<_> = statistics
            .handlers
            .iter()
            .map(|counts| (counts.handler.as_str(), counts.backlog()))
            .collect();
        assert_eq!(backlogs, [("h", 1)]);
    });
}
