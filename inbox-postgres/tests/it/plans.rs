//! What the statements read: never a whole table, and no more with a backlog or a history than
//! without, whatever the tables looked like when their plans were made.
//!
//! Measured by the server's own counters of scans and rows, which count what was really read in
//! functions as well.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{
    AfterDead, ClaimRequest, Due, Edit, Filter, HandlerStatistics, Key, Lease, LeaseTerms, Message,
    Operate as _, Page, PurgeRequest, Settlement, Slice, State, Store as _, Transactional as _,
};
use inbox_postgres::PostgresStore;
use sqlx::{Executor as _, PgPool, postgres::PgPoolOptions};

use crate::common::*;

/// How many messages are there of each sort when there are many.
const MANY: i64 = 100_000;

/// The tables that grow with the backlog or the history. The tally does not, and is read whole.
const GROWING: &str = "('inbox_message', 'inbox_work', 'inbox_done', 'inbox_ordering')";

/// Longer than this takes on a slow machine: what a statement removes stays in the indexes here, and
/// would be in the way of claims from then on.
const LONG: Duration = Duration::from_secs(3600);

/// Of the handler `h`, under long leases.
fn long(limit: u32) -> ClaimRequest {
    ClaimRequest {
        terms: LeaseTerms::new(LONG, worker()).unwrap(),
        ..request(limit)
    }
}

/// A store with one connection, whose plans are made once.
struct Measured {
    place: TestInbox,
    pool: PgPool,
    store: PostgresStore,
    next: usize,
}

/// What one operation has read.
#[derive(Clone, Debug, PartialEq)]
struct Reads {
    whole_tables: i64,
    rows: i64,
}

impl Measured {
    async fn new(url: &str) -> Self {
        let place = TestInbox::at(url.to_owned());
        let store = place.store().await;
        store.close().await;
        Self::on(place).await
    }

