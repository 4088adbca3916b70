//! Inboxes in partitions: what is a duplicate stays one, partitions come and go under traffic, and
//! dropping one can be interrupted anywhere.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::*;
use inbox_api::{
    AfterDead, Begun, ErrorKind, Expired, Filter, Intervention, Message, Operate as _, Page,
    Receipt, Recorded, Schema as _, Settled, Settlement, State, Store as _, StoreExt as _,
    Transactional as _,
};
use inbox_postgres::{Partitions, PostgresOptions, PostgresStore};

const HOUR: Duration = Duration::from_secs(3600);

/// More than a purge would rather delete row by row.
const PLENTY: usize = 1200;

/// Each purge begins a new partition, unless nothing was received since the last one.
async fn partitioned() -> Option<Ready> {
    ready_with(|options| options.partitions(Some(Partitions::every(Duration::ZERO).patience(HOUR))))
        .await
}

fn expired(state: State, limit: u32) -> Expired {
    Expired::new(state, Duration::ZERO, limit).unwrap()
}

/// A purge that finds nothing old enough.
async fn next_partition(store: &PostgresStore) {
    let never = Expired::new(State::Dead, 1000 * 24 * HOUR, 1).unwrap();
    assert_eq!(store.purge(&never).await.unwrap(), 0);
}

/// The numbers of the partitions that are there, those taken out of their tables included.
async fn partitions(place: &Place) -> Vec<i64> {
    place
        .column("SELECT number FROM {schema}.inbox_partition ORDER BY number")
        .await
}

/// Those that are still part of their tables.
async fn attached(place: &Place) -> Vec<String> {
    place
        .column(
            "SELECT c.relname::text FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = '{schema}.inbox_message'::regclass ORDER BY 1",
        )
        .await
}

fn messages(prefix: &str, count: usize) -> Vec<Message> {
    (0..count)
        .map(|n| message(&format!("{prefix} {n}")))
        .collect()
}

async fn receive(store: &PostgresStore, messages: &[Message]) {
    for batch in messages.chunks(500) {
        let receipts = store.receive(batch).await.unwrap();
        assert!(receipts.iter().all(|r| *r == Receipt::Accepted));
    }
}

async fn process_all(store: &PostgresStore) {
    loop {
        let leased = claim(store, 500).await;
        if leased.is_empty() {
            return;
        }
        let settlements: Vec<_> = leased
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: processed(),
            })
            .collect();
        let settled = store.settle(&settlements).await.unwrap();
        assert!(settled.iter().all(|s| *s == Settled::Done));
    }
}

/// Purges as a janitor does, and returns how many messages that were.
async fn sweep(store: &PostgresStore, state: State) -> u64 {
    let mut total = 0;
    loop {
        let purged = store.purge(&expired(state, 1000)).await.unwrap();
        total += purged;
        if purged < 1000 {
            return total;
        }
    }
}

/// Each message has its key, and each key its message unless its partition was dropped.
async fn check(ready: &Ready) {
    check::check_consistent(ready).await;
    let wrong: Vec<String> = ready
        .place
        .column(
            "SELECT coalesce(m.id, k.id) FROM {schema}.inbox_message AS m
             FULL JOIN {schema}.inbox_key AS k
                 ON (k.handler, k.id, k.seq) = (m.handler, m.id, m.seq)
             WHERE m.seq IS NULL OR k.seq IS NULL",
        )
        .await;
    assert_eq!(wrong, [""; 0]);
}

