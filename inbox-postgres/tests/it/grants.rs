//! What a role must be allowed: exactly this, and nothing works with less.

use inbox_api::{
    AfterDead, Due, Error, ErrorKind, Filter, Operate as _, Page, PurgeRequest, Result,
    Schema as _, Settled, Settlement, Slice, State, Store as _, StoreExt as _, Transactional as _,
};
use inbox_postgres::PostgresStore;

use crate::common::*;

/// The grants, for `{role}`: those that SETUP.md lists.
const GRANTS: &[&str] = &[
    "USAGE ON SCHEMA {schema}",
    "SELECT ON {schema}.inbox_meta",
    "SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox_message",
    "SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox_work",
    "SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox_done",
    "SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox_ordering",
    "SELECT, INSERT, DELETE ON {schema}.inbox_tally",
    "SELECT, INSERT, DELETE ON {schema}.inbox_paused",
    "USAGE ON SEQUENCE {schema}.inbox_seq",
    "SELECT ON SEQUENCE {schema}.inbox_seq",
    "EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema}",
];

/// An inbox that PUBLIC has no rights on, and a role that may log in and no more.
struct Guarded {
    place: TestInbox,
    role: String,
}

impl Guarded {
    async fn new() -> Option<Self> {
        let Ready { place, store } = ready().await?;
        store.close().await;
        let role = fresh_name();
        place
            .run(&format!(
                "CREATE ROLE {role} LOGIN;
                 REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {{schema}} FROM PUBLIC"
            ))
            .await
            .unwrap();
        Some(Self { place, role })
    }

    async fn grant(&self, rights: &str) {
        let sql = format!("GRANT {rights} TO {}", self.role);
        self.place.run(&sql).await.unwrap();
    }

    async fn revoke(&self, rights: &str) {
        let sql = format!("REVOKE {rights} FROM {}", self.role);
        self.place.run(&sql).await.unwrap();
    }

    async fn store(&self) -> PostgresStore {
        let options = connection_options(&self.place.url).username(&self.role);
        PostgresStore::connect(self.place.options.clone().connect_with(options))
            .await
            .unwrap()
    }
}

