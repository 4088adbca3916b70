//! The store stops between two of its writes: an operation is done or not done, for each message that it
//! is about, and what shows a message agrees with what hands it out.

use std::{collections::BTreeMap, time::SystemTime};

use bytes::Bytes;
use inbox_api::{
    Edit, Filter, HandlerName, Inbox, LeaseTerms, Leased, Message, Outcome, Page, PurgeRequest,
    ReceiveAtomicity, Result, Settlement, Slice, State, Store, StoreExt as _,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    needs::{Need, Restart},
    test_inbox::{
        Context, HANDLER, LONG, TestInbox, claim, dead, defer, message, message_for, ordered,
        processed, retry, terms,
    },
};

/// More writes than any operation needs.
const MOST_WRITES: u32 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Receive,
    Begin,
    Claim,
    Extend,
    Process,
    Retry,
    Defer,
    Die,
    Replay,
    ReplaySlice,
    Discard,
    DiscardSlice,
    Purge,
}

/// What is there of each message that was sent: where it stands, in words.
type Standings = BTreeMap<String, String>;

struct Scene {
    inbox: TestInbox,
    messages: Vec<Message>,
    leased: Vec<Leased>,
    terms: LeaseTerms,
}

impl Scene {
    /// Two messages of one ordering key, where there are such, and one without.
    async fn new(cx: &Context, operation: Operation) -> CaseResult<Self> {
        let inbox = cx.fresh_to_disrupt().await?;
        let of_key = if inbox.capabilities().ordering {
            |id| ordered(id, "key")
        } else {
            message
        };
        let mut scene = Self {
            messages: vec![of_key("1")?, of_key("2")?, message("3")?],
            inbox,
            leased: Vec::new(),
            terms: terms(LONG)?,
        };
        use Operation as O;
        if matches!(operation, O::Receive | O::Begin) {
            return Ok(scene);
        }
        scene.inbox.accept_all(&scene.messages).await?;
        if matches!(operation, O::Claim | O::Discard | O::DiscardSlice) {
            return Ok(scene);
        }
        scene.leased = scene.inbox.claim_up_to(10, LONG).await?;
        let outcome = match operation {
            O::Replay | O::ReplaySlice => dead("gave up"),
            O::Purge => processed(),
            _ => return Ok(scene),
        };
        for leased in &scene.leased {
            scene.inbox.finish(leased, outcome.clone()).await?;
        }
        Ok(scene)
    }

    async fn settle(&self, outcome: Outcome) -> Result<()> {
        let settlement = |leased: &Leased| Settlement {
            lease: leased.lease.clone(),
            outcome: outcome.clone(),
        };
        let settlements: Vec<_> = self.leased.iter().map(settlement).collect();
        self.inbox.settle(&settlements).await.map(drop)
    }

    async fn act(&self, operation: Operation) -> CaseResult<Result<()>> {
        let connection = &*self.inbox.store;
        let [first, .., last] = self.messages.as_slice() else {
            return Err(Unmet::Failed("a scene has messages".into()));
        };
        let slice = Slice {
            after: None,
            limit: 10,
        };
        let of = |state| Filter {
            states: vec![state],
            ..Filter::default()
        };
        Ok(match operation {
            Operation::Receive => connection.receive(&self.messages).await.map(drop),
            Operation::Begin => connection.begin(last, &self.terms).await.map(drop),
            Operation::Claim => {
                let request = inbox_api::ClaimRequest {
                    handlers: vec![first.handler().clone()],
                    limit: 10,
                    terms: self.terms.clone(),
                    run_limit: 1,
                };
                Store::claim(connection, &request).await.map(drop)
            }
            Operation::Extend => {
                let leases: Vec<_> = self.leased.iter().map(|l| l.lease.clone()).collect();
                connection.extend(&leases, 2 * LONG).await.map(drop)
            }
            Operation::Process => {
                let result = Some(Bytes::from_static(b"result"));
                self.settle(Outcome::Processed { result }).await
            }
            Operation::Retry => self.settle(retry(2 * LONG)).await,
            Operation::Defer => self.settle(defer(2 * LONG)).await,
            Operation::Die => self.settle(dead("gave up")).await,
            Operation::Replay => {
                let edit = Edit {
                    payload: Some(Bytes::from_static(b"edited")),
                    ..Edit::default()
                };
                connection.replay(first.key(), &edit).await.map(drop)
            }
            Operation::ReplaySlice => {
                let dead = of(State::Dead);
                connection.replay_slice(&dead, &slice).await.map(drop)
            }
            Operation::Discard => connection.discard(first.key()).await.map(drop),
            Operation::DiscardSlice => {
                let pending = of(State::Pending);
                connection.discard_slice(&pending, &slice).await.map(drop)
            }
            Operation::Purge => {
                let expired = PurgeRequest::new(State::Processed, std::time::Duration::ZERO, 10)?;
                connection.purge(&expired).await.map(drop)
            }
        })
    }

