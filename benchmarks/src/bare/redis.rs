//! The store's scripts called as a program of one purpose would: arguments made beforehand, calls
//! pipelined over one connection so that the server always has some, answers looked at no further
//! than needed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use inbox::{
    Message, Schema as _,
    redis::redis::{self, Cmd, Value, aio::MultiplexedConnection},
};

use super::HANDLER;
use crate::{
    scenarios::work, servers::redis::Server, shape::Shape, stores::AnyStore, target::Slot,
};

/// Calls of one pipeline.
const DEPTH: usize = 4;
/// Pipelines on their way at the same time.
const PIPELINES: usize = 2;
/// Messages of one part of a call.
const PART: usize = 100;
const SHARD_KEYS: [&str; 16] = [
    "meta",
    "ids",
    "log",
    "body",
    "errors",
    "results",
    "counts",
    "dead",
    "done:processed",
    "done:dead",
    "done:discarded",
    "late",
    "statics",
    "runs",
    "blobs",
    "places",
];
const HANDLER_KEYS: [&str; 6] = ["due", "leased", "open", "heads", "run_due", "run_leased"];

#[derive(Clone)]
pub(crate) struct Caller {
    connection: MultiplexedConnection,
    receive: String,
    claim: String,
    settle: String,
    shape: Shape,
}

/// The digest under which the server knows a script.
fn digest(ddl: &str, name: &str) -> Result<String> {
    let mut lines = ddl.lines().filter_map(|line| line.strip_prefix("# "));
    let digest = lines.find_map(|line| line.strip_suffix(name)?.strip_suffix(' '));
    let digest = digest.with_context(|| format!("no script {name}"))?;
    Ok(digest.to_owned())
}

impl Caller {
    /// On an inbox of one shard that this store has used already, so that its scripts are known.
    pub(super) async fn new(
        server: &Server,
        store: &AnyStore,
        slot: Slot,
        shape: Shape,
    ) -> Result<Self> {
        let inbox = store.inbox();
        work::warm_up(&inbox).await?;
        let ddl = inbox.ddl();
        Ok(Self {
            connection: server.connection(slot as u8).await?,
            receive: digest(&ddl, "receive.lua")?,
            claim: digest(&ddl, "claim.lua")?,
            settle: digest(&ddl, "settle.lua")?,
            shape,
        })
    }