    async fn on(place: TestInbox) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(connection_options(&place.url))
            .await
            .unwrap();
        Self {
            store: PostgresStore::with_pool(pool.clone(), place.options.clone()),
            place,
            pool,
            next: 0,
        }
    }

    async fn vacuum(&self) {
        for table in ["message", "work", "done", "ordering", "tally"] {
            let sql = format!("VACUUM ANALYZE {{schema}}.inbox_{table}");
            self.place.run(&sql).await.unwrap();
        }
    }

    /// The counters, with all that this store's connection has done so far.
    async fn counters(&self) -> Reads {
        // Backends report at intervals unless told to.
        self.pool
            .execute("SELECT pg_stat_force_next_flush()")
            .await
            .unwrap();
        self.pool.execute("SELECT 1").await.unwrap();
        let schema = &self.place.schema.name;
        let whole_tables = format!(
            "SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables
             WHERE schemaname = '{schema}' AND relname IN {GROWING}"
        );
        let rows = format!(
            "SELECT (
                 SELECT sum(seq_tup_read) FROM pg_stat_user_tables
                 WHERE schemaname = '{schema}' AND relname IN {GROWING}
             )::bigint + (
                 SELECT sum(idx_tup_read) FROM pg_stat_user_indexes
                 WHERE schemaname = '{schema}' AND relname IN {GROWING}
             )::bigint"
        );
        Reads {
            whole_tables: self.place.value(&whole_tables).await,
            rows: self.place.value(&rows).await,
        }
    }

    fn fresh(&mut self, count: usize) -> Vec<Message> {
        self.next += count;
        (self.next - count..self.next)
            .map(|n| message(&format!("fresh {n}")))
            .collect()
    }

    async fn claimed(&self, limit: u32) -> Vec<Lease> {
        let claims = self.store.claim(&long(limit)).await.unwrap();
        claims
            .leased
            .into_iter()
            .map(|leased| leased.lease)
            .collect()
    }

    async fn settle_as(&self, leases: &[Lease], outcome: &inbox_api::Outcome) {
        let settlements: Vec<_> = leases
            .iter()
            .map(|lease| Settlement {
                lease: lease.clone(),
                outcome: outcome.clone(),
            })
            .collect();
        let _ = self.store.settle(&settlements).await.unwrap();
    }

    /// Says what has been read since `before`.
    async fn note(
        &self,
        name: &'static str,
        all: &mut BTreeMap<&'static str, Reads>,
        before: &mut Reads,
    ) {
        let after = self.counters().await;
        all.insert(
            name,
            Reads {
                whole_tables: after.whole_tables - before.whole_tables,
                rows: after.rows - before.rows,
            },
        );
        *before = after;
    }

    /// Of an ordering key with a few unfinished messages, or with many.
    async fn runs(&mut self, all: &mut BTreeMap<&'static str, Reads>, before: &mut Reads) {
        let batch: Vec<Message> = (0..20)
            .map(|_| {
                self.next += 1;
                ordered(&format!("run {}", self.next), "long").for_handler(handler("runs"))
            })
            .collect();
        self.store.receive(&batch).await.unwrap();
        self.note("receive of a long ordering key", all, before)
            .await;
        let request = ClaimRequest {
            handlers: vec![handler("runs")],
            run_limit: 10,
            ..long(50)
        };
        let claims = self.store.claim(&request).await.unwrap();
        self.note("claim a run", all, before).await;
        let leases: Vec<Lease> = claims.leased.into_iter().map(|l| l.lease).collect();
        assert_eq!(leases.len(), 10);
        let leased = Filter {
            states: vec![State::Leased],
            handler: Some(handler("runs")),
            ..Filter::default()
        };
        let listed = self.store.list(&leased, &Page::first(20)).await.unwrap();
        assert_eq!(listed.records.len(), 10, "those behind others included");
        self.note("list the leased", all, before).await;
        self.settle_as(&leases[..1], &processed()).await;
        self.note("settle the first of a run", all, before).await;
        self.settle_as(&leases[1..2], &retry(Duration::ZERO)).await;
        self.note("settle the next of a run", all, before).await;
        self.store.statistics().await.unwrap();
        self.note("statistics with a run", all, before).await;
        self.settle_as(&leases[2..9], &processed()).await;
        self.note("settle most of a run", all, before).await;
        self.settle_as(&leases[9..], &inbox_api::Outcome::Release)
            .await;
        self.note("settle the rest of a run", all, before).await;
    }

    /// Runs every operation once and says what each has read.
    async fn everything(&mut self) -> BTreeMap<&'static str, Reads> {
        let mut all = BTreeMap::new();
        let mut before = self.counters().await;
        macro_rules! measure {
            ($name:literal, $operation:expr) => {{
                let answer = $operation;
                self.note($name, &mut all, &mut before).await;
                answer
            }};
        }
        let batch = self.fresh(100);
        measure!("receive", self.store.receive(&batch).await.unwrap());
        measure!(
            "receive duplicates",
            self.store.receive(&batch).await.unwrap()
        );
        let in_order: Vec<Message> = (0..20)
            .map(|n| {
                self.next += 1;
                ordered(&format!("ordered {}", self.next), &format!("key {}", n % 5))
            })
            .collect();
        measure!(
            "receive in order",
            self.store.receive(&in_order).await.unwrap()
        );
        let leases = measure!("claim", self.claimed(100).await);
        assert_eq!(leases.len(), 100);
        measure!("extend", self.store.extend(&leases, LONG).await.unwrap());
        measure!(
            "settle processed",
            self.settle_as(&leases[..40], &processed()).await
        );
        measure!(
            "settle retry",
            self.settle_as(&leases[40..60], &retry(Duration::from_secs(3600)))
                .await
        );
        measure!(
            "settle dead",
            self.settle_as(&leases[60..80], &dead(AfterDead::Continue))
                .await
        );
        measure!(
            "settle deferral",
            self.settle_as(&leases[80..90], &defer(Duration::from_secs(3600)))
                .await
        );
        measure!(
            "settle release",
            self.settle_as(&leases[90..], &inbox_api::Outcome::Release)
                .await
        );
        measure!("settle again", self.settle_as(&leases, &processed()).await);
        let several = ClaimRequest {
            handlers: ["other", "h", "third"].map(handler).to_vec(),
            ..long(50)
        };
        let claims = measure!(
            "claim for several handlers",
            self.store.claim(&several).await.unwrap()
        );
        let rest: Vec<Lease> = claims.leased.into_iter().map(|l| l.lease).collect();
        measure!("settle in order", self.settle_as(&rest, &processed()).await);
        self.runs(&mut all, &mut before).await;
        let new = self.fresh(1).remove(0);
        measure!("begin new", begin(&self.store, &new).await);
        let _ = measure!(
            "begin known",
            self.store.begin(&batch[0], &terms()).await.unwrap()
        );
        let new = self.fresh(1).remove(0);
        let mut transaction = self.store.open().await.unwrap();
        let recorded = self.store.record_in(&mut transaction, &new, None).await;
        assert_eq!(recorded.unwrap(), inbox_api::Recorded::First);
        self.store.commit(transaction).await.unwrap();
        measure!("record", ());
        let record = measure!("get", self.store.get(new.key()).await.unwrap());
        assert!(record.is_some());
        let _ = measure!(
            "replay",
            self.store
                .replay(new.key(), &Edit::default())
                .await
                .unwrap()
        );
        let _ = measure!("discard", self.store.discard(new.key()).await.unwrap());
        measure!(
            "list",
            self.store
                .list(&Filter::default(), &Page::first(20))
                .await
                .unwrap()
        );
        let newest = Page {
            newest_first: true,
            ..Page::first(20)
        };
        measure!(
            "list the newest",
            self.store.list(&Filter::default(), &newest).await.unwrap()
        );
        let dead = Filter {
            states: vec![State::Dead],
            ..Filter::default()
        };
        let listed = measure!(
            "list the dead",
            self.store.list(&dead, &Page::first(10)).await.unwrap()
        );
        assert_eq!(listed.records.len(), 10);
        measure!("statistics", self.store.statistics().await.unwrap());
        let slice = Slice {
            after: None,
            limit: 5,
        };
        let progress = measure!(
            "replay the dead",
            self.store.replay_slice(&dead, &slice).await.unwrap()
        );
        assert_eq!(progress.changed, 5);
        let progress = measure!(
            "discard the dead",
            self.store.discard_slice(&dead, &slice).await.unwrap()
        );
        assert_eq!(progress.changed, 5);
        let named = Filter {
            ids: batch.iter().take(5).map(|m| m.id().clone()).collect(),
            ..Filter::default()
        };
        let listed = measure!(
            "list by id",
            self.store.list(&named, &Page::first(10)).await.unwrap()
        );
        assert_eq!(listed.records.len(), 5);
        let later = Due::After(Duration::from_secs(3600));
        let [one, ..] = batch.as_slice() else {
            unreachable!()
        };
        let _ = self.store.discard(one.key()).await.unwrap();
        let _ = self
            .store
            .replay(one.key(), &Edit::default())
            .await
            .unwrap();
        measure!("before rescheduling", ());
        let _ = measure!(
            "reschedule",
            self.store.reschedule(one.key(), later).await.unwrap()
        );
        let progress = measure!(
            "reschedule the first",
            self.store
                .reschedule_slice(&Filter::default(), &slice, later)
                .await
                .unwrap()
        );
        assert_eq!(progress.changed, 5);
        measure!("pause", self.store.pause(&handler("h")).await.unwrap());
        let nothing = measure!("claim of what is paused", self.claimed(10).await);
        assert_eq!(nothing, []);
        measure!("resume", self.store.resume(&handler("h")).await.unwrap());

        // Of a handler with few messages, next to one with many.
        self.next += 1;
        let quiet = message(&format!("quiet {}", self.next)).for_handler(handler("quiet"));
        let quiet = begin(&self.store, &quiet).await.lease;
        self.settle_as(std::slice::from_ref(&quiet), &processed())
            .await;
        measure!("before the quiet one's retention", ());
        let of_quiet = PurgeRequest::new(State::Processed, Duration::ZERO, 10)
            .unwrap()
            .for_handler(handler("quiet"));
        for (name, dropped) in [("drop one payload", 1), ("drop it again", 0)] {
            let answer = self.store.drop_payloads(&of_quiet).await.unwrap();
            assert_eq!(answer, dropped, "{name}");
        }
        measure!("drop the quiet one's payloads", ());
        let purged = measure!(
            "purge the quiet one's",
            self.store.purge(&of_quiet).await.unwrap()
        );
        assert_eq!(purged, 1);

        let processed = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
        let dropped = measure!(
            "drop payloads",
            self.store.drop_payloads(&processed).await.unwrap()
        );
        assert_eq!(dropped, 10);
        let expired = measure!("expired", self.store.expired(&processed).await.unwrap());
        let keys: Vec<Key> = expired.records.into_iter().map(|r| r.key).collect();
        assert_eq!(keys.len(), 10);
        measure!(
            "purge what was archived",
            self.store.purge_archived(&processed, &keys).await.unwrap()
        );
        let purged = measure!("purge", self.store.purge(&processed).await.unwrap());
        assert_eq!(purged, 10);
        for (name, state) in [("dead", State::Dead), ("discarded", State::Discarded)] {
            let expired = PurgeRequest::new(state, Duration::ZERO, 5).unwrap();
            assert_eq!(self.store.purge(&expired).await.unwrap(), 5, "{name}");
        }
        measure!("purge others", ());
        let _ = before;
        all
    }

    /// Many messages of every sort, by SQL that knows the tables. The counters of statistics are
    /// filled as well.
    async fn fill(&self) {
        self.place
            .run(&format!(
                r#"
                INSERT INTO {{schema}}.inbox_message
                    (seq, accepted_at, fingerprint, handler, id, kind, ordering_key, headers, payload)
                SELECT 100000000 + n, now() - interval '1 hour', 0, 'h', 'many ' || n, 'k',
                    CASE WHEN n > {MANY} * 2 THEN 'many ' || n % 100 END, '{{}}', 'x'
                FROM generate_series(1, {MANY} * 3) AS n;
                INSERT INTO {{schema}}.inbox_message
                    (seq, accepted_at, fingerprint, handler, id, kind, ordering_key, headers, payload)
                SELECT 100000000 + n, now() - interval '1 hour', 0, 'runs', 'many ' || n, 'k', 'long',
                    '{{}}', 'x'
                FROM generate_series({MANY} * 3 + 1, {MANY} * 4) AS n;
                SELECT setval('{{schema}}.inbox_seq', 200000000);

                INSERT INTO {{schema}}.inbox_done
                    (seq, due_at, finished_at, token, started, finished, replays, state, content, handler)
                SELECT 100000000 + n, now(), now() - n * interval '1 millisecond', 1, 1, 1, 0,
                    CASE WHEN n % 10 = 0 THEN 4 ELSE 2 END, true, 'h'
                FROM generate_series(1, {MANY}) AS n;

                -- Pending without an ordering key, a part of them due.
                INSERT INTO {{schema}}.inbox_work
                    (seq, visible_at, due_at, token, started, finished, replays, state, claimable,
                    blocks, handler, finished_at)
                SELECT 100000000 + n, due, due, 0, 0, 0, 0, CASE WHEN n % 50 = 0 THEN 3 ELSE 0 END,
                    n % 50 <> 0, false, 'h', CASE WHEN n % 50 = 0 THEN now() END
                FROM generate_series({MANY} + 1, {MANY} * 2) AS n
                CROSS JOIN LATERAL (
                    SELECT now() + (n % 100 - 50) * interval '1 minute' AS due
                ) AS d;

                -- Pending behind the first of their ordering keys, which are due after all others, so that
                -- as few of what is claimed have an ordering key as there were with few messages.
                INSERT INTO {{schema}}.inbox_ordering (handler, ordering_key, changes)
                SELECT 'h', 'many ' || n, 1 FROM generate_series(0, 99) AS n;
                INSERT INTO {{schema}}.inbox_work
                    (seq, visible_at, due_at, token, started, finished, replays, state, claimable,
                    blocks, handler, ordering_key)
                SELECT 100000000 + n, now() - interval '10 seconds', now(), 0, 0, 0, 0, 0,
                    n <= {MANY} * 2 + 100, false, 'h', 'many ' || n % 100
                FROM generate_series({MANY} * 2 + 1, {MANY} * 3) AS n;

                -- Pending behind a few of their ordering key.
                INSERT INTO {{schema}}.inbox_work
                    (seq, visible_at, due_at, token, started, finished, replays, state, claimable,
                    blocks, handler, ordering_key)
                SELECT 100000000 + n, now(), now(), 0, 0, 0, 0, 0, false, false, 'runs', 'long'
                FROM generate_series({MANY} * 3 + 1, {MANY} * 4) AS n;

                INSERT INTO {{schema}}.inbox_tally
                    (handler, pending, processed, dead, discarded)
                VALUES ('runs', {MANY}, 0, 0, 0), ('h', {MANY} * 2 - {MANY} / 50, {MANY} - {MANY} / 10, {MANY} / 50,
                    {MANY} / 10)
                "#
            ))
            .await
            .unwrap();
    }
}

