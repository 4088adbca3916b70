//! Calls whose answers are confirmed before they are given: many wait for one `WAIT`.
//!
//! `WAIT` and `WAITAOF` wait for the last write of their own connection, and make it wait. So these
//! calls have their own connections, on which they run in groups: the scripts of all who have
//! come since the last group, then a write of no consequence, then the waiting. An answer may rest on
//! what others have written ("it is a duplicate"); the write comes behind all of that. There are two
//! connections, so that the server runs one group's scripts while the other group waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inbox_api::{Effect, Error, ErrorKind, time_limit};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    error::{self, Failed, garbled, is_no_script, late},
    node::Node,
    options::Confirmations,
    scripts::CONFIRM,
};

/// How many connections groups have.
pub(crate) const CONNECTIONS: usize = 2;
/// A group has no more calls, and about no more bytes.
const MOST: usize = 100;
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// How often the script that writes is loaded when the server forgets it.
const LOADS: u32 = 3;

/// A call, on its way to one server.
pub(crate) struct Sent {
    pub(crate) command: Cmd,
    /// A key of the shard, for the write.
    pub(crate) meta: String,
    /// Whether the server is to run it although it is still importing the slot.
    pub(crate) asking: bool,
}

/// What a script answered, which may be an error, and whether that is confirmed.
pub(crate) type Answer = Result<(Value, Result<(), Unconfirmed>), Failed>;

