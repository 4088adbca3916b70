//! Setting up, what is refused, names, and the view for people.

use std::time::Duration;

use inbox_api::{
    AfterDead, Due, ErrorKind, HandlerName, InboxName, Operate as _, Receipt, Schema as _, State,
    Store as _, StoreExt as _,
};
use inbox_postgres::{PayloadType, PostgresStore, SchemaName};

use crate::common::*;

/// A schema without an inbox, and a store on it.
async fn empty() -> Option<Ready> {
    let place = TestInbox::shared()?;
    let store = place.connect().await.unwrap();
    Some(Ready { place, store })
}

/// What a reviewer gets, in a session that is set oddly.
async fn answers_exists_query(place: &TestInbox, store: &PostgresStore) -> bool {
    let query = store.exists_query();
    assert_eq!(query, place.options.exists_query());
    let answers: Vec<bool> = place
        .column(&format!(
            "SET search_path = nowhere; SET quote_all_identifiers = on; {query}"
        ))
        .await;
    assert_eq!(answers.len(), 1);
    answers[0]
}

async fn receives(store: &PostgresStore) {
    let receipt = store.receive_one(&message("1")).await.unwrap();
    assert_eq!(receipt, Receipt::Accepted);
}

#[tokio::test]
async fn setting_up_twice_is_harmless() {
    let Some(Ready { place, store }) = empty().await else {
        return;
    };
    assert_eq!(store.version().await.unwrap(), None);
    assert!(!store.exists().await.unwrap());
    assert!(!answers_exists_query(&place, &store).await);
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    assert!(answers_exists_query(&place, &store).await);
    assert_eq!(store.version().await.unwrap(), Some(1));
    assert_eq!(store.expected_version(), 1);
    receives(&store).await;
    store.create().await.unwrap();
    let migration = store.migrate().await.unwrap();
    assert_eq!((migration.from, migration.to), (Some(1), 1));
    let receipt = place.other().await.receive_one(&message("1")).await;
    assert_eq!(receipt.unwrap(), Receipt::Duplicate { differs: false });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_can_set_up_at_once() {
    many_set_up("read committed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_can_set_up_at_once_whatever_isolation_is_the_default() {
    many_set_up("repeatable read").await;
    many_set_up("serializable").await;
}

async fn many_set_up(isolation: &str) {
    // In a schema that is there, and in one that is not.
    for schema_exists in [false, true] {
        let Some(place) = TestInbox::shared() else {
            return;
        };
        if schema_exists {
            place.run("CREATE SCHEMA {schema}").await.unwrap();
        }
        let connection =
            connection_options(&place.url).options([("default_transaction_isolation", isolation)]);
        let mut tasks = Vec::new();
        for n in 0..12 {
            let store =
                PostgresStore::connect(place.options.clone().connect_with(connection.clone()))
                    .await
                    .unwrap();
            tasks.push(tokio::spawn(async move {
                if n % 2 == 0 {
                    store.create().await?;
                } else {
                    store.migrate().await?;
                }
                assert!(store.exists().await?);
                Ok::<_, inbox_api::Error>(())
            }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        receives(&place.other().await).await;
    }
}

/// As when inboxes of other names are set up in it at the same time.
#[tokio::test]
async fn a_schema_that_another_process_is_making_is_waited_for() {
    let Some(Ready { place, store }) = empty().await else {
        return;
    };
    let mut other = connection(&place.url).await.unwrap();
    let making = place.sql("BEGIN; CREATE SCHEMA {schema}");
    let begun = sqlx::raw_sql(sqlx::AssertSqlSafe(making)).execute(&mut other);
    begun.await.unwrap();
    let creating = {
        let store = store.clone();
        tokio::spawn(async move { store.create().await })
    };
    wait_for_a_lock_wait(&place).await;
    let committed = sqlx::raw_sql("COMMIT").execute(&mut other).await;
    committed.unwrap();
    creating.await.unwrap().unwrap();
    assert!(store.exists().await.unwrap());
    receives(&store).await;
}

/// A worker that has a table and asks for another is let go on, and not at the expense of either.
#[tokio::test]
async fn an_inbox_is_removed_while_its_workers_go_on() {
    let Some(Ready { place, store }) = empty().await else {
        return;
    };
    store.create().await.unwrap();
    let lock = |table: &str| {
        let sql = format!("LOCK TABLE {{schema}}.inbox_{table} IN ROW EXCLUSIVE MODE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(place.sql(&sql)))
    };
    let mut worker = connection(&place.url).await.unwrap();
    let begun = sqlx::raw_sql("BEGIN").execute(&mut worker).await;
    begun.unwrap();
    lock("tally").execute(&mut worker).await.unwrap();
    let removing = {
        let store = store.clone();
        tokio::spawn(async move { store.remove().await })
    };
    wait_for_a_lock_wait(&place).await;
    lock("message").execute(&mut worker).await.unwrap();
    let committed = sqlx::raw_sql("COMMIT").execute(&mut worker).await;
    committed.unwrap();
    removing.await.unwrap().unwrap();
    assert_eq!(store.version().await.unwrap(), None);
}

#[tokio::test]
async fn the_ddl_text_sets_up_the_same() {
    for payload_type in [PayloadType::Bytea, PayloadType::Json, PayloadType::Jsonb] {
        let Some(mut place) = TestInbox::shared() else {
            return;
        };
        place.options = place.options.payload_type(payload_type);
        let store = place.connect().await.unwrap();
        let ddl = store.ddl();
        assert_eq!(ddl, place.options.ddl());
        // A statement at a time, as psql sends them, and as a reviewer's tool may have indented
        // them; function bodies are left alone by such tools.
        for statement in statements(&ddl) {
            execute(&place.url, &statement)
                .await
                .unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        assert!(store.exists().await.unwrap(), "{payload_type:?}");
        let payload = message_with("1", "{}");
        assert_eq!(
            store.receive_one(&payload).await.unwrap(),
            Receipt::Accepted
        );
    }
}

/// Splits at the semicolons outside of function bodies and comments.
fn statements(ddl: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut in_body = false;
    for line in ddl.lines() {
        in_body ^= line.matches("$$").count() % 2 == 1;
        let last = statements.last_mut().unwrap();
        last.push_str(line);
        last.push('\n');
        if !in_body && line.ends_with(';') && !line.trim_start().starts_with("--") {
            statements.push(String::new());
        }
    }
    statements.retain(|statement| !statement.trim().is_empty());
    assert!(statements.len() > 20, "{}", statements.len());
    statements
}

#[tokio::test]
async fn a_part_that_is_missing_or_different_is_noticed_and_named() {
    for (damage, part) in [
        ("DROP INDEX {schema}.inbox_claim", "inbox_claim"),
        ("DROP INDEX {schema}.inbox_head", "inbox_head"),
        (
            "DROP INDEX {schema}.inbox_key;
             CREATE INDEX inbox_key ON {schema}.inbox_message (id, handler)",
            "inbox_key",
        ),
        (
            "DROP INDEX {schema}.inbox_open;
             CREATE INDEX inbox_open ON {schema}.inbox_work (handler, ordering_key, seq)",
            "inbox_open",
        ),
        ("DROP TABLE {schema}.inbox_tally CASCADE", "inbox_tally"),
        (
            "ALTER TABLE {schema}.inbox_work ALTER token TYPE integer",
            "inbox_work.token",
        ),
        (
            "ALTER TABLE {schema}.inbox_done DROP CONSTRAINT inbox_done_pkey",
            "inbox_done_pkey",
        ),
        (
            "ALTER TABLE {schema}.inbox_work DROP COLUMN token",
            "inbox_work.token",
        ),
        (
            "ALTER TABLE {schema}.inbox_ordering ALTER ordering_key TYPE text COLLATE \"POSIX\"",
            "inbox_ordering.ordering_key",
        ),
        (
            "ALTER TABLE {schema}.inbox_work ALTER handler DROP NOT NULL",
            "inbox_work.handler",
        ),
        ("DROP VIEW {schema}.inbox_overview", "inbox_overview"),
        ("DROP SEQUENCE {schema}.inbox_seq", "sequence inbox_seq"),
        (
            "ALTER SEQUENCE {schema}.inbox_seq INCREMENT BY 1",
            "sequence inbox_seq",
        ),
        (
            "UPDATE pg_index SET indisvalid = false
             WHERE indexrelid = '{schema}.inbox_claim'::regclass",
            "inbox_claim",
        ),
    ] {
        let Some(Ready { place, store }) = ready().await else {
            return;
        };
        place
            .run(damage)
            .await
            .unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert!(!store.exists().await.unwrap(), "{damage}");
        assert!(!answers_exists_query(&place, &store).await, "{damage}");
        for error in [
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{damage}: {error}");
            assert!(error.context().contains(part), "{damage}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// What it answers would be taken for damaged messages otherwise, and those are dead.
#[tokio::test]
async fn a_claim_that_answers_other_columns_takes_nothing() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    store.receive(&[message("1")]).await.unwrap();
    let of_another_build = "DROP FUNCTION {schema}.inbox_claim;
        CREATE FUNCTION {schema}.inbox_claim(
            handlers text[], pending_since timestamptz[], leased_since timestamptz[], wanted integer,
            lease bigint, worker text
        ) RETURNS TABLE (seq bigint) LANGUAGE sql
        AS $$ UPDATE {schema}.inbox_work SET worker = worker RETURNING seq $$";
    place.run(of_another_build).await.unwrap();
    let error = store.claim(&request(10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
    let record = store.get(&key("1")).await.unwrap().unwrap();
    assert_eq!(record.state, State::Pending);
    place
        .run("DROP FUNCTION {schema}.inbox_claim")
        .await
        .unwrap();
    store.migrate().await.unwrap();
    assert_eq!(claim(&store, 10).await.len(), 1);
}

/// Those have no rows to lose, so a migration puts them right.
#[tokio::test]
async fn a_function_that_is_missing_or_different_is_noticed_and_replaced() {
    for damage in [
        "DROP FUNCTION {schema}.inbox_compact_counters",
        "CREATE OR REPLACE FUNCTION {schema}.inbox_compact_counters() RETURNS void
         LANGUAGE plpgsql AS $$ BEGIN END $$",
        // Of another build, which calls it with other arguments: its workers go on with theirs.
        "CREATE FUNCTION {schema}.inbox_compact_counters(other text) RETURNS void
         LANGUAGE plpgsql AS $$ BEGIN END $$;
         DROP FUNCTION {schema}.inbox_compact_counters();",
    ] {
        let Some(Ready { place, store }) = ready().await else {
            return;
        };
        place.run(damage).await.unwrap();
        assert!(!store.exists().await.unwrap(), "{damage}");
        let error = store.create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
        assert!(
            error
                .context()
                .contains("function inbox_compact_counters()"),
            "{error}"
        );
        let migration = store.migrate().await.unwrap();
        assert_eq!((migration.from, migration.to), (Some(1), 1));
        assert!(store.exists().await.unwrap(), "{damage}");
        store.create().await.unwrap();
        receives(&store).await;
        // Each is known by its arguments, so that none can pass for another of its name.
        let known: i64 = place
            .value(
                "SELECT count(*) FROM {schema}.inbox_meta, jsonb_object_keys(functions) AS k
                 WHERE k LIKE 'inbox_compact_counters(%'",
            )
            .await;
        assert_eq!(known, 1 + i64::from(damage.contains("other text")));
    }
}

#[tokio::test]
async fn objects_of_the_users_own_are_the_users_business() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    place
        .run(
            "CREATE INDEX mine ON {schema}.inbox_message (kind);
             CREATE TABLE {schema}.inbox_notes (id bigint PRIMARY KEY, note text);
             CREATE FUNCTION {schema}.inbox_mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        )
        .await
        .unwrap();
    assert!(store.exists().await.unwrap());
    store.create().await.unwrap();
    receives(&store).await;

    // Also when the inbox goes.
    store.remove().await.unwrap();
    let left: Vec<String> = place
        .column(
            "SELECT relname::text FROM pg_class
             WHERE quote_ident(relnamespace::regnamespace::text)
                 = quote_ident(trim('\"' FROM '{schema}'))
             UNION ALL
             SELECT proname::text FROM pg_proc
             WHERE quote_ident(pronamespace::regnamespace::text)
                 = quote_ident(trim('\"' FROM '{schema}'))
             ORDER BY 1",
        )
        .await;
    assert_eq!(left, ["inbox_mine", "inbox_notes", "inbox_notes_pkey"]);
    let error = store.receive_one(&message("2")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
    store.remove().await.unwrap();
    store.create().await.unwrap();
    receives(&store).await;
}

/// All or nothing: what users have made upon it has to go first.
#[tokio::test]
async fn an_inbox_that_others_build_upon_is_not_removed() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    place
        .run("CREATE VIEW {schema}.mine AS SELECT id FROM {schema}.inbox_message")
        .await
        .unwrap();
    let error = store.remove().await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert!(store.exists().await.unwrap());
    receives(&store).await;
    place.run("DROP VIEW {schema}.mine").await.unwrap();
    store.remove().await.unwrap();
    assert_eq!(store.version().await.unwrap(), None);
}

#[tokio::test]
async fn what_is_left_of_a_damaged_inbox_is_removed() {
    for damage in [
        "DROP VIEW {schema}.inbox_overview; DROP TABLE {schema}.inbox_work, {schema}.inbox_done",
        "DROP FUNCTION {schema}.inbox_settle; DROP SEQUENCE {schema}.inbox_seq",
    ] {
        let Some(Ready { place, store }) = ready().await else {
            return;
        };
        place.run(damage).await.unwrap();
        store.remove().await.unwrap();
        store.create().await.unwrap();
        receives(&store).await;
    }
}

#[tokio::test]
async fn another_payload_type_says_so() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    let options = place.options.clone().payload_type(PayloadType::Jsonb);
    let other = PostgresStore::connect(options).await.unwrap();
    assert!(!other.exists().await.unwrap());
    let payload = message_with("1", "{}");
    for error in [
        other.create().await.unwrap_err(),
        other.migrate().await.unwrap_err(),
        other.receive(&[payload]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{error}");
        assert!(error.context().contains("payload type"), "{error}");
    }
    receives(&store).await;
}

#[tokio::test]
async fn newer_and_foreign_tables_are_refused_by_everything() {
    for (sql, expected) in [
        (
            "UPDATE {schema}.inbox_meta SET version = 7, works_from = 2",
            "version 7, this build works with 1",
        ),
        (
            "DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema};
             CREATE TABLE {schema}.inbox_message (id text)",
            "not an inbox's",
        ),
        (
            "DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema};
             CREATE TABLE {schema}.inbox_meta (marker text, version text);
             INSERT INTO {schema}.inbox_meta VALUES ('x', 'y')",
            "not an inbox's",
        ),
        (
            "UPDATE {schema}.inbox_meta SET marker = 'x'",
            "not an inbox's",
        ),
        ("DELETE FROM {schema}.inbox_meta", "not an inbox's"),
    ] {
        let Some(Ready { place, store }) = ready().await else {
            return;
        };
        place.run(sql).await.unwrap();
        let mut errors = vec![
            store.exists().await.unwrap_err(),
            store.create().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
            store.receive(&[message("1")]).await.unwrap_err(),
            store.statistics().await.unwrap_err(),
        ];
        if expected.contains("not") {
            errors.push(store.version().await.unwrap_err());
        } else {
            assert_eq!(store.version().await.unwrap(), Some(7));
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::SchemaVersion, "{sql}: {error}");
            assert!(error.context().contains(expected), "{sql}: {error}");
        }
    }
}

#[tokio::test]
async fn a_name_that_something_else_has_fails_and_leaves_nothing() {
    let Some(Ready { place, store }) = empty().await else {
        return;
    };
    place
        .run("CREATE SCHEMA {schema}; CREATE TABLE {schema}.inbox_claim (a text)")
        .await
        .unwrap();
    let error = store.create().await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    assert_eq!(store.version().await.unwrap(), None, "rolled back");
}

#[tokio::test]
async fn without_an_inbox_everything_says_so() {
    let Some(Ready { place, store }) = empty().await else {
        return;
    };
    let kinds = async || {
        [
            store.receive(&[message("1")]).await.unwrap_err().kind(),
            store.claim(&request(1)).await.unwrap_err().kind(),
            store
                .begin(&message("1"), &terms())
                .await
                .unwrap_err()
                .kind(),
            store.statistics().await.unwrap_err().kind(),
            store.get(&key("1")).await.unwrap_err().kind(),
        ]
    };
    assert_eq!(kinds().await, [ErrorKind::SchemaMissing; 5]);
    // Also when it goes away later, under statements that were prepared.
    store.create().await.unwrap();
    receives(&store).await;
    claim(&store, 1).await;
    place.run("DROP SCHEMA {schema} CASCADE").await.unwrap();
    assert_eq!(kinds().await, [ErrorKind::SchemaMissing; 5]);
    store.create().await.unwrap();
    receives(&store).await;
    assert_eq!(claim(&store, 1).await.len(), 1);
}

#[tokio::test]
async fn names_that_need_quotes_and_the_longest_names_do() {
    let long_schema = |c: char| SchemaName::new(c.to_string().repeat(63)).unwrap();
    let mut stores = Vec::new();
    for (schema, inbox) in [
        (SchemaName::new("My-Schema").unwrap(), "inbox"),
        (SchemaName::new("my-schema").unwrap(), "inbox"),
        (SchemaName::new("select").unwrap(), "table"),
        (SchemaName::new("select").unwrap(), "user"),
        (long_schema('s'), "a2345678901234567890123456789012"),
        (long_schema('s'), "b2345678901234567890123456789012"),
        (long_schema('t'), "a2345678901234567890123456789012"),
    ] {
        let Some(mut place) = TestInbox::shared() else {
            return;
        };
        let inbox = InboxName::new(inbox).unwrap();
        place.options = place.options.schema(schema.clone()).inbox_name(inbox);
        let store = place.store().await;
        assert!(store.exists().await.unwrap(), "{schema}");
        assert_eq!(
            store.count(&inbox_api::Filter::default()).await.unwrap(),
            0,
            "each is another inbox"
        );
        receives(&store).await;
        stores.push(store);
    }
    // And each wakes its own subscribers only.
    let mut subscriptions = Vec::new();
    for store in &stores {
        subscriptions.push(store.subscribe(&[]).await.unwrap());
    }
    for (n, store) in stores.iter().enumerate() {
        let receipt = store.receive_one(&ordered("2", "k")).await.unwrap();
        assert_eq!(receipt, Receipt::Accepted);
        let mut woken = Vec::new();
        for (m, subscription) in subscriptions.iter_mut().enumerate() {
            let patience = Duration::from_millis(if n == m { 60_000 } else { 30 });
            if tokio::time::timeout(patience, subscription.woken())
                .await
                .is_ok()
            {
                woken.push(m);
            }
        }
        assert_eq!(woken, [n]);
        let leased = claim(store, 10).await;
        assert_eq!(ids(&leased), ["1", "2"]);
        for leased in leased {
            settle(store, &leased.lease, processed()).await;
        }
        assert_eq!(store.statistics().await.unwrap().handlers[0].processed, 2);
    }
}

#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let Some(url) = shared_url() else { return };
    let name = fresh_name();
    execute(
        &url,
        &format!(
            "CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'
             TEMPLATE template0"
        ),
    )
    .await
    .unwrap();
    let options = connection_options(&url).database(&name);
    let place = TestInbox::at(url.clone());
    let store = PostgresStore::connect(place.options.clone().connect_with(options))
        .await
        .unwrap();
    let error = store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.context().contains("LATIN1"), "{error}");
    assert_eq!(store.version().await.unwrap(), None);
    store.close().await;
    execute(&url, &format!("DROP DATABASE {name}"))
        .await
        .unwrap();
}

/// The functions do not depend on how the database or the user's session is set.
#[tokio::test]
async fn odd_settings_of_the_session_change_nothing() {
    let Some(url) = shared_url() else { return };
    let place = TestInbox::at(url.clone());
    let options = connection_options(&url).options([
        ("DateStyle", "German"),
        ("TimeZone", "Pacific/Chatham"),
        ("IntervalStyle", "sql_standard"),
        ("bytea_output", "escape"),
        ("search_path", "nowhere"),
        ("default_transaction_isolation", "serializable"),
        ("lc_messages", "C"),
        ("plan_cache_mode", "force_custom_plan"),
        ("xmloption", "document"),
        ("standard_conforming_strings", "off"),
        ("quote_all_identifiers", "on"),
        ("transform_null_equals", "on"),
        ("array_nulls", "off"),
        ("plpgsql.extra_errors", "all"),
    ]);
    let store = PostgresStore::connect(place.options.clone().connect_with(options))
        .await
        .unwrap();
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    let later = message("later").with_due(Due::After(LEASE));
    store
        .receive(&[message("1"), ordered("2", "k"), later])
        .await
        .unwrap();
    let leased = claim(&store, 10).await;
    assert_eq!(ids(&leased), ["1", "2"]);
    assert_eq!(leased[0].message, message("1"));
    for leased in leased {
        let left = leased.lease.until.duration_since(leased.accepted_at);
        let left = left.unwrap();
        assert!(left >= LEASE && left < LEASE * 2, "{left:?}");
        settle(&store, &leased.lease, processed()).await;
    }
    check_consistent(&Ready { place, store }).await;
}

#[tokio::test]
async fn the_view_shows_where_each_message_stands() {
    let Some(ready) = ready().await else { return };
    let Ready { place, store } = &ready;
    store
        .receive(&[
            message("waits"),
            message("later").with_due(Due::After(LEASE * 10)),
            ordered("blocks", "k"),
            ordered("blocked", "k"),
        ])
        .await
        .unwrap();
    let lost = begin(store, &message("lost")).await;
    place.advance(LEASE).await;
    let held = begin(store, &message("held")).await;
    assert!(held.lease.until > lost.lease.until);
    for (id, outcome) in [
        ("done", processed()),
        ("retried", retry(LEASE)),
        ("dead", dead(AfterDead::Continue)),
        ("given up", dead(AfterDead::Continue)),
    ] {
        let lease = begin(store, &message(id)).await.lease;
        settle(store, &lease, outcome).await;
    }
    let blocks = begin(store, &ordered("blocks", "k")).await.lease;
    settle(store, &blocks, dead(AfterDead::Block)).await;
    let _ = store.discard(&key("given up")).await.unwrap();

    let shown: Vec<String> = place
        .column(
            "SELECT concat_ws(' ', id, state, attempts_started, attempts_finished, replays,
                CASE WHEN lease_until IS NOT NULL THEN 'lease' END,
                CASE WHEN finished_at IS NOT NULL THEN 'finished' END,
                CASE WHEN due_at > accepted_at THEN 'later' END,
                last_error, history -> 0 ->> 'end', worker, ordering_key,
                CASE WHEN waits_for_ordering_key THEN 'behind' END,
                CASE WHEN blocks_ordering_key THEN 'in front' END, payload_bytes)
             FROM {schema}.inbox_overview ORDER BY seq",
        )
        .await;
    assert_eq!(
        shown,
        [
            "waits pending 0 0 0 16",
            "later pending 0 0 0 later 16",
            "blocks dead 1 1 0 finished poison dead w k in front 17",
            "blocked pending 0 0 0 k behind 18",
            "lost pending 1 0 0 lease w 15",
            "held leased 1 0 0 lease w 15",
            "done processed 1 1 0 finished w 15",
            "retried pending 1 1 0 later failed retried w 18",
            "dead dead 1 1 0 finished poison dead w 15",
            "given up discarded 1 1 0 finished poison dead w 19",
        ]
    );
    // As `get` says.
    for id in ["waits", "lost", "held", "done", "dead", "given up"] {
        let state: String = place
            .value(&format!(
                "SELECT state FROM {{schema}}.inbox_overview WHERE handler = 'h' AND id = '{id}'"
            ))
            .await;
        assert_eq!(get(store, id).await.state.as_str(), state);
    }
}

#[tokio::test]
async fn closing_refuses_further_work_and_frees_the_connections() {
    let Some(Ready { place, store }) = ready().await else {
        return;
    };
    let clone = store.clone();
    receives(&store).await;
    let mut subscription = store
        .subscribe(&[HandlerName::new("h").unwrap()])
        .await
        .unwrap();
    clone.close().await;
    clone.close().await;
    let kinds = [
        store.receive(&[message("2")]).await.unwrap_err().kind(),
        store.claim(&request(1)).await.unwrap_err().kind(),
        store.get(&key("1")).await.unwrap_err().kind(),
        store.create().await.unwrap_err().kind(),
        store.subscribe(&[]).await.err().unwrap().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Unavailable; 5]);
    place.other().await.receive(&[message("2")]).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_millis(200), subscription.woken()).await;
    assert!(woken.is_err(), "the listener has ended");
}
