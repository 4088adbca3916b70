//! Where the inbox is, and how it is kept.

use std::{collections::HashSet, fmt, time::Duration};

use inbox_api::{ClockOffset, Error, ErrorKind, InboxName, Result, hide_password, time_limit};
use mongodb::{
    error::{Error as DriverError, ErrorKind as Driver},
    options::ConnectionString,
};

use crate::{error::refused, layout};

/// The URL schemes of this store.
pub const SCHEMES: &[&str] = &["mongodb", "mongodb+srv"];

const KEYS: &str = "inbox, payload_limit, drop_processed_payloads, expire_processed_after_s, \
                    operation_timeout_ms, transaction_lifetime_s";

/// The largest payload limit, in bytes: payload, result, headers and the rest share a document,
/// and a document has at most 16 MiB.
pub(crate) const LARGEST_PAYLOAD: usize = 15 * 512 * 1024;

/// The database when neither the URL nor the options name one.
pub(crate) const DEFAULT_DATABASE: &str = "inbox";

/// Parameters of MongoDB's URLs that the store sets itself, in lower case, with the only value
/// that agrees with it.
const SET_ANYWAY: &[(&str, &str)] = &[
    ("journal", "true"),
    ("readconcernlevel", "majority"),
    ("readpreference", "primary"),
    ("retrywrites", "true"),
    ("w", "majority"),
];

/// Parameters of MongoDB's URLs that would have no effect, in lower case, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("maxstalenessseconds", READS_FROM_PRIMARY),
    ("readpreferencetags", READS_FROM_PRIMARY),
    ("sockettimeoutms", TIME_LIMIT),
    ("timeoutms", TIME_LIMIT),
    ("waitqueuetimeoutms", TIME_LIMIT),
    ("wtimeoutms", TIME_LIMIT),
];
const READS_FROM_PRIMARY: &str = "the store reads from the primary";
const TIME_LIMIT: &str = "operation_timeout_ms limits the time of an operation";

/// The settings of a [`MongoStore`](crate::MongoStore).
///
/// ```
/// use inbox_mongo::MongoOptions;
///
/// # fn main() -> inbox_api::Result<()> {
/// let url = "mongodb://app@db.example/shop?replicaSet=rs0&inbox=orders";
/// let options = MongoOptions::from_url(url)?;
/// assert!(options.ddl().contains("orders_message"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MongoOptions {
    /// `None` where a client is handed in.
    pub(crate) connection: Option<ConnectionString>,
    pub(crate) inbox: InboxName,
    pub(crate) database: Option<String>,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) expire_processed_after: Option<Duration>,
    pub(crate) operation_timeout: Duration,
    pub(crate) transaction_lifetime: Duration,
    pub(crate) offset: ClockOffset,
}

impl fmt::Debug for MongoOptions {
    /// Without the connection, which comes with credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoOptions")
            .field("inbox", &self.inbox)
            .field("database", &self.database)
            .field("payload_limit", &self.payload_limit)
            .field("drop_processed_payloads", &self.drop_processed_payloads)
            .field("expire_processed_after", &self.expire_processed_after)
            .field("operation_timeout", &self.operation_timeout)
            .field("transaction_lifetime", &self.transaction_lifetime)
            .finish_non_exhaustive()
    }
}

