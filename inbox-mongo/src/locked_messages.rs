//! Messages that an open transaction holds: they cost other messages nothing.
//!
//! The server lets a write wait for a transaction that has changed the same document, for as long
//! as the transaction is open. One such message would keep a whole batch waiting, and leases would
//! begin long before they are handed out. So changes of many messages are given a short time. When
//! it is over, either something is held or the server is slow, and no time tells which. That is found
//! out by a small change in a transaction, which is aborted: there, a write does not wait but
//! conflicts at once. What is free is changed then, in more time. The transactions are small: a
//! server with a small cache comes to a stop in one that changes a lot of it, be it aborted.

use std::time::Duration;

use inbox_api::Result;
use mongodb::bson::{Document, doc};
use tokio::time::sleep;

use crate::{
    connection::Connection,
    patience::longer,
    rows::{id_of, number, those},
};

/// So many bytes, and so many messages, are looked at in one transaction at most.
const LARGEST: i64 = 1 << 20;
const MOST_AT_ONCE: usize = 1000;
/// How often, and after how many milliseconds at most, a message that was held is looked at again.
const TRIES: usize = 3;
const PASSING: u64 = 20;
/// So many messages that are held are found at a time, where the rest can wait.
pub(crate) const MOST: usize = 4;

/// Changes the messages `ids` by what `statement` makes of some of them, which may be repeated, and
/// leaves out those that an open transaction holds. Answers how many it met, unless some may have
/// been held.
pub(crate) async fn update_others(
    connection: &mut Connection<'_>,
    ids: &[String],
    statement: impl Fn(&[String]) -> Document + Sync,
) -> Result<Option<u64>> {
    let patience = connection.database.pace.patience(ids.len());
    let whole = vec![statement(ids)];
    if let Some(matched) = connection.update_unless_held(whole, patience).await? {
        return Ok(Some(matched));
    }
    let held = update_parts(connection, ids, MOST, statement).await?;
    connection.database.left_out.add(held);
    Ok(None)
}

/// The same, where the time for the whole is over. Answers what is held, of which it looks for
/// `most`: the rest of `ids` is not tried then.
pub(crate) async fn update_parts(
    connection: &mut Connection<'_>,
    ids: &[String],
    most: usize,
    statement: impl Fn(&[String]) -> Document + Sync,
) -> Result<Vec<String>> {
    let mut held = Vec::new();
    let mut free = ids.to_vec();
    let mut patience = connection.database.pace.patience(ids.len());
    loop {
        let found = find(connection, &free, most).await?;
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
        if connection
            .update_unless_held(rest, patience)
            .await?
            .is_some()
        {
            break;
        }
        // Slower still, or taken hold of since.
    }
    // What was interrupted has waited for no majority.
    connection.confirm().await?;
    Ok(held)
}

/// What was found out about messages.
pub(crate) struct Found {
    pub(crate) free: Vec<String>,
    pub(crate) held: Vec<String>,
}

/// Finds out which messages an open transaction holds, by halves, until `most` are found. It waits
/// for none of them.
pub(crate) async fn find(
    connection: &mut Connection<'_>,
    ids: &[String],
    most: usize,
) -> Result<Found> {
    let (mut free, mut held) = (Vec::new(), Vec::new());
    let sized = sizes(connection, ids).await?;
    let mut parts = small_parts(&sized);
    parts.reverse();
    while let Some(part) = parts.pop() {
        if connection.is_free(part).await? {
            free.extend_from_slice(part);
        } else if let [only] = part {
            if is_passing(connection, only).await? {
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
        connection.database.pace.was_slow();
    }
    Ok(Found { free, held })
}

/// The messages with the bytes that they take.
async fn sizes(connection: &mut Connection<'_>, ids: &[String]) -> Result<(Vec<String>, Vec<i64>)> {
    let found = connection
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
async fn is_passing(connection: &mut Connection<'_>, id: &String) -> Result<bool> {
    for _ in 0..TRIES {
        sleep(Duration::from_millis(fastrand::u64(1..=PASSING))).await;
        if connection.is_free(std::slice::from_ref(id)).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Changes each of these messages that is not held, without waiting for those that are, which it
/// answers.
pub(crate) async fn update_each(
    connection: &mut Connection<'_>,
    ids: &[String],
    statement: impl Fn(&[String]) -> Document + Sync,
) -> Result<Vec<String>> {
    let mut held = Vec::new();
    for id in ids {
        let only = vec![statement(std::slice::from_ref(id))];
        if connection.update_at_once(only).await?.is_none() {
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
}
