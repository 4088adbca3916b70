//! Random histories, after each step of which the indexes must say what the entries say.

use std::collections::BTreeSet;

use inbox_api::{AfterDead, Due, Edit, Kind, OrderingKey, Outcome, WorkerName};

use super::*;

/// A small generator with a fixed start, so that a failure repeats.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// The earliest unfinished entry of each ordering key, or the leased one; found by looking at
/// every entry, as the contract words it.
fn is_head(queue: &Queue, entry: &Entry) -> bool {
    if entry.ordering_key.is_none() {
        return true;
    }
    let line: Vec<&Entry> = queue
        .walk(None, false)
        .filter(|other| other.ordering_key == entry.ordering_key && other.is_open())
        .collect();
    let leased = line
        .iter()
        .find(|other| matches!(other.standing, Standing::Leased { .. }));
    leased
        .or(line.first())
        .is_some_and(|head| head.seq == entry.seq)
}

fn check(queue: &Queue, now: i64) {
    assert_eq!(queue.ids.len(), queue.entries.len());
    let mut claimable = BTreeSet::new();
    let mut leased_keys = BTreeSet::new();
    let mut counted = HandlerStatistics::empty(queue.handler.clone());
    for entry in queue.walk(None, false) {
        assert_eq!(queue.ids.get(&entry.key.id), Some(&entry.seq));
        assert_eq!(
            queue.index.is_head(entry),
            is_head(queue, entry) && entry.is_open() || entry.ordering_key.is_none()
        );
        match entry.standing {
            Standing::Leased { until } => {
                if let Some(key) = &entry.ordering_key {
                    assert!(
                        leased_keys.insert(key.clone()),
                        "two leases on one ordering key"
                    );
                }
                claimable.insert((until, entry.seq));
            }
            Standing::Pending if is_head(queue, entry) => {
                claimable.insert((entry.due_at, entry.seq));
            }
            _ => {}
        }
        counted.blocking += u64::from(entry.blocks());
        match entry.visible_state(now) {
            State::Pending => counted.pending += 1,
            State::Leased => counted.leased += 1,
            State::Processed => counted.processed += 1,
            State::Dead => counted.dead += 1,
            State::Discarded => counted.discarded += 1,
        }
    }
    let first = claimable.first().filter(|(at, _)| *at <= now).copied();
    assert_eq!(queue.next_to_claim(now), first);
    match queue.statistics(now) {
        None => assert!(queue.entries.is_empty()),
        Some(statistics) => {
            for state in State::ALL {
                assert_eq!(statistics.count(state), counted.count(state), "{state}");
            }
            let lag = first.map(|(at, _)| Duration::from_micros((now - at).unsigned_abs()));
            assert_eq!(statistics.lag, lag);
            assert_eq!(statistics.blocking, counted.blocking);
        }
    }
}

fn outcome(dice: &mut Dice) -> Outcome {
    match dice.roll(6) {
        0 => Outcome::Processed { result: None },
        1 => Outcome::Retry {
            after: Duration::from_micros(dice.roll(100)),
            error: "again".into(),
        },
        2 => Outcome::Dead {
            reason: "poison".into(),
            after: AfterDead::Block,
        },
        3 => Outcome::Dead {
            reason: "poison".into(),
            after: AfterDead::Continue,
        },
        4 => Outcome::Defer {
            after: Duration::from_micros(dice.roll(100)),
            error: None,
        },
        _ => Outcome::Release,
    }
}

fn message(dice: &mut Dice, handler: &HandlerName, id: MessageId) -> Message {
    let message = Message::new(handler.clone(), id, Kind::new("k").unwrap(), "");
    match dice.roll(4) {
        0 => message,
        line => message.with_ordering_key(OrderingKey::new(line.to_string()).unwrap()),
    }
}

