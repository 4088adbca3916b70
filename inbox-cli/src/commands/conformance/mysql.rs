//! Cases on MySQL and MariaDB.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Fixture, Harness, Need, Offered, SchemaVariant, Settings, Transactions, Unable,
};
use inbox::{Inbox, InboxName, Schema as _};
use inbox_mysql::{ClockOffset, MySqlOptions, MySqlStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::{Rig, needs_raw_access};

/// Every case gets an inbox of its own, with a name that nobody else takes, in the database that
/// the URL names.
pub(super) struct Mysql {
    options: MySqlOptions,
    prefix: String,
    next: AtomicU32,
    used: Mutex<Vec<MySqlOptions>>,
}

impl Mysql {
    pub(super) async fn new(url: &str) -> inbox::Result<Self> {
        let options = MySqlOptions::from_url(url)?;
        // Fail now rather than in every case.
        let store = MySqlStore::connect(options.clone()).await?;
        inbox::Store::close(&store).await;
        Ok(Self {
            options,
            prefix: format!("conformance_{:08x}", fastrand::u32(..)),
            next: AtomicU32::new(0),
            used: Mutex::default(),
        })
    }

    async fn place(&self, settings: &Settings) -> Offered<Place> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = InboxName::new(format!("{}_{number}", self.prefix)).map_err(Unable::failed)?;
        let clock = ClockOffset::default();
        let mut options = self
            .options
            .clone()
            .inbox_name(name)
            .drop_processed_payloads(settings.drop_processed_payloads)
            .clock_offset(clock.clone());
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        self.used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(options.clone());
        let store = Arc::new(MySqlStore::connect(options.clone()).await?);
        Ok(Place {
            store,
            options,
            clock,
        })
    }

    async fn drop_all(&self, used: Vec<MySqlOptions>) -> sqlx::Result<()> {
        let connection = self
            .options
            .connection()
            .clone()
            .disable_statement_logging();
        let mut connection = connection.connect().await?;
        for options in used {
            // The tables, as the statements that made them name them.
            let ddl = options.ddl();
            for table in ddl.split("CREATE TABLE IF NOT EXISTS ").skip(1) {
                let name = table.split(" (").next().unwrap_or_default();
                let sql = format!("DROP TABLE IF EXISTS {name}");
                connection.execute(AssertSqlSafe(sql)).await?;
            }
        }
        connection.close().await
    }
}

#[async_trait]
impl Rig for Mysql {
    async fn clean_up(&self) {
        let used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        if let Err(error) = self.drop_all(used).await {
            tracing::warn!(%error, "tables named {}_… are left behind", self.prefix);
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
        needs.push(Need::WakeupsAcrossProcesses);
        needs
    }
}

struct Place {
    store: Arc<MySqlStore>,
    options: MySqlOptions,
    clock: ClockOffset,
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
