//! Apache Kafka: one process that is broker and controller (KRaft), with one copy of everything.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use super::{Image, Recipe, java};
use crate::program::Program;
use crate::wire;

/// What the server is known by. A new server has the same, as it has no other to be told from.
const CLUSTER_ID: &str = "aW5ib3gtdGVzdC1zZXJ2ZQ";

const SERVER: &str = "kafka";

/// A broker that was killed may register again after its session, so that is short. What is acknowledged
/// is with the operating system, not on disk: it survives a killed process, as more copies would
/// survive a power cut.
const SETTINGS: &str = "\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
log.dirs=data
broker.heartbeat.interval.ms=300
broker.session.timeout.ms=1500
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
log.cleaner.enable=false
num.io.threads=2
num.network.threads=2
num.recovery.threads.per.data.dir=1
background.threads=2
";

const LOGGING: &str = "\
status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
";

pub(crate) struct Kafka;

impl Recipe for Kafka {
    fn program(&self) -> Result<Program, String> {
        java::program(SERVER)
    }

    /// The second is the controller's, the third that of the listener `EXTRA`, to which a test can give another protocol, such
    /// as TLS: `--override listener.security.protocol.map=…`.
    fn ports(&self) -> usize {
        3
    }

    fn prepare(&self, _: &Program, home: &Path, ports: &[u16]) -> io::Result<Vec<Command>> {
        let (broker, controller, extra) = (ports[0], ports[1], ports[2]);
        let settings = format!(
            "{SETTINGS}\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTRA:PLAINTEXT\n\
             listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller},EXTRA://127.0.0.1:{extra}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{broker},EXTRA://localhost:{extra}\n"
        );
        fs::write(home.join("server.properties"), settings)?;
        fs::write(home.join("log4j2.properties"), LOGGING)?;
        // All that formatting it would write, which needs a Java of its own.
        let data = home.join("data");
        fs::create_dir(&data)?;
        let formatted = format!("version=1\nnode.id=1\ncluster.id={CLUSTER_ID}\n");
        fs::write(data.join("meta.properties"), formatted)?;
        Ok(Vec::new())
    }

    fn command(&self, program: &Program, _: &Path, _: &[u16], _: usize) -> Command {
        let options = ["-Dlog4j2.configurationFile=log4j2.properties"];
        let mut server = java::run(&program.path, SERVER, &options, "kafka.Kafka");
        server.arg("server.properties");
        server
    }

    fn image(&self, _: &[u16]) -> Option<Image> {
        None
    }

    /// It answers which versions of requests it knows once it takes requests at all.
    fn answers(&self, port: u16) -> Result<(), String> {
        api_versions(port).map_err(|error| error.to_string())
    }

    fn url(&self, port: u16) -> String {
        format!("kafka://127.0.0.1:{port}/")
    }
}

fn api_versions(port: u16) -> io::Result<()> {
    let mut stream = wire::connect(port)?;
    // Length, request 18 in its version 0, a number to know the answer by, no client's name.
    stream.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff])?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    match answer {
        [_, _, _, _, 0, 0, 0, 7, 0, 0] => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not an answer of Kafka",
        )),
    }
}