#[tokio::test]
async fn a_copy_is_a_duplicate_whichever_partition_the_first_one_is_in() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let store = &ready.store;
    let sent: Vec<Message> = ["pending", "leased", "processed", "dead", "discarded"]
        .map(message)
        .to_vec();
    let due_later = sent[0].clone().with_due(inbox_api::Due::After(HOUR));
    assert_eq!(
        store.receive_one(&due_later).await.unwrap(),
        Receipt::Accepted
    );
    begin(store, &sent[1]).await;
    for (message, outcome) in [
        (&sent[2], processed()),
        (&sent[3], dead(AfterDead::Continue)),
        (&sent[4], dead(AfterDead::Continue)),
    ] {
        let leased = begin(store, message).await;
        settle(store, &leased.lease, outcome).await;
    }
    let discarded = store.discard(sent[4].key()).await.unwrap();
    assert_eq!(discarded, Intervention::Done);

    for round in 0..3 {
        let receipts = store.receive(&sent).await.unwrap();
        assert_eq!(receipts, vec![Receipt::Duplicate; 5], "{round}");
        let mut begun = Vec::new();
        for message in &sent {
            begun.push(store.begin(message, &terms()).await.unwrap());
        }
        assert!(
            matches!(
                begun.as_slice(),
                [
                    Begun::Busy { .. },
                    Begun::Busy { .. },
                    Begun::Processed { .. },
                    Begun::Dead { .. },
                    Begun::Discarded,
                ]
            ),
            "{begun:?}"
        );
        let mut transaction = store.open().await.unwrap();
        let recorded = store.record_in(&mut transaction, &sent[2], None).await;
        assert_eq!(recorded.unwrap(), Recorded::Processed { result: None });
        store.commit(transaction).await.unwrap();
        check(&ready).await;

        // Something in each partition, so that a new one is begun.
        receive(store, &messages(&format!("round {round}"), 1)).await;
        process_all(store).await;
        next_partition(store).await;
        assert_eq!(partitions(&ready.place).await.len(), round + 3);
    }
    let replayed = store.replay(sent[2].key(), None).await.unwrap();
    assert_eq!(replayed, Intervention::Done);
    let leased = claim(store, 10).await;
    assert_eq!(ids(&leased), ["processed"]);
    check(&ready).await;
}

#[tokio::test]
async fn partitions_are_made_ahead_and_begin_on_time() {
    let Some(ready) = ready_with(|o| o.partitions(Some(Partitions::every(HOUR)))).await else {
        return;
    };
    let Ready { place, store } = &ready;
    assert_eq!(partitions(place).await, [0, 1]);
    receive(store, &messages("first", 1)).await;
    next_partition(store).await;
    assert_eq!(
        partitions(place).await,
        [0, 1],
        "the first hour is not over"
    );

    place.advance(HOUR).await;
    receive(store, &messages("late", 1)).await;
    next_partition(store).await;
    assert_eq!(partitions(place).await, [0, 1, 2]);
    receive(store, &messages("second", 1)).await;
    let counts: Vec<i64> = place
        .column("SELECT count(*) FROM {schema}.inbox_message GROUP BY tableoid ORDER BY tableoid")
        .await;
    assert_eq!(counts, [2, 1]);

    // An hour in which nothing comes is not worth a partition.
    place.advance(HOUR).await;
    next_partition(store).await;
    assert_eq!(partitions(place).await, [0, 1, 2, 3]);
    for _ in 0..3 {
        place.advance(HOUR).await;
        next_partition(store).await;
    }
    assert_eq!(partitions(place).await, [0, 1, 2, 3]);
    check(&ready).await;
}

