//! The runtime on a real PostgreSQL server: transactional handlers, many workers, and a server
//! that restarts, turns read-only or takes a permission away.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{future::join_all, stream};
use inbox::postgres::PostgresStore;
use inbox::{
    CancellationToken, ClaimRequest, ErrorKind, Failure, InlineConsumer, Janitor, LeaseTerms,
    Message, Operate as _, OrderingKey, Processor, Receipt, Receiver, Router, Schema as _, State,
    Store as _, Summary, WorkerName,
    inline::{
        ConsumeError, Consumed, OnDuplicate, consume_in_transaction, consume_in_transaction_within,
    },
    receiver::StreamSource,
};
use sqlx::{Postgres, Transaction};

use crate::{
    postgres_support::{Harmed, Place},
    processor_support::{Told, billing, eventually, message},
};

/// Longer than anything here takes on the slowest machine, so that only a hang fails.
const FOR_EVER: Duration = Duration::from_secs(120);

async fn drained(processor: Processor, place: &Place) -> inbox::Result<Summary> {
    let operate = Arc::new(place.store.clone());
    let run = processor.run_until_drained(operate, CancellationToken::new());
    tokio::time::timeout(FOR_EVER, run).await.unwrap()
}

async fn receive(place: &Place, messages: &[Message]) {
    let receipts = place.store.receive(messages).await.unwrap();
    assert!(receipts.iter().all(|receipt| *receipt == Receipt::Accepted));
}

fn in_order(id: String, key: impl std::fmt::Display) -> Message {
    message(id).with_ordering_key(OrderingKey::new(key.to_string()).unwrap())
}

