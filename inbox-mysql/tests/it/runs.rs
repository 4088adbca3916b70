//! Runs, as far as they are about this store's own rows, locks and statements.

use std::time::Duration;

use inbox_api::{
    Begun, ClaimRequest, Claims, Extended, Intervention, Leased, Operate as _, Outcome, Recorded,
    Settled, Settlement, Slice, Store as _, Transactional as _, from_micros,
};
use inbox_mysql::{MySqlStore, conformance::contradictions};
use sqlx::Connection as _;

use crate::common::{
    LEASE, TestInbox, accept, handler, key, message, on_each, ordered, processed, settle, terms,
    waits,
};

fn request(limit: u32, run_limit: u32) -> ClaimRequest {
    ClaimRequest {
        handlers: vec![handler("h")],
        limit,
        run_limit,
        terms: terms(),
    }
}

async fn claim_runs(store: &MySqlStore, limit: u32) -> Claims {
    store.claim(&request(limit, limit)).await.unwrap()
}

fn ids(leased: &[Leased]) -> Vec<&str> {
    leased.iter().map(|l| l.message.id().as_str()).collect()
}

/// A run of all of these messages of one ordering key.
async fn run_of(store: &MySqlStore, ids: &[&str]) -> Vec<Leased> {
    let messages: Vec<_> = ids.iter().map(|id| ordered(id, "a")).collect();
    accept(store, &messages).await;
    let leased = claim_runs(store, 100).await.leased;
    assert_eq!(self::ids(&leased), ids);
    leased
}

async fn attempts(store: &MySqlStore, id: &str) -> (u32, u32) {
    let record = store.get(&key(id)).await.unwrap().unwrap();
    (record.attempts.started, record.attempts.finished)
}

async fn check(inbox: &TestInbox) {
    assert_eq!(contradictions(&inbox.options).await.unwrap(), [""; 0]);
}

#[test]
fn a_corrupt_row_cuts_its_run_and_no_other() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        for (id, first, then) in [
            ("a1", &["b1", "b2"][..], &["a2", "a3"][..]),
            ("a2", &["a1", "b1", "b2"], &["a3"]),
            ("a3", &["a1", "a2", "b1", "b2"], &[]),
        ] {
            let of = |id: &str| ordered(id, &id[..1]);
            accept(&store, &["a1", "a2", "a3", "b1", "b2"].map(of)).await;
            let spoil = format!("UPDATE inbox_message SET headers = 'not json' WHERE id = '{id}'");
            inbox.run(spoil).await.unwrap();
            let claims = claim_runs(&store, 100).await;
            assert_eq!(ids(&claims.leased), first, "{id}");
            assert_eq!(claims.corrupt.len(), 1, "{id}");
            check(&inbox).await;
            for leased in &claims.leased {
                settle(&store, &leased.lease, processed()).await;
            }
            let claims = claim_runs(&store, 100).await;
            assert_eq!(ids(&claims.leased), then, "{id}");
            assert_eq!(claims.corrupt, [], "{id}");
            for leased in &claims.leased {
                settle(&store, &leased.lease, processed()).await;
            }
            check(&inbox).await;
            let slice = Slice {
                after: None,
                limit: 100,
            };
            store.clear_slice(&handler("h"), &slice).await.unwrap();
        }
    });
}

/// However the first one leaves when its lease has run out, the next one counts from then on if its own
/// lease has not.
#[test]
fn the_next_one_counts_whatever_ends_the_lease_of_the_first() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        for end in ["discard", "clear", "record", "settle", "release"] {
            for extended in [true, false] {
                let what = format!("{end}, extended: {extended}");
                let leased = run_of(&store, &["1", "2", "3"]).await;
                if extended {
                    let leases = [leased[1].lease.clone(), leased[2].lease.clone()];
                    let until = store.extend(&leases, 2 * LEASE).await.unwrap();
                    assert!(matches!(until[0], Extended::Until(_)));
                }
                inbox.clock.advance(LEASE);
                end_first(&store, end, &leased[0]).await;
                check(&inbox).await;
                let expected = if extended { (1, 0) } else { (0, 0) };
                assert_eq!(attempts(&store, "2").await, expected, "{what}");
                assert_eq!(attempts(&store, "3").await, (0, 0), "{what}");
                if !extended {
                    // Worked on after all.
                    let until = store.extend(&[leased[1].lease.clone()], LEASE).await;
                    assert!(matches!(until.unwrap()[0], Extended::Until(_)));
                    assert_eq!(attempts(&store, "2").await, (1, 0), "{what}");
                }
                let retry = Outcome::Retry {
                    after: Duration::ZERO,
                    error: "again".into(),
                };
                settle(&store, &leased[1].lease, retry).await;
                assert_eq!(attempts(&store, "2").await, (1, 1), "{what}");
                check(&inbox).await;
                settle(&store, &leased[2].lease, processed()).await;
                assert_eq!(attempts(&store, "3").await, (1, 1), "{what}");
                check(&inbox).await;
                for table in ["message", "work", "done", "ordering", "open", "tally"] {
                    inbox
                        .run(format!("DELETE FROM inbox_{table}"))
                        .await
                        .unwrap();
                }
            }
        }
    });
}

