//! The rules that a history must obey, whatever was killed while it was made.
//!
//! All rules know only what is certain. A call happened at some moment between its start and its
//! end; one that failed or never ended may have happened at any time from its start on, or not at
//! all. A rule is broken only when no choice of those moments obeys it. Leases and due times are judged by the store's
//! clock, which may have been moved ([`History::moves`]).

mod clock;
mod contents;
mod effects;
mod interventions;
mod leases;
mod ordering;
mod purges;
mod receiving;
mod runs;
mod settling;
mod show;
mod story;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use inbox_api::{Key, Record};

use super::history::{Answered, History};
use clock::Clock;
use story::Stories;

/// So many violations of each rule come with the history of their messages. A store that breaks a
/// rule breaks it thousands of times in a run, and nobody reads more.
pub(crate) const TOLD: usize = 3;

/// What a history is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A key is accepted at most once, and never when it was known to be stored, unless it may have been purged.
    AcceptedOnce,
    /// A duplicate is a copy of something that may have been stored before.
    DuplicateHasAnOriginal,
    /// A message of which a receive, or a claim, has told is in the inbox, unless it was final for long enough, and a
    /// purge came by. Purges tell how many they delete.
    NothingLost,
    /// Every message in the inbox was sent, and is there once.
    NothingInvented,
    /// Every message in the inbox is final at the end.
    EverythingFinal,
    /// Two leases on a key are never valid at the same moment.
    OneHolder,
    /// Of two claims of a key, the later has the greater token.
    TokensGrow,
    /// A settlement or extension that was answered with `Done` had the newest token, and in a run nobody else had
    /// taken a message before it.
    Fenced,
    /// A lease is lost only to a worker that claimed the message, or one before it in its run, or an operator who
    /// changed it or purged what had been settled.
    LostToNobody,
    /// A message ends in the state that its settlement gave it, or an operator, and blocks its ordering key if that
    /// settlement said so.
    SettledState,
    /// A final state comes from a settlement or an operator, who changes only what is dead.
    StateHasACause,
    /// A message that is final is not handed out, unless an operator has replayed it.
    FinalStaysFinal,
    /// A message that is to be retried, or was deferred, is not handed out before it is due.
    RetryWaits,
    /// A message is handed out with the content that was sent, and has it at the end.
    HandedOutWhole,
    /// A claim, a begin and the record at the end tell how often an operator has replayed the message.
    ReplaysTold,
    /// An operator's list has only what is dead, or blocks its ordering key where it asks for that, and all of it, as
    /// far as its limit goes.
    ListedAsAsked,
    /// Every claim counts as an attempt started, unless it was released or deferred or the message's turn in its run
    /// never came, and every other outcome as one finished; nothing else does. Messages that an operator may have
    /// replayed are not judged, as their attempts begin again.
    AttemptsCounted,
    /// A message is not handed out while an earlier one of its ordering key is unfinished, unless one claim got both,
    /// the earlier first, or it has kept its turn from before that.
    HandedOutInOrder,
    /// A message is not handed out while an earlier one of its ordering key is dead and blocks it.
    BlockedKeyWaits,
    /// Two messages of one ordering key are leased at the same moment only if one claim got both.
    OneRunAtATime,
    /// A claim gets no more than it asks for, and of no other handler. The messages of one ordering key that it
    /// gets stand together, are no more than were asked for, and none of several has an earlier attempt without
    /// an outcome. Nor is one behind others that was in a claim before and has not been settled since.
    ClaimsAsAsked,
    /// A message is not finished before an earlier one of its ordering key that was there when its turn came.
    CompletedInOrder,
    /// The inbox lists messages in the order in which they were accepted.
    ListedInOrder,
    /// In transactional mode, a processed message's effect is there once, and no other's at all.
    EffectsOnce,
    /// A killed worker or server makes operations fail as `Unavailable` or `Conflict` and nothing
    /// else, spoils no row, and has no valid message refused.
    OnlyRetryableErrors,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 25] = [
        Self::AcceptedOnce,
        Self::DuplicateHasAnOriginal,
        Self::NothingLost,
        Self::NothingInvented,
        Self::EverythingFinal,
        Self::OneHolder,
        Self::TokensGrow,
        Self::Fenced,
        Self::LostToNobody,
        Self::SettledState,
        Self::StateHasACause,
        Self::FinalStaysFinal,
        Self::RetryWaits,
        Self::HandedOutWhole,
        Self::ReplaysTold,
        Self::ListedAsAsked,
        Self::AttemptsCounted,
        Self::HandedOutInOrder,
        Self::BlockedKeyWaits,
        Self::OneRunAtATime,
        Self::ClaimsAsAsked,
        Self::CompletedInOrder,
        Self::ListedInOrder,
        Self::EffectsOnce,
        Self::OnlyRetryableErrors,
    ];

    /// The rule's name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AcceptedOnce => "accepted-once",
            Self::DuplicateHasAnOriginal => "duplicate-has-an-original",
            Self::NothingLost => "nothing-lost",
            Self::NothingInvented => "nothing-invented",
            Self::EverythingFinal => "everything-final",
            Self::OneHolder => "one-holder",
            Self::TokensGrow => "tokens-grow",
            Self::Fenced => "fenced",
            Self::LostToNobody => "lost-to-nobody",
            Self::SettledState => "settled-state",
            Self::StateHasACause => "state-has-a-cause",
            Self::FinalStaysFinal => "final-stays-final",
            Self::RetryWaits => "retry-waits",
            Self::HandedOutWhole => "handed-out-whole",
            Self::ReplaysTold => "replays-told",
            Self::ListedAsAsked => "listed-as-asked",
            Self::AttemptsCounted => "attempts-counted",
            Self::HandedOutInOrder => "handed-out-in-order",
            Self::BlockedKeyWaits => "blocked-key-waits",
            Self::OneRunAtATime => "one-run-at-a-time",
            Self::ClaimsAsAsked => "claims-as-asked",
            Self::CompletedInOrder => "completed-in-order",
            Self::ListedInOrder => "listed-in-order",
            Self::EffectsOnce => "effects-once",
            Self::OnlyRetryableErrors => "only-retryable-errors",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a run leaves behind.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// All calls of all workers.
    pub history: &'a History,
    /// Everything in the inbox at the end, in the order in which the inbox lists it.
    pub listing: &'a [Record],
    /// In transactional mode, how often each effect was written, by the key's text
    /// (`handler/id`).
    pub effects: Option<&'a HashMap<String, u64>>,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// How it was broken.
    pub what: String,
    /// What happened to the messages concerned, one line per call. Only the first three violations
    /// of each rule have it.
    pub history: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)?;
        for line in &self.history {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// How often each rule had something to judge. A rule without an occasion has shown nothing.
    pub occasions: BTreeMap<Rule, u64>,
    /// How many messages may have been accepted again, as new ones, behind a purge. Few rules judge them.
    pub set_aside: usize,
}

