//! What the inline consumer is told to do, and what it answers.

use std::{
    any::Any,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use crate::{Error, Failure, Message, Result, telemetry};

/// What to do with a message that was processed before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    /// Answer [`Consumed::Duplicate`], without the stored result.
    #[default]
    Skip,
    /// The same, and log a warning.
    Warn,
    /// Fail with [`ConsumeError::Duplicate`].
    Error,
    /// Answer [`Consumed::Duplicate`] with the stored result.
    ReturnResult,
}

impl OnDuplicate {
    pub(super) fn decide<E>(
        self,
        message: &Message,
        result: Option<Bytes>,
    ) -> Result<Consumed, ConsumeError<E>> {
        match self {
            Self::Skip => Ok(Consumed::Duplicate { result: None }),
            Self::Warn => {
                tracing::warn!(key = %message.key(), "duplicate skipped");
                Ok(Consumed::Duplicate { result: None })
            }
            Self::Error => Err(ConsumeError::Duplicate),
            Self::ReturnResult => Ok(Consumed::Duplicate { result }),
        }
    }
}

/// What to do with a message that another worker holds, that waits for its retry, or that is
/// behind an earlier one of its ordering key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBusy {
    /// Ask again with growing pauses, for as long as this; then fail as [`Self::Error`] does.
    Wait(Duration),
    /// Fail with [`ConsumeError::Busy`] or [`ConsumeError::Blocked`], so that the broker delivers
    /// the message again.
    Error,
    /// Answer [`Consumed::Busy`] or [`Consumed::Blocked`]. The message is durably stored, but
    /// nobody runs it unless the broker delivers it again or a processor works on its handler.
    Skip,
}

/// What happened to a consumed message.
#[derive(Clone, PartialEq, Eq)]
pub enum Consumed {
    /// The handler ran, and its completion is durable.
    Ran {
        /// What the handler returned.
        result: Option<Bytes>,
    },
    /// It was processed before.
    Duplicate {
        /// What the first run stored, when [`OnDuplicate::ReturnResult`] is set.
        result: Option<Bytes>,
    },
    /// Another worker holds it, or it waits for its due time ([`OnBusy::Skip`]).
    Busy {
        /// No sooner than this, by the store's clock.
        until: SystemTime,
    },
    /// An earlier message of its ordering key is not finished ([`OnBusy::Skip`]).
    Blocked,
    /// It is dead, from before or because this delivery found its attempts used up. It can be
    /// acknowledged: an operator decides what becomes of it.
    Dead {
        /// Why.
        reason: String,
    },
    /// An operator discarded it.
    Discarded,
}

impl fmt::Debug for Consumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, result) = match self {
            Self::Ran { result } => ("Ran", result),
            Self::Duplicate { result } => ("Duplicate", result),
            Self::Busy { until } => return f.debug_struct("Busy").field("until", until).finish(),
            Self::Blocked => return f.write_str("Blocked"),
            Self::Dead { reason } => {
                return f.debug_struct("Dead").field("reason", reason).finish();
            }
            Self::Discarded => return f.write_str("Discarded"),
        };
        f.debug_struct(name)
            .field("result_bytes", &result.as_ref().map(Bytes::len))
            .finish()
    }
}

