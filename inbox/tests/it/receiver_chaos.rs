//! The receiver under random store faults, shutdowns and dropped runs: whatever happens, the
//! acknowledgements are a gapless prefix of the deliveries and everything acknowledged is stored.

use std::{sync::Arc, time::Duration};

use inbox::{
    ClaimRequest, ErrorKind, Filter, HandlerName, Inbox, LeaseTerms, Operate as _, OrderingKey,
    Outcome, Settlement, WorkerName, receiver::Receiver,
};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{self, Broker},
    faulty::{Fault, FaultyStore, handler, memory, message},
};

const DELIVERIES: usize = 300;

#[tokio::test(start_paused = true)]
async fn random_faults_lose_nothing_and_keep_the_order() {
    for seed in 0..60 {
        chaos(seed).await;
    }
}

async fn chaos(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let inbox = memory().await;
    let store = Arc::new(FaultyStore::new(inbox.clone()));
    let handlers = [handler("billing"), handler("mail")];
    let broker = Broker::for_handlers(inbox.clone(), &handlers);
    for n in 0..DELIVERIES {
        // Now and then a batch has none of them.
        broker.queue(match random.u8(0..40) {
            0..10 => message(n).with_ordering_key(OrderingKey::new("a").unwrap()),
            _ => message(n),
        });
        if random.u8(..) < 20 {
            broker.step(broker::Step::Wait(Duration::from_millis(random.u64(1..30))));
        }
    }
    let receiver = Receiver::builder(store.clone())
        .batch_size(random.usize(1..40))
        .max_unacknowledged(random.usize(1..60))
        .linger(Duration::from_millis(random.u64(0..10)))
        .drain_limit(Duration::from_millis(random.u64(0..200)))
        .fan_out(handlers.clone())
        .build();
    let mut runs = 0;
    while broker.acknowledged_in_order() < DELIVERIES {
        runs += 1;
        assert!(runs < 500, "seed {seed} makes no progress");
        plan(&mut random, &store);
        let patience = Duration::from_millis(random.u64(1..400));
        let mut source = broker.source();
        let shutdown = CancellationToken::new();
        let run = receiver.run(&mut source, shutdown.clone());
        if random.bool() {
            // Dropped wherever it is.
            let _ = tokio::time::timeout(patience, run).await;
        } else {
            let stop = async {
                tokio::time::sleep(patience).await;
                shutdown.cancel();
            };
            let (ended, ()) = tokio::join!(run, stop);
            if let Ok(summary) = ended {
                let known = summary.accepted + summary.duplicates;
                assert_eq!(summary.received, known + summary.abandoned(), "seed {seed}");
            }
        }
        assert_eq!(broker.outstanding(), 0, "seed {seed}: a delivery leaked");
    }
    let stored = inbox.count(&Filter::default()).await.unwrap();
    assert_eq!(stored, 2 * DELIVERIES as u64, "seed {seed}");
    for handler in handlers {
        in_order(&*inbox, handler, seed).await;
    }
}

/// Claims all messages, and checks that those with the ordering key come in the order of delivery.
async fn in_order(inbox: &dyn Inbox, handler: HandlerName, seed: u64) {
    let worker = WorkerName::new("w").unwrap();
    let terms = LeaseTerms::new(Duration::from_secs(60), worker).unwrap();
    let request = ClaimRequest {
        handlers: vec![handler],
        limit: 1000,
        run_limit: 1,
        terms,
    };
    let mut last = None;
    loop {
        let claimed = inbox.claim(&request).await.unwrap().leased;
        if claimed.is_empty() {
            break;
        }
        let mut settlements = Vec::new();
        for leased in claimed {
            if leased.message.ordering_key().is_some() {
                let number: usize = leased.message.id().as_str().parse().unwrap();
                assert!(last < Some(number), "seed {seed}: {number} behind {last:?}");
                last = Some(number);
            }
            settlements.push(Settlement {
                lease: leased.lease,
                outcome: Outcome::Processed { result: None },
            });
        }
        inbox.settle(&settlements).await.unwrap();
    }
    assert!(last.is_some());
}

fn plan(random: &mut fastrand::Rng, store: &FaultyStore) {
    let faults = (0..random.usize(0..8)).map(|_| match random.u8(0..8) {
        0..=2 => Fault::Before(ErrorKind::Unavailable),
        3 | 4 => Fault::After(ErrorKind::Unavailable),
        5 => Fault::Before(ErrorKind::Conflict),
        6 => Fault::Before(ErrorKind::SchemaMissing),
        _ => Fault::Hang,
    });
    store.forget_plans();
    store.plan("receive", faults.collect::<Vec<_>>());
}
