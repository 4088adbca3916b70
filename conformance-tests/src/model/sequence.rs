//! Runs one sequence on the store and on the model.

use std::time::Duration;

use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Clock, Due, Filter, HandlerName, Inbox, Key, Lease,
    LeaseTerms, Message, Operate, OrderingKey, Outcome, Page, PurgeRequest, Settlement, Slice,
    State, Store, WorkerName,
};
use inbox_memory::{MemoryOptions, MemoryStore};

use super::{
    compare::{Offset, statistics},
    operation::{ACTORS, Choice, End, HANDLERS, Held, Operation, Sent, Target},
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{Context, TestInbox, message_for},
};

/// Between two steps, so that what happens at one step is later than the step before in both
/// stores, however fast they are.
const STEP: Duration = Duration::from_millis(1);

struct Pair {
    store: TestInbox,
    model: MemoryStore,
    clock: Clock,
    offset: Offset,
    ordering: bool,
    /// Every lease that each actor was ever given: the store's, the model's.
    held: [Vec<(Lease, Lease)>; ACTORS],
}

/// Fails at the first step whose answers differ.
pub(super) async fn run(cx: &Context, operations: &[Operation]) -> CaseResult {
    let store = cx.fresh().await?;
    let clock = Clock::system();
    let model = MemoryStore::with(MemoryOptions::new().clock(clock.clone()));
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
        store,
        model,
        clock,
        offset,
        held: Default::default(),
    };
    for (number, operation) in operations.iter().enumerate() {
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

fn key(target: Target) -> CaseResult<Key> {
    Ok(
        message_for(HANDLERS[target.handler], &format!("{}", target.id))?
            .key()
            .clone(),
    )
}

fn terms(actor: usize, seconds: u64) -> CaseResult<LeaseTerms> {
    let worker = WorkerName::new(format!("actor-{actor}"))?;
    Ok(LeaseTerms::new(Duration::from_secs(seconds), worker)?)
}

impl Pair {
    async fn advance(&self, by: Duration) -> CaseResult {
        self.clock.advance(by);
        Ok(self.store.fixture.advance_clock(by).await?)
    }

    fn message(&self, sent: Sent) -> CaseResult<Message> {
        let target = sent.target;
        let mut message = message_for(HANDLERS[target.handler], &format!("{}", target.id))?;
        if sent.ordering_key > 0 && self.ordering {
            message =
                message.with_ordering_key(OrderingKey::new(format!("k{}", sent.ordering_key))?);
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
                seconds,
            } => self.claim(*actor, handlers, *limit, *seconds).await,
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
            Operation::Replay { target, edited } => {
                let (key, payload) = (key(*target)?, edited.then(|| Bytes::from_static(b"edited")));
                let seen = store.replay(&key, payload.clone()).await?;
                same("replay", &seen, &model.replay(&key, payload).await?)
            }
            Operation::Discard(target) => {
                let key = key(*target)?;
                same(
                    "discard",
                    &store.discard(&key).await?,
                    &model.discard(&key).await?,
                )
            }
            Operation::ReplaySlice(choice) => self.slice(choice, false).await,
            Operation::DiscardSlice(choice) => self.slice(choice, true).await,
            Operation::Purge { state, older_than } => {
                let expired = PurgeRequest::new(*state, Duration::from_secs(*older_than), 100)?;
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
                    (Some(seen), Some(expected)) => self.offset.record(&seen, &expected),
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
        limit: u32,
        seconds: u64,
    ) -> CaseResult {
        let handlers: Result<_, _> = handlers
            .iter()
            .map(|h| HandlerName::new(HANDLERS[*h]))
            .collect();
        let request = ClaimRequest {
            handlers: handlers?,
            limit,
            terms: terms(actor, seconds)?,
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
                    error: format!("error {number}"),
                },
                End::Dead { blocks } => Outcome::Dead {
                    reason: format!("reason {number}"),
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
        let seen = self.store.settle(&store).await?;
        same("settle", &seen, &self.model.settle(&model).await?)
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

    async fn slice(&self, choice: &Choice, discard: bool) -> CaseResult {
        let filter = Filter {
            states: choice.states.clone(),
            handler: choice
                .handler
                .map(|h| HandlerName::new(HANDLERS[h]))
                .transpose()?,
            ..Filter::default()
        };
        let slice = Slice {
            after: None,
            limit: choice.limit,
        };
        let (seen, expected) = if discard {
            (
                self.store.discard_slice(&filter, &slice).await?,
                self.model.discard_slice(&filter, &slice).await?,
            )
        } else {
            (
                self.store.replay_slice(&filter, &slice).await?,
                self.model.replay_slice(&filter, &slice).await?,
            )
        };
        same("slice, changed", &seen.changed, &expected.changed)?;
        let (None, Some(next)) = (seen.next, expected.next) else {
            return Ok(());
        };
        // A store may know that nothing is behind the last one that it changed.
        let mut behind = filter;
        if behind.states.is_empty() {
            behind.states.push(State::Dead);
        }
        behind.states.retain(|state| match state {
            State::Dead => true,
            State::Pending => discard,
            State::Processed | State::Discarded => !discard,
            State::Leased => false,
        });
        if behind.states.is_empty() {
            return Ok(());
        }
        let page = Page {
            after: Some(next),
            ..Page::first(100)
        };
        let mut left = self.model.list(&behind, &page).await?.records;
        left.retain(|record| discard || record.payload_bytes.is_some());
        ensure!(
            left.is_empty(),
            "slice: expected a next one, since {} is behind it, saw none",
            left[0].key
        );
        Ok(())
    }

    /// Everything that can be seen is the same after each step.
    async fn look(&self) -> CaseResult {
        let page = Page {
            with_payload: true,
            ..Page::first(100)
        };
        let seen = self.store.list(&Filter::default(), &page).await?;
        let expected = self.model.list(&Filter::default(), &page).await?;
        let keys = |records: &[inbox_api::Record]| -> Vec<Key> {
            records.iter().map(|record| record.key.clone()).collect()
        };
        same("list", &keys(&seen.records), &keys(&expected.records))?;
        for (seen, expected) in seen.records.iter().zip(&expected.records) {
            self.offset.record(seen, expected)?;
        }
        statistics(
            &self.store.statistics().await?,
            &self.model.statistics().await?,
        )
    }
}
