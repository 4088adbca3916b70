//! What claims promise, of what they asked for, and of runs: several messages of one ordering key that a claim got.

use std::collections::HashMap;

use inbox_api::{HandlerName, Key};

use super::{
    Checker, Rule,
    clock::Clock,
    story::{Grant, Settle, Stories, Story},
};
use crate::crash::history::{Answered, Asked, Change, Granted, Held, Kept, runs_in};

/// A place in a run of more than one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InRun {
    /// Its index among all runs.
    run: usize,
    /// The first has place 0.
    place: usize,
}

impl Grant {
    fn is_of_the_same_run(&self, other: &Self) -> bool {
        self.in_run
            .zip(other.in_run)
            .is_some_and(|(this, other)| this.run == other.run)
    }

    /// Whether it came in the same run as one of the `other` message, behind that.
    pub(super) fn is_behind_in_run(&self, other: &Story) -> bool {
        self.in_run.is_some_and(|this| {
            let mut others = other.grants.iter().filter_map(|grant| grant.in_run);
            others.any(|other| other.run == this.run && other.place < this.place)
        })
    }

    /// Whether it came behind the `other` message in a run of which a settlement of that one has no answer. Each
    /// message is settled for itself: that one may be waiting again, and this one still be leased.
    fn may_be_left_behind(&self, other: &Story) -> bool {
        let mut settles = other.settles.iter().filter(|one| one.answer.is_none());
        settles.any(|settle| {
            let mut grants = other.grants.iter();
            grants.any(|grant| {
                let places = self.in_run.zip(grant.in_run);
                grant.token == settle.token
                    && places.is_some_and(|(this, other)| {
                        other.run == this.run && other.place < this.place
                    })
            })
        })
    }
}

impl<'a> Stories<'a> {
    /// Notes the runs of a claim's answer, and answers where in them each message stands.
    pub(super) fn add_runs(&mut self, granted: &'a [Granted]) -> Vec<Option<InRun>> {
        let mut places = HashMap::new();
        for members in runs_in(granted) {
            let run = self.runs.len();
            let in_run = |(place, member): (usize, &usize)| (*member, InRun { run, place });
            places.extend(members.iter().enumerate().map(in_run));
            let members = members.iter().filter_map(|member| granted.get(*member));
            self.runs.push(members.collect());
        }
        (0..granted.len())
            .map(|member| places.get(&member).copied())
            .collect()
    }

    /// The messages before this one in its run, in their order.
    fn before_in_run(&self, grant: &Grant) -> &[&'a Granted] {
        let before = grant
            .in_run
            .and_then(|at| self.runs.get(at.run)?.get(..at.place));
        before.unwrap_or_default()
    }

    /// One before it in its run, and the lease under which another worker had that one before this moment, although it
    /// had not been settled under the run's. This lease is lost then.
    pub(super) fn taken_before_in_run(
        &self,
        story: &Story,
        token: i64,
        moment: u64,
    ) -> Option<(&'a Key, &Grant)> {
        let grant = story.grants.iter().find(|grant| grant.token == token)?;
        self.before_in_run(grant).iter().find_map(|before| {
            let (key, token) = (&before.held.key, before.held.token);
            let other = self.by_key.get(key)?;
            let mut settles = other.settles.iter();
            let settled = settles.any(|settle| settle.token == token && settle.may_be_done());
            let taken = other.newer_grant(token, moment).filter(|_| !settled);
            taken.map(|taken| (key, taken))
        })
    }

    /// Whether the message was given out before, under a lease that is certain not to have been settled. It may be the
    /// first of a run then, and does not come behind others.
    fn has_unsettled_lease_before(&self, held: &Held) -> bool {
        let Some(story) = self.by_key.get(&held.key) else {
            return false;
        };
        let grants = story.grants.iter().map(|grant| grant.token);
        let newest = grants.filter(|token| *token < held.token).max();
        newest.is_some_and(|newest| {
            let mut settles = story.settles.iter();
            !settles.any(|one| (newest..held.token).contains(&one.token) && one.may_be_done())
        })
    }

