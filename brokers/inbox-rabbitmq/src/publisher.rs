//! The way out: messages that the server has confirmed.

use std::{
    collections::{HashMap, HashSet},
    fmt, slice,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use inbox_api::{Result, hide_password, time_limit};
use inbox_source::{Envelope, FailedKeys, Publisher, SourceError};
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
    error::{ACCESS_REFUSED, CONNECTION_FORCED, NOT_FOUND, PRECONDITION_FAILED, answer, transient},
    options::{invalid, name, parse, read, unknown},
    screen::Cut,
    session::connect,
};

type Outcome<T> = std::result::Result<T, SourceError>;
type Answer<T = ()> = std::result::Result<T, Unconfirmed>;

const DOING: &str = "publishing";
/// So long after it was connected to, a server may still be starting: RabbitMQ 3.10 takes connections before it
/// knows its streams.
const STARTING: Duration = Duration::from_secs(60);
/// So long a queue may be away. A deployment that deletes it and declares it again takes seconds. A node that starts
/// again, as for an upgrade, takes minutes, and older versions know nothing of its classic queues while it is down.
const AWAY: Duration = Duration::from_secs(5 * 60);
/// Of so many addresses it is known since when they have no queue.
const MAX_MISSING: usize = 10_000;

/// Sends messages to an exchange, with their address as the routing key and their id as `message_id`.
///
/// A message is confirmed when each queue that it goes to has it: a quorum queue with a majority of its nodes,
/// a classic one on its disk. One that goes to no queue (`mandatory`) is a transient error at first: the queue may
/// be on a node that is down, or about to be declared again. It is a permanent one when nothing that was sent to
/// its address has gone to a queue for five minutes, but not in the first minute of a connection, since a server
/// that has just started may not know its queues and streams yet.
///
/// A queue that is full and rejects is a transient error, and so is whatever is not about a message: a refused
/// password or virtual host, and an exchange that is not there. While the server takes nothing, as it is short of
/// memory or of disk space, nothing is sent, and messages fail at once.
///
/// The headers `CC` and `BCC` of a message are not sent: they say where else it goes. Nor is its own
/// [`ordering-key`](crate::KEY), which would be the key of a message that has none.
///
/// Messages of one call are sent in their order, all at once, and are in a queue in it. When the server ends the
/// channel for one of them, as for a routing key that the user may not write to, the others are sent again, one at a
/// time: that one alone fails, and those before it may be there twice.
pub struct RabbitMqPublisher {
    connection: Connection,
    exchange: String,
    limit: Duration,
    turn: Mutex<Turn>,
}

/// What one call at a time has: see [`Returned`].
#[derive(Default)]
struct Turn {
    link: Option<Link>,
    missing: Missing,
}

/// A connection until it is lost, or its channel: an error of one message ends the channel for all.
struct Link {
    /// Cuts while confirmations are open. When a call leaves some behind, late or dropped, no other may use the link:
    /// see [`Returned`].
    cut: Cut,
    connection: lapin::Connection,
    channel: Channel,
    since: Instant,
}

impl Link {
    fn is_usable(&self) -> bool {
        !self.cut.on_drop && self.channel.status().connected()
    }

