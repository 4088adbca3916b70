//! The check that the conformance suite makes after each case finds each thing that it looks for.

use inbox_api::{AfterDead, Outcome};
use inbox_mysql::{MySqlStore, conformance::contradictions};

use crate::common::{accept, claim, claim_one, dead, message, on_each, ordered, processed, settle};

/// Seq 1 is leased, 2 pending, 3 processed, 4 to 6 are of the ordering key `a`, 7 and 8 of `b`, whose
/// first blocks.
async fn fill(store: &MySqlStore) {
    accept(store, &[message("1")]).await;
    let _ = claim_one(store).await;
    let some = [
        message("2"),
        message("3"),
        ordered("a1", "a"),
        ordered("a2", "a"),
        ordered("a3", "a"),
        ordered("b1", "b"),
        ordered("b2", "b"),
    ];
    accept(store, &some).await;
    for leased in claim(store, 10).await {
        let outcome = match leased.message.id().as_str() {
            "3" => processed(),
            "b1" => dead(AfterDead::Block),
            _ => Outcome::Release,
        };
        settle(store, &leased.lease, outcome).await;
    }
}

#[test]
fn each_contradiction_is_found() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        fill(&store).await;
        assert_eq!(contradictions(&inbox.options).await.unwrap(), [""; 0]);
        // Each is undone behind it.
        for (spoil, mend, rule) in [
            (
                "INSERT INTO inbox_done SELECT seq, handler, 2, due_at, leased_at, token, started, \
                 finished, replays, worker, last_error, 1, 1, NULL, NULL FROM inbox_work WHERE seq = 2",
                "DELETE FROM inbox_done WHERE seq = 2",
                "a message that stands nowhere or in two places",
            ),
            (
                "UPDATE inbox_done SET seq = 4711",
                "UPDATE inbox_done SET seq = 3",
                "a state without a message",
            ),
            (
                "UPDATE inbox_done SET seq = 4711",
                "UPDATE inbox_done SET seq = 3",
                "a message that stands nowhere or in two places",
            ),
            (
                "UPDATE inbox_done SET kept = 0",
                "UPDATE inbox_done SET kept = 1",
                "content of a final message that does not say so",
            ),
            (
                "UPDATE inbox_message SET payload_bytes = NULL WHERE seq = 3",
                "UPDATE inbox_message SET payload_bytes = 1 WHERE seq = 3",
                "a final message that says that it has content and has none",
            ),
            (
                "UPDATE inbox_dead SET handler = 'x'",
                "UPDATE inbox_dead SET handler = 'h'",
                "handlers in two tables that differ",
            ),
            (
                "UPDATE inbox_work SET ordering_key = 'x' WHERE seq = 2",
                "UPDATE inbox_work SET ordering_key = NULL WHERE seq = 2",
                "ordering keys in two tables that differ",
            ),
            (
                "UPDATE inbox_message SET ordering_key = NULL WHERE seq = 7",
                "UPDATE inbox_message SET ordering_key = 'b' WHERE seq = 7",
                "a block without an ordering key",
            ),
            (
                "UPDATE inbox_done SET state = 3",
                "UPDATE inbox_done SET state = 2",
                "a state that is none",
            ),
            (
                "UPDATE inbox_work SET queue = 2 WHERE seq = 2",
                "UPDATE inbox_work SET queue = 0 WHERE seq = 2",
                "a queue that is none",
            ),
            (
                "DELETE FROM inbox_open WHERE seq = 6",
                "INSERT INTO inbox_open VALUES ('h', 'a', 6)",
                "an open message that is not listed",
            ),
            (
                "INSERT INTO inbox_open VALUES ('h', 'a', 3)",
                "DELETE FROM inbox_open WHERE seq = 3",
                "a message that is listed as open and is not",
            ),
            (
                "UPDATE inbox_work SET queue = 1 WHERE seq IN (5, 6)",
                "UPDATE inbox_work SET queue = 2 WHERE seq IN (5, 6)",
                "a key with two leased messages",
            ),
            (
                "UPDATE inbox_ordering SET head = 5 WHERE ordering_key = 'a'",
                "UPDATE inbox_ordering SET head = 4 WHERE ordering_key = 'a'",
                "a key whose head is neither its leased message nor the earliest",
            ),
            (
                "DELETE FROM inbox_ordering WHERE ordering_key = 'b'",
                "INSERT INTO inbox_ordering VALUES ('h', 'b', 7, 0)",
                "a key whose head is neither its leased message nor the earliest",
            ),
            (
                "INSERT INTO inbox_ordering VALUES ('h', 'c', 7, 0)",
                "DELETE FROM inbox_ordering WHERE ordering_key = 'c'",
                "a key without open messages",
            ),
            (
                "UPDATE inbox_work SET queue = 0 WHERE seq = 5",
                "UPDATE inbox_work SET queue = 2 WHERE seq = 5",
                "a head that cannot be claimed, or another that can",
            ),
            (
                "UPDATE inbox_work SET queue = 2 WHERE seq = 4",
                "UPDATE inbox_work SET queue = 0 WHERE seq = 4",
                "a head that cannot be claimed, or another that can",
            ),
            (
                "UPDATE inbox_work SET worker = NULL WHERE queue = 1",
                "UPDATE inbox_work SET worker = 'w' WHERE queue = 1",
                "a lease without a worker",
            ),
            (
                "UPDATE inbox_work SET queue = 3 WHERE seq = 5",
                "UPDATE inbox_work SET queue = 2 WHERE seq = 5",
                "a message leased in a run that is not listed",
            ),
            (
                "UPDATE inbox_work SET queue = 3 WHERE seq = 5",
                "UPDATE inbox_work SET queue = 2 WHERE seq = 5",
                "a run without a first message",
            ),
            (
                "UPDATE inbox_work SET queue = 3, started = 1 WHERE seq = 5",
                "UPDATE inbox_work SET queue = 2, started = 0 WHERE seq = 5",
                "an attempt of a run that counts before its turn",
            ),
            (
                "INSERT INTO inbox_run VALUES ('h', 'a', 5)",
                "DELETE FROM inbox_run",
                "a message that is listed in a run and is not leased",
            ),
            (
                "UPDATE inbox_done SET finished = finished + 1",
                "UPDATE inbox_done SET finished = finished - 1",
                "more attempts finished than started",
            ),
            (
                "INSERT INTO inbox_tally (handler, backlog, processed, dead, discarded) \
                 VALUES ('h', 0, 1, 0, -1)",
                "DELETE FROM inbox_tally WHERE discarded = -1",
                "a tally that is wrong",
            ),
        ] {
            inbox.run(spoil).await.unwrap();
            let found = contradictions(&inbox.options).await.unwrap();
            let is_found = found.iter().any(|found| found.starts_with(rule));
            assert!(is_found, "{spoil}: {found:?}");
            inbox.run(mend).await.unwrap();
            assert_eq!(
                contradictions(&inbox.options).await.unwrap(),
                [""; 0],
                "{mend}"
            );
        }
    });
}
