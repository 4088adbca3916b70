//! What a source is told: where the server is, and what it consumes.

use std::{fmt, time::Duration};

use inbox_api::{Result, hide_password};
pub(crate) use inbox_source::settings::{invalid, read, unknown};
use redis::{Client, ConnectionAddr, IntoConnectionInfo as _};
use url::Url;
use uuid::Uuid;

use crate::envelope::PAYLOAD;

/// The URL schemes of this source. The second is with TLS, by the feature `tls`.
pub const SCHEMES: &[&str] = &["redis+stream", "rediss+stream"];

const KEYS: &str =
    "stream, group, consumer, create, claim_after_ms, payload, dead_letters, delete, tls_ca_file";
/// What the names of consumers begin with that have none of their own.
pub(crate) const MADE_UP: &str = "inbox-";
const MIN_CLAIM_AFTER: Duration = Duration::from_secs(1);
const MAX_CLAIM_AFTER: Duration = Duration::from_secs(12 * 60 * 60);

/// Where the server is, and how to reach it. `Debug` shows no credentials.
#[derive(Clone)]
pub struct Connection {
    pub(crate) client: Client,
}

impl Connection {
    /// Reads `redis://user:password@host:6379/0`, or `rediss://…` for TLS; user and password are
    /// percent-encoded. One parameter, `tls_ca_file`, names a file with the certificates, as PEM, that are
    /// trusted in place of the system's.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, another parameter, a file that cannot be read, or TLS where it is
    /// not built in.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url, &["redis", "rediss"])?;
        if let Some((key, _)) = url.query_pairs().find(|(key, _)| key != "tls_ca_file") {
            return Err(unknown(&key, "tls_ca_file"));
        }
        Self::of(&url)
    }

    pub(crate) fn of(url: &Url) -> Result<Self> {
        let secure = url.scheme().starts_with("rediss");
        let mut address = url.clone();
        address.set_query(None);
        let (_, rest) = address.as_str().split_once("://").unwrap_or_default();
        let scheme = if secure { "rediss" } else { "redis" };
        let address = format!("{scheme}://{rest}");
        // The driver's error may repeat the address.
        let bad = |_| invalid("the URL must be redis+stream://user:password@host:6379/0?…");
        let info = address.as_str().into_connection_info().map_err(bad)?;
        let ca = url.query_pairs().find(|(key, _)| key == "tls_ca_file");
        let client = match (secure, ca) {
            (true, ca) => tls::open(info, ca.as_ref().map(|(_, file)| file.as_ref()))?,
            (false, Some(_)) => return Err(invalid("tls_ca_file needs the scheme rediss+stream")),
            (false, None) => Client::open(info).map_err(bad)?,
        };
        Ok(Self { client })
    }

    pub(crate) fn is_tls(&self) -> bool {
        let server = self.client.get_connection_info().addr();
        matches!(server, ConnectionAddr::TcpTls { .. })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.client.get_connection_info().addr();
        f.debug_struct("Connection")
            .field("server", &server.to_string())
            .finish_non_exhaustive()
    }
}

#[cfg(not(feature = "tls"))]
mod tls {
    use super::{Client, Result, invalid};

    pub(super) fn open(_: redis::ConnectionInfo, _: Option<&str>) -> Result<Client> {
        Err(invalid(
            "this build has no TLS (enable the Cargo feature `tls` of inbox-redis-streams)",
        ))
    }
}

#[cfg(feature = "tls")]
mod tls {
    use super::{Client, Result, invalid};

    pub(super) fn open(info: redis::ConnectionInfo, ca_file: Option<&str>) -> Result<Client> {
        let read = |file: &str| {
            std::fs::read(file).map_err(|error| invalid(format!("reading tls_ca_file: {error}")))
        };
        let root_cert = ca_file.map(read).transpose()?;
        // An application that has chosen its own keeps it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let opened = match root_cert {
            None => Client::open(info),
            root_cert => Client::build_with_tls(
                info,
                redis::TlsCertificates {
                    client_tls: None,
                    root_cert,
                },
            ),
        };
        opened.map_err(|_| invalid("the settings of TLS do not fit"))
    }
}

/// The settings of a [`RedisStreamsSource`](crate::RedisStreamsSource).
#[derive(Clone, Debug)]
pub struct RedisStreamsOptions {
    pub(crate) connection: Connection,
    pub(crate) stream: String,
    pub(crate) group: String,
    pub(crate) consumer: String,
    pub(crate) create: bool,
    pub(crate) claim_after: Duration,
    pub(crate) payload: String,
    pub(crate) dead_letters: Option<String>,
    pub(crate) delete: bool,
}

impl RedisStreamsOptions {
    /// The consumer group `group` of `stream`.
    ///
    /// # Errors
    /// `Invalid` for an empty name.
    pub fn new(
        connection: Connection,
        stream: impl Into<String>,
        group: impl Into<String>,
    ) -> Result<Self> {
        Ok(Self {
            connection,
            stream: named("stream", stream.into())?,
            group: named("group", group.into())?,
            consumer: format!("{MADE_UP}{}", Uuid::new_v4()),
            create: false,
            claim_after: Duration::from_secs(60),
            payload: PAYLOAD.into(),
            dead_letters: None,
            delete: false,
        })
    }