#[tokio::test]
async fn the_sequence_may_get_into_the_next_partition_by_itself() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    place
        .run("SELECT setval('{schema}.inbox_seq', 9999999999000, false)")
        .await
        .unwrap();
    receive(store, &messages("last", 1)).await;
    receive(store, &messages("first", 1)).await;
    next_partition(store).await;
    next_partition(store).await;
    let begun: Vec<i64> = place
        .column(
            "SELECT number FROM {schema}.inbox_partition WHERE begins_at IS NOT NULL ORDER BY 1",
        )
        .await;
    assert_eq!(begun, [0, 1, 2]);
    process_all(store).await;
    check(&ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_come_and_go_under_traffic() {
    const RECEIVERS: usize = 2;
    const ROUNDS: usize = 100;
    const BATCH: usize = 40;

    let Some(ready) = partitioned().await else {
        return;
    };
    let store = &ready.store;
    let over = Arc::new(AtomicBool::new(false));
    let purger = tokio::spawn({
        let (store, over) = (ready.place.other().await, Arc::clone(&over));
        async move {
            let mut purged = 0;
            while !over.load(Ordering::Relaxed) {
                purged += store.purge(&expired(State::Processed, 500)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            purged
        }
    });
    let mut receivers = Vec::new();
    for n in 0..RECEIVERS {
        let store = store.clone();
        receivers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let mut batch = messages(&format!("{n} {round}"), BATCH);
                for (n, message) in batch.iter_mut().enumerate().step_by(4) {
                    let key = format!("key {}", n % 3);
                    *message = ordered(message.id().as_str(), &key);
                }
                receive(&store, &batch).await;
            }
        }));
    }
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (store, over) = (store.clone(), Arc::clone(&over));
        workers.push(tokio::spawn(async move {
            let mut handled: HashMap<String, usize> = HashMap::new();
            loop {
                let last = over.load(Ordering::Relaxed);
                let leased = claim(&store, 30).await;
                if leased.is_empty() {
                    if last {
                        return handled;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                for leased in &leased {
                    *handled
                        .entry(leased.message.id().as_str().into())
                        .or_default() += 1;
                }
                let settlements: Vec<_> = leased
                    .into_iter()
                    .map(|leased| Settlement {
                        lease: leased.lease,
                        outcome: processed(),
                    })
                    .collect();
                for settled in store.settle(&settlements).await.unwrap() {
                    assert_eq!(settled, Settled::Done);
                }
            }
        }));
    }
    for receiver in receivers {
        receiver.await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    let mut handled = HashMap::new();
    for worker in workers {
        for (id, times) in worker.await.unwrap() {
            *handled.entry(id).or_insert(0) += times;
        }
    }
    assert_eq!(handled.len(), RECEIVERS * ROUNDS * BATCH);
    assert!(handled.values().all(|times| *times == 1));
    let last = *partitions(&ready.place).await.last().unwrap();
    assert!(last > 5, "only {last} partitions were made");

    let mut purged = purger.await.unwrap();
    ready.place.advance(2 * HOUR).await;
    next_partition(store).await;
    purged += sweep(store, State::Processed).await;
    assert_eq!(purged, (RECEIVERS * ROUNDS * BATCH) as u64);
    check(&ready).await;
    let none = store
        .list(&Filter::default(), &Page::first(1))
        .await
        .unwrap();
    assert_eq!(none.records, []);
    let left = partitions(&ready.place).await;
    assert_eq!(left.len(), 2, "the current one and the next, but {left:?}");
}

#[tokio::test]
async fn a_partition_is_dropped_whole_and_its_keys_in_slices() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    let sent = messages("m", PLENTY);
    receive(store, &sent).await;
    process_all(store).await;
    let purge = async |limit| {
        store
            .purge(&expired(State::Processed, limit))
            .await
            .unwrap()
    };
    assert_eq!(purge(500).await, 500);

    // Not a row was deleted, and no message is to be seen.
    let kept: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_message_0")
        .await;
    assert_eq!(kept, PLENTY as i64);
    assert_eq!(
        attached(place).await,
        ["inbox_message_1", "inbox_message_2"]
    );
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);
    // The keys of those that were accepted last still are.
    let (first, last) = (&sent[0], &sent[PLENTY - 1]);
    let receipts = store.receive(&[first.clone(), last.clone()]).await.unwrap();
    assert_eq!(receipts, [Receipt::Accepted, Receipt::Duplicate]);

    assert_eq!(purge(500).await, 500);
    assert_eq!(purge(500).await, 200);
    assert_eq!(store.receive_one(last).await.unwrap(), Receipt::Accepted);
    assert!(!partitions(place).await.contains(&0));
    let tables: i64 = place
        .value(
            "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
             WHERE quote_ident(nspname) = '{schema}' AND relname LIKE 'inbox_%_0'"
                .replace("'{schema}'", &format!("quote_ident('{}')", place.schema))
                .as_str(),
        )
        .await;
    assert_eq!(tables, 0);
    check(&ready).await;
}

