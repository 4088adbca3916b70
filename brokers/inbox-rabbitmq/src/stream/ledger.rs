//! What of a stream was handed out, and what of it is finished.

use std::{collections::VecDeque, time::Instant};

/// Tells a delivery from one of the same offset that was handed out when the stream was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    reading: u64,
    offset: u64,
}

#[derive(Debug)]
struct Waiting {
    mark: Mark,
    finished: bool,
}

/// How far a reader came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// This and all before it is finished.
    finished: Option<u64>,
    /// The first that is not, where that is known.
    next: Option<u64>,
    /// What the server keeps, or was told to.
    stored: Option<u64>,
    /// Whether the server has shown that it does not keep what it is told.
    is_not_kept: bool,
    /// Whether the stream is another one than the one that was read at first.
    is_another: bool,
}

impl Progress {
    /// In a stream of the same name that was made since: nothing of it was read.
    pub(crate) fn in_another() -> Self {
        Self {
            is_another: true,
            ..Self::default()
        }
    }

    /// Whether this may have been in another stream than the one for which the server keeps this: a new one has
    /// no offsets of its former readers, and at most that of one that was quicker to read it.
    pub(crate) fn was_elsewhere(&self, kept: Option<u64>) -> bool {
        kept < self.stored && !self.is_not_kept
    }

    /// Where it goes on, if it came anywhere.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    pub(crate) fn is_another(&self) -> bool {
        self.is_another
    }
}

/// One reader's place in a stream. Offsets may have gaps, and only grow.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Counts how often the stream is read again.
    reading: u64,
    /// Whether anything is taken.
    is_open: bool,
    /// Nothing before it is taken, where that is known.
    next: Option<u64>,
    waiting: VecDeque<Waiting>,
    /// This and all before it is finished.
    finished: Option<u64>,
    /// Whether anything was taken, or read before: until then `next` is but where to begin.
    has_begun: bool,
    /// What the server keeps, or was told to.
    stored: Option<u64>,
    /// What of that it has said itself: it answers nothing to what it is told.
    confirmed: Option<u64>,
    /// As in [`Progress`].
    is_not_kept: bool,
    is_another: bool,
    /// Since when the stream is to be read again, from `next`.
    rewind: Option<Instant>,
}

impl Ledger {
    /// A reader that goes on where a former connection was, or where the server says, whichever is later, and otherwise
    /// begins at `start`, where that is an offset.
    pub(crate) fn new(stored: Option<u64>, former: Progress, start: Option<u64>) -> Self {
        Self {
            reading: 0,
            is_open: false,
            next: former.next.max(stored.map(after)).or(start),
            waiting: VecDeque::new(),
            finished: former.finished.max(stored),
            has_begun: stored.is_some() || former.next.is_some(),
            stored,
            confirmed: stored,
            is_not_kept: former.is_not_kept,
            is_another: former.is_another,
            rewind: None,
        }
    }

