//! The way out: messages that a stream has confirmed.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{
    Context,
    context::{ContextBuilder, GetStreamByNameErrorKind, PublishAckFuture, PublishErrorKind},
};
use inbox_api::{Result, hide_password, time_limit};
use inbox_source::{Envelope, Publisher, SourceError};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    Connection,
    envelope::headers,
    error::{connecting, transient, unpublished},
    options::{invalid, parse, read, unknown},
    session::{Lost, connect},
};

type Outcome<T> = std::result::Result<T, SourceError>;

const DOING: &str = "publishing";

/// Sends messages to the subjects that they are addressed to, with their id as `Nats-Msg-Id`.
///
/// A message is confirmed when a stream has it, with a majority of its replicas. One whose id the stream has
/// seen within its duplicate window (two minutes unless set) is confirmed and not stored again. One that no
/// stream takes is an error, and a permanent one where the account may ask (`$JS.API.STREAM.NAMES`); so is one
/// that is too large for the server or its stream. Whatever fails before a message is sent is transient, a
/// refused password, too: the messages are none the worse for it.
///
/// Headers of a message that begin with `Nats-` are not sent: they give orders to the stream.
///
/// Messages of one call are sent in their order, all at once, and stored in it.
pub struct NatsPublisher {
    connection: Connection,
    limit: Duration,
    link: Mutex<Option<Link>>,
}

/// A connection until it is lost: the client would send what it still has over the next one, late.
#[derive(Clone)]
struct Link {
    context: Context,
    lost: Arc<Lost>,
}

impl NatsPublisher {
    /// A publisher to this server. Connects with the first message.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            limit: Duration::from_secs(30),
            link: Mutex::default(),
        }
    }

    /// Reads `nats://user:password@host:4222/?timeout_ms=30000`.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let mut publisher = Self::new(Connection::of(&url)?);
        for (key, value) in url.query_pairs() {
            if key != "timeout_ms" {
                return Err(unknown(&key, "timeout_ms"));
            }
            let limit = read(&key, &value);
            let limit = limit.map_err(|_| invalid("timeout_ms must be a whole number"))?;
            publisher = publisher.timeout(Duration::from_millis(limit));
        }
        Ok(publisher)
    }

    /// How long one call may take, with connecting; 30 seconds unless set, from one to a day.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = time_limit(limit).max(Duration::from_secs(1));
        self
    }

    async fn link(&self) -> Outcome<Link> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.lost.is_lost()) {
            return Ok(link.clone());
        }
        let lost = Arc::new(Lost::default());
        let client = connect(&self.connection, Arc::clone(&lost)).await;
        let client = client.map_err(|error| connecting(&error))?;
        let context = ContextBuilder::new().ack_timeout(self.limit).build(client);
        Ok(link.insert(Link { context, lost }).clone())
    }
}

/// Sends one, and returns what its confirmation will be.
async fn send(context: &Context, message: &Envelope) -> Outcome<PublishAckFuture> {
    let refuse = |reason: &str| SourceError::permanent(format!("{DOING}: {reason}"));
    let headers = headers(message).map_err(refuse)?;
    if !is_subject(&message.address) {
        return Err(refuse("the address is no subject"));
    }
    let (subject, payload) = (message.address.clone(), message.payload.clone());
    let sent = context
        .publish_with_headers(subject, headers, payload)
        .await;
    sent.map_err(|error| unpublished(DOING, &error))
}

/// Whether a message can be sent to it: no wildcards, no empty part.
fn is_subject(address: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control();
    !address.contains(bad)
        && (address.split('.')).all(|part| !part.is_empty() && part != "*" && part != ">")
}

/// Whether a stream takes what is sent to a subject. `None`: the server does not say, as where the account may not ask.
async fn has_stream(context: &Context, subject: &str) -> Option<bool> {
    match context.stream_by_subject(subject).await {
        Ok(_) => Some(true),
        Err(error) if error.kind() == GetStreamByNameErrorKind::NotFound => Some(false),
        Err(_) => None,
    }
}

impl Publisher for NatsPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Outcome<()>> {
        let deadline = Instant::now() + self.limit;
        let late = || transient(DOING, "the server did not confirm in time");
        let link = match timeout_at(deadline, self.link()).await {
            Ok(Ok(link)) => link,
            failed => {
                let error = failed.ok().and_then(Outcome::err).unwrap_or_else(late);
                // What is refused here is the account, not a message: when that is mended, they are taken.
                let again = || SourceError::transient(error.to_string());
                return messages.iter().map(|_| Err(again())).collect();
            }
        };
        let mut sending = Vec::with_capacity(messages.len());
        for message in messages {
            let sent = timeout_at(deadline, send(&link.context, message)).await;
            sending.push(sent.unwrap_or_else(|_| Err(late())));
        }
        let mut answers = Vec::with_capacity(messages.len());
        // The places of those that nobody answered, by their subjects.
        let mut unheard: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, (message, sending)) in messages.iter().zip(sending).enumerate() {
            let answer = match sending {
                Err(error) => Err(error),
                Ok(sending) => tokio::select! {
                    biased;
                    answer = timeout_at(deadline, sending.into_future()) => match answer {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(error)) => {
                            if error.kind() == PublishErrorKind::StreamNotFound {
                                unheard.entry(message.address.as_str()).or_default().push(place);
                            }
                            Err(unpublished(DOING, &error))
                        }
                        Err(_) => Err(late()),
                    },
                    () = link.lost.wait() => {
                        Err(transient(DOING, "the connection is lost"))
                    }
                },
            };
            answers.push(answer);
        }
        for (subject, places) in unheard {
            match timeout_at(deadline, has_stream(&link.context, subject)).await {
                // It has just started, or has no leader, and takes nothing for a while.
                Ok(Some(true)) => {}
                Ok(Some(false)) => {
                    for place in places {
                        answers[place] = Err(SourceError::permanent(format!(
                            "{DOING}: no stream takes what is sent to {subject:?}"
                        )));
                    }
                }
                // Nor would it say of the others.
                Ok(None) | Err(_) => break,
            }
        }
        answers
    }
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("connection", &self.connection)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_it_goes() {
        let url = "nats://ann:s%40cret@h/?timeout_ms=2500";
        let publisher = NatsPublisher::from_url(url).unwrap();
        assert_eq!(publisher.limit, Duration::from_millis(2500));
        assert!(!format!("{publisher:?}").contains("cret"));
        for url in ["nats://h/?stream=S", "nats://h/?timeout_ms=x", "amqp://h/"] {
            assert!(NatsPublisher::from_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_password_that_is_not_encoded_is_not_repeated() {
        let error = NatsPublisher::from_url("nats://ann:1?hunter2@h:4222/").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }

    #[test]
    fn wildcards_are_no_subject() {
        assert!(is_subject("orders.eu"));
        for address in ["", "a..b", "a.*", ">", "a b", "a\r\nb"] {
            assert!(!is_subject(address), "{address:?}");
        }
    }
}
