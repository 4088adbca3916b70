//! What a source is told: where the service is, and what it consumes.

use std::{env, fmt, time::Duration};

use aws_sdk_sqs::{
    Client,
    config::{BehaviorVersion, Config, Credentials, Region, StalledStreamProtectionConfig},
};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use inbox_api::{Result, hide_password};
pub(crate) use inbox_source::settings::{invalid, read, unknown};
use percent_encoding::percent_decode_str;
use url::Url;

/// The URL schemes of this source. The second is without TLS, for emulators.
pub const SCHEMES: &[&str] = &["sqs", "sqs+http"];

const KEYS: &str = "region, visibility_ms, wait_s, redrive, dead_letters";
/// A third of it is how often what waits is extended.
const VISIBILITY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(3)..=Duration::from_secs(12 * 60 * 60);
/// What the service takes.
const MAX_WAIT: u16 = 20;
const MAX_NAME: usize = 80;

/// Where the service is, how to reach it, and whose queues are meant. `Debug` shows no credentials.
#[derive(Clone)]
pub struct Connection {
    pub(crate) client: Client,
    /// What the URLs of all queues begin with.
    base: String,
}

impl Connection {
    /// A client of one's own, with its region, credentials and TLS. `queues` is what the URLs of all queues begin with, such
    /// as `https://sqs.eu-west-1.amazonaws.com/123456789012`.
    ///
    /// The client's time limits have to be longer than the source waits for messages.
    #[must_use]
    pub fn new(client: Client, queues: impl Into<String>) -> Self {
        let base = queues.into();
        Self {
            client,
            base: base.trim_end_matches('/').to_owned(),
        }
    }

    /// Reads `sqs://sqs.eu-west-1.amazonaws.com/123456789012`: the host, and the account that has the queues.
    /// `sqs+http://localhost:9324/000000000000` is without TLS. One parameter, `region`, names the region where the host
    /// does not.
    ///
    /// Credentials are a key and its secret in the place of user and password, percent-encoded, or else those of the
    /// environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if it is set, `AWS_SESSION_TOKEN`. The region is that of
    /// the parameter, the host, or `AWS_REGION`.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host or account, another parameter, or where there are no credentials or
    /// no region.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        if let Some((key, _)) = url.query_pairs().find(|(key, _)| key != "region") {
            return Err(unknown(&key, "region"));
        }
        Self::of(&url, url.path())
    }

    /// `account` is the path before the queue.
    pub(crate) fn of(url: &Url, account: &str) -> Result<Self> {
        let account = account.trim_matches('/');
        if account.is_empty() {
            return Err(invalid(
                "the URL must name the account: sqs://host/account/…",
            ));
        }
        let host = url.host_str().unwrap_or_default();
        let scheme = if url.scheme() == "sqs" {
            "https"
        } else {
            "http"
        };
        let endpoint = match url.port() {
            Some(port) => format!("{scheme}://{host}:{port}"),
            None => format!("{scheme}://{host}"),
        };
        let named = url.query_pairs().find(|(key, _)| key == "region");
        let region = named
            .map(|(_, region)| region.into_owned())
            .or_else(|| of_host(host).map(String::from))
            .or_else(|| variable("AWS_REGION"));
        let region = region.ok_or_else(|| invalid("the URL needs region=…"))?;
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let config = Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .http_client(http)
            .region(Region::new(region))
            .endpoint_url(&endpoint)
            .credentials_provider(credentials(url)?)
            // A request that waits for messages is silent.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .build();
        let client = Client::from_conf(config);
        Ok(Self::new(client, format!("{endpoint}/{account}")))
    }

    /// The client, for what is not done here, such as making queues.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The URL of a queue.
    #[must_use]
    pub fn queue_url(&self, queue: &str) -> String {
        format!("{}/{queue}", self.base)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("queues", &self.base)
            .finish_non_exhaustive()
    }
}

