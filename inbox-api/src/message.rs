//! Messages as they are received.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use serde::Serialize;

use crate::{
    ContentType, Fingerprint, HandlerName, Headers, Invalid, Key, Kind, MessageId, OrderingKey,
    clock::to_micros,
};

/// The payload limit that stores start with, in bytes: 16 MiB.
pub const DEFAULT_PAYLOAD_LIMIT: usize = 16 * 1024 * 1024;

/// When a message may first be worked on, judged by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Due {
    /// As soon as it is accepted.
    #[default]
    Now,
    /// This long after it is accepted.
    After(Duration),
    /// At this moment; at once when it has passed. Kept to the microsecond.
    At(SystemTime),
}

impl Due {
    /// The moment as stores keep it, in microseconds since 1970, for a message accepted at
    /// `now_micros` by the store's clock.
    #[must_use]
    pub fn resolve(self, now_micros: i64) -> i64 {
        match self {
            Self::Now => now_micros,
            Self::After(delay) => now_micros.saturating_add(crate::clock::duration_micros(delay)),
            Self::At(time) => to_micros(time).max(now_micros),
        }
    }
}

/// A message for one handler, valid by construction but for its payload's size, which is each
/// store's own limit ([`Message::check_payload`]).
///
/// Cloning is cheap: names, headers and payload are reference-counted. `Debug` shows the
/// payload's length, never its bytes.
///
/// ```
/// use inbox_api::{HandlerName, Kind, Message, MessageId, OrderingKey};
///
/// # fn main() -> Result<(), inbox_api::Invalid> {
/// let message = Message::new(
///     HandlerName::new("billing")?,
///     MessageId::new("evt-1")?,
///     Kind::new("order.placed")?,
///     r#"{"order": 7}"#,
/// )
/// .with_ordering_key(OrderingKey::new("customer-12")?)
/// .with_header(inbox_api::headers::CORRELATION_ID, "checkout-99")?;
/// assert_eq!(message.key().to_string(), "billing/evt-1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    key: Key,
    kind: Kind,
    payload: Bytes,
    content_type: Option<ContentType>,
    headers: Headers,
    ordering_key: Option<OrderingKey>,
    due: Due,
    /// Only one that is not that of kind and payload, so that equal messages are equal.
    fingerprint: Option<Fingerprint>,
}

/// A type whose values are events of one kind, so that the kind need not be named where they are
/// sent and handled.
///
/// ```
/// use inbox_api::{Event, Message};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPlaced { order: u64 }
///
/// impl Event for OrderPlaced {
///     const KIND: &'static str = "order.placed";
/// }
///
/// # fn main() -> Result<(), inbox_api::Invalid> {
/// let message = Message::json("billing", "evt-1", &OrderPlaced { order: 7 })?;
/// assert_eq!(message.kind().as_str(), "order.placed");
/// assert_eq!(message.payload(), r#"{"order":7}"#);
/// # Ok(())
/// # }
/// ```
pub trait Event {
    /// The [`Kind`] of the messages that carry it.
    const KIND: &'static str;
}

impl Message {
    /// A message that carries `event` as JSON, with its kind and the content type `application/json`;
    /// due at once, without headers or ordering key.
    ///
    /// # Errors
    /// [`Invalid`] when `handler`, `id` or the event's kind breaks its rule, and
    /// [`Invalid::Malformed`] when the event cannot be written as JSON.
    pub fn json<E: Event + Serialize + ?Sized>(
        handler: impl AsRef<str>,
        id: impl AsRef<str>,
        event: &E,
    ) -> Result<Self, Invalid> {
        let payload = serde_json::to_vec(event).map_err(|_| Invalid::Malformed {
            what: "event",
            expected: "one that can be written as JSON",
        })?;
        let (handler, id) = (HandlerName::new(handler)?, MessageId::new(id)?);
        let message = Self::new(handler, id, Kind::new(E::KIND)?, payload);
        Ok(message.with_content_type(ContentType::new("application/json")?))
    }

