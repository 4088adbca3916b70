//! Messages that are claimed before there is room for their handlers.
//!
//! A claim costs a round trip and a commit. With few handlers at a time, each claim would serve few
//! messages, so that it costs more than they do. Hence a claim may take more, which wait here.
//!
//! What waits is kept from other workers, its attempt is counted, and it takes memory. Therefore:
//!
//! - It is so little that it starts within [`HORIZON`], going by how long handlers took of late and
//!   how often one ended, and by the last messages' payloads it takes no more than [`MEMORY`].
//!   Handlers that take long get no look-ahead, and gain nothing by it; nor do those that no one has
//!   seen run yet.
//! - What has waited for [`LONGEST_WAIT`] all the same, or has a third of its lease behind it, is
//!   handed back, which takes its attempt back too. So its lease is never renewed here, and no handler
//!   starts on less than two thirds of it. While the store takes a good part of that time to answer a
//!   claim, nothing is claimed ahead.
//! - A message on its last attempt never waits: if its process were killed, it would be dead without
//!   having been run. One that finds no room is handed back at once, and until a claim has found no
//!   other, nothing is claimed ahead.
//! - At a shutdown it is handed back. In an outage it is run: it is a tenth of a second's work.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Served, driver::Driver, lane::Lane, table::Slot};
use crate::{Leased, Outcome};

/// Within what time all that waits is expected to have started.
const HORIZON: Duration = Duration::from_millis(100);

/// How long a message waits at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How many bytes of payload wait, going by the largest of the last messages claimed.
const MEMORY: usize = 1 << 20;

pub(super) struct LookAhead {
    most: usize,
    horizon: Duration,
    lease: Duration,
    concurrency: u32,
    /// The slots of what waits, the first to start in front.
    queue: VecDeque<usize>,
    /// `None` when it is not known.
    pace: Option<Pace>,
    /// When the last handler ended.
    ended: Option<Instant>,
    /// The largest payload of the last messages claimed.
    payload: usize,
    /// The last claim was answered late.
    is_slow: bool,
    /// A message on its last attempt had to be handed back.
    is_suspended: bool,
}

/// How fast messages are handled, on average.
#[derive(Clone, Copy)]
struct Pace {
    /// How long a handler takes.
    time: Duration,
    /// How long it takes until the next one ends. With all slots in use that is less by as many as
    /// there are; with all but one in a handler without end, it is the time that the others take.
    gap: Duration,
}

impl LookAhead {
    pub(super) fn new(most: usize, served: &Served) -> Self {
        let lease = served.terms.length();
        // With a single attempt, each is the last.
        // Batches are made of what one claim brings.
        let is_possible = served.retry.max_attempts() > 1 && served.batches.is_none();
        Self {
            most: if is_possible { most } else { 0 },
            horizon: HORIZON.min(lease / 12),
            lease,
            concurrency: u32::try_from(served.concurrency).unwrap_or(u32::MAX),
            queue: VecDeque::new(),
            pace: None,
            ended: None,
            payload: 0,
            is_slow: false,
            is_suspended: false,
        }
    }

    /// How many messages may wait at present.
    pub(super) fn allowed(&self) -> usize {
        let is_off = self.most == 0 || self.is_slow || self.is_suspended;
        // Several handlers that were started together may all end at the end of their time.
        let is_quick = |pace: &Pace| pace.time < self.longest_wait() / 2;
        let Some(pace) = self.pace.filter(is_quick).filter(|_| !is_off) else {
            return 0;
        };
        let within = |whole: Duration, each: Duration| {
            usize::try_from(whole.as_nanos() / each.as_nanos().max(1)).unwrap_or(usize::MAX)
        };
        let by_time = within(self.all_at_once(), pace.time);
        let by_gap = within(self.horizon, pace.gap);
        let by_memory = MEMORY / self.payload.max(1);
        self.most.min(by_time).min(by_gap).min(by_memory)
    }

    /// The time that all handlers together have within the horizon.
    fn all_at_once(&self) -> Duration {
        self.horizon.saturating_mul(self.concurrency)
    }

