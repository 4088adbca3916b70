//! Defects of receive.

use std::{collections::HashMap, sync::Mutex};

use async_trait::async_trait;
use inbox_api::{
    Edit, Error, ErrorKind, HandlerName, Message, MessageId, Operate, Receipt, Result, State, Store,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Looks whether the key is known, and inserts if not: two at once both see that it is not.
pub(crate) struct CheckThenInsert;

#[async_trait]
impl Defect for CheckThenInsert {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut known = Vec::new();
        for message in messages {
            known.push(inner.get(message.key()).await?.is_some());
        }
        // Between the two statements others get their turn.
        tokio::task::yield_now().await;
        let receipts = inner.receive(messages).await?;
        let mut batch = std::collections::HashSet::new();
        Ok(messages
            .iter()
            .zip(receipts)
            .zip(known)
            .map(|((message, receipt), known)| match receipt {
                Receipt::Duplicate { .. } if !known && batch.insert(message.key()) => {
                    Receipt::Accepted
                }
                receipt => {
                    batch.insert(message.key());
                    receipt
                }
            })
            .collect())
    }
}

/// The unique key is the message id alone.
#[derive(Default)]
pub(crate) struct KeyWithoutHandler {
    owner: Mutex<HashMap<MessageId, HandlerName>>,
}

#[async_trait]
impl Defect for KeyWithoutHandler {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for message in messages {
            let mine = {
                let mut owner = self.owner.lock().unwrap();
                owner
                    .entry(message.id().clone())
                    .or_insert_with(|| message.handler().clone())
                    == message.handler()
            };
            receipts.push(if mine {
                inner
                    .receive(std::slice::from_ref(message))
                    .await?
                    .remove(0)
            } else {
                Receipt::Duplicate { differs: false }
            });
        }
        Ok(receipts)
    }
}

/// What a folding column does to identifiers.
async fn folded(
    inner: &MemoryStore,
    messages: &[Message],
    fold: fn(&str) -> String,
) -> Result<Vec<Receipt>> {
    let mut receipts = Vec::new();
    for message in messages {
        let mut id = fold(message.id().as_str());
        if id.is_empty() {
            id = message.id().as_str().to_owned();
        }
        let page = inbox_api::Page::first(10_000);
        let known = inner.list(&inbox_api::Filter::default(), &page).await?;
        let clash = known
            .records
            .iter()
            .any(|r| &r.key.handler == message.handler() && fold(r.key.id.as_str()) == id);
        receipts.push(if clash {
            Receipt::Duplicate { differs: false }
        } else {
            inner
                .receive(std::slice::from_ref(message))
                .await?
                .remove(0)
        });
    }
    Ok(receipts)
}

/// A collation that ignores case.
pub(crate) struct FoldsCase;

#[async_trait]
impl Defect for FoldsCase {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        folded(inner, messages, str::to_lowercase).await
    }
}

/// A collation that pads.
pub(crate) struct FoldsTrailingSpace;

#[async_trait]
impl Defect for FoldsTrailingSpace {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        folded(inner, messages, |id| id.trim_end_matches(' ').to_owned()).await
    }
}

/// A large batch goes in as several statements, and the last member is answered and not stored.
pub(crate) struct LosesBatchMember;

#[async_trait]
impl Defect for LosesBatchMember {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        match messages {
            [kept @ .., _lost] if kept.len() >= 40 => {
                let mut receipts = inner.receive(kept).await?;
                receipts.push(Receipt::Accepted);
                Ok(receipts)
            }
            _ => inner.receive(messages).await,
        }
    }
}

/// A unique violation fails the whole insert.
pub(crate) struct DuplicateFailsBatch;

#[async_trait]
impl Defect for DuplicateFailsBatch {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        if messages.len() > 1 {
            for message in messages {
                if inner.get(message.key()).await?.is_some() {
                    let text = "UNIQUE constraint failed";
                    return Err(Error::new(ErrorKind::Other, text).in_operation("receive"));
                }
            }
        }
        inner.receive(messages).await
    }
}

/// The status is part of the unique key, so a processed message does not stand in the way.
pub(crate) struct StatusInKey;

#[async_trait]
impl Defect for StatusInKey {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = inner.receive(messages).await?;
        for (message, receipt) in messages.iter().zip(&mut receipts) {
            let record = inner.get(message.key()).await?;
            if record.is_some_and(|record| record.state == State::Processed) {
                let _ = inner
                    .replay(
                        message.key(),
                        &Edit {
                            payload: Some(message.payload().clone()),
                            ..Edit::default()
                        },
                    )
                    .await?;
                *receipt = Receipt::Accepted;
            }
        }
        Ok(receipts)
    }
}

/// A put that replaces what is there.
pub(crate) struct Overwrites;

#[async_trait]
impl Defect for Overwrites {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let receipts = inner.receive(messages).await?;
        for (message, receipt) in messages.iter().zip(&receipts) {
            let record = inner.get(message.key()).await?;
            let waits = record.is_some_and(|record| record.state == State::Pending);
            if matches!(receipt, Receipt::Duplicate { .. }) && waits {
                let _ = inner.discard(message.key()).await?;
                let _ = inner
                    .replay(
                        message.key(),
                        &Edit {
                            payload: Some(message.payload().clone()),
                            ..Edit::default()
                        },
                    )
                    .await?;
            }
        }
        Ok(receipts)
    }
}
