//! A part of the conformance suite on Valkey and on clusters of newer servers, and waiting for
//! append-only files, which only they can.

use std::time::Duration;

use inbox_api::{
    Effect, ErrorKind, HandlerName, Kind, Message, MessageId, Receipt, Schema as _, StoreExt as _,
};
use inbox_redis::{Confirmations, RedisStore, StartChecks};
use test_servers::{Kind as Server, find_own, or_skip};

use crate::common::{self, conforms, harness, options, store, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey() {
    let server = (Server::Valkey, &common::VALKEY);
    let harness = || harness(server, 1, Confirmations::default());
    conforms(server.1, harness, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_redis_8() {
    let confirmations = Confirmations {
        replicas: 1,
        local_aof: true,
        ..Confirmations::default()
    };
    let cluster = (Server::Redis8Cluster, &common::REDIS_8_CLUSTER);
    conforms(cluster.1, || harness(cluster, 6, confirmations), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_valkey() {
    let cluster = (Server::ValkeyCluster, &common::VALKEY_CLUSTER);
    let harness = || harness(cluster, 6, Confirmations::default());
    conforms(cluster.1, harness, false).await;
}

fn message(id: &str) -> Message {
    Message::new(
        HandlerName::new("billing").unwrap(),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        "payload",
    )
}

#[tokio::test]
async fn append_only_files_confirm() {
    for server in [&common::REDIS_8, &common::VALKEY] {
        let Some(url) = url(server) else { return };
        let options = options(&url, false, 1).operation_timeout(Duration::from_secs(60));
        let local = Confirmations {
            local_aof: true,
            timeout: Duration::from_secs(30),
            ..Confirmations::default()
        };
        let (sure, _) = store(options.clone().confirmations(local)).await;
        let received = sure.receive_one(&message("1")).await.unwrap();
        assert_eq!(received, Receipt::Accepted);
        // There are no replicas here.
        let more = Confirmations {
            replica_aofs: 1,
            timeout: Duration::from_millis(50),
            ..local
        };
        let strict = RedisStore::connect(options.confirmations(more))
            .await
            .unwrap();
        assert!(strict.exists().await.unwrap());
        let error = strict.receive_one(&message("2")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), Effect::Unknown);
        assert!(error.context().contains("append-only"), "{error}");
        assert_eq!(
            sure.receive_one(&message("2")).await.unwrap(),
            Receipt::Duplicate { differs: false }
        );
    }
}

#[tokio::test]
async fn a_server_without_an_append_only_file_is_told_that_it_cannot_confirm() {
    let arguments = &["--appendonly", "no"];
    let found = tokio::task::spawn_blocking(|| find_own(Server::Redis8, arguments));
    let Some(server) = or_skip(Server::Redis8, found.await.unwrap()).unwrap() else {
        return;
    };
    let plain = options(server.url(), false, 1);
    for checks in [StartChecks::Refuse, StartChecks::Warn, StartChecks::Skip] {
        let strict = plain.clone().start_checks(checks);
        let strict = strict.confirmations(common::by_the_disk());
        let error = RedisStore::connect(strict).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.context().contains("wait_aof_local"), "{error}");
    }
    RedisStore::connect(plain).await.unwrap();
}

#[tokio::test]
async fn an_older_server_is_told_that_it_cannot_confirm() {
    let Some(url) = url(&common::SERVER) else {
        return;
    };
    let wanted = Confirmations {
        local_aof: true,
        ..Confirmations::default()
    };
    match RedisStore::connect(options(&url, false, 1).confirmations(wanted)).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        Ok(store) => store.create().await.unwrap(),
    }
}
