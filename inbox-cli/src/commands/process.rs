//! `inbox process`: run a command, or an HTTP POST, for each stored message.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use async_trait::async_trait;
use clap::Args;
use inbox::{
    Completion, Context, Failure, Filter, Handler, HandlerName, HandlerStatistics, Inbox,
    OrderingKey, Page, Processor, RetryPolicy, Router, Summary,
};
use inbox_dashboard::command_pauses;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{known_handlers, serve::server};
use crate::{
    args::{self, Global},
    exit::Exit,
    handler::{self, Starts, TargetArgs},
    interrupt,
    observe::{self, Parts},
    output, progress,
    retention::{self, Keep},
    store,
};

#[derive(Debug, Args)]
pub(crate) struct ProcessCommandArgs {
    #[command(flatten)]
    pub(crate) processing: ProcessingArgs,
    /// End when no message is pending or leased any more, rather than wait for new ones
    #[arg(long)]
    pub(crate) drain: bool,
    /// Answer GET /metrics, /healthz and /readyz at this address, to all who can reach it
    #[arg(long, value_name = "ADDRESS", value_parser = args::address)]
    pub(crate) listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ProcessingArgs {
    /// Process messages of this handler
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) handler: HandlerName,
    /// Run at most this many handlers at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: u32,
    /// How long a message stays with a worker that has vanished
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = args::lease)]
    pub(crate) lease: Duration,
    /// End a handler that runs longer than this, and try again later; `none` for no limit [default:
    /// 30s with --post, 1h with a command]
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub(crate) timeout: Option<TimeLimit>,
    /// Dead-letter a message after this many attempts
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_attempts: u32,
    /// Wait this long before the first retry, then twice as long each time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = args::duration)]
    pub(crate) retry_delay: Duration,
    /// Delete processed messages after this long: copies that come later are handled again. `forever`
    /// keeps them, and the inbox grows
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = retention::keep)]
    pub(crate) keep_processed: Keep,
    /// When told to end, let running handlers go on for this long. The rest of the end takes a few
    /// seconds more: keep it below what a supervisor waits for (30 s in Kubernetes)
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = args::duration)]
    pub(crate) grace: Duration,
}

/// How long a handler may run; `None` means for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLimit(pub(crate) Option<Duration>);

impl ProcessingArgs {
    /// How long a handler of `target` may run. There is a limit unless `none` is given: a
    /// server that never answers would hold its slot for ever, and with it a message whose lease is
    /// always renewed.
    pub(crate) fn time_limit(&self, target: &TargetArgs) -> Option<Duration> {
        let default = if target.post.is_some() {
            Duration::from_secs(30)
        } else {
            Duration::from_secs(60 * 60)
        };
        self.timeout.unwrap_or(TimeLimit(Some(default))).0
    }

    /// When a message is tried again that has failed.
    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy::default()
            .with_max_attempts(self.max_attempts)
            .with_delays(self.retry_delay, LONGEST_RETRY_DELAY.max(self.retry_delay))
    }
}

pub(crate) fn time_limit(text: &str) -> Result<TimeLimit, String> {
    if text == "none" {
        return Ok(TimeLimit(None));
    }
    match args::duration(text)? {
        Duration::ZERO => Err("no handler could run; for no limit, say `none`".to_owned()),
        limit => Ok(TimeLimit(Some(limit))),
    }
}

/// The longest wait before a retry, however often a message has failed.
pub(crate) const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(60 * 60);

