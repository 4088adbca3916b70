//! Servers that are full, alone, forgetful, paused or not there.

use super::*;

use crate::common;

#[tokio::test]
async fn a_full_server_refuses_new_messages_and_can_be_drained() {
    let arguments = &["--maxmemory-policy", "noeviction"];
    let Some(server) = own(arguments).await else {
        return;
    };
    let options = options(server.url(), false, 1).drop_processed_payloads(true);
    let (store, _) = store(options.clone()).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let first: Vec<Message> = (0..100).map(|n| message(&format!("first {n}"))).collect();
    let _ = store.receive(&first).await.unwrap();
    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg("1mb");
    let _: Value = raw.run(&limit).await.unwrap();
    let error = store.receive_one(&message("late")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.effect(), Effect::None);
    assert!(error.context().contains("full"), "{error}");
    // Also by a worker that comes only now: it is not to be locked out.
    let newcomer = RedisStore::connect(options).await.unwrap();
    assert!(newcomer.exists().await.unwrap());
    newcomer.create().await.unwrap();
    assert_eq!(newcomer.count(&Filter::default()).await.unwrap(), 100);
    let leased = claim(&newcomer, 100).await;
    assert_eq!(leased.len(), 100);
    settle_all(&store, leased).await;
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 1000).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 100);
    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg("0");
    let _: Value = raw.run(&limit).await.unwrap();
    assert_eq!(
        store.receive_one(&message("late")).await.unwrap(),
        Receipt::Accepted
    );
}

#[tokio::test]
async fn too_few_replicas_are_unavailable_with_an_unknown_effect() {
    let Some(options) = shared(1) else { return };
    let wanted = Confirmations {
        replicas: 1,
        timeout: Duration::from_millis(50),
        ..Confirmations::default()
    };
    let (plain, _) = store(options.clone()).await;
    let strict = RedisStore::connect(options.confirmations(wanted))
        .await
        .unwrap();
    let error = strict.receive_one(&message("1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(error.context().contains("replicas"), "{error}");
    // The primary has it all the same.
    assert_eq!(
        plain.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
    // A claim that is not confirmed uses up no attempt.
    let request = ClaimRequest {
        handlers: vec![handler()],
        limit: 1,
        terms: terms(),
        run_limit: 1,
    };
    for _ in 0..3 {
        let error = strict.claim(&request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let leased = claim(&plain, 1).await;
    assert_eq!(leased[0].attempts.started, 1);
}

#[tokio::test]
async fn servers_that_may_lose_messages_are_refused_or_warned_about() {
    let Some(evicting) = own(&["--maxmemory-policy", "allkeys-lru"]).await else {
        return;
    };
    let Some(forgetful) = own(&["--appendonly", "no", "--save", ""]).await else {
        return;
    };
    for (server, reason) in [
        (&evicting, "maxmemory-policy"),
        (&forgetful, "persists nothing"),
    ] {
        let refuse = options(server.url(), false, 1).start_checks(StartChecks::Refuse);
        let error = RedisStore::connect(refuse.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.context().contains(reason), "{error}");
        for checks in [StartChecks::Warn, StartChecks::Skip] {
            RedisStore::connect(refuse.clone().start_checks(checks))
                .await
                .unwrap();
        }
    }
    let Some(options) = shared(1) else { return };
    let safe = options.start_checks(StartChecks::Refuse);
    RedisStore::connect(safe).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_connected_to_is_named() {
    let (Some(server), Some(cluster)) = (url(&common::SERVER), url(&common::CLUSTER)) else {
        return;
    };
    let as_cluster = |url: &str| url.replacen("redis://", "redis+cluster://", 1);
    let with_user = |url: &str| url.replacen("//", "//user:hunter2@", 1);
    for (url, kind, reason) in [
        (as_cluster(&server), ErrorKind::Invalid, "not a cluster"),
        (cluster.clone(), ErrorKind::Invalid, "redis+cluster://"),
        (with_user(&server), ErrorKind::Denied, "credentials"),
        (
            with_user(&as_cluster(&cluster)),
            ErrorKind::Denied,
            "credentials",
        ),
        (
            "redis://127.0.0.1:1".into(),
            ErrorKind::Unavailable,
            "refused",
        ),
        (
            "redis+cluster://127.0.0.1:1".into(),
            ErrorKind::Unavailable,
            "refused",
        ),
        (
            "redis://nowhere.invalid".into(),
            ErrorKind::Unavailable,
            "cannot be reached",
        ),
    ] {
        let options = RedisOptions::from_url(&url).unwrap();
        let error = RedisStore::connect(options).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.context().contains(reason), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn a_paused_server_is_unavailable_in_time_and_back_afterwards() {
    let Some(mut server) = own(&[]).await else {
        return;
    };
    let quick = options(server.url(), false, 1).operation_timeout(Duration::from_secs(2));
    let (store, _) = store(quick).await;
    server.pause().unwrap();
    let since = Instant::now();
    let error = store.receive_one(&message("1")).await.unwrap_err();
    // By default it would be ten.
    assert!(since.elapsed() < Duration::from_secs(8));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.effect(), Effect::Unknown);
    server.resume().unwrap();
    // The late write happened or not; a repetition tells, and either answer is safe.
    let resumed = Instant::now();
    while let Err(error) = store.receive_one(&message("1")).await {
        assert!(error.is_retryable(), "{error:?}");
        assert!(resumed.elapsed() < Duration::from_secs(60), "{error:?}");
    }
    assert_eq!(
        store.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate { differs: false }
    );
}
