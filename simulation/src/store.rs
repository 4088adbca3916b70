//! The store as one part sees it: calls go wrong as planned, and what really happens is written down.

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, HandlerName,
    Invalid, Key, Lease, LeaseTerms, Message, Outcome, Receipt, Result, Settled, Settlement, Store,
    Subscription,
};
use tokio::time::{sleep, timeout};

use crate::{
    Flaw,
    history::{History, PartId},
    scenario::{Operation, Transactions, Wrong},
    world::{AUDIT, REJECTED, World},
};

#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) world: Arc<World>,
    pub(crate) part: PartId,
}

impl Seen {
    /// One of those that store, or only record.
    fn is_receiver(&self) -> bool {
        self.part.name.starts_with("rec")
    }

    /// A length of time of this part's clock by the store's.
    fn by_the_store(&self, length: Duration) -> Duration {
        let number = self.part.name.strip_prefix("processor-");
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let percents = &self.world.scenario.settings.leases_percent;
        match number.and_then(|number| percents.get(number)) {
            Some(percent) => length.mul_f64(*percent as f64 / 100.0),
            None => length,
        }
    }

    /// The settlements, as a broken runtime would ask for them.
    fn as_broken<'a>(&self, settlements: &'a [Settlement]) -> Cow<'a, [Settlement]> {
        let Some(flaw) = self.world.flaw else {
            return settlements.into();
        };
        let broken = |settlement: &Settlement| Settlement {
            lease: settlement.lease.clone(),
            outcome: self.broken_outcome(flaw, settlement),
        };
        let mut settlements: Vec<_> = settlements.iter().map(broken).collect();
        if flaw == Flaw::SettlesForwards {
            settlements.sort_by_key(|settlement| settlement.lease.token);
        }
        settlements.into()
    }

    fn broken_outcome(&self, flaw: Flaw, settlement: &Settlement) -> Outcome {
        let (lease, outcome) = (&settlement.lease, settlement.outcome.clone());
        let handler = lease.key.handler.as_str();
        match flaw {
            Flaw::RefusedIsDone if self.world.history().was_refused(lease) => {
                Outcome::Processed { result: None }
            }
            Flaw::ChargesOutages if self.world.history().was_cut(lease) => Outcome::Retry {
                after: Duration::ZERO,
                error: "planned".into(),
            },
            Flaw::PutsOff if outcome == Outcome::Release => Outcome::Defer {
                after: Duration::from_secs(1),
                error: None,
            },
            Flaw::ReleasesRecords if handler == AUDIT => Outcome::Release,
            Flaw::CompletesRejected if handler == REJECTED => Outcome::Processed { result: None },
            _ => outcome,
        }
    }

    /// One call, with what is planned for it. What it answers has been written down when it was done.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        name: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let fail = |kind| Error::new(kind, "planned").in_operation(name);
        let Some(wrong) = self.world.next_fault(operation) else {
            return work.await;
        };
        let _disturbed = Disturbed::new(&self.world);
        self.world
            .history()
            .trace(|| format!("{} {name}: {wrong:?}", self.part));
        let after = |millis| sleep(Duration::from_millis(millis));
        match wrong {
            Wrong::Delay(millis) => {
                after(millis).await;
                work.await
            }
            Wrong::Late(millis) => {
                let late = tokio::spawn(async move {
                    sleep(Duration::from_millis(millis)).await;
                    work.await
                });
                late.await.unwrap_or_else(|_| Err(fail(ErrorKind::Other)))
            }
            Wrong::Slow(millis) => {
                let answer = work.await;
                after(millis).await;
                answer
            }
            Wrong::Fail => Err(fail(ErrorKind::Unavailable)),
            Wrong::Conflict => Err(fail(ErrorKind::Conflict)),
            Wrong::Fatal => {
                self.world.history().fails_for_good(&self.part);
                Err(fail(ErrorKind::Denied))
            }
            Wrong::LoseAnswer => {
                work.await?;
                Err(fail(ErrorKind::Unavailable).with_effect(Effect::Unknown))
            }
            Wrong::Hang => std::future::pending().await,
            Wrong::HangAfter => {
                work.await?;
                std::future::pending().await
            }
        }
    }
}

