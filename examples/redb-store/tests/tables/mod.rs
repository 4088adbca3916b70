//! Whether the tables agree: all of them, worked out from the states alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use inbox_api::{Key, OrderingKey, State};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::Deserialize;

// As anybody else would have to declare them who opens the file.
const KEY: TableDefinition<'_, (&str, &str), i64> = TableDefinition::new("key");
const MESSAGE: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("message");
const STATE: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("state");
const PAYLOAD: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("payload");
const RESULT: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("result");
const READY: TableDefinition<'_, (&str, i64, i64), ()> = TableDefinition::new("ready");
const LEASE: TableDefinition<'_, (&str, i64, i64), ()> = TableDefinition::new("lease");
const LINE: TableDefinition<'_, (&str, &str, u8, i64), Option<i64>> = TableDefinition::new("line");
const FINISHED: TableDefinition<'_, (&str, u8, bool, i64, i64), ()> =
    TableDefinition::new("finished");
const COUNT: TableDefinition<'_, (&str, u8), u64> = TableDefinition::new("count");
const BLOCKING: u8 = u8::MAX;

type Numbered = TableDefinition<'static, i64, &'static [u8]>;
type Timed = TableDefinition<'static, (&'static str, i64, i64), ()>;

#[derive(Deserialize)]
struct Row {
    seq: i64,
    key: Key,
    ordering_key: Option<OrderingKey>,
    payload_bytes: Option<u64>,
    has_result: bool,
    due_at: i64,
    stage: Stage,
    started: u32,
    finished: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    Pending,
    Leased { until: i64 },
    Processed { at: i64 },
    Dead { at: i64, blocks: bool },
    Discarded { at: i64 },
}

type Moments = BTreeSet<(String, i64, i64)>;

#[derive(Default)]
struct Expected {
    keys: BTreeSet<(String, String, i64)>,
    states: BTreeSet<i64>,
    payloads: BTreeSet<i64>,
    ready: Moments,
    leases: Moments,
    lines: BTreeMap<(String, String, u8, i64), Option<i64>>,
    results: BTreeSet<i64>,
    finished: BTreeSet<(String, u8, bool, i64, i64)>,
    counts: BTreeMap<(String, u8), u64>,
}

impl Expected {
    fn add(&mut self, row: &Row) {
        let handler = row.key.handler.to_string();
        let id = row.key.id.to_string();
        self.keys.insert((handler.clone(), id, row.seq));
        self.states.insert(row.seq);
        if row.payload_bytes.is_some() {
            self.payloads.insert(row.seq);
        }
        if row.has_result {
            self.results.insert(row.seq);
        }
        let (state, end, blocks) = match row.stage {
            Stage::Pending => (State::Pending, None, false),
            Stage::Leased { .. } => (State::Leased, None, false),
            Stage::Processed { at } => (State::Processed, Some(at), false),
            Stage::Dead { at, blocks } => (State::Dead, Some(at), blocks),
            Stage::Discarded { at } => (State::Discarded, Some(at), false),
        };
        *self
            .counts
            .entry((handler.clone(), state.code()))
            .or_default() += 1;
        if blocks {
            *self.counts.entry((handler.clone(), BLOCKING)).or_default() += 1;
        }
        if let Some(at) = end {
            let has_content = row.payload_bytes.is_some() || row.has_result;
            let end = (handler.clone(), state.code(), has_content, at, row.seq);
            self.finished.insert(end);
        }
        if let Stage::Leased { until } = row.stage {
            self.leases.insert((handler.clone(), until, row.seq));
        }
        let due = (state == State::Pending).then_some(row.due_at);
        match (&row.ordering_key, due) {
            (Some(key), _) if end.is_none() || blocks => {
                let place = u8::from(state != State::Leased);
                let line = (handler, key.to_string(), place, row.seq);
                self.lines.insert(line, due);
            }
            (None, Some(due)) => {
                self.ready.insert((handler, due, row.seq));
            }
            _ => {}
        }
    }

    /// The first of each ordering key can be claimed if it is pending.
    fn add_first_of_lines(&mut self) {
        let mut last = None;
        for ((handler, key, _, seq), due) in &self.lines {
            if last != Some((handler, key)) {
                last = Some((handler, key));
                if let Some(due) = due {
                    self.ready.insert((handler.clone(), *due, *seq));
                }
            }
        }
    }
}

