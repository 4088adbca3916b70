//! Which messages a request means: the fields of [`Filter`], by the names that the command uses.

use std::{fmt::Display, str::FromStr};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use inbox::{ErrorType, Filter, HandlerName, Key, MessageId, Record, State, error_shape};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{fault::Fault, text};

/// The parameters of a query or a form, in their order, without those that are empty: a form sends each of
/// its fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(crate) fn parse(text: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(text).into_owned();
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Takes the value of a parameter that is there once at most.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, Fault> {
        let mut values = self.take_all(name);
        if values.len() > 1 {
            return Err(Fault::invalid(format!("`{name}` is there twice")));
        }
        Ok(values.pop())
    }

    /// The same, read as what it has to be.
    pub(crate) fn read<T: FromStr<Err: Display>>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, Fault> {
        let value = self.take(name)?;
        value.map(|value| read(name, &value)).transpose()
    }

    /// Takes a parameter that says yes or no; without it, no.
    pub(crate) fn has(&mut self, name: &str) -> Result<bool, Fault> {
        match self.take(name)?.as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(_) => Err(Fault::invalid(format!("{name}: expected true or false"))),
        }
    }

    /// Takes all values of a parameter.
    pub(crate) fn take_all(&mut self, name: &str) -> Vec<String> {
        let taken = self.0.extract_if(.., |(own, _)| own == name);
        taken.map(|(_, value)| value).collect()
    }

    /// Puts values in place of what was taken.
    pub(crate) fn put(&mut self, name: &str, values: Vec<String>) {
        let pairs = values.into_iter().map(|value| (name.to_owned(), value));
        self.0.extend(pairs);
    }

    /// The message that `handler` and `id` name.
    pub(crate) fn key(&mut self) -> Result<Key, Fault> {
        let missing = || Fault::invalid("`handler` and `id` are needed");
        let handler = self.read::<HandlerName>("handler")?.ok_or_else(missing)?;
        let id = self.read::<MessageId>("id")?.ok_or_else(missing)?;
        Ok(Key::new(handler, id))
    }

    /// Takes what names messages.
    pub(crate) fn wanted(&mut self) -> Result<Wanted, Fault> {
        Ok(Wanted {
            state: self.take_all("state"),
            handler: self.take("handler")?,
            id: self.take_all("id"),
            kind: self.take("kind")?,
            ordering_key: self.take("ordering_key")?,
            correlation_id: self.take("correlation_id")?,
            older_than: self.take("older_than")?,
            newer_than: self.take("newer_than")?,
            finished_longer_ago: self.take("finished_longer_ago")?,
            finished_within: self.take("finished_within")?,
            due_later_than: self.take("due_later_than")?,
            due_within: self.take("due_within")?,
            min_attempts: self.read("min_attempts")?,
            max_attempts: self.read("max_attempts")?,
            blocking: self.has("blocking")?,
            error: self.take("error")?,
            error_type: self.take("error_type")?,
            error_shape: self.take("error_shape")?,
            no_error: self.has("no_error")?,
        })
    }

    /// Fails when anything is left. A filter that is misspelt and passed over would mean messages that it
    /// was to spare.
    pub(crate) fn end(self) -> Result<(), Fault> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Fault::invalid(format!(
                "there is no parameter `{}` here",
                text::one_line(name, 40)
            ))),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Parameters {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::parse(
            parts.uri.query().unwrap_or_default().as_bytes(),
        ))
    }
}

fn read<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Fault> {
    let read = value.parse();
    read.map_err(|error| Fault::invalid(format!("{name}: {error}")))
}

/// What a JSON text says, be it there at all. Programs write null, an empty text or an empty list for what they have
/// not got, an id that was not found for one. Passed over in a filter, it would mean messages that it was to spare; so
/// it is refused.
pub(crate) fn said<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn text_said<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.is_empty() {
        true => Err(D::Error::custom("is empty")),
        false => Ok(Some(text)),
    }
}

fn texts_said<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    match texts.is_empty() {
        true => Err(D::Error::custom("is empty")),
        false => Ok(texts),
    }
}

