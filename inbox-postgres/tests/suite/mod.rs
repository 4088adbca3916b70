//! How the conformance suite gets its inboxes, whichever server they are on.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, BoxError, BusinessWrites, Corruption, Fixture, Harness, Mishap, Need, Offered,
    Options, Restart, SchemaVariant, Settings, Transactions, Unable, crash::proxy::Proxy,
};
use inbox_api::{Inbox, Key, Schema as _};
use inbox_postgres::{PostgresOptions, PostgresStore};
use sqlx::{AssertSqlSafe, Connection as _, Postgres};
use test_servers::Server;

use crate::common::{self, Place};

/// The suite on one kind of server.
pub struct Database {
    pub name: &'static str,
    /// The URL of the server that the cases share.
    pub shared: fn() -> Option<String>,
    /// A server of one case's own.
    pub own: fn() -> Option<Server>,
    /// What the server asks of the store.
    pub options: fn(PostgresOptions) -> PostgresOptions,
    /// What cannot be checked there.
    pub lacks: &'static [Need],
}

#[async_trait]
impl Harness for Database {
    fn name(&self) -> String {
        self.name.into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let tested = self.tested(settings).await?;
        tested.store.create().await?;
        tested
            .place
            .run("CREATE TABLE {schema}.effects (note text NOT NULL)")
            .await
            .map_err(Unable::failed)?;
        Ok(Box::new(tested))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let tested = self.tested(&Settings::default()).await?;
        let sql = match variant {
            SchemaVariant::Missing => "SELECT 1",
            SchemaVariant::Incomplete => "DROP INDEX {schema}.inbox_claim",
            SchemaVariant::Newer => {
                "UPDATE {schema}.inbox_meta SET version = 4711, works_from = 4711"
            }
            SchemaVariant::Foreign => {
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.inbox_message (id text, note text)"
            }
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        };
        if matches!(variant, SchemaVariant::Incomplete | SchemaVariant::Newer) {
            tested.store.create().await?;
        }
        tested.place.run(sql).await.map_err(Unable::failed)?;
        Ok(Box::new(tested))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = vec![Need::Schema(SchemaVariant::Older)];
        needs.extend(Need::DISK);
        needs.extend(self.lacks);
        needs
    }
}

impl Database {
    async fn tested(&self, settings: &Settings) -> Offered<Tested> {
        let missing = || Unable::failed("no server of this kind");
        let (mut place, server) = if settings.disrupted {
            let server = (self.own)().ok_or_else(missing)?;
            let place = Place::at(server.url().to_owned());
            (place, Some(Arc::new(Mutex::new(server))))
        } else {
            let mut place = Place::at((self.shared)().ok_or_else(missing)?);
            // Nothing is away; a machine may be slow.
            place.options = place.options.acquire_timeout(Duration::from_secs(30));
            (place, None)
        };
        place.options =
            (self.options)(place.options).drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            place.options = place.options.payload_limit(limit);
        }
        let mut proxy = None;
        if let Some(limit) = settings.operation_timeout {
            place.options = place.options.operation_timeout(limit);
            let (between, url) = common::proxied(&place.url).await?;
            place.url = url;
            proxy = Some(between);
        }
        let store = Arc::new(connected(&place).await?);
        Ok(Tested {
            place,
            store,
            server,
            proxy,
        })
    }
}

/// Nothing is away yet; a machine may be slow.
async fn connected(place: &Place) -> inbox_api::Result<PostgresStore> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match place.connect().await {
            Err(error) if error.is_retryable() && Instant::now() < until => {}
            outcome => return outcome,
        }
    }
}

struct Tested {
    place: Place,
    store: Arc<PostgresStore>,
    /// A server of this case's own, if it is to be harmed.
    server: Option<Arc<Mutex<Server>>>,
    /// Between the store and the server, if connections are to go silent.
    proxy: Option<Proxy>,
}

impl Tested {
    fn server(&self, need: Need) -> Offered<&Arc<Mutex<Server>>> {
        self.server.as_ref().ok_or(Unable::NotOffered(need))
    }
}