/// Whichever message it is that is not old enough.
#[tokio::test]
async fn one_message_holds_a_partition_up() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    let unfinished = message("unfinished").with_due(inbox_api::Due::After(30 * LENGTH));
    receive(store, &[unfinished]).await;
    let poison = begin(store, &message("dead")).await;
    settle(store, &poison.lease, dead(AfterDead::Continue)).await;
    receive(store, &messages("m", PLENTY)).await;
    process_all(store).await;
    let purged = async |state| sweep(store, state).await;
    assert_eq!(purged(State::Processed).await, 0, "one pending, one dead");
    place.advance(30 * LENGTH).await;
    process_all(store).await;
    assert_eq!(purged(State::Processed).await, 0, "one dead");
    let discarded = store.discard(poison.message.key()).await.unwrap();
    assert_eq!(discarded, Intervention::Done);
    assert_eq!(purged(State::Processed).await, 0, "one discarded");
    place.advance(HOUR / 2).await;
    assert_eq!(purged(State::Discarded).await, 0, "not for an hour");
    place.advance(HOUR / 2).await;
    assert_eq!(purged(State::Discarded).await, 1);
    // By now they are overdue, but that is not how they go.
    let total = PLENTY as u64 + 1;
    assert_eq!(store.purge(&expired(State::Processed, 1)).await.unwrap(), 1);
    let kept: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_message_0")
        .await;
    assert_eq!(kept, i64::try_from(total).unwrap(), "dropped whole");
    assert_eq!(purged(State::Processed).await, total - 1);
    check(&ready).await;
}

#[tokio::test]
async fn what_is_held_up_for_long_is_deleted_by_itself() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    let poison = begin(store, &message("dead")).await;
    settle(store, &poison.lease, dead(AfterDead::Continue)).await;
    receive(store, &messages("m", PLENTY)).await;
    process_all(store).await;
    next_partition(store).await;
    assert_eq!(sweep(store, State::Processed).await, 0);
    place.advance(HOUR).await;
    assert_eq!(sweep(store, State::Processed).await, PLENTY as u64);
    assert_eq!(
        store.receive_one(&message("dead")).await.unwrap(),
        Receipt::Duplicate
    );
    assert_eq!(attached(place).await[0], "inbox_message_0");
    check(&ready).await;
    // And with the last of them, the empty partition goes.
    assert_eq!(sweep(store, State::Dead).await, 1);
    next_partition(store).await;
    assert!(!partitions(place).await.contains(&0));
    check(&ready).await;
}

#[tokio::test]
async fn what_an_archiver_has_emptied_is_dropped() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    receive(store, &messages("m", 20)).await;
    process_all(store).await;
    next_partition(store).await;
    let what = expired(State::Processed, 20);
    let listing = store.expired(&what).await.unwrap();
    let keys: Vec<_> = listing.records.into_iter().map(|r| r.key).collect();
    assert_eq!(store.purge_archived(&what, &keys).await.unwrap(), 20);
    assert!(!partitions(place).await.contains(&0));
    check(&ready).await;
}

#[tokio::test]
async fn a_drop_that_was_interrupted_is_taken_up() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    let sent = messages("m", PLENTY);
    receive(store, &sent).await;
    process_all(store).await;
    next_partition(store).await;
    // Taken out of its tables, and no more.
    let dropped: bool = place
        .value("SELECT {schema}.inbox_drop_partition(2::smallint, 0, 1000)")
        .await;
    assert!(dropped);

    // A redelivery is a duplicate still; for everybody else the messages are not there any more.
    let (a, b, c) = (&sent[0], &sent[1], &sent[2]);
    let last = &sent[PLENTY - 1];
    assert_eq!(store.receive_one(a).await.unwrap(), Receipt::Duplicate);
    assert_eq!(store.get(a.key()).await.unwrap(), None);
    assert_eq!(
        store.replay(a.key(), None).await.unwrap(),
        Intervention::NotFound
    );
    assert_eq!(
        store.discard(a.key()).await.unwrap(),
        Intervention::NotFound
    );
    let archived = [a.key().clone()];
    let what = expired(State::Processed, 1);
    let mut transaction = store.open().await.unwrap();
    assert_eq!(
        store.record_in(&mut transaction, b, None).await.unwrap(),
        Recorded::First
    );
    store.roll_back(transaction).await.unwrap();
    let mut transaction = store.open().await.unwrap();
    assert_eq!(
        store.record_in(&mut transaction, c, None).await.unwrap(),
        Recorded::First
    );
    store.commit(transaction).await.unwrap();
    let running = begin(store, last).await;
    assert_eq!(running.attempts.started, 1);

    // And a first slice of keys.
    let forgotten: i64 = place
        .value("SELECT forgotten FROM {schema}.inbox_forget(100)")
        .await;
    assert_eq!(forgotten, 100);
    let statistics = store.statistics().await.unwrap();
    // One of the hundred was recorded anew, and one of the others begun anew.
    assert_eq!(statistics.count(State::Processed), PLENTY as u64 - 100);
    assert_eq!(store.receive_one(a).await.unwrap(), Receipt::Accepted);

    assert_eq!(store.purge_archived(&what, &archived).await.unwrap(), 0);
    let rest = sweep(store, State::Processed).await;
    assert!(rest <= PLENTY as u64 - 100, "{rest}");
    assert!(!partitions(place).await.contains(&0));
    settle(store, &running.lease, processed()).await;
    assert_eq!(get(store, c.id().as_str()).await.state, State::Processed);
    assert_eq!(store.receive_one(b).await.unwrap(), Receipt::Accepted);
    check(&ready).await;
}

