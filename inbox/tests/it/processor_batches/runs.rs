//! Runs: several messages of an ordering key in one batch, in their order.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use inbox::{
    Batch, Batches, Completion, Context, Failure, Fallback, Middleware, Next, RetryPolicy, State,
    one_by_one,
};
use tokio::{sync::Notify, time::sleep};

use super::*;

/// Messages of several kinds and keys: `k-0`, `l-0`, `k-1`, ….
pub(super) fn interleaved(keys: &[&str], count: usize) -> Vec<Message> {
    let of = |n| {
        keys.iter()
            .map(move |key| in_order(format!("{key}-{n}"), key))
    };
    (0..count).flat_map(of).collect()
}

/// The same message, of another kind.
fn of_kind(kind: &str, message: &Message) -> Message {
    let (handler, id) = (message.handler().clone(), message.id().clone());
    let key = message.ordering_key().unwrap().clone();
    Message::new(handler, id, kind.parse().unwrap(), "").with_ordering_key(key)
}

/// Tries again at once.
pub(super) fn at_once() -> RetryPolicy {
    RetryPolicy::default()
        .with_max_attempts(1000)
        .with_delays(Duration::ZERO, Duration::ZERO)
}

fn of_key<'i>(ids: &'i [String], key: &'i str) -> Vec<&'i str> {
    let ids = ids.iter().map(String::as_str);
    ids.filter(|id| id.starts_with(key)).collect()
}

fn numbered(key: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|n| format!("{key}-{n}")).collect()
}

pub(super) fn seen(
    runs: &Runs,
) -> impl Fn(Batch) -> std::future::Ready<Result<(), Failure>> + use<> {
    let seen = runs.clone();
    move |batch| {
        seen.add(&batch);
        std::future::ready(Ok(()))
    }
}

/// Does this with each message, but for the first that comes, which hangs.
pub(super) fn hangs_once<W, F>(work: W) -> impl Fn(Context) -> Hanging + use<W, F>
where
    W: Fn(Context) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let is_first = AtomicBool::new(true);
    move |context| {
        let (work, hangs) = (work(context), is_first.swap(false, Ordering::SeqCst));
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            work.await;
            Ok(())
        })
    }
}

type Hanging = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

#[tokio::test(start_paused = true)]
async fn a_batch_has_runs_in_their_order() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 10)).await;
    let router = router(seen(&runs)).batches(Batches::up_to(100).runs(7));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!(summary.processed, 20);
    assert_eq!(runs.sizes(), [14, 6]);
    for key in ["k", "l"] {
        assert_eq!(of_key(&runs.all().concat(), key), numbered(key, 0..10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_can_be_of_one_key() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 3)).await;
    spy.receive_all((0..4).map(message)).await;
    let router = router(seen(&runs)).batches(Batches::of_one_key(100));
    until_idle_by_a_paused_clock(processor(&spy, router)).await;
    let free: Vec<_> = (0..4).map(|n| n.to_string()).collect();
    let expected = [numbered("k", 0..3), numbered("l", 0..3), free];
    assert_eq!(runs.all(), expected);
}

/// Defect: where the kinds of a key alternate, each claim took a whole run and handed back all but one.
#[tokio::test(start_paused = true)]
async fn what_cannot_run_together_is_not_claimed_together() {
    for kinds in [1, 2, 7] {
        let (spy, runs) = (spy(), Runs::default());
        let kind = |n: usize| format!("kind-{}", n / kinds % 2);
        let messages = interleaved(&["k", "l"], 200);
        let messages = messages.iter().enumerate();
        spy.receive_all(messages.map(|(n, message)| of_kind(&kind(n / 2), message)))
            .await;
        let router = Router::new(billing())
            .on_batch("kind-0", seen(&runs))
            .on_batch("kind-1", seen(&runs))
            .batches(Batches::of_one_key(100));
        let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
        assert_eq!((summary.processed, summary.dead), (400, 0));
        assert!(summary.released <= 2 * 400, "{kinds}: {summary:?}");
        for key in ["k", "l"] {
            assert_eq!(of_key(&runs.all().concat(), key), numbered(key, 0..200));
        }
        let sizes = runs.sizes();
        assert!(
            sizes.iter().all(|size| *size <= kinds),
            "{kinds}: {sizes:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_runs_a_key_has_one_message_at_a_time() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k"], 3)).await;
    until_idle_by_a_paused_clock(processor(&spy, router(seen(&runs)))).await;
    assert_eq!(runs.sizes(), [1, 1, 1]);
}

