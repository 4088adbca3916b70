//! Receiving: storing messages in their shards, neighbours of a batch as runs.

use std::collections::{BTreeMap, HashMap, HashSet};

use inbox_api::{Due, Message, MessageId, Receipt, Result, check_size, duration_micros, to_micros};
use redis::Value;

use crate::{
    clocks::Moment,
    connection::Connection,
    cross_shard::{Destination, draw_and_locate},
    keys::field,
    operate::records,
    reply::{self, Reply, Taker, Unexpected},
    rows,
    scripts::{Call, RECEIVE},
};

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

pub(crate) fn due_argument(due: Due) -> String {
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
/// belong to one handler, and that nothing else of the shard is between. Always at least 1; a single one
/// does not become a run.
fn part_length(batch: &[Open<'_>], place_of: impl Fn(usize, &Open<'_>) -> usize) -> usize {
    let plain = |one: &Open<'_>| !one.destination.is_noted() && may_run(one.message);
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
                && one.rank == first.rank + n
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

fn add_part(call: &mut Call, start: usize, part: &[Open<'_>], distances: &[u16]) {
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

/// What a shard answered for one message.
enum Answer {
    Accepted,
    Duplicate {
        differs: bool,
    },
    /// It is in this shard, or will be.
    Elsewhere(u16),
}

fn read_answer(value: Value) -> Reply<Answer> {
    Ok(match value {
        Value::Int(0) => Answer::Duplicate { differs: false },
        Value::Int(1) => Answer::Accepted,
        Value::Int(2) => Answer::Duplicate { differs: true },
        other => Answer::Elsewhere(Taker::of(other)?.small()?),
    })
}

/// A message of the batch that is not decided yet.
struct Open<'a> {
    place: usize,
    /// Its place among those that its shard gets with it. Numbers of two runs must not interleave, so what
    /// another step stores in between ends a run.
    rank: usize,
    message: &'a Message,
    destination: Destination,
}

pub(crate) async fn receive(connection: &Connection, messages: &[Message]) -> Result<Vec<Receipt>> {
    connection.check_open()?;
    let limit = connection.options.payload_limit;
    let mut receipts: Vec<Option<Receipt>> = Vec::with_capacity(messages.len());
    let (mut open, mut copies, mut firsts) = (Vec::new(), Vec::new(), HashMap::new());
    for (place, message) in messages.iter().enumerate() {
        if let Err(invalid) = check_size("payload", message.payload().len(), limit) {
            receipts.push(Some(Receipt::Refused(invalid)));
        } else if let Some(first) = firsts.get(message.key()) {
            // The first copy will be stored, if it is not yet.
            copies.push((*first, place, message));
            receipts.push(None);
        } else {
            firsts.insert(message.key(), place);
            open.push(Open {
                place,
                rank: 0,
                message,
                destination: Destination::Home(0),
            });
            receipts.push(None);
        }
    }
    if !open.is_empty() {
        receive_open(connection, open, &mut receipts).await?;
    }
    for (first, place, message) in copies {
        let same_as_first = messages
            .get(first)
            .is_some_and(|first| first.fingerprint() == message.fingerprint());
        let differs = match receipts.get(first) {
            // Which of the copies is like the stored message, if any is, only that message tells.
            Some(Some(Receipt::Duplicate { differs: true })) if !same_as_first => {
                let stored = records::get(connection, message.key()).await?;
                stored.is_some_and(|stored| stored.fingerprint != message.fingerprint())
            }
            Some(Some(Receipt::Duplicate { differs: true })) => true,
            _ => !same_as_first,
        };
        decide(&mut receipts, place, Receipt::Duplicate { differs });
    }
    // Every message was refused or decided.
    let same = Receipt::Duplicate { differs: false };
    Ok(receipts
        .into_iter()
        .map(|receipt| receipt.unwrap_or_else(|| same.clone()))
        .collect())
}

async fn receive_open(
    connection: &Connection,
    mut open: Vec<Open<'_>>,
    receipts: &mut [Option<Receipt>],
) -> Result<()> {
    let count = open.last().map_or(0, |one| one.place + 1);
    let messages: Vec<&Message> = open.iter().map(|one| one.message).collect();
    let (first, destinations) = draw_and_locate(connection, count, &messages).await?;
    for (one, destination) in open.iter_mut().zip(destinations) {
        one.destination = destination;
        if let Destination::Known(_, differs) = destination {
            decide(receipts, one.place, Receipt::Duplicate { differs });
        }
    }
    open.retain(|one| !matches!(one.destination, Destination::Known(..)));
    let moment = connection.clocks().moment();
    while !open.is_empty() {
        let mut again = Vec::new();
        for (mut one, answer) in store_at(connection, first, open, moment).await? {
            match answer {
                Answer::Accepted => decide(receipts, one.place, Receipt::Accepted),
                Answer::Duplicate { differs } => {
                    decide(receipts, one.place, Receipt::Duplicate { differs });
                }
                // From there it is not sent on.
                Answer::Elsewhere(shard) => {
                    one.destination = Destination::Noted(shard);
                    again.push(one);
                }
            }
        }
        open = again;
    }
    Ok(())
}

async fn store_at<'a>(
    connection: &Connection,
    first: u64,
    open: Vec<Open<'a>>,
    moment: Moment,
) -> Result<Vec<(Open<'a>, Answer)>> {
    let mut by_shard: BTreeMap<u16, Vec<Open<'a>>> = BTreeMap::new();
    for mut one in open {
        let batch = by_shard.entry(one.destination.shard()).or_default();
        one.rank = batch.len();
        batch.push(one);
    }
    let is_one = connection.layout().shards() == 1;
    let most = if is_one {
        &OF_ONE_SHARD
    } else {
        &OF_SEVERAL_SHARDS
    };
    let (mut calls, mut batches) = (Vec::new(), Vec::new());
    for (shard, batch) in by_shard {
        for step in steps(batch, most) {
            calls.push(receive_call(connection, shard, first, &step, moment));
            batches.push(step);
        }
    }
    let answers = if is_one {
        // Each draws its numbers: in the order of the batch, and none behind one that failed.
        let mut answers = Vec::with_capacity(calls.len());
        for call in calls {
            answers.push(connection.run_confirmed(call).await?);
        }
        answers
    } else {
        connection.run_all_confirmed(calls).await?
    };
    let mut all = Vec::new();
    for (batch, answer) in batches.into_iter().zip(answers) {
        let answers = reply::list(answer)?;
        if answers.len() != batch.len() {
            return Err(Unexpected.into());
        }
        for (one, answer) in batch.into_iter().zip(answers) {
            all.push((one, read_answer(answer)?));
        }
    }
    all.sort_by_key(|(one, _)| one.place);
    Ok(all)
}

fn receive_call(
    connection: &Connection,
    shard: u16,
    first: u64,
    batch: &[Open<'_>],
    moment: Moment,
) -> Call {
    let handlers: HashSet<_> = batch.iter().map(|one| one.message.handler()).collect();
    let mut call = connection.call_at(&RECEIVE, shard, handlers, moment);
    call.arg(first).arg(batch.len());
    let mut rest = batch;
    let mut number = 0;
    while let Some(one) = rest.first() {
        // With one shard the script draws the numbers itself.
        let place_of = |n: usize, one: &Open<'_>| if first == 0 { number + n } else { one.place };
        let length = part_length(rest, place_of);
        let (part, behind) = rest.split_at(length);
        if let [one] = part {
            call.arg("one").arg(place_of(0, one));
            add_message(&mut call, one.message);
            call.arg(u8::from(one.destination.is_noted()));
        } else {
            let start = place_of(0, one);
            let distances: Vec<u16> = part
                .iter()
                .enumerate()
                .map(|(n, one)| u16::try_from(place_of(n, one) - start).unwrap_or(u16::MAX))
                .collect();
            add_part(&mut call, start, part, &distances);
        }
        rest = behind;
        number += length;
    }
    call
}

/// What scripts take of a message that is stored by itself.
pub(crate) fn add_message(call: &mut Call, message: &Message) {
    call.arg(field(message.key()))
        .arg(due_argument(message.due()))
        .arg(message.ordering_key().map_or("", AsRef::as_ref))
        .arg(rows::body(message));
}

fn decide(receipts: &mut [Option<Receipt>], place: usize, receipt: Receipt) {
    if let Some(undecided) = receipts.get_mut(place) {
        *undecided = Some(receipt);
    }
}
