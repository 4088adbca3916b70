//! Replays and discards.

use std::collections::BTreeMap;

use inbox_api::{Bytes, Cursor, Filter, Intervention, Key, Progress, Result, Slice, State};
use redis::Value;

use super::{STEP, after, scan::LAST};
use crate::{
    keys::field,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    rows::Row,
    scripts::OPERATE,
    store::RedisStore,
};

/// What can be replayed.
pub(super) const FINAL: [State; 3] = [State::Processed, State::Dead, State::Discarded];
/// What can be discarded.
pub(super) const UNWANTED: [State; 2] = [State::Pending, State::Dead];

/// The states of `filter` in which something can be done; dead when it names none.
pub(super) fn eligible(filter: &Filter, eligible: &[State]) -> Vec<State> {
    if filter.states.is_empty() {
        return vec![State::Dead];
    }
    filter
        .states
        .iter()
        .copied()
        .filter(|state| eligible.contains(state))
        .collect()
}

fn mask(states: &[State]) -> u32 {
    states
        .iter()
        .fold(0, |mask, state| mask | (1 << state.code()))
}

/// What one message's replay or discard came to.
enum Changed {
    Done(Intervention),
    Corrupt,
}

fn changed(value: Value) -> Reply<Changed> {
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

impl RedisStore {
    /// Replays or discards messages of one shard, where their states allow it.
    async fn change(
        &self,
        operation: &'static str,
        shard: u16,
        keys: &[Key],
        states: &[State],
        payload: Option<&Bytes>,
    ) -> Result<Vec<Changed>> {
        let mapped = unexpected(operation);
        let handlers = keys.iter().map(|key| &key.handler);
        let mut call = self.inner.caller.call(&OPERATE, shard, handlers);
        let what = if operation.starts_with("replay") {
            "replay"
        } else {
            "discard"
        };
        call.arg(what)
            .arg(mask(states))
            .arg(u8::from(payload.is_some()))
            .arg(payload.map_or(&[][..], |payload| payload));
        for key in keys {
            call.arg(field(key));
        }
        let answers = reply::list(self.run_confirmed(operation, call).await?).map_err(mapped)?;
        answers
            .into_iter()
            .map(|answer| changed(answer).map_err(mapped))
            .collect()
    }

    pub(super) async fn change_one(
        &self,
        operation: &'static str,
        key: &Key,
        states: &[State],
        payload: Option<&Bytes>,
    ) -> Result<Intervention> {
        let home = self.layout().home(key);
        let at_home = self
            .change_in(operation, home, key, states, payload)
            .await?;
        if at_home != Intervention::NotFound {
            return Ok(at_home);
        }
        let others = self.layout().others(home);
        let looks = others.map(|shard| self.change_in(operation, shard, key, states, payload));
        let found = futures_util::future::try_join_all(looks).await?;
        let found = found.into_iter().find(|one| *one != Intervention::NotFound);
        Ok(found.unwrap_or(Intervention::NotFound))
    }

    async fn change_in(
        &self,
        operation: &'static str,
        shard: u16,
        key: &Key,
        states: &[State],
        payload: Option<&Bytes>,
    ) -> Result<Intervention> {
        let keys = std::slice::from_ref(key);
        let answers = self.change(operation, shard, keys, states, payload).await?;
        match answers.into_iter().next() {
            Some(Changed::Done(intervention)) => Ok(intervention),
            Some(Changed::Corrupt) => {
                let reason = "its state cannot be read".to_owned();
                Err(self.corrupt(operation, shard, &field(key), reason))
            }
            None => Err(unexpected(operation)(Unexpected)),
        }
    }

    pub(super) async fn change_slice(
        &self,
        operation: &'static str,
        filter: &Filter,
        states: &[State],
        slice: &Slice,
    ) -> Result<Progress> {
        let from = after(operation, slice.after.as_ref())?.map_or(0, |seq| seq + 1);
        let limit = slice.limit as usize;
        let mut progress = Progress {
            changed: 0,
            next: None,
        };
        if states.is_empty() || limit == 0 {
            return Ok(progress);
        }
        let (mut from, mut left) = (from, limit);
        while left > 0 {
            let wanted = left.min(STEP);
            let scans = self.scans(operation, filter, states, (from, LAST), false);
            let found = self.scan(scans, wanted).await?;
            let Some(last) = found.last().and_then(|row| i64::try_from(row.seq).ok()) else {
                return Ok(progress);
            };
            let is_last = found.len() < wanted;
            let done = self.change_found(operation, states, found).await?;
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
        }
        Ok(progress)
    }

    /// Answers the numbers of those that were changed.
    async fn change_found(
        &self,
        operation: &'static str,
        states: &[State],
        found: Vec<Row>,
    ) -> Result<Vec<u64>> {
        let mut by_shard: BTreeMap<u16, (Vec<u64>, Vec<Key>)> = BTreeMap::new();
        for row in found {
            let Ok(record) = row.record else { continue };
            // A message without a payload is passed over by a replay; the script sees to it.
            let (numbers, keys) = by_shard.entry(row.shard).or_default();
            numbers.push(row.seq);
            keys.push(record.key);
        }
        let mut done = Vec::new();
        for (shard, (numbers, keys)) in by_shard {
            let answers = self.change(operation, shard, &keys, states, None).await?;
            for (seq, answer) in numbers.into_iter().zip(answers) {
                if matches!(answer, Changed::Done(Intervention::Done)) {
                    done.push(seq);
                }
            }
        }
        Ok(done)
    }
}