    /// Whether the server has said that it takes nothing. It says so when the first message has come, and reads no
    /// more: another connection would fare no better.
    fn is_blocked(&self) -> bool {
        let status = self.connection.status();
        status.connected() && status.blocked()
    }
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
            turn: Mutex::default(),
        }
    }

    /// Reads `amqp://user:password@host:5672/vhost?exchange=events&timeout_ms=30000`.
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

    /// How long one call may take, with connecting; 30 seconds unless set, from one to a day.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = time_limit(limit).max(Duration::from_secs(1));
        self
    }

    /// The link that is there, or a new one.
    async fn link<'a>(&self, kept: &'a mut Option<Link>) -> Outcome<&'a mut Link> {
        if kept.as_ref().is_some_and(Link::is_blocked) {
            return Err(transient(
                DOING,
                "the server takes nothing: it is short of memory or of disk space",
            ));
        }
        let link = match kept.take() {
            Some(link) if link.is_usable() => link,
            // It ends before there is another.
            old => {
                drop(old);
                self.open().await?
            }
        };
        Ok(kept.insert(link))
    }

    async fn open(&self) -> Outcome<Link> {
        let (connection, mut cut) = connect(&self.connection, Arc::default()).await?;
        let opening = |error| transient("opening a channel", error);
        let channel = connection.create_channel().await.map_err(opening)?;
        let confirm = channel.confirm_select(ConfirmSelectOptions::default());
        confirm.await.map_err(opening)?;
        cut.on_drop = false;
        Ok(Link {
            cut,
            connection,
            channel,
            since: Instant::now(),
        })
    }

    /// Sends one, and returns what its confirmation will be.
    async fn send(&self, channel: &Channel, message: &Envelope) -> Answer<PublisherConfirm> {
        let refuse =
            |reason| Unconfirmed::message(SourceError::permanent(format!("{DOING}: {reason}")));
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

    /// Sends messages all at once. An answer for each, in their order.
    async fn send_together(
        &self,
        turn: &mut Turn,
        messages: &[Envelope],
        deadline: Instant,
    ) -> Vec<Answer> {
        // What fails here is about no message: when that is mended, they are taken.
        let none = |error: &SourceError| -> Vec<Answer> {
            let again = || Unconfirmed::other(SourceError::transient(error.to_string()));
            messages.iter().map(|_| Err(again())).collect()
        };
        let Turn { link, missing } = turn;
        let link = match timeout_at(deadline, self.link(link)).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return none(&error),
            Err(_) => return none(&late()),
        };
        // So it stays when this future is dropped.
        link.cut.on_drop = true;
        let mut stuck = None;
        let mut sending = Vec::with_capacity(messages.len());
        for message in messages {
            // The client would keep it, and send it some time.
            if stuck.is_some() || Instant::now() >= deadline {
                sending.push(Err(Unconfirmed::other(late())));
                continue;
            }
            let mut send = Box::pin(self.send(&link.channel, message));
            let sent = timeout_at(deadline, &mut send).await;
            if sent.is_err() {
                stuck = Some(send);
            }
            sending.push(sent.unwrap_or_else(|_| Err(Unconfirmed::other(late()))));
        }
        let mut returned = Returned::default();
        let mut open = Vec::new();
        let mut answers = Vec::with_capacity(messages.len());
        for (message, sending) in messages.iter().zip(sending) {
            let answer = match sending {
                Err(failed) => Err(failed),
                Ok(mut confirmation) => {
                    let confirmed = timeout_at(deadline, &mut confirmation).await;
                    match confirmed {
                        Ok(confirmed) => outcome(confirmed, message, &mut returned),
                        Err(_) => {
                            open.push(confirmation);
                            Err(Unconfirmed::other(late()))
                        }
                    }
                }
            };
            answers.push(answer);
        }
        link.cut.on_drop = stuck.is_some() || !open.is_empty();
        // One that was looked at too early may have what was returned for a later one, which was then confirmed.
        let stuck = stuck.and_then(FutureExt::now_or_never);
        let stuck = stuck.and_then(Answer::<PublisherConfirm>::ok);
        for confirmation in open.into_iter().chain(stuck) {
            if let Some(Ok(confirmed)) = confirmation.now_or_never() {
                returned.0.extend(confirmed.take_message());
            }
        }
        let connected = link.since.elapsed();
        returned.correct(messages, &mut answers, missing, connected, Instant::now());
        answers
    }

    /// Sends those one at a time that are not confirmed, and not by their own fault: one of the call has ended the
    /// channel for all, and would do so each time. It is the one at which the channel ends again. However many there
    /// are of these, what is behind them is sent: the next call would begin with the same.
    async fn send_alone(
        &self,
        turn: &mut Turn,
        messages: &[Envelope],
        answers: &mut [Answer],
        deadline: Instant,
    ) {
        let mut refused = Refused::default();
        for (message, answer) in messages.iter().zip(answers) {
            let is_tried = match answer {
                Ok(()) => continue,
                Err(failed) if failed.is_its_own() => false,
                Err(failed) => match refused.reason(message) {
                    Some(reason) => {
                        *failed = reason;
                        false
                    }
                    None => true,
                },
            };
            if is_tried {
                let alone = slice::from_ref(message);
                let again = self.send_together(turn, alone, deadline).await.pop();
                *answer = again.unwrap_or_else(|| Err(Unconfirmed::other(late())));
            }
            let Err(failed) = answer else {
                continue;
            };
            refused.add(message, failed.cause);
            // Nor would the rest be taken.
            if is_tried && failed.cause == Cause::Other {
                return;
            }
        }
    }
}

fn late() -> SourceError {
    transient(DOING, "the server did not confirm in time")
}

/// Why a message is not confirmed.
struct Unconfirmed {
    error: SourceError,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The message as it is, or its queue.
    Message,
    /// Its address, to which the user may not write.
    Address,
    /// A message for which the server has ended the channel. It does not say that it was this one.
    Unclear,
    /// No message: the connection, the server, or a setting.
    Other,
}

impl Unconfirmed {
    fn message(error: SourceError) -> Self {
        let cause = Cause::Message;
        Self { error, cause }
    }

    fn other(error: SourceError) -> Self {
        let cause = Cause::Other;
        Self { error, cause }
    }

    fn is_its_own(&self) -> bool {
        matches!(self.cause, Cause::Message | Cause::Address)
    }
}

