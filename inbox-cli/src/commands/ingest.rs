//! `inbox ingest`: store the messages of a file or of standard input.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::Args;
use inbox::{
    HandlerName, Inbox,
    receiver::{Receiver, ReceiverError, Summary},
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    args::Global,
    exit::Exit,
    input::{self, Contents, InputArgs, Reader, Refusals},
    interrupt, output, progress, store,
};

pub(crate) const HELP: &str = "\
While the store is away it waits, and says so; what it was storing is stored again then, and counts
as duplicates where it was stored before.";

#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Store each message for this handler; repeat it to store each for several
    #[arg(long = "handler", value_name = "NAME", default_value = "default")]
    pub(crate) handlers: Vec<HandlerName>,
}

/// What became of the input.
#[derive(Debug)]
pub(crate) struct Ingested {
    pub(crate) accepted: u64,
    pub(crate) duplicates: u64,
    /// Duplicates with other content than the message that was stored first.
    pub(crate) differing: u64,
    /// Of ids, those whose messages are stored and not processed, and were left so.
    pub(crate) unfinished: u64,
    /// Lines that could not be stored.
    pub(crate) refused: u64,
    /// The input could not be read to its end.
    is_unread: bool,
    /// It was left at a line that was refused.
    is_stopped: bool,
    /// Messages are told apart by the `id` of a CloudEvent alone.
    is_by_id_alone: bool,
}

pub(crate) async fn run(global: &Global, args: IngestArgs) -> Result<Exit> {
    let (reader, store) = open(global, &args.input).await?;
    let token = interrupt::token()?;
    let ingested = ingest(global, &args, reader, store, &token).await?;
    ingested.report(global)?;
    if token.is_cancelled() && !global.quiet {
        output::note(
            "interrupted before the end of the input. Ingest all of it again: what is stored \
             already counts as duplicates then",
        );
    }
    Ok(interrupt::exit(&token, ingested.exit()))
}

/// What is read, and where it is to be stored.
pub(crate) async fn open(global: &Global, args: &InputArgs) -> Result<(Reader, Arc<dyn Inbox>)> {
    store::check_is_not_inbox(&global.store, &args.file)?;
    let reader = input::open(args).await?;
    store::warn_if_not_kept(&global.store);
    Ok((reader, store::open_or_create(&global.store).await?))
}

/// Stores all that is read, unless `token` is cancelled before its end.
pub(crate) async fn ingest(
    global: &Global,
    args: &IngestArgs,
    reader: Reader,
    store: Arc<dyn Inbox>,
    token: &CancellationToken,
) -> Result<Ingested> {
    let (stored, _) = watch::channel(());
    let work = Ingest {
        reader,
        args: &args.input,
        handlers: &args.handlers,
        stored,
    };
    work.run(global, store, token.clone()).await
}

/// An input to be stored for `handlers`. Signals each batch on `stored`, which closes at the end.
pub(crate) struct Ingest<'a> {
    pub(crate) reader: Reader,
    pub(crate) args: &'a InputArgs,
    pub(crate) handlers: &'a [HandlerName],
    pub(crate) stored: watch::Sender<()>,
}

