//! The conformance suite on a three-node Galera cluster, with the connections spread over the
//! nodes, and a node that is killed under load. Skipped where there is no Galera.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Place, claim, connect_options, handler, harness::At, message, processed};
use inbox_api::{Operate as _, Receipt, Schema as _, Settled, State, Store as _, StoreExt as _};
use inbox_mysql::MySqlStore;
use test_servers::{Kind, require_or_skip};

#[test]
fn a_cluster_conforms_and_survives_a_node() {
    let Some(mut cluster) = require_or_skip(Kind::Galera).unwrap() else {
        return;
    };
    let urls: Vec<String> = cluster.urls().iter().map(ToString::to_string).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let harness = Arc::new(At("galera", urls.clone()));
    let report = runtime.block_on(conformance_tests::run(harness, ""));
    assert!(report.is_conformant(), "{report}");

    // A store on each node; one of the nodes dies. What was answered is there, and the others go
    // on.
    runtime.block_on(async {
        let place = Place::at(urls[0].clone()).await.unwrap();
        let mut stores = Vec::new();
        for url in &urls {
            let options = place
                .options
                .clone()
                .operation_timeout(Duration::from_secs(10))
                .connect_with(connect_options(url, Some(&place.database)));
            let store = MySqlStore::connect(options).await.unwrap();
            store.create().await.unwrap();
            stores.push(store);
        }
        let first: Vec<_> = (0..50).map(|n| message(&format!("a{n}"))).collect();
        common::accept(&stores[2], &first).await;
        cluster.kill_node(2).unwrap();
        let again = persist(|| stores[0].receive(&first)).await;
        assert!(again.iter().all(|receipt| *receipt == Receipt::Duplicate));
        let second: Vec<_> = (0..50).map(|n| message(&format!("b{n}"))).collect();
        let receipts = persist(|| stores[1].receive(&second)).await;
        assert!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
        let request = inbox_api::ClaimRequest {
            handlers: vec![handler("h")],
            limit: 20,
            terms: common::terms(),
        };
        let mut done = 0;
        while done < 100 {
            let store = &stores[done % 2];
            let claims = persist(|| store.claim(&request)).await;
            for leased in claims.leased {
                let settled = persist(|| stores[0].settle_one(&leased.lease, processed())).await;
                assert_eq!(settled, Settled::Done);
                done += 1;
            }
        }
        assert_eq!(claim(&stores[0], 10).await, []);
        cluster.start_node(2).unwrap();
        let statistics = persist(|| stores[2].statistics()).await;
        assert_eq!(statistics.count(State::Processed), 100);
    });
}

async fn persist<T, F: Future<Output = inbox_api::Result<T>>>(operation: impl Fn() -> F) -> T {
    for _ in 0..100 {
        match operation().await {
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer.unwrap(),
        }
    }
    panic!("the cluster did not recover")
}
