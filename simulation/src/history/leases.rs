//! Leases: who gets them, for how long, and when they are lost.

use inbox::{Begun, Extended, Key, Lease, Leased};
use inbox_api::to_micros;

use super::{Grant, History, PartId};
use crate::world::AUDIT;

impl History {
    pub(crate) fn claimed(&mut self, part: &PartId, leased: &[Leased]) {
        for leased in leased {
            self.granted(part, leased);
        }
    }

    pub(crate) fn claim_begins(&mut self, part: &PartId) {
        *self.open_claims.entry(part.clone()).or_default() += 1;
    }

    /// A claim is answered, or was dropped.
    pub(crate) fn claim_is_over(&mut self, part: &PartId, since: u64, is_answered: bool) {
        if let Some(open) = self.open_claims.get_mut(part) {
            *open = open.saturating_sub(1);
        }
        let limit = since + self.terms.store_timeout * 1_000;
        if !is_answered && self.now < limit {
            self.dropped_claims.insert(part.clone(), self.now);
            self.claim_is_dropped(part);
        }
    }

    pub(crate) fn told_claims(&mut self, part: &PartId, leased: &[Leased]) {
        self.counts.entry(part.clone()).or_default().claimed += leased.len() as u64;
        for leased in leased {
            self.told_grant(leased);
        }
        self.told_suspects(leased);
        self.told_late(part, leased);
    }

    pub(crate) fn told_begun(&mut self, begun: &Begun) {
        if let Begun::Run(leased) = begun {
            self.told_grant(leased);
        }
    }

    fn told_grant(&mut self, leased: &Leased) {
        if let Some(grant) = self.grant(&leased.lease) {
            grant.is_told = true;
        }
    }

    pub(super) fn grant(&mut self, lease: &Lease) -> Option<&mut Grant> {
        self.current(&lease.key)?.grant(lease.token.get())
    }

    pub(super) fn granted(&mut self, part: &PartId, leased: &Leased) {
        let (key, token) = (&leased.lease.key, leased.lease.token.get());
        let until = to_micros(leased.lease.until);
        self.trace(|| {
            let started = leased.attempts.started;
            format!("{part} gets {key} under {token}, attempt {started}")
        });
        let (now, store_now, blocked) = (self.now, self.store_now, self.blocked);
        self.newest = self.newest.max(token);
        let (attempts, looked) = (self.terms.attempts, self.looked);
        let lost_before = self.run_lost_before(key);
        let Some(message) = self.current(key) else {
            return self.violated("only what was accepted", key.to_string());
        };
        let is_suspect = leased.attempts.crashed(true) > 0 && leased.attempts.started == attempts;
        let is_open = message.finished.is_none();
        let last = message.grants.last().cloned();
        // Others may have had it in between.
        let mut own = message.grants.iter().filter(|grant| grant.part == *part);
        let is_held = own.any(|grant| !grant.is_answered);
        message.grants.push(Grant {
            token,
            part: part.clone(),
            at: now,
            renewed: now,
            started: leased.attempts.started,
            until,
            blocked,
            outcome: None,
            run: None,
            told_lost: None,
            is_told: false,
            is_answered: false,
            is_forgotten: false,
            is_suspect,
            is_again: is_held,
            comes_with_suspect: false,
            granted: store_now,
            asked: looked,
            settled: None,
            due: None,
            refused: None,
            is_sent: false,
            busy_until: None,
            is_unopened: false,
            is_in_call: false,
            is_undone: false,
            lacks_note: false,
        });
        self.check("final is final", is_open, || format!("{part} got {key}"));
        let is_recorder = &*part.name == "recorder";
        let is_right = is_recorder || key.handler.as_str() != AUDIT;
        self.check("what is recorded is not handed out", is_right, || {
            format!("{part} got {key}")
        });
        if is_held {
            self.counts.entry(part.clone()).or_default().claimed_again += 1;
        }
        let Some(last) = last else { return };
        self.check("tokens grow", last.token < token, || key.to_string());
        if last.outcome.is_some() {
            return;
        }
        let is_over = last.until <= store_now || last.token < lost_before;
        self.check("one holder", is_over, || {
            format!("{part} got {key} while {} held it", last.part)
        });
        self.was_not_renewed(key, &last, lost_before);
    }

    /// Leases on the message with an older token than this are lost with its run: an earlier message of its ordering
    /// key was handed out under this token, or changed by an operator.
    pub(super) fn run_lost_before(&self, key: &Key) -> i64 {
        let keys = &self.terms.ordering_keys;
        let own = self.messages.get(key).and_then(|own| own.last());
        let (Some(ordering_key), Some(own)) = (keys.get(key), own) else {
            return i64::MIN;
        };
        let same = |other: &&Key| keys.get(*other) == Some(ordering_key);
        let others = self.messages.keys().filter(same);
        let earlier = others.flat_map(|other| &self.messages[other]);
        let earlier = earlier.filter(|other| other.order < own.order);
        let tokens = earlier.flat_map(|other| {
            let tokens = other.grants.iter().map(|grant| grant.token);
            tokens.chain([other.changed_at])
        });
        tokens.max().unwrap_or(i64::MIN)
    }

    pub(crate) fn extended(&mut self, part: &PartId, leases: &[Lease], all: &[Extended]) {
        let now = self.now;
        for (lease, extended) in leases.iter().zip(all) {
            let (key, token) = (&lease.key, lease.token.get());
            self.trace(|| format!("{part} extends {key} under {token}: {extended:?}"));
            let Extended::Until(until) = extended else {
                continue;
            };
            let Some(message) = self.current(key) else {
                continue;
            };
            let Some(last) = message.grants.last_mut() else {
                continue;
            };
            let holds = last.token == token && last.outcome.is_none();
            if holds {
                last.until = to_micros(*until);
                last.renewed = now;
            }
            self.check("a stale token changes nothing", holds, || {
                format!("{part} extended {key} under {token}")
            });
        }
    }

    pub(crate) fn told_extended(&mut self, part: &PartId, leases: &[Lease], all: &[Extended]) {
        let now = self.now;
        for (lease, extended) in leases.iter().zip(all) {
            let Some(message) = self.current(&lease.key) else {
                continue;
            };
            let token = lease.token.get();
            // Its own claim is no lost lease. In a run one is lost with that of an earlier message.
            let is_own = |last: &Grant| last.part == *part && last.token != token;
            if *extended == Extended::LeaseLost
                && !message.grants.last().is_some_and(is_own)
                && let Some(grant) = message.grant(token)
            {
                grant.told_lost.get_or_insert(now);
            }
        }
    }
}
