//! Order: of the listing, and of the messages that share an ordering key.

use std::collections::{BTreeMap, HashMap};

use inbox_api::{HandlerName, Key, OrderingKey};

use super::{
    Checker, Rule,
    story::{Stories, Story},
};
use crate::crash::history::{Change, Ending, Received};

impl<'a> Checker<'a> {
    pub(super) fn ordering(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        let mut listed: Vec<(&Key, &Story)> = Vec::new();
        for record in self.evidence.listing {
            if let Some(story) = stories.by_key.get(&record.key) {
                listed.push((&record.key, story));
            }
        }
        self.listed_in_order(&listed);
        let mut chains: BTreeMap<(&HandlerName, &OrderingKey), Vec<(&Key, &Story)>> =
            BTreeMap::new();
        let purged = stories
            .by_key
            .iter()
            .filter(|(_, one)| one.listed.is_none());
        let purged = purged.map(|(key, story)| (*key, story));
        for (key, story) in purged.chain(listed) {
            if let Some(ordering_key) = &story.ordering_key {
                let chain = chains.entry((&key.handler, ordering_key)).or_default();
                chain.push((key, story));
            }
        }
        for chain in chains.values() {
            self.chain(chain, &stories);
            self.blocked(chain, &stories);
            self.one_run_at_a_time(chain, &stories);
        }
        self.stories = stories;
    }

    /// Whatever was stored before another was sent is listed before it, and the messages of one
    /// batch are in the batch's order.
    fn listed_in_order(&mut self, listed: &[(&Key, &Story)]) {
        let mut first_stored: Option<(u64, &Key)> = None;
        for (key, story) in listed.iter().rev() {
            let broken = match (first_stored, story.sent()) {
                (Some((stored, later)), Some(sent)) if stored < sent => Some(later),
                _ => None,
            };
            let keys: Vec<&Key> = std::iter::once(*key).chain(broken).collect();
            let what = "the second was stored before the first was sent, and is listed behind it";
            self.judge(Rule::ListedInOrder, &keys, broken.map(|_| what.to_owned()));
            if let Some(stored) = story.stored()
                && first_stored.is_none_or(|(first, _)| stored < first)
            {
                first_stored = Some((stored, key));
            }
        }
        // The last listed message of each batch so far, and its place in the batch.
        let mut batches: HashMap<usize, (usize, &Key)> = HashMap::new();
        let mut places: HashMap<(usize, &Key), usize> = HashMap::new();
        for (index, call) in self.evidence.history.calls.iter().enumerate() {
            if let crate::crash::history::Asked::Receive { messages, .. } = &call.asked {
                for (place, sent) in messages.iter().enumerate() {
                    places.entry((index, &sent.key)).or_insert(place);
                }
            }
        }
        for (key, story) in listed {
            let accepted = story
                .receives
                .iter()
                .find(|receive| matches!(receive.answer, Some((_, Received::Accepted))));
            let Some(call) = accepted.map(|receive| receive.call) else {
                continue;
            };
            let place = places.get(&(call, *key)).copied().unwrap_or(0);
            if let Some((before, earlier)) = batches.insert(call, (place, key)) {
                let broken = (place < before)
                    .then(|| "were listed in another order than their batch's".to_owned());
                self.judge(Rule::ListedInOrder, &[earlier, key], broken);
            }
        }
    }

