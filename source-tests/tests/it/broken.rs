//! The suite is tested itself: each broken source or publisher must be caught by the case that names its defect.

mod publisher;

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use inbox::{
    Message, MessageId,
    receiver::{Delivery, Envelope, Flow, Mapping, Raw, Rejection, Source, SourceError},
};
use source_tests::{
    Abilities, Broker, CASES, Failure, Harm, MemoryBroker, MemoryDelivery, MemoryKind,
    MemorySource, Verdict, run,
};

use self::publisher::BrokenPublisher;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    AcknowledgesFirst,
    AcknowledgesAllHandedOut,
    CommitsAtRevocation,
    IdByTag,
    StartsAtTheEndAfterCut,
    AcknowledgesOverRejected,
    NoFlowControl,
    ForgetsAtClose,
    DropsHeaders,
    AcknowledgesPoison,
    AcknowledgesPoisonFirst,
    ReversesAfterCut,
    LosesAbandonedWaits,
    ChangesPayloads,
    FailsForGoodOnCut,
    TakesAnyMapping,
    KeepsOtherBytes,
    ConfirmsAtOnce,
    AnswersForTheWholeCall,
    TriesForeverWhatIsTooLarge,
    GivesUpInAnOutage,
    GivesUpWithoutADestination,
    HasNoTimeLimit,
    SendsTheLastFirst,
    TakesOneCallAtATime,
    AnswersForADroppedCall,
    AnswersOnceTooOften,
    TellsPayloads,
    StaysCutOff,
    /// None: a source may be slow.
    IsSlow,
}

struct Broken {
    broker: MemoryBroker,
    defect: Defect,
    dead: Arc<Dead>,
}

/// Dead letters that a source sends by itself.
#[derive(Default)]
struct Dead {
    payloads: Mutex<Vec<Vec<u8>>>,
    cuts: AtomicUsize,
}

impl Dead {
    fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Broker for Broken {
    type Source = BrokenSource;
    type Publisher = BrokenPublisher;

    fn abilities(&self) -> Abilities {
        self.broker.abilities()
    }

    async fn create(&self, channel: &str) -> Result<(), Failure> {
        self.broker.create(channel).await
    }

    async fn publish(&self, channel: &str, messages: &[Envelope]) -> Result<(), Failure> {
        self.broker.publish(channel, messages).await
    }

    fn source(&self, channel: &str, mapping: Mapping) -> Result<BrokenSource, Failure> {
        let source = match self.broker.source(channel, mapping.clone()) {
            Err(_) if self.defect == Defect::TakesAnyMapping => {
                self.broker.source(channel, Mapping::new("orders")?)?
            }
            source => source?,
        };
        Ok(BrokenSource {
            source,
            defect: self.defect,
            dead: Arc::clone(&self.dead),
            handed_out: Arc::default(),
            unsent: Arc::default(),
            ready: VecDeque::new(),
            was_cut: false,
        })
    }

    fn publisher(&self, limit: Duration) -> Result<BrokenPublisher, Failure> {
        let limit = match self.defect {
            Defect::HasNoTimeLimit => Duration::from_secs(600),
            _ => limit,
        };
        let publisher = self.broker.publisher(limit)?;
        Ok(BrokenPublisher::new(
            publisher,
            self.defect,
            Arc::clone(&self.dead),
        ))
    }

    async fn outstanding(&self, channel: &str) -> Result<u64, Failure> {
        self.broker.outstanding(channel).await
    }

    async fn dead_letters(&self, channel: &str) -> Result<Vec<Vec<u8>>, Failure> {
        if self.defect != Defect::AcknowledgesPoisonFirst {
            return self.broker.dead_letters(channel).await;
        }
        let payloads = self.dead.payloads.lock();
        Ok(payloads.map(|all| all.clone()).unwrap_or_default())
    }

    async fn harm(&self, harm: Harm) -> Result<(), Failure> {
        self.dead.cuts.fetch_add(1, Ordering::SeqCst);
        self.broker.harm(harm).await
    }
}

type Deliveries = Arc<Mutex<Vec<MemoryDelivery>>>;

fn drain(deliveries: &Deliveries) -> Vec<MemoryDelivery> {
    deliveries
        .lock()
        .map(|mut all| std::mem::take(&mut *all))
        .unwrap_or_default()
}

fn push(deliveries: &Deliveries, delivery: MemoryDelivery) -> usize {
    let pushed = deliveries.lock().map(|mut all| {
        all.push(delivery);
        all.len()
    });
    pushed.unwrap_or_default()
}

struct BrokenSource {
    source: MemorySource,
    defect: Defect,
    dead: Arc<Dead>,
    handed_out: Deliveries,
    unsent: Deliveries,
    ready: VecDeque<MemoryDelivery>,
    was_cut: bool,
}

impl BrokenSource {
    /// What comes within a moment.
    async fn some(&mut self) -> Vec<MemoryDelivery> {
        let mut some = Vec::new();
        let wait = Duration::from_millis(30);
        while some.len() < 40 {
            match tokio::time::timeout(wait, self.source.next()).await {
                Ok(Ok(Some(delivery))) => some.push(delivery),
                _ => break,
            }
        }
        some
    }
}

impl Drop for BrokenSource {
    /// What a client that commits its position when partitions are revoked does.
    fn drop(&mut self) {
        if self.defect == Defect::CommitsAtRevocation {
            for delivery in drain(&self.handed_out) {
                let _ = delivery.acknowledge().now_or_never();
            }
        }
    }
}

impl Source for BrokenSource {
    type Delivery = BrokenDelivery;

