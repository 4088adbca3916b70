//! Where the inbox is, and how it is used.

use std::{collections::HashSet, time::Duration};

use inbox_api::{
    ClockOffset, DEFAULT_PAYLOAD_LIMIT, Error, ErrorKind, InboxName, Result, error_text,
    hide_password, time_limit,
};
use sqlx::{
    ConnectOptions as _,
    mysql::{MySqlConnectOptions, MySqlSslMode},
};
use url::Url;

/// The schemes of this store's URLs.
pub const SCHEMES: &[&str] = &["mariadb", "mysql"];

const KEYS: &str = "inbox, database, payload_type, payload_limit, drop_processed_payloads, \
                    max_connections, operation_timeout_ms, ssl-mode, ssl-ca, ssl-cert, ssl-key, socket";

/// The names of the tables, without the inbox's.
pub(crate) const TABLES: [&str; 10] = [
    "message", "work", "dead", "done", "ordering", "open", "run", "tally", "paused", "meta",
];

/// The column type of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PayloadType {
    /// Any bytes, which come back as they were sent.
    #[default]
    LongBlob,
    /// JSON, for people who query payloads with the database's own functions. Payloads that are
    /// not JSON are refused. MySQL writes JSON in its own way: a payload comes back with the same
    /// meaning, but other spacing and another order of members, and with repeated members gone.
    /// MariaDB keeps the text.
    Json,
}

/// The settings of a [`MySqlStore`](crate::MySqlStore).
///
/// ```
/// use inbox_mysql::MySqlOptions;
///
/// # fn main() -> inbox_api::Result<()> {
/// let options = MySqlOptions::from_url("mysql://app:secret@db.example/shop?inbox=orders")?;
/// assert!(options.ddl().contains("`orders_message`"));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MySqlOptions {
    pub(crate) connect: MySqlConnectOptions,
    pub(crate) inbox: InboxName,
    pub(crate) database: Option<String>,
    pub(crate) payload_type: PayloadType,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) max_connections: u32,
    pub(crate) operation_timeout: Duration,
    pub(crate) clock: ClockOffset,
}

/// Without the user's name and password.
impl std::fmt::Debug for MySqlOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlOptions")
            .field("host", &self.connect.get_host())
            .field("port", &self.connect.get_port())
            .field("inbox", &self.inbox)
            .field("database", &self.database)
            .field("payload_type", &self.payload_type)
            .field("payload_limit", &self.payload_limit)
            .field("drop_processed_payloads", &self.drop_processed_payloads)
            .field("max_connections", &self.max_connections)
            .field("operation_timeout", &self.operation_timeout)
            .finish_non_exhaustive()
    }
}

impl MySqlOptions {
    /// An inbox named `inbox` in the database that `connect` names.
    #[must_use]
    pub fn new(connect: MySqlConnectOptions) -> Self {
        Self {
            connect,
            inbox: InboxName::default(),
            database: None,
            payload_type: PayloadType::default(),
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            max_connections: 10,
            operation_timeout: Duration::from_secs(30),
            clock: ClockOffset::default(),
        }
    }

