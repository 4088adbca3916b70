//! Who sets partitions up, with which options, and who keeps them up.

use super::*;

use crate::common;

#[tokio::test]
async fn the_options_have_to_agree_with_the_inbox() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let Some(plain) = common::ready().await else {
        return;
    };
    let without = |place: &TestInbox| place.options.clone().partitions(None);
    let with = |place: &TestInbox| {
        place
            .options
            .clone()
            .partitions(Some(Partitions::every(HOUR)))
    };
    for options in [without(&ready.place), with(&plain.place)] {
        let store = PostgresStore::connect(options).await.unwrap();
        let errors = [
            store.exists().await.unwrap_err(),
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
            store.receive(&[message("1")]).await.unwrap_err(),
            store.claim(&request(1)).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion);
            assert!(error.context().contains("partitions"), "{error}");
        }
    }
    // Another period and patience are not another layout.
    let other = PostgresStore::connect(with(&ready.place)).await.unwrap();
    assert!(other.exists().await.unwrap());
    assert_eq!(
        other.receive_one(&message("1")).await.unwrap(),
        Receipt::Accepted
    );
}

#[tokio::test]
async fn the_ddl_sets_an_inbox_in_partitions_up() {
    let Some(place) = TestInbox::shared() else {
        return;
    };
    let options: PostgresOptions = place
        .options
        .clone()
        .partitions(Some(Partitions::every(HOUR)));
    execute(&place.url, &options.ddl()).await.unwrap();
    let store = PostgresStore::connect(options).await.unwrap();
    assert!(store.exists().await.unwrap());
    assert_eq!(store.migrate().await.unwrap().from, Some(1));
    for part in [
        "DROP TABLE {schema}.inbox_partition",
        "DROP TABLE {schema}.inbox_key CASCADE",
    ] {
        place.run(part).await.unwrap();
        assert!(!store.exists().await.unwrap_or(false), "{part}");
    }
}

#[tokio::test]
async fn only_the_owner_keeps_partitions_up() {
    let Some(ready) = partitioned().await else {
        return;
    };
    let role = fresh_name();
    ready
        .place
        .run(&format!(
            "CREATE ROLE {role} LOGIN;
             GRANT USAGE ON SCHEMA {{schema}} TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON {{schema}}.inbox_message,
                 {{schema}}.inbox_work, {{schema}}.inbox_done, {{schema}}.inbox_ordering TO {role};
             GRANT SELECT, INSERT, DELETE ON {{schema}}.inbox_tally, {{schema}}.inbox_paused,
                 {{schema}}.inbox_key TO {role};
             GRANT SELECT ON {{schema}}.inbox_meta, {{schema}}.inbox_partition TO {role};
             GRANT USAGE, SELECT ON SEQUENCE {{schema}}.inbox_seq TO {role}"
        ))
        .await
        .unwrap();
    let store = PostgresStore::connect(
        ready
            .place
            .options
            .clone()
            .connect_with(connection_options(&ready.place.url).username(&role)),
    )
    .await
    .unwrap();
    for round in 0..2 {
        // The second time in a partition that was made after the grants.
        receive(&store, &messages(&format!("m {round}"), 10)).await;
        process_all(&store).await;
        let new = message(&format!("begun {round}"));
        let begun = begin(&store, &new).await;
        settle(&store, &begun.lease, processed()).await;
        let replayed = store.replay(new.key(), &with_payload("new")).await.unwrap();
        assert_eq!(replayed, Intervention::Done);
        assert_eq!(store.discard(new.key()).await.unwrap(), Intervention::Done);
        store.statistics().await.unwrap();
        next_partition(&ready.store).await;
    }
    let error = store
        .purge(&expired(State::Processed, 10))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.context().contains("the role that owns"), "{error}");

    ready
        .place
        .run(&format!("GRANT {} TO {role}", owner(&ready.place).await))
        .await
        .unwrap();
    assert_eq!(sweep(&store, State::Processed).await, 0);
    ready.place.advance(2 * HOUR).await;
    assert_eq!(sweep(&store, State::Processed).await, 20);
    check(&ready).await;
}

async fn owner(place: &TestInbox) -> String {
    let sql = "SELECT quote_ident(tableowner) FROM pg_tables
               WHERE tablename = 'inbox_meta' AND format('%I', schemaname) = '{name}'";
    let name = place.schema.name.as_str();
    place.value(&sql.replace("{name}", name)).await
}
