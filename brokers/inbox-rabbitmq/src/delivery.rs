//! One message of a queue, to be acknowledged or rejected.

use std::{fmt, sync::Arc};

use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Mapping, Raw, Rejection, SourceError};

use crate::{Rejections, error::transient, held::Tag, session::Session, stop::Stop};

/// A message of a queue. Dropped without an answer, it goes back to its queue.
pub struct RabbitMqDelivery {
    pub(crate) envelope: Envelope,
    /// What of it should be text and is none.
    pub(crate) no_text: Option<&'static str>,
    pub(crate) tag: Tag,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) session: Arc<Session>,
    pub(crate) rejections: Rejections,
    pub(crate) stop: Arc<Stop>,
}

impl Delivery for RabbitMqDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        if let Some(place) = self.no_text {
            return Err(Rejection::new(format!("its {place} is not UTF-8")));
        }
        self.mapping.message(&self.envelope)
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

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        match self.rejections {
            Rejections::DeadLetters => {
                self.session.refuse(self.tag, false).await?;
                self.session.held.remove([self.tag]);
                Ok(())
            }
            Rejections::Stop => {
                let reason = format!(
                    "a delivery was rejected ({rejection}), and rejections stop this source; it comes again when the \
                     source starts again. Let the receiver keep it (--keep-rejected), or set rejections=dead_letters \
                     if the queue has a dead-letter exchange"
                );
                self.stop.set(reason.clone());
                Err(SourceError::permanent(reason))
            }
        }
    }

    /// As much as possible at once: all up to the last of which no earlier one is without an answer.
    async fn acknowledge_all(run: Vec<Self>) -> Vec<SourceError> {
        let mut failures = Vec::new();
        // Two connections may follow each other within a run.
        for part in run.chunk_by(|one, next| Arc::ptr_eq(&one.session, &next.session)) {
            failures.extend(acknowledge_part(part).await);
        }
        failures
    }
}

/// Deliveries of one channel.
async fn acknowledge_part(part: &[RabbitMqDelivery]) -> Vec<SourceError> {
    let Some(first) = part.first() else {
        return Vec::new();
    };
    let session = &first.session;
    let tags: Vec<Tag> = part.iter().map(|delivery| delivery.tag).collect();
    let plan = session.held.plan(&tags);
    let mut failures = Vec::new();
    if let Some(last) = plan.up_to {
        let included = tags.iter().filter(|tag| **tag <= last);
        match session.acknowledge(last, true).await {
            Ok(()) => session.held.remove(included.copied()),
            Err(error) => {
                failures.extend(included.map(|_| transient("a run", &error)));
            }
        }
    }
    for tag in plan.single {
        match session.acknowledge(tag, false).await {
            Ok(()) => session.held.remove([tag]),
            Err(error) => failures.push(error),
        }
    }
    failures
}

impl RabbitMqDelivery {
    /// What it says.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

impl Drop for RabbitMqDelivery {
    fn drop(&mut self) {
        // A source that stops leaves it where it is, until it closes.
        if !self.stop.is_set() {
            self.session.held.give_up(self.tag);
        }
    }
}

impl fmt::Debug for RabbitMqDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqDelivery")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}
