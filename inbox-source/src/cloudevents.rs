//! Messages from [CloudEvents](https://cloudevents.io) 1.0: one reading of them for every way in.
//!
//! In the JSON format ([`CloudEvent::from_json`], [`from_json_batch`]), and with attributes apart from
//! the data, as HTTP headers ([`CloudEvent::from_http_headers`]) or a broker's properties
//! ([`CloudEvent::from_attributes`]). [`Mode::of`] tells them apart by content type.
//!
//! ```
//! use inbox_api::HandlerName;
//! use inbox_source::cloudevents::CloudEvent;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let event = CloudEvent::from_json(
//!     br#"{"specversion":"1.0","id":"7","source":"/shop","type":"order.placed","data":{"order":7}}"#,
//! )?;
//! assert_eq!(event.unique_id(), "/shop#7");
//! let message = event.into_message(HandlerName::new("billing")?)?;
//! assert_eq!(message.kind().as_str(), "order.placed");
//! assert_eq!(message.payload(), r#"{"order":7}"#);
//! # Ok(())
//! # }
//! ```

mod attributes;
mod structured;

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;

use inbox_api::{ContentType, HandlerName, Invalid, Kind, Message, MessageId, headers};

use crate::fields::{NotJson, join_ids};

pub use structured::from_json_batch;

/// An event: its attributes, and its data byte for byte as they came.
///
/// `Debug` shows the data's length, never the bytes, and of extensions the names only.
#[derive(Clone, PartialEq, Eq)]
pub struct CloudEvent {
    id: String,
    source: String,
    kind: String,
    content_type: Option<String>,
    data: Bytes,
    /// `subject`, `time`, `dataschema` and the extensions.
    others: BTreeMap<String, String>,
}

impl CloudEvent {
    /// The attribute `id`: unique among the events of its source.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The attribute `source`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The attribute `type`, which becomes the message's kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The content type of the data, if it is known.
    #[must_use]
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The data; empty where there are none.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Another attribute or an extension by its name, such as `subject` or `partitionkey`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.others.get(name).map(String::as_str)
    }

    /// The other attributes and the extensions, by name.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.others.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Source and id, joined as `source#id`: what is unique among events of all sources.
    #[must_use]
    pub fn unique_id(&self) -> String {
        join_ids([&self.source, &self.id])
    }

    /// The message for `handler`, under the event's `id`. Where events come from several sources,
    /// which may use the same ids, take [`into_message_as`](Self::into_message_as) with
    /// [`unique_id`](Self::unique_id).
    ///
    /// The other attributes are the message's headers; `correlationid` and `causationid` are `correlation-id` and
    /// `causation-id`.
    ///
    /// # Errors
    /// [`Invalid`] when an attribute breaks the rule of what it becomes, such as an id of more than
    /// 255 bytes.
    pub fn into_message(self, handler: HandlerName) -> Result<Message, Invalid> {
        let id = MessageId::new(&self.id)?;
        self.into_message_as(handler, id)
    }

    /// The message for `handler`, under another id than the event's.
    ///
    /// # Errors
    /// As [`into_message`](Self::into_message).
    pub fn into_message_as(self, handler: HandlerName, id: MessageId) -> Result<Message, Invalid> {
        let mut message = Message::new(handler, id, Kind::new(&self.kind)?, self.data);
        if let Some(content_type) = self.content_type {
            message = message.with_content_type(ContentType::new(content_type)?);
        }
        message = message.with_header(headers::SOURCE, self.source)?;
        for (name, value) in self.others {
            message = message.with_header(header_of(&name), value)?;
        }
        Ok(message)
    }
}

/// The header that an attribute becomes: of its own name, but for those of the extension *correlation*, since names of
/// attributes have no hyphens.
pub(crate) fn header_of(attribute: &str) -> &str {
    match attribute {
        "correlationid" => headers::CORRELATION_ID,
        "causationid" => headers::CAUSATION_ID,
        other => other,
    }
}

impl fmt::Debug for CloudEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudEvent")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("type", &self.kind)
            .field("content_type", &self.content_type)
            .field("data_bytes", &self.data.len())
            .field("others", &self.others.keys())
            .finish()
    }
}

/// How events are laid out in an HTTP request or a broker's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One event as a JSON object: `application/cloudevents+json`.
    Structured,
    /// A JSON array of events: `application/cloudevents-batch+json`.
    Batched,
    /// The data are the body, and the attributes are apart from it: any other content type, or none.
    Binary,
    /// Events in another format than JSON, such as `application/cloudevents+avro`.
    Unsupported,
}

impl Mode {
    /// The layout that a content type announces.
    #[must_use]
    pub fn of(content_type: Option<&str>) -> Self {
        let essence = content_type.unwrap_or_default().split(';').next();
        let essence = essence.unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/cloudevents+json" => Self::Structured,
            "application/cloudevents-batch+json" => Self::Batched,
            other if other.starts_with("application/cloudevents") => Self::Unsupported,
            _ => Self::Binary,
        }
    }
}

/// Why something is no CloudEvent of version 1.0. `Display` never repeats its contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It is not JSON.
    #[error(transparent)]
    NotJson(#[from] NotJson),
    /// It lacks an attribute that every event has, or has an empty one, or is no object at all.
    #[error(
        "not a CloudEvent: needs the texts specversion, id, source and type, and none is empty"
    )]
    NotAnEvent,
    /// It is not a JSON array.
    #[error("not a batch of CloudEvents: needs an array")]
    NotABatch,
    /// It is of another version.
    #[error("not a CloudEvent of version 1.0: specversion differs")]
    OtherVersion,
    /// An attribute is there twice, and readers do not agree on which one counts.
    #[error("has {} twice", attribute.unwrap_or("an extension attribute"))]
    Twice {
        /// Its name; `None` for an extension.
        attribute: Option<&'static str>,
    },
    /// An attribute is not of its type.
    #[error("{attribute} is not {expected}")]
    NotOfItsType {
        /// Its name.
        attribute: &'static str,
        /// The type, for people to read.
        expected: &'static str,
    },
    /// There are data as JSON and data as base64.
    #[error("has both data and data_base64")]
    DataTwice,
    /// What belongs elsewhere is an attribute: the data, or their content type.
    #[error("has {attribute} as an attribute")]
    Misplaced {
        /// Its name.
        attribute: &'static str,
    },
}

/// What an event can have without any extension.
const ATTRIBUTES: [&str; 10] = [
    "specversion",
    "id",
    "source",
    "type",
    "datacontenttype",
    "dataschema",
    "subject",
    "time",
    "data",
    "data_base64",
];

/// An empty attribute is none: of the specification's, all are texts that are not empty.
fn not_empty(value: String) -> Option<String> {
    (!value.is_empty()).then_some(value)
}

fn twice(name: &str) -> Malformed {
    let attribute = ATTRIBUTES.into_iter().find(|attribute| *attribute == name);
    Malformed::Twice { attribute }
}
