//! The store beside the best hand-written statements through the same driver: all messages are
//! received by two connections, then claimed and settled by two.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use inbox::{Receipt, Store as _};

use super::{
    Options,
    client::{self, Client, DATABASE},
};
use crate::{
    beside_sql,
    layouts::{Layout, Shape, client::Client as Sql, server::Server},
    report::Report,
};

const STORE: &str = "inbox-postgres";
const CONNECTIONS: u64 = 2;

pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let messages = options.messages;
    // One table is the least that a receive can write; the store's own layout is what claim and
    // settle are to be compared with.
    let layouts: [&'static Layout; 2] = [
        "one-table".parse().context("layout")?,
        "message+work+done".parse().context("layout")?,
    ];
    let mut bare: [Vec<[Duration; 2]>; 2] = Default::default();
    let mut store: Vec<[Duration; 3]> = Vec::new();
    for run in 0..options.runs as usize {
        // Each run begins with another contender, so that none is always first.
        for place in 0..3 {
            match (place + run) % 3 {
                2 => store.push(run_store(server, messages, shape).await?),
                n => bare[n].push(run_sql(server, layouts[n], messages, shape).await?),
            }
        }
    }
    let bare = [0, 1].map(|n| (layouts[n].name, bare[n].as_slice()));
    beside_sql::tell(report, STORE, messages, bare, &store);
    Ok(())
}

async fn run_sql(
    server: &mut Server,
    layout: &'static Layout,
    messages: u64,
    shape: Shape,
) -> Result<[Duration; 2]> {
    let database = layout.database();
    let mut first = server.create(&database, layout, shape).await?;
    sqlx::raw_sql(layout.indexes)
        .execute(&mut first.connection)
        .await?;
    drop(first);
    server.checkpoint().await?;
    let mut times = [Duration::ZERO; 2];
    let clients = server
        .clients(CONNECTIONS as usize, &database, layout, shape)
        .await?;
    let start = Instant::now();
    let clients = both(clients, move |mut client: Sql| async move {
        client.receive(messages / CONNECTIONS).await?;
        Ok(client)
    })
    .await?;
    times[0] = start.elapsed();
    server.checkpoint().await?;
    let start = Instant::now();
    both(clients, |mut client: Sql| async move {
        client.drain().await?;
        Ok(client)
    })
    .await?;
    times[1] = start.elapsed();
    server.drop(&database).await?;
    Ok(times)
}

async fn run_store(server: &mut Server, messages: u64, shape: Shape) -> Result<[Duration; 3]> {
    let store = Arc::new(client::fresh(server, 2).await?);
    server.checkpoint().await?;
    let clients = (0..CONNECTIONS)
        .map(|_| Client::new(store.clone(), shape))
        .collect::<Result<Vec<_>>>()?;
    let mut times = [Duration::ZERO; 3];
    let start = Instant::now();
    let sent = both(clients, move |mut client: Client| async move {
        let sent = client.receive(messages / CONNECTIONS).await?;
        Ok((client, sent))
    })
    .await?;
    times[0] = start.elapsed();

    let start = Instant::now();
    let clients = both(sent, |(client, sent): (Client, Vec<_>)| async move {
        for messages in &sent {
            client.receive_as(messages, &Receipt::Duplicate).await?;
        }
        Ok(client)
    })
    .await?;
    times[1] = start.elapsed();

    server.checkpoint().await?;
    let start = Instant::now();
    both(clients, |client: Client| async move {
        loop {
            let claimed = client.claim().await?;
            if claimed.is_empty() {
                return Ok(());
            }
            client.settle(&claimed).await?;
        }
    })
    .await?;
    times[2] = start.elapsed();
    store.close().await;
    server.drop(DATABASE).await?;
    Ok(times)
}

/// Runs one task for each at the same time.
async fn both<A, B, F>(inputs: Vec<A>, run: impl Fn(A) -> F) -> Result<Vec<B>>
where
    A: Send + 'static,
    B: Send + 'static,
    F: Future<Output = Result<B>> + Send + 'static,
{
    let tasks: Vec<_> = inputs
        .into_iter()
        .map(|input| tokio::spawn(run(input)))
        .collect();
    let mut outputs = Vec::with_capacity(tasks.len());
    for task in tasks {
        outputs.push(task.await??);
    }
    Ok(outputs)
}
