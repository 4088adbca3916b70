//! Deliveries, CloudEvents and the JSON documents in them.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use inbox_api::{Event, HandlerName, Message};
use inbox_source::{
    Envelope, IdFrom, Mapping, TextFrom,
    cloudevents::{CloudEvent, Mode, from_json_batch},
    fields::{Document, join_ids},
};

use super::sure;
use crate::{Target, first_line, head};

fn handler() -> HandlerName {
    sure(HandlerName::new("h"))
}

/// What is told of an event has nothing of its data, and the message has all of them.
fn use_event(event: &CloudEvent, handler: &HandlerName) -> Result<(), String> {
    let told = format!("{event:?}").len();
    let attributes = event.id().len() + event.source().len() + event.kind().len();
    let names: usize = event.attributes().map(|(name, _)| name.len() + 8).sum();
    let content_type = event.content_type().map_or(0, str::len);
    // Escaped, a byte is ten characters at most.
    if told > 200 + 10 * (attributes + names + content_type) {
        return Err("Debug of a CloudEvent tells more than its attributes and names".into());
    }
    let Ok(message) = event.clone().into_message(handler.clone()) else {
        return Ok(());
    };
    if message.payload() != event.data() {
        return Err("a message has other data than its event".into());
    }
    Ok(())
}

pub(super) fn structured() -> Target {
    let handler = handler();
    let corpus = include_str!("../../corpus/cloudevents-structured.txt");
    Target::new(
        "cloudevents-structured",
        corpus,
        move |input| match CloudEvent::from_json(input) {
            Ok(event) => use_event(&event, &handler),
            Err(malformed) => one_short_line(&malformed.to_string()),
        },
    )
}

pub(super) fn batched() -> Target {
    let handler = handler();
    let corpus = include_str!("../../corpus/cloudevents-batched.txt");
    Target::new("cloudevents-batched", corpus, move |input| {
        let Ok(events) = from_json_batch(input) else {
            return Ok(());
        };
        for event in events.into_iter().flatten() {
            use_event(&event, &handler)?;
        }
        Ok(())
    })
    // Two bytes, `1,`, are an element, and that is refused with a result of its own.
    .limit(128, 16 * 1024)
}

pub(super) fn headers() -> Target {
    let handler = handler();
    let corpus = include_str!("../../corpus/cloudevents-headers.txt");
    Target::new("cloudevents-headers", corpus, move |input| {
        let (lines, body) = head(input);
        let body = Bytes::copy_from_slice(body);
        let headers = lines
            .iter()
            .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, *value)));
        let of_mode = headers
            .clone()
            .find(|(name, _)| *name == "content-type")
            .and_then(|(_, value)| std::str::from_utf8(value).ok());
        let _ = Mode::of(of_mode);
        let texts = headers
            .clone()
            .map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned()));
        if let Ok(event) =
            CloudEvent::from_attributes(texts, of_mode.map(String::from), body.clone())
        {
            use_event(&event, &handler)?;
        }
        match CloudEvent::from_http_headers(headers, body) {
            Ok(event) => use_event(&event, &handler),
            Err(malformed) => one_short_line(&malformed.to_string()),
        }
    })
}

/// Errors about documents repeat nothing of them.
fn one_short_line(said: &str) -> Result<(), String> {
    if said.len() > 120 || said.contains('\n') {
        return Err(format!("an error is more than a short line\n{said}"));
    }
    Ok(())
}

pub(super) fn fields() -> Target {
    let corpus = include_str!("../../corpus/fields.txt");
    Target::new("fields", corpus, |input| {
        let (field, json) = first_line(input);
        let field = String::from_utf8_lossy(field);
        let document = match Document::parse(json) {
            Ok(document) => document,
            Err(error) => return one_short_line(&error.to_string()),
        };
        if let Ok(Some(text)) = document.text(&field) {
            let two = join_ids([text.as_str(), &field]);
            // Nothing that is in one part can pass for the end of it.
            if two == join_ids([&format!("{text}#{field}"), ""]) {
                return Err("two lists of ids are joined to one".into());
            }
        }
        Ok(())
    })
}

/// Rules that look in every place.
fn mappings() -> Vec<Mapping> {
    let places = [
        IdFrom::CloudEvent,
        IdFrom::Property,
        IdFrom::Header("id".into()),
        IdFrom::Field("/a/0".into()),
        IdFrom::Position,
    ];
    let texts = [
        TextFrom::CloudEvent,
        TextFrom::Property,
        TextFrom::Header("kind".into()),
        TextFrom::Field("type".into()),
        TextFrom::Address,
    ];
    let by_default = sure(Mapping::new("h"));
    let everywhere = sure(Mapping::new("h"))
        .id_from(places.clone())
        .id_prefix("p-")
        .kind_from(texts.clone())
        .ordering_key_from(texts.clone());
    let mut backwards = (places, texts);
    backwards.0.reverse();
    backwards.1.reverse();
    let backwards = sure(Mapping::new("h"))
        .id_from(backwards.0)
        .kind_from(backwards.1.clone())
        .ordering_key_from(backwards.1);
    vec![by_default, everywhere, backwards]
}

pub(super) fn mapping() -> Target {
    let mappings = mappings();
    let corpus = include_str!("../../corpus/mapping.txt");
    Target::new("mapping", corpus, move |input| {
        let (lines, body) = head(input);
        let mut envelope = Envelope::new("orders", Bytes::copy_from_slice(body));
        for (name, value) in lines {
            let name = String::from_utf8_lossy(name);
            let text = || Some(String::from_utf8_lossy(value).into_owned());
            match &*name {
                ":address" => envelope.address = text().unwrap_or_default(),
                ":id" => envelope.id = text(),
                ":kind" => envelope.kind = text(),
                ":key" => envelope.key = text(),
                ":position" => envelope.position = text(),
                ":time" => {
                    let millis = text().and_then(|text| text.parse().ok());
                    envelope.time = millis
                        .and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
                }
                _ => envelope.add_header(&name, value),
            }
        }
        envelope.content_type = envelope.header("content-type").map(String::from);
        // What is written in settings.
        let place = String::from_utf8_lossy(input);
        let _ = (place.parse::<IdFrom>(), place.parse::<TextFrom>());
        let _ = (envelope.raw(), format!("{envelope:?}"), envelope.bytes());
        for mapping in &mappings {
            let first = mapping.message(&envelope);
            if let (Ok(one), Ok(other)) = (&first, mapping.message(&envelope))
                && one != &other
            {
                return Err("a delivery is two messages".into());
            }
        }
        Ok(())
    })
    // A header of two bytes is two texts in a list.
    .limit(192, 64 * 1024)
}

struct Text<'a>(&'a str);

impl Event for Text<'_> {
    const KIND: &'static str = "text";
}

impl serde::Serialize for Text<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

pub(super) fn payloads() -> Target {
    let corpus = include_str!("../../corpus/payloads.txt");
    Target::new("payloads", corpus, |input| {
        let text = String::from_utf8_lossy(input);
        let Ok(message) = Message::json("h", "1", &Text(&text)) else {
            return Err("a text is no JSON".into());
        };
        let read: Result<String, _> = serde_json::from_slice(message.payload());
        if read.is_ok_and(|read| read == text) {
            Ok(())
        } else {
            Err("a text reads back as another".into())
        }
    })
}