    /// Whether the message, or one before it in the run of this lease, may have had its turn since before `earlier`,
    /// which was `stored` by then: a lease that runs out keeps its turn, and what is claimed then may bring those
    /// behind it along. Or they were left behind `earlier` in a run.
    pub(super) fn may_have_kept_its_turn(
        &self,
        (key, story, token, grant): (&Key, &Story, i64, Option<&Grant>),
        earlier: &Story,
        stored: u64,
    ) -> bool {
        let kept = |key: &Key, story: &Story, token: i64| {
            // What was settled for certain has given its turn back.
            let settles = story.settles.iter();
            let settles = settles.filter(|one| one.token < token && one.done().is_some());
            let last = settles.max_by_key(|one| one.token);
            let since = last.map_or(story.sent(), |last| Some(last.start));
            let is_since = |grant: &&Grant| {
                grant.token <= token && last.is_none_or(|last| grant.token > last.token)
            };
            let mut grants = story.grants.iter().filter(is_since);
            grants.any(|grant| {
                grant.start <= stored || (grant.token < token && grant.may_be_left_behind(earlier))
            }) || since
                .is_some_and(|since| since <= stored && self.may_be_claimed(key, since, stored))
        };
        let before = grant.map_or(&[][..], |grant| self.before_in_run(grant));
        kept(key, story, token)
            || before.iter().any(|before| {
                let held = &before.held;
                let story = self.by_key.get(&held.key);
                story.is_none_or(|story| kept(&held.key, story, held.token))
            })
    }

    /// Before that, no later message of its ordering key may be handed out. What an operator has replayed counts as
    /// final from its first end on: those behind it may have been handed out before the replay.
    pub(super) fn holds_its_ordering_key_until(
        &self,
        key: &Key,
        story: &Story,
        clock: &Clock,
    ) -> u64 {
        let settles = story.settles.iter();
        let ended = settles.filter(|one| one.ending.lets_the_next_through() && one.may_be_done());
        let discards = story.interventions.iter();
        let discards = discards.filter(|one| one.change == Change::Discard && one.may_be_made());
        let ended = ended.map(|settle| settle.start);
        let ended = ended.chain(discards.map(|one| one.start));
        ended
            .chain(self.purged_from(key, story, clock))
            .min()
            .unwrap_or(u64::MAX)
    }
}

/// How these messages are more, or of others, than a claim asked for.
fn not_asked_for(keys: &[&Key], handlers: &[HandlerName], limit: u32) -> Option<String> {
    if keys.len() > limit as usize {
        return Some(format!("came in one claim that asked for {limit} at most"));
    }
    let other = keys.iter().find(|key| !handlers.contains(&key.handler));
    other.map(|key| format!("came in one claim that did not ask for {}", key.handler))
}

