//! An outbox whose broker does not let it in for a while: nothing of that is about a message.

use std::{sync::Arc, time::Duration};

use inbox::{
    CancellationToken, MessageId, Operate as _, Processor, Schema as _, State, memory::MemoryStore,
    outbox::Outbox,
};
use inbox_redis_streams::RedisStreamsPublisher;
use redis::{Value, cmd};
use test_servers::Kind;
use tokio::{
    task::block_in_place,
    time::{Instant, sleep},
};

use crate::harness::{Outcome, Redis};

const PATIENCE: Duration = Duration::from_secs(60);
const MESSAGES: usize = 5;

async fn set_user(server: &Redis, rules: &[&str]) -> Outcome {
    let mut set = cmd("ACL");
    set.arg("SETUSER").arg("ann").arg(rules);
    server.ask::<Value>(&set).await?;
    Ok(())
}

/// A wrong password, then missing rights, then neither.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_refused_user_sends_waits() -> Outcome {
    let Some(server) = block_in_place(|| Redis::own(Kind::Redis))? else {
        return Ok(());
    };
    set_user(&server, &["on", ">another", "~*", "&*", "+@all", "-xadd"]).await?;
    let store = MemoryStore::new();
    store.create().await?;
    let outbox = Outbox::new(store.clone(), "to-broker")?;
    for number in 0..MESSAGES {
        let id = MessageId::new(format!("order-{number}"))?;
        let message = outbox.message("orders", id, "order.placed", "{}")?;
        outbox.send(&[message]).await?;
    }
    let url = format!("redis+stream://ann:right@{}/0", server.address());
    let publisher = RedisStreamsPublisher::from_url(&url)?;
    let processor = Processor::builder(Arc::new(store.clone()))
        .router(outbox.router(publisher))
        .build()?;
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop).await }
    });
    let count = |state| {
        let store = store.clone();
        async move { store.statistics().await.map(|all| all.count(state)) }
    };
    let dead = || count(State::Dead);

    sleep(Duration::from_secs(3)).await;
    assert_eq!(dead().await?, 0, "with a wrong password");
    set_user(&server, &["resetpass", ">right"]).await?;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(dead().await?, 0, "without the right to");
    set_user(&server, &["+xadd"]).await?;
    let deadline = Instant::now() + PATIENCE;
    while count(State::Pending).await? + count(State::Leased).await? > 0 {
        assert!(Instant::now() < deadline, "{:?}", store.statistics().await?);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(dead().await?, 0);
    assert_eq!(server.entries("orders").await?.len(), MESSAGES);
    stop.cancel();
    running.await??;
    Ok(())
}
