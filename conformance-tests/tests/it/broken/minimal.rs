//! A store with the fewest capabilities, as a stranger's first one is: it honours no ordering keys and wakes
//! nobody, and refuses what it does not do.

use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{Fixture, Harness, Need, Offered, Settings, Unable};
use inbox_api::{
    Begun, Capabilities, Error, ErrorKind, HandlerName, Inbox, LeaseTerms, Message, Receipt,
    Result, Store as _, Subscription,
};
use inbox_memory::MemoryStore;

use super::{Defect, Workshop, skewed::Mistake};

/// What happens to messages that have an ordering key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The call fails.
    Refused,
    /// The call fails when the messages before them are stored.
    RefusedTooLate,
    /// They are taken as if they had none.
    TakenByReceive,
    TakenByBegin,
}

pub(crate) struct Minimal(pub(crate) Keys);

pub(super) fn check(operation: &'static str, messages: &[Message]) -> Result<()> {
    if messages.iter().any(|m| m.ordering_key().is_some()) {
        let what = "this store does not honour ordering keys";
        return Err(Error::new(ErrorKind::Unsupported, what).in_operation(operation));
    }
    Ok(())
}

#[async_trait]
impl Defect for Minimal {
    fn capabilities(&self, inner: &MemoryStore) -> Capabilities {
        Capabilities::minimal("nothing", inner.capabilities().payload_limit)
    }

    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        match self.0 {
            Keys::RefusedTooLate => {
                let mut receipts = Vec::new();
                for message in messages.chunks(1) {
                    check("receive", message)?;
                    receipts.extend(inner.receive(message).await?);
                }
                return Ok(receipts);
            }
            Keys::TakenByReceive => {}
            Keys::Refused | Keys::TakenByBegin => check("receive", messages)?,
        }
        inner.receive(messages).await
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        if self.0 != Keys::TakenByBegin {
            check("begin", std::slice::from_ref(message))?;
        }
        inner.begin(message, terms).await
    }

    async fn subscribe(&self, _: &MemoryStore, _: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        let what = "this store has no wake-ups";
        Err(Error::new(ErrorKind::Unsupported, what).in_operation("subscribe"))
    }
}

/// The same, with transactions.
pub(crate) struct MinimalTransactional;

const REFUSED: Minimal = Minimal(Keys::Refused);

#[async_trait]
impl Defect for MinimalTransactional {
    fn capabilities(&self, inner: &MemoryStore) -> Capabilities {
        REFUSED.capabilities(inner)
    }

    async fn receive(&self, inner: &MemoryStore, messages: &[Message]) -> Result<Vec<Receipt>> {
        REFUSED.receive(inner, messages).await
    }

    async fn begin(
        &self,
        inner: &MemoryStore,
        message: &Message,
        terms: &LeaseTerms,
    ) -> Result<Begun> {
        REFUSED.begin(inner, message, terms).await
    }

    fn in_transactions(&self) -> Option<Mistake> {
        Some(Mistake::None)
    }
}

/// The least that a harness offers of it: an inbox, of a small payload limit that cannot be set, and nothing
/// that may be done to it.
pub(crate) struct Bare;

const SMALL_LIMIT: usize = 4096;

struct Nothing(Box<dyn Fixture>);

impl Fixture for Nothing {
    fn inbox(&self) -> Arc<dyn Inbox> {
        self.0.inbox()
    }
}

#[async_trait]
impl Harness for Bare {
    fn name(&self) -> String {
        "bare".into()
    }

    async fn fresh(&self, settings: &Settings) -> Offered<Box<dyn Fixture>> {
        for (is_asked_for, need) in [
            (settings.payload_limit.is_some(), Need::PayloadLimit),
            (settings.drop_processed_payloads, Need::DroppedPayloads),
            (settings.operation_timeout.is_some(), Need::OperationTimeout),
        ] {
            if is_asked_for {
                return Err(Unable::NotOffered(need));
            }
        }
        let minimal = Workshop {
            name: "minimal",
            defect: || Minimal(Keys::Refused),
        };
        let mut small = Settings::default();
        small.payload_limit = Some(SMALL_LIMIT);
        Ok(Box::new(Nothing(minimal.fresh(&small).await?)))
    }

    fn expected_not_checked(&self) -> Vec<Need> {
        let lacking = [
            Need::BatchAtomicity,
            Need::DroppedPayloads,
            Need::LargePayloads,
            Need::OperationTimeout,
            Need::Ordering,
            Need::PayloadLimit,
            Need::Wakeups,
            Need::WakeupsAcrossProcesses,
        ];
        Need::HARNESS.iter().copied().chain(lacking).collect()
    }
}