    /// From where the stream is read next, where that is known.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress {
            finished: self.finished,
            next: self.unfinished().filter(|_| self.has_begun),
            stored: self.stored,
            is_not_kept: self.is_not_kept,
            is_another: self.is_another,
        }
    }

    /// The first that is not finished, or where to begin.
    fn unfinished(&self) -> Option<u64> {
        let first = self.waiting.front();
        first.map_or(self.next, |first| Some(first.mark.offset))
    }

    /// Takes what comes from now on.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    /// The number of the reading that what comes now belongs to, if anything is taken.
    pub(crate) fn reading(&self) -> Option<u64> {
        (self.is_open && self.rewind.is_none()).then_some(self.reading)
    }

    /// Notes what is handed out next. `None`: it is not to be, as it comes again or came before.
    pub(crate) fn take(&mut self, reading: u64, offset: u64) -> Option<Mark> {
        let is_new = self.next.is_none_or(|next| offset >= next);
        if !is_new || self.reading() != Some(reading) {
            return None;
        }
        let mark = Mark { reading, offset };
        let finished = false;
        self.waiting.push_back(Waiting { mark, finished });
        self.next = Some(after(offset));
        self.has_begun = true;
        Some(mark)
    }

    /// Whether a delivery can be finished. `false`: it comes again, or has come again.
    pub(crate) fn is_current(&mut self, mark: Mark) -> bool {
        self.waiting(mark).is_some()
    }

    /// Notes that a delivery is finished. `false`: it comes again, or has come again.
    pub(crate) fn finish(&mut self, mark: Mark) -> bool {
        let Some(waiting) = self.waiting(mark) else {
            return false;
        };
        waiting.finished = true;
        while let Some(first) = self.waiting.pop_front_if(|first| first.finished) {
            self.finished = Some(first.mark.offset);
        }
        true
    }

    /// Notes that a delivery will not be finished: it and all behind it come again, those before it do not.
    pub(crate) fn give_up(&mut self, mark: Mark, now: Instant) {
        if self.waiting(mark).is_none() {
            return;
        }
        self.waiting.retain(|one| one.mark.offset < mark.offset);
        self.reading += 1;
        self.next = Some(mark.offset);
        self.rewind = Some(now);
    }

    /// Since when the stream is to be read again.
    pub(crate) fn rewinds_since(&self) -> Option<Instant> {
        self.rewind
    }

    /// Reads again. Nothing is taken before it is opened.
    pub(crate) fn rewind(&mut self) {
        self.rewind = None;
        self.is_open = false;
    }

    /// Goes on with what is not finished, here or by the server's word. What is in flight comes again.
    pub(crate) fn restart(&mut self, stored: Option<u64>) {
        self.end();
        self.is_open = true;
        self.next = self.next.max(stored.map(after));
        self.finished = self.finished.max(stored);
        self.has_begun |= stored.is_some();
        self.set_kept(stored);
    }

    /// Takes nothing more, and what is in flight is nobody's any more.
    pub(crate) fn end(&mut self) {
        self.next = self.unfinished();
        self.reading += 1;
        self.is_open = false;
        self.rewind = None;
        self.waiting.clear();
    }

    /// What the server is to keep and does not.
    pub(crate) fn to_store(&self) -> Option<u64> {
        self.finished
            .filter(|finished| self.stored < Some(*finished))
    }

    pub(crate) fn stored(&self) -> Option<u64> {
        self.stored
    }

    /// Whether the server is to be asked what it keeps: to tell it what it does not, or to hear that it keeps what it
    /// was told.
    pub(crate) fn has_to_ask(&self) -> bool {
        let is_sure = self.is_not_kept || self.stored == self.confirmed;
        self.to_store().is_some() || !is_sure
    }

    /// The server has answered what it keeps.
    pub(crate) fn set_kept(&mut self, offset: Option<u64>) {
        (self.stored, self.confirmed) = (offset, offset);
    }

    /// The server was told to keep this.
    pub(crate) fn set_told(&mut self, offset: u64) {
        self.stored = Some(offset);
    }

    /// The server does not keep what it is told.
    pub(crate) fn set_not_kept(&mut self) {
        self.is_not_kept = true;
    }

    /// How many offsets are between what was taken and this one, which is the newest.
    pub(crate) fn behind(&self, newest: u64) -> Option<u64> {
        self.next.map(|next| after(newest).saturating_sub(next))
    }

    fn waiting(&mut self, mark: Mark) -> Option<&mut Waiting> {
        let by_offset = |one: &Waiting| one.mark.offset;
        let place = self.waiting.binary_search_by_key(&mark.offset, by_offset);
        let found = self.waiting.get_mut(place.ok()?)?;
        (found.mark == mark).then_some(found)
    }
}

