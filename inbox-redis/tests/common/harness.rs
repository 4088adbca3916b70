//! The harness of the conformance suite, over any kind of server.
#![allow(dead_code, unreachable_pub)]

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    Corruption, Fixture, Harness, Need, Offered, Restart, SchemaVariant, Settings, Unable,
};
use inbox_api::{Inbox, Key, Operate as _, Schema};
use inbox_redis::{RedisOptions, RedisStore, TimeOffset};
use test_servers::{Error, Server};

use super::{Raw, fresh_name, options, started};

/// One kind of server, and over how many shards the inboxes on it are spread.
pub struct OnServer {
    pub name: &'static str,
    pub cluster: bool,
    pub shards: u16,
    pub server: &'static Shared,
}

impl OnServer {
    async fn place(&self, settings: &Settings) -> Offered<Place> {
        let server = started(self.server).map_err(Unable::failed)?;
        let Some(server) = server else {
            return Err(Unable::failed("there is no such server here"));
        };
        let share = Arc::clone(&IN_USE).read_owned().await;
        let url = locked(server).url().to_owned();
        let mut options = options(&url, self.cluster, self.shards)
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        Place::new(self, url, options, share).await
    }
}

#[async_trait]
impl Harness for OnServer {
    fn name(&self) -> String {
        self.name.into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let place = self.place(settings).await?;
        place.store().create().await?;
        Ok(Box::new(place))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        let place = self.place(&Settings::default()).await?;
        let meta = |shard: u16| format!("{{{}:{shard}}}:meta", place.inbox);
        let last = self.shards - 1;
        match variant {
            SchemaVariant::Missing => {}
            SchemaVariant::Incomplete => {
                place.store().create().await?;
                let mut command = redis::cmd("HDEL");
                command.arg(meta(last)).arg("shards");
                place.raw(&command).await?;
            }
            SchemaVariant::Newer => {
                place.store().create().await?;
                for shard in 0..self.shards {
                    let mut command = redis::cmd("HSET");
                    command.arg(meta(shard)).arg("version").arg(4711);
                    place.raw(&command).await?;
                }
            }
            SchemaVariant::Foreign => {
                let mut command = redis::cmd("SET");
                command.arg(meta(last)).arg("a session");
                place.raw(&command).await?;
            }
            // The first version is the only one so far.
            SchemaVariant::Older => return Err(Unable::NotOffered(Need::Schema(variant))),
        }
        Ok(Box::new(place))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Schema(SchemaVariant::Older),
            // Redis cannot roll back; `settle_with` has tests of its own.
            Need::Transactions,
            Need::BusinessWrites,
        ];
        if self.shards > 1 {
            needs.push(Need::BatchAtomicity);
        }
        needs
    }
}

struct Place {
    cluster: bool,
    url: String,
    inbox: String,
    options: RedisOptions,
    store: Arc<RedisStore>,
    offset: TimeOffset,
    /// Every case shares the server but those that harm it, which wait until it is theirs alone.
    share: tokio::sync::Mutex<Share>,
    server: &'static Shared,
}

pub type Shared = std::sync::LazyLock<Result<Option<Mutex<Server>>, Error>>;

enum Share {
    Nothing,
    Some {
        _guard: tokio::sync::OwnedRwLockReadGuard<()>,
    },
    All {
        _guard: tokio::sync::OwnedRwLockWriteGuard<()>,
    },
}

static IN_USE: std::sync::LazyLock<Arc<tokio::sync::RwLock<()>>> =
    std::sync::LazyLock::new(Arc::default);

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    async fn new(
        harness: &OnServer,
        url: String,
        options: RedisOptions,
        share: tokio::sync::OwnedRwLockReadGuard<()>,
    ) -> Offered<Self> {
        let offset = TimeOffset::default();
        let name = fresh_name();
        let options = options.time_offset(offset.clone()).inbox_name(name.clone());
        let store = RedisStore::connect(options.clone()).await?;
        Ok(Self {
            cluster: harness.cluster,
            url,
            inbox: name.to_string(),
            options,
            store: Arc::new(store),
            offset,
            share: tokio::sync::Mutex::new(Share::Some { _guard: share }),
            server: harness.server,
        })
    }

    fn store(&self) -> Arc<RedisStore> {
        Arc::clone(&self.store)
    }

    async fn connection(&self) -> Offered<Raw> {
        Raw::connect(&self.url, self.cluster)
            .await
            .map_err(Unable::failed)
    }

    async fn raw(&self, command: &redis::Cmd) -> Offered<redis::Value> {
        let mut connection = self.connection().await?;
        connection.run(command).await.map_err(Unable::failed)
    }

    async fn harm(&self, act: fn(&mut Server) -> Result<(), Error>) -> Offered<()> {
        let mut share = self.share.lock().await;
        if !matches!(*share, Share::All { .. }) {
            *share = Share::Nothing;
            *share = Share::All {
                _guard: Arc::clone(&IN_USE).write_owned().await,
            };
        }
        let server = self.server;
        tokio::task::spawn_blocking(move || match &**server {
            Ok(Some(server)) => act(&mut locked(server)).map_err(|e| e.to_string()),
            _ => Err("there is no such server here".to_owned()),
        })
        .await
        .map_err(Unable::failed)?
        .map_err(Unable::failed)
    }
}

#[async_trait]
impl Fixture for Place {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.store()
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.offset.advance(by);
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(RedisStore::connect(self.options.clone()).await?))
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let Corruption::Headers = corruption;
        let record = self.store().get(key).await?;
        let record = record.ok_or_else(|| Unable::failed("there is no such message"))?;
        let field = format!("{}\0{}", key.handler, key.id);
        // The message is in whichever shard has its body.
        for shard in 0..64 {
            let named = |name: &str| format!("{{{}:{shard}}}:{name}", self.inbox);
            let mut get = redis::cmd("HGET");
            get.arg(named("body")).arg(&field);
            let redis::Value::BulkString(body) = self.raw(&get).await? else {
                continue;
            };
            let spoilt = replaced(&body, b"{", b"[");
            let fixed = spoilt[4..].to_vec();
            let mut set = redis::cmd("HSET");
            set.arg(named("body")).arg(&field).arg(&spoilt);
            self.raw(&set).await?;
            // The log cannot be changed; an entry can be moved to where late ones are.
            let mut delete = redis::cmd("XDEL");
            delete.arg(named("log")).arg(record.cursor.as_str());
            self.raw(&delete).await?;
            let mut late = redis::cmd("ZADD");
            late.arg(named("late"))
                .arg(record.cursor.as_str())
                .arg(&field);
            self.raw(&late).await?;
            let mut statics = redis::cmd("HSET");
            statics.arg(named("statics")).arg(&field).arg(&fixed);
            self.raw(&statics).await?;
            return Ok(());
        }
        Err(Unable::failed("there is no such body"))
    }

    async fn begin_outage(&self) -> Offered<()> {
        self.harm(Server::pause).await
    }

    async fn end_outage(&self) -> Offered<()> {
        self.harm(Server::resume).await
    }

    async fn restart(&self, how: Restart) -> Offered<()> {
        self.harm(match how {
            Restart::Orderly => Server::stop,
            Restart::Killed => Server::kill,
        })
        .await?;
        self.harm(Server::start).await
    }
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|part| part == from);
    let mut bytes = bytes.to_vec();
    if let Some(at) = at {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}