async fn end_first(store: &MySqlStore, how: &str, first: &Leased) {
    match how {
        "discard" => {
            let done = store.discard(&key("1")).await.unwrap();
            assert_eq!(done, Intervention::Done);
        }
        "clear" => {
            let slice = Slice {
                after: None,
                limit: 1,
            };
            let cleared = store.clear_slice(&handler("h"), &slice).await.unwrap();
            assert_eq!(cleared.changed, 1);
        }
        "record" => {
            let mut transaction = store.open().await.unwrap();
            let copy = ordered("1", "a");
            let recorded = store.record_in(&mut transaction, &copy, None);
            assert_eq!(recorded.await.unwrap(), Recorded::First);
            store.commit(transaction).await.unwrap();
        }
        "settle" => settle(store, &first.lease, processed()).await,
        _ => settle(store, &first.lease, Outcome::Release).await,
    }
}

/// A copy without an ordering key, or with another one, is of the stored message's key all the same.
#[test]
fn a_beginning_by_a_copy_with_another_key_ends_a_run() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        for (n, copy) in [message("1"), ordered("1", "b")].into_iter().enumerate() {
            let leased = run_of(&store, &["1", "2"]).await;
            inbox.clock.advance(LEASE);
            let begun = store.begin(&copy, &terms()).await.unwrap();
            let Begun::Run(first) = begun else {
                panic!("{begun:?}");
            };
            check(&inbox).await;
            let lost = store.extend(&[leased[1].lease.clone()], LEASE).await;
            assert_eq!(lost.unwrap(), [Extended::LeaseLost]);
            settle(&store, &first.lease, processed()).await;
            let leased = claim_runs(&store, 10).await.leased;
            assert_eq!(ids(&leased), ["2"], "{n}");
            settle(&store, &leased[0].lease, processed()).await;
            for table in ["message", "done", "tally"] {
                inbox
                    .run(format!("DELETE FROM inbox_{table}"))
                    .await
                    .unwrap();
            }
        }
    });
}

/// More than one statement takes, and deeper than the servers' queries go by default, with outcomes of
/// several kinds.
#[test]
fn a_long_run_is_settled_in_one_call() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let names: Vec<String> = (0..1500).map(|n| format!("{n:04}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let messages: Vec<_> = names.iter().map(|id| ordered(id, "a")).collect();
        accept(&store, &messages).await;
        let leased = claim_runs(&store, 1400).await.leased;
        assert_eq!(ids(&leased), names[..1400]);
        assert_eq!(claim_runs(&store, 10).await, Claims::default());
        let settlements: Vec<_> = leased
            .iter()
            .enumerate()
            .map(|(n, leased)| Settlement {
                lease: leased.lease.clone(),
                outcome: match n {
                    0..1200 => processed(),
                    1200 => Outcome::Retry {
                        after: Duration::ZERO,
                        error: "again".into(),
                    },
                    _ => Outcome::Release,
                },
            })
            .collect();
        let settled = store.settle(&settlements).await.unwrap();
        assert_eq!(settled, vec![Settled::Done; 1400]);
        check(&inbox).await;
        for (id, expected) in [("1199", (1, 1)), ("1200", (1, 1)), ("1201", (0, 0))] {
            assert_eq!(attempts(&store, id).await, expected, "{id}");
        }
        let leased = claim_runs(&store, 1000).await.leased;
        assert_eq!(ids(&leased), names[1200..]);
    });
}

/// A claim waits for no ordering key that another transaction has locked: it takes the first one alone, and
/// leaves a lease that has run out.
#[test]
fn a_claim_does_not_wait_for_an_ordering_key() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &["1", "2", "3"].map(|id| ordered(id, "a"))).await;
        let mut other = inbox.connection().await.unwrap();
        let lock = "START TRANSACTION; SELECT head FROM inbox_ordering FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut other).await.unwrap();
        let leased = claim_runs(&store, 10).await.leased;
        assert_eq!(ids(&leased), ["1"]);
        other.close().await.unwrap();
        settle(&store, &leased[0].lease, processed()).await;

        let leased = claim_runs(&store, 10).await.leased;
        assert_eq!(ids(&leased), ["2", "3"]);
        inbox.clock.advance(LEASE);
        let mut transaction = store.open().await.unwrap();
        let last = [Settlement {
            lease: leased[1].lease.clone(),
            outcome: processed(),
        }];
        let settled = store.settle_in(&mut transaction, &last).await.unwrap();
        assert_eq!(settled, [Settled::Done]);
        for run_limit in [1, 10] {
            let claims = store.claim(&request(10, run_limit)).await.unwrap();
            assert_eq!(claims, Claims::default(), "{run_limit}");
        }
        store.roll_back(transaction).await.unwrap();
        check(&inbox).await;
        // Now it is over: the one behind is lost.
        let claims = store.claim(&request(10, 1)).await.unwrap();
        assert_eq!(ids(&claims.leased), ["2"]);
        check(&inbox).await;
        let lost = store.settle(&last).await.unwrap();
        assert_eq!(lost, [Settled::LeaseLost]);
    });
}

