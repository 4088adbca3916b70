//! What the statements read: no more with a backlog and a history than without. Measured by the
//! server's own counters of the rows that a session has read.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{
    AfterDead, ClaimRequest, Due, Edit, Filter, Intervention, Lease, Message, Operate as _,
    OrderingKey, Outcome, Page, PurgeRequest, Settled, Settlement, Slice, State, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_mysql::MySqlStore;
use sqlx::{MySqlPool, mysql::MySqlPoolOptions};

use crate::common::{
    self, TestInbox, accept, claim, dead, defer, handler, key, message, on_each, ordered,
    processed, terms,
};

/// How many messages of each sort there are when there are many.
const MANY: i64 = 20_000;
/// What may differ: the servers count what they read to show the counters, too.
const SLACK: i64 = 2_000;

/// A store with one connection, whose counters can be read.
struct Measured {
    pool: MySqlPool,
    store: MySqlStore,
    next: usize,
}

impl Measured {
    async fn new(inbox: &TestInbox) -> Self {
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .connect_with(common::connect_options(&inbox.url, Some(&inbox.database)))
            .await
            .unwrap();
        Self {
            store: MySqlStore::with_pool(pool.clone(), inbox.options.clone())
                .await
                .unwrap(),
            pool,
            next: 0,
        }
    }

    async fn rows_read(&self) -> i64 {
        self.sum_of("SHOW SESSION STATUS LIKE 'Handler_read%'")
            .await
    }

    /// Rows of temporary tables, and what is written, too.
    async fn rows_touched(&self) -> i64 {
        self.sum_of("SHOW SESSION STATUS LIKE 'Handler%'").await
    }

    async fn sum_of(&self, counters: &'static str) -> i64 {
        let counters: Vec<(String, String)> = sqlx::query_as(counters)
            .fetch_all(&self.pool)
            .await
            .unwrap();
        let counts = counters.iter().map(|(_, count)| count.parse::<i64>());
        counts.sum::<Result<i64, _>>().unwrap()
    }

    fn fresh(&mut self, count: usize) -> Vec<Message> {
        self.next += count;
        (self.next - count..self.next)
            .map(|n| message(&format!("fresh {n}")))
            .collect()
    }

    async fn claimed(&self, limit: u32) -> Vec<Lease> {
        let leased = claim(&self.store, limit).await;
        leased.into_iter().map(|leased| leased.lease).collect()
    }

    async fn settle_as(&self, leases: &[Lease], outcome: &Outcome) {
        let settlements: Vec<_> = leases
            .iter()
            .map(|lease| Settlement {
                lease: lease.clone(),
                outcome: outcome.clone(),
            })
            .collect();
        let _ = self.store.settle(&settlements).await.unwrap();
    }

    /// A run of ten of one ordering key, whatever waits behind it.
    async fn claimed_run(&self) -> Vec<Lease> {
        let request = ClaimRequest {
            handlers: vec![handler("r")],
            limit: 10,
            terms: terms(),
            run_limit: 10,
        };
        let leased = self.store.claim(&request).await.unwrap().leased;
        assert_eq!(leased.len(), 10);
        leased.into_iter().map(|leased| leased.lease).collect()
    }

    /// Four processed messages of another handler.
    async fn retention_of_another(&mut self) {
        let batch: Vec<_> = self.fresh(4);
        let batch: Vec<_> = batch.iter().map(|m| m.for_handler(handler("o"))).collect();
        let _ = self.store.receive(&batch).await.unwrap();
        let request = ClaimRequest {
            handlers: vec![handler("o")],
            limit: 4,
            terms: terms(),
            run_limit: 1,
        };
        let leased = self.store.claim(&request).await.unwrap().leased;
        assert_eq!(leased.len(), 4);
        let leases: Vec<Lease> = leased.into_iter().map(|l| l.lease).collect();
        self.settle_as(&leases, &processed()).await;
    }

