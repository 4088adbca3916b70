//! Claim and settle beside a history, or at the head of a backlog: neither may cost more.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use inbox::{
    Schema as _, Store as _,
    postgres::{PostgresOptions, PostgresStore},
};

use super::{Options, client::Client};
use crate::{
    layouts::{Shape, server::Server},
    report::{Report, rates_of},
};

pub(crate) struct Depth {
    name: &'static str,
    sql: &'static str,
    number: fn(&Options) -> u64,
    /// Bytes of the messages received for each run; `None`: those of the other parts.
    payload: Option<usize>,
}

pub(crate) const RETAINED: Depth = Depth {
    name: "retained",
    sql: include_str!("sql/retained.sql"),
    number: |options| options.retained,
    payload: None,
};

/// What is claimed are prefilled messages, so all messages are of their size.
pub(crate) const PENDING: Depth = Depth {
    name: "pending",
    sql: include_str!("sql/pending.sql"),
    number: |options| options.pending,
    payload: Some(16),
};

/// An inbox without and one with them exist at the same time and take turns.
pub(crate) async fn measure(
    report: &mut Report,
    server: &mut Server,
    options: &Options,
    shape: Shape,
    depth: Depth,
) -> Result<()> {
    let shape = Shape {
        payload: depth.payload.unwrap_or(shape.payload),
        ..shape
    };
    let numbers = [0, (depth.number)(options)];
    let mut stores = Vec::new();
    for number in numbers {
        eprintln!("{} {number}: filling", depth.name);
        stores.push(filled(server, depth.sql, number).await?);
    }
    let mut times = [Vec::new(), Vec::new()];
    for run in 0..options.runs {
        eprintln!("{}: run {}", depth.name, run + 1);
        for (store, times) in stores.iter().zip(&mut times) {
            let mut client = Client::new(store.clone(), shape)?;
            client.receive(options.messages).await?;
            server.checkpoint().await?;
            let start = Instant::now();
            client.work(options.messages).await?;
            times.push(start.elapsed());
        }
    }
    for (number, times) in numbers.iter().zip(&times) {
        let step = format!("claim and settle, {number} {}", depth.name);
        report.rates("inbox-postgres", step, options.messages, times);
    }
    report.figures(
        "inbox-postgres",
        format!(
            "claim and settle, {} {}, of the empty one",
            numbers[1], depth.name
        ),
        rates_of(&times[1], &times[0]),
        "ratio",
    );
    for (store, number) in stores.iter().zip(numbers) {
        store.close().await;
        server.drop(&database(number)).await?;
    }
    Ok(())
}

fn database(number: u64) -> String {
    format!("bench_inbox_{number}")
}

async fn filled(server: &mut Server, sql: &str, number: u64) -> Result<Arc<PostgresStore>> {
    let name = database(number);
    server.drop(&name).await?;
    server.run(format!("CREATE DATABASE {name}")).await?;
    let connection = server.plain_options(&name);
    let options = PostgresOptions::new().max_connections(2);
    let store = PostgresStore::connect(connection.clone(), options).await?;
    store.create().await?;
    prefill(&connection, sql, number).await?;
    Ok(Arc::new(store))
}

/// Adds that many messages on the server, rounded up to thousands.
pub(crate) async fn prefill(
    connection: &sqlx::postgres::PgConnectOptions,
    sql: &str,
    number: u64,
) -> Result<()> {
    use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

    let mut connection = connection.connect().await?;
    if number > 0 {
        sqlx::raw_sql(AssertSqlSafe(sql.replace("{number}", &number.to_string())))
            .execute(&mut connection)
            .await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE")
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    Ok(())
}
