//! Where the inbox is, and how it is kept.

use std::time::Duration;

use inbox_api::{ClockOffset, Error, ErrorKind, InboxName, Result, error_text};
use mongodb::options::ConnectionString;

const OPERATION: &str = "options";
const KEYS: &str = "inbox, payload_limit, drop_processed_payloads, expire_processed_after_s, \
                    operation_timeout_ms";

/// The largest payload limit, in bytes: payload, result, headers and the rest share a document,
/// and a document has at most 16 MiB.
pub(crate) const LARGEST_PAYLOAD: usize = 15 * 512 * 1024;

/// The database when neither the URL nor the options name one.
pub(crate) const DEFAULT_DATABASE: &str = "inbox";

/// Those of the driver's own parameters that a URL may have, in lower case. What the store sets
/// on each operation itself (concerns, read preference) is not among them.
const DRIVER_KEYS: &[&str] = &[
    "appname",
    "authmechanism",
    "authmechanismproperties",
    "authsource",
    "connecttimeoutms",
    "directconnection",
    "heartbeatfrequencyms",
    "loadbalanced",
    "localthresholdms",
    "maxconnecting",
    "maxidletimems",
    "maxpoolsize",
    "minpoolsize",
    "replicaset",
    "retryreads",
    "retrywrites",
    "servermonitoringmode",
    "serverselectiontimeoutms",
    "srvmaxhosts",
    "srvservicename",
    "ssl",
    "tls",
    "tlsallowinvalidcertificates",
    "tlscafile",
    "tlscertificatekeyfile",
    "tlsinsecure",
];

/// The settings of a [`MongoStore`](crate::MongoStore).
///
/// ```
/// use inbox_mongo::MongoOptions;
///
/// # fn main() -> inbox_api::Result<()> {
/// let (_connection, options) =
///     MongoOptions::from_url("mongodb://app@db.example/shop?replicaSet=rs0&inbox=orders")?;
/// assert!(options.ddl().contains("orders_message"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MongoOptions {
    pub(crate) inbox: InboxName,
    pub(crate) database: Option<String>,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) expire_processed_after: Option<Duration>,
    pub(crate) operation_timeout: Duration,
    pub(crate) offset: ClockOffset,
}

impl Default for MongoOptions {
    /// An inbox named `inbox`.
    fn default() -> Self {
        Self {
            inbox: InboxName::default(),
            database: None,
            payload_limit: LARGEST_PAYLOAD,
            drop_processed_payloads: false,
            expire_processed_after: None,
            operation_timeout: Duration::from_secs(30),
            offset: ClockOffset::default(),
        }
    }
}

