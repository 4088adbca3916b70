//! The harness of the conformance suite, over any kind of server.
#![allow(dead_code, unreachable_pub)]

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use conformance_tests::{
    Corruption, Fixture, Harness, Need, Offered, Restart, SchemaVariant, Settings, Unable,
    crash::proxy::Proxy,
};
use inbox_api::{ClockOffset, Inbox, Key, Schema};
use inbox_redis::{Confirmations, RedisOptions, RedisStore};
use test_servers::{Error, Server};

use super::{Raw, address::socket, fresh_name, options, started};

/// One kind of server, and over how many shards the inboxes on it are spread.
pub struct OnServer {
    pub name: &'static str,
    pub cluster: bool,
    pub shards: u16,
    pub server: &'static Shared,
    pub confirmations: Confirmations,
}

/// Less than the tests' operations may take. A replica of a slow machine needs it for 80 MiB.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(4);

/// What a replica has in memory.
pub fn by_a_replica() -> Confirmations {
    Confirmations {
        replicas: 1,
        timeout: CONFIRMED_WITHIN,
        ..Confirmations::default()
    }
}

/// What is on the primary's disk.
pub fn by_the_disk() -> Confirmations {
    Confirmations {
        local_aof: true,
        ..Confirmations::default()
    }
}

impl OnServer {
    async fn place(&self, settings: &Settings) -> Offered<Place> {
        let server = started(self.server).map_err(Unable::failed)?;
        let Some(server) = server else {
            return Err(Unable::failed("there is no such server here"));
        };
        let share = Arc::clone(&IN_USE).read_owned().await;
        let mut url = locked(server).url().to_owned();
        let mut proxy = None;
        if settings.operation_timeout.is_some() && !self.cluster {
            let server = socket(&url);
            let before = Proxy::start(server).await.map_err(Unable::failed)?;
            url = format!("redis://{}/", before.address());
            proxy = Some(before);
        }
        let mut options = options(&url, self.cluster, self.shards)
            .confirmations(self.confirmations)
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        if let Some(limit) = settings.operation_timeout {
            options = options
                .operation_timeout(limit)
                .confirmations(Confirmations {
                    timeout: self.confirmations.timeout.min(limit / 2),
                    ..self.confirmations
                });
        }
        Place::new(self, url, proxy, options, share).await
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
            Need::BatchAtomicity,
        ];
        needs.extend(Need::DISK);
        if self.cluster {
            // Its nodes name themselves, past the proxy; another test asks for that.
            needs.push(Need::Silence);
        }
        needs
    }
}

