//! Time: conversions that all stores share, and a clock for stores that have no server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Of 365 days, in microseconds.
const YEAR: i64 = 365 * 24 * 60 * 60 * 1_000_000;

/// The longest duration that stores handle; longer ones are cut to this.
const LONGEST: i64 = 292 * YEAR;

/// The latest time that stores handle, as microseconds since 1970. Behind all that can be written as text, and
/// early enough for the longest duration to be added on every platform.
const LATEST: i64 = 20_000 * YEAR;

// Windows counts tenths of a microsecond, from the year 1601.
const _: () = assert!(370 * YEAR + LATEST + LONGEST < i64::MAX / 10);

/// Microseconds since 1970-01-01 UTC: the precision that every store keeps. Earlier times give 0, and those
/// more than 20,000 years later as many as there are in 20,000 years.
#[must_use]
pub fn to_micros(time: SystemTime) -> i64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default(), LATEST)
}

/// The time that [`to_micros`] gave. Negative values give 1970-01-01, and greater ones than it gives the latest
/// time that it knows.
#[must_use]
pub fn from_micros(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros.min(LATEST)).unwrap_or(0))
}

/// A duration in microseconds, rounded up so that a positive duration never becomes zero, and cut
/// to 292 years of 365 days.
#[must_use]
pub fn duration_micros(duration: Duration) -> i64 {
    micros(duration, LONGEST)
}

/// A time limit of a store's operations or of a publisher's calls, as it is used: at least a millisecond, and at most a
/// day. Beyond that are the bounds of clocks, drivers and protocols, and nobody waits for so long.
#[must_use]
pub fn time_limit(limit: Duration) -> Duration {
    limit.clamp(Duration::from_millis(1), Duration::from_secs(24 * 60 * 60))
}

fn micros(duration: Duration, most: i64) -> i64 {
    let micros = duration.as_nanos().div_ceil(1000);
    i64::try_from(micros).map_or(most, |micros| micros.min(most))
}

/// What tests add to a store's clock, to move its time forward without sleeping. Clones share one
/// offset.
///
/// Stores with a server add it to the server's time. In production it is left at zero: workers
/// that do not share an offset disagree about the time.
#[derive(Clone, Debug, Default)]
pub struct ClockOffset {
    micros: Arc<AtomicI64>,
}

impl ClockOffset {
    /// Moves the time forward, for all clones.
    pub fn advance(&self, by: Duration) {
        self.micros
            .fetch_add(duration_micros(by), Ordering::Relaxed);
    }

    /// The offset in microseconds.
    #[must_use]
    pub fn micros(&self) -> i64 {
        self.micros.load(Ordering::Relaxed)
    }
}

/// The clock of a store that lives inside the application's own process or on its own host
/// (memory, SQLite and other embedded stores). Stores with a server use the server's clock.
///
/// Clones share one offset, so a test that holds a clone can move a store's time forward without
/// sleeping.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// The time that it was stopped at, in microseconds.
    stopped_at: Option<i64>,
    offset: ClockOffset,
}

impl Clock {
    /// The host's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands still at `time` until it is moved forward. For tests that have to run the same
    /// way each time.
    #[must_use]
    pub fn stopped_at(time: SystemTime) -> Self {
        Self {
            stopped_at: Some(to_micros(time)),
            ..Self::default()
        }
    }

    /// Microseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn now_micros(&self) -> i64 {
        let start = self.stopped_at;
        let start = start.unwrap_or_else(|| to_micros(SystemTime::now()));
        start.saturating_add(self.offset.micros())
    }

    /// Moves this clock and all its clones forward. For tests.
    pub fn advance(&self, by: Duration) {
        self.offset.advance(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_to_the_microsecond() {
        let micros = 1_795_000_000_123_456;
        assert_eq!(to_micros(from_micros(micros)), micros);
        assert_eq!(to_micros(UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(from_micros(-5), UNIX_EPOCH);
        assert_eq!(from_micros(i64::MAX), from_micros(LATEST));
        assert_eq!(to_micros(from_micros(i64::MAX)), LATEST);
    }

    #[test]
    fn durations_round_up_and_saturate() {
        assert_eq!(duration_micros(Duration::from_nanos(1)), 1);
        assert_eq!(duration_micros(Duration::ZERO), 0);
        let days = Duration::from_secs(292 * 365 * 24 * 60 * 60);
        for long in [Duration::MAX, days + Duration::from_nanos(1), days] {
            assert_eq!(u128::try_from(duration_micros(long)), Ok(days.as_micros()));
        }
    }

    #[test]
    fn a_stopped_clock_moves_only_when_it_is_moved() {
        let clock = Clock::stopped_at(from_micros(1_000));
        let clone = clock.clone();
        assert_eq!(clock.now_micros(), 1_000);
        clone.advance(Duration::from_micros(5));
        assert_eq!(clock.now_micros(), 1_005);
        assert_eq!(clone.now_micros(), 1_005);
    }

    #[test]
    fn clones_share_the_offset() {
        let clock = Clock::system();
        let before = clock.clone().now_micros();
        clock.clone().advance(Duration::from_secs(3600));
        assert!(clock.now_micros() - before >= 3_600_000_000);
    }
}
