//! What a source is told: where the server is, and what it consumes.

use std::{fmt, time::Duration};

use async_nats::ConnectOptions;
use inbox_api::{Result, hide_password};
pub(crate) use inbox_source::settings::{invalid, read, unknown};
use percent_encoding::percent_decode_str;
use url::Url;

/// The URL schemes of this source. The second is TLS.
pub const SCHEMES: &[&str] = &["nats", TLS];

const TLS: &str = "tls";

const KEYS: &str =
    "stream, consumer, create, filter, ack_wait_ms, max_deliver, confirm, dead_letters";
const MAX_NAME: usize = 255;
/// A hundred years: the server counts in nanoseconds, in 64 bits.
const LONGEST_ACK_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// A third of it is how often what waits is extended.
const MIN_ACK_WAIT: Duration = Duration::from_secs(1);

/// Where the server is, and how to reach it. `Debug` shows no credentials.
#[derive(Clone)]
pub struct Connection {
    tls: bool,
    host: String,
    port: u16,
    credentials: Option<(String, String)>,
}

impl Connection {
    /// Reads `nats://user:password@host:4222`; user and password are percent-encoded, and may be left out. The scheme `tls` is
    /// TLS; with `nats` it is used where the server asks for it.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host or any parameter.
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

    pub(crate) fn of(url: &Url) -> Result<Self> {
        let credentials = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some((decode(user)?, decode(password.unwrap_or_default())?)),
        };
        Ok(Self {
            tls: url.scheme() == TLS,
            host: url.host_str().unwrap_or_default().to_owned(),
            port: url.port().unwrap_or(4222),
            credentials,
        })
    }

    /// The address without credentials.
    pub(crate) fn server(&self) -> String {
        let scheme = if self.tls { TLS } else { "nats" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        let options = ConnectOptions::new()
            .name("inbox")
            .connection_timeout(Duration::from_secs(5))
            .request_timeout(Some(Duration::from_secs(5)))
            .ping_interval(Duration::from_secs(5))
            // Also of servers that the server tells of.
            .require_tls(self.tls);
        match &self.credentials {
            Some((user, password)) => options.user_and_password(user.clone(), password.clone()),
            None => options,
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}

/// The settings of a [`NatsSource`](crate::NatsSource).
#[derive(Clone, Debug)]
pub struct NatsOptions {
    pub(crate) connection: Connection,
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) create: bool,
    pub(crate) filter: Option<String>,
    pub(crate) ack_wait: Duration,
    pub(crate) max_deliver: Option<u32>,
    pub(crate) confirm: bool,
    pub(crate) dead_letters: Option<String>,
}

impl NatsOptions {
    /// The durable `consumer` of `stream`.
    ///
    /// # Errors
    /// `Invalid` for a name that NATS does not take.
    pub fn new(
        connection: Connection,
        stream: impl Into<String>,
        consumer: impl Into<String>,
    ) -> Result<Self> {
        let (stream, consumer) = (stream.into(), consumer.into());
        check_name("stream", &stream)?;
        check_name("consumer", &consumer)?;
        Ok(Self {
            connection,
            stream,
            consumer,
            create: false,
            filter: None,
            ack_wait: Duration::from_secs(30),
            max_deliver: None,
            confirm: false,
            dead_letters: None,
        })
    }

    /// Reads `nats://user:password@host:4222/?stream=ORDERS&consumer=inbox&create=true`; the parameters are in a table
    /// of the [crate](crate#settings)'s documentation.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, stream or consumer, an unknown parameter or a value that does
    /// not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let value = |name: &str| {
            let mut pairs = url.query_pairs().filter(|(key, _)| key == name);
            pairs.next().map(|(_, value)| value.into_owned())
        };
        let need = |name| value(name).ok_or_else(|| invalid(format!("the URL needs {name}=…")));
        let mut options = Self::new(Connection::of(&url)?, need("stream")?, need("consumer")?)?;
        for (key, value) in url.query_pairs() {
            options = match key.as_ref() {
                "stream" | "consumer" => options,
                "create" => options.create(read(&key, &value)?),
                "filter" => options.filter(value),
                "ack_wait_ms" => options.ack_wait(Duration::from_millis(read(&key, &value)?))?,
                "max_deliver" => options.max_deliver(read(&key, &value)?)?,
                "confirm" => options.confirm(read(&key, &value)?),
                "dead_letters" => options.dead_letters(value)?,
                _ => return Err(unknown(&key, KEYS)),
            };
        }
        Ok(options)
    }

    /// Whether to create the consumer where it is not there, or no longer. Unless told: no.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Which subjects a consumer that is created gets. Unless told: all of the stream.
    #[must_use]
    pub fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filter = Some(subject.into());
        self
    }

    /// How long the server waits for an acknowledgement of a consumer that is created. Unless told: 30 seconds.
    ///
    /// # Errors
    /// `Invalid` for less than a second.
    pub fn ack_wait(mut self, time: Duration) -> Result<Self> {
        if time < MIN_ACK_WAIT {
            return Err(invalid("ack_wait is at least a second"));
        }
        self.ack_wait = time.min(LONGEST_ACK_WAIT);
        Ok(self)
    }

    /// How often a message is delivered at most. Beyond it the server gives the message up, acknowledged or
    /// not. Each dead letter that could not be sent, lost connection and restart is followed by one more delivery: with
    /// a small number, messages are lost while the stream for dead letters is away. Unless told: as often as needed,
    /// and a consumer with a limit is refused.
    ///
    /// # Errors
    /// `Invalid` for 0.
    pub fn max_deliver(mut self, times: u32) -> Result<Self> {
        if times == 0 {
            return Err(invalid("max_deliver is at least 1"));
        }
        self.max_deliver = Some(times);
        Ok(self)
    }

    /// Whether each acknowledgement waits until the server has confirmed it. Unless told: no.
    #[must_use]
    pub fn confirm(mut self, confirm: bool) -> Self {
        self.confirm = confirm;
        self
    }

    /// Sends a rejected message to `subject`, which a stream has to take, before it is terminated. That stream has to
    /// take messages as large as the consumer's: one that is too large for it stops the source.
    ///
    /// # Errors
    /// `Invalid` for a subject with wildcards or white space.
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Result<Self> {
        let subject = subject.into();
        if subject.is_empty() || subject.contains(|c: char| c.is_whitespace() || "*>".contains(c)) {
            return Err(invalid("dead_letters is one subject, without wildcards"));
        }
        self.dead_letters = Some(subject);
        Ok(self)
    }
}

