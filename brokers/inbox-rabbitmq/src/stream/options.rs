//! What a source of a stream is told.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use inbox_api::{Result, hide_password};
use url::Url;

use super::frame::Begin;
use crate::options::{check_dead_letters, credentials, invalid, name, read, unknown, vhost};

/// The URL schemes of [`RabbitMqStreamSource`](crate::RabbitMqStreamSource). The second one is TLS, which needs
/// the Cargo feature `tls`.
pub const STREAM_SCHEMES: &[&str] = &[PLAIN, TLS];

const PLAIN: &str = "rabbitmq-stream";
const TLS: &str = "rabbitmq-stream+tls";
const KEYS: &str = "stream, consumer, start, single_active_consumer, create, max_age_s, max_length_bytes, \
                    dead_letters, load_balancer";

/// Where a server takes connections for streams, and how to reach it. `Debug` shows no credentials.
#[derive(Clone)]
pub struct StreamConnection {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) vhost: String,
    pub(crate) tls: bool,
    pub(crate) load_balancer: bool,
}

impl StreamConnection {
    /// Reads `rabbitmq-stream://user:password@host:5552/vhost`; user, password and virtual host are percent-encoded.
    /// Without user and password it is `guest`, without a path the virtual host `/`. The scheme
    /// `rabbitmq-stream+tls` is TLS, with port 5551.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, any parameter, or TLS in a build without the feature `tls`.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        if url.query().is_some() {
            return Err(invalid("the address takes no parameters here"));
        }
        Self::of(&url)
    }

    fn of(url: &Url) -> Result<Self> {
        let tls = url.scheme() == TLS;
        if tls && !cfg!(feature = "tls") {
            return Err(invalid(
                "rabbitmq-stream+tls:// needs a build with the feature `tls`",
            ));
        }
        let (user, password) = credentials(url)?;
        Ok(Self {
            host: url.host_str().unwrap_or_default().to_owned(),
            port: url.port().unwrap_or(if tls { 5551 } else { 5552 }),
            user,
            password,
            vhost: vhost(url)?,
            tls,
            load_balancer: false,
        })
    }

    /// Whether the address is that of a load balancer, behind which the hosts that servers name cannot be
    /// reached: the source then connects to it until it is led to a node that has the stream. Unless told: no,
    /// and where the address's node does not have the stream, the source connects to one that has it, by the
    /// host and port that the node names (`stream.advertised_host`, `stream.advertised_port`).
    #[must_use]
    pub fn load_balancer(mut self, load_balancer: bool) -> Self {
        self.load_balancer = load_balancer;
        self
    }
}

impl fmt::Debug for StreamConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamConnection")
            .field("server", &format!("{}:{}", self.host, self.port))
            .field("vhost", &self.vhost)
            .field("tls", &self.tls)
            .field("load_balancer", &self.load_balancer)
            .finish_non_exhaustive()
    }
}

/// Where a consumer begins of which the server keeps no offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamStart {
    /// At the oldest message that is there.
    #[default]
    First,
    /// At the newest ones: those that were written at once, last of all.
    Last,
    /// After the newest: what was sent before is never received.
    Next,
    /// At this offset, or at the first one after it that is there.
    Offset(u64),
    /// At what was written at this time, or a little before it: at the beginning of what was written at once with it.
    Time(SystemTime),
}

impl StreamStart {
    pub(crate) fn begin(self) -> Begin {
        match self {
            Self::First => Begin::First,
            Self::Last => Begin::Last,
            Self::Next => Begin::Next,
            Self::Offset(offset) => Begin::Offset(offset),
            Self::Time(time) => {
                let since = time.duration_since(SystemTime::UNIX_EPOCH);
                let since = since.unwrap_or_default().as_millis();
                Begin::Time(i64::try_from(since).unwrap_or(i64::MAX))
            }
        }
    }

    fn read(text: &str) -> Result<Self> {
        Ok(match (text, text.split_once(':')) {
            ("first", _) => Self::First,
            ("last", _) => Self::Last,
            ("next", _) => Self::Next,
            (_, Some(("offset", offset))) => Self::Offset(read("start", offset)?),
            (_, Some(("time", seconds))) => {
                let since = Duration::from_secs(read("start", seconds)?);
                let time = SystemTime::UNIX_EPOCH.checked_add(since);
                Self::Time(time.ok_or_else(|| invalid("start is too late a time"))?)
            }
            _ => {
                return Err(invalid(
                    "start must be first, last, next, offset:NUMBER or time:SECONDS, of seconds since 1970",
                ));
            }
        })
    }
}

