//! MariaDB Galera Cluster: three nodes, each a MariaDB server that has all data.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::mysql::{self, Mariadb};
use super::{Image, Recipe, command, mysql_session};
use crate::program::Program;

pub(crate) struct Galera;

const NODES: usize = 3;
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

/// Galera needs row-based replication, and interleaved instead of consecutive numbers.
const SETTINGS: [&str; 7] = [
    "--wsrep-on=ON",
    "--wsrep-cluster-name=inbox",
    "--wsrep-sst-method=rsync",
    "--wsrep-node-address=127.0.0.1",
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--innodb-log-file-size=16M",
];

/// A node that is killed is given up soon, and what the nodes were before a crash is for us to
/// restore, who know that none of them still runs.
const GROUP: &str = "gcache.size=16M;pc.recovery=FALSE;evs.suspect_timeout=PT3S";

impl Recipe for Galera {
    fn program(&self) -> Result<Program, String> {
        let server = Mariadb.program()?;
        if !Path::new(PROVIDER).is_file() {
            return Err(format!("no {PROVIDER}"));
        }
        match server.companion("rsync") {
            Some(_) => Ok(server),
            None => Err("no rsync on PATH".to_owned()),
        }
    }

    fn users(&self) -> &'static [&'static str] {
        mysql::USERS
    }

    fn nodes(&self) -> usize {
        NODES
    }

    /// For clients, for the group's messages, for the changes that a node has missed, and for a
    /// copy of all data.
    fn ports(&self) -> usize {
        4 * NODES
    }

    /// The first node's data directory; the others get a copy when they join.
    fn prepare(&self, program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        for node in 1..NODES {
            fs::create_dir(data(home, node))?;
        }
        for node in 0..NODES {
            fs::create_dir(temporary(home, node))?;
        }
        let accounts = home.join("accounts.sql");
        // The server that makes the directory does not look at accounts before it is told to.
        fs::write(&accounts, format!("FLUSH PRIVILEGES;\n{}", mysql::ACCOUNTS))?;
        let mut initialise = mysql::initialise(program, &data(home, 0))?;
        initialise.arg(mysql::option("--extra-file", &accounts));
        Ok(vec![initialise])
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let (group, changes) = (ports[NODES + node], ports[2 * NODES + node]);
        let members: Vec<String> = ports[NODES..2 * NODES]
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let copy = ports[3 * NODES + node];
        let mut server = start(program, home, node);
        server
            .arg(format!("--port={}", ports[node]))
            .arg(format!("--wsrep-node-name=node{node}"))
            .arg(format!("--wsrep-cluster-address=gcomm://{}", members.join(",")))
            .arg(format!("--wsrep-sst-receive-address=127.0.0.1:{copy}"))
            .arg(format!(
                "--wsrep-provider-options={GROUP};base_host=127.0.0.1;base_port={group};gmcast.listen_addr=tcp://127.0.0.1:{group};ist.recv_addr=127.0.0.1:{changes}"
            ));
        if let Some((history, last)) = position(home, node) {
            server.arg(format!("--wsrep-start-position={history}:{last}"));
        }
        server
    }

    fn needs_leader(&self) -> bool {
        true
    }

    /// Finds out what the node has got, also if it crashed.
    fn recover(&self, program: &Program, home: &Path, node: usize) -> Option<Command> {
        if !data(home, node).join("ibdata1").is_file() {
            return None;
        }
        // The server would write behind what it has written before.
        let _ = fs::remove_file(recovered(home, node));
        let mut server = start(program, home, node);
        server
            .args(["--wsrep-recover", "--wsrep-cluster-address=gcomm://"])
            // Lest it look for a port, which may be another's.
            .arg("--skip-networking")
            .arg(mysql::option("--log-error", &recovered(home, node)));
        Some(server)
    }

    /// The node that has got most; if several have, the first of them.
    fn leader(&self, home: &Path) -> io::Result<usize> {
        let has = |node: usize| position(home, node).map_or(-1, |(_, last)| last);
        Ok((0..NODES).rev().max_by_key(|&node| has(node)).unwrap_or(0))
    }

    /// Galera itself refuses to start a group from a node that may not have got most.
    fn lead(&self, home: &Path, node: usize, command: &mut Command) -> io::Result<()> {
        let path = data(home, node).join("grastate.dat");
        if let Ok(state) = fs::read_to_string(&path) {
            let state = state.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1");
            fs::write(&path, state)?;
        }
        command.arg("--wsrep-new-cluster");
        Ok(())
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    /// Before it has caught up with the others, a node lets clients in and refuses all they ask.
    fn answers(&self, port: u16) -> Result<(), String> {
        status(port, "wsrep_local_state_comment", "Synced")
    }

    fn ready(&self, ports: &[u16]) -> Result<(), String> {
        ports[..NODES]
            .iter()
            .try_for_each(|&port| status(port, "wsrep_cluster_size", &NODES.to_string()))
    }

    fn url(&self, port: u16) -> String {
        Mariadb.url(port)
    }
}

/// What is the same whether a node is to serve or to say what it has got.
fn start(program: &Program, home: &Path, node: usize) -> Command {
    let mut server = command(&program.path, ["--no-defaults", "--bind-address=127.0.0.1"]);
    server
        .arg(mysql::option("--datadir", &data(home, node)))
        .arg(mysql::option(
            "--socket",
            &home.join(format!("socket{node}")),
        ))
        .arg(mysql::option(
            "--pid-file",
            &home.join(format!("pid{node}")),
        ))
        .arg(mysql::option("--tmpdir", &temporary(home, node)))
        .args(mysql::SETTINGS)
        .args(SETTINGS)
        .arg(format!("--wsrep-provider={PROVIDER}"));
    server
}

fn data(home: &Path, node: usize) -> PathBuf {
    home.join(format!("node{node}"))
}

/// A node that starts removes every temporary table that it finds in it, another node's too.
fn temporary(home: &Path, node: usize) -> PathBuf {
    home.join(format!("temporary{node}"))
}

fn recovered(home: &Path, node: usize) -> PathBuf {
    home.join(format!("recovered{node}.log"))
}

/// The history a node has got a part of and the number of the last change in it, as found by
/// [`Recipe::recover`]. `None` for a node that has never been part of a group.
fn position(home: &Path, node: usize) -> Option<(String, i64)> {
    let log = fs::read_to_string(recovered(home, node)).ok()?;
    let (_, found) = log.rsplit_once("Recovered position: ")?;
    let (history, last) = found.split_whitespace().next()?.split_once(':')?;
    // What follows a comma is another kind of number.
    let last = last.split(',').next()?.parse().ok()?;
    (last >= 0).then(|| (history.to_owned(), last))
}

/// Whether a variable that tells a node's state has this value.
fn status(port: u16, variable: &str, value: &str) -> Result<(), String> {
    let statement = format!("SHOW STATUS LIKE '{variable}'");
    let answer = mysql_session::ask(port, &statement).map_err(|error| error.to_string())?;
    // On the wire, a text follows its length.
    let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
    let row = [variable.as_bytes(), &[length], value.as_bytes()].concat();
    if answer.windows(row.len()).any(|bytes| bytes == row) {
        Ok(())
    } else {
        Err(format!("{variable} is not {value}"))
    }
}