/// Of messages that are sent one at a time, the addresses and keys of those that failed: of addresses that would fail
/// again.
#[derive(Default)]
struct Refused<'m> {
    addresses: HashSet<&'m str>,
    keys: FailedKeys<'m>,
}

impl<'m> Refused<'m> {
    fn add(&mut self, message: &'m Envelope, cause: Cause) {
        if cause == Cause::Address {
            self.addresses.insert(&message.address);
        }
        self.keys.add(message);
    }

    /// Why a message is not sent.
    fn reason(&self, message: &Envelope) -> Option<Unconfirmed> {
        if self.addresses.contains(message.address.as_str()) {
            let error = transient(DOING, "the user may not write to its address");
            let cause = Cause::Address;
            return Some(Unconfirmed { error, cause });
        }
        self.keys.reason(message).map(Unconfirmed::message)
    }
}

/// An answer to one message ends the channel, and so is that of all: only whom it means will never be taken. That
/// there is no such exchange, or that the user may not write to it, means none: it is a setting.
fn failure(error: &lapin::Error, message: &Envelope) -> Unconfirmed {
    let of = |cause| Unconfirmed {
        error: transient(DOING, error),
        cause,
    };
    match answer(error) {
        Some((PRECONDITION_FAILED, text))
            if text.contains(&format!("message size {} ", message.payload.len())) =>
        {
            Unconfirmed::message(SourceError::permanent(format!("{DOING}: {text}")))
        }
        Some((ACCESS_REFUSED, text)) if text.contains("access to topic") => {
            match text.contains(&format!("access to topic '{}' in ", message.address)) {
                true => of(Cause::Address),
                false => of(Cause::Unclear),
            }
        }
        Some((ACCESS_REFUSED | NOT_FOUND | CONNECTION_FORCED, _)) | None => of(Cause::Other),
        Some(_) => of(Cause::Unclear),
    }
}

/// What no queue takes. The server returns it before it confirms it, but may confirm earlier messages after
/// that, and the client gives what was returned to the next confirmation, whichever it is. So only that it was
/// one of this call is known from that, and which one it was, from what was returned. And that only if each
/// confirmation that the channel waits for is one of this call, and is looked at to the end.
#[derive(Default)]
struct Returned(Vec<BasicReturnMessage>);

impl Returned {
    /// Takes those out that were confirmed although no queue takes them. `connected`: for how long.
    fn correct(
        self,
        messages: &[Envelope],
        answers: &mut [Answer],
        missing: &mut Missing,
        connected: Duration,
        now: Instant,
    ) {
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
                let away = now.duration_since(missing.since(&message.address, now));
                let failed = no_queue(&message.address, connected, away);
                *answer = Err(Unconfirmed::message(failed));
            }
        }
        for (message, answer) in messages.iter().zip(answers) {
            if answer.is_ok() {
                missing.0.remove(&message.address);
            }
        }
    }
}

/// Since when nothing that is sent to an address goes to a queue.
#[derive(Default)]
struct Missing(HashMap<String, Instant>);

impl Missing {
    fn since(&mut self, address: &str, now: Instant) -> Instant {
        if let Some(since) = self.0.get(address) {
            return *since;
        }
        // Rather wait once more than remember all that was ever missing.
        if self.0.len() >= MAX_MISSING {
            self.0.clear();
        }
        self.0.insert(address.to_owned(), now);
        now
    }
}

/// `connected`, `away`: for how long there has been this connection, and no queue.
fn no_queue(address: &str, connected: Duration, away: Duration) -> SourceError {
    let text = format!("{DOING}: no queue takes what is sent to {address:?}");
    match connected < STARTING || away < AWAY {
        true => SourceError::transient(text),
        false => SourceError::permanent(text),
    }
}

fn outcome(
    confirmed: lapin::Result<Confirmation>,
    message: &Envelope,
    returned: &mut Returned,
) -> Answer {
    match confirmed {
        Ok(Confirmation::Ack(back)) => {
            returned.0.extend(back);
            Ok(())
        }
        Ok(Confirmation::Nack(back)) => {
            returned.0.extend(back);
            let refused = transient(DOING, "the server refused it; a queue may be full");
            Err(Unconfirmed::message(refused))
        }
        Ok(Confirmation::NotRequested) => {
            let unasked = transient(DOING, "the server was not asked to confirm");
            Err(Unconfirmed::other(unasked))
        }
        Err(error) => Err(failure(&error, message)),
    }
}

