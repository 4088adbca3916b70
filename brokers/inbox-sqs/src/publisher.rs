//! The way out: messages that the service has confirmed.

use std::{collections::HashSet, fmt, slice, time::Duration};

use aws_sdk_sqs::types::SendMessageBatchRequestEntry as Entry;
use futures_util::future::join_all;
use inbox_api::{Result, hide_password, time_limit};
use inbox_source::{Envelope, Publisher, SourceError};
use tokio::time::{Instant, timeout_at};

use crate::{
    Connection,
    envelope::{Parts, is_fifo, parts},
    error::{Refusal, again, late, transient, unconfirmed, unpublished},
    options::{is_name, parse, read, unknown},
    queue::BATCH,
};

const DOING: &str = "publishing";
/// What all messages of a request may have together. Some regions and emulators take more; one message of more is sent
/// by itself.
const MAX_BYTES: usize = 256 * 1024;

type Outcome<T> = std::result::Result<T, SourceError>;
/// A message, and its place among those of the call.
type Placed = (usize, Parts);

/// Sends messages to the queues that they are addressed to by name.
///
/// A message is confirmed when the service has it, on several machines. To a FIFO queue (its name ends with
/// `.fifo`) the id goes as `MessageDeduplicationId`, so that a message that is sent again within five minutes
/// is confirmed and not stored again, and the ordering key as `MessageGroupId`; a message without a key is a
/// group by itself. What SQS does not take as such goes as its SHA-256, and in an attribute as it is. A
/// standard queue does not know what it has already; the inbox of the consumer refuses the copy by its id.
/// Headers of a message that would stand for what it has elsewhere, as its id, are not sent.
///
/// A queue that is not there is a transient error: it may be made again. A message that the service refuses for what is
/// in it, or for its size, is a permanent one.
///
/// Messages of one call go in requests of ten: to a standard queue all at once, to a FIFO queue one after the other,
/// without those of a group of which one has failed, and up to a request that fails as a whole. A request may fail for
/// some of its messages and not for others. Those of a request that is refused as a whole, for what is in it, are sent
/// again, each by itself: it says nothing of which one is the reason.
pub struct SqsPublisher {
    connection: Connection,
    limit: Duration,
}

impl SqsPublisher {
    /// A publisher to the queues of this account.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            limit: Duration::from_secs(30),
        }
    }

    /// Reads `sqs://sqs.eu-west-1.amazonaws.com/123456789012?timeout_ms=30000`, as [`Connection::from_url`] does.
    ///
    /// # Errors
    /// As [`Connection::from_url`]; `Invalid` also for a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let mut publisher = Self::new(Connection::of(&url, url.path())?);
        for (key, value) in url.query_pairs() {
            publisher = match key.as_ref() {
                "region" => publisher,
                "timeout_ms" => publisher.timeout(Duration::from_millis(read(&key, &value)?)),
                _ => return Err(unknown(&key, "region, timeout_ms")),
            };
        }
        Ok(publisher)
    }

    /// How long one call may take; 30 seconds unless set, from one to a day.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = time_limit(limit).max(Duration::from_secs(1));
        self
    }

    /// One request, or one for each message where that was refused: the service does not say for which one. An answer for
    /// each message, in their order.
    async fn send(&self, queue: &str, batch: &[Parts], until: Instant) -> Vec<Outcome<()>> {
        let sent = match self.request(queue, batch, until).await {
            Err(refusal) if refusal.is_of_content && batch.len() > 1 => {
                return self.send_alone(queue, batch, until).await;
            }
            sent => sent,
        };
        let failures = match sent {
            Ok(failures) => failures,
            Err(refusal) => return batch.iter().map(|_| Err(again(&refusal.error))).collect(),
        };
        let mut answers: Vec<_> = batch.iter().map(|_| Ok(())).collect();
        for (place, error) in failures {
            if let Some(answer) = answers.get_mut(place) {
                *answer = Err(error);
            }
        }
        answers
    }

    /// Sends each in a request of its own, without those of a group that are behind one that failed.
    async fn send_alone(&self, queue: &str, batch: &[Parts], until: Instant) -> Vec<Outcome<()>> {
        let mut failed_groups = HashSet::new();
        let mut answers = Vec::with_capacity(batch.len());
        for parts in batch {
            let group = parts.group();
            if group.is_some_and(|group| failed_groups.contains(group)) {
                answers.push(Err(behind()));
                continue;
            }
            let alone = self.request(queue, slice::from_ref(parts), until).await;
            let answer = match alone {
                Ok(failures) => failures
                    .into_iter()
                    .next()
                    .map_or(Ok(()), |(_, error)| Err(error)),
                Err(refusal) => Err(refusal.error),
            };
            failed_groups.extend(group.filter(|_| answer.is_err()));
            answers.push(answer);
        }
        answers
    }

    /// What is not confirmed, by its place.
    async fn request(
        &self,
        queue: &str,
        batch: &[Parts],
        until: Instant,
    ) -> std::result::Result<Vec<(usize, SourceError)>, Refusal> {
        let count = batch.len();
        let bytes = batch.iter().map(|parts| parts.bytes).sum();
        let mut entries = Vec::with_capacity(count);
        for (id, parts) in batch.iter().enumerate() {
            let mut entry = Entry::builder()
                .id(id.to_string())
                .message_body(&parts.body)
                .set_message_attributes(Some(parts.attributes.clone()));
            if let Some((id, group)) = &parts.fifo {
                entry = entry.message_deduplication_id(id).message_group_id(group);
            }
            entries.push(entry.build().map_err(|error| transient(DOING, error))?);
        }
        let client = &self.connection.client;
        let request = client
            .send_message_batch()
            .queue_url(self.connection.queue_url(queue))
            .set_entries(Some(entries));
        let answer = timeout_at(until, request.send()).await;
        let answer = answer.map_err(|_| late(DOING))?;
        let answer = answer.map_err(|error| unpublished(DOING, &error, bytes))?;
        let confirmed = answer.successful.iter().map(|entry| entry.id.as_str());
        Ok(unconfirmed(DOING, count, confirmed, &answer.failed))
    }

    /// The messages of one queue, by their places among all.
    async fn send_all(
        &self,
        queue: &str,
        messages: Vec<Placed>,
        until: Instant,
    ) -> Vec<(usize, Outcome<()>)> {
        if is_fifo(queue) {
            return self.send_in_order(queue, messages, until).await;
        }
        let requests = batches(messages).into_iter().map(async |batch| {
            let (places, batch): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let answers = self.send(queue, &batch, until).await;
            places.into_iter().zip(answers).collect::<Vec<_>>()
        });
        join_all(requests).await.into_iter().flatten().collect()
    }

    /// Those of a group that are behind one that failed are not sent, nor is anything behind a request that failed as a
    /// whole: the service is away.
    async fn send_in_order(
        &self,
        queue: &str,
        messages: Vec<Placed>,
        until: Instant,
    ) -> Vec<(usize, Outcome<()>)> {
        let mut failed_groups: HashSet<String> = HashSet::new();
        let mut is_away = false;
        let mut answers = Vec::with_capacity(messages.len());
        for batch in batches(messages) {
            let (not_sent, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|(_, parts)| {
                is_away
                    || parts
                        .group()
                        .is_some_and(|group| failed_groups.contains(group))
            });
            answers.extend(
                not_sent
                    .into_iter()
                    .map(|(place, _)| (place, Err(behind()))),
            );
            if batch.is_empty() {
                continue;
            }
            let groups = batch
                .iter()
                .map(|(_, parts)| parts.group().map(str::to_owned));
            let groups: Vec<_> = groups.collect();
            let (places, batch): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let answered = self.send(queue, &batch, until).await;
            is_away = answered
                .iter()
                .all(|answer| matches!(answer, Err(error) if error.is_transient()));
            for (group, answer) in groups.into_iter().zip(&answered) {
                failed_groups.extend(group.filter(|_| answer.is_err()));
            }
            answers.extend(places.into_iter().zip(answered));
        }
        answers
    }
}

