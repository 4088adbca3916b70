//! What a line of NDJSON means as a message.

use inbox::{
    ContentType, HandlerName, Kind, Message, MessageId, OrderingKey,
    cloudevents::{CloudEvent, Malformed},
    fields::{Document, join_ids},
};

use super::{Contents, InputArgs};

/// How to read lines.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    contents: Contents,
    /// The fields of which the id is joined; none means the `id` of a CloudEvent.
    id_fields: Vec<String>,
    /// The field of the kind in other NDJSON; without it, lines are CloudEvents.
    kind_field: Option<String>,
    ordering_field: Option<String>,
}

/// The kind of messages of which only the id is known.
const IMPORTED: &str = "imported";
/// What to do about lines that are no CloudEvents.
const OTHER_NDJSON: &str = "(for other NDJSON use --id-field and --kind-field)";

impl Format {
    pub(crate) fn new(args: &InputArgs) -> Self {
        Self {
            contents: args.contents,
            id_fields: args.id_fields.clone(),
            kind_field: args.kind_field.clone(),
            ordering_field: args.ordering_field.clone(),
        }
    }

    /// The message of one line, for `handler`. Errors say what is wrong without repeating the
    /// line's contents.
    pub(crate) fn message(&self, line: &[u8], handler: &HandlerName) -> Result<Message, String> {
        if self.contents == Contents::Key {
            return key(line, handler);
        }
        if self.id_fields.is_empty() && self.ordering_field.is_none() {
            return cloud_event(line, handler);
        }
        let line_fields = Document::parse(line).map_err(text)?;
        let message = match &self.kind_field {
            None if self.id_fields.is_empty() => cloud_event(line, handler)?,
            None => {
                let id = MessageId::new(self.id(line_fields)?).map_err(text)?;
                let message = event(line)?.into_message_as(handler.clone(), id);
                message.map_err(text)?
            }
            Some(field) => {
                let kind = required(line_fields, field)?;
                let content_type = ContentType::new("application/json").map_err(text)?;
                Message::new(
                    handler.clone(),
                    MessageId::new(self.id(line_fields)?).map_err(text)?,
                    Kind::new(kind).map_err(text)?,
                    line.to_vec(),
                )
                .with_content_type(content_type)
            }
        };
        let Some(field) = &self.ordering_field else {
            return Ok(message);
        };
        match line_fields.text(field).map_err(text)? {
            None => Ok(message),
            Some(key) => Ok(message.with_ordering_key(OrderingKey::new(key).map_err(text)?)),
        }
    }

    fn id(&self, line: Document<'_>) -> Result<String, String> {
        let mut parts = Vec::with_capacity(self.id_fields.len());
        for field in &self.id_fields {
            parts.push(required(line, field)?);
        }
        if let [only] = parts.as_mut_slice() {
            return Ok(std::mem::take(only));
        }
        Ok(join_ids(&parts))
    }
}

fn required(line: Document<'_>, field: &str) -> Result<String, String> {
    let found = line.text(field).map_err(text)?;
    found.ok_or_else(|| format!("no field {field}"))
}

/// A message of which no more is known than its id.
fn key(line: &[u8], handler: &HandlerName) -> Result<Message, String> {
    let id = std::str::from_utf8(line).map_err(|_| "is not UTF-8")?;
    let id = MessageId::new(id).map_err(text)?;
    let kind = Kind::new(IMPORTED).map_err(text)?;
    Ok(Message::new(handler.clone(), id, kind, ""))
}

/// The message of a CloudEvent in the JSON format, for `handler`.
pub(crate) fn cloud_event(line: &[u8], handler: &HandlerName) -> Result<Message, String> {
    event(line)?.into_message(handler.clone()).map_err(text)
}