#[async_trait]
impl Fixture for Tested {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store.clone()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        if by.is_zero() {
            return Ok(());
        }
        self.place.try_advance(by).await.map_err(Unable::failed)
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(self.place.connect().await?))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let broken = common::check::find_broken_rules(&self.place).await;
        broken.map_err(Unable::failed)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let sql = match corruption {
            Corruption::Headers => {
                "UPDATE {schema}.inbox_message SET headers = '[1]' WHERE handler = $1 AND id = $2"
            }
        };
        let mut connection = common::connection(&self.place.url)
            .await
            .map_err(Unable::failed)?;
        // A pooler keeps to one server's connection within a transaction only.
        let mut transaction = connection.begin().await.map_err(Unable::failed)?;
        sqlx::query(AssertSqlSafe(self.place.sql(sql)))
            .bind(key.handler.as_str())
            .bind(key.id.as_str())
            .persistent(false)
            .execute(&mut *transaction)
            .await
            .map_err(Unable::failed)?;
        transaction.commit().await.map_err(Unable::failed)?;
        connection.close().await.map_err(Unable::failed)
    }

    async fn begin_outage(&self) -> Offered<()> {
        common::act(self.server(Need::Outage)?, Server::stop).await
    }

    async fn end_outage(&self) -> Offered<()> {
        common::act(self.server(Need::Outage)?, Server::start).await
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or(Unable::NotOffered(Need::Silence))?.silence();
        Ok(())
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        common::restart(self.server(Need::Restart)?, how).await
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects {
            url: self.place.url.clone(),
            table: self.place.sql("{schema}.effects"),
        });
        Ok(Arc::new(
            Transactions::new(self.store.clone()).with_writes(effects),
        ))
    }
}

static NEXT_TABLE: AtomicU32 = AtomicU32::new(0);

/// A table of the handler's own.
struct Effects {
    url: String,
    table: String,
}

#[async_trait]
impl BusinessWrites<sqlx::Transaction<'static, Postgres>> for Effects {
    async fn write(
        &self,
        transaction: &mut sqlx::Transaction<'static, Postgres>,
        note: &str,
    ) -> Result<(), BoxError> {
        let sql = format!("INSERT INTO {} (note) VALUES ($1)", self.table);
        sqlx::query(AssertSqlSafe(sql))
            .bind(note)
            .persistent(false)
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn mishap(
        &self,
        transaction: &mut sqlx::Transaction<'static, Postgres>,
        mishap: Mishap,
    ) -> Offered<()> {
        let sql = match mishap {
            Mishap::FailedStatement => {
                format!("INSERT INTO {} (note) VALUES (NULL)", self.table)
            }
            // As the server breaks a deadlock up.
            Mishap::RolledBackByServer => {
                "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'; END $$".to_owned()
            }
            Mishap::Commit => "COMMIT".to_owned(),
            Mishap::RollBack => "ROLLBACK".to_owned(),
            Mishap::SchemaChange => {
                let number = NEXT_TABLE.fetch_add(1, Ordering::Relaxed);
                let name = self.table.replace("effects", &format!("own_{number}"));
                format!("CREATE TABLE {name} (note text)")
            }
        };
        let fails = matches!(mishap, Mishap::FailedStatement | Mishap::RolledBackByServer);
        let done = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut **transaction)
            .await;
        if done.is_err() != fails {
            return Err(Unable::failed(format!("{mishap:?}: {done:?}")));
        }
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let mut connection = common::connection(&self.url).await?;
        let mut transaction = connection.begin().await?;
        let sql = format!("SELECT note FROM {}", self.table);
        let notes = sqlx::query_scalar(AssertSqlSafe(sql))
            .persistent(false)
            .fetch_all(&mut *transaction)
            .await?;
        transaction.rollback().await?;
        connection.close().await?;
        Ok(notes)
    }
}

/// Runs all cases, several at a time. For servers that a machine need not have.
pub async fn run_all(database: Database) {
    let options = Options {
        jobs: NonZeroUsize::new(4),
        ..Options::default()
    };
    let report = conformance_tests::run_with(Arc::new(database), &options, |_| {}).await;
    assert!(report.is_conformant(), "{report}");
}
