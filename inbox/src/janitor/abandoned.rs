//! Messages of inline consumers whose caller never came back.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Janitor, SweepError};
use crate::{
    AfterDead, Begun, Filter, HandlerName, Invalid, Key, LeaseTerms, Leased, Message, Outcome,
    Page, Record, Result, Settled, State, Store as _, StoreExt as _, WorkerName, from_micros,
    hooks::{Call, Hooks},
    patience::{Patient, within},
    telemetry::{self, Count},
    to_micros,
};

/// For how long the janitor holds a message that it looks at.
const LEASE: Duration = Duration::from_secs(60);

/// The worker's name while it does, behind which is since when nobody else has been seen at the
/// message, by the store's clock.
///
/// A lease that has run out is shown nowhere. So when an attempt has crashed, it may have been a
/// moment ago, however long the message has been due. The janitor then counts from its first look
/// behind that attempt; stores keep the name of the worker that held a message last, and so this.
const SINCE: &str = "janitor, nobody else since ";

/// Which messages nobody may come back for.
pub(super) struct Abandoned {
    pub(super) store: Patient,
    pub(super) handlers: Vec<HandlerName>,
    pub(super) after: Duration,
    pub(super) after_dead: AfterDead,
    pub(super) hooks: Option<Arc<dyn Hooks>>,
}

fn own_name() -> Result<WorkerName, Invalid> {
    WorkerName::new(format!("janitor-{}", std::process::id()))
}

/// See [`SINCE`].
#[derive(Clone, Copy)]
struct Mark(SystemTime);

impl Mark {
    fn read(worker: &WorkerName) -> Option<Self> {
        let micros = worker.as_str().strip_prefix(SINCE)?.parse().ok()?;
        Some(Self(from_micros(micros)))
    }

    fn name(self) -> Result<WorkerName, Invalid> {
        WorkerName::new(format!("{SINCE}{}", to_micros(self.0)))
    }
}

impl Abandoned {
    /// Makes the message dead if nobody has been at it for too long.
    async fn give_up(&self, record: Record) -> Result<bool> {
        let Some(message) = record.message() else {
            return Ok(false);
        };
        let mark = record.worker.as_ref().and_then(Mark::read);
        let worker = mark.map_or_else(own_name, Mark::name);
        let Some(leased) = self.begin(&message, worker).await? else {
            return Ok(false);
        };
        // By the store's clock, as all other times here are.
        let now = leased.lease.until.checked_sub(LEASE).unwrap_or(UNIX_EPOCH);
        let has_crashed = leased.attempts.crashed(true) > 0;
        let was_alone = leased.attempts.started == record.attempts.started.saturating_add(1)
            && leased.attempts.finished == record.attempts.finished;
        if !was_alone || has_crashed && mark.is_none() {
            self.release(&leased).await?;
            if let Some(leased) = self.begin(&message, Mark(now).name()).await? {
                self.release(&leased).await?;
            }
            return Ok(false);
        }
        let since = mark
            .filter(|_| has_crashed)
            .map_or(record.due_at, |mark| mark.0.max(record.due_at));
        let waited = now.duration_since(since);
        if waited.is_ok_and(|waited| waited >= self.after) {
            let reason = format!(
                "abandoned: no caller came back within {:?} of its being due",
                self.after
            );
            return self.bury(leased, reason).await;
        }
        self.release(&leased).await?;
        Ok(false)
    }

    /// Takes the message, unless it is being worked on after all, or is not due.
    async fn begin(
        &self,
        message: &Message,
        worker: Result<WorkerName, Invalid>,
    ) -> Result<Option<Leased>> {
        let terms = worker.and_then(|worker| LeaseTerms::new(LEASE, worker));
        let terms = terms.map_err(|invalid| invalid.in_operation("begin"))?;
        Ok(match self.store.begin(message, &terms).await? {
            Begun::Run(leased) => Some(*leased),
            _ => None,
        })
    }

    async fn release(&self, leased: &Leased) -> Result<()> {
        let settling = self.store.settle_one(&leased.lease, Outcome::Release);
        settling.await.map(drop)
    }

    async fn bury(&self, leased: Leased, reason: String) -> Result<bool> {
        let key = &leased.lease.key;
        let outcome = Outcome::Dead {
            reason: reason.clone(),
            after: self.after_dead,
        };
        let settled = self.store.settle_one(&leased.lease, outcome).await?;
        if settled != Settled::Done {
            return Ok(false);
        }
        tracing::warn!(%key, %reason, "message given up");
        telemetry::count(&key.handler, Count::Dead);
        if let Some(hooks) = &self.hooks {
            let call = Call::DeadLettered(Box::new(leased), reason);
            call.tell(&**hooks).await;
        }
        Ok(true)
    }
}

impl Janitor {
    /// Gives up what nobody came back for; returns how many messages that was.
    pub(super) async fn sweep_abandoned(&self, abandoned: &Abandoned) -> Result<u64, SweepError> {
        let mut count = 0;
        for handler in &abandoned.handlers {
            let filter = Filter {
                states: vec![State::Pending],
                handler: Some(handler.clone()),
                older_than: Some(abandoned.after),
                ..Filter::default()
            };
            let mut page = Page::first(self.slice);
            loop {
                let listing = self.operate.list(&filter, &page);
                let listing = within(self.store_timeout, "list", listing).await?;
                for record in listing.records {
                    count += u64::from(self.give_up(abandoned, &record.key).await?);
                }
                page.after = listing.next;
                if page.after.is_none() {
                    break;
                }
            }
        }
        Ok(count)
    }

    async fn give_up(&self, abandoned: &Abandoned, key: &Key) -> Result<bool> {
        match within(self.store_timeout, "get", self.operate.get(key)).await? {
            Some(record) if record.state == State::Pending => abandoned.give_up(record).await,
            _ => Ok(false),
        }
    }
}