pub(crate) async fn run(global: &Global, args: ProcessCommandArgs) -> Result<Exit> {
    let retry = args.processing.retry_policy();
    let starts = Arc::<Starts>::default();
    let handler = handler::from_args(&args.target, &args.processing, &[], Arc::clone(&starts))?;
    let listener = args.listen.map(server::bind).transpose()?;
    let store = store::open(&global.store).await?;
    let token = interrupt::token()?;
    let parts = Parts::default();
    let router = match listener {
        Some(_) => Some(observe::everything(&store, &token, parts.clone())?),
        None => None,
    };
    let bar = progress::counter(global, "handlers run");
    let handler = Arc::new(Counted::new(handler, bar.clone(), token.clone()));
    let limit = args.processing.time_limit(&args.target);
    let processor = processor(&store, Arc::clone(&handler), &args.processing, limit)?;
    let processor = Arc::new(processor);
    let asked = Arc::clone(&processor);
    parts.add(move || asked.health());
    let keep = args.processing.keep_processed;
    let name = args.processing.handler.clone();
    let work = async {
        if !args.drain {
            return anyhow::Ok(processor.run(token.clone()).await?);
        }
        let operate = Arc::clone(&store);
        let waiting = say_what_it_waits_for(global, operate.clone(), name.clone(), bar.clone());
        tokio::select! {
            summary = drain(&processor, operate, &starts, &token) => summary,
            never = waiting => match never {},
        }
    };
    if !global.quiet {
        warn_of_unknown(store.as_ref(), &name).await;
    }
    if !args.drain && !global.quiet && !global.json {
        let place = store::without_password(&global.store);
        output::note(format_args!(
            "processing messages of `{name}` at {place}; Ctrl-C to end"
        ));
        // A look that fails says nothing; the processor reports what is wrong with the store.
        let paused = store.paused().await.unwrap_or_default();
        if paused.contains(&name) {
            let until = until_resumed(&paused, &name);
            output::note(format_args!("the handler is {until}"));
        }
    }
    let drained = CancellationToken::new();
    let serving = async {
        let (Some(listener), Some(router)) = (listener, router) else {
            return Ok(());
        };
        if let (false, Ok(address)) = (global.quiet, listener.local_addr()) {
            output::note(format_args!("metrics and probes at http://{address}"));
        }
        let end = server::End {
            token: token.clone(),
            drained: drained.clone(),
            grace: args.processing.grace,
        };
        tokio::select! {
            served = server::serve(listener, None, router, end) => served,
            // With --drain the work ends by itself.
            () = drained.cancelled() => Ok(()),
        }
    };
    let working = async {
        let _ends = drained.clone().drop_guard();
        keep.during(global, &store, &name, retry, &token, work)
            .await
    };
    let (summary, served) = tokio::join!(working, serving);
    let summary = summary??;
    served?;
    bar.finish_and_clear();
    if global.json {
        output::json(&figures(&summary))?;
    } else if !global.quiet {
        output::line(sentence(&summary))?;
    }
    Ok(if args.drain {
        interrupt::exit(&token, exit(&summary))
    } else {
        let orderly = summary.abandoned == 0 && handler.were_left_to_finish();
        interrupt::exit_of_service(&token, orderly, exit(&summary))
    })
}

/// What happened, for machines.
pub(crate) fn figures(summary: &Summary) -> serde_json::Value {
    json!({
        "processed": summary.processed,
        "retried": summary.retried,
        "dead": summary.dead,
        "released": summary.released,
        "lease_lost": summary.lease_lost,
        "abandoned": summary.abandoned,
    })
}

/// How much later than a handler command this process may get a signal that is for both.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// A processor as the command line describes it.
pub(crate) fn processor(
    store: &Arc<dyn Inbox>,
    handler: Arc<Counted>,
    args: &ProcessingArgs,
    limit: Option<Duration>,
) -> Result<Processor> {
    let builder = Processor::builder(Arc::clone(store))
        .router(router(handler, args, limit))
        .drain_limit(args.grace);
    Ok(builder.build()?)
}

/// What a processor does with the messages of one handler.
pub(crate) fn router(
    handler: Arc<Counted>,
    args: &ProcessingArgs,
    limit: Option<Duration>,
) -> Router {
    let router = Router::new(args.handler.clone())
        .fallback_handler(handler)
        .concurrency(args.concurrency as usize)
        .lease(args.lease)
        .retry(args.retry_policy());
    match limit {
        Some(limit) => router.timeout(limit),
        None => router,
    }
}

