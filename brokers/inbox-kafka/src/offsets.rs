//! Which deliveries of which partitions are under way, and up to where each partition is finished.
//!
//! An offset is committed only when every delivery before it, of that partition and that assignment, is
//! finished. Each assignment has a number of its own; a delivery of a former one changes nothing.
//!
//! A topic that is deleted and made again, or a log that is cut off, has its offsets a second time, and the
//! client goes back within the same assignment. What was taken of the old log says nothing of the new one,
//! which gets a number, too.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
    time::Instant,
};

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
}

impl Place {
    pub(crate) fn new(topic: &str, partition: i32) -> Self {
        Self {
            topic: topic.into(),
            partition,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What tells one delivery from all others, redeliveries included.
#[derive(Clone)]
pub(crate) struct Mark {
    pub(crate) place: Place,
    assignment: u64,
    pub(crate) offset: i64,
}

/// All partitions that this consumer has.
#[derive(Default)]
pub(crate) struct Offsets {
    partitions: HashMap<Place, Partition>,
    assignments: u64,
}

struct Partition {
    assignment: u64,
    /// The number of the assignment, or of the log that began within it. Commits of another one say nothing.
    log: u64,
    state: State,
    /// Not finished, or behind one that is not; the oldest first.
    waiting: VecDeque<Waiting>,
    /// The first offset that is not finished, once there is one to commit.
    finished: Option<i64>,
    /// What the broker has, as far as it is known.
    committed: Option<i64>,
    /// The first offset that was not taken.
    next: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// It goes to another member; nothing more is taken.
    Leaving,
    /// A delivery was given up, so that it has to be read again from this offset.
    Rewinding {
        to: i64,
        since: Instant,
    },
}

struct Waiting {
    offset: i64,
    assignment: u64,
    handed_out: bool,
    finished: bool,
}

/// An offset to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) place: Place,
    pub(crate) offset: i64,
    log: u64,
}

/// What became of a delivery that the broker sent.
pub(crate) struct Taken {
    /// `None`: nothing is to be taken from there.
    pub(crate) mark: Option<Mark>,
    /// The offset that should have come, or a later one, if the log has begun again.
    pub(crate) expected: Option<i64>,
}

impl Partition {
    /// What was taken is of a log that is not there any more. The new one is not finished from its first record on:
    /// so much is committed at once, over what was committed of the old one.
    fn begin_again(&mut self, log: u64, first: i64) {
        (self.assignment, self.log) = (log, log);
        self.waiting.clear();
        self.committed = None;
        self.finished = Some(first);
        if self.state != State::Leaving {
            // What was given up is gone, too.
            self.state = State::Open;
        }
    }

    fn to_commit(&self) -> Option<i64> {
        let finished = self.finished;
        finished.filter(|finished| self.committed != Some(*finished))
    }
}

impl Offsets {
    /// Begins an assignment of a partition.
    pub(crate) fn assign(&mut self, place: Place) {
        self.assignments += 1;
        let partition = Partition {
            assignment: self.assignments,
            log: self.assignments,
            state: State::Open,
            waiting: VecDeque::new(),
            finished: None,
            committed: None,
            next: None,
        };
        self.partitions.insert(place, partition);
    }

    /// Notes a delivery that the broker sent.
    pub(crate) fn take(&mut self, place: &Place, offset: i64) -> Taken {
        let Some(partition) = self.partitions.get_mut(place) else {
            return Taken {
                mark: None,
                expected: None,
            };
        };
        // Offsets only grow, also while what comes is not taken: a partition that is read again says so first.
        let expected = partition.next.filter(|next| offset < *next);
        if expected.is_some() {
            self.assignments += 1;
            partition.begin_again(self.assignments, offset);
            partition.next = Some(offset);
        }
        if partition.state != State::Open {
            return Taken {
                mark: None,
                expected,
            };
        }
        partition.waiting.push_back(Waiting {
            offset,
            assignment: partition.assignment,
            handed_out: false,
            finished: false,
        });
        partition.next = Some(offset + 1);
        let mark = Mark {
            place: place.clone(),
            assignment: partition.assignment,
            offset,
        };
        Taken {
            mark: Some(mark),
            expected,
        }
    }

    /// Notes that a delivery goes to the receiver. `false`: its assignment is over.
    pub(crate) fn hand_out(&mut self, mark: &Mark) -> bool {
        let waiting = self.waiting(mark);
        waiting.is_some_and(|waiting| {
            waiting.handed_out = true;
            true
        })
    }

    /// Whether a delivery can be finished. `false`: its assignment is over, or one before it was given up.
    pub(crate) fn is_current(&mut self, mark: &Mark) -> bool {
        self.waiting(mark).is_some()
    }

    /// Notes that a delivery is finished. `false`: its assignment is over, or one before it was given up.
    pub(crate) fn finish(&mut self, mark: &Mark) -> bool {
        let Some(waiting) = self.waiting(mark) else {
            return false;
        };
        waiting.finished = true;
        if let Some(partition) = self.partitions.get_mut(&mark.place) {
            while let Some(first) = partition.waiting.pop_front_if(|first| first.finished) {
                partition.finished = Some(first.offset + 1);
            }
        }
        true
    }

    /// Notes that a delivery will not be finished. It and all after it are read again, unless the
    /// partition leaves anyway; those before it stay what they are.
    pub(crate) fn give_up(&mut self, mark: &Mark, now: Instant) {
        if self.waiting(mark).is_none() {
            return;
        }
        self.assignments += 1;
        let Some(partition) = self.partitions.get_mut(&mark.place) else {
            return;
        };
        let waiting = &mut partition.waiting;
        waiting.retain(|waiting| waiting.offset < mark.offset);
        partition.assignment = self.assignments;
        if partition.state != State::Leaving {
            let to = mark.offset;
            partition.state = State::Rewinding { to, since: now };
        }
    }

    /// The partitions that are to be read again, and from where.
    pub(crate) fn rewinds(&self, since: Instant) -> Vec<(Place, i64)> {
        let of_partition = |(place, partition): (&Place, &Partition)| match partition.state {
            State::Rewinding { to, since: begun } if begun <= since => Some((place.clone(), to)),
            _ => None,
        };
        self.partitions.iter().filter_map(of_partition).collect()
    }

    /// Notes that a partition is read again from this offset. If an earlier delivery was given up meanwhile,
    /// it has to be read again from that one.
    pub(crate) fn reopen(&mut self, place: &Place, from: i64) {
        if let Some(partition) = self.partitions.get_mut(place)
            && let State::Rewinding { to, .. } = partition.state
        {
            partition.next = Some(from);
            if to == from {
                partition.state = State::Open;
            }
        }
    }

    /// Takes nothing more of a partition, and forgets what was not handed out.
    pub(crate) fn leave(&mut self, place: &Place) {
        if let Some(partition) = self.partitions.get_mut(place) {
            partition.state = State::Leaving;
            partition.waiting.retain(|waiting| waiting.handed_out);
        }
    }

    /// How many deliveries of a partition are handed out and not finished.
    pub(crate) fn in_flight(&self, place: &Place) -> usize {
        let partition = self.partitions.get(place);
        partition.map_or(0, |partition| partition.waiting.len())
    }

    /// Ends an assignment.
    pub(crate) fn remove(&mut self, place: &Place) {
        self.partitions.remove(place);
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        self.partitions.keys().cloned().collect()
    }

    /// What is finished and not committed.
    pub(crate) fn to_commit(&self) -> Vec<Commit> {
        let of_partition = |(place, partition): (&Place, &Partition)| {
            Some(Commit {
                place: place.clone(),
                offset: partition.to_commit()?,
                log: partition.log,
            })
        };
        self.partitions.iter().filter_map(of_partition).collect()
    }

    /// Whether all that is finished of a partition is committed.
    pub(crate) fn is_committed(&self, place: &Place) -> bool {
        let partition = self.partitions.get(place);
        partition.is_none_or(|partition| partition.to_commit().is_none())
    }

    /// Notes what the broker had when the assignment began.
    pub(crate) fn begins_at(&mut self, place: &Place, offset: i64) {
        if let Some(partition) = self.partitions.get_mut(place) {
            partition.committed = Some(offset);
            partition.next = partition.next.or(Some(offset));
        }
    }

    /// Notes that the broker has an offset. What was on its way when its log ended is not what the broker has of the
    /// next one, and is committed over.
    pub(crate) fn committed(&mut self, commit: &Commit) {
        if let Some(partition) = self.partitions.get_mut(&commit.place)
            && partition.log == commit.log
        {
            partition.committed = Some(commit.offset);
        }
    }

    /// How many offsets are between what was taken of a partition and this end of it. `seen`: the first offset that the client
    /// has not looked at, where all that it has of those before it was taken.
    pub(crate) fn behind(&self, place: &Place, end: i64, seen: Option<i64>) -> Option<u64> {
        let partition = self.partitions.get(place)?;
        // What is read again was taken for nothing.
        let seen = seen.filter(|_| !matches!(partition.state, State::Rewinding { .. }));
        let next = partition.next?.max(seen.unwrap_or_default());
        u64::try_from(end.saturating_sub(next)).ok()
    }

    fn waiting(&mut self, mark: &Mark) -> Option<&mut Waiting> {
        let waiting = &mut self.partitions.get_mut(&mark.place)?.waiting;
        let found = waiting.binary_search_by_key(&mark.offset, |waiting| waiting.offset);
        let found = waiting.get_mut(found.ok()?)?;
        (found.assignment == mark.assignment).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned() -> (Offsets, Place) {
        let mut offsets = Offsets::default();
        let place = Place::new("orders", 0);
        offsets.assign(place.clone());
        (offsets, place)
    }

    fn take(offsets: &mut Offsets, place: &Place, numbers: &[i64]) -> Vec<Mark> {
        let numbers = numbers.iter();
        let marks: Vec<_> = numbers
            .map(|offset| offsets.take(place, *offset).mark.unwrap())
            .collect();
        assert!(marks.iter().all(|mark| offsets.hand_out(mark)));
        marks
    }

    fn due(offsets: &Offsets) -> Vec<i64> {
        let due = offsets.to_commit().into_iter();
        due.map(|commit| commit.offset).collect()
    }

    fn commit(offsets: &mut Offsets) {
        for commit in offsets.to_commit() {
            offsets.committed(&commit);
        }
    }

    #[test]
    fn nothing_is_committed_past_what_is_not_finished() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4, 9]);
        assert!(offsets.finish(&marks[1]));
        assert!(offsets.to_commit().is_empty());
        assert!(offsets.finish(&marks[0]));
        assert_eq!(due(&offsets), [5]);
        assert!(offsets.finish(&marks[2]));
        assert_eq!(due(&offsets), [10]);
        commit(&mut offsets);
        assert!(offsets.to_commit().is_empty() && offsets.is_committed(&place));
    }

