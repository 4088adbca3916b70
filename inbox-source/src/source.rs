//! Where deliveries come from.

use std::{borrow::Cow, error::Error as StdError, fmt, future::Future};

use bytes::Bytes;
use inbox_api::{Headers, Invalid, Message, Receipt};

/// A stream of deliveries: a queue's consumer, a topic's partition, a channel.
pub trait Source: Send {
    /// What it hands out.
    type Delivery: Delivery;

    /// Waits for the next delivery; `None` means that there will be no more.
    ///
    /// MUST be cancel-safe: a future that is dropped before it is ready must not lose a delivery.
    /// The receiver drops it whenever something else is to be done first.
    ///
    /// # Errors
    /// A transient [`SourceError`] makes the receiver pause and call again; a permanent one makes
    /// it finish what it has and end, and so does a panic. When the call after a transient one has waited for a
    /// minute, the source counts as back: while it is away, it should fail again within that time.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Delivery>, SourceError>> + Send;

    /// Hears, before the first delivery is asked for, how much the receiver takes before it
    /// acknowledges, so that the broker's own flow control (prefetch, pending acknowledgements) can be
    /// set to it. Provided: does nothing.
    fn set_flow(&mut self, flow: Flow) {
        let _ = flow;
    }

    /// Called once at the end of each run of a receiver, after the last delivery is finished or given up: whatever was
    /// acknowledged has reached the broker when it returns, and what was not may be delivered elsewhere at once. Takes
    /// no longer than ten seconds; the receiver gives it up then. Where a run has failed, a service may begin another
    /// one with the same source: [`next`](Self::next) is called again then, and has to connect again. `None` would
    /// mean that there is nothing more for good. Provided: does nothing.
    ///
    /// # Errors
    /// Logged, nothing more: the broker delivers again what it does not know of.
    fn close(&mut self) -> impl Future<Output = Result<(), SourceError>> + Send {
        async { Ok(()) }
    }

    /// A name for metrics and logs, such as `kafka/orders`. Provided: `source`.
    fn name(&self) -> Cow<'static, str> {
        "source".into()
    }

    /// How many messages the broker has for this consumer that it has not handed out, as far as the
    /// source knows without asking. Provided: not known.
    fn lag(&self) -> Option<u64> {
        None
    }
}

/// How much a receiver takes from a source before it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flow {
    /// The most deliveries that are taken and not yet acknowledged or rejected.
    pub max_unacknowledged: usize,
    /// The most bytes that these hold. While it is reached nothing more is taken, so the last delivery may
    /// exceed it, and one is always taken. What a source fetches ahead of the receiver counts, as far as its
    /// broker's protocol lets it.
    pub max_unacknowledged_bytes: usize,
    /// The most deliveries that are acknowledged together.
    pub batch_size: usize,
}

impl Flow {
    /// A bound of so many deliveries, acknowledged in batches of `batch_size`, of whatever size.
    #[must_use]
    pub fn new(max_unacknowledged: usize, batch_size: usize) -> Self {
        Self {
            max_unacknowledged,
            max_unacknowledged_bytes: usize::MAX,
            batch_size,
        }
    }

    /// Sets the bound of bytes.
    #[must_use]
    pub fn with_max_unacknowledged_bytes(mut self, bytes: usize) -> Self {
        self.max_unacknowledged_bytes = bytes;
        self
    }
}

