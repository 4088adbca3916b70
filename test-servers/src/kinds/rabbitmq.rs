//! RabbitMQ: one node, with the plug-in for streams, and the management plug-in, which tests ask for counts.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Image, Recipe};
use crate::debian;
use crate::program::Program;
use crate::wire;

/// Where Debian has it, below the root directory. The script on the PATH only changes the user and the place of the log.
const PLACE: &str = "usr/lib/rabbitmq/lib";

/// A node needs Erlang's port mapper, and would start one for the whole machine that outlives it. It gets one
/// of its own: the shell stays, and ends both. `$1` is the port mapper's port, `$2` the server.
const SCRIPT: &str = r#"
epmd -address 127.0.0.1 -port "$1" & mapper=$!
shift
"$@" & server=$!
trap 'kill -s TERM $server' TERM
wait $server
while kill -s 0 $server 2>/dev/null; do wait $server; done
kill -s KILL $mapper
"#;

/// Whatever is asked of the management plug-in is counted when it is asked, not every five seconds.
fn settings(ports: &[u16]) -> String {
    let (broker, management, streams) = (ports[0], ports[1], ports[4]);
    format!(
        "\
listeners.tcp.1 = 127.0.0.1:{broker}
stream.listeners.tcp.1 = 127.0.0.1:{streams}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
management_agent.disable_metrics_collector = true
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 512MB
vm_memory_calculation_strategy = allocated
disk_free_limit.absolute = 1MB
"
    )
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RabbitMq {
    /// Whichever version the machine has.
    Any,
    /// Debian's next release has it.
    RabbitMq4,
}

impl Recipe for RabbitMq {
    fn program(&self) -> Result<Program, String> {
        let root = match self {
            Self::Any => None,
            Self::RabbitMq4 => Some(debian::runnable_root(debian::TESTING)?),
        };
        let place = root.as_deref().unwrap_or(Path::new("/")).join(PLACE);
        let path = newest(&place).ok_or_else(|| format!("no RabbitMQ in {}", place.display()))?;
        let name = path.iter().rev().nth(2).unwrap_or_default();
        let version = name.to_string_lossy().replace("rabbitmq_server-", "");
        Ok(Program {
            path,
            version: format!("RabbitMQ {version}"),
            root,
        })
    }

    fn users(&self) -> &'static [&'static str] {
        &["rabbitmq"]
    }

    /// The broker's, the management plug-in's, that of Erlang's distribution, the port mapper's, and that for streams.
    fn ports(&self) -> usize {
        5
    }

    fn prepare(&self, _: &Program, home: &Path, ports: &[u16]) -> io::Result<Vec<Command>> {
        fs::write(home.join("rabbitmq.conf"), settings(ports))?;
        let plugins = "[rabbitmq_management, rabbitmq_stream].\n";
        fs::write(home.join("enabled_plugins"), plugins)?;
        Ok(Vec::new())
    }

    /// Further arguments are the Erlang machine's, such as `-rabbit consumer_timeout 5000`.
    fn command(&self, program: &Program, home: &Path, ports: &[u16], _: usize) -> Command {
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=TERM");
        let home = home.display();
        for (name, value) in [
            ("RABBITMQ_NODENAME", format!("test-{}@localhost", ports[0])),
            ("RABBITMQ_CONF_ENV_FILE", format!("{home}/none")),
            ("RABBITMQ_CONFIG_FILE", format!("{home}/rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", format!("{home}/none")),
            (
                "RABBITMQ_ENABLED_PLUGINS_FILE",
                format!("{home}/enabled_plugins"),
            ),
            ("RABBITMQ_MNESIA_BASE", format!("{home}/mnesia")),
            ("RABBITMQ_LOG_BASE", home.to_string()),
            ("RABBITMQ_DIST_PORT", ports[2].to_string()),
            ("ERL_EPMD_PORT", ports[3].to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            // Two schedulers that sleep rather than spin.
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} \
                 +S 2:2 +SDio 4 +sbwt none +sbwtdcpu none +sbwtdio none"
                    .to_owned(),
            ),
        ] {
            command.arg(format!("{name}={value}"));
        }
        command.args(["sh", "-c", SCRIPT, "rabbitmq"]);
        command.arg(ports[3].to_string()).arg(&program.path);
        command
    }

    fn image(&self, _: &[u16]) -> Option<Image> {
        None
    }

    /// It greets a client once it takes any.
    fn answers(&self, port: u16) -> Result<(), String> {
        greeting(port).map_err(|error| error.to_string())
    }

    fn url(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
    }
}

fn newest(place: &Path) -> Option<PathBuf> {
    let mut places: Vec<_> = fs::read_dir(place)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("sbin/rabbitmq-server"))
        .filter(|path| path.is_file())
        .collect();
    places.sort();
    places.pop()
}

fn greeting(port: u16) -> io::Result<()> {
    let mut stream = wire::connect(port)?;
    stream.write_all(b"AMQP\x00\x00\x09\x01")?;
    let mut answer = [0; 11];
    stream.read_exact(&mut answer)?;
    match answer {
        // A method's frame on channel 0: connection.start.
        [1, 0, 0, _, _, _, _, 0, 10, 0, 10] => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not an answer of RabbitMQ",
        )),
    }
}