/// The region in `sqs.eu-west-1.amazonaws.com`, and in its dual-stack and China forms.
fn of_host(host: &str) -> Option<&str> {
    let rest = host.strip_prefix("sqs.")?;
    let (region, domain) = rest.split_once('.')?;
    let is_aws = domain.starts_with("amazonaws.com") || domain.starts_with("api.aws");
    is_aws.then_some(region)
}

fn credentials(url: &Url) -> Result<Credentials> {
    let (key, secret, token) = match (url.username(), url.password()) {
        ("", _) => (
            variable("AWS_ACCESS_KEY_ID"),
            variable("AWS_SECRET_ACCESS_KEY"),
            variable("AWS_SESSION_TOKEN"),
        ),
        (key, secret) => (Some(decode(key)?), secret.map(decode).transpose()?, None),
    };
    let (Some(key), Some(secret)) = (key, secret) else {
        return Err(invalid(
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ));
    };
    Ok(Credentials::new(key, secret, token, None, "inbox"))
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn decode(text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| invalid("key and secret must be UTF-8"))?;
    Ok(text.into_owned())
}

/// What becomes of a delivery that is no message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rejections {
    /// It is deleted.
    #[default]
    Delete,
    /// It is given back at once, again and again, until the queue's redrive policy moves it to its dead letters. A queue
    /// without such a policy would deliver it for ever. On a FIFO queue the later messages of its group wait until then.
    Redrive,
    /// It is sent to this queue of the same account, standard or FIFO, and deleted when that is confirmed.
    DeadLetters(String),
}

/// The settings of an [`SqsSource`](crate::SqsSource).
#[derive(Clone, Debug)]
pub struct SqsOptions {
    pub(crate) connection: Connection,
    pub(crate) queue: String,
    pub(crate) visibility: Duration,
    pub(crate) wait: u16,
    pub(crate) rejections: Rejections,
}

impl SqsOptions {
    /// The queue of that name.
    ///
    /// # Errors
    /// `Invalid` for what is no name of a queue.
    pub fn new(connection: Connection, queue: impl Into<String>) -> Result<Self> {
        Ok(Self {
            connection,
            queue: check_name(queue.into())?,
            visibility: Duration::from_secs(60),
            wait: 5,
            rejections: Rejections::Delete,
        })
    }

    /// Reads `sqs://sqs.eu-west-1.amazonaws.com/123456789012/orders`, which is the queue's URL with another scheme; the
    /// parameters are in a table of the [crate](crate#settings)'s documentation.
    ///
    /// # Errors
    /// As [`Connection::from_url`]; `Invalid` also for no queue, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let path = url.path().trim_end_matches('/');
        let (account, queue) = path.rsplit_once('/').unwrap_or_default();
        let mut options = Self::new(Connection::of(&url, account)?, queue)?;
        for (key, value) in url.query_pairs() {
            options = match key.as_ref() {
                "region" => options,
                "visibility_ms" => {
                    options.visibility(Duration::from_millis(read(&key, &value)?))?
                }
                "wait_s" => options.wait(read(&key, &value)?)?,
                "redrive" => match read(&key, &value)? {
                    true => options.rejections(Rejections::Redrive)?,
                    false => options,
                },
                "dead_letters" => options.rejections(Rejections::DeadLetters(value.into()))?,
                _ => return Err(unknown(&key, KEYS)),
            };
        }
        Ok(options)
    }

    /// How long a message stays invisible to others. It is extended while the source has the message, so this is how long a
    /// killed process keeps what it had. In whole seconds. Unless told: 60 seconds.
    ///
    /// # Errors
    /// `Invalid` for less than three seconds or more than 12 hours.
    pub fn visibility(mut self, time: Duration) -> Result<Self> {
        if !VISIBILITY.contains(&time) {
            return Err(invalid("visibility is between 3 seconds and 12 hours"));
        }
        self.visibility = time;
        Ok(self)
    }

    /// How many seconds a request waits for messages. Fewer requests are cheaper; but a shutdown waits for the last one, for eight
    /// seconds at most, and what a request that was given up had been sent is left to [`visibility`](Self::visibility). Unless
    /// told: 5.
    ///
    /// # Errors
    /// `Invalid` for more than 20.
    pub fn wait(mut self, seconds: u16) -> Result<Self> {
        if seconds > MAX_WAIT {
            return Err(invalid("a request waits for 20 seconds at most"));
        }
        self.wait = seconds;
        Ok(self)
    }

    /// What becomes of a delivery that is no message. Unless told: it is deleted.
    ///
    /// # Errors
    /// `Invalid` for dead letters in the queue itself, or in what is no name of a queue.
    pub fn rejections(mut self, rejections: Rejections) -> Result<Self> {
        if let Rejections::DeadLetters(queue) = &rejections {
            check_name(queue.clone())?;
            if *queue == self.queue {
                return Err(invalid("dead letters need a queue of their own"));
            }
        }
        self.rejections = rejections;
        Ok(self)
    }

    pub(crate) fn url(&self) -> String {
        self.connection.queue_url(&self.queue)
    }
}

