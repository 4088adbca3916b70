//! Where a call of a script goes, on one server or on a cluster: to the right server, which may first
//! have to load the script, and again where nothing has been done.

use std::{sync::Arc, time::Duration};

use inbox_api::{Error, ErrorKind, Result};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, sleep};

use crate::{
    client::{client, install_tls},
    error::{self, Failed, garbled, is_no_script},
    node::{
        Node,
        confirmations::{Answer, Sent},
    },
    options::RedisOptions,
    scripts::Script,
    slots::Slots,
};

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
    pub(crate) slot: u16,
    pub(crate) script: &'a Script,
    pub(crate) command: Cmd,
    /// A key of the shard if the answer is to be confirmed.
    pub(crate) confirmed_by: Option<String>,
}

/// Cheap to clone; clones share the connections. Futures of it may be dropped: what was sent is
/// then answered to nobody.
#[derive(Clone)]
pub(crate) struct Servers {
    nodes: Nodes,
    limit: Duration,
}

#[derive(Clone)]
enum Nodes {
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

impl Servers {
    pub(crate) async fn connect(options: &RedisOptions) -> Result<Self> {
        install_tls(options);
        let limit = options.operation_timeout;
        let until = Instant::now() + limit.min(options.connect_timeout() * 2);
        if options.cluster {
            let slots = Slots::new(options);
            return match slots.refresh(0, until).await {
                Ok(()) => Ok(Self {
                    nodes: Nodes::Cluster(Arc::new(slots)),
                    limit,
                }),
                Err(error) => Err(no_cluster(error)),
            };
        }
        let node = Node::new(client(options, 0)?, options);
        match node.send(&redis::cmd("PING"), false, until).await {
            // Whatever it says, it is there: what it lacks shows when it is looked at.
            Ok(_) => Ok(Self {
                nodes: Nodes::Single(Arc::new(node)),
                limit,
            }),
            Err(Failed::NotSent(error) | Failed::Lost(error)) => {
                if options.tls && error.is_timeout() {
                    let reason = "the server did not answer in time; does it speak TLS at all?";
                    return Err(Error::new(ErrorKind::Unavailable, reason));
                }
                Err(error::connecting(error))
            }
        }
    }

    async fn node_of(&self, slot: u16, until: Instant) -> RedisResult<Arc<Node>> {
        match &self.nodes {
            Nodes::Single(node) => Ok(Arc::clone(node)),
            Nodes::Cluster(slots) => {
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
        if let Nodes::Cluster(slots) = &self.nodes {
            let _ = slots.refresh(version, until).await;
        }
    }

    fn version(&self) -> u64 {
        match &self.nodes {
            Nodes::Single(_) => 0,
            Nodes::Cluster(slots) => slots.version(),
        }
    }

    /// Runs a script in its shard. Loads it where it is not known, and repeats it where it has not
    /// begun; where that is not known, only if it writes nothing.
    pub(crate) async fn run(&self, call: Addressed<'_>) -> Result<Value> {
        let Addressed { script, slot, .. } = call;
        let now = Instant::now();
        let until = now + self.limit;
        let rides_out = match &self.nodes {
            Nodes::Single(_) => SERVER_RIDES_OUT,
            Nodes::Cluster(_) => CLUSTER_RIDES_OUT,
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
                            return confirmed.map(|()| value).map_err(Error::from);
                        }
                        Err(error) if is_no_script(&error) && loads < LOADS => {
                            loads += 1;
                            let mut load = redis::cmd("SCRIPT");
                            load.arg("LOAD").arg(&*script.text);
                            match node.send(&load, false, until).await {
                                Ok(value) => {
                                    value.extract_error().map_err(error::before)?;
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
                        Err(error) => match self.redirection(slot, &error) {
                            Some(further) if redirections < REDIRECTIONS => {
                                redirections += 1;
                                next = further;
                                continue;
                            }
                            _ if is_passing(&error, &self.nodes) => Failed::NotSent(error),
                            _ if script.writes => return Err(error::failed(error)),
                            _ => return Err(error::before(error)),
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
                return Err(if is_over && script.writes {
                    error::failed(error)
                } else {
                    error::before(error)
                });
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
    ) -> Answer {
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
    fn redirection(&self, slot: u16, error: &RedisError) -> Option<Next> {
        let Nodes::Cluster(slots) = &self.nodes else {
            return None;
        };
        let (address, _) = error.redirect_node()?;
        match error.kind() {
            redis::ErrorKind::Server(ServerErrorKind::Moved) => {
                slots.note_move(slot, address).ok().map(Next::Node)
            }
            redis::ErrorKind::Server(ServerErrorKind::Ask) => {
                slots.at(address).ok().map(Next::Asking)
            }
            _ => None,
        }
    }

    /// What the clock of a slot's server shows, in microseconds, if it answers.
    pub(crate) async fn time(&self, slot: u16) -> Option<i64> {
        let until = Instant::now() + self.limit;
        let answer = self.ask(slot, &redis::cmd("TIME"), until).await.ok()?;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(answer).ok()?;
        seconds.checked_mul(1_000_000)?.checked_add(micros)
    }

    /// The value of the one setting that `CONFIG GET` is asked for, of one primary; `None` when
    /// the server does not tell.
    pub(crate) async fn first_setting(&self, command: &Cmd) -> Option<String> {
        let until = Instant::now() + self.limit;
        let answer = self.ask(0, command, until).await.ok()?;
        let pairs: std::collections::HashMap<String, String> =
            redis::from_redis_value(answer).ok()?;
        pairs.into_values().next()
    }

    /// What a slot's server answers to a plain command.
    pub(crate) async fn ask(&self, slot: u16, command: &Cmd, until: Instant) -> RedisResult<Value> {
        let node = self.node_of(slot, until).await?;
        match node.send(command, false, until).await {
            Ok(value) => Ok(value.extract_error()?),
            Err(Failed::NotSent(error) | Failed::Lost(error)) => Err(error),
        }
    }

    /// One text of each primary.
    pub(crate) async fn ask_primaries(&self, command: &Cmd) -> RedisResult<Vec<String>> {
        let until = Instant::now() + self.limit;
        let asked = match &self.nodes {
            Nodes::Single(node) => vec![Arc::clone(node)],
            Nodes::Cluster(slots) => slots.primaries(),
        };
        let answers = asked.iter().map(|node| async {
            match node.send(command, false, until).await {
                Ok(value) => Ok(redis::from_redis_value(value.extract_error()?)?),
                Err(Failed::NotSent(error) | Failed::Lost(error)) => Err(error),
            }
        });
        futures_util::future::try_join_all(answers).await
    }
}

/// Errors that a server gives instead of running a script, and that pass when another server takes
/// over, or when this one has loaded its data.
fn is_passing(error: &RedisError, nodes: &Nodes) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
    let redis::ErrorKind::Server(kind) = error.kind() else {
        return false;
    };
    match nodes {
        Nodes::Single(_) => matches!(kind, ReadOnly | BusyLoading | MasterDown),
        Nodes::Cluster(_) => matches!(
            kind,
            TryAgain | ClusterDown | MasterDown | BusyLoading | ReadOnly
        ),
    }
}

fn no_cluster(error: RedisError) -> Error {
    let says = |words: &str| error.detail().is_some_and(|text| text.contains(words));
    if says("cluster support disabled") {
        let reason = "the server is not a cluster; use redis:// in the URL";
        return Error::new(ErrorKind::Invalid, reason);
    }
    error::connecting(error)
}
