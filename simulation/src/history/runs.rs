//! Runs of handlers, and the ends of parts: what they may do, and what they tell of it.

use inbox::{Key, Lease, Summary, receiver};

use super::{Accepted, History, PartId, Run, RunEnd};
use crate::world::{AUDIT, REJECTED};

impl History {
    /// A handler begins; answers which run of the message it is.
    pub(crate) fn run_begins(&mut self, part: &PartId, key: &Key, token: i64) -> u32 {
        self.trace(|| format!("{part} runs {key} under {token}"));
        let is_next_to_changed = self.was_settled_with_a_changed_one(part, key, token);
        let order_key = self.terms.ordering_keys.get(key).cloned();
        let lost_before = self.run_lost_before(key);
        let is_batched = self.terms.batches == Some(key.handler.as_str());
        // What is rolled back is done again, under the same lease.
        let is_transactional = self.is_transactional(part, key);
        if is_transactional && self.runs_in_vain(key, token) {
            return 0;
        }
        let (now, store_now, retention) = (self.now, self.store_now, self.terms.retention);
        let Some(message) = self.messages.get_mut(key).and_then(|all| all.last_mut()) else {
            self.violated("only what was accepted", key.to_string());
            return 0;
        };
        let order = message.order;
        let earlier = message
            .grants
            .iter()
            .filter(|grant| grant.run.is_some())
            .count();
        let runs_here = message.since_replay().iter().any(|grant| {
            let runs = grant.run.as_ref().is_some_and(|run| run.end.is_none());
            runs && grant.part == *part && grant.token != token
        });
        // What it has finished itself, and nobody has had since: neither others, nor a claim of its own without
        // an answer. By a clock that jumps it may have run under a newer lease while the answer was on its way.
        let drifts = self.terms.drifts;
        let newest = message.since_change().iter().rev();
        let own = newest
            .skip_while(|grant| drifts && grant.token > token)
            .take_while(|grant| grant.part == *part && grant.is_told && !grant.is_forgotten)
            .filter(|grant| grant.told_lost.is_none() && grant.token >= lost_before);
        let is_done = own.filter_map(|grant| grant.run.as_ref()).any(|run| {
            let end = run.end;
            end == Some(RunEnd::Done)
        });
        // What an operator has changed or the janitor has purged looks as if a commit without an answer had not
        // taken place. It runs in vain then, as does what was settled in the same commit.
        let finished = message.finished;
        let may_be_gone = finished.is_some_and(|at| store_now.saturating_sub(at) >= retention);
        let looks_open = message.changed_when.is_some() || may_be_gone || is_next_to_changed;
        let holds = match message.grant(token) {
            Some(grant)
                if grant.part == *part
                    && (grant.run.is_none() || is_batched || is_transactional) =>
            {
                grant.is_undone = false;
                grant.run = Some(Run::new(now));
                grant.outcome.is_none() || looks_open && is_transactional
            }
            _ => false,
        };
        self.suspects_run_alone(part, key, token);
        self.check("runs under its own lease", holds, || {
            format!("{part} ran {key}")
        });
        self.check("one run in a process", !runs_here, || {
            format!("{part} ran {key} while it ran it")
        });
        self.check(
            "what is done is not repeated",
            !is_done || is_transactional,
            || format!("{part} ran {key}, which it had done"),
        );
        if let Some(order_key) = order_key {
            let keys = self.terms.ordering_keys.iter();
            let same = keys.filter(|(_, other)| **other == order_key);
            let unfinished = same.flat_map(|(key, _)| {
                let all = self.messages.get(key).into_iter().flatten();
                all.map(move |message| (key, message))
            });
            // It may be purged.
            let blocks = |other: &Accepted, finished: i64| {
                other.blocks && store_now.saturating_sub(finished) < retention
            };
            let ends_block = self.terms.dead_block;
            let first = unfinished
                .filter(|(_, other)| other.order < order)
                .filter(|(_, other)| other.finished.is_none_or(|at| blocks(other, at)))
                // A replay may come when those behind have been handed out.
                .filter(|(_, other)| !other.was_replayed)
                .find(|(key, other)| {
                    // The same worker has done it, and settles both in order. What it holds it does not run
                    // again under another lease that it gets. Others may have got it meanwhile, if its leases
                    // have ended without a word.
                    let own = other
                        .grants
                        .iter()
                        .rev()
                        .filter(|grant| grant.part == *part);
                    let last = own.clone().find_map(|grant| grant.run.as_ref());
                    let fallback = own.clone().next().and(self.fallback(part, key));
                    let end = last.and_then(|run| run.end).or(fallback);
                    match end {
                        Some(RunEnd::Done) => false,
                        Some(RunEnd::Dead) => ends_block,
                        _ => true,
                    }
                });
            let first = first.map(|(key, _)| key.to_string());
            self.check("order", first.is_none(), || {
                format!("{part} ran {key} before {}", first.unwrap_or_default())
            });
        }
        u32::try_from(earlier).unwrap_or(u32::MAX)
    }

