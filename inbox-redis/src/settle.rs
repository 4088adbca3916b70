//! Settling leases.

use std::{borrow::Cow, collections::BTreeMap};

use inbox_api::{
    AfterDead, AttemptEnd, HandlerName, History, Lease, Outcome, PastAttempt, Result, Settled,
    Settlement, check_size, duration_micros, error_text,
};
use redis::Value;

use crate::{
    clocks::Moment,
    connection::Connection,
    cross_shard,
    keys::field,
    reply::{self, Reply, Taker, Unexpected},
    scripts::{Call, SETTLE},
};

/// One script settles or extends at most so many, since the server does nothing else meanwhile.
pub(crate) const STEP: usize = 500;

/// How one settlement reads in the script's arguments.
pub(crate) struct Arguments<'a> {
    pub(crate) field: String,
    seq: u64,
    token: i64,
    outcome: u8,
    value: Cow<'a, [u8]>,
    flag: i64,
    /// How many bytes of the text the history keeps.
    short: u16,
}

/// The outcomes as `settle.lua` numbers them.
const DONE: u8 = 0;
const RESULT: u8 = 1;
const RETRY: u8 = 2;
const DIED: u8 = 3;
const RELEASE: u8 = 4;
const CORRUPT: u8 = 5;
const DEFER: u8 = 6;
const DEFER_WITH_ERROR: u8 = 7;
/// The latest that a message is put off, in microseconds: over a hundred years. Scripts hold no
/// greater numbers exactly.
const LONGEST: i64 = 1 << 52;

impl<'a> Arguments<'a> {
    pub(crate) fn new(lease: &Lease, seq: u64, outcome: &'a Outcome) -> Self {
        let text = |text: &'a str| match error_text(text) {
            Cow::Borrowed(text) => text.as_bytes().into(),
            Cow::Owned(text) => text.into_bytes().into(),
        };
        let short =
            AttemptEnd::of(outcome).map_or(0, |(_, text)| PastAttempt::error_text(text).len());
        let (outcome, value, flag) = match outcome {
            Outcome::Processed { result } => (
                if result.is_some() { RESULT } else { DONE },
                result.as_deref().unwrap_or_default().into(),
                0,
            ),
            Outcome::Retry { after, error } => {
                (RETRY, text(error), duration_micros(*after).min(LONGEST))
            }
            Outcome::Dead { reason, after } => {
                (DIED, text(reason), i64::from(*after == AfterDead::Block))
            }
            Outcome::Release => (RELEASE, (&[][..]).into(), 0),
            Outcome::Defer { after, error } => (
                if error.is_some() {
                    DEFER_WITH_ERROR
                } else {
                    DEFER
                },
                error.as_deref().map_or((&[][..]).into(), text),
                duration_micros(*after).min(LONGEST),
            ),
        };
        Self {
            field: field(&lease.key),
            seq,
            token: lease.token.get(),
            outcome,
            value,
            flag,
            short: u16::try_from(short).unwrap_or(u16::MAX),
        }
    }

    /// A message that was claimed and cannot be read, to be set aside.
    pub(crate) fn corrupt(field: String, seq: u64, token: i64, reason: &str) -> Self {
        Self {
            field,
            seq,
            token,
            outcome: CORRUPT,
            value: format!("corrupt: {reason}").into_bytes().into(),
            flag: 0,
            short: 0,
        }
    }

    pub(crate) fn add_to(&self, call: &mut Call) {
        // Six bytes of number, seven each of token and flag, two of a length; a token that does not fit
        // is nobody's.
        let token = u64::try_from(self.token)
            .unwrap_or(u64::MAX)
            .min((1 << 56) - 1);
        let flag = u64::try_from(self.flag).unwrap_or(0);
        let mut packed = [0; 23];
        let parts = [
            (1, u64::from(self.outcome)),
            (6, self.seq),
            (7, token),
            (7, flag),
            (2, u64::from(self.short)),
        ];
        let mut at = 0;
        for (length, number) in parts {
            let bytes = number.to_be_bytes();
            let (_, low) = bytes.split_at(8 - length);
            if let Some(part) = packed.get_mut(at..at + length) {
                part.copy_from_slice(low);
            }
            at += length;
        }
        call.arg(&self.field).arg(&packed[..]);
        if self.outcome != DONE {
            call.arg(&*self.value);
        }
    }
}