impl Default for MongoOptions {
    /// An inbox named `inbox`.
    fn default() -> Self {
        Self {
            connection: None,
            inbox: InboxName::default(),
            database: None,
            payload_limit: LARGEST_PAYLOAD,
            drop_processed_payloads: false,
            expire_processed_after: None,
            operation_timeout: Duration::from_secs(30),
            transaction_lifetime: Duration::from_secs(60),
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

    /// Reads `mongodb://user:password@host:port/database` (or `mongodb+srv://`). The settings behind its
    /// `?` are listed in the [crate's documentation](crate#url).
    ///
    /// # Errors
    /// `Invalid` for another scheme, an unknown key, a key that is there twice, a value that does
    /// not fit, and what the driver, as it is built, does not take. No error repeats the URL.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(|error| hide_password(url, error).in_operation("from_url"))
    }

    fn parse(url: &str) -> Result<Self> {
        if !url.starts_with("mongodb://") && !url.starts_with("mongodb+srv://") {
            return Err(invalid(
                "the URL must start with mongodb:// or mongodb+srv://",
            ));
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        // By itself first. What the driver says of it may quote a password.
        let unreadable = "the URL cannot be read: a port is a number; user and password have characters such as \
                          : / ? # @ as %XX; the name of a database has no blank and none of \
                          / \\ . \" $";
        if splits_a_character(place) {
            return Err(invalid(unreadable));
        }
        ConnectionString::parse(place).map_err(|_| invalid(unreadable))?;
        let mut options = Self::new();
        let mut seen = HashSet::new();
        let mut driver = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let word = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let Some((key, value)) = pair.split_once('=').filter(|(key, _)| word(key)) else {
                // Not quoted: it may be the rest of a password with a ? in it.
                return Err(invalid(
                    "what is behind the ? of the URL must be key=value, with & between; is a \
                     character before it to be written as %XX?",
                ));
            };
            let plain = key.to_ascii_lowercase();
            if !seen.insert(plain.clone()) {
                return Err(invalid(format!("{key} is in the URL more than once")));
            }
            let is = |(known, _): &&(&str, &str)| *known == plain;
            if let Some((_, only)) = SET_ANYWAY.iter().find(is) {
                if value != *only {
                    return Err(invalid(format!(
                        "{key} must be {only}: the store sets it itself with every operation"
                    )));
                }
            } else if let Some((_, why)) = WITHOUT_EFFECT.iter().find(is) {
                return Err(invalid(format!("{key} would have no effect: {why}")));
            } else if !options.set(&plain, value)? {
                driver.push(pair);
            }
        }
        let connection = ConnectionString::parse(format!("{place}?{}", driver.join("&")))
            .map_err(|error| not_taken(&error, &seen))?;
        options.database.clone_from(&connection.default_database);
        options.connection = Some(connection);
        Ok(options)
    }

    /// Sets what the URL says of a key of the store's own; answers whether it is one.
    fn set(&mut self, key: &str, value: &str) -> Result<bool> {
        // A whole number from 1.
        let number = |what: &str| {
            value
                .parse::<u64>()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| invalid(format!("{key} must be a whole number of {what}, from 1")))
        };
        match key {
            "inbox" => {
                self.inbox = InboxName::new(value)?;
            }
            "payload_limit" => {
                let limit = usize::try_from(number("bytes")?).unwrap_or(usize::MAX);
                if limit > LARGEST_PAYLOAD {
                    return Err(invalid(format!(
                        "payload_limit must be at most {LARGEST_PAYLOAD} bytes: MongoDB takes no \
                         document over 16 MiB, and payload and result are in one"
                    )));
                }
                self.payload_limit = limit;
            }
            "drop_processed_payloads" => {
                self.drop_processed_payloads = value
                    .parse()
                    .map_err(|_| invalid(format!("{key} must be true or false")))?;
            }
            "expire_processed_after_s" => {
                self.expire_processed_after = Some(Duration::from_secs(number("seconds")?));
            }
            "transaction_lifetime_s" => {
                self.transaction_lifetime = time_limit(Duration::from_secs(number("seconds")?));
            }
            "operation_timeout_ms" => {
                self.operation_timeout = time_limit(Duration::from_millis(number("milliseconds")?));
            }
            _ => return Ok(false),
        }
        Ok(true)
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
    /// seconds unless set, from a millisecond to a day. What was sent to the server goes on in the background, since the
    /// driver's calls are never broken off in the middle.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = time_limit(timeout);
        self
    }

    /// How long the server lets a transaction be open, which is its parameter
    /// `transactionLifetimeLimitSeconds`: 60 seconds unless set. A message on which a handler works
    /// in a transaction is leased for this long, since renewals and the transaction would be in
    /// each other's way; after a crash of the worker, another gets it so much later.
    #[must_use]
    pub fn transaction_lifetime(mut self, lifetime: Duration) -> Self {
        self.transaction_lifetime = time_limit(lifetime);
        self
    }

