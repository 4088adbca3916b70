//! Installs what servers tests need, as root on Debian or Ubuntu.

mod ferretdb;
mod maven;
mod nats;
mod release;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::unistd::Uid;
use release::{RELEASES, Release};
use test_servers::{ADDED, Kind, docker_answers, locate};

/// The packages of Debian and Ubuntu.
const PACKAGES: [(Kind, &[&str]); 9] = [
    (Kind::Postgres, &["postgresql"]),
    (Kind::Pgbouncer, &["pgbouncer"]),
    (Kind::Mariadb, &["mariadb-server"]),
    (Kind::Galera, &["galera-4", "rsync"]),
    (Kind::Redis, &["redis-server"]),
    (Kind::Kafka, &["default-jre-headless", "maven"]),
    (Kind::RabbitMq, &["rabbitmq-server"]),
    (Kind::Nats, &["nats-server"]),
    (Kind::Prometheus, &["prometheus"]),
];

const NOT_PACKAGED: &str = "\
MongoDB is not installed: neither Debian nor Ubuntu packages it.
Use Docker for it, or set INBOX_TEST_MONGODB_URL.";

/// A server that no package has.
struct Addition {
    name: &'static str,
    is_there: fn(&Path) -> bool,
    add: fn(&Path) -> Result<(), Failure>,
}

const ADDITIONS: [Addition; 4] = [
    Addition {
        name: "FerretDB",
        is_there: ferretdb::is_there,
        add: ferretdb::build,
    },
    Addition {
        name: "Kafka from Maven Central",
        is_there: |directory| maven::KAFKA.is_there(directory),
        add: |directory| maven::KAFKA.add(directory),
    },
    Addition {
        name: "ElasticMQ from Maven Central",
        is_there: |directory| maven::ELASTICMQ.is_there(directory),
        add: |directory| maven::ELASTICMQ.add(directory),
    },
    Addition {
        name: "NATS by Go module",
        is_there: nats::is_there,
        add: nats::build,
    },
];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Installs what is missing. What fails does not keep the rest from being installed.
pub(crate) fn install() -> Result<(), Failure> {
    let is_missing = |kind: &Kind| locate(*kind).is_err();
    let packages: Vec<&str> = PACKAGES
        .iter()
        .filter(|(kind, _)| is_missing(kind))
        .flat_map(|(_, packages)| packages.iter().copied())
        .chain((!test_servers::clocks_can_be_changed()).then_some("libfaketime"))
        .chain((!Path::new(release::KEYRING).exists()).then_some("debian-archive-keyring"))
        .collect();
    let directory = Path::new(ADDED);
    let releases: Vec<&Release> = RELEASES
        .iter()
        .filter(|release| !release.is_there(directory))
        .collect();
    let additions: Vec<&Addition> = ADDITIONS
        .iter()
        .filter(|addition| !(addition.is_there)(directory))
        .collect();
    if packages.is_empty() && releases.is_empty() && additions.is_empty() {
        say("Every server that can be installed is there already.")?;
        return say(NOT_PACKAGED);
    }
    if !Uid::effective().is_root() {
        if docker_answers() {
            return say("Docker answers; what has no image there, only root can install.");
        }
        return Err("only root can install servers".into());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err("no apt-get here: only Debian and Ubuntu are supported".into());
    }
    let mut failures = Vec::new();
    if !packages.is_empty() {
        failures.extend(install_packages(&packages).err());
    }
    failures.extend(add(&releases, &additions)?);
    say(NOT_PACKAGED)?;
    if failures.is_empty() {
        return Ok(());
    }
    let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
    Err(failures.join("\n").into())
}

fn install_packages(packages: &[&str]) -> Result<(), Failure> {
    let _dormant = Dormant::new()?;
    run(apt_get().arg("update"))?;
    run(apt_get()
        .args(["install", "-y", "--no-install-recommends"])
        .args(packages))?;
    say(&format!("Installed: {}.", packages.join(", ")))
}

/// Adds what is no package of this machine, all at the same time, and returns what failed.
fn add(releases: &[&Release], additions: &[&Addition]) -> Result<Vec<Failure>, Failure> {
    let directory = Path::new(ADDED);
    fs::create_dir_all(directory)?;
    // The second process waits, and finds it done.
    let lock = File::create(directory.join("lock"))?;
    lock.lock()?;
    let failures = thread::scope(|scope| {
        let mut running = Vec::new();
        for release in releases {
            running.push(scope.spawn(move || add_release(release, directory)));
        }
        for addition in additions {
            running.push(scope.spawn(move || add_other(addition, directory)));
        }
        let ended = running.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .filter_map(|ended| {
                ended
                    .unwrap_or_else(|_| Err("a thread panicked".into()))
                    .err()
            })
            .collect()
    });
    Ok(failures)
}

fn add_release(release: &Release, directory: &Path) -> Result<(), Failure> {
    if release.is_there(directory) {
        return Ok(());
    }
    release.unpack(directory)?;
    let packages = release.packages.join(", ");
    say(&format!("Added from Debian {}: {packages}.", release.name))
}

fn add_other(addition: &Addition, directory: &Path) -> Result<(), Failure> {
    if (addition.is_there)(directory) {
        return Ok(());
    }
    (addition.add)(directory)?;
    say(&format!("Added: {}.", addition.name))
}

fn apt_get() -> Command {
    let mut apt_get = Command::new("apt-get");
    apt_get.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    apt_get
}

/// Runs a command silently. If it fails, the end of what it wrote is part of the error.
fn run(command: &mut Command) -> Result<(), Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let written = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = written.lines().collect();
    let end = lines[lines.len().saturating_sub(10)..].join("\n");
    Err(format!("{name} failed ({}): {end}", output.status).into())
}

/// While this exists, packages do not start the services they install: Debian asks this program
/// first. Where the machine has such a policy already, that one stands.
struct Dormant {
    ours: bool,
}

impl Dormant {
    const POLICY: &str = "/usr/sbin/policy-rc.d";
    /// 101 means that the action is forbidden.
    const FORBID: &str = "#!/bin/sh\nexit 101\n";

    fn new() -> io::Result<Self> {
        let mut policy = match File::create_new(Self::POLICY) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Ok(Self { ours: false });
            }
            created => created?,
        };
        let dormant = Self { ours: true };
        policy.write_all(Self::FORBID.as_bytes())?;
        policy.set_permissions(fs::Permissions::from_mode(0o755))?;
        Ok(dormant)
    }
}

impl Drop for Dormant {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = fs::remove_file(Self::POLICY)
        {
            let _ = writeln!(io::stderr(), "could not remove {}: {error}", Self::POLICY);
        }
    }
}

fn say(text: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{text}")?;
    Ok(())
}