impl MongoOptions {
    /// As [`Default`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `mongodb://user:password@host:port/database` (or `mongodb+srv://`), with these
    /// settings behind a `?`, beside the driver's own (`replicaSet`, `authSource`, `tls`,
    /// `tlsCAFile`, `maxPoolSize`, `serverSelectionTimeoutMS` and so on):
    ///
    /// | key | value |
    /// |---|---|
    /// | `inbox` | the inbox's name |
    /// | `payload_limit` | bytes |
    /// | `drop_processed_payloads` | `true` or `false` |
    /// | `expire_processed_after_s` | seconds |
    /// | `operation_timeout_ms` | milliseconds |
    ///
    /// # Errors
    /// `Invalid` for another scheme, an unknown key or a value that does not fit. No error repeats
    /// the URL. The driver's settings for concerns and read preference are refused: the store says
    /// them itself.
    pub fn from_url(url: &str) -> Result<(ConnectionString, Self)> {
        if !url.starts_with("mongodb://") && !url.starts_with("mongodb+srv://") {
            return Err(invalid(
                "the URL must start with mongodb:// or mongodb+srv://",
            ));
        }
        let unreadable = || invalid("the URL cannot be read; is a character to be written as %XX?");
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut options = Self::new();
        let mut driver = String::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if DRIVER_KEYS.contains(&key.to_ascii_lowercase().as_str()) {
                driver.push(if driver.is_empty() { '?' } else { '&' });
                driver.push_str(pair);
            } else {
                options = options.with_setting(key, value)?;
            }
        }
        // Without a path, the driver takes no parameters.
        let authority = place.split_once("://").map_or("", |(_, rest)| rest);
        let slash = if authority.contains('/') { "" } else { "/" };
        let connection =
            ConnectionString::parse(format!("{place}{slash}{driver}")).map_err(|_| unreadable())?;
        Ok((connection, options))
    }

    fn with_setting(self, key: &str, value: &str) -> Result<Self> {
        let flag = |key: &str| {
            value
                .parse()
                .map_err(|_| invalid(format!("{key} must be true or false")))
        };
        Ok(match key {
            "inbox" => self.inbox_name(
                InboxName::new(value).map_err(|invalid| invalid.in_operation(OPERATION))?,
            ),
            "payload_limit" => self.payload_limit(
                value
                    .parse()
                    .map_err(|_| invalid("payload_limit must be a number of bytes"))?,
            ),
            "drop_processed_payloads" => self.drop_processed_payloads(flag(key)?),
            "expire_processed_after_s" => {
                let seconds =
                    value.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
                        invalid("expire_processed_after_s must be a positive number")
                    })?;
                self.expire_processed_after(Some(Duration::from_secs(seconds)))
            }
            "operation_timeout_ms" => {
                self.operation_timeout(Duration::from_millis(value.parse().map_err(|_| {
                    invalid("operation_timeout_ms must be a number of milliseconds")
                })?))
            }
            _ => {
                return Err(invalid(format!(
                    "unknown setting {:?} in the URL; known are {KEYS}, and the driver's own",
                    error_text(key)
                )));
            }
        })
    }

    /// The inbox's name, the prefix of its collections.
    #[must_use]
    pub fn inbox_name(mut self, name: InboxName) -> Self {
        self.inbox = name;
        self
    }

    /// The database: the one that the URL or the client names unless set, and `inbox` when those
    /// name none.
    #[must_use]
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// The largest payload and the largest result, in bytes. At most, and unless set, 7.5 MiB:
    /// both are in one document, and MongoDB takes none over 16 MiB.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes.min(LARGEST_PAYLOAD);
        self
    }

    /// Whether payloads are deleted as soon as their message is processed. The keys stay and go
    /// on refusing duplicates.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// Lets the server delete messages by itself, by a TTL index, this long after they were
    /// processed; off unless set. It holds for messages that are processed with this option set.
    /// Their keys are no longer protected then, so it must be longer than the longest window in
    /// which a broker may deliver again. [`purge`](inbox_api::Operate::purge) does the same under
    /// the caller's control, and after an archiver if need be.
    #[must_use]
    pub fn expire_processed_after(mut self, age: Option<Duration>) -> Self {
        self.expire_processed_after = age;
        self
    }

    /// How long an operation may take before it fails as `Unavailable` with an unknown effect: 30
    /// seconds unless set. What was sent to the server goes on in the background, since the
    /// driver's calls are never broken off in the middle.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = timeout;
        self
    }

    /// An offset to the server's clock, for tests that move time.
    #[must_use]
    pub fn clock_offset(mut self, offset: ClockOffset) -> Self {
        self.offset = offset;
        self
    }

    /// The commands that set up an empty inbox, for `mongosh`: what
    /// [`Schema::ddl`](inbox_api::Schema::ddl) gives, without a connection.
    #[must_use]
    pub fn ddl(&self) -> String {
        crate::schema::ddl(&self.inbox)
    }
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, OPERATION, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_connections_and_settings() {
        let (connection, options) = MongoOptions::from_url(
            "mongodb://app:p%40ss@a.example:27018,b.example/shop?inbox=orders&payload_limit=1024\
             &drop_processed_payloads=true&expire_processed_after_s=60&operation_timeout_ms=250\
             &replicaSet=rs0&authSource=admin",
        )
        .unwrap();
        assert_eq!(connection.default_database.as_deref(), Some("shop"));
        assert_eq!(connection.replica_set.as_deref(), Some("rs0"));
        assert_eq!(options.inbox.as_str(), "orders");
        assert_eq!(options.payload_limit, 1024);
        assert!(options.drop_processed_payloads);
        assert_eq!(
            options.expire_processed_after,
            Some(Duration::from_secs(60))
        );
        assert_eq!(options.operation_timeout, Duration::from_millis(250));
    }

    #[test]
    fn parameters_do_not_need_a_path() {
        let (connection, options) =
            MongoOptions::from_url("mongodb://localhost?inbox=orders&replicaSet=rs0").unwrap();
        assert_eq!(connection.replica_set.as_deref(), Some("rs0"));
        assert_eq!(connection.default_database, None);
        assert_eq!(options.inbox.as_str(), "orders");
        assert!(MongoOptions::from_url("mongodb://localhost:27017").is_ok());
    }

    #[test]
    fn the_payload_limit_leaves_room_in_the_document() {
        let options = MongoOptions::new().payload_limit(usize::MAX);
        assert_eq!(options.payload_limit, LARGEST_PAYLOAD);
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason_and_without_secrets() {
        for (url, reason) in [
            ("mysql://app:secret@x/y", "mongodb://"),
            ("mongodb://app:secret@x:port/y", "cannot be read"),
            (
                "mongodb://app:secret@x/y?inbx=a",
                "known are inbox, payload_limit",
            ),
            ("mongodb://app:secret@x/y?w=1", "unknown setting \"w\""),
            (
                "mongodb://app:secret@x/y?readPreference=secondary",
                "unknown setting",
            ),
            ("mongodb://app:secret@x/y?inbox=A", "inbox name"),
            ("mongodb://app:secret@x/y?payload_limit=x", "bytes"),
            (
                "mongodb://app:secret@x/y?drop_processed_payloads=1",
                "true or false",
            ),
            (
                "mongodb://app:secret@x/y?expire_processed_after_s=0",
                "positive",
            ),
            (
                "mongodb://app:secret@x/y?operation_timeout_ms=-1",
                "milliseconds",
            ),
            ("mongodb://app:secret@x/y?tls=perhaps", "cannot be read"),
        ] {
            let error = MongoOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.context().contains(reason), "{url}: {error}");
            assert!(!format!("{error:?}").contains("secret"), "{url}");
        }
    }
}
