//! What goes on behind the requests: handlers, and the janitor.

use std::sync::Arc;

use anyhow::Result;
use inbox::{CancellationToken, Inbox, Janitor, Processor, Summary};
use indicatif::ProgressBar;

use super::{plan::Plan, server::Shared};
use crate::commands::process::{self, Counted};

/// What handlers came to.
#[derive(Default)]
pub(super) struct Worked {
    pub(super) summary: Summary,
    /// Whether every run that the end found running came to its own end.
    pub(super) is_orderly: bool,
}

/// Works until `token` is cancelled. Cancels `drained` when no handler runs any more.
pub(super) async fn run(
    plan: &Plan,
    shared: &Shared<'_>,
    drained: &CancellationToken,
) -> Result<Worked> {
    let drained = drained.clone().drop_guard();
    let token = shared.token;
    let janitor = Arc::new(janitor(plan, shared.store)?);
    let asked = Arc::clone(&janitor);
    shared.parts.add(move || asked.health());
    let processing = async {
        let worked = process(plan, shared).await;
        drop(drained);
        worked
    };
    let (worked, _) = tokio::join!(processing, janitor.run(token.clone()));
    worked
}

async fn process(plan: &Plan, shared: &Shared<'_>) -> Result<Worked> {
    let token = shared.token;
    let mut worked = Worked {
        is_orderly: true,
        ..Worked::default()
    };
    if plan.handlers.is_empty() {
        token.cancelled().await;
        return Ok(worked);
    }
    let mut builder = Processor::builder(Arc::clone(shared.store)).drain_limit(plan.grace);
    let mut all = Vec::new();
    for planned in &plan.handlers {
        let handler = Arc::clone(&planned.handler);
        let handler = Counted::new(handler, ProgressBar::hidden(), token.clone());
        let handler = Arc::new(handler);
        all.push(Arc::clone(&handler));
        builder = builder.router(process::router(handler, &planned.args, planned.limit));
    }
    let processor = Arc::new(builder.build()?);
    let asked = Arc::clone(&processor);
    shared.parts.add(move || asked.health());
    let ended = processor.run(token.clone()).await;
    if ended.is_err() {
        // The janitor does not notice by itself.
        token.cancel();
    }
    worked.summary = ended?;
    worked.is_orderly = all.iter().all(|handler| handler.were_left_to_finish());
    Ok(worked)
}

fn janitor(plan: &Plan, store: &Arc<dyn Inbox>) -> Result<Janitor> {
    let mut builder = Janitor::builder(Arc::clone(store));
    for (handler, kept) in plan.janitor.all_kept() {
        builder = match handler {
            Some(handler) => builder.handler(handler.clone(), kept.into()),
            None => builder.retention(kept.into()),
        };
    }
    if let Some(hours) = &plan.janitor.hours {
        builder = builder.between(hours.0.0, hours.0.1);
    }
    Ok(builder.build()?)
}
