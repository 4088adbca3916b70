//! Headers: small texts that travel with the payload.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The conversation that a message belongs to.
pub const CORRELATION_ID: &str = "correlation-id";
/// The message that caused this one.
pub const CAUSATION_ID: &str = "causation-id";
/// W3C trace context of the producer. A processor's span of an attempt has it as a field, and, with
/// the feature `opentelemetry` of the crate `inbox`, as its parent.
pub const TRACEPARENT: &str = "traceparent";
/// Where the message came from: the CloudEvents `source`, a topic, a queue.
pub const SOURCE: &str = "source";
/// What the message is about: the CloudEvents `subject`.
pub const SUBJECT: &str = "subject";
/// For how long after its acceptance a message is worth working on, in milliseconds:
/// [`Message::with_time_to_live`](crate::Message::with_time_to_live).
pub const TIME_TO_LIVE: &str = "time-to-live";

/// Name–value pairs, ordered by name, each name once. Values come back byte-identical.
///
/// Cloning is cheap (a reference count). `Debug` shows the names only: values may be personal.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    try_from = "BTreeMap<String, String>",
    into = "BTreeMap<String, String>"
)]
pub struct Headers(Arc<BTreeMap<String, String>>);

impl Headers {
    /// The longest name, in bytes.
    pub const MAX_NAME_BYTES: usize = 255;
    /// The most that names and values together may take, in bytes.
    pub const MAX_TOTAL_BYTES: usize = 64 * 1024;

    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name`, replacing an earlier value.
    ///
    /// # Errors
    /// [`Invalid`] when the name is empty, too long or has a control character, when the value
    /// contains NUL, or when all headers together exceed [`Self::MAX_TOTAL_BYTES`]. The headers
    /// are unchanged then.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<(), Invalid> {
        let (name, value) = (name.into(), value.into());
        check_pair(&name, &value)?;
        let replaced = self.0.get(&name).map_or(0, |old| name.len() + old.len());
        check_total(self.total_bytes() - replaced + name.len() + value.len())?;
        Arc::make_mut(&mut self.0).insert(name, value);
        Ok(())
    }

    /// Removes `name`, and returns the value that it had.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        // Nothing is copied of headers that are shared unless there is something to remove.
        self.get(name)?;
        Arc::make_mut(&mut self.0).remove(name)
    }

    /// The value of `name`, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All pairs, ordered by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The JSON object that stores keep, so that people can read headers with the database's own
    /// tools; [`Self::from_json`] reads it back unchanged.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A map of strings always serialises; the fallback only spares a panic path.
        serde_json::to_string(&*self.0).unwrap_or_else(|_| "{}".into())
    }

    /// Reads what [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// A one-line reason when `json` is not an object of texts or breaks a rule of
    /// [`Self::insert`]. The reason does not repeat the text.
    pub fn from_json(json: &str) -> Result<Self, String> {
        if json == "{}" {
            return Ok(Self::default());
        }
        let map: BTreeMap<String, String> = serde_json::from_str(json).map_err(|e| {
            format!(
                "headers are not a JSON object of texts (column {})",
                e.column()
            )
        })?;
        Self::try_from(map).map_err(|e| e.to_string())
    }

    fn total_bytes(&self) -> usize {
        self.0.iter().map(|(k, v)| k.len() + v.len()).sum()
    }
}

fn check_pair(name: &str, value: &str) -> Result<(), Invalid> {
    const WHAT: &str = "header name";
    if name.is_empty() {
        return Err(Invalid::Empty { what: WHAT });
    }
    if name.len() > Headers::MAX_NAME_BYTES {
        return Err(Invalid::TooLong {
            what: WHAT,
            bytes: name.len(),
            limit: Headers::MAX_NAME_BYTES,
        });
    }
    if name.chars().any(char::is_control) {
        return Err(Invalid::ControlCharacter { what: WHAT });
    }
    if value.contains('\0') {
        return Err(Invalid::ControlCharacter {
            what: "header value",
        });
    }
    Ok(())
}

fn check_total(bytes: usize) -> Result<(), Invalid> {
    if bytes > Headers::MAX_TOTAL_BYTES {
        return Err(Invalid::TooLong {
            what: "headers",
            bytes,
            limit: Headers::MAX_TOTAL_BYTES,
        });
    }
    Ok(())
}

impl TryFrom<BTreeMap<String, String>> for Headers {
    type Error = Invalid;

    fn try_from(map: BTreeMap<String, String>) -> Result<Self, Invalid> {
        for (name, value) in &map {
            check_pair(name, value)?;
        }
        let headers = Self(Arc::new(map));
        check_total(headers.total_bytes())?;
        Ok(headers)
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        Arc::unwrap_or_clone(headers.0)
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_round_trip_keeps_bytes() {
        let mut headers = Headers::new();
        headers.insert("a", "quote \" slash \\ line\nend").unwrap();
        headers.insert("ü", "\u{1f980}\t").unwrap();
        assert_eq!(Headers::from_json(&headers.to_json()), Ok(headers));
    }

    #[test]
    fn bad_headers_are_refused_and_nothing_changes() {
        let mut headers = Headers::new();
        assert!(headers.insert("", "v").is_err());
        assert!(headers.insert("n\n", "v").is_err());
        assert!(headers.insert("n", "nul \0").is_err());
        assert!(headers.insert("n", "x".repeat(64 * 1024)).is_err());
        assert!(headers.is_empty());
        assert!(Headers::from_json("[1]").is_err());
        assert!(Headers::from_json("{\"a\":1}").is_err());
    }

    #[test]
    fn what_is_removed_is_gone_from_these_only() {
        let mut headers = Headers::new();
        headers.insert("a", "1").unwrap();
        headers.insert("b", "2").unwrap();
        let shared = headers.clone();
        assert_eq!(headers.remove("a").as_deref(), Some("1"));
        assert_eq!(headers.remove("a"), None);
        assert_eq!((headers.get("a"), headers.get("b")), (None, Some("2")));
        assert_eq!(shared.get("a"), Some("1"));
    }

    #[test]
    fn the_limit_counts_replacements_once() {
        let mut headers = Headers::new();
        let large = "x".repeat(Headers::MAX_TOTAL_BYTES - 1);
        headers.insert("n", large.clone()).unwrap();
        headers.insert("n", large).unwrap();
        assert!(headers.insert("m", "").is_err());
    }

    #[test]
    fn debug_hides_values() {
        let mut headers = Headers::new();
        headers.insert("authorization", "secret").unwrap();
        assert_eq!(format!("{headers:?}"), "{\"authorization\"}");
    }
}
