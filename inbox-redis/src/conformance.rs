//! The harness of the [conformance suite](conformance_tests) for this store.

use std::{
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use conformance_tests::{
    Corruption, Fixture, Harness, Need, Offered, OwnServer, SchemaVariant, ServerControl, Settings,
    StartServer, Unable, crash::proxy::Proxy,
};
use inbox_api::{ClockOffset, Error, ErrorKind, Inbox, InboxName, Key, Result, Schema as _};
use redis::{Cmd, ConnectionAddr, RedisResult, Value};
use tokio::time::Instant;

use crate::{
    error,
    keys::{Layout, field},
    options::{Confirmations, RedisOptions},
    servers::Servers,
    store::RedisStore,
};

/// What no other process, and no other run of this one, begins its names with.
static PREFIX: LazyLock<String> = LazyLock::new(|| {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let (process, run) = (std::process::id(), since.subsec_micros());
    format!("conf{process}_{run:06x}")
});

/// Numbers the inboxes of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// What inboxes of this version in so many shards have kept: a line for each key, with its shard and what
/// `DUMP` gives of it.
const KEPT: [(u16, &str); 2] = [
    (1, include_str!("../fixtures/1/1_shards.txt")),
    (5, include_str!("../fixtures/1/5_shards.txt")),
];
const KEPT_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/1");

/// How long the harness's own commands may take: the server may be busy with another case.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often they are tried, since the server may just have been restarted.
const TRIES: u32 = 3;

/// Every case gets its own inbox, under a fresh name, on the server or cluster of the options.
/// Nothing else there is touched.
#[derive(Debug)]
pub struct RedisHarness {
    name: String,
    options: RedisOptions,
    servers: Option<StartServer>,
    /// Whether the user may do what the store itself does not.
    is_privileged: bool,
    left: Arc<Left>,
}

/// The inboxes that are yet to be removed.
#[derive(Debug, Default)]
struct Left(Mutex<Vec<RedisOptions>>);

impl Left {
    fn lock(&self) -> MutexGuard<'_, Vec<RedisOptions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn remove(&self, options: &RedisOptions) -> Result<()> {
        let store = RedisStore::connect(options.clone()).await?;
        store.remove().await?;
        self.lock().retain(|other| other.inbox != options.inbox);
        Ok(())
    }
}

impl RedisHarness {
    /// Cases with these options, but for the inbox's name and the clock.
    #[must_use]
    pub fn new(options: RedisOptions) -> Self {
        Self {
            name: "redis".into(),
            options,
            servers: None,
            is_privileged: true,
            left: Arc::default(),
        }
    }

    /// Cases on the server or cluster of this URL, with its settings. After each case its inbox is checked
    /// by a script that looks at the names of all keys of the server (`KEYS`), so the server should have
    /// few others; a user who may not run it (`EVAL`) goes without that check.
    ///
    /// # Errors
    /// What a URL, connecting or setting up is refused for: one inbox is made, and removed again.
    pub async fn at(url: &str) -> Result<Self> {
        let mut harness = Self::new(RedisOptions::from_url(url)?);
        let inbox = harness.make(&Settings::default()).await?;
        inbox.store.create().await?;
        match contradictions(&inbox.store).await {
            Err(error) if error.kind() == ErrorKind::Denied => harness.is_privileged = false,
            checked => drop(checked?),
        }
        harness.left.remove(&inbox.cleaned).await?;
        Ok(harness)
    }

    /// What the report calls the store.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// With servers for the cases that harm theirs.
    #[must_use]
    pub fn servers(mut self, servers: StartServer) -> Self {
        self.servers = Some(servers);
        self
    }

    async fn make(&self, settings: &Settings) -> Result<TestInbox> {
        self.make_on(settings, None).await
    }

