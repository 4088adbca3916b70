//! `inbox run`: ingest and process, until nothing is left.

use std::{slice, sync::Arc};

use anyhow::Result;
use inbox::Summary;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    args::{Global, RunArgs},
    commands::{
        ingest::{self, Ingested},
        process::{self, Counted},
    },
    exit::Exit,
    handler, interrupt, output, progress, store,
};

pub(crate) async fn run(global: &Global, args: RunArgs) -> Result<Exit> {
    let handler = handler::from_args(&args.target)?;
    let store = store::open_or_create(&global.store).await?;
    let token = interrupt::token()?;
    let bar = progress::counter(global, "handlers run");
    let handler = Arc::new(Counted::new(handler, bar.clone(), token.clone()));
    let processor = process::processor(&store, handler, &args.processing)?;

    // Processing begins with the first batch and ends when the input has ended and everything
    // stored is final.
    let (stored, mut batches) = watch::channel(());
    let ingesting = ingest::ingest(
        global,
        Arc::clone(&store),
        &args.input,
        slice::from_ref(&args.processing.handler),
        token.clone(),
        stored,
    );
    let processing = async {
        let mut total = Summary::default();
        loop {
            let is_last = batches.changed().await.is_err();
            let operate = Arc::clone(&store);
            add(
                &mut total,
                &processor.run_until_drained(operate, token.clone()).await?,
            );
            if is_last || token.is_cancelled() {
                return anyhow::Ok(total);
            }
        }
    };
    let (ingested, processed) = tokio::join!(ingesting, processing);
    bar.finish_and_clear();
    let (ingested, processed) = (ingested?, processed?);
    report(global, &ingested, &processed)?;
    let exit = match ingested.exit() {
        Exit::Ok => process::exit(&processed),
        refused => refused,
    };
    Ok(interrupt::exit(&token, exit))
}

fn add(total: &mut Summary, run: &Summary) {
    total.processed += run.processed;
    total.retried += run.retried;
    total.dead += run.dead;
    total.released += run.released;
    total.lease_lost += run.lease_lost;
}

fn report(global: &Global, ingested: &Ingested, processed: &Summary) -> Result<()> {
    if global.json {
        return output::json(&json!({
            "accepted": ingested.accepted,
            "duplicates": ingested.duplicates,
            "refused": ingested.refused,
            "processed": processed.processed,
            "retried": processed.retried,
            "dead": processed.dead,
        }));
    }
    if global.quiet {
        return Ok(());
    }
    output::line(format!(
        "{}; {}",
        ingested.sentence(),
        process::sentence(processed)
    ))
}
