//! Events whose attributes are apart from their data: HTTP headers, properties of a broker.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use percent_encoding::percent_decode;

use super::{CloudEvent, Malformed, not_empty, twice};

/// What the names of attributes begin with as HTTP headers.
const PREFIX: &str = "ce-";

impl CloudEvent {
    /// The event of an HTTP request in binary mode: `headers` are all the request's, by name, in any
    /// case and order; `body` is the data.
    ///
    /// Values are unquoted and percent-decoded as the HTTP binding says.
    ///
    /// # Errors
    /// As [`from_attributes`](Self::from_attributes), and for a value that is not UTF-8.
    pub fn from_http_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
    ) -> Result<Self, Malformed> {
        let mut attributes = Vec::new();
        let mut content_type = None;
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            if name == "content-type" {
                if content_type.replace(text(value.into())?).is_some() {
                    return Err(twice("datacontenttype"));
                }
            } else if let Some(attribute) = name.strip_prefix(PREFIX) {
                attributes.push((attribute.to_owned(), decode(value)?));
            }
        }
        Self::from_attributes(attributes, content_type, body)
    }

    /// The event of attributes by their names, without what a protocol puts before them. The content
    /// type is not among them, as protocols have a place for it.
    ///
    /// # Errors
    /// [`Malformed`] when a required attribute is missing or empty, one is there twice, or it is of
    /// another version.
    pub fn from_attributes(
        attributes: impl IntoIterator<Item = (String, String)>,
        content_type: Option<String>,
        data: Bytes,
    ) -> Result<Self, Malformed> {
        let mut others = BTreeMap::new();
        for (name, value) in attributes {
            if others.insert(name.clone(), value).is_some() {
                return Err(twice(&name));
            }
        }
        for misplaced in ["data", "data_base64", "datacontenttype"] {
            if others.contains_key(misplaced) {
                return Err(Malformed::Misplaced {
                    attribute: misplaced,
                });
            }
        }
        let mut required = |name: &str| {
            let value = others.remove(name).and_then(not_empty);
            value.ok_or(Malformed::NotAnEvent)
        };
        if required("specversion")? != "1.0" {
            return Err(Malformed::OtherVersion);
        }
        Ok(Self {
            id: required("id")?,
            source: required("source")?,
            kind: required("type")?,
            content_type: content_type.and_then(not_empty),
            data,
            others,
        })
    }
}

fn decode(value: &[u8]) -> Result<String, Malformed> {
    text(Cow::from(percent_decode(&unquote(value))))
}

fn text(value: Cow<'_, [u8]>) -> Result<String, Malformed> {
    String::from_utf8(value.into_owned()).map_err(|_| Malformed::NotOfItsType {
        attribute: "a header",
        expected: "UTF-8",
    })
}

/// Without the quotes and backslashes of a quoted string. Senders need none; older ones had them.
fn unquote(value: &[u8]) -> Cow<'_, [u8]> {
    let [b'"', inner @ .., b'"'] = value else {
        return value.into();
    };
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        let byte = if *byte == b'\\' {
            bytes.next().unwrap_or(byte)
        } else {
            byte
        };
        plain.push(*byte);
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use inbox_api::{HandlerName, headers};

    use super::*;

    const REQUIRED: [(&str, &[u8]); 4] = [
        ("ce-specversion", b"1.0"),
        ("CE-ID", b"1"),
        ("ce-source", b"/s"),
        ("ce-type", b"t"),
    ];

    fn event(more: &[(&'static str, &'static [u8])]) -> Result<CloudEvent, Malformed> {
        let headers = REQUIRED.into_iter().chain(more.iter().copied());
        CloudEvent::from_http_headers(headers, Bytes::from_static(b"data"))
    }

    #[test]
    fn headers_are_attributes_and_the_body_is_the_data() {
        let event = event(&[("content-type", b"text/plain"), ("ce-n", b"7"), ("x", b"y")]).unwrap();
        assert_eq!((event.id(), event.source(), event.kind()), ("1", "/s", "t"));
        assert_eq!(event.content_type(), Some("text/plain"));
        assert_eq!(event.data(), "data");
        assert_eq!(event.attribute("n"), Some("7"));
        assert_eq!(event.attribute("x"), None);
    }

    /// The binding's own example, quoted strings, and a sequence that is none.
    #[test]
    fn values_are_decoded_once() {
        for (value, expected) in [
            (
                &b"Euro%20%E2%82%AC%20%F0%9F%98%80"[..],
                "Euro \u{20ac} \u{1f600}",
            ),
            (br#""a \"b\" \\%41""#, "a \"b\" \\A"),
            (b"%2541", "%41"),
            (b"100%", "100%"),
            (b"\"", "\""),
        ] {
            let event = event(&[("ce-subject", value)]).unwrap();
            assert_eq!(event.attribute("subject"), Some(expected));
        }
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let refusal = |more| event(more).unwrap_err().to_string();
        assert_eq!(refusal(&[("Ce-Id", b"2")]), "has id twice");
        assert_eq!(refusal(&[("ce-subject", b"%FF")]), "a header is not UTF-8");
        let misplaced = refusal(&[("ce-datacontenttype", b"text/plain")]);
        assert_eq!(misplaced, "has datacontenttype as an attribute");
        let without_id = REQUIRED.into_iter().filter(|(name, _)| *name != "CE-ID");
        let without_id = CloudEvent::from_http_headers(without_id, Bytes::new());
        assert_eq!(without_id, Err(Malformed::NotAnEvent));
    }

    #[test]
    fn the_correlation_is_found_by_the_name_that_messages_have() {
        let event = event(&[("ce-correlationid", b"c-9"), ("ce-causationid", b"m-8")]).unwrap();
        assert_eq!(event.attribute("correlationid"), Some("c-9"));
        let message = event.into_message(HandlerName::new("h").unwrap()).unwrap();
        assert_eq!(message.headers().get(headers::CORRELATION_ID), Some("c-9"));
        assert_eq!(message.headers().get(headers::CAUSATION_ID), Some("m-8"));
    }

    #[test]
    fn an_empty_attribute_is_none() {
        let of_id = |id: &'static [u8]| {
            let others = REQUIRED.into_iter().filter(|(name, _)| *name != "CE-ID");
            let headers = others.chain([("ce-id", id), ("content-type", b"")]);
            CloudEvent::from_http_headers(headers, Bytes::new())
        };
        assert_eq!(of_id(b""), Err(Malformed::NotAnEvent));
        assert_eq!(of_id(b"1").unwrap().content_type(), None);
    }
}
