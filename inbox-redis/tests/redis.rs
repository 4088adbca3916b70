//! What is particular to Redis: scripts, permissions, full servers, confirmations, memory.
// The lint configuration spares `#[test]` functions, not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::{Raw, options, store, url};
use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Effect, ErrorKind, Expired, Filter, HandlerName,
    Intervention, Key, Kind, LeaseTerms, Leased, Message, MessageId, Operate, OrderingKey, Outcome,
    Page, Receipt, Schema, Settled, Settlement, State, Store, StoreExt, WorkerName,
};
use inbox_redis::{Command, Confirmations, RedisOptions, RedisStore, StartChecks};
use redis::Value;
use test_servers::{Kind as Server, find_own, or_skip};

const LENGTH: Duration = Duration::from_secs(30);

fn handler() -> HandlerName {
    HandlerName::new("billing").unwrap()
}

fn message(id: &str) -> Message {
    Message::new(
        handler(),
        MessageId::new(id).unwrap(),
        Kind::new("k").unwrap(),
        format!("payload of {id}"),
    )
}

fn ordered(id: &str, key: &str) -> Message {
    message(id).with_ordering_key(OrderingKey::new(key).unwrap())
}

fn key(id: &str) -> Key {
    Key::new(handler(), MessageId::new(id).unwrap())
}

fn terms() -> LeaseTerms {
    LeaseTerms::new(LENGTH, WorkerName::new("worker-1").unwrap()).unwrap()
}

async fn claim(store: &RedisStore, limit: u32) -> Vec<Leased> {
    let request = ClaimRequest {
        handlers: vec![handler()],
        limit,
        terms: terms(),
    };
    store.claim(&request).await.unwrap().leased
}

fn processed() -> Outcome {
    Outcome::Processed { result: None }
}

async fn settle_all(store: &RedisStore, leased: Vec<Leased>) {
    let settlements: Vec<Settlement> = leased
        .into_iter()
        .map(|leased| Settlement {
            lease: leased.lease,
            outcome: processed(),
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
}

/// Options on the shared server, or nothing where there is none.
fn shared(shards: u16) -> Option<RedisOptions> {
    Some(options(&url(&common::SERVER)?, false, shards))
}

async fn raw() -> Raw {
    Raw::connect(&url(&common::SERVER).unwrap(), false)
        .await
        .unwrap()
}

/// A server of this test's own, with these arguments.
async fn own(arguments: &'static [&'static str]) -> Option<test_servers::Server> {
    let found = tokio::task::spawn_blocking(|| find_own(Server::Redis, arguments));
    or_skip(Server::Redis, found.await.unwrap()).unwrap()
}

#[tokio::test]
async fn scripts_are_loaded_again_when_the_server_forgets_them() {
    let Some(server) = own(&[]).await else { return };
    let (store, _) = store(options(server.url(), false, 1)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    for id in ["1", "2"] {
        let mut flush = redis::cmd("SCRIPT");
        flush.arg("FLUSH");
        let _: Value = raw.run(&flush).await.unwrap();
        assert_eq!(
            store.receive_one(&message(id)).await.unwrap(),
            Receipt::Accepted
        );
        let _: Value = raw.run(&flush).await.unwrap();
        let leased = claim(&store, 1).await;
        let _: Value = raw.run(&flush).await.unwrap();
        settle_all(&store, leased).await;
    }
}

#[tokio::test]
async fn a_client_with_another_number_of_shards_is_refused() {
    let Some(options) = shared(3) else { return };
    let (first, _) = store(options.clone()).await;
    assert_eq!(
        first.receive_one(&message("1")).await.unwrap(),
        Receipt::Accepted
    );
    let other = RedisStore::connect(options.shards(5).unwrap())
        .await
        .unwrap();
    let refused = [
        other.exists().await.map(drop).unwrap_err(),
        other.create().await.unwrap_err(),
        other.migrate().await.map(drop).unwrap_err(),
        other
            .receive_one(&message("2"))
            .await
            .map(drop)
            .unwrap_err(),
        other.statistics().await.map(drop).unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::SchemaVersion | ErrorKind::SchemaMissing
            ),
            "{error}"
        );
    }
    let error = other.exists().await.unwrap_err();
    assert!(error.context().contains("3 shards"), "{error}");
}