    /// Reads `mysql://user:password@host:port/database` (or `mariadb://…`), with `%XX` for
    /// special characters. The settings behind its `?` are listed in the [crate's documentation](crate#url).
    ///
    /// # Errors
    /// `Invalid` for another scheme, no database, an unknown key or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let rest = url
            .split_once(':')
            .filter(|(scheme, _)| SCHEMES.contains(scheme))
            .map(|(_, rest)| rest)
            .ok_or_else(|| invalid("the URL must start with mysql:// or mariadb://"))?;
        let unreadable = || invalid("the URL cannot be read; special characters need %XX");
        let url = Url::parse(&format!("mysql:{rest}")).map_err(|_| unreadable())?;
        let mut bare = url.clone();
        bare.set_query(None);
        let connect = MySqlConnectOptions::from_url(&bare).map_err(|_| unreadable())?;
        let mut options = Self::new(connect);
        let mut given = HashSet::new();
        for (key, value) in url.query_pairs() {
            if !given.insert(key.clone()) {
                let key = error_text(&key);
                return Err(invalid(format!("{key:?} is in the URL more than once")));
            }
            options = options.with_setting(&key, &value)?;
        }
        if given.contains("socket") && !given.contains("ssl-mode") {
            // The driver cannot encrypt what stays on the machine, and asks for it unless told not to.
            options.connect = options.connect.ssl_mode(MySqlSslMode::Disabled);
        }
        if options.connect.get_database().is_none() && options.database.is_none() {
            return Err(invalid("the URL names no database: mysql://host/DATABASE"));
        }
        Ok(options)
    }

    fn with_setting(mut self, key: &str, value: &str) -> Result<Self> {
        match key {
            "inbox" => {
                let name = InboxName::new(value).map_err(|e| e.in_operation("from_url"))?;
                return Ok(self.inbox_name(name));
            }
            "database" => return self.database(value),
            "payload_type" => {
                self.payload_type = match value {
                    "longblob" => PayloadType::LongBlob,
                    "json" => PayloadType::Json,
                    _ => return Err(invalid("payload_type must be longblob or json")),
                }
            }
            "payload_limit" => self.payload_limit = number(value, "payload_limit must be bytes")?,
            "drop_processed_payloads" => {
                self.drop_processed_payloads = value
                    .parse()
                    .map_err(|_| invalid("drop_processed_payloads must be true or false"))?;
            }
            "max_connections" => {
                let most = number(value, "max_connections must be a number")?;
                return Ok(self.max_connections(most));
            }
            "operation_timeout_ms" => {
                let expected = "operation_timeout_ms must be a number of milliseconds";
                let millis = number(value, expected)?;
                return Ok(self.operation_timeout(Duration::from_millis(millis)));
            }
            "ssl-mode" => {
                let mode: MySqlSslMode = value.parse().map_err(|_| {
                    invalid(
                        "ssl-mode must be disabled, preferred, required, verify_ca or \
                         verify_identity",
                    )
                })?;
                self.connect = self.connect.ssl_mode(mode);
            }
            "ssl-ca" => self.connect = self.connect.ssl_ca(value),
            "ssl-cert" => self.connect = self.connect.ssl_client_cert(value),
            "ssl-key" => self.connect = self.connect.ssl_client_key(value),
            "socket" => self.connect = self.connect.socket(value),
            _ => {
                return Err(invalid(format!(
                    "unknown setting {:?} in the URL; known are {KEYS}",
                    error_text(key)
                )));
            }
        }
        Ok(self)
    }

    /// The inbox's name, the prefix of its tables.
    #[must_use]
    pub fn inbox_name(mut self, name: InboxName) -> Self {
        self.inbox = name;
        self
    }

    /// The database of the inbox's tables, unless they are in the one that the connection uses.
    /// Takes any name that the server takes; it is quoted.
    ///
    /// # Errors
    /// `Invalid` when the name is empty, longer than 64 characters, ends with a space, or has
    /// control characters or characters outside of Unicode's basic plane.
    pub fn database(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let fits = (1..=64).contains(&name.chars().count())
            && !name.ends_with(' ')
            && name.chars().all(|c| !c.is_control() && c <= '\u{ffff}');
        if !fits {
            return Err(invalid(
                "the database name must have 1 to 64 characters that the server takes",
            ));
        }
        self.database = Some(name);
        Ok(self)
    }

    /// The column type of payloads. Takes effect when the inbox is set up.
    #[must_use]
    pub fn payload_type(mut self, payload_type: PayloadType) -> Self {
        self.payload_type = payload_type;
        self
    }

    /// The largest payload and the largest result, in bytes. Independent of it, a message, with its
    /// headers and 12 KiB to spare, has to fit into the server's `max_allowed_packet` (16 MiB on
    /// MariaDB, 64 MiB on MySQL unless set), and one that does not is refused. The smaller of the two
    /// is in the store's capabilities: on a MariaDB server as it comes, that is less than the 16 MiB
    /// that this is unless set.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes;
        self
    }

    /// Whether payloads are deleted as soon as their message is processed. The keys stay and go
    /// on refusing duplicates.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// The most connections that the store opens for its operations and transactions: 10 unless set, one at
    /// least. Renewals of leases open one more, when transactions have all of them: they would come too late
    /// otherwise. Without effect on a pool of the caller's.
    #[must_use]
    pub fn max_connections(mut self, most: u32) -> Self {
        self.max_connections = most.max(1);
        self
    }

    /// The longest that one operation may take, from its call to its answer, waiting for a
    /// connection included: 30 seconds unless set, from a millisecond to a day. Past it the connection
    /// is closed, the operation fails as `Unavailable` with effect unknown (effect none if nothing
    /// had been sent), and the next call uses another connection. Of a purge, it is each slice's.
    ///
    /// In a transaction of the caller's pool, the connection is the driver's to close.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = time_limit(timeout);
        self
    }

    /// Moves the store's time, for tests only.
    #[must_use]
    pub fn clock_offset(mut self, offset: ClockOffset) -> Self {
        self.clock = offset;
        self
    }

    /// Connects with other settings: to another node of a cluster, say.
    #[must_use]
    pub fn connect_with(mut self, connect: MySqlConnectOptions) -> Self {
        self.connect = connect;
        self
    }

    /// The driver's settings for connections to the server. They hold the password.
    #[must_use]
    pub fn connection(&self) -> &MySqlConnectOptions {
        &self.connect
    }

    /// The inbox's name.
    #[must_use]
    pub fn name(&self) -> &InboxName {
        &self.inbox
    }

    /// The inbox's tables, as statements name them.
    #[must_use]
    pub fn tables(&self) -> Vec<String> {
        TABLES.map(|table| self.table(table)).into()
    }

    /// A table's name as statements have it, quoted and with its database: of one of the inbox's own, or of
    /// an application's that stands next to them.
    #[must_use]
    pub fn table(&self, table: &str) -> String {
        let inbox = &self.inbox;
        match &self.database {
            Some(database) => format!("`{}`.`{inbox}_{table}`", database.replace('`', "``")),
            None => format!("`{inbox}_{table}`"),
        }
    }
}