    async fn next(&mut self) -> Result<Option<BrokenDelivery>, SourceError> {
        if std::mem::take(&mut self.was_cut) {
            let mut some = self.some().await;
            match self.defect {
                Defect::StartsAtTheEndAfterCut => {
                    for delivery in some.drain(..) {
                        let _ = delivery.acknowledge().await;
                    }
                }
                Defect::ReversesAfterCut => some.reverse(),
                _ => {}
            }
            self.ready.extend(some);
        }
        if self.defect == Defect::IsSlow {
            // Ten take longer than any case lets a batch linger.
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        let next = match self.ready.pop_front() {
            Some(delivery) => Ok(Some(delivery)),
            None => self.source.next().await,
        };
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                self.was_cut = true;
                return Err(match self.defect {
                    Defect::FailsForGoodOnCut => SourceError::permanent("it is gone"),
                    _ => error,
                });
            }
        };
        let Some(delivery) = next else {
            return Ok(None);
        };
        match self.defect {
            Defect::AcknowledgesFirst => delivery.clone().acknowledge().await?,
            Defect::AcknowledgesAllHandedOut | Defect::CommitsAtRevocation => {
                push(&self.handed_out, delivery.clone());
            }
            // Longer than most waits of the case; timers count in milliseconds.
            Defect::LosesAbandonedWaits => tokio::time::sleep(Duration::from_millis(2)).await,
            _ => {}
        }
        Ok(Some(BrokenDelivery {
            delivery,
            defect: self.defect,
            dead: Arc::clone(&self.dead),
            handed_out: Arc::clone(&self.handed_out),
            unsent: Arc::clone(&self.unsent),
        }))
    }

    fn set_flow(&mut self, flow: Flow) {
        if self.defect != Defect::NoFlowControl {
            self.source.set_flow(flow);
        }
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.source.close().await
    }

    fn name(&self) -> Cow<'static, str> {
        self.source.name()
    }
}

struct BrokenDelivery {
    delivery: MemoryDelivery,
    defect: Defect,
    dead: Arc<Dead>,
    handed_out: Deliveries,
    unsent: Deliveries,
}

