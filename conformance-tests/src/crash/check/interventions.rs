//! What an operator's lists show, and what is told of replays.

use std::{
    collections::{BTreeSet, HashSet},
    ops::RangeInclusive,
};

use inbox_api::{HandlerName, Key, Record, State};

use super::{
    Checker, Rule,
    story::{Intervention, Settle, Stories, Story},
};
use crate::crash::history::{Answered, Asked, Change, Ending};

/// An operator's list: what it asked for, and when.
struct List<'a> {
    handler: Option<&'a HandlerName>,
    blocking: bool,
    during: RangeInclusive<u64>,
}

impl Checker<'_> {
    pub(super) fn interventions(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        for (key, story) in &stories.by_key {
            for grant in &story.grants {
                let broken = story.miscounted(grant.replays, grant.start..=grant.end);
                let broken = broken.map(|what| format!("token {} {what}", grant.token));
                self.judge(Rule::ReplaysTold, &[key], broken);
            }
            let mut places = story.listed.into_iter();
            if let Some(record) = places.find_map(|place| self.evidence.listing.get(place)) {
                let broken = story.miscounted(record.replays, u64::MAX..=u64::MAX);
                let broken = broken.map(|what| format!("at the end the inbox {what}"));
                self.judge(Rule::ReplaysTold, &[key], broken);
                if record.state == State::Dead {
                    self.judge(Rule::SettledState, &[key], story.blocks_wrongly(record));
                }
            }
        }
        self.lists(&stories);
        self.stories = stories;
    }

    fn lists(&mut self, stories: &Stories<'_>) {
        let mortal: Vec<(&Key, &Story)> = stories
            .by_key
            .iter()
            .filter(|(_, story)| story.settles.iter().any(|one| one.ending.is_dead()))
            .map(|(key, story)| (*key, story))
            .collect();
        for call in &self.evidence.history.calls {
            let (
                Asked::List {
                    handler,
                    blocking,
                    limit,
                },
                Some(Answered::Listed { keys, whole, .. }),
                Some(end),
            ) = (&call.asked, &call.answered, call.end)
            else {
                continue;
            };
            let list = List {
                handler: handler.as_ref(),
                blocking: *blocking,
                during: call.start..=end,
            };
            let too_many = (keys.len() > *limit as usize)
                .then(|| format!("a list of {limit} messages at most has {}", keys.len()));
            self.judge(Rule::ListedAsAsked, &[], too_many);
            for key in keys {
                self.judge(Rule::ListedAsAsked, &[key], list.misfit(key, stories));
            }
            for [first, second] in keys.array_windows() {
                let place = |key| stories.by_key.get(key).and_then(|story| story.listed);
                let broken = place(first).zip(place(second)).is_some_and(|(a, b)| a >= b);
                let broken =
                    broken.then(|| "were listed in another order than at the end".to_owned());
                self.judge(Rule::ListedInOrder, &[first, second], broken);
            }
            // A page that is not the last one ends with the last of these.
            let end = keys.last().and_then(|key| stories.by_key.get(key)?.listed);
            let is_within = |story: &Story| {
                *whole
                    || story
                        .listed
                        .zip(end)
                        .is_some_and(|(place, end)| place < end)
            };
            let listed: HashSet<&Key> = keys.iter().collect();
            let missing = mortal.iter().filter(|(key, story)| {
                !listed.contains(key)
                    && is_within(story)
                    && self.has_to_be_listed(key, story, &list, stories)
            });
            let missing: Vec<&Key> = missing.map(|(key, _)| *key).collect();
            self.judge(Rule::ListedAsAsked, &[], None);
            for key in missing {
                let broken = format!(
                    "was dead, and is missing in a list from {}",
                    super::show::when(call, super::show::origin(self.evidence.history))
                );
                self.judge(Rule::ListedAsAsked, &[key], Some(broken));
            }
        }
    }

    /// Whether it was dead all the time, as far as the list is concerned.
    fn has_to_be_listed(
        &self,
        key: &Key,
        story: &Story,
        list: &List<'_>,
        stories: &Stories<'_>,
    ) -> bool {
        let (start, end) = (*list.during.start(), *list.during.end());
        let deaths = story.settles.iter().filter(|settle| list.means(settle));
        let mut deaths = deaths.filter(|settle| settle.done().is_some_and(|done| done < start));
        let is_freed = |death: &Settle| {
            let died = story.first_settled(death.token);
            story.may_be_changed(died..end, Change::Replay)
                || story.may_be_changed(died..end, Change::Discard)
        };
        list.handler.is_none_or(|handler| *handler == key.handler)
            && (!list.blocking || story.ordering_key.is_some())
            && deaths.any(|death| !is_freed(death))
            && !stories.may_be_purged(key, story, &self.clock, end)
    }
}

