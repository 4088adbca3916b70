//! Messages of inline consumers whose caller never came back.

use std::{sync::Arc, time::Duration};

use super::{Janitor, SweepError};
use crate::{
    AfterDead, Begun, Filter, HandlerName, Invalid, Key, LeaseTerms, Leased, Outcome, Page, Record,
    Result, Settled, State, Store as _, StoreExt as _, WorkerName,
    hooks::{Call, Hooks},
    patience::{Patient, within},
    telemetry::{self, Count},
};

/// For how long the janitor holds a message that it looks at.
const LEASE: Duration = Duration::from_secs(60);

/// Which messages nobody may come back for.
pub(super) struct Abandoned {
    pub(super) store: Patient,
    pub(super) handlers: Vec<HandlerName>,
    pub(super) after: Duration,
    pub(super) after_dead: AfterDead,
    pub(super) hooks: Option<Arc<dyn Hooks>>,
}

impl Abandoned {
    fn terms() -> Result<LeaseTerms, Invalid> {
        let name = format!("janitor-{}", std::process::id());
        LeaseTerms::new(LEASE, WorkerName::new(name)?)
    }

    /// Makes the message dead if it has been due for too long.
    async fn give_up(&self, record: Record) -> Result<bool> {
        let terms = Self::terms().map_err(|invalid| invalid.in_operation("begin"))?;
        let due = record
            .lease_until
            .unwrap_or(record.due_at)
            .max(record.due_at);
        let Some(message) = record.message() else {
            return Ok(false);
        };
        let leased = match self.store.begin(&message, &terms).await? {
            Begun::Run(leased) => *leased,
            // It is being worked on after all, or it is not due.
            _ => return Ok(false),
        };
        // By the store's clock, as `due` is.
        let now = leased.lease.until.checked_sub(LEASE);
        let waited = now.and_then(|now| now.duration_since(due).ok());
        if waited.is_none_or(|waited| waited < self.after) {
            let _ = self
                .store
                .settle_one(&leased.lease, Outcome::Release)
                .await?;
            return Ok(false);
        }
        let reason = format!(
            "abandoned: no caller came back within {:?} of its being due",
            self.after
        );
        self.bury(leased, reason).await
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
