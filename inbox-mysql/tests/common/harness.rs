//! The harness of the conformance suite, for each kind of server.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    AnyTransactions, Corruption, Fixture, Harness, Need, Offered, Options, Report, Restart,
    SchemaVariant, Settings, Transactions, Unable, crash::proxy::Proxy, run_with,
};
use inbox_api::{Inbox, Key, Schema as _, Store as _};
use inbox_mysql::MySqlStore;
use sqlx::{ConnectOptions as _, Connection as _};
use test_servers::{Kind, Server};

use super::{Place, act, connect_options, effects::Effects, own_server, restart, shared_url};

/// Runs the cases of a filter, several at a time, and reports.
pub async fn report(harness: impl Harness, filter: &str) -> Report {
    let options = Options {
        filter: filter.into(),
        jobs: NonZeroUsize::new(4),
        ..Options::default()
    };
    run_with(Arc::new(harness), &options, |_| {}).await
}

pub struct Database(pub Kind);

/// Places on servers that the harness's user has: each store in turn on the next URL.
pub struct At(pub &'static str, pub Vec<String>);

#[async_trait]
impl Harness for At {
    fn name(&self) -> String {
        self.0.into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        if settings.disrupted {
            return Err(Unable::NotOffered(Need::Outage));
        }
        let tested = Tested::at(self.1.clone(), None, settings).await?;
        tested.store.create().await?;
        tested.run(Effects::TABLES).await?;
        Ok(Box::new(tested))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        match variant {
            SchemaVariant::Missing => Ok(Box::new(
                Tested::at(self.1.clone(), None, &Settings::default()).await?,
            )),
            _ => Err(Unable::NotOffered(Need::Schema(variant))),
        }
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            Need::Outage,
            Need::Restart,
            Need::PowerLoss,
            Need::OutageAmidWrites,
            Need::WakeupsAcrossProcesses,
            Need::Schema(SchemaVariant::Incomplete),
            Need::Schema(SchemaVariant::Older),
            Need::Schema(SchemaVariant::Newer),
            Need::Schema(SchemaVariant::Foreign),
        ]
    }
}

#[async_trait]
impl Harness for Database {
    fn name(&self) -> String {
        self.0.name().into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let tested = Tested::new(self.0, settings).await?;
        // A new server may take its time to make tables.
        let options = tested
            .place
            .options
            .clone()
            .operation_timeout(Duration::from_secs(60));
        let patient = MySqlStore::connect(options).await?;
        patient.create().await?;
        patient.close().await;
        tested.run(Effects::TABLES).await?;
        Ok(Box::new(tested))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let tested = Tested::new(self.0, &Settings::default()).await?;
        let sql = match variant {
            SchemaVariant::Missing => "DO 0",
            SchemaVariant::Incomplete => "ALTER TABLE inbox_work DROP INDEX claim",
            SchemaVariant::Newer => "UPDATE inbox_meta SET version = 4711, oldest = 4711",
            SchemaVariant::Foreign => "CREATE TABLE inbox_message (id VARCHAR(9), note TEXT)",
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        };
        if matches!(variant, SchemaVariant::Incomplete | SchemaVariant::Newer) {
            tested.store.create().await?;
        }
        tested.run(sql).await?;
        Ok(Box::new(tested))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        vec![
            Need::Schema(SchemaVariant::Older),
            // Neither server has notifications.
            Need::WakeupsAcrossProcesses,
            Need::OutageAmidWrites,
            Need::PowerLoss,
        ]
    }
}

struct Tested {
    /// Where further connections go, in turn.
    urls: Vec<String>,
    next: std::sync::atomic::AtomicUsize,
    place: Place,
    store: Arc<MySqlStore>,
    /// A server of this case's own, if it is to be harmed.
    server: Option<Arc<Mutex<Server>>>,
    /// Between the store and its server, where connections are to go silent.
    proxy: Option<Proxy>,
}

