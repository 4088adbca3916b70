//! Answers that replicas have to confirm first, whichever client wrote what they rest on.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use inbox_api::{
    AfterDead, Begun, Effect, ErrorKind, Filter, Intervention, Key, Message, Operate as _, Outcome,
    PurgeRequest, Receipt, Result, Schema as _, Settled, Settlement, Slice, State, Store as _,
    StoreExt as _,
};
use inbox_redis::{Confirmations, RedisOptions, RedisStore};
use test_servers::{Kind as ServerKind, Server, find_own, or_skip};

use crate::common::{
    self, Raw,
    address::follow,
    messages::{LENGTH, claim, key, message, ordered, processed, terms},
    options,
};

const SHARDS: u16 = 6;

async fn own(kind: ServerKind) -> Option<Server> {
    let found = tokio::task::spawn_blocking(move || find_own(kind, &["--appendfsync", "no"]));
    or_skip(kind, found.await.unwrap()).unwrap()
}

/// A server and its replica.
async fn pair() -> Option<(Server, Server)> {
    let (primary, replica) = (own(ServerKind::Redis).await?, own(ServerKind::Redis).await?);
    follow(replica.url(), Some(primary.url())).await;
    Some((primary, replica))
}

/// Waits for so long for one replica.
fn confirmed_within(options: &RedisOptions, timeout: Duration) -> RedisOptions {
    options
        .clone()
        .operation_timeout(Duration::from_secs(10))
        .confirmations(Confirmations {
            replicas: 1,
            timeout,
            ..Confirmations::default()
        })
}

/// For what is confirmed, however busy the machine is.
fn patient(options: &RedisOptions) -> RedisOptions {
    confirmed_within(options, Duration::from_secs(5))
}

/// For what nobody confirms.
fn strict(options: &RedisOptions) -> RedisOptions {
    confirmed_within(options, Duration::from_millis(300))
}

fn unconfirmed<T: Debug>(what: &str, answer: Result<T>) {
    let error = match answer {
        Ok(answer) => panic!("{what}: {answer:?}"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error:?}");
    assert_eq!(error.effect(), Effect::Unknown, "{what}: {error:?}");
}

/// While the replica is stopped, nobody is told what it has not confirmed: not who wrote it, nor who
/// repeats it, nor who comes second. Afterwards it is so, and still when the replica takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_survives_whoever_wrote_it() {
    let Some((mut primary, mut replica)) = pair().await else {
        return;
    };
    let plain = options(primary.url(), false, 1);
    let (patient, strict) = (patient(&plain), strict(&plain));
    let connect = |options: &RedisOptions| RedisStore::connect(options.clone());
    let first = connect(&patient).await.unwrap();
    first.create().await.unwrap();
    let sent: Vec<Message> = ["settled", "dead", "discarded"].map(message).to_vec();
    let _ = first.receive(&sent).await.unwrap();
    let leased = claim(&first, 2).await.unwrap();
    let died = || Outcome::Dead {
        reason: "x".into(),
        after: AfterDead::Continue,
    };

    replica.pause().unwrap();
    for who in ["who wrote it", "who comes second", "who comes third"] {
        let store = connect(&strict).await.unwrap();
        let settled = store.settle_one(&leased[0].lease, processed()).await;
        unconfirmed(who, settled);
        let settled = store.settle_one(&leased[1].lease, died()).await;
        unconfirmed(who, settled);
        unconfirmed(who, store.receive_one(&message("received")).await);
        unconfirmed(who, store.begin(&message("begun"), &terms()).await);
        unconfirmed(who, store.begin(&leased[0].message, &terms()).await);
        unconfirmed(who, store.discard(&key("discarded")).await);
    }
    // Each on its own connection, so that none has written anything before.
    let store = connect(&strict).await.unwrap();
    unconfirmed("a duplicate", store.receive_one(&message("received")).await);
    let store = connect(&strict).await.unwrap();
    unconfirmed("busy", store.begin(&message("begun"), &terms()).await);
    let store = connect(&strict).await.unwrap();
    let settled = store.settle_one(&leased[0].lease, processed()).await;
    unconfirmed("a repetition", settled);
    let store = connect(&strict).await.unwrap();
    let discarded = store.discard(&key("discarded")).await;
    unconfirmed("a wrong state", discarded);

    replica.resume().unwrap();
    let store = connect(&patient).await.unwrap();
    let since = Instant::now();
    while let Err(error) = store.receive_one(&message("received")).await {
        assert!(error.is_retryable(), "{error:?}");
        assert!(since.elapsed() < Duration::from_secs(60), "{error:?}");
    }
    let again = store.receive_one(&message("received")).await.unwrap();
    assert_eq!(again, Receipt::Duplicate { differs: false });
    let begun = store.begin(&message("begun"), &terms()).await.unwrap();
    assert!(matches!(begun, Begun::Busy { .. }), "{begun:?}");
    for (leased, outcome) in leased.iter().zip([processed(), died()]) {
        let settled = store.settle_one(&leased.lease, outcome).await.unwrap();
        assert_eq!(settled, Settled::Done);
    }
    let discarded = store.discard(&key("discarded")).await.unwrap();
    assert_eq!(discarded, Intervention::WrongState(State::Discarded));

    primary.kill().unwrap();
    follow(replica.url(), None).await;
    let heir = options_of(&plain, &replica);
    let heir = connect(&heir).await.unwrap();
    for (id, state) in [
        (leased[0].message.id().as_str(), State::Processed),
        (leased[1].message.id().as_str(), State::Dead),
        ("discarded", State::Discarded),
        ("received", State::Pending),
        ("begun", State::Leased),
    ] {
        let record = heir.get(&key(id)).await.unwrap().unwrap();
        assert_eq!(record.state, state, "{id}");
    }
}

