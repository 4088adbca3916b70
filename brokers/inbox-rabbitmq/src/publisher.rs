//! The way out: messages that the server has confirmed.

use std::{fmt, sync::Arc, time::Duration};

use inbox_api::Result;
use inbox_source::{Envelope, Publisher, SourceError};
use lapin::{
    Channel, Confirmation, PublisherConfirm,
    message::BasicReturnMessage,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use crate::{
    Connection,
    envelope::{properties, short},
    error::{NOT_FOUND, PRECONDITION_FAILED, answer, transient},
    options::{invalid, name, parse, read, unknown},
    session::connect,
};

type Outcome<T> = std::result::Result<T, SourceError>;

const DOING: &str = "publishing";
/// So long after it was connected to, a server may still be starting: RabbitMQ 3.10 takes connections before it
/// knows its streams.
const STARTING: Duration = Duration::from_secs(60);

/// Sends messages to an exchange, with their address as the routing key and their id as `message_id`.
///
/// A message is confirmed when each queue that it goes to has it: a quorum queue with a majority of its nodes,
/// a classic one on its disk. One that goes to no queue (`mandatory`), or whose exchange is not there, is a
/// permanent error; in the first minute of a connection no queue is a transient one, since a server that has
/// just started may not know its queues and streams yet. A queue that is full and rejects is a transient error,
/// and so is whatever fails before a message is sent, a refused password or virtual host, too: the messages are
/// none the worse for it.
///
/// The headers `CC` and `BCC` of a message are not sent: they say where else it goes.
///
/// Messages of one call are sent in their order, all at once, and are in a queue in it.
pub struct RabbitMqPublisher {
    connection: Connection,
    exchange: String,
    limit: Duration,
    link: Mutex<Option<Link>>,
}

/// A connection until it is lost, or its channel: an error of one message ends the channel for all.
#[derive(Clone)]
struct Link {
    channel: Channel,
    since: Instant,
    /// One call at a time: see [`Returned`].
    turn: Arc<Mutex<()>>,
}

impl RabbitMqPublisher {
    /// A publisher to the default exchange, which gives a message to the queue that it is addressed to.
    /// Connects with the first message.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            exchange: String::new(),
            limit: Duration::from_secs(30),
            link: Mutex::default(),
        }
    }

    /// Reads `amqp://user:password@host:5672/vhost?exchange=events&timeout_ms=30000`.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let mut publisher = Self::new(Connection::of(&url)?);
        for (key, value) in url.query_pairs() {
            publisher = match key.as_ref() {
                "exchange" => publisher.exchange(value)?,
                "timeout_ms" => {
                    let limit = read(&key, &value);
                    let limit = limit.map_err(|_| invalid("timeout_ms must be a whole number"))?;
                    publisher.timeout(Duration::from_millis(limit))
                }
                _ => return Err(unknown(&key, "exchange, timeout_ms")),
            };
        }
        Ok(publisher)
    }

    /// Sends to this exchange, which has to be there.
    ///
    /// # Errors
    /// `Invalid` for a name that RabbitMQ does not take.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Result<Self> {
        self.exchange = name("exchange", exchange.into())?;
        Ok(self)
    }

    /// How long one call may take, with connecting; 30 seconds unless set, at least one.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit.max(Duration::from_secs(1));
        self
    }

    async fn link(&self) -> Outcome<Link> {
        let mut link = self.link.lock().await;
        if let Some(link) = link
            .as_ref()
            .filter(|link| link.channel.status().connected())
        {
            return Ok(link.clone());
        }
        *link = None;
        // The channel keeps the connection.
        let connection = connect(&self.connection, Arc::default()).await?;
        let opening = |error| transient("opening a channel", error);
        let channel = connection.create_channel().await.map_err(opening)?;
        let confirm = channel.confirm_select(ConfirmSelectOptions::default());
        confirm.await.map_err(opening)?;
        let turn = Arc::default();
        let since = Instant::now();
        let opened = Link {
            channel,
            since,
            turn,
        };
        Ok(link.insert(opened).clone())
    }

    /// Sends one, and returns what its confirmation will be.
    async fn send(&self, channel: &Channel, message: &Envelope) -> Outcome<PublisherConfirm> {
        let refuse = |reason| SourceError::permanent(format!("{DOING}: {reason}"));
        let properties = properties(message).map_err(refuse)?;
        let address = short("the address", &message.address).map_err(refuse)?;
        let mandatory = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let exchange = ShortString::from(self.exchange.as_str());
        let sent =
            channel.basic_publish(exchange, address, mandatory, &message.payload, properties);
        sent.await.map_err(|error| failure(&error, message))
    }
}