fn after(offset: u64) -> u64 {
    offset.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(ledger: &mut Ledger, reading: u64, offsets: &[u64]) -> Vec<Mark> {
        let offsets = offsets.iter();
        offsets
            .map(|offset| ledger.take(reading, *offset).unwrap())
            .collect()
    }

    fn open(stored: Option<u64>, finished: Option<u64>) -> Ledger {
        let next = finished.map(after);
        let former = Progress {
            finished,
            next,
            ..Progress::default()
        };
        let mut ledger = Ledger::new(stored, former, Some(3));
        ledger.open();
        ledger
    }

    fn next(ledger: &Ledger) -> Option<u64> {
        ledger.progress().next
    }

    #[test]
    fn nothing_is_stored_past_what_is_not_finished() {
        let mut ledger = open(None, None);
        let marks = take(&mut ledger, 0, &[3, 4, 9]);
        assert!(ledger.finish(marks[1]));
        assert_eq!((ledger.to_store(), next(&ledger)), (None, Some(3)));
        assert!(ledger.finish(marks[0]));
        assert_eq!((ledger.to_store(), next(&ledger)), (Some(4), Some(9)));
        assert!(!ledger.finish(marks[0]), "once is enough");
        ledger.set_told(4);
        assert_eq!(ledger.to_store(), None);
        assert!(ledger.finish(marks[2]));
        assert_eq!((ledger.to_store(), next(&ledger)), (Some(9), Some(10)));
    }

    #[test]
    fn it_goes_on_behind_what_is_stored_or_finished() {
        let mut ledger = open(Some(4), None);
        assert_eq!((next(&ledger), ledger.to_store()), (Some(5), None));
        assert!(ledger.take(0, 4).is_none(), "a chunk may begin earlier");
        assert!(ledger.take(0, 5).is_some());
        // The server has lost what was stored last.
        let ledger = open(Some(4), Some(7));
        assert_eq!((next(&ledger), ledger.to_store()), (Some(8), Some(7)));
        // Another one of the name was faster.
        let ledger = open(Some(9), Some(7));
        assert_eq!((next(&ledger), ledger.to_store()), (Some(10), None));
    }

    #[test]
    fn what_is_given_up_is_read_again_with_all_behind_it() {
        let mut ledger = open(None, None);
        let marks = take(&mut ledger, 0, &[3, 4, 5]);
        let now = Instant::now();
        ledger.give_up(marks[1], now);
        assert_eq!(ledger.rewinds_since(), Some(now));
        assert!(ledger.take(0, 6).is_none());
        assert!(ledger.is_current(marks[0]) && !ledger.is_current(marks[2]));
        assert!(!ledger.finish(marks[2]), "it comes again");
        ledger.rewind();
        assert!(ledger.take(0, 4).is_none(), "it is not open yet");
        ledger.open();
        assert_eq!((ledger.rewinds_since(), ledger.next()), (None, Some(4)));
        assert!(ledger.take(0, 6).is_none(), "of the old reading");
        let again = take(&mut ledger, 1, &[4, 5]);
        assert!(!ledger.finish(marks[1]), "it is not this one");
        assert!(ledger.finish(again[0]));
        assert_eq!(ledger.to_store(), None);
        assert!(ledger.finish(marks[0]), "it was before");
        assert_eq!(ledger.to_store(), Some(4));
        ledger.give_up(marks[2], now);
        assert_eq!(ledger.rewinds_since(), None);
    }

    #[test]
    fn an_earlier_one_that_is_given_up_later_is_read_again_too() {
        let mut ledger = open(None, None);
        let marks = take(&mut ledger, 0, &[3, 4]);
        ledger.give_up(marks[1], Instant::now());
        ledger.give_up(marks[0], Instant::now());
        ledger.rewind();
        assert_eq!(ledger.next(), Some(3));
    }

    #[test]
    fn a_restart_and_an_end_leave_old_deliveries_behind() {
        let mut ledger = open(None, None);
        let marks = take(&mut ledger, 0, &[3, 4]);
        assert!(ledger.finish(marks[0]));
        ledger.restart(Some(1));
        assert_eq!((next(&ledger), ledger.to_store()), (Some(4), Some(3)));
        let again = take(&mut ledger, 1, &[4]);
        assert!(!ledger.finish(marks[1]));
        ledger.end();
        assert!(!ledger.finish(again[0]));
        assert!(ledger.take(0, 5).is_none());
        assert_eq!((ledger.to_store(), next(&ledger)), (Some(3), Some(4)));
        // What was taken and not finished is not passed over, wherever reading began.
        let mut ledger = open(None, None);
        let marks = take(&mut ledger, 0, &[7, 8]);
        ledger.give_up(marks[0], Instant::now());
        ledger.end();
        let former = ledger.progress();
        assert_eq!((former.finished, former.next), (None, Some(7)));
        assert_eq!(next(&Ledger::new(None, former, None)), Some(7));
    }

    #[test]
    fn a_stream_without_the_offset_is_another() {
        let mut ledger = open(None, None);
        let marks = take(&mut ledger, 0, &[3, 4]);
        assert!(ledger.finish(marks[0]));
        assert!(!ledger.progress().was_elsewhere(None), "nothing was stored");
        ledger.set_told(3);
        assert!(ledger.has_to_ask(), "whether it is kept");
        ledger.set_kept(Some(3));
        assert!(!ledger.has_to_ask());
        let former = ledger.progress();
        assert!(former.was_elsewhere(None) && !former.was_elsewhere(Some(3)));
        // Another one of the name has read the new one already.
        assert!(former.was_elsewhere(Some(2)));
        let ledger = Ledger::new(Some(2), Progress::in_another(), None);
        assert_eq!((ledger.next(), ledger.to_store()), (Some(3), None));
        let ledger = Ledger::new(None, Progress::in_another(), None);
        assert_eq!((ledger.next(), ledger.to_store()), (None, None));
        assert!(ledger.progress().is_another());
        // A user without the right to store.
        let mut ledger = open(Some(3), None);
        ledger.set_not_kept();
        let again = Ledger::new(Some(3), ledger.progress(), None);
        assert!(!again.progress().was_elsewhere(None));
    }

    #[test]
    fn the_lag_is_what_was_not_taken() {
        let former = Progress::default();
        assert_eq!(Ledger::new(None, former, None).behind(9), None);
        let mut ledger = open(None, None);
        assert!(ledger.take(0, 2).is_none(), "it is to begin later");
        take(&mut ledger, 0, &[3]);
        assert_eq!(ledger.behind(9), Some(6));
        assert_eq!(ledger.behind(2), Some(0));
    }
}
