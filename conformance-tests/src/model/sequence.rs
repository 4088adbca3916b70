//! Runs one sequence on the store and on the model.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Clock, Cursor, Due, ErrorType, Filter, HandlerName,
    Inbox, Key, Kind, Lease, Message, Operate, OperatorName, Outcome, Page, Progress, Record,
    Settlement, Slice, State, Store, headers::CORRELATION_ID,
};
use inbox_memory::{MemoryOptions, MemoryStore};

use super::{
    compare::{Offset, statistics},
    operation::{ACTORS, Change, Choice, End, Expired, HANDLERS, Held, Operation, Sent, Sequence},
    requests::{ALTERED, after, edit, filter, first, key, ordering_key, purge_request, terms},
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Settings},
    test_inbox::{Context, TestInbox, message_for},
    transactions::AnyTransactions,
};

/// Between two steps, so that what happens at one step is later than the step before in both
/// stores, however fast they are.
const STEP: Duration = Duration::from_millis(1);

pub(super) struct Pair {
    pub(super) store: TestInbox,
    pub(super) model: MemoryStore,
    clock: Clock,
    pub(super) offset: Offset,
    ordering: bool,
    runs: bool,
    pub(super) transactions: Option<Arc<dyn AnyTransactions>>,
    /// Messages that the model has leased for a moment in place of recording them: it alone knows of that.
    pub(super) recorded: HashSet<Key>,
    /// Whether there may be runs, of which the model's way to record would take the rest away.
    pub(super) in_runs: bool,
    /// Every lease that each actor was ever given: the store's, the model's.
    held: [Vec<(Lease, Lease)>; ACTORS],
}

/// Fails at the first step whose answers differ.
pub(super) async fn run(cx: &Context, sequence: &Sequence) -> CaseResult {
    let mut drop_processed_payloads = sequence.drop_processed_payloads;
    let settings = Settings {
        drop_processed_payloads,
        ..Settings::default()
    };
    let store = match cx.fresh_with(&settings).await {
        Err(Unmet::NotChecked(Need::DroppedPayloads)) => {
            drop_processed_payloads = false;
            cx.fresh().await?
        }
        store => store?,
    };
    let clock = Clock::system();
    let options = MemoryOptions::new()
        .clock(clock.clone())
        .drop_processed_payloads(drop_processed_payloads);
    let model = MemoryStore::with(options);
    let probe = message_for("probe", "1")?;
    let now = async |inbox: &dyn Inbox| -> CaseResult<_> {
        let _ = Store::receive(inbox, std::slice::from_ref(&probe)).await?;
        let record = Operate::get(inbox, probe.key()).await?;
        record
            .map(|record| record.accepted_at)
            .ok_or_else(|| Unmet::Failed("an accepted message is not found".into()))
    };
    let offset = Offset::between(now(&model).await?, now(&*store.store).await?);
    let mut pair = Pair {
        ordering: store.capabilities().ordering,
        runs: store.capabilities().runs,
        transactions: store
            .capabilities()
            .transactions
            .then(|| store.fixture.transactions().ok())
            .flatten(),
        recorded: HashSet::new(),
        in_runs: false,
        store,
        model,
        clock,
        offset,
        held: Default::default(),
    };
    for (number, operation) in sequence.operations.iter().enumerate() {
        pair.advance(STEP).await?;
        let step = pair.step(operation).await;
        let step = match step {
            Ok(()) => pair.look().await,
            failed => failed,
        };
        step.map_err(|unmet| match unmet {
            Unmet::Failed(seen) => Unmet::Failed(format!("at step {}: {seen}", number + 1)),
            not_checked => not_checked,
        })?;
    }
    Ok(())
}

