//! Messages that an open transaction holds: they cost other messages nothing.
//!
//! The server lets a write wait for a transaction that has changed the same document, for as long
//! as the transaction is open. One such message would keep a whole batch waiting, and leases would
//! begin long before they are handed out. So changes of many messages are given a short time. When
//! it is over, either something is held or the server is slow, and no time tells which. That is found
//! out by a small change in a transaction, which is aborted: there, a write does not wait but
//! conflicts at once. What is free is changed then, in more time. The transactions are small: a
//! server with a small cache comes to a stop in one that changes a lot of it, be it aborted.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_api::Result;
use mongodb::bson::{Document, doc};
use tokio::time::sleep;

use crate::{
    database::{On, number},
    rows::{id_of, those},
};

/// How long a change of a message waits for a transaction that holds it.
const PATIENCE: Duration = Duration::from_millis(250);
/// What the change of each further message of a batch is given.
const EACH: Duration = Duration::from_millis(1);
/// For how long messages are left out that were held.
pub(crate) const REST: Duration = Duration::from_secs(2);
/// So often [`GROWTH`] times more is given to a slow server.
const SLOWEST: u32 = 2;
/// How much longer the next try may take, and the longest one.
const GROWTH: u32 = 4;
const LONGEST: Duration = Duration::from_secs(60);
/// So many bytes, and so many messages, are looked at in one transaction at most.
const LARGEST: i64 = 1 << 20;
const MOST_AT_ONCE: usize = 1000;
/// How often, and after how many milliseconds at most, a message that was held is looked at again.
const TRIES: usize = 3;
const PASSING: u64 = 20;
/// So many messages that are held are found at a time, where the rest can wait.
pub(crate) const MOST: usize = 4;

/// How slow the server is: what it needed more time for than usual lately, though nothing was held.
/// Without it, a server under load would be asked ever more.
#[derive(Debug, Default)]
pub(crate) struct Pace(AtomicU32);

impl Pace {
    /// What a change of `count` messages is given before it is looked whether something is held.
    pub(crate) fn patience(&self, count: usize) -> Duration {
        let usual = PATIENCE + EACH * u32::try_from(count).unwrap_or(u32::MAX);
        usual * GROWTH.pow(self.0.load(Ordering::Relaxed).min(SLOWEST))
    }

    /// A change came to its end in `took` of the `patience` that it was given.
    pub(crate) fn was_done(&self, took: Duration, patience: Duration) {
        if took < patience / (2 * GROWTH) {
            self.step(|slow| slow.saturating_sub(1));
        }
    }

    /// The time was over although nothing is held.
    fn was_slow(&self) {
        self.step(|slow| (slow + 1).min(SLOWEST));
    }

