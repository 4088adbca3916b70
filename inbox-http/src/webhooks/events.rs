//! The events in a verified request.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use inbox::{
    ContentType, HandlerName, Kind, Message, MessageId, OrderingKey,
    cloudevents::{CloudEvent, Malformed, Mode, from_json_batch},
    fields::Document,
};
use serde::de::IgnoredAny;
use sha2::{Digest as _, Sha256};

use super::verify::Delivery;

/// How events are read.
#[derive(Clone)]
pub(super) enum Reading {
    /// One event, whose id and kind are in the first of these places that has one.
    Places {
        id: Vec<Place>,
        kind: Vec<Place>,
    },
    CloudEvents,
}

/// Where a text is.
#[derive(Clone)]
pub(super) enum Place {
    Header(HeaderName),
    /// Two headers, with a slash between their values.
    Headers([HeaderName; 2]),
    /// A member of the body, by name or by JSON pointer; a parameter where it is a form.
    Field(String),
    Fixed(&'static str),
    BodyDigest,
}

impl Place {
    pub(super) const fn header(name: &'static str) -> Self {
        Self::Header(HeaderName::from_static(name))
    }
}

/// What is made of a request.
pub(super) struct Rules<'a> {
    pub(super) reading: &'a Reading,
    pub(super) kept_headers: &'a [HeaderName],
    pub(super) ordering_field: Option<&'a str>,
    pub(super) id_prefix: &'a str,
    /// Of whom the messages are.
    pub(super) handler: &'a HandlerName,
    /// A batch that has more events is not read.
    pub(super) most: usize,
}

impl Rules<'_> {
    fn id(&self, id: &str) -> Result<MessageId, String> {
        MessageId::new(format!("{}{id}", self.id_prefix)).map_err(text)
    }
}

/// What a request brings: one event, or a batch, in which each has its answer.
pub(super) enum Events {
    One(Message),
    Batch(Vec<Result<Message, String>>),
    /// More than this many.
    TooMany(usize),
}

/// Reads the events for one handler. Errors say what is wrong and repeat nothing of the request.
pub(super) fn read(delivery: Delivery<'_>, rules: &Rules<'_>) -> Result<Events, String> {
    let content_type = text_of(delivery, &header::CONTENT_TYPE);
    let (id, kind) = match rules.reading {
        Reading::Places { id, kind } => (id, kind),
        Reading::CloudEvents => return cloud_events(delivery, content_type, rules),
    };
    let content = Content::of(content_type, delivery.body);
    let id = content.find(delivery, id, "id")?;
    let kind = content.find(delivery, kind, "kind")?;
    let mut message = Message::new(
        rules.handler.clone(),
        rules.id(&id)?,
        Kind::new(kind).map_err(text)?,
        delivery.body.clone(),
    );
    if let Some(content_type) = content_type {
        message = message.with_content_type(ContentType::new(content_type).map_err(text)?);
    }
    for name in rules.kept_headers {
        if let Some(value) = delivery.header(name) {
            message = message.with_header(name.as_str(), value).map_err(text)?;
        }
    }
    if let Some(field) = rules.ordering_field
        && let Some(key) = content.field(field)?
    {
        message = message.with_ordering_key(OrderingKey::new(key).map_err(text)?);
    }
    Ok(Events::One(message))
}