    async fn make_on(&self, settings: &Settings, own: Option<OwnServer>) -> Result<TestInbox> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = InboxName::new(format!("{}_{number}", *PREFIX))?;
        let mut cleaned = self.options.clone().inbox_name(name);
        if let Some(own) = &own {
            cleaned.nodes = nodes_of(&own.url, cleaned.cluster)?;
        } else {
            self.left.lock().push(cleaned.clone());
        }
        let offset = ClockOffset::default();
        let mut options = cleaned
            .clone()
            .clock_offset(offset.clone())
            .drop_processed_payloads(settings.drop_processed_payloads);
        if let Some(limit) = settings.payload_limit {
            options = options.payload_limit(limit);
        }
        let mut proxy = None;
        if let Some(limit) = settings.operation_timeout {
            let confirmations = Confirmations {
                timeout: options.confirmations.timeout.min(limit / 2),
                ..options.confirmations
            };
            options = options
                .operation_timeout(limit)
                .confirmations(confirmations);
            if self.can_be_silenced() {
                proxy = Some(put_proxy_before(&mut options).await?);
            }
        }
        Ok(TestInbox {
            store: Arc::new(RedisStore::connect(options.clone()).await?),
            servers: Servers::connect(&cleaned).await?,
            options,
            cleaned,
            offset,
            own,
            proxy,
            is_privileged: self.is_privileged,
            left: Arc::clone(&self.left),
        })
    }

    fn kept(&self) -> Option<&'static str> {
        let same = |(shards, _): &&(u16, &str)| *shards == self.options.shards;
        KEPT.iter().find(same).map(|(_, text)| *text)
    }

    /// A cluster's nodes name themselves, past the proxy, and TLS asks who is there.
    fn can_be_silenced(&self) -> bool {
        !self.options.cluster && !self.options.tls
    }
}

fn nodes_of(url: &str, cluster: bool) -> Result<Vec<redis::ConnectionInfo>> {
    let url = if cluster {
        url.replacen("redis://", "redis+cluster://", 1)
    } else {
        url.to_owned()
    };
    RedisOptions::from_url(&url).map(|options| options.nodes)
}

/// Makes the options lead to the server through a proxy.
async fn put_proxy_before(options: &mut RedisOptions) -> Result<Proxy> {
    let unable = |error| {
        Error::new(
            ErrorKind::Unavailable,
            "no proxy can be put before the server",
        )
        .with_source(error)
    };
    let no_address = || Error::new(ErrorKind::Invalid, "the server has no network address");
    let node = options.nodes.first_mut().ok_or_else(no_address)?;
    let ConnectionAddr::Tcp(host, port) = node.addr().clone() else {
        return Err(no_address());
    };
    let addresses = tokio::net::lookup_host((host, port)).await;
    let address = addresses.map_err(unable)?.next().ok_or_else(no_address)?;
    let proxy = Proxy::start(address).await.map_err(unable)?;
    let address = proxy.address();
    let address = ConnectionAddr::Tcp(address.ip().to_string(), address.port());
    *node = node.clone().set_addr(address);
    Ok(proxy)
}

