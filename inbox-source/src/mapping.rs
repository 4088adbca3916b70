//! Which parts of a delivery are the message's id, kind and ordering key.

use std::{borrow::Cow, fmt, sync::Arc};

use inbox_api::{
    ContentType, HandlerName, HeadersBuilder, Invalid, Kind, Message, MessageId, OrderingKey,
    headers,
};
use sha2::{Digest as _, Sha256};

use crate::{
    Envelope, IdFrom, Rejection, TextFrom,
    cloudevents::{CloudEvent, Malformed, Mode, header_of},
    fields::{Document, FieldError},
};

/// What the names of a CloudEvent's attributes begin with as headers: Kafka, HTTP and NATS, AMQP.
const EVENT_PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudevents:", "cloudevents_"];
/// When the message was sent: the CloudEvents `time`.
const TIME: &str = "time";
const CONTENT_TYPE: &str = "content-type";

type Custom = Arc<dyn Fn(&Envelope) -> Result<Message, Rejection> + Send + Sync>;

/// Whether a source's positions tell deliveries apart and stay the same when they come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// They do.
    Stable,
    /// They do not, for this reason.
    Unstable(&'static str),
}

/// Why a mapping does not fit a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The id is to be the broker's position, which is not the same at a redelivery.
    #[error("the position cannot be the id: {reason}; use a property, a header or a field")]
    UnstablePosition {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No place is named to look for an id.
    #[error("no place is named to look for a message's id")]
    NoId,
}

/// Makes messages of deliveries: the rules by which a source finds a message's id, kind and
/// ordering key.
///
/// Places are tried in their order, and the first that has a text counts. Unless told otherwise:
///
/// | what | looked for in |
/// |---|---|
/// | id | a CloudEvent's source and id; the broker's property; its position, if it is stable |
/// | kind | a CloudEvent's type; the broker's property; the address |
/// | ordering key | a CloudEvent's `partitionkey`; the broker's property; without one there is no order |
/// | payload | the body; of a CloudEvent, its data |
/// | headers | all that are text, and `source` (the address) and `time` where there are none; a CloudEvent's attributes (`correlationid` and `causationid` as `correlation-id` and `causation-id`) |
/// | content type | the broker's property or the header `content-type` |
///
/// A CloudEvent is told by its content type (`application/cloudevents+json`), or by headers of its
/// attributes (`ce_id`, `ce-id`, `cloudEvents:id`). A text that is too long for what it becomes, or has control
/// characters, is replaced by `sha256:` and its digest: the same text gives the same one.
///
/// ```
/// use inbox_source::{Envelope, IdFrom, Mapping, TextFrom};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mapping = Mapping::new("billing")?
///     .id_from([IdFrom::Header("event-id".into()), IdFrom::Field("/order/id".into())])
///     .ordering_key_from([TextFrom::Field("/order/customer".into())]);
///
/// let delivery = Envelope::new("orders", r#"{"order": {"id": 7, "customer": "c-1"}}"#);
/// let message = mapping.message(&delivery)?;
/// assert_eq!(message.id().as_str(), "7");
/// assert_eq!(message.kind().as_str(), "orders");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mapping {
    handler: HandlerName,
    id: Option<Vec<IdFrom>>,
    id_prefix: String,
    kind: Vec<TextFrom>,
    ordering_key: Vec<TextFrom>,
    custom: Option<Custom>,
}

impl Mapping {
    /// The rules above, for messages of `handler`.
    ///
    /// # Errors
    /// [`Invalid`] when the name breaks its rule.
    pub fn new(handler: impl AsRef<str>) -> Result<Self, Invalid> {
        Ok(Self {
            handler: HandlerName::new(handler)?,
            id: None,
            id_prefix: String::new(),
            kind: vec![TextFrom::CloudEvent, TextFrom::Property, TextFrom::Address],
            ordering_key: vec![TextFrom::CloudEvent, TextFrom::Property],
            custom: None,
        })
    }

    /// Where to look for the id, in this order.
    #[must_use]
    pub fn id_from(mut self, places: impl IntoIterator<Item = IdFrom>) -> Self {
        self.id = Some(places.into_iter().collect());
        self
    }