/// Processes until no message is pending or leased any more. Fails when the handler's command cannot be started, or its
/// server be reached, at all; what runs then is finished, and all else handed back.
pub(crate) async fn drain(
    processor: &Processor,
    store: Arc<dyn Inbox>,
    starts: &Starts,
    token: &CancellationToken,
) -> Result<Summary> {
    let shutdown = token.child_token();
    let mut draining = Box::pin(processor.run_until_drained(store, shutdown.clone()));
    tokio::select! {
        biased;
        summary = &mut draining => Ok(summary?),
        reason = starts.given_up() => {
            shutdown.cancel();
            draining.await?;
            bail!(reason)
        }
    }
}

/// Says that no message is of this handler, where others have some: its name may be mistyped.
async fn warn_of_unknown(store: &dyn Inbox, handler: &HandlerName) {
    // A look that fails says nothing; the processor reports what is wrong with the store.
    let Ok(statistics) = store.statistics().await else {
        return;
    };
    if !statistics.handlers.is_empty()
        && let Some(note) = known_handlers::unknown(&statistics, handler)
    {
        output::note(note);
    }
}

/// Says on standard error, when nothing has run for a while, why draining goes on; again when that
/// is for another reason.
pub(crate) async fn say_what_it_waits_for(
    global: &Global,
    store: Arc<dyn Inbox>,
    handler: HandlerName,
    bar: ProgressBar,
) -> Infallible {
    let mut ran = bar.position();
    let mut said = None;
    loop {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let is_idle = std::mem::replace(&mut ran, bar.position()) == ran;
        if is_idle
            && !global.quiet
            && let Some(waiting) = news(store.as_ref(), &handler, &mut said).await
        {
            bar.suspend(|| output::note(waiting));
        }
    }
}

/// Why draining goes on, apart from numbers and times.
#[derive(Debug, PartialEq, Eq)]
struct Reason {
    is_leased: bool,
    is_pending: bool,
    is_due: bool,
    is_paused: bool,
    blocked: Option<OrderingKey>,
}

/// What a processor with nothing to run waits for, unless that was said before.
async fn news(
    store: &dyn Inbox,
    handler: &HandlerName,
    said: &mut Option<Reason>,
) -> Option<String> {
    // A look that fails says nothing; the processor reports what is wrong with the store.
    let statistics = store.statistics().await.ok()?;
    let mine = statistics.handlers.iter().find(|h| h.handler == *handler);
    let counts = mine.filter(|counts| counts.backlog() > 0)?;
    let blocked = match counts.pending.min(counts.blocking) {
        0 => None,
        _ => blocked_key(store, handler).await,
    };
    let reason = Reason {
        is_leased: counts.leased > 0,
        is_pending: counts.pending > 0,
        is_due: counts.lag.is_some(),
        is_paused: counts.paused,
        blocked,
    };
    if said.as_ref() == Some(&reason) {
        return None;
    }
    let mut waiting = waits_for(counts);
    if reason.is_paused {
        // Without an answer it is taken for an operator's.
        let paused = store.paused().await.unwrap_or_default();
        let until = until_resumed(&paused, handler);
        waiting.push_str(&format!(". The handler is {until}"));
    }
    if let Some(key) = &reason.blocked {
        waiting.push_str(&format!(
            ". A dead message blocks the ordering key `{}` until it is replayed or discarded",
            output::cell(key.as_str(), 80)
        ));
    }
    *said = Some(reason);
    Some(waiting)
}

/// What is to be done about a pause of this handler, where these are paused.
pub(super) fn until_resumed(paused: &[HandlerName], handler: &HandlerName) -> String {
    match command_pauses::of_command(paused, handler) {
        Some(pause) => {
            let command = pause.command.name();
            format!("paused until `inbox {command}` is done: if it was cut short, run it again")
        }
        None => {
            let name = output::cell(handler.as_str(), usize::MAX);
            format!("paused until `inbox resume {name}`")
        }
    }
}