impl List<'_> {
    /// Whether it is for messages that were settled so.
    fn means(&self, settle: &Settle) -> bool {
        match self.blocking {
            true => settle.ending == Ending::Block,
            false => settle.ending.is_dead(),
        }
    }

    /// Why it should not have this message.
    fn misfit(&self, key: &Key, stories: &Stories<'_>) -> Option<String> {
        if self.handler.is_some_and(|handler| *handler != key.handler) {
            return Some("is in a list of another handler's".to_owned());
        }
        let Some(story) = stories.by_key.get(key) else {
            // Of those that were set aside nobody knows which of two it was.
            let is_known = stories.set_aside.contains_key(key);
            return (!is_known).then(|| "is in a list, and nobody sent it".to_owned());
        };
        let (start, end) = (*self.during.start(), *self.during.end());
        let may_have_died = |is_meant: &dyn Fn(&Settle) -> bool| {
            let settles = story.settles.iter().filter(|settle| {
                settle.ending.is_dead() && settle.may_be_done() && settle.start < end
            });
            let deaths = settles.filter(|settle| is_meant(settle));
            deaths
                .map(|settle| settle.token)
                .collect::<BTreeSet<_>>()
                .len()
        };
        let changes = story.interventions.iter();
        let changes = changes.filter(|one| one.made().is_some_and(|made| made < start));
        let is_dead = may_have_died(&|_| true) > changes.count();
        if !is_dead {
            return Some("is in a list of dead messages, and was not dead".to_owned());
        }
        let blocks = story.ordering_key.is_some() && may_have_died(&|one| self.means(one)) > 0;
        (self.blocking && !blocks)
            .then(|| "is in a list of what blocks its ordering key, and did not".to_owned())
    }
}

impl Story {
    /// How a number of replays is wrong that was told between these moments.
    fn miscounted(&self, told: u32, during: RangeInclusive<u64>) -> Option<String> {
        let replays = || {
            let changes = self.interventions.iter();
            changes.filter(|one| one.change == Change::Replay)
        };
        let is_made = |one: &&Intervention| one.made().is_some_and(|made| made < *during.start());
        let may_be_made = |one: &&Intervention| one.may_be_made() && one.start <= *during.end();
        let least = replays().filter(is_made).count();
        let most = replays().filter(may_be_made).count();
        (!(least..=most).contains(&(told as usize)))
            .then(|| format!("tells of {told} replays, and there were {least} to {most}"))
    }

    /// How the record of a dead message is wrong about blocking its ordering key.
    fn blocks_wrongly(&self, record: &Record) -> Option<String> {
        let replayed = self.replayed_by(u64::MAX);
        let deaths = || {
            self.settles.iter().filter(move |settle| {
                settle.ending.is_dead()
                    && settle.may_be_done()
                    && settle.done().is_none_or(|done| done >= replayed)
            })
        };
        let is_ordered = record.ordering_key.is_some();
        let may_block = is_ordered && deaths().any(|one| one.ending == Ending::Block);
        let has_to_block =
            is_ordered && deaths().count() > 0 && deaths().all(|one| one.ending == Ending::Block);
        if record.blocks_ordering_key && !may_block {
            return Some("blocks its ordering key, and was not settled so".to_owned());
        }
        (!record.blocks_ordering_key && has_to_block)
            .then(|| "was settled as blocking its ordering key, and does not".to_owned())
    }
}