/// Messages, as a request names them. Its texts are kept, so that links and forms say the same again.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wanted {
    #[serde(deserialize_with = "texts_said")]
    pub(crate) state: Vec<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) handler: Option<String>,
    #[serde(deserialize_with = "texts_said")]
    pub(crate) id: Vec<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) kind: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) ordering_key: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) correlation_id: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) older_than: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) newer_than: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) finished_longer_ago: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) finished_within: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) due_later_than: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) due_within: Option<String>,
    #[serde(deserialize_with = "said")]
    pub(crate) min_attempts: Option<u32>,
    #[serde(deserialize_with = "said")]
    pub(crate) max_attempts: Option<u32>,
    /// Dead ones that hold their ordering key up.
    pub(crate) blocking: bool,
    #[serde(deserialize_with = "text_said")]
    pub(crate) error: Option<String>,
    #[serde(deserialize_with = "text_said")]
    pub(crate) error_type: Option<String>,
    /// Whose last error has no type, and this shape: a group of dead letters that no field of [`Filter`]
    /// names.
    #[serde(deserialize_with = "text_said")]
    pub(crate) error_shape: Option<String>,
    /// That have no last error.
    pub(crate) no_error: bool,
}

/// Messages, as the store is asked for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) filter: Filter,
    pub(crate) beyond: Option<Beyond>,
}

/// What narrows a filter further than the store can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// The last error has no type, and this shape.
    Shape(String),
    /// There is no last error.
    NoError,
}

impl From<Filter> for Selection {
    fn from(filter: Filter) -> Self {
        let beyond = None;
        Self { filter, beyond }
    }
}

impl Selection {
    /// Whether it means a record that its filter means.
    pub(crate) fn means(&self, record: &Record) -> bool {
        let beyond = self.beyond.as_ref();
        beyond.is_none_or(|beyond| beyond.means(record))
    }

    /// Its filter without what a store has to look for among messages, to be applied by
    /// [`means_among`](Self::means_among): so a page of it costs the same however few are meant.
    pub(crate) fn wide(&self) -> Filter {
        Filter {
            kind: None,
            error_contains: None,
            error_type: None,
            states: self.filter.possible_states().to_vec(),
            blocking: false,
            ..self.filter.clone()
        }
    }

    /// Whether it means a record that [`wide`](Self::wide) means.
    pub(crate) fn means_among(&self, record: &Record) -> bool {
        let error = record.last_error.as_deref();
        let Filter {
            kind,
            error_contains,
            error_type,
            blocking,
            ..
        } = &self.filter;
        (!blocking || record.blocks_ordering_key)
            && kind.as_ref().is_none_or(|kind| *kind == record.kind)
            && error_contains
                .as_ref()
                .is_none_or(|text| error.is_some_and(|error| error.contains(text)))
            && error_type
                .as_ref()
                .is_none_or(|own| error.and_then(ErrorType::of).as_ref() == Some(own))
            && self.means(record)
    }
}

impl Beyond {
    fn means(&self, record: &Record) -> bool {
        let error = record.last_error.as_deref();
        match self {
            Self::Shape(shape) => error.and_then(error_shape).as_ref() == Some(shape),
            Self::NoError => error.is_none(),
        }
    }
}

impl Wanted {
    pub(crate) fn selection(&self) -> Result<Selection, Fault> {
        fn one<T: FromStr<Err: Display>>(
            name: &str,
            value: &Option<String>,
        ) -> Result<Option<T>, Fault> {
            let value = value.as_deref();
            value.map(|value| read(name, value)).transpose()
        }
        let time = |name: &str, value: &Option<String>| {
            let read = value.as_deref().map(text::parse_duration).transpose();
            read.map_err(|reason| Fault::invalid(format!("{name}: {reason}")))
        };
        let states = self.state.iter().map(|state| read("state", state));
        let ids = self.id.iter().map(|id| read("id", id));
        let error_type = self.error_type.as_deref().map(ErrorType::new).transpose();
        let beyond = match (&self.error_shape, self.no_error) {
            (None, false) => None,
            (Some(shape), false) => Some(Beyond::Shape(shape.clone())),
            (None, true) => Some(Beyond::NoError),
            (Some(_), true) => {
                let reason = "`error_shape` and `no_error` exclude each other";
                return Err(Fault::invalid(reason));
            }
        };
        let filter = Filter {
            states: states.collect::<Result<_, _>>()?,
            handler: one("handler", &self.handler)?,
            ids: ids.collect::<Result<_, _>>()?,
            kind: one("kind", &self.kind)?,
            ordering_key: one("ordering_key", &self.ordering_key)?,
            correlation_id: self.correlation_id.clone(),
            older_than: time("older_than", &self.older_than)?,
            newer_than: time("newer_than", &self.newer_than)?,
            finished_longer_ago: time("finished_longer_ago", &self.finished_longer_ago)?,
            finished_within: time("finished_within", &self.finished_within)?,
            due_later_than: time("due_later_than", &self.due_later_than)?,
            due_within: time("due_within", &self.due_within)?,
            min_started: self.min_attempts,
            max_started: self.max_attempts,
            blocking: self.blocking,
            error_contains: self.error.clone(),
            error_type: error_type.map_err(|e| Fault::invalid(format!("error_type: {e}")))?,
        };
        Ok(Selection { filter, beyond })
    }