/// One delivery, to be acknowledged or rejected. Dropping it means neither: the broker is
/// expected to deliver it again.
///
/// The receiver finishes deliveries strictly in the order in which the source handed them out, so
/// acknowledging one may mean (as a committed offset does) that all earlier ones are finished too.
pub trait Delivery: Send + 'static {
    /// The message that it carries.
    ///
    /// # Errors
    /// [`Rejection`] when it cannot be one; the delivery is then rejected with that reason. A panic
    /// is one too.
    fn message(&self) -> Result<Message, Rejection>;

    /// The bytes that this holds in memory, for
    /// `max_unacknowledged_bytes` of the receiver, where they
    /// are more than those of its message, or it is rejected. Provided: not known. A rejected
    /// delivery counts as 1 MiB then.
    fn bytes(&self) -> Option<usize> {
        None
    }

    /// The delivery as it came, for `keep_rejected` of the receiver. Asked only of one that would be
    /// rejected. Provided: none, so that it is rejected. Deliveries that wrap others should pass it on.
    fn raw(&self) -> Option<Raw> {
        None
    }

    /// Hears, before it is acknowledged, what the store answered: [`Receipt::Accepted`] or
    /// [`Receipt::Duplicate`] (with fan-out, accepted when any copy was). Provided: does nothing.
    /// Deliveries that wrap others should pass it on.
    fn stored(&mut self, receipt: &Receipt) {
        let _ = receipt;
    }

    /// Tells the broker that the message is safe. Called only after the store said so.
    ///
    /// # Errors
    /// Counted and logged, nothing more: the broker delivers it again and the inbox refuses the
    /// copy.
    fn acknowledge(self) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Tells the broker that the message will never be accepted, so that it goes to the broker's
    /// own dead letters rather than round for ever.
    ///
    /// # Errors
    /// As [`acknowledge`](Self::acknowledge).
    fn reject(self, rejection: Rejection) -> impl Future<Output = Result<(), SourceError>> + Send;

    /// Acknowledges a run of consecutive deliveries, in order, and returns the failures, one per
    /// delivery that was not acknowledged. Brokers that acknowledge *up to here* in one request
    /// should override it; the provided form calls [`acknowledge`](Self::acknowledge) for each.
    fn acknowledge_all(run: Vec<Self>) -> impl Future<Output = Vec<SourceError>> + Send
    where
        Self: Sized,
    {
        async move {
            let mut failures = Vec::new();
            for delivery in run {
                if let Err(error) = delivery.acknowledge().await {
                    failures.push(error);
                }
            }
            failures
        }
    }
}

/// A message with nobody to tell: for imports, where the source can be read again.
impl Delivery for Message {
    fn message(&self) -> Result<Message, Rejection> {
        Ok(self.clone())
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        Ok(())
    }

    async fn reject(self, _: Rejection) -> Result<(), SourceError> {
        Ok(())
    }
}

/// A delivery as it came, which need not be a message. `Debug` shows the length, never the bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Raw {
    payload: Bytes,
    headers: Headers,
    origin: Option<String>,
}

impl Raw {
    /// A delivery with these bytes.
    #[must_use]
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            payload: payload.into(),
            headers: Headers::new(),
            origin: None,
        }
    }

    /// Sets what else is known of it, such as topic and offset. With the bytes they tell it from others, so a
    /// redelivery has to have the same ones, unless there is an [origin](Self::with_origin).
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets what tells it from others, with the bytes and in place of the headers, and is the same when it is
    /// delivered again, such as topic, partition and offset: where headers change from one
    /// delivery to the next, as a count of deliveries does.
    #[must_use]
    pub fn with_origin(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// The bytes.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// What else is known of it.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// What tells it from others in place of its headers, if that was said.
    #[must_use]
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw")
            .field("payload_bytes", &self.payload.len())
            .field("headers", &self.headers)
            .finish()
    }
}

/// Why a delivery will never be accepted: it is no valid message, or the store refused it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    reason: Cow<'static, str>,
}

impl Rejection {
    /// A rejection for `reason`, which is logged and must not contain payloads or credentials.
    #[must_use]
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: reason.into(),
        }
    }

    /// The reason, for people to read.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl From<Invalid> for Rejection {
    fn from(invalid: Invalid) -> Self {
        Self::new(invalid.to_string())
    }
}

/// Why a source or its broker failed.
///
/// `Display` is the text of the error it was made from, and is logged.
pub struct SourceError {
    transient: bool,
    error: Box<dyn StdError + Send + Sync>,
}

impl SourceError {
    /// A failure that may pass by itself: a lost connection, a broker that restarts.
    #[must_use]
    pub fn transient(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            transient: true,
            error: error.into(),
        }
    }

    /// A failure that will not pass until something is changed.
    #[must_use]
    pub fn permanent(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            transient: false,
            error: error.into(),
        }
    }

    /// Whether it may pass by itself.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.transient
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceError")
            .field("transient", &self.transient)
            .field("error", &self.error)
            .finish()
    }
}

impl StdError for SourceError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}
