//! What a line of NDJSON means as a message.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inbox::{ContentType, HandlerName, Kind, Message, MessageId, OrderingKey, headers};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::InputArgs;

/// How to read lines.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    /// The fields of which the id is joined; none means the `id` of a CloudEvent.
    id_fields: Vec<String>,
    /// The field of the kind in other NDJSON; without it, lines are CloudEvents.
    kind_field: Option<String>,
    ordering_field: Option<String>,
}

/// The members of a JSON object. Values stay the very bytes of the line, since re-serialising the
/// payload would change it.
///
/// Parsers do not agree on which of two members of one name counts. So it must not be decided here
/// which of two ids is the message's.
struct Members<'a> {
    by_name: BTreeMap<String, &'a RawValue>,
    twice: BTreeSet<String>,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let (mut by_name, mut twice) = (BTreeMap::new(), BTreeSet::new());
                while let Some((name, value)) = map.next_entry::<String, _>()? {
                    match by_name.entry(name) {
                        Entry::Vacant(entry) => {
                            entry.insert(value);
                        }
                        Entry::Occupied(entry) => {
                            twice.insert(entry.key().clone());
                        }
                    }
                }
                Ok(Members { by_name, twice })
            }
        }

        deserializer.deserialize_map(Visit)
    }
}

impl<'a> Members<'a> {
    /// All of them, unless there are two of one name.
    fn of_event(self) -> Result<BTreeMap<String, &'a RawValue>, String> {
        match self.twice.first() {
            None => Ok(self.by_name),
            // Other names are the line's own.
            Some(name) if ATTRIBUTES.contains(&name.as_str()) => Err(format!("has {name} twice")),
            Some(_) => Err("has an extension attribute twice".to_owned()),
        }
    }

    fn get(&self, name: &str) -> Result<Option<&'a RawValue>, ()> {
        if self.twice.contains(name) {
            return Err(());
        }
        Ok(self.by_name.get(name).copied())
    }
}

/// What a CloudEvent can have without any extension.
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

const NOT_AN_EVENT: &str = "not a CloudEvent: needs the texts specversion, id, source and type \
     (for other NDJSON use --id-field and --kind-field)";

impl Format {
    pub(crate) fn new(args: &InputArgs) -> Self {
        Self {
            id_fields: args.id_fields.clone(),
            kind_field: args.kind_field.clone(),
            ordering_field: args.ordering_field.clone(),
        }
    }

    /// The message of one line, for `handler`. Errors say what is wrong without repeating the
    /// line's contents.
    pub(crate) fn message(&self, line: &[u8], handler: &HandlerName) -> Result<Message, String> {
        if self.id_fields.is_empty() && self.ordering_field.is_none() {
            return cloud_event(line, handler);
        }
        let value: &RawValue = serde_json::from_slice(line).map_err(|e| not_json(&e))?;
        let message = match &self.kind_field {
            None if self.id_fields.is_empty() => cloud_event(line, handler)?,
            None => event(line, handler, Some(self.id(value)?))?,
            Some(field) => {
                let kind = text_of(value, field)?.ok_or_else(|| format!("no field {field}"))?;
                let content_type =
                    ContentType::new("application/json").map_err(|e| e.to_string())?;
                Message::new(
                    handler.clone(),
                    MessageId::new(self.id(value)?).map_err(|e| e.to_string())?,
                    Kind::new(kind).map_err(|e| e.to_string())?,
                    line.to_vec(),
                )
                .with_content_type(content_type)
            }
        };
        let Some(field) = &self.ordering_field else {
            return Ok(message);
        };
        match text_of(value, field)? {
            None => Ok(message),
            Some(text) => {
                let key = OrderingKey::new(text).map_err(|e| e.to_string())?;
                Ok(message.with_ordering_key(key))
            }
        }
    }

    fn id(&self, value: &RawValue) -> Result<String, String> {
        let mut parts = Vec::with_capacity(self.id_fields.len());
        for field in &self.id_fields {
            parts.push(text_of(value, field)?.ok_or_else(|| format!("no field {field}"))?);
        }
        if let [only] = parts.as_mut_slice() {
            return Ok(std::mem::take(only));
        }
        // Two messages must not get one id because a `#` moved from one field into the next.
        let escaped = |part: &String| part.replace('\\', "\\\\").replace('#', "\\#");
        Ok(parts.iter().map(escaped).collect::<Vec<_>>().join("#"))
    }
}

/// The message of a CloudEvent in the JSON format, for `handler`.
pub(crate) fn cloud_event(line: &[u8], handler: &HandlerName) -> Result<Message, String> {
    event(line, handler, None)
}

