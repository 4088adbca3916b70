//! An NDJSON file that purged messages are appended to.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::{
        fd::AsFd as _,
        unix::fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inbox::{Archiver, Record};
use inbox_dashboard::view::{
    InterventionView, PastAttemptView, RecordView, history, interventions,
};
use serde::Serialize;
use tokio::{fs::File, io::AsyncWriteExt, sync::Mutex, time::timeout};

use crate::output::json_written_out;

/// After this, it is said that a reader is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Appends records, and has them on disk before it says so. A pipe or a terminal has no disk:
/// there, what was written is all that can be known.
#[derive(Debug)]
pub(crate) struct ArchiveFile {
    file: Mutex<File>,
    is_on_disk: bool,
    /// Whether it is where results are printed, too.
    pub(crate) is_stdout: bool,
}

/// A record and its bytes. Base64, because a payload may be anything.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    record: RecordView<'a>,
    history: Vec<PastAttemptView<'a>>,
    interventions: Vec<InterventionView<'a>>,
    payload_base64: Option<String>,
    result_base64: Option<String>,
}

impl ArchiveFile {
    /// Opens the file, and creates it if need be; `-` is standard output. No other process writes to
    /// it until this one ends.
    ///
    /// Waits for a reader if it is a named pipe.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let context = || format!("cannot write the archive {}", path.display());
        let stdout = fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let place = Place::of(&stdout.metadata()?);
        let owned = path.to_owned();
        let opening = tokio::task::spawn_blocking(move || {
            if owned == Path::new("-") {
                lock(&stdout)?;
                return Ok(stdout);
            }
            open(&owned)
        });
        let mut opening = pin!(opening);
        let opened = match timeout(PATIENCE, &mut opening).await {
            Ok(opened) => opened,
            Err(_) => {
                tracing::warn!("waiting for a reader of {}", path.display());
                opening.await
            }
        };
        let file = opened?.with_context(context)?;
        let metadata = file.metadata().with_context(context)?;
        Ok(Self {
            file: Mutex::new(File::from_std(file)),
            is_on_disk: metadata.is_file() || metadata.file_type().is_block_device(),
            is_stdout: Place::of(&metadata) == place,
        })
    }
}

/// What tells one file from all others, whatever its name.
#[derive(Debug, PartialEq, Eq)]
struct Place(u64, u64);

impl Place {
    fn of(metadata: &fs::Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

/// Fails when `path` is a part of the inbox in the file `database`. To be asked before it is opened:
/// closing it again would release the locks that SQLite has on it in this process.
pub(crate) fn check_is_not_inbox(path: &Path, database: &Path) -> Result<()> {
    let place = fs::metadata(path).ok().map(|metadata| Place::of(&metadata));
    for ending in ["", "-wal", "-shm", "-journal"] {
        let mut part = database.as_os_str().to_owned();
        part.push(ending);
        let part = Path::new(&part);
        let is_same_file = place.is_some()
            && place == fs::metadata(part).ok().map(|metadata| Place::of(&metadata));
        // One that is not there yet has a name already.
        let is_same_name = is_same_file || full_name(path) == full_name(part);
        ensure!(
            !is_same_name,
            "{} is a file of the inbox itself",
            path.display()
        );
    }
    Ok(())
}

/// The path without links on the way to its folder.
fn full_name(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let folder = absolute.parent()?.canonicalize().ok()?;
    Some(folder.join(absolute.file_name()?))
}

fn lock(file: &fs::File) -> io::Result<()> {
    // Where files cannot be locked, nothing says so before lines have mixed.
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(io::Error::other("another process writes to it")),
        _ => Ok(()),
    }
}

fn open(path: &Path) -> io::Result<fs::File> {
    let created = fs::File::options().create_new(true).append(true).open(path);
    let mut file = match created {
        Ok(file) => {
            // Its name has to be on disk as well as what is in it.
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            if let Ok(folder) = fs::File::open(folder.unwrap_or(Path::new("."))) {
                folder.sync_all()?;
            }
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::File::options().create(true).append(true).open(path)?
        }
        Err(error) => return Err(error),
    };
    lock(&file)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.len() > 0 && !ends_with_a_line(path)? {
        // A run that was cut short has left half a line, whose message is still in the inbox. It
        // must not become a part of the next one.
        file.write_all(b"\n")?;
    }
    Ok(file)
}

fn ends_with_a_line(path: &Path) -> io::Result<bool> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[async_trait]
impl Archiver for ArchiveFile {
    async fn archive(
        &self,
        records: &[Record],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut lines = Vec::new();
        for record in records {
            let line = Line {
                record: RecordView::from(record),
                history: history(record),
                interventions: interventions(record),
                payload_base64: record.payload.as_ref().map(|bytes| BASE64.encode(bytes)),
                result_base64: record.result.as_ref().map(|bytes| BASE64.encode(bytes)),
            };
            let line = serde_json::to_string(&line)?;
            // It may go to a terminal.
            lines.extend_from_slice(json_written_out(&line).as_bytes());
            lines.push(b'\n');
        }
        let mut file = self.file.lock().await;
        file.write_all(&lines).await?;
        file.flush().await?;
        if self.is_on_disk {
            file.sync_data().await?;
        }
        Ok(())
    }
}