    /// Reads `redis+stream://user:password@host:6379/0?stream=orders&group=billing`; the parameters are in a table
    /// of the [crate](crate#settings)'s documentation.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, stream or group, an unknown parameter or a value that does not
    /// fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url, SCHEMES)?;
        let value = |name: &str| {
            let mut pairs = url.query_pairs().filter(|(key, _)| key == name);
            pairs.next().map(|(_, value)| value.into_owned())
        };
        let need = |name| value(name).ok_or_else(|| invalid(format!("the URL needs {name}=…")));
        let mut options = Self::new(Connection::of(&url)?, need("stream")?, need("group")?)?;
        for (key, value) in url.query_pairs() {
            options = match key.as_ref() {
                "stream" | "group" | "tls_ca_file" => options,
                "consumer" => options.consumer(value)?,
                "create" => options.create(read(&key, &value)?),
                "claim_after_ms" => {
                    options.claim_after(Duration::from_millis(read(&key, &value)?))?
                }
                "payload" => options.payload(value)?,
                "dead_letters" => options.dead_letters(value)?,
                "delete" => options.delete(read(&key, &value)?),
                _ => return Err(unknown(&key, KEYS)),
            };
        }
        Ok(options)
    }

    /// The consumer's name in the group, which no two sources may have at once. One that is started again under
    /// its name goes on with what it had, first and in order. Unless told: a new name each time, `inbox-` and a
    /// UUID, so that what a killed process had comes to others after [`claim_after`](Self::claim_after).
    ///
    /// # Errors
    /// `Invalid` for an empty name.
    pub fn consumer(mut self, name: impl Into<String>) -> Result<Self> {
        self.consumer = named("consumer", name.into())?;
        Ok(self)
    }

    /// Whether to create the group, from the beginning of the stream, and the stream, where they are not there, or
    /// no longer. Unless told: no.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How long an entry that another consumer has must have been idle before this one claims it. A source keeps
    /// what it has from being idle, so this is how long a killed process keeps its entries. The same for all
    /// consumers of a group. Unless told: 60 seconds.
    ///
    /// # Errors
    /// `Invalid` for less than a second or more than 12 hours.
    pub fn claim_after(mut self, idle: Duration) -> Result<Self> {
        if !(MIN_CLAIM_AFTER..=MAX_CLAIM_AFTER).contains(&idle) {
            return Err(invalid("claim_after is between a second and 12 hours"));
        }
        self.claim_after = idle;
        Ok(self)
    }

    /// The field that is the payload. Unless told: `payload`.
    ///
    /// # Errors
    /// `Invalid` for an empty name.
    pub fn payload(mut self, field: impl Into<String>) -> Result<Self> {
        self.payload = named("payload field", field.into())?;
        Ok(self)
    }

    /// Adds a rejected entry to the stream `stream` of the same database, in one step with its acknowledgement:
    /// one that the server does not take there is not acknowledged, and comes again.
    ///
    /// # Errors
    /// `Invalid` for an empty name, or that of the stream itself.
    pub fn dead_letters(mut self, stream: impl Into<String>) -> Result<Self> {
        let stream = named("stream for dead letters", stream.into())?;
        if stream == self.stream {
            return Err(invalid("dead letters need a stream of their own"));
        }
        self.dead_letters = Some(stream);
        Ok(self)
    }

    /// Whether to delete entries from the stream when they are acknowledged: where this is its only group. Unless told:
    /// no, and the stream has to be trimmed by others.
    #[must_use]
    pub fn delete(mut self, delete: bool) -> Self {
        self.delete = delete;
        self
    }
}

pub(crate) fn parse(url: &str, schemes: &[&str]) -> Result<Url> {
    let bad = || {
        let schemes: Vec<_> = schemes.iter().map(|one| format!("{one}://")).collect();
        let schemes = schemes.join(" or ");
        invalid(format!("the URL must be {schemes} and host:6379/…"))
    };
    let url = Url::parse(url).map_err(|_| bad())?;
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    if !schemes.contains(&url.scheme()) || !has_host || url.fragment().is_some() {
        return Err(bad());
    }
    Ok(url)
}

fn named(what: &str, name: String) -> Result<String> {
    if name.is_empty() {
        return Err(invalid(format!("the {what} needs a name")));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_it_all_and_hides_the_password() {
        let url = "redis+stream://ann:s%3Acret@db:6380/2?stream=s&group=g&create=true\
                   &claim_after_ms=2000&consumer=c&payload=body&dead_letters=dead&delete=true";
        let options = RedisStreamsOptions::from_url(url).unwrap();
        let info = options.connection.client.get_connection_info();
        assert_eq!(info.addr().to_string(), "db:6380");
        assert_eq!(info.redis_settings().db(), 2);
        assert_eq!(info.redis_settings().password(), Some("s:cret"));
        assert!(options.create && options.delete);
        assert_eq!(options.claim_after, Duration::from_secs(2));
        assert_eq!(
            (options.consumer.as_str(), options.payload.as_str()),
            ("c", "body")
        );
        assert!(!format!("{options:?}").contains("cret"));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for url in [
            "redis://h/?stream=s&group=g",
            "redis+stream://h/?stream=s",
            "redis+stream:///?stream=s&group=g",
            "redis+stream://h/x?stream=s&group=g",
            "redis+stream://h/?stream=s&group=g&colour=red",
            "redis+stream://h/?stream=s&group=g&claim_after_ms=5",
            "redis+stream://h/?stream=s&group=g&create=perhaps",
            "redis+stream://h/?stream=s&group=g&dead_letters=s",
            "redis+stream://h/?stream=s&group=g&tls_ca_file=x",
        ] {
            assert!(RedisStreamsOptions::from_url(url).is_err(), "{url}");
        }
    }
}
