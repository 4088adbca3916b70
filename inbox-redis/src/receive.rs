//! Receiving and beginning: which shard a message is in, and storing it there.

use std::collections::{BTreeMap, HashMap, HashSet};

use inbox_api::{
    Begun, Bytes, Due, Error, ErrorKind, LeaseTerms, Message, MessageId, Receipt, Result,
    check_size, duration_micros, from_micros, to_micros,
};
use redis::Value;

use crate::{
    clocks::Moment,
    keys::field,
    places::Place,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows,
    scripts::{BEGIN, Call, DRAW, RECEIVE},
    store::RedisStore,
};

/// How often a message whose place changes under our hands is looked for again.
const ROUNDS: u32 = 8;

/// What one script stores at most. It keeps the server from everything else, and may take some fifty
/// milliseconds.
struct Most {
    messages: usize,
    /// Those that do not become runs.
    single: usize,
    /// The last message may exceed it.
    bytes: usize,
}

const OF_ONE_SHARD: Most = Most {
    messages: 10_000,
    single: 1_000,
    bytes: 64 * 1024 * 1024,
};

const OF_SEVERAL_SHARDS: Most = Most {
    messages: 500,
    single: 500,
    bytes: 8 * 1024 * 1024,
};

fn due(due: Due) -> String {
    match due {
        Due::Now => "@0".into(),
        Due::After(delay) => format!("+{}", duration_micros(delay)),
        Due::At(time) => format!("@{}", to_micros(time)),
    }
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
    let plain = |one: &Open<'_>| !matches!(one.place_in, Place::Noted(_)) && may_run(one.message);
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

/// Whether a message may become part of a run.
fn may_run(message: &Message) -> bool {
    message.ordering_key().is_none()
        && message.due() == Due::Now
        && message.payload().len() <= PART_PAYLOAD
}

/// What one script stores.
#[derive(Default)]
struct Step<'a> {
    messages: Vec<Open<'a>>,
    single: usize,
    bytes: usize,
}

impl Step<'_> {
    fn has_room(&self, most: &Most) -> bool {
        self.messages.len() < most.messages && self.single < most.single && self.bytes < most.bytes
    }
}

/// Cuts what one shard gets into steps. Messages that share an id are in one step, so that they are
/// stored together.
fn steps<'a>(batch: Vec<Open<'a>>, most: &Most) -> Vec<Vec<Open<'a>>> {
    let bytes: usize = batch.iter().map(|one| one.message.payload().len()).sum();
    if batch.len() <= most.single && bytes <= most.bytes {
        return vec![batch];
    }
    let mut steps: Vec<Step<'_>> = Vec::new();
    let mut step_of: HashMap<&MessageId, usize> = HashMap::new();
    for one in batch {
        let number = match step_of.get(one.message.id()) {
            Some(number) => *number,
            None => {
                if !steps.last().is_some_and(|step| step.has_room(most)) {
                    steps.push(Step::default());
                }
                steps.len() - 1
            }
        };
        step_of.insert(one.message.id(), number);
        if let Some(step) = steps.get_mut(number) {
            step.bytes += one.message.payload().len();
            step.single += usize::from(!may_run(one.message));
            step.messages.push(one);
        }
    }
    steps.into_iter().map(|step| step.messages).collect()
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
    /// It is in this shard, or will be.
    Elsewhere(u16),
}

fn said(value: Value) -> Reply<Said> {
    Ok(match value {
        Value::Int(0) => Said::Duplicate,
        Value::Int(1) => Said::Accepted,
        other => Said::Elsewhere(Taker::of(other)?.small()?),
    })
}

/// A message of the batch that is not decided yet.
struct Open<'a> {
    place: usize,
    message: &'a Message,
    place_in: Place,
}

impl RedisStore {
    pub(crate) async fn receive_batch(&self, messages: &[Message]) -> Result<Vec<Receipt>> {
        let limit = self.inner.options.payload_limit;
        let mut receipts: Vec<Option<Receipt>> = Vec::with_capacity(messages.len());
        let (mut open, mut keys) = (Vec::new(), HashSet::new());
        for (place, message) in messages.iter().enumerate() {
            if let Err(invalid) = check_size("payload", message.payload().len(), limit) {
                receipts.push(Some(Receipt::Refused(invalid)));
            } else if !keys.insert(message.key()) {
                // The first copy will be stored, if it is not yet.
                receipts.push(Some(Receipt::Duplicate));
            } else {
                open.push(Open {
                    place,
                    message,
                    place_in: Place::Home(0),
                });
                receipts.push(None);
            }
        }
        if !open.is_empty() {
            self.receive_open(open, &mut receipts).await?;
        }
        // Every message was refused or decided.
        Ok(receipts
            .into_iter()
            .map(|receipt| receipt.unwrap_or(Receipt::Duplicate))
            .collect())
    }

