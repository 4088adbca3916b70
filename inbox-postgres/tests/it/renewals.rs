//! Leases are renewed while transactions have every connection of the pool.

use std::time::Duration;

use inbox_api::{ErrorKind, Extended, Store as _, Transactional as _};
use inbox_postgres::PostgresStore;
use sqlx::{AssertSqlSafe, Connection as _, postgres::PgPoolOptions};

use crate::common::*;

/// How many connections there are.
const ALL: u32 = 3;
/// Soon enough for an operation that needs a connection of the pool to fail.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the sessions of a store under test call themselves.
async fn sessions(place: &TestInbox, name: &str) -> i64 {
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
    let mut connection = connection(&place.url).await.unwrap();
    let counted = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut connection);
    let counted = counted.await.unwrap();
    connection.close().await.unwrap();
    counted
}

async fn are_renewed(place: &TestInbox, store: PostgresStore, name: &str) {
    accept(&store, &[message("1"), message("2")]).await;
    let leases: Vec<_> = claim(&store, 2).await;
    let leases: Vec<_> = leases.into_iter().map(|leased| leased.lease).collect();
    let mut open = Vec::new();
    for _ in 0..ALL {
        open.push(store.open().await.unwrap());
    }
    let refused = store.open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(sessions(place, name).await, i64::from(ALL));
    // Again and again, and by several at a time, over one connection.
    for _ in 0..3 {
        let (one, other) = tokio::join!(
            store.extend(&leases[..1], 2 * LEASE),
            store.extend(&leases[1..], 2 * LEASE)
        );
        for extended in [one.unwrap(), other.unwrap()] {
            assert!(matches!(extended[..], [Extended::Until(_)]), "{extended:?}");
        }
    }
    assert_eq!(sessions(place, name).await, i64::from(ALL) + 1);
    drop(open);
    store.close().await;
}

#[tokio::test]
async fn while_transactions_have_all_connections() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    place.store().await.close().await;
    let name = fresh_name();
    let connect = connection_options(&place.url).application_name(&name);
    let options = place.options.clone().connect_with(connect);
    let options = options.max_connections(ALL).acquire_timeout(PATIENCE);
    let store = PostgresStore::connect(options).await.unwrap();
    are_renewed(&place, store, &name).await;
}

#[tokio::test]
async fn while_transactions_have_all_connections_of_the_callers_pool() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    place.store().await.close().await;
    let name = fresh_name();
    let pool = PgPoolOptions::new()
        .max_connections(ALL)
        .acquire_timeout(PATIENCE)
        // Comes with the caller's pool alone, and not with what it connects with.
        .after_connect({
            let name = name.clone();
            move |connection, _| {
                let set = format!("SET application_name = '{name}'");
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(set))
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            }
        })
        .connect_with(connection_options(&place.url))
        .await
        .unwrap();
    let store = PostgresStore::with_pool(pool.clone(), place.options.clone());
    are_renewed(&place, store, &name).await;
    assert!(!pool.is_closed());
}