/// Why a message was not consumed here and now.
///
/// Where [`is_final`](Self::is_final), another delivery cannot change anything: acknowledge this
/// one. Otherwise do not, so that the broker delivers it again and the inbox decides then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError<E = Failure> {
    /// The handler failed. The message waits for its retry, which another delivery has to bring. A
    /// [`Failure`] has the handler's own error: [`Failure::find`].
    #[error("the handler failed: {0}")]
    Handler(E),
    /// The handler panicked, which counts as a failed attempt; as [`Handler`](Self::Handler).
    #[error("{0}")]
    Panicked(HandlerPanic),
    /// The handler failed in the last attempt or [for good](crate::Remedy::Dead), and the message is
    /// durably dead. Final: an operator decides what becomes of it.
    #[error("the last attempt failed, and the message is dead: {0}")]
    Dead(Cause<E>),
    /// It was processed before, and [`OnDuplicate::Error`] is set. Final.
    #[error("the message was processed before")]
    Duplicate,
    /// Another worker holds it, or it waits for its due time.
    #[error("the message is busy")]
    Busy {
        /// No sooner than this, by the store's clock.
        until: SystemTime,
    },
    /// An earlier message of its ordering key is not finished.
    #[error("an earlier message of the same ordering key is not finished")]
    Blocked,
    /// Another worker took the message over while the handler ran here, because the lease had run
    /// out. The handler was dropped, or could not [settle the message itself](super::InlineConsumer::consume_settling).
    #[error("the lease was lost while the handler ran")]
    LeaseLost,
    /// The handler ran to completion, but that is not known to be recorded: the store could not be
    /// reached, or (`None`) another worker had taken the message over. The next delivery to this
    /// consumer records it first; elsewhere, once the lease has run out, the handler may run again.
    #[error("the handler completed, but that could not be recorded")]
    Unrecorded(#[source] Option<Error>),
    /// The consumer has been [drained](super::InlineConsumer::drain): it begins nothing more, or has
    /// cut the handler short. The message was handed back, which costs it no attempt.
    #[error("the process shuts down")]
    Stopped,
    /// The store failed before the handler could run. (It may have run in an earlier delivery whose
    /// completion could not be [recorded](Self::Unrecorded): that is tried first.)
    #[error("the inbox could not be asked")]
    Store(#[source] Error),
}

impl<E> ConsumeError<E> {
    /// Whether the message is finished for good, so that the delivery can be acknowledged:
    /// [`Duplicate`](Self::Duplicate) and [`Dead`](Self::Dead).
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Duplicate | Self::Dead(_))
    }
}

/// How a handler failed.
#[derive(Debug)]
pub enum Cause<E = Failure> {
    /// With its own error.
    Failed(E),
    /// By a panic.
    Panicked(HandlerPanic),
}

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Panicked(panic) => panic.fmt(f),
        }
    }
}

/// A handler's panic.
pub struct HandlerPanic {
    text: String,
    /// In a mutex only so that errors can be shared between threads.
    payload: Mutex<Box<dyn Any + Send>>,
}

/// Logs and counts an answer.
pub(super) fn tell<E>(message: &Message, answer: &Result<Consumed, ConsumeError<E>>) {
    let outcome = name(answer);
    tracing::debug!(key = %message.key(), outcome, "consumed inline");
    telemetry::consumed(message.handler(), outcome);
}

/// An answer's name.
fn name<E>(answer: &Result<Consumed, ConsumeError<E>>) -> &'static str {
    match answer {
        Ok(Consumed::Ran { .. }) => "ran",
        Ok(Consumed::Duplicate { .. }) | Err(ConsumeError::Duplicate) => "duplicate",
        Ok(Consumed::Busy { .. }) | Err(ConsumeError::Busy { .. }) => "busy",
        Ok(Consumed::Blocked) | Err(ConsumeError::Blocked) => "blocked",
        Ok(Consumed::Dead { .. }) | Err(ConsumeError::Dead(_)) => "dead",
        Ok(Consumed::Discarded) => "discarded",
        Err(ConsumeError::Handler(_) | ConsumeError::Panicked(_)) => "failed",
        Err(ConsumeError::LeaseLost) => "lease-lost",
        Err(ConsumeError::Unrecorded(_)) => "unrecorded",
        Err(ConsumeError::Stopped) => "stopped",
        Err(ConsumeError::Store(_)) => "store-failed",
    }
}

impl HandlerPanic {
    pub(super) fn new(payload: Box<dyn Any + Send>) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        Self {
            text: format!("the handler panicked: {text}"),
            payload: Mutex::new(payload),
        }
    }

    /// Lets the panic go on as if nobody had caught it.
    pub fn resume(self) -> ! {
        let payload = self.payload.into_inner();
        std::panic::resume_unwind(payload.unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Display for HandlerPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for HandlerPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerPanic").field(&self.text).finish()
    }
}