    /// Whether one commit has ended this lease and that of a message which an operator has changed.
    fn was_settled_with_a_changed_one(&self, part: &PartId, key: &Key, token: i64) -> bool {
        let last = |key: &Key| self.messages.get(key).and_then(|all| all.last());
        let own = last(key).and_then(|own| own.grants.iter().find(|grant| grant.token == token));
        let Some(settled) = own.and_then(|own| own.settled) else {
            return false;
        };
        let changed = self.messages.values().filter_map(|all| all.last());
        let mut changed = changed.filter(|other| other.changed_when.is_some());
        changed.any(|other| {
            let mut grants = other.grants.iter();
            grants.any(|grant| grant.part == *part && grant.settled == Some(settled))
        })
    }

    /// Whether a message is run that was finished by others, purged, and accepted again, while it waited for its
    /// transaction. That is rolled back.
    fn runs_in_vain(&mut self, key: &Key, token: i64) -> bool {
        let now = self.now;
        let lives = self.messages.get_mut(key).map(Vec::as_mut_slice);
        let earlier = lives.and_then(<[Accepted]>::split_last_mut);
        let mut earlier = earlier.into_iter().flat_map(|(_, earlier)| earlier);
        let grant = earlier.find_map(|life| life.grant(token));
        grant.is_some_and(|grant| {
            grant.run = Some(Run::new(now));
            true
        })
    }

    pub(crate) fn run_ends(
        &mut self,
        part: &PartId,
        key: &Key,
        token: i64,
        end: RunEnd,
        is_cancelled: bool,
    ) {
        self.trace(|| format!("{part} ends {key} under {token}: {end:?}"));
        let (now, blocked) = (self.now, self.blocked);
        self.renewals_are_repeated(part);
        self.last_ends.insert(part.clone(), now);
        let stopped = self.stops.get(part).is_some_and(|over| *over <= now);
        // It waits for its own claim, which may have taken the message, and may have to ask again after that.
        let limit = 1_500_000 + 2 * self.terms.store_timeout * 1_000 + blocked;
        let all = self.messages.get_mut(key).into_iter().flatten();
        let Some(grant) = all.into_iter().find_map(|message| message.grant(token)) else {
            return;
        };
        let (told_lost, was_blocked) = (grant.told_lost, grant.blocked != blocked);
        grant.busy_until = Some(now);
        if let Some(run) = &mut grant.run {
            run.end = Some(end);
            let is_told_to_stop = is_cancelled && told_lost.is_none();
            run.was_stopped = stopped && is_told_to_stop;
            run.was_cut = !stopped && is_told_to_stop && !was_blocked;
        }
        // In a batch it is dropped with the others, and one that settles inline ends its lease itself. While a claim of
        // its own may have taken the lease, it is asked for again, which takes an answer.
        let settles = &*part.name == "inline" && self.terms.inline_settles;
        let is_batched = self.terms.batches == Some(key.handler.as_str());
        let is_judged = self.under_trouble == 0 && !is_batched && !settles;
        let is_late = is_judged && told_lost.is_some_and(|told| now > told + limit);
        self.check("a lost lease ends its handler", !is_late, || {
            format!("{part} went on with {key}")
        });
    }

