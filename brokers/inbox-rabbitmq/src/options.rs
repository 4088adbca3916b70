//! What a source is told: where the server is, and which queue it consumes.

use std::fmt;

use inbox_api::{Result, hide_password};
pub(crate) use inbox_source::settings::{invalid, read, unknown};
use lapin::{
    types::{AMQPValue, FieldTable, ShortString},
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use percent_encoding::percent_decode_str;
use url::Url;

/// The URL schemes of this source. `amqps` needs the Cargo feature `tls`.
pub const SCHEMES: &[&str] = &["amqp", "amqps"];

const KEYS: &str = "queue, create, kind, single_active_consumer, dead_letters, rejections";
const MAX_NAME: usize = 255;
/// In seconds. A server that says nothing for twice as long is given up; it does the same with a client.
const HEARTBEAT: u16 = 5;
const CONNECT_MS: u64 = 5000;

/// Where the server is, and how to reach it. `Debug` shows no credentials.
#[derive(Clone)]
pub struct Connection {
    uri: AMQPUri,
}

impl Connection {
    /// Reads `amqp://user:password@host:5672/vhost`; user, password and virtual host are percent-encoded. Without
    /// user and password it is `guest`, without a path the virtual host `/`. The scheme `amqps` is TLS, with
    /// port 5671.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, any parameter, or `amqps` in a build without the feature `tls`.
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
        let (scheme, port) = match url.scheme() {
            "amqps" if cfg!(feature = "tls") => (AMQPScheme::AMQPS, 5671),
            "amqps" => return Err(invalid("amqps:// needs a build with the feature `tls`")),
            _ => (AMQPScheme::AMQP, 5672),
        };
        let (username, password) = credentials(url)?;
        let vhost = vhost(url)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port().unwrap_or(port);
        Ok(Self {
            uri: AMQPUri {
                scheme,
                authority: AMQPAuthority {
                    userinfo: AMQPUserInfo { username, password },
                    host,
                    port,
                },
                vhost,
                query: AMQPQueryString {
                    heartbeat: Some(HEARTBEAT),
                    connection_timeout: Some(CONNECT_MS),
                    ..AMQPQueryString::default()
                },
            },
        })
    }

    pub(crate) fn uri(&self) -> AMQPUri {
        self.uri.clone()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = &self.uri.authority;
        f.debug_struct("Connection")
            .field("server", &format!("{}:{}", authority.host, authority.port))
            .field("vhost", &self.uri.vhost)
            .finish_non_exhaustive()
    }
}

/// Of which kind a queue is that the source declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated, and safe when a node is lost.
    #[default]
    Quorum,
    /// On one node.
    Classic,
}

/// What becomes of a delivery that the receiver rejects: one that is no message, or that the store refuses, unless
/// the receiver keeps it in the inbox or stops at it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejections {
    /// It is refused (`basic.nack` without `requeue`), and RabbitMQ sends it to the queue's dead-letter exchange.
    /// **A queue without one loses it**, and a client cannot see whether there is one.
    DeadLetters,
    /// The source fails for good. The delivery and what comes after it, but for what the receiver has already, come
    /// again when the source is started again. Right where the receiver has `keep_rejected` or `stop_at_rejected`.
    Stop,
}

/// The settings of a [`RabbitMqSource`](crate::RabbitMqSource).
#[derive(Clone, Debug)]
pub struct RabbitMqOptions {
    pub(crate) connection: Connection,
    pub(crate) queue: String,
    pub(crate) create: bool,
    pub(crate) kind: QueueKind,
    pub(crate) single_active_consumer: bool,
    pub(crate) dead_letters: Option<String>,
    rejections: Option<Rejections>,
}

impl RabbitMqOptions {
    /// The queue of this name.
    ///
    /// # Errors
    /// `Invalid` for a name that RabbitMQ does not take.
    pub fn new(connection: Connection, queue: impl Into<String>) -> Result<Self> {
        Ok(Self {
            connection,
            queue: name("queue", queue.into())?,
            create: false,
            kind: QueueKind::default(),
            single_active_consumer: false,
            dead_letters: None,
            rejections: None,
        })
    }

