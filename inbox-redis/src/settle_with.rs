//! The caller's own commands, together with the completion of a message.

use inbox_api::{Error, ErrorKind, Lease, Outcome, Result, Settled, check_size};
use redis::{ToRedisArgs, Value};

use crate::{
    connection::{Connection, Shared},
    cross_shard,
    reply::{self, Taker},
    settle::{self, Arguments},
    store::RedisStore,
};

/// A command to run with a settlement: a word, keys and other arguments.
///
/// `Debug` shows the command's name and how many arguments it has.
#[derive(Clone)]
pub struct Command {
    words: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.words.first().map(|word| String::from_utf8_lossy(word));
        f.debug_struct("Command")
            .field("name", &name.unwrap_or_default())
            .field("arguments", &self.words.len().saturating_sub(1))
            .finish()
    }
}

impl Command {
    /// A command such as `INCRBY`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            words: vec![name.as_bytes().to_vec()],
            keys: Vec::new(),
        }
    }

    /// The next argument, which is a key. It must contain the lease's hash tag
    /// ([`RedisStore::hash_tag`]) as its first `{…}`.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.words.push(key.as_ref().to_vec());
        self.keys.push(key.as_ref().to_vec());
        self
    }

    /// The next argument, which is not a key; several if it is a list.
    #[must_use]
    pub fn arg(mut self, value: impl ToRedisArgs) -> Self {
        self.words.extend(value.to_redis_args());
        self
    }
}

/// What is between the first `{` and the next `}`, as Redis Cluster reads a key.
fn tag_of(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close)
}

impl RedisStore {
    /// The hash tag, braces included, that keys must have to be changed together with the
    /// settlement of this lease. It depends on the message's shard; with one shard it is the same
    /// for all messages.
    ///
    /// # Errors
    /// `Invalid` for a lease that is not this inbox's.
    pub fn hash_tag(&self, lease: &Lease) -> Result<String> {
        let located = locate(&self.shared, lease);
        located
            .map(|(shard, _)| self.shared.layout().tag(shard))
            .map_err(|error| error.in_operation("hash_tag"))
    }

    /// Settles a lease and runs the caller's own commands with it, in one script: nobody sees one
    /// without the other, and they are replicated and persisted together. Answers what the
    /// commands answered.
    ///
    /// On [`Settled::LeaseLost`] and [`Settled::Refused`] no command has run. A lease that was
    /// settled before is `LeaseLost` here, since its commands have run.
    ///
    /// This is what Redis can do, and **not a transaction**: it cannot take back. If a command
    /// fails for another reason (a key of the wrong type), those before it stand, those
    /// behind it and the settlement do not happen, and the error says which failed. And all keys
    /// must be in the shard of the message ([`hash_tag`](Self::hash_tag)).
    ///
    /// ```no_run
    /// # use inbox_api::{Leased, Outcome, Settled};
    /// # use inbox_redis::{Command, RedisStore};
    /// # async fn example(store: RedisStore, leased: Leased) -> inbox_api::Result<()> {
    /// let tag = store.hash_tag(&leased.lease)?;
    /// let add = Command::new("INCRBY").key(format!("{tag}:revenue")).arg(250);
    /// let done = Outcome::Processed { result: None };
    /// let (settled, _) = store.settle_with(&leased.lease, done, &[add]).await?;
    /// if settled == Settled::LeaseLost {
    ///     // Another worker has done it, or is doing it; nothing was added here.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` when a key is of another shard or the first command is refused. When a later one fails, the effect is
    /// unknown, as those before it stand, and the kind is `Other` unless the server is full or the user may not run it.
    /// Otherwise as [`settle`](inbox_api::Store::settle). After an error with an unknown effect, look at the
    /// message before repeating: a repetition of what did happen is `LeaseLost`.
    pub async fn settle_with(
        &self,
        lease: &Lease,
        outcome: Outcome,
        commands: &[Command],
    ) -> Result<(Settled, Vec<Value>)> {
        let operation = self.shared.operation("settle_with");
        let settled = settle_with(&operation, lease, &outcome, commands).await;
        settled.map_err(|error| operation.failed(error))
    }
}

/// Shard and sequence number of a lease's message.
fn locate(shared: &Shared, lease: &Lease) -> Result<(u16, u64)> {
    shared.layout().located(lease.locator).ok_or_else(|| {
        let reason = "the lease is not one of this inbox";
        Error::new(ErrorKind::Invalid, reason)
    })
}

async fn settle_with(
    connection: &Connection,
    lease: &Lease,
    outcome: &Outcome,
    commands: &[Command],
) -> Result<(Settled, Vec<Value>)> {
    let (shard, seq) = locate(connection, lease)?;
    let tag = connection.layout().tag(shard);
    let keys: Vec<Vec<u8>> = commands.iter().flat_map(|c| c.keys.clone()).collect();
    if keys.iter().any(|key| {
        tag_of(key).is_none_or(|found| format!("{{{}}}", String::from_utf8_lossy(found)) != tag)
    }) {
        let reason = format!("every key needs the hash tag of the lease, {tag}");
        return Err(Error::new(ErrorKind::Invalid, reason));
    }
    if let Outcome::Processed {
        result: Some(result),
    } = outcome
        && let Err(invalid) = check_size("result", result.len(), connection.options.payload_limit)
    {
        return Ok((Settled::Refused(invalid), Vec::new()));
    }
    let mut call = settle::call_with_keys(connection, shard, lease, &keys);
    call.arg(commands.len());
    for command in commands {
        call.arg(command.words.len());
        for word in &command.words {
            call.arg(word.as_slice());
        }
    }
    Arguments::new(lease, seq, outcome).add_to(&mut call);
    let mut answer = Taker::of(connection.run_confirmed(call).await?)?;
    let done = answer.list()?;
    let replies = answer.list()?;
    cross_shard::forget_later(connection, [(shard, answer.list()?)]);
    let done = done.first().map(reply::number).transpose()?;
    Ok(if done == Some(1) {
        (Settled::Done, replies)
    } else {
        (Settled::LeaseLost, Vec::new())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_a_cluster_reads_them() {
        assert_eq!(tag_of(b"{inbox:1}:a"), Some(&b"inbox:1"[..]));
        assert_eq!(tag_of(b"x{a}{b}"), Some(&b"a"[..]));
        assert_eq!(tag_of(b"x{a"), None);
        assert_eq!(tag_of(b"x"), None);
    }

    #[test]
    fn debug_hides_arguments() {
        let command = Command::new("SET").key("{inbox:0}:k").arg("secret");
        let shown = format!("{command:?}");
        assert!(
            shown.contains("SET") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
