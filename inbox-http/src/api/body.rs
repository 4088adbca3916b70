//! Reading a request's body, and the list in it.

use std::fmt;

use axum::{extract::Request, http::header::CONTENT_TYPE};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    MAX_BATCH, Shared,
    problem::{Problem, ProblemType},
};
use crate::body::{ReadError, Whole};

impl Shared {
    /// The body of a request that says that it is JSON.
    pub(super) async fn read(&self, request: Request) -> Result<Whole, Problem> {
        if !says_json(&request) {
            return Err(Problem::new(
                ProblemType::UnsupportedMediaType,
                "send `Content-Type: application/json`",
            ));
        }
        let reading = self.reading.read(request.into_body()).await;
        reading.map_err(|error| match error {
            ReadError::TooLarge => Problem::new(
                ProblemType::TooLarge,
                format!("the body's limit is {} bytes", self.reading.most()),
            ),
            ReadError::TooSlow => Problem::new(
                ProblemType::RequestTimeout,
                "the whole body has to arrive within 30 seconds",
            ),
            ReadError::Broken => Problem::new(
                ProblemType::Malformed,
                "the body could not be read to its end",
            ),
            ReadError::NoRoom => Problem::new(
                ProblemType::NoRoom,
                "too many bodies are being read; nothing was done",
            ),
        })
    }
}

fn says_json(request: &Request) -> bool {
    let value = request.headers().get(CONTENT_TYPE);
    let essence = value
        .and_then(|value| value.to_str().ok()?.split(';').next())
        .unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// Reads a list, of which no more is kept than shows that it has too many elements: each takes more
/// memory than it has bytes.
pub(super) fn list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<&'de RawValue>, D::Error> {
    struct List;

    impl<'de> Visitor<'de> for List {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
            let mut list = Vec::new();
            while list.len() <= MAX_BATCH {
                match elements.next_element()? {
                    Some(element) => list.push(element),
                    None => return Ok(list),
                }
            }
            while elements.next_element::<IgnoredAny>()?.is_some() {}
            Ok(list)
        }
    }

    deserializer.deserialize_seq(List)
}

/// Checks how many elements a request has.
pub(super) fn check_batch<T>(elements: &[T]) -> Result<(), Problem> {
    if elements.len() > MAX_BATCH {
        return Err(Problem::new(
            ProblemType::TooLarge,
            format!("a request may have {MAX_BATCH} elements"),
        ));
    }
    Ok(())
}

/// Reads one element of a list by itself, so that what is wrong with it is its own problem.
pub(super) fn element<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Result<T, Problem> {
    Ok(serde_json::from_str(json.get())?)
}

/// What the store did with those elements that could be given to it, put in the places of the
/// request; the others have their problems.
pub(super) fn in_place<T, U>(
    elements: Vec<Result<T, Problem>>,
    answers: impl IntoIterator<Item = U>,
    view: impl Fn(T, U) -> Answer,
) -> Vec<Answer> {
    let mut answers = answers.into_iter();
    let answer = |element| match element {
        Err(problem) => Answer::refused(problem),
        Ok(element) => match answers.next() {
            Some(answer) => view(element, answer),
            // No store does that, and nobody is told that it was done.
            None => Answer::refused(Problem::new(
                ProblemType::Failed,
                "the store gave no answer for this element",
            )),
        },
    };
    elements.into_iter().map(answer).collect()
}

/// The answer for one element.
#[derive(serde::Serialize)]
pub(super) struct Answer {
    pub(super) status: &'static str,
    /// Whether a duplicate is another message than the one with which its key was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) differs: Option<bool>,
    /// What a settlement came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<&'static str>,
    /// Until when an extended lease runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<Problem>,
}

impl Answer {
    pub(super) fn plain(status: &'static str) -> Self {
        Self {
            status,
            differs: None,
            outcome: None,
            until: None,
            problem: None,
        }
    }

    pub(super) fn refused(problem: impl Into<Problem>) -> Self {
        Self {
            problem: Some(problem.into()),
            ..Self::plain("refused")
        }
    }
}
