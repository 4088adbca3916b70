//! How a run rests between slices.

use async_trait::async_trait;
use inbox::{Archiver, Clock, Record};
use tokio::{sync::mpsc, time::Instant};

use super::*;

/// Takes a while, and notes when it was called.
struct Noting {
    called: mpsc::UnboundedSender<Instant>,
    clock: Clock,
}

#[async_trait]
impl Archiver for Noting {
    async fn archive(&self, _: &[Record]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.called.send(Instant::now())?;
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.clock.advance(Duration::from_secs(1));
        Ok(())
    }
}

/// A janitor of a hundred discarded messages, in slices of ten; it tells when it archives one.
async fn janitor() -> (Janitor, mpsc::UnboundedReceiver<Instant>) {
    let spy = Spy::new();
    for n in 0..100 {
        spy.receive_all([message(n)]).await;
        let done = spy.inner.discard(&key(n)).await.unwrap();
        assert_eq!(done, Intervention::Done);
    }
    let (called, slices) = mpsc::unbounded_channel();
    let clock = spy.clock.clone();
    let janitor = Janitor::builder(spy.inner.clone())
        .keep_discarded(Duration::ZERO)
        .slice(10)
        .interval(Duration::from_secs(1))
        .archiver(Noting { called, clock });
    (janitor.build().unwrap(), slices)
}

/// The longer a sweep takes, the less it rests, so that it comes to its end.
#[tokio::test(start_paused = true)]
async fn rests_between_slices_get_shorter() {
    let (janitor, mut slices) = janitor().await;
    let (shutdown, began) = (CancellationToken::new(), Instant::now());
    let noting = async {
        let mut times = Vec::new();
        while times.len() < 10 {
            times.extend(slices.recv().await);
        }
        shutdown.cancel();
        times
    };
    let (_, times) = tokio::join!(janitor.run(shutdown.clone()), noting);
    let waits = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis());
    let waits: Vec<_> = waits.collect();
    assert_eq!(waits[0], 10 + 994);
    let get_shorter = waits.is_sorted_by(|earlier, later| earlier >= later);
    assert!(get_shorter, "{waits:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_rest() {
    let (janitor, mut slices) = janitor().await;
    let (shutdown, began) = (CancellationToken::new(), Instant::now());
    let run = async {
        let swept = janitor.run(shutdown.clone()).await;
        (swept.discarded, began.elapsed().as_millis())
    };
    let stop = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        shutdown.cancel();
    };
    let (ended, ()) = tokio::join!(run, stop);
    assert_eq!(ended, (10, 400));
    assert_eq!(slices.try_recv(), Ok(began));
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_asked_for_does_not_rest() {
    let (janitor, _slices) = janitor().await;
    let began = Instant::now();
    assert_eq!(janitor.sweep().await.unwrap().discarded, 100);
    assert_eq!(began.elapsed(), Duration::from_millis(100));
}
