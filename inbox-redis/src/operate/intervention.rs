//! What replays, discards and other changes of single messages have in common: the same steps, with a
//! script of each.

use std::collections::BTreeMap;

use inbox_api::{
    Cursor, Due, Edit, Filter, Headers, History, Intervention, InterventionKind, Key, OperatorName,
    Progress, Result, Slice, State, duration_micros,
};
use redis::Value;

use super::{
    changes::Changes,
    scan::{LAST, STEP, Search, position},
};
use crate::{
    clocks::Moment,
    connection::Connection,
    cross_shard,
    keys::field,
    receive::due_argument,
    reply::{self, Reply, Taker, Unexpected},
    rows::{self, Row},
    scripts::{Call, Script},
};

/// What is done to messages, and in which states.
pub(super) struct Act<'a> {
    pub(super) script: &'static Script,
    pub(super) states: &'a [State],
    pub(super) edit: &'a Edit,
    /// The new due time.
    pub(super) due: Due,
    /// Who signs it as what.
    pub(super) signature: Option<(InterventionKind, &'a OperatorName)>,
}

/// A text that is given or not, as the scripts take it.
fn given(text: Option<&[u8]>) -> Vec<u8> {
    text.map_or_else(Vec::new, |text| [b"1", text].concat())
}

impl Act<'_> {
    fn mask(&self) -> u32 {
        let bits = self.states.iter().map(|state| 1 << state.code());
        bits.fold(0, |mask, bit: u32| mask | bit)
    }
}

/// The states of `filter` in which something can be done; `otherwise` when it names none.
fn select_states(filter: &Filter, possible: &[State], otherwise: &[State]) -> Vec<State> {
    if filter.states.is_empty() {
        return otherwise.to_vec();
    }
    let states = filter.states.iter().copied();
    states.filter(|state| possible.contains(state)).collect()
}

/// What one message's change came to.
enum Changed {
    Done(Intervention),
    Corrupt,
}

fn read_answer(value: Value) -> Reply<Changed> {
    let mut answer = Taker::of(value)?;
    let what = answer.next()?;
    Ok(match reply::text(&what)?.ok_or(Unexpected)? {
        "done" => Changed::Done(Intervention::Done),
        "absent" => Changed::Done(Intervention::NotFound),
        "dropped" => Changed::Done(Intervention::PayloadDropped),
        "state" => {
            let state = State::from_code(answer.number()?).ok_or(Unexpected)?;
            Changed::Done(Intervention::WrongState(state))
        }
        "corrupt" => Changed::Corrupt,
        _ => return Err(Unexpected),
    })
}

/// Changes messages of one shard, where their states allow it, and makes them due as `due` says.
fn change_call<'a>(
    connection: &Connection,
    shard: u16,
    keys: impl Iterator<Item = &'a Key> + Clone,
    act: &Act<'_>,
    due: &str,
    moment: Moment,
) -> Call {
    let handlers = keys.clone().map(|key| &key.handler);
    let mut call = connection.call_at(act.script, shard, handlers, moment);
    let headers = act.edit.headers.as_ref().map(Headers::to_json);
    call.arg(act.mask())
        .arg(given(act.edit.payload.as_deref()))
        .arg(given(headers.as_ref().map(String::as_bytes)))
        .arg(due)
        .arg(act.signature.map_or("", |(kind, _)| kind.as_str()))
        .arg(act.signature.map_or("", |(_, by)| by.as_str()))
        .arg(History::KEPT);
    for key in keys {
        call.arg(field(key));
    }
    call
}

/// What a script answers.
struct Answers {
    /// Of the first messages of the call, or of all.
    changed: Vec<Changed>,
    /// Keys that are gone.
    gone: Vec<Value>,
    /// When that was, by the shard's clock.
    now: i64,
}

fn read_answers(value: Value) -> Reply<Answers> {
    let mut answer = Taker::of(value)?;
    let changed = answer.list()?.into_iter().map(read_answer);
    Ok(Answers {
        changed: changed.collect::<Reply<_>>()?,
        gone: answer.list()?,
        now: answer.number()?,
    })
}

/// For the later scripts of a shard, the same due time as for the first one.
fn due_of_first(due: Due, now: i64) -> String {
    match due {
        Due::After(delay) => format!("@{}", now.saturating_add(duration_micros(delay))),
        Due::Now | Due::At(_) => due_argument(due),
    }
}

/// Looks for the message in its home first, then in all other shards.
pub(super) async fn intervene(
    connection: &Connection,
    key: &Key,
    act: &Act<'_>,
) -> Result<Intervention> {
    let home = connection.layout().home(key);
    let at_home = change_one(connection, home, key, act).await?;
    if at_home != Intervention::NotFound {
        return Ok(at_home);
    }
    let others = connection.layout().others(home);
    let looks = others.map(|shard| change_one(connection, shard, key, act));
    let found = futures_util::future::try_join_all(looks).await?;
    let found = found.into_iter().find(|one| *one != Intervention::NotFound);
    Ok(found.unwrap_or(Intervention::NotFound))
}