#[tokio::test]
async fn both_schemes_connect_and_give_the_statements() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let after = place.url.split_once("://").unwrap().1;
    for scheme in ["postgres", "postgresql"] {
        assert!(inbox::schemes().contains(&scheme));
        let url = format!("{scheme}://{after}?schema={}", place.schema);
        let inbox = inbox::connect(&url).await.unwrap();
        assert!(inbox.exists().await.unwrap());
        assert_eq!(inbox::ddl(&url).unwrap(), inbox.ddl());
        inbox.close().await;

        let inbox = inbox::connect(&format!("{url}&inbox=none")).await.unwrap();
        let error = Processor::builder(inbox)
            .router(Router::new(billing()))
            .build()
            .unwrap()
            .run(CancellationToken::new())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processors_handle_every_message_once() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let messages: Vec<_> = (0..600)
        .map(|n| match n % 3 {
            0 => message(format!("free-{n:03}")),
            _ => in_order(format!("kept-{n:03}"), n % 10),
        })
        .collect();
    receive(&place, &messages).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Told::default();
    let runs = join_all((0..8).map(|_| async {
        let store = place.another().await;
        let seen = seen.clone();
        let router = Router::new(billing()).on("order.placed", move |context: inbox::Context| {
            let seen = seen.clone();
            async move {
                seen.lock().unwrap().push(context.message().clone());
                Ok::<_, Failure>(())
            }
        });
        let processor = Processor::builder(Arc::new(store.clone()))
            .router(router)
            .hooks(told.clone())
            .build()
            .unwrap();
        let summary = drained(processor, &place).await.unwrap();
        store.close().await;
        summary
    }))
    .await;
    let processed: u64 = runs.iter().map(|summary| summary.processed).sum();
    let retried: u64 = runs.iter().map(|summary| summary.retried).sum();
    assert_eq!((processed, retried), (600, 0), "{runs:?}");
    assert_eq!(told.all(), [""; 0]);

    let mut by_key: HashMap<_, Vec<String>> = HashMap::new();
    for message in &*seen.lock().unwrap() {
        let key = message.ordering_key().map(ToString::to_string);
        let ids = by_key.entry(key).or_default();
        ids.push(message.id().to_string());
    }
    // Each once; and those of one ordering key in the order in which they came.
    let mut free = by_key.remove(&None).unwrap();
    free.sort();
    let expected: Vec<_> = (0..600)
        .step_by(3)
        .map(|n| format!("free-{n:03}"))
        .collect();
    assert_eq!(free, expected);
    assert_eq!(by_key.values().map(Vec::len).sum::<usize>(), 400);
    for ids in by_key.values() {
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processors_write_every_effect_once_and_without_deadlocks() {
    // The server counts the deadlocks of all who use it.
    let Some((place, _server)) = Place::with_own_server().await else {
        return;
    };
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let before = place.number(deadlocks).await;
    let messages: Vec<_> = (0..400)
        .map(|n| match n % 4 {
            0 => message(format!("fails-{n:03}")),
            1 => message(format!("fine-{n:03}")),
            _ => in_order(format!("kept-{n:03}"), n % 8),
        })
        .collect();
    receive(&place, &messages).await;
    let runs = join_all((0..8).map(|_| async {
        let store = place.another().await;
        let builder = place.writer(&store, Duration::ZERO);
        let summary = drained(builder.build().unwrap(), &place).await.unwrap();
        store.close().await;
        summary
    }))
    .await;
    let total = |of: fn(&Summary) -> u64| runs.iter().map(of).sum::<u64>();
    assert_eq!(total(|s| s.processed), 400, "{runs:?}");
    // A quarter fails twice, and nothing else does: no conflict has cost an attempt.
    assert_eq!(total(|s| s.retried), 200, "{runs:?}");
    assert_eq!(total(|s| s.lease_lost), 0, "{runs:?}");
    let mut expected: Vec<_> = messages.iter().map(|m| m.id().to_string()).collect();
    expected.sort();
    assert_eq!(place.effects().await, expected);
    assert_eq!(place.number(deadlocks).await, before);
}

#[tokio::test]
async fn more_handlers_than_connections_get_through() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let messages: Vec<_> = (0..200).map(|n| message(format!("fine-{n:03}"))).collect();
    receive(&place, &messages).await;
    let options = inbox::postgres::PostgresOptions::from_url(&place.url).unwrap();
    let options = options.schema(place.schema.clone()).max_connections(2);
    let store = inbox::postgres::PostgresStore::connect(options)
        .await
        .unwrap();
    let builder = place.writer(&store, Duration::from_millis(1));
    let processor = builder.concurrency(64).build().unwrap();
    let summary = drained(processor, &place).await.unwrap();
    assert_eq!((summary.processed, summary.lease_lost), (200, 0));
    assert_eq!(place.effects().await.len(), 200);
}

/// More handlers than connections, each longer than its lease; another worker looks for leases that
/// have run out.
#[tokio::test]
async fn handlers_on_all_connections_keep_their_leases() {
    const LEASE: Duration = Duration::from_secs(4);
    let Some(place) = Place::shared().await else {
        return;
    };
    let messages: Vec<_> = (0..4).map(|n| message(format!("fine-{n}"))).collect();
    receive(&place, &messages).await;
    let options = inbox::postgres::PostgresOptions::from_url(&place.url).unwrap();
    let options = options.schema(place.schema.clone()).max_connections(2);
    let store = PostgresStore::connect(options).await.unwrap();
    let builder = place.writer(&store, LEASE * 3 / 2).lease(LEASE);
    let processor = builder.concurrency(4).look_ahead(0).build().unwrap();
    let another = async {
        let count = async |state| place.statistics().await.count(state);
        eventually("leases", async || count(State::Leased).await == 4).await;
        let worker = WorkerName::new("another").unwrap();
        let terms = LeaseTerms::new(FOR_EVER, worker).unwrap();
        let request = ClaimRequest {
            handlers: vec![billing()],
            limit: 4,
            run_limit: 1,
            terms,
        };
        while count(State::Processed).await < 4 {
            let claims = place.store.claim(&request).await.unwrap();
            assert!(claims.leased.is_empty(), "{:?}", claims.leased);
            tokio::time::sleep(LEASE / 40).await;
        }
    };
    let (summary, ()) = tokio::join!(drained(processor, &place), another);
    let summary = summary.unwrap();
    assert_eq!((summary.processed, summary.retried), (4, 0), "{summary:?}");
    assert_eq!(place.effects().await.len(), 4);
}

/// The processor looks by itself once an hour, so only a notification can start the handler.
#[tokio::test]
async fn an_idle_processor_is_woken() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.another().await;
    let hour = Duration::from_secs(3600);
    let builder = place.writer(&store, Duration::ZERO);
    let processor = builder.poll_intervals(hour, hour).build().unwrap();
    let shutdown = CancellationToken::new();
    let (stop, task) = (
        shutdown.clone(),
        async move { processor.run(shutdown).await },
    );
    let task = tokio::spawn(task);
    let listening = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{}%'",
        place.schema
    );
    eventually("listening", async || place.number(&listening).await == 1).await;
    for n in 0..20 {
        let id = format!("fine-{n:02}");
        receive(&place, &[message(&id)]).await;
        eventually("handled", async || place.effects().await.contains(&id)).await;
    }
    stop.cancel();
    assert_eq!(task.await.unwrap().unwrap().processed, 20);
}