    /// The store's time, as it stamps it on a message of a handler of its own.
    async fn now(&self, connection: &dyn Inbox) -> CaseResult<SystemTime> {
        let probe = message_for("probe", &fastrand::u64(..).to_string())?;
        let _ = connection.receive_one(&probe).await?;
        let record = connection.get(probe.key()).await?;
        let record = record.ok_or_else(|| Unmet::Failed("an accepted message is not found".into()));
        Ok(record?.accepted_at)
    }

    /// Fails if what counts and what lists do not agree.
    async fn standings(&self, connection: &dyn Inbox) -> CaseResult<Standings> {
        let page = Page {
            with_payload: true,
            ..Page::first(100)
        };
        let now = self.now(connection).await?;
        let mut listed = connection.list(&Filter::default(), &page).await?.records;
        listed.retain(|record| record.key.handler.as_str() == HANDLER);
        let mut standings = Standings::new();
        let mut counted: BTreeMap<State, u64> = BTreeMap::new();
        for record in &listed {
            *counted.entry(record.state).or_default() += 1;
            // In terms of the case's lease, since the clock stands a little later each time.
            let lease = record
                .lease_until
                .and_then(|until| until.duration_since(now).ok());
            let lease = lease.map_or(0.0, |left| {
                (left.as_secs_f64() / LONG.as_secs_f64()).round()
            });
            let edited = record.payload.as_deref() == Some(b"edited");
            standings.insert(
                record.key.id.to_string(),
                format!(
                    "{:?}, {:?}, leases {lease}, edited {edited}, result {}, error {:?}",
                    record.state,
                    record.attempts,
                    record.result.is_some(),
                    record.last_error,
                ),
            );
        }
        for message in &self.messages {
            let known = connection.get(message.key()).await?.is_some();
            let shown = standings.contains_key(message.id().as_str());
            same("whether get finds what list shows", &known, &shown)?;
        }
        let statistics = connection.statistics().await?;
        for state in State::ALL {
            let filter = Filter {
                states: vec![state],
                handler: Some(HandlerName::new(HANDLER)?),
                ..Filter::default()
            };
            let expected = counted.get(&state).copied().unwrap_or_default();
            let seen = connection.count(&filter).await?;
            same(&format!("count of {state}"), &seen, &expected)?;
        }
        let handlers = statistics.handlers.iter();
        let of_handler = handlers.filter(|handler| handler.handler.as_str() == HANDLER);
        let pending: u64 = of_handler.map(|handler| handler.pending).sum();
        let expected = counted.get(&State::Pending).copied().unwrap_or_default();
        same("pending by statistics", &pending, &expected)?;
        Ok(standings)
    }

