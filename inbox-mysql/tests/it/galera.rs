//! The conformance suite on a three-node Galera cluster, with the connections spread over the
//! nodes, and a node that is killed under load. Skipped where there is no Galera.
//!
//! Of the suite, what several transactions do at once. By hand, the whole:
//! `INBOX_TEST_SUITE_ON=galera cargo test -p inbox-mysql --test it galera`.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use conformance_tests::CASES;
use inbox_api::{
    Operate as _, Receipt, Schema as _, Settled, Settlement, State, Store as _, StoreExt as _,
    Transactional as _,
};
use inbox_mysql::{MySqlOptions, MySqlStore, conformance::MySqlHarness};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, mysql::MySqlPoolOptions};
use test_servers::{Kind, require_or_skip};

use crate::common::{self, TestInbox, claim, connect_options, handler, message, processed, report};

const PARTS: &[&str] = &[
    "commit",
    "concurrency",
    "duplicates",
    "holding",
    "ordering",
    "races",
    "runs",
    "skew",
    "transactions",
];

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
    // Connections that go silent and outages between two writes need a server behind a proxy, which a
    // cluster is not.
    let is_whole = std::env::var("INBOX_TEST_SUITE_ON").is_ok_and(|on| on == "galera");
    let groups = CASES.iter().map(|case| case.group);
    let groups: BTreeSet<_> = groups
        .filter(|group| is_whole || PARTS.contains(group))
        .filter(|group| !["silence", "halves"].contains(group))
        .collect();
    assert!(groups.len() >= PARTS.len());
    let mut failed = Vec::new();
    for group in groups {
        // What an open transaction holds is held on its own node: a claim on another one takes it,
        // and the transaction is rolled back.
        let nodes = if group == "holding" { 1 } else { urls.len() };
        let nodes: Vec<_> = urls[..nodes].iter().map(|url| options(url)).collect();
        let harness = MySqlHarness::new(nodes[0].clone())
            .named("galera")
            .nodes(&nodes[1..]);
        let report = runtime.block_on(report(harness, &format!("{group}::")));
        if !report.is_clean() {
            failed.push(report.to_string());
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    runtime.block_on(a_callers_session_waits_as_before(&urls[0]));

    // A store on each node; one of the nodes dies. What was answered is there, and the others go
    // on.
    runtime.block_on(async {
        let inbox = TestInbox::at(urls[0].clone()).await.unwrap();
        let mut stores = Vec::new();
        for url in &urls {
            let options = inbox
                .options
                .clone()
                .operation_timeout(Duration::from_secs(10))
                .connect_with(connect_options(url, Some(&inbox.database)));
            let store = MySqlStore::connect(options).await.unwrap();
            store.create().await.unwrap();
            stores.push(store);
        }
        let first: Vec<_> = (0..50).map(|n| message(&format!("a{n}"))).collect();
        common::accept(&stores[2], &first).await;
        cluster.kill_node(2).unwrap();
        let again = persist(|| stores[0].receive(&first)).await;
        assert!(
            again
                .iter()
                .all(|receipt| *receipt == Receipt::Duplicate { differs: false })
        );
        let second: Vec<_> = (0..50).map(|n| message(&format!("b{n}"))).collect();
        let receipts = persist(|| stores[1].receive(&second)).await;
        assert!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
        let request = inbox_api::ClaimRequest {
            handlers: vec![handler("h")],
            limit: 20,
            terms: common::terms(),
            run_limit: 1,
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

fn options(url: &str) -> MySqlOptions {
    MySqlOptions::new(connect_options(url, None))
}

/// What the store has a session wait for is over with each of its transactions.
async fn a_callers_session_waits_as_before(url: &str) {
    let inbox = TestInbox::at(url.to_owned()).await.unwrap();
    for waits in [0_i64, 6] {
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    let set = format!("SET SESSION wsrep_sync_wait = {waits}");
                    connection.execute(AssertSqlSafe(set)).await?;
                    Ok(())
                })
            })
            .connect_with(connect_options(url, Some(&inbox.database)))
            .await
            .unwrap();
        let store = MySqlStore::with_pool(pool.clone(), inbox.options.clone())
            .await
            .unwrap();
        store.create().await.unwrap();
        assert!(store.exists().await.unwrap());
        let id = format!("{waits}");
        common::accept(&store, &[message(&id)]).await;
        let lease = common::claim_one(&store).await;
        let mut transaction = store.open().await.unwrap();
        let settled = [Settlement {
            lease,
            outcome: processed(),
        }];
        let settled = store.settle_in(&mut transaction, &settled).await.unwrap();
        assert_eq!(settled, [Settled::Done]);
        store.commit(transaction).await.unwrap();
        let left: i64 = sqlx::query_scalar("SELECT CAST(@@SESSION.wsrep_sync_wait AS SIGNED)")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(left, waits);
        pool.close().await;
    }
}

/// Another node's write may roll a transaction back at any moment, also between two statements of its
/// commit. `Ok` must never be the answer then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_in_a_conflict_is_whole_or_fails() {
    const TASKS: u64 = 4;
    const ROUNDS: u64 = 500;
    let started = tokio::task::spawn_blocking(|| require_or_skip(Kind::Galera));
    let Some(cluster) = started.await.unwrap().unwrap() else {
        return;
    };
    let urls = cluster.urls();
    let inbox = TestInbox::at(urls[0].clone()).await.unwrap();
    let store = inbox.store().await;
    for sql in [
        "CREATE TABLE contended (id BIGINT UNSIGNED PRIMARY KEY, n BIGINT NOT NULL)",
        "CREATE TABLE written (id BIGINT UNSIGNED PRIMARY KEY)",
    ] {
        inbox.run(sql).await.unwrap();
    }
    let ended = Arc::new(AtomicBool::new(false));
    let other = connect_options(&urls[1], Some(&inbox.database));
    let contender = tokio::spawn({
        let ended = Arc::clone(&ended);
        async move {
            let mut connection = other.connect().await.unwrap();
            while !ended.load(Ordering::Relaxed) {
                // It may lose as well.
                let _ = connection.execute("UPDATE contended SET n = n + 1").await;
            }
        }
    });
    let tasks = (0..TASKS).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let (mut committed, mut failed) = (Vec::new(), 0);
            for id in (0..ROUNDS).map(|round| round * TASKS + task) {
                let mut transaction = store.open().await.unwrap();
                let sql = format!(
                    "INSERT INTO contended VALUES ({task}, 0) ON DUPLICATE KEY UPDATE n = n + 1; \
                     INSERT INTO written VALUES ({id})"
                );
                let wrote = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction);
                let wrote = wrote.await.is_ok();
                match store.commit(transaction).await {
                    Ok(()) if wrote => committed.push(id),
                    Ok(()) => panic!("a commit behind a failed statement"),
                    Err(error) => {
                        assert!(error.is_retryable(), "{error:?}");
                        failed += 1;
                    }
                }
            }
            (committed, failed)
        })
    });
    let mut committed = BTreeSet::new();
    let mut failed = 0;
    for task in futures_util::future::join_all(tasks).await {
        let (ids, lost) = task.unwrap();
        committed.extend(ids);
        failed += lost;
    }
    ended.store(true, Ordering::Relaxed);
    contender.await.unwrap();
    let mut connection = inbox.connection().await.unwrap();
    let written: BTreeSet<u64> = sqlx::query_scalar("SELECT id FROM written")
        .fetch_all(&mut connection)
        .await
        .unwrap()
        .into_iter()
        .collect();
    let lost: Vec<_> = committed.difference(&written).collect();
    eprintln!(
        "{} committed, {failed} failed, {} lost",
        committed.len(),
        lost.len()
    );
    assert!(lost.is_empty(), "answered with Ok and not there: {lost:?}");
    assert!(failed > 0, "no transaction met a conflict");
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