#[tokio::test]
async fn a_shutdown_finishes_what_runs_and_leaves_nothing_leased() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let messages: Vec<_> = (0..1000).map(|n| message(format!("fine-{n:03}"))).collect();
    receive(&place, &messages).await;
    let store = place.another().await;
    let processor = place
        .writer(&store, Duration::from_millis(100))
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let (stop, task) = (
        shutdown.clone(),
        async move { processor.run(shutdown).await },
    );
    let task = tokio::spawn(task);
    eventually("effects", async || !place.effects().await.is_empty()).await;
    stop.cancel();
    let summary = task.await.unwrap().unwrap();
    assert!(
        summary.processed > 0 && summary.processed < 1000,
        "{summary:?}"
    );
    assert_eq!((summary.abandoned, summary.retried), (0, 0), "{summary:?}");
    let statistics = place.statistics().await;
    assert_eq!(statistics.count(State::Leased), 0, "{statistics:?}");
    assert_eq!(statistics.count(State::Processed), summary.processed);
    assert_eq!(place.effects().await.len() as u64, summary.processed);
}

/// Receiver and processor at work while the server is killed, and stopped in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_of_the_server_are_ridden_out() {
    let Some((place, server)) = Place::with_own_server().await else {
        return;
    };
    let stores = [place.another().await, place.another().await];
    restarts_are_ridden_out(&place, &server, stores).await;
}

/// The pooler keeps its clients' connections, and answers for the server that is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_of_the_server_behind_a_pooler_are_ridden_out() {
    let Some((place, server)) = Place::with_own_server().await else {
        return;
    };
    let Some(pooler) = server.pooler().await else {
        return;
    };
    let stores = [place.through(&pooler).await, place.through(&pooler).await];
    restarts_are_ridden_out(&place, &server, stores).await;
}

async fn restarts_are_ridden_out(place: &Place, server: &Harmed, stores: [PostgresStore; 2]) {
    let [receiving_store, store] = stores;
    let ids: Vec<_> = (0..600).map(|n| format!("fine-{n:03}")).collect();
    let source = stream::unfold(ids.clone().into_iter(), |mut ids| async move {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Some((Ok(message(ids.next()?)), ids))
    });
    let receiver = Receiver::builder(Arc::new(receiving_store))
        .batch_size(10)
        .build();
    let receiving = async {
        let mut source = StreamSource::new(source);
        receiver.run(&mut source, CancellationToken::new()).await
    };
    let processor = place
        .writer(&store, Duration::from_millis(10))
        .lease(Duration::from_secs(2))
        .build()
        .unwrap();
    let processing = async {
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let all = async {
            eventually("all effects", async || {
                // The server may be away just now.
                let count = place.store.statistics().await;
                count.is_ok_and(|statistics| statistics.count(State::Processed) == 600)
            })
            .await;
            stop.cancel();
        };
        tokio::join!(processor.run(shutdown), all).0
    };
    let harming = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            server
                .act(|server| {
                    server.kill()?;
                    std::thread::sleep(Duration::from_millis(300));
                    server.start()
                })
                .await;
            tokio::time::sleep(Duration::from_millis(400)).await;
            server.act(test_servers::Server::restart).await;
        }
    };
    let everything = async { tokio::join!(receiving, processing, harming) };
    let (received, processed, ()) = tokio::time::timeout(FOR_EVER, everything).await.unwrap();
    let (received, processed) = (received.unwrap(), processed.unwrap());
    // A batch whose reply was lost is stored again, and then counts as duplicates.
    assert_eq!(received.accepted + received.duplicates, 600, "{received:?}");
    assert_eq!(
        place.statistics().await.count(State::Processed),
        600,
        "{processed:?}"
    );
    assert_eq!(place.effects().await, ids);
}