    /// Reads `amqp://user:password@host:5672/vhost?queue=orders&create=true`; the parameters are in a table of the
    /// [crate](crate#settings)'s documentation.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host or queue, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let url = parse(url)?;
        let mut pairs = url.query_pairs();
        let queue = pairs.find(|(key, _)| key == "queue");
        let (_, queue) = queue.ok_or_else(|| invalid("the URL needs queue=…"))?;
        let mut options = Self::new(Connection::of(&url)?, queue)?;
        for (key, value) in url.query_pairs() {
            options = match (key.as_ref(), value.as_ref()) {
                ("queue", _) => options,
                ("create", _) => options.create(read(&key, &value)?),
                ("kind", "quorum") => options.kind(QueueKind::Quorum),
                ("kind", "classic") => options.kind(QueueKind::Classic),
                ("single_active_consumer", _) => {
                    options.single_active_consumer(read(&key, &value)?)
                }
                ("dead_letters", _) => options.dead_letters(value)?,
                ("rejections", "dead_letters") => options.rejections(Rejections::DeadLetters),
                ("rejections", "stop") => options.rejections(Rejections::Stop),
                ("kind", _) => return Err(invalid("kind takes quorum or classic")),
                ("rejections", _) => {
                    return Err(invalid("rejections takes dead_letters or stop"));
                }
                _ => return Err(unknown(&key, KEYS)),
            };
        }
        Ok(options)
    }

    /// Whether to declare the queue, durable, with the settings below. One that is there has to have the same.
    /// Unless told: no, and it has to be there, with whatever settings.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Of which kind a queue is that is declared. Unless told: quorum.
    #[must_use]
    pub fn kind(mut self, kind: QueueKind) -> Self {
        self.kind = kind;
        self
    }

    /// Whether one consumer at a time gets the messages of a queue that is declared, and the next one when that is
    /// gone: so their order is kept. Unless told: no, and consumers share them.
    #[must_use]
    pub fn single_active_consumer(mut self, single: bool) -> Self {
        self.single_active_consumer = single;
        self
    }

    /// Where dead letters of a queue that is declared go: to the queue of this name, which is declared too. Of
    /// a quorum queue they are sent at least once, of a classic one at most once. Rejections go there
    /// unless [told otherwise](Self::rejections).
    ///
    /// # Errors
    /// `Invalid` for a name that RabbitMQ does not take, and for that of the queue itself, whose dead letters
    /// would come again.
    pub fn dead_letters(mut self, queue: impl Into<String>) -> Result<Self> {
        let queue = name("dead_letters", queue.into())?;
        check_dead_letters(&self.queue, &queue)?;
        self.dead_letters = Some(queue);
        Ok(self)
    }

    /// What becomes of rejected deliveries. Unless told: [`Rejections::DeadLetters`] if
    /// [`dead_letters`](Self::dead_letters) are set and the queue is declared, else [`Rejections::Stop`].
    #[must_use]
    pub fn rejections(mut self, rejections: Rejections) -> Self {
        self.rejections = Some(rejections);
        self
    }

    pub(crate) fn what_of_rejected(&self) -> Rejections {
        let known = self.create && self.dead_letters.is_some();
        self.rejections.unwrap_or(match known {
            true => Rejections::DeadLetters,
            false => Rejections::Stop,
        })
    }

    /// The arguments of a queue that is declared.
    pub(crate) fn arguments(&self) -> FieldTable {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut arguments = self.kind_argument();
        let mut set = |name: &str, value| {
            arguments.insert(ShortString::from(name), value);
        };
        if self.single_active_consumer {
            set("x-single-active-consumer", AMQPValue::Boolean(true));
        }
        if let Some(queue) = &self.dead_letters {
            set("x-dead-letter-exchange", text(""));
            set("x-dead-letter-routing-key", text(queue));
            if self.kind == QueueKind::Quorum {
                set("x-dead-letter-strategy", text("at-least-once"));
                // The server takes the strategy only with this.
                set("x-overflow", text("reject-publish"));
            }
        }
        arguments
    }

    /// The arguments of the queue of dead letters.
    pub(crate) fn kind_argument(&self) -> FieldTable {
        let kind = match self.kind {
            QueueKind::Quorum => "quorum",
            QueueKind::Classic => "classic",
        };
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString(kind.into());
        arguments.insert(ShortString::from("x-queue-type"), kind);
        arguments
    }
}