struct Place {
    cluster: bool,
    url: String,
    /// Before a server of one node, for cases about connections.
    proxy: Option<Proxy>,
    inbox: String,
    shards: u16,
    options: RedisOptions,
    store: Arc<RedisStore>,
    offset: ClockOffset,
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
        proxy: Option<Proxy>,
        options: RedisOptions,
        share: tokio::sync::OwnedRwLockReadGuard<()>,
    ) -> Offered<Self> {
        let offset = ClockOffset::default();
        let name = fresh_name();
        let options = options
            .clock_offset(offset.clone())
            .inbox_name(name.clone());
        let store = RedisStore::connect(options.clone()).await?;
        Ok(Self {
            cluster: harness.cluster,
            url,
            proxy,
            inbox: name.to_string(),
            shards: harness.shards,
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

/// Rules that do not hold in a shard.
pub async fn broken_rules(
    connection: &mut Raw,
    inbox: &str,
    shard: u16,
) -> redis::RedisResult<Vec<String>> {
    let mut check = redis::cmd("EVAL");
    check.arg(include_str!("invariants.lua")).arg(1);
    check.arg(format!("{{{inbox}:{shard}}}:meta"));
    connection.run(&check).await
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

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        let mut connection = self.connection().await?;
        let mut broken = Vec::new();
        for shard in 0..self.shards {
            let of_shard = broken_rules(&mut connection, &self.inbox, shard).await;
            broken.extend(of_shard.map_err(Unable::failed)?);
        }
        Ok(broken)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let Corruption::Headers = corruption;
        let field = format!("{}\0{}", key.handler, key.id);
        for shard in 0..self.shards {
            let named = |name: &str| format!("{{{}:{shard}}}:{name}", self.inbox);
            if !self.spoil_body(&named, &field).await? {
                continue;
            }
            // The log cannot be changed; an entry can be moved to where late ones are.
            let mut range = redis::cmd("XRANGE");
            range.arg(named("log")).arg("-").arg("+");
            let entries: Vec<(String, (String, u64, String, Vec<u8>))> =
                redis::from_redis_value(self.raw(&range).await?).map_err(Unable::failed)?;
            for (entry, (_, origin, _, packed)) in entries {
                if place_of(&packed, field.as_bytes()).is_none() {
                    continue;
                }
                let mut delete = redis::cmd("XDEL");
                delete.arg(named("log")).arg(entry);
                self.raw(&delete).await?;
                for (seq, key, fixed) in logged(&packed, origin) {
                    let mut late = redis::cmd("ZADD");
                    late.arg(named("late")).arg(seq).arg(&key);
                    self.raw(&late).await?;
                    let fixed = match key == field.as_bytes() {
                        true => replaced(&fixed, 0),
                        false => fixed,
                    };
                    let mut statics = redis::cmd("HSET");
                    statics.arg(named("statics")).arg(&key).arg(&fixed);
                    self.raw(&statics).await?;
                }
            }
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

    async fn silence(&self) -> Offered<()> {
        match &self.proxy {
            Some(proxy) => {
                proxy.silence();
                Ok(())
            }
            None => Err(Unable::NotOffered(Need::Silence)),
        }
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

impl Place {
    /// Spoils the headers in a message's body, if it is in this shard: in its own body or in
    /// its run's.
    async fn spoil_body(&self, named: &impl Fn(&str) -> String, field: &str) -> Offered<bool> {
        let mut get = redis::cmd("HGET");
        get.arg(named("body")).arg(field);
        if let redis::Value::BulkString(body) = self.raw(&get).await? {
            let mut set = redis::cmd("HSET");
            set.arg(named("body")).arg(field).arg(replaced(&body, 0));
            self.raw(&set).await?;
            return Ok(true);
        }
        let mut all = redis::cmd("HGETALL");
        all.arg(named("blobs"));
        let blobs: Vec<(String, Vec<u8>)> =
            redis::from_redis_value(self.raw(&all).await?).map_err(Unable::failed)?;
        for (base, blob) in blobs {
            if let Some(at) = place_of(&blob, field.as_bytes()) {
                let mut set = redis::cmd("HSET");
                set.arg(named("blobs")).arg(base).arg(replaced(&blob, at));
                self.raw(&set).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Where a message is in what its run or its entry of the log has: behind its key's length.
fn place_of(packed: &[u8], field: &[u8]) -> Option<usize> {
    let mut wanted = u16::try_from(field.len()).unwrap().to_be_bytes().to_vec();
    wanted.extend_from_slice(field);
    packed
        .windows(wanted.len())
        .position(|part| part == wanted.as_slice())
}

/// Number, key, and length of payload and static part, of every message of an entry.
fn logged(mut packed: &[u8], origin: u64) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    while let [a, b, c, d, rest @ ..] = packed {
        let (key, rest) = rest.split_at(usize::from(u16::from_be_bytes([*c, *d])));
        let (length, rest) = rest.split_at(4);
        let length = u32::from_be_bytes(length.try_into().unwrap());
        let (fixed, rest) = rest.split_at(length as usize);
        let (bytes, rest) = rest.split_at(4);
        let seq = origin + u64::from(u16::from_be_bytes([*a, *b]));
        found.push((seq, key.to_vec(), [bytes, fixed].concat()));
        packed = rest;
    }
    found
}

/// The headers behind this place, which are no longer JSON.
fn replaced(bytes: &[u8], behind: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = bytes.iter().skip(behind).position(|byte| *byte == b'{');
    if let Some(at) = at {
        bytes[behind + at] = b'[';
    }
    bytes
}
