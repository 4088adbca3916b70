//! Defects of pauses.

use std::{collections::BTreeSet, sync::Mutex};

use async_trait::async_trait;
use inbox_api::{
    Begun, ClaimRequest, Claims, Error, ErrorKind, HandlerName, LeaseTerms, Message, Operate,
    Progress, Result, Slice, Statistics, Store,
};
use inbox_memory::MemoryStore;

use super::Defect;

/// A pause is kept, and nobody minds it.
pub(crate) struct PauseForgotten;

#[async_trait]
impl Defect for PauseForgotten {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let paused = inner.paused().await?;
        for handler in &paused {
            inner.resume(handler).await?;
        }
        let claims = inner.claim(request).await;
        for handler in &paused {
            inner.pause(handler).await?;
        }
        claims
    }
}

/// One handler that is paused keeps a claim from all.
pub(crate) struct PauseOfAll;

#[async_trait]
impl Defect for PauseOfAll {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let paused = inner.paused().await?;
        if request
            .handlers
            .iter()
            .any(|handler| paused.contains(handler))
        {
            return Ok(Claims::default());
        }
        inner.claim(request).await
    }
}

/// A pause that this process keeps to itself, and ends without a word.
#[derive(Default)]
pub(crate) struct PauseOfTheProcess(Mutex<BTreeSet<HandlerName>>);

#[async_trait]
impl Defect for PauseOfTheProcess {
    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        let mut request = request.clone();
        let paused = self.0.lock().unwrap().clone();
        request.handlers.retain(|handler| !paused.contains(handler));
        inner.claim(&request).await
    }

    async fn pause(&self, _: &MemoryStore, handler: &HandlerName) -> Result<()> {
        self.0.lock().unwrap().insert(handler.clone());
        Ok(())
    }

    async fn resume(&self, _: &MemoryStore, handler: &HandlerName) -> Result<()> {
        self.0.lock().unwrap().remove(handler);
        Ok(())
    }

    async fn paused(&self, _: &MemoryStore) -> Result<Vec<HandlerName>> {
        Ok(self.0.lock().unwrap().iter().cloned().collect())
    }
}

/// What is paused is not begun either.
pub(crate) struct PauseStopsBegin;

#[async_trait]
impl Defect for PauseStopsBegin {
    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        if inner.paused().await?.contains(message.handler()) {
            return Ok(Begun::Blocked);
        }
        inner.begin(message, terms).await
    }
}

pub(crate) struct PausedTheWrongWayRound;

#[async_trait]
impl Defect for PausedTheWrongWayRound {
    async fn paused(&self, inner: &MemoryStore) -> Result<Vec<HandlerName>> {
        let mut paused = inner.paused().await?;
        paused.reverse();
        Ok(paused)
    }
}

/// A unique violation for a second pause.
pub(crate) struct PauseOnce;

#[async_trait]
impl Defect for PauseOnce {
    async fn pause(&self, inner: &MemoryStore, handler: &HandlerName) -> Result<()> {
        if inner.paused().await?.contains(handler) {
            let text = "the row is there already";
            return Err(Error::new(ErrorKind::Other, text).in_operation("pause"));
        }
        inner.pause(handler).await
    }
}

/// Compared as the database's collation has it.
pub(crate) struct PauseFoldsCase;

#[async_trait]
impl Defect for PauseFoldsCase {
    async fn pause(&self, inner: &MemoryStore, handler: &HandlerName) -> Result<()> {
        let folded = HandlerName::new(handler.as_str().to_lowercase()).unwrap();
        inner.pause(&folded).await
    }
}

/// A flag in the handler's row, which comes with its first message.
pub(crate) struct PauseWithMessages;

#[async_trait]
impl Defect for PauseWithMessages {
    async fn pause(&self, inner: &MemoryStore, handler: &HandlerName) -> Result<()> {
        let statistics = inner.statistics().await?;
        if statistics.handlers.iter().any(|h| h.handler == *handler) {
            inner.pause(handler).await?;
        }
        Ok(())
    }
}

pub(crate) struct ClearResumes;

#[async_trait]
impl Defect for ClearResumes {
    async fn clear_slice(
        &self,
        inner: &MemoryStore,
        handler: &HandlerName,
        slice: &Slice,
    ) -> Result<Progress> {
        inner.resume(handler).await?;
        inner.clear_slice(handler, slice).await
    }
}

/// A pause does not show, or what is paused does not lag.
pub(crate) struct PauseInStatistics {
    pub(crate) shows: bool,
    pub(crate) lags: bool,
}

#[async_trait]
impl Defect for PauseInStatistics {
    async fn statistics(&self, inner: &MemoryStore) -> Result<Statistics> {
        let mut statistics = inner.statistics().await?;
        for handler in &mut statistics.handlers {
            if handler.paused && !self.lags {
                handler.lag = None;
            }
            handler.paused &= self.shows;
        }
        Ok(statistics)
    }
}