pub(crate) fn parse(url: &str) -> Result<Url> {
    let bad = || {
        invalid(
            "the URL must be amqp://host:5672/vhost?…; in user and password, write characters such as # ? @ as %XX",
        )
    };
    let url = Url::parse(url).map_err(|_| bad())?;
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    if !SCHEMES.contains(&url.scheme()) || !has_host || url.fragment().is_some() {
        return Err(bad());
    }
    Ok(url)
}

/// User and password.
pub(crate) fn credentials(url: &Url) -> Result<(String, String)> {
    Ok(match (url.username(), url.password()) {
        ("", None) => ("guest".to_owned(), "guest".to_owned()),
        (user, password) => (decode(user)?, decode(password.unwrap_or_default())?),
    })
}

pub(crate) fn vhost(url: &Url) -> Result<String> {
    let vhost = match url.path() {
        "" | "/" => "/".to_owned(),
        path => decode(path.trim_start_matches('/'))?,
    };
    if vhost.len() > MAX_NAME {
        return Err(invalid("not a name of a virtual host"));
    }
    Ok(vhost)
}

fn decode(text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8();
    Ok(text
        .map_err(|_| invalid("user, password and virtual host must be UTF-8"))?
        .into_owned())
}

/// RabbitMQ takes any text of that length.
pub(crate) fn name(what: &str, name: String) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
        return Err(invalid(format!("not a name for {what}")));
    }
    Ok(name)
}

/// Each dead letter would be rejected again, and be one more.
pub(crate) fn check_dead_letters(from: &str, to: &str) -> Result<()> {
    match from == to {
        true => Err(invalid(
            "dead_letters is what is read itself, so that dead letters would come again; name another one",
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_it_all_and_hides_the_password() {
        let url = "amqp://ann:s%3Acret@mq:5673/shop%2Feu?queue=orders&create=true&kind=classic\
                   &single_active_consumer=true&dead_letters=dead";
        let options = RabbitMqOptions::from_url(url).unwrap();
        let uri = options.connection.uri();
        assert_eq!(uri.vhost, "shop/eu");
        let authority = &uri.authority;
        assert_eq!((authority.host.as_str(), authority.port), ("mq", 5673));
        assert_eq!(authority.userinfo.username, "ann");
        assert_eq!(authority.userinfo.password, "s:cret");
        assert_eq!(options.kind, QueueKind::Classic);
        assert!(options.create && options.single_active_consumer);
        assert_eq!(options.what_of_rejected(), Rejections::DeadLetters);
        assert!(!format!("{options:?}").contains("cret"));
    }

    #[test]
    fn what_is_not_said() {
        let options = RabbitMqOptions::from_url("amqp://mq?queue=orders").unwrap();
        let uri = options.connection.uri();
        assert_eq!((uri.vhost.as_str(), uri.authority.port), ("/", 5672));
        assert_eq!(uri.authority.userinfo.username, "guest");
        assert!(!options.create);
        assert_eq!(options.what_of_rejected(), Rejections::Stop);
        // What a queue has that is there already is not known.
        let options = options.dead_letters("dead").unwrap();
        assert_eq!(options.what_of_rejected(), Rejections::Stop);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = "x".repeat(256);
        for url in [
            "http://h/?queue=q",
            "amqp://h/",
            "amqp:///v?queue=q",
            "amqp://h/?queue=",
            &format!("amqp://h/?queue={long}"),
            &format!("amqp://h/{long}?queue=q"),
            "amqp://h/?queue=q&colour=red",
            "amqp://h/?queue=q&kind=stream",
            "amqp://h/?queue=q&create=perhaps",
            "amqp://h/?queue=q&rejections=lose",
            "amqp://h/?queue=q&dead_letters=q",
        ] {
            assert!(RabbitMqOptions::from_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn what_is_refused_names_what_is_taken() {
        for (url, part) in [
            ("amqp://h/?queue=q&rejections=lose", "dead_letters or stop"),
            ("amqp://h/?queue=q&kind=stream", "quorum or classic"),
            ("amqp://h/?queue=q&create=perhaps", "`true` or `false`"),
            ("amqp://u:pa#ss@h/?queue=q", "%XX"),
        ] {
            let refused = RabbitMqOptions::from_url(url).unwrap_err().to_string();
            assert!(
                refused.contains(part) && !refused.contains("pa#"),
                "{refused}"
            );
        }
    }
}
