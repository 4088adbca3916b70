//! Messages whose ordering key belongs to another shard than their id: the home shard of the id
//! notes where the first copy went, before it is stored there.
//!
//! Copies with the same ordering key meet in its shard, whatever is noted. The note is for copies
//! with another ordering key, or with none. It may be there without the message, and does no harm.

use std::collections::BTreeMap;

use inbox_api::{Message, Result};
use redis::Value;

use crate::{
    keys::field,
    reply::{self, Unexpected, unexpected},
    rows,
    scripts::{POINT, UNPOINT},
    store::RedisStore,
};

/// One script changes at most so many notes.
const STEP: usize = 1000;

/// Where a message is to be looked for and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In its home shard, unless a note there says otherwise.
    Home(u16),
    /// In this shard, as its home has said.
    Noted(u16),
    /// It is in its home, as an earlier copy without an ordering key.
    Known(u16),
}

impl Place {
    pub(crate) fn shard(self) -> u16 {
        let (Self::Home(shard) | Self::Noted(shard) | Self::Known(shard)) = self;
        shard
    }
}

impl RedisStore {
    /// Where each message is to be stored. Makes a note of it at home for those that belong
    /// elsewhere.
    pub(crate) async fn places(
        &self,
        operation: &'static str,
        messages: &[&Message],
    ) -> Result<Vec<Place>> {
        let layout = self.layout();
        let mut places: Vec<Place> = messages
            .iter()
            .map(|message| Place::Home(layout.home(message.key())))
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
                let mut call = self.inner.caller.call(&POINT, *home, []);
                for (_, message, target) in step {
                    call.arg(field(message.key())).arg(*target);
                }
                calls.push(call);
                steps.push((*home, step));
            }
        }
        let mapped = unexpected(operation);
        let answers = self.run_all_confirmed(operation, calls).await?;
        for ((home, step), answer) in steps.into_iter().zip(answers) {
            let answers = reply::list(answer).map_err(mapped)?;
            if answers.len() != step.len() {
                return Err(mapped(Unexpected));
            }
            for ((number, ..), answer) in step.iter().zip(answers) {
                let place = match reply::number(&answer).map_err(mapped)? {
                    -1 => Place::Known(home),
                    _ => Place::Noted(reply::small(&answer).map_err(mapped)?),
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
    pub(crate) async fn forget_places(
        &self,
        operation: &'static str,
        shard: u16,
        purged: Vec<Value>,
    ) {
        let mut by_home: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for field in purged {
            let Ok(Some(field)) = reply::text(&field) else {
                continue;
            };
            if let Ok(key) = rows::key(field)
                && self.layout().home(&key) != shard
            {
                let home = self.layout().home(&key);
                by_home.entry(home).or_default().push(field.to_owned());
            }
        }
        let mut calls = Vec::new();
        for (home, fields) in by_home {
            for step in fields.chunks(STEP) {
                let mut call = self.inner.caller.call(&UNPOINT, home, []);
                call.arg(shard);
                for field in step {
                    call.arg(field);
                }
                calls.push(call);
            }
        }
        if let Err(error) = self.run_all(operation, calls).await {
            tracing::debug!(%error, "notes of where purged messages were are left behind");
        }
    }
}
