//! The working side: receive, claim, settle, extend, begin.
//!
//! Each operation is one write transaction over its whole batch. Inside it, looking first and
//! writing afterwards is safe: redb runs one write transaction at a time, so nothing can happen
//! between the two. (On a database with concurrent writers the same decisions belong into one
//! statement each.)

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox_api::{
    AfterDead, Begun, Bytes, Capabilities, ClaimRequest, Claims, Extended, HandlerName, Invalid,
    Lease, LeaseTerms, Message, Outcome, Receipt, ReceiveAtomicity, Result, Settled, Settlement,
    Store, Subscription, Wakeups as Reach, check_size, duration_micros, error_text, from_micros,
};
use redb::{Database, ReadableTable};

use crate::{
    RedbOptions,
    database::Inner,
    error::Failure,
    rows::{Stage, StateRow},
    work::Work,
};

/// An inbox in a redb file. Cheap to clone; clones share the inbox.
///
/// See the [crate documentation](crate).
#[derive(Clone)]
pub struct RedbStore {
    inner: Arc<Inner>,
}

impl RedbStore {
    /// Opens the file, and makes an empty one if there is none. It sets up no inbox: that is
    /// [`Schema::create`](inbox_api::Schema::create)'s to do. Reads and may repair the file, so it
    /// blocks: call it at start-up, or under `spawn_blocking`.
    ///
    /// # Errors
    /// `Unavailable` when another process or another store has the file open, or the disk fails;
    /// `Invalid` when the file is not a redb database; `SchemaVersion` when it has a format that
    /// this build's redb cannot read; `Denied` when it cannot be read and written.
    pub fn open(options: RedbOptions) -> Result<Self> {
        let inner = Arc::new(Inner::open(options)?);
        Ok(Self { inner })
    }

    /// Lends the database, for a backup or for a look at the tables with redb's own means: the file
    /// is locked, so nobody else can. Blocks; closing waits for `look`.
    ///
    /// # Errors
    /// `Unavailable` when the store is closed or the disk has failed.
    pub fn with_database<T>(&self, look: impl FnOnce(&Database) -> T) -> Result<T> {
        let look = |database: &Database| Ok(look(database));
        self.inner.with_database("with_database", look)
    }

    pub(crate) fn inner(&self) -> Arc<Inner> {
        Arc::clone(&self.inner)
    }

    pub(crate) fn options(&self) -> &RedbOptions {
        &self.inner.options
    }
}

#[async_trait]
impl Store for RedbStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal(
            "survives a process kill and a power cut",
            self.options().payload_limit,
        );
        // `multi_process` and `transactions` stay false: redb locks the file, and as the file is
        // the inbox's own, no application has other writes to put into one transaction with it.
        capabilities.ordering = true;
        capabilities.wakeups = Reach::SameProcess;
        capabilities.receive_atomicity = ReceiveAtomicity::Batch;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        self.inner.check_open("receive")?;
        // Sizes are checked before any I/O, and a batch with nothing to store does none.
        let refusals = refusals(messages, self.options().payload_limit);
        if refusals.iter().all(Option::is_some) {
            return Ok(refusals
                .into_iter()
                .flatten()
                .map(Receipt::Refused)
                .collect());
        }
        // Messages are reference-counted, so handing a copy to the other thread costs little.
        let messages = messages.to_vec();
        let receive = move |work: &mut Work<'_>| {
            let judged = messages.iter().zip(refusals);
            judged
                .map(|(message, refusal)| match refusal {
                    Some(invalid) => Ok(Receipt::Refused(invalid)),
                    // The key's table knows the key from the first copy on, and until it is purged:
                    // also within this batch, and whatever state the message is in.
                    None if work.seq_of(message.key())?.is_some() => Ok(Receipt::Duplicate),
                    None => work.insert(message).map(|_| Receipt::Accepted),
                })
                .collect()
        };
        self.inner().write("receive", receive).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        self.inner.check_open("claim")?;
        if request.handlers.is_empty() || request.limit == 0 {
            return Ok(Claims::default());
        }
        let request = request.clone();
        let claim = move |work: &mut Work<'_>| {
            let limit = request.limit as usize;
            // A handler named twice must not have its messages taken twice.
            let handlers: BTreeSet<&str> = request.handlers.iter().map(AsRef::as_ref).collect();
            let mut claims = Claims::default();
            // Usually one round. Setting a row aside may let the next of its ordering key come
            // due, so it goes on until the batch is full or nothing is left.
            while claims.leased.len() < limit {
                let wanted = limit - claims.leased.len();
                let candidates = work.candidates(handlers.iter().copied(), wanted)?;
                if candidates.is_empty() {
                    break;
                }
                for candidate in candidates {
                    match work.lease(candidate.seq, &request.terms)? {
                        Ok(leased) => claims.leased.push(leased),
                        Err(reason) => claims.corrupt.push(work.set_aside(&candidate, reason)?),
                    }
                }
            }
            Ok(claims)
        };
        self.inner().write("claim", claim).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.inner.check_open("settle")?;
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let settlements = settlements.to_vec();
        let options = self.options().clone();
        let settle = move |work: &mut Work<'_>| {
            let each = settlements.iter();
            each.map(|settlement| settle_one(work, settlement, &options))
                .collect()
        };
        self.inner().write("settle", settle).await
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        self.inner.check_open("extend")?;
        LeaseTerms::check_length(length).map_err(|invalid| invalid.in_operation("extend"))?;
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let leases = leases.to_vec();
        let extend = move |work: &mut Work<'_>| {
            let each = leases.iter();
            each.map(|lease| extend_one(work, lease, length)).collect()
        };
        self.inner().write("extend", extend).await
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        self.inner.check_open("begin")?;
        message
            .check_payload(self.options().payload_limit)
            .map_err(|invalid| invalid.in_operation("begin"))?;
        let (message, terms) = (message.clone(), terms.clone());
        let begin = move |work: &mut Work<'_>| {
            let row = match work.seq_of(message.key())? {
                None => work.insert(&message)?,
                Some(seq) => work
                    .state(seq)?
                    .map_err(|reason| Failure::corrupt(seq, &reason))?,
            };
            begin_stored(work, &row, &terms)
        };
        self.inner().write("begin", begin).await
    }

    async fn subscribe(&self, _handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.inner.check_open("subscribe")?;
        Ok(self.inner.wakeups.subscribe())
    }

    /// Waits for the operations that are running, closes the file for all clones, and wakes their
    /// subscriptions once.
    async fn close(&self) {
        self.inner().close().await;
    }
}

