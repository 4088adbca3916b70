//! Writes that the process keeps to itself when it has answered, until another operation makes them durable.

use std::sync::Mutex;

use async_trait::async_trait;
use inbox_api::{HandlerName, Message, Operate, Receipt, Result, Store, StoreExt as _};
use inbox_memory::MemoryStore;

use super::Defect;

enum Write {
    Receive(Vec<Message>),
    Pause(HandlerName),
}

/// An operation that is written behind its answer.
pub(crate) struct WritesBehind {
    operation: &'static str,
    waiting: Mutex<Vec<(MemoryStore, Write)>>,
}

pub(crate) fn writes_behind(operation: &'static str) -> WritesBehind {
    WritesBehind {
        operation,
        waiting: Mutex::default(),
    }
}

impl WritesBehind {
    fn keep(&self, inner: &MemoryStore, write: Write) {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.push((inner.clone(), write));
    }
}

#[async_trait]
impl Defect for WritesBehind {
    async fn enter(&self, _: &'static str) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        for (inner, write) in waiting {
            match write {
                Write::Receive(messages) => drop(inner.receive(&messages).await),
                Write::Pause(handler) => drop(inner.pause(&handler).await),
            }
        }
    }

    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::new();
        for message in messages {
            let is_known = inner.get(message.key()).await?.is_some();
            if is_known || self.operation != "receive" {
                receipts.push(inner.receive_one(message).await?);
                continue;
            }
            self.keep(inner, Write::Receive(vec![message.clone()]));
            receipts.push(Receipt::Accepted);
        }
        Ok(receipts)
    }

    async fn pause(&self, inner: &MemoryStore, handler: &HandlerName) -> Result<()> {
        if self.operation != "pause" {
            return inner.pause(handler).await;
        }
        self.keep(inner, Write::Pause(handler.clone()));
        Ok(())
    }
}