/// The settings of a [`RabbitMqStreamSource`](crate::RabbitMqStreamSource).
///
/// ```
/// use inbox_rabbitmq::{RabbitMqStreamOptions, StreamConnection};
///
/// # fn main() -> inbox_api::Result<()> {
/// let server = StreamConnection::from_url("rabbitmq-stream://app:secret@mq.example:5552/shop")?;
/// let options = RabbitMqStreamOptions::new(server, "orders", "billing")?.create(true);
/// let same = RabbitMqStreamOptions::from_url(
///     "rabbitmq-stream://app:secret@mq.example:5552/shop?stream=orders&consumer=billing&create=true",
/// )?;
/// # let _ = (options, same);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RabbitMqStreamOptions {
    pub(crate) connection: StreamConnection,
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) start: StreamStart,
    pub(crate) single_active_consumer: bool,
    pub(crate) create: bool,
    max_age: Option<Duration>,
    max_length_bytes: Option<u64>,
    pub(crate) dead_letters: Option<String>,
}

impl RabbitMqStreamOptions {
    /// The stream of this name, read as `consumer`: under that name the server keeps how far it was read.
    ///
    /// # Errors
    /// `Invalid` for a name that RabbitMQ does not take.
    pub fn new(
        connection: StreamConnection,
        stream: impl Into<String>,
        consumer: impl Into<String>,
    ) -> Result<Self> {
        Ok(Self {
            connection,
            stream: name("stream", stream.into())?,
            consumer: name("consumer", consumer.into())?,
            start: StreamStart::default(),
            single_active_consumer: false,
            create: false,
            max_age: None,
            max_length_bytes: None,
            dead_letters: None,
        })
    }

    /// Reads `rabbitmq-stream://user:password@host:5552/vhost?stream=orders&consumer=billing&…`; the parameters
    /// are in a table of the [crate](crate#settings-of-a-stream)'s documentation.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, stream or consumer, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let find = |wanted: &str| {
            let mut pairs = url.query_pairs();
            let found = pairs.find(|(key, _)| key == wanted);
            found.map(|(_, value)| value)
        };
        let missing = || invalid("the URL needs stream=…&consumer=…");
        let stream = find("stream").ok_or_else(missing)?;
        let consumer = find("consumer").ok_or_else(missing)?;
        let mut options = Self::new(StreamConnection::of(&url)?, stream, consumer)?;
        for (key, value) in url.query_pairs() {
            options = match key.as_ref() {
                "stream" | "consumer" => options,
                "start" => options.start(StreamStart::read(&value)?),
                "single_active_consumer" => options.single_active_consumer(read(&key, &value)?),
                "create" => options.create(read(&key, &value)?),
                "max_age_s" => options.max_age(Duration::from_secs(read(&key, &value)?)),
                "max_length_bytes" => options.max_length_bytes(read(&key, &value)?),
                "dead_letters" => options.dead_letters(value)?,
                "load_balancer" => {
                    options.connection.load_balancer = read(&key, &value)?;
                    options
                }
                _ => return Err(unknown(&key, KEYS)),
            };
        }
        Ok(options)
    }

    /// Where to begin while the server keeps no offset for the consumer. Unless told: at the oldest message.
    #[must_use]
    pub fn start(mut self, start: StreamStart) -> Self {
        self.start = start;
        self
    }

    /// Whether one consumer of the name at a time gets the stream, and the next one when that is gone. RabbitMQ
    /// 3.11 or later; an earlier one is a permanent error. Unless told: no, and **each consumer reads the whole
    /// stream**, of which the inbox refuses the copies.
    #[must_use]
    pub fn single_active_consumer(mut self, single: bool) -> Self {
        self.single_active_consumer = single;
        self
    }

    /// Whether to declare the stream, and that of dead letters, if they are not there. Those that are stay as they are.
    /// Unless told: no, and they have to be there.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How long a stream that is declared keeps messages, in whole seconds, at least one: RabbitMQ deletes
    /// older ones, **received or not**, a segment of its files at a time. Unless told: for ever, if no policy
    /// says otherwise.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// How many bytes a stream that is declared keeps, before RabbitMQ deletes the oldest, **received or not**,
    /// a segment of its files (500 MB) at a time. Unless told: any number, if no policy says otherwise.
    #[must_use]
    pub fn max_length_bytes(mut self, bytes: u64) -> Self {
        self.max_length_bytes = Some(bytes);
        self
    }

    /// The stream of this name gets what the receiver rejects, byte for byte, and a delivery counts as finished when it
    /// is confirmed there. One that can never be written there, as it is larger than the server's `stream.frame_max`
    /// (1 MiB unless set), stops the source. Unless told: none, and a rejected delivery stops the source.
    ///
    /// # Errors
    /// `Invalid` for a name that RabbitMQ does not take, and for that of the stream itself, whose dead letters
    /// would come again.
    pub fn dead_letters(mut self, stream: impl Into<String>) -> Result<Self> {
        let stream = name("dead_letters", stream.into())?;
        check_dead_letters(&self.stream, &stream)?;
        self.dead_letters = Some(stream);
        Ok(self)
    }

    /// The arguments of a stream that is declared.
    pub(crate) fn arguments(&self) -> Vec<(&'static str, String)> {
        let age = self.max_age.map(|age| format!("{}s", age.as_secs().max(1)));
        let length = self.max_length_bytes.map(|bytes| bytes.to_string());
        let age = age.map(|age| ("max-age", age));
        let length = length.map(|length| ("max-length-bytes", length));
        age.into_iter().chain(length).collect()
    }
}

