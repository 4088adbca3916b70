//! What every call of a script needs, on one server or on a cluster: the right server, a connection to
//! it, the script, and another try where nothing has been done.

use std::{sync::Arc, time::Duration};

use inbox_api::{Error, ErrorKind, Result};
use redis::{Client, Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, sleep};

use crate::{
    error::{is_no_script, map},
    group::Sent,
    node::{Failed, Node, garbled},
    options::RedisOptions,
    scripts::Script,
    slots::Slots,
};

const CONNECT: &str = "connect";
/// How often a call is tried when the server has forgotten its script.
const LOADS: u32 = 3;
/// How often a call follows servers that send it on.
const REDIRECTIONS: u32 = 16;
/// For how long a call is tried again that no server has begun: enough for a fail-over of a few
/// seconds, or for a server that restarts.
const CLUSTER_RIDES_OUT: Duration = Duration::from_secs(6);
const SERVER_RIDES_OUT: Duration = Duration::from_millis(500);
/// How long to wait in between, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A call of a script, on its way to its shard.
pub(crate) struct Addressed<'a> {
    pub(crate) operation: &'static str,
    pub(crate) slot: u16,
    pub(crate) script: &'a Script,
    pub(crate) command: Cmd,
    /// A key of the shard if the answer is to be confirmed.
    pub(crate) confirmed_by: Option<String>,
}

/// Cheap to clone; clones share the connections. Futures of it may be dropped: what was sent is
/// then answered to nobody.
#[derive(Clone)]
pub(crate) struct Connection {
    servers: Servers,
    limit: Duration,
}

#[derive(Clone)]
enum Servers {
    Single(Arc<Node>),
    Cluster(Arc<Slots>),
}

/// Where a call goes next.
enum Next {
    /// To the node that has the slot now.
    Slot,
    Node(Arc<Node>),
    /// To a server that is still importing the slot.
    Asking(Arc<Node>),
}

impl Connection {
    pub(crate) async fn connect(options: &RedisOptions) -> Result<Self> {
        install_tls(options);
        let limit = options.operation_timeout;
        let until = Instant::now() + limit.min(options.connect_timeout() * 2);
        if options.cluster {
            let slots = Slots::new(options);
            return match slots.refresh(0, until).await {
                Ok(()) => Ok(Self {
                    servers: Servers::Cluster(Arc::new(slots)),
                    limit,
                }),
                Err(error) => Err(no_cluster(error)),
            };
        }
        let node = Node::new(client(options, 0)?, options);
        match node.send(&redis::cmd("PING"), false, until).await {
            // Whatever it says, it is there: what it lacks shows when it is looked at.
            Ok(_) => Ok(Self {
                servers: Servers::Single(Arc::new(node)),
                limit,
            }),
            Err(Failed::NotSent(error) | Failed::Lost(error)) => {
                if options.tls && error.is_timeout() {
                    let reason = "the server did not answer in time; does it speak TLS at all?";
                    return Err(Error::new(ErrorKind::Unavailable, CONNECT, reason));
                }
                Err(map(CONNECT, false, error))
            }
        }
    }

    async fn node_of(&self, slot: u16, until: Instant) -> RedisResult<Arc<Node>> {
        match &self.servers {
            Servers::Single(node) => Ok(Arc::clone(node)),
            Servers::Cluster(slots) => {
                if let Some(node) = slots.node_of(slot) {
                    return Ok(node);
                }
                slots.refresh(slots.version(), until).await?;
                slots.node_of(slot).ok_or_else(garbled)
            }
        }
    }

    /// Asks once more where slots are, if this is a cluster. If that fails too, the next try tells.
    async fn look_again(&self, version: u64, until: Instant) {
        if let Servers::Cluster(slots) = &self.servers {
            let _ = slots.refresh(version, until).await;
        }
    }

    fn version(&self) -> u64 {
        match &self.servers {
            Servers::Single(_) => 0,
            Servers::Cluster(slots) => slots.version(),
        }
    }

