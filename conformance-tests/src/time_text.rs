//! Times as people read them: by RFC 3339, and by how far they are from another.

use std::{
    fmt::Debug,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A time by RFC 3339, in UTC, to the microsecond that stores keep.
pub(crate) fn format_time(time: SystemTime) -> String {
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

/// How Rust shows a time on Unix, on one line or several.
const NAME: &str = "SystemTime {";

/// A text in which every time that Rust has shown stands by RFC 3339.
pub(crate) fn readable(text: &str) -> String {
    let mut readable = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(NAME) {
        readable.push_str(before);
        match parse_time(after) {
            Some((time, behind)) => {
                readable.push_str(&format_time(time));
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
fn parse_time(text: &str) -> Option<(SystemTime, &str)> {
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
        assert_eq!(format_time(far), "9000000000000s after 1970");
    }
}
