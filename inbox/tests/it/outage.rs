//! A worker never competes with itself: after an outage, whatever its length, what it has finished
//! is settled and what it runs is renewed before it claims again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox::{CancellationToken, Context, ErrorKind, Failure, Processor, Router, State};
use tokio::time::sleep;

use crate::processor_support::*;

/// How many outages; more by hand, such as `INBOX_OUTAGE_SEEDS=1000`.
fn seeds() -> u64 {
    let seeds = std::env::var("INBOX_OUTAGE_SEEDS").ok();
    seeds.map_or(60, |seeds| seeds.parse().unwrap())
}

/// Who runs now, and how the runs of each message ended.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<HashMap<String, Fate>>>);

#[derive(Default)]
struct Fate {
    running: usize,
    /// Ended well.
    done: u32,
    /// Asked to be run again at once.
    again: u32,
    /// Heeded the cancellation.
    cut_short: u32,
}

impl Runs {
    fn change<T>(&self, id: &str, change: impl FnOnce(&mut Fate) -> T) -> T {
        change(self.0.lock().unwrap().entry(id.to_owned()).or_default())
    }

    fn begin(&self, id: &str) {
        let running = self.change(id, |fate| {
            fate.running += 1;
            fate.running
        });
        assert_eq!(running, 1, "two handlers of one message at a time");
    }
}

/// Runs for a while drawn at random. Some heed the cancellation, and some ask for another run.
async fn handle(context: Context, runs: Runs, longest: u64) -> Result<(), Failure> {
    let id = context.message().id().as_str();
    let is_polite = fastrand::bool();
    let asks_again = fastrand::u8(..4) == 0;
    runs.begin(id);
    let work = sleep(Duration::from_millis(fastrand::u64(0..=longest)));
    let is_cut_short = tokio::select! {
        biased;
        () = work => false,
        () = context.cancellation().cancelled(), if is_polite => true,
    };
    runs.change(id, |fate| {
        fate.running -= 1;
        // An error behind the cancellation is taken for an answer to it.
        if is_cut_short || asks_again && context.cancellation().is_cancelled() {
            fate.cut_short += 1;
            return Err(Failure::retry("cut short"));
        }
        if asks_again {
            fate.again += 1;
            return Err(Failure::retry_after(Duration::ZERO, "again"));
        }
        fate.done += 1;
        Ok(())
    })
}

#[test]
fn a_worker_claims_none_of_its_own_messages_after_an_outage() {
    for seed in 0..seeds() {
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(outage(seed));
    }
}

async fn outage(seed: u64) {
    let spy = Arc::new(Spy::new());
    spy.follow_the_runtime();
    spy.receive_all((0..10).map(message)).await;
    let runs = Runs::default();
    let seen = runs.clone();
    let longest = [0, 1, 60_000, 240_000][fastrand::usize(..4)];
    let router = Router::new(billing()).on("order.placed", move |context: Context| {
        handle(context, seen.clone(), longest)
    });
    // Whether calls are given up during the outage.
    let is_patient = fastrand::bool();
    let minutes = if is_patient { 60 } else { 1 };
    let processor = Processor::builder(spy.clone())
        .router(router)
        .concurrency(fastrand::usize(1..40))
        .look_ahead(fastrand::usize(..20))
        .retry(at_once(1_000))
        .store_timeout(Duration::from_secs(minutes * 60))
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });

    // The first claim gets through, what it leads to does not, or in part.
    sleep(Duration::from_millis(fastrand::u64(1..=3))).await;
    let trouble = match fastrand::u8(..4) {
        0 => Trouble::Hold,
        1 => Trouble::HoldAnswer,
        2 => Trouble::LoseReply,
        _ => Trouble::Refuse(ErrorKind::Unavailable),
    };
    let mut operations = ["claim", "settle", "extend"];
    for operation in operations {
        // A lost reply to a settlement loses nothing, and one to a claim an attempt.
        let is_lost = match trouble {
            Trouble::LoseReply => operation == "claim",
            Trouble::HoldAnswer => operation == "claim" && !is_patient,
            _ => false,
        };
        let unavailable = Trouble::Refuse(ErrorKind::Unavailable);
        spy.disturb(operation, if is_lost { unavailable } else { trouble });
    }
    sleep(Duration::from_millis(fastrand::u64(40_000..200_000))).await;
    fastrand::shuffle(&mut operations);
    for operation in operations {
        spy.calm(operation);
        sleep(Duration::from_millis(fastrand::u64(0..20))).await;
        // The worker's machine may have slept meanwhile.
        if fastrand::bool() {
            spy.clock
                .advance(Duration::from_secs(fastrand::u64(0..100)));
        }
    }

    for _ in 0..40 {
        sleep(Duration::from_secs(100)).await;
        if spy.count(State::Processed).await == 10 {
            break;
        }
    }
    shutdown.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary.lease_lost, 0, "seed {seed}");
    assert_eq!(summary.abandoned, 0, "seed {seed}");
    assert_eq!(spy.count(State::Processed).await, 10, "seed {seed}");
    let (mut again, mut cut_short) = (0, 0);
    for (id, fate) in runs.0.lock().unwrap().iter() {
        assert_eq!(fate.done, 1, "seed {seed}: message {id}");
        again += u64::from(fate.again);
        cut_short += u64::from(fate.cut_short);
    }
    // Each that asked to be run again was, once, and paid with an attempt; what was cut short did
    // not.
    assert_eq!(summary.retried, again, "seed {seed}");
    assert!(summary.released >= cut_short, "seed {seed}");
}