fn cloud_events(
    delivery: Delivery<'_>,
    content_type: Option<&str>,
    rules: &Rules<'_>,
) -> Result<Events, String> {
    let message = |event: Result<CloudEvent, Malformed>| {
        let event = event.map_err(text)?;
        let key = rules.ordering_field.and_then(|name| match name_of(name) {
            "id" => Some(event.id()),
            "source" => Some(event.source()),
            "type" => Some(event.kind()),
            "datacontenttype" => event.content_type(),
            name => event.attribute(name),
        });
        let key = key.filter(|key| !key.is_empty());
        let key = key.map(OrderingKey::new).transpose().map_err(text)?;
        let id = rules.id(&event.unique_id())?;
        let message = event
            .into_message_as(rules.handler.clone(), id)
            .map_err(text)?;
        Ok(match key {
            Some(key) => message.with_ordering_key(key),
            None => message,
        })
    };
    match Mode::of(content_type) {
        Mode::Structured => message(CloudEvent::from_json(delivery.body)).map(Events::One),
        Mode::Binary => {
            let headers = delivery.headers.iter();
            let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
            let event = CloudEvent::from_http_headers(headers, delivery.body.clone());
            message(event).map(Events::One)
        }
        Mode::Batched => {
            // Counted first, without keeping anything: a small body may have a great many.
            let count = serde_json::from_slice::<Vec<IgnoredAny>>(delivery.body);
            if count.is_ok_and(|events| events.len() > rules.most) {
                return Ok(Events::TooMany(rules.most));
            }
            let events = from_json_batch(delivery.body).map_err(text)?;
            Ok(Events::Batch(events.into_iter().map(message).collect()))
        }
        Mode::Unsupported => Err("CloudEvents are taken in the JSON format".into()),
    }
}

/// What has no members within members is named by a pointer of one step, too.
fn name_of(field: &str) -> &str {
    let step = field.strip_prefix('/').filter(|step| !step.contains('/'));
    step.unwrap_or(field)
}

/// A body, as far as something is looked up in it.
enum Content<'a> {
    Json(Option<Document<'a>>),
    Form(&'a Bytes),
}

impl<'a> Content<'a> {
    fn of(content_type: Option<&str>, body: &'a Bytes) -> Self {
        if is_form(content_type) {
            Self::Form(body)
        } else {
            Self::Json(Document::parse(body).ok())
        }
    }

    fn find(
        &self,
        delivery: Delivery<'_>,
        places: &[Place],
        what: &'static str,
    ) -> Result<String, String> {
        for place in places {
            let found = match place {
                Place::Header(name) => text_of(delivery, name).map(Into::into),
                Place::Headers([one, other]) => {
                    let values = text_of(delivery, one).zip(text_of(delivery, other));
                    values.map(|(one, other)| format!("{one}/{other}"))
                }
                Place::Field(field) => self.field(field)?,
                Place::Fixed(text) => Some((*text).into()),
                Place::BodyDigest => Some(hex::encode(Sha256::digest(delivery.body))),
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
        match self {
            Self::Json(None) => Err("the body is not JSON".into()),
            _ => Err(format!("the event has no {what}")),
        }
    }

    /// The text of a member or a parameter. An empty one says as little as none.
    fn field(&self, field: &str) -> Result<Option<String>, String> {
        let found = match self {
            Self::Json(None) => None,
            Self::Json(Some(document)) => document.text(field).map_err(text)?,
            Self::Form(body) => {
                let field = name_of(field);
                let mut values = form_urlencoded::parse(body).filter(|(name, _)| name == field);
                let value = values.next().map(|(_, value)| value.into_owned());
                if values.next().is_some() {
                    return Err(format!("has parameter {field} twice"));
                }
                value
            }
        };
        Ok(found.filter(|found| !found.is_empty()))
    }
}

/// The text of a header. An empty one says as little as none.
fn text_of<'a>(delivery: Delivery<'a>, name: &HeaderName) -> Option<&'a str> {
    delivery.header(name).filter(|text| !text.is_empty())
}

/// The text to send back where a provider checks a new URL: the body's member `challenge`, if its type is that.
pub(super) fn challenge(delivery: Delivery<'_>, kind: &str) -> Option<String> {
    let document = Document::parse(delivery.body).ok()?;
    let is_one = document.text("type").ok()?.as_deref() == Some(kind);
    is_one
        .then(|| document.text("challenge").ok().flatten())
        .flatten()
}

pub(super) fn is_form(content_type: Option<&str>) -> bool {
    essence(content_type).eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

pub(super) fn is_json(content_type: Option<&str>) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

fn essence(content_type: Option<&str>) -> &str {
    let essence = content_type.unwrap_or_default().split(';').next();
    essence.unwrap_or_default().trim()
}

/// The content type of a request, as far as it is text.
pub(super) fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE)?.to_str().ok()
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
