//! One message of JetStream, to be acknowledged or terminated.

use std::{fmt, sync::Arc, time::Duration};

use async_nats::HeaderMap;
use futures_util::StreamExt as _;
use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Mapping, Raw, Rejection, SourceError};
use tokio::time::timeout;

use crate::{
    error::{transient, unpublished},
    held::Ticket,
    session::Session,
    stop::Stop,
};

const PATIENCE: Duration = Duration::from_secs(5);
/// How long a message stays away that could not be rejected when it came for the first time. Twice as long each further
/// time, up to the longest pause.
const REJECTION_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
const ADVICE: &str = "a dead letter has further headers: let its stream (max_msg_size) and the server (max_payload) \
                      take larger messages";
/// A reason goes to the server with the termination since 2.10.4; an older one would not understand it.
const REASONS_SINCE: (i64, i64, i64) = (2, 10, 4);

/// A message of JetStream. Dropped without an answer, it is given back at once.
pub struct NatsDelivery {
    pub(crate) envelope: Envelope,
    pub(crate) headers: Option<HeaderMap>,
    /// All headers as base64, where the client does not read them.
    pub(crate) unreadable: Option<String>,
    /// How often the server has delivered it, as far as it is known.
    pub(crate) deliveries: i64,
    pub(crate) ticket: Ticket,
    /// How long it stays away when it is dropped unanswered.
    pub(crate) pause: Duration,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) session: Arc<Session>,
    pub(crate) stop: Arc<Stop>,
}

impl Delivery for NatsDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        if self.unreadable.is_some() {
            return Err(Rejection::new(
                "it has a header that is not UTF-8, or is no name and value",
            ));
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

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        if let Err(error) = self.write_off(&rejection).await {
            // Only one that is too large is refused for good, and would be refused each time that it comes.
            if !error.is_transient() {
                self.stop.set(format!("{error}; {ADVICE}"));
            }
            // The same would be said at once of what comes again at once, and each time counts for `max_deliver`.
            self.pause = pause_after(self.deliveries);
            return Err(error);
        }
        self.session.held.remove(&self.ticket);
        Ok(())
    }

    /// All at once; with `confirm`, all answers are waited for together.
    async fn acknowledge_all(run: Vec<Self>) -> Vec<SourceError> {
        let mut failures = Vec::new();
        // Two connections may follow each other within a run.
        for part in run.chunk_by(|one, next| Arc::ptr_eq(&one.session, &next.session)) {
            let session = Arc::clone(&part[0].session);
            if let Err(former) = session.check_consumer().await {
                let others = part[1..]
                    .iter()
                    .map(|_| transient("acknowledging", &former));
                failures.extend(others.collect::<Vec<_>>());
                failures.push(former);
                continue;
            }
            failures.extend(if session.confirm {
                acknowledge_confirmed(&session, part).await
            } else {
                acknowledge_plain(&session, part).await
            });
        }
        failures
    }
}

impl NatsDelivery {
    /// What it says.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    async fn write_off(&self, rejection: &Rejection) -> Result<(), SourceError> {
        self.session.check_consumer().await?;
        if let Some(subject) = self.session.dead_letters.clone() {
            self.send_dead_letter(subject, rejection).await?;
        }
        let (major, minor, patch) = REASONS_SINCE;
        let client = &self.session.client;
        let order = if client.is_server_compatible(major, minor, patch) {
            format!("+TERM {rejection}")
        } else {
            "+TERM".to_owned()
        };
        let sent = client.publish(self.ticket.1.clone(), order.into()).await;
        sent.map_err(|error| transient("terminating", error))?;
        flush(&self.session).await
    }

    /// The stream drops what it has already, by the id, so that a second rejection adds nothing. Where the headers make
    /// it too large, it goes with those of the message alone: it would be refused each time that it comes.
    async fn send_dead_letter(&self, subject: String, why: &Rejection) -> Result<(), SourceError> {
        let own = self.own_headers();
        let mut headers = own.clone();
        let position = self.envelope.position.as_deref().unwrap_or_default();
        headers.insert("Nats-Msg-Id", format!("dead-letter:{position}"));
        headers.insert("Inbox-Rejection", line(why.reason()));
        headers.insert("Inbox-Subject", self.envelope.address.as_str());
        if let Some(all) = &self.unreadable {
            headers.insert("Inbox-Headers", all.as_str());
        }
        match self.send(subject.clone(), headers).await {
            Err(error) if !error.is_transient() => {
                tracing::warn!(position, reason = %why, %error, "the dead letter goes without its reason");
                self.send(subject, own).await
            }
            sent => sent,
        }
    }

    fn own_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, values) in self.headers.iter().flat_map(HeaderMap::iter) {
            // These are orders to the stream, and meant for the one that it came from.
            let text: &str = name.as_ref();
            if !text.to_ascii_lowercase().starts_with("nats-") {
                for value in values {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
        headers
    }

    async fn send(&self, subject: String, headers: HeaderMap) -> Result<(), SourceError> {
        let (context, payload) = (&self.session.context, self.envelope.payload.clone());
        let sent = if headers.is_empty() {
            context.publish(subject, payload).await
        } else {
            context
                .publish_with_headers(subject, headers, payload)
                .await
        };
        let doing = "sending a dead letter";
        let answer = sent.map_err(|error| unpublished(doing, &error))?;
        answer.await.map_err(|error| unpublished(doing, &error))?;
        Ok(())
    }
}

impl Drop for NatsDelivery {
    fn drop(&mut self) {
        self.session.held.give_up(&self.ticket, self.pause);
    }
}

impl fmt::Debug for NatsDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsDelivery")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
}

