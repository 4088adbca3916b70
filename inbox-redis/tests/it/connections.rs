//! Connections that break, go silent, or end at a server that is no longer the one.

use std::time::{Duration, Instant};

use conformance_tests::crash::proxy::Proxy;
use inbox_api::{
    Begun, Effect, ErrorKind, Operate as _, Receipt, Schema as _, Settled, State, Store as _,
    StoreExt as _,
};
use inbox_redis::{Command, RedisStore};
use test_servers::{Kind as ServerKind, Server, find_own, or_skip};

use crate::common::{
    PATIENCE, Raw,
    address::{Address, follow, socket},
    by_a_replica,
    messages::{claim, handler, key, message, processed, terms},
    options, store,
};

const LIMIT: Duration = Duration::from_secs(6);

async fn own(arguments: &'static [&'static str]) -> Option<Server> {
    let found = tokio::task::spawn_blocking(move || find_own(ServerKind::Redis, arguments));
    or_skip(ServerKind::Redis, found.await.unwrap()).unwrap()
}

/// An orderly fail-over behind one address: the old server goes on as a replica, and keeps its
/// connections. With and without confirmation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_left() {
    let Some(first) = own(&[]).await else { return };
    let Some(second) = own(&[]).await else { return };
    follow(second.url(), Some(first.url())).await;
    let address = Address::of(first.url()).await;
    let plain = options(&address.url(), false, 1).operation_timeout(LIMIT);
    let sure = plain.clone().confirmations(by_a_replica());
    let (plain, sure) = (
        RedisStore::connect(plain).await.unwrap(),
        RedisStore::connect(sure).await.unwrap(),
    );
    plain.create().await.unwrap();
    let mut servers = [&first, &second];
    for turn in 0..4 {
        let [from, to] = servers;
        for store in [&plain, &sure] {
            // The replica may not have connected yet.
            let since = Instant::now();
            while let Err(error) = store.receive_one(&message("known")).await {
                assert!(since.elapsed() < Duration::from_secs(60), "{error:?}");
            }
        }
        follow(to.url(), None).await;
        follow(from.url(), Some(to.url())).await;
        address.means(to.url());
        for (name, store) in [("plain", &plain), ("sure", &sure)] {
            let since = Instant::now();
            let sent = message(&format!("{name} {turn}"));
            while let Err(error) = store.receive_one(&sent).await {
                assert!(error.is_retryable(), "{error:?}");
                // Before there is a replica again, nothing can be confirmed.
                assert!(
                    since.elapsed() < Duration::from_secs(60),
                    "{name}: {error:?}"
                );
            }
            assert!(store.get(sent.key()).await.unwrap().is_some());
        }
        servers.reverse();
    }
}

/// A cluster of one server, behind a proxy that it takes for its own address.
async fn cluster_behind_proxy() -> Option<(Server, Proxy, RedisStore)> {
    let server = own(&["--cluster-enabled", "yes"]).await?;
    let proxy = Proxy::start(socket(server.url())).await.unwrap();
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let port = proxy.address().port();
    let mut announce = redis::cmd("CONFIG");
    announce
        .arg("SET")
        .arg("cluster-announce-ip")
        .arg("127.0.0.1");
    let _: String = raw.run(&announce).await.unwrap();
    let mut announce = redis::cmd("CONFIG");
    announce.arg("SET").arg("cluster-announce-port").arg(port);
    let _: String = raw.run(&announce).await.unwrap();
    let mut slots = redis::cmd("CLUSTER");
    let _: String = raw
        .run(slots.arg("ADDSLOTSRANGE").arg(0).arg(16_383))
        .await
        .unwrap();
    let mut info = redis::cmd("CLUSTER");
    info.arg("INFO");
    while !raw
        .run::<String>(&info)
        .await
        .unwrap()
        .contains("cluster_state:ok")
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let url = format!("redis://127.0.0.1:{port}/");
    let (store, _) = store(options(&url, true, 3).operation_timeout(LIMIT)).await;
    // So that the server knows all scripts.
    let _ = store.receive_one(&message("first")).await.unwrap();
    let leased = claim(&store, 5).await.unwrap();
    let _ = store
        .settle_one(&leased[0].lease, processed())
        .await
        .unwrap();
    let _ = store.begin(&message("first"), &terms()).await.unwrap();
    Some((server, proxy, store))
}

