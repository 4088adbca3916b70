//! The MongoDB store beside the commands that it sends, issued bare through the same driver.

mod bare;
pub(crate) mod server;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use inbox::{Message, Store as _, mongodb::MongoStore};

use self::{bare::Bare, server::Server};
use crate::{
    client::Client,
    layouts::{Shape, load},
    report::{Report, rates_of, step},
};

const STORE: &str = "inbox-mongo";
const BARE: &str = "bare commands";
const DATABASE: &str = "bench_beside";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Messages per run
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// What to measure
    #[arg(long = "part", value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    /// An idle server to measure on, in a database that is made and dropped; default: `mongod` if
    /// it is to be had, else FerretDB, started for this
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Receive, duplicates, and claim and settle, one batch after the other, beside bare commands
    BesideCommands,
}

pub(crate) async fn measure(
    report: &mut Report,
    options: &Options,
    batch: u32,
    payload: usize,
) -> Result<()> {
    let bench = Bench {
        server: Server::start(options.url.as_deref()).await?,
        shape: Shape { batch, payload },
    };
    let about = bench.server.about().await?;
    report.note("server", about.clone());
    for part in &options.parts {
        let before = load()?;
        let messages = bench.shape.whole(options.messages, 1);
        let scenario = "mongodb beside-commands".to_owned();
        report.set(bench.shape.setting(scenario, &about, messages));
        match part {
            Part::BesideCommands => bench.beside_commands(report, options).await?,
        }
        report.note("load", format!("{before} before, {} after", load()?));
    }
    Ok(())
}

struct Bench {
    server: Server,
    shape: Shape,
}

impl Bench {
    async fn beside_commands(&self, report: &mut Report, options: &Options) -> Result<()> {
        let messages = self.shape.whole(options.messages, 1);
        let mut bare: Vec<[Duration; 3]> = Vec::new();
        let mut store: Vec<[Duration; 3]> = Vec::new();
        for run in 0..options.runs {
            eprintln!("beside-commands: run {}", run + 1);
            // They take turns at being first.
            if run % 2 == 0 {
                bare.push(self.run_bare(messages).await?);
            }
            store.push(self.run_store(messages).await?);
            if run % 2 == 1 {
                bare.push(self.run_bare(messages).await?);
            }
        }
        self.server.drop(DATABASE).await?;
        report.rates(BARE, "receive", messages, &step(&bare, 0));
        report.rates(BARE, "receive, the insert alone", messages, &step(&bare, 1));
        report.rates(BARE, "claim and settle", messages, &step(&bare, 2));
        report.rates(STORE, "receive", messages, &step(&store, 0));
        report.rates(
            STORE,
            "receive again (all duplicates)",
            messages,
            &step(&store, 1),
        );
        report.rates(STORE, "claim and settle", messages, &step(&store, 2));
        for (what, of_bare, by) in [
            ("receive, of the bare commands", 0, 0),
            ("receive, of the bare insert alone", 1, 0),
            ("all duplicates, of the bare receive", 0, 1),
            ("claim and settle, of the bare commands", 2, 2),
        ] {
            let ratios = rates_of(&step(&store, by), &step(&bare, of_bare));
            report.figures(STORE, what, ratios, "ratio");
        }
        Ok(())
    }

    /// Messages to send, made beforehand.
    fn batches(&self, client: &mut Client, messages: u64) -> Result<Vec<Vec<Message>>> {
        let batch = u64::from(self.shape.batch);
        (0..messages / batch)
            .map(|_| client.messages(batch))
            .collect()
    }

    /// Receive, the inserts in it, claim and settle.
    async fn run_bare(&self, messages: u64) -> Result<[Duration; 3]> {
        let store = Arc::new(self.server.fresh(DATABASE).await?);
        let batches = self.batches(
            &mut Client::new(Arc::<MongoStore>::clone(&store), self.shape)?,
            messages,
        )?;
        let bare = Bare::new(&self.server.client, DATABASE, self.shape.batch);
        let mut inserts = Duration::ZERO;
        let start = Instant::now();
        for batch in &batches {
            inserts += bare.receive(batch).await?;
        }
        let received = start.elapsed();
        let start = Instant::now();
        let mut done = 0;
        while done < messages {
            let claimed = bare.claim().await?;
            done += claimed.len() as u64;
            bare.settle(&claimed).await?;
        }
        let worked = start.elapsed();
        store.close().await;
        Ok([received, inserts, worked])
    }

    /// Receive, receive again, claim and settle.
    async fn run_store(&self, messages: u64) -> Result<[Duration; 3]> {
        let store = Arc::new(self.server.fresh(DATABASE).await?);
        let mut client = Client::new(Arc::<MongoStore>::clone(&store), self.shape)?;
        let batches = self.batches(&mut client, messages)?;
        let times = client.receive_twice_and_work(&batches).await?;
        store.close().await;
        Ok(times)
    }
}