#[tokio::test]
async fn what_somebody_reads_is_dropped_later() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    receive(store, &messages("m", PLENTY)).await;
    process_all(store).await;
    next_partition(store).await;
    // As a dump does.
    let reading = async |table: &str| {
        let mut transaction = store.open().await.unwrap();
        let sql = place.sql(&format!("SELECT FROM {{schema}}.{table} LIMIT 1"));
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction
    };
    let reader = reading("inbox_message").await;
    let purge = async || store.purge(&expired(State::Processed, 5000)).await.unwrap();
    assert_eq!(purge().await, 0);
    store.roll_back(reader).await.unwrap();

    place
        .run("SELECT {schema}.inbox_drop_partition(2::smallint, 0, 1000)")
        .await
        .unwrap();
    let reader = reading("inbox_done_0").await;
    assert_eq!(purge().await, PLENTY as u64);
    assert_eq!(purge().await, 0);
    assert!(partitions(place).await.contains(&0));
    store.roll_back(reader).await.unwrap();
    assert_eq!(purge().await, 0);
    assert!(!partitions(place).await.contains(&0));
    check(&ready).await;
}

/// What a transaction has stored and not yet committed is not in a partition that is dropped.
#[tokio::test]
async fn an_open_transaction_holds_its_partition_up() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    receive(store, &messages("m", PLENTY)).await;
    process_all(store).await;
    let mut transaction = store.open().await.unwrap();
    let late = message("late");
    store
        .receive_in(&mut transaction, std::slice::from_ref(&late))
        .await
        .unwrap();
    next_partition(store).await;
    assert_eq!(sweep(store, State::Processed).await, 0);
    // Meanwhile everybody else goes on.
    receive(store, &messages("others", 10)).await;
    process_all(store).await;
    store.commit(transaction).await.unwrap();
    assert_eq!(sweep(store, State::Processed).await, 0);
    assert_eq!(attached(place).await[0], "inbox_message_0");
    process_all(store).await;
    assert_eq!(get(store, "late").await.state, State::Processed);
    assert_eq!(sweep(store, State::Processed).await, PLENTY as u64 + 1);
    check(&ready).await;
}

