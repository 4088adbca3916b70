//! The harness of the broken stores, and what they are on.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Corruption, Fixture, Harness, Need, Offered, Restart, SchemaVariant,
    ServerControl, Settings, Unable,
};
use inbox_api::{Clock, DEFAULT_PAYLOAD_LIMIT, Inbox, Key};
use inbox_memory::{MemoryOptions, MemoryStore};

use super::{
    Broken, Defect,
    corrupting::Corrupt,
    schema::{Condition, Mistake},
    skewed,
};

/// Makes fresh stores with the defect that the function makes.
pub(crate) struct Workshop<D: Defect> {
    pub(crate) name: &'static str,
    pub(crate) defect: fn() -> D,
}

#[async_trait]
impl<D: Defect> Harness for Workshop<D> {
    fn name(&self) -> String {
        self.name.into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        Ok(Box::new(self.server(settings, Condition::default())))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let changes = (self.defect)().at_set_up() == Mistake::ChangesTheLayout;
        if variant == SchemaVariant::Kept && !changes {
            return Err(Unable::NotOffered(Need::Schema(variant)));
        }
        let condition = Condition::of(Some(variant));
        Ok(Box::new(self.server(&Settings::default(), condition)))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut lacking = vec![
            Need::WakeupsAcrossProcesses,
            Need::Silence,
            Need::OutageAmidWrites,
            // Memory keeps nothing.
            Need::Schema(SchemaVariant::Kept),
        ];
        if (self.defect)().in_transactions().is_none() {
            lacking.push(Need::Transactions);
        }
        lacking
    }
}

impl<D: Defect> Workshop<D> {
    fn server(&self, settings: &Settings, condition: Condition) -> Server<D> {
        let clock = Clock::system();
        let options = MemoryOptions::new()
            .payload_limit(settings.payload_limit.unwrap_or(DEFAULT_PAYLOAD_LIMIT))
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock(clock.clone());
        let inner = MemoryStore::with(options);
        let server = Server {
            inner,
            clock,
            defect: self.defect,
            condition,
            corrupt: Corrupt::default(),
            is_away: Arc::default(),
            outages: Arc::default(),
            store: Mutex::default(),
        };
        server.start();
        server
    }
}

/// The memory stands for a server, which any number of processes use and which outlives them.
struct Server<D> {
    inner: MemoryStore,
    clock: Clock,
    defect: fn() -> D,
    condition: Condition,
    corrupt: Corrupt,
    is_away: Arc<AtomicBool>,
    outages: Arc<AtomicUsize>,
    store: Mutex<Option<Arc<Broken<D>>>>,
}

impl<D: Defect> Server<D> {
    fn open(&self) -> Arc<Broken<D>> {
        Arc::new(Broken {
            inner: self.inner.clone(),
            defect: (self.defect)(),
            condition: self.condition.clone(),
            corrupt: self.corrupt.clone(),
            is_away: Arc::clone(&self.is_away),
            outages: Arc::clone(&self.outages),
            is_closed: AtomicBool::new(false),
        })
    }

    fn start(&self) {
        *self.store.lock().unwrap() = Some(self.open());
    }
}

#[async_trait]
impl<D: Defect> Fixture for Server<D> {
    fn inbox(&self) -> Arc<dyn Inbox> {
        let store = self.store.lock().unwrap();
        store.as_ref().map(Arc::clone).unwrap()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        let other = self.open();
        if other.defect.is_the_servers() {
            return Ok(self.inbox());
        }
        Ok(other)
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let store = self.store.lock().unwrap().clone().unwrap();
        Ok(store.defect.inconsistencies(&self.inner).await)
    }

    async fn corrupt(&self, key: &Key, _: Corruption) -> Offered<()> {
        self.corrupt.spoil(key);
        Ok(())
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        match (self.defect)().in_transactions() {
            Some(mistake) => {
                let capabilities = (self.defect)().capabilities(&self.inner);
                Ok(Arc::new(skewed::Skewed {
                    inner: self.inner.clone(),
                    mistake,
                    is_away: Arc::clone(&self.is_away),
                    has_ordering: capabilities.ordering,
                }))
            }
            None => Err(Unable::NotOffered(Need::Transactions)),
        }
    }

    fn server(&self) -> &dyn ServerControl {
        self
    }
}

#[async_trait]
impl<D: Defect> ServerControl for Server<D> {
    async fn begin_outage(&self) -> Offered<()> {
        self.outages.fetch_add(1, Ordering::SeqCst);
        self.is_away.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn end_outage(&self) -> Offered<()> {
        self.is_away.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn restart(&self, _: Restart) -> Offered<()> {
        self.start();
        Ok(())
    }

    async fn lose_power(&self) -> Offered<()> {
        self.start();
        Ok(())
    }
}
