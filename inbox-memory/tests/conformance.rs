//! The conformance suite, over the memory store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use conformance_tests::{Fixture, Harness, Need, Offered, SchemaVariant, Settings};
use inbox_api::{Clock, Inbox};
use inbox_memory::{MemoryOptions, MemoryStore};

struct Memory;

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let defaults = MemoryOptions::default();
        let clock = Clock::system();
        let store = MemoryStore::with(MemoryOptions {
            payload_limit: settings.payload_limit.unwrap_or(defaults.payload_limit),
            drop_processed_payloads: settings.drop_processed_payloads,
            clock: clock.clone(),
        });
        Ok(Box::new(Place { store, clock }))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            // Nothing outlives the process or is shared with another, and nothing can be away.
            Need::SecondConnection,
            Need::WakeupsAcrossProcesses,
            Need::Restart,
            Need::PowerLoss,
            Need::OutageAmidWrites,
            Need::Outage,
            Need::Transactions,
            Need::Silence,
            // What was written is what is read, and what it keeps cannot be seen from outside.
            Need::CorruptRows,
            Need::Invariants,
            // There is nothing to set up.
            Need::Schema(SchemaVariant::Missing),
            Need::Schema(SchemaVariant::Incomplete),
            Need::Schema(SchemaVariant::Older),
            Need::Schema(SchemaVariant::Newer),
            Need::Schema(SchemaVariant::Foreign),
        ]
    }
}

struct Place {
    store: MemoryStore,
    clock: Clock,
}

#[async_trait]
impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store.clone())
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }
}

conformance_tests::conformance!(Memory);
