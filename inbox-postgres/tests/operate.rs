//! The operator's side: paging, filters, statistics, replay, discard, retention.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::*;
use inbox_api::{
    AfterDead, Attempts, Begun, Bytes, Cursor, ErrorKind, Expired, Filter, Intervention, Kind,
    Operate, OrderingKey, Outcome, Page, Receipt, Slice, State, Store, StoreExt,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn finish(store: &inbox_postgres::PostgresStore, ids: &[&str], outcome: Outcome) {
    for id in ids {
        let lease = begin(store, &message(id)).await.lease;
        settle(store, &lease, outcome.clone()).await;
    }
}

fn in_states(states: &[State]) -> Filter {
    Filter {
        states: states.to_vec(),
        ..Default::default()
    }
}

async fn listed(store: &inbox_postgres::PostgresStore, filter: &Filter) -> Vec<String> {
    let listing = store.list(filter, &Page::first(100)).await.unwrap();
    assert_eq!(
        store.count(filter).await.unwrap(),
        listing.records.len() as u64
    );
    listing
        .records
        .iter()
        .map(|r| r.key.id.to_string())
        .collect()
}

#[tokio::test]
async fn pages_neither_skip_nor_repeat() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let batch: Vec<_> = (0..25).map(|n| message(&format!("{n:02}"))).collect();
    store.receive(&batch).await.unwrap();
    for newest_first in [false, true] {
        let mut page = Page {
            newest_first,
            ..Page::first(10)
        };
        let (mut seen, mut sizes) = (Vec::new(), Vec::new());
        loop {
            let listing = store.list(&Filter::default(), &page).await.unwrap();
            sizes.push(listing.records.len());
            seen.extend(listing.records.iter().map(|r| r.key.id.to_string()));
            assert!(listing.records.iter().all(|r| r.payload.is_none()));
            assert!(listing.records.iter().all(|r| r.payload_bytes == Some(13)));
            let Some(next) = listing.next else { break };
            page.after = Some(next);
        }
        if newest_first {
            seen.reverse();
        }
        assert_eq!(sizes, [10, 10, 5]);
        assert_eq!(
            seen,
            batch.iter().map(|m| m.id().to_string()).collect::<Vec<_>>()
        );
    }
    let exact = store
        .list(&Filter::default(), &Page::first(25))
        .await
        .unwrap();
    assert_eq!(exact.next, None);
    let none = store
        .list(&Filter::default(), &Page::first(0))
        .await
        .unwrap();
    assert_eq!((none.records.len(), none.next), (0, None));
    let page = Page {
        after: Some(Cursor::new("x")),
        ..Page::first(1)
    };
    let error = store.list(&Filter::default(), &page).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let page = Page {
        with_payload: true,
        ..Page::first(u32::MAX)
    };
    let listing = store.list(&Filter::default(), &page).await.unwrap();
    assert!(listing.records.iter().all(|r| r.payload.is_some()));
}

#[tokio::test]
async fn filters_narrow() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    finish(store, &["old"], processed()).await;
    ready.place.advance(DAY).await;
    let reason = |reason: &str| Outcome::Dead {
        reason: reason.into(),
        after: AfterDead::Continue,
    };
    finish(store, &["d1"], reason("100% wrong_thing")).await;
    finish(store, &["d2"], reason("Wrong")).await;
    let special = inbox_api::Message::new(
        handler("other"),
        inbox_api::MessageId::new("s").unwrap(),
        Kind::new("special").unwrap(),
        "",
    )
    .with_ordering_key(OrderingKey::new("o").unwrap());
    store.receive(&[special]).await.unwrap();
    let lost = begin(store, &message("lost")).await;
    ready.place.advance(LENGTH).await;
    let held = begin(store, &message("held")).await;
    assert!(held.lease.until > lost.lease.until);

    let all = Filter::default();
    assert_eq!(
        listed(store, &all).await,
        ["old", "d1", "d2", "s", "lost", "held"]
    );
    assert_eq!(
        listed(store, &in_states(&[State::Pending])).await,
        ["s", "lost"]
    );
    assert_eq!(listed(store, &in_states(&[State::Leased])).await, ["held"]);
    assert_eq!(
        listed(store, &in_states(&[State::Dead])).await,
        ["d1", "d2"]
    );
    let two = in_states(&[State::Processed, State::Dead]);
    assert_eq!(listed(store, &two).await, ["old", "d1", "d2"]);
    let by = |change: fn(&mut Filter)| {
        let mut filter = Filter::default();
        change(&mut filter);
        filter
    };
    let other = by(|f| f.handler = Some(handler("other")));
    assert_eq!(listed(store, &other).await, ["s"]);
    let special = by(|f| f.kind = Some(Kind::new("special").unwrap()));
    assert_eq!(listed(store, &special).await, ["s"]);
    let key = by(|f| f.ordering_key = Some(OrderingKey::new("o").unwrap()));
    assert_eq!(listed(store, &key).await, ["s"]);
    assert_eq!(
        listed(store, &by(|f| f.older_than = Some(DAY))).await,
        ["old"]
    );
    let newer = by(|f| f.newer_than = Some(DAY));
    assert_eq!(
        listed(store, &newer).await,
        ["d1", "d2", "s", "lost", "held"]
    );
    assert_eq!(
        listed(store, &by(|f| f.older_than = Some(Duration::MAX))).await,
        [""; 0]
    );
    for (text, expected) in [
        ("Wrong", &["d2"][..]),
        ("% wrong_", &["d1"]),
        ("", &["d1", "d2"]),
    ] {
        let filter = Filter {
            error_contains: Some(text.into()),
            ..Default::default()
        };
        assert_eq!(listed(store, &filter).await, expected);
    }
}

