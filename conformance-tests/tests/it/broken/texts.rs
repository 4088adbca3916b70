//! Defects of texts and bytes: what comes in is normalised, trimmed, folded or cut on its way.

use async_trait::async_trait;
use inbox_api::{
    Begun, Bytes, Edit, Filter, Intervention, Key, Kind, LeaseTerms, Message, Operate as _,
    OrderingKey, Receipt, Result, Store as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// Stores something else than what it was sent.
pub(crate) struct Rewrites(pub(crate) fn(Message) -> Message);

#[async_trait]
impl Defect for Rewrites {
    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let messages: Vec<_> = messages.iter().cloned().map(self.0).collect();
        inner.receive(&messages).await
    }
}

/// The same, of begin alone.
pub(crate) struct BeginRewrites(pub(crate) fn(Message) -> Message);

#[async_trait]
impl Defect for BeginRewrites {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        inner.begin(&(self.0)(message.clone()), terms).await
    }
}

fn with(message: &Message, kind: Kind, payload: Bytes) -> Message {
    let mut made = Message::new(
        message.handler().clone(),
        message.id().clone(),
        kind,
        payload,
    )
    .with_headers(message.headers().clone())
    .with_due(message.due());
    if let Some(content_type) = message.content_type() {
        made = made.with_content_type(content_type.clone());
    }
    if let Some(ordering_key) = message.ordering_key() {
        made = made.with_ordering_key(ordering_key.clone());
    }
    made
}

fn with_payload(message: &Message, payload: Vec<u8>) -> Message {
    with(message, message.kind().clone(), payload.into())
}

/// As a column for JSON documents does.
pub(crate) fn parsed_json(message: Message) -> Message {
    match serde_json::from_slice::<serde_json::Value>(message.payload()) {
        Ok(value) => with_payload(&message, serde_json::to_vec(&value).unwrap()),
        Err(_) => message,
    }
}

pub(crate) fn without_byte_order_mark(message: Message) -> Message {
    match message.payload().strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) => with_payload(&message, rest.to_vec()),
        None => message,
    }
}

pub(crate) fn with_plain_line_ends(message: Message) -> Message {
    let mut payload = message.payload().to_vec();
    payload.retain(|byte| *byte != b'\r');
    with_payload(&message, payload)
}

pub(crate) fn trimmed(message: Message) -> Message {
    with_payload(&message, message.payload().trim_ascii().to_vec())
}

pub(crate) fn with_headers_in_lower_case(message: Message) -> Message {
    let mut made = message.clone().with_headers(inbox_api::Headers::new());
    for (name, value) in message.headers().iter() {
        made = made.with_header(name.to_lowercase(), value).unwrap();
    }
    made
}

pub(crate) fn with_trimmed_headers(message: Message) -> Message {
    let mut made = message.clone().with_headers(inbox_api::Headers::new());
    for (name, value) in message.headers().iter() {
        made = made.with_header(name, value.trim()).unwrap();
    }
    made
}

pub(crate) fn with_a_trimmed_kind(message: Message) -> Message {
    let kind = Kind::new(message.kind().as_str().trim()).unwrap();
    with(&message, kind, message.payload().clone())
}

pub(crate) fn with_a_kind_in_lower_case(message: Message) -> Message {
    let kind = Kind::new(message.kind().as_str().to_lowercase()).unwrap();
    with(&message, kind, message.payload().clone())
}

pub(crate) fn with_a_short_ordering_key(message: Message) -> Message {
    match message.ordering_key().map(OrderingKey::as_str) {
        Some(key) if key.len() > 64 && key.is_ascii() => {
            let short = OrderingKey::new(&key[..64]).unwrap();
            message.with_ordering_key(short)
        }
        _ => message,
    }
}

pub(crate) fn without_content_type(message: Message) -> Message {
    let mut made = Message::new(
        message.handler().clone(),
        message.id().clone(),
        message.kind().clone(),
        message.payload().clone(),
    )
    .with_headers(message.headers().clone())
    .with_due(message.due());
    if let Some(ordering_key) = message.ordering_key() {
        made = made.with_ordering_key(ordering_key.clone());
    }
    made
}

/// A kind is looked for as a pattern that may go on.
pub(crate) struct KindByPrefix;

#[async_trait]
impl Defect for KindByPrefix {
    async fn count(&self, inner: &MemoryStore, filter: &Filter) -> Result<u64> {
        let Some(kind) = &filter.kind else {
            return inner.count(filter).await;
        };
        let filter = Filter {
            kind: None,
            ..filter.clone()
        };
        let all = inner.list(&filter, &inbox_api::Page::first(1000)).await?;
        let begins = |record: &&inbox_api::Record| record.kind.as_str().starts_with(kind.as_str());
        Ok(all.records.iter().filter(begins).count() as u64)
    }
}

/// Takes an empty payload for none.
pub(crate) struct EmptyIsNone;

#[async_trait]
impl Defect for EmptyIsNone {
    async fn replay(&self, inner: &MemoryStore, key: &Key, edit: &Edit) -> Result<Intervention> {
        let mut edit = edit.clone();
        edit.payload.take_if(|payload| payload.is_empty());
        inner.replay(key, &edit).await
    }
}