    fn step(&self, step: impl Fn(u32) -> u32) {
        let slow = self.0.load(Ordering::Relaxed);
        let next = step(slow);
        if next != slow {
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

/// What the next try is given where nothing is held.
pub(crate) fn longer(patience: Duration) -> Option<Duration> {
    let longer = patience * GROWTH;
    (longer <= LONGEST).then_some(longer)
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// Messages that were held a short while ago, by identifier, until they are tried again.
#[derive(Debug, Default)]
pub(crate) struct LeftOut(Mutex<HashMap<String, Instant>>);

impl LeftOut {
    /// Leaves these out for a while.
    pub(crate) fn add(&self, ids: impl IntoIterator<Item = String>) {
        let until = Instant::now() + REST;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend(ids.into_iter().map(|id| (id, until)));
    }

    /// Those that are to be left out now.
    pub(crate) fn ids(&self) -> Vec<String> {
        let now = Instant::now();
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, until| *until > now);
        held.keys().cloned().collect()
    }
}

/// Changes the messages `ids` by what `statement` makes of some of them, which may be repeated, and
/// leaves out those that an open transaction holds. Answers how many it met, unless some may have
/// been held.
pub(crate) async fn update_others(
    on: &mut On<'_>,
    ids: &[String],
    statement: impl Fn(&[String]) -> Document + Sync,
) -> Result<Option<u64>> {
    let patience = on.database.pace.patience(ids.len());
    let whole = vec![statement(ids)];
    if let Some(matched) = on.update_unless_held(whole, patience).await? {
        return Ok(Some(matched));
    }
    let held = update_parts(on, ids, MOST, statement).await?;
    on.database.left_out.add(held);
    Ok(None)
}

/// The same, where the time for the whole is over. Answers what is held, of which it looks for
/// `most`: the rest of `ids` is not tried then.
pub(crate) async fn update_parts(
    on: &mut On<'_>,
    ids: &[String],
    most: usize,
    statement: impl Fn(&[String]) -> Document + Sync,
) -> Result<Vec<String>> {
    let mut held = Vec::new();
    let mut free = ids.to_vec();
    let mut patience = on.database.pace.patience(ids.len());
    loop {
        let found = find(on, &free, most).await?;
        held.extend(found.held);
        free = found.free;
        if free.is_empty() {
            break;
        }
        let Some(more) = longer(patience) else {
            held.append(&mut free);
            break;
        };
        patience = more;
        let rest = vec![statement(&free)];
        if on.update_unless_held(rest, patience).await?.is_some() {
            break;
        }
        // Slower still, or taken hold of since.
    }
    // What was interrupted has waited for no majority.
    on.confirm().await?;
    Ok(held)
}

/// What was found out about messages.
pub(crate) struct Found {
    pub(crate) free: Vec<String>,
    pub(crate) held: Vec<String>,
}

/// Finds out which messages an open transaction holds, by halves, until `most` are found. It waits
/// for none of them.
pub(crate) async fn find(on: &mut On<'_>, ids: &[String], most: usize) -> Result<Found> {
    let (mut free, mut held) = (Vec::new(), Vec::new());
    let sized = sizes(on, ids).await?;
    let mut parts = small_parts(&sized);
    parts.reverse();
    while let Some(part) = parts.pop() {
        if on.is_free(part).await? {
            free.extend_from_slice(part);
        } else if let [only] = part {
            if is_passing(on, only).await? {
                free.push(only.clone());
            } else {
                held.push(only.clone());
            }
        } else {
            let (first, second) = part.split_at(part.len() / 2);
            parts.extend([second, first]);
        }
        if held.len() >= most {
            break;
        }
    }
    if held.is_empty() {
        on.database.pace.was_slow();
    }
    Ok(Found { free, held })
}

/// The messages with the bytes that they take.
async fn sizes(on: &mut On<'_>, ids: &[String]) -> Result<(Vec<String>, Vec<i64>)> {
    let found = on
        .look(vec![
            doc! { "$match": those(ids.iter().map(String::as_str)) },
            doc! { "$project": { "bytes": { "$bsonSize": "$$ROOT" } } },
        ])
        .await?;
    let sized = found.iter().filter_map(|found| {
        Some((
            id_of(found)?.to_owned(),
            number(found, "bytes").unwrap_or(0),
        ))
    });
    Ok(sized.unzip())
}

/// Parts that are small enough for a transaction, or one message.
fn small_parts((ids, sizes): &(Vec<String>, Vec<i64>)) -> Vec<&[String]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (place, size) in sizes.iter().enumerate() {
        if place > start && (bytes + size > LARGEST || place - start == MOST_AT_ONCE) {
            parts.extend(ids.get(start..place));
            (start, bytes) = (place, 0);
        }
        bytes += size;
    }
    parts.extend(ids.get(start..).filter(|rest| !rest.is_empty()));
    parts
}

/// Whether what holds a message is gone soon, as the change of another process is.
async fn is_passing(on: &mut On<'_>, id: &String) -> Result<bool> {
    for _ in 0..TRIES {
        sleep(Duration::from_millis(fastrand::u64(1..=PASSING))).await;
        if on.is_free(std::slice::from_ref(id)).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Changes each of these messages that is not held, without waiting for those that are, which it
/// answers.
pub(crate) async fn update_each(
    on: &mut On<'_>,
    ids: &[String],
    statement: impl Fn(&[String]) -> Document + Sync,
) -> Result<Vec<String>> {
    let mut held = Vec::new();
    for id in ids {
        let only = vec![statement(std::slice::from_ref(id))];
        if on.update_at_once(only).await?.is_none() {
            held.push(id.clone());
        }
    }
    Ok(held)
}

/// As many parts as each has members.
pub(crate) fn parts(ids: &[String]) -> impl Iterator<Item = &[String]> {
    ids.chunks(ids.len().isqrt().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_left_out_for_a_while() {
        let held = LeftOut::default();
        held.add(["a".to_owned()]);
        assert_eq!(held.ids(), ["a"]);
        let past = Instant::now();
        held.0.lock().unwrap().insert("a".into(), past);
        assert_eq!(held.ids(), Vec::<String>::new());
    }

    #[test]
    fn transactions_are_small() {
        let parts = |sizes: &[i64]| {
            let ids: Vec<String> = (0..sizes.len()).map(|n| n.to_string()).collect();
            let sized = (ids.clone(), sizes.to_vec());
            let parts = small_parts(&sized);
            assert_eq!(parts.concat(), ids);
            parts.iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(parts(&[]), Vec::<usize>::new());
        assert_eq!(parts(&[10; 2500]), [1000, 1000, 500]);
        assert_eq!(parts(&[2 * LARGEST, 5, 6, LARGEST, 7]), [1, 2, 1, 1]);
    }

    #[test]
    fn a_slow_server_is_given_more_time_until_it_is_fast_again() {
        let pace = Pace::default();
        let usual = pace.patience(100);
        assert_eq!(usual, PATIENCE + 100 * EACH);
        for _ in 0..5 {
            pace.was_slow();
        }
        let most = pace.patience(100);
        assert_eq!(most, usual * GROWTH * GROWTH);
        pace.was_done(most / 2, most);
        assert_eq!(pace.patience(100), most);
        for _ in 0..2 {
            pace.was_done(most / 100, most);
        }
        assert_eq!(pace.patience(100), usual);
    }
}
