//! Receiving and beginning: which shard a message is in, and storing it there.

use std::collections::{BTreeMap, HashSet};

use inbox_api::{
    Begun, Bytes, Due, Error, ErrorKind, Key, LeaseTerms, Message, Receipt, Result, check_size,
    duration_micros, from_micros, to_micros,
};
use redis::Value;

use crate::{
    keys::field,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows,
    scripts::{BEGIN, Call, DRAW, FENCE, Moment, RECEIVE, UNGUARD},
    store::RedisStore,
};

/// How often a message whose guard changes under our hands is tried anew.
const ROUNDS: u32 = 8;
/// For how long after it was staged, or read where it is staged, a message may be placed, in
/// microseconds by the servers' clocks.
pub(crate) const PLACING: i64 = 60_000_000;
/// A batch of more would exceed what Redis takes in one command.
const MOST_MESSAGES: usize = 100_000;
const MOST_BYTES: usize = 512 * 1024 * 1024;

/// That a message is, or will be, in another shard than its home: which one, and the number
/// under which that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) shard: u16,
    pub(crate) number: u64,
}

fn due(due: Due) -> String {
    match due {
        Due::Now => "@0".into(),
        Due::After(delay) => format!("+{}", duration_micros(delay)),
        Due::At(time) => format!("@{}", to_micros(time)),
    }
}

fn conflict(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        operation,
        "copies of a message with different ordering keys raced for its place",
    )
}

/// Messages that become a run: so many, of so many bytes together and each.
const PART_MESSAGES: usize = 100;
const PART_BYTES: usize = 256 * 1024;
const PART_PAYLOAD: usize = 64 * 1024;
/// Their places in the batch are no further from each other; scripts rely on it (`SPAN`).
const PART_SPAN: usize = 1000;

/// How many of the first messages become one run: those that are due now, have no ordering key and
/// belong to one handler. Always at least 1; a single one does not become a run.
fn part_length(batch: &[Open<'_>], place_of: impl Fn(usize, &Open<'_>) -> usize) -> usize {
    let plain = |one: &Open<'_>| {
        one.guard.is_none()
            && one.message.ordering_key().is_none()
            && one.message.due() == Due::Now
            && one.message.payload().len() <= PART_PAYLOAD
    };
    let Some(first) = batch.first().filter(|first| plain(first)) else {
        return 1;
    };
    let mut bytes = 0;
    batch
        .iter()
        .take(PART_MESSAGES)
        .enumerate()
        .take_while(|(n, one)| {
            bytes += one.message.payload().len();
            let distance = place_of(*n, one).saturating_sub(place_of(0, first));
            plain(one)
                && one.message.handler() == first.message.handler()
                && bytes <= PART_BYTES
                && distance < PART_SPAN
        })
        .count()
        .max(1)
}

fn part_args(call: &mut Call, start: usize, part: &[Open<'_>], distances: &[u16]) {
    let payloads: usize = part.iter().map(|one| one.message.payload().len()).sum();
    let (mut log, mut blob) = (Vec::new(), Vec::with_capacity(payloads + 100 * part.len()));
    for (one, distance) in part.iter().zip(distances) {
        rows::add_item(&mut log, &mut blob, *distance, one.message);
    }
    let without_gaps = distances
        .last()
        .is_none_or(|last| usize::from(*last) + 1 == part.len());
    let packed: Vec<u8> = distances.iter().flat_map(|d| d.to_be_bytes()).collect();
    call.arg("part")
        .arg(start)
        .arg(part.len())
        .arg(if without_gaps { &[][..] } else { &packed })
        .arg(log)
        .arg(blob)
        .arg(
            part.first()
                .map_or("", |one| one.message.handler().as_str()),
        );
    for one in part {
        call.arg(field(one.message.key()));
    }
}

/// What a shard said to one message.
enum Said {
    Accepted,
    Duplicate,
    /// It is, or will be, in another shard, and this call has staged it.
    StagedNow(Guard),
    /// The same, by an earlier call, which may not have placed it yet.
    StagedBefore(Guard),
    /// It was placed in another shard, and may have been purged since.
    Placed(Guard),
    /// It came too late for its place: others see to it, or have long done so.
    Late,
}

fn said(value: Value) -> Reply<Said> {
    match value {
        Value::Int(0) => Ok(Said::Duplicate),
        Value::Int(1) => Ok(Said::Accepted),
        Value::Int(3 | 4) => Ok(Said::Late),
        other => {
            let mut parts = Taker::of(other)?;
            let guard = guard(&mut parts)?;
            Ok(match parts.number()? {
                1 => Said::StagedNow(guard),
                2 => Said::StagedBefore(guard),
                _ => Said::Placed(guard),
            })
        }
    }
}

fn guard(parts: &mut Taker) -> Reply<Guard> {
    Ok(Guard {
        shard: parts.small()?,
        number: parts.unsigned()?,
    })
}

/// A message of the batch that is not decided yet.
struct Open<'a> {
    place: usize,
    message: &'a Message,
    home: u16,
    target: u16,
    guard: Option<Guard>,
}