fn behind() -> SourceError {
    transient(DOING, "one before it failed")
}

/// Requests of ten, and of so many bytes.
fn batches(messages: Vec<Placed>) -> Vec<Vec<Placed>> {
    let mut batches: Vec<Vec<Placed>> = Vec::new();
    let mut bytes = 0;
    for placed in messages {
        let size = placed.1.bytes;
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH && bytes + size <= MAX_BYTES => {
                bytes += size;
                batch.push(placed);
            }
            _ => {
                bytes = size;
                batches.push(vec![placed]);
            }
        }
    }
    batches
}

impl Publisher for SqsPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Outcome<()>> {
        let until = Instant::now() + self.limit;
        let mut answers: Vec<_> = messages.iter().map(|_| Err(late(DOING))).collect();
        let mut queues: Vec<(&str, Vec<Placed>)> = Vec::new();
        for (place, message) in messages.iter().enumerate() {
            let queue = message.address.as_str();
            if !is_name(queue) {
                let text = format!("{DOING}: the address is no name of a queue");
                answers[place] = Err(SourceError::permanent(text));
                continue;
            }
            let parts = match parts(message, is_fifo(queue)) {
                Ok(parts) => parts,
                Err(error) => {
                    answers[place] = Err(transient(DOING, error));
                    continue;
                }
            };
            match queues.iter_mut().find(|(name, _)| *name == queue) {
                Some((_, of_queue)) => of_queue.push((place, parts)),
                None => queues.push((queue, vec![(place, parts)])),
            }
        }
        let sending = queues
            .into_iter()
            .map(|(queue, messages)| self.send_all(queue, messages, until));
        for (place, answer) in join_all(sending).await.into_iter().flatten() {
            answers[place] = answer;
        }
        answers
    }
}

impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsPublisher")
            .field("connection", &self.connection)
            .field("limit", &self.limit)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_it_goes() {
        let url = "sqs+http://key:s%40cret@localhost:9324/1?region=r&timeout_ms=2500";
        let publisher = SqsPublisher::from_url(url).unwrap();
        assert_eq!(publisher.limit, Duration::from_millis(2500));
        assert!(!format!("{publisher:?}").contains("cret"));
        for rest in ["", "/", "/1?queue=q", "/1?timeout_ms=x"] {
            let url = format!("sqs://k:s@sqs.eu-west-1.amazonaws.com{rest}");
            assert!(SqsPublisher::from_url(&url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_secret_that_is_not_encoded_is_not_repeated() {
        let secret = "a@b/1?region=r&hunter2";
        let url = format!("sqs://key:{secret}@sqs.eu-west-1.amazonaws.com/123");
        let error = SqsPublisher::from_url(&url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }

    #[test]
    fn requests_have_ten_messages_and_no_more_bytes_than_they_may() {
        let sized = |size: usize| {
            let envelope = Envelope::new("orders", "x".repeat(size));
            parts(&envelope, false).unwrap()
        };
        let counts = |sizes: &[usize]| {
            let all = sizes.iter().map(|size| sized(*size)).enumerate();
            let batches = batches(all.collect());
            let counts = batches.iter().map(Vec::len);
            counts.collect::<Vec<_>>()
        };
        assert_eq!(counts(&[1; 25]), [10, 10, 5]);
        assert_eq!(counts(&[100_000; 5]), [2, 2, 1]);
        assert_eq!(counts(&[1, 400_000, 1]), [1, 1, 1]);
    }
}
