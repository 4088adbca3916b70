//! What all parts of a run share: its time, its plan, its history.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use inbox::{Clock, HandlerName, Kind, Message, MessageId, OrderingKey, Store};
use inbox_memory::MemoryStore;
use tokio::time::Instant;

use crate::{
    Flaw,
    history::History,
    scenario::{CALM, Operation, Scenario, Wrong},
};

pub(crate) const KIND: &str = "planned";
pub(crate) const HANDLERS: [&str; 2] = ["billing", "mail"];

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) flaw: Option<Flaw>,
    /// The store as it is.
    pub(crate) memory: MemoryStore,
    /// The store as the parts see it, but for faults.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) messages: Vec<Message>,
    start: Instant,
    moved: Mutex<u64>,
    history: Mutex<History>,
    calls: Mutex<BTreeMap<Operation, u32>>,
}

impl World {
    pub(crate) fn new(
        scenario: Scenario,
        flaw: Option<Flaw>,
        memory: MemoryStore,
        store: Arc<dyn Store>,
        clock: Clock,
        history: History,
    ) -> Result<Self, inbox::Invalid> {
        let mut messages = Vec::new();
        for (number, sent) in scenario.messages.iter().enumerate() {
            let handler = HANDLERS
                .get(usize::from(sent.handler))
                .unwrap_or(&"billing");
            let id = MessageId::new(format!("m{number}"))?;
            let mut message = Message::new(HandlerName::new(*handler)?, id, Kind::new(KIND)?, "{}");
            if let Some(key) = sent.ordering_key {
                message = message.with_ordering_key(OrderingKey::new(format!("k{key}"))?);
            }
            messages.push(message);
        }
        Ok(Self {
            scenario,
            flaw,
            memory,
            store,
            clock,
            messages,
            start: Instant::now(),
            moved: Mutex::default(),
            history: Mutex::new(history),
            calls: Mutex::default(),
        })
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
        let mut faults = self.scenario.faults.iter();
        let fault = faults.find(|fault| fault.operation == operation && fault.call == call)?;
        Some(fault.what)
    }
}
