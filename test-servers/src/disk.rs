//! Small disks, in memory, which can be filled. Only root makes them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;

use crate::error::Skipped;
use crate::watchdog::Watchdog;

/// Room for a server's empty data directory, its logs, and what a crash run stores.
const MEBIBYTES: u32 = 768;
/// What takes up the room that is left.
const FILLER: &str = "filler";
const CHUNK: usize = 1 << 20;

/// A directory on a small disk of its own, which disappears with this value, also when the process is killed.
#[derive(Debug)]
pub struct SmallDisk {
    directory: PathBuf,
    _watchdog: Watchdog,
}

impl SmallDisk {
    /// A new one of 768 MiB, which takes memory as it is used.
    ///
    /// # Errors
    /// [`Skipped`] where no disk can be made: only root may.
    pub fn create() -> Result<Self, Skipped> {
        let (process, random) = (std::process::id(), fastrand::u32(..));
        let name = format!("test-disk-{process}-{random:08x}");
        let directory = std::env::temp_dir().join(name);
        let skipped = |error: io::Error| Skipped {
            reason: format!("no small disk: {error}"),
        };
        let watchdog = Watchdog::over_directory(&directory, "").map_err(skipped)?;
        mount(&directory).map_err(skipped)?;
        Ok(Self {
            directory,
            _watchdog: watchdog,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes up all room that is left.
    ///
    /// # Errors
    /// When the operating system refuses, for another reason than that the disk is full.
    pub fn fill(&self) -> io::Result<()> {
        fill(&self.directory)
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn clear(&self) -> io::Result<()> {
        clear(&self.directory)
    }
}

/// Puts a small disk over an empty directory. The watchdog of the directory takes it away.
pub(crate) fn mount(directory: &Path) -> io::Result<()> {
    if !Uid::effective().is_root() {
        return Err(io::Error::other("only root can make a disk"));
    }
    let mut mount = Command::new("mount");
    let options = format!("size={MEBIBYTES}m,mode=0700");
    mount.args(["-t", "tmpfs", "-o", &options, "test-disk"]);
    let output = mount.arg(directory).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.trim().to_owned()))
}

pub(crate) fn fill(directory: &Path) -> io::Result<()> {
    let mut filler = File::create(directory.join(FILLER))?;
    // By large pieces first, then to the last byte.
    let zeros = vec![0; CHUNK];
    let mut piece = CHUNK;
    while piece > 0 {
        match filler.write(&zeros[..piece]) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => piece /= 2,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(FILLER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_can_be_filled_and_cleared_and_disappears() {
        let disk = match SmallDisk::create() {
            Ok(disk) => disk,
            Err(skipped) => {
                let line = format!("test-servers: skipped: {skipped}\n");
                io::stderr().write_all(line.as_bytes()).unwrap();
                return;
            }
        };
        let file = disk.directory().join("data");
        fs::write(&file, "before").unwrap();
        disk.fill().unwrap();
        let full = fs::write(disk.directory().join("more"), vec![0; 1 << 16]);
        let full = full.expect_err("there was room");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        disk.clear().unwrap();
        disk.clear().unwrap();
        fs::write(&file, vec![0; 1 << 20]).unwrap();
        let directory = disk.directory().to_owned();
        drop(disk);
        assert!(!directory.exists());
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let name = directory.display().to_string();
        assert!(!mounts.contains(&name), "it is still mounted");
    }
}
