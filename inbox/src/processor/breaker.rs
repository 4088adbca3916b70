//! Stopping a router whose handlers fail one after the other.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Invalid, backoff::after};

/// When a router is to stop because its handlers fail, and for how long: for an outage downstream,
/// which would otherwise use up the attempts of all messages that come by.
///
/// The circuit *opens* when the given share of the attempts of late has failed. Then nothing of the
/// router is started, and what still runs and fails is deferred without counting its attempt. After a
/// pause a few messages are tried: when they succeed, all goes on; when one fails, it is deferred
/// and the pause begins again. So messages survive an outage of any length. One that fails on its own
/// account does not keep the circuit open, since others are tried before it. Where all fail on their own
/// account, as by a mistake in the handler, none dies: they are tried one by one until it is mended.
///
/// An attempt has failed when it would be tried again: by an error, a panic, a time-out, or
/// [`Failure::retry`](crate::Failure::retry). [`Failure::dead`](crate::Failure::dead) is the handler's
/// decision about one message and counts as a success;
/// [`Failure::defer`](crate::Failure::defer) and what is handed back do not count.
///
/// Each processor has its own circuit for each router, and finds out by itself.
///
/// ```
/// use std::time::Duration;
/// use inbox::CircuitBreaker;
///
/// let breaker = CircuitBreaker::new()
///     .failures(0.9)
///     .least_attempts(20)
///     .window(Duration::from_secs(60))
///     .pause(Duration::from_secs(30));
/// # let _ = breaker;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CircuitBreaker {
    failures: f64,
    least_attempts: u32,
    window: Duration,
    pause: Duration,
    probes: u32,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}

impl CircuitBreaker {
    /// Opens when half of at least ten attempts within ten seconds have failed, for ten seconds; then
    /// tries one message.
    #[must_use]
    pub fn new() -> Self {
        Self {
            failures: 0.5,
            least_attempts: 10,
            window: Duration::from_secs(10),
            pause: Duration::from_secs(10),
            probes: 1,
        }
    }

    /// Sets the share of failed attempts, above 0 and up to 1, that opens the circuit.
    #[must_use]
    pub fn failures(mut self, share: f64) -> Self {
        self.failures = share;
        self
    }

    /// Sets how many attempts have to have ended within the window before their failures count.
    #[must_use]
    pub fn least_attempts(mut self, attempts: u32) -> Self {
        self.least_attempts = attempts;
        self
    }

    /// Sets how far back attempts count, to a tenth of it.
    #[must_use]
    pub fn window(mut self, length: Duration) -> Self {
        self.window = length;
        self
    }

    /// Sets for how long nothing is started when the circuit opens.
    #[must_use]
    pub fn pause(mut self, length: Duration) -> Self {
        self.pause = length;
        self
    }

    /// Sets how many messages are tried after the pause, all of which have to succeed.
    #[must_use]
    pub fn probes(mut self, messages: u32) -> Self {
        self.probes = messages;
        self
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_share = self.failures > 0.0 && self.failures <= 1.0;
        let is_long = |length: Duration| {
            length >= Duration::from_millis(1) && length <= Duration::from_secs(24 * 60 * 60)
        };
        let is_in_range = is_share
            && self.least_attempts > 0
            && self.probes > 0
            && is_long(self.window)
            && is_long(self.pause);
        if is_in_range {
            return Ok(());
        }
        Err(Invalid::OutOfRange {
            what: "circuit breaker",
            expected: "a share above 0 and up to 1, at least one attempt and one probe, times \
                       between a millisecond and a day",
        })
    }
}

/// The parts of the window, of which the oldest goes at a time.
const PARTS: usize = 10;

/// The circuit of one router.
#[derive(Debug)]
pub(super) struct Circuit {
    settings: CircuitBreaker,
    state: State,
    /// How often it has opened: what was tried before is no trial of now.
    round: u32,
    /// Attempts of late: all, and those that failed.
    parts: [(u32, u32); PARTS],
    /// Which part it is now, and since when.
    part: usize,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Until then nothing is started.
    Open {
        until: Instant,
    },
    /// Some are tried: so many run, and so many have succeeded. When the last one was started; one
    /// that takes long does not keep others from being tried for ever.
    Trying {
        running: u32,
        succeeded: u32,
        last: Instant,
    },
}

/// A started handler that is tried, in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trial(u32);

/// What an ended attempt has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The circuit has opened, or goes on being open.
    Opened,
    Closed,
}

