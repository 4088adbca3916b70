//! Several routers in one processor, each on its own terms.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use inbox::{
    AfterDead, CancellationToken, CircuitBreaker, Context, Failure, HandlerName, Invalid,
    KindOptions, Message, MessageId, Operate as _, OrderingKey, Processor, ProcessorBuilder, Rate,
    RetryPolicy, Router, Schema as _, State, StoreExt as _, WorkerName,
};
use tokio::time::{Instant, sleep};

use crate::processor_support::{Trouble, *};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A store whose clock goes with the runtime's, which is paused.
fn spy() -> Arc<Spy> {
    let spy = Spy::new();
    spy.follow_the_runtime();
    Arc::new(spy)
}

fn message_to(handler: &str, id: impl std::fmt::Display) -> Message {
    let handler = HandlerName::new(handler).unwrap();
    let id = MessageId::new(id.to_string()).unwrap();
    Message::new(handler, id, "order.placed".parse().unwrap(), "{}")
}

/// What a handler has seen: how many at a time at most, and when each one began.
#[derive(Clone, Default)]
struct Seen {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    starts: Arc<Mutex<Vec<Instant>>>,
}

impl Seen {
    fn starts(&self) -> Vec<Instant> {
        self.starts.lock().unwrap().clone()
    }

    /// A router whose handlers take that long.
    fn router(&self, handler: &str, time: Duration) -> Router {
        let seen = self.clone();
        Router::new(handler).on("order.placed", move |_: Context| {
            let seen = seen.clone();
            async move {
                let running = seen.running.fetch_add(1, SeqCst) + 1;
                seen.most.fetch_max(running, SeqCst);
                seen.starts.lock().unwrap().push(Instant::now());
                sleep(time).await;
                seen.running.fetch_sub(1, SeqCst);
                Ok::<_, Failure>(())
            }
        })
    }
}