#[tokio::test]
async fn a_read_only_server_is_waited_for() {
    let Some((place, _server)) = Place::with_own_server().await else {
        return;
    };
    let read_only = async |value: &str| {
        let sql = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
        place.run(&sql).await;
        place.run("SELECT pg_reload_conf()").await;
    };
    let told = Told::default();
    let store = place.another().await;
    let builder = place.writer(&store, Duration::ZERO).hooks(told.clone());
    let processor = builder.build().unwrap();
    let shutdown = CancellationToken::new();
    let (stop, task) = (
        shutdown.clone(),
        async move { processor.run(shutdown).await },
    );
    let task = tokio::spawn(task);
    receive(&place, &[message("fine-1")]).await;
    eventually("the first", async || place.effects().await.len() == 1).await;

    read_only("on").await;
    // Nothing that would be accepted if it came too early.
    eventually("read-only", async || {
        let outcome = place.store.receive(&[message("fine-1")]).await;
        outcome.is_err_and(|error| error.kind() == ErrorKind::Unavailable)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!task.is_finished(), "it gave up");

    read_only("off").await;
    eventually("writable", async || {
        place.store.receive(&[message("fine-1")]).await.is_ok()
    })
    .await;
    // Each connection hears of it by itself.
    tokio::time::sleep(Duration::from_millis(500)).await;
    receive(&place, &[message("fine-2")]).await;
    eventually("the second", async || place.effects().await.len() == 2).await;
    stop.cancel();
    let summary = task.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.retried), (2, 0), "{summary:?}");
    assert_eq!(told.all(), [""; 0]);
}