    /// A message that is due at once, without headers, content type or ordering key.
    #[must_use]
    pub fn new(handler: HandlerName, id: MessageId, kind: Kind, payload: impl Into<Bytes>) -> Self {
        Self {
            key: Key::new(handler, id),
            kind,
            payload: payload.into(),
            content_type: None,
            headers: Headers::new(),
            ordering_key: None,
            due: Due::Now,
            fingerprint: None,
        }
    }

    /// Sets the payload's media type.
    #[must_use]
    pub fn with_content_type(mut self, content_type: ContentType) -> Self {
        self.content_type = Some(content_type);
        self
    }

    /// Sets one header, replacing an earlier value of that name.
    ///
    /// # Errors
    /// As [`Headers::insert`].
    pub fn with_header(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, Invalid> {
        self.headers.insert(name, value)?;
        Ok(self)
    }

    /// Sets for how long after its acceptance, by the store's clock, the message is worth working on: an
    /// attempt that would begin later is not made, and the message is dead. Kept as the header
    /// [`TIME_TO_LIVE`](crate::headers::TIME_TO_LIVE), in whole milliseconds, so that setting all
    /// [headers](Self::with_headers) replaces it.
    ///
    /// Stores do not look at it; processors and inline consumers of the crate `inbox` do. What records a message in a
    /// transaction ([`record_in`](crate::Transactional::record_in), and so `consume_in_transaction`) does not: it runs
    /// one that was stored before, however old it is. Time until it is [due](Self::with_due) counts too.
    ///
    /// # Errors
    /// As [`Headers::insert`].
    pub fn with_time_to_live(self, time: Duration) -> Result<Self, Invalid> {
        self.with_header(crate::headers::TIME_TO_LIVE, time.as_millis().to_string())
    }

    /// Replaces all headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Puts the message in order behind earlier ones of the same handler and key.
    #[must_use]
    pub fn with_ordering_key(mut self, ordering_key: OrderingKey) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// Sets when the message may first be worked on.
    #[must_use]
    pub fn with_due(mut self, due: Due) -> Self {
        self.due = due;
        self
    }

    /// Sets what tells it from another message of the same key, in place of the fingerprint of kind and
    /// payload: for a source whose redeliveries differ in parts that do not matter, or whose messages
    /// differ in more than these.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        let own = self.content_fingerprint();
        self.fingerprint = Some(fingerprint).filter(|given| *given != own);
        self
    }

    /// The same message for another handler: how one delivery fans out to several.
    #[must_use]
    pub fn for_handler(&self, handler: HandlerName) -> Self {
        let mut copy = self.clone();
        copy.key.handler = handler;
        copy
    }

    /// What makes it unique.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Who handles it.
    #[must_use]
    pub fn handler(&self) -> &HandlerName {
        &self.key.handler
    }

    /// The producer's identifier.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        &self.key.id
    }

    /// The event type.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The payload, byte for byte as it was received.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The payload's media type, if known.
    #[must_use]
    pub fn content_type(&self) -> Option<&ContentType> {
        self.content_type.as_ref()
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The ordering key, if it has one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&OrderingKey> {
        self.ordering_key.as_ref()
    }

    /// For how long after its acceptance it is worth working on; `None` for ever, or when the
    /// [header](crate::headers::TIME_TO_LIVE) is no whole number of milliseconds.
    #[must_use]
    pub fn time_to_live(&self) -> Option<Duration> {
        let millis = self.headers.get(crate::headers::TIME_TO_LIVE)?.parse();
        millis.ok().map(Duration::from_millis)
    }

    /// When it may first be worked on.
    #[must_use]
    pub fn due(&self) -> Due {
        self.due
    }

    /// What tells it from another message of the same key: the fingerprint that it was
    /// [given](Self::with_fingerprint), or else that of its kind and its payload. Reads the whole payload,
    /// at some gigabytes per second.
    ///
    /// A message that a store hands out has that of its present content: the one that its key was accepted
    /// with is in its [`Record`](crate::Record).
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
            .unwrap_or_else(|| self.content_fingerprint())
    }

    fn content_fingerprint(&self) -> Fingerprint {
        Fingerprint::of([self.kind.as_str().as_bytes(), &self.payload])
    }

    /// Checks the payload against a store's limit in bytes. Stores call this before any I/O.
    ///
    /// # Errors
    /// [`Invalid::TooLarge`] when it is over the limit.
    pub fn check_payload(&self, limit: usize) -> Result<(), Invalid> {
        check_size("payload", self.payload.len(), limit)
    }
}