/// It drew its numbers before its partition was closed, and stores only when it is dropped.
#[tokio::test]
async fn a_receive_that_is_overtaken_by_a_drop_can_be_repeated() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    receive(store, &messages("m", 1)).await;
    process_all(store).await;
    next_partition(store).await;
    place.advance(2 * HOUR).await;
    assert_eq!(sweep(store, State::Processed).await, 1);
    next_partition(store).await;
    assert!(!partitions(place).await.contains(&0));
    let current: i64 = place
        .value("SELECT last_value FROM {schema}.inbox_seq")
        .await;
    place
        .run("SELECT setval('{schema}.inbox_seq', 500000)")
        .await
        .unwrap();
    let sent = message("late");
    let error = store.receive_one(&sent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = store.begin(&sent, &terms()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    place
        .run(&format!("SELECT setval('{{schema}}.inbox_seq', {current})"))
        .await
        .unwrap();
    assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
    check(&ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_purgers_share_the_partitions() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let store = &ready.store;
    for n in 0..3 {
        receive(store, &messages(&format!("m {n}"), PLENTY)).await;
        process_all(store).await;
        next_partition(store).await;
    }
    let mut purgers = Vec::new();
    for _ in 0..2 {
        let store = ready.place.other().await;
        purgers.push(tokio::spawn(async move {
            let (mut total, mut idle) = (0, 0);
            while idle < 20 {
                let purged = store.purge(&expired(State::Processed, 300)).await.unwrap();
                idle = if purged == 0 { idle + 1 } else { 0 };
                total += purged;
            }
            total
        }));
    }
    let mut total = 0;
    for purger in purgers {
        total += purger.await.unwrap();
    }
    assert_eq!(total, 3 * PLENTY as u64);
    assert_eq!(partitions(&ready.place).await.len(), 2);
    check(&ready).await;
}

/// By the server's own counters of what was read.
#[tokio::test]
async fn each_statement_reads_the_one_partition_that_it_needs() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    for n in 0..4 {
        receive(store, &messages(&format!("old {n}"), 50)).await;
        process_all(store).await;
        next_partition(store).await;
    }
    let kept = begin(store, &message("dead")).await;
    settle(store, &kept.lease, dead(AfterDead::Continue)).await;
    next_partition(store).await;
    store.close().await;

    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect_with(connection_options(&place.url))
        .await
        .unwrap();
    let options = place.options.clone().drop_processed_payloads(true);
    let store = PostgresStore::with_pool(pool.clone(), options);
    let touched = async || {
        sqlx::query("SELECT pg_stat_force_next_flush()")
            .execute(&pool)
            .await
            .unwrap();
        sqlx::query("SELECT 1").execute(&pool).await.unwrap();
        place
            .column::<String>(
                "SELECT relname || ' ' || seq_scan + idx_scan FROM pg_stat_user_tables
                 WHERE relid::regclass::text ~ 'inbox_(message|done)_[0-4]$'
                   AND quote_ident(schemaname) = quote_ident(trim('\"' FROM '{schema}'))
                 ORDER BY relname",
            )
            .await
    };
    // The plans are made, and kept from the sixth time on.
    let before = touched().await;
    assert_eq!(before.len(), 10, "{before:?}");
    for round in 0..10 {
        receive(&store, &messages(&format!("new {round}"), 20)).await;
        assert_eq!(
            store
                .receive_one(&message(&format!("new {round} 1")))
                .await
                .unwrap(),
            Receipt::Duplicate
        );
        receive(&store, &[ordered(&format!("ordered {round}"), "k")]).await;
        let leased = claim(&store, 15).await;
        let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
        let _ = store.extend(&leases, LENGTH).await.unwrap();
        let outcomes = [
            processed(),
            retry(Duration::ZERO),
            dead(AfterDead::Continue),
        ];
        let settlements: Vec<_> = leases
            .into_iter()
            .zip(outcomes.into_iter().cycle())
            .map(|(lease, outcome)| Settlement { lease, outcome })
            .collect();
        for _ in 0..2 {
            let settled = store.settle(&settlements).await.unwrap();
            assert!(settled.iter().all(|s| *s == Settled::Done));
        }
        process_all(&store).await;
        let new = message(&format!("begun {round}"));
        let begun = begin(&store, &new).await;
        settle(&store, &begun.lease, processed()).await;
        assert!(matches!(
            store.begin(&new, &terms()).await.unwrap(),
            Begun::Processed { .. }
        ));
        let mut transaction = store.open().await.unwrap();
        let new = message(&format!("recorded {round}"));
        let recorded = store.record_in(&mut transaction, &new, None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        store.commit(transaction).await.unwrap();
        assert!(store.get(new.key()).await.unwrap().is_some());
        let payload = Some("edited".into());
        let replayed = store.replay(new.key(), payload).await.unwrap();
        assert_eq!(replayed, Intervention::Done);
        assert_eq!(store.discard(new.key()).await.unwrap(), Intervention::Done);
        store.statistics().await.unwrap();
    }
    assert_eq!(touched().await, before);
}

#[tokio::test]
async fn the_options_have_to_agree_with_the_inbox() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Some(plain) = common::ready().await else {
        return;
    };
    let without = |place: &Place| place.options.clone().partitions(None);
    let with = |place: &Place| {
        place
            .options
            .clone()
            .partitions(Some(Partitions::every(HOUR)))
    };
    for (place, options) in [
        (&ready.place, without(&ready.place)),
        (&plain.place, with(&plain.place)),
    ] {
        let store = PostgresStore::connect(connection_options(&place.url), options)
            .await
            .unwrap();
        let errors = [
            store.exists().await.unwrap_err(),
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
            store.receive(&[message("1")]).await.unwrap_err(),
            store.claim(&request(1)).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion);
            assert!(error.context().contains("partitions"), "{error}");
        }
    }
    // Another period and patience are not another layout.
    let other = PostgresStore::connect(connection_options(&ready.place.url), with(&ready.place))
        .await
        .unwrap();
    assert!(other.exists().await.unwrap());
    assert_eq!(
        other.receive_one(&message("1")).await.unwrap(),
        Receipt::Accepted
    );
}

