//! A store that is right, and slow.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    Corruption, Fixture, Harness, Need, Offered, SchemaVariant, ServerControl, Settings, Unable,
};
use inbox_api::{Inbox, Key};
use tokio::task::JoinHandle;

use super::{Defect, Workshop};

/// What every operation takes, as on a database that is far away.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// How often the store's clock follows that of the runtime, which may run ahead of the host's.
const TICK: Duration = Duration::from_millis(2);

struct Slow;

#[async_trait]
impl Defect for Slow {
    async fn enter(&self, _: &'static str) {
        tokio::time::sleep(ROUND_TRIP).await;
    }
}

/// A slow store, whose clock can be moved or not.
pub(crate) struct SlowStore {
    pub(crate) has_clock: bool,
}

const STORE: Workshop<Slow> = Workshop {
    name: "slow",
    defect: || Slow,
};

#[async_trait]
impl Harness for SlowStore {
    fn name(&self) -> String {
        STORE.name()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        Ok(self.place(STORE.fresh(settings).await?))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        Ok(self.place(STORE.schema_variant(variant).await?))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut lacking = STORE.expected_not_checked();
        lacking.push(Need::Clock);
        lacking
    }
}

impl SlowStore {
    fn place(&self, fixture: Box<dyn Fixture>) -> Box<dyn Fixture> {
        let fixture: Arc<dyn Fixture> = fixture.into();
        let ticking = tokio::spawn(tick(Arc::downgrade(&fixture)));
        Box::new(Place {
            fixture,
            ticking,
            has_clock: self.has_clock,
        })
    }
}

async fn tick(fixture: Weak<dyn Fixture>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(fixture) = fixture.upgrade() else {
            return;
        };
        let _ = fixture.advance_clock(TICK).await;
    }
}

struct Place {
    fixture: Arc<dyn Fixture>,
    ticking: JoinHandle<()>,
    has_clock: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

#[async_trait]
impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.fixture.inbox()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        if !self.has_clock {
            return Err(Unable::NotOffered(Need::Clock));
        }
        self.fixture.advance_clock(by).await
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        self.fixture.second_connection().await
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        self.fixture.check_invariants().await
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        self.fixture.corrupt(key, corruption).await
    }

    fn server(&self) -> &dyn ServerControl {
        self.fixture.server()
    }
}
