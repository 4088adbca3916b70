//! Puts programs of another Debian release into a directory, to be run with that as their root
//! directory.
//!
//! apt finds, downloads and verifies the packages as it would for an empty system. They are only
//! unpacked: none of their scripts runs, so nothing is set up or started, and the machine's own
//! packages are left alone.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Failure, run};

const MIRROR: &str = "http://deb.debian.org/debian";
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The programs that tests take from a release.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) name: &'static str,
    pub(super) packages: &'static [&'static str],
    /// Files, and what they are other names of. Packages leave these to their scripts.
    links: &'static [(&'static str, &'static str)],
}

/// PostgreSQL's initdb and RabbitMQ's start use a shell, and what shells use.
pub(super) const RELEASES: [Release; 2] = [
    Release {
        name: "testing",
        packages: &[
            "coreutils",
            "dash",
            "grep",
            "postgresql-18",
            "postgresql-18-documentdb",
            "rabbitmq-server",
            "redis-server",
            "sed",
            "valkey-server",
        ],
        // DocumentDB needs PostGIS.
        links: &[(
            "usr/share/postgresql/18/extension/postgis.control",
            "postgis-3.control",
        )],
    },
    // MySQL is kept from being released.
    Release {
        name: "unstable",
        packages: &["mysql-server-core"],
        links: &[],
    },
];

/// What no server reads, which is a third of it.
const LEFT_OUT: [&str; 6] = [
    "./usr/share/doc",
    "./usr/share/fonts",
    "./usr/share/i18n",
    "./usr/share/locale",
    "./usr/share/man",
    "./usr/share/perl",
];

/// Files in `etc`: the users that servers run as and the groups of the same numbers, and the name
/// that DocumentDB calls its own server by.
const FILES: [(&str, &str); 3] = [
    (
        "passwd",
        "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    ),
    ("group", "root:x:0:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost\n"),
];

impl Release {
    /// Whether it is there, whole, as it is wanted today.
    pub(super) fn is_there(&self, directory: &Path) -> bool {
        let made = fs::read_to_string(Self::description_file(&directory.join(self.name)));
        made.is_ok_and(|made| made == self.description())
    }

    /// Unpacks it into its own directory below `directory`. Until all is done, that has
    /// another name, so what is there is whole.
    pub(super) fn unpack(&self, directory: &Path) -> Result<(), Failure> {
        let root = directory.join(self.name);
        let work = directory.join(format!("{}.partial", self.name));
        remove(&work)?;
        let new = work.join("root");
        self.lay_out(&new, &root)?;
        for package in self.download(&work.join("apt"))? {
            unpack(&package, &new)?;
        }
        // Written last: files of packages replace those that were there before.
        for (name, text) in FILES {
            fs::write(new.join("etc").join(name), text)?;
        }
        for (link, file) in self.links {
            symlink(file, new.join(link))?;
        }
        fs::write(Self::description_file(&new), self.description())?;
        remove(&root)?;
        fs::rename(&new, &root)?;
        remove(&work)?;
        Ok(())
    }

    fn description(&self) -> String {
        format!("{self:?}\n{FILES:?}\n{LEFT_OUT:?}\n")
    }

    fn description_file(root: &Path) -> PathBuf {
        root.join("etc/test-servers")
    }

    /// The directories, links and devices that packages take for granted, in a new directory that
    /// will become `root`.
    fn lay_out(&self, new: &Path, root: &Path) -> Result<(), Failure> {
        for directory in ["dev", "etc", "proc", "tmp"] {
            fs::create_dir_all(new.join(directory))?;
        }
        fs::set_permissions(new.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        for directory in ["bin", "lib", "lib64", "sbin"] {
            let place = Path::new("usr").join(directory);
            fs::create_dir_all(new.join(&place))?;
            symlink(&place, new.join(directory))?;
        }
        for (device, minor) in [("null", "3"), ("zero", "5"), ("urandom", "9")] {
            let mut mknod = Command::new("mknod");
            mknod.args(["-m", "666"]).arg(new.join("dev").join(device));
            run(mknod.args(["c", "1", minor]))?;
        }
        // Makes the root directory known inside by the path that it has outside.
        let outside = root.strip_prefix("/")?;
        let link = new.join(outside);
        fs::create_dir_all(link.parent().unwrap_or(new))?;
        symlink("/", &link)?;
        Ok(())
    }

    /// Downloads the packages and all that they need.
    fn download(&self, apt: &Path) -> Result<Vec<PathBuf>, Failure> {
        let archives = apt.join("cache/archives");
        fs::create_dir_all(archives.join("partial"))?;
        fs::create_dir_all(apt.join("state/lists/partial"))?;
        let (status, sources) = (apt.join("status"), apt.join("sources.list"));
        fs::write(&status, "")?;
        let name = self.name;
        let source = format!("deb [signed-by={KEYRING}] {MIRROR} {name} main\n");
        fs::write(&sources, source)?;
        let apt_get = || {
            let mut apt_get = Command::new("apt-get");
            // Further settings, such as a proxy's address, are the machine's.
            for setting in [
                format!("Dir::State={}", apt.join("state").display()),
                format!("Dir::State::status={}", status.display()),
                format!("Dir::Cache={}", apt.join("cache").display()),
                format!("Dir::Etc::sourcelist={}", sources.display()),
                "Dir::Etc::sourceparts=/dev/null".to_owned(),
                "Dir::Etc::preferences=/dev/null".to_owned(),
                "Dir::Etc::preferencesparts=/dev/null".to_owned(),
                "APT::Sandbox::User=root".to_owned(),
                "APT::Update::Post-Invoke=".to_owned(),
                "Acquire::Languages=none".to_owned(),
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
                "Acquire::Retries=3".to_owned(),
            ] {
                apt_get.args(["-o", &setting]);
            }
            apt_get.arg("-qq");
            apt_get
        };
        run(apt_get().arg("update"))?;
        run(apt_get()
            .args([
                "install",
                "-y",
                "--no-install-recommends",
                "--download-only",
            ])
            .args(self.packages))?;
        let mut packages: Vec<PathBuf> = fs::read_dir(archives)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        packages.retain(|path| path.extension().is_some_and(|ending| ending == "deb"));
        Ok(packages)
    }
}

/// Unpacks a package's files. The links of [`Release::lay_out`] stay, and files go through them.
fn unpack(package: &Path, root: &Path) -> Result<(), Failure> {
    let mut files = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()?;
    let archive = files.stdout.take().ok_or("no standard output")?;
    let mut tar = Command::new("tar");
    tar.arg("-x").arg("--keep-directory-symlink");
    tar.args(LEFT_OUT.map(|path| format!("--exclude={path}")));
    let unpacked = run(tar.arg("-C").arg(root).stdin(archive));
    let read = files.wait()?;
    unpacked?;
    if read.success() {
        Ok(())
    } else {
        Err(format!("dpkg-deb of {} failed: {read}", package.display()).into())
    }
}

/// Removes a directory, if it is there.
fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