pub(super) type Answered = std::future::Ready<Result<Vec<Result<(), Failure>>, Failure>>;

/// Does so with the first attempt of `k-1`.
pub(super) fn fails_the_second_once(runs: &Runs) -> impl Fn(Batch) -> Answered + use<> {
    let seen = runs.clone();
    move |batch| {
        seen.add(&batch);
        let answer = |context: &Context| match context.message().id().as_str() {
            "k-1" if context.attempts().started == 1 => Err(Failure::retry("not yet")),
            _ => Ok(()),
        };
        std::future::ready(Ok(batch.iter().map(answer).collect()))
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_behind_a_failure_is_handed_back() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 4)).await;
    let router = router(fails_the_second_once(&runs))
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once());
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (8, 1));
    // What was answered behind the failure has not counted.
    let all = runs.all();
    assert_eq!(all[0].len(), 8);
    let (again, behind): (Vec<_>, Vec<_>) =
        all[1..].concat().into_iter().partition(|id| id == "k-1");
    assert_eq!(again, ["k-1"]);
    assert_eq!(behind, ["k-2", "k-3"]);
    let tries = [("k-0", 1), ("k-1", 2), ("k-2", 1), ("k-3", 1), ("l-3", 1)];
    for (id, started) in tries {
        let record = spy.record(id).await;
        assert_eq!(
            (record.state, record.attempts.started),
            (State::Processed, started),
            "{id}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_as_a_whole_keeps_the_order() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k"], 8)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        let is_poisoned = batch
            .iter()
            .any(|c| c.message().id().as_str() == "k-2" && c.attempts().started == 1);
        if !is_poisoned {
            seen.add(&batch);
        }
        async move {
            match is_poisoned {
                true => Err(Failure::retry("all of it")),
                false => Ok(()),
            }
        }
    };
    let router = router(handler)
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once());
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (8, 1));
    assert_eq!(runs.all().concat(), numbered("k", 0..8));
    assert_eq!(spy.record("k-5").await.attempts.started, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_of_a_run_lets_the_rest_come_again() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k"], 4)).await;
    let seen = runs.clone();
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let answer = |context: &Context| match context.message().id().as_str() {
            "k-1" => Err(Failure::dead("never")),
            _ => Ok(()),
        };
        let answers: Vec<_> = batch.iter().map(answer).collect();
        async move { Ok::<_, Failure>(answers) }
    };
    let router = router(handler).batches(Batches::of_one_key(100));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.dead), (3, 1));
    assert_eq!(runs.all(), [numbered("k", 0..4), numbered("k", 2..4)]);
}

/// Two handlers of a router cannot share a batch.
#[tokio::test(start_paused = true)]
async fn another_kind_ends_a_run() {
    let (spy, runs) = (spy(), Runs::default());
    let mut messages = interleaved(&["k"], 6);
    for message in messages.iter_mut().skip(2).step_by(3) {
        *message = of_kind("order.paid", message);
    }
    spy.receive_all(messages).await;
    let single = runs.clone();
    let router = router(seen(&runs))
        .on("order.paid", move |context: Context| {
            single.add(&Batch::new(vec![context]));
            std::future::ready(Ok::<_, Failure>(()))
        })
        .batches(Batches::up_to(100).runs(100));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!(summary.processed, 6);
    assert_eq!(runs.all().concat(), numbered("k", 0..6));
    assert_eq!(runs.sizes(), [2, 1, 2, 1]);
}