#[tokio::test]
async fn statistics_count_and_show_the_lag() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    assert_eq!(store.statistics().await.unwrap().handlers, []);
    store
        .receive(&[message("1"), ordered("2", "a"), ordered("3", "a")])
        .await
        .unwrap();
    let z = message("z").for_handler(handler("a handler"));
    let z = z.with_due(inbox_api::Due::After(LENGTH * 10));
    store.receive(&[z]).await.unwrap();
    ready.place.advance(LENGTH).await;
    let statistics = store.statistics().await.unwrap();
    let names: Vec<_> = statistics
        .handlers
        .iter()
        .map(|h| h.handler.as_str())
        .collect();
    assert_eq!(names, ["a handler", "h"]);
    assert_eq!(statistics.handlers[0].lag, None);
    let h = &statistics.handlers[1];
    assert_eq!((h.pending, h.leased), (3, 0));
    assert!(h.lag.unwrap() >= LENGTH && h.lag.unwrap() < LENGTH * 2);
    assert!(h.oldest_due_age >= h.lag);
    let leased = claim(store, 10).await;
    let h = store.statistics().await.unwrap().handlers.remove(1);
    assert_eq!((h.pending, h.leased, h.lag), (1, 2, None));
    ready.place.advance(LENGTH + DAY).await;
    let h = store.statistics().await.unwrap().handlers.remove(1);
    assert_eq!((h.pending, h.leased), (3, 0));
    assert!(h.lag.unwrap() >= DAY && h.oldest_due_age.unwrap() >= DAY + LENGTH);
    for leased in leased {
        settle(store, &leased.lease, processed()).await;
    }
    check::check_consistent(&ready).await;
    let expired = Expired::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 2);
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn replay_resets_and_may_edit() {
    let Some(ready) = ready_with(|o| o.payload_limit(64).drop_processed_payloads(true)).await
    else {
        return;
    };
    let store = &ready.store;
    assert_eq!(
        store.replay(&key("1"), None).await.unwrap(),
        Intervention::NotFound
    );
    store.receive(&[message("1")]).await.unwrap();
    let pending = Intervention::WrongState(State::Pending);
    assert_eq!(store.replay(&key("1"), None).await.unwrap(), pending);
    let lease = claim_one(store).await;
    let leased = Intervention::WrongState(State::Leased);
    assert_eq!(store.replay(&key("1"), None).await.unwrap(), leased);
    settle(store, &lease, dead(AfterDead::Block)).await;
    let large = Some(Bytes::from(vec![0; 65]));
    let error = store.replay(&key("1"), large).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let edited = Some(Bytes::from_static(b"edited"));
    assert_eq!(
        store.replay(&key("1"), edited).await.unwrap(),
        Intervention::Done
    );
    let record = get(store, "1").await;
    assert_eq!(record.state, State::Pending);
    assert_eq!(record.attempts, Attempts::default());
    assert_eq!((record.replays, record.last_error), (1, None));
    assert_eq!(record.payload_bytes, Some(6));
    let settled = store.settle_one(&lease, processed()).await.unwrap();
    assert_eq!(
        settled,
        inbox_api::Settled::Done,
        "a repetition, since nobody claimed it"
    );
    let Begun::Run(run) = store.begin(&message("1"), &terms()).await.unwrap() else {
        panic!("not run");
    };
    assert_eq!(run.message.payload(), "edited");
    assert!(run.lease.token > lease.token);
    settle(store, &run.lease, processed()).await;
    let dropped = store.replay(&key("1"), None).await.unwrap();
    assert_eq!(dropped, Intervention::PayloadDropped);
    let again = Some(Bytes::new());
    assert_eq!(
        store.replay(&key("1"), again).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(claim(store, 1).await[0].message.payload().len(), 0);
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn slices_walk_forward_and_end() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let ids: Vec<String> = (0..7).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    finish(store, &ids, dead(AfterDead::Continue)).await;
    finish(store, &["p"], processed()).await;
    let mut slice = Slice {
        after: None,
        limit: 3,
    };
    let mut changed = Vec::new();
    loop {
        let progress = store
            .replay_slice(&Filter::default(), &slice)
            .await
            .unwrap();
        changed.push(progress.changed);
        // They die again behind the slice, which must not keep it from ending.
        for leased in claim(store, 10).await {
            settle(store, &leased.lease, dead(AfterDead::Continue)).await;
        }
        let Some(next) = progress.next else { break };
        slice.after = Some(next);
    }
    assert_eq!(changed, [3, 3, 1]);
    assert_eq!(get(store, "p").await.state, State::Processed);

    let whole = Slice {
        after: None,
        limit: 7,
    };
    let progress = store
        .discard_slice(&Filter::default(), &whole)
        .await
        .unwrap();
    assert_eq!(progress.changed, 7);
    assert!(progress.next.is_some(), "as many as the limit were changed");
    let processed_only = in_states(&[State::Processed]);
    let progress = store.discard_slice(&processed_only, &whole).await.unwrap();
    assert_eq!((progress.changed, progress.next), (0, None));
    let progress = store.replay_slice(&processed_only, &whole).await.unwrap();
    assert_eq!(progress.changed, 1);
    let none = Slice {
        after: None,
        limit: 0,
    };
    assert_eq!(
        store
            .replay_slice(&processed_only, &none)
            .await
            .unwrap()
            .changed,
        0
    );
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn purge_takes_the_longest_finished_and_nothing_else() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    store.receive(&[message("pending")]).await.unwrap();
    finish(store, &["1", "2", "3"], processed()).await;
    finish(store, &["dead"], dead(AfterDead::Continue)).await;
    ready.place.advance(DAY).await;
    finish(store, &["young"], processed()).await;
    let two = Expired::new(State::Processed, DAY, 2).unwrap();
    let listing = store.expired(&two).await.unwrap();
    let keys: Vec<_> = listing.records.iter().map(|r| r.key.clone()).collect();
    assert_eq!(keys, [key("1"), key("2")]);
    assert!(listing.records.iter().all(|r| r.payload.is_some()));
    let mut asked = keys.clone();
    asked.extend([key("young"), key("pending"), key("dead"), key("unknown")]);
    assert_eq!(store.purge_archived(&two, &asked).await.unwrap(), 2);
    assert_eq!(store.purge(&two).await.unwrap(), 1);
    assert_eq!(store.purge(&two).await.unwrap(), 0);
    assert_eq!(
        listed(store, &Filter::default()).await,
        ["pending", "dead", "young"]
    );
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted, "its protection has ended");
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn a_purge_larger_than_its_slices_goes_on_to_its_limit() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let batch: Vec<_> = (0..1300).map(|n| message(&n.to_string())).collect();
    store.receive(&batch).await.unwrap();
    let pending = in_states(&[State::Pending]);
    let slice = Slice {
        after: None,
        limit: 5000,
    };
    assert_eq!(
        store.discard_slice(&pending, &slice).await.unwrap().changed,
        1300
    );
    let expired = Expired::new(State::Discarded, Duration::ZERO, 1200).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1200);
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 100);
    check::check_consistent(&ready).await;
}

