//! Recording, receiving and settling inside the caller's transaction, at every isolation level.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use inbox_api::{
    AfterDead, Attempts, Begun, Bytes, Due, ErrorKind, Filter, Operate as _, Outcome, PurgeRequest,
    Receipt, Recorded, Settled, Settlement, Slice, State, Store as _, StoreExt as _,
    Transactional as _,
};
use inbox_postgres::PostgresStore;
use sqlx::{AssertSqlSafe, Executor as _, PgPool, Postgres, Transaction, postgres::PgPoolOptions};

use crate::common::*;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// The caller's own pool, and a table of the caller's.
async fn own_pool(place: &TestInbox) -> PgPool {
    place
        .run("CREATE TABLE IF NOT EXISTS {schema}.orders (id bigint PRIMARY KEY)")
        .await
        .unwrap();
    PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_secs(60))
        .connect_with(connection_options(&place.url))
        .await
        .unwrap()
}

async fn begin_at(pool: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    pool.begin_with(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}")))
        .await
        .unwrap()
}

async fn write(
    place: &TestInbox,
    transaction: &mut Transaction<'static, Postgres>,
    order: i64,
) -> sqlx::Result<()> {
    let sql = place.sql("INSERT INTO {schema}.orders (id) VALUES ($1)");
    sqlx::query(AssertSqlSafe(sql))
        .bind(order)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

async fn orders(place: &TestInbox) -> i64 {
    place.value("SELECT count(*) FROM {schema}.orders").await
}

#[tokio::test]
async fn all_commits_or_nothing_does() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let _pool = own_pool(place).await;
    let result = Some(Bytes::from_static(b"done"));
    let mut transaction = store.open().await.unwrap();
    let recorded = store
        .record_in(&mut transaction, &message("1"), result.clone())
        .await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    write(place, &mut transaction, 1).await.unwrap();
    assert_eq!(store.get(&key("1")).await.unwrap(), None, "not yet visible");
    store.roll_back(transaction).await.unwrap();
    assert_eq!(store.get(&key("1")).await.unwrap(), None);

    let expected = [
        Recorded::First,
        Recorded::Processed {
            result: result.clone(),
        },
    ];
    for (order, expected) in (1..).zip(expected) {
        let mut transaction = store.open().await.unwrap();
        let recorded = store
            .record_in(&mut transaction, &message("1"), result.clone())
            .await;
        assert_eq!(recorded.unwrap(), expected);
        // A duplicate leaves the transaction usable.
        write(place, &mut transaction, order).await.unwrap();
        store.commit(transaction).await.unwrap();
    }
    assert_eq!(orders(place).await, 2);
    let record = get(store, "1").await;
    assert_eq!(record.state, State::Processed);
    let once = Attempts {
        started: 1,
        finished: 1,
    };
    assert_eq!(record.attempts, once);
    let begun = store.begin(&message("1"), &terms()).await.unwrap();
    assert_eq!(begun, Begun::Processed { result });
    check_consistent(&ready).await;
}

#[tokio::test]
async fn record_answers_in_every_state() {
    let Some(ready) = ready().await else { return };
    let store = &ready.store;
    let record = async |message: &inbox_api::Message| {
        let mut transaction = store.open().await.unwrap();
        let recorded = store
            .record_in(&mut transaction, message, None)
            .await
            .unwrap();
        store.commit(transaction).await.unwrap();
        recorded
    };
    let lease = begin(store, &message("held")).await.lease;
    let busy = Recorded::Busy { until: lease.until };
    assert_eq!(record(&message("held")).await, busy);
    let later = message("later").with_due(Due::After(LEASE));
    assert!(matches!(record(&later).await, Recorded::Busy { .. }));
    store
        .receive(&[message("pending"), ordered("a1", "a"), ordered("a2", "a")])
        .await
        .unwrap();
    assert_eq!(record(&message("pending")).await, Recorded::First);
    assert_eq!(record(&ordered("a2", "a")).await, Recorded::Blocked);
    assert_eq!(record(&ordered("a1", "a")).await, Recorded::First);
    assert_eq!(record(&ordered("a2", "a")).await, Recorded::First);
    ready.place.advance(LEASE).await;
    assert_eq!(
        record(&message("held")).await,
        Recorded::First,
        "the lease had run out"
    );
    let settled = store.settle_one(&lease, processed()).await.unwrap();
    assert_eq!(settled, Settled::LeaseLost);
    let lease = begin(store, &message("dead")).await.lease;
    settle(store, &lease, dead(AfterDead::Continue)).await;
    let reason = "poison".to_owned();
    assert_eq!(record(&message("dead")).await, Recorded::Dead { reason });
    let _ = store.discard(&key("dead")).await.unwrap();
    assert_eq!(record(&message("dead")).await, Recorded::Discarded);
    check_consistent(&ready).await;
}

