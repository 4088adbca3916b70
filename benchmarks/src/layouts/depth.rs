//! Claim and settle beside a history, or at the head of a backlog: neither may cost more.

use std::time::Instant;

use anyhow::Result;

use super::{Layout, Options, Shape, client::Client, server::Server};
use crate::report::Report;

pub(crate) struct Depth {
    name: &'static str,
    sql: fn(&Layout) -> &'static str,
    numbers: fn(&Options) -> &[u64],
    /// Bytes of the messages received for each run; `None`: those of the other parts.
    payload: Option<usize>,
}

pub(crate) const RETAINED: Depth = Depth {
    name: "retained",
    sql: |layout| layout.retained,
    numbers: |options| &options.retained,
    payload: None,
};

/// What is claimed are prefilled messages, so all messages are of their size.
pub(crate) const PENDING: Depth = Depth {
    name: "pending",
    sql: |layout| layout.pending,
    numbers: |options| &options.pending,
    payload: Some(16),
};

/// The databases of one layout exist at the same time and take turns, so that a layout is compared
/// with itself.
pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
    depth: Depth,
) -> Result<()> {
    let numbers = (depth.numbers)(options);
    let shape = Shape {
        payload: depth.payload.unwrap_or(shape.payload),
        ..shape
    };
    for layout in &options.layouts {
        let mut clients = Vec::with_capacity(numbers.len());
        for number in numbers {
            eprintln!("{} {number}: filling {}", depth.name, layout.name);
            clients.push(filled(server, layout, shape, &depth, *number).await?);
        }
        let mut times: Vec<Vec<_>> = numbers.iter().map(|_| Vec::new()).collect();
        for run in 0..options.runs {
            eprintln!("{}: run {} of {}", depth.name, run + 1, layout.name);
            for (client, times) in clients.iter_mut().zip(&mut times) {
                client.receive(options.messages).await?;
                server.checkpoint().await?;
                let start = Instant::now();
                client.work(options.messages).await?;
                times.push(start.elapsed());
            }
        }
        drop(clients);
        for (number, times) in numbers.iter().zip(&times) {
            let step = format!("claim and settle, {number} {}", depth.name);
            report.rates(layout.name, step, options.messages, times);
            server.drop(&database(layout, *number)).await?;
        }
    }
    Ok(())
}

async fn filled(
    server: &mut Server,
    layout: &'static Layout,
    shape: Shape,
    depth: &Depth,
    number: u64,
) -> Result<Client> {
    let name = database(layout, number);
    let mut client = server.create(&name, layout, shape).await?;
    client.prefill((depth.sql)(layout), number).await?;
    sqlx::raw_sql(layout.indexes)
        .execute(&mut client.connection)
        .await?;
    sqlx::raw_sql("VACUUM ANALYZE")
        .execute(&mut client.connection)
        .await?;
    Ok(client)
}

fn database(layout: &Layout, number: u64) -> String {
    format!("{}_{number}", layout.database())
}
