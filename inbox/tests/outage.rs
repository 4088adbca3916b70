//! A worker never competes with itself: after an outage, whatever its length, what it has finished
//! is settled and what it runs is renewed before it claims again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's helpers are tests too"
)]

mod processor_support;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox::{CancellationToken, Context, ErrorKind, Processor, Router, State};
use processor_support::*;
use tokio::time::sleep;

/// How many outages; more by hand, such as `INBOX_OUTAGE_SEEDS=1000`.
fn seeds() -> u64 {
    let seeds = std::env::var("INBOX_OUTAGE_SEEDS").ok();
    seeds.map_or(60, |seeds| seeds.parse().unwrap())
}

/// Who runs now, and how often each message was run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<HashMap<String, (usize, usize)>>>);

impl Runs {
    fn begin(&self, id: &str) {
        let mut runs = self.0.lock().unwrap();
        let (now, ever) = runs.entry(id.to_owned()).or_default();
        *now += 1;
        *ever += 1;
        assert_eq!(*now, 1, "two handlers of one message at a time");
    }

    fn end(&self, id: &str) {
        self.0.lock().unwrap().get_mut(id).unwrap().0 -= 1;
    }
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
        let seen = seen.clone();
        async move {
            let id = context.message().id().as_str().to_owned();
            seen.begin(&id);
            sleep(Duration::from_millis(fastrand::u64(0..=longest))).await;
            seen.end(&id);
            Ok(())
        }
    });
    let processor = Processor::builder(spy.clone())
        .router(router)
        .concurrency(fastrand::usize(10..40))
        .build()
        .unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { processor.run(shutdown).await }
    });

    // The first claim gets through, what it leads to does not, or in part.
    sleep(Duration::from_millis(fastrand::u64(1..=3))).await;
    let trouble = match fastrand::u8(..3) {
        0 => Trouble::Hold,
        1 => Trouble::LoseReply,
        _ => Trouble::Refuse(ErrorKind::Unavailable),
    };
    let mut operations = ["claim", "settle", "extend"];
    for operation in operations {
        // A lost reply to a settlement loses nothing, and one to a claim an attempt.
        let is_claim = operation == "claim" && matches!(trouble, Trouble::LoseReply);
        let unavailable = Trouble::Refuse(ErrorKind::Unavailable);
        spy.disturb(operation, if is_claim { unavailable } else { trouble });
    }
    sleep(Duration::from_millis(fastrand::u64(40_000..200_000))).await;
    fastrand::shuffle(&mut operations);
    for operation in operations {
        spy.calm(operation);
        sleep(Duration::from_millis(fastrand::u64(0..20))).await;
    }

    sleep(Duration::from_secs(400)).await;
    shutdown.cancel();
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary.lease_lost, 0, "seed {seed}");
    assert_eq!(summary.abandoned, 0, "seed {seed}");
    assert_eq!(spy.count(State::Processed).await, 10, "seed {seed}");
    for (id, (_, ever)) in runs.0.lock().unwrap().iter() {
        assert_eq!(*ever, 1, "seed {seed}: message {id}");
    }
}
