//! Where the inbox is, and how careful it is.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use inbox_api::{
    Clock, DEFAULT_PAYLOAD_LIMIT, Error, ErrorKind, InboxName, Result, error_text, hide_password,
    time_limit,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use url::Url;

const KEYS: &str =
    "inbox, synchronous, operation_timeout_ms, payload_limit, drop_processed_payloads, mode";

/// The schemes of the URLs that [`SqliteOptions::from_url`] reads.
pub const SCHEMES: &[&str] = &["sqlite"];

/// What marks the store's own write connection: as its limit for ANALYZE, a number that stays with a
/// connection and is as good as none. No other program has a reason to choose it.
pub(crate) const OWN: i64 = 0x696e_6278;

/// When SQLite waits for the disk. The crate's documentation says what survives what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// Never. A power cut can corrupt the file; for throw-away data only.
    Off,
    /// At checkpoints. A power cut can lose the last transactions, but the file stays sound.
    Normal,
    /// At every commit: a power cut loses nothing that was answered with `Ok`.
    #[default]
    Full,
    /// As `Full`. SQLite distinguishes them only outside of WAL mode.
    Extra,
}

impl Synchronous {
    pub(crate) fn durability(self) -> &'static str {
        match self {
            Self::Off => "survives a process kill; a power cut can corrupt the file",
            Self::Normal => "survives a process kill; a power cut can lose the last transactions",
            Self::Full | Self::Extra => "survives a process kill and a power cut",
        }
    }
}

/// The settings of an [`SqliteStore`](crate::SqliteStore).
///
/// ```
/// use inbox_sqlite::{SqliteOptions, Synchronous};
///
/// # fn main() -> inbox_api::Result<()> {
/// let options = SqliteOptions::new("orders.db").synchronous(Synchronous::Normal);
/// let same = SqliteOptions::from_url("sqlite://orders.db?synchronous=normal")?;
/// assert_eq!(options.ddl(), same.ddl());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    pub(crate) path: PathBuf,
    pub(crate) inbox: InboxName,
    pub(crate) synchronous: Synchronous,
    pub(crate) operation_timeout: Duration,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) create_if_missing: bool,
    pub(crate) clock: Clock,
}

