//! Cases on the memory store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use conformance_tests::{Fixture, Harness, Need, Offered, SchemaVariant, Settings};
use inbox::{Clock, Inbox};
use inbox_memory::{MemoryOptions, MemoryStore};

use super::{Rig, needs_raw_access};

pub(super) struct Memory;

impl Rig for Memory {}

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
        Ok(Box::new(InMemory { store, clock }))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = needs_raw_access();
        needs.extend([
            Need::SecondConnection,
            Need::WakeupsAcrossProcesses,
            Need::Transactions,
            Need::Schema(SchemaVariant::Missing),
        ]);
        needs
    }
}

struct InMemory {
    store: MemoryStore,
    clock: Clock,
}

#[async_trait]
impl Fixture for InMemory {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::new(self.store.clone())
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }
}
