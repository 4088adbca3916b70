//! A service: what runs together, what ends first, and what is told of it.

use std::{
    collections::VecDeque,
    error::Error as _,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    BacklogGate, Bytes, CancellationToken, Context, ErrorKind, Failure, HandlerName, Inbox,
    InlineConsumer, Janitor, LeaseTerms, Leased, Message, Processor, Receiver, RetryPolicy, Router,
    Schema as _, Service, State, StoreExt as _, WorkerName,
    inline::ConsumeError,
    receiver::{ChannelSource, ReceiverError, Source, SourceError},
    service::{Health, Stage},
};
use inbox_sqlite::{SqliteOptions, SqliteStore};
use tokio::sync::Notify;

use crate::{
    faulty::{self, Fault, FaultyStore},
    processor_support::{billing, eventually, key, message},
};

const SECOND: Duration = Duration::from_secs(1);

fn router(work: impl Fn(Context) + Send + Sync + 'static) -> Router {
    Router::new(billing()).on("order.placed", move |context: Context| {
        work(context);
        async { Ok::<_, Failure>(()) }
    })
}

fn processor(inbox: &Arc<dyn Inbox>, router: Router) -> Processor {
    Processor::builder(inbox.clone())
        .router(router)
        .build()
        .unwrap()
}

fn janitor(inbox: &Arc<dyn Inbox>) -> Janitor {
    Janitor::builder(inbox.clone()).build().unwrap()
}

async fn state(inbox: &Arc<dyn Inbox>, id: &str) -> Option<State> {
    inbox
        .get(&key(id))
        .await
        .unwrap()
        .map(|record| record.state)
}

/// Hands out what it is told to.
struct Script(VecDeque<Result<Message, SourceError>>);

impl Source for Script {
    type Delivery = Message;

    async fn next(&mut self) -> Result<Option<Message>, SourceError> {
        self.0.pop_front().transpose()
    }
}

fn broken() -> Result<Message, SourceError> {
    Err(SourceError::permanent("the queue is gone"))
}

#[tokio::test(start_paused = true)]
async fn sources_end_first_then_processors_then_the_store_closes() {
    let inbox = faulty::memory().await;
    let shutdown = CancellationToken::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |text: &'static str| {
        let log = log.clone();
        move || log.lock().unwrap().push(text)
    };
    let (sender, channel) = tokio::sync::mpsc::channel(10);
    let worked = note("worked");
    let (told, ended) = (note("source told"), note("source ended"));
    let feed = inbox.clone();
    let service = Service::builder(inbox.clone())
        .receiver(
            "orders",
            Receiver::builder(inbox.clone()).build(),
            ChannelSource::new(channel),
        )
        .processor("billing", processor(&inbox, router(move |_| worked())))
        .janitor("retention", janitor(&inbox))
        .task("web", move |stop| async move {
            stop.cancelled().await;
            told();
            // What it takes in now is still worked on: processors go on until it has ended.
            let _ = feed.receive_one(&message("last")).await?;
            while state(&feed, "last").await != Some(State::Processed) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            ended();
            Ok::<_, inbox::Error>(())
        })
        .build()
        .unwrap();
    let running = tokio::spawn(service.run(shutdown.clone()));
    sender.send(message("first")).await.unwrap();
    eventually("processed", async || {
        state(&inbox, "first").await == Some(State::Processed)
    })
    .await;
    shutdown.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary.receivers.accepted, 1);
    assert_eq!(summary.processors.processed, 2);
    assert!(summary.cut_short.is_empty(), "{summary}");
    assert_eq!(
        *log.lock().unwrap(),
        ["worked", "source told", "worked", "source ended"]
    );
    let closed = inbox.receive_one(&message("late")).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_slow_to_end_does_not_take_the_workers_time() {
    let inbox = faulty::memory().await;
    let (started, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, ends) = (started.clone(), may_end.clone());
    let slow = move |_: Context| {
        let (begins, ends) = (begins.clone(), ends.clone());
        async move {
            begins.notify_one();
            ends.notified().await;
            Ok::<_, Failure>(())
        }
    };
    let _ = inbox.receive_one(&message("1")).await.unwrap();
    let router = Router::new(billing()).on("order.placed", slow);
    let shutdown = CancellationToken::new();
    let service = Service::builder(inbox.clone())
        .processor("billing", processor(&inbox, router))
        .task("web", |_| async {
            tokio::time::sleep(24 * SECOND).await;
            Ok::<_, io::Error>(())
        })
        .build()
        .unwrap();
    let running = tokio::spawn(service.run(shutdown.clone()));
    started.notified().await;
    shutdown.cancel();
    // Within the processor's drain limit of 20 seconds, if it was told two seconds later.
    tokio::time::sleep(21 * SECOND).await;
    may_end.notify_one();
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary.processors.processed, 1, "{summary}");
    assert_eq!(summary.cut_short, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_part_that_fails_ends_the_rest() {
    let inbox = faulty::memory().await;
    let script = Script([Ok(message("1")), broken()].into());
    let service = Service::builder(inbox.clone())
        .processor("billing", processor(&inbox, router(|_| ())))
        .receiver("orders", Receiver::builder(inbox.clone()).build(), script)
        .janitor("retention", janitor(&inbox))
        .build()
        .unwrap();
    let health = service.health();
    let error = service.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.part, "orders");
    assert!(matches!(
        error.cause.downcast_ref(),
        Some(ReceiverError::Source(_))
    ));
    assert!(error.source().unwrap().to_string().contains("source"));
    assert!(error.summary.cut_short.is_empty());
    let report = health.report();
    let stages: Vec<_> = report.parts.iter().map(|part| part.stage).collect();
    assert_eq!(stages, [Stage::Ended, Stage::Failed, Stage::Ended]);
    assert!(report.parts[1].degraded[0].contains("the queue is gone"));
    assert!(!report.is_ready);
}