    /// Whatever is unfinished is handed out, in the order of its key, and comes to its end; whatever is
    /// not known is accepted.
    async fn works_on(&self, connection: &dyn Inbox, seen: &Standings) -> CaseResult {
        self.inbox.pass(3 * LONG).await?;
        let _ = connection.receive(&self.messages).await?;
        let ended = |standing: &String| {
            !["Pending", "Leased"]
                .iter()
                .any(|s| standing.starts_with(s))
        };
        let expected: Vec<String> = self
            .messages
            .iter()
            .map(|message| message.id().to_string())
            .filter(|id| !seen.get(id).is_some_and(ended))
            .collect();
        let (mut claimed, mut of_key) = (Vec::new(), Vec::new());
        loop {
            let leased = claim(connection, HANDLER, 10, LONG).await?;
            if leased.is_empty() {
                break;
            }
            for leased in leased {
                let id = leased.message.id().to_string();
                if leased.message.ordering_key().is_some() {
                    of_key.push(id.clone());
                }
                claimed.push(id);
                let settled = connection.settle_one(&leased.lease, processed()).await?;
                same("settling", &settled, &inbox_api::Settled::Done)?;
            }
        }
        // A message that is accepted behind others of its key is behind them.
        let in_order = seen.is_empty() || seen.len() == self.messages.len();
        ensure!(
            !in_order || of_key.is_sorted(),
            "claimed of one key, in order: saw {of_key:?}"
        );
        claimed.sort();
        same("claimed afterwards", &claimed, &expected)
    }
}

async fn check(cx: &Context, operation: Operation) -> CaseResult {
    cx.unless_lacking(Need::OutageAmidWrites)?;
    let scene = Scene::new(cx, operation).await?;
    // Lets everything through; asks whether it is offered.
    scene
        .inbox
        .fixture
        .server()
        .begin_outage_after(u32::MAX)
        .await?;
    scene.inbox.fixture.server().end_outage().await?;
    scene.inbox.need_clock()?;
    let before = scene.standings(&*scene.inbox.store).await?;
    scene.act(operation).await??;
    let after = scene.standings(&*scene.inbox.store).await?;
    ensure!(before != after, "{operation:?} changes nothing");
    let whole = operation == Operation::Receive
        && scene.inbox.capabilities().receive_atomicity == ReceiveAtomicity::Batch;

    for writes in 0..MOST_WRITES {
        let scene = Scene::new(cx, operation).await?;
        let fixture = &scene.inbox.fixture;
        fixture.server().begin_outage_after(writes).await?;
        let answer = scene.act(operation).await?;
        fixture.server().end_outage().await?;
        fixture.server().restart(Restart::Killed).await?;
        let what = format!("{operation:?}, stopped after {writes} writes, answered {answer:?}");
        let told = |unmet| match unmet {
            Unmet::Failed(text) => Unmet::Failed(format!("{what}: {text}")),
            not_checked => not_checked,
        };
        let inbox = fixture.inbox();
        let seen = scene.standings(&*inbox).await.map_err(told)?;
        let as_one = seen == before || seen == after;
        for message in &scene.messages {
            let id = message.id().as_str();
            let is = seen.get(id);
            ensure!(
                (is == before.get(id) && answer.is_err()) || is == after.get(id),
                "{what}: message {id} was {:?} before and would be {:?}, saw {is:?}",
                before.get(id),
                after.get(id)
            );
        }
        ensure!(
            as_one || !whole,
            "{what}: a part of the batch is there, saw {seen:?}"
        );
        scene.works_on(&*inbox, &seen).await.map_err(told)?;
        if answer.is_ok() {
            return Ok(());
        }
    }
    Err(Unmet::Failed(format!(
        "{operation:?} did not succeed with {MOST_WRITES} writes"
    )))
}

macro_rules! cases {
    ($($name:ident: $operation:ident,)*) => {$(
        pub(crate) async fn $name(cx: Context) -> CaseResult {
            check(&cx, Operation::$operation).await
        }
    )*};
}

cases! {
    of_a_receive: Receive,
    of_a_begin: Begin,
    of_a_claim: Claim,
    of_an_extension: Extend,
    of_a_completion: Process,
    of_a_retry: Retry,
    of_a_deferral: Defer,
    of_a_death: Die,
    of_a_replay: Replay,
    of_a_replay_in_slices: ReplaySlice,
    of_a_discard: Discard,
    of_a_discard_in_slices: DiscardSlice,
    of_a_purge: Purge,
}
