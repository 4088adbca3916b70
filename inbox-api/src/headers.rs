//! Headers: small texts that travel with the payload.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

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
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Arc<Inner>);

#[derive(Clone, Default, PartialEq, Eq)]
struct Inner {
    pairs: Pairs,
    /// Of all names and values, which an insertion would have to add up otherwise.
    bytes: usize,
}

/// Ordered by name, each name once: there are few, and a map would take ten times their memory.
type Pairs = Vec<(String, String)>;

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

    /// Sets `name`, replacing an earlier value. Those behind it in order are moved: where there may be thousands, use
    /// a [`HeadersBuilder`].
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
        let found = self.find(&name);
        let replaced = found.ok().and_then(|place| self.0.pairs.get(place));
        let replaced = replaced.map_or(0, bytes);
        let total = self.0.bytes - replaced + name.len() + value.len();
        check_total(total)?;
        let Inner { pairs, bytes } = Arc::make_mut(&mut self.0);
        *bytes = total;
        match found {
            Ok(place) => pairs[place].1 = value,
            Err(place) => pairs.insert(place, (name, value)),
        }
        Ok(())
    }

    /// Removes `name`, and returns the value that it had.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        // Nothing is copied of headers that are shared unless there is something to remove.
        let place = self.find(name).ok()?;
        let inner = Arc::make_mut(&mut self.0);
        let removed = inner.pairs.remove(place);
        inner.bytes -= bytes(&removed);
        Some(removed.1)
    }

    /// The value of `name`, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.pairs.get(self.find(name).ok()?)?;
        Some(value)
    }

    /// All pairs, ordered by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let pairs = self.0.pairs.iter();
        pairs.map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.pairs.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.pairs.is_empty()
    }

    /// The JSON object that stores keep, so that people can read headers with the database's own
    /// tools; [`Self::from_json`] reads it back unchanged.
    #[must_use]
    pub fn to_json(&self) -> String {
        // An object of texts always serialises; the fallback only spares a panic path.
        serde_json::to_string(self).unwrap_or_else(|_| "{}".into())
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
        let pairs: Unchecked = serde_json::from_str(json).map_err(|e| {
            format!(
                "headers are not a JSON object of texts (column {})",
                e.column()
            )
        })?;
        Self::checked(pairs.0).map_err(|e| e.to_string())
    }

    /// Of several of one name the last counts.
    fn checked(mut pairs: Pairs) -> Result<Self, Invalid> {
        for (name, value) in &pairs {
            check_pair(name, value)?;
        }
        if !pairs.is_sorted_by(|(one, _), (next, _)| one < next) {
            pairs.reverse();
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
            pairs.dedup_by(|(later, _), (kept, _)| later == kept);
        }
        let bytes = pairs.iter().map(bytes).sum();
        check_total(bytes)?;
        Ok(Self(Arc::new(Inner { pairs, bytes })))
    }

    /// Where `name` is, or belongs.
    fn find(&self, name: &str) -> Result<usize, usize> {
        let pairs = &self.0.pairs;
        pairs.binary_search_by(|(other, _)| other.as_str().cmp(name))
    }
}

/// Headers in the making, of which there may be thousands, in any order.
///
/// `Debug` shows the names only.
///
/// ```
/// use inbox_api::HeadersBuilder;
///
/// # fn main() -> Result<(), inbox_api::Invalid> {
/// let mut builder = HeadersBuilder::new();
/// builder.insert("b", "1")?;
/// builder.insert("a", "2")?;
/// let headers = builder.build();
/// assert!(headers.iter().eq([("a", "2"), ("b", "1")]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct HeadersBuilder {
    pairs: BTreeMap<String, String>,
    /// Of all names and values.
    bytes: usize,
}

