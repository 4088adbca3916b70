//! Stores and sources that are broken on purpose: what the rules are there for.

use std::{
    collections::BTreeMap,
    panic::panic_any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use inbox::{
    Begun, Capabilities, ClaimRequest, Claims, Clock, Extended, FencingToken, HandlerName, Key,
    Lease, LeaseTerms, Leased, Message, Operate, Outcome, PurgeRequest, Receipt, Result, Settled,
    Settlement, State, Store, Subscription,
};

use crate::{
    PLANNED,
    world::{AUDIT, REJECTED},
};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A source that acknowledges what it hands out.
    AcknowledgesFirst,
    /// A final key is accepted again.
    ForgetsDuplicates,
    /// Tokens are not compared.
    NoFencing,
    /// Renewals are answered and not done.
    RenewsNothing,
    /// Lost leases are answered as renewed.
    HidesLostLeases,
    /// Ordering keys are not kept.
    NoOrder,
    /// A message that is to be retried is not handed out again.
    LosesRetries,
    /// A lease does not end by itself.
    EndlessLeases,
    /// A completion is answered and not done.
    ForgetsCompletions,
    /// A message that is held is handed out once more.
    HandsOutTwice,
    /// What is held can be begun inline.
    BeginsWhatIsHeld,
    /// The last message of a batch is answered as accepted and not stored.
    LosesMessages,
    /// A broker that keeps order has the last delivery first.
    DeliversBackwards,
    /// Deliveries that are no message say nothing of their bytes.
    HidesBytes,
    /// What is only recorded is answered as final, and is not.
    ForgetsRecords,
    /// Dead letters of what is no message are answered as dead, and are not.
    ForgetsRejected,
    /// What is only to be recorded is handed out.
    HandsOutRecords,
    /// The store panics when it is given two messages.
    PanicsAtTwo,
    /// What is refused is settled as done instead.
    RefusedIsDone,
    /// The janitor gives up what has only just become due.
    GivesUpAtOnce,
    /// Workers are not told of attempts that have vanished.
    HidesCrashes,
    /// What comes of a claim behind the end of its processor is not handed back.
    ForgetsLateClaims,
    /// Once something has gone wrong, no renewal works any more.
    StopsRenewing,
    /// Renewals that have failed are made again late.
    RenewsLate,
    /// A source that hands out what is no message as if it were one.
    TakesAnything,
    /// What is only recorded is handed back instead.
    ReleasesRecords,
    /// Dead letters of what is no message are settled as done.
    CompletesRejected,
    /// A claim that is not answered at once is given up.
    LeavesClaims,
    /// What was cut short for want of a renewal is charged as an attempt.
    ChargesOutages,
    /// A transaction commits also without a lease.
    IgnoresLostLeases,
    /// What a transaction has written is there also when it is rolled back.
    KeepsEffects,
    /// What a transaction has written is not there when it has committed.
    LosesEffects,
    /// The same for what is written about failed attempts.
    LosesNotes,
    /// What is handed back is put off instead.
    PutsOff,
    /// Settlements are done in the order of their leases.
    SettlesForwards,
    /// Callers of inline consumers are told that a handler which failed has done its work.
    HidesFailures,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 36] = [
        Self::AcknowledgesFirst,
        Self::ForgetsDuplicates,
        Self::NoFencing,
        Self::RenewsNothing,
        Self::HidesLostLeases,
        Self::NoOrder,
        Self::LosesRetries,
        Self::EndlessLeases,
        Self::ForgetsCompletions,
        Self::HandsOutTwice,
        Self::BeginsWhatIsHeld,
        Self::LosesMessages,
        Self::DeliversBackwards,
        Self::HidesBytes,
        Self::ForgetsRecords,
        Self::ForgetsRejected,
        Self::HandsOutRecords,
        Self::PanicsAtTwo,
        Self::RefusedIsDone,
        Self::GivesUpAtOnce,
        Self::HidesCrashes,
        Self::ForgetsLateClaims,
        Self::StopsRenewing,
        Self::RenewsLate,
        Self::TakesAnything,
        Self::ReleasesRecords,
        Self::CompletesRejected,
        Self::LeavesClaims,
        Self::ChargesOutages,
        Self::IgnoresLostLeases,
        Self::KeepsEffects,
        Self::LosesEffects,
        Self::LosesNotes,
        Self::PutsOff,
        Self::SettlesForwards,
        Self::HidesFailures,
    ];

    /// Whether it is the store that is broken.
    pub(crate) fn is_of_store(self) -> bool {
        !matches!(
            self,
            Self::AcknowledgesFirst
                | Self::DeliversBackwards
                | Self::HidesBytes
                | Self::RefusedIsDone
                | Self::GivesUpAtOnce
                | Self::HidesCrashes
                | Self::ForgetsLateClaims
                | Self::StopsRenewing
                | Self::RenewsLate
                | Self::TakesAnything
                | Self::ReleasesRecords
                | Self::CompletesRejected
                | Self::LeavesClaims
                | Self::ChargesOutages
                | Self::IgnoresLostLeases
                | Self::KeepsEffects
                | Self::LosesEffects
                | Self::LosesNotes
                | Self::PutsOff
                | Self::SettlesForwards
                | Self::HidesFailures
        )
    }
}

