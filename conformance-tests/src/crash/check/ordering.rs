//! Order: of the listing, and of the messages that share an ordering key.

use std::collections::{BTreeMap, HashMap};

use inbox_api::{HandlerName, Key, OrderingKey};

use super::{Checker, Rule, story::Story};
use crate::crash::history::Received;

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
            self.chain(chain);
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
    fn chain(&mut self, chain: &[(&Key, &Story)]) {
        for (key, story) in chain {
            let earlier = || {
                let others = chain.iter();
                others.filter(|(_, other)| was_accepted_before(other, story))
            };
            for grant in &story.grants {
                // An earlier one that was there when this was handed out, and was not final.
                let overtaken = earlier().find(|(_, earlier)| {
                    earlier.stored().is_some_and(|stored| stored < grant.start)
                        && earlier.unfinished_until() > grant.end
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
                .filter_map(|settle| settle.done().map(|end| (settle.start, end)))
                .min_by_key(|(_, end)| *end);
            if let Some((start, end)) = done {
                let overtaken = earlier().find(|(_, earlier)| {
                    earlier.stored().is_some_and(|stored| stored < start)
                        && earlier.unfinished_until() > end
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
