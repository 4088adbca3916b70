//! A store whose own tables do not agree, which none of its answers shows.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use inbox_api::{Key, Operate as _, Outcome, Result, Settled, Settlement, State, Store as _};
use inbox_memory::MemoryStore;

use super::Defect;

/// Keeps a list of the dead letters, and takes nothing off it again.
#[derive(Default)]
pub(crate) struct DeadStayListed(Mutex<BTreeSet<Key>>);

#[async_trait]
impl Defect for DeadStayListed {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = inner.settle(batch).await?;
        let dead = batch
            .iter()
            .filter(|settlement| matches!(settlement.outcome, Outcome::Dead { .. }))
            .map(|settlement| settlement.lease.key.clone());
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.extend(dead);
        Ok(settled)
    }

    async fn inconsistencies(&self, inner: &MemoryStore) -> Vec<String> {
        let listed = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut found = Vec::new();
        for key in listed {
            let record = inner.get(&key).await.unwrap();
            if record.is_none_or(|record| record.state != State::Dead) {
                found.push(format!("{key} is listed as dead and is not"));
            }
        }
        found
    }
}