impl RedisStore {
    pub(crate) async fn receive_batch(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        const OPERATION: &str = "receive";
        let limit = self.inner.options.payload_limit;
        let mut receipts: Vec<Option<Receipt>> = Vec::with_capacity(messages.len());
        let (mut open, mut bytes, mut keys) = (Vec::new(), 0_usize, HashSet::new());
        for (place, message) in messages.iter().enumerate() {
            if let Err(invalid) = check_size("payload", message.payload().len(), limit) {
                receipts.push(Some(Receipt::Refused(invalid)));
            } else if !keys.insert(message.key()) {
                // The first copy will be stored, if it is not yet.
                receipts.push(Some(Receipt::Duplicate));
            } else {
                bytes = bytes.saturating_add(message.payload().len());
                open.push(self.open(place, message));
                receipts.push(None);
            }
        }
        if open.len() > MOST_MESSAGES || bytes > MOST_BYTES {
            let reason = "a batch may have up to 100000 messages and 512 MiB; send smaller ones";
            return Err(Error::new(ErrorKind::Invalid, OPERATION, reason));
        }
        let mut rounds = 0;
        while !open.is_empty() {
            if rounds == ROUNDS {
                return Err(conflict(OPERATION).with_effect(inbox_api::Effect::Unknown));
            }
            rounds += 1;
            open = self.receive_round(open, &mut receipts).await?;
        }
        // Every message was refused or decided.
        Ok(receipts
            .into_iter()
            .map(|receipt| receipt.unwrap_or(Receipt::Duplicate))
            .collect())
    }