/// Messages without an ordering key, and runs of all lengths.
#[test]
fn a_claim_gets_as_many_as_it_asked_for() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let mut batch = Vec::new();
        for n in 0..200 {
            batch.push(match n % 4 {
                0 => message(&format!("{n:03}")),
                1 => ordered(&format!("{n:03}"), "many"),
                _ => ordered(&format!("{n:03}"), &format!("few {}", n % 61)),
            });
        }
        accept(&store, &batch).await;
        let claims = store.claim(&request(150, 7)).await.unwrap();
        let others = store.claim(&request(150, 100)).await.unwrap();
        // Of the long one only seven, and then none.
        assert_eq!(claims.leased.len(), 150);
        assert_eq!(others.leased.len(), 200 - 150 - 43);
        check(&inbox).await;
    });
}

/// The run of a key is not listed, as after loading tables of different times into an inbox at work.
#[test]
fn a_run_that_is_not_listed_ends_one_by_one() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        for (n, is_over) in [true, false].into_iter().enumerate() {
            let names = ["1", "2", "3"].map(|id| format!("{n} {id}"));
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let leased = run_of(&store, &names).await;
            inbox.run("DELETE FROM inbox_run").await.unwrap();
            if is_over {
                inbox.clock.advance(LEASE);
                for name in names {
                    let claims = store.claim(&request(10, 1)).await.unwrap();
                    assert_eq!(ids(&claims.leased), [name]);
                    settle(&store, &claims.leased[0].lease, processed()).await;
                }
            } else {
                for leased in leased {
                    let none = store.claim(&request(10, 1)).await.unwrap();
                    assert_eq!(none, Claims::default());
                    settle(&store, &leased.lease, processed()).await;
                }
            }
            check(&inbox).await;
        }
    });
}

/// Between the two packets of a beginning, another transaction ends the key's last open messages.
#[test]
fn a_beginning_behind_the_end_of_its_key_leaves_no_key() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        let leased = run_of(&store, &["1", "2"]).await;
        inbox.clock.advance(LEASE);
        let mut transaction = store.open().await.unwrap();
        let lock = "SELECT head FROM inbox_ordering FOR UPDATE";
        sqlx::raw_sql(lock)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let other = inbox.other().await;
        // A copy without an ordering key waits for that of the stored one in the second packet only.
        let copy = message("1");
        let terms = terms();
        let ending = async {
            waits(&inbox).await;
            let settlements = leased.iter().map(|leased| Settlement {
                lease: leased.lease.clone(),
                outcome: processed(),
            });
            let settlements: Vec<_> = settlements.collect();
            let settled = store.settle_in(&mut transaction, &settlements).await;
            assert_eq!(settled.unwrap(), vec![Settled::Done; 2]);
            store.commit(transaction).await.unwrap();
        };
        let (begun, ()) = tokio::join!(other.begin(&copy, &terms), ending);
        let begun = begun.unwrap();
        assert!(matches!(begun, Begun::Processed { .. }), "{begun:?}");
        check(&inbox).await;
    });
}

/// Leases are measured from behind a wait for a caller's transaction, which has locked what the run is listed in.
#[test]
fn a_claim_that_had_to_wait_gives_whole_leases() {
    on_each(async |inbox, _| {
        let store = inbox.store().await;
        accept(&store, &["1", "2"].map(|id| ordered(id, "a"))).await;
        let mut other = inbox.connection().await.unwrap();
        let lock = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; \
                    SELECT seq FROM inbox_run FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut other).await.unwrap();
        let ending = async {
            waits(&inbox).await;
            let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
            let now = inbox.number(now).await;
            other.close().await.unwrap();
            from_micros(now)
        };
        let (claims, now) = tokio::join!(claim_runs(&store, 10), ending);
        assert_eq!(ids(&claims.leased), ["1", "2"]);
        for leased in &claims.leased {
            assert!(leased.lease.until >= now + LEASE, "{:?}", leased.lease);
        }
        let row = "SELECT MIN(visible_at) FROM inbox_work";
        assert!(from_micros(inbox.number(row).await) >= now + LEASE);
        check(&inbox).await;
    });
}
