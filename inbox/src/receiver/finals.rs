//! Messages that are final as soon as they are stored: those that are only recorded, and deliveries
//! that are no message, as dead letters.
//!
//! A store makes a message final when its lease is settled, so each is begun, which stores it under a
//! lease, and all are settled in one call. A receiver that dies in between leaves messages that are
//! pending when their short leases have run out, of handlers that nobody is to work on. Their deliveries
//! were not acknowledged; when they come again the messages are begun and settled once more.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{Instant, sleep};

use super::{Receiver, outage::Outage, report::unanswered};
use crate::{
    Begun, Due, Error, ErrorKind, HandlerName, Invalid, Key, Kind, Lease, LeaseTerms, Message,
    MessageId, Outcome, Receipt, Result, Settled, Settlement, Store as _, WorkerName,
    receiver::{Raw, Rejection},
    refusal::plainer,
};

/// For how long a message is leased between its storing and its end, and so for how long another
/// receiver's redelivery may have to wait after a crash.
const LEASE: Duration = Duration::from_secs(5);

/// A message that is busy until the same moment for so long is not under a receiver's lease, which would
/// have run out: it is worked on by others, or waits for its time. Twice the length, for a store of
/// several servers whose clocks differ. What is behind another one for so long, while nothing changes, is not behind
/// one of these or one under such a lease.
const WATCH: Duration = Duration::from_secs(10);

/// Nor is one that is busy for so long in all, until ever later moments: six receivers would have died over it,
/// one after the other. Others renew its lease, or try it again and again.
const LONGEST_WATCH: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(100);

/// Messages that are begun at a time.
const AT_ONCE: usize = 16;

/// The kind of a dead letter whose delivery was no message.
pub(super) const REJECTED_KIND: &str = "inbox.rejected";

/// How many bytes there were, if they are not all kept.
const RAW_BYTES: &str = "raw-bytes";

/// A message and how it is to end.
pub(super) struct Final {
    message: Message,
    outcome: Outcome,
}

impl Final {
    /// A message that is only recorded. Nothing works on it, so it neither waits for its time nor for
    /// others.
    pub(super) fn record(message: &Message) -> Self {
        let handler = message.handler().clone();
        let (id, kind) = (message.id().clone(), message.kind().clone());
        let mut plain = Message::new(handler, id, kind, message.payload().clone())
            .with_headers(message.headers().clone())
            .with_fingerprint(message.fingerprint())
            .with_due(Due::Now);
        if let Some(content_type) = message.content_type() {
            plain = plain.with_content_type(content_type.clone());
        }
        Self {
            message: plain,
            outcome: Outcome::Processed { result: None },
        }
    }

    /// The dead letter of a delivery that is no message. Its id is a digest of what tells the delivery from
    /// others, so that a redelivery is a duplicate.
    pub(super) fn dead_letter(
        handler: &HandlerName,
        raw: Raw,
        rejection: &Rejection,
        limit: usize,
    ) -> Result<Self, Invalid> {
        let id = MessageId::new(digest(&raw))?;
        let mut headers = raw.headers().clone();
        let mut payload = raw.payload().clone();
        if payload.len() > limit {
            // Rather without a header than not at all.
            let _ = headers.insert(RAW_BYTES, payload.len().to_string());
            payload.truncate(limit);
        }
        let message = Message::new(handler.clone(), id, Kind::new(REJECTED_KIND)?, payload);
        Ok(Self {
            message: message.with_headers(headers),
            outcome: Outcome::Dead {
                reason: rejection.to_string(),
                after: crate::AfterDead::Continue,
            },
        })
    }
}

