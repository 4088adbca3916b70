//! Asks for messages, never for more than may be held.

use std::{sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subject, Subscriber,
    jetstream::{
        Context, Message,
        consumer::{PullConsumer, pull::BatchConfig},
    },
};
use futures_util::{FutureExt as _, StreamExt as _};
use inbox_source::SourceError;
use tokio::time::{Instant, sleep_until};

use crate::{error::transient, held::Size, session::Session};

/// How often the server says that it is there, while a request is open.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(9);
/// How long a request is open.
const EXPIRES: Duration = Duration::from_secs(30);
/// A request is made when this part of what may be held is free, so that one does not bring one message.
const PART: usize = 4;

/// What the server says when the next message has more bytes than a request may still bring.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";
/// What newer ones say behind the last message of a request that has bytes left. The next request may be open by then.
const COMPLETED: &str = "Batch Completed";

/// One subscription, and at most one open request.
pub(crate) struct Pull {
    consumer: PullConsumer,
    context: Context,
    subscriber: Subscriber,
    to: Subject,
    /// How many messages the open request may still bring, and bytes of them as they come.
    asked: usize,
    asked_bytes: usize,
    /// What the server has ended the last request for: the next message is larger than so many bytes.
    too_few: Option<usize>,
    heard: Instant,
    /// The most that the consumer allows to ask for at a time, and how long such a request may be open.
    most: Size,
    expires: Duration,
    /// Whether anything of the stream came.
    has_brought: bool,
}

