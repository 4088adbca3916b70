//! Purges: what they may have deleted, and which messages may have been accepted as new ones behind them.

use std::ops::RangeInclusive;

use inbox_api::{HandlerName, Key, State};

use super::{
    Checker, Rule,
    clock::Clock,
    leases::SLACK,
    settling::state_after,
    story::{AFTERLIFE, Stories, Story},
};
use crate::crash::history::{Change, Received};

/// An operator's purge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purge<'a> {
    pub(super) start: u64,
    pub(super) handler: &'a HandlerName,
    pub(super) state: State,
    pub(super) older_than: u64,
    pub(super) limit: u32,
    /// When it was answered, and how many messages were deleted; `None` when the outcome is unknown.
    pub(super) answer: Option<(u64, u64)>,
}

impl Purge<'_> {
    fn may_have_deleted(&self) -> bool {
        self.answer.is_none_or(|(_, deleted)| deleted > 0)
    }

    /// Whether, by the store's clock and before `until`, a message may have been old enough that came into its state
    /// in `since`.
    fn may_take(&self, since: &RangeInclusive<u64>, until: u64, clock: &Clock) -> bool {
        let end = self.answer.map(|(end, _)| end);
        let end = end.unwrap_or(self.start.saturating_add(AFTERLIFE));
        let during = self.start..=end.min(until);
        if since.start() > during.end() {
            return false;
        }
        let older_than = i64::try_from(self.older_than).unwrap_or(i64::MAX);
        let age = clock.latest(during.clone()) - clock.earliest(since.clone());
        age >= older_than - SLACK
    }
}

impl Story {
    /// The calls that may have given the message this final state: from when to when each was under way.
    pub(super) fn may_have_become(
        &self,
        state: State,
    ) -> impl Iterator<Item = RangeInclusive<u64>> {
        let until = |start: u64, end: Option<u64>| {
            start..=end.unwrap_or_else(|| start.saturating_add(AFTERLIFE))
        };
        let settled = self.settles.iter().filter(move |settle| {
            settle.may_be_done() && state_after(settle.ending) == Some(state)
        });
        let settled = settled.map(move |settle| until(settle.start, settle.done()));
        let discarded = self.interventions.iter().filter(move |one| {
            state == State::Discarded && one.change == Change::Discard && one.may_be_made()
        });
        settled.chain(discarded.map(move |one| until(one.start, one.made())))
    }

    /// When the last replay began that was certainly made by then; 0 if there is none.
    pub(super) fn replayed_by(&self, moment: u64) -> u64 {
        let replays = self.interventions.iter().filter(|one| {
            one.change == Change::Replay && one.made().is_some_and(|made| made <= moment)
        });
        replays.map(|one| one.start).max().unwrap_or(0)
    }

    /// Until when a call without an answer may have stored it as a new message. Then it is listed at the end, or a
    /// later call was told of it.
    fn may_be_stored_by(&self, start: u64, has_no_effect: bool) -> Option<u64> {
        let shows = self.listed.is_some() || self.is_told_of_after(start);
        (shows && !has_no_effect).then(|| start.saturating_add(AFTERLIFE))
    }
}

impl<'a> Stories<'a> {
    /// The purges that may have deleted messages of the key's handler.
    fn purges_of(&self, key: &Key) -> impl Iterator<Item = &Purge<'a>> {
        let purges = self.purges.iter();
        purges.filter(|purge| *purge.handler == key.handler && purge.may_have_deleted())
    }

    /// Whether a purge may have deleted the message before `until`.
    pub(super) fn may_be_purged(
        &self,
        key: &Key,
        story: &Story,
        clock: &Clock,
        until: u64,
    ) -> bool {
        let mut purges = self.purges_of(key).filter(|purge| purge.start < until);
        purges.any(|purge| {
            // What was replayed for certain is no longer what it was before.
            let replayed = story.replayed_by(purge.start);
            let mut since = story.may_have_become(purge.state);
            since.any(|since| *since.end() >= replayed && purge.may_take(&since, until, clock))
        })
    }

    /// When purges began that may have deleted the message as a dead one.
    pub(super) fn purged_from(
        &self,
        key: &Key,
        story: &Story,
        clock: &Clock,
    ) -> impl Iterator<Item = u64> {
        let of_dead = self.purges_of(key).filter(|one| one.state == State::Dead);
        let may_take = move |purge: &&Purge<'_>| {
            let mut since = story.may_have_become(State::Dead);
            since.any(|since| purge.may_take(&since, u64::MAX, clock))
        };
        of_dead.filter(may_take).map(|purge| purge.start)
    }

    /// Whether the message may have been accepted again, as a new one, after a purge.
    fn may_be_new(&self, key: &Key, story: &Story, clock: &Clock) -> bool {
        let received = story
            .receives
            .iter()
            .filter_map(|receive| match receive.answer {
                Some((end, Received::Accepted)) => Some(end),
                Some((_, Received::Duplicate | Received::Refused)) => None,
                None => story.may_be_stored_by(receive.start, receive.has_no_effect),
            });
        let begun = story.begins.iter().filter_map(|begin| match begin.answer {
            Some((end, None)) => Some(end),
            Some((_, Some(_))) => None,
            None => story.may_be_stored_by(begin.start, begin.has_no_effect),
        });
        let mut stored = received.chain(begun);
        stored.any(|until| self.may_be_purged(key, story, clock, until))
    }

    /// Sets aside the messages that may have had a second life: one key stands for two messages then.
    pub(super) fn set_aside(&mut self, clock: &Clock) {
        let all = std::mem::take(&mut self.by_key);
        let (again, once) = all
            .into_iter()
            .partition(|(key, story)| self.may_be_new(key, story, clock));
        (self.set_aside, self.by_key) = (again, once);
    }
}

impl Checker<'_> {
    /// Purges tell of all that they delete.
    pub(super) fn purging(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        let most = stories.purges.iter().map(|purge| match purge.answer {
            Some((_, deleted)) => deleted,
            None => u64::from(purge.limit),
        });
        let most: u64 = most.sum();
        let stored = stories.by_key.values().filter(|one| one.stored().is_some());
        let gone = stored.filter(|story| story.listed.is_none()).count() as u64;
        if !stories.purges.is_empty() {
            let broken = (gone > most).then(|| {
                format!("{gone} messages are not in the inbox, and purges deleted {most} at most")
            });
            self.judge(Rule::NothingLost, &[], broken);
        }
        for (key, story) in &stories.by_key {
            if story.stored().is_some() {
                let is_lost = story.listed.is_none()
                    && !stories.may_be_purged(key, story, &self.clock, u64::MAX);
                let broken = is_lost.then(|| "was stored, and is not in the inbox".to_owned());
                self.judge(Rule::NothingLost, &[key], broken);
            }
        }
        for purge in &stories.purges {
            if let Some((_, deleted)) = purge.answer {
                let limit = purge.limit;
                let broken = (deleted > u64::from(limit))
                    .then(|| format!("a purge of {limit} messages at most deleted {deleted}"));
                self.judge(Rule::NothingLost, &[], broken);
            }
        }
        self.stories = stories;
    }
}