/// What the issue asks for: the second waits, then sees a duplicate, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_transactions_waits_and_stays_usable() {
    for ordering_key in [None, Some("k")] {
        for first_commits in [true, false] {
            let Some(ready) = ready().await else { return };
            let (place, store) = (Arc::new(ready.place), ready.store);
            let pool = own_pool(&place).await;
            let message = match ordering_key {
                Some(key) => ordered("1", key),
                None => message("1"),
            };
            let mut first = pool.begin().await.unwrap();
            let recorded = store.record_in(&mut first, &message, None).await.unwrap();
            assert_eq!(recorded, Recorded::First);
            let second = {
                let (place, store) = (Arc::clone(&place), store.clone());
                let (pool, message) = (pool.clone(), message.clone());
                tokio::spawn(async move {
                    let mut second = pool.begin().await.unwrap();
                    write(&place, &mut second, 1).await.unwrap();
                    let recorded = store.record_in(&mut second, &message, None).await.unwrap();
                    write(&place, &mut second, 2).await.unwrap();
                    let receipts = store
                        .receive_in(&mut second, &[message, self::message("2")])
                        .await
                        .unwrap();
                    second.commit().await.unwrap();
                    (recorded, receipts)
                })
            };
            wait_for_a_lock_wait(&place).await;
            assert!(!second.is_finished());
            let expected = if first_commits {
                first.commit().await.unwrap();
                Recorded::Processed { result: None }
            } else {
                first.rollback().await.unwrap();
                Recorded::First
            };
            let (recorded, receipts) = second.await.unwrap();
            assert_eq!(recorded, expected);
            assert_eq!(
                receipts,
                [Receipt::Duplicate { differs: false }, Receipt::Accepted]
            );
            assert_eq!(orders(&place).await, 2);
            let place = Arc::into_inner(place).unwrap();
            check_consistent(&Ready { place, store }).await;
        }
    }
}

