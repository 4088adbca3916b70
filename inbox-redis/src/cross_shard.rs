//! Messages whose ordering key belongs to another shard than their id: the home shard of the id
//! notes where the first copy went, before it is stored there.
//!
//! Copies with the same ordering key meet in its shard, whatever is noted. The note is for copies
//! with another ordering key, or with none. It may be there without the message, and does no harm.
//!
//! A note goes some time after its message, and meanwhile a new message of the key may need it: one that was sent to
//! the shard of the note. So a removal, once the shard X has forgotten the key, takes three steps:
//!
//! 1. In the home it marks the note, if that says X.
//! 2. In X it asks whether the key is there again. If so, that is the end.
//! 3. In the home it removes the note if that has its mark still.
//!
//! Whatever is stored in X because of the note has read it in the home before, by a script that takes a mark off:
//!
//! - It has read behind 1: the mark is off, or another removal's, and 3 does nothing.
//! - It has read before 1 and stored before 2: the key is there.
//! - It has read before 1 and stores behind 2: its message loses the note. That takes a receive that is on its way
//!   from before 1 until behind 2, and so there is a pause behind 1 where nobody waits. It is a limit
//!   all the same: the store's documentation names it.
//! - It reads behind 3: there is no note, and it makes one, which has no mark.
//! - It makes the note and dies, or its message is lost: the note stays without a message.
//!
//! A removal that ends early leaves the note, perhaps with its mark, which the next removal replaces. Of two removals
//! only the one that has marked last removes, and it has asked X after that.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use futures_util::future::{join_all, try_join};
use inbox_api::{Message, Result};
use redis::Value;
use tokio::time::sleep;

use crate::{
    connection::Connection,
    keys::field,
    reply::{self, Unexpected},
    rows,
    scripts::{Call, PURGE_FORGET_SHARDS, PURGE_LOCATE, RECEIVE_DRAW, RECEIVE_NOTE_SHARDS},
};

/// One script changes at most so many notes.
const STEP: usize = 1000;

/// Longer than a receive takes from its note to its message, as a rule.
const PAUSE: Duration = Duration::from_secs(1);

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
    remove_notes(
        connection,
        by_home(connection, shard, purged),
        Duration::ZERO,
    )
    .await;
}

/// The same of several shards, behind the answer of the operation: no settlement waits for homes of other
/// messages, which may not answer.
pub(crate) fn forget_later(
    connection: &Connection,
    purged: impl IntoIterator<Item = (u16, Vec<Value>)>,
) {
    let forgotten: Vec<Forgotten> = purged
        .into_iter()
        .flat_map(|(shard, purged)| by_home(connection, shard, purged))
        .collect();
    if forgotten.is_empty() {
        return;
    }
    let behind = connection.another();
    tokio::spawn(async move { remove_notes(&behind, forgotten, PAUSE).await });
}

/// Messages of one home that another shard has forgotten.
struct Forgotten {
    shard: u16,
    home: u16,
    fields: Vec<String>,
}

fn by_home(connection: &Connection, shard: u16, purged: Vec<Value>) -> Vec<Forgotten> {
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
    let mut forgotten = Vec::new();
    for (home, fields) in by_home {
        forgotten.extend(fields.chunks(STEP).map(|step| Forgotten {
            shard,
            home,
            fields: step.to_vec(),
        }));
    }
    forgotten
}

/// All at once; each goes on when another fails.
async fn remove_notes(connection: &Connection, forgotten: Vec<Forgotten>, pause: Duration) {
    let removals = forgotten
        .into_iter()
        .map(|forgotten| forgotten.remove_notes(connection, pause));
    for removed in join_all(removals).await {
        if let Err(error) = removed {
            tracing::debug!(%error, "notes of where purged messages were are left behind");
        }
    }
}

impl Forgotten {
    async fn remove_notes(mut self, connection: &Connection, pause: Duration) -> Result<()> {
        let mark = RandomState::new().hash_one(self.shard);
        self.fields = self.ask_home(connection, mark, false).await?;
        if self.fields.is_empty() {
            return Ok(());
        }
        sleep(pause).await;
        let back = self.find_back(connection).await?;
        self.fields.retain(|field| !back.contains(field));
        if !self.fields.is_empty() {
            self.ask_home(connection, mark, true).await?;
        }
        Ok(())
    }

    /// Marks the notes, and answers whose have the mark; in the end removes those that have it still.
    async fn ask_home(
        &self,
        connection: &Connection,
        mark: u64,
        is_end: bool,
    ) -> Result<Vec<String>> {
        let mut call = connection.call(&PURGE_FORGET_SHARDS, self.home, []);
        call.arg(self.shard).arg(mark).arg(u8::from(is_end));
        for field in &self.fields {
            call.arg(field);
        }
        Ok(reply::texts(connection.run(call).await?)?)
    }

    /// Those that the shard has again.
    async fn find_back(&self, connection: &Connection) -> Result<HashSet<String>> {
        let call = locate_call(connection, self.shard, &self.fields);
        let back = reply::texts(connection.run(call).await?)?;
        Ok(back.into_iter().collect())
    }
}

/// Asks a shard which of these keys it has.
pub(crate) fn locate_call(connection: &Connection, shard: u16, fields: &[String]) -> Call {
    let mut call = connection.call(&PURGE_LOCATE, shard, []);
    for field in fields {
        call.arg(field);
    }
    call
}
