//! One delivery, from the broker to its acknowledgement or rejection.

use std::{panic::panic_any, sync::Arc, time::Duration};

use inbox::{
    Message, Operate as _, State,
    receiver::{Delivery, Raw, Rejection, SourceError},
};
use tokio::time::sleep;

use super::{Broker, Place};
use crate::{
    Flaw, PLANNED,
    history::PartId,
    scenario::{Oddity, Rejected},
    world::{AUDIT, LIMIT},
};

/// Why what is no message is rejected.
const NO_MESSAGE: &str = "planned";

/// What is to become of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its message is stored, and it is acknowledged.
    Store,
    /// It is kept as a dead letter, and acknowledged.
    Keep,
    Reject,
    /// Its receiver ends.
    Stop,
}

pub(crate) struct Taken {
    broker: Arc<Broker>,
    part: PartId,
    place: Place,
    /// The how manieth it is of its consumer's.
    count: u64,
    message: Message,
    odd: Option<Oddity>,
    verdict: Verdict,
    is_finished: bool,
}

impl Taken {
    pub(super) fn new(broker: Arc<Broker>, part: PartId, place: Place, count: u64) -> Option<Self> {
        let world = broker.world.clone();
        let delivered = world.scenario.deliveries.get(place.number)?;
        let message = world.messages.get(delivered.message)?.clone();
        let before = {
            let mut readings = broker.readings();
            let handed_out = readings.counts.entry(place.number).or_default();
            *handed_out += 1;
            *handed_out - 1
        };
        let odd = delivered
            .odd
            .filter(|odd| before < odd.times && !world.is_calm());
        let odd = odd.map(|odd| odd.what);
        let verdict = verdict(odd, world.scenario.settings.rejected);
        let mut taken = Self {
            broker,
            part,
            place,
            count,
            message,
            odd,
            verdict,
            is_finished: false,
        };
        taken.take_note();
        if world.flaw == Some(Flaw::AcknowledgesFirst) {
            taken.finish(true);
        }
        Some(taken)
    }

    fn take_note(&self) {
        let mut readings = self.broker.readings();
        readings.verdicts.insert(self.place.number, self.verdict);
        if self.verdict == Verdict::Stop {
            let stops = &mut readings.stops;
            stops.entry(self.part.clone()).or_insert(self.count);
        }
        drop(readings);
        let mut history = self.broker.world.history();
        if let Some(odd) = self.odd {
            let (part, number, verdict) = (&self.part, self.place.number, self.verdict);
            history.trace(|| format!("{part} takes delivery {number}: {odd:?}, {verdict:?}"));
        }
        if matches!(self.verdict, Verdict::Keep | Verdict::Reject) {
            history.passed_over(self.message.key());
        }
    }

    /// It is finished, with those before it if the broker keeps order; or that fails.
    fn finish(&mut self, works: bool) {
        let world = &self.broker.world;
        let up_to = self.broker.queue().up_to(self.place);
        for number in up_to {
            let verdict = self.broker.readings().verdicts.get(&number).copied();
            let delivered = world.scenario.deliveries.get(number);
            let message = delivered.and_then(|delivered| world.messages.get(delivered.message));
            let mut history = world.history();
            match (verdict, message) {
                (Some(Verdict::Store), Some(message)) => {
                    history.acknowledged(&self.part, message.key());
                }
                (Some(Verdict::Keep), _) => {}
                (Some(Verdict::Reject), _) if self.broker.readings().rejected.contains(&number) => {
                }
                (verdict, _) => {
                    let what = format!("{} finished {number}: {verdict:?}", self.part);
                    history.violated("rejected as it was told to", what);
                }
            }
        }
        if works {
            self.is_finished = true;
            self.broker.queue().finish(self.place, true);
        } else if self.broker.queue().keeps_order() {
            self.broker.queue().finish(self.place, false);
        }
    }

    /// Until the broker has answered.
    async fn wait(&self) {
        let world = &self.broker.world;
        sleep(Duration::from_millis(world.scenario.settings.acknowledging)).await;
    }

    /// What is to be so before it is acknowledged or rejected.
    async fn judge(&self, rejection: Option<&Rejection>) {
        let (world, number) = (&self.broker.world, self.place.number);
        let stop = self.broker.readings().stops.get(&self.part).copied();
        if stop.is_some_and(|stop| stop <= self.count) {
            let what = format!("{} finished {number}", self.part);
            world
                .history()
                .violated("nothing is finished behind a stop", what);
        }
        let is_rejected = rejection.is_some();
        if (self.verdict == Verdict::Reject) != is_rejected || self.verdict == Verdict::Stop {
            let what = format!("delivery {number}: {:?}, {rejection:?}", self.verdict);
            world.history().violated("rejected as it was told to", what);
        }
        let (key, state, rule) = match self.verdict {
            Verdict::Keep => {
                let rule = "kept before it is acknowledged";
                let Some(letter) = world.history().letter(number) else {
                    let what = format!("delivery {number} is not stored");
                    return world.history().violated(rule, what);
                };
                (letter, State::Dead, rule)
            }
            Verdict::Store if self.message.handler().as_str() == AUDIT => {
                let key = self.message.key().clone();
                (key, State::Processed, "recorded before it is acknowledged")
            }
            _ => return,
        };
        // As it is in the store, where it may have been purged since, and come again.
        let record = world.operate.get(&key).await;
        let is_newer = world.history().is_in_a_later_life(&key);
        let is_final = match record {
            Ok(Some(record)) => {
                record.state == state && self.has_reason(record.last_error.as_deref())
            }
            _ => world.history().is_finished(&key),
        };
        if !is_final && !is_newer {
            world.history().violated(rule, key.to_string());
        }
    }