impl SqliteOptions {
    /// An inbox named `inbox` in the file at `path`, with `synchronous = full`.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_path_buf(),
            inbox: InboxName::default(),
            synchronous: Synchronous::default(),
            operation_timeout: Duration::from_secs(30),
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            create_if_missing: true,
            clock: Clock::system(),
        }
    }

    /// Reads `sqlite://orders.db` (relative) or `sqlite:///var/lib/orders.db` (absolute), with
    /// `%XX` for special characters in the path. The settings after its `?` are listed in the [crate's
    /// documentation](crate#url).
    ///
    /// # Errors
    /// `Invalid` for another scheme, no path, an in-memory database, an unknown key or a value
    /// that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error).in_operation("from_url"))
    }

    fn read_url(url: &str) -> Result<Self> {
        let rest = url
            .strip_prefix("sqlite:")
            .ok_or_else(|| invalid("the URL must start with sqlite://"))?;
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Self::new(decode_path(path)?);
        let pairs = Url::parse(&format!("sqlite:x?{query}"))
            .map_err(|_| invalid("the part of the URL after the ? cannot be read"))?;
        for (key, value) in pairs.query_pairs() {
            options = options.with_setting(&key, &value)?;
        }
        options.check()?;
        Ok(options)
    }

    fn with_setting(self, key: &str, value: &str) -> Result<Self> {
        Ok(match key {
            "inbox" => self.inbox_name(InboxName::new(value)?),
            "synchronous" => self.synchronous(match value {
                "off" => Synchronous::Off,
                "normal" => Synchronous::Normal,
                "full" => Synchronous::Full,
                "extra" => Synchronous::Extra,
                _ => return Err(invalid("synchronous must be off, normal, full or extra")),
            }),
            "operation_timeout_ms" => {
                self.operation_timeout(Duration::from_millis(value.parse().map_err(|_| {
                    invalid("operation_timeout_ms must be a number of milliseconds")
                })?))
            }
            "payload_limit" => self.payload_limit(
                value
                    .parse()
                    .map_err(|_| invalid("payload_limit must be a number of bytes"))?,
            ),
            "drop_processed_payloads" => self.drop_processed_payloads(match value {
                "true" => true,
                "false" => false,
                _ => return Err(invalid("drop_processed_payloads must be true or false")),
            }),
            "mode" => self.create_if_missing(match value {
                "rwc" => true,
                "rw" => false,
                _ => return Err(invalid("mode must be rwc or rw")),
            }),
            _ => {
                return Err(invalid(format!(
                    "unknown setting {:?} in the URL; known are {KEYS}",
                    error_text(key)
                )));
            }
        })
    }

    /// The inbox's name, the prefix of its tables.
    #[must_use]
    pub fn inbox_name(mut self, name: InboxName) -> Self {
        self.inbox = name;
        self
    }

    /// When SQLite waits for the disk.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// The longest that one operation may take, from its call to its answer, waiting for a
    /// connection and for other writers' locks included: 30 seconds unless set, from a
    /// millisecond to a day. Past it the operation fails as `Unavailable`, with no effect if it was still
    /// waiting, otherwise with an unknown one. A purge has it for each of its slices.
    ///
    /// What the operating system does not come back from, such as a write to a file system that
    /// hangs, cannot be broken off: the operation ends, but the connection that it used is not free
    /// before that does.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = time_limit(timeout);
        self
    }

    /// The largest payload and the largest result, in bytes. At most 512 MiB, since SQLite holds
    /// no value over 1 GB.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes.min(512 * 1024 * 1024);
        self
    }

    /// Whether payloads are deleted as soon as their message is processed. The keys stay and go
    /// on refusing duplicates.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// Whether connecting creates the file when it is missing. Its folder has to exist.
    #[must_use]
    pub fn create_if_missing(mut self, create: bool) -> Self {
        self.create_if_missing = create;
        self
    }

    /// The clock, for tests that move time.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.inbox.as_str() == "sqlite" || self.inbox.as_str().starts_with("sqlite_") {
            return Err(invalid(
                "an inbox in an SQLite file cannot be named sqlite or sqlite_…: tables with such \
                 names are SQLite's own",
            ));
        }
        if self.path.as_os_str().is_empty() {
            return Err(invalid("the path of the SQLite file is empty"));
        }
        if self.path.as_os_str() == ":memory:" {
            return Err(invalid(
                "SQLite in memory is not supported, since every connection would see its \
                 own inbox; use the memory store or a file",
            ));
        }
        if self.path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(invalid("the path of the SQLite file contains NUL"));
        }
        Ok(())
    }

    /// An absolute path, so that SQLite never takes a file's name for a `file:` URI and the
    /// working directory may change.
    pub(crate) fn absolute_path(&self) -> PathBuf {
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    pub(crate) fn connection(&self) -> SqliteConnectOptions {
        use sqlx::ConnectOptions as _;

        SqliteConnectOptions::new()
            .filename(self.absolute_path())
            .read_only(is_read_only(&self.absolute_path()))
            .create_if_missing(self.create_if_missing)
            // Operations wait by themselves.
            .busy_timeout(Duration::ZERO)
            .synchronous(match self.synchronous {
                Synchronous::Off => SqliteSynchronous::Off,
                Synchronous::Normal => SqliteSynchronous::Normal,
                Synchronous::Full => SqliteSynchronous::Full,
                Synchronous::Extra => SqliteSynchronous::Extra,
            })
            // What a Mac takes to flush its disk's cache, too; without meaning elsewhere.
            .pragma("fullfsync", self.flushes_disks())
            .pragma("checkpoint_fullfsync", self.flushes_disks())
            // Rows cross from SQLite's thread to the task: room for a batch of them spares a
            // switch of threads for every few rows.
            .row_buffer_size(1024)
            .disable_statement_logging()
    }

    fn flushes_disks(&self) -> &'static str {
        match self.synchronous {
            Synchronous::Off | Synchronous::Normal => "OFF",
            Synchronous::Full | Synchronous::Extra => "ON",
        }
    }

    pub(crate) fn writer(&self) -> SqliteConnectOptions {
        self.connection()
            .journal_mode(SqliteJournalMode::Wal)
            // For batches of 500 messages of 1 KiB and more: 16 MiB of pages; what triggers and
            // RETURNING keep aside stays in memory; a checkpoint every 16 MiB of log rather than
            // every 4.
            .pragma("cache_size", "-16384")
            .pragma("temp_store", "MEMORY")
            .pragma("wal_autocheckpoint", "4000")
            // Tells transactions on this connection from those on a pool of the caller's.
            .pragma("analysis_limit", OWN.to_string())
    }

    /// For the connection that looks for commits, after whose failure nothing tries again.
    pub(crate) fn watcher(&self) -> SqliteConnectOptions {
        self.reader().busy_timeout(Duration::from_secs(1))
    }

    pub(crate) fn reader(&self) -> SqliteConnectOptions {
        self.connection()
            .create_if_missing(false)
            .pragma("query_only", "ON")
    }
}