fn several(spy: &Arc<Spy>, routers: impl IntoIterator<Item = Router>) -> ProcessorBuilder {
    let builder = Processor::builder(spy.clone());
    routers.into_iter().fold(builder, ProcessorBuilder::router)
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_with_a_backlog_does_not_hold_up_another() {
    let spy = spy();
    spy.receive_all((0..3000).map(|n| message_to("slow", n)))
        .await;
    let (slow, fast) = (Seen::default(), Seen::default());
    let processor = several(
        &spy,
        [
            slow.router("slow", 200 * MILLISECOND),
            fast.router("fast", MILLISECOND),
        ],
    );
    let processor = processor.build().unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });
    sleep(SECOND).await;
    let mut waits = Vec::new();
    for n in 0..20 {
        spy.receive_all([message_to("fast", n)]).await;
        let sent = Instant::now();
        eventually("the fast one runs", async || fast.starts().len() > n).await;
        waits.push(fast.starts()[n] - sent);
        sleep(37 * MILLISECOND).await;
    }
    let longest = waits.iter().max().unwrap();
    assert!(*longest < 50 * MILLISECOND, "{waits:?}");
    assert!(slow.running.load(SeqCst) > 60, "the slow ones go on");
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_router_keeps_to_its_own_concurrency() {
    let spy = spy();
    for handler in ["one", "few", "many"] {
        spy.receive_all((0..60).map(|n| message_to(handler, n)))
            .await;
    }
    let seen = [(); 3].map(|()| Seen::default());
    let [one, few, many] = &seen;
    let processor = several(
        &spy,
        [
            one.router("one", MILLISECOND).concurrency(1),
            few.router("few", 7 * MILLISECOND).concurrency(4),
            many.router("many", 20 * MILLISECOND),
        ],
    );
    let summary = until_idle(processor.concurrency(32)).await;
    assert_eq!(summary.processed, 180);
    let most = seen.map(|seen| seen.most.load(SeqCst));
    assert_eq!(most, [1, 4, 32]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_processor_looks_for_all_its_routers_in_one_claim() {
    let spy = spy();
    let names: Vec<_> = (0..20).map(|n| format!("handler-{n}")).collect();
    let routers = names.iter().enumerate().map(|(n, name)| {
        let router = Seen::default().router(name, MILLISECOND);
        if n % 2 == 0 {
            router.concurrency(n + 1)
        } else {
            router
        }
    });
    let processor = several(&spy, routers).build().unwrap();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });
    sleep(10 * SECOND).await;
    let before = spy.claim_limits.lock().unwrap().len();
    sleep(60 * SECOND).await;
    let claims = spy.claim_limits.lock().unwrap().len() - before;
    assert!((55..=65).contains(&claims), "{claims} claims a minute");
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_until_idle_waits_for_routers_of_every_size() {
    let spy = spy();
    let sizes = [1, 3, 64, 500];
    for size in sizes {
        let name = format!("size-{size}");
        spy.receive_all((0..50).map(|n| message_to(&name, n))).await;
    }
    let routers = sizes.map(|size| {
        let router = Seen::default().router(&format!("size-{size}"), MILLISECOND);
        router.concurrency(size)
    });
    let summary = until_idle(several(&spy, routers)).await;
    assert_eq!(summary.processed, 200);
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_with_its_burst_and_slows_nobody_else() {
    for look_ahead in [0, 32] {
        let spy = spy();
        spy.receive_all((0..50).map(|n| message_to("limited", n)))
            .await;
        spy.receive_all((0..50).map(|n| message_to("free", n)))
            .await;
        let (limited, free) = (Seen::default(), Seen::default());
        let rate = Rate::new(10, SECOND).burst(5);
        let processor = several(
            &spy,
            [
                limited.router("limited", MILLISECOND).rate(rate),
                free.router("free", MILLISECOND),
            ],
        );
        let begin = Instant::now();
        until_idle(processor.look_ahead(look_ahead)).await;
        let starts = limited.starts();
        assert_eq!(starts.len(), 50);
        for (n, first) in starts.iter().enumerate() {
            let within = starts
                .iter()
                .filter(|at| **at >= *first && **at < *first + SECOND);
            assert!(within.count() <= 15, "from number {n}");
        }
        // No slower than it may be, either: five at once, and then ten a second.
        let took = *starts.last().unwrap() - begin;
        assert!((4400..4700).contains(&took.as_millis()), "{took:?}");
        let took = *free.starts().last().unwrap() - begin;
        assert!(took < 200 * MILLISECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_and_time_limits_are_the_kinds_then_the_routers_then_the_processors() {
    let spy = spy();
    let kinds = ["own", "router"];
    for handler in ["special", "plain"] {
        let messages = kinds.map(|kind| {
            let (handler, id) = (handler.parse().unwrap(), kind.parse().unwrap());
            Message::new(handler, id, kind.parse().unwrap(), "")
        });
        spy.receive_all(messages).await;
    }
    let attempts = |n| at_once(n);
    let hangs = |_: Context| async {
        std::future::pending::<()>().await;
        Ok::<_, Failure>(())
    };
    let router = |handler: &str| Router::new(handler).on("own", hangs).on("router", hangs);
    let options = KindOptions::new().retry(attempts(5)).timeout(SECOND);
    let special = router("special")
        .retry(attempts(3))
        .timeout(10 * SECOND)
        .kind_options("own", options);
    let processor = several(&spy, [special, router("plain")])
        .retry(attempts(2))
        .handler_timeout(60 * SECOND);
    let begin = Instant::now();
    let summary = until_idle_by_a_paused_clock(processor).await;
    assert_eq!(summary.dead, 4);
    // Those of "plain" take longest: two minutes.
    assert!((120..125).contains(&begin.elapsed().as_secs()));
    let started = async |handler: &str, kind: &str| {
        let key = message_of(kind, kind, "").key().clone();
        let key = inbox::Key::new(handler.parse().unwrap(), key.id);
        let record = spy.inner.get(&key).await.unwrap().unwrap();
        assert_eq!(record.state, State::Dead);
        let died_after = record.finished_at.unwrap();
        let after = died_after.duration_since(record.accepted_at).unwrap();
        (record.attempts.started, after.as_secs())
    };
    assert_eq!(started("special", "own").await, (5, 5));
    assert_eq!(started("special", "router").await, (3, 30));
    assert_eq!(started("plain", "own").await, (2, 120));
    assert_eq!(started("plain", "router").await, (2, 120));
}

#[tokio::test(start_paused = true)]
async fn leases_of_several_lengths_are_renewed_each_in_time() {
    let spy = spy();
    for handler in ["short", "long"] {
        spy.receive_all((0..3).map(|n| message_to(handler, n)))
            .await;
    }
    let (short, long) = (Seen::default(), Seen::default());
    let processor = several(
        &spy,
        [
            short.router("short", 30 * SECOND).lease(SECOND),
            long.router("long", 90 * SECOND).lease(20 * SECOND),
        ],
    )
    .poll_intervals(100 * MILLISECOND, 100 * MILLISECOND);
    let processor = processor.build().unwrap();
    let run = tokio::spawn(async move { processor.run_until_idle(CancellationToken::new()).await });
    let worker = WorkerName::new("thief").unwrap();
    for _ in 0..80 {
        sleep(SECOND).await;
        spy.follow();
        for handler in ["short", "long"] {
            let handler = HandlerName::new(handler).unwrap();
            let claims = spy
                .inner
                .claim_for(&handler, 10, SECOND, &worker)
                .await
                .unwrap();
            assert!(claims.leased.is_empty(), "a lease has run out");
        }
    }
    let summary = run.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.lease_lost), (6, 0));
}

/// The store hands out what has been due for longest, whatever router it is for.
#[tokio::test(start_paused = true)]
async fn many_busy_routers_do_not_keep_a_new_message_from_another() {
    let spy = spy();
    let names: Vec<_> = (0..10).map(|n| format!("busy-{n}")).collect();
    for n in 0..500 {
        spy.receive_all(names.iter().map(|name| message_to(name, n)))
            .await;
    }
    spy.receive_all([message_to("new", 1)]).await;
    let busy = Seen::default();
    let new = Seen::default();
    let routers = names.iter().map(|name| busy.router(name, Duration::ZERO));
    let builder = several(&spy, routers.chain([new.router("new", Duration::ZERO)]));
    let processor = builder.build().unwrap();
    let (count, seen) = (busy.starts.clone(), new.starts.clone());
    let run = tokio::spawn(async move { processor.run_until_idle(CancellationToken::new()).await });
    while seen.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let before = count.lock().unwrap().len();
    assert!(before < 2000, "{before} of 5,000 older ones were first");
    assert_eq!(run.await.unwrap().unwrap().processed, 5001);
}

#[tokio::test(start_paused = true)]
async fn a_rate_with_a_small_burst_is_reached() {
    let spy = spy();
    spy.receive_all((0..200).map(|n| message_to("limited", n)))
        .await;
    let limited = Seen::default();
    let rate = Rate::new(1000, SECOND).burst(1);
    let router = limited.router("limited", Duration::ZERO).rate(rate);
    let begin = Instant::now();
    until_idle(several(&spy, [router])).await;
    let took = *limited.starts().last().unwrap() - begin;
    // A timer's steps are a millisecond each.
    assert!((199..450).contains(&took.as_millis()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn unknown_kinds_take_nothing_of_a_rate() {
    let spy = spy();
    let unknown = (0..1000).map(|n| {
        let (handler, id) = (
            "limited".parse().unwrap(),
            format!("u-{n}").parse().unwrap(),
        );
        Message::new(handler, id, "unknown".parse().unwrap(), "")
    });
    spy.receive_all(unknown).await;
    spy.receive_all((0..3).map(|n| message_to("limited", n)))
        .await;
    let limited = Seen::default();
    let rate = Rate::new(10, SECOND);
    let router = limited.router("limited", Duration::ZERO).rate(rate);
    let begin = Instant::now();
    let summary = until_idle_by_a_paused_clock(several(&spy, [router])).await;
    assert_eq!(summary.processed, 3);
    let took = *limited.starts().last().unwrap() - begin;
    assert!(took < SECOND, "{took:?}");
}

/// One router's lease cannot be renewed for a while, which must not cost another's.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_does_not_keep_shorter_ones_from_it() {
    let spy = spy();
    spy.receive_all([message_to("long", 1), message_to("short", 1)])
        .await;
    let (long, short) = (Seen::default(), Seen::default());
    let processor = several(
        &spy,
        [
            long.router("long", SECOND).lease(6 * SECOND),
            short.router("short", 30 * SECOND).lease(3 * SECOND),
        ],
    );
    let processor = processor.build().unwrap();
    let run = tokio::spawn(async move { processor.run_until_idle(CancellationToken::new()).await });
    sleep(500 * MILLISECOND).await;
    // The long one's outcome is stored, and the answer does not come.
    spy.disturb("settle", Trouble::HoldAnswer);
    sleep(20 * SECOND).await;
    let extends = *spy.extends.lock().unwrap();
    assert!(extends < 200, "{extends} renewals in twenty seconds");
    assert_eq!(short.running.load(SeqCst), 1);
    spy.calm("settle");
    let summary = run.await.unwrap().unwrap();
    assert_eq!((summary.processed, summary.lease_lost), (2, 0));
    let key = message_to("short", 1).key().clone();
    let record = spy.inner.get(&key).await.unwrap().unwrap();
    assert_eq!(record.attempts.started, 1);
}

#[tokio::test(start_paused = true)]
async fn a_router_may_block_ordering_keys_behind_its_dead() {
    let spy = spy();
    let key = OrderingKey::new("customer-7").unwrap();
    for handler in ["blocks", "goes-on"] {
        let messages = (0..2).map(|n| message_to(handler, n).with_ordering_key(key.clone()));
        spy.receive_all(messages).await;
    }
    let router = |handler: &str| {
        Router::new(handler).on("order.placed", |context: Context| async move {
            match context.message().id().as_str() {
                "0" => Err(Failure::dead("no")),
                _ => Ok(()),
            }
        })
    };
    let blocks = router("blocks").after_dead(AfterDead::Block);
    let summary = until_idle(several(&spy, [blocks, router("goes-on")])).await;
    assert_eq!((summary.dead, summary.processed), (2, 1));
}

#[test]
fn terms_without_sense_are_refused_when_it_is_built() {
    let build = |router: Router| {
        let spy = Arc::new(Spy::new());
        Processor::builder(spy).router(router).build().map(drop)
    };
    let router =
        || Router::new("billing").on("order.placed", |_: Context| async { Ok::<_, Failure>(()) });
    assert_eq!(build(router()), Ok(()));
    let refused = [
        Router::new(""),
        router().on("", |_: Context| async { Ok::<_, Failure>(()) }),
        router().on_prefix("", |_: Context| async { Ok::<_, Failure>(()) }),
        router().kind_options("\n", KindOptions::new()),
        router().concurrency(0),
        router().rate(Rate::new(0, SECOND)),
        router().timeout(Duration::ZERO),
        router().kind_options("a", KindOptions::new().timeout(Duration::ZERO)),
        router().lease(Duration::ZERO),
        router().circuit_breaker(CircuitBreaker::new().failures(2.0)),
    ];
    for (n, router) in refused.into_iter().enumerate() {
        assert!(build(router).is_err(), "{n}");
    }
    let spy = Arc::new(Spy::new());
    let twice = several(&spy, [router(), router()]).build().map(drop);
    assert!(matches!(twice, Err(Invalid::Malformed { .. })));
    assert_eq!(RetryPolicy::schedule([SECOND]).max_attempts(), 2);
}

/// By an operator, for all workers: also those that are at work.
#[tokio::test]
async fn what_is_paused_while_a_processor_runs_is_not_begun_until_it_is_resumed() {
    let store = inbox::connect("memory://").await.unwrap();
    store.create().await.unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    let router = Router::new(billing()).on("order.placed", move |_: Context| {
        count.fetch_add(1, SeqCst);
        async { Ok::<_, Failure>(()) }
    });
    let processor = Processor::builder(store.clone())
        .router(router)
        .poll_intervals(Duration::from_millis(2), Duration::from_millis(10));
    let (processor, shutdown) = (processor.build().unwrap(), CancellationToken::new());
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { processor.run(stop).await.unwrap() });
    let _ = store.receive_one(&message(1)).await.unwrap();
    eventually("the first has run", async || ran.load(SeqCst) == 1).await;

    store.pause(&billing()).await.unwrap();
    let _ = store.receive_one(&message(2)).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(ran.load(SeqCst), 1);
    store.resume(&billing()).await.unwrap();
    eventually("the second has run", async || ran.load(SeqCst) == 2).await;
    shutdown.cancel();
    assert_eq!(running.await.unwrap().processed, 2);
}