impl Pull {
    pub(crate) async fn new(
        session: &Session,
        consumer: PullConsumer,
    ) -> Result<Self, SourceError> {
        let config = &consumer.cached_info().config;
        // Zero is no limit.
        let limit = |limit: i64| match usize::try_from(limit) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(limit) => limit,
        };
        let most = Size {
            count: limit(config.max_batch),
            bytes: limit(config.max_bytes),
        };
        let expires = match config.max_expires {
            Duration::ZERO => EXPIRES,
            longest => longest.min(EXPIRES),
        };
        let to = Subject::from(session.client.new_inbox());
        let subscriber = session.client.subscribe(to.clone()).await;
        Ok(Self {
            consumer,
            context: session.context.clone(),
            subscriber: subscriber.map_err(|error| transient("subscribing", error))?,
            to,
            asked: 0,
            asked_bytes: 0,
            too_few: None,
            heard: Instant::now(),
            most,
            expires,
            has_brought: false,
        })
    }

    /// Waits for a message, of which at most `most` may be held. Where it is abandoned, none is lost.
    pub(crate) async fn next(
        &mut self,
        session: &Arc<Session>,
        most: Size,
    ) -> Result<Message, SourceError> {
        loop {
            if self.asked == 0
                && let Some(room) = self.room(session.held.size(), most)
            {
                self.ask(room).await?;
            }
            let silent = sleep_until(self.heard + SILENCE);
            tokio::select! {
                biased;
                // What came before is given back: it could not be acknowledged.
                () = session.lost() => {
                    return Err(SourceError::transient(match self.is_barren() {
                        true => "receiving: the connection is lost before anything came; if it is so again and again, a message may \
                                 be one that NATS's client does not read",
                        false => "receiving: the connection is lost",
                    }));
                }
                came = self.subscriber.next() => match came {
                    Some(message) => {
                        if let Some(message) = self.read(message)? {
                            return Ok(message);
                        }
                    }
                    None => return Err(SourceError::transient("receiving: the connection is closed")),
                },
                () = session.held.freed.notified(), if self.asked == 0 => {}
                () = silent, if self.asked > 0 => {
                    return Err(SourceError::transient("receiving: the server is silent"));
                }
            }
        }
    }

    /// Whether messages were asked for, and none came.
    pub(crate) fn is_barren(&self) -> bool {
        self.asked > 0 && !self.has_brought
    }

    /// Whether messages may have been on their way.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked > 0
    }

    /// What to ask for, if it is worth a request. A message that has more bytes than may be held comes when nothing
    /// else is.
    fn room(&self, held: Size, most: Size) -> Option<Size> {
        let free = Size {
            count: most.count.saturating_sub(held.count),
            bytes: most.bytes.saturating_sub(held.bytes),
        };
        if free.count < (most.count / PART).max(1) || free.bytes < (most.bytes / PART).max(1) {
            return None;
        }
        let bytes = free.bytes.min(self.most.bytes);
        match self.too_few {
            Some(too_few) if bytes <= too_few => (held.count == 0).then_some(Size {
                count: 1,
                bytes: usize::MAX,
            }),
            _ => Some(Size { bytes, ..free }),
        }
    }

    pub(crate) async fn ask(&mut self, room: Size) -> Result<(), SourceError> {
        let count = room.count.min(self.most.count);
        let request = BatchConfig {
            batch: count,
            // The server knows numbers of 64 bits with a sign; zero is no limit.
            max_bytes: i64::try_from(room.bytes).map_or(0, |_| room.bytes),
            expires: Some(self.expires),
            // The server takes none that is longer than half of it.
            idle_heartbeat: HEARTBEAT.min(self.expires / 2),
            ..BatchConfig::default()
        };
        let asked = self.consumer.request_batch(request, self.to.clone()).await;
        asked.map_err(|error| transient("asking for messages", error))?;
        // Nothing is awaited between the request and this.
        self.asked = count;
        self.asked_bytes = room.bytes;
        self.heard = Instant::now();
        Ok(())
    }

    /// `None` for what the server says about the request.
    fn read(&mut self, message: async_nats::Message) -> Result<Option<Message>, SourceError> {
        self.heard = Instant::now();
        if is_of_stream(&message) {
            self.asked = self.asked.saturating_sub(1);
            self.asked_bytes = self.asked_bytes.saturating_sub(message.length);
            if self.asked_bytes == 0 {
                self.asked = 0;
            }
            self.too_few = None;
            self.has_brought = true;
            return Ok(Some(self.of_stream(message)));
        }
        match message.status {
            None | Some(StatusCode::OK) => Ok(None),
            Some(StatusCode::IDLE_HEARTBEAT) => Ok(None),
            // The request has ended; no message, or the consumer's limit of them.
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => {
                self.asked = 0;
                Ok(None)
            }
            Some(status) => match message.description.unwrap_or_default() {
                said if said == COMPLETED => Ok(None),
                said if said == TOO_LARGE => {
                    self.asked = 0;
                    self.too_few = Some(self.asked_bytes);
                    Ok(None)
                }
                said => Err(transient("receiving", format!("{status}: {said}"))),
            },
        }
    }

    /// Ends the request, and returns what was on its way. What the server sends in the moment between is not
    /// among it.
    pub(crate) async fn end(&mut self, session: &Session) -> Vec<Message> {
        let mut last = Vec::new();
        // The server sends in order: what comes before this mark was sent before it was read.
        if session
            .client
            .publish(self.to.clone(), "".into())
            .await
            .is_err()
        {
            return last;
        }
        while let Some(message) = self.subscriber.next().await {
            match is_of_stream(&message) {
                true => last.push(self.of_stream(message)),
                false if message.status.is_none() => break,
                false => {}
            }
        }
        if self.subscriber.unsubscribe().await.is_ok() {
            last.extend(self.rest());
        }
        last
    }

    /// What has come and nobody has asked for.
    pub(crate) fn rest(&mut self) -> Vec<Message> {
        let mut rest = Vec::new();
        while let Some(Some(message)) = self.subscriber.next().now_or_never() {
            if is_of_stream(&message) {
                rest.push(self.of_stream(message));
            }
        }
        rest
    }

    fn of_stream(&self, message: async_nats::Message) -> Message {
        Message {
            message,
            context: self.context.clone(),
        }
    }
}

/// Whether the server waits for an answer to it. What it says about a request has no reply; a sender's headers
/// may look like that.
fn is_of_stream(message: &async_nats::Message) -> bool {
    message.reply.is_some()
}
