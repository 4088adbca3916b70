//! What really happened in a run, and the rules that it is held to while it happens.

mod changes;
mod late;
mod leases;
mod receiving;
mod refusals;
mod renewals;
mod runs;
mod settling;
mod suspects;
mod transactions;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use inbox::{Fallback, Key, Lease};
pub(crate) use settling::name_of;
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

impl RunEnd {
    /// What comes to the same as not having a handler.
    pub(crate) fn of(fallback: Fallback) -> Self {
        match fallback {
            Fallback::Leave => Self::Defer,
            Fallback::DeadLetter => Self::Dead,
            Fallback::Retry => Self::Retry,
            Fallback::Ignore => Self::Done,
        }
    }
}

#[derive(Clone, Debug)]
struct Run {
    end: Option<RunEnd>,
    began: u64,
    /// It was told to stop by a shutdown before it ended.
    was_stopped: bool,
    /// It was told to stop although its lease was not lost, nor its thread blocked: nobody had renewed it.
    was_cut: bool,
}

impl Run {
    fn new(began: u64) -> Self {
        Self {
            end: None,
            began,
            was_stopped: false,
            was_cut: false,
        }
    }
}

/// A lease that was handed out.
#[derive(Clone, Debug)]
struct Grant {
    token: i64,
    part: PartId,
    at: u64,
    /// When its lease was renewed last.
    renewed: u64,
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
    /// It is the last attempt, and an earlier one has vanished.
    is_suspect: bool,
    /// Its holder held the message already.
    is_again: bool,
    /// The claim that brought it brought a suspect of its handler.
    comes_with_suspect: bool,
    /// When it was granted, by the store's clock.
    granted: i64,
    /// When its holder, a janitor, looked at the message.
    asked: Option<u64>,
    /// When its outcome was stored.
    settled: Option<u64>,
    /// When the message is due again, if the outcome says so.
    due: Option<i64>,
    /// The outcome that its holder was told to be refused.
    refused: Option<Refused>,
    /// Its outcome was sent to the store, outside of a transaction.
    is_sent: bool,
    /// When its run, or a call in its transaction, ended last.
    busy_until: Option<u64>,
    /// Its transaction was not opened, for a reason that waiting does not mend.
    is_unopened: bool,
    /// Its handler has ended, and its transaction has not.
    is_in_call: bool,
    /// It is not known that what its handler did last was committed.
    is_undone: bool,
    /// The same for what was to be written about its failure.
    lacks_note: bool,
}

/// An outcome that the store has refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    name: &'static str,
    /// What the store may object to was left out already.
    is_plain: bool,
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
    /// When that was, by the runtime's clock.
    changed_when: Option<u64>,
    /// When it is due at the earliest, as it was accepted or an operator has changed it.
    due: i64,
    /// It keeps those behind it in its ordering key waiting, also if it is final.
    blocks: bool,
    /// Since when it is final, by the store's clock.
    finished: Option<i64>,
    /// It was stored by a call whose caller had given up.
    is_orphan: bool,
    /// A handler's work on it has been committed since it was accepted or replayed.
    has_effect: bool,
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
    pub(crate) give_up_after: i64,
    pub(crate) lease: u64,
    pub(crate) store_timeout: u64,
    /// The handler whose messages are run together: when their time limit is over, those that had not ended
    /// run again.
    pub(crate) batches: Option<&'static str>,
    /// Whether what is dead keeps those behind it in its ordering key waiting.
    pub(crate) dead_block: bool,
    /// Whether handlers work in transactions, and whether failed attempts are written about.
    pub(crate) in_transactions: bool,
    /// Renewals wait for transactions.
    pub(crate) has_turns: bool,
    pub(crate) has_notes: bool,
    /// Inline handlers settle by themselves, in transactions.
    pub(crate) inline_settles: bool,
    /// How messages end whose kind a processor does not know.
    pub(crate) fallback: Option<RunEnd>,
    /// Which those are.
    pub(crate) newer: BTreeSet<Key>,
    /// Leases may be lost at any time, as the store's clock does not go as the runtime's.
    pub(crate) drifts: bool,
    pub(crate) ordering_keys: BTreeMap<Key, String>,
    /// What comes before a message of an ordering key at a broker that keeps order.
    pub(crate) earlier: BTreeMap<Key, Vec<Key>>,
}