/// A caller that gets no answer is told so, and not what a repetition behind its back would find.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_whose_answer_was_lost_is_not_repeated_on_a_cluster() {
    let Some((_server, proxy, store)) = cluster_behind_proxy().await else {
        return;
    };
    let mut lost = 0;
    for round in 0..3 {
        let _ = store
            .receive_one(&message(&format!("settled {round}")))
            .await
            .unwrap();
        let leased = claim(&store, 1).await.unwrap().remove(0);
        let name = format!("{}:effects {round}", store.hash_tag(&leased.lease).unwrap());
        let push = Command::new("RPUSH").key(&name).arg("done");
        proxy.lose_next_reply();
        let settled = store.settle_with(&leased.lease, processed(), &[push]).await;
        let error = settled.expect_err("its answer was lost");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
        let record = store.get(leased.message.key()).await.unwrap().unwrap();
        assert_eq!(record.state, State::Processed);

        // Each needs two answers: of the numbers drawn, and of the message. Either may be the one.
        proxy.lose_next_reply();
        let begun = store
            .begin(&message(&format!("begun {round}")), &terms())
            .await;
        let error = begun.expect_err("an answer was lost");
        assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
        let begun = store
            .begin(&message(&format!("begun {round}")), &terms())
            .await
            .unwrap();
        assert!(
            matches!(begun, Begun::Run(_) | Begun::Busy { .. }),
            "{begun:?}"
        );
        lost += 2;
        assert_eq!(proxy.replies_lost(), lost);
    }
    // What only looks is repeated.
    proxy.lose_next_reply();
    assert!(store.get(&key("settled 0")).await.unwrap().is_some());
    assert_eq!(proxy.replies_lost(), lost + 1);
}

/// A connection to a node of a cluster that has gone silent is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_of_a_cluster_is_left() {
    let Some((_server, proxy, store)) = cluster_behind_proxy().await else {
        return;
    };
    for round in 0..2 {
        proxy.silence();
        let since = Instant::now();
        let answer = store.receive_one(&message(&format!("{round}"))).await;
        let error = answer.expect_err("nothing arrives");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(since.elapsed() < LIMIT * 3, "{:?}", since.elapsed());
        let receipt = store
            .receive_one(&message(&format!("{round}")))
            .await
            .unwrap();
        assert_eq!(receipt, Receipt::Accepted);
    }
}

/// A server and its replica, and a store that reaches the server through a proxy and has each change
/// confirmed.
async fn confirmed_behind_proxy() -> Option<([Server; 2], Proxy, RedisStore)> {
    let primary = own(&[]).await?;
    let replica = own(&[]).await?;
    follow(replica.url(), Some(primary.url())).await;
    let proxy = Proxy::start(socket(primary.url())).await.unwrap();
    let url = format!("redis://{}/", proxy.address());
    let sure = options(&url, false, 1)
        .operation_timeout(LIMIT)
        .confirmations(by_a_replica());
    let store = RedisStore::connect(sure).await.unwrap();
    let since = Instant::now();
    while let Err(error) = store.create().await {
        assert!(since.elapsed() < Duration::from_secs(60), "{error:?}");
    }
    Some(([primary, replica], proxy, store))
}

/// Uses both of the connections of those who wait, one of which may not have been needed so far.
async fn use_all_connections(store: &RedisStore, name: &str) {
    for round in 0..20 {
        let sent: Vec<_> = (0..8)
            .map(|n| message(&format!("{name} {round} {n}")))
            .collect();
        let receiving = sent.iter().map(|message| store.receive_one(message));
        futures_util::future::try_join_all(receiving).await.unwrap();
    }
}

