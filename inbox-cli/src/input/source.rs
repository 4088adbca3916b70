//! NDJSON as a source of deliveries.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use inbox::{
    HandlerName, Message,
    receiver::{Delivery, Rejection, Source, SourceError},
};
use tokio::io::AsyncBufRead;

use super::{
    format::Format,
    lines::{Line, Lines},
};
use crate::output;

/// Lines that could not become messages: each is reported on standard error, and counted. And
/// whether there may be more than were read.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    lines: AtomicU64,
    is_unread: AtomicBool,
    first_left: Mutex<Option<u64>>,
}

impl Refusals {
    pub(crate) fn count(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Whether the input could not be read to its end.
    pub(crate) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Relaxed)
    }

    /// The first line that was read as a message, and neither stored nor refused, as the receiver has stopped at it.
    pub(crate) fn first_left(&self) -> Option<u64> {
        *self.lock_left()
    }

    fn leave(&self, line: u64) {
        let mut first = self.lock_left();
        *first = Some(first.map_or(line, |known| known.min(line)));
    }

    fn lock_left(&self) -> MutexGuard<'_, Option<u64>> {
        self.first_left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: u64, reason: &str) {
        self.lines.fetch_add(1, Ordering::Relaxed);
        output::note(format_args!("line {line}: {reason}"));
    }
}

/// Reads messages line by line.
pub(crate) struct NdjsonSource<R> {
    lines: Lines<R>,
    format: Format,
    handler: HandlerName,
    payload_limit: usize,
    strict: bool,
    refusals: Arc<Refusals>,
}

impl<R> NdjsonSource<R> {
    pub(crate) fn new(
        lines: Lines<R>,
        format: Format,
        handler: HandlerName,
        payload_limit: usize,
        strict: bool,
        refusals: Arc<Refusals>,
    ) -> Self {
        Self {
            lines,
            format,
            handler,
            payload_limit,
            strict,
            refusals,
        }
    }

    fn message(&self, line: &Line) -> Result<Message, String> {
        let content = line.content.as_ref().map_err(|length| {
            format!("has {length} bytes, more than any message that this store takes")
        })?;
        let message = self.format.message(content, &self.handler)?;
        message
            .check_payload(self.payload_limit)
            .map_err(|e| e.to_string())?;
        Ok(message)
    }
}

impl<R: AsyncBufRead + Unpin + Send> Source for NdjsonSource<R> {
    type Delivery = LineDelivery;

    async fn next(&mut self) -> Result<Option<LineDelivery>, SourceError> {
        loop {
            let read = self.lines.next().await.map_err(|error| {
                self.refusals.is_unread.store(true, Ordering::Relaxed);
                SourceError::permanent(error)
            });
            let Some(line) = read? else {
                return Ok(None);
            };
            match self.message(&line) {
                Ok(message) => {
                    return Ok(Some(LineDelivery {
                        line: line.number,
                        message,
                        is_finished: false,
                        refusals: Arc::clone(&self.refusals),
                    }));
                }
                Err(reason) if self.strict => {
                    return Err(SourceError::permanent(format!(
                        "line {}: {reason}",
                        line.number
                    )));
                }
                Err(reason) => self.refusals.add(line.number, &reason),
            }
        }
    }
}

/// A message and the line that it came from. There is nobody to acknowledge.
#[derive(Debug)]
pub(crate) struct LineDelivery {
    line: u64,
    message: Message,
    is_finished: bool,
    refusals: Arc<Refusals>,
}

impl Drop for LineDelivery {
    fn drop(&mut self) {
        if !self.is_finished {
            self.refusals.leave(self.line);
        }
    }
}

impl Delivery for LineDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        Ok(self.message.clone())
    }

    async fn acknowledge(mut self) -> Result<(), SourceError> {
        self.is_finished = true;
        Ok(())
    }

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        self.is_finished = true;
        self.refusals.add(self.line, rejection.reason());
        Ok(())
    }
}
