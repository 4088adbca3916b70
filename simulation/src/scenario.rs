//! What is to happen in a run: drawn from a seed, before the run begins, so that parts of it can be left out.

mod plan;

use inbox::Fallback;

/// Until when things go wrong, in milliseconds. From then on everything works, and has to come to its end.
pub const CALM: u64 = 30_000;

/// The handler of messages that are only recorded.
pub(crate) const RECORDED: u8 = 2;

/// The handler of messages that only inline consumers work on.
pub(crate) const CALLED: u8 = 3;

/// The store of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// In memory.
    #[default]
    Memory,
    /// SQLite, which has one transaction at a time.
    Sqlite,
}

/// One run. Times are milliseconds from its beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The store.
    pub kind: Kind,
    /// Of the random numbers that the runtime draws.
    pub seed: u64,
    /// The messages, by their number.
    pub messages: Vec<Sent>,
    /// Copies that are delivered.
    pub deliveries: Vec<Delivered>,
    /// What handlers do at certain runs; at all others they succeed soon.
    pub behaviours: Vec<Behaviour>,
    /// What goes wrong with calls of the store.
    pub faults: Vec<Fault>,
    /// Which settlements are refused by the store, by their number.
    pub refusals: Vec<u32>,
    /// When the whole store is away.
    pub outages: Vec<Outage>,
    /// When claims are answered late.
    pub slow_claims: Vec<SlowClaims>,
    /// Which acknowledgements fail, by their number.
    pub failed_acknowledgements: Vec<u32>,
    /// When parts are stopped or killed; they begin again.
    pub stops: Vec<Stop>,
    /// What an operator does.
    pub interventions: Vec<Intervention>,
    /// When the store's clock jumps ahead, and by how much.
    pub jumps: Vec<(u64, u64)>,
    /// When processors learn a kind.
    pub deployment: Option<Deployment>,
    /// How fast the store's clock goes, in percent of the runtime's.
    pub clock_percent: u64,
    /// What the parts are told.
    pub settings: Settings,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Which handler it is for: one of two of the processors', that of what is only recorded, or one that only inline
    /// consumers have.
    pub handler: u8,
    /// Its ordering key.
    pub ordering_key: Option<u8>,
    /// It is of the kind that processors only know from a [deployment](Deployment) on.
    pub is_newer: bool,
}

/// From when on processors have a handler for the newer kind of messages: those of before are told to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// When.
    pub at: u64,
    /// What becomes of such messages until then.
    pub fallback: Fallback,
}

/// One copy of a message on its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    /// Which message.
    pub message: usize,
    /// When.
    pub at: u64,
    /// To an inline consumer; otherwise to the receivers.
    pub inline: Option<Caller>,
    /// What is wrong with it, if it goes to receivers.
    pub odd: Option<Odd>,
}

/// Who delivers to an inline consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// In how many milliseconds it leaves, if it does.
    pub leaves: Option<u64>,
    /// How often it comes, if not until the message has come to its end.
    pub times: Option<u32>,
}

/// What is wrong with a delivery, for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odd {
    /// What.
    pub what: Oddity,
    /// How often it is handed out before nothing is wrong with it, at the latest from the calm on.
    pub times: u32,
}

/// What may be wrong with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// It is no message.
    NoMessage,
    /// It is no message, and nothing is known of its bytes.
    NoBytes,
    /// Reading it panics.
    Panics,
    /// It is larger than the store takes.
    TooLarge,
    /// It panics when it is told that it is stored.
    PanicsWhenStored,
    /// Its acknowledgement panics.
    PanicsWhenAcknowledged,
}

/// What a handler does at one run of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// Which message.
    pub message: usize,
    /// Which run of it, from 0.
    pub run: u32,
    /// How long it takes.
    pub takes: u64,
    /// How it ends.
    pub does: Does,
}

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Does {
    /// It succeeds.
    Succeed,
    /// It succeeds, and keeps its thread meanwhile: nothing else runs.
    Block,
    /// It ends as soon as it is told to stop, with an error.
    Heed,
    /// An error.
    Retry,
    /// To be tried again in so many milliseconds.
    RetryAfter(u64),
    /// Put off.
    Defer(u64),
    /// Its router is to pause.
    Pause(u64),
    /// Never again.
    Dead,
    /// It panics.
    Panic,
    /// It succeeds with a result that is larger than the store takes.
    AnswerTooMuch,
}

/// The operations that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// [`inbox::Store::receive`]
    Receive,
    /// [`inbox::Store::claim`]
    Claim,
    /// [`inbox::Store::settle`]
    Settle,
    /// [`inbox::Store::extend`]
    Extend,
    /// [`inbox::Store::begin`]
    Begin,
    /// [`inbox::Store::subscribe`]
    Subscribe,
    /// [`inbox::Transactional::open`]
    Open,
    /// [`inbox::Transactional::settle_in`]
    SettleIn,
    /// [`inbox::Transactional::commit`]
    Commit,
    /// [`inbox::Transactional::roll_back`]
    RollBack,
}

/// What goes wrong with one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Of which operation.
    pub operation: Operation,
    /// Which of its calls, from 0.
    pub call: u32,
    /// What.
    pub what: Wrong,
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// It is done so much later, if the caller still waits.
    Delay(u64),
    /// It is done so much later, also if nobody waits any more.
    Late(u64),
    /// It is done, and answered so much later.
    Slow(u64),
    /// It fails without effect.
    Fail,
    /// It meets a conflict.
    Conflict,
    /// It fails in a way that waiting does not mend.
    Fatal,
    /// It is done, and its answer is lost.
    LoseAnswer,
    /// It is not done and never answered.
    Hang,
    /// It is done and never answered.
    HangAfter,
}

