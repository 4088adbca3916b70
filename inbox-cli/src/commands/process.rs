//! `inbox process`: run a command, or an HTTP POST, for each stored message.

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use inbox::{
    Completion, Context, Failure, Handler, HandlerName, Inbox, Processor, RetryPolicy, Router,
    Summary,
};
use indicatif::ProgressBar;
use serde_json::json;

use crate::{
    args::{Global, ProcessCommandArgs, ProcessingArgs},
    exit::Exit,
    handler, interrupt, output, progress, store,
};

/// The longest wait before a retry, however often a message has failed.
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(60 * 60);

pub(crate) async fn run(global: &Global, args: ProcessCommandArgs) -> Result<Exit> {
    let handler = handler::from_args(&args.target)?;
    let store = store::open(&global.store).await?;
    let token = interrupt::token()?;
    let bar = progress::counter(global, "handlers run");
    let processor = processor(&store, handler, &args.processing, bar.clone())?;
    let summary = if args.drain {
        let handler = args.processing.handler.clone();
        let waiting = say_what_it_waits_for(global, Arc::clone(&store), handler, bar.clone());
        tokio::select! {
            summary = processor.run_until_drained(store, token.clone()) => summary?,
            never = waiting => match never {},
        }
    } else {
        if !global.quiet && !global.json {
            let (handler, place) = (&args.processing.handler, store::shown(&global.store));
            eprintln!("processing messages of `{handler}` at {place}; Ctrl-C to end");
        }
        processor.run(token.clone()).await?
    };
    bar.finish_and_clear();
    if global.json {
        output::json(&json!({
            "processed": summary.processed,
            "retried": summary.retried,
            "dead": summary.dead,
            "released": summary.released,
            "lease_lost": summary.lease_lost,
        }))?;
    } else if !global.quiet {
        output::line(sentence(&summary))?;
    }
    Ok(interrupt::exit(&token, exit(&summary)))
}

/// A processor as the command line describes it.
pub(crate) fn processor(
    store: &Arc<dyn Inbox>,
    handler: Arc<dyn Handler>,
    args: &ProcessingArgs,
    bar: ProgressBar,
) -> Result<Processor> {
    let router = Router::new(args.handler.clone()).fallback_handler(Counted { handler, bar });
    let retry = RetryPolicy::default()
        .with_max_attempts(args.max_attempts)
        .with_delays(args.retry_delay, LONGEST_RETRY_DELAY.max(args.retry_delay));
    let mut builder = Processor::builder(Arc::clone(store))
        .router(router)
        .concurrency(args.concurrency as usize)
        .lease(args.lease)
        .retry(retry)
        .drain_limit(args.grace);
    if let Some(limit) = args.timeout {
        builder = builder.handler_timeout(limit);
    }
    Ok(builder.build()?)
}

/// Says once on standard error, when nothing has run for a while, why draining goes on.
pub(crate) async fn say_what_it_waits_for(
    global: &Global,
    store: Arc<dyn Inbox>,
    handler: HandlerName,
    bar: ProgressBar,
) -> Infallible {
    let mut ran = bar.position();
    loop {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let is_idle = std::mem::replace(&mut ran, bar.position()) == ran;
        if !is_idle || global.quiet {
            continue;
        }
        // A look that fails says nothing; the processor reports what is wrong with the store.
        let Ok(statistics) = store.statistics().await else {
            continue;
        };
        let Some(counts) = statistics.handlers.iter().find(|h| h.handler == handler) else {
            continue;
        };
        bar.suspend(|| {
            eprintln!(
                "waiting for {} under a lease (running here, or left by a worker that is gone) \
                 and {} due later",
                output::messages(counts.leased),
                output::messages(counts.pending),
            );
        });
        return std::future::pending().await;
    }
}

/// What happened, in one line.
pub(crate) fn sentence(summary: &Summary) -> String {
    let mut sentence = format!("{} processed", output::count(summary.processed));
    let others = [
        (summary.retried, "retried"),
        (summary.dead, "dead"),
        (summary.released, "handed back"),
        (summary.lease_lost, "lost to another worker"),
    ];
    for (number, what) in others {
        if number > 0 {
            sentence.push_str(&format!(", {} {what}", output::count(number)));
        }
    }
    sentence
}

/// Dead messages want somebody's attention, so scripts shall notice.
pub(crate) fn exit(summary: &Summary) -> Exit {
    if summary.dead > 0 { Exit::No } else { Exit::Ok }
}

/// Counts runs for the progress display.
struct Counted {
    handler: Arc<dyn Handler>,
    bar: ProgressBar,
}

#[async_trait]
impl Handler for Counted {
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let answer = self.handler.handle(context).await;
        self.bar.inc(1);
        answer
    }
}
