//! From a message to its trace.

use std::str::FromStr;

use inbox::{Headers, Invalid, headers::TRACEPARENT};

const PLACE: &str = "{trace_id}";

/// The address of a trace in the user's tracing system, with `{trace_id}` in place of its id:
/// `https://jaeger.example/trace/{trace_id}`.
#[derive(Clone, Debug)]
pub struct TraceLink(String);

impl TraceLink {
    /// Takes such an address.
    ///
    /// # Errors
    /// [`Invalid`] when it is no `http` or `https` URL with `{trace_id}` in it.
    pub fn new(template: &str) -> Result<Self, Invalid> {
        let is_web = ["https://", "http://"]
            .iter()
            .any(|s| template.starts_with(s));
        if !is_web || !template.contains(PLACE) {
            return Err(Invalid::Malformed {
                what: "trace link",
                expected: "an http or https URL with {trace_id} in it",
            });
        }
        Ok(Self(template.to_owned()))
    }

    /// The link for a message with these headers.
    pub(crate) fn to(&self, headers: &Headers) -> Option<String> {
        Some(self.0.replace(PLACE, trace_id(headers)?))
    }
}

impl FromStr for TraceLink {
    type Err = Invalid;

    fn from_str(template: &str) -> Result<Self, Invalid> {
        Self::new(template)
    }
}

/// The id of the trace that the producer's `traceparent` names.
pub(crate) fn trace_id(headers: &Headers) -> Option<&str> {
    let id = headers.get(TRACEPARENT)?.split('-').nth(1)?;
    let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_linked_and_nothing_else_is() {
        let link = TraceLink::new("https://t.example/{trace_id}?x").unwrap();
        let to = |value: &str| {
            let mut headers = Headers::new();
            headers.insert(TRACEPARENT, value).unwrap();
            link.to(&headers)
        };
        let id = "0af7651916cd43dd8448eb211c80319c";
        let expected = format!("https://t.example/{id}?x");
        assert_eq!(to(&format!("00-{id}-b7ad6b7169203331-01")), Some(expected));
        for odd in ["", "00", "00--01", "00-\"><script>-b-01"] {
            assert_eq!(to(odd), None);
        }
        for wrong in ["javascript:{trace_id}", "https://t.example/", ""] {
            assert!(TraceLink::new(wrong).is_err(), "{wrong}");
        }
    }
}