    /// The handler of a batch has ended without an answer: nothing of it is done, and where it has several messages its
    /// error is that of none of them.
    pub(crate) fn has_not_answered(&mut self, leases: &[&Lease]) {
        for lease in leases {
            let run = self.grant(lease).and_then(|grant| grant.run.as_mut());
            let Some(run) = run else { continue };
            match run.end {
                Some(RunEnd::Done) => run.end = Some(RunEnd::Dropped),
                Some(RunEnd::Dead | RunEnd::Defer) if leases.len() > 1 => {
                    run.end = Some(RunEnd::Retry);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn processor_ended(&mut self, part: &PartId, summary: &Summary) {
        self.trace(|| format!("{part} ended: {summary:?}"));
        let counts = self.counts.remove(part).unwrap_or_default();
        let Summary {
            claimed,
            processed,
            retried,
            deferred,
            dead,
            released,
            lease_lost,
            abandoned,
            ..
        } = *summary;
        let is_open = self.open_claims.get(part).is_some_and(|count| *count > 0)
            || self.dropped_claims.get(part) == Some(&self.now);
        self.check(
            "an unanswered claim is told",
            !is_open || abandoned > 0,
            || format!("{part}: {summary:?}"),
        );
        let ended = processed + retried + deferred + dead + released + lease_lost + abandoned;
        // A claim without an answer is one that was abandoned.
        let most = claimed + u64::from(abandoned > 0);
        // Its answer may have come since.
        let is_told = claimed == counts.claimed || (abandoned > 0 && claimed < counts.claimed);
        let adds_up = is_told
            && processed >= counts.processed
            && (claimed.saturating_sub(counts.claimed_again)..=most).contains(&ended);
        self.check("the summary tells what happened", adds_up, || {
            format!("{part}: {summary:?}, and it was told {counts:?}")
        });
    }

    pub(crate) fn receiver_ended(
        &mut self,
        part: &PartId,
        taken: u64,
        summary: &receiver::Summary,
    ) {
        self.trace(|| format!("{part} ended: {summary:?}"));
        let counts = self.counts.remove(part).unwrap_or_default();
        // What is stored behind a batch that is not, at the drain limit, is abandoned with it.
        let (accepted, duplicates) = (summary.accepted, summary.duplicates);
        let told = counts.accepted + counts.duplicates;
        let adds_up = summary.received == taken
            && counts.rejected <= summary.rejected
            && accepted <= counts.accepted
            && duplicates <= counts.duplicates
            && told.saturating_sub(accepted + duplicates) <= summary.abandoned();
        self.check("the summary tells what happened", adds_up, || {
            format!("{part}: {summary:?} of {taken}, and it was told {counts:?}")
        });
    }

    /// Five seconds from the end of the last handler, or from when it was told to.
    pub(crate) fn ended_soon(&mut self, part: &PartId, told: u64, slack: u64) {
        let last = self.last_ends.get(part).copied().unwrap_or(0);
        // Whether a transaction has committed is found out within the time of a call.
        let finding_out = match self.terms.in_transactions {
            true => self.terms.store_timeout * 1_000,
            false => 0,
        };
        // What is written about a failure may wait for its transaction until the drain limit.
        let drained = self.stops.get(part).filter(|_| self.terms.has_notes);
        let last = last.max(drained.copied().unwrap_or(0));
        let limit = 5_000_000 + finding_out + slack;
        self.ended("shutdown ends soon", part, last.max(told), limit);
    }

    pub(crate) fn ended_within(&mut self, part: &PartId, since: u64, limit: u64) {
        self.ended("shutdown ends in time", part, since, limit);
    }

    fn ended(&mut self, rule: &'static str, part: &PartId, since: u64, limit: u64) {
        let (took, limit) = (self.now.saturating_sub(since), limit + self.blocked);
        self.check(rule, took <= limit, || {
            format!("{part} took {took} of {limit} microseconds")
        });
    }

    /// The keys that were accepted and have come to no end.
    pub(crate) fn unfinished(&self) -> Vec<Key> {
        let unfinished = self.messages.iter().filter(|(key, all)| {
            let last = all.last();
            // A dead letter is left pending if its delivery was a message when it came again. What is only recorded
            // is, when it is purged, and then stored by a call that was given up long before.
            let is_left = |message: &Accepted| match key.handler.as_str() {
                REJECTED => true,
                AUDIT => message.is_orphan,
                _ => false,
            };
            last.is_some_and(|message| message.finished.is_none() && !is_left(message))
        });
        unfinished.map(|(key, _)| key.clone()).collect()
    }
}