impl HeadersBuilder {
    /// No headers as yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name`, replacing an earlier value.
    ///
    /// # Errors
    /// As [`Headers::insert`]. What was inserted before is unchanged then.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<(), Invalid> {
        let (name, value) = (name.into(), value.into());
        check_pair(&name, &value)?;
        let replaced = self.pairs.get(&name);
        let replaced = replaced.map_or(0, |value| name.len() + value.len());
        let total = self.bytes - replaced + name.len() + value.len();
        check_total(total)?;
        self.bytes = total;
        self.pairs.insert(name, value);
        Ok(())
    }

    /// The headers.
    #[must_use]
    pub fn build(self) -> Headers {
        let pairs = self.pairs.into_iter().collect();
        let bytes = self.bytes;
        Headers(Arc::new(Inner { pairs, bytes }))
    }
}

/// With these to begin with.
impl From<Headers> for HeadersBuilder {
    fn from(headers: Headers) -> Self {
        let bytes = headers.0.bytes;
        let pairs = headers.into();
        Self { pairs, bytes }
    }
}

impl fmt::Debug for HeadersBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.pairs.keys()).finish()
    }
}

fn bytes((name, value): &(String, String)) -> usize {
    name.len() + value.len()
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
        Self::checked(map.into_iter().collect())
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        let pairs = Arc::unwrap_or_clone(headers.0).pairs;
        pairs.into_iter().collect()
    }
}

/// As an object.
impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = Unchecked::deserialize(deserializer)?;
        Self::checked(pairs.0).map_err(serde::de::Error::custom)
    }
}

/// The pairs of an object, in its order.
struct Unchecked(Pairs);

impl<'de> Deserialize<'de> for Unchecked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Unchecked;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Unchecked, M::Error> {
                let mut pairs = Pairs::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Unchecked(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.pairs.iter().map(|(name, _)| name);
        f.debug_set().entries(names).finish()
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
    fn of_several_of_one_name_the_last_counts_in_whatever_order() {
        let read = Headers::from_json(r#"{"b":"1","a":"2","b":"3","c":"4","a":"5"}"#).unwrap();
        let pairs: Vec<_> = read.iter().collect();
        assert_eq!(pairs, [("a", "5"), ("b", "3"), ("c", "4")]);
        let mut inserted = Headers::new();
        for (name, value) in [("c", "4"), ("a", "2"), ("b", "3"), ("a", "5")] {
            inserted.insert(name, value).unwrap();
        }
        assert_eq!(inserted, read);
        let map: BTreeMap<String, String> = read.clone().into();
        assert_eq!(Headers::try_from(map), Ok(read.clone()));
        assert_eq!(read.to_json(), r#"{"a":"5","b":"3","c":"4"}"#);
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
        assert!(headers.remove("n").is_some());
        headers.insert("m", "").unwrap();
        assert_eq!(headers.0.bytes, 1);
    }

    /// Would take minutes if each insertion counted all that are there.
    #[test]
    fn an_insertion_costs_no_more_where_there_are_many() {
        let mut headers = Headers::new();
        for n in 0..13_000 {
            headers.insert(format!("{n:05}"), "").unwrap();
        }
        for _ in 0..500_000 {
            headers.insert("00000", "v").unwrap();
        }
        assert_eq!((headers.len(), headers.get("00000")), (13_000, Some("v")));
    }

    #[test]
    fn what_is_built_is_what_is_inserted_in_any_order() {
        let mut built = HeadersBuilder::new();
        let mut inserted = Headers::new();
        for n in (0..1000).chain(0..10).rev() {
            let (name, value) = (n.to_string(), format!("of {n}"));
            built.insert(&name, &value).unwrap();
            inserted.insert(name, value).unwrap();
        }
        for (name, value) in [("", "v"), ("n\n", "v"), ("n", "nul \0")] {
            assert!(built.insert(name, value).is_err());
        }
        let large = "x".repeat(Headers::MAX_TOTAL_BYTES);
        assert_eq!(built.insert("n", &large), inserted.insert("n", &large));
        let again = HeadersBuilder::from(inserted.clone()).build();
        assert_eq!((built.build(), again), (inserted.clone(), inserted));
    }

    #[test]
    fn debug_hides_values() {
        let mut headers = Headers::new();
        headers.insert("authorization", "secret").unwrap();
        assert_eq!(format!("{headers:?}"), "{\"authorization\"}");
        let builder = HeadersBuilder::from(headers);
        assert_eq!(format!("{builder:?}"), "{\"authorization\"}");
    }
}