impl Delivery for BrokenDelivery {
    fn message(&self) -> Result<Message, Rejection> {
        let mut envelope = self.delivery.envelope().clone();
        match self.defect {
            Defect::DropsHeaders => envelope.headers.truncate(2),
            Defect::ChangesPayloads => {
                envelope.payload = String::from_utf8_lossy(&envelope.payload)
                    .into_owned()
                    .into();
            }
            _ => {}
        }
        let message = self.delivery.mapping().message(&envelope)?;
        if self.defect != Defect::IdByTag {
            return Ok(message);
        }
        let id = MessageId::new(format!("{:p}-{}", self.handed_out, self.delivery.tag()))?;
        let (handler, kind) = (message.handler().clone(), message.kind().clone());
        Ok(Message::new(handler, id, kind, message.payload().clone()))
    }

    fn raw(&self) -> Option<Raw> {
        match self.defect {
            Defect::KeepsOtherBytes => Some(Raw::new("{}")),
            _ => self.delivery.raw(),
        }
    }

    async fn acknowledge(self) -> Result<(), SourceError> {
        match self.defect {
            Defect::AcknowledgesFirst => Ok(()),
            Defect::AcknowledgesAllHandedOut | Defect::AcknowledgesOverRejected => {
                for delivery in drain(&self.handed_out) {
                    let _ = delivery.acknowledge().await;
                }
                let _ = self.delivery.acknowledge().await;
                Ok(())
            }
            Defect::ForgetsAtClose => {
                if push(&self.unsent, self.delivery) >= 7 {
                    for delivery in drain(&self.unsent) {
                        delivery.acknowledge().await?;
                    }
                }
                Ok(())
            }
            _ => self.delivery.acknowledge().await,
        }
    }

    async fn reject(self, rejection: Rejection) -> Result<(), SourceError> {
        match self.defect {
            Defect::AcknowledgesPoison => self.delivery.acknowledge().await,
            Defect::AcknowledgesPoisonFirst => {
                let payload = self.delivery.envelope().payload.to_vec();
                self.delivery.acknowledge().await?;
                let cuts = self.dead.cuts();
                // Longer than the case takes to see what is stored.
                tokio::time::sleep(Duration::from_millis(300)).await;
                if let (true, Ok(mut all)) = (cuts == self.dead.cuts(), self.dead.payloads.lock()) {
                    all.push(payload);
                }
                Ok(())
            }
            Defect::AcknowledgesOverRejected => {
                push(&self.handed_out, self.delivery);
                Ok(())
            }
            _ => self.delivery.reject(rejection).await,
        }
    }
}

/// The case that names the defect fails. What else does is of no interest.
async fn is_caught(kind: MemoryKind, defect: Defect, name: &str) {
    let broker = Arc::new(Broken {
        broker: MemoryBroker::new(kind),
        defect,
        dead: Arc::default(),
    });
    let case = CASES.iter().find(|case| case.name == name);
    let Some(case) = case else {
        panic!("there is no case {name}");
    };
    match run(case, broker, Duration::from_secs(8)).await {
        // For those who look whether it says what is wrong.
        Verdict::Failed(seen) => println!("{name}: {seen}"),
        verdict => panic!("{name} did not catch {defect:?}: {verdict:?}"),
    }
}

macro_rules! broken {
    ($($test:ident: $kind:ident, $defect:ident => $case:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            is_caught(MemoryKind::$kind, Defect::$defect, $case).await;
        }
    )*};
}

