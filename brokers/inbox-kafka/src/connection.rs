//! Where the brokers are, and how a client reaches them.

use std::{fmt, fs, time::Duration};

use inbox_api::{Result, hide_password};
use inbox_source::settings::{invalid, unknown};
use percent_encoding::percent_decode_str;
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

/// What this crate's guarantees rest on, or has a method for.
const RESERVED: [&str; 27] = [
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.offset.reset",
    "bootstrap.servers",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "fetch.queue.backoff.ms",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "isolation.level",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "queued.max.messages.kbytes",
    "request.required.acks",
    "session.timeout.ms",
    "statistics.interval.ms",
    "test.mock.num.brokers",
    "transactional.id",
];

/// How a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sasl {
    /// The password as it is: only over TLS.
    Plain,
    /// A proof of the password. Needs a build of `rdkafka` with TLS.
    ScramSha256,
    /// As [`ScramSha256`](Self::ScramSha256), with SHA-512.
    ScramSha512,
}

impl Sasl {
    fn mechanism(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Where the brokers are, and how to reach them. `Debug` shows no credentials.
#[derive(Clone)]
pub struct Connection {
    servers: String,
    credentials: Option<(Sasl, String, String)>,
    tls: bool,
    properties: Vec<(String, String)>,
}

impl Connection {
    /// Some of the cluster's brokers: `broker-1.example:9092,broker-2.example:9092`. The port is
    /// 9092 unless given.
    #[must_use]
    pub fn new(servers: impl Into<String>) -> Self {
        Self {
            servers: servers.into(),
            credentials: None,
            tls: false,
            properties: Vec::new(),
        }
    }

    /// Reads `kafka://user:password@host:9092,host:9092/?sasl=plain&tls=true&tls_ca_file=ca.pem`.
    ///
    /// # Errors
    /// `Invalid` for another scheme, no host, an unknown parameter or a value that does not fit.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read_url(url).map_err(|error| hide_password(url, error))
    }

    fn read_url(url: &str) -> Result<Self> {
        let (connection, rest) = Self::parse(url)?;
        match rest.first() {
            None => Ok(connection),
            Some((key, _)) => Err(unknown(key, "sasl, tls, tls_ca_file")),
        }
    }

    /// Proves who this is by a user's name and password.
    #[must_use]
    pub fn credentials(
        mut self,
        sasl: Sasl,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.credentials = Some((sasl, user.into(), password.into()));
        self
    }

    /// Whether to connect over TLS, which needs the Cargo feature `tls`, or `ssl-vendored` of `rdkafka`.
    /// Certificates and names are checked.
    #[must_use]
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// Sets a [property of librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md),
    /// such as `ssl.ca.location`. A name or value that it does not know is an error when the source connects.
    ///
    /// # Errors
    /// `Invalid` for one on which the guarantees rest, or that has a method of its own.
    pub fn property(mut self, name: &str, value: impl Into<String>) -> Result<Self> {
        if RESERVED.contains(&name) {
            return Err(invalid(format!("the property {name} is the source's own")));
        }
        self.properties.push((name.to_owned(), value.into()));
        Ok(self)
    }

    /// The connection of a URL, and the parameters that are not its own.
    pub(crate) fn parse(url: &str) -> Result<(Self, Vec<(String, String)>)> {
        let bad_scheme = || invalid("the URL must start with kafka://");
        let (scheme, rest) = url.split_once("://").ok_or_else(bad_scheme)?;
        if !scheme.eq_ignore_ascii_case("kafka") {
            return Err(bad_scheme());
        }
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = address.strip_suffix('/').unwrap_or(address);
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) || hosts.contains('/') {
            return Err(invalid(
                "the URL must name hosts: kafka://host:9092,host:9092/?topic=…",
            ));
        }
        let mut connection = Self::new(hosts);
        let (mut sasl, mut ca_file) = (None, None);
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (decode(key)?, decode(value)?);
            match key.as_str() {
                "sasl" => {
                    sasl = Some(match value.as_str() {
                        "plain" => Sasl::Plain,
                        "scram-sha-256" => Sasl::ScramSha256,
                        "scram-sha-512" => Sasl::ScramSha512,
                        _ => {
                            return Err(invalid(
                                "sasl must be plain, scram-sha-256 or scram-sha-512",
                            ));
                        }
                    });
                }
                "tls" => {
                    connection.tls = match value.as_str() {
                        "true" => true,
                        "false" => false,
                        _ => return Err(invalid("tls must be true or false")),
                    };
                }
                "tls_ca_file" => ca_file = Some(value),
                _ => others.push((key, value)),
            }
        }
        if let Some(file) = ca_file {
            if !connection.tls {
                return Err(invalid("tls_ca_file needs tls=true"));
            }
            // The client itself would say so only when it connects, again and again.
            let read = fs::metadata(&file);
            read.map_err(|error| invalid(format!("reading tls_ca_file: {error}")))?;
            connection = connection.property("ssl.ca.location", file)?;
        }
        connection.credentials = match (user, sasl) {
            (Some(user), Some(sasl)) => {
                let (user, password) = user.split_once(':').unwrap_or((user, ""));
                Some((sasl, decode(user)?, decode(password)?))
            }
            (None, None) => None,
            (Some(_), None) => {
                return Err(invalid("a user needs `sasl`, how the password is sent"));
            }
            (None, Some(_)) => {
                return Err(invalid("`sasl` needs a user and a password in the URL"));
            }
        };
        Ok((connection, others))
    }

    /// What all clients have in common.
    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.servers)
            .set("client.id", "inbox")
            // A broker that went silent is known as gone after these.
            .set("socket.timeout.ms", "10000")
            .set("socket.connection.setup.timeout.ms", "5000")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "1000")
            .set_log_level(RDKafkaLogLevel::Info);
        let protocol = match (self.tls, &self.credentials) {
            (false, None) => "plaintext",
            (true, None) => "ssl",
            (false, Some(_)) => "sasl_plaintext",
            (true, Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some((sasl, user, password)) = &self.credentials {
            config
                .set("sasl.mechanism", sasl.mechanism())
                .set("sasl.username", user)
                .set("sasl.password", password);
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config
    }

    /// A producer whose confirmed messages are with all replicas that are in sync, once and in their order.
    pub(crate) fn producer_config(&self, limit: Duration) -> ClientConfig {
        let mut config = self.client_config();
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("allow.auto.create.topics", "false")
            // How large a message may be, the topic says, not the client.
            .set("message.max.bytes", "1000000000")
            .set("message.timeout.ms", limit.as_millis().to_string());
        config
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sasl = self.credentials.as_ref().map(|(sasl, _, _)| sasl);
        let names = self.properties.iter().map(|(name, _)| name);
        f.debug_struct("Connection")
            .field("servers", &self.servers)
            .field("sasl", &sasl)
            .field("tls", &self.tls)
            .field("properties", &names.collect::<Vec<_>>())
            .finish()
    }
}

/// Sets those that no property of the connection says otherwise.
pub(crate) fn set_unless_set(config: &mut ClientConfig, properties: &[(&str, &str)]) {
    for (name, value) in properties {
        if config.get(name).is_none() {
            config.set(*name, *value);
        }
    }
}

fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| invalid("a part of the URL is not UTF-8"))?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guarantees_cannot_be_set_away() {
        let connection = Connection::new("h");
        assert!(
            connection
                .clone()
                .property("enable.auto.commit", "true")
                .is_err()
        );
        for (name, value) in [
            // Another name of `message.timeout.ms`, and nothing would be confirmed.
            ("delivery.timeout.ms", "1"),
            ("delivery.report.only.error", "true"),
            // What is larger would be a dead letter, and no dead letter could be written of it.
            ("message.max.bytes", "500000"),
        ] {
            assert!(connection.clone().property(name, value).is_err(), "{name}");
        }
        assert!(connection.property("fetch.min.bytes", "10").is_ok());
    }
}