#[tokio::test]
async fn an_interrupted_set_up_is_completed_and_a_lost_shard_is_not_replaced() {
    let Some(options) = shared(3) else { return };
    let (store, _) = store(options).await;
    let mut raw = raw().await;
    let tag = |shard: u16| {
        let ddl = store.ddl();
        let line = ddl
            .lines()
            .find(|l| l.contains(&format!(":{shard}}}:meta")));
        line.unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    // The first shard's marker is written last.
    let mut delete = redis::cmd("DEL");
    delete.arg(tag(0)).arg(tag(1));
    let _: Value = raw.run(&delete).await.unwrap();
    assert!(!store.exists().await.unwrap());
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    let mut delete = redis::cmd("DEL");
    delete.arg(tag(1));
    let _: Value = raw.run(&delete).await.unwrap();
    assert!(!store.exists().await.unwrap());
    let error = store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
    // Every line of the statements is one for redis-cli.
    for line in store.ddl().lines().filter(|l| l.starts_with("HSET")) {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        let _: Value = raw.run(&command).await.unwrap();
    }
    assert!(store.exists().await.unwrap());
}

/// A copy with another ordering key, or with none, belongs to another shard, and is a duplicate.
#[tokio::test]
async fn copies_with_other_ordering_keys_are_duplicates() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    for (number, first) in ["a", "b", "c", "d", "e", ""].into_iter().enumerate() {
        for (other, second) in ["a", "b", "c", "d", "e", ""].into_iter().enumerate() {
            let id = format!("{number}-{other}");
            let of = |okey: &str| match okey {
                "" => message(&id),
                okey => ordered(&id, okey),
            };
            let accepted = store.receive_one(&of(first)).await.unwrap();
            assert_eq!(accepted, Receipt::Accepted, "{first} {second}");
            let again = store.receive_one(&of(second)).await.unwrap();
            assert_eq!(again, Receipt::Duplicate, "{first} then {second}");
            let begun = store.begin(&of(second), &terms()).await.unwrap();
            assert!(matches!(begun, Begun::Run(_) | Begun::Blocked), "{begun:?}");
            let record = store.get(&key(&id)).await.unwrap().unwrap();
            assert_eq!(record.ordering_key, of(first).ordering_key().cloned());
            let found = store.discard(&key(&id)).await.unwrap();
            assert_ne!(found, Intervention::NotFound);
        }
    }
    let all = store.count(&Filter::default()).await.unwrap();
    assert_eq!(all, 36);
}

/// Whoever reserved a place and died leaves nothing in the way, and cannot come back to it.
#[tokio::test]
async fn a_reservation_that_was_never_used_gives_way() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    // Purging behind the store's back leaves the guards, as a purger that dies does.
    for okey in ["a", "b", "c", "d"] {
        let first = ordered("1", okey);
        assert_eq!(store.receive_one(&first).await.unwrap(), Receipt::Accepted);
        let mut raw = raw().await;
        let ddl = store.ddl();
        for line in ddl.lines().filter(|l| l.starts_with("HSET")) {
            let prefix = line
                .split(' ')
                .nth(1)
                .unwrap()
                .trim_end_matches("meta")
                .to_owned();
            let mut body = redis::cmd("HDEL");
            body.arg(format!("{prefix}body")).arg("billing\x001");
            let gone: i64 = raw.run(&body).await.unwrap();
            if gone == 1 {
                for rest in [
                    "ids",
                    "counts",
                    "log",
                    "due:billing",
                    "open:billing",
                    "heads:billing",
                ] {
                    let mut delete = redis::cmd(if rest == "ids" { "HDEL" } else { "DEL" });
                    delete.arg(format!("{prefix}{rest}"));
                    if rest == "ids" {
                        delete.arg("billing\x001");
                    }
                    let _: Value = raw.run(&delete).await.unwrap();
                }
            }
        }
        // A copy with another key takes the place.
        let other = ordered("1", "z");
        assert_eq!(
            store.receive_one(&other).await.unwrap(),
            Receipt::Accepted,
            "{okey}"
        );
        assert_eq!(
            store.receive_one(&first).await.unwrap(),
            Receipt::Duplicate,
            "{okey}"
        );
        let leased = claim(&store, 10).await;
        assert_eq!(leased.len(), 1, "{okey}");
        settle_all(&store, leased).await;
        let done = Expired::new(State::Processed, Duration::ZERO, 10).unwrap();
        assert_eq!(store.purge(&done).await.unwrap(), 1, "{okey}");
    }
}

