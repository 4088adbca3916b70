//! Defects of rescheduling.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use inbox_api::{Due, Edit, Filter, Intervention, Key, Operate, Progress, Result, Slice, State};
use inbox_memory::MemoryStore;

use super::Defect;

/// Gives the message up and replays it, which is due at once and a new life.
pub(crate) struct RescheduleReplays;

#[async_trait]
impl Defect for RescheduleReplays {
    async fn reschedule(&self, inner: &MemoryStore, key: &Key, due: Due) -> Result<Intervention> {
        let answer = inner.discard(key).await?;
        if answer == Intervention::Done {
            let _ = inner.replay(key, &Edit::default()).await?;
            return inner.reschedule(key, due).await;
        }
        Ok(answer)
    }
}

/// Another due time than asked for.
pub(crate) struct Reschedules(pub(crate) fn(Due) -> Due);

#[async_trait]
impl Defect for Reschedules {
    async fn reschedule(&self, inner: &MemoryStore, key: &Key, due: Due) -> Result<Intervention> {
        inner.reschedule(key, self.0(due)).await
    }
}

pub(crate) fn to_the_second(due: Due) -> Due {
    match due {
        Due::At(time) => {
            let since = time
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            Due::At(SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs()))
        }
        other => other,
    }
}

pub(crate) fn by_half(due: Due) -> Due {
    match due {
        Due::After(wait) => Due::After(wait / 2),
        other => other,
    }
}

/// Only what its sender has delayed.
pub(crate) struct RescheduleOnlyFirst;

#[async_trait]
impl Defect for RescheduleOnlyFirst {
    async fn reschedule(&self, inner: &MemoryStore, key: &Key, due: Due) -> Result<Intervention> {
        let record = inner.get(key).await?;
        if record.is_some_and(|record| record.last_error.is_some()) {
            return Ok(Intervention::WrongState(State::Pending));
        }
        inner.reschedule(key, due).await
    }
}

/// Says that it is done, whatever the state.
pub(crate) struct RescheduleSaysDone;

#[async_trait]
impl Defect for RescheduleSaysDone {
    async fn reschedule(&self, inner: &MemoryStore, key: &Key, due: Due) -> Result<Intervention> {
        match inner.reschedule(key, due).await? {
            Intervention::WrongState(_) => Ok(Intervention::Done),
            answer => Ok(answer),
        }
    }
}

/// Leaves a lease that ran out alone.
pub(crate) struct RescheduleLeavesLeases;

#[async_trait]
impl Defect for RescheduleLeavesLeases {
    async fn reschedule(&self, inner: &MemoryStore, key: &Key, due: Due) -> Result<Intervention> {
        let record = inner.get(key).await?;
        let ran_out = |record: inbox_api::Record| {
            record.state == State::Pending && record.attempts.crashed(false) > 0
        };
        if record.is_some_and(ran_out) {
            return Ok(Intervention::Done);
        }
        inner.reschedule(key, due).await
    }
}

/// A filter without states means dead messages here, too, and that is none.
pub(crate) struct RescheduleMeansDead;

#[async_trait]
impl Defect for RescheduleMeansDead {
    async fn reschedule_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
        due: Due,
    ) -> Result<Progress> {
        let mut filter = filter.clone();
        if filter.states.is_empty() {
            filter.states.push(State::Dead);
        }
        inner.reschedule_slice(&filter, slice, due).await
    }
}

/// A part of the filter that the slices do not mind.
pub(crate) struct RescheduleForgets(pub(crate) fn(&mut Filter));

#[async_trait]
impl Defect for RescheduleForgets {
    async fn reschedule_slice(
        &self,
        inner: &MemoryStore,
        filter: &Filter,
        slice: &Slice,
        due: Due,
    ) -> Result<Progress> {
        let mut filter = filter.clone();
        self.0(&mut filter);
        inner.reschedule_slice(&filter, slice, due).await
    }
}

/// A part of the filter that a count does not mind.
pub(crate) struct CountForgets(pub(crate) fn(&mut Filter));

#[async_trait]
impl Defect for CountForgets {
    async fn count(&self, inner: &MemoryStore, filter: &Filter) -> Result<u64> {
        let mut filter = filter.clone();
        self.0(&mut filter);
        inner.count(&filter).await
    }
}

/// The type is looked for anywhere in the error.
pub(crate) fn types_anywhere(filter: &mut Filter) {
    filter.error_contains = filter.error_type.take().map(|t| t.as_str().to_owned());
}

/// A time that has passed is none.
pub(crate) fn scheduled_is_all(filter: &mut Filter) {
    filter.due_later_than.take_if(|wait| wait.is_zero());
}
