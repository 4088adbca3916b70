//! How a case says what it saw.

use std::fmt::Debug;

use bytes::Bytes;

use crate::harness::{Need, Unable};

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The store broke the rule: what was expected and what was seen.
    Failed(String),
    /// The case could not be run.
    NotChecked(Need),
}

/// What a case returns.
pub(crate) type CaseResult<T = ()> = Result<T, Unmet>;

impl From<inbox_api::Error> for Unmet {
    fn from(error: inbox_api::Error) -> Self {
        use std::error::Error as _;
        let source = error
            .source()
            .map_or_else(String::new, |source| format!(" (caused by: {source})"));
        Self::Failed(format!(
            "expected an answer, saw the error: {error}{source}"
        ))
    }
}

impl From<inbox_api::Invalid> for Unmet {
    fn from(invalid: inbox_api::Invalid) -> Self {
        Self::Failed(format!("a valid value was refused: {invalid}"))
    }
}

impl From<Unable> for Unmet {
    fn from(unable: Unable) -> Self {
        match unable {
            Unable::NotOffered(need) => Self::NotChecked(need),
            Unable::Failed(error) => Self::Failed(format!("the harness failed: {error}")),
        }
    }
}

impl From<tokio::task::JoinError> for Unmet {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(match error.try_into_panic() {
            Ok(panic) => format!("a task of the case panicked: {}", panic_text(&*panic)),
            Err(error) => format!("a task of the case did not finish: {error}"),
        })
    }
}

/// The text that a panic was raised with.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// Values longer than this are shown by what differs in them.
const AT_A_GLANCE: usize = 200;

/// Fails unless `seen` equals `expected`.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, seen: &T, expected: &T) -> CaseResult {
    if seen == expected {
        return Ok(());
    }
    Err(Unmet::Failed(format!(
        "{what}: {}",
        difference(seen, expected)
    )))
}

/// What differs between two values: the fields, if the values are long and alike in their shape.
fn difference(seen: &impl Debug, expected: &impl Debug) -> String {
    let whole = format!("expected {expected:?}, saw {seen:?}");
    if whole.len() <= AT_A_GLANCE {
        return whole;
    }
    let (seen, expected) = (format!("{seen:#?}"), format!("{expected:#?}"));
    if seen.lines().count() != expected.lines().count() {
        return whole;
    }
    let (mut path, mut differing): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for (seen, expected) in seen.lines().zip(expected.lines()) {
        let depth = (expected.len() - expected.trim_start().len()) / INDENTATION;
        path.truncate(depth);
        let (seen, expected) = (seen.trim(), expected.trim());
        let (name, value) = expected.split_once(": ").unwrap_or(("", expected));
        path.push(if value.ends_with(['{', '(', '[']) {
            name
        } else {
            ""
        });
        if seen != expected {
            let within: Vec<&str> = path
                .iter()
                .copied()
                .filter(|name| !name.is_empty())
                .collect();
            let within = within.join(".");
            let dot = if within.is_empty() { "" } else { "." };
            let seen = seen.split_once(": ").filter(|(other, _)| *other == name);
            let seen = seen.map_or("something else", |(_, value)| value.trim_end_matches(','));
            let value = value.trim_end_matches(',');
            differing.push(format!("{within}{dot}{name} expected {value}, saw {seen}"));
        }
    }
    if differing.is_empty() {
        whole
    } else {
        differing.join("; ")
    }
}

/// Of Rust's own `{:#?}`.
const INDENTATION: usize = 4;

/// Fails unless the bytes are the same, and says where they first differ rather than show them.
pub(crate) fn same_bytes(what: &str, seen: Option<&Bytes>, expected: &[u8]) -> CaseResult {
    let Some(seen) = seen else {
        return Err(Unmet::Failed(format!("{what}: expected it, saw none")));
    };
    if seen == expected {
        return Ok(());
    }
    let alike = seen.iter().zip(expected).take_while(|(s, e)| s == e);
    let at = alike.count();
    let shown = |bytes: &[u8]| {
        bytes
            .get(at)
            .map_or("the end".into(), |b| format!("{b:#04x}"))
    };
    Err(Unmet::Failed(format!(
        "{what}: expected {} bytes, saw {}; they first differ at byte {at}: expected {}, saw {}",
        expected.len(),
        seen.len(),
        shown(expected),
        shown(seen),
    )))
}

/// Fails with the formatted text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::check::Unmet::Failed(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Part {
        name: String,
        number: Option<u32>,
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Whole {
        long: String,
        part: Part,
    }

    fn text(result: CaseResult) -> String {
        match result {
            Err(Unmet::Failed(text)) => text,
            other => panic!("expected a failure, saw {other:?}"),
        }
    }

    fn whole() -> Whole {
        let name = "n".into();
        Whole {
            long: "x".repeat(AT_A_GLANCE),
            part: Part { name, number: None },
        }
    }

    #[test]
    fn of_long_values_only_what_differs_is_shown() {
        let (expected, mut seen) = (whole(), whole());
        seen.part.name = "other".into();
        assert_eq!(
            text(same("record", &seen, &expected)),
            "record: part.name expected \"n\", saw \"other\""
        );
        seen.long.push('y');
        let both = text(same("record", &seen, &expected));
        assert!(
            both.contains("long expected") && both.contains("; part.name"),
            "{both}"
        );
    }

    #[test]
    fn values_of_other_shapes_are_shown_whole() {
        let (expected, mut seen) = (whole(), whole());
        seen.part.number = Some(7);
        let shown = text(same("record", &seen, &expected));
        assert!(
            shown.contains("expected Whole") && shown.contains("Some(7)"),
            "{shown}"
        );
    }

    #[test]
    fn bytes_are_shown_by_their_first_difference() {
        let seen = Bytes::from_static(b"abX");
        assert_eq!(
            text(same_bytes("payload", Some(&seen), b"abc")),
            "payload: expected 3 bytes, saw 3; they first differ at byte 2: expected 0x63, saw 0x58"
        );
        let short = text(same_bytes("payload", Some(&seen), b"ab"));
        assert!(
            short.ends_with("at byte 2: expected the end, saw 0x58"),
            "{short}"
        );
        assert!(text(same_bytes("payload", None, b"")).ends_with("saw none"));
    }
}
