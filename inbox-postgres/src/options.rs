//! Where the inbox is, and how it is kept.

use std::{fmt, str::FromStr as _, time::Duration};

use inbox_api::{
    Bytes, DEFAULT_PAYLOAD_LIMIT, Error, ErrorKind, InboxName, Invalid, Message, Result,
    check_size, error_text, hide_password, time_limit,
};
use sqlx::postgres::PgConnectOptions;
use url::Url;

use crate::{
    ddl,
    names::{Names, SchemaName},
    payload::PayloadType,
    shape,
};

/// The schemes of the URLs that [`PostgresOptions::from_url`] reads.
pub const SCHEMES: &[&str] = &["postgres", "postgresql"];

const OPERATION: &str = "from_url";
const KEYS: &str = "inbox, schema, payload_type, partition_hours, payload_limit, \
                    drop_processed_payloads, notifications, prepared_statements, max_connections, \
                    operation_timeout_ms, acquire_timeout_ms";

/// Those of the driver's own parameters that a URL may have.
const DRIVER_KEYS: &[&str] = &[
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "user",
];

/// Messages in partitions by the time at which they were received, so that whole days (or whatever
/// the period is) of finished messages are dropped as tables rather than deleted row by row. See
/// the [crate's documentation](crate#partitions) for what that gains and what it costs.
///
/// ```
/// use std::time::Duration;
/// use inbox_postgres::{Partitions, PostgresOptions};
///
/// let day = Duration::from_secs(24 * 60 * 60);
/// let options = PostgresOptions::new().partitions(Some(Partitions::every(day)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions {
    pub(crate) period: Duration,
    pub(crate) patience: Duration,
}

impl Partitions {
    /// A new partition each `period`, begun by the first purge after its end. Each statement has
    /// to do with all partitions for a moment, so there should be tens of them, not hundreds: with
    /// messages kept for two weeks, a day is a good period.
    #[must_use]
    pub fn every(period: Duration) -> Self {
        Self {
            period,
            patience: period,
        }
    }

    /// How much longer than its retention says a finished message may stay, so that the others of
    /// its partition can become old enough too and the partition be dropped whole: the period
    /// unless set. A message that is overdue by more is deleted by itself.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// The settings of a [`PostgresStore`](crate::PostgresStore).
///
/// ```
/// use inbox_postgres::PostgresOptions;
///
/// # fn main() -> inbox_api::Result<()> {
/// let url = "postgres://app:secret@db.example/shop?inbox=orders&schema=billing";
/// let options = PostgresOptions::from_url(url)?;
/// assert!(options.ddl().contains(r#"CREATE TABLE "billing".orders_message"#));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    connection: Connection,
    pub(crate) inbox: InboxName,
    pub(crate) schema: SchemaName,
    pub(crate) payload_type: PayloadType,
    pub(crate) partitions: Option<Partitions>,
    pub(crate) payload_limit: usize,
    pub(crate) drop_processed_payloads: bool,
    pub(crate) notifications: bool,
    pub(crate) prepared_statements: bool,
    pub(crate) max_connections: u32,
    pub(crate) operation_timeout: Duration,
    pub(crate) acquire_timeout: Duration,
}

/// Where the server is, and who connects. Unless set, the driver's defaults.
#[derive(Clone)]
struct Connection(Option<PgConnectOptions>);

/// Without the user's name and password.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.0.as_ref().map(|connection| {
            let (host, port) = (connection.get_host(), connection.get_port());
            (host, port, connection.get_database())
        });
        place.fmt(f)
    }
}

impl Default for PostgresOptions {
    /// An inbox named `inbox` in the schema `public`.
    fn default() -> Self {
        Self {
            connection: Connection(None),
            inbox: InboxName::default(),
            schema: SchemaName::default(),
            payload_type: PayloadType::default(),
            partitions: None,
            payload_limit: DEFAULT_PAYLOAD_LIMIT,
            drop_processed_payloads: false,
            notifications: true,
            prepared_statements: true,
            max_connections: 10,
            operation_timeout: Duration::from_secs(30),
            acquire_timeout: Duration::from_secs(5),
        }
    }
}