impl Ingest<'_> {
    pub(crate) async fn run(
        self,
        global: &Global,
        store: Arc<dyn Inbox>,
        shutdown: CancellationToken,
    ) -> Result<Ingested> {
        let refusals = Arc::new(Refusals::default());
        let first = self
            .handlers
            .first()
            .ok_or_else(|| anyhow!("no handler to store for"))?;
        let limit = store.capabilities().payload_limit;
        let mut source =
            input::messages(self.reader, self.args, first, limit, Arc::clone(&refusals));
        let bar = progress::counter(global, "messages stored");
        // Counted batch by batch, so that the figures are right when reading ends with an error.
        let counts = Arc::new(Mutex::new(Summary::default()));
        let (counter, counted) = (bar.clone(), Arc::clone(&counts));
        let stored = self.stored;
        let mut receiver = Receiver::builder(store)
            .batch_size(self.args.batch as usize)
            .fan_out(self.handlers.iter().cloned())
            .on_batch(move |batch| {
                counter.inc(batch.deliveries as u64);
                *counted.lock().unwrap_or_else(PoisonError::into_inner) += batch;
                stored.send_replace(());
            });
        if self.args.contents == Contents::Key {
            // What is behind another message is recorded only in one batch with it, or later. So what is in a batch
            // does not depend on how fast the input comes, and each has to be over before the next.
            receiver = receiver
                .record_only()
                .linger(Duration::MAX)
                .max_unacknowledged(self.args.batch as usize);
        }
        if self.args.strict {
            receiver = receiver.stop_at_rejected();
        }
        let result = receiver.build().run(&mut source, shutdown).await;
        bar.finish_and_clear();
        let is_stopped = match result {
            Ok(_) => false,
            Err(ReceiverError::Source(error)) if refusals.is_unread() => {
                output::note(format_args!("cannot read the input to its end: {error}"));
                false
            }
            Err(ReceiverError::Source(error)) => {
                output::note(format_args!("stopped at {error}"));
                true
            }
            Err(ReceiverError::Rejected(rejection)) => {
                let line = refusals.first_left().unwrap_or_default();
                output::note(format_args!("stopped at line {line}: {rejection}"));
                true
            }
            Err(ReceiverError::Store(error)) => {
                return Err(anyhow::Error::new(error).context("the messages cannot be stored"));
            }
            Err(e) => return Err(e.into()),
        };
        let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Ingested {
            accepted: counts.accepted,
            duplicates: counts.duplicates,
            differing: counts.differing,
            unfinished: counts.unfinished,
            refused: refusals.count() + u64::from(is_stopped),
            is_unread: refusals.is_unread(),
            is_stopped,
            is_by_id_alone: self.args.id_fields.is_empty()
                && self.args.contents == Contents::Message,
        })
    }
}

impl Ingested {
    /// Tells what became of it, and what may be done about duplicates that are none.
    pub(crate) fn report(&self, global: &Global) -> Result<()> {
        if global.json {
            output::json(&json!({
                "accepted": self.accepted,
                "duplicates": self.duplicates,
                "differing": self.differing,
                "unfinished": self.unfinished,
                "refused": self.refused,
            }))?;
        } else if !global.quiet {
            output::line(self.sentence())?;
        }
        if !global.quiet
            && let Some(advice) = self.advice()
        {
            output::note(advice);
        }
        Ok(())
    }

    /// Whether nothing is left that was not read, as far as no signal has come.
    pub(crate) fn has_read_all(&self) -> bool {
        !self.is_unread && !self.is_stopped
    }

    pub(crate) fn sentence(&self) -> String {
        let mut sentence = format!(
            "{} accepted, {}",
            output::count(self.accepted),
            duplicates(self.duplicates, self.differing)
        );
        if self.refused > 0 {
            sentence.push_str(&format!(
                ", {} refused",
                output::count_of(self.refused, "line")
            ));
        }
        sentence
    }

    /// What may be done about duplicates that are none.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        const BY_SOURCE: &str = "events of several sources may have the same ids: `--id-field source \
                                 --id-field id` tells them apart";
        (self.differing > 0 && self.is_by_id_alone).then_some(BY_SOURCE)
    }

    /// The exit that the input alone deserves.
    pub(crate) fn exit(&self) -> Exit {
        if self.is_unread {
            Exit::Unread
        } else if self.unfinished > 0 {
            Exit::No
        } else if self.refused > 0 {
            Exit::InputRefused
        } else {
            Exit::Ok
        }
    }
}

/// How many duplicates, and of how many the content was not that of the message that is kept.
pub(crate) fn duplicates(all: u64, differing: u64) -> String {
    let mut text = output::count_of(all, "duplicate");
    if differing > 0 {
        let differing = output::count(differing);
        text.push_str(&format!(" ({differing} with other content than the first)"));
    }
    text
}
