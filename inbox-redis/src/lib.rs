//! An inbox store on Redis, Valkey, or a cluster of them: Redis 7 or Valkey 7.2 and later.
//!
//! ```no_run
//! use inbox_api::{HandlerName, Kind, Message, MessageId, Receipt, Schema, StoreExt};
//! use inbox_redis::{RedisOptions, RedisStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = RedisOptions::from_url("redis://cache.example?inbox=orders")?;
//! let store = RedisStore::connect(options).await?;
//! store.create().await?;
//! let message = Message::new(
//!     HandlerName::new("billing")?,
//!     MessageId::new("evt-1")?,
//!     Kind::new("order.placed")?,
//!     r#"{"order": 7}"#,
//! );
//! assert_eq!(store.receive_one(&message).await?, Receipt::Accepted);
//! assert_eq!(store.receive_one(&message).await?, Receipt::Duplicate { differs: false });
//! # Ok(())
//! # }
//! ```
//!
//! # What survives what
//! Redis keeps everything in memory, and its settings decide what a crash loses:
//!
//! | setting | server killed | power cut |
//! |---|---|---|
//! | `appendonly yes`, `appendfsync always` | nothing that was answered | nothing that was answered |
//! | `appendonly yes`, `appendfsync everysec` | about nothing | about a second |
//! | snapshots (`save`) only | everything since the last one | the same |
//! | neither | everything | everything |
//!
//! Replication is asynchronous: **a fail-over loses what the replica did not have yet**, whatever
//! was answered. With [`Confirmations`] everything that changes something waits until
//! so many replicas have the write (`WAIT`), or until it is on disks (`WAITAOF`). That holds for what
//! others have written too: *duplicate*, *busy* and the repetition of a settlement are answered when
//! what they rest on is confirmed. Those who wait have their own connections, on which they wait
//! together, so that they keep nobody else waiting. Purges and changes of many messages wait once for each shard, behind
//! the last of their steps; when another server has taken over in between, they fail. Without confirmations, a lease that a fail-over
//! forgets is given out once more, with a greater token unless the new server's clock is behind, and a
//! message may come behind a later one of its ordering key.
//! When they do not confirm in time, the operation fails as `Unavailable` with an unknown effect. A
//! claim that nobody would confirm takes nothing; what one had taken just before stays leased until its
//! leases end. It makes
//! loss unlikely and not impossible: Redis does not promise that the replica that takes over is one
//! of those that confirmed. With one replica it is.
//!
//! Connecting refuses a server that persists nothing at all, or whose `maxmemory-policy` may evict
//! an inbox's keys; [`StartChecks`] says otherwise. Set `maxmemory-policy noeviction` (or a
//! `volatile-` policy: no key of an inbox has an expiry time).
//!
//! # Connections
//! Each server has one connection for all calls, and two more for those that wait for confirmations.
//! One that breaks, or whose calls exceed `operation_timeout`, is given up (one that was idle for a second
//! is asked for a sign of life first), and so is one on which the
//! server says that it is a replica (`READONLY`) or still loading: the next call makes a new one, which
//! reaches the server that has the address by then. What no server has begun is tried again for half a
//! second, on a cluster for six. What writes, and whose answer was lost, is not repeated: it fails
//! with an unknown effect.
//!
//! Redis **Sentinel is not asked** for the primary: give an address that follows it (a name, a proxy,
//! a service's endpoint), or use a cluster.
//!
//! # Shards
//! An inbox is spread over a fixed number of shards, each of which has its own hash tag
//! `{inbox:N}`, so that Redis Cluster places the shards on its nodes and moves them between them.
//! The number is chosen when the inbox is created, stands in every shard's marker, and a client
//! with another number is refused by every script. One server needs one shard. On a cluster, take
//! a few for each primary there may ever be.
//!
//! | | one shard | several |
//! |---|---|---|
//! | round trips of receive | 1 | 2: numbers are drawn in the first shard, and ordering keys' places noted, before messages are stored |
//! | round trips of claim | 1 (with confirmations 3) | 2 (3): a look into all shards, then a claim in those that have the longest-due messages |
//! | round trips of settle, extend | 1 | 1, to the shards concerned in parallel |
//! | stored together | the batch | the messages of a batch that share an id and an ordering key |
//!
//! A message is in the shard of its ordering key, so that a whole ordering key is in one shard, or in
//! its **home**, the shard of its id, if it has none. Whatever is known of a message is in that one
//! shard, and changed there by one script.
//!
//! **Copies of a delivery must carry the same ordering key**, those for other handlers and those that
//! are sent again alike. Then they meet in one shard, and at most one of a handler's copies is
//! accepted, as long as that shard keeps it. Copies with different ordering keys are refused too, as long as
//! the home has a note (in `places`) of where the first one went, which it makes before that one is
//! stored. The note can get lost in a fail-over (unless [`Confirmations`] are demanded), and goes when
//! the message is purged: a copy with another ordering key that comes then, or at the same time, may be
//! accepted once more. A message that comes again while the note of its purged predecessor is being removed keeps
//! the note, unless its receive takes longer from the first round trip to the second than the removal gives it: a
//! second behind a settlement ([`keep_processed`](RedisOptions::keep_processed)), and one round trip in a purge.
//! After that a copy with another ordering key may be accepted, too. One that finds a note without a message is
//! stored where the note says, next to the other messages of its ordering key and not in order with them.
//! Messages of a batch that
//! share an id and have different ordering keys may be stored in part when the sender dies: sending
//! the delivery again stores the rest.
//!
//! What is looked for by its id alone ([`get`](inbox_api::Operate::get), a replay, a discard) is
//! looked for in its home and then in all other shards at once.
//!
//! Numbers order the messages of all shards as they were received. The first shard draws them; when
//! its server has been restarted or replaced, which shows by its replication id, it goes on a thousand
//! million numbers further, so that draws that were forgotten do not come again. Times are each
//! server's own, and no server's clock is compared with another's: how long something has been due,
//! finished or leased is for the clock of the server where it is. If a shard moves to a server whose
//! clock is elsewhere, its leases and due times end earlier or later by as much, as with any Redis
//! whose clock is set.
//!
//! What becomes final in a shard does so later than all before it, by a microsecond at least. If the server's
//! clock was ahead when something became final, be it once and for a moment, all that follows has become
//! final at that time, too, until the clock has caught up. So retention deletes nothing too early, but what
//! has become final since then as much later as the clock was ahead.
//!
//! # Runs
//! Most messages that are received together fare alike: they are claimed together and processed
//! together. So neighbours in a batch (up to 100, without ordering key or due time, for one handler,
//! of up to 64 KiB each and 256 KiB together) become a **run**: they share one record of state, one
//! body and one place among the claimable, and only its key and number are each one's own. A claim
//! that wants less of a run cuts it in two. Whatever happens to one message alone (a retry, a dead
//! letter, a replay, its own settlement) first takes its run apart into single messages. Batches of
//! one cost as much as without runs; with batches of 100 and payloads of 1 KiB, a message costs the
//! server 16 microseconds of processor time for the whole cycle.
//!
//! The [runs of one ordering key](inbox_api::Store::claim) are something else: single messages, each with its own
//! lease, which a claim takes one behind the other where they are open. One call takes at most 500 of a key. Those
//! behind the first stand in the sorted set of leases below zero, where no claim looks, and in a list of
//! their key, from which the next one is taken when the first has ended.
//!
//! # Keys
//! Of shard 0 of an inbox named `inbox`; a *field* is the handler's name, NUL, the message id.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `{inbox:0}:meta` | hash | the marker: version, the oldest version whose builds work with it, number of shards, which shard; the last number drawn, and in which life of the server; which handlers are paused; of which moments payloads have been dropped |
//! | `…:ids` | hash | field → its number, when it is in a run; else where it stands, its number, times, token, attempts, worker |
//! | `…:runs` | sorted set | for each run by its first number: where it stands, as in `ids` |
//! | `…:blobs` | hash | a run's first number → its messages, until their payloads are dropped |
//! | `…:log` | stream | a part of a batch by its first number: field, fingerprint, kind, content type, headers of each message |
//! | `…:body` | hash | field → the same and the payload of a single message, until it is dropped |
//! | `…:errors`, `…:results` | hash | field → last error, and, with another NUL behind it, what became of earlier attempts; field → result |
//! | `…:counts` | hash | handler, state → how many; as state 5, how many dead ones hold up their ordering key |
//! | `…:due:HANDLER`, `…:run_due:HANDLER` | sorted set | what is pending and not blocked, by due time and number |
//! | `…:leased:HANDLER`, `…:run_leased:HANDLER` | sorted set | what is leased, by the lease's end and number; with that end below zero, what is leased behind others of its ordering key |
//! | `…:open:HANDLER` | sorted set | what is unfinished and has an ordering key, by key and number |
//! | `…:heads:HANDLER` | hash | ordering key → the message whose turn it is; with NUL behind it, those that were leased behind that one |
//! | `…:done:STATE:HANDLER` | stream | a moment → the numbers of all messages and runs that became final then |
//! | `…:dead` | sorted set | fields of dead letters by number |
//! | `…:late`, `…:statics` | sorted set, hash | the log's entries that came behind later ones of other shards' batches; kind and headers of edited messages |
//! | `…:places` | hash | field → the shard that a message of this home went to, for its ordering key; while that is being removed, a mark behind it |
//!
//! **A retained processed message without its payload takes under 250 bytes** when it was received
//! in large batches: about 180 bytes measured in batches of 100, 294 in batches of one, with ids of
//! 32 bytes and no headers. Deleted entries' memory is given back in nodes of a hundred entries; an
//! entry of the log when all its messages are purged. A number in `done` whose message was replayed or purged is passed over, and its
//! entry is dropped when none of its numbers means anything any more.
//!
//! # Scripts
//! Every operation is one script in each shard concerned, called by its digest; where the server
//! has forgotten it, it is loaded again. All keys are declared. The server's `TIME` is the only
//! clock. Redis runs a script to its end before anything else and replicates its writes together.
//! It does not undo what a script that fails has written, so scripts are made not to fail: the
//! marker is checked first; those that add much (`receive`, `begin`) are refused by a full server
//! before they begin, and those that drain (`claim`, `settle`, purges) or only look run on a full one.
//! [`ddl`](inbox_api::Schema::ddl) lists their digests.
//!
//! Nothing else runs meanwhile, so a script is given no more than it does in some fifty milliseconds:
//! claims, settlements, extensions, replays and purges go in steps of 500 messages. Lists, purges and changes of many
//! messages also count what takes longer, the runs that are taken apart and the parts of the log that are read, and go on
//! in another script after about so long. What does not: settlements and extensions that take much of a run each from
//! many runs, and the passing of messages that had become final together, each of another batch, and were replayed. A
//! receive in several shards goes in steps of 500, too. With one shard a script receives up to 10,000 messages and 64 MiB, and 1,000
//! messages with an ordering key, a due time or over 64 KiB; a greater batch takes several scripts, one
//! after the other, and one that fails ends it.
//!
//! For n messages of a call among N claimable ones:
//!
//! | script | cost |
//! |---|---|
//! | `receive` | O(n), and O(log N) for each run and each message by itself |
//! | `claim` | O(log N) for each run and each message by itself, and the bodies' length; blocked, future and finished messages cost nothing |
//! | `settle`, `extend` | O(n), O(log N) for each run and each message by itself, and for each ordering key concerned |
//! | `begin`, replay, discard | O(log N) |
//! | purge, dropping payloads | O(n), for each an entry of the log is found in O(log history); what was replayed or has neither payload nor result is passed once, up to 1,500 in a script; and O(handlers) to find the longest-finished of all |
//! | list, count | O(messages looked at), in steps of up to 1,000; dead letters by their own index; what is pending or leased where it waits, without the history, if that is no more than 5,000 in a shard, or of one ordering key; up to 1,000 ids of a handler by their keys |
//! | statistics | O(handlers · log N) |
//!
//! A lease that runs out is found in its sorted set by the next claim; nothing sweeps.
//!
//! # Retention
//! [`purge`](inbox_api::Operate::purge) as in every store, in steps of 500. Or
//! [`keep_processed`](RedisOptions::keep_processed): then each settlement also deletes up to twice
//! as many expired messages of its handlers as it completes, and no janitor is needed. Redis's own expiry is not
//! used: one key for each message would take more memory than the message, and could not be declared
//! by scripts; fields of hashes expire only on Redis 7.4 and later, not on Valkey; and neither would
//! keep the counts exact, nor spare what an operator has just replayed.
//!
//! # Together with the caller's own writes
//! Redis has no transaction that could be rolled back, so the store is not
//! [`Transactional`](inbox_api::Transactional), and
//! [`Capabilities::transactions`](inbox_api::Capabilities::transactions) is false.
//! [`RedisStore::settle_with`] does what can be done: it settles a lease and runs commands of the
//! caller's own on keys of the same shard, at once and only if the lease still stands.
//!
//! # Wake-ups
//! Scripts publish to the channel `inbox:wake:HANDLER`; each store listens on one connection of its
//! own while it has subscriptions, and mends it. Poll as well.
//!
#![doc = include_str!("../SETUP.md")]