fn run(seed: u64) {
    let mut dice = Dice(seed);
    let handler = HandlerName::new("h").unwrap();
    let terms = LeaseTerms::new(Duration::from_millis(1), WorkerName::new("w").unwrap()).unwrap();
    let mut queue = Queue::new(handler.clone());
    let mut leases: Vec<Lease> = Vec::new();
    let mut next_seq = 0;
    let mut now = 1_000_000;
    for _ in 0..1_000 {
        now += i64::try_from(dice.roll(300)).unwrap();
        let id = MessageId::new(dice.roll(25).to_string()).unwrap();
        match dice.roll(11) {
            0 | 1 => {
                let message = message(&mut dice, &handler, id);
                let seq = || {
                    next_seq += 1;
                    next_seq
                };
                let _ = queue.receive(&message, seq, now);
            }
            2 | 3 => {
                if let Some((_, seq)) = queue.next_to_claim(now) {
                    let leased = queue.lease(seq, &terms, now).unwrap();
                    assert!(leases.iter().all(|old| old.token < leased.lease.token));
                    leases.push(leased.lease);
                }
            }
            4 if !leases.is_empty() => {
                let last = leases.len() as u64;
                let place = usize::try_from(dice.roll(last)).unwrap();
                let settlement = Settlement {
                    lease: leases[place].clone(),
                    outcome: outcome(&mut dice),
                };
                let _ = queue.settle(&settlement, false, now);
            }
            5 => {
                let _ = queue.replay(&id, &Edit::default(), None, now);
            }
            6 => {
                let due = Due::After(Duration::from_micros(dice.roll(500)));
                let _ = queue.reschedule(&id, due, None, now);
            }
            7 => {
                let _ = queue.clear(&id, now);
            }
            8 => {
                let state = State::ALL[2 + usize::try_from(dice.roll(3)).unwrap()];
                let first = queue.with_content_by(state, now - 50).next();
                if let Some(seq) = first.map(|(_, entry)| entry.seq) {
                    queue.drop_content(seq, now);
                }
            }
            9 => {
                let _ = queue.discard(&id, None, now);
                if let Some(Begun::Run(leased)) = queue.begin(&id, &terms, now) {
                    leases.push(leased.lease);
                }
            }
            _ => {
                let state = State::ALL[2 + usize::try_from(dice.roll(3)).unwrap()];
                queue.purge(&id, state, now - 100, now);
            }
        }
        check(&queue, now);
    }
}

#[test]
fn indexes_follow_from_the_entries() {
    for seed in 1..=12 {
        run(seed);
    }
}

#[test]
fn nothing_is_left_of_purged_messages() {
    let handler = HandlerName::new("h").unwrap();
    let mut queue = Queue::new(handler.clone());
    let terms = LeaseTerms::new(Duration::from_millis(1), WorkerName::new("w").unwrap()).unwrap();
    let id = MessageId::new("1").unwrap();
    let message = Message::new(handler, id.clone(), Kind::new("k").unwrap(), "")
        .with_ordering_key(OrderingKey::new("o").unwrap());
    let _ = queue.receive(&message, || 1, 10);
    let lease = queue.lease(1, &terms, 10).unwrap().lease;
    let outcome = Outcome::Dead {
        reason: String::new(),
        after: AfterDead::Block,
    };
    assert_eq!(
        queue.settle(&Settlement { lease, outcome }, false, 20),
        Settled::Done
    );
    assert!(!queue.purge(&id, State::Dead, 19, 30));
    assert!(!queue.purge(&id, State::Processed, 20, 30));
    assert!(queue.purge(&id, State::Dead, 20, 30));
    assert!(queue.index.is_empty());
    assert_eq!(queue.statistics(30), None);
}

/// One of a run has lost its lease with the run, and the clock goes back before its turn comes.
#[test]
fn a_lease_that_nobody_holds_counts_no_attempt() {
    let handler = HandlerName::new("h").unwrap();
    let mut queue = Queue::new(handler.clone());
    let terms = LeaseTerms::new(Duration::from_millis(1), WorkerName::new("w").unwrap()).unwrap();
    let ids = ["1", "2"].map(|id| MessageId::new(id).unwrap());
    for (id, seq) in ids.iter().zip(1..) {
        let message = Message::new(handler.clone(), id.clone(), Kind::new("k").unwrap(), "")
            .with_ordering_key(OrderingKey::new("o").unwrap());
        let _ = queue.receive(&message, || seq, 10);
    }
    assert_eq!(queue.lease_run(1, 2, &terms, 10).len(), 2);
    let lease = queue.lease(1, &terms, 2_000).unwrap().lease;
    let outcome = Outcome::Processed { result: None };
    let settled = queue.settle(&Settlement { lease, outcome }, false, 500);
    assert_eq!(settled, Settled::Done);
    assert_eq!(queue.get(&ids[1]).unwrap().attempts.started, 0);
}
