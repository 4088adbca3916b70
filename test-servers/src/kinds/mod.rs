//! What is particular to each kind of server.

mod elasticmq;
pub(crate) mod ferretdb;
mod galera;
mod java;
mod kafka;
mod mongodb;
mod mongodb_sharded;
mod mysql;
mod mysql_session;
mod nats;
pub(crate) mod pgbouncer;
mod postgres;
mod postgres_session;
mod prometheus;
mod rabbitmq;
mod redis;
mod redis_cluster;
mod standby;

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;

use self::redis_cluster::RedisCluster;
use crate::kind::Kind;
use crate::program::Program;

/// How to find, start, reach and end a kind of server. A server is one or several nodes; `ports`
/// begins with the one that clients use of each node.
pub(crate) trait Recipe: Send + Sync {
    /// The installed program, or why there is none.
    fn program(&self) -> Result<Program, String>;

    /// Users to run as instead of root. Empty if the server does not mind root.
    fn users(&self) -> &'static [&'static str] {
        &[]
    }

    fn nodes(&self) -> usize {
        1
    }

    fn ports(&self) -> usize {
        self.nodes()
    }

    /// Puts files into the empty `home` and returns the commands that prepare it further.
    fn prepare(
        &self,
        _program: &Program,
        _home: &Path,
        _ports: &[u16],
    ) -> io::Result<Vec<Command>> {
        Ok(Vec::new())
    }

    /// Starts one node in `home`, in the foreground, on the loopback interface.
    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command;

    /// Whether a new node answers only once the whole has been formed.
    fn answers_once_formed(&self, _node: usize) -> bool {
        false
    }

    /// Whether, when no node runs, one has to be started before the others.
    fn needs_leader(&self) -> bool {
        false
    }

    /// A command to be run before a node is started, if the node has been started before.
    fn recover(&self, _program: &Program, _home: &Path, _node: usize) -> Option<Command> {
        None
    }

    /// The node to be started before the others, once every node has recovered.
    fn leader(&self, _home: &Path) -> io::Result<usize> {
        Ok(0)
    }

    /// Makes of the command that starts a node one that starts it before the others.
    fn lead(&self, _home: &Path, _node: usize, _command: &mut Command) -> io::Result<()> {
        Ok(())
    }

    /// The image and arguments that start the same in a container, on the same ports, if there is
    /// such an image.
    fn image(&self, ports: &[u16]) -> Option<Image>;

    /// Whether the node behind this port answers in its protocol, or what it did instead.
    fn answers(&self, port: u16) -> Result<(), String>;

    /// Makes one server of nodes that have just been created and answer.
    fn form(&self, _ports: &[u16]) -> Result<(), String> {
        Ok(())
    }

    /// Whether the whole takes writes, once every node answers.
    fn ready(&self, _ports: &[u16]) -> Result<(), String> {
        Ok(())
    }

    /// Where clients connect to the node behind this port.
    fn url(&self, port: u16) -> String;

    /// Asks for an orderly stop.
    fn stop_signal(&self) -> Signal {
        Signal::SIGTERM
    }

    /// A shell script that removes, with the help of what it finds in the current directory, the
    /// `home` of a killed server, what that has left elsewhere.
    fn sweep(&self) -> &'static str {
        ""
    }

    /// A server that follows one of this kind on the port `primary`.
    fn standby(&self, _primary: u16) -> Option<Arc<dyn Recipe>> {
        None
    }

    /// Prepares a standby to become a server like any other, which it does when sent the signal.
    fn promote(&self, _home: &Path) -> io::Result<Signal> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether it is no standby, or no longer.
    fn is_promoted(&self, _port: u16) -> io::Result<bool> {
        Ok(true)
    }
}

/// A container's image and how to start it.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) arguments: Vec<String>,
}

pub(crate) fn recipe(kind: Kind) -> Arc<dyn Recipe> {
    match kind {
        Kind::Postgres => Arc::new(postgres::Postgres::Any),
        Kind::Postgres18 => Arc::new(postgres::Postgres::Postgres18),
        // Its own server is not there yet, so the port is that of none.
        Kind::Pgbouncer => Arc::new(pgbouncer::PgBouncer {
            server: 0,
            settings: Vec::new(),
        }),
        Kind::Mysql => Arc::new(mysql::Mysql),
        Kind::Mariadb => Arc::new(mysql::Mariadb),
        Kind::Galera => Arc::new(galera::Galera),
        Kind::Redis => Arc::new(redis::Redis::Any),
        Kind::Redis8 => Arc::new(redis::Redis::Redis8),
        Kind::Valkey => Arc::new(redis::Redis::Valkey),
        Kind::RedisCluster => Arc::new(RedisCluster(redis::Redis::Any)),
        Kind::Redis8Cluster => Arc::new(RedisCluster(redis::Redis::Redis8)),
        Kind::ValkeyCluster => Arc::new(RedisCluster(redis::Redis::Valkey)),
        Kind::Mongodb => Arc::new(mongodb::Mongodb { members: 1 }),
        Kind::MongodbSet => Arc::new(mongodb::Mongodb { members: 3 }),
        Kind::MongodbSharded => Arc::new(mongodb_sharded::Sharded),
        Kind::Ferretdb => Arc::new(ferretdb::FerretDb { server: 0 }),
        Kind::Elasticmq => Arc::new(elasticmq::ElasticMq),
        Kind::Kafka => Arc::new(kafka::Kafka),
        Kind::RabbitMq => Arc::new(rabbitmq::RabbitMq::Any),
        Kind::RabbitMq4 => Arc::new(rabbitmq::RabbitMq::RabbitMq4),
        Kind::Nats => Arc::new(nats::Nats::Any),
        Kind::NatsNewest => Arc::new(nats::Nats::Newest),
        Kind::Prometheus => Arc::new(prometheus::Prometheus),
    }
}

/// A command with all its arguments.
fn command<A: AsRef<std::ffi::OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