/// A store that is broken in one way.
pub(crate) struct Flawed {
    pub(crate) flaw: Flaw,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) operate: Arc<dyn Operate>,
    pub(crate) clock: Clock,
    /// The newest lease of each message.
    pub(crate) newest: Mutex<BTreeMap<Key, Leased>>,
}

impl Flawed {
    fn newest(&self) -> MutexGuard<'_, BTreeMap<Key, Leased>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember<'a>(&self, leased: impl IntoIterator<Item = &'a Leased>) {
        let mut newest = self.newest();
        for leased in leased {
            newest.insert(leased.lease.key.clone(), leased.clone());
        }
    }

    fn newest_lease(&self, lease: &Lease) -> Lease {
        let newest = self.newest();
        newest
            .get(&lease.key)
            .map_or_else(|| lease.clone(), |leased| leased.lease.clone())
    }

    fn in_future(&self, by: Duration) -> std::time::SystemTime {
        let micros = u64::try_from(self.clock.now_micros()).unwrap_or(0);
        std::time::UNIX_EPOCH + Duration::from_micros(micros) + by
    }

    /// A message whose lease has not run out.
    fn held(&self, of: impl Fn(&Leased) -> bool) -> Option<Leased> {
        let now = self.in_future(Duration::ZERO);
        let newest = self.newest();
        let mut held = newest.values().filter(|leased| leased.lease.until > now);
        held.find(|leased| of(leased)).cloned()
    }

    fn outcome(&self, outcome: Outcome) -> Outcome {
        let never = Duration::from_secs(10_000_000);
        match (self.flaw, outcome) {
            (Flaw::LosesRetries, Outcome::Retry { error, .. }) => Outcome::Retry {
                after: never,
                error,
            },
            (_, outcome) => outcome,
        }
    }
}

