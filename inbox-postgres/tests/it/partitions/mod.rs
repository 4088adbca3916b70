//! Inboxes in partitions, a subject in each file, and what they share.

mod dropping;
mod set_up;
mod statements;
mod upkeep;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use inbox_api::{
    AfterDead, Begun, ClaimRequest, Edit, ErrorKind, Filter, Intervention, Message, Operate as _,
    Page, PurgeRequest, Receipt, Recorded, Schema as _, Settled, Settlement, State, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_postgres::{Partitions, PostgresOptions, PostgresStore};
use sqlx::PgConnection;

use crate::common::*;

const HOUR: Duration = Duration::from_secs(3600);

/// More than a purge would rather delete row by row.
const PLENTY: usize = 1200;

/// Each purge begins a new partition, unless nothing was received since the last one.
async fn partitioned() -> Option<Ready> {
    ready_with(|options| options.partitions(Some(Partitions::every(Duration::ZERO).patience(HOUR))))
        .await
}

fn expired(state: State, limit: u32) -> PurgeRequest {
    PurgeRequest::new(state, Duration::ZERO, limit).unwrap()
}

/// A purge that finds nothing old enough.
async fn next_partition(store: &PostgresStore) {
    let never = PurgeRequest::new(State::Dead, 1000 * 24 * HOUR, 1).unwrap();
    assert_eq!(store.purge(&never).await.unwrap(), 0);
}

/// The numbers of the partitions that are there, those taken out of their tables included.
async fn partitions(place: &TestInbox) -> Vec<i64> {
    place
        .column("SELECT number FROM {schema}.inbox_partition ORDER BY number")
        .await
}

/// Those that are still part of their tables.
async fn attached(place: &TestInbox) -> Vec<String> {
    place
        .column(
            "SELECT c.relname::text FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = '{schema}.inbox_message'::regclass ORDER BY 1",
        )
        .await
}

fn messages(prefix: &str, count: usize) -> Vec<Message> {
    (0..count)
        .map(|n| message(&format!("{prefix} {n}")))
        .collect()
}

async fn receive(store: &PostgresStore, messages: &[Message]) {
    for batch in messages.chunks(500) {
        let receipts = store.receive(batch).await.unwrap();
        assert!(receipts.iter().all(|r| *r == Receipt::Accepted));
    }
}

async fn process_all(store: &PostgresStore) {
    loop {
        let leased = claim(store, 500).await;
        if leased.is_empty() {
            return;
        }
        let settlements: Vec<_> = leased
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: processed(),
            })
            .collect();
        let settled = store.settle(&settlements).await.unwrap();
        assert!(settled.iter().all(|s| *s == Settled::Done));
    }
}

/// Purges as a janitor does, and returns how many messages that were.
async fn sweep(store: &PostgresStore, state: State) -> u64 {
    let mut total = 0;
    loop {
        let purged = store.purge(&expired(state, 1000)).await.unwrap();
        total += purged;
        if purged < 1000 {
            return total;
        }
    }
}

/// Each message has its key, and each key its message unless its partition was dropped.
async fn check(ready: &Ready) {
    check_consistent(ready).await;
    let wrong: Vec<String> = ready
        .place
        .column(
            "SELECT coalesce(m.id, k.id) FROM {schema}.inbox_message AS m
             FULL JOIN {schema}.inbox_key AS k
                 ON (k.handler, k.id, k.seq, k.fingerprint)
                     = (m.handler, m.id, m.seq, m.fingerprint)
             WHERE m.seq IS NULL OR k.seq IS NULL",
        )
        .await;
    assert_eq!(wrong, [""; 0]);
}