#[tokio::test]
async fn a_store_that_refuses_to_work_ends_the_rest_with_its_error() {
    let inbox = faulty::memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    store.plan("claim", [Fault::Before(ErrorKind::Denied)]);
    let denied = Processor::builder(store).router(router(|_| ())).build();
    let service = Service::builder(inbox.clone())
        .processor("billing", denied.unwrap())
        .janitor("retention", janitor(&inbox))
        .build()
        .unwrap();
    let error = service.run(CancellationToken::new()).await.unwrap_err();
    let cause: &inbox::Error = error.cause.downcast_ref().unwrap();
    assert_eq!((&*error.part, cause.kind()), ("billing", ErrorKind::Denied));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure() {
    let inbox = faulty::memory().await;
    let service = Service::builder(inbox.clone())
        .janitor("retention", janitor(&inbox))
        .task("web", |_| async {
            let port = std::hint::black_box(80);
            if port > 0 {
                panic!("port {port} is taken");
            }
            Ok::<_, io::Error>(())
        })
        .build()
        .unwrap();
    let error = service.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.part, "web");
    assert_eq!(error.cause.to_string(), "panicked: port 80 is taken");
    // As a `main` prints it.
    let told = "the part `web` of the service failed: panicked: port 80 is taken";
    assert_eq!(format!("{error:?}"), told);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_fails_is_restarted_if_that_is_wanted() {
    let inbox = faulty::memory().await;
    let script = Script([broken(), Ok(message("1")), broken(), Ok(message("2"))].into());
    let service = Service::builder(inbox.clone())
        .receiver("orders", Receiver::builder(inbox.clone()).build(), script)
        .restart(RetryPolicy::schedule([SECOND, SECOND]))
        .build()
        .unwrap();
    // Its parts have all ended then.
    let summary = service.run(CancellationToken::new()).await.unwrap();
    assert_eq!(summary.receivers.accepted, 1);

    let inbox = faulty::memory().await;
    let script = Script([broken(), broken(), broken(), Ok(message("1"))].into());
    let service = Service::builder(inbox.clone())
        .receiver("orders", Receiver::builder(inbox.clone()).build(), script)
        .restart(RetryPolicy::schedule([SECOND, SECOND]))
        .build()
        .unwrap();
    let error = service.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.part, "orders");
    assert_eq!(error.summary.receivers.accepted, 0);
}