/// Above read committed the second either waits and fails as a conflict, or answers rightly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_stricter_levels_the_second_conflicts_rather_than_misses_a_duplicate() {
    for level in &LEVELS[1..] {
        let Some(Ready { place, store }) = ready().await else {
            return;
        };
        let place = Arc::new(place);
        let pool = own_pool(&place).await;
        // The second's snapshot is from before the first's commit.
        let mut second = begin_at(&pool, level).await;
        let _: i64 = sqlx::query_scalar(AssertSqlSafe(
            place.sql("SELECT count(*) FROM {schema}.orders"),
        ))
        .fetch_one(&mut *second)
        .await
        .unwrap();
        let mut first = begin_at(&pool, level).await;
        let recorded = store.record_in(&mut first, &message("1"), None).await;
        assert_eq!(recorded.unwrap(), Recorded::First);
        first.commit().await.unwrap();
        let error = store
            .record_in(&mut second, &message("1"), None)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{level}: {error}");
        assert!(error.is_retryable());
        second.rollback().await.unwrap();
        let mut again = begin_at(&pool, level).await;
        let recorded = store.record_in(&mut again, &message("1"), None).await;
        assert_eq!(recorded.unwrap(), Recorded::Processed { result: None });
        write(&place, &mut again, 1).await.unwrap();
        again.commit().await.unwrap();

        // A conflict that shows at the commit only is one as well.
        let mut reading = begin_at(&pool, level).await;
        let mut other = begin_at(&pool, level).await;
        for (order, transaction) in [(10, &mut reading), (11, &mut other)] {
            let sql = place.sql("SELECT count(*) FROM {schema}.orders");
            let _: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(&mut **transaction)
                .await
                .unwrap();
            write(&place, transaction, order).await.unwrap();
            let sent = [message(&order.to_string())];
            let _ = store.receive_in(transaction, &sent).await.unwrap();
        }
        store.commit(other).await.unwrap();
        match store.commit(reading).await {
            Ok(()) => assert_eq!(*level, "REPEATABLE READ"),
            Err(error) => {
                assert_eq!(*level, "SERIALIZABLE");
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_settlement_and_the_handlers_writes_commit_together() {
    let Some(ready) = ready().await else { return };
    let (place, store) = (&ready.place, &ready.store);
    let pool = own_pool(place).await;
    for (n, level) in LEVELS.into_iter().enumerate() {
        let order = i64::try_from(n).unwrap();
        let id = n.to_string();
        let lease = begin(store, &ordered(&id, "k")).await.lease;
        store
            .receive(&[ordered(&format!("{id} next"), "k")])
            .await
            .unwrap();
        let settlement = [Settlement {
            lease: lease.clone(),
            outcome: processed(),
        }];
        let mut transaction = begin_at(&pool, level).await;
        write(place, &mut transaction, order).await.unwrap();
        let settled = store.settle_in(&mut transaction, &settlement).await;
        assert_eq!(settled.unwrap(), [Settled::Done]);
        drop(transaction);
        assert_eq!(get(store, &id).await.state, State::Leased, "rolled back");
        let mut transaction = begin_at(&pool, level).await;
        write(place, &mut transaction, order).await.unwrap();
        let settled = store.settle_in(&mut transaction, &settlement).await;
        assert_eq!(settled.unwrap(), [Settled::Done]);
        transaction.commit().await.unwrap();
        assert_eq!(get(store, &id).await.state, State::Processed);
        // Again would be twice.
        let mut transaction = begin_at(&pool, level).await;
        let settled = store.settle_in(&mut transaction, &settlement).await;
        assert_eq!(settled.unwrap(), [Settled::LeaseLost]);
        transaction.rollback().await.unwrap();
        let next = claim_one(store).await;
        settle(store, &next, processed()).await;
    }
    assert_eq!(orders(place).await, 3);
    check_consistent(&ready).await;
}

#[tokio::test]
async fn a_transaction_that_failed_says_so_and_the_connection_goes_on() {
    let Some(ready) = ready_with(|options| options.max_connections(1)).await else {
        return;
    };
    let store = &ready.store;
    let mut transaction = store.open().await.unwrap();
    let failed = transaction.execute("SELECT 1 / 0").await;
    assert!(failed.is_err());
    let error = store
        .record_in(&mut transaction, &message("1"), None)
        .await
        .unwrap_err();
    assert!(error.context().contains("roll it back"), "{error}");
    assert!(!error.is_retryable());
    drop(transaction);
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
    // What the store refuses by itself leaves the transaction as it was.
    let large = Some(Bytes::from(vec![0; inbox_api::DEFAULT_PAYLOAD_LIMIT + 1]));
    let mut transaction = store.open().await.unwrap();
    let error = store
        .record_in(&mut transaction, &message("2"), large)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let recorded = store.record_in(&mut transaction, &message("2"), None).await;
    assert_eq!(recorded.unwrap(), Recorded::First);
    store.commit(transaction).await.unwrap();
    check_consistent(&ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_racing_transactions_exactly_one_wins() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    let pool = own_pool(&place).await;
    for round in 0..20 {
        let tasks: Vec<_> = (0..6)
            .map(|n| {
                let (store, pool) = (store.clone(), pool.clone());
                let id = round.to_string();
                tokio::spawn(async move {
                    let mut conflicts = 0;
                    loop {
                        let mut transaction = begin_at(&pool, LEVELS[n % 3]).await;
                        let recorded = store.record_in(&mut transaction, &message(&id), None).await;
                        let outcome = match recorded {
                            Ok(recorded) => store
                                .commit(transaction)
                                .await
                                .map(|()| recorded == Recorded::First),
                            Err(error) => Err(error),
                        };
                        match outcome {
                            Ok(first) => return usize::from(first),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                                conflicts += 1;
                                assert!(conflicts < 100);
                            }
                        }
                    }
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            winners += task.await.unwrap();
        }
        assert_eq!(winners, 1);
    }
    check_consistent(&Ready { place, store }).await;
}

/// A small generator, so that a failing run can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// One actor of the stress test.
struct Actor {
    store: PostgresStore,
    pool: PgPool,
    number: usize,
    random: Random,
    accepted: Arc<Mutex<HashMap<String, u32>>>,
    next: usize,
}

impl Actor {
    /// Messages of several keys and without one, some of them of other actors.
    fn batch(&mut self) -> Vec<inbox_api::Message> {
        let size = 1 + self.random.below(4);
        (0..size)
            .map(|_| {
                let actor = if self.random.below(4) == 0 {
                    self.random.below(8)
                } else {
                    self.number
                };
                self.next += 1;
                let key = self.random.below(5);
                let id = format!("{key} {actor}-{}", self.next);
                if key == 0 {
                    message(&id)
                } else {
                    ordered(&id, &key.to_string())
                }
            })
            .collect()
    }

    fn outcome(&mut self) -> Outcome {
        match self.random.below(7) {
            0 => retry(Duration::ZERO),
            1 => dead(AfterDead::Continue),
            2 => dead(AfterDead::Block),
            3 => Outcome::Release,
            4 => defer(Duration::ZERO),
            _ => processed(),
        }
    }

    fn settlements(&mut self, leased: Vec<inbox_api::Leased>) -> Vec<Settlement> {
        let mut settlements: Vec<_> = leased
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: self.outcome(),
            })
            .collect();
        settlements.reverse();
        settlements
    }

    /// Something within a transaction at some isolation level that commits or not.
    async fn transact(&mut self) -> inbox_api::Result<()> {
        let level = LEVELS[self.random.below(3)];
        let commits = self.random.below(4) > 0;
        let mut accepted = Vec::new();
        let leased = match self.random.below(2) {
            0 => self.store.claim(&request(3)).await?.leased,
            _ => Vec::new(),
        };
        let settlements = self.settlements(leased);
        let mut transaction = begin_at(&self.pool, level).await;
        for _ in 0..=self.random.below(2) {
            let batch = self.batch();
            if self.random.below(2) == 0 {
                let receipts = self.store.receive_in(&mut transaction, &batch).await?;
                accepted.extend(
                    batch
                        .iter()
                        .zip(receipts)
                        .filter(|(_, receipt)| *receipt == Receipt::Accepted)
                        .map(|(message, _)| message.id().to_string()),
                );
            } else {
                let _ = self
                    .store
                    .record_in(&mut transaction, &batch[0], None)
                    .await?;
            }
        }
        let settled = self.store.settle_in(&mut transaction, &settlements).await?;
        assert!(settled.iter().all(|s| *s == Settled::Done), "{settled:?}");
        if commits {
            self.store.commit(transaction).await?;
            self.note(accepted);
        } else {
            self.store.roll_back(transaction).await?;
            self.store.settle(&settlements).await?;
        }
        Ok(())
    }

    fn note(&self, ids: Vec<String>) {
        let mut accepted = lock(&self.accepted);
        for id in ids {
            *accepted.entry(id).or_default() += 1;
        }
    }

    async fn act(&mut self) -> inbox_api::Result<()> {
        let slice = Slice {
            after: None,
            limit: 3,
        };
        match self.random.below(10) {
            0..4 => self.transact().await?,
            4..6 => {
                let batch = self.batch();
                let receipts = self.store.receive(&batch).await?;
                self.note(
                    batch
                        .iter()
                        .zip(receipts)
                        .filter(|(_, receipt)| *receipt == Receipt::Accepted)
                        .map(|(message, _)| message.id().to_string())
                        .collect(),
                );
            }
            6..8 => {
                let leased = self.store.claim(&request(5)).await?.leased;
                let settlements = self.settlements(leased);
                let settled = self.store.settle(&settlements).await?;
                assert!(settled.iter().all(|s| *s == Settled::Done), "{settled:?}");
            }
            8 => {
                let all = Filter {
                    states: vec![State::Dead, State::Processed],
                    ..Filter::default()
                };
                self.store.replay_slice(&all, &slice).await?;
            }
            _ => {
                self.store.discard_slice(&Filter::default(), &slice).await?;
            }
        }
        Ok(())
    }
}

/// However transactions and single operations interleave and fail, no message is lost, doubled or
/// overtaken, and no ordering key is left without a head.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_interleaving_loses_the_place_of_an_ordering_key() {
    const SEED: u64 = 0x5eed_1b0c;
    let Some(ready) = ready_with(|options| options.max_connections(16)).await else {
        return;
    };
    let (place, store) = (&ready.place, &ready.store);
    let pool = own_pool(place).await;
    let accepted = Arc::new(Mutex::new(HashMap::new()));
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let before: i64 = place.value(deadlocks).await;
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let mut actor = Actor {
                store: store.clone(),
                pool: pool.clone(),
                number,
                random: Random(SEED + 7919 * (number as u64 + 1)),
                accepted: Arc::clone(&accepted),
                next: 0,
            };
            tokio::spawn(async move {
                let mut conflicts = 0;
                for _ in 0..60 {
                    if let Err(error) = actor.act().await {
                        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                        conflicts += 1;
                    }
                }
                conflicts
            })
        })
        .collect();
    let mut conflicts = 0;
    for task in tasks {
        conflicts += task.await.unwrap();
    }
    assert!(conflicts < 400, "{conflicts} of 480 conflicted");
    let accepted = std::mem::take(&mut *lock(&accepted));
    assert!(accepted.values().all(|n| *n == 1), "accepted twice");

    // Leases that conflicts left behind run out; nothing blocks for ever.
    place.advance(LEASE).await;
    assert_eq!(place.broken_rules().await, [""; 0]);
    for id in accepted.keys() {
        assert!(store.get(&key(id)).await.unwrap().is_some(), "{id} is lost");
    }
    let slice = Slice {
        after: None,
        limit: 10_000,
    };
    store
        .replay_slice(&Filter::default(), &slice)
        .await
        .unwrap();
    let waiting = store.statistics().await.unwrap().count(State::Pending);
    assert!(waiting > 10, "{waiting}");
    // What is leased stays first, also of an earlier message that comes to its ordering key late.
    let kept_first: Vec<i64> = place
        .column("SELECT seq FROM {schema}.inbox_work WHERE state = 1")
        .await;
    let mut last: HashMap<String, i64> = HashMap::new();
    let mut drained = 0;
    loop {
        let leased = claim(store, 50).await;
        if leased.is_empty() {
            break;
        }
        for leased in leased {
            drained += 1;
            let seq = get(store, leased.message.id().as_str()).await.cursor;
            let seq = seq.sequence().unwrap();
            if let Some(key) = leased.message.ordering_key()
                && !kept_first.contains(&seq)
            {
                let earlier = last.insert(key.to_string(), seq).unwrap_or(0);
                assert!(earlier < seq, "{key} was overtaken");
            }
            settle(store, &leased.lease, processed()).await;
        }
        assert_eq!(place.broken_rules().await, [""; 0]);
    }
    assert_eq!(drained, waiting, "each once");
    check_consistent(&ready).await;
    let after: i64 = place.value(deadlocks).await;
    // Transactions of several statements may lock in any order; single operations may not.
    println!("{conflicts} conflicts, {} deadlocks", after - before);
    let expired = PurgeRequest::new(State::Processed, Duration::ZERO, 10_000).unwrap();
    assert!(store.purge(&expired).await.unwrap() >= waiting);
    check_consistent(&ready).await;
}
