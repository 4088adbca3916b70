//! The statistics of the last hour, kept by this process: stores count states, not rates.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use inbox::{HandlerName, Inbox, Statistics};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::{command_pauses, fault::Fault, reading::within};

/// How long statistics are good for: many who look cost the store no more than one does.
const FRESH: Duration = Duration::from_secs(1);

/// How often a sample is taken, and for how long samples are kept.
const INTERVAL: Duration = Duration::from_secs(30);
const SAMPLES: usize = 120;

/// How many samples the rate per minute is over.
const RATE_SAMPLES: usize = 4;

/// The inbox at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) statistics: Statistics,
    /// All that are paused, with messages or without, as far as operators are shown them.
    pub(crate) paused: Vec<HandlerName>,
    pub(crate) version: Option<u32>,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    processed: BTreeMap<HandlerName, u64>,
}

/// Reads statistics for all who look, and keeps samples of them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    latest: AsyncMutex<Option<(Instant, Arc<Snapshot>)>>,
    samples: Mutex<VecDeque<Sample>>,
}

impl Watch {
    /// The inbox now, or a second ago. In an outage those who wait for each other do not wait longer.
    pub(crate) async fn snapshot(&self, store: &dyn Inbox) -> Result<Arc<Snapshot>, Fault> {
        within(async {
            let mut latest = self.latest.lock().await;
            if let Some((at, snapshot)) = &*latest
                && at.elapsed() < FRESH
            {
                return Ok(Arc::clone(snapshot));
            }
            let snapshot = Arc::new(Snapshot {
                statistics: store.statistics().await?,
                paused: command_pauses::shown(&store.paused().await?),
                version: store.version().await?,
            });
            *latest = Some((Instant::now(), Arc::clone(&snapshot)));
            Ok(snapshot)
        })
        .await
    }

    /// Forgets what was read, as after a change.
    pub(crate) async fn renew(&self) {
        *self.latest.lock().await = None;
    }

    /// Takes a sample now and then, for as long as the dashboard is there.
    pub(crate) async fn run(watch: Weak<Self>, store: Arc<dyn Inbox>) {
        loop {
            let Some(watch) = watch.upgrade() else {
                return;
            };
            if let Ok(snapshot) = watch.snapshot(store.as_ref()).await {
                watch.add(&snapshot.statistics, Instant::now());
            }
            drop(watch);
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn add(&self, statistics: &Statistics, at: Instant) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let processed = statistics.handlers.iter();
        let processed = processed
            .map(|h| (h.handler.clone(), h.processed))
            .collect();
        samples.push_back(Sample { at, processed });
        let surplus = samples.len().saturating_sub(SAMPLES);
        samples.drain(..surplus);
    }

    /// How many messages of a handler were processed per minute, between each sample and the next, oldest
    /// first. A purge between them makes it fewer.
    pub(crate) fn rates(&self, handler: &HandlerName) -> Vec<f64> {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |sample: &Sample| sample.processed.get(handler).copied().unwrap_or_default();
        samples
            .iter()
            .zip(samples.iter().skip(1))
            .map(|(earlier, later)| {
                let minutes = later.at.duration_since(earlier.at).as_secs_f64() / 60.0;
                of(later).saturating_sub(of(earlier)) as f64 / minutes.max(f64::EPSILON)
            })
            .collect()
    }
}

/// The rate of late, of what [`Watch::rates`] returns.
pub(crate) fn latest_rate(rates: &[f64]) -> Option<f64> {
    let late = &rates[rates.len().saturating_sub(RATE_SAMPLES)..];
    (!late.is_empty()).then(|| late.iter().sum::<f64>() / late.len() as f64)
}

#[cfg(test)]
mod tests {
    use inbox::HandlerStatistics;

    use super::*;

    #[test]
    fn rates_are_per_minute_and_samples_are_bounded() {
        let watch = Watch::default();
        let name = HandlerName::new("h").unwrap();
        let start = Instant::now();
        for n in 0..200 {
            let statistics = Statistics {
                handlers: vec![HandlerStatistics {
                    processed: n * 10,
                    ..HandlerStatistics::empty(name.clone())
                }],
            };
            watch.add(&statistics, start + INTERVAL * u32::try_from(n).unwrap());
        }
        let rates = watch.rates(&name);
        assert_eq!(rates.len(), SAMPLES - 1);
        assert!((latest_rate(&rates).unwrap() - 20.0).abs() < 0.001);
        assert_eq!(latest_rate(&[]), None);
        // A purge is no negative rate.
        watch.add(&Statistics::default(), start + INTERVAL * 200);
        assert_eq!(watch.rates(&name).last(), Some(&0.0));
    }
}
