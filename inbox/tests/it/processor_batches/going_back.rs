//! What goes back of a run, and in which order, so that a crash in between lets nothing come too early.

use std::time::Duration;

use inbox::{AfterDead, Batch, Batches, Context, ErrorKind, Failure};
use tokio::time::{Instant, sleep};

use super::{
    runs::{at_once, fails_the_second_once, interleaved},
    *,
};

/// Defects: a crash between two settlements left what was not reached leased, and first, before a retry; and what was
/// left for the next call was turned round.
#[tokio::test(start_paused = true)]
async fn what_is_not_reached_goes_back_before_what_failed_the_last_first() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k"], 7)).await;
    let router = router(fails_the_second_once(&runs))
        .batches(Batches::up_to(100).runs(100))
        .retry(at_once());
    let builder = processor(&spy, router).settle_batching(1, Duration::ZERO);
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!((summary.processed, summary.retried), (7, 1));
    let settled = spy.settled_ids.lock().unwrap().concat();
    let expected = ["k-6", "k-5", "k-4", "k-3", "k-2", "k-0", "k-1"];
    assert_eq!(settled[..7], expected);
}

/// Defect: the same before a dead message that blocks.
#[tokio::test(start_paused = true)]
async fn what_a_dead_message_blocks_goes_back_before_it() {
    let spy = spy();
    spy.receive_all(interleaved(&["k"], 4)).await;
    let answer = |context: &Context| match context.message().id().as_str() {
        "k-1" => Err(Failure::dead("never")),
        _ => Ok(()),
    };
    let handler = move |batch: Batch| {
        let answers: Vec<_> = batch.iter().map(answer).collect();
        async move { Ok::<_, Failure>(answers) }
    };
    let router = router(handler)
        .batches(Batches::up_to(100).runs(100))
        .after_dead(AfterDead::Block);
    let builder = processor(&spy, router).settle_batching(1, Duration::ZERO);
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!(
        (summary.processed, summary.dead, summary.released),
        (1, 1, 2)
    );
    let settled = spy.settled_ids.lock().unwrap().concat();
    assert_eq!(settled, ["k-3", "k-2", "k-0", "k-1"]);
}

/// Defect: what failed was retried though what was behind it could not be handed back, and came first by the turn
/// that its lease kept.
#[tokio::test(start_paused = true)]
async fn what_cannot_go_back_keeps_what_failed_before_it_leased() {
    let (spy, runs) = (spy(), Runs::default());
    spy.follow_the_runtime();
    spy.receive_all(interleaved(&["k"], 4)).await;
    spy.disturb("settle", Trouble::RefuseOnce(ErrorKind::Denied));
    let router = |runs: &Runs| {
        router(fails_the_second_once(runs))
            .batches(Batches::up_to(100).runs(100))
            .retry(at_once())
    };
    let first = processor(&spy, router(&runs)).settle_batching(1, Duration::ZERO);
    let first = first.build().unwrap();
    let run = first.run_until_idle(CancellationToken::new());
    let error = run.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let settled = spy.settled_ids.lock().unwrap().concat();
    assert_eq!(settled, ["k-3", "k-0"]);

    sleep(Duration::from_secs(60)).await;
    spy.follow();
    let again = Runs::default();
    let rest = until_idle_by_a_paused_clock(processor(&spy, router(&again))).await;
    assert_eq!(rest.processed, 3);
    assert_eq!(again.all().concat()[0], "k-1");
}

/// Defect: a worker that had taken the first of a run again went on with those behind it, whose leases that had ended, until
/// their renewal told.
#[tokio::test(start_paused = true)]
async fn what_is_behind_one_that_was_taken_again_is_given_up_at_once() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all(interleaved(&["k"], 3)).await;
    let (seen, clock) = (runs.clone(), spy.clock.clone());
    let took = Arc::new(Mutex::new(None));
    let told = took.clone();
    let handler = move |batch: Batch| {
        let is_first = seen.all().is_empty();
        seen.add(&batch);
        let (clock, told) = (clock.clone(), told.clone());
        async move {
            if is_first {
                let began = Instant::now();
                clock.advance(Duration::from_secs(60 * 60));
                batch[1].cancellation().cancelled().await;
                *told.lock().unwrap() = Some(began.elapsed());
            }
            Ok::<_, Failure>(())
        }
    };
    let router = router(handler).batches(Batches::of_one_key(10));
    let builder = processor(&spy, router).lease(Duration::from_secs(60));
    let summary = until_idle_by_a_paused_clock(builder).await;
    assert_eq!(summary.processed, 3);
    assert_eq!(runs.all().concat(), ["k-0", "k-1", "k-2", "k-1", "k-2"]);
    let took = took.lock().unwrap().unwrap();
    assert!(took < Duration::from_secs(15), "{took:?}");
}