/// An answer to one message ends the channel, and so is that of all: only whom it means will never be taken.
fn failure(error: &lapin::Error, message: &Envelope) -> SourceError {
    match answer(error) {
        Some((NOT_FOUND, text)) => SourceError::permanent(format!("{DOING}: {text}")),
        Some((PRECONDITION_FAILED, text))
            if text.contains(&format!("message size {} ", message.payload.len())) =>
        {
            SourceError::permanent(format!("{DOING}: {text}"))
        }
        _ => transient(DOING, error),
    }
}

/// What no queue takes. The server returns it before it confirms it, but may confirm earlier messages after
/// that, and the client gives what was returned to the next confirmation, whichever it is. So only that it was
/// one of this call is known from that, and which one it was, from what was returned.
#[derive(Default)]
struct Returned(Vec<BasicReturnMessage>);

impl Returned {
    /// Takes those out that were confirmed although no queue takes them.
    fn correct(self, messages: &[Envelope], answers: &mut [Outcome<()>], connected: Duration) {
        for returned in self.0 {
            let delivery = &returned.delivery;
            let id = delivery.properties.message_id().as_ref();
            let is_it = |message: &Envelope| {
                message.address == delivery.routing_key.as_str()
                    && message.id.as_deref() == id.map(ShortString::as_str)
                    && message.payload == delivery.data
            };
            let mut both = messages.iter().zip(answers.iter_mut());
            if let Some((message, answer)) =
                both.find(|(message, answer)| answer.is_ok() && is_it(message))
            {
                *answer = Err(no_queue(&message.address, connected));
            }
        }
    }
}

/// `connected`: for how long.
fn no_queue(address: &str, connected: Duration) -> SourceError {
    let text = format!("{DOING}: no queue takes what is sent to {address:?}");
    match connected < STARTING {
        true => SourceError::transient(text),
        false => SourceError::permanent(text),
    }
}

fn outcome(
    confirmed: lapin::Result<Confirmation>,
    message: &Envelope,
    returned: &mut Returned,
) -> Outcome<()> {
    match confirmed {
        Ok(Confirmation::Ack(back)) => {
            returned.0.extend(back);
            Ok(())
        }
        Ok(Confirmation::Nack(back)) => {
            returned.0.extend(back);
            Err(transient(
                DOING,
                "the server refused it; a queue may be full",
            ))
        }
        Ok(Confirmation::NotRequested) => {
            Err(transient(DOING, "the server was not asked to confirm"))
        }
        Err(error) => Err(failure(&error, message)),
    }
}

impl Publisher for RabbitMqPublisher {
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
        let Ok(_turn) = timeout_at(deadline, link.turn.lock()).await else {
            return messages.iter().map(|_| Err(late())).collect();
        };
        let mut is_late = false;
        let mut returned = Returned::default();
        let mut sending = Vec::with_capacity(messages.len());
        for message in messages {
            let sent = timeout_at(deadline, self.send(&link.channel, message)).await;
            is_late |= sent.is_err();
            sending.push(sent.unwrap_or_else(|_| Err(late())));
        }
        let mut answers = Vec::with_capacity(messages.len());
        for (message, sending) in messages.iter().zip(sending) {
            let answer = match sending {
                Err(error) => Err(error),
                Ok(sending) => match timeout_at(deadline, sending).await {
                    Ok(confirmed) => outcome(confirmed, message, &mut returned),
                    Err(_) => {
                        is_late = true;
                        Err(late())
                    }
                },
            };
            answers.push(answer);
        }
        returned.correct(messages, &mut answers, link.since.elapsed());
        if is_late {
            // Whatever it does still, the next message is not to wait for it.
            *self.link.lock().await = None;
        }
        answers
    }
}

impl fmt::Debug for RabbitMqPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqPublisher")
            .field("connection", &self.connection)
            .field("exchange", &self.exchange)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_starting_may_not_know_its_queues() {
        let seconds = Duration::from_secs;
        assert!(no_queue("orders", seconds(59)).is_transient());
        assert!(!no_queue("orders", seconds(60)).is_transient());
    }

    #[test]
    fn a_url_says_where_it_goes() {
        let url = "amqp://ann:s%40cret@h/shop?exchange=events&timeout_ms=2500";
        let publisher = RabbitMqPublisher::from_url(url).unwrap();
        assert_eq!(publisher.limit, Duration::from_millis(2500));
        assert_eq!(publisher.exchange, "events");
        assert!(!format!("{publisher:?}").contains("cret"));
        for url in ["amqp://h/?queue=q", "amqp://h/?timeout_ms=x", "nats://h/"] {
            assert!(RabbitMqPublisher::from_url(url).is_err(), "{url}");
        }
    }
}