    async fn receive_open(
        &self,
        mut open: Vec<Open<'_>>,
        receipts: &mut [Option<Receipt>],
    ) -> Result<()> {
        const OPERATION: &str = "receive";
        let count = open.last().map_or(0, |one| one.place + 1);
        let messages: Vec<&Message> = open.iter().map(|one| one.message).collect();
        let (first, places) = self.numbers_and_places(OPERATION, count, &messages).await?;
        for (one, place) in open.iter_mut().zip(places) {
            one.place_in = place;
            if let Place::Known(_) = place {
                decide(receipts, one.place, Receipt::Duplicate);
            }
        }
        open.retain(|one| !matches!(one.place_in, Place::Known(_)));
        let moment = self.inner.caller.clocks.moment();
        while !open.is_empty() {
            let mut again = Vec::new();
            for (mut one, said) in self.store_at(OPERATION, first, open, moment).await? {
                match said {
                    Said::Accepted => decide(receipts, one.place, Receipt::Accepted),
                    Said::Duplicate => decide(receipts, one.place, Receipt::Duplicate),
                    // From there it is not sent on.
                    Said::Elsewhere(shard) => {
                        one.place_in = Place::Noted(shard);
                        again.push(one);
                    }
                }
            }
            open = again;
        }
        Ok(())
    }

    /// The first of as many new numbers as the batch has places, so that the messages' numbers are
    /// in its order, and where the messages are to be stored. With one shard, the script draws the
    /// numbers itself: then the first is 0.
    async fn numbers_and_places(
        &self,
        operation: &'static str,
        count: usize,
        messages: &[&Message],
    ) -> Result<(u64, Vec<Place>)> {
        if self.layout().shards() == 1 {
            return Ok((0, vec![Place::Home(0); messages.len()]));
        }
        let mut call = self.inner.caller.call(&DRAW, 0, []);
        call.arg(count);
        let (drawn, places) = futures_util::future::try_join(
            self.run(operation, call),
            self.places(operation, messages),
        )
        .await?;
        let first = reply::unsigned(&drawn).map_err(unexpected(operation))?;
        Ok((first, places))
    }

    async fn store_at<'a>(
        &self,
        operation: &'static str,
        first: u64,
        open: Vec<Open<'a>>,
        moment: Moment,
    ) -> Result<Vec<(Open<'a>, Said)>> {
        let mut by_shard: BTreeMap<u16, Vec<Open<'a>>> = BTreeMap::new();
        for one in open {
            by_shard.entry(one.place_in.shard()).or_default().push(one);
        }
        let is_one = self.layout().shards() == 1;
        let most = if is_one {
            &OF_ONE_SHARD
        } else {
            &OF_SEVERAL_SHARDS
        };
        let (mut calls, mut batches) = (Vec::new(), Vec::new());
        for (shard, batch) in by_shard {
            for step in steps(batch, most) {
                calls.push(self.receive_call(shard, first, &step, moment));
                batches.push(step);
            }
        }
        let answers = if is_one {
            // Each draws its numbers: in the order of the batch, and none behind one that failed.
            let mut answers = Vec::with_capacity(calls.len());
            for call in calls {
                answers.push(self.run_confirmed(operation, call).await?);
            }
            answers
        } else {
            self.run_all_confirmed(operation, calls).await?
        };
        let mut all = Vec::new();
        for (batch, answer) in batches.into_iter().zip(answers) {
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
                message_args(&mut call, one);
                call.arg(u8::from(matches!(one.place_in, Place::Noted(_))));
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

    pub(crate) async fn begin_one(&self, message: &Message, terms: &LeaseTerms) -> Result<Begun> {
        const OPERATION: &str = "begin";
        for _ in 0..ROUNDS {
            let (seq, places) = self.numbers_and_places(OPERATION, 1, &[message]).await?;
            let mut one = Open {
                place: 0,
                message,
                place_in: places.first().copied().unwrap_or(Place::Home(0)),
            };
            let mut said = self.begin_in(seq, &one, terms).await?;
            if let BeginSaid::Elsewhere(shard) = said {
                one.place_in = Place::Noted(shard);
                said = self.begin_in(seq, &one, terms).await?;
            }
            // One that was at home a moment ago may have been purged: the next round tells.
            if let BeginSaid::Begun(begun) = said {
                return Ok(begun);
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            OPERATION,
            "copies of the message raced with its purges for its place",
        ))
    }

    async fn begin_in(&self, seq: u64, one: &Open<'_>, terms: &LeaseTerms) -> Result<BeginSaid> {
        const OPERATION: &str = "begin";
        let (shard, message) = (one.place_in.shard(), one.message);
        let mut call = self.inner.caller.call(&BEGIN, shard, [message.handler()]);
        call.arg(seq);
        message_args(&mut call, one);
        call.arg(u8::from(matches!(one.place_in, Place::Noted(_))))
            .arg(u8::from(!matches!(one.place_in, Place::Known(_))))
            .arg(duration_micros(terms.length()))
            .arg(terms.worker().as_str());
        let answer = self.run_confirmed(OPERATION, call).await?;
        self.begun(shard, message, answer)
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
            "absent" => return Ok(Ok(BeginSaid::Absent)),
            "elsewhere" => return Ok(Ok(BeginSaid::Elsewhere(answer.small()?))),
            "corrupt" => return Ok(Err(corrupt("its state or body cannot be read".into()))),
            _ => return Err(Unexpected),
        };
        Ok(Ok(BeginSaid::Begun(begun)))
    }
}

fn message_args(call: &mut Call, one: &Open<'_>) {
    let message = one.message;
    call.arg(field(message.key()))
        .arg(due(message.due()))
        .arg(message.ordering_key().map_or("", AsRef::as_ref))
        .arg(rows::body(message));
}

enum BeginSaid {
    Begun(Begun),
    Absent,
    Elsewhere(u16),
}

fn decide(receipts: &mut [Option<Receipt>], place: usize, receipt: Receipt) {
    if let Some(undecided) = receipts.get_mut(place) {
        *undecided = Some(receipt);
    }
}

fn lossy(bytes: Bytes) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