    /// Runs every operation once and says how many rows each has read.
    async fn everything(&mut self) -> BTreeMap<&'static str, i64> {
        let mut all = BTreeMap::new();
        let mut before = self.rows_read().await;
        macro_rules! measure {
            ($name:literal, $operation:expr) => {{
                let answer = $operation;
                let after = self.rows_read().await;
                all.insert($name, after - before);
                before = after;
                answer
            }};
        }
        let batch = self.fresh(100);
        let _ = measure!("receive", self.store.receive(&batch).await.unwrap());
        let _ = measure!("duplicates", self.store.receive(&batch).await.unwrap());
        let in_order: Vec<Message> = (0..20)
            .map(|n| {
                self.next += 1;
                ordered(&format!("ordered {}", self.next), &format!("key {}", n % 5))
            })
            .collect();
        let _ = measure!("in order", self.store.receive(&in_order).await.unwrap());
        let leases = measure!("claim", self.claimed(100).await);
        assert_eq!(leases.len(), 100);
        let length = Duration::from_secs(30);
        let _ = measure!("extend", self.store.extend(&leases, length).await.unwrap());
        let (first, rest) = leases.split_at(40);
        measure!("processed", self.settle_as(first, &processed()).await);
        let retry = Outcome::Retry {
            after: Duration::from_secs(3600),
            error: "later".into(),
        };
        measure!("retry", self.settle_as(&rest[..20], &retry).await);
        let given_up = dead(AfterDead::Continue);
        measure!("dead", self.settle_as(&rest[20..40], &given_up).await);
        let deferral = defer(Duration::from_secs(3600));
        measure!("deferral", self.settle_as(&rest[40..50], &deferral).await);
        measure!(
            "release",
            self.settle_as(&rest[50..], &Outcome::Release).await
        );
        measure!("settle again", self.settle_as(first, &processed()).await);
        let several = ClaimRequest {
            handlers: ["other", "h", "third"].map(handler).to_vec(),
            limit: 50,
            terms: terms(),
            run_limit: 1,
        };
        let claims = measure!("several", self.store.claim(&several).await.unwrap());
        let rest: Vec<Lease> = claims.leased.into_iter().map(|l| l.lease).collect();
        measure!("settle in order", self.settle_as(&rest, &processed()).await);
        let new = self.fresh(2);
        let _ = measure!("begin", self.store.begin(&new[0], &terms()).await.unwrap());
        let mut transaction = self.store.open().await.unwrap();
        let recorded = self.store.record_in(&mut transaction, &new[1], None).await;
        assert_eq!(recorded.unwrap(), inbox_api::Recorded::First);
        self.store.commit(transaction).await.unwrap();
        measure!("record", ());
        let record = measure!("get", self.store.get(new[1].key()).await.unwrap());
        assert!(record.is_some());
        let _ = measure!(
            "replay",
            self.store
                .replay(new[1].key(), &Edit::default())
                .await
                .unwrap()
        );
        let _ = measure!("discard", self.store.discard(new[1].key()).await.unwrap());
        let newest = Page {
            newest_first: true,
            ..Page::first(20)
        };
        let any = Filter::default();
        measure!(
            "list",
            self.store.list(&any, &Page::first(20)).await.unwrap()
        );
        measure!("newest", self.store.list(&any, &newest).await.unwrap());
        let dead = Filter {
            states: vec![State::Dead],
            ..Filter::default()
        };
        measure!(
            "dead ones",
            self.store.list(&dead, &Page::first(5)).await.unwrap()
        );
        measure!("statistics", self.store.statistics().await.unwrap());
        let slice = Slice {
            after: None,
            limit: 5,
        };
        let progress = self.store.replay_slice(&dead, &slice).await.unwrap();
        measure!("replay slice", assert_eq!(progress.changed, 5));
        let progress = self.store.discard_slice(&dead, &slice).await.unwrap();
        measure!("discard slice", assert_eq!(progress.changed, 5));
        let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
        let listed = measure!("expired", self.store.expired(&expired).await.unwrap());
        let keys: Vec<_> = listed.records.into_iter().map(|r| r.key).collect();
        let archived = self.store.purge_archived(&expired, &keys).await.unwrap();
        measure!("purge archived", assert_eq!(archived, 10));
        let purged = self.store.purge(&expired).await.unwrap();
        measure!("purge", assert_eq!(purged, 10));
        self.retention_of_another().await;
        measure!("set up", ());
        let of_another = Filter {
            handler: Some(handler("o")),
            states: vec![State::Processed],
            ..Filter::default()
        };
        let listed = self.store.list(&of_another, &Page::first(5)).await.unwrap();
        measure!("list of a handler", assert_eq!(listed.records.len(), 4));
        let counted = self.store.count(&of_another).await.unwrap();
        measure!("count of a handler", assert_eq!(counted, 4));
        let other = PurgeRequest::new(State::Processed, Duration::ZERO, 3).unwrap();
        let other = other.for_handler(handler("o"));
        let dropped = self.store.drop_payloads(&other).await.unwrap();
        measure!("drop payloads", assert_eq!(dropped, 3));
        let dropped = self.store.drop_payloads(&other).await.unwrap();
        measure!("drop the rest", assert_eq!(dropped, 1));
        let dropped = self.store.drop_payloads(&other).await.unwrap();
        measure!("drop nothing", assert_eq!(dropped, 0));
        let purged = self.store.purge(&other).await.unwrap();
        measure!("purge of a handler", assert_eq!(purged, 3));
        let purged = self.store.purge(&other).await.unwrap();
        measure!("purge the rest", assert_eq!(purged, 1));
        let dropped = self.store.drop_payloads(&expired).await.unwrap();
        measure!("drop some of all", assert_eq!(dropped, 10));
        let run: Vec<_> = self.fresh(10);
        let key = OrderingKey::new("run").unwrap();
        let run = run.iter().map(|m| m.for_handler(handler("r")));
        let run: Vec<_> = run.map(|m| m.with_ordering_key(key.clone())).collect();
        let _ = self.store.receive(&run).await.unwrap();
        measure!("set up", ());
        let run = measure!("claim of a run", self.claimed_run().await);
        let _ = measure!(
            "extend a run",
            self.store.extend(&run, length).await.unwrap()
        );
        measure!(
            "next of a run",
            self.settle_as(&run[..1], &processed()).await
        );
        measure!(
            "rest of a run",
            self.settle_as(&run[1..], &processed()).await
        );
        let last = self.store.settle_one(&run[9], processed()).await.unwrap();
        measure!("set up", assert_eq!(last, Settled::Done));
        measure!("claim singly", {
            let request = ClaimRequest {
                handlers: vec![handler("r")],
                limit: 10,
                terms: terms(),
                run_limit: 1,
            };
            let leased = self.store.claim(&request).await.unwrap().leased;
            let leases: Vec<Lease> = leased.into_iter().map(|l| l.lease).collect();
            self.settle_as(&leases, &Outcome::Release).await;
        });
        self.store.pause(&handler("h")).await.unwrap();
        measure!("pause", ());
        let nothing = measure!("claim of a paused handler", self.claimed(100).await);
        assert_eq!(nothing, []);
        self.store.resume(&handler("h")).await.unwrap();
        measure!("resume", ());
        let next = self.fresh(1);
        let _ = self.store.receive(&next).await.unwrap();
        let later = Due::After(Duration::from_secs(3600));
        measure!("set up", ());
        let rescheduled = self.store.reschedule(next[0].key(), later).await.unwrap();
        measure!("reschedule", assert_eq!(rescheduled, Intervention::Done));
        let _ = before;
        all
    }
}

