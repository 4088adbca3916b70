//! Defects of deferrals, where they are taken for another outcome.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use inbox_api::{
    ClaimRequest, Claims, Operate as _, Outcome, Result, Settled, Settlement, State, Store as _,
};
use inbox_memory::MemoryStore;

use super::Defect;

pub(crate) fn that_are_releases(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Defer { .. } => Outcome::Release,
        other => other,
    }
}

pub(crate) fn of_nothing_that_are_releases(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Defer { after, .. } if after.is_zero() => Outcome::Release,
        other => other,
    }
}

pub(crate) fn that_are_retries(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Defer { after, error } => Outcome::Retry {
            after,
            error: error.unwrap_or_default(),
        },
        other => other,
    }
}

pub(crate) fn without_errors(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Defer { after, .. } => Outcome::Defer { after, error: None },
        other => other,
    }
}

/// None is an empty text.
pub(crate) fn that_clear_the_error(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Defer { after, error: None } => Outcome::Defer {
            after,
            error: Some(String::new()),
        },
        other => other,
    }
}

/// Due at once for all but the process that deferred it.
#[derive(Default)]
pub(crate) struct KnownToTheProcess(AtomicBool);

#[async_trait]
impl Defect for KnownToTheProcess {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut batch = batch.to_vec();
        for settlement in &mut batch {
            if let Outcome::Defer { after, .. } = &mut settlement.outcome {
                *after = Duration::ZERO;
                self.0.store(true, Ordering::SeqCst);
            }
        }
        inner.settle(&batch).await
    }

    async fn claim(&self, inner: &MemoryStore, request: &ClaimRequest) -> Result<Claims> {
        if self.0.load(Ordering::SeqCst) {
            return Ok(Claims::default());
        }
        inner.claim(request).await
    }
}

/// A lease that ran out is only given back.
pub(crate) struct OnlyInTime;

#[async_trait]
impl Defect for OnlyInTime {
    async fn settle(&self, inner: &MemoryStore, batch: &[Settlement]) -> Result<Vec<Settled>> {
        let mut batch = batch.to_vec();
        for settlement in &mut batch {
            let record = inner.get(&settlement.lease.key).await?;
            if record.is_some_and(|record| record.state == State::Pending) {
                settlement.outcome = that_are_releases(settlement.outcome.clone());
            }
        }
        inner.settle(&batch).await
    }
}