/// Whether the file is there and read-only.
fn is_read_only(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().readonly())
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Undoes `%XX`.
fn decode_path(path: &str) -> Result<PathBuf> {
    let bad = || invalid("the path in the URL has a % that is not followed by two hex digits");
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            let digit = char::from(rest.next()?).to_digit(16)?;
            u8::try_from(digit).ok()
        };
        let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
        bytes.push(high * 16 + low);
    }
    String::from_utf8(bytes)
        .map(PathBuf::from)
        .map_err(|_| invalid("the path in the URL is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_paths_and_settings() {
        let options = SqliteOptions::from_url(
            "sqlite:///var/lib/my%20app/orders.db?inbox=orders&synchronous=normal\
             &operation_timeout_ms=250&payload_limit=1024&drop_processed_payloads=true&mode=rw",
        )
        .unwrap();
        assert_eq!(options.path, Path::new("/var/lib/my app/orders.db"));
        assert_eq!(options.inbox.as_str(), "orders");
        assert_eq!(options.synchronous, Synchronous::Normal);
        assert_eq!(options.operation_timeout, Duration::from_millis(250));
        assert_eq!(options.payload_limit, 1024);
        assert!(options.drop_processed_payloads);
        assert!(!options.create_if_missing);

        for url in ["sqlite://orders.db", "sqlite:orders.db"] {
            let options = SqliteOptions::from_url(url).unwrap();
            assert_eq!(options.path, Path::new("orders.db"));
            assert_eq!(options.synchronous, Synchronous::Full);
            assert!(options.create_if_missing);
        }
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason() {
        for (url, reason) in [
            ("postgres://x", "sqlite://"),
            ("sqlite://", "empty"),
            ("sqlite::memory:", "memory store"),
            ("sqlite://:memory:", "memory store"),
            ("sqlite://a.db?cache=shared", "known are inbox, synchronous"),
            ("sqlite://a.db?inbox=A", "inbox name"),
            ("sqlite://a.db?inbox=sqlite", "SQLite's own"),
            ("sqlite://a.db?inbox=sqlite_x", "SQLite's own"),
            ("sqlite://a.db?synchronous=maybe", "off, normal, full"),
            ("sqlite://a.db?operation_timeout_ms=-1", "milliseconds"),
            ("sqlite://a.db?payload_limit=x", "bytes"),
            ("sqlite://a.db?drop_processed_payloads=1", "true or false"),
            ("sqlite://a.db?mode=memory", "rwc or rw"),
            ("sqlite://a%2.db", "hex digits"),
            ("sqlite://a%00.db", "NUL"),
        ] {
            let error = SqliteOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.context().contains(reason), "{url}: {error}");
        }
    }
}