fn parse(url: &str) -> Result<Url> {
    let bad = || invalid("the URL must be rabbitmq-stream://host:5552/vhost?stream=…&consumer=…");
    let url = Url::parse(url).map_err(|_| bad())?;
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    if !STREAM_SCHEMES.contains(&url.scheme()) || !has_host || url.fragment().is_some() {
        return Err(bad());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_it_all_and_hides_the_password() {
        let url = "rabbitmq-stream://ann:s%3Acret@mq:5553/shop%2Feu?stream=orders&consumer=billing\
                   &start=offset:17&single_active_consumer=true&create=true&max_age_s=3600\
                   &max_length_bytes=1000&dead_letters=dead&load_balancer=true";
        let options = RabbitMqStreamOptions::from_url(url).unwrap();
        let to = &options.connection;
        assert_eq!((to.host.as_str(), to.port), ("mq", 5553));
        assert_eq!((to.user.as_str(), to.password.as_str()), ("ann", "s:cret"));
        assert_eq!(to.vhost, "shop/eu");
        assert!(to.load_balancer && !to.tls);
        assert_eq!(
            (options.stream.as_str(), options.consumer.as_str()),
            ("orders", "billing")
        );
        assert_eq!(options.start, StreamStart::Offset(17));
        assert!(options.single_active_consumer && options.create);
        assert_eq!(options.dead_letters.as_deref(), Some("dead"));
        let arguments = options.arguments();
        let expected = [("max-age", "3600s"), ("max-length-bytes", "1000")];
        assert_eq!(
            arguments,
            expected.map(|(name, value)| (name, value.to_owned()))
        );
        assert!(!format!("{options:?}").contains("cret"));
    }

    #[test]
    fn what_is_not_said() {
        let url = "rabbitmq-stream://mq?stream=orders&consumer=billing";
        let options = RabbitMqStreamOptions::from_url(url).unwrap();
        let to = &options.connection;
        assert_eq!(
            (to.vhost.as_str(), to.port, to.user.as_str()),
            ("/", 5552, "guest")
        );
        assert_eq!(options.start, StreamStart::First);
        assert!(!options.create && !options.single_active_consumer && !to.load_balancer);
        assert!(options.arguments().is_empty());
        let tls = StreamConnection::from_url("rabbitmq-stream+tls://mq");
        match cfg!(feature = "tls") {
            true => assert!(tls.is_ok_and(|to| to.tls && to.port == 5551)),
            false => assert!(tls.is_err()),
        }
    }

    #[test]
    fn a_start_is_read() {
        for (text, start) in [
            ("first", StreamStart::First),
            ("last", StreamStart::Last),
            ("next", StreamStart::Next),
            ("offset:0", StreamStart::Offset(0)),
            (
                "time:1000",
                StreamStart::Time(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)),
            ),
        ] {
            assert_eq!(StreamStart::read(text).unwrap(), start);
        }
        assert_eq!(
            StreamStart::read("time:2").unwrap().begin(),
            Begin::Time(2000)
        );
        for text in [
            "",
            "first:",
            "offset",
            "offset:-1",
            "time:now",
            "time:99999999999999999999",
        ] {
            assert!(StreamStart::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = "x".repeat(256);
        for url in [
            "amqp://h/?stream=s&consumer=c",
            "rabbitmq-stream://h/?stream=s",
            "rabbitmq-stream://h/?consumer=c",
            "rabbitmq-stream:///v?stream=s&consumer=c",
            "rabbitmq-stream://h/?stream=s&consumer=",
            &format!("rabbitmq-stream://h/?stream=s&consumer={long}"),
            &format!("rabbitmq-stream://h/{long}?stream=s&consumer=c"),
            "rabbitmq-stream://h/?stream=s&consumer=c&colour=red",
            "rabbitmq-stream://h/?stream=s&consumer=c&start=yesterday",
            "rabbitmq-stream://h/?stream=s&consumer=c&create=perhaps",
            "rabbitmq-stream://h/?stream=s&consumer=c&dead_letters=s",
        ] {
            assert!(RabbitMqStreamOptions::from_url(url).is_err(), "{url}");
        }
        assert!(StreamConnection::from_url("rabbitmq-stream://h/?stream=s").is_err());
    }
}
