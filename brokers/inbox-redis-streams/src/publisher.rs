//! The way out: entries that the server has confirmed.

use std::{fmt, slice, time::Duration};

use inbox_api::{Result, hide_password, time_limit};
use inbox_source::{Envelope, FailedKeys, Publisher, SourceError};
use redis::{Cmd, Value, cmd, pipe};
use tokio::time::Instant;

use crate::{
    Connection, SCHEMES,
    envelope::{PAYLOAD, fields},
    error::{passing, refused, transient, unreadable},
    link::Link,
    options::{parse, read, unknown},
};

const DOING: &str = "publishing";
/// How long replicas have to answer before anything is added. Those that are there answer at once.
const PROBE: Duration = Duration::from_millis(500);

type Outcome<T> = std::result::Result<T, SourceError>;

/// Adds messages to the streams that they are addressed to, which are made where they are not there.
///
/// A message is confirmed when the server has added it: as durable as its `appendfsync` makes it, and on so
/// many replicas as
/// [`wait_replicas`](Self::wait_replicas) says. A stream does not know what it has already, so a message that is sent again
/// is there twice; the inbox of its consumer refuses the copy by its id. Its own header
/// [`ordering-key`](crate::KEY) is not sent: it would be the key of a message that has none.
///
/// Messages of one call are sent in their order, all at once, and added in it. When the connection ends meanwhile, they
/// are sent again, one at a time: one that ends it again, as by a value that is larger than the server's
/// `proto-max-bulk-len`, fails alone, and those before it are there twice. Streams are never trimmed by this.
pub struct RedisStreamsPublisher {
    connection: Connection,
    link: Link,
    limit: Duration,
    replicas: u32,
}

