//! What really happened in a run, and the rules that it is held to while it happens.

mod runs;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use inbox::{Begun, Extended, Key, Lease, Leased, Message, Outcome, Receipt, Settled, Settlement};
use inbox_api::to_micros;

use tokio::sync::Notify;

/// A part, and which of its lives.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartId {
    pub(crate) name: Arc<str>,
    pub(crate) life: u32,
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.life)
    }
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    Done,
    Retry,
    Defer,
    Dead,
    Panicked,
    /// Its future was dropped: by a time-out, a lost lease, a shutdown, a kill.
    Dropped,
}

#[derive(Clone, Debug)]
struct Run {
    end: Option<RunEnd>,
    /// It was told to stop by a shutdown before it ended.
    was_stopped: bool,
    /// It was told to stop although its lease was not lost, nor its thread blocked: nobody had renewed it.
    was_cut: bool,
}

/// A lease that was handed out.
#[derive(Clone, Debug)]
struct Grant {
    token: i64,
    part: PartId,
    at: u64,
    started: u32,
    until: i64,
    /// For how long threads had been blocked then.
    blocked: u64,
    outcome: Option<&'static str>,
    run: Option<Run>,
    told_lost: Option<u64>,
    /// Its holder was told of it.
    is_told: bool,
    /// Its holder was told that its outcome is stored.
    is_answered: bool,
    /// Nobody knows of it any more.
    is_forgotten: bool,
}

/// A message from its acceptance on.
#[derive(Debug)]
struct Accepted {
    order: u64,
    grants: Vec<Grant>,
    /// An operator has replayed it.
    was_replayed: bool,
    /// How many of these are from before the last replay.
    replayed_after: usize,
    /// How many are from before an operator's last change of any kind.
    changed_after: usize,
    /// No token until then was newer.
    changed_at: i64,
    /// Since when it is final, by the store's clock.
    finished: Option<i64>,
}

impl Accepted {
    fn since_replay(&self) -> &[Grant] {
        self.grants.get(self.replayed_after..).unwrap_or_default()
    }

    /// Those since an operator's last change, which takes what has run out of its lease from who had it.
    fn since_change(&self) -> &[Grant] {
        self.grants.get(self.changed_after..).unwrap_or_default()
    }

    fn grant(&mut self, token: i64) -> Option<&mut Grant> {
        self.grants.iter_mut().find(|grant| grant.token == token)
    }
}

/// What the history needs to know of the plan. Microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) retention: i64,
    pub(crate) attempts: u32,
    pub(crate) store_timeout: u64,
    /// The handler whose messages are run together: when their time limit is over, those that had not ended
    /// run again.
    pub(crate) batches: Option<&'static str>,
    /// Leases may be lost at any time, as the store's clock does not go as the runtime's.
    pub(crate) drifts: bool,
    pub(crate) ordering_keys: BTreeMap<Key, String>,
}

#[derive(Debug, Default)]
struct Counts {
    claimed: u64,
    /// Claimed while it still held them under an earlier lease.
    claimed_again: u64,
    processed: u64,
    accepted: u64,
    duplicates: u64,
}

pub(crate) struct History {
    /// Microseconds since the beginning.
    pub(crate) now: u64,
    pub(crate) store_now: i64,
    pub(crate) violations: Vec<Violation>,
    pub(crate) lines: Option<Vec<String>>,
    terms: Terms,
    messages: BTreeMap<Key, Vec<Accepted>>,
    accepted: u64,
    /// The newest token.
    newest: i64,
    counts: BTreeMap<PartId, Counts>,
    killed: BTreeSet<PartId>,
    /// When the drain limit of a part that was told to stop is over.
    stops: BTreeMap<PartId, u64>,
    under_trouble: i64,
    last_trouble: Option<u64>,
    /// Told of a violation, which ends the run.
    pub(crate) broken: Arc<Notify>,
    /// For how long threads were blocked.
    pub(crate) blocked: u64,
    /// How many claims of a part have no answer.
    open_claims: BTreeMap<PartId, u32>,
    /// When a claim of a part was dropped before its time limit.
    dropped_claims: BTreeMap<PartId, u64>,
    /// When the last run of a part ended.
    last_ends: BTreeMap<PartId, u64>,
}

