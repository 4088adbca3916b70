//! Where the inbox is, and how careful it is.

use std::{fmt, time::Duration};

use inbox_api::{
    ClockOffset, DEFAULT_PAYLOAD_LIMIT, Error, ErrorKind, InboxName, Result, error_text,
    hide_password, time_limit,
};
use redis::{
    ConnectionInfo, IntoConnectionInfo as _,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use url::Url;

use crate::keys::MAX_SHARDS;

/// The URL schemes of this store.
pub const SCHEMES: &[&str] = &["redis", "redis+cluster", "rediss", "rediss+cluster"];

const KEYS: &str = "inbox, shards, payload_limit, drop_processed_payloads, keep_processed_s, \
    wait_replicas, wait_aof_local, wait_aof_replicas, wait_ms, operation_timeout_ms, start_checks, \
    tls_ca_file";
/// What a cluster's inbox is spread over unless set.
const CLUSTER_SHARDS: u16 = 8;
/// How long a connection may be idle before its other end is asked for a sign of life, and how often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Redis takes no longer text.
const MAX_PAYLOAD: usize = 256 * 1024 * 1024;

/// What every operation that changes something waits for before it answers, beyond the primary's own
/// memory.
///
/// When fewer confirm in time the operation fails as `Unavailable` with
/// [`Effect::Unknown`](inbox_api::Effect::Unknown), although the primary has done it: repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmations {
    /// So many replicas have the write in memory (`WAIT`).
    pub replicas: u32,
    /// The primary's own append-only file is on disk (`WAITAOF`, from Redis 7.2). A server that has none
    /// (`appendonly no`) is refused when connecting.
    pub local_aof: bool,
    /// So many replicas have the write on disk (`WAITAOF`, from Redis 7.2). They tell about once a
    /// second: give them a [`timeout`](Self::timeout) of several.
    pub replica_aofs: u32,
    /// How long to wait for them, at most a day. Less than the operation's time-out.
    pub timeout: Duration,
}

impl Default for Confirmations {
    /// None; 1 second where some are set.
    fn default() -> Self {
        Self {
            replicas: 0,
            local_aof: false,
            replica_aofs: 0,
            timeout: Duration::from_secs(1),
        }
    }
}

impl Confirmations {
    pub(crate) fn any(&self) -> bool {
        self.replicas > 0 || self.waits_for_aof()
    }

    pub(crate) fn waits_for_aof(&self) -> bool {
        self.local_aof || self.replica_aofs > 0
    }
}

/// What connecting does about a server that may lose messages by its settings: one without any
/// persistence, or one whose `maxmemory-policy` may evict keys without an expiry time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StartChecks {
    /// It fails as `Unsupported`.
    #[default]
    Refuse,
    /// It logs a warning.
    Warn,
    /// It does not look.
    Skip,
}

/// The settings of a [`RedisStore`](crate::RedisStore).
///
/// ```
/// use inbox_redis::RedisOptions;
///
/// # fn main() -> inbox_api::Result<()> {
/// let options = RedisOptions::from_url("redis://cache.example/0?inbox=orders")?;
/// let cluster = RedisOptions::from_url("redis+cluster://n1:6379,n2:6379?shards=24")?;
/// # let _ = (options, cluster);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) cluster: bool,
    pub(crate) tls: bool,
    pub(crate) tls_ca: Option<Vec<u8>>,
    pub(crate) inbox: InboxName,
    pub(crate) shards: u16,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) keep_processed: Option<Duration>,
    pub(crate) confirmations: Confirmations,
    pub(crate) operation_timeout: Duration,
    pub(crate) start_checks: StartChecks,
    pub(crate) offset: ClockOffset,
}

impl fmt::Debug for RedisOptions {
    /// Without the addresses, which come with credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("cluster", &self.cluster)
            .field("tls", &self.tls)
            .field("inbox", &self.inbox)
            .field("shards", &self.shards)
            .field("payload_limit", &self.payload_limit)
            .field("drop_processed_payloads", &self.drop_processed_payloads)
            .field("keep_processed", &self.keep_processed)
            .field("confirmations", &self.confirmations)
            .field("operation_timeout", &self.operation_timeout)
            .field("start_checks", &self.start_checks)
            .finish_non_exhaustive()
    }
}

