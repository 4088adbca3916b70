//! The way out: messages that a stream has confirmed.

use std::{fmt, sync::Arc, time::Duration};

use async_nats::jetstream::{
    Context,
    context::{ContextBuilder, PublishAckFuture, PublishError, PublishErrorKind},
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
/// A longer address would end the connection, and fail all that is on it. A server reads lines of 4,096 bytes
/// (`max_control_line`) unless set otherwise. With the address stand there: the subject for the answer (52 bytes), two
/// numbers of at most 20 digits each, and what is between them. The rest is left over.
const MAX_SUBJECT: usize = 4096 - 256;

/// Sends messages to the subjects that they are addressed to, with their id as `Nats-Msg-Id`.
///
/// A message is confirmed when a stream has it, with a majority of its replicas. One whose id the stream has
/// seen within its duplicate window (two minutes unless set) is confirmed and not stored again. One that is too
/// large for the server or its stream is a permanent error, and so is an address that is no subject, or longer than
/// 3,840 bytes: a server with a smaller `max_control_line` than its default ends the connection at a shorter one.
///
/// One for which no stream answers is a transient error: nobody can tell a subject that no stream takes from a stream
/// that is away, as behind a leaf node that is cut off, or made again by a deployment. Whatever fails before a
/// message is sent is transient, a refused password, too: the messages are none the worse for it.
///
/// Headers of a message that begin with `Nats-` are not sent: they give orders to the stream. Nor is its own
/// [`ordering-key`](crate::KEY), which would be the key of a message that has none.
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
        let context = ContextBuilder::new()
            .timeout(self.limit)
            .ack_timeout(self.limit)
            .build(client);
        Ok(link.insert(Link { context, lost }).clone())
    }
}

/// Sends one, and returns what its confirmation will be.
async fn send(context: &Context, message: &Envelope) -> Outcome<PublishAckFuture> {
    let refuse = |reason: &str| SourceError::permanent(format!("{DOING}: {reason}"));
    let headers = headers(message).map_err(refuse)?;
    if !is_subject(&message.address) {
        return Err(refuse(
            "the address is no subject, or longer than one may be",
        ));
    }
    let (subject, payload) = (message.address.clone(), message.payload.clone());
    let sent = context
        .publish_with_headers(subject, headers, payload)
        .await;
    sent.map_err(|error| unpublished(DOING, &error))
}

/// What the server said of one. That nobody answers says nothing of the message.
fn refused(message: &Envelope, error: &PublishError) -> SourceError {
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            let address = &message.address;
            transient(
                DOING,
                format!(
                    "no stream answers at {address:?}: none takes it, or the one that does is away"
                ),
            )
        }
        _ => unpublished(DOING, error),
    }
}

/// Whether a message can be sent to it: no wildcards, no empty part.
fn is_subject(address: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control();
    address.len() <= MAX_SUBJECT
        && !address.contains(bad)
        && (address.split('.')).all(|part| !part.is_empty() && part != "*" && part != ">")
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
        for (message, sending) in messages.iter().zip(sending) {
            let answer = match sending {
                Err(error) => Err(error),
                Ok(sending) => tokio::select! {
                    biased;
                    answer = timeout_at(deadline, sending.into_future()) => match answer {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(error)) => Err(refused(message, &error)),
                        Err(_) => Err(late()),
                    },
                    () = link.lost.wait() => {
                        Err(transient(DOING, "the connection is lost"))
                    }
                },
            };
            answers.push(answer);
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
    use std::io;

    use async_nats::jetstream::context::traits::TimeoutProvider as _;
    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// As a server that takes messages and never confirms one.
    async fn serve(mut client: TcpStream) -> io::Result<()> {
        let (read, mut write) = client.split();
        let info = r#"{"server_id":"S","version":"2.10.0","headers":true,"max_payload":1048576}"#;
        write
            .write_all(format!("INFO {info}\r\n").as_bytes())
            .await?;
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await? {
            if line.starts_with("PING") {
                write.write_all(b"PONG\r\n").await?;
            }
        }
        Ok(())
    }

    #[tokio::test]
    async fn the_client_waits_for_confirmations_as_long_as_a_call_may_take() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let limit = Duration::from_secs(77);
        let publisher = NatsPublisher::from_url(&url).unwrap().timeout(limit);
        let server = async {
            let (client, _) = listener.accept().await.unwrap();
            serve(client).await
        };
        tokio::select! {
            link = publisher.link() => assert_eq!(link.unwrap().context.timeout(), limit),
            ended = server => panic!("the server ended: {ended:?}"),
        }
    }

    #[test]
    fn that_no_stream_answers_says_nothing_of_a_message() {
        let message = Envelope::new("orders.eu", "{}");
        let of = |kind| refused(&message, &PublishError::new(kind));
        let away = of(PublishErrorKind::StreamNotFound);
        assert!(
            away.is_transient() && away.to_string().contains("orders.eu"),
            "{away}"
        );
        assert!(!of(PublishErrorKind::MaxPayloadExceeded).is_transient());
    }

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
        assert!(is_subject(&"a".repeat(MAX_SUBJECT)));
        assert!(!is_subject(&"a".repeat(MAX_SUBJECT + 1)));
        for address in ["", "a..b", "a.*", ">", "a b", "a\r\nb"] {
            assert!(!is_subject(address), "{address:?}");
        }
    }
}
