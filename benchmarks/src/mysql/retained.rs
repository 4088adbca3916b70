//! Claim and settle beside a history of processed messages.

use std::time::{Duration, Instant};

use anyhow::Result;
use inbox::Store as _;

use super::{Options, STORE, server::Server};
use crate::{
    client::Client,
    layouts::Shape,
    report::{Report, rates_of},
};

/// How many rows a statement of the filling makes.
const STEP: u64 = 100_000;

/// An inbox without and one with the history exist at the same time and take turns.
pub(crate) async fn measure(
    report: &mut Report,
    server: &Server,
    options: &Options,
    shape: Shape,
) -> Result<()> {
    let numbers = [0, options.retained];
    let mut stores = Vec::new();
    for number in numbers {
        let database = format!("bench_retained_{number}");
        let store = server.fresh(&database, 2).await?;
        fill(server, &database, number).await?;
        stores.push((database, store));
    }
    let mut received: [Vec<Duration>; 2] = Default::default();
    let mut worked: [Vec<Duration>; 2] = Default::default();
    for run in 0..options.runs as usize {
        eprintln!("retained: run {}", run + 1);
        for place in [run % 2, (run + 1) % 2] {
            let mut client = Client::new(stores[place].1.clone(), shape)?;
            let start = Instant::now();
            client.receive(options.messages).await?;
            received[place].push(start.elapsed());
            let start = Instant::now();
            client.work(options.messages).await?;
            worked[place].push(start.elapsed());
        }
    }
    for (what, times) in [("receive", &received), ("claim and settle", &worked)] {
        for (number, times) in numbers.iter().zip(times) {
            report.rates(
                STORE,
                format!("{what}, {number} retained"),
                options.messages,
                times,
            );
        }
        report.figures(
            STORE,
            format!("{what}, {} retained, of the empty one", numbers[1]),
            rates_of(&times[1], &times[0]),
            "ratio",
        );
    }
    for (database, store) in stores {
        store.close().await;
        server.drop(&database).await?;
    }
    Ok(())
}

/// Adds that many processed messages of 16 bytes, with numbers before all that are received.
async fn fill(server: &Server, database: &str, number: u64) -> Result<()> {
    for from in (0..number).step_by(usize::try_from(STEP)?) {
        eprintln!("retained: {from} of {number} filled");
        let to = number.min(from + STEP);
        let sql = include_str!("sql/retained.sql")
            .replace("{database}", database)
            .replace("{from}", &from.to_string())
            .replace("{number}", &(to - from).to_string());
        server.run(sql).await?;
    }
    Ok(())
}
