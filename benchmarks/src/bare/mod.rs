//! The same work without the store: hand-written statements in one table and in the store's own
//! layout, or bare calls of the store's own scripts and commands. No ordering keys, due times, counts
//! or checks. Each contender takes its own time, so that it may make beforehand what can be made.

mod mongodb;
mod mysql;
mod postgres;
mod redis;
mod sqlite;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use inbox::Message;

use crate::{
    shape::Shape,
    target::{Site, Slot, Target},
};

const HANDLER: &str = "bench";

/// Where hand-written statements keep their rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One table updated in place: the least that a receive can write.
    OneTable,
    /// Content apart from narrow rows with the state, as the store has them.
    Own,
}

/// What a store is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Sql(Layout),
    /// The store's own scripts, or its own commands.
    Calls,
}

impl Contender {
    /// Those of a target. None in memory.
    pub(crate) fn of(target: Target) -> &'static [Self] {
        const SQL: &[Contender] = &[
            Contender::Sql(Layout::OneTable),
            Contender::Sql(Layout::Own),
        ];
        match target {
            Target::Memory => &[],
            Target::Redis | Target::Mongodb => &[Self::Calls],
            Target::Sqlite
            | Target::SqliteFull
            | Target::Postgres
            | Target::Mariadb
            | Target::Mysql => SQL,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sql(Layout::OneTable) => "one table",
            Self::Sql(Layout::Own) => "the own layout",
            Self::Calls => "bare calls",
        }
    }
}

/// A contender, set up and connected.
pub(crate) enum Bare {
    Postgres(Vec<postgres::Caller>),
    MySql(Vec<mysql::Caller>),
    Sqlite(Vec<sqlite::Caller>),
    Redis(redis::Caller),
    Mongo(Vec<mongodb::Caller>),
}

impl Bare {
    /// With nothing stored, and a connection for each task; for SQLite, which has one writer at a
    /// time, with one.
    pub(crate) async fn set_up(
        site: &mut Site,
        contender: Contender,
        tasks: u32,
        shape: Shape,
    ) -> Result<Self> {
        const SLOT: Slot = Slot::First;
        let batch = shape.batch;
        let Contender::Sql(layout) = contender else {
            let store = site.fresh(SLOT).await?;
            if let Some(server) = site.redis() {
                let caller = redis::Caller::new(server, &store, SLOT, shape).await?;
                return Ok(Self::Redis(caller));
            }
            let client = site.mongodb().context("no bare calls")?;
            let caller = || mongodb::Caller::new(client, SLOT.database(), batch);
            return Ok(Self::Mongo((0..tasks).map(|_| caller()).collect()));
        };
        site.empty(SLOT).await?;
        if let Some(options) = site.postgres(SLOT) {
            let callers = postgres::set_up(options, layout, tasks, batch).await?;
            Ok(Self::Postgres(callers))
        } else if let Some(options) = site.mysql(SLOT) {
            let callers = mysql::set_up(options, layout, tasks, batch).await?;
            Ok(Self::MySql(callers))
        } else {
            let options = site.sqlite(SLOT).context("no SQL")?;
            let caller = sqlite::Caller::set_up(options, layout, batch).await?;
            Ok(Self::Sqlite(vec![caller]))
        }
    }

    /// Receives these new messages, and answers how long it took.
    pub(crate) async fn receive(&mut self, batches: Vec<Vec<Message>>) -> Result<Duration> {
        match self {
            Self::Postgres(callers) => receive(callers, batches).await,
            Self::MySql(callers) => receive(callers, batches).await,
            Self::Sqlite(callers) => receive(callers, batches).await,
            Self::Redis(caller) => caller.receive(&batches).await,
            Self::Mongo(callers) => receive(callers, batches).await,
        }
    }

    /// Claims and settles until nothing is left. Answers how many messages that were, and how long it
    /// took.
    pub(crate) async fn drain(&mut self) -> Result<(u64, Duration)> {
        let start = Instant::now();
        let drained = match self {
            Self::Postgres(callers) => drain(callers).await,
            Self::MySql(callers) => drain(callers).await,
            Self::Sqlite(callers) => drain(callers).await,
            Self::Redis(caller) => caller.drain().await,
            Self::Mongo(callers) => drain(callers).await,
        };
        Ok((drained?, start.elapsed()))
    }
}

/// One connection.
trait Caller: Send + 'static {
    fn receive(&mut self, batch: &[Message]) -> impl Future<Output = Result<()>> + Send;

    /// Claims and settles until nothing is left; answers how many messages that were.
    fn drain(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

/// All at the same time, each taking the next batch.
async fn receive<C: Caller>(callers: &mut Vec<C>, batches: Vec<Vec<Message>>) -> Result<Duration> {
    let queue = Arc::new(Mutex::new(VecDeque::from(batches)));
    let start = Instant::now();
    let running: Vec<_> = callers
        .drain(..)
        .map(|mut caller| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                while let Some(batch) = next(&queue) {
                    caller.receive(&batch).await?;
                }
                anyhow::Ok(caller)
            })
        })
        .collect();
    for running in running {
        callers.push(running.await??);
    }
    Ok(start.elapsed())
}

fn next<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.pop_front()
}

async fn drain<C: Caller>(callers: &mut Vec<C>) -> Result<u64> {
    let running: Vec<_> = callers
        .drain(..)
        .map(|mut caller| {
            tokio::spawn(async move {
                let drained = caller.drain().await?;
                anyhow::Ok((caller, drained))
            })
        })
        .collect();
    let mut all = 0;
    for running in running {
        let (caller, drained) = running.await??;
        callers.push(caller);
        all += drained;
    }
    Ok(all)
}
