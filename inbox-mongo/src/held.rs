//! Messages that an open transaction holds: they cost other messages nothing.
//!
//! The server lets a write wait for a transaction that has changed the same document, for as long
//! as the transaction is open. One such message would keep a whole batch waiting, and leases would
//! begin long before they are handed out. So changes of many messages are given a short time; when
//! it is over, what is held is found by trying smaller parts, and left out for a while.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use inbox_api::Result;
use mongodb::bson::Document;

use crate::database::On;

/// How long a change of a message waits for a transaction that holds it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);
/// What the change of each further message of a batch is given.
const EACH: Duration = Duration::from_micros(500);
/// For how long messages are left out that were held.
pub(crate) const REST: Duration = Duration::from_secs(2);
/// So many messages that are held are found at a time.
const MOST: usize = 4;

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
/// leaves out those that an open transaction holds. Answers how many it met, unless some were held.
pub(crate) async fn update_others(
    on: &mut On<'_>,
    ids: &[String],
    statement: impl Fn(&[String]) -> Document + Send,
) -> Result<Option<u64>> {
    let mut changed = 0;
    let mut interrupted = false;
    let mut found = 0;
    // Whole; then in parts; then one by one what is in a part with one that is held.
    let part = ids.len().isqrt().max(1);
    let mut left = vec![ids];
    while let Some(some) = left.pop() {
        let several = u32::try_from(some.len()).unwrap_or(u32::MAX);
        let patience = PATIENCE + EACH * several;
        if let Some(matched) = on
            .update_unless_held(vec![statement(some)], patience)
            .await?
        {
            changed += matched;
            continue;
        }
        interrupted = true;
        if some.len() > 1 {
            let size = if some.len() > part { part } else { 1 };
            left.extend(some.chunks(size).rev());
        } else {
            on.database.left_out.add(some.iter().cloned());
            found += 1;
            if found == MOST {
                // The rest is for the next time.
                break;
            }
        }
    }
    if interrupted {
        // What was interrupted has waited for no majority.
        on.confirm().await?;
        return Ok(None);
    }
    Ok(Some(changed))
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
}