fn event(line: &[u8]) -> Result<CloudEvent, String> {
    CloudEvent::from_json(line).map_err(|malformed| match malformed {
        Malformed::NotAnEvent => format!("{malformed} {OTHER_NDJSON}"),
        malformed => text(malformed),
    })
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(ids: &[&str], kind: Option<&str>, ordering: Option<&str>) -> Format {
        Format {
            contents: Contents::Message,
            id_fields: ids.iter().map(ToString::to_string).collect(),
            kind_field: kind.map(Into::into),
            ordering_field: ordering.map(Into::into),
        }
    }

    fn read(format: &Format, line: &str) -> Result<Message, String> {
        format.message(line.as_bytes(), &HandlerName::new("h").unwrap())
    }

    #[test]
    fn cloud_event_data_keeps_its_bytes() {
        let line = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"b": 1.0,  "a":"\u00e4"},"partitionkey":"p","n":7}"#;
        let message = read(&format(&[], None, Some("partitionkey")), line).unwrap();
        assert_eq!(message.payload().as_ref(), br#"{"b": 1.0,  "a":"\u00e4"}"#);
        assert_eq!(message.headers().get("source"), Some("/s"));
        assert_eq!(message.headers().get("n"), Some("7"));
        assert_eq!(message.ordering_key().unwrap().as_str(), "p");
        assert_eq!(message.content_type().unwrap().as_str(), "application/json");
    }

    #[test]
    fn cloud_event_text_and_binary_data() {
        let text = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain","data":"a\nb"}"#;
        let message = read(&format(&[], None, None), text).unwrap();
        assert_eq!(message.payload().as_ref(), b"a\nb");
        let binary =
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AP8="}"#;
        let message = read(&format(&[], None, None), binary).unwrap();
        assert_eq!(message.payload().as_ref(), [0, 255]);
        let none = r#"{"specversion":"1.0","id":"1","source":"s","type":"t"}"#;
        assert!(
            read(&format(&[], None, None), none)
                .unwrap()
                .payload()
                .is_empty()
        );
    }

    #[test]
    fn events_of_several_producers_have_their_sources_in_their_ids() {
        let line = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"b":1}}"#;
        let message = read(&format(&["source", "id"], None, None), line).unwrap();
        assert_eq!(message.id().as_str(), "/s#1");
        assert_eq!(message.kind().as_str(), "t");
        assert_eq!(message.payload().as_ref(), br#"{"b":1}"#);
    }

    #[test]
    fn joined_ids_are_as_different_as_their_fields() {
        let id = |source: &str, id: &str| {
            let line = serde_json::json!({"a": source, "b": id, "k": "t"}).to_string();
            let message = read(&format(&["a", "b"], Some("k"), None), &line).unwrap();
            message.id().as_str().to_owned()
        };
        assert_eq!(id("/s#x", "1"), "/s\\#x#1");
        let pairs = [("a#b", "c"), ("a", "b#c"), ("a\\", "b#c"), ("a\\#b", "c")];
        let ids: std::collections::HashSet<String> = pairs.map(|(a, b)| id(a, b)).into();
        assert_eq!(ids.len(), pairs.len());

        let one = read(&format(&["a"], Some("k"), None), r#"{"a":"x#y","k":"t"}"#).unwrap();
        assert_eq!(one.id().as_str(), "x#y");
    }

    #[test]
    fn other_ndjson_is_its_own_payload() {
        let line = r#"{"order":{"id":7},"event":"placed"}"#;
        let message = read(&format(&["/order/id", "event"], Some("event"), None), line).unwrap();
        assert_eq!(message.id().as_str(), "7#placed");
        assert_eq!(message.kind().as_str(), "placed");
        assert_eq!(message.payload().as_ref(), line.as_bytes());
    }

    /// The id decides what is a duplicate.
    #[test]
    fn a_member_that_is_there_twice_is_refused() {
        let events = format(&[], None, None);
        let event = |more: &str| {
            let line = format!(
                r#"{{"specversion":"1.0","id":"1","source":"s","type":"t","x":1,"data":{{"d":1,"d":2}}{more}}}"#
            );
            read(&events, &line)
        };
        // The payload is not ours to judge.
        assert_eq!(event("").unwrap().payload().as_ref(), br#"{"d":1,"d":2}"#);
        for (more, problem) in [
            (r#","id":"2""#, "has id twice"),
            (r#","\u0069d":"1""#, "has id twice"),
            (r#","type":"u""#, "has type twice"),
            (r#","data":{}"#, "has data twice"),
            (r#","x":2"#, "has an extension attribute twice"),
        ] {
            assert_eq!(event(more).unwrap_err(), problem);
        }
        // Of other lines that is said of the fields that count.
        let other = format(&["/o/id"], Some("k"), Some("p"));
        let line = |o: &str, more: &str| {
            let line = format!(r#"{{"o":{o},"k":"t","free":1,"free":2{more}}}"#);
            read(&other, &line)
        };
        assert!(line(r#"{"id":1}"#, "").is_ok());
        let twice = line(r#"{"id":1,"id":2}"#, "").unwrap_err();
        assert_eq!(twice, "has field /o/id twice");
        for more in [r#","o":{}"#, r#","k":"u""#, r#","p":1,"p":2"#] {
            assert!(line(r#"{"id":1}"#, more).is_err(), "{more}");
        }
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        let events = format(&[], None, None);
        let other = format(&["id"], Some("kind"), None);
        assert_eq!(
            read(&events, "{\"a\":").unwrap_err(),
            "not JSON: it ends too early"
        );
        assert_eq!(read(&events, "{]").unwrap_err(), "not JSON: column 2");
        assert!(
            read(&events, "{}")
                .unwrap_err()
                .starts_with("not a CloudEvent")
        );
        assert!(
            read(&events, "[1]")
                .unwrap_err()
                .starts_with("not a CloudEvent")
        );
        assert_eq!(
            read(
                &events,
                r#"{"specversion":"0.3","id":"1","source":"s","type":"t"}"#
            )
            .unwrap_err(),
            "not a CloudEvent of version 1.0: specversion differs"
        );
        assert!(
            read(
                &events,
                r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#
            )
            .unwrap_err()
            .contains("none is empty")
        );
        assert_eq!(read(&other, r#"{"kind":"k"}"#).unwrap_err(), "no field id");
        assert_eq!(
            read(&other, r#"{"id":[1],"kind":"k"}"#).unwrap_err(),
            "field id is not a text or a number"
        );
        assert_eq!(
            read(&other, r#"{"id":"a\u0000","kind":"k"}"#).unwrap_err(),
            "message id contains a control character"
        );
    }
}