impl Publisher for RabbitMqPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Outcome<()>> {
        let deadline = Instant::now() + self.limit;
        let Ok(mut turn) = timeout_at(deadline, self.turn.lock()).await else {
            return messages.iter().map(|_| Err(late())).collect();
        };
        let mut answers = self.send_together(&mut turn, messages, deadline).await;
        // One may have ended the channel for the others.
        let is_of_one =
            |answer: &Answer| matches!(answer, Err(failed) if failed.cause != Cause::Other);
        if messages.len() > 1 && answers.iter().any(is_of_one) {
            self.send_alone(&mut turn, messages, &mut answers, deadline)
                .await;
        }
        let answers = answers.into_iter();
        answers
            .map(|answer| answer.map_err(|failed| failed.error))
            .collect()
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
    use lapin::{
        message::Delivery,
        protocol::{AMQPError, AMQPSoftError},
    };

    use super::*;

    #[test]
    fn a_server_that_is_starting_may_not_know_its_queues() {
        let seconds = Duration::from_secs;
        assert!(no_queue("orders", seconds(59), AWAY).is_transient());
        assert!(!no_queue("orders", seconds(60), AWAY).is_transient());
    }

    fn returned(address: &str) -> Returned {
        let name = ShortString::from;
        Returned(vec![BasicReturnMessage {
            delivery: Delivery::mock(0, name(""), name(address), false, b"{}".to_vec()),
            reply_code: 312,
            reply_text: name("NO_ROUTE"),
        }])
    }

    #[test]
    fn a_queue_may_be_away_for_some_minutes() {
        let mut missing = Missing::default();
        let begin = Instant::now();
        let messages = [Envelope::new("orders", "{}")];
        // What becomes of a message: whether it is an error that may pass.
        let mut publish = |returned: Returned, after: Duration| {
            let mut answers = [Ok(())];
            let (connected, now) = (AWAY, begin + after);
            returned.correct(&messages, &mut answers, &mut missing, connected, now);
            let [answer] = answers;
            answer.map_err(|failed| failed.error.is_transient())
        };
        let second = Duration::from_secs(1);
        assert_eq!(publish(returned("orders"), second), Err(true));
        assert_eq!(publish(returned("orders"), AWAY), Err(true));
        assert_eq!(publish(returned("orders"), AWAY + second), Err(false));
        assert_eq!(publish(returned("orders"), AWAY * 2), Err(false));
        // It was there in between.
        assert_eq!(publish(Returned::default(), AWAY * 3), Ok(()));
        assert_eq!(publish(returned("orders"), AWAY * 4), Err(true));
    }

    #[test]
    fn no_more_than_some_addresses_are_remembered() {
        let mut missing = Missing::default();
        let begin = Instant::now();
        for address in 0..=MAX_MISSING {
            missing.since(&address.to_string(), begin);
            assert!(missing.0.len() <= MAX_MISSING);
        }
    }

    #[test]
    fn only_what_is_about_a_message_will_never_be_taken() {
        let message = Envelope::new("orders", "{}");
        let of = |kind: AMQPSoftError, text: &str| {
            let error = AMQPError::new(kind.into(), text.into());
            failure(&lapin::ErrorKind::ProtocolError(error).into(), &message)
        };
        let no_exchange = "NOT_FOUND - no exchange 'events' in vhost '/'";
        let failed = of(AMQPSoftError::NOTFOUND, no_exchange);
        assert!(failed.error.is_transient(), "{}", failed.error);
        assert!(
            failed.error.to_string().contains(no_exchange),
            "{}",
            failed.error
        );
        assert_eq!(failed.cause, Cause::Other);
        let too_large = |size: u32| {
            let text =
                format!("PRECONDITION_FAILED - message size {size} is larger than max size 1");
            let failed = of(AMQPSoftError::PRECONDITIONFAILED, &text);
            (failed.error.is_transient(), failed.cause)
        };
        assert_eq!(too_large(2), (false, Cause::Message));
        assert_eq!(too_large(3), (true, Cause::Unclear));
        for (what, cause) in [
            ("topic 'orders' in exchange 'events'", Cause::Address),
            ("topic 'orders.eu' in exchange 'events'", Cause::Unclear),
            ("exchange 'orders'", Cause::Other),
        ] {
            let text = format!(
                "ACCESS_REFUSED - write access to {what} in vhost '/' refused for user 'ann'"
            );
            let failed = of(AMQPSoftError::ACCESSREFUSED, &text);
            assert!(failed.error.is_transient(), "{}", failed.error);
            assert_eq!(failed.cause, cause, "{what}");
        }
    }

    #[test]
    fn the_rest_of_a_password_is_not_repeated() {
        let error = RabbitMqPublisher::from_url("amqp://app:1?word@host/shop").unwrap_err();
        assert!(!error.to_string().contains("word@"), "{error}");
        let error = RabbitMqPublisher::from_url("amqp://app:1@host/shop?colour=red").unwrap_err();
        assert!(error.to_string().contains("colour"), "{error}");
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
