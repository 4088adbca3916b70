//! What a source and its deliveries have in common, whatever becomes of a connection.

use std::{
    sync::atomic::{AtomicI64, AtomicUsize, Ordering},
    time::Duration,
};

use inbox_source::{Mapping, SourceError};
use redis::{Pipeline, Script, Value, cmd, pipe};
use tokio::time::Instant;

use crate::{RedisStreamsOptions, held::Held, link::Link, options::MADE_UP};

/// How long a command may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The most entries of one command.
pub(crate) const AT_ONCE: usize = 500;
/// The most fields of an entry that a script can hand to a command: Lua takes 8,000 values at a time.
const FIELDS: usize = 3_500;
/// How often the server is asked how much is behind.
const LAG_EVERY: Duration = Duration::from_secs(5);
/// What is given back looks idle for so long, which is longer than any `claim_after`. The server takes no
/// time before 1970.
const GIVEN_BACK_MS: &str = "86400000";
/// Consumers of killed processes are removed after so long.
const LEFT_MS: &str = "3600000";

const UNKNOWN: i64 = -1;

pub(crate) struct Shared {
    pub(crate) options: RedisStreamsOptions,
    pub(crate) mapping: Mapping,
    pub(crate) held: Held,
    pub(crate) link: Link,
    /// The most entries to hold.
    pub(crate) most: AtomicUsize,
    /// The most bytes of them, and of one entry more.
    pub(crate) most_bytes: AtomicUsize,
    lag: AtomicI64,
    extend: Script,
    give_back: Script,
    reject: Script,
    tidy: Script,
}

impl Shared {
    pub(crate) fn new(options: RedisStreamsOptions, mapping: Mapping) -> Self {
        Self {
            link: Link::new(options.connection.clone()),
            options,
            mapping,
            held: Held::default(),
            most: AtomicUsize::new(1000),
            most_bytes: AtomicUsize::new(usize::MAX),
            lag: AtomicI64::new(UNKNOWN),
            extend: Script::new(include_str!("lua/extend.lua")),
            give_back: Script::new(include_str!("lua/give_back.lua")),
            reject: Script::new(include_str!("lua/reject.lua")),
            tidy: Script::new(include_str!("lua/tidy.lua")),
        }
    }

    pub(crate) fn lag(&self) -> Option<u64> {
        u64::try_from(self.lag.load(Ordering::Relaxed)).ok()
    }

