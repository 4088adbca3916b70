//! Sweeps that archive what they delete.

use std::{
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use async_trait::async_trait;
use inbox::{Archiver, Record};

use super::*;

#[derive(Clone, Default)]
pub(super) struct Shelf {
    pub(super) kept: Arc<Mutex<Vec<Record>>>,
    pub(super) calls: Arc<AtomicUsize>,
    /// The call that fails.
    pub(super) fails_at: Option<usize>,
}

#[async_trait]
impl Archiver for Shelf {
    async fn archive(&self, records: &[Record]) -> Result<(), Box<dyn Error + Send + Sync>> {
        if Some(self.calls.fetch_add(1, SeqCst)) == self.fails_at {
            return Err("the shelf is full".into());
        }
        self.kept.lock().unwrap().extend_from_slice(records);
        Ok(())
    }
}

#[tokio::test]
async fn what_is_deleted_was_archived() {
    let spy = filled().await;
    spy.clock.advance(2 * DAY);
    let shelf = Shelf::default();
    let janitor = keeping(&spy, DAY, DAY)
        .slice(4)
        .archiver(shelf.clone())
        .build()
        .unwrap();
    let sweep = janitor.sweep().await.unwrap();
    assert_eq!((sweep.processed, sweep.dead, sweep.corrupt), (10, 10, 0));
    let kept = shelf.kept.lock().unwrap().clone();
    assert_eq!(kept.len(), 20);
    assert!(kept.iter().all(|record| record.payload.is_some()));
    assert_eq!(spy.records().await.len(), 30);
}

/// While the first page lies with it, an operator replays a message of it, which is processed again.
struct Slow {
    shelf: Shelf,
    spy: Arc<Spy>,
}

#[async_trait]
impl Archiver for Slow {
    async fn archive(&self, records: &[Record]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let is_first = self.shelf.calls.load(SeqCst) == 0;
        self.shelf.archive(records).await?;
        if is_first {
            let inner = &self.spy.inner;
            let replayed = inner.replay(&records[0].key, &Edit::default()).await?;
            assert_eq!(replayed, Intervention::Done);
            let lease = begin(&self.spy, records[0].key.id.as_str()).await;
            let result = Some("second".into());
            let outcome = Outcome::Processed { result };
            assert_eq!(inner.settle_one(&lease, outcome).await?, Settled::Done);
            let long = Duration::from_secs(60);
            self.spy.clock.advance(long);
            tokio::time::sleep(long).await;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_final_again_behind_its_archiving_is_archived_again() {
    let spy = Arc::new(filled().await);
    spy.clock.advance(DAY);
    let shelf = Shelf::default();
    let slow = Slow {
        shelf: shelf.clone(),
        spy: spy.clone(),
    };
    // Shorter than the archiver takes.
    let retention = Duration::from_secs(1);
    let janitor = keeping(&spy, retention, DAY)
        .archiver(slow)
        .build()
        .unwrap();
    assert_eq!(janitor.sweep().await.unwrap().processed, 10);
    let kept = shelf.kept.lock().unwrap().clone();
    let results = kept.iter().filter(|record| record.result.is_some());
    // Ten were dead, and one comes twice.
    assert_eq!((kept.len(), results.count()), (21, 1));
}

/// Notes how many bytes of payloads it was given at a time.
struct Scales(Arc<Mutex<Vec<usize>>>);

#[async_trait]
impl Archiver for Scales {
    async fn archive(&self, records: &[Record]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let bytes = records.iter().filter_map(|record| record.payload.as_ref());
        self.0
            .lock()
            .unwrap()
            .push(bytes.map(inbox::Bytes::len).sum());
        Ok(())
    }
}

/// Large messages are archived few at a time, and small ones many.
#[tokio::test]
async fn no_more_is_archived_at_a_time_than_fits_the_memory() {
    const MIB: usize = 1024 * 1024;
    for (messages, bytes, most) in [(60_u32, MIB, 32 * MIB), (2_000, 10, 10_000)] {
        let spy = Spy::new();
        let payload = "x".repeat(bytes);
        let all: Vec<_> = (0..messages)
            .map(|n| message_of("order.placed", n, payload.clone()))
            .collect();
        let worker = WorkerName::new("w").unwrap();
        for some in all.chunks(100) {
            spy.receive_all(some.to_vec()).await;
            let claims = spy.inner.claim_for(&billing(), 100, DAY, &worker).await;
            for leased in claims.unwrap().leased {
                let outcome = Outcome::Processed { result: None };
                let _ = spy.inner.settle_one(&leased.lease, outcome).await.unwrap();
            }
        }
        spy.clock.advance(2 * DAY);
        let weights = Arc::new(Mutex::new(Vec::new()));
        let janitor = keeping(&spy, DAY, DAY)
            .archiver(Scales(Arc::clone(&weights)))
            .build()
            .unwrap();
        let sweep = janitor.sweep().await.unwrap();
        assert_eq!(sweep.purged(), u64::from(messages));
        let weights = weights.lock().unwrap();
        assert_eq!(weights.iter().sum::<usize>(), messages as usize * bytes);
        assert!(weights.iter().all(|weight| *weight <= most), "{weights:?}");
        assert!(weights.len() <= 12, "{weights:?}");
    }
}

struct Burning;

#[async_trait]
impl Archiver for Burning {
    async fn archive(&self, _: &[Record]) -> Result<(), Box<dyn Error + Send + Sync>> {
        panic!("fire")
    }
}

#[tokio::test]
async fn an_archiver_that_panics_ends_a_sweep_and_nothing_else() {
    let spy = filled().await;
    spy.clock.advance(2 * DAY);
    let janitor = keeping(&spy, DAY, DAY).archiver(Burning).build().unwrap();
    let error = janitor.sweep().await.unwrap_err();
    assert!(matches!(error, SweepError::Archiver(_)), "{error:?}");
    assert_eq!(spy.records().await.len(), 50);
}

#[tokio::test]
async fn what_the_archiver_refuses_stays() {
    let spy = filled().await;
    spy.clock.advance(2 * DAY);
    let shelf = Shelf {
        fails_at: Some(1),
        ..Shelf::default()
    };
    let janitor = keeping(&spy, DAY, DAY)
        .slice(4)
        .archiver(shelf.clone())
        .build()
        .unwrap();
    let error = janitor.sweep().await.unwrap_err();
    assert!(matches!(&error, SweepError::Archiver(e) if e.to_string() == "the shelf is full"));
    assert_eq!(spy.count(State::Processed).await, 6);
    assert_eq!(shelf.kept.lock().unwrap().len(), 4);
    assert_eq!(janitor.sweep().await.unwrap().purged(), 16);
}

#[tokio::test]
async fn an_archiver_is_not_deprived_of_payloads() {
    let spy = processed().await;
    let both = Janitor::builder(spy.inner.clone())
        .archiver(Shelf::default())
        .keep_processed(30 * DAY);
    assert!(both.keep_payloads(7 * DAY).build().is_err());
    let of_one = Janitor::builder(spy.inner.clone())
        .archiver(Shelf::default())
        .handler(billing(), Retention::new().keep_payloads(DAY));
    assert!(of_one.build().is_err());
}
