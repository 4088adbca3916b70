//! Messages of inline consumers whose caller never came back.

use std::{
    panic::resume_unwind,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backon::Retryable as _;
use inbox_api::{from_micros, to_micros};
use tokio::task::JoinError;
use tracing::Instrument as _;

use super::{End, Janitor, Sweep, no_answer};
use crate::{
    AfterDead, Begun, Effect, Error, ErrorKind, Filter, HandlerName, Invalid, Key, LeaseTerms,
    Leased, Message, Outcome, Page, Record, Result, Settled, State, Store as _, StoreExt as _,
    WorkerName,
    backoff::a_few_times,
    hooks::{Call, Hooks},
    patience::Patient,
    refusal::plainer,
    telemetry::{self, Count, MESSAGE},
};

/// For how long the janitor holds a message that it looks at.
const LEASE: Duration = Duration::from_secs(60);

/// How long after its first look the janitor has the message again, under the name that says when that was, unless that is
/// in doubt.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The worker's name while it does, behind which is since when nobody else has been seen at the
/// message, by the store's clock.
///
/// A lease that has run out, or was handed back, is shown nowhere. So when the last attempt has ended so, it may
/// have been a moment ago, however long the message has been due. The janitor then counts from its first look
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

/// Its name when it has no such moment to keep: it counts from when the message was due.
const SINCE_DUE: &str = "janitor, nobody else since it was due";

/// Its name until it has such a moment. A look that is cut short leaves what is not known unknown.
const LOOKS: &str = "janitor, looks for the first time";

/// Whether others had the message last, and how long is not known: the end of an attempt that failed, or was put off,
/// has made it due later than that began.
fn has_left_no_trace(record: &Record) -> bool {
    let is_known =
        |worker: &WorkerName| worker.as_str() == SINCE_DUE || Mark::read(worker).is_some();
    let was_handed_back = record.leased_at.is_some_and(|at| at >= record.due_at);
    was_handed_back && !record.worker.as_ref().is_some_and(is_known)
}

/// When the janitor has begun it, by the store's clock.
fn begun_at(leased: &Leased) -> SystemTime {
    let begun = leased.lease.until.checked_sub(LEASE);
    begun.unwrap_or(UNIX_EPOCH)
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
    async fn give_up(self: Arc<Self>, record: Record) -> Result<bool> {
        let Some(message) = record.message() else {
            return Ok(false);
        };
        let mark = record.worker.as_ref().and_then(Mark::read);
        let left_no_trace = has_left_no_trace(&record);
        let worker = match mark {
            Some(mark) => mark.name(),
            None if left_no_trace => WorkerName::new(LOOKS),
            None => WorkerName::new(SINCE_DUE),
        };
        let Some(leased) = self.begin(&message, worker).await? else {
            return Ok(false);
        };
        if leased.accepted_at != record.accepted_at {
            // An operator has cleared the handler since it was read, and this look has stored it again.
            self.release(&leased).await?;
            return Ok(false);
        }
        // By the store's clock, as all other times here are.
        let now = begun_at(&leased);
        let has_crashed = leased.attempts.crashed(true) > 0;
        let was_alone = leased.attempts.started == record.attempts.started.saturating_add(1)
            && leased.attempts.finished == record.attempts.finished;
        let is_unknown = has_crashed && mark.is_none() || left_no_trace;
        if !was_alone || is_unknown {
            // If others have taken it since, the next sweep looks at what they have left.
            if self.release(&leased).await?
                && let Some(marked) = self.begin(&message, Mark(now).name()).await?
            {
                self.release(&marked).await?;
                let took = begun_at(&marked).duration_since(now).unwrap_or_default();
                let is_in_time = took <= AT_ONCE && marked.attempts == leased.attempts;
                // So they may in a slow call.
                if !is_in_time
                    && let Some(leased) = self.begin(&message, WorkerName::new(LOOKS)).await?
                {
                    self.release(&leased).await?;
                }
            }
            return Ok(false);
        }
        let since = mark.map_or(record.due_at, |mark| mark.0.max(record.due_at));
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
        // After a lost reply the message may be leased here without its token.
        let begun = (|| self.store.begin(message, &terms))
            .retry(a_few_times())
            .when(|error| error.is_retryable() && error.effect() == Effect::None);
        Ok(match begun.await? {
            Begun::Run(leased) => Some(*leased),
            _ => None,
        })
    }

    /// Hands it back; answers whether it was still held.
    async fn release(&self, leased: &Leased) -> Result<bool> {
        let settled = self.settle(leased, Outcome::Release).await?;
        Ok(settled == Settled::Done)
    }

    async fn settle(&self, leased: &Leased, outcome: Outcome) -> Result<Settled> {
        (|| self.store.settle_one(&leased.lease, outcome.clone()))
            .retry(a_few_times())
            .when(Error::is_retryable)
            .await
    }

    async fn bury(&self, leased: Leased, reason: String) -> Result<bool> {
        let key = &leased.lease.key;
        let outcome = Outcome::Dead {
            reason: reason.clone(),
            after: self.after_dead,
        };
        let mut settled = self.settle(&leased, outcome.clone()).await?;
        if let Settled::Refused(invalid) = &settled
            && let Some(outcome) = plainer(outcome)
        {
            tracing::warn!(%key, reason = %invalid, "error text not kept");
            settled = self.settle(&leased, outcome).await?;
        }
        match settled {
            Settled::Done => {}
            Settled::LeaseLost => return Ok(false),
            Settled::Refused(invalid) => {
                self.release(&leased).await?;
                telemetry::count(&key.handler, Count::Refused);
                let reason = invalid.to_string();
                self.tell(Call::OutcomeRefused(Box::new(leased), reason))
                    .await;
                // Which the sweep takes note of.
                return Err(invalid.in_operation("settle"));
            }
        }
        tracing::warn!(target: MESSAGE, %key, %reason, "message given up");
        telemetry::count(&key.handler, Count::Dead);
        self.tell(Call::DeadLettered(Box::new(leased), reason))
            .await;
        Ok(true)
    }

    async fn tell(&self, call: Call) {
        if let Some(hooks) = &self.hooks {
            call.tell(&**hooks).await;
        }
    }
}

impl Janitor {
    /// Gives up what nobody came back for. A message that cannot be read, or that the store refuses,
    /// stays and keeps no other from its end.
    pub(super) async fn sweep_abandoned(
        &self,
        abandoned: &Arc<Abandoned>,
        sweep: &mut Sweep,
        end: End<'_>,
    ) -> Result<()> {
        for handler in &abandoned.handlers {
            let filter = Filter {
                states: vec![State::Pending],
                handler: Some(handler.clone()),
                older_than: Some(abandoned.after),
                // What is scheduled, or waits for a retry, is not looked at one by one.
                due_within: Some(Duration::ZERO),
                ..Filter::default()
            };
            let mut page = Page::first(self.slice);
            loop {
                if end.has_come() {
                    return Ok(());
                }
                let listing = || self.operate.list(&filter, &page);
                let listing = self.ask(end, "list", listing).await?;
                for row in listing.corrupt {
                    tracing::error!(
                        place = row.place,
                        reason = row.reason,
                        "corrupt row cannot be given up and stays"
                    );
                    sweep.corrupt += 1;
                }
                for record in listing.records {
                    if end.has_come() {
                        return Ok(());
                    }
                    match self.give_up(abandoned, &record.key, end).await {
                        Ok(is_dead) => sweep.abandoned += u64::from(is_dead),
                        Err(error) if is_its_own(&error) => {
                            let key = &record.key;
                            tracing::error!(%key, %error, "message cannot be given up and stays");
                            sweep.corrupt += 1;
                        }
                        Err(error) => return Err(error),
                    }
                }
                page.after = listing.next;
                if page.after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn give_up(&self, abandoned: &Arc<Abandoned>, key: &Key, end: End<'_>) -> Result<bool> {
        let getting = || self.operate.get(key);
        match self.ask(end, "get", getting).await? {
            Some(record) if record.state == State::Pending => {
                let task = abandoned.clone().give_up(record).in_current_span();
                // Between its beginning and its end nothing is dropped, or the message would stay
                // leased and have one more attempt.
                let task = self.under_way.spawn(task);
                let given_up = end.unless_given_up(task).await;
                given_up.map_or_else(
                    || Err(no_answer("sweep")),
                    |given_up| given_up.unwrap_or_else(ended),
                )
            }
            _ => Ok(false),
        }
    }
}

/// Whether an error is of one message and not of the store.
fn is_its_own(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid)
}

/// A task that did not come to its end.
fn ended(error: JoinError) -> Result<bool> {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => {
            let context = "the runtime was shut down";
            Err(Error::new(ErrorKind::Other, context).in_operation("sweep"))
        }
    }
}