/// One that no handler is for, or that has expired, would be settled while the one before it runs.
#[tokio::test(start_paused = true)]
async fn what_is_not_run_waits_for_its_turn_in_a_run() {
    for is_expired in [false, true] {
        let (spy, states) = (spy(), Arc::new(Mutex::new(Vec::new())));
        let mut messages = interleaved(&["k"], 3);
        messages[1] = match is_expired {
            true => messages[1]
                .clone()
                .with_time_to_live(Duration::from_secs(1))
                .unwrap(),
            false => of_kind("order.paid", &messages[1]),
        };
        spy.receive_all(messages).await;
        spy.clock.advance(Duration::from_secs(2));
        let (store, seen) = (spy.clone(), states.clone());
        let handler = move |batch: Batch| {
            let (store, seen) = (store.clone(), seen.clone());
            async move {
                if has(&batch, "k-0") {
                    sleep(Duration::from_secs(1)).await;
                    let state = store.record("k-1").await.state;
                    seen.lock().unwrap().push(state);
                }
                Ok::<_, Failure>(())
            }
        };
        let router = router(handler)
            .batches(Batches::up_to(100).runs(100))
            .fallback(Fallback::Ignore);
        let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
        assert_eq!(*states.lock().unwrap(), [State::Pending]);
        let dead = u64::from(is_expired);
        assert_eq!((summary.processed, summary.dead), (3 - dead, dead));
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_batches_run_than_are_allowed_however_many_keys_a_claim_brings() {
    let (spy, runs) = (spy(), Runs::default());
    let keys: Vec<_> = (10..30).map(|n| format!("k{n}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    spy.receive_all(interleaved(&keys, 3)).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, greatest) = (runs.clone(), most.clone());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let (running, greatest) = (running.clone(), greatest.clone());
        async move {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            greatest.fetch_max(now, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Failure>(())
        }
    };
    let router = router(handler).batches(Batches::of_one_key(60).at_once(3));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.released), (60, 0));
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert_eq!(runs.sizes(), [3; 20]);
    let firsts: Vec<_> = runs.all().into_iter().map(|ids| ids[0].clone()).collect();
    assert!(firsts.is_sorted(), "{firsts:?}");
}

#[tokio::test(start_paused = true)]
async fn batches_that_wait_for_their_turn_are_handed_back_at_a_stop() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l", "m"], 2)).await;
    let shutdown = CancellationToken::new();
    let (seen, stop) = (runs.clone(), shutdown.clone());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        stop.cancel();
        async {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, Failure>(())
        }
    };
    let router = router(handler).batches(Batches::of_one_key(10).at_once(1));
    let processor = processor(&spy, router).build().unwrap();
    let summary = processor.run(shutdown).await.unwrap();
    assert_eq!((summary.processed, summary.released), (2, 4), "{summary:?}");
    assert_eq!(runs.all(), [numbered("k", 0..2)]);
    for id in ["l-0", "l-1", "m-0", "m-1"] {
        let record = spy.record(id).await;
        assert_eq!((record.state, record.attempts.started), (State::Pending, 0));
    }
}

/// Another worker may have room for them.
#[tokio::test(start_paused = true)]
async fn batches_that_wait_for_too_long_are_handed_back() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 1)).await;
    let (store, seen) = (spy.clone(), runs.clone());
    let handler = move |batch: Batch| {
        seen.add(&batch);
        let store = store.clone();
        async move {
            while has(&batch, "k-0") && store.record("l-0").await.state == State::Leased {
                sleep(Duration::from_secs(1)).await;
            }
            Ok::<_, Failure>(())
        }
    };
    let router = router(handler).batches(Batches::of_one_key(10).at_once(1));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.released), (2, 1), "{summary:?}");
    assert_eq!(runs.all().concat(), ["k-0", "l-0"]);
}

#[tokio::test(start_paused = true)]
async fn one_by_one_runs_a_handler_for_single_messages() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 5)).await;
    let seen = runs.clone();
    let handler = one_by_one(move |context: Context| {
        let seen = seen.clone();
        async move {
            let id = context.message().id().to_string();
            let is_first = context.attempts().started == 1;
            assert!(!(id == "k-1" && is_first), "not the first time");
            if id == "l-3" && is_first {
                return Err(Failure::retry("later"));
            }
            seen.add(&Batch::new(vec![context]));
            Ok(Completion::with_result(id))
        }
    });
    let router = router(handler)
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once());
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (10, 2));
    for key in ["k", "l"] {
        assert_eq!(of_key(&runs.all().concat(), key), numbered(key, 0..5));
    }
    assert_eq!(spy.record("k-4").await.result.unwrap(), "k-4");
    assert_eq!(spy.record("k-1").await.attempts.started, 2);
    assert_eq!(spy.record("k-2").await.attempts.started, 1);
}

/// Works on the messages of a batch, and never ends with this one at its first time.
fn one_that_hangs(id: &'static str, runs: &Runs) -> Router {
    let seen = runs.clone();
    let handler = one_by_one(move |context: Context| {
        let seen = seen.clone();
        async move {
            if context.message().id().as_str() == id && context.attempts().started == 1 {
                std::future::pending::<()>().await;
            }
            seen.add(&Batch::new(vec![context]));
            Ok::<_, Failure>(())
        }
    });
    router(handler)
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once())
}