    /// What acknowledges entries: in the group, and in the stream if nobody else reads it.
    pub(crate) fn acknowledging<'i>(&self, ids: impl Iterator<Item = &'i str>) -> Pipeline {
        let ids: Vec<&str> = ids.collect();
        let options = &self.options;
        let mut commands = pipe();
        commands.atomic();
        commands.add_command(
            cmd("XACK")
                .arg(&options.stream)
                .arg(&options.group)
                .arg(&ids)
                .take(),
        );
        if options.delete {
            commands.add_command(cmd("XDEL").arg(&options.stream).arg(&ids).take());
        }
        commands
    }

    /// Writes an entry, with further fields, to the dead letters' stream, and finishes it: both, or neither
    /// where the dead letter is refused. An entry of more fields than a script can hand on is finished when its
    /// dead letter is confirmed, and is a dead letter twice where that answer is lost.
    pub(crate) async fn write_dead_letter(
        &self,
        stream: &str,
        id: &str,
        fields: &[(&[u8], &[u8])],
        deadline: Instant,
    ) -> Result<(), SourceError> {
        let options = &self.options;
        let doing = "writing a dead letter";
        if fields.len() > FIELDS {
            let mut add = cmd("XADD");
            add.arg(stream).arg("*").arg(fields);
            let mut commands = pipe();
            commands.add_command(add);
            self.link.run::<Value>(doing, &commands, deadline).await?;
            return self.finish_rejected(id, deadline).await;
        }
        let mut call = self.reject.key(&options.stream);
        call.key(stream).arg(&options.group).arg(id);
        call.arg(u8::from(options.delete)).arg(fields);
        self.link.invoke::<Value>(doing, &call, deadline).await?;
        Ok(())
    }

    /// Acknowledges an entry that was rejected.
    pub(crate) async fn finish_rejected(
        &self,
        id: &str,
        deadline: Instant,
    ) -> Result<(), SourceError> {
        let commands = self.acknowledging(std::iter::once(id));
        let run = self.link.run::<Value>("rejecting", &commands, deadline);
        run.await.map(drop)
    }

    /// Says again and again that what is held is worked on, and asks how much is behind.
    pub(crate) async fn keep(&self) {
        let third = self.options.claim_after / 3;
        let mut extended = Instant::now();
        let mut ticks = tokio::time::interval(third.min(LAG_EVERY));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if extended.elapsed() + Duration::from_millis(1) >= third {
                extended = Instant::now();
                if let Err(error) = self.extend().await {
                    tracing::debug!(stream = self.options.stream, "extending failed: {error}");
                }
            }
            let lag = self.ask_lag().await.unwrap_or(UNKNOWN);
            self.lag.store(lag, Ordering::Relaxed);
        }
    }

    async fn extend(&self) -> Result<(), SourceError> {
        let options = &self.options;
        for ids in self.held.ids().chunks(AT_ONCE) {
            let mut call = self.extend.key(&options.stream);
            call.arg(&options.group).arg(&options.consumer).arg(ids);
            let deadline = Instant::now() + PATIENCE;
            let extended = self.link.invoke::<Value>("extending", &call, deadline);
            extended.await?;
        }
        Ok(())
    }

    /// Servers before 7.0 do not know it, nor any where entries were deleted.
    async fn ask_lag(&self) -> Option<i64> {
        let options = &self.options;
        let mut commands = pipe();
        commands.add_command(cmd("XINFO").arg("GROUPS").arg(&options.stream).take());
        let deadline = Instant::now() + PATIENCE;
        let asked = self
            .link
            .run::<Vec<Value>>("asking for the lag", &commands, deadline);
        let Value::Array(groups) = asked.await.ok()?.into_iter().next()? else {
            return None;
        };
        groups
            .into_iter()
            .find_map(|group| lag_of(group, &options.group))
    }

    /// Gives everything back that this consumer has, and removes the consumer if it has a name of its own.
    pub(crate) async fn leave(&self, deadline: Instant) -> Result<(), SourceError> {
        let options = &self.options;
        let mut from = "-".to_owned();
        loop {
            let mut call = self.give_back.key(&options.stream);
            call.arg(&options.group).arg(&options.consumer);
            call.arg(GIVEN_BACK_MS).arg(&from).arg(AT_ONCE);
            let last = self
                .link
                .invoke::<Option<String>>("giving back", &call, deadline);
            match last.await? {
                Some(last) => from = format!("({last}"),
                None => break,
            }
        }
        if options.consumer.starts_with(MADE_UP) {
            let mut call = self.tidy.key(&options.stream);
            call.arg(&options.group).arg(&options.consumer);
            call.arg(MADE_UP).arg(LEFT_MS);
            let left = self.link.invoke::<Value>("leaving", &call, deadline);
            left.await?;
        }
        Ok(())
    }
}

/// The lag of a group, if it is the one and the server knows it.
fn lag_of(group: Value, name: &str) -> Option<i64> {
    let Value::Array(fields) = group else {
        return None;
    };
    let mut is_named = false;
    let mut lag = None;
    for pair in fields.chunks_exact(2) {
        match (&pair[0], &pair[1]) {
            (Value::BulkString(field), Value::BulkString(value)) if field == b"name" => {
                is_named = value == name.as_bytes();
            }
            (Value::BulkString(field), Value::Int(value)) if field == b"lag" => lag = Some(*value),
            _ => {}
        }
    }
    lag.filter(|_| is_named)
}