/// What a processor with nothing to run waits for. Whether a message is due is the store's to say.
fn waits_for(counts: &HandlerStatistics) -> String {
    let leased = output::messages(counts.leased);
    let pending = output::messages(counts.pending);
    let mut parts = Vec::new();
    if counts.leased > 0 {
        parts.push(format!(
            "{leased} under a lease (running here or elsewhere, or left by a worker that is gone)"
        ));
    }
    match counts.lag {
        _ if counts.pending == 0 => {}
        Some(lag) => parts.push(format!(
            "{pending} pending, due for up to {}",
            output::duration(lag)
        )),
        None => parts.push(format!(
            "{pending} pending, not due yet or behind another one of the same ordering key"
        )),
    }
    format!("waiting for {}", parts.join(" and "))
}

/// An ordering key of `handler` that a dead message blocks.
async fn blocked_key(store: &dyn Inbox, handler: &HandlerName) -> Option<OrderingKey> {
    let blocking = Filter {
        handler: Some(handler.clone()),
        blocking: true,
        ..Filter::default()
    };
    let listing = store.list(&blocking, &Page::first(1)).await.ok()?;
    listing.records.into_iter().next()?.ordering_key
}

/// What happened, in one line.
pub(crate) fn sentence(summary: &Summary) -> String {
    let mut sentence = format!("{} processed", output::count(summary.processed));
    let others = [
        (summary.retried, "retried"),
        (summary.dead, "dead"),
        (summary.released, "handed back"),
        (summary.lease_lost, "lost to another worker"),
        (summary.abandoned, "left under their leases"),
    ];
    for (number, what) in others {
        if number > 0 {
            sentence.push_str(&format!(", {} {what}", output::count(number)));
        }
    }
    sentence
}

/// Dead messages want attention, so scripts shall notice.
pub(crate) fn exit(summary: &Summary) -> Exit {
    if summary.dead > 0 { Exit::No } else { Exit::Ok }
}

/// Counts runs for the progress display, and those that the end of the process cut short.
pub(crate) struct Counted {
    handler: Arc<dyn Handler>,
    bar: ProgressBar,
    shutdown: CancellationToken,
    cut_short: AtomicU64,
}

impl Counted {
    pub(crate) fn new(
        handler: Arc<dyn Handler>,
        bar: ProgressBar,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            handler,
            bar,
            shutdown,
            cut_short: AtomicU64::new(0),
        }
    }

    /// Whether every run that the shutdown found running came to its own end.
    pub(crate) fn were_left_to_finish(&self) -> bool {
        self.cut_short.load(Ordering::Relaxed) == 0
    }
}