fn compare(few: &BTreeMap<&'static str, Reads>, many: &BTreeMap<&'static str, Reads>, when: &str) {
    let mut bad = Vec::new();
    for (name, many) in many {
        let few = &few[name];
        // Index pages that are split or not make a small difference.
        let mut bound = few.rows * 2 + 100;
        if name.starts_with("statistics") {
            bound += HandlerStatistics::DUE_COUNTED as i64;
        }
        if many.whole_tables > 0 || many.rows > bound {
            bad.push(format!("{name}: {many:?}, with few messages {few:?}"));
        }
    }
    assert!(bad.is_empty(), "{when}:\n{}", bad.join("\n"));
}

#[tokio::test]
async fn no_operation_reads_more_with_a_backlog_and_a_history() {
    // No plan is made again because statistics are, and nobody else's snapshot keeps removed rows
    // in the way.
    let Some(server) = own_server_with(&["autovacuum=off"]) else {
        return;
    };
    let mut measured = Measured::new(server.url()).await;
    // Plans are made on empty, vacuumed tables, and kept: a statement's generic plan is made at
    // its sixth execution.
    measured.vacuum().await;
    let mut few = BTreeMap::new();
    for round in 0..8 {
        few = measured.everything().await;
        if round == 0 {
            measured.vacuum().await;
        }
    }
    measured.fill().await;
    check_filled(&measured).await;
    for _ in 0..2 {
        let many = measured.everything().await;
        compare(&few, &many, "with plans from when the tables were empty");
    }
    // With plans that know about the many.
    measured.vacuum().await;
    let Measured { place, next, .. } = measured;
    let mut measured = Measured::on(place).await;
    measured.next = next;
    for _ in 0..8 {
        let many = measured.everything().await;
        compare(&few, &many, "with plans from when the tables were full");
    }
    check_filled(&measured).await;
}