/// How many were purged is not told before it is confirmed, since a fail-over could bring them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_purged_stays_so() {
    let Some((primary, mut replica)) = pair().await else {
        return;
    };
    let plain = options(primary.url(), false, 1);
    let store = RedisStore::connect(patient(&plain)).await.unwrap();
    let strict = RedisStore::connect(strict(&plain)).await.unwrap();
    store.create().await.unwrap();
    let sent: Vec<Message> = ["a", "b", "c"].map(message).to_vec();
    let _ = store.receive(&sent).await.unwrap();
    for leased in claim(&store, 3).await.unwrap() {
        let settled = store.settle_one(&leased.lease, processed()).await.unwrap();
        assert_eq!(settled, Settled::Done);
    }
    let gone = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();

    replica.pause().unwrap();
    unconfirmed("dropped payloads", strict.drop_payloads(&gone).await);
    let archived = strict.purge_archived(&gone, &[key("a")]).await;
    unconfirmed("an archived message", archived);
    unconfirmed("a purge", strict.purge(&gone).await);
    replica.resume().unwrap();
    let since = Instant::now();
    while let Err(error) = store.purge(&gone).await {
        assert!(error.is_retryable(), "{error:?}");
        assert!(since.elapsed() < common::PATIENCE, "{error:?}");
    }
    let left = store.statistics().await.unwrap().count(State::Processed);
    assert_eq!(left, 0);
}

/// Receives as many messages as there are of these, each with its own ordering key, and processes them.
async fn process(store: &RedisStore, ids: impl Iterator<Item = String>) {
    let sent: Vec<Message> = ids.map(|id| ordered(&id, &format!("key {id}"))).collect();
    let receipts = store.receive(&sent).await.unwrap();
    assert!(receipts.iter().all(|one| *one == Receipt::Accepted));
    let leased = claim(store, 10_000).await.unwrap();
    assert_eq!(leased.len(), sent.len());
    let settlements: Vec<Settlement> = leased
        .into_iter()
        .map(|one| Settlement {
            lease: one.lease,
            outcome: processed(),
        })
        .collect();
    let settled = store.settle(&settlements).await.unwrap();
    assert!(settled.iter().all(|one| *one == Settled::Done));
}