pub(crate) fn parse(url: &str) -> Result<Url> {
    let bad = || invalid("the URL must be nats:// or tls:// and host:4222/…");
    let url = Url::parse(url).map_err(|_| bad())?;
    let fits = SCHEMES.contains(&url.scheme()) && url.host_str().is_some();
    if !fits || !matches!(url.path(), "" | "/") || url.fragment().is_some() {
        return Err(bad());
    }
    Ok(url)
}

fn decode(text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8();
    Ok(text
        .map_err(|_| invalid("user and password must be UTF-8"))?
        .into_owned())
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name.contains(bad) {
        return Err(invalid(format!("not a name of a {what}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_it_all_and_hides_the_password() {
        let url = "nats://ann:s%3Acret@db:4333/?stream=S&consumer=c&create=true&ack_wait_ms=2000";
        let options = NatsOptions::from_url(url).unwrap();
        assert_eq!(options.connection.server(), "nats://db:4333");
        let credentials = options.connection.credentials.as_ref();
        assert_eq!(credentials, Some(&("ann".into(), "s:cret".into())));
        assert!(options.create);
        assert_eq!(options.ack_wait, Duration::from_secs(2));
        assert!(!format!("{options:?}").contains("cret"));
        let encrypted = NatsOptions::from_url(&url.replacen("nats", "tls", 1)).unwrap();
        assert_eq!(encrypted.connection.server(), "tls://db:4333");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for url in [
            "http://h/?stream=S&consumer=c",
            "nats://h/?stream=S",
            "nats://h/?stream=a.b&consumer=c",
            "nats://h/?stream=S&consumer=c&colour=red",
            "nats://h/?stream=S&consumer=c&ack_wait_ms=5",
            "nats://h/?stream=S&consumer=c&create=perhaps",
            "nats://h/?stream=S&consumer=c&dead_letters=a.*",
        ] {
            assert!(NatsOptions::from_url(url).is_err(), "{url}");
        }
    }
}
