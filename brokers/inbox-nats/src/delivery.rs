//! One message of JetStream, to be acknowledged or terminated.

use std::{fmt, sync::Arc, time::Duration};

use async_nats::HeaderMap;
use futures_util::StreamExt as _;
use inbox_api::Message;
use inbox_source::{Delivery, Envelope, Mapping, Raw, Rejection, SourceError};
use tokio::time::timeout;

use crate::{error::transient, held::Ticket, session::Session};

const PATIENCE: Duration = Duration::from_secs(5);
/// A reason goes to the server with the termination since 2.10.4; an older one would not understand it.
const REASONS_SINCE: (i64, i64, i64) = (2, 10, 4);

/// A message of JetStream. Dropped without an answer, it is given back at once.
pub struct NatsDelivery {
    pub(crate) envelope: Envelope,
    pub(crate) headers: Option<HeaderMap>,
    /// All headers as base64, where the client does not read them.
    pub(crate) unreadable: Option<String>,
    pub(crate) ticket: Ticket,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) session: Arc<Session>,
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

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        self.session.check()?;
        if let Some(subject) = self.session.dead_letters.clone() {
            self.send_dead_letter(subject, &rejection).await?;
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
        flush(&self.session).await?;
        self.session.held.remove(&self.ticket);
        Ok(())
    }

    /// All at once; with `confirm`, all answers are waited for together.
    async fn acknowledge_all(run: Vec<Self>) -> Vec<SourceError> {
        let mut failures = Vec::new();
        // Two connections may follow each other within a run.
        for part in run.chunk_by(|one, next| Arc::ptr_eq(&one.session, &next.session)) {
            let session = Arc::clone(&part[0].session);
            if let Err(former) = session.check() {
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

    /// The stream drops what it has already, by the id, so that a second rejection adds nothing.
    async fn send_dead_letter(&self, subject: String, why: &Rejection) -> Result<(), SourceError> {
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
        let position = self.envelope.position.as_deref().unwrap_or_default();
        headers.insert("Nats-Msg-Id", format!("dead-letter:{position}"));
        headers.insert("Inbox-Rejection", line(why.reason()));
        headers.insert("Inbox-Subject", self.envelope.address.as_str());
        if let Some(all) = &self.unreadable {
            headers.insert("Inbox-Headers", all.as_str());
        }
        let payload = self.envelope.payload.clone();
        let sent = self
            .session
            .context
            .publish_with_headers(subject, headers, payload);
        let sent = sent.await;
        let failed = |error: &dyn fmt::Display| transient("sending a dead letter", error);
        let answer = sent.map_err(|error| failed(&error.kind()))?;
        answer.await.map_err(|error| failed(&error.kind()))?;
        Ok(())
    }
}

impl Drop for NatsDelivery {
    fn drop(&mut self) {
        self.session.held.give_up(&self.ticket);
    }
}

impl fmt::Debug for NatsDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsDelivery")
            .field("envelope", &self.envelope)
            .finish_non_exhaustive()
    }
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
