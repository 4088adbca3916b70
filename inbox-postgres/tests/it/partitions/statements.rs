//! What is a duplicate stays one, and statements read no more than they need.

use super::*;

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
        assert_eq!(
            receipts,
            vec![Receipt::Duplicate { differs: false }; 5],
            "{round}"
        );
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
    let replayed = store.replay(sent[2].key(), &Edit::default()).await.unwrap();
    assert_eq!(replayed, Intervention::Done);
    let leased = claim(store, 10).await;
    assert_eq!(ids(&leased), ["processed"]);
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
    // The first use of a store looks at the highest numbers.
    store.statistics().await.unwrap();
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
            Receipt::Duplicate { differs: false }
        );
        receive(&store, &[ordered(&format!("ordered {round}"), "k")]).await;
        let leased = claim(&store, 15).await;
        let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
        let _ = store.extend(&leases, LEASE).await.unwrap();
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
        let replayed = store
            .replay(new.key(), &with_payload("edited"))
            .await
            .unwrap();
        assert_eq!(replayed, Intervention::Done);
        assert_eq!(store.discard(new.key()).await.unwrap(), Intervention::Done);
        store.statistics().await.unwrap();
    }
    assert_eq!(touched().await, before);
}
