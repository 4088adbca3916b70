//! What is particular to each kind of server.

mod mongodb;
mod mysql;
mod postgres;
mod redis;
mod redis_cluster;

use std::io;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::kind::Kind;
use crate::program::Program;

/// How to find, start, reach and end a kind of server. A server is one or several nodes; `ports`
/// begins with the one that clients use of each node.
pub(crate) trait Recipe: Sync {
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
    fn prepare(&self, _program: &Program, _home: &Path) -> io::Result<Vec<Command>> {
        Ok(Vec::new())
    }

    /// Starts one node in `home`, in the foreground, on the loopback interface.
    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command;

    /// The image and arguments that start the same in a container, on the same ports.
    fn image(&self, ports: &[u16]) -> Image;

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

    fn url(&self, ports: &[u16]) -> String;

    /// Asks for an orderly stop.
    fn stop_signal(&self) -> Signal {
        Signal::SIGTERM
    }

    /// A shell script that removes, with the help of what it finds in the current directory, the
    /// `home` of a killed server, what that has left elsewhere.
    fn sweep(&self) -> &'static str {
        ""
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

pub(crate) fn recipe(kind: Kind) -> &'static dyn Recipe {
    match kind {
        Kind::Postgres => &postgres::Postgres,
        Kind::Mysql => &mysql::Mysql,
        Kind::Mariadb => &mysql::Mariadb,
        Kind::Redis => &redis::Redis,
        Kind::RedisCluster => &redis_cluster::RedisCluster,
        Kind::Mongodb => &mongodb::Mongodb,
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
