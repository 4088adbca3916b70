//! How a case says what it saw.

use std::fmt::Debug;

use bytes::Bytes;

use crate::{
    needs::{Need, Unable},
    time_text::debug,
};

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
    let whole = format!(
        "expected {}, saw {}",
        debug(expected, false),
        debug(seen, false)
    );
    if whole.len() <= AT_A_GLANCE {
        return whole;
    }
    let (seen, expected) = (debug(seen, true), debug(expected, true));
    if seen.lines().count() != expected.lines().count() {
        return whole;
    }
    let (mut path, mut differing): (Vec<Part>, Vec<String>) = (Vec::new(), Vec::new());
    for (seen, expected) in seen.lines().zip(expected.lines()) {
        let depth = (expected.len() - expected.trim_start().len()) / INDENTATION;
        path.truncate(depth);
        let (seen, expected) = (
            seen.trim().trim_end_matches(','),
            expected.trim().trim_end_matches(','),
        );
        if matches!(expected, "}" | ")" | "]") {
            continue;
        }
        let (name, value) = expected.split_once(": ").unwrap_or(("", expected));
        let name = match path.last_mut() {
            Some(list) if list.is_list => {
                list.elements += 1;
                format!("[{}]", list.elements - 1)
            }
            _ => name.to_owned(),
        };
        if seen != expected {
            let value_seen = match seen.split_once(": ") {
                Some((other, value_seen)) if expected.starts_with(&format!("{other}: ")) => {
                    value_seen
                }
                _ => seen,
            };
            let what = path.iter().map(|part| &*part.name).chain([&*name]);
            let what = what.filter(|name| !name.is_empty()).collect::<Vec<_>>();
            let what = what.join(".").replace(".[", "[");
            let space = if what.is_empty() { "" } else { " " };
            differing.push(format!("{what}{space}expected {value}, saw {value_seen}"));
        }
        path.push(Part {
            name,
            is_list: value.ends_with('['),
            elements: 0,
        });
    }
    let more = differing.len().saturating_sub(MOST_DIFFERENCES);
    differing.truncate(MOST_DIFFERENCES);
    if more > 0 {
        differing.push(format!("and {more} more"));
    }
    if differing.is_empty() {
        whole
    } else {
        differing.join("; ")
    }
}

/// A part of a value in which another stands.
struct Part {
    name: String,
    is_list: bool,
    elements: usize,
}

/// How many differences are worth reading.
const MOST_DIFFERENCES: usize = 8;

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
    fn elements_of_lists_are_shown_by_their_places() {
        #[derive(Clone, Copy, Debug, PartialEq)]
        enum Answer {
            Accepted,
            Duplicate,
        }
        let expected = [Answer::Accepted; 30];
        let mut seen = expected;
        (seen[3], seen[29]) = (Answer::Duplicate, Answer::Duplicate);
        assert_eq!(
            text(same("receipts", &seen, &expected)),
            "receipts: [3] expected Accepted, saw Duplicate; [29] expected Accepted, saw Duplicate"
        );
        let all = text(same("receipts", &[Answer::Duplicate; 30], &expected));
        assert!(
            all.contains("[7] expected Accepted, saw Duplicate; and 22 more"),
            "{all}"
        );
        let (expected, mut seen) = (vec![whole(), whole()], vec![whole(), whole()]);
        seen[1].part.name = "other".into();
        assert_eq!(
            text(same("records", &seen, &expected)),
            "records: [1].part.name expected \"n\", saw \"other\""
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
