//! The stores that can be measured.

use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use inbox::{HandlerName, Inbox, Kind, Message, MessageId};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    Memory,
    /// WAL with `synchronous=NORMAL`.
    Sqlite,
    /// WAL with `synchronous=FULL`, the default for applications.
    SqliteFull,
}

/// A fresh, empty inbox; what it needs on disk goes when this is dropped.
pub(crate) struct Fresh {
    pub(crate) store: Arc<dyn Inbox>,
    _folder: Option<TempDir>,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite, synchronous=normal",
            Self::SqliteFull => "sqlite, synchronous=full",
        }
    }

    pub(crate) async fn fresh(self) -> Result<Fresh> {
        let synchronous = match self {
            Self::Memory => {
                let store = inbox::connect("memory://").await?;
                return Ok(Fresh {
                    store,
                    _folder: None,
                });
            }
            Self::Sqlite => "normal",
            Self::SqliteFull => "full",
        };
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("bench.db");
        let url = format!("sqlite://{}?synchronous={synchronous}", path.display());
        let store = inbox::connect(&url).await?;
        store.create().await?;
        Ok(Fresh {
            store,
            _folder: Some(folder),
        })
    }
}

/// The handler of all benchmark messages.
pub(crate) fn handler() -> Result<HandlerName> {
    Ok(HandlerName::new("bench")?)
}

/// The messages numbered `from..to`.
pub(crate) fn messages(from: u64, to: u64, payload: usize) -> Result<Vec<Message>> {
    let handler = handler()?;
    let kind = Kind::new("bench.event")?;
    let body = inbox::Bytes::from(vec![b'x'; payload]);
    (from..to)
        .map(|n| {
            // Spread like random identifiers, so that indexes are not flattered by order.
            let id = MessageId::new(format!(
                "{:016x}-{n}",
                n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ))?;
            Ok(Message::new(
                handler.clone(),
                id,
                kind.clone(),
                body.clone(),
            ))
        })
        .collect()
}