impl History {
    pub(crate) fn new(terms: Terms, is_traced: bool) -> Self {
        Self {
            now: 0,
            store_now: 0,
            violations: Vec::new(),
            lines: is_traced.then(Vec::new),
            terms,
            messages: BTreeMap::new(),
            accepted: 0,
            newest: i64::MIN,
            counts: BTreeMap::new(),
            killed: BTreeSet::new(),
            stops: BTreeMap::new(),
            under_trouble: 0,
            last_trouble: None,
            broken: Arc::default(),
            blocked: 0,
            open_claims: BTreeMap::new(),
            dropped_claims: BTreeMap::new(),
            last_ends: BTreeMap::new(),
        }
    }

    pub(crate) fn trace(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>9.3}s {}", now as f64 / 1e6, line()));
        }
    }

    pub(crate) fn violated(&mut self, rule: &'static str, what: String) {
        self.trace(|| format!("BROKEN {rule}: {what}"));
        self.violations.push(Violation { rule, what });
        self.broken.notify_one();
    }

    fn check(&mut self, rule: &'static str, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(rule, what());
        }
    }

    /// Something goes wrong from now on (1), or no longer (-1).
    pub(crate) fn disturbed(&mut self, by: i64) {
        self.under_trouble += by;
        self.last_trouble = Some(self.now);
    }

    pub(crate) fn killed(&mut self, part: &PartId) {
        self.trace(|| format!("{part} is killed"));
        self.killed.insert(part.clone());
    }

    /// Which ordering key, of which handler, messages have.
    pub(crate) fn ordered_by(&mut self, keys: BTreeMap<Key, String>) {
        self.terms.ordering_keys = keys;
    }

    /// Who consumed it inline left before the end, and took what was known of it along.
    pub(crate) fn caller_left(&mut self, part: &PartId, key: &Key) {
        self.trace(|| format!("{part}: the caller of {key} leaves"));
        if let Some(message) = self.current(key) {
            for grant in &mut message.grants {
                if grant.part == *part {
                    grant.is_forgotten = true;
                }
            }
        }
    }

    pub(crate) fn replayed(&mut self, key: &Key) {
        self.trace(|| format!("{key} is replayed"));
        let is_final = self.change(key, |message| {
            message.was_replayed = true;
            message.replayed_after = message.grants.len();
            message.finished.take().is_some()
        });
        self.check("what is replayed was final", is_final, || key.to_string());
    }

    pub(crate) fn discarded(&mut self, key: &Key) {
        self.trace(|| format!("{key} is discarded"));
        let now = self.store_now;
        self.change(key, |message| {
            message.finished = Some(now);
            true
        });
    }

    pub(crate) fn rescheduled(&mut self, key: &Key) {
        self.trace(|| format!("{key} is rescheduled"));
        let is_open = self.change(key, |message| message.finished.is_none());
        self.check("final is final", is_open, || format!("{key} is pending"));
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Accepted) -> bool) -> bool {
        let newest = self.newest;
        self.current(key).is_some_and(|message| {
            message.changed_after = message.grants.len();
            message.changed_at = newest.saturating_add(1);
            change(message)
        })
    }

    pub(crate) fn told_to_stop(&mut self, part: &PartId, drain_limit: u64) {
        self.trace(|| format!("{part} is told to stop"));
        let over = self.now + drain_limit * 1_000;
        self.stops.insert(part.clone(), over);
    }

    fn current(&mut self, key: &Key) -> Option<&mut Accepted> {
        self.messages.get_mut(key)?.last_mut()
    }

    fn accept(&mut self, key: &Key) {
        let (store_now, retention) = (self.store_now, self.terms.retention);
        let is_gone = self.current(key).is_none_or(|message| {
            let finished = message.finished;
            finished.is_some_and(|finished| store_now - finished >= retention)
        });
        self.check("accepted once", is_gone, || format!("{key} again"));
        self.accepted += 1;
        let order = self.accepted;
        self.messages
            .entry(key.clone())
            .or_default()
            .push(Accepted {
                order,
                grants: Vec::new(),
                was_replayed: false,
                replayed_after: 0,
                changed_after: 0,
                changed_at: i64::MIN,
                finished: None,
            });
    }

    pub(crate) fn received(&mut self, part: &PartId, messages: &[Message], receipts: &[Receipt]) {
        for (message, receipt) in messages.iter().zip(receipts) {
            let key = message.key();
            self.trace(|| format!("{part} receives {key}: {receipt:?}"));
            match receipt {
                Receipt::Accepted => self.accept(key),
                Receipt::Duplicate { .. } => {
                    let is_known = self.messages.contains_key(key);
                    self.check("no false duplicate", is_known, || format!("{key}"));
                }
                Receipt::Refused(invalid) => {
                    self.violated("nothing is refused", format!("{key}: {invalid}"));
                }
            }
        }
    }

    pub(crate) fn told_receipts(&mut self, part: &PartId, receipts: &[Receipt]) {
        let counts = self.counts.entry(part.clone()).or_default();
        for receipt in receipts {
            match receipt {
                Receipt::Accepted => counts.accepted += 1,
                Receipt::Duplicate { .. } => counts.duplicates += 1,
                Receipt::Refused(_) => {}
            }
        }
    }

    pub(crate) fn acknowledged(&mut self, part: &PartId, key: &Key) {
        self.trace(|| format!("{part} acknowledges {key}"));
        let is_stored = self.messages.contains_key(key);
        self.check("stored before it is acknowledged", is_stored, || {
            key.to_string()
        });
    }

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
        }
    }

    pub(crate) fn told_claims(&mut self, part: &PartId, leased: &[Leased]) {
        self.counts.entry(part.clone()).or_default().claimed += leased.len() as u64;
        for leased in leased {
            self.told_grant(leased);
        }
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

    fn grant(&mut self, lease: &Lease) -> Option<&mut Grant> {
        self.current(&lease.key)?.grant(lease.token.get())
    }

    pub(crate) fn begun(&mut self, part: &PartId, message: &Message, begun: &Begun) {
        let key = message.key();
        self.trace(|| format!("{part} begins {key}: {}", began(begun)));
        let (store_now, retention) = (self.store_now, self.terms.retention);
        let is_new = self.current(key).is_none_or(|known| {
            let finished = known.finished;
            finished.is_some_and(|finished| store_now - finished >= retention)
        });
        // Beginning a message stores it, also when it is not its turn.
        let is_open = matches!(begun, Begun::Run(_) | Begun::Busy { .. } | Begun::Blocked);
        if is_new && is_open {
            self.accept(key);
        }
        if let Begun::Run(leased) = begun {
            self.granted(part, leased);
        }
    }

    fn granted(&mut self, part: &PartId, leased: &Leased) {
        let (key, token) = (&leased.lease.key, leased.lease.token.get());
        let until = to_micros(leased.lease.until);
        self.trace(|| {
            let started = leased.attempts.started;
            format!("{part} gets {key} under {token}, attempt {started}")
        });
        let (now, store_now, blocked) = (self.now, self.store_now, self.blocked);
        self.newest = self.newest.max(token);
        let lost_before = self.run_lost_before(key);
        let Some(message) = self.current(key) else {
            return self.violated("only what was accepted", key.to_string());
        };
        let is_open = message.finished.is_none();
        let last = message.grants.last().cloned();
        // Others may have had it in between.
        let mut own = message.grants.iter().filter(|grant| grant.part == *part);
        let is_held = own.any(|grant| !grant.is_answered);
        message.grants.push(Grant {
            token,
            part: part.clone(),
            at: now,
            started: leased.attempts.started,
            until,
            blocked,
            outcome: None,
            run: None,
            told_lost: None,
            is_told: false,
            is_answered: false,
            is_forgotten: false,
        });
        self.check("final is final", is_open, || format!("{part} got {key}"));
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
        // A worker that is alive, and whose store answered, has renewed its lease.
        let is_alive = !self.killed.contains(&last.part);
        let runs = last.run.as_ref().is_some_and(|run| run.end.is_none());
        let is_troubled = self.terms.drifts
            || self.under_trouble > 0
            || self.last_trouble.is_some_and(|when| when >= last.at);
        self.check(
            "leases are renewed",
            !runs || !is_alive || is_troubled,
            || format!("{} lost {key} without a reason", last.part),
        );
    }

    /// Before the settlements are sent.
    pub(crate) fn settling(&mut self, part: &PartId, settlements: &[Settlement]) {
        for settlement in settlements {
            let (key, token) = (&settlement.lease.key, settlement.lease.token.get());
            let name = name_of(&settlement.outcome);
            self.trace(|| format!("{part} settles {key} under {token}: {name}"));
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
                .collect();
            let mut grants = message.grants.iter();
            let Some(grant) = grants.find(|grant| grant.token == token).cloned() else {
                continue;
            };
            let is_used_up = grant.started >= attempts;
            let fits = match (&grant.run, &settlement.outcome) {
                // Handed back, its attempts used up, or with the outcome of an earlier run here.
                (None, Outcome::Release | Outcome::Defer { .. }) => true,
                (None, Outcome::Dead { .. }) => is_used_up || ends.contains(&RunEnd::Dead),
                (None, Outcome::Processed { .. }) => ends.contains(&RunEnd::Done),
                (None, Outcome::Retry { .. }) => !ends.is_empty(),
                (Some(run), outcome) => match (run.end, outcome) {
                    (None, _) => false,
                    (Some(RunEnd::Done), Outcome::Processed { .. }) => true,
                    (Some(RunEnd::Done), _) => false,
                    (Some(_), Outcome::Processed { .. }) => false,
                    (Some(RunEnd::Dead), Outcome::Dead { .. }) => true,
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

    /// Leases on the message with an older token than this are lost with its run: an earlier message of its ordering
    /// key was handed out under this token, or changed by an operator.
    fn run_lost_before(&self, key: &Key) -> i64 {
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

    pub(crate) fn settled(&mut self, part: &PartId, settlements: &[Settlement], all: &[Settled]) {
        for (settlement, settled) in settlements.iter().zip(all) {
            let (key, token) = (&settlement.lease.key, settlement.lease.token.get());
            let (store_now, retention) = (self.store_now, self.terms.retention);
            self.trace(|| format!("{part} settled {key} under {token}: {settled:?}"));
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
                    last.outcome = Some(name_of(&settlement.outcome));
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
                    self.violated("nothing is refused", format!("{key}: {invalid}"));
                }
            }
        }
    }

    pub(crate) fn told_settled(&mut self, part: &PartId, asked: &[Settlement], all: &[Settled]) {
        let answered = asked.iter().zip(all);
        for (settlement, _) in answered.filter(|(_, settled)| **settled == Settled::Done) {
            let is_processed = matches!(settlement.outcome, Outcome::Processed { .. });
            let counts = self.counts.entry(part.clone()).or_default();
            counts.processed += u64::from(is_processed);
            if let Some(grant) = self.grant(&settlement.lease) {
                grant.is_answered = true;
            }
        }
    }

    pub(crate) fn extended(&mut self, part: &PartId, leases: &[Lease], all: &[Extended]) {
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

fn name_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Processed { .. } => "processed",
        Outcome::Retry { .. } => "retry",
        Outcome::Dead { .. } => "dead",
        Outcome::Release => "released",
        Outcome::Defer { .. } => "deferred",
    }
}

fn began(begun: &Begun) -> &'static str {
    match begun {
        Begun::Run(_) => "run",
        Begun::Processed { .. } => "processed",
        Begun::Busy { .. } => "busy",
        Begun::Blocked => "blocked",
        Begun::Dead { .. } => "dead",
        Begun::Discarded => "discarded",
    }
}
