//! What cases are written with: a fresh inbox and the few steps that most of them share.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use inbox_api::{
    AfterDead, ClaimRequest, Cursor, HandlerName, Inbox, Key, Kind, LeaseTerms, Leased, Message,
    MessageId, OrderingKey, Outcome, PastAttempt, Receipt, Record, Settled, State, Store, StoreExt,
    WorkerName,
};

use crate::{
    check::{CaseResult, Unmet, ensure, same},
    harness::{Fixture, Harness},
    needs::{Need, SchemaVariant, Settings, Unable},
    options::Options,
    watched::{Inboxes, Made},
};

/// The handler of messages that do not say otherwise.
pub(crate) const HANDLER: &str = "orders";
/// A lease or delay that no case outlives in real time.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The shortest lease or delay that a case waits for in real time.
const SHORTEST_WAIT: Duration = Duration::from_millis(150);
/// The longest one, on a slow store.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How many operations a case does before such a lease runs out.
const STEPS: u32 = 10;
/// What a case is given.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) harness: Arc<dyn Harness>,
    pub(crate) options: Options,
    inboxes: Arc<Inboxes>,
}

impl Context {
    pub(crate) fn new(harness: Arc<dyn Harness>, options: Options) -> Self {
        Self {
            harness,
            options,
            inboxes: Arc::default(),
        }
    }

    /// Fails if what an inbox that the case made keeps does not agree.
    pub(crate) async fn check_inboxes(&self) -> CaseResult {
        self.inboxes.check_all().await
    }

    /// A fresh inbox with the store's defaults.
    pub(crate) async fn fresh(&self) -> CaseResult<TestInbox> {
        self.fresh_with(&Settings::default()).await
    }

    /// A fresh inbox with these options.
    pub(crate) async fn fresh_with(&self, settings: &Settings) -> CaseResult<TestInbox> {
        self.inboxes.check_left().await?;
        let fixture = self.harness.fresh(settings).await?;
        let mut inbox = TestInbox::new(self.inboxes.add(fixture, Made::Fresh)).await?;
        inbox.measure().await?;
        Ok(inbox)
    }

    /// A fresh inbox that can be restarted or taken away without harm to other cases.
    pub(crate) async fn fresh_to_disrupt(&self) -> CaseResult<TestInbox> {
        self.fresh_with(&Settings {
            disrupted: true,
            ..Settings::default()
        })
        .await
    }

    /// A fresh inbox that honours ordering keys.
    pub(crate) async fn fresh_ordered(&self) -> CaseResult<TestInbox> {
        let inbox = self.fresh().await?;
        if inbox.capabilities().ordering {
            Ok(inbox)
        } else {
            Err(Unmet::NotChecked(Need::Ordering))
        }
    }

    /// Ends the case as not checked where the harness says that it lacks this, before anything is
    /// made for it.
    pub(crate) fn unless_lacking(&self, need: Need) -> CaseResult {
        if self.harness.expected_not_checked().contains(&need) {
            return Err(Unmet::NotChecked(need));
        }
        Ok(())
    }

    /// An inbox, or what is none, in this condition.
    pub(crate) async fn variant(&self, variant: SchemaVariant) -> CaseResult<TestInbox> {
        self.inboxes.check_left().await?;
        let fixture = self.harness.schema_variant(variant).await?;
        TestInbox::new(self.inboxes.add(fixture, Made::Variant)).await
    }
}

/// A fresh inbox; dereferences to it.
pub(crate) struct TestInbox {
    pub(crate) store: Arc<dyn Inbox>,
    pub(crate) fixture: Arc<dyn Fixture>,
    has_clock: bool,
    /// How long a lease or delay is that is waited for in real time.
    wait: Duration,
    probes: AtomicU32,
}