    fn longest_wait(&self) -> Duration {
        LONGEST_WAIT.min(self.lease / 3)
    }

    /// Takes note that a handler has ended, which took this long.
    pub(super) fn took(&mut self, time: Duration, now: Instant) {
        let since_last = self.ended.map_or(time, |ended| now - ended);
        self.ended = Some(now);
        // One that is far slower than the rest does not count for more than to end the look-ahead.
        let time = time.min(self.all_at_once().saturating_mul(2));
        // Where it has waited for a message, the slot was free.
        let gap = since_last.min(time);
        let mix = |old: Duration, new: Duration| old.saturating_mul(7).saturating_add(new) / 8;
        self.pace = Some(match self.pace {
            None => Pace { time, gap },
            Some(pace) => Pace {
                time: mix(pace.time, time),
                gap: mix(pace.gap, gap),
            },
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many messages wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// When the message in this slot has waited for too long.
    fn late_at(&self, slot: &Slot) -> Instant {
        let by_lease = slot.expires.checked_sub(self.lease - self.lease / 3);
        let by_wait = slot.began + LONGEST_WAIT;
        by_lease.map_or(by_wait, |by_lease| by_lease.min(by_wait))
    }
}

impl Driver {
    /// Looks at what a claim for some routers has brought, with leases that end then: whether it came
    /// late, whether there is a message that must not wait, and how large they are.
    pub(super) fn look_at_claim(&mut self, leased: &[Leased], lanes: &[usize], expires: Instant) {
        let left = expires.saturating_duration_since(Instant::now());
        let mut seen = vec![(None, false); self.lanes.len()];
        for one in leased {
            let place = self.config.place(one.message.handler());
            if let Some((largest, is_any_last)) = place.and_then(|place| seen.get_mut(place)) {
                *largest = (*largest).max(Some(one.message.payload().len()));
                *is_any_last |= self.is_last_attempt(one);
            }
        }
        for (index, (lane, (largest, is_any_last))) in self.lanes.iter_mut().zip(seen).enumerate() {
            if !lanes.contains(&index) {
                continue;
            }
            let ahead = &mut lane.look_ahead;
            ahead.is_slow = ahead.lease.saturating_sub(left) > ahead.longest_wait() / 2;
            ahead.payload = largest.unwrap_or(ahead.payload);
            ahead.is_suspended &= is_any_last;
        }
    }

    pub(super) fn is_last_attempt(&self, leased: &Leased) -> bool {
        leased.attempts.started >= self.config.retry(&leased.message).max_attempts()
    }

    /// A message of this router on its last attempt could not be started.
    pub(super) fn suspend_look_ahead(&mut self, lane: Option<usize>) {
        if let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(lane)) {
            lane.look_ahead.is_suspended = true;
        }
    }

    /// Puts the message in a slot behind those that wait.
    pub(super) fn enqueue(&mut self, index: usize) {
        let Some(slot) = self.table.get_mut(index) else {
            return;
        };
        if let Some(lane) = slot.lane.and_then(|lane| self.lanes.get_mut(lane)) {
            self.renewal.look_at(lane.look_ahead.late_at(slot));
            lane.look_ahead.queue.push_back(index);
        }
    }

    /// Starts what waits, as far as there is room.
    pub(super) fn start_waiting(&mut self, now: Instant) {
        for lane in 0..self.lanes.len() {
            while let Some((index, is_late)) = self.take_waiting(lane, now) {
                if is_late {
                    self.settle(index, Outcome::Release);
                } else {
                    self.start(index);
                }
            }
        }
    }

    /// The next slot of a router whose handler may be started, and whether it has waited for too long.
    fn take_waiting(&mut self, lane: usize, now: Instant) -> Option<(usize, bool)> {
        let lane = self.lanes.get_mut(lane)?;
        while lane.has_room() && lane.may_start(now) {
            let index = lane.look_ahead.queue.pop_front()?;
            if let Some(slot) = self.table.get_mut(index) {
                return Some((index, now >= lane.look_ahead.late_at(slot)));
            }
        }
        None
    }

    /// When what waits may be started although no handler ends.
    pub(super) fn waiting_time(&self, now: Instant) -> Option<Instant> {
        let ready = |lane: &&Lane| !lane.look_ahead.is_empty() && lane.has_room();
        let lanes = self.lanes.iter().filter(ready);
        lanes.filter_map(|lane| lane.shut_until(now)).min()
    }

    /// Hands back what has waited for too long. Handlers are slower than they were.
    pub(super) fn hand_back_late(&mut self, now: Instant) {
        let mut late = Vec::new();
        for lane in &mut self.lanes {
            let ahead = &mut lane.look_ahead;
            // The first of them was claimed first.
            while let Some(index) = ahead.queue.front().copied() {
                if let Some(slot) = self.table.get_mut(index) {
                    let late_at = ahead.late_at(slot);
                    if now < late_at {
                        self.renewal.look_at(late_at);
                        break;
                    }
                }
                ahead.queue.pop_front();
                ahead.pace = None;
                late.push(index);
            }
        }
        for index in late {
            self.settle(index, Outcome::Release);
        }
    }

    /// Hands back all that waits in a router, batches and the suspect that waits to be alone too.
    pub(super) fn hand_back_waiting(&mut self, index: usize) {
        let Some(lane) = self.lanes.get_mut(index) else {
            return;
        };
        let waiting = std::mem::take(&mut lane.look_ahead.queue);
        let held = self.take_held(index);
        for slot in waiting.into_iter().chain(held) {
            self.settle(slot, Outcome::Release);
        }
        self.hand_back_batches(index);
    }

    /// Hands back one message that waits, as its lease has run out.
    pub(super) fn hand_back_one(&mut self, index: usize) {
        self.forget_waiting(index);
        self.settle(index, Outcome::Release);
    }

    /// Takes note that the message in a slot no longer waits.
    pub(super) fn forget_waiting(&mut self, index: usize) {
        for lane in &mut self.lanes {
            lane.look_ahead.queue.retain(|waiting| *waiting != index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_ahead() -> LookAhead {
        LookAhead {
            most: 32,
            horizon: HORIZON,
            lease: Duration::from_secs(60),
            concurrency: 1,
            queue: VecDeque::new(),
            pace: None,
            ended: None,
            payload: 0,
            is_slow: false,
            is_suspended: false,
        }
    }

    /// `count` handlers end together, all that time after the last ones.
    fn end(ahead: &mut LookAhead, count: usize, millis: u64) {
        let time = Duration::from_millis(millis);
        let now = ahead.ended.unwrap_or_else(Instant::now) + time;
        for _ in 0..count {
            ahead.took(time, now);
        }
    }

    #[test]
    fn only_quick_handlers_get_it() {
        let mut ahead = look_ahead();
        assert_eq!(ahead.allowed(), 0);
        end(&mut ahead, 1, 1);
        assert_eq!(ahead.allowed(), 32);
        end(&mut ahead, 1, 3_600_000);
        assert_eq!(ahead.allowed(), 3);
        for _ in 0..16 {
            end(&mut ahead, 1, 1);
        }
        assert!(ahead.allowed() > 10);
        for _ in 0..32 {
            end(&mut ahead, 1, 150);
        }
        assert_eq!(ahead.allowed(), 0);
        ahead.concurrency = 8;
        for _ in 0..32 {
            end(&mut ahead, 8, 150);
        }
        assert_eq!(ahead.allowed(), 5);
        for _ in 0..32 {
            end(&mut ahead, 8, 600);
        }
        assert_eq!(ahead.allowed(), 0);
    }

    #[test]
    fn slots_that_others_occupy_do_not_count() {
        let mut ahead = look_ahead();
        ahead.concurrency = 64;
        for _ in 0..32 {
            end(&mut ahead, 1, 50);
        }
        assert_eq!(ahead.allowed(), 2);
    }

    #[test]
    fn large_payloads_do_not_pile_up() {
        let mut ahead = look_ahead();
        end(&mut ahead, 1, 0);
        ahead.payload = MEMORY / 4;
        assert_eq!(ahead.allowed(), 4);
        ahead.payload = MEMORY * 16;
        assert_eq!(ahead.allowed(), 0);
    }
}