    fn call(&self, digest: &str) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(digest).arg(SHARD_KEYS.len() + HANDLER_KEYS.len());
        for name in SHARD_KEYS {
            call.arg(format!("{{inbox:0}}:{name}"));
        }
        for name in HANDLER_KEYS {
            call.arg(format!("{{inbox:0}}:{name}:{HANDLER}"));
        }
        // Version, shards, shard, offset, moment, channel, handlers.
        call.arg(&["1", "1", "0", "0", "0", "inbox:wake:", "1", HANDLER]);
        call
    }

    /// Calls that receive the batches, in the parts that the store makes.
    fn receives(&self, batches: &[Vec<Message>]) -> Vec<Cmd> {
        let calls = batches.iter().map(|batch| {
            let mut call = self.call(&self.receive);
            call.arg(0).arg(batch.len());
            for (n, part) in batch.chunks(PART).enumerate() {
                let (mut log, mut blob, mut keys) = (Vec::new(), Vec::new(), Vec::new());
                for (distance, message) in part.iter().enumerate() {
                    let key = format!("{HANDLER}\0{}", message.id());
                    let payload = message.payload();
                    let from = log.len();
                    log.extend_from_slice(&u16_bytes(distance));
                    log.extend_from_slice(&u16_bytes(key.len()));
                    log.extend_from_slice(key.as_bytes());
                    log.extend_from_slice(&u32_bytes(15));
                    log.extend_from_slice(b"\x0bbench.event\0{}");
                    log.extend_from_slice(&u32_bytes(payload.len()));
                    blob.extend_from_slice(&log[from..]);
                    blob.extend_from_slice(payload);
                    keys.push(key);
                }
                call.arg("part")
                    .arg(n * PART)
                    .arg(part.len())
                    .arg("")
                    .arg(log)
                    .arg(blob);
                call.arg(HANDLER).arg(keys);
            }
            call
        });
        calls.collect()
    }

    async fn run(&mut self, calls: &[Cmd]) -> Result<Vec<Value>> {
        let mut pipeline = redis::Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(call.clone());
        }
        Ok(pipeline.query_async(&mut self.connection).await?)
    }

    pub(super) async fn receive(&self, batches: &[Vec<Message>]) -> Result<Duration> {
        let mut calls = self.receives(batches);
        let start = Instant::now();
        let share = calls.len().div_ceil(PIPELINES).max(1);
        let mut tasks = Vec::new();
        while !calls.is_empty() {
            let rest = calls.split_off(share.min(calls.len()));
            let (part, mut caller) = (std::mem::replace(&mut calls, rest), self.clone());
            tasks.push(tokio::spawn(async move {
                for calls in part.chunks(DEPTH) {
                    for answer in caller.run(calls).await? {
                        let answers: Vec<i64> = redis::from_redis_value(answer)?;
                        ensure!(answers.iter().all(|answer| *answer == 1));
                    }
                }
                Ok::<(), anyhow::Error>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(start.elapsed())
    }

    /// Claims and settles all that there is.
    pub(super) async fn drain(&self) -> Result<u64> {
        let tasks: Vec<_> = (0..PIPELINES)
            .map(|_| tokio::spawn(self.clone().drain_alone()))
            .collect();
        let mut done = 0;
        for task in tasks {
            done += task.await??;
        }
        Ok(done)
    }

    async fn drain_alone(mut self) -> Result<u64> {
        let mut claim = self.call(&self.claim);
        claim
            .arg(self.shape.batch)
            .arg(32 << 20)
            .arg(3_600_000_000_u64)
            .arg("worker-1");
        let claims = vec![claim; DEPTH];
        let mut done = 0;
        loop {
            let mut settles = Vec::new();
            for answer in self.run(&claims).await? {
                let mut settle = self.call(&self.settle);
                settle.arg(0).arg(-1).arg(-1);
                let claimed = settlements(&answer, &mut settle).context("an answer of a claim")?;
                done += claimed;
                if claimed > 0 {
                    settles.push(settle);
                }
            }
            if settles.is_empty() {
                return Ok(done);
            }
            for answer in self.run(&settles).await? {
                let (answers, _, _): (Vec<i64>, Vec<Value>, Vec<Value>) =
                    redis::from_redis_value(answer)?;
                ensure!(answers.iter().all(|answer| *answer == 1));
            }
        }
    }
}

fn u16_bytes(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes()
}

fn u32_bytes(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes()
}

/// Adds a settlement for each message of the runs that were claimed.
fn settlements(answer: &Value, settle: &mut Cmd) -> Option<u64> {
    let runs = answer.as_sequence()?.get(3)?.as_sequence()?;
    let mut count = 0;
    for run in runs {
        let [
            Value::Int(origin),
            _,
            Value::Int(token),
            ..,
            Value::BulkString(blob),
            _,
        ] = run.as_sequence()?
        else {
            return None;
        };
        let mut rest = blob.as_slice();
        while !rest.is_empty() {
            let (distance, behind) = rest.split_first_chunk::<2>()?;
            let (length, behind) = behind.split_first_chunk::<2>()?;
            let (key, behind) =
                behind.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            let (fixed, behind) = behind.split_first_chunk::<4>()?;
            let behind = behind.get(u32::from_be_bytes(*fixed) as usize..)?;
            let (payload, behind) = behind.split_first_chunk::<4>()?;
            rest = behind.get(u32::from_be_bytes(*payload) as usize..)?;
            let seq = origin + i64::from(u16::from_be_bytes(*distance));
            let mut packed = [0; 21];
            packed[1..7].copy_from_slice(&seq.to_be_bytes()[2..]);
            packed[7..14].copy_from_slice(&token.to_be_bytes()[1..]);
            settle.arg(key).arg(&packed[..]);
            count += 1;
        }
    }
    Some(count)
}