#[tokio::test]
async fn a_permission_that_is_taken_away_ends_the_run_with_a_clear_error() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let role = format!("role_of_{}", place.schema);
    let sql = |template: &str| template.replace("{role}", &role);
    place
        .run(&sql("CREATE ROLE {role} LOGIN PASSWORD 'test';
             GRANT USAGE ON SCHEMA {schema} TO {role};
             GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};
             GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"))
        .await;
    let store = place.as_role(&role, "test").await;
    let builder = place.writer(&store, Duration::ZERO);
    let processor = builder.build().unwrap();
    let task = tokio::spawn(async move { processor.run(CancellationToken::new()).await });
    receive(&place, &[message("fine-1")]).await;
    eventually("the first", async || place.effects().await.len() == 1).await;

    place
        .run(&sql(
            "REVOKE UPDATE ON ALL TABLES IN SCHEMA {schema} FROM {role}",
        ))
        .await;
    let outcome = tokio::time::timeout(FOR_EVER, task).await.unwrap().unwrap();
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("permission"), "{error}");
    store.close().await;
    place
        .run(&sql("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_delivered_at_the_same_time_run_once() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let terms = LeaseTerms::new(Duration::from_secs(30), WorkerName::new("web").unwrap()).unwrap();
    let consumer = InlineConsumer::new(Arc::new(place.store.clone()), terms)
        .on_duplicate(OnDuplicate::ReturnResult);
    let leased = message("leased");
    let answers = join_all((0..8).map(|_| {
        consumer.consume(&leased, async |_| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<_, std::io::Error>(Some("receipt".into()))
        })
    }))
    .await;
    let result = Some("receipt".into());
    let ran = Consumed::Ran {
        result: result.clone(),
    };
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| **answer == ran).count(), 1);
    let duplicate = Consumed::Duplicate { result };
    assert_eq!(answers.iter().filter(|a| **a == duplicate).count(), 7);

    let recorded = message("recorded");
    let sql = format!("INSERT INTO \"{}\".effects VALUES ('x')", place.schema);
    let answers = join_all((0..8).map(|_| {
        consume_in_transaction(
            &place.store,
            &recorded,
            OnDuplicate::ReturnResult,
            async |transaction| {
                sqlx::query(sqlx::AssertSqlSafe(sql.clone()))
                    .execute(&mut **transaction)
                    .await?;
                Ok::<_, sqlx::Error>(())
            },
        )
    }))
    .await;
    let ran = answers
        .into_iter()
        .map(Result::unwrap)
        .filter(|answer| matches!(answer, Consumed::Ran { .. }));
    assert_eq!(ran.count(), 1);
    assert_eq!(place.effects().await, ["x"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn janitors_sweep_side_by_side() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let messages: Vec<_> = (0..300).map(|n| message(format!("fine-{n:03}"))).collect();
    receive(&place, &messages).await;
    let processor = place.writer(&place.store, Duration::ZERO).build().unwrap();
    drained(processor, &place).await.unwrap();
    receive(&place, &[message("pending")]).await;
    let sweeps = join_all((0..3).map(|_| async {
        let janitor = Janitor::builder(Arc::new(place.store.clone()))
            .keep_processed(Duration::ZERO)
            .slice(20)
            .build()
            .unwrap();
        janitor.sweep().await.unwrap().purged()
    }))
    .await;
    let last = Janitor::builder(Arc::new(place.store.clone()))
        .keep_processed(Duration::ZERO)
        .build()
        .unwrap();
    let rest = last.sweep().await.unwrap().purged();
    assert_eq!(sweeps.iter().sum::<u64>() + rest, 300, "{sweeps:?}");
    let statistics = place.statistics().await;
    assert_eq!(statistics.count(State::Processed), 0);
    assert_eq!(statistics.count(State::Pending), 1);
    assert_eq!(
        place.store.count(&inbox::Filter::default()).await.unwrap(),
        1
    );
}

/// Else its delivery would be acknowledged, and the message lost with a fail-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_waits_for_the_standby() {
    let Some((place, _server)) = Place::with_own_server().await else {
        return;
    };
    let sent = message("1");
    let consume = async || {
        let work = async |_: &mut Transaction<'static, Postgres>| Ok::<_, Infallible>(());
        let limit = Duration::from_millis(500);
        consume_in_transaction_within(&place.store, &sent, OnDuplicate::Skip, limit, work).await
    };
    let work = async |_: &mut Transaction<'static, Postgres>| Ok::<_, Infallible>(());
    let first = consume_in_transaction(&place.store, &sent, OnDuplicate::Skip, work).await;
    assert_eq!(first.unwrap(), Consumed::Ran { result: None });

    let standbys = async |names: &str| {
        place
            .run(&format!(
                "ALTER SYSTEM SET synchronous_standby_names = '{names}'"
            ))
            .await;
        place.run("SELECT pg_reload_conf()").await;
        let applied = format!(
            "SELECT (current_setting('synchronous_standby_names') = '{names}')::int::bigint"
        );
        eventually("the setting", async || place.number(&applied).await == 1).await;
    };
    standbys("nobody").await;
    for _ in 0..3 {
        let answer = consume().await;
        assert!(matches!(answer, Err(ConsumeError::Store(_))), "{answer:?}");
    }
    standbys("").await;
    let work = async |_: &mut Transaction<'static, Postgres>| Ok::<_, Infallible>(());
    let again = consume_in_transaction(&place.store, &sent, OnDuplicate::Skip, work).await;
    assert_eq!(again.unwrap(), Consumed::Duplicate { result: None });
}