/// The same, under another id than its own.
fn event(line: &[u8], handler: &HandlerName, other_id: Option<String>) -> Result<Message, String> {
    let members: Members<'_> = serde_json::from_slice(line).map_err(|e| {
        if e.is_data() {
            NOT_AN_EVENT.to_owned()
        } else {
            not_json(&e)
        }
    })?;
    let mut members = members.of_event()?;
    let version = required(&mut members, "specversion")?;
    if version != "1.0" {
        return Err("not a CloudEvent of version 1.0: specversion differs".into());
    }
    let id = required(&mut members, "id")?;
    let source = required(&mut members, "source")?;
    let kind = required(&mut members, "type")?;
    let declared_type = optional(&mut members, "datacontenttype")?;
    let (payload, default_type) = payload(&mut members, declared_type.as_deref())?;
    let mut message = Message::new(
        handler.clone(),
        MessageId::new(other_id.unwrap_or(id)).map_err(|e| e.to_string())?,
        Kind::new(kind).map_err(|e| e.to_string())?,
        payload,
    );
    if let Some(content_type) = declared_type.as_deref().or(default_type) {
        let content_type = ContentType::new(content_type).map_err(|e| e.to_string())?;
        message = message.with_content_type(content_type);
    }
    message = message
        .with_header(headers::SOURCE, source)
        .map_err(|e| e.to_string())?;
    // What is left is `subject`, `time` and extensions.
    for (name, value) in members {
        let value: Value = serde_json::from_str(value.get()).map_err(|e| not_json(&e))?;
        if let Some(value) = scalar(&value) {
            message = message
                .with_header(name, value)
                .map_err(|e| e.to_string())?;
        }
    }
    Ok(message)
}

fn required(members: &mut BTreeMap<String, &RawValue>, name: &str) -> Result<String, String> {
    optional(members, name)?.ok_or_else(|| NOT_AN_EVENT.to_owned())
}

fn optional(
    members: &mut BTreeMap<String, &RawValue>,
    name: &str,
) -> Result<Option<String>, String> {
    members.remove(name).map_or(Ok(None), |value| {
        serde_json::from_str(value.get()).map_err(|_| format!("{name} is not a text"))
    })
}

/// The payload's bytes, and the content type to assume when the event names none.
fn payload(
    members: &mut BTreeMap<String, &RawValue>,
    content_type: Option<&str>,
) -> Result<(Vec<u8>, Option<&'static str>), String> {
    let base64 = optional(members, "data_base64")?;
    match (members.remove("data"), base64) {
        (Some(_), Some(_)) => Err("has both data and data_base64".into()),
        (None, None) => Ok((Vec::new(), None)),
        (None, Some(text)) => {
            let bytes = BASE64
                .decode(text)
                .map_err(|_| "data_base64 is not base64".to_owned())?;
            Ok((bytes, None))
        }
        (Some(data), None) => {
            // A JSON string under another content type carries that content as text.
            if !content_type.is_none_or(is_json)
                && let Ok(text) = serde_json::from_str::<String>(data.get())
            {
                return Ok((text.into_bytes(), None));
            }
            Ok((data.get().as_bytes().to_vec(), Some("application/json")))
        }
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

/// A field by name, or by JSON pointer if it begins with a slash. Numbers and booleans count as
/// their text; null as absent.
fn text_of(value: &RawValue, field: &str) -> Result<Option<String>, String> {
    let Some(found) = find(value, field)? else {
        return Ok(None);
    };
    let found: Value = serde_json::from_str(found.get()).map_err(|e| not_json(&e))?;
    match scalar(&found) {
        None if found.is_null() => Ok(None),
        None => Err(format!("field {field} is not a text or a number")),
        text => Ok(text),
    }
}

fn find<'a>(value: &'a RawValue, field: &str) -> Result<Option<&'a RawValue>, String> {
    let member = |of: &'a RawValue, name: &str| {
        let Ok(members) = serde_json::from_str::<Members<'a>>(of.get()) else {
            return Ok(None);
        };
        let found = members.get(name);
        found.map_err(|()| format!("has field {field} twice"))
    };
    let Some(pointer) = field.strip_prefix('/') else {
        return member(value, field);
    };
    let mut found = value;
    for step in pointer.split('/') {
        let next = if found.get().starts_with('[') {
            let is_number = step == "0" || !step.starts_with(['0', '+']);
            let index = step.parse::<usize>().ok().filter(|_| is_number);
            let items: Vec<&RawValue> = serde_json::from_str(found.get()).unwrap_or_default();
            index.and_then(|index| items.get(index).copied())
        } else {
            member(found, &step.replace("~1", "/").replace("~0", "~"))?
        };
        let Some(next) = next else {
            return Ok(None);
        };
        found = next;
    }
    Ok(Some(found))
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn not_json(error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "not JSON: it ends too early".into();
    }
    format!("not JSON: column {}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(ids: &[&str], kind: Option<&str>, ordering: Option<&str>) -> Format {
        Format {
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

    #[test]
    fn pointers_lead_through_objects_and_lists() {
        let line = r#" {"a~b":[{"c/d":[1,"x"]}],"":{"e":true},"n":null} "#;
        let value: &RawValue = serde_json::from_str(line).unwrap();
        let text = |field| text_of(value, field);
        assert_eq!(text("/a~0b/0/c~1d/1").unwrap().as_deref(), Some("x"));
        assert_eq!(text("/a~0b/0/c~1d/0").unwrap().as_deref(), Some("1"));
        assert_eq!(text("//e").unwrap().as_deref(), Some("true"));
        for nothing in ["/a~0b/00", "/a~0b/+0", "/a~0b/1", "/n", "n", "/n/x", "b"] {
            assert_eq!(text(nothing).unwrap(), None, "{nothing}");
        }
        assert!(text("a~b").is_err());
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
        assert_eq!(
            read(
                &events,
                r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#
            )
            .unwrap_err(),
            "message id is empty"
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