/// The SQL that fills the tables makes an inbox as the store would.
async fn check_filled(measured: &Measured) {
    assert_eq!(measured.place.broken_rules().await, [""; 0]);
}

#[tokio::test]
async fn a_purge_of_all_handlers_reads_messages_of_a_few_at_a_time() {
    const HANDLERS: i64 = 200;
    const OF_EACH: i64 = 100;
    let Some(url) = shared_url() else { return };
    let measured = Measured::new(&url).await;
    measured
        .place
        .run(&format!(
            "SELECT {{schema}}.inbox_record('h' || n % {HANDLERS}, n::text, 'k', NULL, NULL, '{{}}', '', NULL,
                 NULL, 0, NULL, false, false)
             FROM generate_series(1, {HANDLERS} * {OF_EACH}) AS n"
        ))
        .await
        .unwrap();
    // The first look at the inbox, too.
    let one = PurgeRequest::new(State::Processed, Duration::ZERO, 1).unwrap();
    assert_eq!(measured.store.purge(&one).await.unwrap(), 1);
    let before = measured.counters().await;
    let slices = PurgeRequest::new(State::Processed, Duration::ZERO, 300).unwrap();
    assert_eq!(measured.store.purge(&slices).await.unwrap(), 300);
    let read = measured.counters().await.rows - before.rows;
    assert!(read < HANDLERS * OF_EACH, "{read}");
}