impl Checker<'_> {
    /// What a claim's answer shows of what it asked for, and of its runs.
    pub(super) fn claims(&mut self) {
        let stories = std::mem::take(&mut self.stories);
        for call in &self.evidence.history.calls {
            let (
                Asked::Claim {
                    handlers,
                    limit,
                    run_limit,
                    ..
                },
                Some(Answered::Claims { granted, .. }),
            ) = (&call.asked, &call.answered)
            else {
                continue;
            };
            let keys: Vec<&Key> = granted.iter().map(|one| &one.held.key).collect();
            self.judge(
                Rule::ClaimsAsAsked,
                &keys,
                not_asked_for(&keys, handlers, *limit),
            );
            for places in runs_in(granted) {
                let run: Vec<&Granted> = places.iter().filter_map(|at| granted.get(*at)).collect();
                let keys: Vec<&Key> = run.iter().map(|one| &one.held.key).collect();
                let most = (*run_limit).max(1) as usize;
                let stands_together = places
                    .iter()
                    .zip(places.iter().skip(1))
                    .all(|(one, next)| one + 1 == *next);
                // This attempt is among those started, whether the store has counted it yet or not.
                let vanished = run
                    .iter()
                    .find(|one| one.started.saturating_sub(1) > one.finished);
                let broken = if run.len() > most {
                    Some(format!(
                        "came in one claim that asked for {most} of an ordering key at most"
                    ))
                } else if !stands_together {
                    Some("came in one claim, and others between them".to_owned())
                } else {
                    let mut behind = run.iter().skip(1);
                    let vanished = vanished.or_else(|| {
                        behind.find(|one| stories.has_unsettled_lease_before(&one.held))
                    });
                    vanished.map(|one| {
                        let key = &one.held.key;
                        format!("came in one claim, and an earlier attempt of {key} has no outcome")
                    })
                };
                self.judge(Rule::ClaimsAsAsked, &keys, broken);
            }
        }
        self.stories = stories;
    }

    /// The messages of one ordering key.
    pub(super) fn one_run_at_a_time(&mut self, chain: &[(&Key, &Story)], stories: &Stories<'_>) {
        for (key, story) in chain {
            let others = || chain.iter().filter(|(other, _)| other != key);
            for grant in &story.grants {
                let still_leased = others().find_map(|(key, other)| {
                    let mut leases = other.grants.iter().filter(|lease| {
                        // What has been given to another since is not held twice by this.
                        let mut newer = other.grants.iter();
                        let is_newest = !newer
                            .any(|newer| newer.token > lease.token && newer.start <= grant.end);
                        lease.end < grant.start && is_newest && !lease.is_of_the_same_run(grant)
                    });
                    let lease = leases.find_map(|lease| {
                        let left = self.certainly_left((key, other), stories, lease, grant)?;
                        Some((lease.token, left))
                    });
                    lease.map(|lease| (*key, lease))
                });
                let keys: Vec<&Key> = still_leased
                    .map(|(other, _)| other)
                    .into_iter()
                    .chain([*key])
                    .collect();
                let broken = still_leased.map(|(_, (other, left))| {
                    format!(
                        "token {} was given out for the second while token {other} of the first was valid for \
                         another {} ms at least",
                        grant.token,
                        left / 1000
                    )
                });
                self.judge(Rule::OneRunAtATime, &keys, broken);
            }
        }
    }

    /// Whether the lease may have been lost, before `until`, because another worker took a message before this one in
    /// its run, whose lease may have run out. An extension need not find out whether one did: it may take this lease
    /// away when that row is another transaction's at that moment.
    pub(super) fn may_have_lost_its_run(
        &self,
        story: &Story,
        stories: &Stories<'_>,
        token: i64,
        until: u64,
    ) -> bool {
        let Some(grant) = story.grants.iter().find(|grant| grant.token == token) else {
            return false;
        };
        let before = stories.before_in_run(grant);
        if before.is_empty() {
            return false;
        }
        let told = story.extensions.iter().any(|one| {
            let extended = matches!(one.answer, Some((_, Kept::Done | Kept::Unmoved)));
            one.token == token && one.start <= until && !extended
        });
        before.iter().any(|before| {
            let (key, token) = (&before.held.key, before.held.token);
            let Some(other) = stories.by_key.get(key) else {
                return true;
            };
            let Some(lease) = other.grants.iter().find(|grant| grant.token == token) else {
                return true;
            };
            // What is settled under the run's lease has not been taken from it.
            let mut settles = other.settles.iter();
            let settled = settles.any(|one| one.token == token && one.done().is_some());
            if settled && !told {
                return false;
            }
            let ran_out =
                self.certain_end(other, lease, until) <= self.clock.latest(lease.start..=until);
            let mut grants = other.grants.iter();
            // The unknown claims are many, and come last.
            ran_out
                && (told
                    || grants.any(|grant| grant.token > token && grant.start <= until)
                    || stories.may_be_claimed(key, lease.start, until))
        })
    }

    /// How often this lease counts as a started attempt, at least and at most, if it is not settled: one behind others
    /// counts once those are settled. Asked by the claim `last` of the message, or at the end.
    pub(super) fn turn_in_run(
        &self,
        story: &Story,
        stories: &Stories<'_>,
        grant: &Grant,
        last: Option<&Grant>,
    ) -> (u64, u64) {
        let (by, until) = last.map_or((u64::MAX, u64::MAX), |last| (last.start, last.end));
        let mut is_certain = true;
        let mut since = grant.end;
        for before in stories.before_in_run(grant) {
            let Some(other) = stories.by_key.get(&before.held.key) else {
                is_certain = false;
                continue;
            };
            let settles = other.settles.iter();
            let mut settles = settles
                .filter(|one| {
                    one.token == before.held.token && one.may_be_done() && one.start < until
                })
                .peekable();
            if settles.peek().is_none() {
                return (0, 0);
            }
            match settles.filter_map(Settle::done).min() {
                Some(done) if done <= by => since = since.max(done),
                _ => is_certain = false,
            }
        }
        if stories.before_in_run(grant).is_empty() {
            return (1, 1);
        }
        // A lease that has run out by then counts with its own settlement, if it comes to that.
        let mut extensions = story.extensions.iter();
        let is_extended_later = extensions.any(|one| one.token == grant.token && one.start > since);
        let left = self.certain_end(story, grant, since) - self.clock.latest(grant.start..=since);
        let stands = left > 0 && !self.may_have_lost_its_run(story, stories, grant.token, since);
        (u64::from(is_certain && !is_extended_later && stands), 1)
    }
}