fn number<T: std::str::FromStr>(value: &str, expected: &'static str) -> Result<T> {
    value.parse().map_err(|_| invalid(expected))
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text).in_operation("from_url")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_settings() {
        let options = MySqlOptions::from_url(
            "mariadb://app:p%40ss@db.example:3307/shop?inbox=orders&database=a%60b\
             &payload_type=json&payload_limit=1024&drop_processed_payloads=true\
             &max_connections=3&operation_timeout_ms=250&ssl-mode=disabled",
        )
        .unwrap();
        assert_eq!(options.connect.get_host(), "db.example");
        assert_eq!(options.connect.get_port(), 3307);
        assert_eq!(options.table("work"), "`a``b`.`orders_work`");
        assert_eq!(options.payload_type, PayloadType::Json);
        assert_eq!(options.payload_limit, 1024);
        assert!(options.drop_processed_payloads);
        assert_eq!(options.max_connections, 3);
        assert_eq!(options.operation_timeout, Duration::from_millis(250));
        let plain = MySqlOptions::from_url("mysql://h/shop").unwrap();
        assert_eq!(plain.table("work"), "`inbox_work`");
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason_and_without_their_secrets() {
        for (url, reason) in [
            ("postgres://u:hunter2@h/db", "mysql://"),
            ("mysql://u:hunter2@h", "no database"),
            ("mysql://u:hunter2@h:x/db", "%XX"),
            ("mysql://u:hunter2@h/db?inbox=A", "inbox name"),
            (
                "mysql://u:hunter2@h/db?charset=x",
                "known are inbox, database",
            ),
            (
                "mysql://u:hunter2@h/db?payload_type=text",
                "longblob or json",
            ),
            ("mysql://u:hunter2@h/db?payload_limit=x", "bytes"),
            (
                "mysql://u:hunter2@h/db?drop_processed_payloads=1",
                "true or false",
            ),
            ("mysql://u:hunter2@h/db?max_connections=-1", "number"),
            (
                "mysql://u:hunter2@h/db?operation_timeout_ms=soon",
                "milliseconds",
            ),
            ("mysql://u:hunter2@h/db?timeout_ms=1000", "known are inbox"),
            ("mysql://u:hunter2@h/db?ssl-mode=maybe", "verify_identity"),
            ("mysql://u:hunter2@h/db?database=", "64 characters"),
            ("mysql://u:hunter2@h/db?inbox=a&inbox=b", "more than once"),
        ] {
            let error = MySqlOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.context().contains(reason), "{url}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{url}");
        }
    }
}
