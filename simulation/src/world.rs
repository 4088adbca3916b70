//! What all parts of a run share: its time, its plan, its history.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use inbox::{Clock, HandlerName, Key, Kind, Message, MessageId, Operate, OrderingKey, Store};
use tokio::{sync::OwnedMutexGuard, time::Instant};

use crate::{
    Flaw,
    database::Database,
    history::History,
    scenario::{CALM, Operation, Scenario, Wrong},
    store::Disturbed,
};

pub(crate) const KIND: &str = "planned";
/// The kind that processors only know from a deployment on.
pub(crate) const NEWER_KIND: &str = "newer";
pub(crate) const HANDLERS: [&str; 2] = ["billing", "mail"];
/// The handler of what is only recorded.
pub(crate) const AUDIT: &str = "audit";
/// The handler that only inline consumers have.
pub(crate) const CALLS: &str = "calls";
/// The handler of what is no message and is kept.
pub(crate) const REJECTED: &str = "rejected";
/// The most bytes that the store takes.
pub(crate) const LIMIT: usize = 64;

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) flaw: Option<Flaw>,
    /// The store as it is.
    pub(crate) database: Database,
    /// The same, for operators.
    pub(crate) operate: Arc<dyn Operate>,
    /// The store as the parts see it, but for faults.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) messages: Vec<Message>,
    start: Instant,
    moved: Mutex<u64>,
    history: Mutex<History>,
    /// Of those who write to the store.
    turn: Arc<tokio::sync::Mutex<()>>,
    calls: Mutex<BTreeMap<Operation, u32>>,
    settlements: Mutex<u32>,
}

impl World {
    pub(crate) fn new(
        scenario: Scenario,
        flaw: Option<Flaw>,
        database: Database,
        store: Arc<dyn Store>,
        clock: Clock,
        history: History,
    ) -> Result<Self, inbox::Invalid> {
        let mut messages = Vec::new();
        for (number, sent) in scenario.messages.iter().enumerate() {
            let [first, second] = HANDLERS;
            let handler = [first, second, AUDIT, CALLS];
            let handler = handler.get(usize::from(sent.handler)).unwrap_or(&first);
            let id = MessageId::new(format!("m{number}"))?;
            let kind = Kind::new(if sent.is_newer { NEWER_KIND } else { KIND })?;
            let mut message = Message::new(HandlerName::new(*handler)?, id, kind, "{}");
            if let Some(key) = sent.ordering_key {
                message = message.with_ordering_key(OrderingKey::new(format!("k{key}"))?);
            }
            messages.push(message);
        }
        Ok(Self {
            scenario,
            flaw,
            operate: database.operate(),
            database,
            store,
            clock,
            messages,
            start: Instant::now(),
            moved: Mutex::default(),
            history: Mutex::new(history),
            turn: Arc::default(),
            calls: Mutex::default(),
            settlements: Mutex::default(),
        })
    }

    /// Which ordering key, of which handler, messages have, but for those that are only recorded.
    pub(crate) fn ordering_keys(&self) -> BTreeMap<Key, String> {
        let all = self.messages.iter();
        let ordered = all.filter(|message| message.handler().as_str() != AUDIT);
        let keys = ordered.filter_map(|message| {
            let ordering_key = message.ordering_key()?;
            let both = format!("{}/{}", message.handler(), ordering_key.as_str());
            Some((message.key().clone(), both))
        });
        keys.collect()
    }

    /// Those of the kind that processors only know from a deployment on.
    pub(crate) fn newer(&self) -> BTreeSet<Key> {
        let all = self.messages.iter();
        let newer = all.filter(|message| message.kind().as_str() == NEWER_KIND);
        newer.map(|message| message.key().clone()).collect()
    }

    /// Whether processors that begin now have all handlers.
    pub(crate) fn is_deployed(&self) -> bool {
        let deployment = self.scenario.deployment;
        deployment.is_none_or(|deployment| self.now() >= deployment.at * 1_000)
    }

    /// Which messages come before a message in the broker's order, of those that have its ordering key.
    pub(crate) fn earlier(&self, keys: &BTreeMap<Key, String>) -> BTreeMap<Key, Vec<Key>> {
        let mut earlier = BTreeMap::new();
        if !self.scenario.settings.keeps_order {
            return earlier;
        }
        let mut queued: Vec<_> = self.scenario.queued(false).collect();
        queued.sort_by_key(|(_, delivered)| delivered.at);
        let mut seen: BTreeMap<&String, Vec<Key>> = BTreeMap::new();
        for (_, delivered) in queued {
            let message = self.messages.get(delivered.message);
            let Some((key, ordering_key)) = message.and_then(|it| keys.get_key_value(it.key()))
            else {
                continue;
            };
            let before = seen.entry(ordering_key).or_default();
            if !before.contains(key) {
                earlier.insert(key.clone(), before.clone());
                before.push(key.clone());
            }
        }
        earlier
    }

    /// Microseconds since the beginning, by the runtime's clock.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.now() >= CALM * 1_000
    }

    /// Takes the store's clock to where it has to be.
    pub(crate) fn follow(&self) {
        let now = self.now();
        let jumps = self.scenario.jumps.iter();
        let jumped: u64 = jumps
            .filter(|(at, _)| at * 1_000 <= now)
            .map(|(_, by)| by * 1_000)
            .sum();
        // From the calm on it goes as fast as the runtime's.
        let (drifted, rest) = (now.min(CALM * 1_000), now.saturating_sub(CALM * 1_000));
        let target = drifted * self.scenario.clock_percent / 100 + rest + jumped;
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock
            .advance(Duration::from_micros(target.saturating_sub(*moved)));
        *moved = target.max(*moved);
    }

    pub(crate) fn store_now(&self) -> i64 {
        self.follow();
        self.clock.now_micros()
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.now = self.now();
        history.store_now = self.store_now();
        history
    }

    /// Waits until no transaction has what it has written still to commit. Leases may be lost by that.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        if let Ok(turn) = self.turn.clone().try_lock_owned() {
            return turn;
        }
        let _disturbed = Disturbed::new(self);
        self.turn.clone().lock_owned().await
    }

    /// Whether the store refuses the next settlements.
    pub(crate) fn refuses(&self) -> bool {
        let count = self.settlements.lock();
        let mut count = count.unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        !self.is_calm() && self.scenario.refusals.contains(&(*count - 1))
    }

    /// What goes wrong with the next call of an operation.
    pub(crate) fn next_fault(&self, operation: Operation) -> Option<Wrong> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(operation).or_default();
        let call = *count;
        *count += 1;
        if self.is_calm() {
            return None;
        }
        let now = self.now() / 1_000;
        let mut outages = self.scenario.outages.iter();
        if let Some(outage) = outages.find(|outage| (outage.from..outage.to).contains(&now)) {
            // Not all in the same moment.
            let left = outage.to - now + u64::from(call) * 7_919 % 40;
            return Some(match (outage.waits, call % 3) {
                (false, _) => Wrong::Fail,
                (true, 0) => Wrong::Delay(left),
                (true, _) => Wrong::Late(left),
            });
        }
        let mut slow = self.scenario.slow_claims.iter();
        if operation == Operation::Claim
            && let Some(slow) = slow.find(|slow| (slow.from..slow.to).contains(&now))
        {
            return Some(Wrong::Slow(slow.by));
        }
        let mut faults = self.scenario.faults.iter();
        let fault = faults.find(|fault| fault.operation == operation && fault.call == call)?;
        Some(fault.what)
    }
}
