//! Times as people read them: by RFC 3339, and by how far they are from what was expected.

use std::{
    fmt::Debug,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    check::{CaseResult, Unmet},
    place::TOLERANCE,
};

/// A time by RFC 3339, in UTC, to the microsecond that stores keep.
pub(crate) fn shown(time: SystemTime) -> String {
    match jiff::Timestamp::try_from(time) {
        Ok(time) => format!("{time:.6}"),
        // Beyond the year 9999.
        Err(_) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => format!("{since:?} after 1970"),
            Err(before) => format!("{:?} before 1970", before.duration()),
        },
    }
}

/// How far a time is from another: `1.5s later`.
pub(crate) fn apart(seen: SystemTime, expected: SystemTime) -> String {
    match seen.duration_since(expected) {
        Ok(later) => format!("{later:?} later"),
        Err(earlier) => format!("{:?} earlier", earlier.duration()),
    }
}

/// Fails unless `seen` is `expected`, as far as the suite can tell the store's time.
pub(crate) fn about(
    what: &str,
    seen: impl Into<Option<SystemTime>>,
    expected: SystemTime,
) -> CaseResult {
    within(TOLERANCE, what, seen.into(), Some(expected))
}

/// Fails unless `seen` is `expected` or near it.
pub(crate) fn within(
    tolerance: Duration,
    what: &str,
    seen: Option<SystemTime>,
    expected: Option<SystemTime>,
) -> CaseResult {
    let close = match (seen, expected) {
        (Some(seen), Some(expected)) => {
            let distance = seen.duration_since(expected);
            distance.unwrap_or_else(|error| error.duration()) <= tolerance
        }
        (seen, expected) => seen == expected,
    };
    if close {
        return Ok(());
    }
    let far = seen.zip(expected);
    let far = far.map_or_else(String::new, |(seen, expected)| {
        format!(", which is {}", apart(seen, expected))
    });
    Err(Unmet::Failed(format!(
        "{what}: expected {}, saw {}{far}",
        expected.map_or_else(|| "none".into(), |time| format!("about {}", shown(time))),
        seen.map_or_else(|| "none".into(), shown),
    )))
}

/// The same of an age or a lag.
pub(crate) fn about_as_long(what: &str, seen: Option<Duration>, expected: Duration) -> CaseResult {
    as_long_within(TOLERANCE, what, seen, Some(expected))
}

/// The same, or near it.
pub(crate) fn as_long_within(
    tolerance: Duration,
    what: &str,
    seen: Option<Duration>,
    expected: Option<Duration>,
) -> CaseResult {
    let close = match (seen, expected) {
        (Some(seen), Some(expected)) => seen.abs_diff(expected) <= tolerance,
        (seen, expected) => seen == expected,
    };
    if close {
        return Ok(());
    }
    Err(Unmet::Failed(format!(
        "{what}: expected {}, saw {}",
        expected.map_or_else(|| "none".into(), |length| format!("about {length:?}")),
        seen.map_or_else(|| "none".into(), |length| format!("{length:?}")),
    )))
}

/// How Rust shows a time on Unix, on one line or several.
const NAME: &str = "SystemTime {";

/// A text in which every time that Rust has shown stands by RFC 3339.
pub(crate) fn readable(text: &str) -> String {
    let mut readable = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(NAME) {
        readable.push_str(before);
        match parsed(after) {
            Some((time, behind)) => {
                readable.push_str(&shown(time));
                rest = behind;
            }
            None => {
                readable.push_str(NAME);
                rest = after;
            }
        }
    }
    readable.push_str(rest);
    readable
}

/// The time whose fields a text begins with, and what comes behind it.
fn parsed(text: &str) -> Option<(SystemTime, &str)> {
    let (fields, behind) = text.split_once('}')?;
    let mut fields = fields.split(',').map(str::trim);
    let seconds: u64 = fields.next()?.strip_prefix("tv_sec: ")?.parse().ok()?;
    let nanos: u32 = fields.next()?.strip_prefix("tv_nsec: ")?.parse().ok()?;
    let time = UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))?;
    Some((time, behind))
}

/// How Rust shows a value, with its times by RFC 3339.
pub(crate) fn debug(value: &impl Debug, on_lines: bool) -> String {
    readable(&if on_lines {
        format!("{value:#?}")
    } else {
        format!("{value:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(1_800_000_000_250_000)
    }

    const SHOWN: &str = "2027-01-15T08:00:00.250000Z";

    fn text(result: CaseResult) -> String {
        match result {
            Err(Unmet::Failed(text)) => text,
            other => panic!("expected a failure, saw {other:?}"),
        }
    }

    #[test]
    fn times_in_values_stand_by_rfc_3339() {
        for on_lines in [false, true] {
            let value = (1, Some(time()), "SystemTime { x", Duration::from_secs(1));
            let seen = debug(&value, on_lines);
            assert!(seen.contains(SHOWN) && !seen.contains("tv_sec"), "{seen}");
            assert!(seen.contains("SystemTime { x"), "{seen}");
        }
    }

    #[test]
    fn times_without_a_date_are_shown() {
        let far = UNIX_EPOCH + Duration::from_secs(9_000_000_000_000);
        assert_eq!(shown(far), "9000000000000s after 1970");
    }

    #[test]
    fn a_difference_has_a_unit_and_a_direction() {
        let (late, early) = (time() + Duration::from_secs(90), time() - TOLERANCE * 2);
        assert!(
            text(about("due", late, time())).ends_with(", which is 90s later"),
            "late"
        );
        assert!(
            text(about("due", early, time())).ends_with(", which is 10s earlier"),
            "early"
        );
        assert_eq!(about("due", time() + TOLERANCE, time()), Ok(()));
        assert_eq!(within(TOLERANCE, "due", None, None), Ok(()));
        assert_eq!(
            text(about("due", None, time())),
            format!("due: expected about {SHOWN}, saw none")
        );
        assert_eq!(
            text(within(TOLERANCE, "due", Some(time()), None)),
            format!("due: expected none, saw {SHOWN}")
        );
    }

    #[test]
    fn lengths_are_shown_by_their_units() {
        let minute = Duration::from_secs(60);
        assert_eq!(about_as_long("lag", Some(minute), minute), Ok(()));
        assert_eq!(
            text(about_as_long("lag", None, minute)),
            "lag: expected about 60s, saw none"
        );
    }
}