#[tokio::test(start_paused = true)]
async fn what_one_by_one_has_done_counts_when_its_batch_is_timed_out() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 3)).await;
    let router = one_that_hangs("k-1", &runs).timeout(Duration::from_secs(5));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (6, 1));
    let all = runs.all().concat();
    for key in ["k", "l"] {
        assert_eq!(of_key(&all, key), numbered(key, 0..3));
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_by_one_has_done_counts_when_its_batch_is_dropped() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 3)).await;
    let builder = processor(&spy, one_that_hangs("k-1", &runs)).drain_limit(Duration::from_secs(1));
    let (processor, shutdown) = (builder.build().unwrap(), CancellationToken::new());
    let stop = async {
        eventually("one is done", async || runs.len() == 1).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), stop);
    let summary = summary.unwrap();
    assert_eq!((summary.processed, summary.released), (1, 5));
    assert_eq!(runs.all().concat(), ["k-0"]);
    assert_eq!(spy.count(State::Processed).await, 1);
    // It was told to stop.
    assert_eq!(spy.record("k-1").await.attempts.started, 0);
}

/// The time limit is the batch's, and most of it went to the first.
#[tokio::test(start_paused = true)]
async fn the_last_of_one_by_one_does_not_pay_for_a_limit_that_others_have_used() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all([message("0"), message("1")]).await;
    let seen = runs.clone();
    let handler = one_by_one(move |context: Context| {
        let seen = seen.clone();
        async move {
            sleep(Duration::from_secs(3)).await;
            seen.add(&Batch::new(vec![context]));
            Ok::<_, Failure>(())
        }
    });
    let router = router(handler).timeout(Duration::from_secs(5));
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (2, 0), "{summary:?}");
    assert_eq!(runs.all().concat(), ["0", "1"]);
}

/// What failed before the stop has not failed for its sake.
#[tokio::test(start_paused = true)]
async fn what_one_by_one_has_failed_pays_for_it_though_its_batch_is_dropped() {
    let spy = spy();
    spy.receive_all([message("0"), message("1")]).await;
    let hangs = Arc::new(Notify::new());
    let signal = hangs.clone();
    let handler = one_by_one(move |context: Context| {
        let signal = signal.clone();
        async move {
            if context.message().id().as_str() == "1" {
                signal.notify_one();
                std::future::pending::<()>().await;
            }
            Err::<(), _>(Failure::retry("no such order"))
        }
    });
    let router = router(handler).retry(RetryPolicy::default());
    let builder = processor(&spy, router).drain_limit(Duration::from_secs(1));
    let (processor, shutdown) = (builder.build().unwrap(), CancellationToken::new());
    let stop = async {
        hangs.notified().await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), stop);
    let summary = summary.unwrap();
    assert_eq!((summary.retried, summary.released), (1, 1), "{summary:?}");
    assert_eq!(spy.record("0").await.attempts.finished, 1);
    assert_eq!(spy.record("1").await.attempts.started, 0);
}

/// The batch is timed out, runs in halves, and the first of them blocks its thread for longer than the lease.
#[tokio::test(start_paused = true)]
async fn what_one_by_one_has_not_come_to_pays_for_nothing() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..2).map(|n| in_order(n, "k"))).await;
    let seen = runs.clone();
    let handler = one_by_one(hangs_once(move |context| {
        let seen = seen.clone();
        async move {
            if context.message().id().as_str() == "0" {
                tokio::time::advance(Duration::from_secs(61)).await;
            }
            seen.add(&Batch::new(vec![context]));
        }
    }));
    let router = router(handler)
        .batches(Batches::up_to(10).runs(10))
        .retry(at_once());
    let builder = processor(&spy, router.timeout(Duration::from_secs(100)));
    let builder = builder.lease(Duration::from_secs(60));
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!((summary.processed, summary.retried), (2, 0));
    assert_eq!(runs.all().concat(), ["0", "1"]);
    assert_eq!(spy.record("1").await.attempts.started, 1);
}

/// Fails the second message of the key before its batch.
struct Gate;