pub(crate) fn parse(url: &str) -> Result<Url> {
    let bad = || invalid("the URL must be sqs://host/account/queue");
    let url = Url::parse(url).map_err(|_| bad())?;
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    if !SCHEMES.contains(&url.scheme()) || !has_host || url.fragment().is_some() {
        return Err(bad());
    }
    Ok(url)
}

pub(crate) fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix(".fifo").unwrap_or(name);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !stem.is_empty() && name.len() <= MAX_NAME && stem.chars().all(fits)
}

fn check_name(name: String) -> Result<String> {
    match is_name(&name) {
        true => Ok(name),
        false => Err(invalid("not a name of a queue")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_it_all_and_hides_the_secret() {
        let url = "sqs://key:s%2Fcret@sqs.eu-west-1.amazonaws.com/123/orders.fifo\
                   ?visibility_ms=30000&wait_s=10&dead_letters=dead.fifo";
        let options = SqsOptions::from_url(url).unwrap();
        let queue = "https://sqs.eu-west-1.amazonaws.com/123/orders.fifo";
        assert_eq!(options.url(), queue);
        assert_eq!(options.visibility, Duration::from_secs(30));
        assert_eq!(options.wait, 10);
        let dead = Rejections::DeadLetters("dead.fifo".into());
        assert_eq!(options.rejections, dead);
        let region = options.connection.client.config().region();
        assert_eq!(region.map(Region::as_ref), Some("eu-west-1"));
        let shown = format!("{options:?}");
        assert!(!shown.contains("cret") && !shown.contains("key"), "{shown}");
    }

    #[test]
    fn a_secret_that_is_not_encoded_is_not_repeated() {
        let host = "sqs.eu-west-1.amazonaws.com/123/orders";
        for secret in ["1?hunter2", "1/hunter2", "hunter2#"] {
            let url = format!("sqs://key:{secret}@{host}");
            for error in [
                SqsOptions::from_url(&url).err(),
                Connection::from_url(&url).err(),
            ] {
                let told = format!("{error:?}");
                assert!(error.is_some() && !told.contains("hunter2"), "{told}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for rest in [
            "/orders",
            "/",
            "/1/a%20b",
            "/1/orders?colour=red",
            "/1/orders?visibility_ms=5",
            "/1/orders?wait_s=21",
            "/1/orders?redrive=perhaps",
            "/1/orders?dead_letters=orders",
        ] {
            let url = format!("sqs+http://k:s@localhost{rest}&region=eu-west-1");
            let url = match rest.contains('?') {
                true => url,
                false => url.replace("&region", "?region"),
            };
            assert!(SqsOptions::from_url(&url).is_err(), "{url}");
        }
        assert!(SqsOptions::from_url("https://k:s@localhost/1/orders?region=r").is_err());
    }

    #[test]
    fn the_region_is_in_the_host() {
        assert_eq!(of_host("sqs.eu-west-1.amazonaws.com"), Some("eu-west-1"));
        assert_eq!(
            of_host("sqs.cn-north-1.amazonaws.com.cn"),
            Some("cn-north-1")
        );
        assert_eq!(of_host("localhost"), None);
    }
}
