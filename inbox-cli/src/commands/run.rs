//! `inbox run`: ingest and process, until nothing is left.

use std::{slice, sync::Arc};

use anyhow::Result;
use clap::Args;
use inbox::Summary;
use tokio::sync::watch;

use crate::{
    args::Global,
    causes,
    commands::{
        ingest::{Ingest, Ingested},
        process::{self, Counted, ProcessingArgs},
    },
    exit::Exit,
    handler::{self, Starts, TargetArgs},
    input::{self, InputArgs},
    interrupt, output, progress, store,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  inbox run events.ndjson -- ./charge-card
  cat events.ndjson | inbox run - --post http://localhost:8080/hook

While the store is away it waits. See `inbox process --help` for what a handler is given and how it
answers.";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    #[command(flatten)]
    pub(crate) processing: ProcessingArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

pub(crate) async fn run(global: &Global, args: RunArgs) -> Result<Exit> {
    let retry = args.processing.retry_policy();
    let starts = Arc::<Starts>::default();
    let handler = handler::from_args(&args.target, &args.processing, &[], Arc::clone(&starts))?;
    store::check_is_not_inbox(&global.store, &args.input.file)?;
    let reader = input::open(&args.input).await?;
    let store = store::open_or_create(&global.store).await?;
    let token = interrupt::token()?;
    let bar = progress::counter(global, "handlers run");
    let handler = Arc::new(Counted::new(handler, bar.clone(), token.clone()));
    let limit = args.processing.time_limit(&args.target);
    let processor = process::processor(&store, handler, &args.processing, limit)?;

    // Processing begins with the first batch and ends when the input has ended and everything
    // stored is final.
    let (stored, mut batches) = watch::channel(());
    let ingest = Ingest {
        reader,
        args: &args.input,
        handlers: slice::from_ref(&args.processing.handler),
        stored,
    };
    // When nothing can be handled any more, nothing more is taken.
    let intake = token.child_token();
    let ingesting = async {
        let ingested = ingest.run(global, Arc::clone(&store), intake.clone()).await;
        if let Err(error) = &ingested {
            let cause = causes(error);
            let note = format!("inbox: {cause}; finishing what is stored");
            bar.suspend(|| output::note(note));
        }
        ingested
    };
    let processing = async {
        let _ends = intake.clone().drop_guard();
        let mut total = Summary::default();
        loop {
            let is_last = batches.changed().await.is_err();
            let drained = process::drain(&processor, Arc::clone(&store), &starts, &token);
            add(&mut total, &drained.await?);
            if is_last || token.is_cancelled() {
                return anyhow::Ok(total);
            }
        }
    };
    let waiting = process::say_what_it_waits_for(
        global,
        Arc::clone(&store),
        args.processing.handler.clone(),
        bar.clone(),
    );
    let work = async {
        tokio::select! {
            both = async { tokio::join!(ingesting, processing) } => both,
            never = waiting => match never {},
        }
    };
    let (keep, handler) = (args.processing.keep_processed, &args.processing.handler);
    let (ingested, processed) = keep
        .during(global, &store, handler, retry, &token, Box::pin(work))
        .await?;
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
    total.abandoned += run.abandoned;
}

fn report(global: &Global, ingested: &Ingested, processed: &Summary) -> Result<()> {
    if !global.quiet
        && let Some(advice) = ingested.advice()
    {
        output::note(advice);
    }
    if global.json {
        let mut figures = process::figures(processed);
        figures["accepted"] = ingested.accepted.into();
        figures["duplicates"] = ingested.duplicates.into();
        figures["differing"] = ingested.differing.into();
        figures["refused"] = ingested.refused.into();
        return output::json(&figures);
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