/// A claim under way.
struct OpenClaim<'a> {
    seen: &'a Seen,
    since: u64,
    is_answered: bool,
}

impl<'a> OpenClaim<'a> {
    fn new(seen: &'a Seen) -> Self {
        let mut history = seen.world.history();
        history.claim_begins(&seen.part);
        Self {
            seen,
            since: history.now,
            is_answered: false,
        }
    }
}

impl Drop for OpenClaim<'_> {
    fn drop(&mut self) {
        let mut history = self.seen.world.history();
        history.claim_is_over(&self.seen.part, self.since, self.is_answered);
    }
}

/// A renewal under way: it has failed unless something else is said of it.
struct Renewing<'a> {
    seen: &'a Seen,
    leases: &'a [Lease],
    is_over: bool,
}

impl<'a> Renewing<'a> {
    fn new(seen: &'a Seen, leases: &'a [Lease]) -> Self {
        seen.world.history().renewal_begins(&seen.part);
        Self {
            seen,
            leases,
            is_over: false,
        }
    }
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut history = self.seen.world.history();
            history.renewal_failed(&self.seen.part, self.leases);
        }
    }
}

/// As long as a call goes wrong, and at its end, leases may be lost.
pub(crate) struct Disturbed<'a>(&'a World);

impl<'a> Disturbed<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        world.history().disturbed(1);
        Self(world)
    }
}

impl Drop for Disturbed<'_> {
    fn drop(&mut self) {
        self.0.history().disturbed(-1);
    }
}