broken! {
    acknowledges_first: Queue, AcknowledgesFirst => "acknowledging::nothing_before_it_is_stored";
    acknowledges_all_that_is_handed_out: Queue, AcknowledgesAllHandedOut => "acknowledging::what_is_stored_and_no_more";
    commits_the_newest_offset: Log, AcknowledgesAllHandedOut => "acknowledging::what_is_stored_and_no_more";
    loses_what_is_in_flight_at_a_rebalance: Log, CommitsAtRevocation => "order::none_lost_while_consumers_come_and_go";
    takes_the_delivery_tag_as_id: Queue, IdByTag => "acknowledging::a_redelivery_is_the_same";
    starts_at_the_end_after_a_cut: Queue, StartsAtTheEndAfterCut => "broker::cuts_in_mid_batch";
    acknowledges_over_a_rejected_one: Queue, AcknowledgesOverRejected => "poison::it_goes_to_dead_letters_from_among_others";
    has_no_flow_control: Queue, NoFlowControl => "flow::the_rest_is_for_others";
    forgets_acknowledgements_at_close: Queue, ForgetsAtClose => "acknowledging::all_that_is_stored";
    forgets_acknowledgements_in_mid_flow: Log, ForgetsAtClose => "acknowledging::all_at_a_shutdown_in_mid_flow";
    drops_headers: Queue, DropsHeaders => "mapping::headers_as_they_were_sent";
    acknowledges_before_the_dead_letter_is_there: Queue, AcknowledgesPoisonFirst => "poison::cuts_lose_none_of_it";
    acknowledges_poison: Queue, AcknowledgesPoison => "poison::it_goes_to_dead_letters";
    changes_the_order_after_a_cut: Log, ReversesAfterCut => "broker::the_order_after_cuts";
    loses_what_came_when_a_wait_was_abandoned: Queue, LosesAbandonedWaits => "consumers::an_abandoned_wait_loses_nothing";
    changes_payloads: Queue, ChangesPayloads => "hostile::payloads";
    fails_for_good_when_it_is_cut: Queue, FailsForGoodOnCut => "broker::a_kill_in_mid_flow";
    takes_any_mapping: Queue, TakesAnyMapping => "mapping::an_unstable_position_is_refused";
    keeps_other_bytes: Queue, KeepsOtherBytes => "poison::it_is_kept_with_its_bytes";
    confirms_at_once: Queue, ConfirmsAtOnce => "publishing::an_outage_of_the_broker";
    answers_for_the_whole_call: Queue, AnswersForTheWholeCall => "publishing::one_that_is_too_large";
    tries_forever_what_is_too_large: Queue, TriesForeverWhatIsTooLarge => "publishing::one_that_is_too_large";
    gives_up_in_an_outage: Queue, GivesUpInAnOutage => "publishing::an_outage_of_the_broker";
    gives_up_without_a_destination: Queue, GivesUpWithoutADestination => "publishing::a_destination_that_is_missing";
    has_no_time_limit: Queue, HasNoTimeLimit => "publishing::a_broker_that_stands_still";
    sends_the_last_first: Queue, SendsTheLastFirst => "publishing::in_the_order_of_its_key";
    takes_one_call_at_a_time: Queue, TakesOneCallAtATime => "publishing::calls_at_once";
    answers_for_a_dropped_call: Queue, AnswersForADroppedCall => "publishing::a_call_dropped_at_any_moment";
    answers_once_too_often: Queue, AnswersOnceTooOften => "publishing::what_is_confirmed_arrives";
    tells_payloads: Queue, TellsPayloads => "publishing::an_outage_of_the_broker";
    stays_cut_off: Queue, StaysCutOff => "publishing::connections_that_are_cut";
}

/// A case that counts what is handed out must not blame a source for a machine that is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_source_is_not_blamed() {
    let slow = [
        "flow::no_more_than_may_be_unacknowledged",
        "flow::the_rest_is_for_others",
        "acknowledging::what_is_stored_and_no_more",
        "acknowledging::what_is_held_is_not_given_to_others",
    ];
    let cases = CASES.iter().filter(|case| slow.contains(&case.name));
    let running = cases.map(async |case| {
        let broker = Arc::new(Broken {
            broker: MemoryBroker::new(MemoryKind::Queue),
            defect: Defect::IsSlow,
            dead: Arc::default(),
        });
        let verdict = run(case, broker, Duration::from_secs(20)).await;
        assert_eq!(verdict, Verdict::Passed, "{}", case.name);
    });
    futures_util::future::join_all(running).await;
}
