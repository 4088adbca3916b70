//! An NDJSON file that purged messages are appended to.

use std::path::Path;

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
    /// Opens the file, and creates it if need be.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .await
            .with_context(|| format!("cannot write the archive {}", path.display()))?;
        Ok(Self {
            file: Mutex::new(file),
        })
    }
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