    /// One state alone.
    pub(crate) fn in_state(mut self, state: State) -> Self {
        self.state = vec![state.to_string()];
        self
    }

    /// All that is set, by name.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        pairs.extend(self.state.iter().map(|state| ("state", state.clone())));
        pairs.extend(self.id.iter().map(|id| ("id", id.clone())));
        let texts = [
            ("handler", &self.handler),
            ("kind", &self.kind),
            ("ordering_key", &self.ordering_key),
            ("correlation_id", &self.correlation_id),
            ("older_than", &self.older_than),
            ("newer_than", &self.newer_than),
            ("finished_longer_ago", &self.finished_longer_ago),
            ("finished_within", &self.finished_within),
            ("due_later_than", &self.due_later_than),
            ("due_within", &self.due_within),
            ("error", &self.error),
            ("error_type", &self.error_type),
            ("error_shape", &self.error_shape),
        ];
        let set = texts.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some((name, value.clone()))
        });
        pairs.extend(set);
        for (name, attempts) in [
            ("min_attempts", self.min_attempts),
            ("max_attempts", self.max_attempts),
        ] {
            pairs.extend(attempts.map(|attempts| (name, attempts.to_string())));
        }
        for (name, is_set) in [("blocking", self.blocking), ("no_error", self.no_error)] {
            pairs.extend(is_set.then(|| (name, "true".to_owned())));
        }
        pairs
    }

    /// In words, for people and for the audit log.
    pub(crate) fn words(&self) -> String {
        let pairs = self.pairs();
        let shown = pairs
            .iter()
            .map(|(name, value)| format!("{name} {}", text::one_line(value, 80)));
        let shown: Vec<_> = shown.collect();
        if shown.is_empty() {
            "all".to_owned()
        } else {
            shown.join(", ")
        }
    }
}

/// A relative link to a page with these parameters.
pub(crate) fn link<N: AsRef<str>, V: AsRef<str>>(
    page: &str,
    pairs: impl IntoIterator<Item = (N, V)>,
) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs);
    let query = query.finish();
    if query.is_empty() {
        page.to_owned()
    } else {
        format!("{page}?{query}")
    }
}

/// A link to something of one message.
pub(crate) fn link_to(page: &str, key: &Key) -> String {
    link(
        page,
        [("handler", key.handler.as_str()), ("id", key.id.as_str())],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_means_the_same() {
        let text = "state=dead&state=pending&handler=a%2Fb&id=1&id=2&kind=k&ordering_key=o&\
            correlation_id=c&older_than=90s&newer_than=7d&finished_longer_ago=1h&finished_within=2h&\
            due_later_than=0s&due_within=5m&min_attempts=3&max_attempts=4&blocking=true&error=x+y&error_type=a%3A%3Ab&error_shape=x+%23";
        let mut parameters = Parameters::parse(text.as_bytes());
        let wanted = parameters.wanted().unwrap();
        parameters.end().unwrap();
        let again = link("", wanted.pairs());
        let mut parameters = Parameters::parse(&again.as_bytes()[1..]);
        assert_eq!(parameters.wanted().unwrap(), wanted);
        let selection = wanted.selection().unwrap();
        let set = format!("{:?}", selection.filter);
        assert!(!set.contains("None") && !set.contains("[]"), "{set}");
        assert!(selection.filter.blocking);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for wrong in [
            "state=lost",
            "older_than=5",
            "error_type=x",
            "handler=a&handler=b",
            "min_attempts=-1",
            "no_error=1&error_shape=a",
            "blocking=perhaps",
        ] {
            let mut parameters = Parameters::parse(wrong.as_bytes());
            let wanted = parameters.wanted().and_then(|wanted| wanted.selection());
            assert!(wanted.is_err(), "{wrong}");
        }
        let mut misspelt = Parameters::parse(b"handlr=a&kind=");
        assert_eq!(misspelt.wanted().unwrap(), Wanted::default());
        assert!(misspelt.end().is_err());
    }
}