mod begin;
mod claim;
mod client;
mod clocks;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connection;
mod cross_shard;
mod error;
mod extend;
mod keys;
mod node;
mod operate;
mod options;
mod receive;
mod reply;
mod rows;
mod schema;
mod scripts;
mod servers;
mod settle;
mod settle_with;
mod slots;
mod start_checks;
mod store;
mod wakeups;

/// The driver, whose values [`RedisStore::settle_with`] answers.
pub use redis;

pub use options::{Confirmations, RedisOptions, SCHEMES, StartChecks};
pub use settle_with::Command;
pub use store::RedisStore;

/// What a user of the server needs, for `ACL SETUSER name on >password` and these words, with the
/// inbox's name in both places of `INBOX`: see [Permissions](crate#permissions).
pub const ACL_RULES: &str = "~{INBOX:*}* &INBOX:wake:* \
    +evalsha +script|load +info +config|get +psubscribe +punsubscribe +ping +select +wait \
    +time +type +exists +unlink +publish \
    +hget +hmget +hset +hdel +hincrby +hkeys \
    +zadd +zrem +zscore +zcount +zrangebylex +zrangebyscore +zrevrangebyscore +zremrangebyscore \
    +xadd +xdel +xrange +xrevrange \
    +cluster|slots +asking";