async fn change_one(
    connection: &Connection,
    shard: u16,
    key: &Key,
    act: &Act<'_>,
) -> Result<Intervention> {
    let due = due_argument(act.due);
    let key_alone = std::iter::once(key);
    let call = change_call(connection, shard, key_alone, act, &due, Moment::default());
    let answers = read_answers(connection.run_confirmed(call).await?)?;
    cross_shard::forget(connection, shard, answers.gone).await;
    match answers.changed.into_iter().next() {
        Some(Changed::Done(intervention)) => Ok(intervention),
        Some(Changed::Corrupt) => {
            let reason = "its state cannot be read".to_owned();
            let layout = connection.layout();
            Err(rows::corrupt_error(layout, shard, &field(key), reason))
        }
        None => Err(Unexpected.into()),
    }
}

pub(super) async fn intervene_in_slice(
    connection: &Connection,
    filter: &Filter,
    slice: &Slice,
    act: Act<'_>,
    otherwise: &[State],
) -> Result<Progress> {
    connection.check_open()?;
    let states = select_states(filter, act.states, otherwise);
    let act = Act {
        states: &states,
        ..act
    };
    if states.is_empty() {
        return Ok(Progress {
            changed: 0,
            next: None,
        });
    }
    let mut slicing = Slicing {
        changes: Changes::new(connection),
        act: &act,
        moment: connection.clocks().moment(),
        dues: BTreeMap::new(),
    };
    let progress = slicing.change_slice(filter, slice).await;
    slicing.changes.end(progress).await
}

/// What the scripts of one slice share.
struct Slicing<'a> {
    changes: Changes<'a>,
    act: &'a Act<'a>,
    moment: Moment,
    /// By shard the new due time, as its first script has understood it.
    dues: BTreeMap<u16, String>,
}

impl Slicing<'_> {
    async fn change_slice(&mut self, filter: &Filter, slice: &Slice) -> Result<Progress> {
        let connection = self.changes.connection();
        let mut from = position(slice.after.as_ref())?.map_or(0, |seq| seq + 1);
        let mut left = slice.limit as usize;
        let mut progress = Progress {
            changed: 0,
            next: None,
        };
        while left > 0 {
            let wanted = left.min(STEP);
            let range = (from, LAST);
            let search = Search::new(connection, filter, self.act.states, range, false).await?;
            let found = search.find(wanted).await?;
            let Some(last) = found.last().and_then(|row| i64::try_from(row.seq).ok()) else {
                return Ok(progress);
            };
            let is_last = found.len() < wanted;
            let done = self.change_found(found).await?;
            let changed = done.iter().max().copied();
            left = left.saturating_sub(done.len());
            progress.changed += done.len() as u64;
            from = last + 1;
            if left == 0 {
                progress.next =
                    changed.and_then(|seq| Some(Cursor::from(i64::try_from(seq).ok()?)));
            } else if is_last {
                break;
            }
            self.changes.confirm_many().await?;
        }
        Ok(progress)
    }

    /// Answers the numbers of those that were changed.
    async fn change_found(&mut self, found: Vec<Row>) -> Result<Vec<u64>> {
        let mut by_shard: BTreeMap<u16, Vec<(u64, Key)>> = BTreeMap::new();
        for row in found {
            let Ok(record) = row.record else { continue };
            // A message without a payload is passed over by a replay; the script sees to it.
            let messages = by_shard.entry(row.shard).or_default();
            messages.push((row.seq, record.key));
        }
        let mut done = Vec::new();
        for (shard, messages) in by_shard {
            let mut left = &*messages;
            while !left.is_empty() {
                let answers = self.change(shard, left).await?;
                if answers.is_empty() {
                    return Err(Unexpected.into());
                }
                for ((seq, _), answer) in left.iter().zip(&answers) {
                    if matches!(answer, Changed::Done(Intervention::Done)) {
                        done.push(*seq);
                    }
                }
                left = left.get(answers.len()..).unwrap_or_default();
            }
        }
        Ok(done)
    }

    /// What the first of these messages came to, or all: as many as one script has the time for.
    async fn change(&mut self, shard: u16, messages: &[(u64, Key)]) -> Result<Vec<Changed>> {
        let connection = self.changes.connection();
        let keys = messages.iter().map(|(_, key)| key);
        let due = self.dues.get(&shard).cloned();
        let due = due.unwrap_or_else(|| due_argument(self.act.due));
        let call = change_call(connection, shard, keys, self.act, &due, self.moment);
        let answers = read_answers(self.changes.run(call).await?)?;
        let due = due_of_first(self.act.due, answers.now);
        self.dues.entry(shard).or_insert(due);
        self.changes.forget(shard, answers.gone).await;
        Ok(answers.changed)
    }
}
