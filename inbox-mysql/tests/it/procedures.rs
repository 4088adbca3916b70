//! What is done to one message at a time means the same with the procedures and without them.

use inbox_api::{
    AfterDead, Begun, Bytes, Edit, ErrorKind, Leased, Message, Operate as _, Outcome, Schema as _,
    Settled, Settlement, State, Store as _, Transactional as _, to_micros,
};
use inbox_mysql::{MySqlOptions, MySqlStore, PayloadType};

use crate::common::{
    LEASE, TestInbox, accept, claim_one, dead, key, message, on_each, processed, settle, terms,
    waits,
};

const PROCEDURES: &str = "SELECT COUNT(*) FROM information_schema.routines \
                          WHERE routine_schema = DATABASE() AND routine_type = 'PROCEDURE'";

async fn begin(store: &MySqlStore, id: &str) -> Leased {
    match store.begin(&message(id), &terms()).await.unwrap() {
        Begun::Run(leased) => *leased,
        other => panic!("{other:?}"),
    }
}

async fn one(store: &MySqlStore, leased: &Leased, outcome: Outcome) -> Settled {
    let lease = leased.lease.clone();
    let settled = store.settle(&[Settlement { lease, outcome }]).await;
    settled.unwrap().remove(0)
}

/// Begins and settles in all ways.
async fn uses_inline(store: &MySqlStore) {
    let leased = begin(store, "1").await;
    assert_eq!(leased.message, message("1"));
    let record = store.get(&key("1")).await.unwrap().unwrap();
    assert_eq!(record.state, State::Leased);
    assert_eq!(record.lease_until, Some(leased.lease.until));
    assert_eq!(record.accepted_at, leased.accepted_at);
    let again = store.begin(&message("1"), &terms()).await.unwrap();
    let until = leased.lease.until;
    assert_eq!(again, Begun::Busy { until });
    // Zero bytes, quotes and backslashes.
    let result = Some(Bytes::from_static(b"\0'\\\"\xff"));
    let outcome = Outcome::Processed {
        result: result.clone(),
    };
    assert_eq!(one(store, &leased, outcome.clone()).await, Settled::Done);
    assert_eq!(one(store, &leased, outcome).await, Settled::Done, "again");
    let again = store.begin(&message("1"), &terms()).await.unwrap();
    assert_eq!(again, Begun::Processed { result });

    let leased = begin(store, "2").await;
    assert_eq!(one(store, &leased, processed()).await, Settled::Done);
    let replayed = store.replay(&key("2"), &Edit::default()).await.unwrap();
    assert_eq!(replayed, inbox_api::Intervention::Done);
    let second = begin(store, "2").await;
    assert!(second.lease.token > leased.lease.token);
    assert_eq!(one(store, &leased, processed()).await, Settled::LeaseLost);
    assert_eq!(
        one(store, &second, dead(AfterDead::Continue)).await,
        Settled::Done
    );
    assert_eq!(
        one(store, &second, processed()).await,
        Settled::Done,
        "it ended"
    );

    accept(store, &[message("3")]).await;
    let claimed = claim_one(store).await;
    settle(store, &claimed, processed()).await;
    let statistics = store.statistics().await.unwrap();
    let counts = &statistics.handlers[0];
    assert_eq!(
        (counts.pending, counts.leased, counts.processed, counts.dead),
        (0, 0, 2, 1)
    );
}

/// As a user who may work, but not call procedures.
async fn worker(inbox: &TestInbox) -> MySqlStore {
    let connect = inbox.add_worker().await;
    let options = inbox.options.clone().connect_with(connect);
    MySqlStore::connect(options).await.unwrap()
}

/// Replaces the procedures by such as fail.
async fn break_procedures(inbox: &TestInbox) {
    for operation in ["begin", "settle"] {
        let name = format!(
            "SELECT routine_name FROM information_schema.routines \
             WHERE routine_schema = DATABASE() AND routine_name LIKE '%{operation}%'"
        );
        let mut connection = inbox.connection().await.unwrap();
        let row = sqlx::raw_sql(sqlx::AssertSqlSafe(name)).fetch_one(&mut connection);
        let name: String = sqlx::Row::try_get_unchecked(&row.await.unwrap(), 0).unwrap();
        let parameters = match operation {
            "begin" => 12,
            _ => 4,
        };
        let parameters: Vec<_> = (0..parameters).map(|n| format!("p{n} LONGBLOB")).collect();
        let failing = format!(
            "DROP PROCEDURE {name}; CREATE PROCEDURE {name} ({}) SIGNAL SQLSTATE '45000'",
            parameters.join(", ")
        );
        inbox.run(failing).await.unwrap();
    }
}

