//! The names of keys, and which shard a message belongs to.

use inbox_api::{HandlerName, InboxName, Key, Message};

/// The scripts of migrations: step n brings a shard from version n to n + 1. Never changed once released.
pub(crate) const STEPS: &[&str] = &[];
/// The version of the layout of keys, which every shard's marker has. New shards are made in the newest.
pub(crate) const VERSION: u32 = 1 + STEPS.len() as u32;
/// The oldest version whose builds work with this layout. Raised by a step that they would not work with.
pub(crate) const WORKS_FROM: u32 = 1;

/// How many keys a shard has in addition to those of its handlers.
pub(crate) const SHARD_KEYS: usize = 13;
/// Their names, in the order in which scripts take them.
pub(crate) const NAMES: [&str; SHARD_KEYS] = [
    "meta", "ids", "log", "body", "errors", "results", "counts", "dead", "late", "statics", "runs",
    "blobs", "places",
];
pub(crate) const HANDLER_KEYS: usize = 9;
const HANDLER_NAMES: [&str; HANDLER_KEYS] = [
    "due",
    "leased",
    "open",
    "heads",
    "run_due",
    "run_leased",
    "done:processed",
    "done:dead",
    "done:discarded",
];

/// A cursor and a locator hold a sequence number above so many bits of shard.
const SHARD_BITS: u32 = 12;
/// The most shards of an inbox.
pub(crate) const MAX_SHARDS: u16 = 1 << SHARD_BITS;

/// The keys of one inbox.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    inbox: InboxName,
    shards: u16,
}

impl Layout {
    pub(crate) fn new(inbox: &InboxName, shards: u16) -> Self {
        Self {
            inbox: inbox.clone(),
            shards,
        }
    }

    pub(crate) fn shards(&self) -> u16 {
        self.shards
    }

    pub(crate) fn all(&self) -> std::ops::Range<u16> {
        0..self.shards
    }

    pub(crate) fn others(&self, one: u16) -> impl Iterator<Item = u16> {
        self.all().filter(move |shard| *shard != one)
    }

    /// The hash tag that all keys of a shard have.
    pub(crate) fn tag(&self, shard: u16) -> String {
        format!("{{{}:{shard}}}", self.inbox)
    }

    pub(crate) fn shard_keys(&self, shard: u16) -> [String; SHARD_KEYS] {
        let tag = self.tag(shard);
        NAMES.map(|name| format!("{tag}:{name}"))
    }

    /// The key of a shard's marker.
    pub(crate) fn meta(&self, shard: u16) -> String {
        format!("{}:meta", self.tag(shard))
    }

    pub(crate) fn handler_keys(&self, shard: u16, handler: &HandlerName) -> [String; HANDLER_KEYS] {
        let tag = self.tag(shard);
        HANDLER_NAMES.map(|name| format!("{tag}:{name}:{handler}"))
    }

    /// The channel of a handler's wake-ups is this and its name.
    pub(crate) fn channel(&self) -> String {
        format!("{}:wake:", self.inbox)
    }

    /// The slot of a shard's keys in a cluster.
    pub(crate) fn slot(&self, shard: u16) -> u16 {
        crc16(format!("{}:{shard}", self.inbox).as_bytes()) % 16_384
    }

    /// The shard of the message's id: that of a message without an ordering key, and the one that
    /// knows where the others went.
    pub(crate) fn home(&self, key: &Key) -> u16 {
        self.hash(key.id.as_str())
    }

    /// The shard that holds the message, unless an earlier copy had another ordering key.
    pub(crate) fn target(&self, message: &Message) -> u16 {
        match message.ordering_key() {
            Some(ordering_key) => self.hash(ordering_key.as_str()),
            None => self.home(message.key()),
        }
    }

    /// FNV-1a, 64 bits. Part of the schema: it must never change.
    fn hash(&self, text: &str) -> u16 {
        if self.shards == 1 {
            return 0;
        }
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        u16::try_from(hash % u64::from(self.shards)).unwrap_or(0)
    }

    /// Shard and sequence number of a locator; `None` for one that this inbox never made.
    pub(crate) fn located(&self, locator: u64) -> Option<(u16, u64)> {
        let shard = u16::try_from(locator % u64::from(MAX_SHARDS)).ok()?;
        (shard < self.shards).then_some((shard, locator >> SHARD_BITS))
    }
}

/// Where a lease's message is found again.
pub(crate) fn locator(shard: u16, seq: u64) -> u64 {
    (seq << SHARD_BITS) | u64::from(shard)
}

/// The field of a message in its shard's hashes.
pub(crate) fn field(key: &Key) -> String {
    format!("{}\0{}", key.handler, key.id)
}

/// The checksum by which Redis Cluster finds a key's slot (CRC-16/XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
    }

    #[test]
    fn locators_round_trip_and_foreign_ones_are_refused() {
        let layout = Layout::new(&InboxName::default(), 3);
        assert_eq!(layout.located(locator(2, 77)), Some((2, 77)));
        assert_eq!(layout.located(locator(3, 77)), None);
        assert_eq!(layout.located(u64::MAX), None);
    }

    #[test]
    fn every_key_of_a_shard_has_its_tag_first() {
        let layout = Layout::new(&InboxName::new("orders").unwrap(), 8);
        let handler = HandlerName::new("a}{b").unwrap();
        let keys = layout.handler_keys(7, &handler);
        assert!(keys.iter().all(|key| key.starts_with("{orders:7}:")));
    }
}