/// Those of two handles that sign, or not.
fn handles(
    store: &Arc<dyn Inbox>,
    model: &MemoryStore,
    signed: bool,
) -> CaseResult<(Arc<dyn Operate>, Arc<dyn Operate>)> {
    let by = OperatorName::new("O'Ä\"\\")?;
    Ok(if signed {
        (store.signed_by(&by), model.signed_by(&by))
    } else {
        let store: Arc<dyn Operate> = Arc::<dyn Inbox>::clone(store);
        (store, Arc::new(model.clone()))
    })
}

impl Pair {
    async fn advance(&self, by: Duration) -> CaseResult {
        self.clock.advance(by);
        Ok(self.store.fixture.advance_clock(by).await?)
    }

    pub(super) fn message(&self, sent: Sent) -> CaseResult<Message> {
        let target = sent.target;
        let mut message = message_for(HANDLERS[target.handler], &format!("{}", target.id))?;
        if sent.altered {
            let (handler, id) = (message.handler().clone(), message.id().clone());
            message = Message::new(handler, id, Kind::new(ALTERED)?, "altered")
                .with_header(CORRELATION_ID, ALTERED)?
                .with_due(Due::At(SystemTime::UNIX_EPOCH));
        }
        if sent.ordering_key > 0 && self.ordering {
            message = message.with_ordering_key(ordering_key(sent.ordering_key)?);
        }
        if sent.due > 0 {
            message = message.with_due(Due::After(Duration::from_secs(sent.due)));
        }
        Ok(message)
    }

    fn find(&self, actor: usize, held: Held) -> Option<&(Lease, Lease)> {
        self.held[actor].iter().rev().nth(held.back)
    }

    async fn step(&mut self, operation: &Operation) -> CaseResult {
        let (store, model) = (self.store.store.clone(), self.model.clone());
        match operation {
            Operation::Receive(batch) => {
                let batch: Vec<Message> = batch
                    .iter()
                    .map(|sent| self.message(*sent))
                    .collect::<CaseResult<_>>()?;
                same(
                    "receive",
                    &store.receive(&batch).await?,
                    &model.receive(&batch).await?,
                )
            }
            Operation::Claim {
                actor,
                handlers,
                limit,
                run_limit,
                seconds,
            } => {
                let limits = (*limit, *run_limit);
                self.claim(*actor, handlers, limits, *seconds).await
            }
            Operation::Settle { actor, leases } => self.settle(*actor, leases).await,
            Operation::Extend {
                actor,
                leases,
                seconds,
            } => self.extend(*actor, leases, *seconds).await,
            Operation::Begin {
                actor,
                sent,
                seconds,
            } => self.begin(*actor, *sent, *seconds).await,
            Operation::Transaction {
                actor,
                parts,
                ending,
            } => self.transaction(*actor, parts, ending).await,
            Operation::Replay {
                target,
                payload,
                headers,
                signed,
            } => {
                let (key, edit) = (key(*target)?, edit(*payload, *headers)?);
                let (store, model) = handles(&store, &model, *signed)?;
                let seen = store.replay(&key, &edit).await?;
                same("replay", &seen, &model.replay(&key, &edit).await?)
            }
            Operation::Reschedule {
                target,
                due,
                signed,
            } => {
                let key = key(*target)?;
                let (store, model) = handles(&store, &model, *signed)?;
                same(
                    "reschedule",
                    &store.reschedule(&key, after(*due)).await?,
                    &model.reschedule(&key, after(*due)).await?,
                )
            }
            Operation::Pause { handler, paused } => {
                let handler = HandlerName::new(HANDLERS[*handler])?;
                if *paused {
                    store.pause(&handler).await?;
                    model.pause(&handler).await?;
                } else {
                    store.resume(&handler).await?;
                    model.resume(&handler).await?;
                }
                same("paused", &store.paused().await?, &model.paused().await?)
            }
            Operation::Discard { target, signed } => {
                let key = key(*target)?;
                let (store, model) = handles(&store, &model, *signed)?;
                same(
                    "discard",
                    &store.discard(&key).await?,
                    &model.discard(&key).await?,
                )
            }
            Operation::Slice(choice, change) => self.slice(choice, *change).await,
            Operation::ClearSlice { handler, limit } => {
                let handler = HandlerName::new(HANDLERS[*handler])?;
                let slice = first(*limit);
                let seen = store.clear_slice(&handler, &slice).await?;
                let expected = model.clear_slice(&handler, &slice).await?;
                same("cleared", &seen.changed, &expected.changed)
            }
            Operation::DropPayloads(expired) => {
                let expired = purge_request(expired)?;
                same(
                    "payloads dropped",
                    &store.drop_payloads(&expired).await?,
                    &model.drop_payloads(&expired).await?,
                )
            }
            Operation::PurgeArchived { archived, purged } => {
                self.purge_archived(archived, purged).await
            }
            Operation::Pages {
                narrowing,
                limit,
                newest_first,
            } => self.pages(&filter(narrowing)?, *limit, *newest_first).await,
            Operation::List(narrowing) => self.list(&filter(narrowing)?).await,
            Operation::Purge(expired) => {
                let expired = purge_request(expired)?;
                let would = (
                    store.expired(&expired).await?,
                    model.expired(&expired).await?,
                );
                same("expired", &would.0.records.len(), &would.1.records.len())?;
                same(
                    "purge",
                    &store.purge(&expired).await?,
                    &model.purge(&expired).await?,
                )
            }
            Operation::Get(target) => {
                let key = key(*target)?;
                match (store.get(&key).await?, model.get(&key).await?) {
                    (Some(seen), Some(expected)) => self.record(seen, &expected),
                    (seen, expected) => same("get", &seen, &expected),
                }
            }
            Operation::Advance { seconds } => self.advance(Duration::from_secs(*seconds)).await,
        }
    }