/// One intervention after the other.
async fn intervene(
    store: &MySqlStore,
    key: &inbox_api::Key,
    round: usize,
) -> inbox_api::Result<inbox_api::Intervention> {
    match round % 3 {
        0 => store.discard(key).await,
        1 => store.replay(key, &inbox_api::Edit::default()).await,
        _ => store.reschedule(key, inbox_api::Due::Now).await,
    }
}

/// Claims of runs, settlements and operators on two nodes: what they decide about one ordering key at the same
/// moment, they decide by changing the same rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_and_what_changes_them_conflict() {
    const ROUNDS: usize = 60;
    let started = tokio::task::spawn_blocking(|| require_or_skip(Kind::Galera));
    let Some(cluster) = started.await.unwrap().unwrap() else {
        return;
    };
    let urls = cluster.urls();
    let inbox = TestInbox::at(urls[0].clone()).await.unwrap();
    let here = inbox.store().await;
    let there = inbox
        .options
        .clone()
        .connect_with(connect_options(&urls[1], Some(&inbox.database)));
    let there = MySqlStore::connect(there).await.unwrap();
    let names: Vec<_> = (0..5).map(|n| format!("{n}")).collect();
    let batch: Vec<_> = names.iter().map(|id| common::ordered(id, "k")).collect();
    common::accept(&here, &batch).await;
    let request = |run_limit| inbox_api::ClaimRequest {
        handlers: vec![handler("h")],
        limit: 10,
        terms: common::terms(),
        run_limit,
    };
    for round in 0..ROUNDS {
        let key = common::key(&names[round % names.len()]);
        let (runs, one) = (request(10), request(1));
        let (first, second, changed) = tokio::join!(
            persist(|| here.claim(&runs)),
            persist(|| there.claim(if round % 2 == 0 { &runs } else { &one })),
            persist(|| intervene(&there, &key, round)),
        );
        let _ = changed;
        let contradictions = inbox_mysql::conformance::contradictions(&inbox.options).await;
        assert_eq!(contradictions.unwrap(), [""; 0], "round {round}");
        let (some, others) = (first.leased, second.leased);
        assert!(some.is_empty() || others.is_empty(), "round {round}");
        let leased: Vec<_> = some.into_iter().chain(others).collect();
        if round % 4 == 0 {
            // Taken by the other node when its leases have run out, while the first worker settles.
            inbox.clock.advance(common::LEASE);
        }
        let settlements: Vec<_> = leased
            .iter()
            .map(|leased| Settlement {
                lease: leased.lease.clone(),
                outcome: match round % 3 {
                    0 => inbox_api::Outcome::Release,
                    _ => processed(),
                },
            })
            .collect();
        let (settled, taken) = tokio::join!(
            persist(|| here.settle(&settlements)),
            persist(|| there.claim(&one)),
        );
        let contradictions = inbox_mysql::conformance::contradictions(&inbox.options).await;
        assert_eq!(contradictions.unwrap(), [""; 0], "round {round}");
        for (place, settled) in settled.iter().enumerate() {
            let key = &leased[place].lease.key;
            let lost = taken.leased.iter().any(|taken| taken.lease.key == *key);
            assert!(round % 4 == 0 || *settled == Settled::Done, "round {round}");
            assert!(
                !lost || round % 3 == 0 || *settled == Settled::LeaseLost,
                "round {round}: {key:?}"
            );
        }
        for leased in taken.leased {
            let _ = persist(|| there.settle_one(&leased.lease, processed())).await;
        }
        for id in &names {
            let (key, edit) = (common::key(id), inbox_api::Edit::default());
            let _ = persist(|| here.replay(&key, &edit)).await;
        }
    }
}
