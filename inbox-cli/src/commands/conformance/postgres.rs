//! Cases on PostgreSQL.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Fixture, Harness, Need, Offered, SchemaVariant, Settings, Transactions, Unable,
};
use inbox::{Inbox, Schema as _, Store as _};
use inbox_postgres::{PostgresOptions, PostgresStore, SchemaName};

use super::{Rig, needs_raw_access};
use crate::scratch::Scratch;

/// Every case gets its own schema in the database that the URL names.
pub(super) struct Postgres {
    scratch: Scratch,
    schemas: Arc<Schemas>,
}

/// The schemas of a run. A fixture cannot wait for the server when it is dropped, so it only says
/// that it has done with its own, and the next case drops it.
#[derive(Default)]
struct Schemas {
    all: Mutex<Vec<SchemaName>>,
    done_with: Mutex<Vec<SchemaName>>,
}

fn lock(names: &Mutex<Vec<SchemaName>>) -> MutexGuard<'_, Vec<SchemaName>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Postgres {
    /// Tries everything that each case needs, so that what is missing is said once.
    pub(super) async fn new(url: &str) -> inbox::Result<Self> {
        let postgres = Self {
            scratch: Scratch::at(url)?,
            schemas: Arc::default(),
        };
        let schema = postgres.schema()?;
        let store = postgres
            .scratch
            .connect(postgres.scratch.options(&schema))
            .await?;
        let created = store.create().await;
        store.close().await;
        postgres.clean_up().await;
        created?;
        Ok(postgres)
    }

    fn schema(&self) -> inbox::Result<SchemaName> {
        let schema = Scratch::schema("conformance")?;
        lock(&self.schemas.all).push(schema.clone());
        Ok(schema)
    }

    async fn place(&self, settings: &Settings) -> Offered<OneSchema> {
        let done_with = std::mem::take(&mut *lock(&self.schemas.done_with));
        for schema in done_with {
            if self.scratch.drop_schema(&schema).await.is_ok() {
                lock(&self.schemas.all).retain(|other| *other != schema);
            }
        }
        let schema = self.schema()?;
        let mut options = self
            .scratch
            .options(&schema)
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        if let Some(limit) = settings.operation_timeout {
            options = options.operation_timeout(limit);
        }
        Ok(OneSchema {
            store: Arc::new(self.scratch.connect(options.clone()).await?),
            scratch: self.scratch.clone(),
            options,
            schema,
            ahead: AtomicI64::new(0),
            schemas: Arc::clone(&self.schemas),
        })
    }
}

#[async_trait]
impl Rig for Postgres {
    async fn clean_up(&self) {
        let all = std::mem::take(&mut *lock(&self.schemas.all));
        for schema in all {
            if let Err(error) = self.scratch.drop_schema(&schema).await {
                crate::output::note(format_args!("the schema {schema} is left behind: {error}"));
            }
        }
    }
}

#[async_trait]
impl Harness for Postgres {
    fn name(&self) -> String {
        "postgres".into()
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
        needs_raw_access()
    }
}

struct OneSchema {
    store: Arc<PostgresStore>,
    scratch: Scratch,
    options: PostgresOptions,
    schema: SchemaName,
    /// By how much the inbox's clock is ahead, in microseconds.
    ahead: AtomicI64,
    schemas: Arc<Schemas>,
}

#[async_trait]
impl Fixture for OneSchema {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<PostgresStore>::clone(&self.store)
    }

    /// The inbox asks one function of its own for the time; this replaces it.
    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        if by.is_zero() {
            return Ok(());
        }
        let by = i64::try_from(by.as_micros()).map_err(Unable::failed)?;
        let ahead = self.ahead.fetch_add(by, Ordering::Relaxed) + by;
        let sql = format!(
            "CREATE OR REPLACE FUNCTION \"{}\".inbox_now() RETURNS timestamptz
             LANGUAGE sql VOLATILE PARALLEL SAFE
             AS $$ SELECT pg_catalog.clock_timestamp() + {ahead} * interval '1 microsecond' $$",
            self.schema
        );
        self.scratch.execute(sql).await.map_err(Unable::failed)
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(self.scratch.connect(self.options.clone()).await?))
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        Ok(Arc::new(Transactions::new(Arc::clone(&self.store))))
    }
}

impl Drop for OneSchema {
    fn drop(&mut self) {
        lock(&self.schemas.done_with).push(self.schema.clone());
    }
}
