//! The store as one part sees it: calls go wrong as planned, and what really happens is written down.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Effect, Error, ErrorKind, Extended, HandlerName,
    Lease, LeaseTerms, Message, Receipt, Result, Settled, Settlement, Store, Subscription,
};
use tokio::time::sleep;

use crate::{
    history::PartId,
    scenario::{Operation, Wrong},
    world::World,
};

pub(crate) struct Seen {
    pub(crate) world: Arc<World>,
    pub(crate) part: PartId,
}

impl Seen {
    /// One call, with what is planned for it. What it answers has been written down when it was done.
    async fn call<T: Send + 'static>(
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
            Wrong::Fatal => Err(fail(ErrorKind::Denied)),
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

/// As long as a call goes wrong, and at its end, leases may be lost.
struct Disturbed<'a>(&'a World);

impl<'a> Disturbed<'a> {
    fn new(world: &'a World) -> Self {
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
        self.world.store.capabilities()
    }

    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let (world, part, owned) = (self.world.clone(), self.part.clone(), messages.to_vec());
        let work = async move {
            world.follow();
            let receipts = world.store.receive(&owned).await?;
            world.history().received(&part, &owned, &receipts);
            Ok(receipts)
        };
        let receipts = self.call(Operation::Receive, "receive", work).await?;
        self.world.history().told_receipts(&self.part, &receipts);
        Ok(receipts)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let (world, part, owned) = (self.world.clone(), self.part.clone(), request.clone());
        let work = async move {
            world.follow();
            let claims = world.store.claim(&owned).await?;
            world.history().claimed(&part, &claims.leased);
            Ok(claims)
        };
        let mut open = OpenClaim::new(self);
        let claims = self.call(Operation::Claim, "claim", work).await;
        open.is_answered = true;
        drop(open);
        let claims = claims?;
        self.world.history().told_claims(&self.part, &claims.leased);
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let (world, part, owned) = (self.world.clone(), self.part.clone(), settlements.to_vec());
        self.world.history().settling(&self.part, settlements);
        let work = async move {
            world.follow();
            let settled = world.store.settle(&owned).await?;
            world.history().settled(&part, &owned, &settled);
            Ok(settled)
        };
        let settled = self.call(Operation::Settle, "settle", work).await?;
        self.world
            .history()
            .told_settled(&self.part, settlements, &settled);
        Ok(settled)
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        let (world, part, owned) = (self.world.clone(), self.part.clone(), leases.to_vec());
        let work = async move {
            world.follow();
            let extended = world.store.extend(&owned, length).await?;
            world.history().extended(&part, &owned, &extended);
            Ok(extended)
        };
        let extended = self.call(Operation::Extend, "extend", work).await?;
        self.world
            .history()
            .told_extended(&self.part, leases, &extended);
        Ok(extended)
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        let (world, part) = (self.world.clone(), self.part.clone());
        let (owned, terms) = (message.clone(), terms.clone());
        let work = async move {
            world.follow();
            let begun = world.store.begin(&owned, &terms).await?;
            world.history().begun(&part, &owned, &begun);
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
