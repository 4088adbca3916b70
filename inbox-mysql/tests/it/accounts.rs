//! Who may do what, and how users log in.

use std::time::Duration;

use inbox_api::{
    AfterDead, Edit, ErrorKind, Filter, Operate as _, Schema as _, State, Store as _,
    StoreExt as _, Transactional as _,
};
use inbox_mysql::{MySqlOptions, MySqlStore};
use sqlx::mysql::MySqlSslMode;
use test_servers::Kind;

use crate::common::{
    self, accept, claim, connect_options, dead, handler, key, message, on_each, ordered, processed,
    settle,
};

#[test]
fn a_user_with_few_privileges_works_but_sets_nothing_up() {
    on_each(async |inbox, _| {
        let name = format!("u{}", &inbox.database[5..]);
        let database = &inbox.database;
        inbox
            .run(format!(
                "CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'few';
                 GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO '{name}'@'127.0.0.1'"
            ))
            .await
            .unwrap();
        let connect = connect_options(&inbox.url, Some(database))
            .username(&name)
            .password("few");
        let options = inbox.options.clone().connect_with(connect);
        let limited = MySqlStore::connect(options).await.unwrap();
        assert_eq!(
            limited.create().await.unwrap_err().kind(),
            ErrorKind::Denied
        );
        let error = limited.receive_one(&message("1")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMissing);

        inbox.store().await;
        assert!(limited.exists().await.unwrap());
        accept(
            &limited,
            &[message("1"), ordered("2", "a"), ordered("3", "a")],
        )
        .await;
        for leased in claim(&limited, 10).await {
            settle(&limited, &leased.lease, dead(AfterDead::Block)).await;
        }
        let _ = limited.replay(&key("1"), &Edit::default()).await.unwrap();
        let _ = limited.discard(&key("2")).await.unwrap();
        for leased in claim(&limited, 10).await {
            settle(&limited, &leased.lease, processed()).await;
        }
        let expired = inbox_api::PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
        assert_eq!(limited.purge(&expired).await.unwrap(), 2);
        assert_eq!(limited.count(&Filter::default()).await.unwrap(), 1);
        inbox
            .run(format!("DROP USER '{name}'@'127.0.0.1'"))
            .await
            .unwrap();
    });
}

/// SETUP.md: what sets up and works, and what removing needs in addition.
#[test]
fn the_documented_user_is_enough() {
    on_each(async |inbox, _| {
        let name = format!("d{}", &inbox.database[5..]);
        let database = &inbox.database;
        let documented = include_str!("../../SETUP.md");
        let grant = documented.lines().find(|line| line.starts_with("GRANT"));
        let grant = grant
            .unwrap()
            .replace("shop.*", &format!("{database}.*"))
            .replace("TO app", &format!("TO '{name}'@'127.0.0.1'"));
        inbox
            .run(format!(
                "CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'few'; {grant}"
            ))
            .await
            .unwrap();
        let connect = connect_options(&inbox.url, Some(database))
            .username(&name)
            .password("few");
        let options = inbox.options.clone().connect_with(connect);
        let store = MySqlStore::connect(options.clone()).await.unwrap();
        store.create().await.unwrap();
        store.migrate().await.unwrap();
        assert!(store.exists().await.unwrap());
        let routines =
            "SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = DATABASE()";
        let mut connection = inbox.connection().await.unwrap();
        let row = sqlx::raw_sql(routines).fetch_one(&mut connection).await;
        let routines: i64 = sqlx::Row::try_get_unchecked(&row.unwrap(), 0).unwrap();
        assert_eq!(routines, 2, "the procedures are made, too");

        accept(&store, &[message("1"), ordered("2", "a"), message("3")]).await;
        for leased in claim(&store, 10).await {
            let extended = store.extend_one(&leased.lease, common::LEASE).await;
            let _ = extended.unwrap();
            settle(&store, &leased.lease, processed()).await;
        }
        let _ = store.begin(&message("4"), &common::terms()).await.unwrap();
        let mut transaction = store.open().await.unwrap();
        let new = [message("5"), message("6")];
        store.receive_in(&mut transaction, &new).await.unwrap();
        store.commit(transaction).await.unwrap();
        let _ = store.replay(&key("1"), &Edit::default()).await.unwrap();
        let _ = store.discard(&key("5")).await.unwrap();
        let _ = store
            .reschedule(&key("6"), inbox_api::Due::Now)
            .await
            .unwrap();
        store.pause(&handler("h")).await.unwrap();
        assert_eq!(store.paused().await.unwrap(), [handler("h")]);
        store.resume(&handler("h")).await.unwrap();
        let first = inbox_api::Page::first(10);
        store.list(&Filter::default(), &first).await.unwrap();
        store.statistics().await.unwrap();
        let expired = inbox_api::PurgeRequest::new(State::Processed, Duration::ZERO, 10).unwrap();
        store.drop_payloads(&expired).await.unwrap();
        assert_eq!(store.purge(&expired).await.unwrap(), 2);

        assert_eq!(store.remove().await.unwrap_err().kind(), ErrorKind::Denied);
        inbox
            .run(format!(
                "GRANT DROP, ALTER ROUTINE ON {database}.* TO '{name}'@'127.0.0.1'"
            ))
            .await
            .unwrap();
        store.close().await;
        // Connections keep the privileges on a database that they had when they were made.
        let store = MySqlStore::connect(options).await.unwrap();
        store.remove().await.unwrap();
        assert!(!store.exists().await.unwrap());
        store.close().await;
        inbox
            .run(format!("DROP USER '{name}'@'127.0.0.1'"))
            .await
            .unwrap();
    });
}

#[test]
fn caching_sha2_passwords_work_with_and_without_tls() {
    on_each(async |inbox, kind| {
        if kind != Kind::Mysql {
            return; // MariaDB 10.11 has no such accounts.
        }
        let name = format!("c{}", &inbox.database[5..]);
        inbox
            .run(format!(
                "CREATE USER '{name}'@'127.0.0.1' IDENTIFIED WITH caching_sha2_password BY 'p';
                 GRANT ALL ON {}.* TO '{name}'@'127.0.0.1'",
                inbox.database
            ))
            .await
            .unwrap();
        // The first login without TLS has to exchange the password; later ones find it cached.
        for mode in [
            MySqlSslMode::Disabled,
            MySqlSslMode::Disabled,
            MySqlSslMode::Required,
        ] {
            let connect = connect_options(&inbox.url, Some(&inbox.database))
                .username(&name)
                .password("p")
                .ssl_mode(mode);
            let store = MySqlStore::connect(inbox.options.clone().connect_with(connect))
                .await
                .unwrap();
            store.create().await.unwrap();
            let _ = store.receive_one(&message("1")).await.unwrap();
            store.close().await;
        }
        let wrong = connect_options(&inbox.url, Some(&inbox.database))
            .username(&name)
            .password("hunter2");
        let error = MySqlStore::connect(MySqlOptions::new(wrong))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(!format!("{error:?}").contains("hunter2"));
        inbox
            .run(format!("DROP USER '{name}'@'127.0.0.1'"))
            .await
            .unwrap();
    });
}