    #[test]
    fn a_delivery_of_a_former_assignment_changes_nothing() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4]);
        offsets.remove(&place);
        offsets.assign(place.clone());
        let again = take(&mut offsets, &place, &[3]);
        assert!(!offsets.finish(&marks[0]));
        assert!(!offsets.finish(&marks[1]));
        assert!(!offsets.hand_out(&marks[0]));
        offsets.give_up(&marks[0], Instant::now());
        assert!(offsets.to_commit().is_empty());
        assert!(offsets.finish(&again[0]));
        assert_eq!(due(&offsets), [4]);
    }

    #[test]
    fn what_is_given_up_is_read_again_with_all_behind_it() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4, 5]);
        let now = Instant::now();
        offsets.give_up(&marks[1], now);
        assert!(offsets.is_current(&marks[0]) && !offsets.is_current(&marks[2]));
        assert!(offsets.finish(&marks[0]), "it was before");
        assert!(!offsets.finish(&marks[2]), "it comes again");
        assert!(offsets.take(&place, 6).mark.is_none());
        assert_eq!(offsets.rewinds(now), [(place.clone(), 4)]);
        assert_eq!(due(&offsets), [4]);
        offsets.reopen(&place, 4);
        assert!(offsets.rewinds(now).is_empty());
        let again = take(&mut offsets, &place, &[4, 5]);
        assert!(!offsets.finish(&marks[2]), "it is not this one");
        assert!(again.iter().all(|mark| offsets.finish(mark)));
        assert_eq!(due(&offsets), [6]);
    }

    #[test]
    fn an_earlier_one_that_is_given_up_later_is_read_again_too() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4]);
        let now = Instant::now();
        offsets.give_up(&marks[1], now);
        offsets.give_up(&marks[0], now);
        assert_eq!(offsets.rewinds(now), [(place, 3)]);
    }

    #[test]
    fn one_that_is_given_up_while_others_are_read_again_is_not_passed_over() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4, 5]);
        let now = Instant::now();
        offsets.give_up(&marks[2], now);
        // The client is told to go to 5, and meanwhile:
        offsets.give_up(&marks[0], now);
        offsets.reopen(&place, 5);
        assert!(offsets.take(&place, 5).mark.is_none());
        assert_eq!(offsets.rewinds(now), [(place.clone(), 3)]);
        offsets.reopen(&place, 3);
        let again = take(&mut offsets, &place, &[3, 4, 5]);
        assert!(again.iter().all(|mark| offsets.finish(mark)));
        assert_eq!(due(&offsets), [6]);
    }

    #[test]
    fn a_log_that_begins_again_is_another_one() {
        let (mut offsets, place) = assigned();
        let old = take(&mut offsets, &place, &[4, 5, 6]);
        assert!(offsets.finish(&old[0]));
        commit(&mut offsets);
        let first = offsets.take(&place, 0);
        assert_eq!(first.expected, Some(7));
        assert_eq!(due(&offsets), [0], "5 would skip records of the new one");
        assert!(!offsets.finish(&old[1]) && !offsets.finish(&old[2]));
        offsets.give_up(&old[1], Instant::now());
        assert!(offsets.rewinds(Instant::now()).is_empty());
        commit(&mut offsets);
        let more = take(&mut offsets, &place, &[1]);
        assert!(offsets.finish(&first.mark.unwrap()));
        assert_eq!(due(&offsets), [1], "although the old one was at 5");
        commit(&mut offsets);
        assert!(due(&offsets).is_empty() && offsets.is_committed(&place));
        assert!(offsets.finish(&more[0]));
        assert_eq!(due(&offsets), [2]);
    }

    #[test]
    fn a_log_that_is_shorter_than_what_is_committed_is_another_one() {
        let (mut offsets, place) = assigned();
        offsets.begins_at(&place, 7);
        assert_eq!(offsets.take(&place, 2).expected, Some(7));
        assert_eq!(due(&offsets), [2]);
    }

    #[test]
    fn a_commit_of_the_old_log_that_was_on_its_way_is_committed_over() {
        let (mut offsets, place) = assigned();
        let old = take(&mut offsets, &place, &[4]);
        assert!(offsets.finish(&old[0]));
        let on_its_way = offsets.to_commit();
        take(&mut offsets, &place, &[0]);
        offsets.committed(&on_its_way[0]);
        assert_eq!(due(&offsets), [0]);
        // One of a former assignment, too.
        commit(&mut offsets);
        offsets.assign(place.clone());
        offsets.begins_at(&place, 0);
        offsets.committed(&on_its_way[0]);
        assert!(due(&offsets).is_empty());
        take(&mut offsets, &place, &[0]);
    }

    #[test]
    fn a_log_that_begins_again_ends_what_was_to_be_read_again() {
        let (mut offsets, place) = assigned();
        let old = take(&mut offsets, &place, &[4, 5]);
        offsets.give_up(&old[1], Instant::now());
        let taken = offsets.take(&place, 0);
        assert!(taken.mark.is_some(), "it would be passed over");
        assert!(offsets.rewinds(Instant::now()).is_empty());
    }

    #[test]
    fn a_leaving_partition_does_not_wait_for_an_old_log() {
        let (mut offsets, place) = assigned();
        let old = take(&mut offsets, &place, &[4]);
        offsets.leave(&place);
        assert!(offsets.take(&place, 0).mark.is_none());
        assert_eq!(offsets.in_flight(&place), 0);
        assert!(!offsets.finish(&old[0]));
        assert_eq!(due(&offsets), [0]);
    }

    #[test]
    fn a_leaving_partition_waits_only_for_what_was_handed_out() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3]);
        let not_handed_out = offsets.take(&place, 4).mark.unwrap();
        offsets.leave(&place);
        assert!(!offsets.hand_out(&not_handed_out));
        assert!(offsets.take(&place, 5).mark.is_none());
        assert_eq!(offsets.in_flight(&place), 1);
        assert!(offsets.finish(&marks[0]));
        assert_eq!(offsets.in_flight(&place), 0);
        assert_eq!(due(&offsets), [4]);
    }

    #[test]
    fn a_leaving_partition_does_not_wait_for_what_was_given_up() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4]);
        offsets.leave(&place);
        offsets.give_up(&marks[0], Instant::now());
        assert_eq!(offsets.in_flight(&place), 0);
        assert!(!offsets.finish(&marks[1]), "it is behind a gap");
        assert!(offsets.to_commit().is_empty() && offsets.rewinds(Instant::now()).is_empty());
    }

    #[test]
    fn the_lag_is_what_was_not_taken() {
        let (mut offsets, place) = assigned();
        assert_eq!(offsets.behind(&place, 10, None), None);
        take(&mut offsets, &place, &[3]);
        assert_eq!(offsets.behind(&place, 10, None), Some(6));
        assert_eq!(offsets.behind(&place, 2, None), None);
        assert_eq!(offsets.behind(&place, 10, Some(8)), Some(2));
        assert_eq!(offsets.behind(&place, 10, Some(-1001)), Some(6));
    }

    #[test]
    fn what_is_read_again_is_behind() {
        let (mut offsets, place) = assigned();
        let marks = take(&mut offsets, &place, &[3, 4]);
        offsets.give_up(&marks[0], Instant::now());
        assert_eq!(offsets.behind(&place, 10, Some(10)), Some(5));
    }
}