impl PostgresOptions {
    /// As [`Default`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `postgres://user:password@host:port/database` (or `postgresql://`). The settings after its
    /// `?` are listed in the [crate's documentation](crate#url).
    ///
    /// # Errors
    /// `Invalid` for another scheme, an unknown key or a value that does not fit. No error repeats
    /// the URL.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        if !scheme.is_some_and(|scheme| SCHEMES.contains(&scheme)) {
            return Err(invalid("the URL must start with postgres://"));
        }
        let unreadable = || invalid("the URL cannot be read; is a character to be written as %XX?");
        let mut parsed = Url::parse(url).map_err(|_| unreadable())?;
        let pairs: Vec<(String, String)> = parsed.query_pairs().into_owned().collect();
        let mut options = Self::new();
        parsed.set_query(None);
        for (key, value) in pairs {
            if DRIVER_KEYS.contains(&key.as_str()) {
                parsed.query_pairs_mut().append_pair(&key, &value);
            } else {
                options = options.with_setting(&key, &value)?;
            }
        }
        let connection = PgConnectOptions::from_str(parsed.as_str()).map_err(|_| unreadable())?;
        Ok(options.connect_with(connection))
    }

    fn with_setting(self, key: &str, value: &str) -> Result<Self> {
        let named = |invalid: inbox_api::Invalid| invalid.in_operation(OPERATION);
        let flag = |key: &str| match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(invalid(format!("{key} must be true or false"))),
        };
        let millis = |key: &str| {
            let read = value.parse().map(Duration::from_millis);
            read.map_err(|_| invalid(format!("{key} must be a number of milliseconds")))
        };
        Ok(match key {
            "inbox" => self.inbox_name(InboxName::new(value).map_err(named)?),
            "schema" => self.schema(SchemaName::new(value).map_err(named)?),
            "payload_type" => self.payload_type(match value {
                "bytea" => PayloadType::Bytea,
                "json" => PayloadType::Json,
                "jsonb" => PayloadType::Jsonb,
                _ => return Err(invalid("payload_type must be bytea, json or jsonb")),
            }),
            "partition_hours" => {
                let hours: u64 = value
                    .parse()
                    .ok()
                    .filter(|hours| *hours > 0)
                    .ok_or_else(|| invalid("partition_hours must be a positive number of hours"))?;
                let period = Duration::from_secs(hours.saturating_mul(3600));
                self.partitions(Some(Partitions::every(period)))
            }
            "payload_limit" => self.payload_limit(
                value
                    .parse()
                    .map_err(|_| invalid("payload_limit must be a number of bytes"))?,
            ),
            "drop_processed_payloads" => self.drop_processed_payloads(flag(key)?),
            "notifications" => self.notifications(flag(key)?),
            "prepared_statements" => self.prepared_statements(flag(key)?),
            "max_connections" => self.max_connections(
                value
                    .parse()
                    .ok()
                    .filter(|n| *n > 0)
                    .ok_or_else(|| invalid("max_connections must be a positive number"))?,
            ),
            "operation_timeout_ms" => self.operation_timeout(millis(key)?),
            "acquire_timeout_ms" => self.acquire_timeout(millis(key)?),
            _ => {
                return Err(invalid(format!(
                    "unknown setting {:?} in the URL; known are {KEYS}, and the driver's own",
                    error_text(key)
                )));
            }
        })
    }

    /// Where the server is, and who connects: unless set, what the environment says
    /// (`PGHOST`, `PGUSER`, …) and the driver's defaults. A pool that is handed in keeps its own.
    #[must_use]
    pub fn connect_with(mut self, connection: PgConnectOptions) -> Self {
        self.connection = Connection(Some(connection));
        self
    }

    pub(crate) fn connection(&self) -> PgConnectOptions {
        self.connection.0.clone().unwrap_or_default()
    }

    /// The inbox's name, the prefix of its tables and functions.
    #[must_use]
    pub fn inbox_name(mut self, name: InboxName) -> Self {
        self.inbox = name;
        self
    }

    /// The schema of its tables and functions: `public` unless set.
    #[must_use]
    pub fn schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    /// The type of the payload column: `bytea` unless set. Every process on one inbox has to say
    /// the same; set-up and the first use check it.
    #[must_use]
    pub fn payload_type(mut self, payload_type: PayloadType) -> Self {
        self.payload_type = payload_type;
        self
    }

    /// Whether messages are kept in partitions: `None` unless set. Whether there are partitions is
    /// decided at set-up, and every process on one inbox has to say the same; set-up and the first
    /// use check it. Their period and patience are those of the process that purges.
    #[must_use]
    pub fn partitions(mut self, partitions: Option<Partitions>) -> Self {
        self.partitions = partitions;
        self
    }

    /// The largest payload and the largest result, in bytes. At most 256 MiB, since PostgreSQL
    /// takes no message over 1 GB.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = bytes.min(256 * 1024 * 1024);
        self
    }

    /// Whether payloads are deleted as soon as their message is processed. The keys stay and go
    /// on refusing duplicates. Each costs a second version of its row.
    #[must_use]
    pub fn drop_processed_payloads(mut self, drop: bool) -> Self {
        self.drop_processed_payloads = drop;
        self
    }

    /// Whether operations that make work available notify other processes: on unless set. Turn
    /// it off behind a pooler that does not pass `LISTEN` on, or where many small transactions a
    /// second make PostgreSQL's one queue of notifications the bottleneck; workers then poll.
    #[must_use]
    pub fn notifications(mut self, notifications: bool) -> Self {
        self.notifications = notifications;
        self
    }

    /// Whether statements are prepared once per connection: on unless set. Turn it off behind a
    /// pooler in transaction mode that does not keep track of prepared statements (PgBouncer
    /// before 1.21, or with `max_prepared_statements = 0`). Each operation then is a transaction
    /// of four round trips instead of one.
    #[must_use]
    pub fn prepared_statements(mut self, prepared: bool) -> Self {
        self.prepared_statements = prepared;
        self
    }

    /// The most connections that the store opens for its operations and transactions: 10 unless set. A
    /// subscription takes one more. So do renewals of leases, when transactions have all of them: those would come too late
    /// otherwise. A pool that is handed in keeps its own limit.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections.max(1);
        self
    }

    /// The longest that one operation may take, from its call to its answer, waiting for a
    /// connection included: 30 seconds unless set, from a millisecond to a day. Past it the connection is
    /// closed, the operation fails as `Unavailable` with effect unknown (effect none if nothing had
    /// been sent), and the next call uses another connection. What works in several transactions,
    /// such as a purge, may take so long for each of them.
    ///
    /// The server learns of it only when it looks at the connection: the
    /// [crate's documentation](crate#time-limits) says how to make it look.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = time_limit(timeout);
        self
    }

    /// How much of its time an operation waits for a connection before it fails as `Unavailable`
    /// with effect none, so that an outage is known sooner than by
    /// [`operation_timeout`](Self::operation_timeout): 5 seconds unless set, from a millisecond to a day. A pool that is handed in
    /// keeps its own.
    #[must_use]
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = time_limit(timeout);
        self
    }

    pub(crate) fn names(&self) -> Names {
        Names {
            schema: self.schema.clone(),
            inbox: self.inbox.clone(),
            payload_type: self.payload_type,
            in_partitions: self.partitions.is_some(),
        }
    }

    /// Before any I/O: whether this store takes the message.
    pub(crate) fn check_message(&self, message: &Message) -> std::result::Result<(), Invalid> {
        message.check_payload(self.payload_limit)?;
        self.payload_type.check(message.payload())
    }

    pub(crate) fn check_replacement(&self, payload: &Bytes) -> std::result::Result<(), Invalid> {
        check_size("payload", payload.len(), self.payload_limit)?;
        self.payload_type.check(payload)
    }

    pub(crate) fn check_result(&self, result: Option<&Bytes>) -> std::result::Result<(), Invalid> {
        check_size("result", result.map_or(0, Bytes::len), self.payload_limit)
    }

    /// The statements that set up an empty inbox with these options: what
    /// [`Schema::ddl`](inbox_api::Schema::ddl) gives, without a connection.
    #[must_use]
    pub fn ddl(&self) -> String {
        ddl::ddl(&self.names())
    }

    /// The query that says whether a complete inbox with these options is there: what
    /// [`Schema::exists_query`](inbox_api::Schema::exists_query) gives, without a connection.
    #[must_use]
    pub fn exists_query(&self) -> String {
        shape::exists_query(&self.names())
    }
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, text).in_operation(OPERATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_give_connections_and_settings() {
        let options = PostgresOptions::from_url(
            "postgres://app:p%40ss@db.example:5433/shop?inbox=orders&schema=Billing&payload_type=json\
             &partition_hours=24&payload_limit=1024&drop_processed_payloads=true&notifications=false\
             &prepared_statements=false&max_connections=3&acquire_timeout_ms=250\
             &operation_timeout_ms=750&sslmode=require&application_name=orders",
        )
        .unwrap();
        let connection = options.connection();
        assert_eq!(connection.get_host(), "db.example");
        assert_eq!(connection.get_port(), 5433);
        assert_eq!(connection.get_username(), "app");
        assert_eq!(connection.get_database(), Some("shop"));
        assert_eq!(connection.get_application_name(), Some("orders"));
        assert_eq!(options.inbox.as_str(), "orders");
        assert_eq!(options.schema.as_str(), "Billing");
        assert_eq!(options.payload_type, PayloadType::Json);
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(options.partitions, Some(Partitions::every(day)));
        assert_eq!(options.payload_limit, 1024);
        assert!(options.drop_processed_payloads);
        assert!(!options.notifications);
        assert!(!options.prepared_statements);
        assert_eq!(options.max_connections, 3);
        assert_eq!(options.acquire_timeout, Duration::from_millis(250));
        assert_eq!(options.operation_timeout, Duration::from_millis(750));
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason_and_without_secrets() {
        for (url, reason) in [
            ("mysql://app:secret@x/y", "postgres://"),
            ("postgres://app:secret@x:port/y", "cannot be read"),
            (
                "postgres://app:secret@x/y?inbx=a",
                "known are inbox, schema",
            ),
            ("postgres://app:secret@x/y?inbox=A", "inbox name"),
            ("postgres://app:secret@x/y?schema=a.b", "schema name"),
            (
                "postgres://app:secret@x/y?payload_type=text",
                "bytea, json or jsonb",
            ),
            (
                "postgres://app:secret@x/y?partition_hours=0",
                "positive number of hours",
            ),
            ("postgres://app:secret@x/y?payload_limit=x", "bytes"),
            ("postgres://app:secret@x/y?notifications=1", "true or false"),
            ("postgres://app:secret@x/y?max_connections=0", "positive"),
            (
                "postgres://app:secret@x/y?acquire_timeout_ms=-1",
                "acquire_timeout_ms must be a number of milliseconds",
            ),
            (
                "postgres://app:secret@x/y?operation_timeout_ms=soon",
                "operation_timeout_ms must be a number of milliseconds",
            ),
            (
                "postgres://app:secret@x/y?sslmode=perhaps",
                "cannot be read",
            ),
        ] {
            let error = PostgresOptions::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.context().contains(reason), "{url}: {error}");
            assert!(!format!("{error:?}").contains("secret"), "{url}");
        }
    }
}