#[tokio::test(start_paused = true)]
async fn failures_far_apart_do_not_add_up() {
    let inbox = faulty::memory().await;
    let runs = Arc::new(AtomicU32::new(0));
    /// Works for a while, and fails; four times.
    struct Shaky(Arc<AtomicU32>);
    impl Source for Shaky {
        type Delivery = Message;
        async fn next(&mut self) -> Result<Option<Message>, SourceError> {
            if self.0.load(SeqCst) == 4 {
                return Ok(None);
            }
            tokio::time::sleep(90 * SECOND).await;
            self.0.fetch_add(1, SeqCst);
            Err(SourceError::permanent("again"))
        }
    }
    let service = Service::builder(inbox.clone())
        .receiver(
            "orders",
            Receiver::builder(inbox.clone()).build(),
            Shaky(runs.clone()),
        )
        .restart(RetryPolicy::schedule([SECOND]))
        .build()
        .unwrap();
    service.run(CancellationToken::new()).await.unwrap();
    assert_eq!(runs.load(SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn what_has_not_ended_at_the_limit_is_dropped_and_named() {
    let inbox = faulty::memory().await;
    let service = Service::builder(inbox.clone())
        .task("web", |_| std::future::pending::<Result<(), io::Error>>())
        .janitor("retention", janitor(&inbox))
        .shutdown_limit(10 * SECOND)
        .build()
        .unwrap();
    let health = service.health();
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let began = tokio::time::Instant::now();
    let summary = service.run(shutdown).await.unwrap();
    assert_eq!(summary.cut_short, ["web", "retention"]);
    let stages: Vec<_> = health.report().parts.iter().map(|p| p.stage).collect();
    assert_eq!(stages, [Stage::Ended, Stage::Ended]);
    assert!(began.elapsed() < 11 * SECOND);
    assert!(summary.to_string().ends_with("cut short: web, retention"));
}

#[tokio::test(start_paused = true)]
async fn inline_consumers_are_drained_when_their_callers_have_ended() {
    let inbox = faulty::memory().await;
    let terms = LeaseTerms::new(30 * SECOND, WorkerName::new("web").unwrap()).unwrap();
    let consumer = InlineConsumer::new(inbox.clone(), terms);
    let web = consumer.clone();
    let service = Service::builder(inbox.clone())
        .task("web", move |_| async move {
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let forever = |_: Leased| async move {
                let _ = begun.send(());
                std::future::pending::<Result<Option<Bytes>, io::Error>>().await
            };
            // As a request whose client has gone.
            tokio::spawn(async move { web.consume(&message("1"), forever).await });
            has_begun.await
        })
        .inline("payments", consumer, 5 * SECOND)
        .build()
        .unwrap();
    let health = service.health();
    // When the server has ended there is nothing left to run.
    let summary = service.run(CancellationToken::new()).await.unwrap();
    assert_eq!(summary.cut_short, ["payments"]);
    assert_eq!(health.report().parts[1].stage, Stage::Ended);
}

/// Its callers are not the service's, so nobody else knows when they have ended.
#[tokio::test(start_paused = true)]
async fn inline_consumers_without_a_task_are_kept_until_the_end() {
    for with_source in [false, true] {
        let inbox = faulty::memory().await;
        let terms = LeaseTerms::new(30 * SECOND, WorkerName::new("web").unwrap()).unwrap();
        let consumer = InlineConsumer::new(inbox.clone(), terms);
        let web = consumer.clone();
        let mut builder = Service::builder(inbox.clone()).inline("payments", consumer, 5 * SECOND);
        if with_source {
            let receiver = Receiver::builder(inbox.clone()).build();
            builder = builder.receiver("orders", receiver, Script([].into()));
        }
        let service = builder.build().unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(service.run(shutdown.clone()));
        tokio::time::sleep(60 * SECOND).await;
        let work = |_: Leased| async { Ok::<_, io::Error>(None::<Bytes>) };
        let ran = web.consume(&message("1"), work).await;
        assert!(ran.is_ok(), "{ran:?}");
        shutdown.cancel();
        let summary = running.await.unwrap().unwrap();
        assert!(summary.cut_short.is_empty(), "{summary}");
        let closed = inbox.receive_one(&message("late")).await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::Unavailable);
    }
}

/// Work that outlives the service's limit is handed back before that, whatever its own limit.
#[tokio::test(start_paused = true)]
async fn limits_longer_than_the_services_cost_no_attempt() {
    for limit in [28, 10, 4] {
        let inbox = faulty::memory().await;
        let terms = LeaseTerms::new(60 * SECOND, WorkerName::new("web").unwrap()).unwrap();
        let consumer = InlineConsumer::new(inbox.clone(), terms);
        let web = consumer.clone();
        let request = tokio::spawn(async move {
            let slow = |_: Leased| async {
                tokio::time::sleep(40 * SECOND).await;
                Ok::<_, io::Error>(None::<Bytes>)
            };
            web.consume(&message("inline"), slow).await
        });
        let router = Router::new("orders").on("order.placed", |_: Context| async {
            tokio::time::sleep(40 * SECOND).await;
            Ok::<_, Failure>(())
        });
        let processor = Processor::builder(inbox.clone())
            .router(router)
            .drain_limit(60 * SECOND)
            .build()
            .unwrap();
        let queued = message("queued").for_handler(HandlerName::new("orders").unwrap());
        let _ = inbox.receive_one(&queued).await.unwrap();
        let shutdown = CancellationToken::new();
        let service = Service::builder(inbox)
            .task("web", |_| std::future::pending::<Result<(), io::Error>>())
            .inline("http", consumer, 60 * SECOND)
            .processor("orders", processor)
            .shutdown_limit(limit * SECOND)
            .build()
            .unwrap();
        let running = tokio::spawn(service.run(shutdown.clone()));
        tokio::time::sleep(SECOND).await;
        shutdown.cancel();
        let began = tokio::time::Instant::now();
        let summary = running.await.unwrap().unwrap();
        assert!(began.elapsed() <= limit * SECOND, "{:?}", began.elapsed());
        assert_eq!(summary.cut_short, ["http", "web"], "{limit}");
        let answer = request.await.unwrap();
        assert!(matches!(answer, Err(ConsumeError::Stopped)), "{answer:?}");
        let worked = summary.processors;
        assert_eq!((worked.released, worked.abandoned), (1, 0), "{limit}");
    }
}

#[tokio::test]
async fn parts_have_names_of_their_own() {
    let inbox = faulty::memory().await;
    assert!(Service::builder(inbox.clone()).build().is_err());
    let twice = Service::builder(inbox.clone())
        .janitor("retention", janitor(&inbox))
        .janitor("retention", janitor(&inbox));
    assert!(twice.build().is_err());
}

/// Runs a service until the end of a test.
struct Running {
    health: Health,
    _stop: tokio_util::sync::DropGuard,
}

fn run(service: Service) -> Running {
    let shutdown = CancellationToken::new();
    let health = service.health();
    tokio::spawn(service.run(shutdown.clone()));
    let _stop = shutdown.drop_guard();
    Running { health, _stop }
}

#[tokio::test]
async fn it_is_ready_while_the_store_answers_and_its_schema_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inbox.db");
    let store = SqliteStore::connect(SqliteOptions::new(&path))
        .await
        .unwrap();
    let inbox: Arc<dyn Inbox> = Arc::new(store.clone());
    let service = Service::builder(inbox.clone())
        .janitor("retention", janitor(&inbox))
        .probe_interval(Duration::from_millis(10))
        .build()
        .unwrap();
    let before = service.health().report();
    assert_eq!(before.parts[0].stage, Stage::Waiting);
    assert!(before.is_live && !before.is_ready);
    let running = run(service);
    let unready = async || running.health.report().unready;
    eventually("not set up", async || {
        unready().await.is_some_and(|why| why.contains("set up"))
    })
    .await;
    store.create().await.unwrap();
    eventually("ready", async || running.health.is_ready()).await;
    std::fs::remove_file(&path).unwrap();
    eventually("not ready", async || !running.health.is_ready()).await;
    // A restart would not help.
    assert!(running.health.is_live());
    let shown = serde_json::to_value(running.health.report()).unwrap();
    assert_eq!(shown["is_ready"], false);
    assert_eq!(shown["parts"][0]["stage"], "running");
}

#[tokio::test]
async fn a_service_whose_run_is_dropped_is_not_ready() {
    let inbox = faulty::memory().await;
    let service = Service::builder(inbox.clone())
        .janitor("retention", janitor(&inbox))
        .task("web", |_| std::future::pending::<Result<(), io::Error>>())
        .build()
        .unwrap();
    let health = service.health();
    let running = tokio::spawn(service.run(CancellationToken::new()));
    eventually("ready", async || health.is_ready()).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    let report = health.report();
    assert_eq!(report.unready.as_deref(), Some("it has ended"));
    let stages: Vec<_> = report.parts.iter().map(|part| part.stage).collect();
    assert_eq!(stages, [Stage::Ended, Stage::Ended]);
}

#[tokio::test]
async fn what_keeps_a_part_from_its_work_is_told() {
    let inbox = faulty::memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    let gate = BacklogGate::builder(inbox.clone(), 0)
        .interval(Duration::from_millis(5))
        .build()
        .unwrap();
    let pausing = Router::new(billing()).on("order.placed", |_: Context| async {
        Err::<(), _>(Failure::pause(3600 * SECOND, "the bank is closed"))
    });
    let processor = Processor::builder(store.clone()).router(pausing).build();
    let (_sender, channel) = tokio::sync::mpsc::channel::<Message>(1);
    let service = Service::builder(inbox.clone())
        .processor("billing", processor.unwrap())
        .receiver(
            "orders",
            Receiver::builder(inbox.clone()).backlog_gate(gate).build(),
            ChannelSource::new(channel),
        )
        .build()
        .unwrap();
    let running = run(service);
    let degraded = |part: usize| {
        let report = running.health.report();
        assert!(report.is_live);
        report.parts[part].degraded.join("\n")
    };
    eventually("well", async || running.health.is_ready()).await;
    assert_eq!((degraded(0), degraded(1)), (String::new(), String::new()));
    store.plan("claim", vec![Fault::Before(ErrorKind::Unavailable); 3]);
    eventually("no claims", async || degraded(0).contains("claims: ")).await;
    eventually("claims again", async || degraded(0).is_empty()).await;
    let _ = inbox.receive_one(&message("1")).await.unwrap();
    eventually("paused", async || {
        degraded(0) == "handler billing is paused: the bank is closed"
    })
    .await;
    eventually("held back", async || degraded(1).contains("backlog")).await;
    assert!(running.health.report().is_degraded);
}

/// Defect: clones of one receiver told each other's troubles as their own, and one that was stuck was taken for alive.
#[tokio::test(start_paused = true)]
async fn clones_of_a_receiver_are_told_apart() {
    struct Away;
    impl Source for Away {
        type Delivery = Message;
        async fn next(&mut self) -> Result<Option<Message>, SourceError> {
            Err(SourceError::transient("no broker"))
        }
    }
    let inbox = faulty::memory().await;
    let receiver = Receiver::builder(inbox.clone()).build();
    let (sender, channel) = tokio::sync::mpsc::channel(1);
    sender.send(message("1")).await.unwrap();
    let service = Service::builder(inbox.clone())
        .receiver("away", receiver.clone(), Away)
        .receiver("well", receiver, ChannelSource::new(channel))
        .build()
        .unwrap();
    let running = run(service);
    tokio::time::sleep(10 * SECOND).await;
    let [away, well] = running.health.report().parts.try_into().unwrap();
    assert_eq!(away.degraded, ["source: no broker"]);
    assert_eq!(well.degraded, [""; 0]);
    assert_eq!(away.last_success, None);
    assert!(well.last_success.is_some());
}