#[async_trait]
impl Harness for RedisHarness {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        let own = match &self.servers {
            Some(servers) if settings.disrupted => Some(servers.start().await?),
            _ => None,
        };
        let inbox = self.make_on(settings, own).await?;
        inbox.store.create().await?;
        Ok(Box::new(inbox))
    }

    async fn schema_variant(&self, variant: SchemaVariant) -> Offered<Box<dyn Fixture>> {
        // The first version is the only one so far.
        let is_older = variant == SchemaVariant::Older;
        if is_older || (!self.is_privileged && variant != SchemaVariant::Missing) {
            return Err(Unable::NotOffered(Need::Schema(variant)));
        }
        let inbox = self.make(&Settings::default()).await?;
        let layout = inbox.layout();
        let last = layout.shards() - 1;
        match variant {
            SchemaVariant::Missing | SchemaVariant::Older => {}
            SchemaVariant::Kept => {
                let kept = self.kept();
                let kept = kept.ok_or(Unable::NotOffered(Need::Schema(variant)))?;
                inbox.load(kept).await?;
            }
            SchemaVariant::Incomplete => {
                inbox.store.create().await?;
                let mut command = redis::cmd("HDEL");
                command.arg(layout.meta(last)).arg("shards");
                inbox.ask(last, &command).await?;
            }
            SchemaVariant::Newer | SchemaVariant::Suitable => {
                inbox.store.create().await?;
                for shard in layout.all() {
                    let mut command = redis::cmd("HSET");
                    command.arg(layout.meta(shard)).arg("version").arg(4711);
                    if variant == SchemaVariant::Newer {
                        command.arg("works_from").arg(4711);
                    }
                    inbox.ask(shard, &command).await?;
                }
            }
            SchemaVariant::Foreign => {
                let mut command = redis::cmd("SET");
                command.arg(layout.meta(last)).arg("a session");
                inbox.ask(last, &command).await?;
            }
        }
        Ok(Box::new(inbox))
    }

    async fn clean_up(&self) -> Offered<()> {
        let all = self.left.lock().clone();
        let mut left = Vec::new();
        for options in all {
            if let Err(error) = self.left.remove(&options).await {
                left.push(format!("{} ({error})", options.inbox));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let left = left.join(", ");
        Err(Unable::failed(format!("inboxes are left behind: {left}")))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Schema(SchemaVariant::Older),
            // Redis cannot roll back; `settle_with` has its own tests.
            Need::Transactions,
            Need::BusinessWrites,
            Need::BatchAtomicity,
        ];
        needs.extend(Need::DISK);
        if self.servers.is_none() {
            needs.extend([Need::Outage, Need::Restart]);
        }
        if !self.can_be_silenced() {
            needs.push(Need::Silence);
        }
        if self.kept().is_none() {
            needs.push(Need::Schema(SchemaVariant::Kept));
        }
        if !self.is_privileged {
            needs.extend([
                Need::CorruptRows,
                Need::Invariants,
                Need::Schema(SchemaVariant::Incomplete),
                Need::Schema(SchemaVariant::Newer),
                Need::Schema(SchemaVariant::Suitable),
                Need::Schema(SchemaVariant::Kept),
                Need::Schema(SchemaVariant::Foreign),
            ]);
        }
        needs
    }
}

/// What does not agree among the keys of a store's inbox, a sentence each.
///
/// # Errors
/// As the store's own operations; `Denied` also where the user may not run `EVAL` and `KEYS`.
pub async fn contradictions(store: &RedisStore) -> Result<Vec<String>> {
    let servers = Servers::connect(&store.shared.options).await?;
    find_contradictions(&servers, store.shared.layout()).await
}

async fn find_contradictions(servers: &Servers, layout: &Layout) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for shard in layout.all() {
        let mut check = redis::cmd("EVAL");
        check.arg(include_str!("conformance/invariants.lua"));
        check.arg(1).arg(layout.meta(shard));
        let of_shard = ask(servers, layout, shard, &check).await;
        let of_shard = of_shard.and_then(|of_shard| Ok(redis::from_redis_value(of_shard)?));
        found.extend::<Vec<String>>(of_shard.map_err(error::before)?);
    }
    Ok(found)
}

/// Runs a command that may be repeated.
async fn ask(servers: &Servers, layout: &Layout, shard: u16, command: &Cmd) -> RedisResult<Value> {
    let mut tries = 0;
    loop {
        tries += 1;
        let until = Instant::now() + PATIENCE;
        match servers.ask(layout.slot(shard), command, until).await {
            Err(error) if tries < TRIES && error.is_io_error() => {}
            answer => return answer,
        }
    }
}

struct TestInbox {
    store: Arc<RedisStore>,
    /// Past the store and the proxy.
    servers: Servers,
    options: RedisOptions,
    /// As they are for removing it.
    cleaned: RedisOptions,
    offset: ClockOffset,
    own: Option<OwnServer>,
    /// Before a server of one node, for cases about connections.
    proxy: Option<Proxy>,
    is_privileged: bool,
    left: Arc<Left>,
}