    async fn claim(
        &mut self,
        actor: usize,
        handlers: &[usize],
        (limit, run_limit): (u32, u32),
        seconds: u64,
    ) -> CaseResult {
        self.in_runs |= run_limit > 1;
        let handlers: Result<_, _> = handlers
            .iter()
            .map(|h| HandlerName::new(HANDLERS[*h]))
            .collect();
        let request = ClaimRequest {
            handlers: handlers?,
            limit,
            terms: terms(actor, seconds)?,
            run_limit: if self.runs { run_limit } else { 1 },
        };
        let seen = Store::claim(&*self.store.store, &request).await?;
        let expected = self.model.claim(&request).await?;
        same("rows claimed as corrupt", &seen.corrupt, &expected.corrupt)?;
        let keys = |leased: &[inbox_api::Leased]| -> Vec<Key> {
            leased
                .iter()
                .map(|leased| leased.lease.key.clone())
                .collect()
        };
        same("claim", &keys(&seen.leased), &keys(&expected.leased))?;
        for (seen, expected) in seen.leased.into_iter().zip(expected.leased) {
            self.offset.leased(&seen, &expected)?;
            self.held[actor].push((seen.lease, expected.lease));
        }
        Ok(())
    }

    async fn settle(&self, actor: usize, leases: &[(Held, End)]) -> CaseResult {
        let (store, model) = self.settlements(actor, leases);
        let seen = self.store.settle(&store).await?;
        same("settle", &seen, &self.model.settle(&model).await?)
    }