impl Circuit {
    pub(super) fn new(settings: CircuitBreaker, now: Instant) -> Self {
        Self {
            settings,
            state: State::Closed,
            round: 0,
            parts: [(0, 0); PARTS],
            part: 0,
            since: now,
        }
    }

    /// Whether failures are their messages' own.
    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// How long a message that has failed is to wait: until after those that are tried next.
    pub(super) fn pause(&self) -> Duration {
        self.settings.pause
    }

    /// How many handlers may be started.
    pub(super) fn permits(&self, now: Instant) -> usize {
        let probes = match self.state {
            State::Closed => return usize::MAX,
            State::Open { until } if now < until => 0,
            State::Open { .. } => self.settings.probes,
            State::Trying {
                running,
                succeeded,
                last,
            } => {
                let is_long_ago = now >= after(last, self.settings.pause);
                let left = self.settings.probes.saturating_sub(running + succeeded);
                left.max(u32::from(is_long_ago))
            }
        };
        usize::try_from(probes).unwrap_or(usize::MAX)
    }

    /// When handlers may be started again, if none may be now.
    pub(super) fn shut_until(&self, now: Instant) -> Option<Instant> {
        match self.state {
            _ if self.permits(now) > 0 => None,
            State::Closed => None,
            State::Open { until } => Some(until),
            State::Trying { last, .. } => Some(after(last, self.settings.pause)),
        }
    }

    /// A handler is started, perhaps as a trial.
    pub(super) fn start(&mut self, now: Instant) -> Option<Trial> {
        match &mut self.state {
            State::Closed => return None,
            State::Open { .. } => {
                self.state = State::Trying {
                    running: 1,
                    succeeded: 0,
                    last: now,
                };
            }
            State::Trying { running, last, .. } => {
                *running += 1;
                *last = now;
            }
        }
        Some(Trial(self.round))
    }

    /// An attempt has ended: well, badly, or in a way that tells nothing.
    pub(super) fn end(
        &mut self,
        trial: Option<Trial>,
        went_well: Option<bool>,
        now: Instant,
    ) -> Change {
        match &mut self.state {
            State::Closed => match went_well {
                Some(went_well) => self.count(went_well, now),
                None => Change::None,
            },
            State::Trying {
                running, succeeded, ..
            } if trial == Some(Trial(self.round)) => {
                *running = running.saturating_sub(1);
                match went_well {
                    Some(true) => *succeeded += 1,
                    Some(false) => return self.open(now),
                    None => {}
                }
                if *succeeded < self.settings.probes {
                    return Change::None;
                }
                self.state = State::Closed;
                self.parts = [(0, 0); PARTS];
                Change::Closed
            }
            // It was started before.
            State::Open { .. } | State::Trying { .. } => Change::None,
        }
    }

    fn count(&mut self, went_well: bool, now: Instant) -> Change {
        self.turn(now);
        if let Some((all, failed)) = self.parts.get_mut(self.part) {
            *all += 1;
            *failed += u32::from(!went_well);
        }
        let sum = |part: fn(&(u32, u32)) -> u32| self.parts.iter().map(part).sum::<u32>();
        let (all, failed) = (sum(|part| part.0), sum(|part| part.1));
        let is_too_much = f64::from(failed) >= f64::from(all) * self.settings.failures;
        if !went_well && all >= self.settings.least_attempts && is_too_much {
            return self.open(now);
        }
        Change::None
    }

    fn open(&mut self, now: Instant) -> Change {
        let until = after(now, self.settings.pause);
        self.state = State::Open { until };
        self.round = self.round.wrapping_add(1);
        Change::Opened
    }