impl TestInbox {
    fn layout(&self) -> &Layout {
        self.store.shared.layout()
    }

    async fn ask(&self, shard: u16, command: &Cmd) -> Offered<Value> {
        let answer = ask(&self.servers, self.layout(), shard, command).await;
        answer.map_err(Unable::failed)
    }

    async fn dump(&self) -> Offered<String> {
        let mut lines = Vec::new();
        for shard in self.layout().all() {
            let tag = self.layout().tag(shard);
            let keys = self
                .ask(shard, redis::cmd("KEYS").arg(format!("{tag}:*")))
                .await?;
            let keys: Vec<String> = redis::from_redis_value(keys).map_err(Unable::failed)?;
            for key in keys {
                let dumped = self.ask(shard, redis::cmd("DUMP").arg(&key)).await?;
                let dumped: Vec<u8> = redis::from_redis_value(dumped).map_err(Unable::failed)?;
                let hex: String = dumped.iter().map(|byte| format!("{byte:02x}")).collect();
                let name = key.trim_start_matches(&tag);
                lines.push(format!("{shard} {hex} {name}\n"));
            }
        }
        lines.sort();
        Ok(lines.concat())
    }

    async fn load(&self, kept: &str) -> Offered<()> {
        for line in kept.lines() {
            let parse = || {
                let mut parts = line.splitn(3, ' ');
                let shard: u16 = parts.next()?.parse().ok()?;
                let hex = parts.next()?;
                let byte = |n| u8::from_str_radix(hex.get(n..n + 2)?, 16).ok();
                let dumped: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
                Some((shard, dumped?, parts.next()?))
            };
            let (shard, dumped, name) =
                parse().ok_or_else(|| Unable::failed("a line is broken"))?;
            let mut restore = redis::cmd("RESTORE");
            let key = format!("{}{name}", self.layout().tag(shard));
            self.ask(shard, restore.arg(key).arg(0).arg(dumped)).await?;
        }
        Ok(())
    }