fn pause_after(deliveries: i64) -> Duration {
    let doubled = u32::try_from(deliveries.saturating_sub(1)).unwrap_or(u32::MAX);
    let pause = REJECTION_PAUSE.saturating_mul(2_u32.saturating_pow(doubled));
    pause.min(LONGEST_PAUSE)
}

/// A header is one line.
fn line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

async fn acknowledge_plain(session: &Session, run: &[NatsDelivery]) -> Vec<SourceError> {
    let mut failures = Vec::new();
    for delivery in run {
        let reply = delivery.ticket.1.clone();
        match session.client.publish(reply, "+ACK".into()).await {
            Ok(()) => session.held.remove(&delivery.ticket),
            Err(error) => failures.push(transient("acknowledging", error)),
        }
    }
    // What the client could not write is lost with the connection, and comes again.
    failures.extend(flush(session).await.err());
    failures
}

async fn acknowledge_confirmed(session: &Session, run: &[NatsDelivery]) -> Vec<SourceError> {
    let failed = |error: &dyn fmt::Display| {
        let failures = run.iter().map(|_| transient("acknowledging", error));
        failures.collect::<Vec<_>>()
    };
    let inbox = session.client.new_inbox();
    let mut answers = match session.client.subscribe(format!("{inbox}.*")).await {
        Ok(answers) => answers,
        Err(error) => return failed(&error),
    };
    for (number, delivery) in run.iter().enumerate() {
        let to = format!("{inbox}.{number}");
        let reply = delivery.ticket.1.clone();
        let sent = session.client.publish_with_reply(reply, to, "+ACK".into());
        if let Err(error) = sent.await {
            return failed(&error);
        }
    }
    let mut open = vec![true; run.len()];
    let all = async {
        while open.contains(&true) {
            let Some(answer) = answers.next().await else {
                return;
            };
            let number = answer
                .subject
                .rsplit('.')
                .next()
                .and_then(|n| n.parse().ok());
            // Without a consumer the server says that nobody listens.
            if answer.status.is_none()
                && let Some(number) = number
                && let Some(entry) = open.get_mut::<usize>(number)
            {
                *entry = false;
                session.held.remove(&run[number].ticket);
            }
        }
    };
    let _ = timeout(PATIENCE, all).await;
    let open = open.into_iter().filter(|open| *open);
    open.map(|_| transient("acknowledging", "no confirmation in time"))
        .collect()
}

async fn flush(session: &Session) -> Result<(), SourceError> {
    match timeout(PATIENCE, session.client.flush()).await {
        Ok(sent) => sent.map_err(|error| transient("sending", error)),
        Err(_) => Err(transient("sending", "the server takes nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_deliveries() {
        let pauses =
            [1, 2, 3, 5, 20, i64::MAX].map(|deliveries| pause_after(deliveries).as_millis());
        assert_eq!(pauses, [500, 1000, 2000, 8000, 8000, 8000]);
    }
}
