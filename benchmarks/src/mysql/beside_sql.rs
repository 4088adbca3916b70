//! The store beside hand-written statements through the same driver: all messages are received by
//! two connections, then claimed and settled by two.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{Message, Receipt, Store as _};

use super::{
    Options, STORE,
    server::Server,
    sql::{Bare, Layout},
};
use crate::{
    beside_sql,
    client::{Client, Maker},
    layouts::Shape,
    report::Report,
};

const DATABASE: &str = "bench_beside";
const CONNECTIONS: u64 = 2;

pub(crate) async fn measure(
    report: &mut Report,
    server: &Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let messages = shape.whole(options.messages, CONNECTIONS);
    report.adjust("messages", messages);
    let mut bare: [Vec<[Duration; 2]>; 2] = Default::default();
    let mut store: Vec<[Duration; 3]> = Vec::new();
    for run in 0..options.runs as usize {
        eprintln!("beside-sql: run {}", run + 1);
        // Each run begins with another contender, so that none is always first.
        for place in 0..3 {
            match (place + run) % 3 {
                2 => store.push(run_store(server, messages, shape).await?),
                n => bare[n].push(run_sql(server, Layout::ALL[n], messages, shape).await?),
            }
        }
    }
    let bare = [0, 1].map(|n| (Layout::ALL[n].name(), bare[n].as_slice()));
    beside_sql::tell(report, STORE, messages, bare, &store);
    Ok(())
}

/// The batches of each connection.
fn batches(messages: u64, shape: Shape) -> Result<Vec<Vec<Message>>> {
    Maker::new(shape.payload)?.batches(messages / CONNECTIONS, shape.batch)
}

async fn run_sql(
    server: &Server,
    layout: Layout,
    messages: u64,
    shape: Shape,
) -> Result<[Duration; 2]> {
    server.create(DATABASE).await?;
    let options = server.options(DATABASE);
    Bare::connect(&options, layout, shape.batch)
        .await?
        .set_up()
        .await?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let batches = batches(messages, shape)?;
        clients.push((Bare::connect(&options, layout, shape.batch).await?, batches));
    }
    let start = Instant::now();
    let clients = both(clients, async |(mut client, batches)| {
        for batch in &batches {
            client.receive(batch).await?;
        }
        Ok(client)
    })
    .await?;
    let received = start.elapsed();
    let start = Instant::now();
    let drained = both(clients, async |mut client| client.drain().await).await?;
    let worked = start.elapsed();
    let drained: u64 = drained.iter().sum();
    ensure!(drained == messages, "drained {drained} of {messages}");
    server.drop(DATABASE).await?;
    Ok([received, worked])
}

async fn run_store(server: &Server, messages: u64, shape: Shape) -> Result<[Duration; 3]> {
    let store = server.fresh(DATABASE, 2).await?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Client::new(store.clone(), shape)?;
        let batches = batches(messages, shape)?;
        clients.push((Arc::new(client), batches));
    }
    let mut times = [Duration::ZERO; 3];
    for (step, expected) in [(0, Receipt::Accepted), (1, Receipt::Duplicate)] {
        let start = Instant::now();
        let expected = &expected;
        clients = both(clients, async |(client, batches)| {
            for batch in &batches {
                client.receive_as(batch, expected).await?;
            }
            Ok((client, batches))
        })
        .await?;
        times[step] = start.elapsed();
    }
    let start = Instant::now();
    both(clients, async |(client, _)| {
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

/// Runs two at the same time, in one task: the server does most of the work.
async fn both<A, B>(inputs: Vec<A>, run: impl AsyncFn(A) -> Result<B>) -> Result<Vec<B>> {
    let mut inputs = inputs.into_iter();
    let (Some(first), Some(second)) = (inputs.next(), inputs.next()) else {
        return Ok(Vec::new());
    };
    let (first, second) = tokio::try_join!(run(first), run(second))?;
    Ok(vec![first, second])
}