    /// Spoils the headers in a message's body, if it is in this shard: in its own body or in
    /// its run's.
    async fn spoil_body(
        &self,
        shard: u16,
        named: &impl Fn(&str) -> String,
        field: &str,
    ) -> Offered<bool> {
        let mut get = redis::cmd("HGET");
        get.arg(named("body")).arg(field);
        if let redis::Value::BulkString(body) = self.ask(shard, &get).await? {
            let mut set = redis::cmd("HSET");
            set.arg(named("body"))
                .arg(field)
                .arg(with_spoilt_headers(&body, 0));
            self.ask(shard, &set).await?;
            return Ok(true);
        }
        let mut all = redis::cmd("HGETALL");
        all.arg(named("blobs"));
        let blobs: Vec<(String, Vec<u8>)> =
            redis::from_redis_value(self.ask(shard, &all).await?).map_err(Unable::failed)?;
        for (base, blob) in blobs {
            if let Some(at) = find_item(&blob, field.as_bytes()) {
                let mut set = redis::cmd("HSET");
                set.arg(named("blobs"))
                    .arg(base)
                    .arg(with_spoilt_headers(&blob, at));
                self.ask(shard, &set).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for TestInbox {
    fn drop(&mut self) {
        if self.own.is_some() {
            return;
        }
        let (options, left) = (self.cleaned.clone(), Arc::clone(&self.left));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // What it does not remove is left for `clean_up`.
            runtime.spawn(async move { left.remove(&options).await });
        }
    }
}

#[async_trait]
impl Fixture for TestInbox {
    fn inbox(&self) -> Arc<dyn Inbox> {
        Arc::<RedisStore>::clone(&self.store)
    }

    async fn advance_clock(&self, by: Duration) -> Offered<()> {
        self.offset.advance(by);
        Ok(())
    }

    async fn keep(&self) -> Offered<()> {
        let shards = self.layout().shards();
        std::fs::write(
            format!("{KEPT_FOLDER}/{shards}_shards.txt"),
            self.dump().await?,
        )?;
        Ok(())
    }

    async fn second_connection(&self) -> Offered<Arc<dyn Inbox>> {
        Ok(Arc::new(RedisStore::connect(self.options.clone()).await?))
    }

    async fn check_invariants(&self) -> Offered<Vec<String>> {
        if !self.is_privileged {
            return Err(Unable::NotOffered(Need::Invariants));
        }
        Ok(find_contradictions(&self.servers, self.layout()).await?)
    }

    async fn corrupt(&self, key: &Key, corruption: Corruption) -> Offered<()> {
        let Corruption::Headers = corruption;
        if !self.is_privileged {
            return Err(Unable::NotOffered(Need::CorruptRows));
        }
        let field = field(key);
        for shard in self.layout().all() {
            let named = |name: &str| format!("{}:{name}", self.layout().tag(shard));
            if !self.spoil_body(shard, &named, &field).await? {
                continue;
            }
            // The log cannot be changed; an entry can be moved to where late ones are.
            let mut range = redis::cmd("XRANGE");
            range.arg(named("log")).arg("-").arg("+");
            let entries: Vec<(String, (String, u64, String, Vec<u8>))> =
                redis::from_redis_value(self.ask(shard, &range).await?).map_err(Unable::failed)?;
            for (entry, (_, origin, _, packed)) in entries {
                if find_item(&packed, field.as_bytes()).is_none() {
                    continue;
                }
                let mut delete = redis::cmd("XDEL");
                delete.arg(named("log")).arg(entry);
                self.ask(shard, &delete).await?;
                for (seq, key, fixed) in logged_items(&packed, origin) {
                    let mut late = redis::cmd("ZADD");
                    late.arg(named("late")).arg(seq).arg(&key);
                    self.ask(shard, &late).await?;
                    let fixed = match key == field.as_bytes() {
                        true => with_spoilt_headers(&fixed, 0),
                        false => fixed,
                    };
                    let mut statics = redis::cmd("HSET");
                    statics.arg(named("statics")).arg(&key).arg(&fixed);
                    self.ask(shard, &statics).await?;
                }
            }
            return Ok(());
        }
        Err(Unable::failed("there is no such body"))
    }

    async fn silence(&self) -> Offered<()> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or(Unable::NotOffered(Need::Silence))?.silence();
        Ok(())
    }

    fn server(&self) -> &dyn ServerControl {
        self.own.as_ref().map_or(&(), |own| &*own.control)
    }
}

/// Where a message is in what its run or its entry of the log has: behind its key's length.
fn find_item(packed: &[u8], field: &[u8]) -> Option<usize> {
    let mut wanted = u16::try_from(field.len())
        .unwrap_or(u16::MAX)
        .to_be_bytes()
        .to_vec();
    wanted.extend_from_slice(field);
    packed
        .windows(wanted.len())
        .position(|part| part == wanted.as_slice())
}

/// Number, key, and length of payload and static part, of every message of an entry.
fn logged_items(mut packed: &[u8], origin: u64) -> Vec<Item> {
    let mut found = Vec::new();
    while let Some((item, rest)) = first_item(packed, origin) {
        found.push(item);
        packed = rest;
    }
    found
}

type Item = (u64, Vec<u8>, Vec<u8>);

fn first_item(packed: &[u8], origin: u64) -> Option<(Item, &[u8])> {
    let (distance, rest) = packed.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (fixed, rest) = rest.split_at_checked(length)?;
    let (bytes, rest) = rest.split_at_checked(4)?;
    let seq = origin + u64::from(u16::from_be_bytes(*distance));
    Some(((seq, key.to_vec(), [bytes, fixed].concat()), rest))
}

/// The headers behind this place, which are no longer JSON.
fn with_spoilt_headers(bytes: &[u8], behind: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let headers = bytes.iter_mut().skip(behind).find(|byte| **byte == b'{');
    if let Some(headers) = headers {
        *headers = b'[';
    }
    bytes
}