/// One delivery for several handlers, each with an ordering key of its own.
fn fan_out(id: &str) -> Vec<Message> {
    (0..6)
        .map(|n| {
            let name = HandlerName::new(format!("handler-{n}")).unwrap();
            ordered(id, &format!("{id} {n}"))
                .for_handler(name)
                .with_ordering_key(OrderingKey::new(format!("key {n} of {id}")).unwrap())
        })
        .collect()
}

/// Whoever sends a delivery and dies half-way has stored all of its messages or none, and others
/// see to it that those that were on their way arrive.
#[tokio::test]
async fn a_delivery_for_several_shards_is_stored_together_or_not_at_all() {
    let Some(options) = shared(7) else { return };
    let (store, _) = store(options).await;
    let (mut none, mut all) = (0, 0);
    for polls in 0..60_u32 {
        let id = format!("delivery {polls}");
        let sent = fan_out(&id);
        {
            // Dropped at its n-th await point that waits.
            let mut receive = std::pin::pin!(store.receive(&sent));
            let mut left = polls / 2;
            let cut = std::future::poll_fn(|context| {
                let polled = receive.as_mut().poll(context);
                if polled.is_ready() || left == 0 {
                    return std::task::Poll::Ready(());
                }
                left -= 1;
                std::task::Poll::Pending
            });
            cut.await;
        }
        // What was sent arrives even though nobody waits for the answer.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut found = 0;
        for message in &sent {
            found += usize::from(store.get(message.key()).await.unwrap().is_some());
        }
        assert!(found == 0 || found == sent.len(), "{found} after {polls}");
        none += usize::from(found == 0);
        all += usize::from(found > 0);
        if polls % 2 == 0 {
            let again = store.receive(&sent).await.unwrap();
            let expected = if found == 0 {
                Receipt::Accepted
            } else {
                Receipt::Duplicate
            };
            assert!(
                again.iter().all(|receipt| *receipt == expected),
                "{polls}: {again:?}"
            );
        }
    }
    assert!(none > 0 && all > 0, "{none} of none, {all} of all");
}

#[tokio::test]
async fn purging_leaves_no_keys_but_the_markers() {
    for shards in [1, 5] {
        let Some(server) = own(&[]).await else { return };
        let (store, _) = store(options(server.url(), false, shards)).await;
        for n in 0..40 {
            let sent = match n % 2 {
                0 => message(&n.to_string()),
                _ => ordered(&n.to_string(), &format!("k{}", n % 7)),
            };
            assert_eq!(store.receive_one(&sent).await.unwrap(), Receipt::Accepted);
        }
        for n in 0..40 {
            let leased = claim(&store, 3).await;
            for leased in leased {
                let outcome = match n % 4 {
                    0 => Outcome::Dead {
                        reason: "x".into(),
                        after: AfterDead::Block,
                    },
                    1 => Outcome::Processed {
                        result: Some(Bytes::from_static(b"r")),
                    },
                    _ => processed(),
                };
                let settled = store.settle_one(&leased.lease, outcome).await.unwrap();
                assert_eq!(settled, Settled::Done);
            }
        }
        for _ in 0..40 {
            for state in [State::Dead, State::Processed] {
                let expired = Expired::new(state, Duration::ZERO, 100).unwrap();
                store.purge(&expired).await.unwrap();
            }
            settle_all(&store, claim(&store, 100).await).await;
        }
        assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);
        let mut raw = Raw::connect(server.url(), false).await.unwrap();
        let mut keys: Vec<String> = raw.run(redis::cmd("KEYS").arg("*")).await.unwrap();
        // Streams stay as empty keys, since they remember their last entry; fences for minutes.
        keys.retain(|key| {
            ![":meta", ":log", ":done:processed", ":done:dead", ":fences"]
                .iter()
                .any(|end| key.ends_with(end))
        });
        assert_eq!(keys, Vec::<String>::new(), "{shards} shards");
    }
}

#[tokio::test]
async fn a_removed_inbox_leaves_nothing_and_can_be_made_anew() {
    for shards in [1, 5] {
        let Some(server) = own(&[]).await else { return };
        let (store, _) = store(options(server.url(), false, shards)).await;
        let mut sent: Vec<Message> = (0..40).map(|n| message(&n.to_string())).collect();
        sent.extend((40..60).map(|n| ordered(&n.to_string(), "k")));
        let _ = store.receive(&sent).await.unwrap();
        settle_all(&store, claim(&store, 10).await).await;
        store.remove().await.unwrap();
        let mut raw = Raw::connect(server.url(), false).await.unwrap();
        let keys: Vec<String> = raw.run(redis::cmd("KEYS").arg("*")).await.unwrap();
        assert_eq!(keys, Vec::<String>::new());
        assert!(!store.exists().await.unwrap());
        store.remove().await.unwrap();
        store.create().await.unwrap();
        let again = store.receive(&sent).await.unwrap();
        assert!(again.iter().all(|receipt| *receipt == Receipt::Accepted));
    }
}

