//! Cases on MySQL and MariaDB.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Fixture, Harness, Need, Offered, SchemaVariant, Settings, Transactions, Unable,
};
use inbox::{ClockOffset, Inbox, Schema as _};
use inbox_mysql::{MySqlOptions, MySqlStore};

use super::{Rig, needs_raw_access};
use crate::tables;

/// Every case gets its own inbox, with a name that nobody else takes, in the database that
/// the URL names.
pub(super) struct Mysql {
    options: MySqlOptions,
    inboxes: Arc<Inboxes>,
}

/// The inboxes of a run. A fixture cannot wait for the server when it is dropped, so it only says
/// that it has done with its own, and the next case drops it.
#[derive(Default)]
struct Inboxes {
    all: Mutex<Vec<MySqlOptions>>,
    done_with: Mutex<Vec<MySqlOptions>>,
}

fn lock(inboxes: &Mutex<Vec<MySqlOptions>>) -> MutexGuard<'_, Vec<MySqlOptions>> {
    inboxes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mysql {
    /// Tries everything that each case needs, so that what is missing is said once.
    pub(super) async fn new(url: &str) -> inbox::Result<Self> {
        let mysql = Self {
            options: MySqlOptions::from_url(url)?,
            inboxes: Arc::default(),
        };
        tables::try_out(&mysql.options).await?;
        Ok(mysql)
    }

    fn inbox(&self) -> inbox::Result<MySqlOptions> {
        let name = tables::inbox_name("conformance")?;
        let options = self.options.clone().inbox_name(name);
        lock(&self.inboxes.all).push(options.clone());
        Ok(options)
    }

    async fn place(&self, settings: &Settings) -> Offered<Place> {
        let done_with = std::mem::take(&mut *lock(&self.inboxes.done_with));
        if tables::drop_all(&done_with, &[]).await.is_ok() {
            lock(&self.inboxes.all).retain(|options| {
                let name = options.name();
                !done_with.iter().any(|done| done.name() == name)
            });
        }
        let clock = ClockOffset::default();
        let mut options = self
            .inbox()?
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock_offset(clock.clone());
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
        }
        Ok(Place {
            store: Arc::new(MySqlStore::connect(options.clone()).await?),
            options,
            clock,
            inboxes: Arc::clone(&self.inboxes),
        })
    }
}

#[async_trait]
impl Rig for Mysql {
    async fn clean_up(&self) {
        let all = std::mem::take(&mut *lock(&self.inboxes.all));
        if let Err(error) = tables::drop_all(&all, &[]).await {
            crate::output::note(format_args!(
                "tables named inbox_conformance_… are left behind: {error}"
            ));
        }
    }
}

#[async_trait]
impl Harness for Mysql {
    fn name(&self) -> String {
        "mysql".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = self.place(settings).await?;
        place.store.create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        match variant {
            SchemaVariant::Missing => Ok(Box::new(self.place(&Settings::default()).await?)),
            _ => Err(Unable::NotOffered(Need::Schema(variant))),
        }
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = needs_raw_access();
        // A MariaDB server takes packets of 16 MiB unless set: a little less than such a message.
        needs.extend([Need::WakeupsAcrossProcesses, Need::LargePayloads]);
        needs
    }
}

struct Place {
    store: Arc<MySqlStore>,
    options: MySqlOptions,
    clock: ClockOffset,
    inboxes: Arc<Inboxes>,
}

#[async_trait]
impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<MySqlStore>::clone(&self.store)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.clock.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(MySqlStore::connect(self.options.clone()).await?))
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        Ok(Arc::new(Transactions::new(Arc::clone(&self.store))))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.inboxes.done_with).push(self.options.clone());
    }
}
