//! What is around batches: routes, middleware, order, how many run and when.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use inbox::{Completion, Context, Failure, HandlerName, Next, State};
use tokio::time::{Instant, sleep};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_kind_or_a_whole_router_takes_batches() {
    let (spy, runs) = (spy(), Runs::default());
    let kinds = ["order.placed", "order.paid", "order.sent", "order.shown"];
    let messages = (0..40).map(|n| message_of(kinds[n % 4], n, "{}"));
    spy.receive_all(messages).await;
    let single = Arc::new(AtomicUsize::new(0));
    let (placed, others, count) = (runs.clone(), runs.clone(), single.clone());
    let router = router(move |batch: Batch| {
        placed.add(&batch);
        async { Ok::<_, Failure>(()) }
    })
    .fallback_batch_handler(move |batch: Batch| {
        others.add(&batch);
        async { Ok::<_, Failure>(()) }
    })
    .on("order.shown", move |_: Context| {
        count.fetch_add(1, SeqCst);
        async { Ok::<_, Failure>(()) }
    });
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!(summary.processed, 40);
    assert_eq!(single.load(SeqCst), 10);
    let mut sizes = runs.sizes();
    sizes.sort_unstable();
    assert_eq!(sizes, [10, 20]);
}

#[tokio::test(start_paused = true)]
async fn messages_of_an_ordering_key_are_handled_in_order_one_in_a_batch() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..160).map(|n| in_order(format!("{}-{:02}", n % 16, n / 16), n % 16)))
        .await;
    let seen = runs.clone();
    let tries = Arc::new(AtomicUsize::new(0));
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let tries = tries.clone();
        async move {
            let answers = batch.iter().map(|_| match tries.fetch_add(1, SeqCst) % 7 {
                0 => Err(Failure::retry("again")),
                _ => Ok(()),
            });
            Ok::<_, Failure>(answers.collect::<Vec<_>>())
        }
    };
    let router = router(handler).retry(at_once(100));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!(summary.processed, 160);
    assert!(summary.retried > 0);
    let batches = runs.all();
    assert!(
        batches.iter().any(|batch| batch.len() > 8),
        "{:?}",
        runs.sizes()
    );
    let key = |id: &String| id.split_once('-').unwrap().0.to_owned();
    for batch in &batches {
        let mut keys: Vec<_> = batch.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), batch.len(), "{batch:?}");
    }
    for n in 0..16 {
        let of_key = batches
            .concat()
            .into_iter()
            .filter(|id| key(id) == n.to_string());
        let mut of_key: Vec<_> = of_key.collect();
        // One that is retried comes again before the next.
        of_key.dedup();
        assert!(of_key.is_sorted(), "{of_key:?}");
        assert_eq!(of_key.len(), 10);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_batches_run_than_are_allowed_and_the_rest_gathers_in_the_store() {
    let (spy, runs) = (spy(), Runs::default());
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, greatest) = (runs.clone(), most.clone());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let (running, greatest) = (running.clone(), greatest.clone());
        async move {
            greatest.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_secs(1)).await;
            running.fetch_sub(1, SeqCst);
            Ok::<_, Failure>(())
        }
    };
    let shutdown = CancellationToken::new();
    let processor = processor(&spy, router(handler)).build().unwrap();
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { processor.run(stop).await.unwrap() });
    for n in 0..100 {
        spy.receive_all([message(n)]).await;
        sleep(Duration::from_millis(50)).await;
    }
    sleep(Duration::from_secs(3)).await;
    shutdown.cancel();
    let summary = run.await.unwrap();
    assert_eq!((summary.processed, summary.released), (100, 0));
    assert_eq!(most.load(SeqCst), 2);
    assert!(runs.len() < 20, "{:?}", runs.sizes());
}

/// When each batch began.
type Starts = Arc<Mutex<Vec<Instant>>>;

/// Notes each batch, and when it began.
fn noted(runs: &Runs, starts: &Starts) -> impl BatchHandler + use<> {
    let (seen, times) = (runs.clone(), starts.clone());
    move |batch: Batch| {
        seen.add(&batch);
        times.lock().unwrap().push(Instant::now());
        async { Ok::<_, Failure>(()) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_linger_lets_messages_gather_but_does_not_delay_the_first() {
    let (spy, runs, starts) = (spy(), Runs::default(), Starts::default());
    let batches = Batches::up_to(100).linger(Duration::from_millis(500));
    let router = router(noted(&runs, &starts)).batches(batches);
    let shutdown = CancellationToken::new();
    let processor = processor(&spy, router).build().unwrap();
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { processor.run(stop).await.unwrap() });
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    for n in 0..50 {
        spy.receive_all([message(n)]).await;
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_secs(1)).await;
    shutdown.cancel();
    assert_eq!(run.await.unwrap().processed, 50);
    let starts = starts.lock().unwrap().clone();
    assert!(starts[0] - began < Duration::from_millis(100));
    for pair in starts.windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(500));
    }
    assert!(runs.len() <= 4, "{:?}", runs.sizes());
}

