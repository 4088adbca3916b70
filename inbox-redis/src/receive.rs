//! Receiving and beginning: which shard a message is in, and storing it there.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::join;
use inbox_api::{
    Begun, Bytes, Due, Error, ErrorKind, Key, LeaseTerms, Message, Receipt, Result, check_size,
    duration_micros, from_micros, to_micros,
};
use redis::Value;

use crate::{
    keys::field,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows,
    scripts::{BEGIN, Call, DRAW, FENCE, Moment, RECEIVE, RESERVE, UNGUARD},
    store::RedisStore,
};

/// How often a message whose guard changes under our hands is tried anew.
const ROUNDS: u32 = 8;
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

/// What a shard said to one message.
enum Said {
    Accepted,
    Duplicate,
    /// It is elsewhere.
    Elsewhere(Guard),
    /// What was reserved is no longer so.
    Again,
}

fn said(value: Value) -> Reply<Said> {
    match value {
        Value::Int(0) => Ok(Said::Duplicate),
        Value::Int(1) => Ok(Said::Accepted),
        Value::Int(3) => Ok(Said::Again),
        other => guard(other).map(Said::Elsewhere),
    }
}

fn guard(value: Value) -> Reply<Guard> {
    let mut pair = Taker::of(value)?;
    Ok(Guard {
        shard: pair.small()?,
        number: pair.unsigned()?,
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
        let sharded = self.layout().shards() > 1;
        for (place, message) in messages.iter().enumerate() {
            if let Err(invalid) = check_size("payload", message.payload().len(), limit) {
                receipts.push(Some(Receipt::Refused(invalid)));
            } else if sharded && !keys.insert(message.key()) {
                // The first copy will be stored, if it is not yet. Two that are on their way to
                // different shards could pass each other.
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
        mut open: Vec<Open<'a>>,
        receipts: &mut [Option<Receipt>],
    ) -> Result<Vec<Open<'a>>> {
        const OPERATION: &str = "receive";
        let mut elsewhere: Vec<(Open<'a>, Guard)> = Vec::new();
        let first = if self.layout().shards() == 1 {
            0
        } else {
            // One for each place of the batch: the messages' numbers are in its order.
            let numbers = open.last().map_or(0, |one| one.place + 1);
            let (first, reserved) = join(
                self.draw(OPERATION, numbers),
                self.reserve(OPERATION, &open),
            )
            .await;
            let reserved = reserved?;
            let mut left = Vec::with_capacity(open.len());
            for (mut one, answer) in open.into_iter().zip(reserved) {
                match answer {
                    Reserved::AtHome => left.push(one),
                    Reserved::Known => decide(receipts, one.place, Receipt::Duplicate),
                    Reserved::Guarded(guard) if guard.shard == one.target => {
                        one.guard = Some(guard);
                        left.push(one);
                    }
                    Reserved::Guarded(guard) => elsewhere.push((one, guard)),
                }
            }
            open = left;
            first?
        };

        let mut by_shard: BTreeMap<u16, Vec<Open<'a>>> = BTreeMap::new();
        for one in open {
            by_shard.entry(one.target).or_default().push(one);
        }
        let moment = self.inner.caller.moment();
        let calls = by_shard
            .iter()
            .map(|(shard, batch)| self.receive_call(*shard, first, batch, moment))
            .collect();
        let answers = self.run_all_confirmed(OPERATION, calls).await?;
        let mut again = Vec::new();
        for (batch, answer) in by_shard.into_values().zip(answers) {
            let answers = reply::list(answer).map_err(unexpected(OPERATION))?;
            if answers.len() != batch.len() {
                return Err(unexpected(OPERATION)(Unexpected));
            }
            for (mut one, answer) in batch.into_iter().zip(answers) {
                match said(answer).map_err(unexpected(OPERATION))? {
                    Said::Accepted => decide(receipts, one.place, Receipt::Accepted),
                    Said::Duplicate => decide(receipts, one.place, Receipt::Duplicate),
                    Said::Elsewhere(guard) => elsewhere.push((one, guard)),
                    Said::Again => {
                        one.guard = None;
                        again.push(one);
                    }
                }
            }
        }
        for (mut one, guard) in elsewhere {
            if self.is_there(OPERATION, one.message.key(), guard).await? {
                decide(receipts, one.place, Receipt::Duplicate);
            } else {
                one.guard = None;
                again.push(one);
            }
        }
        again.sort_by_key(|one| one.place);
        Ok(again)
    }

    fn receive_call(&self, shard: u16, first: u64, batch: &[Open<'_>], moment: Moment) -> Call {
        let handlers: HashSet<_> = batch.iter().map(|one| one.message.handler()).collect();
        let caller = &self.inner.caller;
        let mut call = caller.call_with(&RECEIVE, shard, handlers, &[], moment);
        call.arg(first);
        for (number, one) in batch.iter().enumerate() {
            // With one shard the script draws the numbers itself.
            let place = if first == 0 { number } else { one.place };
            call.arg(place);
            self.message_args(&mut call, one.message, one.home, one.guard);
        }
        call
    }

    fn message_args(&self, call: &mut Call, message: &Message, home: u16, guard: Option<Guard>) {
        call.arg(field(message.key()))
            .arg(due(message.due()))
            .arg(message.ordering_key().map_or("", AsRef::as_ref))
            .arg(rows::body(message));
        match guard {
            Some(guard) => call.arg(home).arg(guard.number),
            None => call.arg("").arg(""),
        };
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

    /// Asks the home shards of those messages that belong elsewhere; answers for all.
    async fn reserve(&self, operation: &'static str, open: &[Open<'_>]) -> Result<Vec<Reserved>> {
        let mut by_home: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (number, one) in open.iter().enumerate() {
            if one.target != one.home {
                by_home.entry(one.home).or_default().push(number);
            }
        }
        let mut calls = Vec::with_capacity(by_home.len());
        for (home, numbers) in &by_home {
            let mut call = self.inner.caller.call(&RESERVE, *home, []);
            for one in numbers.iter().filter_map(|number| open.get(*number)) {
                call.arg(field(one.message.key())).arg(one.target);
            }
            calls.push(call);
        }
        let answers = self.run_all_confirmed(operation, calls).await?;
        let mut reserved: Vec<Reserved> = open.iter().map(|_| Reserved::AtHome).collect();
        for (numbers, answer) in by_home.into_values().zip(answers) {
            let answers = reply::list(answer).map_err(unexpected(operation))?;
            for (number, answer) in numbers.into_iter().zip(answers) {
                let answer = match answer {
                    Value::Int(_) => Reserved::Known,
                    other => Reserved::Guarded(guard(other).map_err(unexpected(operation))?),
                };
                if let Some(place) = reserved.get_mut(number) {
                    *place = answer;
                }
            }
        }
        Ok(reserved)
    }

    /// Whether a guarded message really is where its guard says. If not (it was purged, or its
    /// sender died on the way), makes sure that it never will be, and removes the guard.
    async fn is_there(&self, operation: &'static str, key: &Key, guard: Guard) -> Result<bool> {
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
        let mut one = self.open(0, message);
        for _ in 0..ROUNDS {
            let (mut seq, mut shard, mut store) = (0, one.target, true);
            one.guard = None;
            if self.layout().shards() > 1 {
                let batch = std::slice::from_ref(&one);
                let (drawn, reserved) =
                    join(self.draw(OPERATION, 1), self.reserve(OPERATION, batch)).await;
                seq = drawn?;
                match reserved?.pop() {
                    Some(Reserved::Known) => (shard, store) = (one.home, false),
                    Some(Reserved::Guarded(guard)) => {
                        (shard, store) = (guard.shard, guard.shard == one.target);
                        one.guard = Some(guard);
                    }
                    Some(Reserved::AtHome) | None => {}
                }
            }
            let mut outcome = self.begin_in(shard, seq, &one, store, terms).await?;
            if let BeginSaid::Elsewhere(guard) = outcome {
                one.guard = Some(guard);
                outcome = self.begin_in(guard.shard, seq, &one, false, terms).await?;
            }
            match (outcome, one.guard) {
                (BeginSaid::Begun(begun), _) => return Ok(begun),
                (BeginSaid::Absent, Some(guard)) => {
                    // Unless it has just come, it never will: the next round stores it.
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
        let mut call = self
            .inner
            .caller
            .call(&BEGIN, shard, [one.message.handler()]);
        call.arg(seq);
        self.message_args(&mut call, one.message, one.home, one.guard);
        call.arg(u8::from(store))
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
            "guard" => {
                return Ok(Ok(BeginSaid::Elsewhere(Guard {
                    shard: answer.small()?,
                    number: answer.unsigned()?,
                })));
            }
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

enum Reserved {
    AtHome,
    Known,
    Guarded(Guard),
}

fn decide(receipts: &mut [Option<Receipt>], place: usize, receipt: Receipt) {
    if let Some(undecided) = receipts.get_mut(place) {
        *undecided = Some(receipt);
    }
}

fn lossy(bytes: Bytes) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
