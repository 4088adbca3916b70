//! Messages whose ordering key belongs to another shard than their id: the home shard of the id
//! notes where the first copy went, before it is stored there.
//!
//! Copies with the same ordering key meet in its shard, whatever is noted. The note is for copies
//! with another ordering key, or with none. It may be there without the message, and does no harm.

use std::collections::BTreeMap;

use futures_util::future::{join_all, try_join};
use inbox_api::{Message, Result};
use redis::Value;

use crate::{
    connection::Connection,
    keys::field,
    reply::{self, Unexpected},
    rows,
    scripts::{Call, PURGE_FORGET_SHARDS, RECEIVE_DRAW, RECEIVE_NOTE_SHARDS},
};

/// One script changes at most so many notes.
const STEP: usize = 1000;

/// Where a message is to be looked for and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// In its home shard, unless a note there says otherwise.
    Home(u16),
    /// In this shard, as its home has said.
    Noted(u16),
    /// It is in its home, as an earlier copy without an ordering key; whether its fingerprint differs.
    Known(u16, bool),
}

impl Destination {
    pub(crate) fn shard(self) -> u16 {
        let (Self::Home(shard) | Self::Noted(shard) | Self::Known(shard, _)) = self;
        shard
    }

    /// Whether it is to be stored there whatever the shard itself has noted.
    pub(crate) fn is_noted(self) -> bool {
        matches!(self, Self::Noted(_))
    }
}

/// The first of as many new numbers as the batch has places, so that the messages' numbers are
/// in its order, and where the messages are to be stored. With one shard, the script draws the
/// numbers itself: then the first is 0.
pub(crate) async fn draw_and_locate(
    connection: &Connection,
    count: usize,
    messages: &[&Message],
) -> Result<(u64, Vec<Destination>)> {
    if connection.layout().shards() == 1 {
        return Ok((0, vec![Destination::Home(0); messages.len()]));
    }
    let mut call = connection.call(&RECEIVE_DRAW, 0, []);
    call.arg(count);
    let (drawn, destinations) =
        try_join(connection.run(call), locate(connection, messages)).await?;
    let first = reply::unsigned(&drawn)?;
    Ok((first, destinations))
}

/// Where each message is to be stored. Makes a note of it at home for those that belong
/// elsewhere.
async fn locate(connection: &Connection, messages: &[&Message]) -> Result<Vec<Destination>> {
    let layout = connection.layout();
    let mut places: Vec<Destination> = messages
        .iter()
        .map(|message| Destination::Home(layout.home(message.key())))
        .collect();
    let mut by_home: BTreeMap<u16, Vec<(usize, &Message, u16)>> = BTreeMap::new();
    for (number, message) in messages.iter().enumerate() {
        let (home, target) = (layout.home(message.key()), layout.target(message));
        if home != target {
            let members = by_home.entry(home).or_default();
            members.push((number, message, target));
        }
    }
    let (mut calls, mut steps) = (Vec::new(), Vec::new());
    for (home, members) in &by_home {
        for step in members.chunks(STEP) {
            let mut call = connection.call(&RECEIVE_NOTE_SHARDS, *home, []);
            for (_, message, target) in step {
                call.arg(field(message.key()))
                    .arg(*target)
                    .arg(&message.fingerprint().get().to_be_bytes());
            }
            calls.push(call);
            steps.push((*home, step));
        }
    }
    let answers = connection.run_all_confirmed(calls).await?;
    for ((home, step), answer) in steps.into_iter().zip(answers) {
        let answers = reply::list(answer)?;
        if answers.len() != step.len() {
            return Err(Unexpected.into());
        }
        for ((number, ..), answer) in step.iter().zip(answers) {
            let place = match reply::number(&answer)? {
                -1 => Destination::Known(home, false),
                -3 => Destination::Known(home, true),
                _ => Destination::Noted(reply::small(&answer)?),
            };
            if let Some(unknown) = places.get_mut(*number) {
                *unknown = place;
            }
        }
    }
    Ok(places)
}

/// Removes the notes that say of purged messages that they are in `shard`. One that stays,
/// because this is cut short, takes some memory and does no harm.
pub(crate) async fn forget(connection: &Connection, shard: u16, purged: Vec<Value>) {
    remove_notes(connection, removals(connection, shard, purged)).await;
}

/// The same of several shards, behind the answer of the operation: no settlement waits for homes of other
/// messages, which may not answer.
pub(crate) fn forget_later(
    connection: &Connection,
    purged: impl IntoIterator<Item = (u16, Vec<Value>)>,
) {
    let removals: Vec<Call> = purged
        .into_iter()
        .flat_map(|(shard, purged)| removals(connection, shard, purged))
        .collect();
    if removals.is_empty() {
        return;
    }
    let behind = connection.another();
    tokio::spawn(async move { remove_notes(&behind, removals).await });
}

/// The calls that remove notes, of each home.
fn removals(connection: &Connection, shard: u16, purged: Vec<Value>) -> Vec<Call> {
    let mut by_home: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for field in purged {
        let Ok(Some(field)) = reply::text(&field) else {
            continue;
        };
        if let Ok(key) = rows::key(field)
            && connection.layout().home(&key) != shard
        {
            let home = connection.layout().home(&key);
            by_home.entry(home).or_default().push(field.to_owned());
        }
    }
    let mut calls = Vec::new();
    for (home, fields) in by_home {
        for step in fields.chunks(STEP) {
            let mut call = connection.call(&PURGE_FORGET_SHARDS, home, []);
            call.arg(shard);
            for field in step {
                call.arg(field);
            }
            calls.push(call);
        }
    }
    calls
}

/// All at once; each goes on when another fails.
async fn remove_notes(connection: &Connection, removals: Vec<Call>) {
    let removals = removals.into_iter().map(|call| connection.run(call));
    for removed in join_all(removals).await {
        if let Err(error) = removed {
            tracing::debug!(%error, "notes of where purged messages were are left behind");
        }
    }
}