#[async_trait::async_trait]
impl Middleware for Gate {
    async fn handle(&self, context: &Context, next: Next) -> Result<Completion, Failure> {
        if context.message().id().as_str() == "k-1" && context.attempts().started == 1 {
            return Err(Failure::retry("not at the first time"));
        }
        next.run(context).await
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_that_fails_a_message_holds_those_behind() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 3)).await;
    let router = router(seen(&runs))
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once())
        .middleware(Gate);
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (6, 1));
    for key in ["k", "l"] {
        assert_eq!(of_key(&runs.all().concat(), key), numbered(key, 0..3));
    }
}

/// Fails the first message of the key at its first time, when the batch has answered.
struct FailsBehind;

#[async_trait::async_trait]
impl Middleware for FailsBehind {
    async fn handle(&self, context: &Context, next: Next) -> Result<Completion, Failure> {
        let ended = next.run(context).await;
        let is_first = context.message().id().as_str().ends_with("-0");
        if is_first && context.attempts().started == 1 {
            // The others have ended by then.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Err(Failure::retry("not at the first time"));
        }
        ended
    }
}

#[tokio::test(start_paused = true)]
async fn middleware_that_fails_a_message_after_its_batch_holds_those_behind() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k", "l"], 3)).await;
    let mut plain = interleaved(&["p"], 1);
    let plain = plain.remove(0);
    spy.receive_all([plain]).await;
    let router = router(seen(&runs))
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once())
        .middleware(FailsBehind);
    let summary = until_idle_by_a_paused_clock(processor(&spy, router)).await;
    assert_eq!((summary.processed, summary.retried), (7, 3));
    let all = runs.all();
    let (first, again) = all.split_first().unwrap();
    let again = again.concat();
    for key in ["k", "l"] {
        // Those behind come again, untouched, when the first is there.
        assert_eq!(of_key(first, key), numbered(key, 0..3));
        assert_eq!(of_key(&again, key), numbered(key, 0..3));
        for n in 1..3 {
            assert_eq!(spy.record(format!("{key}-{n}")).await.attempts.started, 1);
        }
    }
}

/// Retries, dead letters, defects of the whole and time-outs, at random: the handlers of a key see its
/// messages in their order, and none twice in a row that succeeded.
#[tokio::test(start_paused = true)]
async fn order_holds_whatever_handlers_do() {
    for seed in 0..24 {
        let (spy, runs) = (spy(), Runs::default());
        let keys = ["a", "b", "c", "d", "e"];
        spy.receive_all(interleaved(&keys, 30)).await;
        let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        let seen = runs.clone();
        let handler = move |batch: Batch| {
            let (seen, random) = (seen.clone(), random.clone());
            async move {
                let roll = random.lock().unwrap().u32(0..10);
                match roll {
                    0 => return Err(Failure::retry("all of it")),
                    1 => panic!("all of it"),
                    2 => tokio::time::sleep(Duration::from_secs(30)).await,
                    _ => {}
                }
                let mut cut = std::collections::HashSet::new();
                let mut answers = Vec::new();
                let mut done = Vec::new();
                for context in &batch {
                    let key = context.message().ordering_key().cloned();
                    let roll = random.lock().unwrap().u32(0..20);
                    let answer = match roll {
                        0 => Err(Failure::retry("one of it")),
                        1 => Err(Failure::defer(Duration::ZERO, "one of it")),
                        _ => Ok(()),
                    };
                    if answer.is_ok() && !cut.contains(&key) {
                        done.push(context.clone());
                    } else {
                        cut.insert(key);
                    }
                    answers.push(answer);
                }
                if !done.is_empty() {
                    seen.add(&Batch::new(done));
                }
                Ok(answers)
            }
        };
        let router = router(handler)
            .batches(match seed % 3 {
                0 => Batches::up_to(40).runs(8),
                1 => Batches::of_one_key(12),
                _ => Batches::up_to(100).runs(3).at_once(4),
            })
            .retry(at_once())
            .timeout(Duration::from_secs(10));
        let processor = processor(&spy, router);
        let summary = until_idle_by_a_paused_clock(processor).await;
        assert_eq!(summary.processed, 150, "seed {seed}");
        let mut last: HashMap<String, usize> = HashMap::new();
        for id in runs.all().concat() {
            let (key, number) = id.split_once('-').unwrap();
            let next = last.entry(key.to_owned()).or_default();
            assert_eq!(number.parse::<usize>().unwrap(), *next, "seed {seed}: {id}");
            *next += 1;
        }
    }
}