    /// The store's settlements, and the model's.
    pub(super) fn settlements(
        &self,
        actor: usize,
        leases: &[(Held, End)],
    ) -> (Vec<Settlement>, Vec<Settlement>) {
        let (mut store, mut model) = (Vec::new(), Vec::new());
        for (number, (held, end)) in leases.iter().enumerate() {
            let Some((store_lease, model_lease)) = self.find(actor, *held) else {
                continue;
            };
            let outcome = match *end {
                End::Processed { with_result } => Outcome::Processed {
                    result: with_result.then(|| Bytes::from(format!("result {number}"))),
                },
                End::Retry { seconds } => Outcome::Retry {
                    after: Duration::from_secs(seconds),
                    error: ErrorType::before(&format!("app::Error{}", number % 2), number),
                },
                End::Dead { blocks } => Outcome::Dead {
                    reason: format!("reason {number}: 100% 'ü' \\ \"\n\0"),
                    after: if blocks {
                        AfterDead::Block
                    } else {
                        AfterDead::Continue
                    },
                },
                End::Release => Outcome::Release,
                End::Defer {
                    seconds,
                    with_error,
                } => Outcome::Defer {
                    after: Duration::from_secs(seconds),
                    error: with_error.then(|| format!("deferral {number}")),
                },
            };
            store.push(Settlement {
                lease: store_lease.clone(),
                outcome: outcome.clone(),
            });
            model.push(Settlement {
                lease: model_lease.clone(),
                outcome,
            });
        }
        (store, model)
    }

    fn record(&self, mut seen: Record, expected: &Record) -> CaseResult {
        if self.recorded.contains(&expected.key) {
            seen.leased_at = expected.leased_at;
            seen.worker.clone_from(&expected.worker);
        }
        self.offset.record(&seen, expected)
    }

    async fn extend(&self, actor: usize, leases: &[Held], seconds: u64) -> CaseResult {
        let (store, model): (Vec<Lease>, Vec<Lease>) = leases
            .iter()
            .filter_map(|held| self.find(actor, *held).cloned())
            .unzip();
        let length = Duration::from_secs(seconds);
        let seen = self.store.extend(&store, length).await?;
        let expected = self.model.extend(&model, length).await?;
        same("answers of extend", &seen.len(), &expected.len())?;
        for (seen, expected) in seen.iter().zip(&expected) {
            self.offset.extended(seen, expected)?;
        }
        Ok(())
    }

    async fn begin(&mut self, actor: usize, sent: Sent, seconds: u64) -> CaseResult {
        let (message, terms) = (self.message(sent)?, terms(actor, seconds)?);
        let seen = self.store.begin(&message, &terms).await?;
        let expected = self.model.begin(&message, &terms).await?;
        self.offset.begun(&seen, &expected)?;
        if let (Begun::Run(seen), Begun::Run(expected)) = (seen, expected) {
            self.held[actor].push((seen.lease, expected.lease));
        }
        Ok(())
    }

    async fn slice(&self, choice: &Choice, change: Change) -> CaseResult {
        let filter = filter(&choice.narrowing)?;
        let (store, model) = handles(&self.store.store, &self.model, choice.signed)?;
        let mut slices = (first(choice.limit), first(choice.limit));
        loop {
            let seen = change_slice(&*store, &filter, &slices.0, change).await?;
            let expected = change_slice(&*model, &filter, &slices.1, change).await?;
            same("slice, changed", &seen.changed, &expected.changed)?;
            match (seen.next, expected.next) {
                (None, Some(next)) => return self.nothing_is_behind(next, filter, change).await,
                (Some(seen), Some(expected)) if choice.to_the_end => {
                    (slices.0.after, slices.1.after) = (Some(seen), Some(expected));
                }
                (Some(_), None) => {
                    return Err(Unmet::Failed(
                        "slice: expected the end, saw a next one".into(),
                    ));
                }
                _ => return Ok(()),
            }
        }
    }

