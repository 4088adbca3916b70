use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::redis::{Redis, SETTINGS, ask};
use super::{Image, Recipe, command};
use crate::program::Program;

/// A cluster of nodes that are each like this.
pub(crate) struct RedisCluster(pub(crate) Redis);

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;

/// A replica that took over, be it only after a pause, would lose acknowledged writes, as
/// replication is asynchronous; so none may, unless it is told to.
const CLUSTER_SETTINGS: [&str; 10] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "2000",
    "--cluster-replica-no-failover",
    "yes",
    "--cluster-announce-ip",
    "127.0.0.1",
    "--repl-diskless-sync-delay",
    "0",
];

impl Recipe for RedisCluster {
    fn program(&self) -> Result<Program, String> {
        self.0.program()
    }

    fn nodes(&self) -> usize {
        NODES
    }

    /// After the clients' ports come those on which the nodes talk among themselves.
    fn ports(&self) -> usize {
        2 * NODES
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        let mut server = command(&program.path, ["--bind", "127.0.0.1"]);
        server.arg("--dir").arg(home);
        server
            .args(SETTINGS)
            .args(CLUSTER_SETTINGS)
            .args(of_node(ports, node));
        server
    }

    fn image(&self, ports: &[u16]) -> Option<Image> {
        let program = self.0.program_name();
        let settings = SETTINGS
            .iter()
            .chain(&CLUSTER_SETTINGS)
            .map(|word| format!("'{word}'"));
        let settings = settings.collect::<Vec<_>>().join(" ");
        // The shell is process 1, so it has to pass on the request to stop.
        let mut script = "trap 'trap \"\" TERM; kill -s TERM 0' TERM\n".to_owned();
        for node in 0..NODES {
            let own = of_node(ports, node).join(" ");
            script.push_str(&format!("{program} {settings} {own} \"$@\" &\n"));
        }
        // The first wait ends with the signal, the second with the servers.
        script.push_str("wait\nwait\n");
        let (name, tag) = self.0.image_name();
        Some(Image {
            name,
            tag,
            environment: &[],
            // What a test adds is for every node.
            arguments: vec!["sh".into(), "-c".into(), script, "sh".into()],
        })
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        self.0.answers(port)
    }

    fn form(&self, ports: &[u16]) -> Result<(), String> {
        for (node, &port) in ports[..NODES].iter().enumerate() {
            ask(
                port,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()],
            )?;
        }
        for (node, &port) in ports[..PRIMARIES].iter().enumerate() {
            let first = node * SLOTS / PRIMARIES;
            let last = (node + 1) * SLOTS / PRIMARIES - 1;
            ask(
                port,
                &[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &first.to_string(),
                    &last.to_string(),
                ],
            )?;
        }
        for node in 1..NODES {
            let (port, bus) = (ports[node].to_string(), ports[NODES + node].to_string());
            ask(ports[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        for node in PRIMARIES..NODES {
            let primary = ask(ports[node - PRIMARIES], &["CLUSTER", "MYID"])?;
            replicate(ports[node], &primary)?;
        }
        Ok(())
    }

    fn ready(&self, ports: &[u16]) -> Result<(), String> {
        for &port in &ports[..NODES] {
            let cluster = ask(port, &["CLUSTER", "INFO"])?;
            if !cluster.contains("cluster_state:ok")
                || !cluster.contains(&format!("cluster_known_nodes:{NODES}\r"))
            {
                return Err("the cluster has not formed".to_owned());
            }
            let replication = ask(port, &["INFO", "replication"])?;
            if replication.contains("master_link_status:down") {
                return Err("a replica has not caught up".to_owned());
            }
        }
        Ok(())
    }

    /// One node's URL; clients ask it for the others.
    fn url(&self, port: u16) -> String {
        self.0.url(port)
    }
}

/// The settings in which the nodes differ. They share a directory, so their files are named apart.
fn of_node(ports: &[u16], node: usize) -> [String; 10] {
    let (port, bus) = (ports[node], ports[NODES + node]);
    [
        "--port".into(),
        port.to_string(),
        "--cluster-port".into(),
        bus.to_string(),
        "--cluster-config-file".into(),
        format!("nodes-{port}.conf"),
        "--appenddirname".into(),
        format!("appendonly-{port}"),
        "--dbfilename".into(),
        format!("dump-{port}.rdb"),
    ]
}

/// Makes a node the replica of another, as soon as it has heard of it.
fn replicate(port: u16, primary: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match ask(port, &["CLUSTER", "REPLICATE", primary]) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