#[tokio::test]
async fn the_ddl_sets_an_inbox_in_partitions_up() {
    let Some(place) = Place::shared() else {
        return;
    };
    let options: PostgresOptions = place
        .options
        .clone()
        .partitions(Some(Partitions::every(HOUR)));
    execute(&place.url, &options.ddl()).await.unwrap();
    let store = PostgresStore::connect(connection_options(&place.url), options)
        .await
        .unwrap();
    assert!(store.exists().await.unwrap());
    assert_eq!(store.migrate().await.unwrap().from, Some(1));
    for part in [
        "DROP TABLE {schema}.inbox_partition",
        "DROP TABLE {schema}.inbox_key CASCADE",
    ] {
        place.run(part).await.unwrap();
        assert!(!store.exists().await.unwrap_or(false), "{part}");
    }
}

#[tokio::test]
async fn only_the_owner_keeps_partitions_up() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let role = fresh_name();
    ready
        .place
        .run(&format!(
            "CREATE ROLE {role} LOGIN;
             GRANT USAGE ON SCHEMA {{schema}} TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON {{schema}}.inbox_message,
                 {{schema}}.inbox_work, {{schema}}.inbox_done, {{schema}}.inbox_ordering TO {role};
             GRANT SELECT, INSERT, DELETE ON {{schema}}.inbox_tally, {{schema}}.inbox_key TO {role};
             GRANT SELECT ON {{schema}}.inbox_meta, {{schema}}.inbox_partition TO {role};
             GRANT USAGE ON SEQUENCE {{schema}}.inbox_seq TO {role}"
        ))
        .await
        .unwrap();
    let store = PostgresStore::connect(
        connection_options(&ready.place.url).username(&role),
        ready.place.options.clone(),
    )
    .await
    .unwrap();
    for round in 0..2 {
        // The second time in a partition that was made after the grants.
        receive(&store, &messages(&format!("m {round}"), 10)).await;
        process_all(&store).await;
        let new = message(&format!("begun {round}"));
        let begun = begin(&store, &new).await;
        settle(&store, &begun.lease, processed()).await;
        let replayed = store.replay(new.key(), Some("new".into())).await.unwrap();
        assert_eq!(replayed, Intervention::Done);
        assert_eq!(store.discard(new.key()).await.unwrap(), Intervention::Done);
        store.statistics().await.unwrap();
        next_partition(&ready.store).await;
    }
    let error = store
        .purge(&expired(State::Processed, 10))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.context().contains("the role that owns"), "{error}");

    ready
        .place
        .run(&format!("GRANT {} TO {role}", owner(&ready.place).await))
        .await
        .unwrap();
    assert_eq!(sweep(&store, State::Processed).await, 0);
    ready.place.advance(2 * HOUR).await;
    assert_eq!(sweep(&store, State::Processed).await, 20);
    check(&ready).await;
}

async fn owner(place: &Place) -> String {
    let sql = "SELECT quote_ident(tableowner) FROM pg_tables
               WHERE tablename = 'inbox_meta' AND format('%I', schemaname) = '{name}'";
    let name = place.schema.as_str();
    place.value(&sql.replace("{name}", name)).await
}