#[test]
fn one_message_at_a_time_is_the_same_with_procedures_and_without() {
    on_each(async |inbox, kind| {
        eprintln!("{kind}, with");
        let store = inbox.store().await;
        assert_eq!(inbox.number(PROCEDURES).await, 2);
        uses_inline(&store).await;
        eprintln!("{kind}, without the privilege");
        let limited = worker(&inbox).await;
        let leased = begin(&limited, "4").await;
        assert_eq!(one(&limited, &leased, processed()).await, Settled::Done);
        // That it calls them shows in that it fails now, where the other does not.
        let leased = begin(&store, "5").await;
        break_procedures(&inbox).await;
        let refused = store.begin(&message("6"), &terms()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Other);
        let lease = leased.lease.clone();
        let outcome = processed();
        let refused = store.settle(&[Settlement { lease, outcome }]).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Other);
        assert_eq!(one(&limited, &leased, processed()).await, Settled::Done);
        begin(&limited, "6").await;
    });
}

fn json(id: &str) -> Message {
    Message::new(
        message(id).handler().clone(),
        message(id).id().clone(),
        message(id).kind().clone(),
        "{\"a\": \"ü\"}",
    )
}

/// What drops all procedures.
async fn drops_of(inbox: &TestInbox) -> String {
    let mut connection = inbox.connection().await.unwrap();
    let names = "SELECT CONCAT('DROP PROCEDURE ', routine_name, ';') \
                 FROM information_schema.routines WHERE routine_schema = DATABASE()";
    let rows = sqlx::raw_sql(names)
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let drops = rows
        .iter()
        .map(|row| sqlx::Row::try_get_unchecked::<String, _>(row, 0));
    drops.collect::<sqlx::Result<String>>().unwrap()
}

#[test]
fn procedures_that_disappear_are_done_without_and_are_made_again() {
    on_each(async |inbox, kind| {
        eprintln!("{kind}");
        for payload_type in [PayloadType::LongBlob, PayloadType::Json] {
            let name = format!("inbox_{}", payload_type as u8).parse().unwrap();
            let options: MySqlOptions = inbox.options.clone().inbox_name(name);
            let options = options.payload_type(payload_type);
            let store = MySqlStore::connect(options).await.unwrap();
            store.create().await.unwrap();
            let mut last = None;
            // The first one only looks whether they are there.
            for id in ["1", "2"] {
                let begun = store.begin(&json(id), &terms()).await.unwrap();
                let Begun::Run(leased) = begun else {
                    panic!("{begun:?}");
                };
                let record = store.get(json(id).key()).await.unwrap().unwrap();
                let payload = record.payload.unwrap();
                let read: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                assert_eq!(read["a"], "ü");
                last = Some(leased);
            }
            let leased = last.unwrap();
            inbox.run(drops_of(&inbox).await).await.unwrap();
            assert_eq!(one(&store, &leased, processed()).await, Settled::Done);
            let begun = store.begin(&json("3"), &terms()).await.unwrap();
            assert!(matches!(begun, Begun::Run(_)), "{begun:?}");
            assert!(
                store.exists().await.unwrap(),
                "an inbox is complete without"
            );
            store.migrate().await.unwrap();
            assert_eq!(inbox.number(PROCEDURES).await, 2);
            inbox.run(drops_of(&inbox).await).await.unwrap();
        }
    });
}

#[test]
fn a_lease_begins_behind_a_wait_for_another_s_message() {
    on_each(async |inbox, kind| {
        eprintln!("{kind}");
        let store = inbox.store().await;
        begin(&store, "first").await;
        let mut holder = store.open().await.unwrap();
        let _ = store
            .receive_in(&mut holder, &[message("1")])
            .await
            .unwrap();
        let waiting = {
            let store = store.clone();
            tokio::spawn(async move { begin(&store, "1").await })
        };
        waits(&inbox).await;
        let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        let released = inbox.number(now).await;
        store.roll_back(holder).await.unwrap();
        let until = to_micros(waiting.await.unwrap().lease.until);
        assert!(until >= released + LEASE.as_micros() as i64);
    });
}
