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

use crate::{error::transient, session::Session};

/// How often the server says that it is there, while a request is open.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(9);
/// How long a request is open.
const EXPIRES: Duration = Duration::from_secs(30);
/// A request is made when this part of what may be held is free, so that one does not bring one message.
const PART: usize = 4;

/// One subscription, and at most one open request.
pub(crate) struct Pull {
    consumer: PullConsumer,
    context: Context,
    subscriber: Subscriber,
    to: Subject,
    /// How many messages the open request may still bring.
    asked: usize,
    heard: Instant,
}

impl Pull {
    pub(crate) async fn new(
        session: &Session,
        consumer: PullConsumer,
    ) -> Result<Self, SourceError> {
        let to = Subject::from(session.client.new_inbox());
        let subscriber = session.client.subscribe(to.clone()).await;
        Ok(Self {
            consumer,
            context: session.context.clone(),
            subscriber: subscriber.map_err(|error| transient("subscribing", error))?,
            to,
            asked: 0,
            heard: Instant::now(),
        })
    }

    /// Waits for a message, of which at most `most` may be held. Where it is abandoned, none is lost.
    pub(crate) async fn next(
        &mut self,
        session: &Arc<Session>,
        most: usize,
    ) -> Result<Message, SourceError> {
        loop {
            let free = most.saturating_sub(session.held.count());
            if self.asked == 0 && free > 0 && free >= most / PART {
                self.ask(free).await?;
            }
            let silent = sleep_until(self.heard + SILENCE);
            tokio::select! {
                biased;
                // What came before is given back: it could not be acknowledged.
                () = session.lost() => {
                    return Err(SourceError::transient("receiving: the connection is lost"));
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

    pub(crate) async fn ask(&mut self, count: usize) -> Result<(), SourceError> {
        let request = BatchConfig {
            batch: count,
            expires: Some(EXPIRES),
            idle_heartbeat: HEARTBEAT,
            ..BatchConfig::default()
        };
        let asked = self.consumer.request_batch(request, self.to.clone()).await;
        asked.map_err(|error| transient("asking for messages", error))?;
        // Nothing is awaited between the request and this.
        self.asked = count;
        self.heard = Instant::now();
        Ok(())
    }

    /// `None` for what the server says about the request.
    fn read(&mut self, message: async_nats::Message) -> Result<Option<Message>, SourceError> {
        self.heard = Instant::now();
        match message.status {
            None | Some(StatusCode::OK) => {
                self.asked = self.asked.saturating_sub(1);
                Ok(Some(self.of_stream(message)))
            }
            Some(StatusCode::IDLE_HEARTBEAT) => Ok(None),
            // The request has ended; no message, or the consumer's limit of them.
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => {
                self.asked = 0;
                Ok(None)
            }
            Some(status) => {
                let said = message.description.unwrap_or_default();
                Err(transient("receiving", format!("{status}: {said}")))
            }
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
            match (&message.reply, message.status) {
                (Some(_), None) => last.push(self.of_stream(message)),
                (None, None) => break,
                _ => {}
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
            if message.status.is_none() {
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
