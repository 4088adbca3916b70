//! Dropping a partition: when it can be, what holds it up, and what may come in between.

use super::*;

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
    assert_eq!(
        receipts,
        [Receipt::Accepted, Receipt::Duplicate { differs: false }]
    );

    assert_eq!(purge(500).await, 500);
    assert_eq!(purge(500).await, 200);
    assert_eq!(store.receive_one(last).await.unwrap(), Receipt::Accepted);
    assert!(!partitions(place).await.contains(&0));
    let tables: i64 = place
        .value(
            "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
             WHERE quote_ident(nspname) = '{schema}' AND relname LIKE 'inbox_%_0'"
                .replace(
                    "'{schema}'",
                    &format!("quote_ident('{}')", place.schema.name),
                )
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
    let unfinished = message("unfinished").with_due(inbox_api::Due::After(30 * LEASE));
    receive(store, &[unfinished]).await;
    let poison = begin(store, &message("dead")).await;
    settle(store, &poison.lease, dead(AfterDead::Continue)).await;
    receive(store, &messages("m", PLENTY)).await;
    process_all(store).await;
    let purged = async |state| sweep(store, state).await;
    assert_eq!(purged(State::Processed).await, 0, "one pending, one dead");
    place.advance(30 * LEASE).await;
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
        Receipt::Duplicate { differs: false }
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
        .value("SELECT {schema}.inbox_drop_partition(2::smallint, 0, NULL, 1000)")
        .await;
    assert!(dropped);

    // What another message under its key differs from is known still.
    let other = message_with(sent[3].id().as_str(), "another");
    assert_eq!(
        store.receive_one(&other).await.unwrap(),
        Receipt::Duplicate { differs: true }
    );
    // A redelivery is a duplicate still; for everybody else the messages are not there any more.
    let (a, b, c) = (&sent[0], &sent[1], &sent[2]);
    let last = &sent[PLENTY - 1];
    assert_eq!(
        store.receive_one(a).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
    assert_eq!(store.get(a.key()).await.unwrap(), None);
    assert_eq!(
        store.replay(a.key(), &Edit::default()).await.unwrap(),
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
    // One of the hundred was recorded again, and one of the others begun again.
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
async fn what_is_being_read_is_dropped_later() {
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
        .run("SELECT {schema}.inbox_drop_partition(2::smallint, 0, NULL, 1000)")
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

/// What waits for a drop draws its number afterwards, so that it is not one of a partition that is
/// gone.
#[tokio::test]
async fn a_drop_overtakes_nobody() {
    for operation in ["receive", "begin", "record"] {
        let Some(ready) = partitioned().await else {
            return;
        };
        let Ready { place, store } = &ready;
        next_partition(store).await;
        let mut dropping = connection(&place.url).await.unwrap();
        let run = async |dropping: &mut PgConnection, sql: &str| {
            let sql = sqlx::AssertSqlSafe(place.sql(sql));
            sqlx::raw_sql(sql).execute(dropping).await.unwrap();
        };
        run(
            &mut dropping,
            "BEGIN; LOCK TABLE ONLY {schema}.inbox_message, ONLY {schema}.inbox_done",
        )
        .await;
        let overtaken = tokio::spawn({
            let (store, sent) = (store.clone(), message(operation));
            async move {
                match operation {
                    "receive" => {
                        assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
                    }
                    "begin" => assert!(matches!(
                        store.begin(&sent, &terms()).await.unwrap(),
                        Begun::Run(_)
                    )),
                    _ => {
                        let mut transaction = store.open().await.unwrap();
                        let recorded = store
                            .record_in(&mut transaction, &sent, None)
                            .await
                            .unwrap();
                        assert_eq!(recorded, Recorded::First);
                        store.commit(transaction).await.unwrap();
                    }
                }
            }
        });
        let waiting = format!(
            "SELECT count(*) FROM pg_locks AS l WHERE NOT l.granted
             AND l.relation = '{}'::regclass",
            place.sql("{schema}.inbox_message")
        );
        while place.value::<i64>(&waiting).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        run(
            &mut dropping,
            "SELECT setval('{schema}.inbox_seq', 10000000000000, false);
             ALTER TABLE {schema}.inbox_message DETACH PARTITION {schema}.inbox_message_0;
             ALTER TABLE {schema}.inbox_done DETACH PARTITION {schema}.inbox_done_0;
             COMMIT",
        )
        .await;
        overtaken.await.unwrap();
    }
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

/// Those of other handlers in the same partition are not its business.
#[tokio::test]
async fn one_handlers_retention_drops_what_is_its_own() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    let others: Vec<Message> = messages("other", PLENTY)
        .iter()
        .map(|message| message.for_handler(handler("other")))
        .collect();
    receive(store, &messages("m", PLENTY)).await;
    receive(store, &others).await;
    process_all(store).await;
    let request = ClaimRequest {
        handlers: vec![handler("other")],
        ..request(u32::try_from(PLENTY).unwrap())
    };
    for leased in store.claim(&request).await.unwrap().leased.chunks(500) {
        let settlements: Vec<_> = leased
            .iter()
            .map(|leased| Settlement {
                lease: leased.lease.clone(),
                outcome: processed(),
            })
            .collect();
        let _ = store.settle(&settlements).await.unwrap();
    }
    next_partition(store).await;
    receive(store, &messages("later", PLENTY)).await;
    process_all(store).await;
    next_partition(store).await;

    let all = 10 * u32::try_from(PLENTY).unwrap();
    let of_other = expired(State::Processed, all).for_handler(handler("other"));
    let of_h = expired(State::Processed, all).for_handler(handler("h"));
    assert_eq!(
        store.purge(&of_other).await.unwrap(),
        0,
        "not whole, not late"
    );
    assert_eq!(
        store.purge(&of_h).await.unwrap(),
        PLENTY as u64,
        "the partition that is its own"
    );
    assert_eq!(
        attached(place).await[..2],
        ["inbox_message_0", "inbox_message_2"]
    );
    place.advance(HOUR).await;
    assert_eq!(store.purge(&of_other).await.unwrap(), PLENTY as u64);
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.handlers.len(), 1);
    assert_eq!(statistics.handlers[0].processed, PLENTY as u64);
    check(&ready).await;
    assert_eq!(store.purge(&of_h).await.unwrap(), PLENTY as u64);
    check(&ready).await;
}

/// Also what was taken out of its tables and is still to be forgotten.
#[tokio::test]
async fn removing_an_inbox_takes_its_partitions_along() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    receive(store, &messages("m", PLENTY)).await;
    process_all(store).await;
    next_partition(store).await;
    let dropped: bool = place
        .value("SELECT {schema}.inbox_drop_partition(2::smallint, 0, NULL, 1000)")
        .await;
    assert!(dropped);
    store.remove().await.unwrap();
    let left: i64 = place
        .value(
            "SELECT count(*) FROM pg_class
             WHERE quote_ident(relnamespace::regnamespace::text)
                 = quote_ident(trim('\"' FROM '{schema}'))",
        )
        .await;
    assert_eq!(left, 0);
    store.create().await.unwrap();
    receive(store, &messages("m", 1)).await;
    check(&ready).await;
}
