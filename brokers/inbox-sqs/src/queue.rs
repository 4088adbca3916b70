//! What a source and its deliveries have in common: the queue, and what they hold of it.

use std::{
    ops::Range,
    sync::atomic::{AtomicI64, AtomicUsize, Ordering},
    time::Duration,
};

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as Change, DeleteMessageBatchRequestEntry as Delete,
    QueueAttributeName,
};
use futures_util::{StreamExt as _, stream};
use inbox_source::{Mapping, SourceError};
use tokio::time::{Instant, timeout};

use crate::{
    SqsOptions,
    error::{again, failed, late, transient, unconfirmed},
    held::Held,
};

/// How long a request may take, with the client's own attempts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);
/// The most messages of one request.
pub(crate) const BATCH: usize = 10;
/// The most requests at once.
pub(crate) const AT_ONCE: usize = 8;
/// How often the service is asked how much is behind.
const LAG_EVERY: Duration = Duration::from_secs(15);
const UNKNOWN: i64 = -1;

type Outcome<T> = Result<T, SourceError>;

pub(crate) struct Queue {
    pub(crate) options: SqsOptions,
    pub(crate) mapping: Mapping,
    pub(crate) held: Held,
    /// The most messages to hold.
    pub(crate) most: AtomicUsize,
    /// The most bytes of them, and of one answer more.
    pub(crate) most_bytes: AtomicUsize,
    lag: AtomicI64,
}

impl Queue {
    pub(crate) fn new(options: SqsOptions, mapping: Mapping) -> Self {
        Self {
            options,
            mapping,
            held: Held::default(),
            most: AtomicUsize::new(1000),
            most_bytes: AtomicUsize::new(usize::MAX),
            lag: AtomicI64::new(UNKNOWN),
        }
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        u64::try_from(self.lag.load(Ordering::Relaxed)).ok()
    }

    /// Extends what is held again and again, gives back what was dropped, and asks how much is behind.
    pub(crate) async fn keep(&self) {
        let mut extend = tokio::time::interval(self.options.visibility / 3);
        extend.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ask = tokio::time::interval(LAG_EVERY);
        ask.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let failures = tokio::select! {
                _ = extend.tick() => {
                    let at_work = each_for(self.held.at_work(), self.options.visibility);
                    self.set_visibility(at_work).await
                }
                () = self.held.was_dropped.notified() => self.give_back().await,
                _ = ask.tick() => {
                    self.lag.store(self.ask_lag().await.unwrap_or(UNKNOWN), Ordering::Relaxed);
                    Vec::new()
                }
            };
            if let Some(error) = failures.first() {
                let count = failures.len();
                tracing::debug!(queue = self.options.queue, count, "{error}");
            }
        }
    }

    /// Gives back what was dropped. Abandoned, it is still held.
    async fn give_back(&self) -> Vec<SourceError> {
        let (numbers, receipts) = self.held.dropped();
        let failures = self.set_visibility(receipts).await;
        // What could not be given back comes again later.
        numbers
            .into_iter()
            .for_each(|number| self.held.remove(number));
        failures
    }

    /// How long each of the messages stays invisible to others from now on; zero gives it back at once.
    async fn set_visibility(&self, receipts: Vec<(String, Duration)>) -> Vec<SourceError> {
        let doing = "changing the visibility";
        let receipts = &receipts;
        in_batches(receipts.len(), |range| async move {
            let count = range.len();
            let mut entries = Vec::with_capacity(count);
            for (id, (receipt, time)) in receipts[range].iter().enumerate() {
                let entry = Change::builder().id(id.to_string()).receipt_handle(receipt);
                let entry = entry.visibility_timeout(whole_seconds(*time)).build();
                entries.push(entry.map_err(|error| transient(doing, error))?);
            }
            let client = &self.options.connection.client;
            let request = client
                .change_message_visibility_batch()
                .queue_url(self.options.url())
                .set_entries(Some(entries));
            let answer = timeout(PATIENCE, request.send()).await;
            let answer = answer.map_err(|_| late(doing))?;
            let answer = answer.map_err(|error| failed(doing, &error))?;
            let confirmed = answer.successful.iter().map(|entry| entry.id.as_str());
            Ok(unconfirmed(doing, count, confirmed, &answer.failed))
        })
        .await
        .into_iter()
        .map(|(_, error)| error)
        .collect()
    }

    /// Deletes them, and says which it could not, by their place.
    pub(crate) async fn delete(&self, receipts: &[String]) -> Vec<(usize, SourceError)> {
        let doing = "acknowledging";
        in_batches(receipts.len(), |range| async move {
            let count = range.len();
            let mut entries = Vec::with_capacity(count);
            for (id, receipt) in receipts[range].iter().enumerate() {
                let entry = Delete::builder().id(id.to_string()).receipt_handle(receipt);
                entries.push(entry.build().map_err(|error| transient(doing, error))?);
            }
            let client = &self.options.connection.client;
            let request = client
                .delete_message_batch()
                .queue_url(self.options.url())
                .set_entries(Some(entries));
            let answer = timeout(PATIENCE, request.send()).await;
            let answer = answer.map_err(|_| late(doing))?;
            let answer = answer.map_err(|error| failed(doing, &error))?;
            let confirmed = answer.successful.iter().map(|entry| entry.id.as_str());
            Ok(unconfirmed(doing, count, confirmed, &answer.failed))
        })
        .await
    }

    /// `None` where the service does not say, or not to this user.
    async fn ask_lag(&self) -> Option<i64> {
        let name = QueueAttributeName::ApproximateNumberOfMessages;
        let client = &self.options.connection.client;
        let request = client
            .get_queue_attributes()
            .queue_url(self.options.url())
            .attribute_names(name.clone());
        let answer = timeout(PATIENCE, request.send()).await.ok()?.ok()?;
        answer.attributes?.get(&name)?.parse().ok()
    }

    /// Gives back all that is held.
    pub(crate) async fn leave(&self, deadline: Instant) -> Outcome<()> {
        let all = self.set_visibility(each_for(self.held.take_all(), Duration::ZERO));
        let failures = tokio::time::timeout_at(deadline, all).await;
        let failures = failures.map_err(|_| late("giving back"))?;
        match failures.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Makes requests for so many entries, ten each, several at once, and returns what failed by the entry's place. A
/// request that fails has failed for each of its own.
pub(crate) async fn in_batches<F>(
    count: usize,
    request: impl Fn(Range<usize>) -> F,
) -> Vec<(usize, SourceError)>
where
    F: Future<Output = Outcome<Vec<(usize, SourceError)>>>,
{
    let mut requests = Vec::new();
    for begin in (0..count).step_by(BATCH) {
        let range = begin..count.min(begin + BATCH);
        let answer = request(range.clone());
        requests.push(async move {
            match answer.await {
                Ok(failures) => failures
                    .into_iter()
                    .map(|(place, error)| (begin + place, error))
                    .collect::<Vec<_>>(),
                Err(error) => range.map(|place| (place, again(&error))).collect(),
            }
        });
    }
    let answers = stream::iter(requests).buffer_unordered(AT_ONCE);
    answers
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .flatten()
        .collect()
}

fn each_for(receipts: Vec<String>, time: Duration) -> Vec<(String, Duration)> {
    let receipts = receipts.into_iter();
    receipts.map(|receipt| (receipt, time)).collect()
}

/// As the service counts them.
pub(crate) fn whole_seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}
