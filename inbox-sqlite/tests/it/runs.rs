//! Runs, as far as they are about this store's own rows and statements.

use std::time::Duration;

use inbox_api::{
    Attempts, ClaimRequest, Extended, InboxName, Intervention, Leased, Operate, OrderingKey,
    Outcome, Settled, Settlement, Slice, Store, Transactional,
};
use inbox_sqlite::conformance::contradictions;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::common::{self, *};

fn runs(limit: u32) -> ClaimRequest {
    ClaimRequest {
        run_limit: limit,
        ..request(limit)
    }
}

/// A run of all of these messages of one ordering key.
async fn run_of(inbox: &TestInbox, ids: &[&str]) -> Vec<Leased> {
    let messages: Vec<_> = ids.iter().map(|id| ordered(id, "a")).collect();
    inbox.store.receive(&messages).await.unwrap();
    let leased = inbox.store.claim(&runs(100)).await.unwrap().leased;
    assert_eq!(common::ids(&leased), ids);
    leased
}

async fn attempts(inbox: &TestInbox, id: &str) -> (u32, u32) {
    let Attempts { started, finished } = get(&inbox.store, id).await.attempts;
    (started, finished)
}

async fn check(inbox: &TestInbox) {
    let broken = contradictions(&inbox.path(), &InboxName::default()).await;
    assert_eq!(broken.unwrap(), [""; 0]);
    check_consistent(&inbox.store).await;
}

#[tokio::test]
async fn a_corrupt_row_cuts_its_run_and_no_other() {
    for (id, first, then) in [
        ("a1", &["b1", "b2"][..], &["a2", "a3"][..]),
        ("a2", &["a1", "b1", "b2"], &[]),
        ("a3", &["a1", "a2", "b1", "b2"], &[]),
    ] {
        let inbox = test_inbox().await;
        let store = &inbox.store;
        let of = |id: &str| ordered(id, &id[..1]);
        let batch = ["a1", "a2", "a3", "b1", "b2"].map(of);
        store.receive(&batch).await.unwrap();
        let options = SqliteConnectOptions::new().filename(inbox.path());
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        let sql = format!("UPDATE inbox_message SET headers = 'not json' WHERE id = '{id}'");
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();

        let claims = store.claim(&runs(100)).await.unwrap();
        assert_eq!(ids(&claims.leased), first, "{id}");
        assert_eq!(claims.corrupt.len(), 1, "{id}");
        check(&inbox).await;
        let claims = store.claim(&runs(100)).await.unwrap();
        assert_eq!(ids(&claims.leased), then, "{id}");
        assert_eq!(claims.corrupt, [], "{id}");
        check(&inbox).await;
    }
}

/// However the first one leaves when its lease has run out, the next one counts from then on if its own
/// lease has not.
#[tokio::test]
async fn the_next_one_counts_whatever_ends_the_lease_of_the_first() {
    for end in ["discard", "clear", "record", "settle", "release"] {
        for extended in [true, false] {
            let inbox = test_inbox().await;
            let store = &inbox.store;
            let leased = run_of(&inbox, &["1", "2", "3"]).await;
            if extended {
                let leases = [leased[1].lease.clone(), leased[2].lease.clone()];
                let until = store.extend(&leases, 2 * LEASE).await.unwrap();
                assert!(matches!(until[0], Extended::Until(_)));
            }
            inbox.clock.advance(LEASE);
            match end {
                "discard" => {
                    let done = store.discard(&key("1")).await.unwrap();
                    assert_eq!(done, Intervention::Done);
                }
                "clear" => {
                    let slice = Slice {
                        after: None,
                        limit: 1,
                    };
                    let cleared = store.clear_slice(&handler("h"), &slice).await.unwrap();
                    assert_eq!(cleared.changed, 1);
                }
                "record" => {
                    let mut transaction = store.open().await.unwrap();
                    let message = ordered("1", "a");
                    let recorded = store.record_in(&mut transaction, &message, None).await;
                    assert_eq!(recorded.unwrap(), inbox_api::Recorded::First);
                    store.commit(transaction).await.unwrap();
                }
                "settle" => settle(store, &leased[0].lease, processed()).await,
                _ => settle(store, &leased[0].lease, Outcome::Release).await,
            }
            check(&inbox).await;
            let expected = if extended { (1, 0) } else { (0, 0) };
            assert_eq!(attempts(&inbox, "2").await, expected, "{end}");
            assert_eq!(attempts(&inbox, "3").await, (0, 0), "{end}");
            if !extended {
                // Worked on after all.
                let until = store.extend(&[leased[1].lease.clone()], LEASE).await;
                assert!(matches!(until.unwrap()[0], Extended::Until(_)));
                assert_eq!(attempts(&inbox, "2").await, (1, 0), "{end}");
            }
            settle(store, &leased[1].lease, retry(Duration::ZERO)).await;
            assert_eq!(attempts(&inbox, "2").await, (1, 1), "{end}");
            check(&inbox).await;
            settle(store, &leased[2].lease, processed()).await;
            assert_eq!(attempts(&inbox, "3").await, (1, 1), "{end}");
            check(&inbox).await;
        }
    }
}

/// More than one statement takes, with outcomes of several kinds.
#[tokio::test]
async fn a_long_run_is_settled_in_one_call() {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    let names: Vec<String> = (0..1500).map(|n| format!("{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let messages: Vec<_> = names.iter().map(|id| ordered(id, "a")).collect();
    store.receive(&messages).await.unwrap();
    let leased = store.claim(&runs(1400)).await.unwrap().leased;
    assert_eq!(ids(&leased), names[..1400]);
    assert_eq!(store.claim(&runs(10)).await.unwrap().leased, []);
    let settlements: Vec<_> = leased
        .iter()
        .enumerate()
        .map(|(n, leased)| Settlement {
            lease: leased.lease.clone(),
            outcome: match n {
                0..1200 => processed(),
                1200 => retry(Duration::ZERO),
                _ => Outcome::Release,
            },
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert_eq!(settled, vec![Settled::Done; 1400]);
    check(&inbox).await;
    for (id, expected) in [("1199", (1, 1)), ("1200", (1, 1)), ("1201", (0, 0))] {
        assert_eq!(attempts(&inbox, id).await, expected, "{id}");
    }
    let leased = store.claim(&runs(1000)).await.unwrap().leased;
    assert_eq!(ids(&leased), names[1200..]);
    let key = Some(OrderingKey::new("a").unwrap());
    assert!(
        leased
            .iter()
            .all(|l| l.message.ordering_key() == key.as_ref())
    );
}
