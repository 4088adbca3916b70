//! The connection: to one server or to a cluster, with what every call of a script needs.

use std::time::Duration;

use inbox_api::{Effect, Error, ErrorKind, Result};
use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisResult, Value,
    aio::{ConnectionLike as _, ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{
        MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
    },
};

use crate::{
    error::{is_no_script, map},
    options::{Confirmations, RedisOptions},
    scripts::Script,
};

const CONNECT: &str = "connect";
/// How often a cluster's driver tries again when nodes move or fail, and for how long it waits in
/// between: long enough for a fail-over of a few seconds to be ridden out.
const CLUSTER_RETRIES: u32 = 16;
const CLUSTER_RETRY_WAIT: (u64, u64) = (20, 1000);
/// How often a call is tried when the server has forgotten its script.
const LOADS: u32 = 3;

/// Cheap to clone; clones share the connections. Futures of it may be dropped: what was sent is
/// then answered to nobody.
#[derive(Clone)]
pub(crate) enum Link {
    Single(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Link {
    pub(crate) async fn connect(options: &RedisOptions) -> Result<Self> {
        let mapped = |error| map(CONNECT, false, error);
        install_tls(options);
        if options.cluster {
            let (least, most) = CLUSTER_RETRY_WAIT;
            let mut builder = ClusterClientBuilder::new(options.nodes.clone())
                .retries(CLUSTER_RETRIES)
                .min_retry_wait(least)
                .max_retry_wait(most)
                .connection_timeout(connect_timeout(options))
                .response_timeout(options.operation_timeout)
                .overall_response_timeout(Some(options.operation_timeout))
                .tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
            builder = trust(builder, options);
            let client = builder.build().map_err(mapped)?;
            return match client.get_async_connection().await {
                Ok(connection) => Ok(Self::Cluster(connection)),
                Err(error) => Err(why_no_cluster(options, error).await),
            };
        }
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(connect_timeout(options)))
            .set_response_timeout(Some(options.operation_timeout))
            .set_min_delay(Duration::from_millis(10))
            .set_max_delay(Duration::from_millis(250))
            .set_number_of_retries(3);
        let manager = ConnectionManager::new_with_config(client(options, 0)?, config)
            .await
            .map_err(|error| {
                if options.tls && error.is_timeout() {
                    let reason = "the server did not answer in time; does it speak TLS at all?";
                    return Error::new(ErrorKind::Unavailable, CONNECT, reason);
                }
                mapped(error)
            })?;
        Ok(Self::Single(manager))
    }

    /// Runs a script in the slot of its shard. Loads it where it is not known, and waits for
    /// `confirmations` behind it.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        slot: u16,
        script: &Script,
        command: Cmd,
        confirmations: Option<&Confirmations>,
    ) -> Result<Value> {
        let mut loads = 0;
        loop {
            match self
                .run_once(operation, slot, &command, confirmations)
                .await
            {
                Ok(value) => return value,
                Err(error) if is_no_script(&error) && loads < LOADS => {
                    loads += 1;
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(script.text);
                    self.send(slot, load)
                        .await
                        .map_err(|error| map(operation, false, error))?;
                }
                Err(error) => return Err(map(operation, script.writes, error)),
            }
        }
    }

    async fn run_once(
        &self,
        operation: &'static str,
        slot: u16,
        command: &Cmd,
        confirmations: Option<&Confirmations>,
    ) -> RedisResult<Result<Value>> {
        let Some(wanted) = confirmations.filter(|wanted| wanted.any()) else {
            return self.send(slot, command.clone()).await.map(Ok);
        };
        // On the same connection: both commands wait for the writes of theirs.
        let mut pipeline = Pipeline::with_capacity(3);
        pipeline.add_command(command.clone());
        let millis = u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX);
        if wanted.replicas > 0 {
            pipeline.cmd("WAIT").arg(wanted.replicas).arg(millis.max(1));
        }
        if wanted.waits_for_aof() {
            pipeline
                .cmd("WAITAOF")
                .arg(u8::from(wanted.local_aof))
                .arg(wanted.replica_aofs)
                .arg(millis.max(1));
        }
        let values = self.send_all(slot, pipeline).await?;
        let mut values = values.into_iter();
        let value = values.next().unwrap_or(Value::Nil).extract_error()?;
        Ok(confirmed(operation, wanted, values).map(|()| value))
    }

    async fn send(&self, slot: u16, command: Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(manager) => manager.clone().req_packed_command(&command).await,
            Self::Cluster(connection) => {
                let routing = RoutingInfo::SingleNode(primary(slot));
                connection.clone().route_command(command, routing).await
            }
        }?
        .extract_error()
    }

    async fn send_all(&self, slot: u16, pipeline: Pipeline) -> RedisResult<Vec<Value>> {
        let count = pipeline.len();
        match self {
            Self::Single(manager) => {
                manager
                    .clone()
                    .req_packed_commands(&pipeline, 0, count)
                    .await
            }
            Self::Cluster(connection) => {
                connection
                    .clone()
                    .route_pipeline(pipeline, 0, count, primary(slot))
                    .await
            }
        }
    }

    /// What the clock of a slot's server shows, in microseconds, if it answers.
    pub(crate) async fn time(&self, slot: u16) -> Option<i64> {
        let answer = self.send(slot, redis::cmd("TIME")).await.ok()?;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(answer).ok()?;
        seconds.checked_mul(1_000_000)?.checked_add(micros)
    }

    /// The value of the one setting that `CONFIG GET` is asked for, of one primary; `None` when
    /// the server does not tell.
    pub(crate) async fn first_setting(&self, command: Cmd) -> Option<String> {
        let answer = self.send(0, command).await.ok()?;
        let pairs: std::collections::HashMap<String, String> =
            redis::from_redis_value(answer).ok()?;
        pairs.into_values().next()
    }

    /// One text of each primary.
    pub(crate) async fn ask_primaries(&self, command: Cmd) -> RedisResult<Vec<String>> {
        let answer = match self {
            Self::Single(manager) => {
                let text: String = command.query_async(&mut manager.clone()).await?;
                return Ok(vec![text]);
            }
            Self::Cluster(connection) => {
                let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                connection.clone().route_command(command, all).await?
            }
        };
        let by_node: std::collections::HashMap<String, String> = redis::from_redis_value(answer)?;
        Ok(by_node.into_values().collect())
    }
}