fn refusals(messages: &[Message], limit: usize) -> Vec<Option<Invalid>> {
    let check = |message: &Message| message.check_payload(limit).err();
    messages.iter().map(check).collect()
}

/// The row that `lease` was drawn for, if its token is still the newest. The token alone decides:
/// a lease that has run out still counts as long as nobody has claimed the message since, and the
/// worker's name plays no part.
fn held(work: &Work<'_>, lease: &Lease) -> Result<Option<StateRow>, Failure> {
    let Ok(seq) = i64::try_from(lease.locator) else {
        return Ok(None);
    };
    // A row that is gone, or does not read, is nobody's. A new life of the same key has another
    // sequence number, so the old lease does not find it.
    let row = work.state(seq)?.ok();
    Ok(row.filter(|row| row.key == lease.key && row.token == lease.token.get()))
}

fn settle_one(
    work: &mut Work<'_>,
    settlement: &Settlement,
    options: &RedbOptions,
) -> Result<Settled, Failure> {
    let Settlement { lease, outcome } = settlement;
    if let Outcome::Processed {
        result: Some(result),
    } = outcome
        && let Err(invalid) = check_size("result", result.len(), options.payload_limit)
    {
        return Ok(Settled::Refused(invalid));
    }
    let Some(before) = held(work, lease)? else {
        return Ok(Settled::LeaseLost);
    };
    if !matches!(before.stage, Stage::Leased { .. }) {
        // The newest token, but no lease: this has been settled before, and the reply was lost.
        return Ok(Settled::Done);
    }
    let (seq, at) = (before.seq, work.now);
    let mut after = StateRow {
        finished: before.finished.saturating_add(1),
        ..before.clone()
    };
    match outcome {
        Outcome::Processed { result } => {
            after.stage = Stage::Processed { at };
            if let Some(result) = result {
                work.tables.result.insert(seq, result.as_ref())?;
            }
            if options.drop_processed_payloads {
                work.tables.payload.remove(seq)?;
                after.payload_bytes = None;
            }
        }
        Outcome::Retry { after: wait, error } => {
            after.stage = Stage::Pending;
            after.due_at = at.saturating_add(duration_micros(*wait));
            after.last_error = Some(error_text(error).into_owned());
        }
        Outcome::Dead {
            reason,
            after: then,
        } => {
            let blocks = *then == AfterDead::Block && before.ordering_key.is_some();
            after.stage = Stage::Dead { at, blocks };
            after.last_error = Some(error_text(reason).into_owned());
        }
        Outcome::Release => {
            // As if it had never been claimed: the due time stays, and with it the place.
            after.stage = Stage::Pending;
            after.started = before.started.saturating_sub(1);
            after.finished = before.finished;
        }
    }
    work.replace(&before, &after)?;
    Ok(Settled::Done)
}

fn extend_one(work: &mut Work<'_>, lease: &Lease, length: Duration) -> Result<Extended, Failure> {
    let Some(before) = held(work, lease)? else {
        return Ok(Extended::LeaseLost);
    };
    if !matches!(before.stage, Stage::Leased { .. }) {
        return Ok(Extended::LeaseLost);
    }
    let until = work.now.saturating_add(duration_micros(length));
    let after = StateRow {
        stage: Stage::Leased { until },
        ..before.clone()
    };
    work.replace(&before, &after)?;
    Ok(Extended::Until(from_micros(until)))
}

fn begin_stored(work: &mut Work<'_>, row: &StateRow, terms: &LeaseTerms) -> Result<Begun, Failure> {
    let now = work.now;
    let busy = |until| Begun::Busy {
        until: from_micros(until),
    };
    match row.stage {
        Stage::Processed { .. } => {
            let result = work.tables.result.get(row.seq)?;
            let result = result.map(|bytes| Bytes::copy_from_slice(bytes.value()));
            return Ok(Begun::Processed { result });
        }
        Stage::Dead { .. } => {
            let reason = row.last_error.clone().unwrap_or_default();
            return Ok(Begun::Dead { reason });
        }
        Stage::Discarded { .. } => return Ok(Begun::Discarded),
        Stage::Leased { until } if until > now => return Ok(busy(until)),
        Stage::Pending if row.due_at > now => return Ok(busy(row.due_at)),
        // A lease that has run out, or a message that is due: free to take, if it is its turn.
        Stage::Leased { .. } | Stage::Pending => {}
    }
    if !work.is_head(row)? {
        return Ok(Begun::Blocked);
    }
    let leased = work
        .lease(row.seq, terms)?
        .map_err(|reason| Failure::corrupt(row.seq, &reason))?;
    Ok(Begun::Run(Box::new(leased)))
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore")
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}