#[derive(Debug, Default)]
struct Counts {
    claimed: u64,
    /// Claimed while it still held them under an earlier lease.
    claimed_again: u64,
    processed: u64,
    accepted: u64,
    duplicates: u64,
    rejected: u64,
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
    /// Since when.
    trouble_began: u64,
    /// When something went wrong, from and to.
    troubles: Vec<(u64, u64)>,
    /// The leases that a processor could not renew, and when it was told so.
    not_renewed: BTreeMap<PartId, (u64, Vec<Lease>)>,
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
    /// Those with a delivery that was not stored, and is not to be.
    passed_over: BTreeSet<Key>,
    /// The dead letters of deliveries.
    letters: BTreeMap<usize, Key>,
    /// When a janitor looked at a message that it is about to take.
    looks: BTreeMap<(PartId, Key), u64>,
    /// When it looked at the one that it takes.
    looked: Option<u64>,
    /// Those that were told of an error that waiting does not mend: they may end.
    failing: BTreeSet<PartId>,
    /// Processors that have ended by themselves.
    ended: BTreeSet<PartId>,
    /// Processors that do not know the newer kind.
    older: BTreeSet<PartId>,
    /// What they were told to have claimed since, and have not handed back.
    late: BTreeMap<(Key, i64), PartId>,
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
            trouble_began: 0,
            troubles: Vec::new(),
            not_renewed: BTreeMap::new(),
            broken: Arc::default(),
            blocked: 0,
            open_claims: BTreeMap::new(),
            dropped_claims: BTreeMap::new(),
            last_ends: BTreeMap::new(),
            passed_over: BTreeSet::new(),
            letters: BTreeMap::new(),
            looks: BTreeMap::new(),
            looked: None,
            failing: BTreeSet::new(),
            ended: BTreeSet::new(),
            older: BTreeSet::new(),
            late: BTreeMap::new(),
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
        if self.under_trouble == 0 {
            self.trouble_began = self.now;
        }
        self.under_trouble += by;
        if self.under_trouble == 0 {
            self.troubles.push((self.trouble_began, self.now));
        }
    }

    pub(crate) fn killed(&mut self, part: &PartId) {
        self.trace(|| format!("{part} is killed"));
        self.killed.insert(part.clone());
    }

    /// Which ordering key, of which handler, messages have, and what came before each at the broker.
    pub(crate) fn ordered_by(
        &mut self,
        keys: BTreeMap<Key, String>,
        earlier: BTreeMap<Key, Vec<Key>>,
    ) {
        self.terms.ordering_keys = keys;
        self.terms.earlier = earlier;
    }

    pub(crate) fn are_newer(&mut self, newer: BTreeSet<Key>) {
        self.terms.newer = newer;
    }

    /// A processor that does not know the newer kind begins.
    pub(crate) fn is_older(&mut self, part: &PartId) {
        self.older.insert(part.clone());
    }

    /// How a message ends at a processor that has no handler for it.
    fn fallback(&self, part: &PartId, key: &Key) -> Option<RunEnd> {
        let is_unknown = self.older.contains(part) && self.terms.newer.contains(key);
        self.terms.fallback.filter(|_| is_unknown)
    }

    pub(crate) fn fails_for_good(&mut self, part: &PartId) {
        self.failing.insert(part.clone());
    }

    pub(crate) fn told_to_stop(&mut self, part: &PartId, drain_limit: u64) {
        self.trace(|| format!("{part} is told to stop"));
        let over = self.now + drain_limit * 1_000;
        self.stops.insert(part.clone(), over);
    }

    fn current(&mut self, key: &Key) -> Option<&mut Accepted> {
        self.messages.get_mut(key)?.last_mut()
    }
}
