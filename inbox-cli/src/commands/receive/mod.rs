//! `inbox receive`: store what a broker delivers, and acknowledge it.

mod broker;
mod rules;

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use clap::Args;
use inbox::{BacklogGate, receiver::Summary};
use serde_json::json;

pub(crate) use self::{
    broker::{Broker, check_is_built, help},
    rules::Rules,
};
use crate::{
    args::{Global, wrong_usage},
    commands::ingest::duplicates,
    exit::Exit,
    interrupt, output, progress, store,
};

#[derive(Debug, Args)]
pub(crate) struct ReceiveArgs {
    /// The broker, and what to receive from it; the URLs are below
    #[arg(long, value_name = "URL", env = "INBOX_FROM", hide_env = true)]
    from: String,
    #[command(flatten)]
    rules: Rules,
    /// Take nothing while more messages than this are pending or leased, of all handlers together
    #[arg(long, value_name = "N")]
    backlog_limit: Option<u64>,
}

pub(crate) async fn run(global: &Global, args: ReceiveArgs) -> Result<Exit> {
    if let Err(reason) = check_is_built(&args.from) {
        wrong_usage(format_args!("--from: {reason}"));
    }
    if let Err(reason) = args.rules.check_keep_rejected() {
        wrong_usage(format_args!("--keep-rejected: {reason}"));
    }
    let broker = args
        .rules
        .mapping()
        .and_then(|mapping| Broker::new(&args.from, mapping))
        .unwrap_or_else(|reason| wrong_usage(format_args!("--from: {reason}")));
    store::warn_if_not_kept(&global.store);
    let store = store::open_or_create(&global.store).await?;
    let token = interrupt::token()?;
    let bar = progress::counter(global, "messages received");
    let counter = bar.clone();
    // Counted batch by batch, so that there are figures when the source or the store fails.
    let counts = Arc::new(Mutex::new(Summary::default()));
    let counted = Arc::clone(&counts);
    let mut receiver = args
        .rules
        .receiver(Arc::<dyn inbox::Inbox>::clone(&store))
        .on_batch(move |batch| {
            counter.inc(batch.deliveries as u64);
            *counted.lock().unwrap_or_else(PoisonError::into_inner) += batch;
        });
    if let Some(limit) = args.backlog_limit {
        receiver = receiver.backlog_gate(BacklogGate::builder(store, limit).build()?);
    }
    if !global.quiet && !global.json {
        let place = store::without_password(&global.store);
        output::note(format_args!(
            "receiving from {} into {place}; Ctrl-C to end",
            broker.name()
        ));
    }
    let result = broker.run(&receiver.build(), token.clone()).await;
    bar.finish_and_clear();
    let so_far = || {
        let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clone()
    };
    let summary = result.as_ref().map_or_else(|_| so_far(), Summary::clone);
    // Of one that could not begin there is nothing to tell but why.
    let is_told = result.is_ok() || summary.received > 0;
    if global.json && is_told {
        output::json(&figures(&summary))?;
    } else if !global.quiet && is_told {
        output::line(sentence(&summary))?;
    }
    result?;
    let orderly = summary.abandoned() == 0;
    Ok(interrupt::exit_of_service(&token, orderly, Exit::Ok))
}

/// What happened, for machines.
pub(crate) fn figures(summary: &Summary) -> serde_json::Value {
    json!({
        "received": summary.received,
        "accepted": summary.accepted,
        "duplicates": summary.duplicates,
        "differing": summary.differing,
        "unfinished": summary.unfinished,
        "rejected": summary.rejected,
        "kept": summary.kept,
        "abandoned": summary.abandoned(),
        "failed_acknowledgements": summary.failed_acknowledgements,
    })
}

/// What happened, for people.
pub(crate) fn sentence(summary: &Summary) -> String {
    let mut sentence = format!(
        "{} accepted, {}",
        output::count(summary.accepted),
        duplicates(summary.duplicates, summary.differing)
    );
    for (count, what) in [
        (summary.unfinished, "left to others"),
        (summary.rejected, "rejected"),
        (summary.kept, "kept as dead letters"),
        (summary.abandoned(), "left to the broker"),
        (summary.failed_acknowledgements, "not acknowledged"),
    ] {
        if count > 0 {
            sentence.push_str(&format!(", {} {what}", output::count(count)));
        }
    }
    sentence
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn what_is_kept_has_a_handler_that_gets_no_messages() {
        let is_taken = |keep: &str| {
            let line = [
                "inbox",
                "receive",
                "--from",
                "x://h",
                "--handler",
                "a",
                "--keep-rejected",
                keep,
            ];
            match Cli::try_parse_from(line).unwrap().command {
                Command::Receive(args) => args.rules.check_keep_rejected().is_ok(),
                other => panic!("{other:?}"),
            }
        };
        assert!(is_taken("b"));
        assert!(!is_taken("a"));
    }

    #[test]
    fn what_was_not_stored_is_told() {
        let mut summary = Summary::default();
        assert_eq!(sentence(&summary), "0 accepted, 0 duplicates");
        summary.received = 9;
        summary.accepted = 5;
        summary.duplicates = 1;
        summary.differing = 1;
        summary.unfinished = 1;
        summary.rejected = 1;
        summary.failed_acknowledgements = 1;
        assert_eq!(
            sentence(&summary),
            "5 accepted, 1 duplicate (1 with other content than the first), 1 left to others, 1 rejected, 2 left to the broker, 1 not acknowledged"
        );
        assert_eq!(figures(&summary)["differing"], 1);
        assert_eq!(figures(&summary)["unfinished"], 1);
        assert_eq!(figures(&summary)["abandoned"], 2);
    }
}
