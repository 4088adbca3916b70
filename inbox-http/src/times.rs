//! Moments as text (RFC 3339), which has four digits for the year: what is later than can be written, as many a
//! *never* is, is the latest moment that can, when it is read and when it is written.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::{Timestamp, fmt::temporal::Pieces};

/// The moment of a text that has its offset from UTC; `None` of any other.
#[must_use]
pub fn parse(text: &str) -> Option<SystemTime> {
    let moment = text.parse().ok().or_else(|| latest(text))?;
    Some(Timestamp::into(moment))
}

/// The moment to be written for `time`.
#[must_use]
pub fn written(time: SystemTime) -> Timestamp {
    let beyond = match time < UNIX_EPOCH {
        true => Timestamp::MIN,
        false => Timestamp::MAX,
    };
    Timestamp::try_from(time).unwrap_or(beyond)
}

/// Every offset is to have every date, so that the last moment that can be computed with is a day before the
/// last that can be written.
fn latest(text: &str) -> Option<Timestamp> {
    let pieces = Pieces::parse(text).ok()?;
    let is_moment = pieces.time().is_some() && pieces.offset().is_some();
    (is_moment && pieces.date().year() == 9999).then_some(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_too_late_is_the_latest() {
        let latest = SystemTime::from(Timestamp::MAX);
        for text in [
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59.999999999+00:00",
            "9999-12-31T00:00:00-12:00",
            "9999-12-30T22:00:01Z",
            "9999-12-29T23:59:59-25:59",
        ] {
            assert_eq!(parse(text), Some(latest), "{text}");
        }
        let before = parse("9999-12-30T00:00:00Z").unwrap();
        assert!(before < latest);
        assert_eq!(written(before).to_string(), "9999-12-30T00:00:00Z");
        let never = UNIX_EPOCH + Duration::from_secs(1 << 50);
        for time in [latest, never] {
            assert_eq!(format!("{:.3}", written(time)), "9999-12-30T22:00:00.999Z");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "tomorrow",
            "9999-12-31",
            "9999-12-31T23:59:59",
            "9999-12-32T00:00:00Z",
            "9999-12-31T24:59:59Z",
            "10000-01-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-31T12:00:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