/// Why an answer is not confirmed.
#[derive(Clone)]
pub(crate) enum Unconfirmed {
    /// Too few of these have confirmed it in time.
    TooFew(&'static str),
    /// The server did not wait.
    Error(RedisError),
}

impl From<Unconfirmed> for Error {
    fn from(unconfirmed: Unconfirmed) -> Self {
        match unconfirmed {
            Unconfirmed::TooFew(what) => {
                let context = format!("the write is done, but too few {what} confirmed it in time");
                Self::new(ErrorKind::Unavailable, context)
            }
            Unconfirmed::Error(error) => {
                let error = error::failed(error);
                let context = format!("the write is not confirmed: {}", error.context());
                Self::new(ErrorKind::Unavailable, context).with_source(error)
            }
        }
        .with_effect(Effect::Unknown)
    }
}

struct Waiting {
    sent: Sent,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

struct Queue {
    waiting: Vec<Waiting>,
    /// The numbers of the connections that nobody uses.
    idle: Vec<usize>,
}

pub(crate) struct Group {
    wanted: Confirmations,
    queue: Mutex<Queue>,
}

impl Group {
    pub(crate) fn new(wanted: Confirmations) -> Self {
        let queue = Queue {
            waiting: Vec::new(),
            idle: (0..CONNECTIONS).collect(),
        };
        Self {
            wanted,
            queue: Mutex::new(queue),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who come next, as many as fit into a group. When there are none, the task of this
    /// connection ends.
    fn take_next(&self, connection: usize) -> Vec<Waiting> {
        let mut queue = self.lock();
        // Who has gone before it was sent does not want it any more.
        queue.waiting.retain(|one| !one.answer.is_closed());
        let mut bytes = 0;
        let count = queue
            .waiting
            .iter()
            .take(MOST)
            .take_while(|one| {
                let fits = bytes < MOST_BYTES;
                bytes += one.sent.command.get_packed_command().len();
                fits
            })
            .count();
        if count == 0 {
            queue.idle.push(connection);
        }
        queue.waiting.drain(..count).collect()
    }

    /// Answers also which connection is to be used, if one is idle.
    fn add(&self, sent: Sent, until: Instant) -> (oneshot::Receiver<Answer>, Option<usize>) {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.lock();
        queue.waiting.push(Waiting {
            sent,
            until,
            answer,
        });
        (receiver, queue.idle.pop())
    }
}

impl Node {
    /// Runs a script, and answers what it did when that is confirmed.
    pub(crate) async fn send_confirmed(self: &Arc<Self>, sent: Sent, until: Instant) -> Answer {
        let (answer, idle) = self.group.add(sent, until);
        if let Some(connection) = idle {
            let node = Arc::clone(self);
            tokio::spawn(async move { node.run_groups(connection).await });
        }
        match timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            // The task answers everybody, unless the runtime ends.
            Ok(Err(_)) => Err(Failed::Lost(garbled())),
            Err(_) => {
                // Not left to the group's task: the next call may come before it notices.
                self.give_up_connections();
                Err(Failed::Lost(late()))
            }
        }
    }

    async fn run_groups(&self, connection: usize) {
        loop {
            let group = self.group.take_next(connection);
            if group.is_empty() {
                return;
            }
            let (waiting, sent): (Vec<_>, Vec<_>) = group
                .into_iter()
                .map(|one| ((one.answer, one.until), one.sent))
                .unzip();
            let until = waiting.iter().map(|(_, until)| *until).max();
            let until = until.unwrap_or_else(Instant::now);
            let answers = self.run_group(connection, &sent, until).await;
            for ((answer, _), value) in waiting.into_iter().zip(answers) {
                // Who has gone is told nothing.
                let _ = answer.send(value);
            }
        }
    }

    async fn run_group(&self, connection: usize, sent: &[Sent], until: Instant) -> Vec<Answer> {
        let mut pipeline = Pipeline::new();
        for one in sent {
            if one.asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(one.command.clone());
        }
        let before = pipeline.len();
        let waits = self.add_waiting(&mut pipeline, sent);
        let (mut values, behind) = match self.send_sure(connection, &pipeline, until).await {
            Ok(mut values) if values.len() == before + waits => {
                let behind = values.split_off(before);
                (values.into_iter(), behind)
            }
            Ok(_) => return sent.iter().map(|_| Err(Failed::Lost(garbled()))).collect(),
            Err(failed) => return sent.iter().map(|_| Err(failed.clone())).collect(),
        };
        let confirmed = self.check_written(connection, sent, behind, until).await;
        let mut answers = Vec::with_capacity(sent.len());
        for one in sent {
            if one.asking {
                values.next();
            }
            let value = values.next().unwrap_or(Value::Nil);
            answers.push(Ok((value, confirmed.clone())));
        }
        answers
    }

    /// Adds the write and the waiting; answers how many commands that is.
    fn add_waiting(&self, pipeline: &mut Pipeline, sent: &[Sent]) -> usize {
        let before = pipeline.len();
        // One of each shard, since a shard may be just leaving this server.
        let mut metas: Vec<&Sent> = sent.iter().collect();
        metas.sort_by_key(|one| &one.meta);
        metas.dedup_by_key(|one| &one.meta);
        for one in metas {
            if one.asking {
                pipeline.cmd("ASKING");
            }
            pipeline
                .cmd("EVALSHA")
                .arg(&CONFIRM.digest)
                .arg(1)
                .arg(&one.meta);
        }
        let wanted = &self.group.wanted;
        let millis = u64::try_from(time_limit(wanted.timeout).as_millis()).unwrap_or(u64::MAX);
        if wanted.replicas > 0 {
            pipeline.cmd("WAIT").arg(wanted.replicas).arg(millis.max(1));
        }
        if wanted.waits_for_aof() {
            pipeline
                .cmd("WAITAOF")
                .arg(u8::from(wanted.local_aof))
                .arg(wanted.replica_aofs)
                .arg(millis.max(1));
        }
        pipeline.len() - before
    }

    /// Whether what came before is confirmed, by the answers to what [`Self::add_waiting`] adds.
    async fn check_written(
        &self,
        connection: usize,
        sent: &[Sent],
        mut behind: Vec<Value>,
        until: Instant,
    ) -> Result<(), Unconfirmed> {
        for _ in 0..LOADS {
            let is_forgotten = |value: &Value| {
                let error = value.clone().extract_error().err();
                error.is_some_and(|error| is_no_script(&error))
            };
            if !behind.iter().any(is_forgotten) {
                break;
            }
            let mut again = Pipeline::new();
            again.cmd("SCRIPT").arg("LOAD").arg(&*CONFIRM.text);
            self.add_waiting(&mut again, sent);
            behind = match self.send_sure(connection, &again, until).await {
                Ok(mut values) if !values.is_empty() => values.split_off(1),
                Ok(_) => return Err(Unconfirmed::Error(garbled())),
                Err(Failed::NotSent(error) | Failed::Lost(error)) => {
                    return Err(Unconfirmed::Error(error));
                }
            };
        }
        check_confirmations(&self.group.wanted, behind)
    }
}

/// Whether something was written, and as many confirmed it as were asked for.
fn check_confirmations(wanted: &Confirmations, mut behind: Vec<Value>) -> Result<(), Unconfirmed> {
    let waits = usize::from(wanted.replicas > 0) + usize::from(wanted.waits_for_aof());
    let mut waited = behind
        .split_off(behind.len().saturating_sub(waits))
        .into_iter();
    // With one that was written behind all others, the waiting is for these too.
    let mut failure = garbled();
    let mut is_written = false;
    for written in behind {
        match written.extract_error() {
            Ok(Value::Int(1)) => is_written = true,
            Ok(_) => {}
            Err(error) => failure = error,
        }
    }
    if !is_written {
        return Err(Unconfirmed::Error(failure));
    }
    let mut next = || {
        let value = waited.next().unwrap_or(Value::Nil).extract_error();
        value.map_err(Unconfirmed::Error)
    };
    if wanted.replicas > 0 {
        match next()? {
            Value::Int(count) if count >= i64::from(wanted.replicas) => {}
            _ => return Err(Unconfirmed::TooFew("replicas")),
        }
    }
    if wanted.waits_for_aof() {
        match next()?.as_sequence() {
            Some([Value::Int(local), Value::Int(replicas)])
                if *local >= i64::from(wanted.local_aof)
                    && *replicas >= i64::from(wanted.replica_aofs) => {}
            _ => return Err(Unconfirmed::TooFew("append-only files")),
        }
    }
    Ok(())
}