    /// Runs a script in its shard. Loads it where it is not known, and repeats it where it has not
    /// begun; where that is not known, only if it writes nothing.
    pub(crate) async fn run(&self, call: Addressed<'_>) -> Result<Value> {
        let Addressed {
            operation,
            script,
            slot,
            ..
        } = call;
        let now = Instant::now();
        let until = now + self.limit;
        let rides_out = match &self.servers {
            Servers::Single(_) => SERVER_RIDES_OUT,
            Servers::Cluster(_) => CLUSTER_RIDES_OUT,
        };
        let again_until = until.min(now + rides_out);
        let (mut loads, mut redirections, mut next) = (0, 0, Next::Slot);
        let mut pause = PAUSES.0;
        loop {
            let version = self.version();
            let target = match &next {
                Next::Slot => self.node_of(slot, until).await.map_err(Failed::NotSent),
                Next::Node(node) | Next::Asking(node) => Ok(Arc::clone(node)),
            };
            let asking = matches!(next, Next::Asking(_));
            next = Next::Slot;
            let failed = match target {
                Ok(node) => match self.send(&node, &call, asking, until).await {
                    Ok((value, confirmed)) => match value.extract_error() {
                        Ok(value) => {
                            return confirmed
                                .map(|()| value)
                                .map_err(|why| why.into_error(operation));
                        }
                        Err(error) if is_no_script(&error) && loads < LOADS => {
                            loads += 1;
                            let mut load = redis::cmd("SCRIPT");
                            load.arg("LOAD").arg(script.text);
                            match node.send(&load, false, until).await {
                                Ok(value) => {
                                    value
                                        .extract_error()
                                        .map_err(|error| map(operation, false, error))?;
                                    next = if asking {
                                        Next::Asking(node)
                                    } else {
                                        Next::Node(node)
                                    };
                                    continue;
                                }
                                Err(Failed::NotSent(error) | Failed::Lost(error)) => {
                                    Failed::NotSent(error)
                                }
                            }
                        }
                        Err(error) => match self.redirected(slot, &error) {
                            Some(further) if redirections < REDIRECTIONS => {
                                redirections += 1;
                                next = further;
                                continue;
                            }
                            _ if is_passing(&error, &self.servers) => Failed::NotSent(error),
                            _ => return Err(map(operation, script.writes, error)),
                        },
                    },
                    Err(failed) => failed,
                },
                Err(failed) => failed,
            };
            let (error, is_over) = match failed {
                Failed::NotSent(error) => (error, false),
                Failed::Lost(error) => (error, script.writes || call.confirmed_by.is_some()),
            };
            if is_over || Instant::now() + pause > again_until {
                let is_unknown = is_over && script.writes;
                return Err(map(operation, is_unknown, error));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            self.look_again(version, again_until).await;
        }
    }

    async fn send(
        &self,
        node: &Arc<Node>,
        call: &Addressed<'_>,
        asking: bool,
        until: Instant,
    ) -> crate::group::Answer {
        let Some(meta) = &call.confirmed_by else {
            let value = node.send(&call.command, asking, until).await?;
            return Ok((value, Ok(())));
        };
        let sent = Sent {
            command: call.command.clone(),
            meta: meta.clone(),
            asking,
        };
        node.send_confirmed(sent, until).await
    }

    /// Where a server of a cluster sends us on.
    fn redirected(&self, slot: u16, error: &RedisError) -> Option<Next> {
        let Servers::Cluster(slots) = &self.servers else {
            return None;
        };
        let (address, _) = error.redirect_node()?;
        match error.kind() {
            redis::ErrorKind::Server(ServerErrorKind::Moved) => {
                slots.moved(slot, address).ok().map(Next::Node)
            }
            redis::ErrorKind::Server(ServerErrorKind::Ask) => {
                slots.at(address).ok().map(Next::Asking)
            }
            _ => None,
        }
    }

    /// What the clock of a slot's server shows, in microseconds, if it answers.
    pub(crate) async fn time(&self, slot: u16) -> Option<i64> {
        let answer = self.ask(slot, &redis::cmd("TIME")).await?;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(answer).ok()?;
        seconds.checked_mul(1_000_000)?.checked_add(micros)
    }

    /// The value of the one setting that `CONFIG GET` is asked for, of one primary; `None` when
    /// the server does not tell.
    pub(crate) async fn first_setting(&self, command: &Cmd) -> Option<String> {
        let answer = self.ask(0, command).await?;
        let pairs: std::collections::HashMap<String, String> =
            redis::from_redis_value(answer).ok()?;
        pairs.into_values().next()
    }

    async fn ask(&self, slot: u16, command: &Cmd) -> Option<Value> {
        let until = Instant::now() + self.limit;
        let node = self.node_of(slot, until).await.ok()?;
        let answer = node.send(command, false, until).await.ok()?;
        answer.extract_error().ok()
    }

    /// One text of each primary.
    pub(crate) async fn ask_primaries(&self, command: &Cmd) -> RedisResult<Vec<String>> {
        let until = Instant::now() + self.limit;
        let nodes = match &self.servers {
            Servers::Single(node) => vec![Arc::clone(node)],
            Servers::Cluster(slots) => slots.primaries(),
        };
        let asked = nodes.iter().map(|node| async {
            match node.send(command, false, until).await {
                Ok(value) => Ok(redis::from_redis_value(value.extract_error()?)?),
                Err(Failed::NotSent(error) | Failed::Lost(error)) => Err(error),
            }
        });
        futures_util::future::try_join_all(asked).await
    }
}

/// Errors that a server gives instead of running a script, and that pass when another server takes
/// over, or when this one has loaded its data.
fn is_passing(error: &RedisError, servers: &Servers) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
    let redis::ErrorKind::Server(kind) = error.kind() else {
        return false;
    };
    match servers {
        Servers::Single(_) => matches!(kind, ReadOnly | BusyLoading | MasterDown),
        Servers::Cluster(_) => matches!(
            kind,
            TryAgain | ClusterDown | MasterDown | BusyLoading | ReadOnly
        ),
    }
}