    /// Forgets what is older than the window.
    fn turn(&mut self, now: Instant) {
        let length = self.settings.window / 10;
        for _ in 0..PARTS {
            if now < self.since + length {
                return;
            }
            self.since += length;
            self.part = (self.part + 1) % PARTS;
            if let Some(part) = self.parts.get_mut(self.part) {
                *part = (0, 0);
            }
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn circuit() -> (Circuit, Instant) {
        let now = Instant::now();
        (Circuit::new(CircuitBreaker::new(), now), now)
    }

    fn fail(circuit: &mut Circuit, attempts: u32, now: Instant) -> Change {
        let mut change = Change::None;
        for _ in 0..attempts {
            assert_eq!(change, Change::None);
            change = circuit.end(None, Some(false), now);
        }
        change
    }

    #[test]
    fn opens_by_share_and_number_and_closes_by_trial() {
        let (mut circuit, now) = circuit();
        assert_eq!(fail(&mut circuit, 9, now), Change::None);
        assert_eq!(circuit.permits(now), usize::MAX);
        assert_eq!(fail(&mut circuit, 1, now), Change::Opened);
        assert_eq!(circuit.permits(now + 9 * SECOND), 0);
        assert_eq!(circuit.shut_until(now), Some(now + 10 * SECOND));
        let later = now + 10 * SECOND;
        assert_eq!(circuit.permits(later), 1);
        let trial = circuit.start(later);
        assert_eq!(circuit.permits(later), 0);
        // What was started before the trial says nothing.
        assert_eq!(circuit.end(None, Some(true), later), Change::None);
        assert_eq!(circuit.end(trial, Some(false), later), Change::Opened);
        let later = later + 10 * SECOND;
        let late = trial;
        let trial = circuit.start(later);
        assert_eq!(circuit.end(late, Some(true), later), Change::None);
        // One that tells nothing makes room for another.
        assert_eq!(circuit.end(trial, None, later), Change::None);
        assert_eq!(circuit.permits(later), 1);
        let trial = circuit.start(later);
        assert_eq!(circuit.end(trial, Some(true), later), Change::Closed);
        assert!(circuit.is_closed() && circuit.start(later).is_none());
        // It begins to count from nothing.
        assert_eq!(fail(&mut circuit, 9, later), Change::None);
    }

    #[test]
    fn a_trial_without_end_is_not_the_last() {
        let (mut circuit, now) = circuit();
        fail(&mut circuit, 10, now);
        let later = now + 10 * SECOND;
        assert!(circuit.start(later).is_some());
        assert_eq!(circuit.shut_until(later), Some(later + 10 * SECOND));
        assert_eq!(circuit.permits(later + 10 * SECOND), 1);
        let second = circuit.start(later + 10 * SECOND);
        assert_eq!(circuit.permits(later + 10 * SECOND), 0);
        let change = circuit.end(second, Some(true), later + 11 * SECOND);
        assert_eq!(change, Change::Closed);
    }

    #[test]
    fn successes_keep_it_closed() {
        let (mut circuit, now) = circuit();
        for _ in 0..100 {
            assert_eq!(circuit.end(None, Some(true), now), Change::None);
        }
        assert_eq!(fail(&mut circuit, 99, now), Change::None);
        assert_eq!(fail(&mut circuit, 1, now), Change::Opened);
    }

    #[test]
    fn what_is_long_ago_does_not_count() {
        let (mut circuit, now) = circuit();
        for _ in 0..1000 {
            circuit.end(None, Some(true), now);
        }
        assert_eq!(fail(&mut circuit, 10, now + 9 * SECOND), Change::None);
        assert_eq!(fail(&mut circuit, 1, now + 10 * SECOND), Change::Opened);
        let (mut circuit, now) = self::circuit();
        assert_eq!(fail(&mut circuit, 9, now), Change::None);
        assert_eq!(fail(&mut circuit, 9, now + 3600 * SECOND), Change::None);
    }

    #[test]
    fn several_trials_all_have_to_succeed() {
        let now = Instant::now();
        let mut circuit = Circuit::new(CircuitBreaker::new().probes(3), now);
        fail(&mut circuit, 10, now);
        let later = now + 10 * SECOND;
        assert_eq!(circuit.permits(later), 3);
        let trials = [(); 3].map(|()| circuit.start(later));
        assert_eq!(circuit.permits(later), 0);
        assert_eq!(circuit.end(trials[0], Some(true), later), Change::None);
        assert_eq!(circuit.end(trials[1], Some(true), later), Change::None);
        assert_eq!(circuit.permits(later), 0);
        assert_eq!(circuit.end(trials[2], Some(true), later), Change::Closed);
    }

    #[test]
    fn settings_without_sense_are_refused() {
        assert!(CircuitBreaker::new().check().is_ok());
        let new = CircuitBreaker::new;
        for breaker in [
            new().failures(0.0),
            new().failures(1.1),
            new().failures(f64::NAN),
            new().least_attempts(0),
            new().probes(0),
            new().window(Duration::ZERO),
            new().pause(Duration::MAX),
        ] {
            assert!(breaker.check().is_err(), "{breaker:?}");
        }
    }
}