#[tokio::test]
async fn a_purged_key_that_is_accepted_anew_is_fenced_from_its_old_life() {
    let Some(ready) = ready().await else {
        return;
    };
    let store = &ready.store;
    let old = begin(store, &message("1")).await.lease;
    settle(store, &old, processed()).await;
    let expired = Expired::new(State::Processed, Duration::ZERO, 1).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    let new = begin(store, &message("1")).await.lease;
    assert!(new.token > old.token);
    let settled = store.settle_one(&old, processed()).await.unwrap();
    assert_eq!(settled, inbox_api::Settled::LeaseLost);
    assert_eq!(get(store, "1").await.state, State::Leased);
}

/// What `record_in` adds to the counts is summed up, whether the store commits it or the caller.
#[tokio::test]
async fn records_alone_do_not_make_the_counts_grow() {
    const RECORDS: i64 = 20_000;
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    place
        .run(&format!(
            "SELECT {{schema}}.inbox_record('h', n::text, 'k', NULL, NULL, '{{}}', '', NULL, NULL,
                 NULL, false, false)
             FROM generate_series(1, {RECORDS}) AS n"
        ))
        .await
        .unwrap();
    let rows: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_tally")
        .await;
    // Once in 500 times on average.
    assert!(rows < RECORDS / 2, "{rows} rows for {RECORDS} records");
    let recorded = store.statistics().await.unwrap().count(State::Processed);
    assert_eq!(recorded, RECORDS.unsigned_abs());
    let expired = Expired::new(State::Processed, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 10);
    let rows: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_tally")
        .await;
    assert_eq!(rows, 1, "each purge sums up");
    check::check_consistent(&ready).await;
}

