//! Partitions are made ahead of their time, and come and go under traffic.

use super::*;

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

/// A session that reads the list of partitions while one is attached may miss that one until it is told of
/// another.
#[tokio::test]
async fn what_begins_was_not_attached_last() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Ready { place, store } = &ready;
    for n in 0..20 {
        receive(store, &messages(&n.to_string(), 1)).await;
        place
            .run("SELECT {schema}.inbox_partition_upkeep(0)")
            .await
            .unwrap();
        let behind: Vec<i64> = place
            .column(
                "SELECT max(p.number) - (SELECT last_value / 10000000000000 FROM {schema}.inbox_seq)
                 FROM {schema}.inbox_partition AS p",
            )
            .await;
        assert!(behind[0] >= 1, "after step {n}");
    }
    assert!(*partitions(place).await.last().unwrap() > 5);
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
