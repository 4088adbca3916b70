//! What an operation changes in several scripts, and has confirmed once, behind the last of them.

use std::{collections::BTreeMap, mem};

use futures_util::future::join_all;
use inbox_api::{Effect, Error, ErrorKind, Result};
use redis::Value;

use crate::{
    connection::Connection,
    cross_shard, reply,
    scripts::{Call, SERVER_LIFE},
};

/// So many keys that are gone are kept in memory until that is confirmed.
const GONE: usize = 20_000;

/// The changes of one operation.
pub(super) struct Changes<'a> {
    connection: &'a Connection,
    /// By shard with changes that are to be confirmed, in which life its server was before them.
    lives: BTreeMap<u16, String>,
    /// By shard the keys that are gone since.
    gone: BTreeMap<u16, Vec<Value>>,
}

impl<'a> Changes<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            lives: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    pub(super) fn connection(&self) -> &'a Connection {
        self.connection
    }

    /// Runs a script that changes something, and does not wait for its confirmation.
    pub(super) async fn run(&mut self, call: Call) -> Result<Value> {
        let shard = call.shard;
        if self.connection.confirms() && !self.lives.contains_key(&shard) {
            let life = self.connection.run(life_call(self.connection, shard));
            self.lives.insert(shard, read_life(life.await?)?);
        }
        self.connection.run(call).await
    }

    /// Removes the notes that other shards have of these keys: not before it is confirmed that they are gone, if
    /// that is demanded.
    pub(super) async fn forget(&mut self, shard: u16, gone: Vec<Value>) {
        if self.connection.layout().shards() == 1 {
            return;
        }
        if self.connection.confirms() {
            self.gone.entry(shard).or_default().extend(gone);
        } else {
            cross_shard::forget(self.connection, shard, gone).await;
        }
    }

    /// Waits for confirmations if much would have to be kept in memory otherwise.
    pub(super) async fn confirm_many(&mut self) -> Result<()> {
        if self.gone.values().map(Vec::len).sum::<usize>() < GONE {
            return Ok(());
        }
        self.confirm().await
    }

    /// The outcome of the operation when all that it has changed is confirmed. An error waits for nothing more.
    pub(super) async fn end<T>(mut self, outcome: Result<T>) -> Result<T> {
        let outcome = match outcome {
            Ok(outcome) => self.confirm().await.map(|()| outcome),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            self.forget_later();
        }
        outcome
    }

    /// Waits in all shards at once.
    async fn confirm(&mut self) -> Result<()> {
        let connection = self.connection;
        let lives = mem::take(&mut self.lives);
        let waiting = lives.into_iter().map(|(shard, life)| async move {
            let confirmed = confirm_in(connection, shard, &life).await;
            (shard, life, confirmed)
        });
        let mut outcome = Ok(());
        for (shard, life, confirmed) in join_all(waiting).await {
            match confirmed {
                Ok(()) => {
                    let gone = self.gone.remove(&shard).unwrap_or_default();
                    cross_shard::forget(connection, shard, gone).await;
                }
                Err(error) => {
                    self.lives.insert(shard, life);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Removes the notes that are left behind the operation's answer, unless another server has taken over, where the
    /// messages may be there again.
    fn forget_later(self) {
        let Self {
            connection,
            lives,
            mut gone,
        } = self;
        gone.retain(|_, keys| !keys.is_empty());
        if gone.is_empty() {
            return;
        }
        let behind = connection.another();
        tokio::spawn(async move {
            for (shard, life) in lives {
                if let Some(gone) = gone.remove(&shard)
                    && is_in_life(&behind, shard, &life).await
                {
                    cross_shard::forget_later(&behind, [(shard, gone)]);
                }
            }
        });
    }
}

fn life_call(connection: &Connection, shard: u16) -> Call {
    connection.call(&SERVER_LIFE, shard, [])
}

fn read_life(answer: Value) -> Result<String> {
    Ok(reply::text(&answer)?.unwrap_or_default().to_owned())
}

/// Another server may have confirmed what it has, and not have what was changed.
async fn confirm_in(connection: &Connection, shard: u16, before: &str) -> Result<()> {
    let answer = connection.run_confirmed(life_call(connection, shard));
    if read_life(answer.await?)? == before {
        return Ok(());
    }
    let context = "another server took over before the change was confirmed";
    Err(Error::new(ErrorKind::Unavailable, context).with_effect(Effect::Unknown))
}

async fn is_in_life(connection: &Connection, shard: u16, life: &str) -> bool {
    let answer = connection.run(life_call(connection, shard)).await;
    answer
        .and_then(read_life)
        .is_ok_and(|current| current == life)
}