/// Many messages of every sort: processed, dead, pending (due and not) and behind others of their
/// ordering keys.
async fn fill(inbox: &TestInbox) {
    let digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 \
                  UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 \
                  UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let ordering_key = format!("IF(n >= 3 * {MANY}, CONCAT('many ', n % 100), NULL)");
    inbox
        .run(format!(
            "SET @now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
             INSERT INTO inbox_message (seq, handler, id, kind, headers, ordering_key,
                 accepted_at, first_due_at, batch, fingerprint, payload_bytes, payload)
             SELECT n - 1000000, 'h', CONCAT('many ', n), 'k', '{{}}', {ordering_key},
                 @now - 3600000000, @now - 3600000000, 0, 0, 1, 'x'
             FROM (
                 SELECT e.d * 10000 + d.d * 1000 + c.d * 100 + b.d * 10 + a.d AS n
                 FROM {digits} AS a JOIN {digits} AS b JOIN {digits} AS c JOIN {digits} AS d
                 JOIN {digits} AS e
             ) AS numbered WHERE n < 4 * {MANY};
             INSERT INTO inbox_done (seq, handler, state, due_at, leased_at, token, started,
                 finished, replays, finished_at, kept)
             SELECT seq, 'h', 2, 0, 0, 1, 1, 1, 0, @now - 1000000 + seq, seq % 2
             FROM inbox_message WHERE seq < {MANY} - 1000000;
             INSERT INTO inbox_dead (seq, handler, due_at, leased_at, token, started, finished,
                 replays, last_error, finished_at, blocks, kept)
             SELECT seq, 'h', 0, 0, 1, 1, 1, 0, 'e', @now - 1000000 + seq, 0, 1
             FROM inbox_message WHERE seq BETWEEN {MANY} - 1000000 AND 2 * {MANY} - 1000001;
             INSERT INTO inbox_work (seq, handler, ordering_key, queue, visible_at, due_at,
                 leased_at, token, started, finished, replays)
             SELECT seq, 'h', ordering_key,
                 IF(ordering_key IS NULL OR seq < 3 * {MANY} + 100 - 1000000, 0, 2),
                 IF(seq % 2 = 0, @now + 3600000000, @now + seq), 0, 0, 0, 0, 0, 0
             FROM inbox_message WHERE seq BETWEEN 2 * {MANY} - 1000000 AND 0;
             INSERT INTO inbox_open (handler, ordering_key, seq)
             SELECT handler, ordering_key, seq FROM inbox_work
             WHERE ordering_key LIKE 'many %';
             INSERT INTO inbox_ordering (handler, ordering_key, head, changes)
             SELECT handler, ordering_key, MIN(seq), 0 FROM inbox_open
             WHERE ordering_key LIKE 'many %' GROUP BY handler, ordering_key;
             INSERT INTO inbox_message (seq, handler, id, kind, headers, ordering_key,
                 accepted_at, first_due_at, batch, fingerprint, payload_bytes, payload)
             SELECT seq + 1100000, 'r', id, 'k', '{{}}', 'run', accepted_at, first_due_at, 0, 0, 1, 'x'
             FROM inbox_message WHERE seq < {MANY} - 1000000;
             INSERT INTO inbox_work (seq, handler, ordering_key, queue, visible_at, due_at,
                 leased_at, token, started, finished, replays, worker)
             SELECT seq, 'r', ordering_key, IF(seq = 100000, 0, 2), @now - 1000000 + seq,
                 @now - 1000000 + seq, 0, 0,
                 0, 0, 0, REPEAT(x'00', 32)
             FROM inbox_message WHERE handler = 'r' AND seq >= 100000;
             INSERT INTO inbox_open (handler, ordering_key, seq)
             SELECT handler, ordering_key, seq FROM inbox_work WHERE handler = 'r';
             INSERT INTO inbox_ordering (handler, ordering_key, head, changes)
             VALUES ('r', 'run', 100000, 0);
             INSERT INTO inbox_tally (handler, backlog, processed, dead, discarded)
             VALUES ('h', 2 * {MANY}, {MANY}, {MANY}, 0), ('r', {MANY}, 0, 0, 0)"
        ))
        .await
        .unwrap();
}

