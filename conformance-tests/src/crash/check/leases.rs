//! What claims promise: one holder, growing tokens, attempts that are counted.

use std::collections::{BTreeMap, btree_map::Entry};

use inbox_api::{Attempts, Key};

use super::{
    Checker, Rule,
    story::{AFTERLIFE, Grant, Settle, Stories, Story},
};
use crate::crash::history::{Change, Kept};

/// By how much a store's clock may run slower or faster than the host's monotonic one during a
/// lease, in microseconds.
pub(super) const SLACK: i64 = 10_000;

impl Checker<'_> {
    pub(super) fn leases(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        for (key, story) in &stories.by_key {
            let mut grants = story.grants.clone();
            grants.sort_unstable_by_key(|grant| (grant.end, grant.token));
            self.one_holder(key, story, &stories, &grants);
            self.tokens_grow(key, &grants);
            self.attempts_counted(key, story, &stories);
        }
        self.stories = stories;
    }

    fn one_holder(&mut self, key: &Key, story: &Story, stories: &Stories<'_>, grants: &[Grant]) {
        for (index, later) in grants.iter().enumerate().skip(1) {
            let earlier = grants.get(..index).unwrap_or_default();
            let broken = earlier.iter().find_map(|earlier| {
                let left = self.certainly_left((key, story), stories, earlier, later)?;
                // They may have been given out the other way round.
                if later.start <= earlier.end {
                    self.certainly_left((key, story), stories, later, earlier)?;
                }
                Some(format!(
                    "token {} was given out while token {} was valid for another {} ms at least",
                    later.token,
                    earlier.token,
                    left / 1000
                ))
            });
            self.judge(Rule::OneHolder, &[key], broken);
        }
    }

    /// For how long the message's lease of `first` was still valid for certain, by the store's clock, when `second`, of
    /// this message or another, was given out, if it was and `second` came after it.
    pub(super) fn certainly_left(
        &self,
        (key, story): (&Key, &Story),
        stories: &Stories<'_>,
        first: &Grant,
        second: &Grant,
    ) -> Option<i64> {
        let end = self.certain_end(story, first, second.end);
        // If it may have run out by this, nothing below makes it certain that it had not.
        if end <= self.clock.latest(second.start..=second.end) {
            return None;
        }
        let settled = story.settles.iter().any(|settle| {
            settle.token == first.token && settle.may_be_done() && settle.start <= second.end
        });
        if settled || self.may_have_lost_its_run(story, stories, first.token, second.end) {
            return None;
        }
        // If the lease may have gone to another in between, its end may have come then, and the clock gone back since.
        // Only if `second` is of this message: another message's token may be the same number as one of its own.
        let is_second = |one: &Grant| one.token == second.token && one.end == second.end;
        let tokens = match story.grants.iter().any(is_second) {
            true => [first.token, second.token],
            false => [first.token; 2],
        };
        let between = first.start..=second.end;
        let from = match stories.may_be_leased(key, story, tokens, between) {
            true => first.start.min(second.start),
            false => second.start,
        };
        let given_out = self.clock.latest(from..=second.end);
        let left = end - given_out;
        (left > 0).then_some(left)
    }

    /// What the store's clock shows at least when the lease runs out, as far as that is decided by `until`.
    pub(super) fn certain_end(&self, story: &Story, grant: &Grant, until: u64) -> i64 {
        // What has set the lease's end, or may have: from when to when, and for how long.
        let mut writes = vec![(grant.start, Some(grant.end), grant.length)];
        for extension in &story.extensions {
            if extension.token == grant.token {
                match extension.answer {
                    Some((end, Kept::Done)) => {
                        writes.push((extension.start, Some(end), extension.length));
                    }
                    None if extension.start <= until => {
                        writes.push((extension.start, None, extension.length));
                    }
                    _ => {}
                }
            }
        }
        // Of these, any that no other has certainly followed may be the last.
        let may_be_last = |(_, end, _): &&(u64, Option<u64>, u64)| {
            !writes
                .iter()
                .any(|later| later.1.is_some() && end.is_some_and(|end| later.0 >= end))
        };
        writes
            .iter()
            .filter(may_be_last)
            .map(|(start, end, length)| {
                let length = i64::try_from(*length).unwrap_or(i64::MAX);
                let written = self.clock.earliest(*start..=end.unwrap_or(until));
                written.saturating_add(length) - SLACK
            })
            .min()
            .unwrap_or(0)
    }

    fn tokens_grow(&mut self, key: &Key, grants: &[Grant]) {
        for (index, grant) in grants.iter().enumerate() {
            let earlier = grants.get(..index).unwrap_or_default();
            let not_less = earlier.iter().find(|earlier| {
                earlier.token == grant.token
                    || (earlier.end < grant.start && earlier.token > grant.token)
            });
            let broken = not_less.map(|earlier| {
                format!(
                    "token {} was given out after token {}",
                    grant.token, earlier.token
                )
            });
            self.judge(Rule::TokensGrow, &[key], broken);
        }
    }

    /// Judges the attempts that each claim and the listing report.
    fn attempts_counted(&mut self, key: &Key, story: &Story, stories: &Stories<'_>) {
        if story.may_be_changed(0..u64::MAX, Change::Replay) {
            return;
        }
        for grant in &story.grants {
            let reported = Attempts {
                started: grant.started,
                finished: grant.finished,
            };
            let possible = self.possible_attempts(key, story, stories, Some(grant));
            self.judge(Rule::AttemptsCounted, &[key], possible.broken_by(reported));
        }
        let record = story
            .listed
            .and_then(|place| self.evidence.listing.get(place));
        if let Some(record) = record {
            let possible = self.possible_attempts(key, story, stories, None);
            let broken = possible.broken_by(record.attempts);
            self.judge(Rule::AttemptsCounted, &[key], broken);
        }
    }

    /// Which numbers of attempts agree with what is known, at the moment of the claim `last`, or at the end.
    fn possible_attempts(
        &self,
        key: &Key,
        story: &Story,
        stories: &Stories<'_>,
        last: Option<&Grant>,
    ) -> Possible {
        let before = |token: i64| last.is_none_or(|last| token < last.token);
        let until = last.map_or(u64::MAX, |last| last.end);
        // Claims of which nobody knows what they got.
        let first = story.sent().unwrap_or(0).saturating_sub(AFTERLIFE);
        let claims = stories.unknown_claims.iter().filter(|claim| {
            (first..until).contains(&claim.start) && claim.handlers.contains(&key.handler)
        });
        let begins = story.unknown_begins();
        let begins = begins.filter(|start| (first..until).contains(start));
        let unknown = (claims.count() + begins.count()) as u64;
        // A settlement may be repeated; it counts once for its token.
        let mut by_token: BTreeMap<i64, &Settle> = BTreeMap::new();
        for settle in &story.settles {
            if before(settle.token) && settle.start < until && settle.may_be_done() {
                match by_token.entry(settle.token) {
                    Entry::Vacant(entry) => {
                        entry.insert(settle);
                    }
                    Entry::Occupied(mut entry) if settle.answer.is_some() => {
                        entry.insert(settle);
                    }
                    Entry::Occupied(_) => {}
                }
            }
        }
        let of_last = u64::from(last.is_some());
        let mut started = (of_last, of_last + unknown);
        for grant in story.grants.iter().filter(|grant| before(grant.token)) {
            let turn = self.turn_in_run(story, stories, grant, last);
            let settle = by_token.get(&grant.token);
            let settle = settle.map(|one| (one.ending.is_uncounted(), one.answer.is_some()));
            // Whatever is settled has had its turn.
            let (least, most) = match settle {
                None => turn,
                Some((true, true)) => (0, 0),
                Some((true, false)) => (0, turn.1),
                Some((false, true)) => (1, 1),
                Some((false, false)) => (turn.0, 1),
            };
            started = (started.0 + least, started.1 + most);
        }
        let granted = |token: &i64| story.grants.iter().any(|grant| grant.token == *token);
        let count = |is_counted: &dyn Fn(&Settle) -> bool| {
            by_token.values().filter(|one| is_counted(one)).count() as u64
        };
        let released = by_token
            .iter()
            .filter(|(token, one)| {
                !granted(token) && one.ending.is_uncounted() && one.answer.is_some()
            })
            .count() as u64;
        let finished = count(&|one| !one.ending.is_uncounted() && one.answer.is_some());
        let perhaps_finished = count(&|one| !one.ending.is_uncounted() && one.answer.is_none());
        Possible {
            started: (started.0, started.1.saturating_sub(released)),
            finished: (finished, finished + perhaps_finished),
        }
    }
}

/// Which numbers of attempts agree with what is known.
struct Possible {
    started: (u64, u64),
    finished: (u64, u64),
}

impl Possible {
    fn broken_by(&self, reported: Attempts) -> Option<String> {
        for (what, seen, (least, most)) in [
            ("started", reported.started, self.started),
            ("finished", reported.finished, self.finished),
        ] {
            if !(least..=most).contains(&u64::from(seen)) {
                return Some(format!(
                    "{seen} attempts are reported as {what}; it must be {least} to {most}"
                ));
            }
        }
        None
    }
}

/// Whether another worker than the holder of `token` has, or may have, claimed the message before
/// `end`, or an operator changed it.
pub(super) fn has_rival(
    key: &Key,
    story: &Story,
    stories: &Stories<'_>,
    token: i64,
    end: u64,
) -> bool {
    let held_since = story
        .grants
        .iter()
        .find(|grant| grant.token == token)
        .map_or(0, |grant| grant.start);
    let known = story
        .grants
        .iter()
        .any(|grant| grant.token > token && grant.start < end);
    known
        || story.may_be_changed(held_since..end, Change::Replay)
        || story.may_be_changed(held_since..end, Change::Discard)
        || stories.may_be_claimed(key, held_since, end)
}