/// On one server too, with confirmation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_of_those_who_wait_is_left() {
    let Some((_servers, proxy, store)) = confirmed_behind_proxy().await else {
        return;
    };
    let _ = store.receive_one(&message("1")).await.unwrap();
    let leased = claim(&store, 1).await.unwrap().remove(0);
    use_all_connections(&store, "before").await;
    proxy.silence();
    let settled = store.settle_one(&leased.lease, processed()).await;
    let error = settled.expect_err("nothing arrives");
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    let settled = store.settle_one(&leased.lease, processed()).await.unwrap();
    assert_eq!(settled, Settled::Done);
}

/// Callers whose time ends at different moments, in the same group too: each finds another connection
/// when it comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_those_who_wait_leaves_a_silent_connection() {
    let Some((_servers, proxy, store)) = confirmed_behind_proxy().await else {
        return;
    };
    for round in 0..3 {
        use_all_connections(&store, &format!("before {round}")).await;
        proxy.silence();
        let calls = (0..16_u32).map(|n| {
            let store = &store;
            async move {
                tokio::time::sleep(Duration::from_millis(20) * n).await;
                let sent = message(&format!("{round} {n}"));
                if store.receive_one(&sent).await.is_err() {
                    let again = store.receive_one(&sent).await;
                    assert!(again.is_ok(), "{n}: {again:?}");
                    return 1;
                }
                0
            }
        });
        let failed: u32 = futures_util::future::join_all(calls).await.iter().sum();
        assert!(failed > 0, "the connections were silent");
    }
}

/// A connection that went silent while nobody used it is found out and replaced within the time limit
/// of the call that comes upon it, however short that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_that_went_silent_is_replaced() {
    let Some((servers, proxy, sure)) = confirmed_behind_proxy().await else {
        return;
    };
    let other = Proxy::start(socket(servers[0].url())).await.unwrap();
    let url = format!("redis://{}/", other.address());
    let plain = RedisStore::connect(options(&url, false, 1).operation_timeout(LIMIT)).await;
    let plain = plain.unwrap();
    plain.create().await.unwrap();
    for round in 0..2 {
        use_all_connections(&sure, &format!("before {round}")).await;
        let _ = plain.receive_one(&message(&format!("plain {round}"))).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        proxy.silence();
        other.silence();
        for n in 0..4 {
            let sent = message(&format!("after {round} {n}"));
            for (name, store) in [("plain", &plain), ("confirmed", &sure)] {
                let receipt = store.receive_one(&sent).await;
                assert_eq!(receipt.unwrap(), Receipt::Accepted, "{name}");
            }
        }
    }
}

/// A connection for wake-ups that is only being made when the store is closed is given up, as one that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_while_a_subscription_is_being_made_leaves_no_connection() {
    let Some(server) = own(&[]).await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let handlers = [handler()];
    let other = RedisStore::connect(options(server.url(), false, 1)).await;
    let other = other.unwrap();
    let _subscription = other.subscribe(&handlers).await.unwrap();
    let proxy = Proxy::start(socket(server.url())).await.unwrap();
    let url = format!("redis://{}/", proxy.address());
    let patient = options(&url, false, 1).operation_timeout(PATIENCE);
    let store = RedisStore::connect(patient).await.unwrap();
    proxy.stall();
    let (subscribed, ()) = tokio::join!(store.subscribe(&handlers), async {
        store.close().await;
        other.close().await;
        proxy.forward();
    });
    let error = subscribed.err().expect("the store is closed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_eq!(error.effect(), Effect::None, "{error:?}");
    let mut clients = redis::cmd("CLIENT");
    clients.arg("LIST");
    let since = Instant::now();
    loop {
        let connected: String = raw.run(&clients).await.unwrap();
        if connected.lines().count() == 1 {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{connected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