impl RedisOptions {
    /// Reads `redis://user:password@host:6379/0` for one server, or
    /// `redis+cluster://user:password@host:6379,host:6379` for a cluster with some of its nodes;
    /// `rediss://` and `rediss+cluster://` with TLS (Cargo feature `tls`). The settings behind its `?` are
    /// listed in the [crate's documentation](crate#url).
    ///
    /// # Errors
    /// `Invalid` for another scheme, an address that cannot be read, an unknown key, a value that
    /// does not fit, or TLS in a build without it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(|error| hide_password(url, error).in_operation("from_url"))
    }

    fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("the URL must start with redis:// or redis+cluster://"))?;
        let (tls, cluster) = match scheme.to_ascii_lowercase().as_str() {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+cluster" => (false, true),
            "rediss+cluster" => (true, true),
            _ => {
                return Err(invalid(
                    "the URL must start with redis://, rediss://, redis+cluster:// or \
                     rediss+cluster://",
                ));
            }
        };
        if tls && cfg!(not(feature = "tls")) {
            return Err(invalid(
                "this build has no TLS (enable the Cargo feature `tls` of inbox-redis)",
            ));
        }
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Self {
            nodes: nodes(address, tls, cluster)?,
            cluster,
            tls,
            tls_ca: None,
            inbox: InboxName::default(),
            shards: if cluster { CLUSTER_SHARDS } else { 1 },
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            keep_processed: None,
            confirmations: Confirmations::default(),
            operation_timeout: Duration::from_secs(30),
            start_checks: StartChecks::default(),
            offset: ClockOffset::default(),
        };
        let pairs = Url::parse(&format!("redis:x?{query}"))
            .map_err(|_| invalid("the part of the URL behind the ? cannot be read"))?;
        for (key, value) in pairs.query_pairs() {
            options = options.with_setting(&key, &value)?;
        }
        Ok(options)
    }

    fn with_setting(mut self, key: &str, value: &str) -> Result<Self> {
        Ok(match key {
            "inbox" => self.inbox_name(InboxName::new(value)?),
            "shards" => return self.shards(number(key, value)?),
            "payload_limit" => self.payload_limit(number(key, value)?),
            "drop_processed_payloads" => self.drop_processed_payloads(truth(key, value)?),
            "keep_processed_s" => {
                self.keep_processed(Some(Duration::from_secs(number(key, value)?)))
            }
            "wait_replicas" => {
                self.confirmations.replicas = number(key, value)?;
                self
            }
            "wait_aof_replicas" => {
                self.confirmations.replica_aofs = number(key, value)?;
                self
            }
            "wait_aof_local" => {
                self.confirmations.local_aof = truth(key, value)?;
                self
            }
            "wait_ms" => {
                self.confirmations.timeout = Duration::from_millis(number(key, value)?);
                self
            }
            "operation_timeout_ms" => {
                self.operation_timeout(Duration::from_millis(number(key, value)?))
            }
            "start_checks" => self.start_checks(match value {
                "refuse" => StartChecks::Refuse,
                "warn" => StartChecks::Warn,
                "skip" => StartChecks::Skip,
                _ => return Err(invalid("start_checks must be refuse, warn or skip")),
            }),
            "tls_ca_file" => {
                let pem = std::fs::read(value).map_err(|error| {
                    invalid("the file of tls_ca_file cannot be read").with_source(error)
                })?;
                self.tls_certificates(pem)
            }
            _ => {
                return Err(invalid(format!(
                    "unknown setting {:?} in the URL; known are {KEYS}",
                    error_text(key)
                )));
            }
        })
    }

    /// The inbox's name, the prefix of its keys.
    #[must_use]
    pub fn inbox_name(mut self, name: InboxName) -> Self {
        self.inbox = name;
        self
    }

    /// The inbox's name.
    #[must_use]
    pub fn name(&self) -> &InboxName {
        &self.inbox
    }

    /// Over how many shards the inbox is spread; fixed when it is created. See the
    /// [crate documentation](crate#shards).
    ///
    /// # Errors
    /// `Invalid` unless between 1 and 4096.
    pub fn shards(mut self, shards: u16) -> Result<Self> {
        if !(1..=MAX_SHARDS).contains(&shards) {
            return Err(invalid("shards must be between 1 and 4096").in_operation("shards"));
        }
        self.shards = shards;
        Ok(self)
    }

    /// The largest payload and the largest result, in bytes: at most 256 MiB.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes.min(MAX_PAYLOAD);
        self
    }

    /// Whether payloads are deleted as soon as their message is processed. The keys stay and go
    /// on refusing duplicates.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// For how long processed messages are kept, if not until they are purged: every settlement
    /// that completes messages also deletes up to twice as many that were processed longer ago
    /// than this. Needs no janitor; without traffic nothing is deleted.
    #[must_use]
    pub fn keep_processed(mut self, age: Option<Duration>) -> Self {
        self.keep_processed = age;
        self
    }

    /// What operations that change something wait for before they answer.
    #[must_use]
    pub fn confirmations(mut self, confirmations: Confirmations) -> Self {
        self.confirmations = confirmations;
        self
    }

    /// How long an operation waits for the server before it fails as `Unavailable` with an
    /// unknown effect: 30 seconds unless set, from 10 milliseconds to a day.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = time_limit(timeout).max(Duration::from_millis(10));
        self
    }

    /// What connecting does about a server whose settings may lose messages.
    #[must_use]
    pub fn start_checks(mut self, checks: StartChecks) -> Self {
        self.start_checks = checks;
        self
    }

    /// The certificates to trust, in PEM, instead of the system's. Without TLS no effect.
    #[must_use]
    pub fn tls_certificates(mut self, pem: Vec<u8>) -> Self {
        self.tls_ca = Some(pem);
        self
    }

    /// An offset to the server's clock, for tests that move time.
    #[must_use]
    pub fn clock_offset(mut self, offset: ClockOffset) -> Self {
        self.offset = offset;
        self
    }

    /// How long connecting may take.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.operation_timeout.min(Duration::from_secs(5))
    }
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    value
        .parse()
        .map_err(|_| invalid(format!("{key} must be a whole number in its range")))
}

