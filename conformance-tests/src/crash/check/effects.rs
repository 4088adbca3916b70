//! What transactions promise.

use inbox_api::State;

use super::{Checker, Rule, settling::state_after, story::Settle};

impl Checker<'_> {
    pub(super) fn effects(&mut self) {
        let Some(effects) = self.evidence.effects else {
            return;
        };
        let stories = std::mem::take(&mut self.stories);
        for (key, story) in &stories.by_key {
            let written = effects.get(&key.to_string()).copied().unwrap_or(0);
            let record = story
                .listed
                .and_then(|place| self.evidence.listing.get(place));
            let broken = if let Some(record) = record {
                let expected = u64::from(record.state == State::Processed);
                let state = record.state;
                (written != expected)
                    .then(|| format!("is {state}, and its effect is there {written} times"))
            } else {
                // Purged, or never there.
                let is_processed =
                    |one: &&Settle| state_after(one.ending) == Some(State::Processed);
                let mut processed = story.settles.iter().filter(is_processed);
                let was = processed.clone().any(|settle| settle.done().is_some());
                let may_be = processed.any(Settle::may_be_done);
                let possible = u64::from(was)..=u64::from(may_be);
                (!possible.contains(&written))
                    .then(|| format!("is gone, and its effect is there {written} times"))
            };
            self.judge(Rule::EffectsOnce, &[key], broken);
        }
        let judged = stories.by_key.keys();
        let known: std::collections::HashSet<String> = judged
            .chain(stories.set_aside.keys())
            .map(ToString::to_string)
            .collect();
        for note in effects.keys().filter(|note| !known.contains(*note)) {
            let what = format!("{note:?} was written for no message of the inbox");
            self.judge(Rule::EffectsOnce, &[], Some(what));
        }
        self.stories = stories;
    }
}