    fn has_reason(&self, error: Option<&str>) -> bool {
        match self.odd {
            Some(Oddity::NoMessage) => error == Some(NO_MESSAGE),
            Some(Oddity::Panics) => error == Some("reading it panicked"),
            _ => true,
        }
    }

    #[allow(clippy::panic, reason = "as planned")]
    fn panics_if(&self, oddity: Oddity) {
        if self.odd == Some(oddity) {
            panic_any(PLANNED);
        }
    }
}

/// What receivers are told to do with a delivery.
fn verdict(odd: Option<Oddity>, told: Rejected) -> Verdict {
    match (odd, told) {
        (None | Some(Oddity::PanicsWhenStored | Oddity::PanicsWhenAcknowledged), _) => {
            Verdict::Store
        }
        (Some(Oddity::NoBytes), Rejected::Keep) | (_, Rejected::Reject) => Verdict::Reject,
        (Some(Oddity::NoBytes), Rejected::KeepOrStop) | (_, Rejected::Stop) => Verdict::Stop,
        (_, Rejected::Keep | Rejected::KeepOrStop) => Verdict::Keep,
    }
}

impl Delivery for Taken {
    fn message(&self) -> Result<Message, Rejection> {
        self.panics_if(Oddity::Panics);
        let takes_anything = self.broker.world.flaw == Some(Flaw::TakesAnything);
        match self.odd {
            Some(Oddity::NoMessage | Oddity::NoBytes) if !takes_anything => {
                Err(Rejection::new(NO_MESSAGE))
            }
            Some(Oddity::TooLarge) => {
                let message = &self.message;
                let (handler, id) = (message.handler().clone(), message.id().clone());
                let large = "x".repeat(LIMIT + 1);
                let large = Message::new(handler, id, message.kind().clone(), large);
                Ok(match message.ordering_key() {
                    Some(key) => large.with_ordering_key(key.clone()),
                    None => large,
                })
            }
            _ => Ok(self.message.clone()),
        }
    }

    fn raw(&self) -> Option<Raw> {
        let is_hidden = self.broker.world.flaw == Some(Flaw::HidesBytes);
        if is_hidden || self.odd == Some(Oddity::NoBytes) {
            return None;
        }
        // Too long to be kept whole.
        let bytes = format!("{} is no message {}", self.place.number, "x".repeat(LIMIT));
        Some(Raw::new(bytes).with_origin(self.place.number.to_string()))
    }

    fn stored(&mut self, _: &inbox::Receipt) {
        self.panics_if(Oddity::PanicsWhenStored);
    }

    async fn acknowledge(mut self) -> Result<(), SourceError> {
        if self.is_finished {
            return Ok(());
        }
        let works = !self.broker.refuses();
        self.wait().await;
        self.judge(None).await;
        self.panics_if(Oddity::PanicsWhenAcknowledged);
        self.finish(works);
        match works {
            true => Ok(()),
            false => Err(SourceError::transient("planned")),
        }
    }

    async fn acknowledge_all(mut run: Vec<Self>) -> Vec<SourceError> {
        let mut failures = Vec::new();
        let Some(first) = run.first() else {
            return failures;
        };
        if !first.broker.queue().keeps_order() {
            for delivery in run {
                failures.extend(delivery.acknowledge().await.err());
            }
            return failures;
        }
        // One request for all of them.
        let mut works = !first.broker.refuses();
        first.wait().await;
        for delivery in &run {
            delivery.judge(None).await;
            works &= delivery.odd != Some(Oddity::PanicsWhenAcknowledged);
        }
        for delivery in &mut run {
            delivery.finish(works);
            if !works {
                failures.push(SourceError::transient("planned"));
            }
        }
        for delivery in &run {
            delivery.panics_if(Oddity::PanicsWhenAcknowledged);
        }
        failures
    }

    async fn reject(mut self, rejection: Rejection) -> Result<(), SourceError> {
        let works = !self.broker.refuses();
        self.wait().await;
        self.judge(Some(&rejection)).await;
        self.broker.readings().rejected.insert(self.place.number);
        let world = self.broker.world.clone();
        world
            .history()
            .rejected(&self.part, self.place.number, &rejection);
        self.finish(works);
        match works {
            true => Ok(()),
            false => Err(SourceError::transient("planned")),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_finished && !self.broker.queue().keeps_order() {
            self.broker.queue().finish(self.place, false);
            self.broker.changed.notify_waiters();
        }
    }
}
