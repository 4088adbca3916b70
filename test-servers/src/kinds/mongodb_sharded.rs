//! A sharded cluster of MongoDB.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::mongodb::{Mongodb, data, initiate, is_member, mongod, run, succeeded, text};
use super::{Image, Recipe, command};
use crate::program::Program;

/// A `mongos`, a configuration server and two shards.
pub(crate) struct Sharded;

const MONGOS: usize = 0;
const CONFIGURATION: usize = 1;
const SETS: [&str; 4] = ["", "configuration", "shard-1", "shard-2"];

impl Recipe for Sharded {
    fn program(&self) -> Result<Program, String> {
        let mongod = Mongodb { members: 1 }.program()?;
        match mongod.companion("mongos") {
            Some(_) => Ok(mongod),
            None => Err("no mongos next to mongod or on PATH".to_owned()),
        }
    }

    fn nodes(&self) -> usize {
        SETS.len()
    }

    fn prepare(&self, _program: &Program, home: &Path, _ports: &[u16]) -> io::Result<Vec<Command>> {
        for node in CONFIGURATION..SETS.len() {
            fs::create_dir(data(home, node))?;
        }
        Ok(Vec::new())
    }

    fn command(&self, program: &Program, home: &Path, ports: &[u16], node: usize) -> Command {
        if node == MONGOS {
            let mongos = program.companion("mongos").unwrap_or_default();
            let mut router = command(&mongos, ["--bind_ip", "127.0.0.1", "--nounixsocket"]);
            router.args(["--port", &ports[MONGOS].to_string(), "--configdb"]);
            router.arg(member(ports, CONFIGURATION));
            return router;
        }
        let mut server = mongod(&program.path, home, ports, node, SETS[node]);
        server.arg(match node {
            CONFIGURATION => "--configsvr",
            _ => "--shardsvr",
        });
        server
    }

    fn image(&self, _ports: &[u16]) -> Option<Image> {
        None
    }

    fn answers_once_formed(&self, node: usize) -> bool {
        node == MONGOS
    }

    fn answers(&self, port: u16) -> Result<(), String> {
        Mongodb { members: 1 }.answers(port)
    }

    fn form(&self, ports: &[u16]) -> Result<(), String> {
        for node in CONFIGURATION..SETS.len() {
            initiate(SETS[node], &ports[node..=node])?;
        }
        Ok(())
    }

    fn ready(&self, ports: &[u16]) -> Result<(), String> {
        for &port in &ports[CONFIGURATION..SETS.len()] {
            is_member(port, "ismaster")?;
        }
        // A shard that has been added is added again without effect.
        for node in CONFIGURATION + 1..SETS.len() {
            let answer = run(ports[MONGOS], &[text("addShard", &member(ports, node))])?;
            succeeded(&answer)?;
        }
        Ok(())
    }

    fn url(&self, port: u16) -> String {
        format!("mongodb://127.0.0.1:{port}/")
    }
}

/// A set and its only member.
fn member(ports: &[u16], node: usize) -> String {
    format!("{}/127.0.0.1:{}", SETS[node], ports[node])
}