/// Whether as many confirmed as were asked for.
fn confirmed(
    operation: &'static str,
    wanted: &Confirmations,
    mut answers: impl Iterator<Item = Value>,
) -> Result<()> {
    let too_few = |what: &str| {
        let context = format!("the write is done, but too few {what} confirmed it in time");
        Error::new(ErrorKind::Unavailable, operation, context).with_effect(Effect::Unknown)
    };
    let failed = |error: RedisError| map(operation, true, error).with_effect(Effect::Unknown);
    let mut next = || {
        answers
            .next()
            .unwrap_or(Value::Nil)
            .extract_error()
            .map_err(failed)
    };
    if wanted.replicas > 0 {
        match next()? {
            Value::Int(count) if count >= i64::from(wanted.replicas) => {}
            _ => return Err(too_few("replicas")),
        }
    }
    if wanted.waits_for_aof() {
        match next()?.as_sequence() {
            Some([Value::Int(local), Value::Int(replicas)])
                if *local >= i64::from(wanted.local_aof)
                    && *replicas >= i64::from(wanted.replica_aofs) => {}
            _ => return Err(too_few("append-only files")),
        }
    }
    Ok(())
}

/// The driver says of a cluster only that no node of it could be connected to. One node tells more.
async fn why_no_cluster(options: &RedisOptions, error: RedisError) -> Error {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_timeout(options)))
        .set_response_timeout(Some(options.operation_timeout));
    for number in 0..options.nodes.len() {
        let mut connection = match client(options, number) {
            Ok(node) => match node
                .get_multiplexed_async_connection_with_config(&config)
                .await
            {
                Ok(connection) => connection,
                Err(error) => {
                    let error = map(CONNECT, false, error);
                    if error.is_retryable() && number + 1 < options.nodes.len() {
                        continue;
                    }
                    return error;
                }
            },
            Err(error) => return error,
        };
        let mut info = redis::cmd("INFO");
        let info: RedisResult<String> = info.arg("cluster").query_async(&mut connection).await;
        if info.is_ok_and(|info| info.contains("cluster_enabled:0")) {
            let reason = "the server is not a cluster; use redis:// in the URL";
            return Error::new(ErrorKind::Invalid, CONNECT, reason);
        }
        break;
    }
    map(CONNECT, false, error)
}

fn primary(slot: u16) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master))
}

fn connect_timeout(options: &RedisOptions) -> Duration {
    options.operation_timeout.min(Duration::from_secs(5))
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
fn open(node: redis::ConnectionInfo, _: &RedisOptions) -> RedisResult<Client> {
    Client::open(node)
}

#[cfg(not(feature = "tls"))]
fn trust(builder: ClusterClientBuilder, _: &RedisOptions) -> ClusterClientBuilder {
    builder
}

#[cfg(not(feature = "tls"))]
fn install_tls(_: &RedisOptions) {}

#[cfg(feature = "tls")]
fn certificates(options: &RedisOptions) -> redis::TlsCertificates {
    redis::TlsCertificates {
        client_tls: None,
        root_cert: options.tls_ca.clone(),
    }
}

#[cfg(feature = "tls")]
fn open(node: redis::ConnectionInfo, options: &RedisOptions) -> RedisResult<Client> {
    if options.tls {
        Client::build_with_tls(node, certificates(options))
    } else {
        Client::open(node)
    }
}

#[cfg(feature = "tls")]
fn trust(builder: ClusterClientBuilder, options: &RedisOptions) -> ClusterClientBuilder {
    if options.tls {
        builder
            .tls(redis::cluster::TlsMode::Secure)
            .certs(certificates(options))
    } else {
        builder
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