#[async_trait]
impl Store for Flawed {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    #[allow(clippy::panic, reason = "as planned")]
    async fn receive(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let mut messages = messages.to_vec();
        let mut lost = None;
        match self.flaw {
            Flaw::ForgetsDuplicates => {
                for message in &messages {
                    for state in [State::Processed, State::Dead] {
                        let all = PurgeRequest::new(state, Duration::ZERO, 1)
                            .map_err(|invalid| invalid.in_operation("receive"))?;
                        let keys = [message.key().clone()];
                        self.operate.purge_archived(&all, &keys).await?;
                    }
                }
            }
            Flaw::NoOrder => {
                messages = messages
                    .iter()
                    .map(|message| {
                        let (handler, id) = (message.handler().clone(), message.id().clone());
                        let payload = message.payload().clone();
                        Message::new(handler, id, message.kind().clone(), payload)
                    })
                    .collect();
            }
            Flaw::LosesMessages if messages.len() > 1 => lost = messages.pop(),
            Flaw::PanicsAtTwo if messages.len() == 2 => panic_any(PLANNED),
            _ => {}
        }
        let mut receipts = self.store.receive(&messages).await?;
        receipts.extend(lost.map(|_| Receipt::Accepted));
        Ok(receipts)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Claims> {
        let mut request = request.clone();
        if self.flaw == Flaw::EndlessLeases {
            let worker = request.terms.worker().clone();
            request.terms = LeaseTerms::new(LeaseTerms::MAX, worker)
                .map_err(|invalid| invalid.in_operation("claim"))?;
        }
        if self.flaw == Flaw::HandsOutRecords {
            let audit = HandlerName::new(AUDIT);
            request.handlers.extend(audit.ok());
        }
        let mut claims = self.store.claim(&request).await?;
        if self.flaw == Flaw::HandsOutTwice && claims.leased.is_empty() {
            // A worker that claims again at once would keep the thread.
            tokio::task::yield_now().await;
            claims.leased.extend(self.held(|_| true));
        }
        self.remember(&claims.leased);
        Ok(claims)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let is_forgotten = |settlement: &&Settlement| {
            let is_processed = matches!(settlement.outcome, Outcome::Processed { .. });
            match (self.flaw, settlement.lease.key.handler.as_str()) {
                (Flaw::ForgetsCompletions, _) => is_processed,
                (Flaw::ForgetsRecords, AUDIT) | (Flaw::ForgetsRejected, REJECTED) => true,
                _ => false,
            }
        };
        let mut answers = Vec::new();
        for settlement in settlements {
            if is_forgotten(&settlement) {
                answers.push(Settled::Done);
                continue;
            }
            let lease = match self.flaw {
                Flaw::NoFencing => self.newest_lease(&settlement.lease),
                _ => settlement.lease.clone(),
            };
            let outcome = self.outcome(settlement.outcome.clone());
            let settled = self.store.settle(&[Settlement { lease, outcome }]).await?;
            self.newest().remove(&settlement.lease.key);
            answers.extend(settled);
        }
        Ok(answers)
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Extended>> {
        if self.flaw == Flaw::RenewsNothing {
            let until = self.in_future(length);
            return Ok(leases.iter().map(|_| Extended::Until(until)).collect());
        }
        let mut leases = leases.to_vec();
        if self.flaw == Flaw::NoFencing {
            leases = leases
                .iter()
                .map(|lease| self.newest_lease(lease))
                .collect();
        }
        let length = match self.flaw {
            Flaw::EndlessLeases => LeaseTerms::MAX,
            _ => length,
        };
        let mut extended = self.store.extend(&leases, length).await?;
        if self.flaw == Flaw::HidesLostLeases {
            extended.fill(Extended::Until(self.in_future(length)));
        }
        Ok(extended)
    }

    async fn begin(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        if self.flaw == Flaw::HandsOutRecords && message.handler().as_str() == AUDIT {
            self.store.receive(std::slice::from_ref(message)).await?;
            let until = self.in_future(Duration::ZERO);
            return Ok(Begun::Busy { until });
        }
        let begun = self.store.begin(message, terms).await?;
        if let Begun::Run(leased) = &begun {
            self.remember([&**leased]);
        }
        if self.flaw == Flaw::BeginsWhatIsHeld
            && matches!(begun, Begun::Busy { .. })
            && let Some(mut held) = self.held(|leased| leased.lease.key == *message.key())
        {
            held.lease.token = FencingToken::new(held.lease.token.get() + 1);
            return Ok(Begun::Run(Box::new(held)));
        }
        Ok(begun)
    }

    async fn subscribe(&self, handlers: &[HandlerName]) -> Result<Box<dyn Subscription>> {
        self.store.subscribe(handlers).await
    }

    async fn close(&self) {}
}