impl RedisStreamsPublisher {
    /// A publisher to this server. Connects with the first message.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            link: Link::new(connection.clone()),
            connection,
            limit: Duration::from_secs(30),
            replicas: 0,
        }
    }

    /// Reads `redis+stream://user:password@host:6379/0?timeout_ms=30000&wait_replicas=1`.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url, SCHEMES)?;
        let mut publisher = Self::new(Connection::of(&url)?);
        for (key, value) in url.query_pairs() {
            publisher = match key.as_ref() {
                "tls_ca_file" => publisher,
                "timeout_ms" => publisher.timeout(Duration::from_millis(read(&key, &value)?)),
                "wait_replicas" => publisher.wait_replicas(read(&key, &value)?),
                _ => return Err(unknown(&key, "timeout_ms, wait_replicas, tls_ca_file")),
            };
        }
        Ok(publisher)
    }

    /// How long one call may take, with connecting; 30 seconds unless set, from one to a day.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = time_limit(limit).max(Duration::from_secs(1));
        self
    }

    /// How many replicas must have a message before it is confirmed; 0 unless set. One that fewer have in time is a
    /// transient error. While fewer are there at all, nothing is added.
    #[must_use]
    pub fn wait_replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Asks how many replicas have what was added, and waits until these are enough.
    fn wait(&self, limit: Duration) -> Cmd {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        cmd("WAIT").arg(self.replicas).arg(limit).take()
    }

    /// Why an answer to [`wait`](Self::wait) is not enough, if it is not.
    fn missing(&self, answer: Option<&Value>) -> Option<SourceError> {
        let Some(Value::Int(reached)) = answer else {
            return Some(transient(
                DOING,
                "the server does not say how many replicas are up to date",
            ));
        };
        let is_few = *reached < i64::from(self.replicas);
        is_few.then(|| {
            let wanted = self.replicas;
            transient(
                DOING,
                format!("{reached} of {wanted} replicas are up to date"),
            )
        })
    }

    /// Fails while too few replicas are there. Nothing can be taken back that was added, so each attempt would add the
    /// same messages once more.
    async fn probe(&self, deadline: Instant) -> Outcome<()> {
        let mut commands = pipe();
        commands.add_command(self.wait(PROBE));
        let answers = self.link.run::<Vec<Value>>(DOING, &commands, deadline);
        match self.missing(answers.await?.first()) {
            Some(error) => {
                // The server may be one that the others have left.
                self.link.reset().await;
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Adds messages all at once. An answer for each, or the error of the connection.
    async fn add(&self, messages: &[Envelope], deadline: Instant) -> Outcome<Vec<Outcome<()>>> {
        let mut commands = pipe();
        // One that the server refuses says nothing of the others.
        commands.ignore_errors();
        for message in messages {
            let mut add = cmd("XADD");
            add.arg(&message.address).arg("*");
            for (name, value) in fields(message, PAYLOAD) {
                add.arg(name).arg(value);
            }
            commands.add_command(add);
        }
        if self.replicas > 0 {
            commands.add_command(self.wait(self.limit));
        }
        let answers = self.link.run::<Vec<Value>>(DOING, &commands, deadline);
        let mut answers = answers.await?.into_iter();
        let mut outcomes: Vec<_> = answers.by_ref().take(messages.len()).map(added).collect();
        if self.replicas > 0
            && let Some(error) = self.missing(answers.next().as_ref())
        {
            let missing = outcomes.iter_mut().filter(|outcome| outcome.is_ok());
            missing.for_each(|outcome| *outcome = Err(passing(&error)));
        }
        while outcomes.len() < messages.len() {
            outcomes.push(Err(unreadable(DOING)));
        }
        if outcomes.iter().any(Outcome::is_err) {
            // It may be of a server that is not the one any more, as a replica is, or that ends the connection with it.
            self.link.reset().await;
        }
        Ok(outcomes)
    }

    /// Adds messages one at a time after a connection was `lost` on which all of them were: one may have ended it, and
    /// would do so each time. However many there are of these, what is behind them is added: the next call would begin
    /// with the same.
    async fn add_alone(
        &self,
        messages: &[Envelope],
        lost: &SourceError,
        deadline: Instant,
    ) -> Vec<Outcome<()>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        let mut failed = FailedKeys::default();
        for message in messages {
            // Nor would the rest be taken.
            if !self.link.is_up(deadline).await {
                break;
            }
            let outcome = match failed.reason(message) {
                Some(reason) => Err(reason),
                None => self.add_one(message, deadline).await,
            };
            if outcome.is_err() {
                failed.add(message);
            }
            outcomes.push(outcome);
        }
        while outcomes.len() < messages.len() {
            outcomes.push(Err(passing(lost)));
        }
        outcomes
    }

    async fn add_one(&self, message: &Envelope, deadline: Instant) -> Outcome<()> {
        let outcomes = self.add(slice::from_ref(message), deadline).await;
        let outcome = outcomes.map_err(|error| passing(&error))?.pop();
        outcome.unwrap_or_else(|| Err(unreadable(DOING)))
    }
}

fn added(answer: Value) -> Outcome<()> {
    match answer {
        Value::BulkString(_) | Value::SimpleString(_) => Ok(()),
        Value::ServerError(error) => Err(refused(DOING, &error.into())),
        _ => Err(unreadable(DOING)),
    }
}

impl Publisher for RedisStreamsPublisher {
    async fn publish(&self, messages: &[Envelope]) -> Vec<Outcome<()>> {
        if messages.is_empty() {
            return Vec::new();
        }
        if messages.iter().any(|message| message.address.is_empty()) {
            // Nothing is sent: those behind it must not come before it.
            let refuse = |message: &Envelope| match message.address.is_empty() {
                true => SourceError::permanent("publishing: the message has no address"),
                false => transient(DOING, "another one of the call has no address"),
            };
            return messages
                .iter()
                .map(|message| Err(refuse(message)))
                .collect();
        }
        let deadline = Instant::now() + self.limit;
        // Of the link, or of the user: none of them was refused.
        let none = |error: &SourceError| -> Vec<Outcome<()>> {
            messages.iter().map(|_| Err(passing(error))).collect()
        };
        if self.replicas > 0
            && let Err(error) = self.probe(deadline).await
        {
            return none(&error);
        }
        match self.add(messages, deadline).await {
            Ok(outcomes) => outcomes,
            Err(error) if messages.len() > 1 => self.add_alone(messages, &error, deadline).await,
            Err(error) => none(&error),
        }
    }
}

impl fmt::Debug for RedisStreamsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsPublisher")
            .field("connection", &self.connection)
            .field("limit", &self.limit)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_it_goes() {
        let url = "redis+stream://ann:s%40cret@h/?timeout_ms=2500&wait_replicas=2";
        let publisher = RedisStreamsPublisher::from_url(url).unwrap();
        assert_eq!(publisher.limit, Duration::from_millis(2500));
        assert_eq!(publisher.replicas, 2);
        assert!(!format!("{publisher:?}").contains("cret"));
        for url in [
            "redis+stream://h/?stream=S",
            "redis+stream://h/?timeout_ms=x",
            "amqp://h/",
        ] {
            assert!(RedisStreamsPublisher::from_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_password_that_is_not_encoded_is_not_repeated() {
        let url = "redis+stream://ann:1?hunter2@h:6379/0";
        let error = RedisStreamsPublisher::from_url(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn a_message_without_an_address_says_nothing_of_the_others() {
        let publisher = RedisStreamsPublisher::from_url("redis+stream://h/").unwrap();
        let messages = ["orders", "", "orders"].map(|address| Envelope::new(address, "{}"));
        let answers = publisher.publish(&messages).await.into_iter();
        let passing = answers.map(|answer| answer.unwrap_err().is_transient());
        assert_eq!(passing.collect::<Vec<_>>(), [true, false, true]);
    }
}
