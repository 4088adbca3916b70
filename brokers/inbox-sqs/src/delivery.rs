//! One message of a queue, to be acknowledged or rejected.

use std::{fmt, sync::Arc, time::Duration};

use aws_sdk_sqs::types::{Message as Received, MessageSystemAttributeName as System};
use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Raw, Rejection, SourceError};
use tokio::time::timeout;

use crate::{
    Rejections,
    envelope::{MAX_ATTRIBUTES, is_fifo, is_text, text},
    error::{failed, is_of_content, late, transient},
    queue::{PATIENCE, Queue},
};

/// The attribute of a dead letter that says why, where there is room for one.
pub(crate) const REJECTION: &str = "inbox-rejection";

/// How long a message stays away that could not be deleted, or sent to the dead letters.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// A message of a queue. Dropped without an answer, it is given back at once.
pub struct SqsDelivery {
    pub(crate) envelope: Envelope,
    /// For dead letters only.
    pub(crate) received: Option<Received>,
    pub(crate) receipt: String,
    pub(crate) number: u64,
    /// How long it stays away when it is dropped unanswered.
    pub(crate) pause: Duration,
    pub(crate) queue: Arc<Queue>,
}

impl Delivery for SqsDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        self.queue.mapping.message(&self.envelope)
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.envelope.bytes())
    }

    fn raw(&self) -> Option<Raw> {
        Some(self.envelope.raw())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        match Self::acknowledge_all(vec![self]).await.pop() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        match &self.queue.options.rejections {
            // Dropped, it is given back; the queue counts how often.
            Rejections::Redrive => return Ok(()),
            Rejections::DeadLetters(queue) => {
                // Boxed, as a request of the client is large, and each future around it would be.
                let sent = Box::pin(self.send_dead_letter(queue, &rejection)).await;
                if sent.is_err() {
                    // The same would be said at once of what comes again at once.
                    self.pause = FAILURE_PAUSE;
                    return sent;
                }
            }
            Rejections::Delete => {}
        }
        self.acknowledge().await
    }

    async fn acknowledge_all(mut run: Vec<Self>) -> Vec<SourceError> {
        let mut failures = Vec::new();
        let is_together = |one: &Self, next: &Self| Arc::ptr_eq(&one.queue, &next.queue);
        for part in run.chunk_by_mut(is_together) {
            let Some(queue) = part.first().map(|one| Arc::clone(&one.queue)) else {
                continue;
            };
            let receipt = |one: &Self| {
                let newest = queue.held.receipt(one.number);
                newest.unwrap_or_else(|| one.receipt.clone())
            };
            let receipts: Vec<_> = part.iter().map(receipt).collect();
            let failed = queue.delete(&receipts).await;
            for (place, delivery) in part.iter_mut().enumerate() {
                match failed.iter().any(|(failed, _)| *failed == place) {
                    true => delivery.pause = FAILURE_PAUSE,
                    false => queue.held.remove(delivery.number),
                }
            }
            failures.extend(failed.into_iter().map(|(_, error)| error));
        }
        failures
    }
}

impl SqsDelivery {
    /// What it says.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Byte for byte, with its attributes; and with the reason, unless that makes it too large. A FIFO queue drops what
    /// it has already, so that a second rejection adds nothing.
    async fn send_dead_letter(&self, to: &str, why: &Rejection) -> Result<(), SourceError> {
        let doing = "sending a dead letter";
        let Some(received) = &self.received else {
            return Err(transient(doing, "the message is not kept"));
        };
        let attributes = received.message_attributes.clone().unwrap_or_default();
        let has_room = attributes.len() < MAX_ATTRIBUTES;
        let connection = &self.queue.options.connection;
        let mut request = connection
            .client
            .send_message()
            .queue_url(connection.queue_url(to))
            .set_message_body(received.body.clone())
            .set_message_attributes(Some(attributes));
        if is_fifo(to) {
            let system = received.attributes.as_ref();
            let group = system.and_then(|system| system.get(&System::MessageGroupId));
            request = request
                .set_message_deduplication_id(received.message_id.clone())
                .message_group_id(group.map_or("dead-letters", String::as_str));
        }
        if has_room && is_text(why.reason()) {
            let reason = text(why.reason()).map_err(|error| transient(doing, error))?;
            let with_reason = request.clone().message_attributes(REJECTION, reason);
            let answer = timeout(PATIENCE, with_reason.send()).await;
            match answer.map_err(|_| late(doing))? {
                // Perhaps for its size. How large a message may be is a setting of the queue.
                Err(error) if is_of_content(&error) => {}
                answer => return answer.map(drop).map_err(|error| failed(doing, &error)),
            }
        }
        let answer = timeout(PATIENCE, request.send()).await;
        let answer = answer.map_err(|_| late(doing))?;
        answer.map_err(|error| failed(doing, &error))?;
        Ok(())
    }
}

impl Drop for SqsDelivery {
    fn drop(&mut self) {
        self.queue.held.give_up(self.number, self.pause);
    }
}

impl fmt::Debug for SqsDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsDelivery")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}