    /// The messages of one ordering key.
    fn chain(&mut self, chain: &[(&Key, &Story)], stories: &Stories<'_>) {
        // Before that, nothing behind it may have been handed out or finished.
        let until: HashMap<&Key, u64> = chain
            .iter()
            .map(|(key, story)| {
                (
                    *key,
                    stories.holds_its_ordering_key_until(key, story, &self.clock),
                )
            })
            .collect();
        let holds_at = |key: &Key, moment| until.get(key).is_some_and(|until| *until > moment);
        for (key, story) in chain {
            let earlier = || {
                let others = chain.iter();
                others.filter(|(_, other)| was_accepted_before(other, story))
            };
            for grant in &story.grants {
                // An earlier one that was there when this was handed out, and was not final.
                let overtaken = earlier().find(|(first, earlier)| {
                    let turn = (*key, *story, grant.token, Some(grant));
                    earlier.stored().is_some_and(|stored| {
                        stored < grant.start
                            && holds_at(first, grant.end)
                            && !grant.is_behind_in_run(earlier)
                            && !stories.may_have_kept_its_turn(turn, earlier, stored)
                    })
                });
                let keys: Vec<&Key> = overtaken
                    .map(|(earlier, _)| *earlier)
                    .into_iter()
                    .chain([*key])
                    .collect();
                let broken = overtaken.map(|_| {
                    let token = grant.token;
                    format!(
                        "the second was handed out with token {token} before the first was final"
                    )
                });
                self.judge(Rule::HandedOutInOrder, &keys, broken);
            }
            let done = story
                .settles
                .iter()
                .filter(|settle| settle.ending.is_final())
                .filter_map(|settle| settle.done().map(|end| (settle, end)))
                .min_by_key(|(_, end)| *end);
            if let Some((settle, end)) = done {
                // What comes in when a later one is at work does not stop that.
                let mut grants = story.grants.iter();
                let grant = grants.find(|grant| grant.token == settle.token);
                let began = grant.map_or(settle.start, |grant| grant.start);
                let overtaken = earlier().find(|(first, earlier)| {
                    let turn = (*key, *story, settle.token, grant);
                    earlier.stored().is_some_and(|stored| {
                        stored < began
                            && holds_at(first, end)
                            && !stories.may_have_kept_its_turn(turn, earlier, stored)
                    })
                });
                let keys: Vec<&Key> = overtaken
                    .map(|(earlier, _)| *earlier)
                    .into_iter()
                    .chain([*key])
                    .collect();
                let broken =
                    overtaken.map(|_| "the second was finished before the first".to_owned());
                self.judge(Rule::CompletedInOrder, &keys, broken);
            }
        }
    }

    /// What is behind one that is dead and blocks the ordering key waits until an operator replays, discards or
    /// purges that.
    fn blocked(&mut self, chain: &[(&Key, &Story)], stories: &Stories<'_>) {
        for (key, story) in chain {
            let blocking = story
                .settles
                .iter()
                .filter(|one| one.ending == Ending::Block);
            for (settle, done) in blocking.filter_map(|one| Some((one, one.done()?))) {
                let died = story.first_settled(settle.token);
                let others = chain.iter();
                let behind = others.filter(|(_, other)| was_accepted_before(story, other));
                let behind: Vec<_> = behind.collect();
                if behind.is_empty() {
                    continue;
                }
                let mut grants = behind.iter().flat_map(|(behind, other)| {
                    let grants = other.grants.iter().filter(|grant| grant.start > done);
                    grants.map(move |grant| (*behind, grant))
                });
                let is_freed_by = |end| {
                    story.may_be_changed(died..end, Change::Replay)
                        || story.may_be_changed(died..end, Change::Discard)
                        || stories.may_be_purged(key, story, &self.clock, end)
                };
                let passed = grants.find(|(_, grant)| !is_freed_by(grant.end));
                let keys: Vec<&Key> = std::iter::once(*key)
                    .chain(passed.map(|(behind, _)| behind))
                    .collect();
                let broken = passed.map(|(_, grant)| {
                    let token = grant.token;
                    format!("the second was handed out with token {token} while the first was dead and blocked it")
                });
                self.judge(Rule::BlockedKeyWaits, &keys, broken);
            }
        }
    }
}

/// Whether the first was certainly accepted before the second: by the listing, or, if one was purged, by the calls.
fn was_accepted_before(first: &Story, second: &Story) -> bool {
    match (first.listed, second.listed) {
        (Some(first), Some(second)) => first < second,
        _ => first
            .stored()
            .is_some_and(|stored| second.sent().is_some_and(|sent| stored < sent)),
    }
}