#[test]
fn no_operation_reads_more_with_a_backlog_and_a_history() {
    on_each(async |inbox, kind| {
        let store = inbox.store().await;
        let mut measured = Measured::new(&inbox).await;
        measured.everything().await;
        let few = measured.everything().await;
        fill(&inbox).await;
        for analyzed in [false, true] {
            if analyzed {
                let tables = [
                    "message", "work", "dead", "done", "ordering", "open", "run", "tally",
                ];
                let tables = tables.map(|table| format!("inbox_{table}")).join(", ");
                inbox.run(format!("ANALYZE TABLE {tables}")).await.unwrap();
            }
            let many = measured.everything().await;
            let bad: Vec<_> = many
                .iter()
                .filter(|(name, rows)| **rows > few[*name] * 2 + SLACK)
                .map(|(name, rows)| format!("{name}: {rows} rows, with few {}", few[name]))
                .collect();
            assert!(bad.is_empty(), "{kind}, analyzed: {analyzed}: {bad:#?}");
        }
        // It is an inbox that the store works with.
        let record = store.get(&key("many 19000")).await.unwrap().unwrap();
        assert_eq!(record.state, State::Processed);
        measured.pool.close().await;
    });
}

/// However long a run is, and however many ordering keys are looked at: each message is looked at a few times,
/// and not once for each of the others.
#[test]
fn a_claim_of_runs_reads_each_message_a_few_times() {
    const CLAIMED: usize = 500;
    on_each(async |inbox, kind| {
        let _ = inbox.store().await;
        let measured = Measured::new(&inbox).await;
        for (keys, run_limit) in [(1, 500), (5, 100), (500, 2)] {
            let messages: Vec<_> = (0..CLAIMED)
                .map(|n| ordered(&format!("{keys} {n}"), &format!("{keys} {}", n % keys)))
                .collect();
            accept(&measured.store, &messages).await;
            let request = ClaimRequest {
                handlers: vec![handler("h")],
                limit: 500,
                terms: terms(),
                run_limit,
            };
            let before = measured.rows_touched().await;
            let leased = measured.store.claim(&request).await.unwrap().leased;
            let touched = measured.rows_touched().await - before;
            assert_eq!(leased.len(), CLAIMED);
            assert!(
                touched < 100 * CLAIMED as i64,
                "{kind}, {keys} keys: {touched}"
            );
            let leases: Vec<_> = leased.into_iter().map(|leased| leased.lease).collect();
            measured.settle_as(&leases, &processed()).await;
        }
        measured.pool.close().await;
    });
}