/// Every operation but setting up, each so that it changes something.
async fn everything(place: &TestInbox, store: &PostgresStore, round: &str) -> Result<()> {
    let id = |name: &str| format!("{round} {name}");
    assert_eq!(store.version().await?, Some(1));
    assert!(store.exists().await?);
    store.create().await?;
    let mut subscription = store.subscribe(&[handler("h")]).await?;
    store
        .receive(&[
            message(&id("1")),
            ordered(&id("2"), &id("k")),
            ordered(&id("3"), &id("k")),
            message(&id("4")),
        ])
        .await?;
    subscription.woken().await;
    let leased = store.claim(&request(10)).await?.leased;
    assert_eq!(leased.len(), 3);
    let leases: Vec<_> = leased.iter().map(|l| l.lease.clone()).collect();
    store.extend(&leases, LEASE * 2).await?;
    let outcomes = [processed(), dead(AfterDead::Block), retry(LEASE)];
    let settlements: Vec<_> = leases
        .into_iter()
        .zip(outcomes)
        .map(|(lease, outcome)| Settlement { lease, outcome })
        .collect();
    let settled = store.settle(&settlements).await?;
    assert_eq!(settled, [Settled::Done, Settled::Done, Settled::Done]);

    let begun = store.begin(&message(&id("5")), &terms()).await?;
    let inbox_api::Begun::Run(begun) = begun else {
        panic!("{begun:?}")
    };
    let mut transaction = store.open().await?;
    let recorded = store
        .record_in(&mut transaction, &ordered(&id("6"), &id("l")), None)
        .await?;
    assert_eq!(recorded, inbox_api::Recorded::First);
    store
        .receive_in(&mut transaction, &[message(&id("7"))])
        .await?;
    store
        .settle_in(
            &mut transaction,
            &[Settlement {
                lease: begun.lease,
                outcome: processed(),
            }],
        )
        .await?;
    store.commit(transaction).await?;

    assert!(store.get(&key(&id("1"))).await?.is_some());
    store.list(&Filter::default(), &Page::first(10)).await?;
    store.count(&Filter::default()).await?;
    assert!(store.statistics().await?.count(State::Processed) >= 3);
    let _ = store
        .replay(&key(&id("2")), &with_payload("edited"))
        .await?;
    let _ = store.discard(&key(&id("2"))).await?;
    let slice = Slice {
        after: None,
        limit: 100,
    };
    let processed = Filter {
        states: vec![State::Processed],
        ..Filter::default()
    };
    let pending = Filter {
        states: vec![State::Pending],
        ..Filter::default()
    };
    store.replay_slice(&processed, &slice).await?;
    store.pause(&handler("h")).await?;
    assert_eq!(store.paused().await?, [handler("h")]);
    assert!(store.claim(&request(1)).await?.leased.is_empty());
    store.resume(&handler("h")).await?;
    let _ = store.reschedule(&key(&id("3")), Due::Now).await?;
    store.reschedule_slice(&pending, &slice, Due::Now).await?;
    store.discard_slice(&pending, &slice).await?;
    let expired = PurgeRequest::new(State::Discarded, std::time::Duration::ZERO, 10).unwrap();
    store.expired(&expired).await?;
    assert_eq!(store.purge_archived(&expired, &[key(&id("1"))]).await?, 1);
    assert!(store.purge(&expired).await? >= 4);
    store.drop_payloads(&expired).await?;
    store.receive(&[message(&id("cleared"))]).await?;
    store.clear_slice(&handler("h"), &slice).await?;
    let _: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_overview")
        .await;
    // Folding happens by chance, and with each purge.
    for n in ["8", "9"] {
        let _ = store.receive_one(&message(&id(n))).await?;
    }
    let folds: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_tally")
        .await;
    let mut connection = store.open().await?;
    let compact = place.sql("SELECT {schema}.inbox_compact_counters()");
    sqlx::query(sqlx::AssertSqlSafe(compact))
        .execute(&mut *connection)
        .await
        .map_err(|_| {
            Error::new(ErrorKind::Denied, "a permission is missing")
                .in_operation("compact_counters")
        })?;
    store.commit(connection).await?;
    let left: i64 = place
        .value("SELECT count(*) FROM {schema}.inbox_tally")
        .await;
    assert!(left < folds);
    assert_eq!(place.broken_rules().await, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_role_with_the_documented_grants_does_everything_but_set_up() {
    let Some(guarded) = Guarded::new().await else {
        return;
    };
    for rights in GRANTS {
        guarded.grant(rights).await;
    }
    let store = guarded.store().await;
    everything(&guarded.place, &store, "all").await.unwrap();

    // Setting up is another role's.
    let mut place = TestInbox::at(guarded.place.url.clone());
    place.options = place.options.schema(guarded.place.schema.name.clone());
    place.options = place
        .options
        .inbox_name(inbox_api::InboxName::new("second").unwrap());
    let options = connection_options(&place.url).username(&guarded.role);
    for (schema, inbox) in [
        (guarded.place.schema.name.clone(), "second"),
        (place.schema.name, "inbox"),
    ] {
        let inbox_options = place
            .options
            .clone()
            .schema(schema)
            .inbox_name(inbox_api::InboxName::new(inbox).unwrap());
        let store = PostgresStore::connect(inbox_options.connect_with(options.clone()))
            .await
            .unwrap();
        assert!(!store.exists().await.unwrap());
        for error in [
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
    }
}

#[tokio::test]
async fn without_any_one_of_them_something_is_denied() {
    let Some(guarded) = Guarded::new().await else {
        return;
    };
    for rights in GRANTS {
        guarded.grant(rights).await;
    }
    // Each right by itself, not only each line.
    let mut parts = Vec::new();
    for rights in GRANTS {
        let (verbs, on) = rights.split_once(" ON ").unwrap();
        parts.extend(verbs.split(", ").map(|verb| format!("{verb} ON {on}")));
    }
    for (n, part) in parts.iter().enumerate() {
        guarded.revoke(part).await;
        let store = guarded.store().await;
        let error = everything(&guarded.place, &store, &n.to_string()).await;
        let error = error.expect_err(part);
        assert_eq!(error.kind(), ErrorKind::Denied, "without {part}: {error}");
        assert!(error.context().contains("permission"), "{error}");
        store.close().await;
        guarded.grant(part).await;
        // What was left half-way is finished by the owner, so that each round starts alike.
        let owner = guarded.place.other().await;
        let all = Filter {
            states: vec![State::Pending, State::Dead],
            ..Filter::default()
        };
        let slice = Slice {
            after: None,
            limit: 100,
        };
        owner.resume(&handler("h")).await.unwrap();
        owner.discard_slice(&all, &slice).await.unwrap();
        owner.close().await;
    }
    let store = guarded.store().await;
    everything(&guarded.place, &store, "last").await.unwrap();
    let receipt = store.receive_one(&message("again")).await.unwrap();
    assert_eq!(receipt, inbox_api::Receipt::Accepted);
}
