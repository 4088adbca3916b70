//! Outcomes: what may be settled, and what of it counts.

use inbox::{AfterDead, Key, Outcome, Settled, Settlement};

use super::{Accepted, Grant, History, PartId, RunEnd};
use crate::world::{AUDIT, REJECTED};

impl History {
    /// Before the settlements are sent.
    pub(crate) fn settling(&mut self, part: &PartId, settlements: &[Settlement]) {
        for settlement in settlements {
            let (key, token) = (&settlement.lease.key, settlement.lease.token.get());
            let name = name_of(&settlement.outcome);
            self.trace(|| format!("{part} settles {key} under {token}: {name}"));
            self.settles_late(settlement);
            let attempts = self.terms.attempts;
            let mut all = self.messages.get(key).into_iter().flatten();
            let granted =
                |message: &&Accepted| message.grants.iter().any(|grant| grant.token == token);
            let Some(message) = all.find(granted) else {
                self.violated("only what was claimed", format!("{part} settled {key}"));
                continue;
            };
            let own = |grant: &&Grant| grant.part == *part;
            // A replay is to be run, whatever came of it before.
            let since = message.since_replay();
            let is_since = since.iter().any(|grant| grant.token == token);
            let grants = if is_since { since } else { &message.grants };
            let ends: Vec<_> = grants
                .iter()
                .filter(own)
                .filter_map(|grant| grant.run.as_ref()?.end)
                .chain(self.fallback(part, key))
                .collect();
            let is_batched = self.terms.batches == Some(key.handler.as_str());
            let is_unopened = message.grants.iter().filter(own).any(|own| own.is_unopened);
            let mut grants = message.grants.iter();
            let Some(grant) = grants.find(|grant| grant.token == token).cloned() else {
                continue;
            };
            let all = self.messages.get(key).into_iter().flatten();
            // It is still held under an earlier lease; or its handler ran when this one came, or it was being found out
            // whether its transaction had committed, or its batch went on behind that.
            let runs = all.flat_map(|message| &message.grants).any(|earlier| {
                let is_open = earlier.run.as_ref().is_some_and(|run| run.end.is_none());
                let may_run = earlier.outcome.is_none()
                    || is_open
                    || earlier.is_in_call
                    || earlier.is_undone
                    || earlier.busy_until.is_some_and(|until| until >= grant.at)
                    || is_batched && self.terms.in_transactions && earlier.run.is_some();
                may_run && earlier.part == *part && earlier.token != token
            });
            let is_used_up = grant.started >= attempts;
            self.stays_what_it_is(&grant, settlement);
            // What is final as soon as it is stored has no handler.
            match key.handler.as_str() {
                AUDIT => {
                    let is_processed = matches!(settlement.outcome, Outcome::Processed { .. });
                    self.check("recorded as processed", is_processed, || {
                        format!("{key}: {name}")
                    });
                    continue;
                }
                REJECTED => {
                    let is_dead = matches!(settlement.outcome, Outcome::Dead { .. });
                    self.check("kept as dead", is_dead, || format!("{key}: {name}"));
                    continue;
                }
                _ if &*part.name == "janitor" => {
                    self.is_given_up_rightly(&grant, settlement);
                    continue;
                }
                _ => {}
            }
            let fits = match (&grant.run, &settlement.outcome) {
                // Handed back, its attempts used up, or with the outcome of an earlier run here.
                (None, Outcome::Release) => true,
                // Until the run under an earlier lease is over.
                (None, Outcome::Defer { .. }) => runs || ends.contains(&RunEnd::Defer),
                (None, Outcome::Dead { .. }) => is_used_up || ends.contains(&RunEnd::Dead),
                (None, Outcome::Processed { .. }) => ends.contains(&RunEnd::Done),
                // Or the handler of a whole batch did not come to it before its lease ran out, as threads were blocked;
                // or an inline one was not told that its transaction is open.
                (None, Outcome::Retry { .. }) => {
                    let is_own_matter = &*part.name == "inline" && grant.is_undone;
                    is_unopened
                        || is_own_matter
                        || !ends.is_empty()
                        || is_batched && self.blocked > 0
                }
                (Some(run), outcome) => match (run.end, outcome) {
                    (None, _) => false,
                    (Some(RunEnd::Done), Outcome::Processed { .. }) => true,
                    (Some(RunEnd::Done), _) => grant.is_undone || grant.outcome.is_some(),
                    (Some(_), Outcome::Processed { .. }) => false,
                    (Some(RunEnd::Dead), Outcome::Dead { .. }) => true,
                    // It was to run again by itself, as its batch has been rolled back.
                    (Some(RunEnd::Dead | RunEnd::Defer), Outcome::Retry { .. }) => is_unopened,
                    (Some(RunEnd::Dead), outcome) => matches!(outcome, Outcome::Release),
                    (Some(RunEnd::Defer), outcome) => {
                        matches!(outcome, Outcome::Defer { .. } | Outcome::Release)
                    }
                    (Some(_), Outcome::Dead { .. }) => is_used_up,
                    (Some(_), _) => true,
                },
            };
            let end = grant.run.as_ref().map(|run| run.end);
            self.check("settled as it ended", fits, || {
                format!("{part} settled {key} as {name} after {end:?}")
            });
            let run = grant.run.as_ref();
            let was_stopped =
                run.is_some_and(|run| run.was_stopped && run.end != Some(RunEnd::Dead));
            let is_charged = matches!(
                settlement.outcome,
                Outcome::Retry { .. } | Outcome::Dead { .. }
            );
            let was_cut = run.is_some_and(|run| run.was_cut && run.end != Some(RunEnd::Dead));
            self.check(
                "an outage costs no attempt",
                !was_cut || !is_charged || self.terms.drifts,
                || format!("{part} settled {key} as {name} after {end:?}"),
            );
            self.check(
                "a shutdown costs no attempt",
                !was_stopped || !is_charged,
                || format!("{part} settled {key} as {name} after {end:?}"),
            );
        }
    }