    /// What each id begins with, such as the name of a cluster: for a handler that has messages of
    /// several senders which number alike.
    #[must_use]
    pub fn id_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.id_prefix = prefix.into();
        self
    }

    /// Where to look for the kind, in this order. A delivery without one is rejected.
    #[must_use]
    pub fn kind_from(mut self, places: impl IntoIterator<Item = TextFrom>) -> Self {
        self.kind = places.into_iter().collect();
        self
    }

    /// Where to look for the ordering key, in this order; none at all gives up order.
    #[must_use]
    pub fn ordering_key_from(mut self, places: impl IntoIterator<Item = TextFrom>) -> Self {
        self.ordering_key = places.into_iter().collect();
        self
    }

    /// Makes each message by `make` instead of these rules. It is called from the receiver's task: keep
    /// it quick. The same delivery has to have the same id whenever it comes.
    #[must_use]
    pub fn custom(
        mut self,
        make: impl Fn(&Envelope) -> Result<Message, Rejection> + Send + Sync + 'static,
    ) -> Self {
        self.custom = Some(Arc::new(make));
        self
    }

    /// Checks that a source with such positions can work by these rules. Sources call it when they
    /// are built.
    ///
    /// # Errors
    /// [`MappingError`] when the id is to be a position that is not stable, or nowhere.
    pub fn check(&self, positions: Positions) -> Result<(), MappingError> {
        match (&self.id, positions) {
            _ if self.custom.is_some() => Ok(()),
            (Some(places), _) if places.is_empty() => Err(MappingError::NoId),
            (Some(places), Positions::Unstable(reason)) if places.contains(&IdFrom::Position) => {
                Err(MappingError::UnstablePosition { reason })
            }
            _ => Ok(()),
        }
    }

    /// The message of a delivery.
    ///
    /// # Errors
    /// [`Rejection`] when it has no id or no kind, or a header or field breaks a rule. The reason
    /// repeats nothing of the payload.
    pub fn message(&self, envelope: &Envelope) -> Result<Message, Rejection> {
        if let Some(make) = &self.custom {
            return make(envelope);
        }
        let event = read_event(envelope).map_err(|error| Rejection::new(error.to_string()))?;
        let look = Look {
            envelope,
            event: event.as_ref(),
        };
        let id = look.id(self.id.as_deref())?;
        let id = match self.id_prefix.as_str() {
            "" => id,
            prefix => Cow::Owned(format!("{prefix}{id}")),
        };
        let id = MessageId::new(fit(id, MessageId::MAX_BYTES))?;
        let kind = look.text(&self.kind, Target::Kind)?;
        let kind = kind.ok_or_else(|| Rejection::new("it has no kind where one is looked for"))?;
        let kind = Kind::new(fit(kind, Kind::MAX_BYTES))?;
        let key = look.text(&self.ordering_key, Target::OrderingKey)?;

        let payload = event.as_ref().map_or(&envelope.payload, CloudEvent::data);
        let mut message = Message::new(self.handler.clone(), id, kind, payload.clone());
        if let Some(key) = key {
            let key = fit(key, OrderingKey::MAX_BYTES);
            message = message.with_ordering_key(OrderingKey::new(key)?);
        }
        message = match &event {
            Some(event) => add_event(message, event)?,
            None => message,
        };
        add_headers(message, envelope, event.is_some()).map_err(Rejection::from)
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("handler", &self.handler)
            .field("id", &self.id)
            .field("id_prefix", &self.id_prefix)
            .field("kind", &self.kind)
            .field("ordering_key", &self.ordering_key)
            .field("custom", &self.custom.is_some())
            .finish()
    }
}

#[derive(Clone, Copy)]
enum Target {
    Kind,
    OrderingKey,
}

/// One delivery, as places are tried.
struct Look<'a> {
    envelope: &'a Envelope,
    event: Option<&'a CloudEvent>,
}

impl<'a> Look<'a> {
    fn id(&self, places: Option<&[IdFrom]>) -> Result<Cow<'a, str>, Rejection> {
        const USUAL: [IdFrom; 3] = [IdFrom::CloudEvent, IdFrom::Property, IdFrom::Position];
        for place in places.unwrap_or(&USUAL) {
            let found = match place {
                IdFrom::CloudEvent => self.event.map(CloudEvent::unique_id).map(Cow::from),
                IdFrom::Property => self.envelope.id.as_deref().map(Cow::from),
                IdFrom::Header(name) => self.envelope.header(name).map(Cow::from),
                IdFrom::Field(name) => self.field(name)?.map(Cow::from),
                IdFrom::Position => self.envelope.position.as_deref().map(Cow::from),
            };
            if let Some(id) = found.filter(|id| !id.is_empty()) {
                return Ok(id);
            }
        }
        Err(Rejection::new("it has no id where one is looked for"))
    }

    fn text(
        &self,
        places: &'a [TextFrom],
        target: Target,
    ) -> Result<Option<Cow<'a, str>>, Rejection> {
        for place in places {
            let found: Option<Cow<'a, str>> = match (place, target) {
                (TextFrom::CloudEvent, Target::Kind) => self.event.map(|event| event.kind().into()),
                (TextFrom::CloudEvent, Target::OrderingKey) => self
                    .event
                    .and_then(|event| event.attribute("partitionkey"))
                    .map(Cow::from),
                (TextFrom::Property, Target::Kind) => self.envelope.kind.as_deref().map(Cow::from),
                (TextFrom::Property, Target::OrderingKey) => {
                    self.envelope.key.as_deref().map(Cow::from)
                }
                (TextFrom::Header(name), _) => self.envelope.header(name).map(Cow::from),
                (TextFrom::Field(name), _) => self.field(name)?.map(Cow::from),
                (TextFrom::Address, _) => Some(self.envelope.address.as_str().into()),
                (TextFrom::Fixed(text), _) => Some(text.as_str().into()),
            };
            if let Some(text) = found.filter(|text| !text.is_empty()) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// A payload that is not JSON has no fields.
    fn field(&self, name: &str) -> Result<Option<String>, Rejection> {
        let payload = self.event.map_or(&self.envelope.payload, CloudEvent::data);
        let Ok(document) = Document::parse(payload) else {
            return Ok(None);
        };
        let refuse = |error: FieldError| Rejection::new(error.to_string());
        document.text(name).map_err(refuse)
    }
}