/// How often a connection has waited for a replica since the last time.
async fn waits(raw: &mut Raw) -> usize {
    let info: String = raw
        .run(redis::cmd("INFO").arg("commandstats"))
        .await
        .unwrap();
    let _: redis::Value = raw
        .run(redis::cmd("CONFIG").arg("RESETSTAT"))
        .await
        .unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// A disk that is written to once a second would make it a second for each shard and step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_of_many_steps_waits_once_for_each_shard() {
    const COUNT: u64 = 1_200;
    let Some((primary, _replica)) = pair().await else {
        return;
    };
    let plain = options(primary.url(), false, SHARDS);
    let other = RedisStore::connect(plain.clone()).await.unwrap();
    other.create().await.unwrap();
    let store = RedisStore::connect(patient(&plain)).await.unwrap();
    let mut raw = Raw::connect(primary.url(), false).await.unwrap();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10_000).unwrap();
    let ids = |what: &'static str| (0..COUNT).map(move |n| format!("{what} {n}"));
    let once = 1..=usize::from(SHARDS);

    process(&other, ids("purged")).await;
    let _ = waits(&mut raw).await;
    assert_eq!(store.drop_payloads(&expired).await.unwrap(), COUNT);
    let dropping = waits(&mut raw).await;
    assert!(once.contains(&dropping), "{dropping} to drop payloads");
    assert_eq!(store.purge(&expired).await.unwrap(), COUNT);
    let purging = waits(&mut raw).await;
    assert!(once.contains(&purging), "{purging} to purge");

    process(&other, ids("archived")).await;
    let keys: Vec<Key> = ids("archived").map(|id| key(&id)).collect();
    let _ = waits(&mut raw).await;
    let purged = store.purge_archived(&expired, &keys).await.unwrap();
    assert_eq!(purged, COUNT);
    let archiving = waits(&mut raw).await;
    assert!(once.contains(&archiving), "{archiving} to purge archived");
    // Nothing is waited for where nothing is.
    assert_eq!(store.purge_archived(&expired, &keys).await.unwrap(), 0);
    assert_eq!(waits(&mut raw).await, 0);

    process(&other, ids("replayed")).await;
    let filter = Filter {
        states: vec![State::Processed],
        ..Filter::default()
    };
    let slice = Slice {
        after: None,
        limit: 10_000,
    };
    let _ = waits(&mut raw).await;
    let replayed = store.replay_slice(&filter, &slice).await.unwrap();
    assert_eq!(replayed.changed, COUNT);
    let replaying = waits(&mut raw).await;
    assert!(once.contains(&replaying), "{replaying} to replay");
}

/// That of messages which are gone costs memory for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_that_is_not_confirmed_leaves_no_notes() {
    let Some((primary, mut replica)) = pair().await else {
        return;
    };
    let plain = options(primary.url(), false, SHARDS);
    let other = RedisStore::connect(plain.clone()).await.unwrap();
    other.create().await.unwrap();
    process(&other, (0..50).map(|n| n.to_string())).await;
    let mut raw = Raw::connect(primary.url(), false).await.unwrap();
    let mut notes = redis::cmd("KEYS");
    notes.arg("*:places");
    let before: Vec<String> = raw.run(&notes).await.unwrap();
    assert_ne!(before, [""; 0]);

    let strict = RedisStore::connect(strict(&plain)).await.unwrap();
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 100).unwrap();
    replica.pause().unwrap();
    unconfirmed("a purge", strict.purge(&expired).await);
    // They are removed behind the answer.
    let since = Instant::now();
    loop {
        let left: Vec<String> = raw.run(&notes).await.unwrap();
        if left.is_empty() {
            break;
        }
        assert!(since.elapsed() < common::PATIENCE, "{left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    replica.resume().unwrap();
}

/// A lease that a fail-over could forget is not handed out, nor is its end told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_survive() {
    for shards in [1, SHARDS] {
        let Some((mut primary, mut replica)) = pair().await else {
            return;
        };
        let plain = options(primary.url(), false, shards);
        let store = RedisStore::connect(patient(&plain)).await.unwrap();
        let strict = RedisStore::connect(strict(&plain)).await.unwrap();
        store.create().await.unwrap();
        let _ = store.receive(&["a", "b"].map(message)).await.unwrap();
        let leased = claim(&store, 1).await.unwrap();

        replica.pause().unwrap();
        unconfirmed("a claim", claim(&strict, 1).await);
        unconfirmed(
            "an extension",
            strict.extend_one(&leased[0].lease, LENGTH).await,
        );
        replica.resume().unwrap();
        let since = Instant::now();
        while let Err(error) = store.extend_one(&leased[0].lease, LENGTH * 2).await {
            assert!(error.is_retryable(), "{error:?}");
            assert!(since.elapsed() < Duration::from_secs(60), "{error:?}");
        }
        // That a claim failed cost it nothing.
        let second = claim(&store, 1).await.unwrap().remove(0);
        assert_eq!(second.attempts.started, 1);

        primary.kill().unwrap();
        follow(replica.url(), None).await;
        let heir = common::options(replica.url(), false, shards).inbox_name(plain.name().clone());
        let heir = RedisStore::connect(heir).await.unwrap();
        for id in ["a", "b"] {
            let record = heir.get(&key(id)).await.unwrap().unwrap();
            assert_eq!(record.state, State::Leased, "{id}");
        }
        let extended = heir.get(leased[0].message.key()).await.unwrap().unwrap();
        let left = extended
            .lease_until
            .unwrap()
            .elapsed()
            .unwrap_err()
            .duration();
        assert!(left > LENGTH, "{left:?}");
    }
}