fn no_cluster(error: RedisError) -> Error {
    let says = |words: &str| error.detail().is_some_and(|text| text.contains(words));
    if says("cluster support disabled") {
        let reason = "the server is not a cluster; use redis:// in the URL";
        return Error::new(ErrorKind::Invalid, CONNECT, reason);
    }
    map(CONNECT, false, error)
}

/// A client of one of the nodes: the one of this number, counted around.
pub(crate) fn client(options: &RedisOptions, number: usize) -> Result<Client> {
    install_tls(options);
    let node = options
        .nodes
        .get(number % options.nodes.len().max(1))
        .cloned()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, CONNECT, "the URL has no host"))?;
    let client = open(node, options);
    client.map_err(|error| map(CONNECT, false, error))
}

#[cfg(not(feature = "tls"))]
pub(crate) fn open(node: redis::ConnectionInfo, _: &RedisOptions) -> RedisResult<Client> {
    Client::open(node)
}

#[cfg(not(feature = "tls"))]
fn install_tls(_: &RedisOptions) {}

#[cfg(feature = "tls")]
pub(crate) fn open(node: redis::ConnectionInfo, options: &RedisOptions) -> RedisResult<Client> {
    if options.tls {
        let certificates = redis::TlsCertificates {
            client_tls: None,
            root_cert: options.tls_ca.clone(),
        };
        Client::build_with_tls(node, certificates)
    } else {
        Client::open(node)
    }
}

/// rustls wants one provider of cryptography in the process. An application that has chosen its
/// own keeps it.
#[cfg(feature = "tls")]
fn install_tls(options: &RedisOptions) {
    if options.tls {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
