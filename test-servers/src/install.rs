use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use nix::unistd::Uid;
use test_servers::{Kind, docker_answers, locate};

/// The packages of Debian and Ubuntu. MySQL's and MariaDB's exclude each other, so of the two it
/// is MariaDB, which both distributions have.
const PACKAGES: [(Kind, &str); 3] = [
    (Kind::Postgres, "postgresql"),
    (Kind::Mariadb, "mariadb-server"),
    (Kind::Redis, "redis-server"),
];

const NOT_PACKAGED: &str = "\
MySQL is not installed: Debian does not package it, and Ubuntu's package excludes MariaDB's.
MongoDB is not installed: neither Debian nor Ubuntu packages it.
Use Docker for them, or set INBOX_TEST_MYSQL_URL and INBOX_TEST_MONGODB_URL.";

pub(crate) fn install() -> Result<(), Box<dyn std::error::Error>> {
    if docker_answers() {
        return say("Docker answers, so there is nothing to install.");
    }
    let missing: Vec<&str> = PACKAGES
        .into_iter()
        .filter(|(kind, _)| locate(*kind).is_err())
        .map(|(_, package)| package)
        .collect();
    if missing.is_empty() {
        say("Every server that Debian and Ubuntu package is there already.")?;
        return say(NOT_PACKAGED);
    }
    let command = format!(
        "apt-get install -y --no-install-recommends {}",
        missing.join(" ")
    );
    if !Uid::effective().is_root() {
        return Err(format!("only root can install packages: sudo {command}").into());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err("no apt-get here: only Debian and Ubuntu are supported".into());
    }
    let _dormant = Dormant::new()?;
    apt_get(&["update"])?;
    apt_get(&[&["install", "-y", "--no-install-recommends"], &missing[..]].concat())?;
    say(&format!("Installed: {}.", missing.join(", ")))?;
    say(NOT_PACKAGED)
}

fn apt_get(arguments: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("apt-get {} failed: {status}", arguments.join(" ")).into())
    }
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
        let mut policy = match fs::File::create_new(Self::POLICY) {
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

fn say(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    writeln!(io::stdout(), "{text}")?;
    Ok(())
}
