//! What settlements promise.

use inbox_api::{Key, State};

use super::{
    Checker, Rule,
    leases::{SLACK, has_rival},
    story::{Settle, Stories, Story},
};
use crate::crash::history::{Ending, Kept};

impl Checker<'_> {
    pub(super) fn settling(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        for (key, story) in &stories.by_key {
            let state = story
                .listed
                .and_then(|place| self.evidence.listing.get(place))
                .map(|record| record.state);
            for settle in &story.settles {
                self.fencing(key, story, &stories, settle);
                if settle.done().is_some() {
                    self.consequences(key, story, settle, state);
                }
            }
            if let Some(state @ (State::Processed | State::Dead | State::Discarded)) = state {
                let cause = story.settles.iter().any(|settle| {
                    settle.may_be_done() && state_after(settle.ending) == Some(state)
                });
                let broken = (!cause).then(|| format!("is {state}, and nobody settled it so"));
                self.judge(Rule::StateHasACause, &[key], broken);
            }
        }
        self.stories = stories;
    }

    fn fencing(&mut self, key: &Key, story: &Story, stories: &Stories<'_>, settle: &Settle) {
        match settle.answer {
            Some((_, Kept::Done)) => {
                let newer = story
                    .grants
                    .iter()
                    .find(|grant| grant.token > settle.token && grant.end < settle.start);
                let broken = newer.map(|newer| {
                    format!(
                        "token {} settled it although token {} had been given out",
                        settle.token, newer.token
                    )
                });
                self.judge(Rule::Fenced, &[key], broken);
            }
            Some((end, Kept::LeaseLost)) => {
                let broken = (!has_rival(key, story, stories, settle.token, end)).then(|| {
                    let token = settle.token;
                    format!("the lease of token {token} was lost, and nobody had claimed it")
                });
                self.judge(Rule::LostToNobody, &[key], broken);
            }
            _ => {}
        }
    }

    /// What must follow from a settlement that is done.
    fn consequences(&mut self, key: &Key, story: &Story, settle: &Settle, state: Option<State>) {
        let Some(done) = settle.done() else { return };
        if let (Some(state), Some(expected)) = (state, state_after(settle.ending)) {
            let broken = (state != expected)
                .then(|| format!("was settled as {expected} and ended as {state}"));
            self.judge(Rule::SettledState, &[key], broken);
        }
        for grant in story.grants.iter().filter(|grant| grant.start > done) {
            match settle.ending {
                Ending::Processed | Ending::Dead => {
                    let token = grant.token;
                    let what = format!("was handed out with token {token} after it was final");
                    self.judge(Rule::FinalStaysFinal, &[key], Some(what));
                }
                Ending::Retry(after) | Ending::Defer(after) => {
                    // A repetition changes nothing, so the first time counts.
                    let first = story
                        .settles
                        .iter()
                        .filter(|other| other.token == settle.token)
                        .map(|other| other.start)
                        .min()
                        .unwrap_or(settle.start);
                    let early = grant.end + SLACK < first + after;
                    let broken = early.then(|| {
                        let early = (first + after - grant.end) / 1000;
                        let token = grant.token;
                        format!("was handed out with token {token} {early} ms before it was due")
                    });
                    self.judge(Rule::RetryWaits, &[key], broken);
                }
                Ending::Release => {}
            }
        }
        if settle.ending.is_final() {
            self.judge(Rule::FinalStaysFinal, &[key], None);
        }
    }
}

fn state_after(ending: Ending) -> Option<State> {
    match ending {
        Ending::Processed => Some(State::Processed),
        Ending::Dead => Some(State::Dead),
        Ending::Retry(_) | Ending::Release | Ending::Defer(_) => None,
    }
}
