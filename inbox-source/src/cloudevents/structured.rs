//! The JSON format: an event as an object, and a batch as an array of them.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::{CloudEvent, Malformed, not_empty, twice};
use crate::fields::{Members, NotJson, scalar};

impl CloudEvent {
    /// The event of a JSON object. The data keep their bytes, as they stand in `json`.
    ///
    /// # Errors
    /// [`Malformed`] when it is none. An attribute that is there twice is refused, too.
    pub fn from_json(json: &[u8]) -> Result<Self, Malformed> {
        let members: Members<'_> = serde_json::from_slice(json).map_err(|error| {
            if error.is_data() {
                Malformed::NotAnEvent
            } else {
                NotJson::from(error).into()
            }
        })?;
        let mut members = members.into_unique().map_err(|name| twice(&name))?;
        if required(&mut members, "specversion")? != "1.0" {
            return Err(Malformed::OtherVersion);
        }
        let id = required(&mut members, "id")?;
        let source = required(&mut members, "source")?;
        let kind = required(&mut members, "type")?;
        let declared = optional(&mut members, "datacontenttype")?.and_then(not_empty);
        let (data, assumed) = data(&mut members, declared.as_deref())?;
        let mut others = BTreeMap::new();
        for (name, value) in members {
            if let Some(value) = scalar(value)? {
                others.insert(name, value);
            }
        }
        Ok(Self {
            id,
            source,
            kind,
            content_type: declared.or_else(|| assumed.map(Into::into)),
            data,
            others,
        })
    }
}

/// The events of a JSON array, each by itself: one that is malformed leaves the others as they are.
///
/// # Errors
/// [`Malformed`] when it is no array.
pub fn from_json_batch(json: &[u8]) -> Result<Vec<Result<CloudEvent, Malformed>>, Malformed> {
    let events: Vec<&RawValue> = serde_json::from_slice(json).map_err(|error| {
        if error.is_data() {
            Malformed::NotABatch
        } else {
            NotJson::from(error).into()
        }
    })?;
    let event = |event: &RawValue| CloudEvent::from_json(event.get().as_bytes());
    Ok(events.into_iter().map(event).collect())
}

type Attributes<'a> = BTreeMap<String, &'a RawValue>;

fn required(members: &mut Attributes<'_>, name: &'static str) -> Result<String, Malformed> {
    let value = optional(members, name)?.and_then(not_empty);
    value.ok_or(Malformed::NotAnEvent)
}

fn optional(members: &mut Attributes<'_>, name: &'static str) -> Result<Option<String>, Malformed> {
    members.remove(name).map_or(Ok(None), |value| {
        serde_json::from_str(value.get()).map_err(|_| Malformed::NotOfItsType {
            attribute: name,
            expected: "a text",
        })
    })
}

/// The data's bytes, and the content type to assume when the event names none.
fn data(
    members: &mut Attributes<'_>,
    content_type: Option<&str>,
) -> Result<(Bytes, Option<&'static str>), Malformed> {
    let base64 = optional(members, "data_base64")?;
    match (members.remove("data"), base64) {
        (Some(_), Some(_)) => Err(Malformed::DataTwice),
        (None, None) => Ok((Bytes::new(), None)),
        (None, Some(text)) => {
            let bytes = BASE64.decode(text).map_err(|_| Malformed::NotOfItsType {
                attribute: "data_base64",
                expected: "base64",
            })?;
            Ok((bytes.into(), None))
        }
        (Some(data), None) => {
            // A JSON string under another content type carries that content as text.
            if !content_type.is_none_or(is_json)
                && let Ok(text) = serde_json::from_str::<String>(data.get())
            {
                return Ok((text.into(), None));
            }
            let bytes = Bytes::copy_from_slice(data.get().as_bytes());
            Ok((bytes, Some("application/json")))
        }
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(more: &str) -> Result<CloudEvent, Malformed> {
        let json = format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t"{more}}}"#);
        CloudEvent::from_json(json.as_bytes())
    }

    #[test]
    fn data_keep_their_bytes_and_other_attributes_their_text() {
        let data = r#"{"b": 1.0,  "a":"\u00e4"}"#;
        let event = event(&format!(
            r#","data":{data},"n":12345678901234567890123,"x":null"#
        ))
        .unwrap();
        assert_eq!(event.data(), data);
        assert_eq!(event.content_type(), Some("application/json"));
        assert_eq!(event.attribute("n"), Some("12345678901234567890123"));
        assert_eq!(event.attribute("x"), None);
        assert!(!format!("{event:?}").contains("1.0,"));
    }

    #[test]
    fn text_and_binary_data_are_decoded() {
        let text = event(r#","datacontenttype":"text/plain","data":"a\nb""#).unwrap();
        assert_eq!(text.data(), "a\nb");
        let quoted = event(r#","datacontenttype":"application/x+json","data":"a""#).unwrap();
        assert_eq!(quoted.data(), "\"a\"");
        let binary = event(r#","data_base64":"AP8=""#).unwrap();
        assert_eq!(binary.data().as_ref(), [0, 255]);
        assert!(event("").unwrap().data().is_empty());
    }

    #[test]
    fn a_batch_answers_for_each_event() {
        let batch = br#"[{"specversion":"1.0","id":"1","source":"s","type":"t"},7,{}]"#;
        let events = from_json_batch(batch).unwrap();
        assert_eq!(events.len(), 3);
        assert!(events[0].is_ok());
        assert_eq!(events[1], Err(Malformed::NotAnEvent));
        assert_eq!(events[2], Err(Malformed::NotAnEvent));
        assert_eq!(from_json_batch(b"{}"), Err(Malformed::NotABatch));
        assert_eq!(from_json_batch(b"[]"), Ok(Vec::new()));
        let cut = from_json_batch(b"[{").unwrap_err();
        assert_eq!(cut.to_string(), "not JSON: it ends too early");
    }

    #[test]
    fn what_is_wrong_is_said_without_repeating_it() {
        for (more, problem) in [
            (r#","id":"2""#, "has id twice"),
            (r#","y":1,"y":1"#, "has an extension attribute twice"),
            (r#","data_base64":"%""#, "data_base64 is not base64"),
            (r#","data_base64":7"#, "data_base64 is not a text"),
            (
                r#","data":1,"data_base64":"""#,
                "has both data and data_base64",
            ),
        ] {
            assert_eq!(event(more).unwrap_err().to_string(), problem);
        }
        assert_eq!(CloudEvent::from_json(b"[1]"), Err(Malformed::NotAnEvent));
    }

    #[test]
    fn an_empty_attribute_is_none() {
        let json = br#"{"specversion":"1.0","id":"","source":"/s","type":"t"}"#;
        assert_eq!(CloudEvent::from_json(json), Err(Malformed::NotAnEvent));
        let untyped = event(r#","datacontenttype":"","data":1"#).unwrap();
        assert_eq!(untyped.content_type(), Some("application/json"));
    }
}