/// A call that settles leases of one shard.
pub(crate) fn call<'a>(
    connection: &Connection,
    shard: u16,
    handlers: impl IntoIterator<Item = &'a HandlerName>,
    settlements: &[Arguments<'_>],
    moment: Moment,
) -> Call {
    let mut call = connection.call_at(&SETTLE, shard, handlers, moment);
    add_options(connection, &mut call);
    call.arg(-1);
    for settlement in settlements {
        settlement.add_to(&mut call);
    }
    call
}

fn add_options(connection: &Connection, call: &mut Call) {
    let options = &connection.options;
    call.arg(u8::from(options.drop_processed_payloads))
        .arg(options.keep_processed.map_or(-1, duration_micros))
        .arg(History::KEPT);
}

/// A call that settles one lease together with commands on `keys`, but for these commands and the
/// settlement.
pub(crate) fn call_with_keys(
    connection: &Connection,
    shard: u16,
    lease: &Lease,
    keys: &[Vec<u8>],
) -> Call {
    let handlers = [&lease.key.handler];
    let caller = &connection.caller;
    let mut call = caller.call_with(&SETTLE, shard, handlers, keys, Moment::default());
    add_options(connection, &mut call);
    call
}

pub(crate) async fn settle(
    connection: &Connection,
    settlements: &[Settlement],
) -> Result<Vec<Settled>> {
    connection.check_open()?;
    let limit = connection.options.payload_limit;
    let mut settled = vec![Settled::LeaseLost; settlements.len()];
    let mut by_shard: BTreeMap<u16, Vec<(usize, u64)>> = BTreeMap::new();
    for (place, (settlement, answer)) in settlements.iter().zip(&mut settled).enumerate() {
        if let Outcome::Processed {
            result: Some(result),
        } = &settlement.outcome
            && let Err(invalid) = check_size("result", result.len(), limit)
        {
            *answer = Settled::Refused(invalid);
        } else if let Some((shard, seq)) = connection.layout().located(settlement.lease.locator) {
            by_shard.entry(shard).or_default().push((place, seq));
        }
    }
    let moment = connection.clocks().moment();
    let (mut calls, mut places) = (Vec::new(), Vec::new());
    for (shard, members) in by_shard {
        for step in members.chunks(STEP) {
            let of = |place: usize| settlements.get(place);
            let arguments: Vec<_> = step
                .iter()
                .filter_map(|(place, seq)| Some((of(*place)?, *seq)))
                .map(|(one, seq)| Arguments::new(&one.lease, seq, &one.outcome))
                .collect();
            let handlers = step
                .iter()
                .filter_map(|(place, _)| Some(&of(*place)?.lease.key.handler));
            calls.push(call(connection, shard, handlers, &arguments, moment));
            let step: Vec<usize> = step.iter().map(|(place, _)| *place).collect();
            places.push((shard, step));
        }
    }
    let answers = connection.run_all_confirmed(calls).await?;
    let mut purged = Vec::new();
    for ((shard, places), answer) in places.into_iter().zip(answers) {
        let (answers, gone) = read_answer(answer)?;
        if answers.len() != places.len() {
            return Err(Unexpected.into());
        }
        for (place, done) in places.into_iter().zip(answers) {
            if let (true, Some(answer)) = (done, settled.get_mut(place)) {
                *answer = Settled::Done;
            }
        }
        purged.push((shard, gone));
    }
    cross_shard::forget_later(connection, purged);
    Ok(settled)
}

/// Whether each was settled, and the keys that are forgotten.
fn read_answer(answer: Value) -> Reply<(Vec<bool>, Vec<Value>)> {
    let mut answer = Taker::of(answer)?;
    let done = answer.list()?;
    let _replies = answer.next()?;
    let done = done.iter().map(|done| Ok(reply::number(done)? == 1));
    Ok((done.collect::<Reply<_>>()?, answer.list()?))
}