#[tokio::test(start_paused = true)]
async fn a_linger_holds_while_another_router_is_busy() {
    let (spy, runs, starts) = (spy(), Runs::default(), Starts::default());
    let linger = Duration::from_secs(10);
    let gathering = router(noted(&runs, &starts)).batches(Batches::up_to(100).linger(linger));
    let busy =
        Router::new("search").on("order.placed", |_: Context| async { Ok::<_, Failure>(()) });
    let processor = processor(&spy, gathering).router(busy).build().unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let run = tokio::spawn(async move { processor.run(stop).await.unwrap() });
    for n in 0..100 {
        let search = HandlerName::new("search").unwrap();
        spy.receive_all([message(n), message(n).for_handler(search)])
            .await;
        sleep(Duration::from_millis(200)).await;
    }
    eventually("all are done", async || {
        spy.count(State::Processed).await == 200
    })
    .await;
    shutdown.cancel();
    run.await.unwrap();
    let starts = starts.lock().unwrap().clone();
    assert!(starts.len() > 2, "{starts:?}");
    for pair in starts.windows(2) {
        assert!(pair[1] - pair[0] >= linger, "{:?}", pair[1] - pair[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_runs_around_each_message_of_a_batch() {
    let (spy, runs) = (spy(), Runs::default());
    let ids = [
        "plain", "refused", "panics", "turned", "hurried", "stuck", "late",
    ];
    spy.receive_all(ids.map(message)).await;
    let passed = Arc::new(Mutex::new(Vec::new()));
    let log = passed.clone();
    let middleware = move |context: Context, next: Next| {
        let log = log.clone();
        async move {
            let id = context.message().id().to_string();
            log.lock().unwrap().push(id.clone());
            match id.as_str() {
                "refused" => return Err(Failure::dead("not this one")),
                "panics" => panic!("before"),
                "stuck" => return std::future::pending().await,
                "hurried" => {
                    let limit = Duration::from_millis(1);
                    let ended = tokio::time::timeout(limit, next.run(&context)).await;
                    return ended.unwrap_or_else(|_| Err(Failure::dead("hurried")));
                }
                _ => {}
            }
            let ended = next.run(&context).await;
            match id.as_str() {
                "turned" => Ok(Completion::with_result("turned")),
                "late" => std::future::pending().await,
                _ => ended,
            }
        }
    };
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        async move {
            sleep(Duration::from_secs(1)).await;
            match has(&batch, "turned") {
                true => Err(Failure::dead("turned")),
                false => Ok(()),
            }
        }
    };
    let router = router(handler)
        .timeout(Duration::from_secs(5))
        .retry(at_once(1).with_max_attempts(1));
    // The processor's runs around the batch as well.
    let builder = processor(&spy, router).middleware(middleware);
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!(*passed.lock().unwrap(), ids);
    assert_eq!((summary.processed, summary.dead), (2, 5));
    let ends = [
        ("plain", State::Processed, ""),
        ("turned", State::Processed, ""),
        ("refused", State::Dead, "not this one"),
        ("panics", State::Dead, "panicked: before"),
        ("hurried", State::Dead, "hurried"),
        ("stuck", State::Dead, "timed out"),
        ("late", State::Dead, "timed out"),
    ];
    for (id, state, error) in ends {
        let record = spy.record(id).await;
        assert_eq!(record.state, state, "{id}");
        assert_eq!(record.last_error.unwrap_or_default(), error, "{id}");
    }
    let batches = runs.all();
    let never = ["refused", "panics", "stuck"];
    assert!(
        never
            .iter()
            .all(|id| !batches.concat().contains(&(*id).to_owned()))
    );
}

/// Middleware whose messages wait for one another.
fn one_at_a_time(permits: usize) -> impl inbox::Middleware {
    let turns = Arc::new(tokio::sync::Semaphore::new(permits));
    move |context: Context, next: Next| {
        let turns = turns.clone();
        async move {
            let _turn = turns.acquire().await.unwrap();
            next.run(&context).await
        }
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_that_lets_few_through_makes_smaller_batches() {
    for permits in [1, 3] {
        let (spy, runs) = (spy(), Runs::default());
        spy.receive_all((0..8).map(message)).await;
        let seen = runs.clone();
        let handler = move |batch: Batch| {
            seen.add(&batch);
            async { Ok::<_, Failure>(()) }
        };
        let router = router(handler).middleware(one_at_a_time(permits));
        let running = until_idle_by_a_paused_clock(processor(&spy, router));
        let summary = tokio::time::timeout(Duration::from_secs(60), running).await;
        let summary = summary.expect("the batch waits for itself");
        assert_eq!((summary.processed, summary.released), (8, 0));
        assert!(runs.sizes().iter().all(|size| *size <= permits));
        assert_eq!(runs.sizes().iter().sum::<usize>(), 8);
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_that_lets_few_through_keeps_the_order() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..6).map(|n| in_order(n, "k"))).await;
    let (seen, tries) = (runs.clone(), Arc::new(AtomicUsize::new(0)));
    let handler = move |batch: Batch| {
        let is_bad = has(&batch, "2") && tries.fetch_add(1, SeqCst) == 0;
        if !is_bad {
            seen.add(&batch);
        }
        async move {
            match is_bad {
                true => Err(Failure::retry("once")),
                false => Ok(()),
            }
        }
    };
    let router = router(handler)
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once(5))
        .middleware(one_at_a_time(1));
    let running = until_idle_by_a_paused_clock(processor(&spy, router));
    let summary = tokio::time::timeout(Duration::from_secs(60), running).await;
    let summary = summary.expect("the batch waits for itself");
    assert_eq!((summary.processed, summary.retried), (6, 1));
    assert_eq!(runs.all().concat(), ["0", "1", "2", "3", "4", "5"]);
}
