//! The check that the conformance suite makes after each case finds each thing that it looks for.

use inbox_api::{AfterDead, Outcome, Store as _};

use crate::common::{self, *};

/// One is leased, one pending, one processed, three are of the ordering key `a`, two of `b`, whose first
/// blocks.
async fn fill(ready: &Ready) {
    let store = &ready.store;
    store.receive(&[message("1")]).await.unwrap();
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
    store.receive(&some).await.unwrap();
    for leased in claim(store, 10).await {
        let outcome = match leased.message.id().as_str() {
            "3" => processed(),
            "b1" => dead(AfterDead::Block),
            _ => Outcome::Release,
        };
        settle(store, &leased.lease, outcome).await;
    }
}

/// With the number of the message for its id, as in `<a1>`.
fn with_numbers(sql: &str) -> String {
    sql.replace('<', "(SELECT seq FROM {schema}.inbox_message WHERE id = '")
        .replace('>', "')")
}

#[tokio::test]
async fn each_contradiction_is_found() {
    let Some(ready) = ready().await else { return };
    fill(&ready).await;
    let place = &ready.place;
    assert_eq!(place.broken_rules().await, [""; 0]);
    for (spoil, rule) in [
        (
            "DELETE FROM {schema}.inbox_done",
            "a message that stands nowhere or in two places",
        ),
        (
            "UPDATE {schema}.inbox_done SET seq = 4711",
            "a state without a message",
        ),
        (
            "UPDATE {schema}.inbox_work SET handler = 'x' WHERE seq = <2>",
            "names in two tables that differ",
        ),
        (
            "UPDATE {schema}.inbox_done SET handler = 'x'",
            "names in two tables that differ",
        ),
        (
            "UPDATE {schema}.inbox_done SET content = false",
            "content that is there and is noted as dropped, or the reverse",
        ),
        (
            "UPDATE {schema}.inbox_message SET payload = NULL WHERE seq = <b1>",
            "content that is there and is noted as dropped, or the reverse",
        ),
        (
            "UPDATE {schema}.inbox_message SET payload = NULL WHERE seq = <2>",
            "unfinished, and without a payload",
        ),
        (
            "UPDATE {schema}.inbox_work SET claimable = false WHERE seq = <2>",
            "unordered, unfinished and not claimable, or dead and claimable",
        ),
        (
            "UPDATE {schema}.inbox_work SET claimable = true WHERE seq = <b1>",
            "unordered, unfinished and not claimable, or dead and claimable",
        ),
        (
            "UPDATE {schema}.inbox_work SET claimable = false WHERE seq = <1>",
            "leased, and neither claimable nor behind others of a run",
        ),
        (
            "UPDATE {schema}.inbox_work SET behind = true WHERE seq = <a2>",
            "behind others of a run, and not leased",
        ),
        (
            "UPDATE {schema}.inbox_work SET state = 1, behind = true, late = false WHERE seq = <a1>",
            "behind others of a run, claimable, and not late",
        ),
        (
            "UPDATE {schema}.inbox_work SET late = true WHERE seq = <1>",
            "late, but not claimable, or neither pending nor behind others of a run",
        ),
        (
            "UPDATE {schema}.inbox_work SET blocks = true WHERE seq = <2>",
            "a block without an ordering key or a death",
        ),
        (
            "UPDATE {schema}.inbox_work SET state = 1, claimable = seq = <a2>, behind = true
             WHERE seq IN (<a1>, <a2>)",
            "a key of which not just the first leased message can be claimed",
        ),
        (
            "UPDATE {schema}.inbox_work SET state = state + (seq = <a1>)::int, claimable = true
             WHERE seq IN (<a1>, <a2>)",
            "a key of which not just the first leased message can be claimed",
        ),
        (
            "UPDATE {schema}.inbox_work SET claimable = seq = <a2> WHERE seq IN (<a1>, <a2>)",
            "a key whose earliest unfinished message cannot be claimed",
        ),
        (
            "UPDATE {schema}.inbox_work SET claimable = true WHERE seq = <b2>",
            "a blocked key with a message that can be claimed",
        ),
        (
            "DELETE FROM {schema}.inbox_ordering WHERE ordering_key = 'a'",
            "a key with unfinished messages and no row to lock",
        ),
        (
            "UPDATE {schema}.inbox_ordering SET ordering_key = 'c' WHERE ordering_key = 'a'",
            "a row to lock for a key without unfinished messages",
        ),
        (
            "UPDATE {schema}.inbox_work SET finished_at = NULL WHERE seq = <b1>",
            "dead without the time, or the time without the death",
        ),
        (
            "UPDATE {schema}.inbox_done SET finished = started + 1",
            "more attempts finished than started",
        ),
        (
            "UPDATE {schema}.inbox_tally SET processed = processed + 1",
            "a tally that is wrong",
        ),
        ("DELETE FROM {schema}.inbox_tally", "a tally that is wrong"),
    ] {
        let Some(ready) = common::ready().await else {
            return;
        };
        fill(&ready).await;
        let place = &ready.place;
        place.run("DROP INDEX {schema}.inbox_head").await.unwrap();
        place.run(&with_numbers(spoil)).await.unwrap();
        let found = place.broken_rules().await;
        let is_found = found.iter().any(|found| found.starts_with(rule));
        assert!(is_found, "{spoil}: {found:?}");
    }
}