impl Tested {
    async fn new(kind: Kind, settings: &Settings) -> Offered<Self> {
        let missing = || Unable::failed(format!("no {kind} server"));
        // Where connections go silent, the server itself comes to no harm.
        let (url, server) = if settings.disrupted && settings.operation_timeout.is_none() {
            let server = tokio::task::spawn_blocking(move || own_server(kind))
                .await
                .map_err(Unable::failed)?
                .ok_or_else(missing)?;
            let url = server.url().to_owned();
            (url, Some(Arc::new(Mutex::new(server))))
        } else {
            (shared_url(kind).ok_or_else(missing)?, None)
        };
        Self::at(vec![url], server, settings).await
    }

    async fn at(
        urls: Vec<String>,
        server: Option<Arc<Mutex<Server>>>,
        settings: &Settings,
    ) -> Offered<Self> {
        let url = urls.first().cloned().unwrap_or_default();
        let mut place = Place::at(url).await.map_err(Unable::failed)?;
        for other in urls.iter().skip(1) {
            see_database(other, &place.database)
                .await
                .map_err(Unable::failed)?;
        }
        let most = Duration::from_secs(if settings.disrupted { 4 } else { 20 });
        let proxy = match settings.operation_timeout {
            Some(_) => Some(place.behind_proxy().await.map_err(Unable::failed)?),
            None => None,
        };
        place.options = place
            .options
            .operation_timeout(settings.operation_timeout.unwrap_or(most))
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            place.options = place.options.payload_limit(limit);
        }
        let store = Arc::new(MySqlStore::connect(place.options.clone()).await?);
        Ok(Self {
            urls,
            next: std::sync::atomic::AtomicUsize::new(1),
            place,
            store,
            server,
            proxy,
        })
    }

    async fn run(&self, sql: &str) -> Offered<()> {
        self.place.run(sql).await.map_err(Unable::failed)
    }

    fn server(&self, need: Need) -> Offered<&Arc<Mutex<Server>>> {
        self.server.as_ref().ok_or(Unable::NotOffered(need))
    }
}

/// Waits until a node of a cluster has a database that another node has made. Connections to it do not
/// wait by themselves.
async fn see_database(url: &str, database: &str) -> sqlx::Result<()> {
    let mut tries = 0;
    loop {
        match connect_options(url, Some(database)).connect().await {
            Ok(node) => return node.close().await,
            Err(error) if tries == 300 => return Err(error),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[async_trait]
impl Fixture for Tested {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store.clone()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.place.clock.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        let next = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let url = &self.urls[next % self.urls.len()];
        let options = self
            .place
            .options
            .clone()
            .connect_with(connect_options(url, Some(&self.place.database)));
        Ok(Arc::new(MySqlStore::connect(options).await?))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let broken = self.place.broken_rules().await;
        broken.map_err(Unable::failed)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let sql = match corruption {
            Corruption::Headers => {
                "UPDATE inbox_message SET headers = '[1' WHERE handler = ? AND id = ?"
            }
        };
        let mut connection = self.place.connection().await.map_err(Unable::failed)?;
        sqlx::query(sql)
            .bind(key.handler.as_str())
            .bind(key.id.as_str())
            .execute(&mut connection)
            .await
            .map_err(Unable::failed)?;
        connection.close().await.map_err(Unable::failed)
    }

    async fn begin_outage(&self) -> Offered<()> {
        act(self.server(Need::Outage)?, Server::pause).await
    }

    async fn end_outage(&self) -> Offered<()> {
        act(self.server(Need::Outage)?, Server::resume).await
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self
            .proxy
            .as_ref()
            .ok_or(Unable::NotOffered(Need::Silence))?;
        proxy.silence();
        Ok(())
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        restart(self.server(Need::Restart)?, how).await
    }

    fn transactions(&self) -> Offered<Arc<dyn AnyTransactions>> {
        let effects = Effects(connect_options(&self.place.url, Some(&self.place.database)));
        Ok(Arc::new(
            Transactions::new(self.store.clone()).with_writes(Arc::new(effects)),
        ))
    }
}
