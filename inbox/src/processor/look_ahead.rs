//! Messages that are claimed before there is room for their handlers.
//!
//! A claim costs a round trip and a commit. With few handlers at a time, each claim would serve few
//! messages, so that it costs more than they do. Hence a claim may take more, which wait here.
//!
//! What waits is kept from other workers, its attempt is counted, and it takes memory. Therefore:
//!
//! - It is so little that it starts within [`HORIZON`], going by how long handlers took of late, and
//!   by the last claim's payloads it takes no more than [`MEMORY`]. Handlers that take long get no
//!   look-ahead, and gain nothing by it; nor do those that no one has seen run yet.
//! - What has waited for [`LONGEST_WAIT`] all the same, or for a third of its lease, is handed back,
//!   which takes its attempt back too. So its lease is never renewed here, and no handler starts on
//!   less than two thirds of it.
//! - A message on its last attempt never waits: if its process were killed, it would be dead without
//!   having been run. One that finds no room is handed back at once, and until a claim has found no
//!   other, nothing is claimed ahead.
//! - At a shutdown it is handed back. In an outage it is run: it is a tenth of a second's work.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Config, driver::Driver, table::Slot};
use crate::{Leased, Outcome};

/// Within what time all that waits is expected to have started.
const HORIZON: Duration = Duration::from_millis(100);

/// How long a message waits at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How many bytes of payload wait, going by the largest of the last claim.
const MEMORY: usize = 1 << 20;

pub(super) struct LookAhead {
    most: usize,
    horizon: Duration,
    /// What is left of a lease when its message is handed back.
    least_left: Duration,
    concurrency: u32,
    /// The slots of what waits, the first to start in front.
    queue: VecDeque<usize>,
    /// How long handlers take, on average; `None` when that is not known.
    pace: Option<Duration>,
    /// The largest payload of the last claim.
    payload: usize,
    /// A message on its last attempt had to be handed back.
    is_suspended: bool,
}

impl LookAhead {
    pub(super) fn new(config: &Config) -> Self {
        let lease = config.terms.length();
        // With a single attempt, each is the last.
        let is_possible = config.retry.max_attempts() > 1;
        Self {
            most: if is_possible { config.look_ahead } else { 0 },
            horizon: HORIZON.min(lease / 12),
            least_left: lease.saturating_sub(LONGEST_WAIT.min(lease / 3)),
            concurrency: u32::try_from(config.concurrency).unwrap_or(u32::MAX),
            queue: VecDeque::new(),
            pace: None,
            payload: 0,
            is_suspended: false,
        }
    }

    /// How many messages may wait at present.
    pub(super) fn allowed(&self) -> usize {
        let Some(pace) = self.pace.filter(|_| !self.is_suspended && self.most > 0) else {
            return 0;
        };
        let in_time = self.all_at_once().as_nanos() / pace.as_nanos().max(1);
        let in_memory = MEMORY / self.payload.max(1);
        let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
        self.most.min(in_time).min(in_memory)
    }

    /// The time that all handlers together have within the horizon.
    fn all_at_once(&self) -> Duration {
        self.horizon.saturating_mul(self.concurrency)
    }

    /// Takes note of how long a handler took.
    pub(super) fn took(&mut self, time: Duration) {
        // One that is far slower than the rest does not count for more than to end the look-ahead.
        let time = time.min(self.all_at_once().saturating_mul(2));
        self.pace = Some(match self.pace {
            None => time,
            Some(pace) => pace.saturating_mul(7).saturating_add(time) / 8,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// When the message in this slot has waited for too long.
    fn late_at(&self, slot: &Slot) -> Instant {
        slot.expires
            .checked_sub(self.least_left)
            .unwrap_or(slot.began)
    }
}

impl Driver {
    /// Looks at what a claim has brought: whether there is a message that must not wait, and how
    /// large they are.
    pub(super) fn look_at_claim(&mut self, leased: &[Leased]) {
        let payloads = leased.iter().map(|leased| leased.message.payload().len());
        self.look_ahead.payload = payloads.max().unwrap_or_default();
        if !leased.iter().any(|leased| self.is_last_attempt(leased)) {
            self.look_ahead.is_suspended = false;
        }
    }

    pub(super) fn is_last_attempt(&self, leased: &Leased) -> bool {
        leased.attempts.started >= self.config.retry.max_attempts()
    }

    /// Whether another handler may run.
    pub(super) fn has_room(&self) -> bool {
        self.running < self.config.concurrency
    }

    /// A message on its last attempt could not be started.
    pub(super) fn suspend_look_ahead(&mut self) {
        self.look_ahead.is_suspended = true;
    }

    /// Puts the message in a slot behind those that wait.
    pub(super) fn enqueue(&mut self, index: usize) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        self.renewal.look_at(self.look_ahead.late_at(slot));
        self.look_ahead.queue.push_back(index);
    }

    /// Starts what waits, as far as there is room.
    pub(super) fn start_waiting(&mut self, now: Instant) {
        while self.has_room()
            && let Some(index) = self.look_ahead.queue.pop_front()
        {
            let Some(slot) = self.table.get_mut(index) else {
                continue;
            };
            if now < self.look_ahead.late_at(slot) {
                self.start(index);
            } else {
                self.settle(index, Outcome::Release);
            }
        }
    }

    /// Hands back what has waited for too long. Handlers are slower than they were.
    pub(super) fn hand_back_late(&mut self, now: Instant) {
        // The first of them was claimed first.
        while let Some(index) = self.look_ahead.queue.front().copied() {
            if let Some(slot) = self.table.get_mut(index) {
                let late_at = self.look_ahead.late_at(slot);
                if now < late_at {
                    return self.renewal.look_at(late_at);
                }
            }
            self.look_ahead.queue.pop_front();
            self.look_ahead.pace = None;
            self.settle(index, Outcome::Release);
        }
    }

    /// Hands back all that waits.
    pub(super) fn hand_back_waiting(&mut self) {
        for index in std::mem::take(&mut self.look_ahead.queue) {
            self.settle(index, Outcome::Release);
        }
    }

    /// Hands back one message that waits, as its lease has run out.
    pub(super) fn hand_back_one(&mut self, index: usize) {
        self.look_ahead.queue.retain(|waiting| *waiting != index);
        self.settle(index, Outcome::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_ahead() -> LookAhead {
        LookAhead {
            most: 32,
            horizon: HORIZON,
            least_left: Duration::from_secs(59),
            concurrency: 1,
            queue: VecDeque::new(),
            pace: None,
            payload: 0,
            is_suspended: false,
        }
    }

    #[test]
    fn only_quick_handlers_get_it() {
        let mut ahead = look_ahead();
        assert_eq!(ahead.allowed(), 0);
        ahead.took(Duration::from_millis(1));
        assert_eq!(ahead.allowed(), 32);
        ahead.took(Duration::from_secs(3600));
        assert_eq!(ahead.allowed(), 3);
        for _ in 0..16 {
            ahead.took(Duration::from_millis(1));
        }
        assert!(ahead.allowed() > 10);
        for _ in 0..32 {
            ahead.took(Duration::from_millis(150));
        }
        assert_eq!(ahead.allowed(), 0);
        ahead.concurrency = 8;
        assert_eq!(ahead.allowed(), 5);
    }

    #[test]
    fn large_payloads_do_not_pile_up() {
        let mut ahead = look_ahead();
        ahead.took(Duration::ZERO);
        ahead.payload = MEMORY / 4;
        assert_eq!(ahead.allowed(), 4);
        ahead.payload = MEMORY * 16;
        assert_eq!(ahead.allowed(), 0);
    }
}
