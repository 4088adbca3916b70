//! Runs one sequence on the store and on the model.

use std::time::Duration;

use inbox_api::{
    AfterDead, Begun, Bytes, ClaimRequest, Clock, Due, Edit, ErrorType, Filter, HandlerName,
    Headers, Inbox, Key, Lease, LeaseTerms, Message, MessageId, Operate, OrderingKey, Outcome,
    Page, PurgeRequest, Settlement, Slice, State, Store, WorkerName, headers::CORRELATION_ID,
};
use inbox_memory::{MemoryOptions, MemoryStore};

use super::{
    compare::{Offset, statistics},
    operation::{
        ACTORS, Age, Change, Choice, End, Expired, HANDLERS, Held, Narrowing, Operation, Sent,
        Target, Wait,
    },
};
use crate::{
    check::{CaseResult, Unmet, ensure, same},
    test_inbox::{Context, TestInbox, message_for},
};

/// Between two steps, so that what happens at one step is later than the step before in both
/// stores, however fast they are.
const STEP: Duration = Duration::from_millis(1);

/// The correlation id of messages that are altered or edited.
const ALTERED: &str = "altered";

struct Pair {
    store: TestInbox,
    model: MemoryStore,
    clock: Clock,
    offset: Offset,
    ordering: bool,
    runs: bool,
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
        runs: store.capabilities().runs,
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

fn after(seconds: u64) -> Due {
    match seconds {
        0 => Due::Now,
        seconds => Due::After(Duration::from_secs(seconds)),
    }
}

fn edit(payload: bool, headers: bool) -> CaseResult<Edit> {
    let mut edited = Headers::new();
    edited.insert(CORRELATION_ID, ALTERED)?;
    Ok(Edit {
        payload: payload.then(|| Bytes::from_static(b"edited")),
        headers: headers.then_some(edited),
    })
}

fn first(limit: u32) -> Slice {
    Slice { after: None, limit }
}

fn handler_of(handler: Option<usize>) -> CaseResult<Option<HandlerName>> {
    Ok(handler
        .map(|handler| HandlerName::new(HANDLERS[handler]))
        .transpose()?)
}

fn purge_request(expired: &Expired) -> CaseResult<PurgeRequest> {
    let older_than = Duration::from_secs(expired.older_than);
    let all = PurgeRequest::new(expired.state, older_than, 100)?;
    Ok(match handler_of(expired.handler)? {
        Some(handler) => all.for_handler(handler),
        None => all,
    })
}

fn filter(narrowing: &Narrowing) -> CaseResult<Filter> {
    let mut filter = Filter {
        states: narrowing.states.clone(),
        handler: handler_of(narrowing.handler)?,
        ids: narrowing
            .ids
            .iter()
            .map(|id| MessageId::new(id.to_string()))
            .collect::<Result<_, _>>()?,
        correlation_id: narrowing.altered.then(|| ALTERED.to_owned()),
        min_started: narrowing.min_started,
        max_started: narrowing.max_started,
        blocking: narrowing.blocking,
        error_type: narrowing
            .error_type
            .map(|which| ErrorType::new(format!("app::Error{which}")))
            .transpose()?,
        ..Filter::default()
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    match narrowing.age {
        Some(Age::OlderThan(age)) => filter.older_than = seconds(age),
        Some(Age::NewerThan(age)) => filter.newer_than = seconds(age),
        Some(Age::FinishedLongerAgo(age)) => filter.finished_longer_ago = seconds(age),
        Some(Age::FinishedWithin(age)) => filter.finished_within = seconds(age),
        None => {}
    }
    match narrowing.due {
        Some(Wait::LaterThan(wait)) => filter.due_later_than = seconds(wait),
        Some(Wait::Within(wait)) => filter.due_within = seconds(wait),
        None => {}
    }
    Ok(filter)
}

impl Pair {
    async fn advance(&self, by: Duration) -> CaseResult {
        self.clock.advance(by);
        Ok(self.store.fixture.advance_clock(by).await?)
    }

    fn message(&self, sent: Sent) -> CaseResult<Message> {
        let target = sent.target;
        let mut message = message_for(HANDLERS[target.handler], &format!("{}", target.id))?;
        if sent.altered {
            let (handler, id) = (message.handler().clone(), message.id().clone());
            message = Message::new(handler, id, message.kind().clone(), "altered")
                .with_header(CORRELATION_ID, ALTERED)?;
        }
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
            Operation::Replay {
                target,
                payload,
                headers,
            } => {
                let (key, edit) = (key(*target)?, edit(*payload, *headers)?);
                let seen = store.replay(&key, &edit).await?;
                same("replay", &seen, &model.replay(&key, &edit).await?)
            }
            Operation::Reschedule { target, due } => {
                let key = key(*target)?;
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
            Operation::Discard(target) => {
                let key = key(*target)?;
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
        (limit, run_limit): (u32, u32),
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

    async fn slice(&self, choice: &Choice, change: Change) -> CaseResult {
        let filter = Filter {
            states: choice.states.clone(),
            handler: handler_of(choice.handler)?,
            ..Filter::default()
        };
        let slice = first(choice.limit);
        let (seen, expected) = match change {
            Change::Replay => (
                self.store.replay_slice(&filter, &slice).await?,
                self.model.replay_slice(&filter, &slice).await?,
            ),
            Change::Discard => (
                self.store.discard_slice(&filter, &slice).await?,
                self.model.discard_slice(&filter, &slice).await?,
            ),
            Change::Reschedule { due } => (
                self.store
                    .reschedule_slice(&filter, &slice, after(due))
                    .await?,
                self.model
                    .reschedule_slice(&filter, &slice, after(due))
                    .await?,
            ),
        };
        same("slice, changed", &seen.changed, &expected.changed)?;
        let (None, Some(next)) = (seen.next, expected.next) else {
            return Ok(());
        };
        // A store may know that nothing is behind the last one that it changed.
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
        for (seen, expected) in seen.records.iter().zip(&expected.records) {
            self.offset.record(seen, expected)?;
        }
        Ok(())
    }
}