/// Of the bytes, and of where they come from if that is known: two records of a topic may have the same
/// bytes, or none.
fn digest(raw: &Raw) -> String {
    use sha2::{Digest as _, Sha256};
    use std::fmt::Write as _;

    let mut digest = Sha256::digest(raw.payload());
    let headers = raw.headers().iter();
    let known: Vec<_> = match raw.origin() {
        Some(origin) => vec![origin],
        None => headers.flat_map(|(name, value)| [name, value]).collect(),
    };
    if !known.is_empty() {
        let mut whole = Sha256::new_with_prefix(digest);
        for part in known {
            whole.update(part);
            whole.update((part.len() as u64).to_le_bytes());
        }
        digest = whole.finalize();
    }
    let mut text = String::from("sha256-");
    for byte in digest {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// What is still to be done about one message.
enum Step {
    Refused(Invalid),
    /// It is final already, and nothing is left to be done.
    Known,
    Settle(Lease),
    Wait(Busy),
    /// It is behind another one of its ordering key.
    Blocked,
}

/// The store's answer that a message is busy.
struct Busy {
    until: SystemTime,
    asked: Instant,
    answered: Instant,
}

/// For how long a message has been busy. The store's moments are compared with one another only, as this
/// machine's clock may be another.
#[derive(Default)]
struct Watch {
    /// Until when it is, and since when the store says that.
    known: Option<(SystemTime, Instant)>,
    /// When the store said so last.
    last: Option<Instant>,
    /// Of all moments together.
    total: Duration,
}

impl Watch {
    /// Whether it is not under a receiver's lease.
    fn is_over(&mut self, busy: &Busy) -> bool {
        let gap = self.last.replace(busy.answered);
        let gap = gap.map_or(Duration::ZERO, |last| busy.asked.duration_since(last));
        // Between answers that are further apart, as in an outage, it may have been free.
        self.total += gap.min(LEASE);
        let unchanged = match self.known {
            Some((until, since)) if until == busy.until => busy.asked.duration_since(since),
            _ => {
                self.known = Some((busy.until, busy.answered));
                Duration::ZERO
            }
        };
        unchanged >= WATCH || self.total >= LONGEST_WATCH
    }
}

/// For how long nothing has changed for messages that are behind others.
#[derive(Default)]
struct Standstill {
    /// When a round has ended that changed nothing, if that was the last one.
    last: Option<Instant>,
    /// Between rounds that changed nothing, since the last change.
    total: Duration,
}

impl Standstill {
    /// Takes note of a round, and says whether those are behind messages that others have. What is busy, or was not
    /// answered for, may be what they are behind.
    fn is_over(&mut self, round: &Round) -> bool {
        if round.is_waiting || round.has_moved {
            *self = Self::default();
            return false;
        }
        if round.failed.is_some() {
            // Of many calls one may fail in every few rounds, so what was waited before still counts.
            self.last = None;
            return false;
        }
        if round.blocked.is_empty() {
            *self = Self::default();
            return false;
        }
        let now = Instant::now();
        let gap = self.last.replace(now);
        let gap = gap.map_or(Duration::ZERO, |last| now.duration_since(last));
        // One round that the store took long to answer is not enough.
        self.total += gap.min(LEASE);
        self.total >= WATCH
    }
}

/// The places of what is to be begun now. Of copies of one message the first is begun alone, so that it is the
/// one that is stored; the others when it is.
fn to_begin(finals: &[Final], receipts: &[Option<Receipt>]) -> Vec<usize> {
    let (mut stored, mut begun) = (HashSet::new(), HashSet::new());
    let mut open = Vec::new();
    for (at, (last, receipt)) in finals.iter().zip(receipts).enumerate() {
        let key = last.message.key();
        match receipt {
            // Another copy may be one that the store takes.
            Some(Receipt::Refused(_)) => {}
            Some(_) => {
                stored.insert(key);
            }
            None if stored.contains(key) || begun.insert(key) => open.push(at),
            None => {}
        }
    }
    open
}

/// The places next to those of messages that are final now, of messages that were behind others. Ids mostly come in the
/// order of their messages, or in the reverse one.
fn next_to(freed: &[usize], blocked: &BTreeSet<usize>) -> Vec<usize> {
    let next: BTreeSet<usize> = freed
        .iter()
        .flat_map(|&at| [blocked.range(..at).next_back(), blocked.range(at..).next()])
        .flatten()
        .copied()
        .collect();
    next.into_iter().collect()
}

/// What has become of messages that were to be final.
pub(super) struct Stored {
    /// In the order of the messages.
    pub(super) receipts: Vec<Receipt>,
    /// The places of those that are duplicates and not final: others work on them, or are to.
    pub(super) unfinished: HashSet<usize>,
}

/// Stores each message with its end, however long the store is away. A message that is known already
/// is a duplicate, and stays as it is; unless it is pending, due and first of its ordering key: then it ends now. One
/// that may be under the lease of a receiver that has died is waited for, so that nothing is answered for before it
/// is final, and so is one that is behind another, which may be among these.
pub(super) async fn store(receiver: &Receiver, finals: &[Final]) -> Result<Stored> {
    let worker = WorkerName::new(format!("receiver-{}", std::process::id()))?;
    let limit = receiver.store.capabilities().payload_limit;
    let refused = |last: &Final| last.message.check_payload(limit).err();
    let storing = Storing {
        receiver,
        finals,
        terms: LeaseTerms::new(LEASE, worker)?,
        receipts: finals
            .iter()
            .map(|last| refused(last).map(Receipt::Refused))
            .collect(),
        unfinished: HashSet::new(),
        watches: HashMap::new(),
        standstill: Standstill::default(),
        outage: Outage::none("store", &receiver.vitals),
    };
    storing.run().await
}

struct Storing<'a> {
    receiver: &'a Receiver,
    finals: &'a [Final],
    terms: LeaseTerms,
    receipts: Vec<Option<Receipt>>,
    unfinished: HashSet<usize>,
    watches: HashMap<&'a Key, Watch>,
    standstill: Standstill,
    outage: Outage,
}

/// What came of asking for all that is not final yet.
#[derive(Default)]
struct Round {
    failed: Option<Error>,
    /// Some are busy.
    is_waiting: bool,
    /// The places of those that are behind others.
    blocked: BTreeSet<usize>,
    /// Some are answered for now that were not.
    has_moved: bool,
}

impl<'a> Storing<'a> {
    async fn run(mut self) -> Result<Stored> {
        let mut at_once = usize::MAX;
        loop {
            let open = to_begin(self.finals, &self.receipts);
            if open.is_empty() {
                self.outage.over();
                return Ok(Stored {
                    receipts: self.receipts.into_iter().flatten().collect(),
                    unfinished: self.unfinished,
                });
            }
            let mut round = Round::default();
            for part in open.chunks(at_once) {
                self.store_in_turn(part, &mut round).await?;
                if round.failed.is_some() {
                    break;
                }
            }
            // Each part may free what is in the next ones.
            at_once = if round.blocked.is_empty() {
                usize::MAX
            } else {
                AT_ONCE
            };
            if self.standstill.is_over(&round) {
                self.leave_blocked(&mut round).await?;
            }
            match round.failed {
                Some(error) => sleep(self.outage.failed(&error)).await,
                None => {
                    self.outage.over();
                    let is_held_up = round.is_waiting || !round.blocked.is_empty();
                    if is_held_up && !round.has_moved {
                        sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Stores these, and as long as some become final, what is next to them and was behind others.
    async fn store_in_turn(&mut self, part: &[usize], round: &mut Round) -> Result<()> {
        let is_open = |at: &usize| matches!(self.receipts.get(*at), Some(None));
        let mut part: Vec<usize> = part.iter().copied().filter(is_open).collect();
        while !part.is_empty() && round.failed.is_none() {
            let freed = self.store_part(&part, round).await?;
            part = next_to(&freed, &round.blocked);
        }
        Ok(())
    }

    /// Answers the places of those that are final now.
    async fn store_part(&mut self, part: &[usize], round: &mut Round) -> Result<Vec<usize>> {
        let (receiver, finals, terms) = (self.receiver, self.finals, &self.terms);
        // Boxed, since the compiler cannot prove otherwise that this future may change its thread.
        let begun = part.iter().filter_map(|&at| {
            let last = finals.get(at)?;
            let begun = begin(receiver, &last.message, terms);
            Some(begun.map(move |step| (at, last, step)).boxed())
        });
        let begun: Vec<_> = begun.collect();
        let begun: Vec<_> = stream::iter(begun).buffered(AT_ONCE).collect().await;
        let (mut leased, mut known) = (Vec::new(), Vec::new());
        for (at, last, step) in begun {
            self.unfinished.remove(&at);
            round.blocked.remove(&at);
            match step {
                Ok(Step::Refused(invalid)) => {
                    self.answer([(at, Some(Receipt::Refused(invalid)))], round);
                }
                Ok(Step::Known) => known.push(at),
                Ok(Step::Settle(lease)) => leased.push((at, lease, last.outcome.clone())),
                Ok(Step::Wait(busy)) => {
                    let watch = self.watches.entry(last.message.key()).or_default();
                    if watch.is_over(&busy) {
                        self.unfinished.insert(at);
                        known.push(at);
                    } else {
                        round.is_waiting = true;
                    }
                }
                Ok(Step::Blocked) => {
                    round.blocked.insert(at);
                }
                Err(error) if error.is_retryable() => round.failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        let settled = settle(receiver, leased, &mut self.outage).await?;
        let freed: Vec<usize> = settled
            .iter()
            .filter(|(_, receipt)| *receipt == Some(Receipt::Accepted))
            .map(|(at, _)| *at)
            .collect();
        self.answer(settled, round);
        self.compare_known(known, round).await?;
        Ok(freed)
    }

    /// Leaves those that are behind others to them.
    async fn leave_blocked(&mut self, round: &mut Round) -> Result<()> {
        self.standstill = Standstill::default();
        let left: Vec<usize> = std::mem::take(&mut round.blocked).into_iter().collect();
        self.unfinished.extend(&left);
        self.compare_known(left, round).await
    }

    async fn compare_known(&mut self, known: Vec<usize>, round: &mut Round) -> Result<()> {
        let finals = self.finals;
        let known = known
            .into_iter()
            .filter_map(|at| Some((at, &finals.get(at)?.message)));
        match compare(self.receiver, known.collect()).await {
            Ok(compared) => self.answer(compared, round),
            Err(error) if error.is_retryable() => round.failed = Some(error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// `None`: it has to be asked for again.
    fn answer(
        &mut self,
        answers: impl IntoIterator<Item = (usize, Option<Receipt>)>,
        round: &mut Round,
    ) {
        for (at, receipt) in answers {
            round.has_moved |= receipt.is_some();
            if let Some(place) = self.receipts.get_mut(at) {
                *place = receipt;
            }
        }
    }
}

async fn begin(receiver: &Receiver, message: &Message, terms: &LeaseTerms) -> Result<Step> {
    let asked = Instant::now();
    Ok(match receiver.store.begin(message, terms).await {
        Ok(Begun::Run(leased)) => Step::Settle(leased.lease),
        // Perhaps left by a receiver that has died, or this one's after a lost reply.
        Ok(Begun::Busy { until }) => Step::Wait(Busy {
            until,
            asked,
            answered: Instant::now(),
        }),
        Ok(Begun::Blocked) => Step::Blocked,
        Ok(Begun::Processed { .. } | Begun::Dead { .. } | Begun::Discarded) => Step::Known,
        // It is the stored one that cannot be read.
        Err(error) if error.kind() == ErrorKind::Corrupt => Step::Known,
        Err(error) if error.kind() == ErrorKind::Invalid => {
            tracing::warn!(key = %message.key(), %error, "refused by the store");
            Step::Refused(Invalid::Malformed {
                what: "message",
                expected: "one that the store takes",
            })
        }
        Err(error) => return Err(error),
    })
}

/// Whether those that are known have other content, which no `begin` tells. What was purged meanwhile is
/// stored again by this, and has to be begun. So are all of them after a call without an answer: a second one
/// would take for a duplicate what the first has stored.
async fn compare(
    receiver: &Receiver,
    known: Vec<(usize, &Message)>,
) -> Result<Vec<(usize, Option<Receipt>)>> {
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let messages: Vec<_> = known
        .iter()
        .map(|(_, message)| (*message).clone())
        .collect();
    let receipts = receiver.store.receive(&messages).await?;
    if receipts.len() != messages.len() {
        return Err(unanswered("receive"));
    }
    let places = known.into_iter().map(|(at, _)| at);
    let answers = places.zip(receipts).map(|(at, receipt)| {
        let is_stored = receipt == Receipt::Accepted;
        (at, Some(receipt).filter(|_| !is_stored))
    });
    Ok(answers.collect())
}

/// Ends what is leased. Who lost a lease has to ask again.
async fn settle(
    receiver: &Receiver,
    leased: Vec<(usize, Lease, Outcome)>,
    outage: &mut Outage,
) -> Result<Vec<(usize, Option<Receipt>)>> {
    let (mut places, mut settlements): (Vec<_>, Vec<_>) = leased
        .into_iter()
        .map(|(at, lease, outcome)| (at, Settlement { lease, outcome }))
        .unzip();
    let mut answers = Vec::with_capacity(places.len());
    while !settlements.is_empty() {
        let settled = match receiver.store.settle(&settlements).await {
            Ok(settled) if settled.len() == settlements.len() => settled,
            Ok(_) => return Err(unanswered("settle")),
            // Settling is idempotent.
            Err(error) if error.is_retryable() => {
                sleep(outage.failed(&error)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (mut again_places, mut again) = (Vec::new(), Vec::new());
        let asked = std::mem::take(&mut places);
        for ((at, settlement), settled) in asked.into_iter().zip(settlements).zip(settled) {
            match settled {
                Settled::Done => answers.push((at, Some(Receipt::Accepted))),
                Settled::LeaseLost => answers.push((at, None)),
                Settled::Refused(invalid) => match plainer(settlement.outcome) {
                    Some(outcome) => {
                        let lease = settlement.lease;
                        again_places.push(at);
                        again.push(Settlement { lease, outcome });
                    }
                    None => answers.push((at, Some(Receipt::Refused(invalid)))),
                },
            }
        }
        (places, settlements) = (again_places, again);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_known_by_its_bytes_and_cut_to_the_limit() {
        let handler = HandlerName::new("rejected").unwrap();
        let reason = Rejection::new("no id");
        let letter = |bytes: &'static str, limit| {
            let raw = Raw::new(bytes);
            Final::dead_letter(&handler, raw, &reason, limit)
                .unwrap()
                .message
        };
        let whole = letter("abc", 3);
        assert_eq!(
            whole.id().as_str(),
            "sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            (&**whole.payload(), whole.headers().len()),
            (&b"abc"[..], 0)
        );
        let cut = letter("abc", 2);
        assert_eq!(cut.id(), whole.id());
        assert_eq!(&**cut.payload(), b"ab");
        assert_eq!(cut.headers().get(RAW_BYTES), Some("3"));
        assert_ne!(letter("abd", 3).id(), whole.id());
    }

    #[test]
    fn a_dead_letter_is_known_by_its_origin_or_its_headers() {
        let of = |name: &str, value: &str| {
            let mut headers = crate::Headers::new();
            headers.insert(name, value).unwrap();
            Raw::new("").with_headers(headers)
        };
        let ids = [
            Raw::new(""),
            of("offset", "1"),
            of("offset", "2"),
            of("offset1", ""),
            Raw::new("").with_origin("orders/0/1"),
            Raw::new("a").with_origin("orders/0/1"),
        ]
        .map(|raw| digest(&raw));
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        // What else is told of a redelivery may be other then.
        let again = of("deliveries", "2").with_origin("orders/0/1");
        assert_eq!(digest(&again), ids[4]);
    }
}
