//! The peers, with their best documented settings and with their defaults.

use super::Kind;

/// A peer with some settings on some server.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Below `benchmarks/peers`.
    pub(super) folder: &'static str,
    pub(super) server: Kind,
    /// As the program knows them.
    pub(super) settings: &'static str,
    /// What of an inbox's contract it keeps.
    pub(super) contract: &'static str,
    /// It gets one in so many of the messages, since it is slow, or (apalis on Redis) fails when
    /// more are waiting.
    pub(super) part: u64,
}

const APALIS: &str = "worker's name as fence, deduplication unused, batches";
const AWA: &str = "fenced, deduplication unused, batches";
const GRAPHILE: &str =
    "worker's name as fence, deduplication unused, batches, deletes what is done";
const OBIX: &str = "not fenced, deduplicating, one by one";
const OUTBOX: &str = "row lock while the handler runs, deduplicating, one by one";
const PGMQ: &str = "not fenced, not deduplicating, batches, deletes what is done";
const PGQRS: &str = "worker's id as fence, not deduplicating, batches";
const SQL: &str = "row locks while handlers run, deduplicating, batches";

pub(super) const PEERS: &[Peer] = &[
    Peer {
        name: "awa",
        folder: "awa",
        server: Kind::Postgres,
        settings: "256 workers",
        contract: AWA,
        part: 1,
    },
    Peer {
        name: "awa",
        folder: "awa",
        server: Kind::Postgres,
        settings: "256 workers, no deadline",
        contract: AWA,
        part: 1,
    },
    Peer {
        name: "awa",
        folder: "awa",
        server: Kind::Postgres,
        settings: "1024 workers, no deadline, 4 claimers",
        contract: AWA,
        part: 1,
    },
    Peer {
        name: "graphile_worker",
        folder: "graphile-worker",
        server: Kind::Postgres,
        settings: "plain, 100 workers",
        contract: GRAPHILE,
        part: 4,
    },
    Peer {
        name: "graphile_worker",
        folder: "graphile-worker",
        server: Kind::Postgres,
        settings: "local queue of 5000, 500 workers",
        contract: GRAPHILE,
        part: 1,
    },
    Peer {
        name: "pgmq",
        folder: "pgmq",
        server: Kind::Postgres,
        settings: "2 consumers",
        contract: PGMQ,
        part: 1,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Postgres,
        settings: "default",
        contract: APALIS,
        part: 10,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Postgres,
        settings: "batch 500",
        contract: APALIS,
        part: 1,
    },
    Peer {
        name: "plain-sql",
        folder: "plain-sql",
        server: Kind::Postgres,
        settings: "2 workers, batches of 1000",
        contract: SQL,
        part: 1,
    },
    Peer {
        name: "pgqrs",
        folder: "pgqrs",
        server: Kind::Postgres,
        settings: "4 consumers, batch 50",
        contract: PGQRS,
        part: 2,
    },
    Peer {
        name: "pgqrs",
        folder: "pgqrs",
        server: Kind::Postgres,
        settings: "2 consumers, batch 500",
        contract: PGQRS,
        part: 2,
    },
    Peer {
        name: "obix",
        folder: "obix",
        server: Kind::Postgres,
        settings: "default, 50 connections",
        contract: OBIX,
        part: 20,
    },
    Peer {
        name: "pg-transactional-outbox",
        folder: "pg-transactional-outbox",
        server: Kind::Postgres,
        settings: "batch 50",
        contract: OUTBOX,
        part: 50,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Sqlite,
        settings: "default",
        contract: APALIS,
        part: 10,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Sqlite,
        settings: "batch 500",
        contract: APALIS,
        part: 10,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Redis,
        settings: "default",
        contract: APALIS,
        part: 10,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Redis,
        settings: "batch 500",
        contract: APALIS,
        part: 10,
    },
    Peer {
        name: "apalis",
        folder: "apalis",
        server: Kind::Redis,
        settings: "batch 500, not locked",
        contract: APALIS,
        part: 10,
    },
];