/// Checks a payload, or a handler's result, against a limit in bytes.
///
/// # Errors
/// [`Invalid::TooLarge`] when it is over the limit.
pub fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), Invalid> {
    if bytes > limit {
        return Err(Invalid::TooLarge { what, bytes, limit });
    }
    Ok(())
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("key", &self.key)
            .field("kind", &self.kind)
            .field("payload_bytes", &self.payload.len())
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("ordering_key", &self.ordering_key)
            .field("due", &self.due)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new(
            HandlerName::new("h").unwrap(),
            MessageId::new("1").unwrap(),
            Kind::new("k").unwrap(),
            "secret payload",
        )
    }

    #[test]
    fn debug_hides_the_payload() {
        let shown = format!("{:?}", message());
        assert!(shown.contains("payload_bytes: 14"));
        assert!(!shown.contains("secret"));
    }

    #[test]
    fn a_fingerprint_is_of_the_content_unless_it_is_given() {
        let own = message().fingerprint();
        assert_eq!(message().with_fingerprint(own), message());
        let given = message().with_fingerprint(Fingerprint::new(7));
        assert_eq!(given.fingerprint(), Fingerprint::new(7));
        assert_eq!(given.with_fingerprint(own), message());
        let header = message().with_header("a", "b").unwrap();
        assert_eq!(header.fingerprint(), own);
    }

    #[test]
    fn the_payload_limit_is_inclusive() {
        assert!(message().check_payload(14).is_ok());
        assert_eq!(
            message().check_payload(13),
            Err(Invalid::TooLarge {
                what: "payload",
                bytes: 14,
                limit: 13
            })
        );
    }

    #[test]
    fn fan_out_changes_only_the_handler() {
        let copy = message().for_handler(HandlerName::new("other").unwrap());
        assert_eq!(copy.handler().as_str(), "other");
        assert_eq!(copy.id(), message().id());
        assert_eq!(copy.payload(), message().payload());
    }

    #[test]
    fn a_time_to_live_is_a_header() {
        let alive = |text: &str| {
            let message = message().with_header(crate::headers::TIME_TO_LIVE, text);
            message.unwrap().time_to_live()
        };
        assert_eq!(message().time_to_live(), None);
        assert_eq!(alive("1500"), Some(Duration::from_millis(1500)));
        assert_eq!(alive("soon"), None);
        let set = message().with_time_to_live(Duration::from_secs(2)).unwrap();
        assert_eq!(set.headers().get("time-to-live"), Some("2000"));
        assert_eq!(set.time_to_live(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_due_time_in_the_past_means_now() {
        assert_eq!(Due::At(SystemTime::UNIX_EPOCH).resolve(5), 5);
        assert_eq!(Due::After(Duration::from_micros(7)).resolve(5), 12);
        assert!(Due::After(Duration::MAX).resolve(i64::MAX / 2) > 0);
    }

    struct Broken;

    impl Serialize for Broken {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("secret"))
        }
    }

    impl Event for Broken {
        const KIND: &'static str = "broken";
    }

    #[derive(Serialize)]
    struct Nameless;

    impl Event for Nameless {
        const KIND: &'static str = "";
    }

    #[test]
    fn events_that_are_no_messages_are_refused_in_words() {
        let error = Message::json("billing", "1", &Broken).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(Message::json("billing", "1", &Nameless).is_err());
        assert!(Message::json("", "1", &Nameless).is_err());
    }
}
