//! Users and what they may do.

use super::*;

fn on_database(
    server: &test_servers::Server,
    user: &str,
    password: &str,
    database: u8,
) -> RedisOptions {
    let address = server.url().trim_start_matches("redis://");
    let address = address.trim_end_matches('/');
    let url = format!("redis://{user}:{password}@{address}/{database}?inbox=orders");
    RedisOptions::from_url(&url).unwrap()
}

/// What a worker and an operator do.
async fn use_all_of_it(store: &RedisStore) {
    store.create().await.unwrap();
    let mut subscription = store.subscribe(&[handler()]).await.unwrap();
    for n in 0..6 {
        let sent = ordered(&n.to_string(), "k");
        assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
    }
    tokio::time::timeout(LENGTH, subscription.woken())
        .await
        .unwrap();
    for outcome in [
        Outcome::Release,
        Outcome::Retry {
            after: Duration::ZERO,
            error: "e".into(),
        },
        Outcome::Dead {
            reason: "d".into(),
            after: AfterDead::Block,
        },
    ] {
        let leased = claim(store, 1).await.remove(0);
        let _ = store.extend_one(&leased.lease, LENGTH).await.unwrap();
        assert_eq!(
            store.settle_one(&leased.lease, outcome).await.unwrap(),
            Settled::Done
        );
    }
    assert_eq!(
        store.replay(&key("0"), &Edit::default()).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(store.discard(&key("0")).await.unwrap(), Intervention::Done);
    store.pause(&handler()).await.unwrap();
    assert_eq!(store.paused().await.unwrap(), [handler()]);
    assert_eq!(claim(store, 1).await.len(), 0);
    store.resume(&handler()).await.unwrap();
    settle_all(store, claim(store, 1).await).await;
    let _ = store.begin(&message("7"), &terms()).await.unwrap();
    let page = Page {
        with_payload: true,
        ..Page::first(10)
    };
    store.list(&Filter::default(), &page).await.unwrap();
    let of_key = Filter {
        states: vec![State::Pending, State::Leased, State::Dead],
        ordering_key: ordered("0", "k").ordering_key().cloned(),
        ..Filter::default()
    };
    let waiting = Filter {
        ordering_key: None,
        ..of_key.clone()
    };
    let named = Filter {
        handler: Some(handler()),
        ids: vec![key("0").id],
        ..Filter::default()
    };
    for filter in [of_key, waiting, named] {
        assert!(store.count(&filter).await.unwrap() > 0, "{filter:?}");
        for newest_first in [false, true] {
            let page = Page {
                newest_first,
                ..Page::first(10)
            };
            store.list(&filter, &page).await.unwrap();
        }
    }
    store.statistics().await.unwrap();
    for state in [State::Processed, State::Discarded] {
        let expired = PurgeRequest::new(state, Duration::ZERO, 10).unwrap();
        assert_eq!(store.expired(&expired).await.unwrap().records.len(), 1);
        assert_eq!(store.purge(&expired).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn credentials_and_permissions_are_denied() {
    let Some(server) = own(&[]).await else { return };
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    for (user, rules) in [
        ("minimal", inbox_redis::ACL_RULES),
        ("reader", "+info +evalsha +script|load +hmget ~*"),
    ] {
        let mut acl = redis::cmd("ACL");
        acl.arg("SETUSER").arg(user).arg("on").arg(">secret");
        for rule in rules.replace("INBOX", "orders").split_whitespace() {
            acl.arg(rule);
        }
        let _: Value = raw.run(&acl).await.unwrap();
    }
    let with = |user: &str, password: &str| on_database(&server, user, password, 0);
    let error = RedisStore::connect(with("minimal", "wrong"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");

    // The documented user can do everything.
    let documented = include_str!("../../../SETUP.md");
    assert!(documented.contains(&inbox_redis::ACL_RULES.replace("INBOX", "inbox")));
    for database in [0, 1] {
        let options = on_database(&server, "minimal", "secret", database);
        let store = RedisStore::connect(options).await.unwrap();
        use_all_of_it(&store).await;
    }

    // Another inbox is not this user's, and another user is told what is lacking.
    let foreign = with("minimal", "secret").inbox_name(inbox_api::InboxName::new("other").unwrap());
    let foreign = RedisStore::connect(foreign).await.unwrap();
    assert_eq!(
        foreign.create().await.unwrap_err().kind(),
        ErrorKind::Denied
    );
    let reader = with("reader", "secret").start_checks(StartChecks::Skip);
    let reader = RedisStore::connect(reader).await.unwrap();
    let error = reader.receive_one(&message("8")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}