/// What operators and inline use add to the counts is summed up, too, without a purge.
#[tokio::test]
async fn other_operations_alone_do_not_make_the_counts_grow() {
    const TIMES: i64 = 1000;
    const ROUNDS: i64 = 10;
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _ = store.receive_one(&message("1")).await.unwrap();
    for each in [
        "inbox_discard(
             ARRAY[(SELECT seq FROM {schema}.inbox_message) + 0 * n], '{0}', false
         ) AS discarded,
         LATERAL {schema}.inbox_replay(discarded, '{4}', NULL, false)",
        "inbox_begin('h', '1', 'k', NULL, NULL, '{}', '', NULL, 0 * n, 60000000, 'w') AS b,
         LATERAL {schema}.inbox_settle(
             ARRAY[b.found_seq], ARRAY[b.new_token], '{0}', NULL, NULL, NULL, NULL,
             false, false, false, false, NULL
         )",
    ] {
        let sql = format!(
            "SELECT count(*) FROM generate_series(1, {TIMES}) AS n, LATERAL {{schema}}.{each}"
        );
        for _ in 0..ROUNDS {
            place.run(&sql).await.unwrap();
        }
        let rows: i64 = place
            .value("SELECT count(*) FROM {schema}.inbox_tally")
            .await;
        // Each time two rows; summed up once in 500 calls on average.
        assert!(rows < TIMES * ROUNDS, "{rows} rows");
        check::check_consistent(&ready).await;
    }
}

#[tokio::test]
async fn without_notifications_no_operation_notifies() {
    let Some(ready) = ready_with(|options| options.notifications(false)).await else {
        return;
    };
    let (place, store) = (&ready.place, &ready.store);
    let mut listener = sqlx::postgres::PgListener::connect(&place.url)
        .await
        .unwrap();
    let channel = format!("{}.inbox", place.schema);
    listener.listen(&channel).await.unwrap();
    let blocked = |id: &str| ordered(id, id);
    for id in ["purged", "archived", "discarded", "replayed"] {
        let _ = store
            .receive(&[blocked(id), ordered(&format!("{id} next"), id)])
            .await
            .unwrap();
    }
    let leases: Vec<_> = claim(store, 10)
        .await
        .into_iter()
        .map(|l| l.lease)
        .collect();
    assert_eq!(leases.len(), 4);
    settle(store, &leases[0], dead(AfterDead::Block)).await;
    let expired = Expired::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    settle(store, &leases[1], dead(AfterDead::Block)).await;
    let purged = store.purge_archived(&expired, &[key("archived")]).await;
    assert_eq!(purged.unwrap(), 1);
    settle(store, &leases[2], dead(AfterDead::Block)).await;
    let _ = store.discard(&key("discarded")).await.unwrap();
    settle(store, &leases[3], dead(AfterDead::Block)).await;
    let _ = store.replay(&key("replayed"), None).await.unwrap();
    let leases = claim(store, 10).await;
    assert_eq!(leases.len(), 4);
    for leased in &leases {
        settle(store, &leased.lease, retry(Duration::ZERO)).await;
    }
    let sql = format!("NOTIFY \"{channel}\", 'the first'");
    common::execute(&place.url, &sql).await.unwrap();
    assert_eq!(listener.recv().await.unwrap().payload(), "the first");
}

/// What a restore or a hand at the tables may leave: a state without its message.
#[tokio::test]
async fn a_message_that_is_missing_is_reported_once_and_set_aside() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _ = store
        .receive(&[message("missing"), message("there")])
        .await
        .unwrap();
    place
        .run("DELETE FROM {schema}.inbox_message WHERE id = 'missing'")
        .await
        .unwrap();
    let claims = store.claim(&request(10)).await.unwrap();
    assert_eq!(ids(&claims.leased), ["there"]);
    assert_eq!(claims.corrupt.len(), 1);
    assert!(claims.corrupt[0].reason.contains("missing"), "{claims:?}");
    place.advance(2 * LENGTH).await;
    let claims = store.claim(&request(10)).await.unwrap();
    assert_eq!((claims.leased.len(), claims.corrupt.len()), (1, 0));
    let dead = Filter {
        states: vec![State::Dead],
        ..Filter::default()
    };
    let listing = store.list(&dead, &Page::first(10)).await.unwrap();
    assert_eq!((listing.records.len(), listing.corrupt.len()), (0, 1));
    assert_eq!(store.statistics().await.unwrap().count(State::Dead), 1);
    let expired = Expired::new(State::Dead, Duration::ZERO, 10).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 1);
    check::check_consistent(&ready).await;
}
