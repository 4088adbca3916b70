//! The rows that statistics add up stay few.

use std::time::Duration;

use inbox_api::{Operate as _, Recorded, State, Transactional as _};
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};

use crate::common::{connect_options, message, on_each};

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
