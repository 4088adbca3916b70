//! What receives promise.

use std::collections::HashSet;

use super::{Checker, Rule, story::Story};
use crate::crash::history::Received;

impl Checker<'_> {
    pub(super) fn receiving(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        for (key, story) in &stories.by_key {
            self.judge(Rule::AcceptedOnce, &[key], accepted_again(story));
            for broken in duplicates(story) {
                self.judge(Rule::DuplicateHasAnOriginal, &[key], broken);
            }
        }
        let mut seen = HashSet::new();
        for record in self.evidence.listing {
            let key = &record.key;
            let sent = stories.any(key).and_then(Story::sent).is_some();
            let broken = if !sent {
                Some("is in the inbox, and nobody sent it".to_owned())
            } else if !seen.insert(key) {
                Some("is in the inbox twice".to_owned())
            } else {
                None
            };
            self.judge(Rule::NothingInvented, &[key], broken);
            let broken = (!record.state.is_final())
                .then(|| format!("is {} although there was time enough", record.state));
            self.judge(Rule::EverythingFinal, &[key], broken);
        }
        self.stories = stories;
    }
}

fn accepted_again(story: &Story) -> Option<String> {
    let accepted: Vec<u64> = story
        .receives
        .iter()
        .filter(|receive| matches!(receive.answer, Some((_, Received::Accepted))))
        .map(|receive| receive.start)
        .collect();
    if accepted.len() > 1 {
        return Some(format!("was accepted {} times", accepted.len()));
    }
    let start = *accepted.first()?;
    (story.stored()? < start)
        .then(|| "was accepted by a receive that began when it was stored already".to_owned())
}

/// One judgement per duplicate: something before its end may have stored the first copy.
fn duplicates(story: &Story) -> Vec<Option<String>> {
    let first_possible = story
        .receives
        .iter()
        .filter(|receive| matches!(receive.answer, None | Some((_, Received::Accepted))))
        .map(|receive| receive.start)
        .chain(story.begins.iter().map(|begin| begin.start))
        .min();
    story
        .receives
        .iter()
        .filter_map(|receive| match receive.answer {
            Some((end, Received::Duplicate)) => Some(end),
            _ => None,
        })
        .map(|end| {
            first_possible
                .is_none_or(|first| first > end)
                .then(|| "is a duplicate of nothing: no receive can have stored it before".into())
        })
        .collect()
}
