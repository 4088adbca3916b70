//! The check that the conformance suite makes after each case finds each thing that it looks for.

use inbox_api::{AfterDead, InboxName, Store as _};
use inbox_sqlite::conformance::contradictions;
use sqlx::{Connection as _, Executor as _, SqliteConnection, sqlite::SqliteConnectOptions};

use crate::common::*;

/// Seq 1 is leased, 2 pending, 3 to 5 are of the ordering key `a`, 6 and 7 of `b`, whose first blocks.
async fn filled_inbox() -> TestInbox {
    let inbox = test_inbox().await;
    let store = &inbox.store;
    store.receive(&[message("1")]).await.unwrap();
    let _ = claim_one(store).await;
    let ordered = [
        message("2"),
        ordered("a1", "a"),
        ordered("a2", "a"),
        ordered("a3", "a"),
    ];
    store.receive(&ordered).await.unwrap();
    let blocks = [self::ordered("b1", "b"), self::ordered("b2", "b")];
    store.receive(&blocks[..1]).await.unwrap();
    for leased in claim(store, 10).await {
        let outcome = match leased.message.id().as_str() {
            "b1" => dead(AfterDead::Block),
            _ => inbox_api::Outcome::Release,
        };
        settle(store, &leased.lease, outcome).await;
    }
    store.receive(&blocks[1..]).await.unwrap();
    inbox
}

const WITHOUT_TRIGGERS: &str = "DROP TRIGGER inbox_purged; DROP TRIGGER inbox_removed; \
     DROP TRIGGER inbox_reheaded; DROP TRIGGER inbox_recounted; DROP INDEX inbox_head;";

async fn broken_rules(inbox: &TestInbox) -> Vec<String> {
    contradictions(&inbox.path(), &InboxName::default())
        .await
        .unwrap()
}

#[tokio::test]
async fn each_contradiction_is_found() {
    let inbox = filled_inbox().await;
    assert_eq!(broken_rules(&inbox).await, [""; 0]);
    for (spoil, rule) in [
        (
            "DELETE FROM inbox_state WHERE seq = 2",
            "a message without a state",
        ),
        (
            "DELETE FROM inbox_message WHERE seq = 2",
            "a state without a message",
        ),
        (
            "UPDATE inbox_state SET handler = 'x' WHERE seq = 2",
            "names in two tables that differ",
        ),
        (
            "UPDATE inbox_state SET ordering_key = 'x' WHERE seq = 2",
            "names in two tables that differ",
        ),
        (
            "UPDATE inbox_state SET claimable = 0 WHERE seq = 2",
            "unordered, unfinished and not claimable",
        ),
        (
            "UPDATE inbox_state SET claimable = 0 WHERE seq = 1",
            "unordered, unfinished and not claimable",
        ),
        (
            "UPDATE inbox_state SET state = 1, lease_until = visible_at, started = started + 1
             WHERE seq IN (3, 4)",
            "leased behind another one and counted as an attempt",
        ),
        (
            "UPDATE inbox_state SET visible_at = visible_at + 1 WHERE seq = 1",
            "leased and hidden until another time than the end of the lease",
        ),
        (
            "UPDATE inbox_state SET state = 1, lease_until = visible_at, claimable = seq = 4
             WHERE seq IN (3, 4)",
            "a key whose earliest leased message is not the one that can be claimed",
        ),
        (
            "UPDATE inbox_state SET claimable = 1 WHERE seq IN (3, 4)",
            "a key with two messages that can be claimed",
        ),
        (
            "UPDATE inbox_state SET claimable = seq = 4 WHERE seq IN (3, 4)",
            "a key whose earliest unfinished message cannot be claimed",
        ),
        (
            "UPDATE inbox_state SET claimable = 1 WHERE seq = 7",
            "a blocked key with a message that can be claimed",
        ),
        (
            "UPDATE inbox_state SET finished = started + 1 WHERE seq = 2",
            "more attempts finished than started",
        ),
        (
            "UPDATE inbox_count SET unfinished = unfinished + 1",
            "a count that is wrong",
        ),
        (
            "DELETE FROM inbox_count WHERE dead > 0",
            "a count that is wrong",
        ),
    ] {
        let inbox = filled_inbox().await;
        let options = SqliteConnectOptions::new().filename(inbox.path());
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        connection.execute(WITHOUT_TRIGGERS).await.unwrap();
        let spoilt = connection.execute(spoil).await.unwrap();
        assert!(spoilt.rows_affected() > 0, "{spoil}");
        connection.close().await.unwrap();
        let found = broken_rules(&inbox).await;
        let is_found = found.iter().any(|found| found.starts_with(rule));
        assert!(is_found, "{spoil}: {found:?}");
    }
}
