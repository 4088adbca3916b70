//! One entry of a stream, to be acknowledged or rejected.

use std::{fmt, sync::Arc, time::Duration};

use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Raw, Rejection, SourceError};
use redis::Value;
use tokio::time::Instant;

use crate::{
    entry::Field,
    error::transient,
    shared::{AT_ONCE, PATIENCE, Shared},
};

/// The field of a dead letter that says why.
pub(crate) const REJECTION: &str = "inbox-rejection";
/// The field of a dead letter that says where it was.
pub(crate) const POSITION: &str = "inbox-position";

/// How long an entry stays away that could not be acknowledged or rejected.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// An entry of a stream. Dropped without an answer, it comes again from the same source at once.
pub struct RedisStreamsDelivery {
    pub(crate) envelope: Envelope,
    pub(crate) fields: Option<Vec<Field>>,
    pub(crate) id: String,
    pub(crate) shared: Arc<Shared>,
    /// How long it stays away when it is dropped unanswered.
    pub(crate) pause: Duration,
}

impl Delivery for RedisStreamsDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        self.shared.mapping.message(&self.envelope)
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
        if let Err(error) = self.write_off(&rejection).await {
            // The same would be said at once of what comes again at once.
            self.pause = FAILURE_PAUSE;
            return Err(error);
        }
        self.shared.held.remove([self.id.as_str()]);
        Ok(())
    }

    async fn acknowledge_all(mut run: Vec<Self>) -> Vec<SourceError> {
        let doing = "acknowledging";
        let mut failures = Vec::new();
        let is_together = |one: &Self, next: &Self| Arc::ptr_eq(&one.shared, &next.shared);
        for part in run
            .chunk_by_mut(is_together)
            .flat_map(|part| part.chunks_mut(AT_ONCE))
        {
            let Some(shared) = part.first().map(|one| Arc::clone(&one.shared)) else {
                continue;
            };
            let commands = shared.acknowledging(part.iter().map(|one| one.id.as_str()));
            let deadline = Instant::now() + PATIENCE;
            let sent = shared.link.run::<Value>(doing, &commands, deadline).await;
            let Err(error) = sent else {
                shared.held.remove(part.iter().map(|one| one.id.as_str()));
                continue;
            };
            for one in part.iter_mut() {
                one.pause = FAILURE_PAUSE;
            }
            let others = part[1..].iter();
            failures.extend(others.map(|_| transient(doing, &error)));
            failures.push(error);
        }
        failures
    }
}

impl RedisStreamsDelivery {
    async fn write_off(&self, rejection: &Rejection) -> Result<(), SourceError> {
        let deadline = Instant::now() + PATIENCE;
        let (shared, id) = (&self.shared, self.id.as_str());
        let (Some(stream), Some(fields)) = (&shared.options.dead_letters, &self.fields) else {
            return shared.finish_rejected(id, deadline).await;
        };
        let position = self.envelope.position.as_deref().unwrap_or_default();
        let own = fields.iter().map(|(name, value)| (&**name, &**value));
        let further = [(REJECTION, rejection.reason()), (POSITION, position)];
        let further = further.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let fields: Vec<_> = own.chain(further).collect();
        let written = shared.write_dead_letter(stream, id, &fields, deadline);
        written.await
    }

    /// What it says.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }
}

impl Drop for RedisStreamsDelivery {
    fn drop(&mut self) {
        self.shared.held.give_up(&self.id, self.pause);
    }
}

impl fmt::Debug for RedisStreamsDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsDelivery")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}
