//! Ready-made sources and deliveries for applications that feed a receiver themselves.

use std::{fmt, pin::Pin};

use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};

use crate::{Message, Receipt};
use inbox_source::{Delivery, Rejection, Source, SourceError};

/// A [`Source`] that takes deliveries from a bounded channel, whose bound is the back-pressure on
/// those who send. It ends when all senders are gone.
#[derive(Debug)]
pub struct ChannelSource<D> {
    channel: mpsc::Receiver<D>,
}

impl<D> ChannelSource<D> {
    /// Takes from `channel`.
    #[must_use]
    pub fn new(channel: mpsc::Receiver<D>) -> Self {
        Self { channel }
    }
}

impl<D: Delivery> Source for ChannelSource<D> {
    type Delivery = D;

    async fn next(&mut self) -> Result<Option<D>, SourceError> {
        Ok(self.channel.recv().await)
    }
}

/// A [`Source`] that takes deliveries from a stream. It ends when the stream does.
pub struct StreamSource<S> {
    stream: Pin<Box<S>>,
}

impl<S> StreamSource<S> {
    /// Takes from `stream`.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self {
            stream: Box::pin(stream),
        }
    }
}

impl<D, S> Source for StreamSource<S>
where
    D: Delivery,
    S: Stream<Item = Result<D, SourceError>> + Send,
{
    type Delivery = D;

    async fn next(&mut self) -> Result<Option<D>, SourceError> {
        self.stream.next().await.transpose()
    }
}

impl<S> fmt::Debug for StreamSource<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSource").finish_non_exhaustive()
    }
}

/// A message whose sender waits to hear that it is stored, such as a web hook that answers its
/// caller only then.
#[derive(Debug)]
pub struct Submission {
    message: Message,
    answer: oneshot::Sender<Result<Receipt, Rejection>>,
    receipt: Receipt,
}

impl Submission {
    /// A delivery of `message`, and the receiving end of its answer: `Ok(Ok(_))` when it is durably
    /// stored, now ([`Receipt::Accepted`]) or by an earlier copy ([`Receipt::Duplicate`]),
    /// `Ok(Err(_))` when it was rejected, and `Err` when the receiver ended before it was done,
    /// which means: send it again.
    ///
    /// The message is stored also when the receiving end is dropped meanwhile.
    #[must_use]
    pub fn new(message: Message) -> (Self, oneshot::Receiver<Result<Receipt, Rejection>>) {
        let (answer, answered) = oneshot::channel();
        let receipt = Receipt::Accepted;
        let submission = Self {
            message,
            answer,
            receipt,
        };
        (submission, answered)
    }
}

impl Delivery for Submission {
    fn message(&self) -> Result<Message, Rejection> {
        Ok(self.message.clone())
    }

    fn stored(&mut self, receipt: &Receipt) {
        self.receipt = receipt.clone();
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        // A sender who has left does not care; the message is stored all the same.
        let _ = self.answer.send(Ok(self.receipt));
        Ok(())
    }

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        let _ = self.answer.send(Err(rejection));
        Ok(())
    }
}