    /// An offset to the server's clock, for tests that move time.
    #[must_use]
    pub fn clock_offset(mut self, offset: ClockOffset) -> Self {
        self.offset = offset;
        self
    }

    /// The commands that set up an empty inbox, for `mongosh`: what
    /// [`Schema::ddl`](inbox_api::Schema::ddl) gives, without a connection, and so for the
    /// database `inbox` unless the URL or [`database`](Self::database) has named one.
    #[must_use]
    pub fn ddl(&self) -> String {
        let database = self.database.as_deref().unwrap_or(DEFAULT_DATABASE);
        layout::ddl(database, &self.inbox)
    }

    /// The commands that show whether a complete inbox is there, for `mongosh`: what
    /// [`Schema::exists_query`](inbox_api::Schema::exists_query) gives, without a connection, and so for
    /// the same database as [`ddl`](Self::ddl).
    #[must_use]
    pub fn exists_query(&self) -> String {
        let database = self.database.as_deref().unwrap_or(DEFAULT_DATABASE);
        layout::exists_query(database, &self.inbox)
    }
}

/// The error of settings that the driver does not take; `keys` has those of the URL, in lower case.
fn not_taken(error: &DriverError, keys: &HashSet<String>) -> Error {
    // The one setting that the driver may quote and that may have a secret.
    if keys.contains("authmechanismproperties") {
        return invalid("the driver refuses the settings; is authMechanismProperties right?");
    }
    let unknown = |key: &&String| {
        let unknown = format!("{key} is an invalid option");
        matches!(
            error.kind.as_ref(),
            Driver::InvalidArgument { message, .. } if message.starts_with(&unknown)
        )
    };
    match keys.iter().find(unknown) {
        Some(key) => invalid(format!(
            "unknown setting {key:?} in the URL; known are {KEYS}, and what the driver, as it is \
             built, knows"
        )),
        None => refused(error),
    }
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Whether the second byte behind a `%` is in the midst of a character. The driver takes two bytes there, and
/// panics.
fn splits_a_character(place: &str) -> bool {
    let mut escaped = place.split('%').skip(1);
    escaped.any(|part| part.len() > 2 && !part.is_char_boundary(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_connections_and_settings() {
        let options = MongoOptions::from_url(
            "mongodb://app:p%40ss@a.example:27018,b.example/shop?inbox=orders&payload_limit=1024\
             &drop_processed_payloads=true&expire_processed_after_s=60&operation_timeout_ms=250\
             &replicaSet=rs0&authSource=admin",
        )
        .unwrap();
        let connection = options.connection.clone().unwrap();
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
    fn the_texts_name_the_database() {
        for (url, database) in [
            ("mongodb://localhost/shop?inbox=orders", "\"shop\""),
            ("mongodb://localhost/?inbox=orders", "\"inbox\""),
        ] {
            let options = MongoOptions::from_url(url).unwrap();
            for text in [options.ddl(), options.exists_query()] {
                let named = format!("getSiblingDB({database})");
                assert!(text.contains(&named), "{text}");
            }
        }
    }

    #[test]
    fn parameters_do_not_need_a_path() {
        let options =
            MongoOptions::from_url("mongodb://localhost?inbox=orders&replicaSet=rs0").unwrap();
        let connection = options.connection.clone().unwrap();
        assert_eq!(connection.replica_set.as_deref(), Some("rs0"));
        assert_eq!(connection.default_database, None);
        assert_eq!(options.inbox.as_str(), "orders");
        assert!(MongoOptions::from_url("mongodb://localhost:27017").is_ok());
    }

    #[test]
    fn what_the_store_sets_anyway_may_be_in_the_url() {
        let options = MongoOptions::from_url(
            "mongodb+srv://app:secret@cluster0.example/shop?retryWrites=true&w=majority\
             &journal=true&readConcernLevel=majority&readPreference=primary&appName=Cluster0",
        )
        .unwrap();
        let connection = options.connection.clone().unwrap();
        assert_eq!(connection.app_name.as_deref(), Some("Cluster0"));
        assert_eq!(connection.write_concern, None);
    }

    #[test]
    fn the_payload_limit_leaves_room_in_the_document() {
        let options = MongoOptions::new().payload_limit(usize::MAX);
        assert_eq!(options.payload_limit, LARGEST_PAYLOAD);
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason_and_without_secrets() {
        for (rest, reason) in [
            ("x:port/y", "cannot be read"),
            ("u:100%\u{20ac}@x/y", "cannot be read"),
            ("u%a\u{e4}:p@x/y", "cannot be read"),
            ("x/$cmd", "name of a database"),
            (
                "x/y?inbx=a",
                "unknown setting \"inbx\" in the URL; known are inbox",
            ),
            ("x/y?inbox=a&inbox=b", "inbox is in the URL more than once"),
            ("x/y?tls=true&TLS=false", "TLS is in the URL more than once"),
            ("x/y?inbox=A", "inbox name"),
            ("x/y?payload_limit=x", "number of bytes, from 1"),
            ("x/y?payload_limit=0", "number of bytes, from 1"),
            ("x/y?payload_limit=7864321", "at most 7864320"),
            ("x/y?drop_processed_payloads=1", "true or false"),
            ("x/y?expire_processed_after_s=0", "whole number of seconds"),
            ("x/y?expire_processed_after_s=7d", "whole number of seconds"),
            (
                "x/y?operation_timeout_ms=-1",
                "whole number of milliseconds",
            ),
            ("x/y?operation_timeout_ms=0", "whole number of milliseconds"),
            ("x/y?transaction_lifetime_s=0", "whole number of seconds"),
            ("x/y?w=1", "w must be majority"),
            ("x/y?journal=false", "journal must be true"),
            (
                "x/y?readConcernLevel=local",
                "readConcernLevel must be majority",
            ),
            (
                "x/y?readPreference=secondary",
                "readPreference must be primary",
            ),
            ("x/y?maxStalenessSeconds=90", "reads from the primary"),
            ("x/y?socketTimeoutMS=1", "operation_timeout_ms"),
            ("x/y?wTimeoutMS=1", "wTimeoutMS would have no effect"),
            ("x/y?tls=perhaps", "tls"),
            ("x/y?tls=false&tlsCAFile=ca.pem", "tlsCAFile"),
            ("x/y?srvServiceName=a", "srvServiceName"),
            (
                "x/y?authMechanism=MONGODB-X509",
                "password cannot be specified",
            ),
            (
                "x/y?authMechanism=PLAIN&authMechanismProperties=secret",
                "authMechanismProperties",
            ),
            ("x/y?word", "key=value"),
            ("x/y?secret@z", "rest of a password"),
        ] {
            let url = format!("mongodb://app:secret@{rest}");
            let error = MongoOptions::from_url(&url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.context().contains(reason), "{url}: {error}");
            assert!(!format!("{error:?}").contains("secret"), "{url}");
        }
        // Passwords with characters that should have been written as %XX.
        for url in [
            "mysql://app:hunter@x/y",
            "mongodb://app:a/hunter@x/y",
            "mongodb://app:12?hunter@x/y",
            "mongodb://app:12?hunter&a@x/y",
            "mongodb://app:12?hunter=b&a@x/y",
            "mongodb://app:?hunter@x/y?inbox=a",
        ] {
            let error = MongoOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error:?}").contains("hunter"), "{url}");
        }
    }

    /// Which depends on the driver's features; these are of the crate as it is tested.
    #[test]
    fn what_the_driver_knows_is_left_to_it() {
        assert!(MongoOptions::from_url("mongodb://x/?maxConnecting=3").is_ok());
        for (pair, reason) in [
            ("compressors=zstd", "unknown setting \"compressors\""),
            (
                "tlsCertificateKeyFilePassword=secret",
                "tlsCertificateKeyFilePassword",
            ),
            ("proxyHost=secret", "proxyhost"),
        ] {
            let error = MongoOptions::from_url(&format!("mongodb://x/?{pair}")).unwrap_err();
            assert!(error.context().contains(reason), "{error}");
            assert!(!format!("{error:?}").contains("secret"));
        }
    }
}