/// The CloudEvent that a delivery is, if it is one.
fn read_event(envelope: &Envelope) -> Result<Option<CloudEvent>, Malformed> {
    if Mode::of(content_type(envelope)) == Mode::Structured {
        return CloudEvent::from_json(&envelope.payload).map(Some);
    }
    let headers = envelope.headers.iter();
    let attributes: Vec<_> = headers
        .filter_map(|(name, value)| Some((attribute(name)?, value.clone())))
        .collect();
    if !attributes.iter().any(|(name, _)| name == "specversion") {
        return Ok(None);
    }
    let content_type = content_type(envelope).map(String::from);
    CloudEvent::from_attributes(attributes, content_type, envelope.payload.clone()).map(Some)
}

fn content_type(envelope: &Envelope) -> Option<&str> {
    let property = envelope.content_type.as_deref();
    property.or_else(|| envelope.header(CONTENT_TYPE))
}

/// The attribute's name, of a header that is one.
fn attribute(header: &str) -> Option<String> {
    EVENT_PREFIXES.iter().find_map(|prefix| {
        let (start, name) = header.split_at_checked(prefix.len())?;
        let is_attribute = start.eq_ignore_ascii_case(prefix);
        is_attribute.then(|| name.to_ascii_lowercase())
    })
}

fn add_event(message: Message, event: &CloudEvent) -> Result<Message, Rejection> {
    let mut message = message;
    if let Some(content_type) = event.content_type() {
        message = add_content_type(message, content_type)?;
    }
    message = message.with_header(headers::SOURCE, event.source())?;
    for (name, value) in event.attributes() {
        message = message.with_header(header_of(name), value)?;
    }
    Ok(message)
}

/// As a header if it breaks the rule of content types: the payload is worth more than its label.
fn add_content_type(message: Message, text: &str) -> Result<Message, Invalid> {
    match ContentType::new(text) {
        Ok(content_type) => Ok(message.with_content_type(content_type)),
        Err(_) => message.with_header(CONTENT_TYPE, text),
    }
}

/// Adds the delivery's own headers, which give way to those of its event.
fn add_headers(
    mut message: Message,
    envelope: &Envelope,
    is_event: bool,
) -> Result<Message, Invalid> {
    let of_event = message.headers().clone();
    let mut all = HeadersBuilder::from(of_event.clone());
    for (name, value) in &envelope.headers {
        let said_otherwise =
            is_event && (attribute(name).is_some() || of_event.get(name).is_some());
        if said_otherwise || name.eq_ignore_ascii_case(CONTENT_TYPE) {
            continue;
        }
        all.insert(name, value)?;
    }
    message = message.with_headers(all.build());
    if message.content_type().is_none()
        && !is_event
        && let Some(content_type) = content_type(envelope)
    {
        message = add_content_type(message, content_type)?;
    }
    if message.headers().get(headers::SOURCE).is_none() && !envelope.address.is_empty() {
        message = message.with_header(headers::SOURCE, &envelope.address)?;
    }
    if message.headers().get(TIME).is_none()
        && let Some(time) = envelope.time
        && let Ok(time) = jiff::Timestamp::try_from(time)
    {
        message = message.with_header(TIME, time.to_string())?;
    }
    Ok(message)
}

/// The text, or its digest if it breaks the rule of names.
fn fit(text: Cow<'_, str>, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit && !text.chars().any(char::is_control) {
        return text;
    }
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}").into()
}
