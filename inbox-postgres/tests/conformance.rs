//! The conformance suite, over the PostgreSQL store.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use common::Place;
use conformance_tests::{
    AnyTransactions, BoxError, BusinessWrites, Corruption, Fixture, Harness, Need, Offered,
    Restart, SchemaVariant, Settings, Transactions, Unable,
};
use inbox_api::{Inbox, Key, Schema as _};
use inbox_postgres::PostgresStore;
use sqlx::{AssertSqlSafe, Connection as _, Postgres};
use test_servers::Server;

struct Database;

#[async_trait]
impl Harness for Database {
    fn name(&self) -> String {
        "postgres".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = Tested::new(settings).await?;
        place.store.create().await?;
        place
            .place
            .run("CREATE TABLE {schema}.effects (note text NOT NULL)")
            .await
            .map_err(Unable::failed)?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let tested = Tested::new(&Settings::default()).await?;
        let sql = match variant {
            SchemaVariant::Missing => "SELECT 1",
            SchemaVariant::Incomplete => "DROP INDEX {schema}.inbox_claim",
            SchemaVariant::Newer => "UPDATE {schema}.inbox_meta SET version = 4711",
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
        vec![Need::Schema(SchemaVariant::Older)]
    }
}

struct Tested {
    place: Place,
    store: Arc<PostgresStore>,
    /// By how much the inbox's clock is ahead, in microseconds.
    ahead: AtomicI64,
    /// A server of this case's own, if it is to be harmed.
    server: Option<Arc<Mutex<Server>>>,
}

impl Tested {
    async fn new(settings: &Settings) -> Offered<Self> {
        let missing = || Unable::failed("no PostgreSQL server");
        let (mut place, server) = if settings.disrupted {
            let server = common::own_server().ok_or_else(missing)?;
            let place = Place::at(server.url().to_owned());
            (place, Some(Arc::new(Mutex::new(server))))
        } else {
            (Place::shared().ok_or_else(missing)?, None)
        };
        place.options = place
            .options
            .drop_processed_payloads(settings.drop_processed_payloads);
        if !settings.disrupted {
            // Nothing is away; a machine may be slow.
            place.options = place.options.acquire_timeout(Duration::from_secs(30));
        }
        if let Some(limit) = settings.payload_limit {
            place.options = place.options.payload_limit(limit);
        }
        let store = Arc::new(place.connect().await?);
        Ok(Self {
            place,
            store,
            ahead: AtomicI64::new(0),
            server,
        })
    }

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
        let by = i64::try_from(by.as_micros()).map_err(Unable::failed)?;
        let ahead = self.ahead.fetch_add(by, Ordering::Relaxed) + by;
        let sql = format!(
            "CREATE OR REPLACE FUNCTION {{schema}}.inbox_now() RETURNS timestamptz
             LANGUAGE sql VOLATILE PARALLEL SAFE
             AS $$ SELECT pg_catalog.clock_timestamp() + {ahead} * interval '1 microsecond' $$"
        );
        self.place.run(&sql).await.map_err(Unable::failed)
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(self.place.connect().await?))
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let sql = match corruption {
            Corruption::Headers => {
                "UPDATE {schema}.inbox_message SET headers = '[1]' WHERE handler = $1 AND id = $2"
            }
        };
        let sql = sql.replace("{schema}", &format!("\"{}\"", self.place.schema));
        let mut connection = common::connection(&self.place.url)
            .await
            .map_err(Unable::failed)?;
        sqlx::query(AssertSqlSafe(sql))
            .bind(key.handler.as_str())
            .bind(key.id.as_str())
            .execute(&mut connection)
            .await
            .map_err(Unable::failed)?;
        connection.close().await.map_err(Unable::failed)
    }

    async fn begin_outage(&self) -> Offered<()> {
        common::act(self.server(Need::Outage)?, Server::stop).await
    }

    async fn end_outage(&self) -> Offered<()> {
        common::act(self.server(Need::Outage)?, Server::start).await
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        common::restart(self.server(Need::Restart)?, how).await
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Arc::new(Effects {
            url: self.place.url.clone(),
            table: format!("\"{}\".effects", self.place.schema),
        });
        Ok(Arc::new(
            Transactions::new(self.store.clone()).with_writes(effects),
        ))
    }
}

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
            .execute(&mut **transaction)
            .await?;
        Ok(())
    }

    async fn written(&self) -> Result<Vec<String>, BoxError> {
        let mut connection = common::connection(&self.url).await?;
        let sql = format!("SELECT note FROM {}", self.table);
        let notes = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await?;
        connection.close().await?;
        Ok(notes)
    }
}

conformance_tests::conformance!(Database);