    fn open<'a>(&self, place: usize, message: &'a Message) -> Open<'a> {
        Open {
            place,
            message,
            home: self.layout().home(message.key()),
            target: self.layout().target(message),
            guard: None,
        }
    }

    /// Answers the messages that have to be tried again.
    async fn receive_round<'a>(
        &self,
        open: Vec<Open<'a>>,
        receipts: &mut [Option<Receipt>],
    ) -> Result<Vec<Open<'a>>> {
        const OPERATION: &str = "receive";
        let (mut staged, mut placed) = (Vec::new(), Vec::new());
        let first = self.numbers(OPERATION, &open).await?;
        let moment = self.inner.caller.moment();
        for (mut one, said) in self.store_at(OPERATION, first, open, moment).await? {
            match said {
                Said::Accepted => decide(receipts, one.place, Receipt::Accepted),
                Said::Duplicate | Said::Late | Said::StagedBefore(_) => {
                    decide(receipts, one.place, Receipt::Duplicate);
                }
                Said::StagedNow(guard) => {
                    decide(receipts, one.place, Receipt::Accepted);
                    one.guard = Some(guard);
                    staged.push(one);
                }
                Said::Placed(guard) => placed.push((one, guard)),
            }
        }
        if !staged.is_empty() {
            // One that came too late stays staged for the next who sees it.
            let there = self.store_at(OPERATION, first, staged, moment).await?;
            let placed = there
                .iter()
                .filter(|(_, said)| matches!(said, Said::Accepted | Said::Duplicate))
                .filter_map(|(one, _)| {
                    Some((one.home, field(one.message.key()), one.guard?.number))
                })
                .collect();
            self.unstage(OPERATION, placed).await;
        }
        let mut again = Vec::new();
        for (one, guard) in placed {
            if self.is_there(OPERATION, one.message.key(), guard).await? {
                decide(receipts, one.place, Receipt::Duplicate);
            } else {
                again.push(one);
            }
        }
        Ok(again)
    }

    /// The first of as many new numbers as the batch has places, so that the messages' numbers are
    /// in its order; 0 when the shard draws them itself.
    async fn numbers(&self, operation: &'static str, open: &[Open<'_>]) -> Result<u64> {
        if self.layout().shards() == 1 {
            return Ok(0);
        }
        let count = open.last().map_or(0, |one| one.place + 1);
        self.draw(operation, count).await
    }

    /// Stores messages without a guard at home, or stages them there; and those with a guard where
    /// they belong.
    async fn store_at<'a>(
        &self,
        operation: &'static str,
        first: u64,
        open: Vec<Open<'a>>,
        moment: Moment,
    ) -> Result<Vec<(Open<'a>, Said)>> {
        let mut by_shard: BTreeMap<u16, Vec<Open<'a>>> = BTreeMap::new();
        for one in open {
            let shard = one.guard.map_or(one.home, |guard| guard.shard);
            by_shard.entry(shard).or_default().push(one);
        }
        let calls = by_shard
            .iter()
            .map(|(shard, batch)| self.receive_call(*shard, first, batch, moment))
            .collect();
        let answers = self.run_all_confirmed(operation, calls).await?;
        let mut all = Vec::new();
        for (batch, answer) in by_shard.into_values().zip(answers) {
            let answers = reply::list(answer).map_err(unexpected(operation))?;
            if answers.len() != batch.len() {
                return Err(unexpected(operation)(Unexpected));
            }
            for (one, answer) in batch.into_iter().zip(answers) {
                all.push((one, said(answer).map_err(unexpected(operation))?));
            }
        }
        all.sort_by_key(|(one, _)| one.place);
        Ok(all)
    }

    fn receive_call(&self, shard: u16, first: u64, batch: &[Open<'_>], moment: Moment) -> Call {
        let handlers: HashSet<_> = batch.iter().map(|one| one.message.handler()).collect();
        let caller = &self.inner.caller;
        let mut call = caller.call_with(&RECEIVE, shard, handlers, &[], moment);
        call.arg(first).arg(batch.len());
        let mut rest = batch;
        let mut number = 0;
        while let Some(one) = rest.first() {
            // With one shard the script draws the numbers itself.
            let place_of =
                |n: usize, one: &Open<'_>| if first == 0 { number + n } else { one.place };
            let length = part_length(rest, place_of);
            let (part, behind) = rest.split_at(length);
            if let [one] = part {
                call.arg("one").arg(place_of(0, one));
                self.message_args(&mut call, one, moment.micros());
            } else {
                let start = place_of(0, one);
                let distances: Vec<u16> = part
                    .iter()
                    .enumerate()
                    .map(|(n, one)| u16::try_from(place_of(n, one) - start).unwrap_or(u16::MAX))
                    .collect();
                part_args(&mut call, start, part, &distances);
            }
            rest = behind;
            number += length;
        }
        call
    }

    /// A message by itself, at the moment `time` by the server's clock.
    fn message_args(&self, call: &mut Call, one: &Open<'_>, time: i64) {
        let message = one.message;
        call.arg(field(message.key()))
            .arg(due(message.due()))
            .arg(message.ordering_key().map_or("", AsRef::as_ref))
            .arg(rows::body(message));
        match one.guard {
            Some(guard) => call.arg("").arg(one.home).arg(guard.number),
            None if one.target != one.home => call.arg(one.target).arg("").arg(""),
            None => call.arg("").arg("").arg(""),
        };
        call.arg(time.saturating_add(PLACING));
    }

    /// New sequence numbers, which order the messages of all shards.
    async fn draw(&self, operation: &'static str, count: usize) -> Result<u64> {
        let mut call = self.inner.caller.call(&DRAW, 0, []);
        call.arg(count);
        let drawn = self.run(operation, call).await?;
        let mut drawn = Taker::of(drawn).map_err(unexpected(operation))?;
        let first = drawn.unsigned().map_err(unexpected(operation))?;
        let time = drawn.number().map_err(unexpected(operation))?;
        self.inner.caller.hear(time);
        Ok(first)
    }

    /// Whether a guarded message really is where its guard says. One that is still staged is
    /// placed. If it is gone (it was purged), makes sure that whoever is late with placing it never
    /// will, and removes the guard.
    async fn is_there(&self, operation: &'static str, key: &Key, guard: Guard) -> Result<bool> {
        if self.place_staged_one(operation, key).await? {
            return Ok(true);
        }
        let mut call = self.inner.caller.call(&FENCE, guard.shard, []);
        call.arg(field(key)).arg(guard.number);
        let answer = self.run_confirmed(operation, call).await?;
        if answer == Value::Int(1) {
            return Ok(true);
        }
        self.unguard(
            operation,
            self.layout().home(key),
            &[(field(key), guard.number)],
        )
        .await?;
        Ok(false)
    }

    /// Removes guards from a home shard.
    pub(crate) async fn unguard(
        &self,
        operation: &'static str,
        home: u16,
        guards: &[(String, u64)],
    ) -> Result<()> {
        let mut call = self.inner.caller.call(&UNGUARD, home, []);
        for (field, number) in guards {
            call.arg(field).arg(*number);
        }
        self.run(operation, call).await.map(drop)
    }

    pub(crate) async fn begin_one(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        const OPERATION: &str = "begin";
        for _ in 0..ROUNDS {
            let mut one = self.open(0, message);
            let first = self.numbers(OPERATION, std::slice::from_ref(&one)).await?;
            let mut shard = one.home;
            let mut store = one.target == one.home;
            if !store {
                // It is staged first, as in a receive.
                let open = vec![self.open(0, message)];
                let moment = self.inner.caller.moment();
                let said = self.store_at(OPERATION, first, open, moment).await?.pop();
                match said.map(|(_, said)| said) {
                    Some(Said::StagedNow(guard)) => {
                        (shard, store) = (guard.shard, true);
                        one.guard = Some(guard);
                    }
                    Some(Said::StagedBefore(guard)) => {
                        self.place_staged_one(OPERATION, message.key()).await?;
                        shard = guard.shard;
                    }
                    Some(Said::Placed(guard)) => {
                        shard = guard.shard;
                        one.guard = Some(guard);
                    }
                    _ => {}
                }
            }
            let mut outcome = self.begin_in(shard, first, &one, store, terms).await?;
            let late = matches!(outcome, BeginSaid::Absent);
            if store
                && !late
                && let Some(guard) = one.guard
            {
                let at_home = vec![(one.home, field(message.key()), guard.number)];
                self.unstage(OPERATION, at_home).await;
            }
            if let BeginSaid::Elsewhere(guard) = outcome {
                one.guard = Some(guard);
                outcome = self
                    .begin_in(guard.shard, first, &one, false, terms)
                    .await?;
            }
            match (outcome, one.guard) {
                (BeginSaid::Begun(begun), _) => return Ok(begun),
                (BeginSaid::Absent, Some(guard)) => {
                    // Staged and placed now, or gone: the next round tells.
                    self.is_there(OPERATION, message.key(), guard).await?;
                }
                _ => {}
            }
        }
        Err(conflict(OPERATION))
    }

    async fn begin_in(
        &self,
        shard: u16,
        seq: u64,
        one: &Open<'_>,
        store: bool,
        terms: &LeaseTerms,
    ) -> Result<BeginSaid> {
        const OPERATION: &str = "begin";
        let caller = &self.inner.caller;
        let mut call = caller.call(&BEGIN, shard, [one.message.handler()]);
        call.arg(seq)
            .arg(field(one.message.key()))
            .arg(due(one.message.due()))
            .arg(one.message.ordering_key().map_or("", AsRef::as_ref))
            .arg(rows::body(one.message));
        match one.guard {
            Some(guard) => call.arg(one.home).arg(guard.number),
            None => call.arg("").arg(""),
        };
        call.arg(caller.moment().micros().saturating_add(PLACING))
            .arg(u8::from(store))
            .arg(duration_micros(terms.length()))
            .arg(terms.worker().as_str());
        let answer = self.run_confirmed(OPERATION, call).await?;
        self.begun(shard, one.message, answer)
            .map_err(unexpected(OPERATION))?
    }

    fn begun(&self, shard: u16, message: &Message, answer: Value) -> Reply<Result<BeginSaid>> {
        let mut answer = Taker::of(answer)?;
        let what = answer.next()?;
        let corrupt = |reason: String| {
            let row = rows::corrupt_row(self.layout(), shard, &field(message.key()), reason);
            let context = format!("{}: {}", row.place, row.reason);
            Error::new(ErrorKind::Corrupt, "begin", context)
        };
        let begun = match reply::text(&what)?.ok_or(Unexpected)? {
            "run" => match rows::taken(shard, answer.next()?)?.leased {
                Ok(leased) => Begun::Run(Box::new(leased)),
                Err(reason) => return Ok(Err(corrupt(reason))),
            },
            "processed" => Begun::Processed {
                result: reply::bytes(answer.optional())?,
            },
            "dead" => Begun::Dead {
                reason: reply::bytes(answer.optional())?.map_or_else(String::new, lossy),
            },
            "discarded" => Begun::Discarded,
            "busy" => Begun::Busy {
                until: from_micros(answer.number()?),
            },
            "blocked" => Begun::Blocked,
            "absent" | "fenced" => return Ok(Ok(BeginSaid::Absent)),
            "guard" => return Ok(Ok(BeginSaid::Elsewhere(guard(&mut answer)?))),
            "corrupt" => return Ok(Err(corrupt("its state or body cannot be read".into()))),
            _ => return Err(Unexpected),
        };
        Ok(Ok(BeginSaid::Begun(begun)))
    }
}

enum BeginSaid {
    Begun(Begun),
    Absent,
    Elsewhere(Guard),
}

fn decide(receipts: &mut [Option<Receipt>], place: usize, receipt: Receipt) {
    if let Some(undecided) = receipts.get_mut(place) {
        *undecided = Some(receipt);
    }
}

fn lossy(bytes: Bytes) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
