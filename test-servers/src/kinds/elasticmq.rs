//! ElasticMQ, which speaks the protocol of Amazon SQS: one process, with queues and messages in a file.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, java};
use crate::program::Program;
use crate::wire;

const SERVER: &str = "elasticmq";
/// The account that has the queues, which is part of their URLs.
const ACCOUNT: &str = "000000000000";

pub(crate) struct ElasticMq;

impl Recipe for ElasticMq {
    fn program(&self) -> Result<Program, String> {
        java::program(SERVER)
    }

    fn prepare(&self, _: &Program, home: &Path, ports: &[u16]) -> io::Result<Vec<Command>> {
        let port = ports[0];
        let settings = format!(
            "include classpath(\"application.conf\")\n\
             pekko.loglevel = WARNING\n\
             node-address {{ host = 127.0.0.1, port = {port} }}\n\
             rest-sqs {{ bind-hostname = 127.0.0.1, bind-port = {port} }}\n\
             rest-stats.enabled = false\n\
             aws {{ region = elasticmq, accountId = \"{ACCOUNT}\" }}\n\
             messages-storage {{ enabled = true, uri = \"jdbc:h2:./messages;WRITE_DELAY=0\" }}\n"
        );
        fs::write(home.join("elasticmq.conf"), settings)?;
        Ok(Vec::new())
    }

    fn command(&self, program: &Program, _: &Path, _: &[u16], _: usize) -> Command {
        let options = ["-Dconfig.file=elasticmq.conf"];
        java::run(&program.path, SERVER, &options, "org.elasticmq.server.Main")
    }

    fn image(&self, _: &[u16]) -> Option<Image> {
        None
    }

    /// It answers to a request without an action that there is none.
    fn answers(&self, port: u16) -> Result<(), String> {
        let answer = ask(port).map_err(|error| error.to_string())?;
        if answer.contains("MissingAction") {
            return Ok(());
        }
        Err("not an answer of ElasticMQ".to_owned())
    }

    fn url(&self, port: u16) -> String {
        format!("http://127.0.0.1:{port}/{ACCOUNT}")
    }
}

fn ask(port: u16) -> io::Result<String> {
    let mut stream = wire::connect(port)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