/// The same inbox on another server.
fn options_of(options: &RedisOptions, server: &Server) -> RedisOptions {
    common::options(server.url(), false, 1).inbox_name(options.name().clone())
}

/// The same on a cluster, where an answer may rest on several servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_on_a_cluster_is_confirmed_by_every_server_it_rests_on() {
    let Some(mut cluster) = own(ServerKind::RedisCluster).await else {
        return;
    };
    let plain = options(cluster.url(), true, SHARDS);
    let strict = strict(&plain);
    let connect = || RedisStore::connect(strict.clone());
    let store = RedisStore::connect(patient(&plain)).await.unwrap();
    store.create().await.unwrap();
    let sent: Vec<Message> = (0..12)
        .map(|n| match n % 2 {
            0 => message(&format!("{n}")),
            _ => ordered(&format!("{n}"), &format!("key {n}")),
        })
        .collect();
    let cluster = tokio::task::spawn_blocking(move || {
        for replica in 3..6 {
            cluster.kill_node(replica).unwrap();
        }
        cluster
    });
    let mut cluster = cluster.await.unwrap();
    for who in ["the first", "the second", "the third"] {
        for one in &sent {
            let store = connect().await.unwrap();
            unconfirmed(who, store.receive_one(one).await);
        }
    }
    // A copy with another ordering key finds its note at home.
    let other = connect().await.unwrap();
    unconfirmed("a copy", other.receive_one(&ordered("1", "another")).await);
    let cluster = tokio::task::spawn_blocking(move || {
        for replica in 3..6 {
            cluster.start_node(replica).unwrap();
        }
        cluster
    });
    let _cluster = cluster.await.unwrap();
    for one in &sent {
        let since = Instant::now();
        let receipt = loop {
            match store.receive_one(one).await {
                Ok(receipt) => break receipt,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            assert!(since.elapsed() < Duration::from_secs(60));
        };
        // Where the note of its place was not confirmed, it was not stored either.
        assert!(!matches!(receipt, Receipt::Refused(_)), "{receipt:?}");
        let again = store.receive_one(one).await.unwrap();
        assert_eq!(again, Receipt::Duplicate { differs: false });
    }
}

/// What waits for replicas keeps nobody waiting who does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_replicas_are_in_nobodys_way() {
    let Some(server) = own(ServerKind::Redis).await else {
        return;
    };
    let plain = options(server.url(), false, 1);
    let other = RedisStore::connect(plain.clone()).await.unwrap();
    other.create().await.unwrap();
    let _ = other.receive_one(&message("first")).await.unwrap();
    // Room for two groups, one behind the other.
    let options = patient(&plain).operation_timeout(Duration::from_secs(30));
    let store = RedisStore::connect(options).await.unwrap();
    let since = Instant::now();
    let waiting: Vec<_> = (0..20)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.receive_one(&message(&n.to_string())).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let asked = Instant::now();
    assert!(store.get(&key("first")).await.unwrap().is_some());
    let leased = claim(&other, 1).await.unwrap();
    assert_eq!(leased.len(), 1);
    let extended = other.extend_one(&leased[0].lease, LENGTH).await.unwrap();
    assert!(matches!(extended, inbox_api::Extended::Until(_)));
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "{:?}",
        asked.elapsed()
    );
    assert!(waiting.iter().all(|one| !one.is_finished()));
    for one in waiting {
        unconfirmed("there is no replica", one.await.unwrap());
    }
    // They wait together: for the group that is under way, and for their own.
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "{:?}",
        since.elapsed()
    );
}

/// Many callers share their waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_wait_together() {
    const CALLERS: usize = 16;
    const EACH: usize = 20;
    let Some((primary, _replica)) = pair().await else {
        return;
    };
    // How long they wait is not what is asked here.
    let options = patient(&options(primary.url(), false, 1));
    let store = RedisStore::connect(options).await.unwrap();
    store.create().await.unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    let sent = message(&format!("{caller} {n}"));
                    let receipt = store.receive_one(&sent).await.unwrap();
                    assert_eq!(receipt, Receipt::Accepted);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let mut raw = Raw::connect(primary.url(), false).await.unwrap();
    let info: String = raw
        .run(redis::cmd("INFO").arg("commandstats"))
        .await
        .unwrap();
    let waits = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls=")?.split(',').next())
        .unwrap();
    let waits: usize = waits.parse().unwrap();
    assert!(
        waits < CALLERS * EACH / 2,
        "{waits} for {} calls",
        CALLERS * EACH
    );
}
