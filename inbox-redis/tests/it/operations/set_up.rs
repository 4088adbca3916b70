//! Setting up, and what every client looks at first.

use super::*;

#[tokio::test]
async fn scripts_are_loaded_again_when_the_server_forgets_them() {
    let Some(server) = own(&[]).await else { return };
    let (store, _) = store(options(server.url(), false, 1)).await;
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    for id in ["1", "2"] {
        let mut flush = redis::cmd("SCRIPT");
        flush.arg("FLUSH");
        let _: Value = raw.run(&flush).await.unwrap();
        assert_eq!(
            store.receive_one(&message(id)).await.unwrap(),
            Receipt::Accepted
        );
        let _: Value = raw.run(&flush).await.unwrap();
        let leased = claim(&store, 1).await;
        let _: Value = raw.run(&flush).await.unwrap();
        settle_all(&store, leased).await;
    }
}

#[tokio::test]
async fn a_client_with_another_number_of_shards_is_refused() {
    let Some(options) = shared(3) else { return };
    let (first, _) = store(options.clone()).await;
    assert_eq!(
        first.receive_one(&message("1")).await.unwrap(),
        Receipt::Accepted
    );
    let other = RedisStore::connect(options.shards(5).unwrap())
        .await
        .unwrap();
    let refused = [
        other.exists().await.map(drop).unwrap_err(),
        other.create().await.unwrap_err(),
        other.migrate().await.map(drop).unwrap_err(),
        other
            .receive_one(&message("2"))
            .await
            .map(drop)
            .unwrap_err(),
        other.statistics().await.map(drop).unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::SchemaVersion | ErrorKind::SchemaMissing
            ),
            "{error}"
        );
    }
    let error = other.exists().await.unwrap_err();
    assert!(error.context().contains("3 shards"), "{error}");
}

#[tokio::test]
async fn an_interrupted_set_up_is_completed_and_a_lost_shard_is_not_replaced() {
    let Some(options) = shared(3) else { return };
    let (store, _) = store(options).await;
    let mut raw = raw().await;
    let tag = |shard: u16| {
        let ddl = store.ddl();
        let line = ddl
            .lines()
            .find(|l| l.contains(&format!(":{shard}}}:meta")));
        line.unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    // The first shard's marker is written last.
    let mut delete = redis::cmd("DEL");
    delete.arg(tag(0)).arg(tag(1));
    let _: Value = raw.run(&delete).await.unwrap();
    assert!(!store.exists().await.unwrap());
    store.create().await.unwrap();
    assert!(store.exists().await.unwrap());
    let mut delete = redis::cmd("DEL");
    delete.arg(tag(1));
    let _: Value = raw.run(&delete).await.unwrap();
    assert!(!store.exists().await.unwrap());
    let error = store.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaVersion);
    // Every line of the statements is one for redis-cli.
    for line in store.ddl().lines().filter(|l| l.starts_with("HSET")) {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        let _: Value = raw.run(&command).await.unwrap();
    }
    assert!(store.exists().await.unwrap());
}

#[tokio::test]
async fn a_removed_inbox_leaves_nothing_and_can_be_made_anew() {
    for shards in [1, 5] {
        let Some(server) = own(&[]).await else { return };
        let (store, _) = store(options(server.url(), false, shards)).await;
        let mut sent: Vec<Message> = (0..40).map(|n| message(&n.to_string())).collect();
        sent.extend((40..60).map(|n| ordered(&n.to_string(), "k")));
        let _ = store.receive(&sent).await.unwrap();
        settle_all(&store, claim(&store, 10).await).await;
        store.remove().await.unwrap();
        let mut raw = Raw::connect(server.url(), false).await.unwrap();
        let keys: Vec<String> = raw.run(redis::cmd("KEYS").arg("*")).await.unwrap();
        assert_eq!(keys, Vec::<String>::new());
        assert!(!store.exists().await.unwrap());
        store.remove().await.unwrap();
        store.create().await.unwrap();
        let again = store.receive(&sent).await.unwrap();
        assert!(again.iter().all(|receipt| *receipt == Receipt::Accepted));
    }
}

/// As an older build leaves them when a receiver stores the first message of a handler meanwhile.
#[tokio::test]
async fn keys_of_a_handler_that_a_removal_has_left_hold_nothing_up() {
    let Some(server) = own(&[]).await else { return };
    let (store, _) = store(options(server.url(), false, 1)).await;
    let _ = store.receive_one(&ordered("0", "k")).await.unwrap();
    let mut raw = Raw::connect(server.url(), false).await.unwrap();
    let mut keys: Vec<String> = raw.run(redis::cmd("KEYS").arg("*")).await.unwrap();
    keys.retain(|key| !key.ends_with(":billing"));
    let _: Value = raw.run(redis::cmd("DEL").arg(keys)).await.unwrap();
    store.create().await.unwrap();
    // Its number is the one that the first message had.
    let again = ["1", "2"].map(|id| ordered(id, "k"));
    let _ = store.receive(&again).await.unwrap();
    for id in ["1", "2"] {
        let leased = claim(&store, 1).await;
        let ids: Vec<&str> = leased.iter().map(|one| one.message.id().as_str()).collect();
        assert_eq!(ids, [id]);
        settle_all(&store, leased).await;
    }
    assert_eq!(contradictions(&store).await.unwrap(), [""; 0]);
}