fn truth(key: &str, value: &str) -> Result<bool> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid(format!("{key} must be true or false"))),
    }
}

/// One address for each host of the list.
fn nodes(address: &str, tls: bool, cluster: bool) -> Result<Vec<ConnectionInfo>> {
    let (authority, path) = address.split_once('/').unwrap_or((address, ""));
    if cluster && !matches!(path, "" | "0") {
        return Err(invalid("a cluster has no databases but 0"));
    }
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    if hosts.contains(',') && !cluster {
        return Err(invalid(
            "several hosts are a cluster's; its URL starts with redis+cluster://",
        ));
    }
    let scheme = if tls { "rediss" } else { "redis" };
    hosts
        .split(',')
        .map(|host| {
            if host.is_empty() {
                return Err(invalid("the URL has no host"));
            }
            let info = format!("{scheme}://{user}{host}/{path}")
                .into_connection_info()
                .map_err(|_| invalid("the address in the URL cannot be read"))?;
            let alive = TcpKeepalive::new()
                .with_time(KEEP_ALIVE)
                .with_interval(KEEP_ALIVE);
            let settings = TcpSettings::default()
                .set_nodelay(true)
                .set_keepalive(alive);
            Ok(info.set_tcp_settings(settings))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_nodes_and_settings() {
        let options = RedisOptions::from_url(
            "redis+cluster://me:secret@a:1,b:2?inbox=orders&shards=24&wait_replicas=1&wait_ms=250\
             &payload_limit=10&drop_processed_payloads=true&keep_processed_s=60&start_checks=warn",
        )
        .unwrap();
        assert!(options.cluster && !options.tls);
        assert_eq!(options.nodes.len(), 2);
        assert_eq!(options.nodes[1].addr().to_string(), "b:2");
        assert_eq!(options.inbox.as_str(), "orders");
        assert_eq!(options.shards, 24);
        assert_eq!(options.confirmations.replicas, 1);
        assert_eq!(options.confirmations.timeout, Duration::from_millis(250));
        assert_eq!(options.payload_limit, 10);
        assert!(options.drop_processed_payloads);
        assert_eq!(options.keep_processed, Some(Duration::from_secs(60)));
        assert_eq!(options.start_checks, StartChecks::Warn);
        assert!(!format!("{options:?}").contains("secret"));
        assert_eq!(RedisOptions::from_url("redis://h").unwrap().shards, 1);
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason_that_repeats_no_secret() {
        for (url, reason) in [
            ("redis:x", "start with"),
            ("postgres://x", "start with"),
            ("redis://", "no host"),
            ("redis://me:hunter2@a,b", "cluster"),
            ("redis+cluster://me:hunter2@a/3", "databases"),
            ("redis://me:hunter2@a/x", "cannot be read"),
            ("redis://a?shards=0", "between 1 and 4096"),
            ("redis://a?shards=4097", "between 1 and 4096"),
            ("redis://a?shard=2", "known are inbox, shards"),
            ("redis://a?inbox=A", "inbox name"),
            ("redis://a?start_checks=no", "refuse, warn or skip"),
            ("redis://a?wait_aof_local=1", "true or false"),
        ] {
            let error = RedisOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.context().contains(reason), "{url}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{url}");
        }
    }
}