    /// What keeps those behind it in its ordering key waiting is settled after them.
    fn settles_first_last(&mut self, part: &PartId, settlement: &Settlement) {
        let key = &settlement.lease.key;
        let order_key = self.terms.ordering_keys.get(key).cloned();
        let (Some(order_key), true) = (order_key, keeps_others_waiting(&settlement.outcome)) else {
            return;
        };
        let open = self
            .current(key)
            .filter(|message| message.finished.is_none());
        let Some(order) = open.map(|message| message.order) else {
            return;
        };
        let store_now = self.store_now;
        let held = |key: &Key, message: &Accepted| {
            let last = message.grants.last();
            let lost_before = self.run_lost_before(key);
            last.filter(|last| last.token >= lost_before)
                .is_some_and(|last| {
                    let is_own = last.part == *part && last.is_told && last.told_lost.is_none();
                    is_own && last.outcome.is_none() && last.until > store_now
                })
        };
        let same = self
            .messages
            .iter()
            .filter(|(key, _)| self.terms.ordering_keys.get(*key) == Some(&order_key));
        let behind = same.filter_map(|(key, lives)| Some((key, lives.last()?)));
        let mut behind =
            behind.filter(|(key, message)| message.order > order && held(key, message));
        let first = behind.next().map(|(key, _)| key.to_string());
        self.check("what is behind goes back first", first.is_none(), || {
            format!(
                "{part} settled {key} and held {}",
                first.unwrap_or_default()
            )
        });
    }

    pub(crate) fn settled(&mut self, part: &PartId, settlements: &[Settlement], all: &[Settled]) {
        for (settlement, settled) in settlements.iter().zip(all) {
            let (key, token) = (&settlement.lease.key, settlement.lease.token.get());
            let (now, store_now, retention) = (self.now, self.store_now, self.terms.retention);
            self.trace(|| format!("{part} settled {key} under {token}: {settled:?}"));
            if *settled == Settled::Done {
                self.settles_first_last(part, settlement);
            }
            let is_lost_with_its_run = token < self.run_lost_before(key);
            let Some(message) = self.current(key) else {
                continue;
            };
            let may_be_taken = message.changed_after == message.grants.len();
            let Some(last) = message.grants.last_mut() else {
                continue;
            };
            let is_newest = last.token == token;
            let finished = message.finished;
            let may_be_gone = finished.is_some_and(|finished| store_now - finished >= retention);
            match settled {
                Settled::Done if is_newest && last.outcome.is_none() => {
                    message.blocks = keeps_others_waiting(&settlement.outcome);
                    last.outcome = Some(name_of(&settlement.outcome));
                    last.settled = Some(now);
                    last.due = match settlement.outcome {
                        Outcome::Retry { after, .. } | Outcome::Defer { after, .. } => {
                            let after = i64::try_from(after.as_micros()).unwrap_or(i64::MAX);
                            Some(store_now.saturating_add(after))
                        }
                        _ => Some(store_now),
                    };
                    if matches!(
                        settlement.outcome,
                        Outcome::Processed { .. } | Outcome::Dead { .. }
                    ) {
                        message.finished = Some(store_now);
                    }
                }
                Settled::Done => {
                    self.check("a stale token changes nothing", is_newest, || {
                        format!("{part} settled {key} under {token}")
                    });
                }
                Settled::LeaseLost => {
                    self.check(
                        "the newest token counts",
                        !is_newest || may_be_gone || may_be_taken || is_lost_with_its_run,
                        || key.to_string(),
                    );
                }
                Settled::Refused(invalid) => {
                    let has_result =
                        matches!(settlement.outcome, Outcome::Processed { result: Some(_) });
                    self.check("nothing is refused", has_result, || {
                        format!("{key}: {invalid}")
                    });
                }
            }
        }
    }

    pub(crate) fn told_settled(&mut self, part: &PartId, asked: &[Settlement], all: &[Settled]) {
        for (settlement, settled) in asked.iter().zip(all) {
            match settled {
                Settled::Done => {}
                Settled::LeaseLost => continue,
                Settled::Refused(_) => {
                    self.told_refused(settlement);
                    continue;
                }
            }
            let is_processed = matches!(settlement.outcome, Outcome::Processed { .. });
            let counts = self.counts.entry(part.clone()).or_default();
            counts.processed += u64::from(is_processed);
            let is_record = settlement.lease.key.handler.as_str() == AUDIT;
            counts.accepted += u64::from(is_record);
            if let Some(grant) = self.grant(&settlement.lease) {
                grant.is_answered = true;
            }
        }
    }
}

pub(crate) fn name_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Processed { .. } => "processed",
        Outcome::Retry { .. } => "retry",
        Outcome::Dead { .. } => "dead",
        Outcome::Release => "released",
        Outcome::Defer { .. } => "deferred",
    }
}

/// Whether those behind it in its ordering key are not to run.
fn keeps_others_waiting(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Processed { .. } => false,
        Outcome::Dead { after, .. } => *after == AfterDead::Block,
        Outcome::Retry { .. } | Outcome::Defer { .. } | Outcome::Release => true,
    }
}
