//! Messages that a claim of this worker's brings although it holds them: their leases ran out, their outcome has no answer
//! yet, or an operator has replayed them.

use std::time::Duration;

use inbox::{
    Batch, Batches, Context, Edit, Failure, Intervention, Outcome, PurgeRequest, Settled, State,
    StoreExt as _, WorkerName, one_by_one,
};

use super::{
    runs::{at_once, hangs_once, seen},
    *,
};

/// Another worker takes the next message, which is this one, and processes it.
async fn another_processes(spy: &Spy, id: &str) {
    let (other, lease) = (WorkerName::new("other").unwrap(), Duration::from_secs(60));
    let taken = spy.inner.claim_for(&billing(), 1, lease, &other).await;
    let taken = taken.unwrap().leased;
    assert_eq!(taken[0].message.id().as_str(), id);
    let done = Outcome::Processed { result: None };
    let settled = spy.inner.settle_one(&taken[0].lease, done).await;
    assert_eq!(settled.unwrap(), Settled::Done);
}

/// The store's clock jumps: the first is claimed again by this worker, and the others are lost. Then the batch is timed
/// out, and the first half has one of these.
#[tokio::test(start_paused = true)]
async fn what_is_done_counts_although_the_one_behind_was_lost_before() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..3).map(|n| in_order(n, "k"))).await;
    let seen = runs.clone();
    let handler = one_by_one(hangs_once(move |context| {
        let seen = seen.clone();
        async move { seen.add(&Batch::new(vec![context])) }
    }));
    let router = router(handler)
        .batches(Batches::up_to(10).runs(10))
        .retry(at_once());
    let builder = processor(&spy, router.timeout(Duration::from_secs(30)));
    let processor = builder.lease(Duration::from_secs(60)).build().unwrap();
    let shutdown = CancellationToken::new();
    let jump = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        spy.clock.advance(Duration::from_secs(120));
        tokio::time::sleep(Duration::from_secs(60)).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), jump);
    assert_eq!(runs.all().concat(), ["0", "1", "2"]);
    assert_eq!(summary.unwrap().processed, 3);
}

/// Its outcome is stored and not answered when the message is purged, and comes again as a new one.
#[tokio::test(start_paused = true)]
async fn a_message_of_the_same_key_is_not_taken_for_what_is_held() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all([in_order(0, "k")]).await;
    spy.disturb("settle", Trouble::HoldAnswer);
    let router = router(seen(&runs)).batches(Batches::up_to(10).runs(10));
    let (processor, shutdown) = (
        processor(&spy, router).build().unwrap(),
        CancellationToken::new(),
    );
    let again = async {
        eventually("settled", async || spy.count(State::Processed).await == 1).await;
        let all = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
        assert_eq!(spy.inner.purge(&all).await.unwrap(), 1);
        spy.receive_all([in_order(0, "k")]).await;
        eventually("leased", async || spy.count(State::Leased).await == 1).await;
        spy.calm("settle");
        eventually("settled", async || spy.count(State::Processed).await == 1).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), again);
    assert_eq!(runs.all().concat(), ["0", "0"]);
    assert_eq!(summary.unwrap().processed, 2);
}

/// An operator replays what is done or dead before this worker has the answer to its outcome. If another worker has had
/// and lost it before this one claims it, its attempts are those of a lease that ran out.
#[tokio::test(start_paused = true)]
async fn what_is_replayed_before_its_outcome_is_answered_is_run() {
    let (held, lost) = (Trouble::HoldAnswer, Trouble::LoseReply);
    for (fails, trouble, others_lose_it) in [
        (false, held, false),
        (false, held, true),
        (false, lost, false),
        (true, lost, false),
    ] {
        let (spy, runs) = (spy(), Runs::default());
        let message = in_order(0, "k");
        spy.receive_all([message.clone()]).await;
        spy.disturb("settle", trouble);
        let seen = runs.clone();
        let handler = move |batch: Batch| {
            seen.add(&batch);
            let is_dead = fails && seen.len() == 1;
            std::future::ready(match is_dead {
                true => Err(Failure::dead("planned")),
                false => Ok(()),
            })
        };
        let router = router(handler).batches(Batches::up_to(10).runs(10));
        let (processor, shutdown) = (
            processor(&spy, router).build().unwrap(),
            CancellationToken::new(),
        );
        let first = if fails { State::Dead } else { State::Processed };
        let again = async {
            eventually("settled", async || spy.count(first).await == 1).await;
            if others_lose_it {
                spy.disturb("claim", Trouble::Hold);
            }
            let replayed = spy.inner.replay(message.key(), &Edit::default()).await;
            assert_eq!(replayed.unwrap(), Intervention::Done);
            if others_lose_it {
                let (other, lease) = (WorkerName::new("other").unwrap(), Duration::from_secs(1));
                let taken = spy.inner.claim_for(&billing(), 1, lease, &other).await;
                assert_eq!(taken.unwrap().leased.len(), 1);
                spy.clock.advance(2 * lease);
                spy.calm("claim");
            }
            eventually("leased", async || spy.count(State::Leased).await == 1).await;
            spy.calm("settle");
            eventually("settled", async || spy.count(State::Processed).await == 1).await;
            shutdown.cancel();
        };
        let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), again);
        assert_eq!(runs.all().concat(), ["0", "0"]);
        let summary = summary.unwrap();
        assert_eq!(summary.processed + summary.dead, 2);
    }
}