#[async_trait]
impl Store for Seen {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.world.store.capabilities();
        capabilities.exclusive_transactions =
            self.world.scenario.settings.transactions == Transactions::OneAtATime;
        capabilities
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let (world, part, owned) = (self.world.clone(), self.part.clone(), messages.to_vec());
        let caller = Arc::new(());
        let left = Arc::downgrade(&caller);
        let work = async move {
            let _turn = world.turn().await;
            world.follow();
            let receipts = world.store.receive(&owned).await?;
            let is_orphan = left.strong_count() == 0;
            let mut history = world.history();
            history.received(&part, &owned, &receipts, is_orphan);
            drop(history);
            Ok(receipts)
        };
        let receipts = self.call(Operation::Receive, "receive", work).await?;
        let mut history = self.world.history();
        history.told_receipts(&self.part, messages, &receipts);
        drop(history);
        Ok(receipts)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let (world, part, mut owned) = (self.world.clone(), self.part.clone(), request.clone());
        let length = self.by_the_store(request.terms.length());
        owned.terms = LeaseTerms::new(length, request.terms.worker().clone())
            .map_err(|invalid| invalid.in_operation("claim"))?;
        let work = async move {
            let _turn = world.turn().await;
            world.follow();
            let claims = world.store.claim(&owned).await?;
            world.history().claimed(&part, &claims.leased);
            Ok(claims)
        };
        let mut open = OpenClaim::new(self);
        let call = self.call(Operation::Claim, "claim", work);
        let answer = match self.world.flaw {
            Some(Flaw::LeavesClaims) => timeout(Duration::from_millis(1), call).await.ok(),
            _ => Some(call.await),
        };
        open.is_answered = answer.is_some();
        drop(open);
        let late = || Err(Error::new(ErrorKind::Unavailable, "planned").in_operation("claim"));
        let mut claims = answer.unwrap_or_else(late)?;
        self.world.history().told_claims(&self.part, &claims.leased);
        if self.world.flaw == Some(Flaw::HidesCrashes) {
            for leased in &mut claims.leased {
                leased.attempts.finished = leased.attempts.started.saturating_sub(1);
            }
        }
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let settlements = &*self.as_broken(settlements);
        if self.world.flaw == Some(Flaw::ForgetsLateClaims)
            && self.world.history().is_ended(&self.part)
        {
            return Ok(vec![Settled::Done; settlements.len()]);
        }
        let (world, part, owned) = (self.world.clone(), self.part.clone(), settlements.to_vec());
        self.world.history().settling(&self.part, settlements);
        self.world.history().settles_alone(&self.part, settlements);
        let refuses = !self.is_receiver() && self.world.refuses();
        let work = async move {
            let _turn = world.turn().await;
            world.follow();
            let (taken, refusals) = refusing(&owned, refuses);
            let settled = world.store.settle(&taken).await?;
            let mut history = world.history();
            history.settled_alone(&part, &taken, &settled);
            history.settled(&part, &taken, &settled);
            Ok(refusals.answers(&mut history, &part, settled))
        };
        let settled = self.call(Operation::Settle, "settle", work).await?;
        self.world
            .history()
            .told_settled(&self.part, settlements, &settled);
        Ok(settled)
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        if self.world.flaw == Some(Flaw::RenewsLate)
            && self.world.history().has_not_renewed(&self.part)
        {
            sleep(Duration::from_secs(60)).await;
        }
        if self.world.flaw == Some(Flaw::StopsRenewing) && self.world.history().was_disturbed() {
            return Err(Error::new(ErrorKind::Unavailable, "planned").in_operation("extend"));
        }
        let mut renewing = Renewing::new(self, leases);
        let length = self.by_the_store(length);
        let (world, part, owned) = (self.world.clone(), self.part.clone(), leases.to_vec());
        let work = async move {
            let _turn = world.turn().await;
            world.follow();
            let extended = world.store.extend(&owned, length).await?;
            world.history().extended(&part, &owned, &extended);
            Ok(extended)
        };
        let extended = self.call(Operation::Extend, "extend", work).await;
        renewing.is_over = extended
            .as_ref()
            .err()
            .is_none_or(|error| !error.is_retryable());
        drop(renewing);
        let extended = extended?;
        self.world
            .history()
            .told_extended(&self.part, leases, &extended);
        Ok(extended)
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let (world, part) = (self.world.clone(), self.part.clone());
        self.world.history().looks(&self.part, message.key());
        let (owned, terms) = (message.clone(), terms.clone());
        let caller = Arc::new(());
        let left = Arc::downgrade(&caller);
        let work = async move {
            let _turn = world.turn().await;
            world.follow();
            let begun = world.store.begin(&owned, &terms).await?;
            let is_orphan = left.strong_count() == 0;
            world.history().begun(&part, &owned, &begun, is_orphan);
            Ok(begun)
        };
        let begun = self.call(Operation::Begin, "begin", work).await?;
        self.world.history().told_begun(&begun);
        Ok(begun)
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let (world, owned) = (self.world.clone(), handlers.to_vec());
        let work = async move { world.store.subscribe(&owned).await };
        self.call(Operation::Subscribe, "subscribe", work).await
    }

    async fn close(&self) {}
}

/// What a store that objects to all results and texts takes of these settlements, and the rest.
pub(crate) fn refusing(all: &[Settlement], refuses: bool) -> (Vec<Settlement>, Refusals) {
    let is_refused = |one: &Settlement| refuses && has_text(&one.outcome);
    let refused = all
        .iter()
        .map(|one| is_refused(one).then(|| one.lease.key.clone()));
    let taken = all.iter().filter(|one| !is_refused(one));
    (taken.cloned().collect(), Refusals(refused.collect()))
}

/// The settlements that are refused, in their places.
pub(crate) struct Refusals(Vec<Option<Key>>);

impl Refusals {
    /// The answers to all of them, given those to the others.
    pub(crate) fn answers(
        self,
        history: &mut History,
        part: &PartId,
        settled: Vec<Settled>,
    ) -> Vec<Settled> {
        let mut settled = settled.into_iter();
        let answer = |refused: Option<Key>| {
            let Some(key) = refused else {
                return settled.next();
            };
            history.trace(|| format!("{part} is refused an outcome of {key}"));
            Some(Settled::Refused(Invalid::Empty { what: "planned" }))
        };
        self.0.into_iter().filter_map(answer).collect()
    }
}

/// Whether a store may object to an outcome.
fn has_text(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Retry { .. } | Outcome::Dead { .. } => true,
        Outcome::Processed { result } => result.is_some(),
        Outcome::Defer { error, .. } => error.is_some(),
        Outcome::Release => false,
    }
}
