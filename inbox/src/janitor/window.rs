//! The hours of the day in which to sweep.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::sleep;

use super::LOOK_AT_CLOCK;
use crate::Invalid;

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

/// Every day from one full hour to another, in UTC.
#[derive(Debug)]
pub(super) struct Window {
    /// In seconds since midnight.
    opens: u64,
    /// In seconds.
    length: u64,
}

impl Window {
    pub(super) fn new(from: u8, to: u8) -> Result<Self, Invalid> {
        let length = (u64::from(to) + 24).saturating_sub(from.into()) % 24;
        if from > 23 || to > 24 || length == 0 {
            return Err(Invalid::OutOfRange {
                what: "time to sweep",
                expected: "from one hour of the day to another",
            });
        }
        Ok(Self {
            opens: u64::from(from) * HOUR,
            length: length * HOUR,
        })
    }

    /// Seconds since it last opened.
    fn since_opening(&self, now: SystemTime) -> u64 {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        (since.as_secs() % DAY + DAY - self.opens) % DAY
    }

    /// Zero while it is open.
    pub(super) fn opens_in(&self, now: SystemTime) -> Duration {
        let since = self.since_opening(now);
        let closed = if since < self.length { 0 } else { DAY - since };
        Duration::from_secs(closed)
    }

    /// Waits until it is closed by this clock.
    pub(super) async fn closed(&self, clock: impl Fn() -> SystemTime) {
        loop {
            let open = self.closes_in(clock());
            if open.is_zero() {
                return;
            }
            sleep(open.min(LOOK_AT_CLOCK)).await;
        }
    }

    /// Zero while it is closed.
    fn closes_in(&self, now: SystemTime) -> Duration {
        Duration::from_secs(self.length.saturating_sub(self.since_opening(now)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    /// Defect: a machine that sleeps swept on behind the hour, for as long as it had slept.
    #[tokio::test(start_paused = true)]
    async fn it_is_closed_by_the_clock_also_behind_a_sleep_of_the_machine() {
        let night = Window::new(22, 4).unwrap();
        let looks = Cell::new(0);
        let clock = || {
            looks.set(looks.get() + 1);
            let hour = if looks.get() == 1 { 23 } else { 5 };
            UNIX_EPOCH + Duration::from_secs(hour * HOUR)
        };
        let began = Instant::now();
        night.closed(clock).await;
        assert!(began.elapsed() <= 2 * LOOK_AT_CLOCK);
    }

    #[test]
    fn it_opens_and_closes_at_full_hours_also_over_midnight() {
        let at = |hour: u64, minute: u64| {
            let seconds = 20_000 * DAY + hour * HOUR + minute * 60;
            UNIX_EPOCH + Duration::from_secs(seconds)
        };
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let night = Window::new(22, 4).unwrap();
        for (now, opens, closes) in [
            (at(21, 59), 1, 0),
            (at(22, 0), 0, 6 * 60),
            (at(0, 0), 0, 4 * 60),
            (at(3, 59), 0, 1),
            (at(4, 0), 18 * 60, 0),
        ] {
            let state = (night.opens_in(now), night.closes_in(now));
            assert_eq!(state, (minutes(opens), minutes(closes)));
        }
        let evening = Window::new(20, 24).unwrap();
        assert_eq!(evening.closes_in(at(23, 30)), minutes(30));
        assert_eq!(evening.opens_in(at(0, 0)), minutes(20 * 60));
        for (from, to) in [(24, 3), (3, 3), (0, 24), (3, 25), (255, 255)] {
            assert!(Window::new(from, to).is_err(), "{from} to {to}");
        }
    }
}