impl Findings {
    /// How often `rule` was broken.
    #[must_use]
    pub fn broken(&self, rule: Rule) -> usize {
        let of_rule = |violation: &&Violation| violation.rule == rule;
        self.violations.iter().filter(of_rule).count()
    }
}

/// Checks all rules.
#[must_use]
pub fn check(evidence: &Evidence<'_>) -> Findings {
    let clock = Clock::of(&evidence.history.moves);
    let stories = Stories::new(evidence.history, evidence.listing, &clock);
    let findings = Findings {
        set_aside: stories.set_aside.len(),
        ..Findings::default()
    };
    let mut checker = Checker {
        evidence: *evidence,
        stories,
        clock,
        findings,
    };
    checker.receiving();
    checker.purging();
    checker.leases();
    checker.settling();
    checker.contents();
    checker.interventions();
    checker.ordering();
    checker.claims();
    checker.effects();
    checker.errors();
    checker.findings
}

struct Checker<'a> {
    evidence: Evidence<'a>,
    stories: Stories<'a>,
    clock: Clock,
    findings: Findings,
}

impl Checker<'_> {
    /// Notes one judgement of `rule`: `broken` says how it was broken, if it was, and which
    /// messages are concerned.
    fn judge(&mut self, rule: Rule, keys: &[&Key], broken: Option<String>) {
        *self.findings.occasions.entry(rule).or_default() += 1;
        if let Some(what) = broken {
            let told = self.findings.broken(rule) < TOLD;
            let history = if told {
                show::lines(&self.evidence, keys)
            } else {
                Vec::new()
            };
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            self.findings.violations.push(Violation {
                rule,
                what: format!("{}: {what}", keys.join(", ")),
                history,
            });
        }
    }

    fn errors(&mut self) {
        let history = self.evidence.history;
        for call in &history.calls {
            let broken = match &call.answered {
                Some(Answered::Failed {
                    error, retryable, ..
                }) => (!retryable).then(|| error.clone()),
                Some(Answered::Claims { corrupt, .. }) => {
                    (*corrupt > 0).then(|| format!("a claim found {corrupt} corrupt rows"))
                }
                Some(Answered::Listed { corrupt, .. }) => {
                    (*corrupt > 0).then(|| format!("a list found {corrupt} corrupt rows"))
                }
                Some(Answered::Receipts(receipts)) => receipts
                    .contains(&super::history::Received::Refused)
                    .then(|| "a message was refused".to_owned()),
                Some(Answered::Settled(settled)) => settled
                    .contains(&super::history::Kept::Refused)
                    .then(|| "a settlement was refused".to_owned()),
                _ => continue,
            };
            let broken = broken.map(|what| {
                let origin = show::origin(history);
                format!("{what}: {}", show::when(call, origin))
            });
            self.judge(Rule::OnlyRetryableErrors, &[], broken);
        }
    }
}