/// Messages that were received together keep together as long as they fare alike, and can part in
/// any way.
#[tokio::test]
async fn messages_of_a_run_part_ways() {
    let Some(options) = shared(1) else { return };
    let (store, clock) = store(options.drop_processed_payloads(true)).await;
    let sent: Vec<Message> = (0..100).map(|n| message(&n.to_string())).collect();
    let _ = store.receive(&sent[..60]).await.unwrap();
    // Some are known: the others are stored together.
    let receipts = store.receive(&sent[40..]).await.unwrap();
    let accepted = receipts.iter().filter(|r| **r == Receipt::Accepted).count();
    assert_eq!(accepted, 40);
    let first = claim(&store, 25).await;
    let ids = |leased: &[Leased]| -> Vec<String> {
        let id = |leased: &Leased| leased.message.id().to_string();
        leased.iter().map(id).collect()
    };
    let numbers =
        |range: std::ops::Range<u32>| -> Vec<String> { range.map(|n| n.to_string()).collect() };
    assert_eq!(ids(&first), numbers(0..25));
    // One is retried, one is dead, one is released; their neighbours are processed.
    let settlements: Vec<Settlement> = first
        .iter()
        .enumerate()
        .map(|(n, leased)| Settlement {
            lease: leased.lease.clone(),
            outcome: match n {
                3 => Outcome::Retry {
                    after: LENGTH,
                    error: "later".into(),
                },
                4 => Outcome::Dead {
                    reason: "never".into(),
                    after: AfterDead::Continue,
                },
                5 => Outcome::Release,
                _ => processed(),
            },
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
    let settled = store.settle(&settlements).await.unwrap();
    assert!(
        settled.iter().all(|one| *one == Settled::Done),
        "a repetition"
    );
    assert_eq!(store.discard(&key("30")).await.unwrap(), Intervention::Done);
    let begun = store.begin(&message("31"), &terms()).await.unwrap();
    assert!(matches!(begun, Begun::Run(_)));
    let second = claim(&store, 5).await;
    assert_eq!(ids(&second), ["5", "25", "26", "27", "28"]);
    // A lease that is extended alone, and others that run out together.
    let until = store
        .extend_one(&second[1].lease, LENGTH * 4)
        .await
        .unwrap();
    assert!(matches!(until, inbox_api::Extended::Until(_)));
    clock.advance(LENGTH * 2);
    let third = claim(&store, 100).await;
    let mut expected = numbers(0..100);
    expected.retain(|id| {
        let n: u32 = id.parse().unwrap();
        !(n < 25 && n != 3 && n != 5 || n == 25 || n == 30)
    });
    let mut got = ids(&third);
    got.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(got, expected);
    for stale in [&second[0], &second[2]] {
        let lost = store.settle_one(&stale.lease, processed()).await.unwrap();
        assert_eq!(lost, Settled::LeaseLost);
    }
    settle_all(&store, third).await;
    settle_all(&store, vec![second[1].clone()]).await;
    let statistics = store.statistics().await.unwrap();
    assert_eq!(statistics.count(State::Processed), 98);
    assert_eq!(statistics.count(State::Dead), 1);
    assert_eq!(statistics.count(State::Discarded), 1);
    let listed = store
        .list(&Filter::default(), &Page::first(200))
        .await
        .unwrap();
    let listed: Vec<String> = listed
        .records
        .iter()
        .map(|r| r.key.id.to_string())
        .collect();
    assert_eq!(listed, numbers(0..100));
    // One of those that were processed together is replayed with a new payload.
    let edited = Some(Bytes::from_static(b"new"));
    assert_eq!(
        store.replay(&key("50"), edited).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(claim(&store, 5).await[0].message.payload(), &b"new"[..]);
    let expired = Expired::new(State::Processed, Duration::ZERO, 30).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), 30);
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 70);
}

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
    let expired = Expired::new(State::Processed, Duration::ZERO, 1000).unwrap();
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
        Receipt::Duplicate
    );
    // A lease need not be confirmed: that would use it up before the handler runs.
    assert_eq!(claim(&strict, 1).await.len(), 1);
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
    let with = |user: &str, password: &str| {
        let url = server
            .url()
            .replace("redis://", &format!("redis://{user}:{password}@"));
        RedisOptions::from_url(&format!("{url}?inbox=orders")).unwrap()
    };
    let error = RedisStore::connect(with("minimal", "wrong"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");

    // The documented user can do everything.
    let store = RedisStore::connect(with("minimal", "secret"))
        .await
        .unwrap();
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
        let leased = claim(&store, 1).await.remove(0);
        let _ = store.extend_one(&leased.lease, LENGTH).await.unwrap();
        assert_eq!(
            store.settle_one(&leased.lease, outcome).await.unwrap(),
            Settled::Done
        );
    }
    assert_eq!(
        store.replay(&key("0"), None).await.unwrap(),
        Intervention::Done
    );
    assert_eq!(store.discard(&key("0")).await.unwrap(), Intervention::Done);
    settle_all(&store, claim(&store, 1).await).await;
    let _ = store.begin(&message("7"), &terms()).await.unwrap();
    let page = Page {
        with_payload: true,
        ..Page::first(10)
    };
    store.list(&Filter::default(), &page).await.unwrap();
    store.statistics().await.unwrap();
    for state in [State::Processed, State::Discarded] {
        let expired = Expired::new(state, Duration::ZERO, 10).unwrap();
        assert_eq!(store.expired(&expired).await.unwrap().records.len(), 1);
        assert_eq!(store.purge(&expired).await.unwrap(), 1);
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
async fn commands_of_the_callers_own_are_done_once_and_with_the_settlement() {
    for shards in [1, 4] {
        let Some(options) = shared(shards) else {
            return;
        };
        let (store, _) = store(options).await;
        let mut raw = raw().await;
        let _ = store.receive_one(&message("1")).await.unwrap();
        let leased = claim(&store, 1).await.remove(0);
        let name = format!("{}:effects", store.hash_tag(&leased.lease).unwrap());
        let push = || Command::new("RPUSH").key(&name).arg("done");
        // A failing command leaves the lease as it was.
        let wrong = Command::new("INCR").key(&name);
        let error = store
            .settle_with(&leased.lease, processed(), &[push(), wrong])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let record = store.get(&key("1")).await.unwrap().unwrap();
        assert_eq!(record.state, State::Leased);
        // What came before it stands, as documented.
        let length: i64 = raw.run(redis::cmd("LLEN").arg(&name)).await.unwrap();
        assert_eq!(length, 1);

        let (settled, replies) = store
            .settle_with(&leased.lease, processed(), &[push()])
            .await
            .unwrap();
        assert_eq!((settled, replies), (Settled::Done, vec![Value::Int(2)]));
        let (again, _) = store
            .settle_with(&leased.lease, processed(), &[push()])
            .await
            .unwrap();
        assert_eq!(again, Settled::LeaseLost);
        let length: i64 = raw.run(redis::cmd("LLEN").arg(&name)).await.unwrap();
        assert_eq!(length, 2);
        let elsewhere = Command::new("DEL").key("{elsewhere}:x");
        let error = store
            .settle_with(&leased.lease, processed(), &[elsewhere])
            .await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn processed_messages_can_expire_without_a_janitor() {
    for shards in [1, 4] {
        let Some(options) = shared(shards) else {
            return;
        };
        let (store, clock) = store(options.keep_processed(Some(LENGTH))).await;
        let first: Vec<Message> = (0..40)
            .map(|n| ordered(&n.to_string(), &n.to_string()))
            .collect();
        let _ = store.receive(&first).await.unwrap();
        settle_all(&store, claim(&store, 40).await).await;
        clock.advance(LENGTH / 2);
        let second: Vec<Message> = (40..100).map(|n| message(&n.to_string())).collect();
        let _ = store.receive(&second).await.unwrap();
        settle_all(&store, claim(&store, 30).await).await;
        assert_eq!(
            store.statistics().await.unwrap().count(State::Processed),
            70
        );
        clock.advance(LENGTH * 2 / 3);
        settle_all(&store, claim(&store, 30).await).await;
        // The first 40 are too old now; some may be in shards where nothing was settled since.
        let left = store.statistics().await.unwrap().count(State::Processed);
        assert!((60..=65).contains(&left), "{left}");
        if left == 60 {
            let receipts = store.receive(&first).await.unwrap();
            assert!(receipts.iter().all(|r| *r == Receipt::Accepted));
        }
        assert_eq!(
            store.receive_one(&message("99")).await.unwrap(),
            Receipt::Duplicate
        );
    }
}

/// The bound of the crate's documentation, measured by the server itself.
#[tokio::test]
async fn a_retained_message_takes_less_than_250_bytes() {
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let (store, _) = store(options(server.url(), false, 1).drop_processed_payloads(true)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let before = used_memory(&mut raw).await;
    const COUNT: u64 = 50_000;
    fill(&store, COUNT).await;
    let each = (used_memory(&mut raw).await - before) / COUNT;
    assert!(each < 250, "{each} bytes");
    let expired = Expired::new(State::Processed, Duration::ZERO, u32::MAX).unwrap();
    assert_eq!(store.purge(&expired).await.unwrap(), COUNT);
    let left = used_memory(&mut raw).await.saturating_sub(before);
    assert!(left < COUNT * 250 / 20, "{left} bytes after a purge");
}

async fn used_memory(raw: &mut Raw) -> u64 {
    let info: String = raw.run(redis::cmd("INFO").arg("memory")).await.unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory_dataset:"));
    line.unwrap().trim().parse().unwrap()
}

/// Receives and processes so many messages with ids like UUIDs and payloads of 1 KiB.
async fn fill(store: &RedisStore, count: u64) {
    let payload = Bytes::from(vec![7; 1024]);
    for batch in 0..count / 500 {
        let messages: Vec<Message> = (0..500)
            .map(|n| {
                let id = format!("{batch:08x}-1c4f-4d5e-8f0a-{n:012x}");
                Message::new(
                    handler(),
                    MessageId::new(id).unwrap(),
                    Kind::new("order.placed").unwrap(),
                    payload.clone(),
                )
            })
            .collect();
        let _ = store.receive(&messages).await.unwrap();
        settle_all(store, claim(store, 500).await).await;
    }
}

/// History and backlog do not add to what the working side asks of the server.
#[tokio::test]
async fn claims_cost_the_same_beside_a_long_history() {
    let Some(server) = own(&["--appendfsync", "no"]).await else {
        return;
    };
    let (store, _) = store(options(server.url(), false, 1).drop_processed_payloads(true)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let empty = commands_of_a_cycle(&store, &mut raw, "a").await;
    fill(&store, 50_000).await;
    // A backlog of 20,000, and as many that are blocked behind one message.
    for batch in 0..40 {
        let messages: Vec<Message> = (0..500)
            .map(|n| match batch % 2 {
                0 => message(&format!("backlog {batch} {n}")),
                _ => ordered(&format!("blocked {batch} {n}"), "k"),
            })
            .collect();
        let _ = store.receive(&messages).await.unwrap();
    }
    let full = commands_of_a_cycle(&store, &mut raw, "b").await;
    // Behind a backlog of batches of 500, claims of 100 take parts of what was received together.
    assert!(
        full < empty * 2,
        "{empty} commands became {full} for 2,000 messages"
    );
}

/// How many commands the server runs, those of scripts included, to receive, claim and settle
/// 2,000 messages.
async fn commands_of_a_cycle(store: &RedisStore, raw: &mut Raw, name: &str) -> u64 {
    let _: Value = raw
        .run(redis::cmd("CONFIG").arg("RESETSTAT"))
        .await
        .unwrap();
    for batch in 0..20 {
        let messages: Vec<Message> = (0..100)
            .map(|n| message(&format!("{name} {batch} {n}")))
            .collect();
        let _ = store.receive(&messages).await.unwrap();
        settle_all(store, claim(store, 100).await).await;
    }
    let info: String = raw
        .run(redis::cmd("INFO").arg("commandstats"))
        .await
        .unwrap();
    info.lines()
        .filter_map(|line| line.split_once("calls=")?.1.split_once(','))
        .map(|(calls, _)| calls.parse::<u64>().unwrap())
        .sum()
}

#[tokio::test]
async fn a_paused_server_is_unavailable_in_time_and_back_afterwards() {
    let Some(mut server) = own(&[]).await else {
        return;
    };
    let quick = options(server.url(), false, 1).response_timeout(Duration::from_millis(300));
    let (store, _) = store(quick).await;
    server.pause().unwrap();
    let since = Instant::now();
    let error = store.receive_one(&message("1")).await.unwrap_err();
    assert!(since.elapsed() < Duration::from_secs(2));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.effect(), Effect::Unknown);
    server.resume().unwrap();
    // The late write happened or not; a repetition tells, and either answer is safe.
    let _ = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(
        store.receive_one(&message("1")).await.unwrap(),
        Receipt::Duplicate
    );
}