    /// A store may know that nothing is behind the last one that it changed.
    async fn nothing_is_behind(&self, next: Cursor, filter: Filter, change: Change) -> CaseResult {
        let mut behind = filter;
        if behind.states.is_empty() {
            behind.states.push(match change {
                Change::Replay | Change::Discard => State::Dead,
                Change::Reschedule { .. } => State::Pending,
            });
        }
        behind.states.retain(|state| match change {
            Change::Replay => state.is_final(),
            Change::Discard => matches!(state, State::Pending | State::Dead),
            Change::Reschedule { .. } => *state == State::Pending,
        });
        if behind.states.is_empty() {
            return Ok(());
        }
        let page = Page {
            after: Some(next),
            ..Page::first(100)
        };
        let mut left = self.model.list(&behind, &page).await?.records;
        left.retain(|record| change != Change::Replay || record.payload_bytes.is_some());
        ensure!(
            left.is_empty(),
            "slice: expected a next one, since {} is behind it, saw none",
            left[0].key
        );
        Ok(())
    }

    async fn purge_archived(&self, archived: &Expired, purged: &Expired) -> CaseResult {
        let archived = purge_request(archived)?;
        let mut seen = self.store.expired(&archived).await?.records;
        let mut expected = self.model.expired(&archived).await?.records;
        // Those that finished at one moment are in any order.
        seen.sort_by_key(|record| record.key.to_string());
        expected.sort_by_key(|record| record.key.to_string());
        let keys = |records: &[Record]| -> Vec<Key> {
            records.iter().map(|record| record.key.clone()).collect()
        };
        let mut named = keys(&expected);
        same("expired", &keys(&seen), &named)?;
        for (seen, expected) in seen.into_iter().zip(&expected) {
            self.record(seen, expected)?;
        }
        // One twice, and one that is not there.
        named.extend(named.first().cloned());
        named.push(message_for(HANDLERS[0], "nothing")?.key().clone());
        let purged = purge_request(purged)?;
        same(
            "archived messages purged",
            &self.store.purge_archived(&purged, &named).await?,
            &self.model.purge_archived(&purged, &named).await?,
        )
    }

    async fn pages(&self, filter: &Filter, limit: u32, newest_first: bool) -> CaseResult {
        same(
            "count",
            &self.store.count(filter).await?,
            &self.model.count(filter).await?,
        )?;
        let page = Page {
            newest_first,
            ..Page::first(limit)
        };
        let mut pages = (page.clone(), page);
        loop {
            let seen = self.store.list(filter, &pages.0).await?;
            let expected = self.model.list(filter, &pages.1).await?;
            same(
                "records of a page",
                &seen.records.len(),
                &expected.records.len(),
            )?;
            for (seen, expected) in seen.records.into_iter().zip(&expected.records) {
                self.record(seen, expected)?;
            }
            same(
                "whether there is a next page",
                &seen.next.is_some(),
                &expected.next.is_some(),
            )?;
            if expected.next.is_none() {
                return Ok(());
            }
            (pages.0.after, pages.1.after) = (seen.next, expected.next);
        }
    }

    /// Everything that can be seen is the same after each step.
    async fn look(&self) -> CaseResult {
        self.list(&Filter::default()).await?;
        statistics(
            &self.store.statistics().await?,
            &self.model.statistics().await?,
        )
    }

    async fn list(&self, filter: &Filter) -> CaseResult {
        let page = Page {
            with_payload: true,
            ..Page::first(100)
        };
        let seen = self.store.list(filter, &page).await?;
        let expected = self.model.list(filter, &page).await?;
        let keys = |records: &[inbox_api::Record]| -> Vec<Key> {
            records.iter().map(|record| record.key.clone()).collect()
        };
        same("list", &keys(&seen.records), &keys(&expected.records))?;
        for (seen, expected) in seen.records.into_iter().zip(&expected.records) {
            self.record(seen, expected)?;
        }
        Ok(())
    }
}

async fn change_slice(
    inbox: &dyn Operate,
    filter: &Filter,
    slice: &Slice,
    change: Change,
) -> CaseResult<Progress> {
    Ok(match change {
        Change::Replay => inbox.replay_slice(filter, slice).await?,
        Change::Discard => inbox.discard_slice(filter, slice).await?,
        Change::Reschedule { due } => inbox.reschedule_slice(filter, slice, after(due)).await?,
    })
}
