//! Defects of fingerprints, and of edits.

use std::{collections::HashSet, sync::Mutex};

use async_trait::async_trait;
use inbox_api::{
    Begun, Edit, Fingerprint, Headers, Intervention, Key, LeaseTerms, Message, Operate, Receipt,
    Result, State, Store,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// What is answered of duplicates, whatever they are.
pub(crate) struct Differs(pub(crate) bool);

#[async_trait]
impl Defect for Differs {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = inner.receive(messages).await?;
        for receipt in &mut receipts {
            if let Receipt::Duplicate { differs } = receipt {
                *differs = self.0;
            }
        }
        Ok(receipts)
    }
}

/// Copies of one batch are taken for the same.
pub(crate) struct BatchesAreNotCompared;

#[async_trait]
impl Defect for BatchesAreNotCompared {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = inner.receive(messages).await?;
        let mut accepted = HashSet::new();
        for (message, receipt) in messages.iter().zip(&mut receipts) {
            match receipt {
                Receipt::Accepted => drop(accepted.insert(message.key())),
                Receipt::Duplicate { differs } if accepted.contains(message.key()) => {
                    *differs = false;
                }
                _ => {}
            }
        }
        Ok(receipts)
    }
}

/// Keeps another fingerprint than the message's.
pub(crate) struct Fingerprints(pub(crate) fn(&Message) -> Message);

#[async_trait]
impl Defect for Fingerprints {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let messages: Vec<Message> = messages.iter().map(self.0).collect();
        inner.receive(&messages).await
    }
}

/// The same where a message is begun.
pub(crate) struct BegunFingerprints(pub(crate) fn(&Message) -> Message);

#[async_trait]
impl Defect for BegunFingerprints {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        inner.begin(&self.0(message), terms).await
    }
}

/// Of kind and payload, whatever was given.
pub(crate) fn of_the_content(message: &Message) -> Message {
    let parts = [message.kind().as_str().as_bytes(), message.payload()];
    message.clone().with_fingerprint(Fingerprint::of(parts))
}

/// Of the payload alone, unless one was given.
pub(crate) fn of_the_payload(message: &Message) -> Message {
    let is_given = *message != of_the_content(message);
    let of_payload = Fingerprint::of([message.payload().as_ref()]);
    match is_given {
        true => message.clone(),
        false => message.clone().with_fingerprint(of_payload),
    }
}

/// Of headers, too.
pub(crate) fn of_the_headers(message: &Message) -> Message {
    let headers = message.headers().to_json();
    let parts = [message.payload(), headers.as_bytes()];
    message.clone().with_fingerprint(Fingerprint::of(parts))
}

/// Through a number that has no room for 64 bits.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "the defect"
)]
pub(crate) fn in_a_float(message: &Message) -> Message {
    let rounded = message.fingerprint().get() as f64;
    message
        .clone()
        .with_fingerprint(Fingerprint::new(rounded as i64))
}

/// An edit of the payload takes the place of what was accepted.
#[derive(Default)]
pub(crate) struct EditsAreAccepted(Mutex<HashSet<Key>>);

#[async_trait]
impl Defect for EditsAreAccepted {
    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        if edit.payload.is_some() {
            self.0.lock().unwrap().insert(key.clone());
        }
        inner.replay(key, edit).await
    }

    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = inner.receive(messages).await?;
        for (message, receipt) in messages.iter().zip(&mut receipts) {
            let is_edited = self.0.lock().unwrap().contains(message.key());
            let record = inner.get(message.key()).await?;
            let stored = record.and_then(|record| record.message());
            if let (Receipt::Duplicate { differs }, true, Some(stored)) =
                (receipt, is_edited, stored)
            {
                *differs = stored.fingerprint() != message.fingerprint();
            }
        }
        Ok(receipts)
    }
}

/// Another edit than the operator's.
pub(crate) struct Edits(pub(crate) fn(&Edit, &Headers) -> Edit);

#[async_trait]
impl Defect for Edits {
    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        let record = inner.get(key).await?;
        let headers = record.map(|record| record.headers).unwrap_or_default();
        inner.replay(key, &self.0(edit, &headers)).await
    }
}

pub(crate) fn without_headers(edit: &Edit, _: &Headers) -> Edit {
    Edit {
        headers: None,
        ..edit.clone()
    }
}

/// Those that are not named stay.
pub(crate) fn with_the_old_headers(edit: &Edit, old: &Headers) -> Edit {
    let merged = edit.headers.as_ref().map(|new| {
        let mut merged = old.clone();
        for (name, value) in new.iter() {
            merged.insert(name, value).unwrap();
        }
        merged
    });
    Edit {
        headers: merged,
        ..edit.clone()
    }
}

/// No headers are taken for none to edit.
pub(crate) fn with_some_headers(edit: &Edit, _: &Headers) -> Edit {
    let mut edit = edit.clone();
    edit.headers.take_if(|headers| headers.is_empty());
    edit
}

/// An edit of the payload takes the headers away.
pub(crate) fn with_no_other_headers(edit: &Edit, _: &Headers) -> Edit {
    let mut edit = edit.clone();
    if edit.payload.is_some() {
        edit.headers.get_or_insert_default();
    }
    edit
}

/// A message that has lost its payload is replayed with new headers and an empty one.
pub(crate) struct EmptyForDropped;

#[async_trait]
impl Defect for EmptyForDropped {
    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        let record = inner.get(key).await?;
        let mut edit = edit.clone();
        if edit.headers.is_some() && record.is_some_and(|r| r.state == State::Processed) {
            edit.payload.get_or_insert_default();
        }
        inner.replay(key, &edit).await
    }
}
