//! That an answer which rests on what others wrote is as durable as that: it waits for the standby, too.

use std::time::{Duration, Instant};

use inbox_api::{
    AfterDead, Begun, Effect, ErrorKind, Intervention, Operate as _, Receipt, Recorded, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_postgres::PostgresStore;

use crate::common::*;

/// Beyond the chance that the server happens to write something for a call that changes nothing.
const TIMES: usize = 3;

async fn unanswered<T: std::fmt::Debug>(what: &str, call: impl AsyncFn() -> inbox_api::Result<T>) {
    let mut times = 0;
    while times < TIMES {
        let error = call().await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
        // Each time-out costs a connection, and a new one may take as long on a busy machine.
        times += usize::from(error.effect() == Effect::Unknown);
    }
}

async fn record(store: &PostgresStore, id: &str) -> inbox_api::Result<Recorded> {
    let mut transaction = store.open().await?;
    let recorded = store
        .record_in(&mut transaction, &message(id), None)
        .await?;
    store.commit(transaction).await?;
    Ok(recorded)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_rests_on_others_waits_for_the_standby() {
    let Some(server) = own_server_with(&[]) else {
        return;
    };
    let mut place = TestInbox::at(server.url().to_owned());
    let store = place.store().await;
    for id in ["leased", "dead", "discarded", "processed"] {
        assert_eq!(
            store.receive_one(&message(id)).await.unwrap(),
            Receipt::Accepted
        );
    }
    let mut leased = claim(&store, 10).await;
    let processed_lease = leased.pop().unwrap().lease;
    settle(&store, &processed_lease, processed()).await;
    // The first stays leased.
    for leased in &leased[1..] {
        settle(&store, &leased.lease, dead(AfterDead::Continue)).await;
    }
    let discarded = store.discard(&key("discarded")).await.unwrap();
    assert_eq!(discarded, Intervention::Done);

    let patient = store;
    place.options = place.options.operation_timeout(Duration::from_millis(500));
    let started = Instant::now();
    let store = loop {
        match place.connect().await {
            Ok(store) => break store,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        assert!(started.elapsed() < Duration::from_secs(60));
    };
    let standbys = |names: &str| {
        let sql = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
        let url = place.url.clone();
        async move {
            execute(&url, &sql).await.unwrap();
            execute(&url, "SELECT pg_reload_conf()").await.unwrap();
        }
    };
    standbys("nobody").await;
    while place
        .value::<String>("SHOW synchronous_standby_names")
        .await
        != "nobody"
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // As everything that writes does.
    unanswered("receive", async || store.receive_one(&message("new")).await).await;
    for id in ["leased", "dead", "discarded", "processed"] {
        let what = format!("receive of what is {id}");
        unanswered(&what, async || store.receive_one(&message(id)).await).await;
        let what = format!("begin of what is {id}");
        unanswered(&what, async || store.begin(&message(id), &terms()).await).await;
        let what = format!("record of what is {id}");
        unanswered(&what, async || record(&store, id).await).await;
    }
    let again = [inbox_api::Settlement {
        lease: processed_lease.clone(),
        outcome: processed(),
    }];
    unanswered("settle again", async || store.settle(&again).await).await;
    // Reading waits for nobody.
    assert!(patient.get(&key("processed")).await.unwrap().is_some());

    standbys("").await;
    while !place
        .value::<String>("SHOW synchronous_standby_names")
        .await
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begun = patient
        .begin(&message("processed"), &terms())
        .await
        .unwrap();
    assert!(matches!(begun, Begun::Processed { .. }), "{begun:?}");
}