fn compare<T: Ord + Debug>(table: &str, is: &BTreeSet<T>, should: &BTreeSet<T>) -> Vec<String> {
    let too_much = is.difference(should).map(|row| ("too much", row));
    let too_little = should.difference(is).map(|row| ("too little", row));
    too_much
        .chain(too_little)
        .map(|(what, row)| format!("{what} in {table}: {row:?}"))
        .collect()
}

fn rows<K: Ord, V: Ord>(map: &BTreeMap<K, V>) -> BTreeSet<(&K, &V)> {
    map.iter().collect()
}

/// What does not agree.
pub(crate) fn check(database: &Database) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let transaction = database.begin_read()?;
    let mut broken = Vec::new();
    let mut expected = Expected::default();
    for entry in transaction.open_table(STATE)?.iter()? {
        let (seq, json) = entry?;
        let row: Row = serde_json::from_slice(json.value())?;
        if row.seq != seq.value() {
            broken.push(format!("a state of {} under {}", row.seq, seq.value()));
        }
        if row.finished > row.started {
            broken.push(format!("more attempts finished than started: {}", row.seq));
        }
        expected.add(&row);
    }
    expected.add_first_of_lines();

    let mut keys = BTreeSet::new();
    for entry in transaction.open_table(KEY)?.iter()? {
        let (key, seq) = entry?;
        let (handler, id) = key.value();
        keys.insert((handler.to_owned(), id.to_owned(), seq.value()));
    }
    broken.extend(compare("key", &keys, &expected.keys));
    let numbers = |table: Numbered| -> Result<BTreeSet<i64>, redb::Error> {
        let table = transaction.open_table(table)?;
        let mut numbers = BTreeSet::new();
        for entry in table.iter()? {
            numbers.insert(entry?.0.value());
        }
        Ok(numbers)
    };
    broken.extend(compare("message", &numbers(MESSAGE)?, &expected.states));
    broken.extend(compare("payload", &numbers(PAYLOAD)?, &expected.payloads));
    broken.extend(compare("result", &numbers(RESULT)?, &expected.results));
    let processed = expected.finished.iter();
    let processed = processed.filter(|(_, state, ..)| *state == State::Processed.code());
    let processed: BTreeSet<i64> = processed.map(|(.., seq)| *seq).collect();
    for seq in expected.results.difference(&processed) {
        broken.push(format!("a result of what is not processed: {seq}"));
    }
    let moments = |table: Timed| -> Result<Moments, redb::Error> {
        let table = transaction.open_table(table)?;
        let mut moments = BTreeSet::new();
        for entry in table.iter()? {
            let entry = entry?;
            let (handler, at, seq) = entry.0.value();
            moments.insert((handler.to_owned(), at, seq));
        }
        Ok(moments)
    };
    broken.extend(compare("ready", &moments(READY)?, &expected.ready));
    broken.extend(compare("lease", &moments(LEASE)?, &expected.leases));
    let mut lines = BTreeMap::new();
    for entry in transaction.open_table(LINE)?.iter()? {
        let (line, due) = entry?;
        let (handler, key, place, seq) = line.value();
        lines.insert(
            (handler.to_owned(), key.to_owned(), place, seq),
            due.value(),
        );
    }
    broken.extend(compare("line", &rows(&lines), &rows(&expected.lines)));
    let mut finished = BTreeSet::new();
    for entry in transaction.open_table(FINISHED)?.iter()? {
        let entry = entry?;
        let (handler, state, has_content, at, seq) = entry.0.value();
        finished.insert((handler.to_owned(), state, has_content, at, seq));
    }
    broken.extend(compare("finished", &finished, &expected.finished));
    let mut counts = BTreeMap::new();
    for entry in transaction.open_table(COUNT)?.iter()? {
        let (field, n) = entry?;
        let (handler, state) = field.value();
        if n.value() > 0 {
            counts.insert((handler.to_owned(), state), n.value());
        }
    }
    broken.extend(compare("count", &rows(&counts), &rows(&expected.counts)));
    Ok(broken)
}