/// A time in which the store does nothing, but for operators and the janitor.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// Calls wait for its end; otherwise they fail.
    pub waits: bool,
}

/// A time in which claims are done, and answered later.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowClaims {
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// How much later they are answered.
    pub by: u64,
}

/// An end of a part before the run's.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Which.
    pub part: Part,
    /// When.
    pub at: u64,
    /// It is killed; otherwise it is asked to end.
    pub kill: bool,
    /// After how long it begins again.
    pub pause: u64,
}

/// What an operator does, if the state of the message allows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervention {
    /// When.
    pub at: u64,
    /// What.
    pub does: Change,
}

/// A change by an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Replays a message.
    Replay(usize),
    /// Discards it.
    Discard(usize),
    /// Makes it due in so many milliseconds.
    Reschedule(usize, u64),
    /// Pauses a handler for so many milliseconds.
    Pause(u8, u64),
}

/// What a receiver does with what is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It rejects it.
    Reject,
    /// It keeps it as a dead letter, or rejects it.
    Keep,
    /// It ends.
    Stop,
    /// It keeps it as a dead letter, or ends.
    KeepOrStop,
}

/// What a handler of whole batches does where one of its messages fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// It answers for each.
    Answers,
    /// It fails as a whole, but for what is put off.
    Fails,
}

/// The transactions in which handlers work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transactions {
    /// They do not.
    None,
    /// The store has many at a time.
    Many,
    /// The store has one at a time, for which all else that writes waits.
    OneAtATime,
}

/// A part, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A receiver.
    Receiver(u8),
    /// A processor.
    Processor(u8),
    /// The inline consumer.
    Inline,
    /// The receiver that only records.
    Recorder,
    /// The janitor.
    Janitor,
}

/// What the parts are told. Durations are milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How many receivers.
    pub receivers: u8,
    /// How many processors.
    pub processors: u8,
    /// Of leases.
    pub lease: u64,
    /// Handlers of a router at a time.
    pub concurrency: usize,
    /// Messages in a claim.
    pub batch: u32,
    /// Messages claimed before there is room.
    pub look_ahead: usize,
    /// Whether the second handler works on runs of its ordering keys.
    pub runs: bool,
    /// Whether it works on whole batches.
    pub whole: Option<Whole>,
    /// How long the leases of each processor are at the store, in percent of what it asks for: its own clock goes
    /// faster or slower than the others'.
    pub leases_percent: Vec<u64>,
    /// Whether handlers work in transactions.
    pub transactions: Transactions,
    /// Whether the processors write about failed attempts, in transactions.
    pub notes: bool,
    /// Whether inline handlers settle their messages by themselves, in transactions.
    pub inline_settles: bool,
    /// Of handlers.
    pub timeout: Option<u64>,
    /// Attempts.
    pub attempts: u32,
    /// Of parts.
    pub drain_limit: u64,
    /// Of one call.
    pub store_timeout: u64,
    /// Of settlements.
    pub linger: u64,
    /// Settlements in a call.
    pub settle_batch: usize,
    /// Whether a dead message blocks its ordering key.
    pub block: bool,
    /// Deliveries in a batch.
    pub receive_batch: usize,
    /// Deliveries not acknowledged.
    pub unacknowledged: usize,
    /// How long final messages are kept.
    pub retention: u64,
    /// Whether the broker keeps order, within partitions of which a receiver has one.
    pub keeps_order: bool,
    /// How long an acknowledgement takes.
    pub acknowledging: u64,
    /// After how long the janitor gives up what nobody comes back for.
    pub give_up_after: u64,
    /// What becomes of deliveries that are no message.
    pub rejected: Rejected,
}

impl Scenario {
    /// The same on another store.
    #[must_use]
    pub fn on(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Whether there is one transaction at a time, for which all else that writes waits.
    pub(crate) fn has_turns(&self) -> bool {
        self.kind == Kind::Sqlite || self.settings.transactions == Transactions::OneAtATime
    }

    /// The deliveries that wait at the broker for receivers, or for the one that only records, with their numbers.
    pub(crate) fn queued(&self, to_be_recorded: bool) -> impl Iterator<Item = (usize, &Delivered)> {
        let all = self.deliveries.iter().enumerate();
        all.filter(move |(_, delivered)| {
            let is_recorded = self.is_recorded(delivered.message);
            delivered.inline.is_none() && is_recorded == to_be_recorded
        })
    }

    /// Whether a message is only recorded.
    pub(crate) fn is_recorded(&self, message: usize) -> bool {
        let sent = self.messages.get(message);
        sent.is_some_and(|sent| sent.handler == RECORDED)
    }

    /// The partition of a delivery, at a broker that has some: one for all of an ordering key.
    pub(crate) fn partition(&self, delivery: usize) -> usize {
        let message = self.deliveries.get(delivery).map(|one| one.message);
        let sent = message.and_then(|message| self.messages.get(message));
        let key = sent.and_then(|sent| sent.ordering_key).map(usize::from);
        key.or(message).unwrap_or_default() % usize::from(self.settings.receivers.max(1))
    }
}
