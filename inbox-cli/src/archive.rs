//! An NDJSON file that purged messages are appended to.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inbox::{Archiver, Record};
use serde::Serialize;
use tokio::{fs::File, io::AsyncWriteExt, sync::Mutex};

use crate::output::RecordView;

/// Appends records, and has them on disk before it says so.
#[derive(Debug)]
pub(crate) struct ArchiveFile {
    file: Mutex<File>,
}

/// A record and its bytes. Base64, because a payload may be anything.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    record: RecordView<'a>,
    payload_base64: Option<String>,
    result_base64: Option<String>,
}

impl ArchiveFile {
    /// Opens the file, and creates it if need be. No other process writes to it until this one ends.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file =
            open(path).with_context(|| format!("cannot write the archive {}", path.display()))?;
        Ok(Self {
            file: Mutex::new(File::from_std(file)),
        })
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
    // Where files cannot be locked, nothing says so before lines have mixed.
    if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
        return Err(io::Error::other("another process writes to it"));
    }
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
                payload_base64: record.payload.as_ref().map(|bytes| BASE64.encode(bytes)),
                result_base64: record.result.as_ref().map(|bytes| BASE64.encode(bytes)),
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
        let mut file = self.file.lock().await;
        file.write_all(&lines).await?;
        file.flush().await?;
        file.sync_data().await?;
        Ok(())
    }
}