impl Deref for TestInbox {
    type Target = dyn Inbox;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl TestInbox {
    async fn new(fixture: Arc<dyn Fixture>) -> CaseResult<Self> {
        let has_clock = match fixture.advance_clock(Duration::ZERO).await {
            Ok(()) => true,
            Err(Unable::NotOffered(_)) => false,
            Err(failed) => return Err(failed.into()),
        };
        Ok(Self {
            store: fixture.inbox(),
            fixture,
            has_clock,
            wait: SHORTEST_WAIT,
            probes: AtomicU32::new(0),
        })
    }

    /// Finds out how slow the store is, where that decides how long waits are. The first operation may
    /// also have to connect.
    async fn measure(&mut self) -> CaseResult {
        if self.has_clock {
            return Ok(());
        }
        let nobody = message_for("nobody", "nothing")?;
        let mut least = LONGEST_WAIT;
        for _ in 0..2 {
            let started = tokio::time::Instant::now();
            let _ = self.get(nobody.key()).await;
            least = least.min(started.elapsed());
        }
        self.wait = (least * STEPS).clamp(SHORTEST_WAIT, LONGEST_WAIT);
        Ok(())
    }

    /// A lease or delay for [`Self::pass`] to outlive: long when the clock can be moved, so that
    /// a slow machine does not outlive it by accident.
    pub(crate) fn brief(&self) -> Duration {
        if self.has_clock { LONG } else { self.wait }
    }

    /// Lets `time` and a little more pass by the store's clock.
    pub(crate) async fn pass(&self, time: Duration) -> CaseResult {
        if self.has_clock {
            self.fixture
                .advance_clock(time + Duration::from_millis(10))
                .await?;
        } else if time <= self.wait + Duration::from_millis(50) {
            tokio::time::sleep(time + Duration::from_millis(20)).await;
        } else {
            return Err(Unmet::NotChecked(Need::Clock));
        }
        Ok(())
    }

    /// Ends the case as not checked unless the clock can be moved.
    pub(crate) fn need_clock(&self) -> CaseResult {
        if self.has_clock {
            Ok(())
        } else {
            Err(Unmet::NotChecked(Need::Clock))
        }
    }

    /// The store's time, as it stamps it on a message of a handler of its own.
    pub(crate) async fn now(&self) -> CaseResult<SystemTime> {
        let number = self.probes.fetch_add(1, Ordering::Relaxed);
        let probe = message_for("probe", &format!("{number}"))?;
        self.accept(&probe).await?;
        Ok(self.record(probe.key()).await?.accepted_at)
    }

    /// Receives `message`, which must be new.
    pub(crate) async fn accept(&self, message: &Message) -> CaseResult {
        same(
            &format!("receipt of the new message {}", message.key()),
            &self.receive_one(message).await?,
            &Receipt::Accepted,
        )
    }

    /// Receives `messages` in one batch; all must be new.
    pub(crate) async fn accept_all(&self, messages: &[Message]) -> CaseResult {
        let receipts = self.receive(messages).await?;
        same(
            "receipts of a batch of new messages",
            &receipts,
            &vec![Receipt::Accepted; messages.len()],
        )
    }

    /// Receives `message`, which must be a duplicate `when`.
    pub(crate) async fn refuses_copy(&self, message: &Message, when: &str) -> CaseResult {
        same(
            &format!("receipt of a second copy of {} {when}", message.key()),
            &self.receive_one(message).await?,
            &Receipt::Duplicate { differs: false },
        )
    }

    /// Claims up to `limit` messages of [`HANDLER`].
    pub(crate) async fn claim_up_to(
        &self,
        limit: u32,
        length: Duration,
    ) -> CaseResult<Vec<Leased>> {
        claim(&*self.store, HANDLER, limit, length).await
    }

    /// Claims the one message of [`HANDLER`] that is due, under a long lease.
    pub(crate) async fn claim_one(&self) -> CaseResult<Leased> {
        self.claim_single(LONG).await
    }

    /// Claims the one message of [`HANDLER`] that is due, under a lease of `length`.
    pub(crate) async fn claim_single(&self, length: Duration) -> CaseResult<Leased> {
        let leased = self.claim_up_to(1, length).await?;
        leased.into_iter().next().ok_or_else(|| {
            Unmet::Failed("claim: expected the due message, saw that nothing is due".into())
        })
    }

    /// Fails if anything of [`HANDLER`] can be claimed.
    pub(crate) async fn nothing_due(&self, because: &str) -> CaseResult {
        let leased = self.claim_up_to(10, LONG).await?;
        same(
            &format!("claimed although {because}"),
            &ids(&leased),
            &Vec::new(),
        )
    }

    /// Ends a lease, which must be the newest.
    pub(crate) async fn finish(&self, leased: &Leased, outcome: Outcome) -> CaseResult {
        same(
            &format!("settling {} with its newest lease", leased.lease.key),
            &self.settle_one(&leased.lease, outcome).await?,
            &Settled::Done,
        )
    }

    /// Receives a message and brings it to `state` (not leased), ready for what follows.
    pub(crate) async fn accept_in(&self, message: &Message, state: State) -> CaseResult {
        self.accept(message).await?;
        let handler = message.handler().as_str();
        match state {
            State::Pending => return Ok(()),
            State::Discarded => {
                let _ = self.discard(message.key()).await?;
            }
            State::Leased => {
                let _ = claim(&*self.store, handler, 1, LONG).await?;
            }
            State::Processed | State::Dead => {
                let leased = claim(&*self.store, handler, 1, LONG).await?;
                let outcome = if state == State::Dead {
                    dead("gave up")
                } else {
                    processed()
                };
                for leased in &leased {
                    self.finish(leased, outcome.clone()).await?;
                }
            }
        }
        self.has_state(message.key(), state).await
    }

    /// The record of `key`, which must exist.
    pub(crate) async fn record(&self, key: &Key) -> CaseResult<Record> {
        self.get(key)
            .await?
            .ok_or_else(|| Unmet::Failed(format!("get {key}: expected its record, saw none")))
    }

    /// Fails unless `key` is in `state`.
    pub(crate) async fn has_state(&self, key: &Key, state: State) -> CaseResult {
        same(
            &format!("state of {key}"),
            &self.record(key).await?.state,
            &state,
        )
    }

    /// The inbox, and a second connection to it where the harness offers one, for `n` tasks in
    /// turn.
    pub(crate) async fn connections(&self, n: usize) -> CaseResult<Vec<Arc<dyn Inbox>>> {
        let second = match self.fixture.second_connection().await {
            Ok(second) => second,
            Err(Unable::NotOffered(_)) => Arc::clone(&self.store),
            Err(failed) => return Err(failed.into()),
        };
        Ok([Arc::clone(&self.store), second]
            .into_iter()
            .cycle()
            .take(n)
            .collect())
    }
}

/// Claims up to `limit` messages of `handler`; fails on corrupt rows.
pub(crate) async fn claim(
    inbox: &dyn Inbox,
    handler: &str,
    limit: u32,
    length: Duration,
) -> CaseResult<Vec<Leased>> {
    let request = ClaimRequest {
        handlers: vec![HandlerName::new(handler)?],
        limit,
        terms: terms(length)?,
        run_limit: 1,
    };
    let claims = Store::claim(inbox, &request).await?;
    ensure!(
        claims.corrupt.is_empty(),
        "claim: expected no corrupt rows, saw {:?}",
        claims.corrupt
    );
    Ok(claims.leased)
}

/// Lease terms of one worker.
pub(crate) fn terms(length: Duration) -> CaseResult<LeaseTerms> {
    Ok(LeaseTerms::new(length, worker()?)?)
}

/// The worker's name in most cases.
pub(crate) fn worker() -> CaseResult<WorkerName> {
    Ok(WorkerName::new("worker-1")?)
}

/// A message of [`HANDLER`].
pub(crate) fn message(id: &str) -> CaseResult<Message> {
    message_for(HANDLER, id)
}

/// A message of `handler`; its payload is its id.
pub(crate) fn message_for(handler: &str, id: &str) -> CaseResult<Message> {
    Ok(Message::new(
        HandlerName::new(handler)?,
        MessageId::new(id)?,
        Kind::new("order.placed")?,
        Bytes::copy_from_slice(id.as_bytes()),
    ))
}

/// A message of [`HANDLER`] with an ordering key.
pub(crate) fn ordered(id: &str, ordering_key: &str) -> CaseResult<Message> {
    Ok(message(id)?.with_ordering_key(OrderingKey::new(ordering_key)?))
}

/// Messages `1` to `n` of [`HANDLER`].
pub(crate) fn numbered(n: usize) -> CaseResult<Vec<Message>> {
    (1..=n).map(|i| message(&format!("{i:05}"))).collect()
}

/// Messages `first` to `n` of [`HANDLER`], all with one ordering key.
pub(crate) fn sequence(n: usize, ordering_key: &str) -> CaseResult<Vec<Message>> {
    (1..=n)
        .map(|i| ordered(&format!("{i}"), ordering_key))
        .collect()
}

/// The message ids, for comparing and for showing.
pub(crate) fn ids(leased: &[Leased]) -> Vec<String> {
    leased
        .iter()
        .map(|leased| leased.message.id().to_string())
        .collect()
}

/// The record without what differs between two messages that were treated alike: of its times, only
/// whether there are any.
pub(crate) fn without_times(record: Record) -> Record {
    let never = SystemTime::UNIX_EPOCH;
    let history = record.history.into_iter().map(|past| PastAttempt {
        leased_at: never,
        ended_at: never,
        ..past
    });
    Record {
        accepted_at: never,
        due_at: never,
        lease_until: record.lease_until.map(|_| never),
        leased_at: record.leased_at.map(|_| never),
        finished_at: record.finished_at.map(|_| never),
        history: history.collect(),
        cursor: Cursor::new(""),
        ..record
    }
}

pub(crate) fn processed() -> Outcome {
    Outcome::Processed { result: None }
}

pub(crate) fn retry(after: Duration) -> Outcome {
    Outcome::Retry {
        after,
        error: "try again".into(),
    }
}

pub(crate) fn defer(after: Duration) -> Outcome {
    Outcome::Defer {
        after,
        error: Some("not now".into()),
    }
}

pub(crate) fn dead(reason: &str) -> Outcome {
    Outcome::Dead {
        reason: reason.into(),
        after: AfterDead::Continue,
    }
}

pub(crate) fn dead_blocking(reason: &str) -> Outcome {
    Outcome::Dead {
        reason: reason.into(),
        after: AfterDead::Block,
    }
}