/// The store's clock jumps, another worker handles what runs here, and an operator replays it.
#[tokio::test(start_paused = true)]
async fn a_replay_of_what_still_runs_here_is_run_behind_it() {
    let (spy, runs) = (spy(), Runs::default());
    let message = in_order(0, "k");
    spy.receive_all([message.clone()]).await;
    let (seen, at_a_time) = (runs.clone(), Arc::new(Mutex::new((0, 0))));
    let running = at_a_time.clone();
    let handler = one_by_one(move |context: Context| {
        let (seen, running) = (seen.clone(), running.clone());
        async move {
            let now = {
                let mut count = running.lock().unwrap();
                *count = (count.0 + 1, count.1.max(count.0 + 1));
                count.0
            };
            seen.add(&Batch::new(vec![context.clone()]));
            let is_first = seen.len() == 1 && now == 1;
            if is_first {
                context.cancellation().cancelled().await;
            }
            running.lock().unwrap().0 -= 1;
            Ok::<_, Failure>(())
        }
    });
    let router = router(handler).batches(Batches::up_to(10).runs(10).at_once(2));
    let builder = processor(&spy, router).lease(Duration::from_secs(60));
    let processor = builder.build().unwrap();
    let shutdown = CancellationToken::new();
    let jump = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        spy.disturb("claim", Trouble::Hold);
        tokio::time::sleep(Duration::from_secs(2)).await;
        spy.clock.advance(Duration::from_secs(120));
        another_processes(&spy, "0").await;
        let replayed = spy.inner.replay(message.key(), &Edit::default()).await;
        assert_eq!(replayed.unwrap(), Intervention::Done);
        spy.calm("claim");
        tokio::time::sleep(Duration::from_secs(60)).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), jump);
    assert_eq!(runs.all().concat(), ["0", "0"]);
    assert_eq!(at_a_time.lock().unwrap().1, 1, "at a time");
    let summary = summary.unwrap();
    let ends = (summary.processed, summary.lease_lost, summary.deferred);
    assert_eq!(ends, (1, 1, 1));
}

/// A claim counts no attempt for what was behind another message when its lease ran out, as the store's clock went on
/// while this worker's machine slept.
#[tokio::test(start_paused = true)]
async fn the_second_of_a_run_is_not_run_twice_at_a_time() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..2).map(|n| in_order(n, "k"))).await;
    let seen = runs.clone();
    let handler = one_by_one(hangs_once(move |context| {
        let seen = seen.clone();
        async move {
            seen.add(&Batch::new(vec![context]));
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
    }));
    let router = router(handler)
        .batches(Batches::up_to(10).runs(10))
        .retry(at_once());
    let builder = processor(&spy, router.timeout(Duration::from_secs(30)));
    let processor = builder.lease(Duration::from_secs(60)).build().unwrap();
    let shutdown = CancellationToken::new();
    let asleep = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        spy.disturb("claim", Trouble::Hold);
        // The first runs again, by itself, and the leases have been renewed.
        tokio::time::sleep(Duration::from_secs(44)).await;
        spy.clock.advance(Duration::from_secs(120));
        tokio::time::sleep(Duration::from_secs(7)).await;
        // The second runs.
        assert_eq!(runs.all().concat(), ["0", "1"]);
        spy.calm("claim");
        tokio::time::sleep(Duration::from_secs(60)).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), asleep);
    assert_eq!(runs.all().concat(), ["0", "1"]);
    assert_eq!(summary.unwrap().processed, 2);
}

/// The store's clock jumps while a run is held here, another worker finishes its first, and one more message of the key
/// has come: this worker's own claim gets the rest of the run again, and the new message with it.
#[tokio::test(start_paused = true)]
async fn what_is_claimed_with_the_rest_of_a_held_run_waits_for_it() {
    let (spy, runs) = (spy(), Runs::default());
    spy.receive_all((0..2).map(|n| in_order(n, "k"))).await;
    let seen = runs.clone();
    let handler = one_by_one(move |context: Context| {
        let seen = seen.clone();
        async move {
            if context.message().id().as_str() == "0" {
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            seen.add(&Batch::new(vec![context]));
            Ok::<_, Failure>(())
        }
    });
    let router = router(handler)
        .batches(Batches::up_to(10).runs(10).at_once(2))
        .retry(at_once());
    let builder = processor(&spy, router).lease(Duration::from_secs(60));
    let processor = builder.build().unwrap();
    let shutdown = CancellationToken::new();
    let jump = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        spy.disturb("claim", Trouble::Hold);
        // A claim is under way.
        tokio::time::sleep(Duration::from_secs(2)).await;
        spy.clock.advance(Duration::from_secs(120));
        spy.receive_all([in_order(2, "k")]).await;
        another_processes(&spy, "0").await;
        spy.calm("claim");
        tokio::time::sleep(Duration::from_secs(120)).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(processor.run(shutdown.clone()), jump);
    assert_eq!(runs.all().concat(), ["0", "1", "2"]);
    assert_eq!(summary.unwrap().processed, 2);
}
