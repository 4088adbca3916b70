//! Whether times are what was expected, and how far they are from it.

use std::time::{Duration, SystemTime};

use crate::{
    check::{CaseResult, Unmet},
    time_text::{apart, format_time},
};

/// By how much the suite's reading of a store's times may be off.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(5);

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
        expected.map_or_else(
            || "none".into(),
            |time| format!("about {}", format_time(time))
        ),
        seen.map_or_else(|| "none".into(), format_time),
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

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

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