#[async_trait]
impl Handler for Counted {
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let mut run = Run {
            of: self,
            has_ended: false,
        };
        let answer = self.handler.handle(context).await;
        run.has_ended = true;
        self.bar.inc(1);
        if let Err(failure) = &answer
            && failure.is_interrupted()
            && timeout(SAME_SIGNAL, self.shutdown.cancelled())
                .await
                .is_ok()
        {
            self.cut_short.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// One run, which may be dropped before its end.
struct Run<'a> {
    of: &'a Counted,
    has_ended: bool,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.has_ended && self.of.shutdown.is_cancelled() {
            self.of.cut_short.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use inbox::{AfterDead, Kind, Message, MessageId, Outcome, Settled, StoreExt as _, WorkerName};

    use super::*;
    use crate::args::{Cli, Command};

    /// A message that ran for long must not use up the word on the key that is blocked after it.
    #[tokio::test]
    async fn it_says_again_what_it_waits_for_when_that_has_changed() {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let name = HandlerName::new("h").unwrap();
        let message = |id: &str| {
            let id = MessageId::new(id).unwrap();
            let message = Message::new(name.clone(), id, Kind::new("k").unwrap(), "");
            message.with_ordering_key(OrderingKey::new("order-7").unwrap())
        };
        let mut said = None;
        assert_eq!(news(&*store, &name, &mut said).await, None);
        let _ = store.receive(&[message("a"), message("b")]).await.unwrap();
        let worker = WorkerName::new("w").unwrap();
        let length = Duration::from_secs(60);
        let claims = store.claim_for(&name, 1, length, &worker).await.unwrap();
        let first = news(&*store, &name, &mut said).await.unwrap();
        assert!(first.contains("1 message under a lease"), "{first}");
        assert_eq!(news(&*store, &name, &mut said).await, None);
        let dead = Outcome::Dead {
            reason: "no".into(),
            after: AfterDead::Block,
        };
        let settled = store.settle_one(&claims.leased[0].lease, dead).await;
        assert_eq!(settled.unwrap(), Settled::Done);
        let second = news(&*store, &name, &mut said).await.unwrap();
        assert!(
            second.contains("blocks the ordering key `order-7`"),
            "{second}"
        );
        assert_eq!(news(&*store, &name, &mut said).await, None);
    }

    /// Nothing else ends the wait.
    #[tokio::test]
    async fn it_says_that_an_operator_has_paused_the_handler() {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let name = HandlerName::new("h").unwrap();
        let id = MessageId::new("a").unwrap();
        let message = Message::new(name.clone(), id, Kind::new("k").unwrap(), "");
        let _ = store.receive(&[message]).await.unwrap();
        let mut said = None;
        let due = news(&*store, &name, &mut said).await.unwrap();
        assert!(!due.contains("paused"), "{due}");
        store.pause(&name).await.unwrap();
        let paused = news(&*store, &name, &mut said).await.unwrap();
        assert!(
            paused.ends_with(". The handler is paused until `inbox resume h`"),
            "{paused}"
        );
        assert_eq!(news(&*store, &name, &mut said).await, None);
    }

    #[test]
    fn what_was_left_is_told() {
        let summary = Summary::default();
        assert_eq!(figures(&summary)["abandoned"], 0);
        assert_eq!(sentence(&summary), "0 processed");
        let mut summary = Summary::default();
        summary.abandoned = 2;
        assert_eq!(figures(&summary)["abandoned"], 2);
        assert_eq!(sentence(&summary), "0 processed, 2 left under their leases");
    }

    #[test]
    fn what_it_waits_for_is_said_as_it_is() {
        let counts = |pending, leased, lag: Option<u64>| HandlerStatistics {
            pending,
            leased,
            lag: lag.map(Duration::from_secs),
            ..HandlerStatistics::empty(HandlerName::new("h").unwrap())
        };
        assert_eq!(
            waits_for(&counts(2, 0, Some(75))),
            "waiting for 2 messages pending, due for up to 1m 15s"
        );
        assert_eq!(
            waits_for(&counts(1, 1, None)),
            "waiting for 1 message under a lease (running here or elsewhere, or left by a worker \
             that is gone) and 1 message pending, not due yet or behind another one of the same \
             ordering key"
        );
    }

    #[test]
    fn a_handler_has_a_time_limit_unless_told_otherwise() {
        let limit = |arguments: &[&str]| {
            let line = ["inbox", "process"].iter().chain(arguments);
            match Cli::try_parse_from(line).unwrap().command {
                Command::Process(args) => args.processing.time_limit(&args.target),
                other => panic!("{other:?}"),
            }
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(limit(&["--post", "http://h"]), seconds(30));
        assert_eq!(limit(&["--", "true"]), seconds(3600));
        assert_eq!(limit(&["--timeout", "7s", "--", "true"]), seconds(7));
        assert_eq!(limit(&["--timeout", "none", "--post", "http://h"]), None);
        assert!(time_limit("0s").is_err());
        assert!(time_limit("soon").is_err());
    }
}
