//! What settlements promise.

use std::collections::HashSet;

use inbox_api::{Key, State};

use super::{
    Checker, Rule,
    leases::{SLACK, has_rival},
    story::{Grant, Intervention, Settle, Stories, Story},
};
use crate::crash::history::{Change, Ending, Kept};

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
                    self.consequences(key, story, &stories, settle, state);
                }
            }
            if let Some(state @ (State::Processed | State::Dead | State::Discarded)) = state {
                let broken = (!has_cause(story, state))
                    .then(|| format!("is {state}, and nobody has made it so"));
                self.judge(Rule::StateHasACause, &[key], broken);
            }
            for begin in &story.begins {
                if let Some((end, Some(state))) = begin.answer {
                    let mut causes = story.may_have_become(state);
                    let broken = (!causes.any(|cause| *cause.start() < end)).then(|| {
                        format!("a begin was told that it is {state}, and nobody had made it so")
                    });
                    self.judge(Rule::StateHasACause, &[key], broken);
                }
            }
            self.extending(key, story, &stories);
            for intervention in &story.interventions {
                self.intervention(key, story, intervention, state);
            }
        }
        self.stories = stories;
    }

    fn fencing(&mut self, key: &Key, story: &Story, stories: &Stories<'_>, settle: &Settle) {
        match settle.answer {
            Some((_, Kept::Done)) => {
                let taken = stories.taken_before_in_run(story, settle.token, settle.start);
                // Or it was settled before that, and this is a repetition.
                let taken = taken.filter(|(_, taken)| {
                    !story.settles.iter().any(|other| {
                        other.token == settle.token
                            && other.may_be_done()
                            && other.start <= taken.end
                    })
                });
                let used = (settle.token, settle.start);
                self.fenced(key, story, used, "settled", taken);
            }
            Some((end, Kept::LeaseLost)) => {
                // Or it was settled before, and has been purged since.
                let has_cause = has_rival(key, story, stories, settle.token, end)
                    || self.may_have_lost_its_run(story, stories, settle.token, end)
                    || stories.may_be_purged(key, story, &self.clock, end);
                let broken = (!has_cause).then(|| {
                    let token = settle.token;
                    format!("the lease of token {token} was lost, and nobody had claimed it")
                });
                self.judge(Rule::LostToNobody, &[key], broken);
            }
            _ => {}
        }
    }

    fn extending(&mut self, key: &Key, story: &Story, stories: &Stories<'_>) {
        for extension in &story.extensions {
            if let Some((_, Kept::Done | Kept::Unmoved)) = extension.answer {
                let used = (extension.token, extension.start);
                let taken = stories.taken_before_in_run(story, extension.token, extension.start);
                self.fenced(key, story, used, "extended", taken);
            }
        }
    }

    /// Judges the use of a lease, which began at `start`: nobody else may have had the message by then, nor `taken`
    /// one before it in its run.
    fn fenced(
        &mut self,
        key: &Key,
        story: &Story,
        (token, start): (i64, u64),
        what: &str,
        taken: Option<(&Key, &Grant)>,
    ) {
        if let Some(newer) = story.newer_grant(token, start) {
            let newer = newer.token;
            let broken =
                format!("token {token} {what} it although token {newer} had been given out");
            self.judge(Rule::Fenced, &[key], Some(broken));
        } else if let Some((before, taken)) = taken {
            let newer = taken.token;
            let broken = format!(
                "token {token} {what} the second although token {newer} had been given out for the first, which \
                 comes before it in its run"
            );
            self.judge(Rule::Fenced, &[before, key], Some(broken));
        } else {
            self.judge(Rule::Fenced, &[key], None);
        }
    }

    /// What must go before an operator's change, and follow from it.
    fn intervention(
        &mut self,
        key: &Key,
        story: &Story,
        intervention: &Intervention,
        state: Option<State>,
    ) {
        let Some(made) = intervention.made() else {
            return;
        };
        // Each change needs a death of its own.
        let ends = story.interventions.iter().filter_map(Intervention::made);
        let changes = ends.filter(|end| *end <= made).count();
        let deaths = story.settles.iter().filter(|settle| {
            settle.ending.is_dead() && settle.may_be_done() && settle.start < made
        });
        let deaths: HashSet<i64> = deaths.map(|settle| settle.token).collect();
        let broken = (changes > deaths.len()).then(|| {
            format!(
                "an operator changed it ({:?}) as a dead one, for the {changes}. time, and it had died {} times",
                intervention.change,
                deaths.len()
            )
        });
        self.judge(Rule::StateHasACause, &[key], broken);
        // What is discarded is not replayed here.
        if intervention.change == Change::Discard {
            let broken = state
                .filter(|state| *state != State::Discarded)
                .map(|state| format!("was discarded and ended as {state}"));
            self.judge(Rule::SettledState, &[key], broken);
            let granted = story.grants.iter().find(|grant| grant.start > made);
            let broken = granted.map(|grant| {
                let token = grant.token;
                format!("was handed out with token {token} after it was discarded")
            });
            self.judge(Rule::FinalStaysFinal, &[key], broken);
        }
    }

    /// What must follow from a settlement that is done.
    fn consequences(
        &mut self,
        key: &Key,
        story: &Story,
        stories: &Stories<'_>,
        settle: &Settle,
        state: Option<State>,
    ) {
        let Some(done) = settle.done() else { return };
        // A repetition changes nothing, so the first time counts.
        let first = story.first_settled(settle.token);
        if let (Some(state), Some(expected)) = (state, state_after(settle.ending)) {
            let changed = expected == State::Dead
                && (story.may_be_changed(first..u64::MAX, Change::Replay)
                    || story.may_be_changed(first..u64::MAX, Change::Discard));
            let broken = (state != expected && !changed)
                .then(|| format!("was settled as {expected} and ended as {state}"));
            self.judge(Rule::SettledState, &[key], broken);
        }
        for grant in story.grants.iter().filter(|grant| grant.start > done) {
            match settle.ending {
                Ending::Dead | Ending::Block
                    if story.may_be_changed(first..grant.end, Change::Replay) => {}
                Ending::Processed | Ending::Dead | Ending::Block => {
                    let token = grant.token;
                    let what = format!("was handed out with token {token} after it was final");
                    self.judge(Rule::FinalStaysFinal, &[key], Some(what));
                }
                Ending::Retry(after) | Ending::Defer(after) => {
                    // If it may have been handed out in between, the clock may have gone back since.
                    let tokens = [settle.token, grant.token];
                    let from = match stories.may_be_leased(key, story, tokens, first..=grant.end) {
                        true => first,
                        false => grant.start,
                    };
                    let after = i64::try_from(after).unwrap_or(i64::MAX);
                    let due = self.clock.earliest(first..=done).saturating_add(after);
                    let early = due - self.clock.latest(from..=grant.end);
                    let broken = (early > SLACK).then(|| {
                        let early = early / 1000;
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

/// Whether the last that has, or may have, happened to a message could have left it in this final state.
fn has_cause(story: &Story, state: State) -> bool {
    if state == State::Discarded {
        return story.may_be_changed(0..u64::MAX, Change::Discard);
    }
    // A replay that is certain takes back what was certain before.
    let replayed = story.replayed_by(u64::MAX);
    story.settles.iter().any(|settle| {
        settle.may_be_done()
            && state_after(settle.ending) == Some(state)
            && settle.done().is_none_or(|done| done >= replayed)
    })
}

pub(super) fn state_after(ending: Ending) -> Option<State> {
    match ending {
        Ending::Processed => Some(State::Processed),
        Ending::Dead | Ending::Block => Some(State::Dead),
        Ending::Retry(_) | Ending::Release | Ending::Defer(_) => None,
    }
}
