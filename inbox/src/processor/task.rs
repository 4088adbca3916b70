//! One handler's run, in its own task.

use std::{
    any::Any,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{sync::mpsc::UnboundedSender, task::AbortHandle, time::Instant};
use tracing::Instrument as _;

use super::{
    BatchHandler, Completion, Config, Context, FailedAttempt, Failure, Fallback, Served, batch_run,
    blocking::Watched, failed_attempt::SettleFailed, handler::Completed, router::Route,
};
use crate::{
    Outcome,
    headers::TRACEPARENT,
    telemetry::{MESSAGE, Timer},
};

/// A span of this name that is about one attempt.
macro_rules! span_of {
    ($name:literal, $context:expr) => {{
        let context: &Context = $context;
        let message = context.message();
        let span = tracing::info_span!(
            $name,
            handler = message.handler().as_str(),
            kind = message.kind().as_str(),
            id = message.id().as_str(),
            attempt = context.attempts().started,
            traceparent = tracing::field::Empty,
            otel.kind = tracing::field::Empty,
            otel.name = tracing::field::Empty,
        );
        if let Some(traceparent) = message.headers().get(TRACEPARENT) {
            span.record("traceparent", traceparent);
        }
        span
    }};
}

/// How a run ended.
pub(super) enum End {
    /// With an outcome to settle.
    Outcome(Outcome),
    /// With what the handler or its router says of an error.
    Failed(Failure),
    /// There is no handler for the kind.
    NoHandler(Fallback),
    /// The handler's own transaction has settled it.
    Settled,
    /// By what may end this processor too.
    Interrupted(Failure),
    /// The task was dropped.
    Dropped,
    /// A failed attempt is settled so in a transaction, or is still to be.
    Concluded { outcome: Outcome, is_settled: bool },
}

/// Tells the processor how the run in `slot` ended: exactly once, whichever way the task ends,
/// and only when the handler's future is gone. The processor therefore never settles a message
/// whose handler may still act; otherwise a transaction that commits after its message was given
/// back would do the message's work a second time.
struct Report {
    reports: UnboundedSender<(usize, End)>,
    slot: usize,
    end: End,
}

impl Drop for Report {
    fn drop(&mut self) {
        let end = std::mem::replace(&mut self.end, End::Dropped);
        // There is no receiver when the processor's future was dropped.
        let _ = self.reports.send((self.slot, end));
    }
}

pub(super) fn spawn(
    config: &Arc<Config>,
    slot: usize,
    context: Context,
    expires: Instant,
    reports: &UnboundedSender<(usize, End)>,
) -> AbortHandle {
    let mut report = Report {
        reports: reports.clone(),
        slot,
        end: End::Dropped,
    };
    let config = config.clone();
    let span = span(&context);
    let run = async move {
        report.end = run(&config, &context, expires).await;
        // Frees the message before the report lets the processor claim another.
        drop(context);
        drop(report);
    };
    tokio::spawn(run.instrument(span)).abort_handle()
}

/// Runs a batch handler on the messages in these slots, all of this router, each under a lease until
/// then.
pub(super) fn spawn_batch(
    config: &Arc<Config>,
    lane: usize,
    handler: Arc<dyn BatchHandler>,
    slots: Vec<(usize, Context, Instant)>,
    reports: &UnboundedSender<(usize, End)>,
) -> AbortHandle {
    let report = |(slot, ..): &(usize, _, _)| {
        Some(Report {
            reports: reports.clone(),
            slot: *slot,
            end: End::Dropped,
        })
    };
    let mut open = OpenReports {
        contexts: slots
            .iter()
            .map(|(_, context, _)| context.clone())
            .collect(),
        reports: slots.iter().map(report).collect(),
        config: config.clone(),
        lane,
    };
    let members = slots
        .into_iter()
        .map(|(_, context, expires)| (context, expires));
    let members: Vec<_> = members.collect();
    let name = config.served.get(lane).map(|served| served.name.as_str());
    let span = tracing::info_span!(
        "handle_batch",
        handler = name,
        messages = members.len(),
        otel.kind = tracing::field::Empty,
        otel.name = tracing::field::Empty,
    );
    #[cfg(feature = "opentelemetry")]
    {
        let messages = members.iter().map(|(context, _)| context.message());
        crate::trace::batch(&span, name.unwrap_or_default(), members.len(), messages);
    }
    let config = config.clone();
    let run = async move {
        let Some(served) = config.served.get(lane) else {
            return;
        };
        let mut ends = |place: usize, end| {
            if let Some(mut report) = open.reports.get_mut(place).and_then(Option::take) {
                report.end = end;
            }
        };
        batch_run::run(&config, served, &handler, members, &mut ends).await;
    };
    tokio::spawn(run.instrument(span)).abort_handle()
}

/// The reports that a batch still has to make. When it is dropped, what was answered before that counts,
/// unless middleware has not seen it.
struct OpenReports {
    // Freed before the reports let the processor claim others.
    contexts: Vec<Context>,
    reports: Vec<Option<Report>>,
    config: Arc<Config>,
    lane: usize,
}

impl Drop for OpenReports {
    fn drop(&mut self) {
        let served = self.config.served.get(self.lane);
        let Some(served) = served.filter(|served| !served.router.has_middleware()) else {
            return;
        };
        for (context, report) in self.contexts.iter().zip(&mut self.reports) {
            if let (Some(report), Some(answer)) = (report, context.answered()) {
                report.end = end(served, context, answer);
            }
        }
    }
}

/// Settles a failed attempt with what its router writes about it.
pub(super) fn spawn_conclusion(
    slot: usize,
    attempt: FailedAttempt,
    limit: Option<Duration>,
    settle: Arc<dyn SettleFailed>,
    reports: &UnboundedSender<(usize, End)>,
) -> AbortHandle {
    let concluded = |is_settled| End::Concluded {
        outcome: attempt.outcome.clone(),
        is_settled,
    };
    let mut report = Report {
        reports: reports.clone(),
        slot,
        end: concluded(false),
    };
    let settled = concluded(true);
    let span = span_of!("handle_failure", &attempt.context);
    #[cfg(feature = "opentelemetry")]
    crate::trace::conclusion(&span, attempt.context.message());
    let run = async move {
        match settle.settle(&attempt, limit).await {
            Ok(()) => report.end = settled,
            Err(failure) => {
                let (key, error) = (attempt.context.message().key(), failure.error());
                tracing::error!(target: MESSAGE, %key, error, "what is written about a failed attempt may be missing");
            }
        }
        // Frees the message before the report lets the processor claim another.
        drop(attempt);
        drop(report);
    };
    tokio::spawn(run.instrument(span)).abort_handle()
}

fn span(context: &Context) -> tracing::Span {
    let span = span_of!("handle", context);
    #[cfg(feature = "opentelemetry")]
    crate::trace::attempt(&span, context.message());
    span
}

pub(super) async fn run(config: &Config, context: &Context, expires: Instant) -> End {
    let now = Instant::now();
    if now >= expires || context.is_cancelled() {
        // All threads were busy for longer than the lease, or the processor stops: the handler
        // would be a second one, or be told to stop at once.
        return End::Outcome(Outcome::Release);
    }
    let message = context.message();
    let Some(served) = config.served_for(message) else {
        // Only a store that answers for handlers it was not asked for leads here.
        return End::Outcome(Outcome::Release);
    };
    let handler = match served.router.route(message.kind()) {
        Route::Handler(handler) => handler,
        Route::Batch(handler) => {
            let mut end = End::Dropped;
            let members = vec![(context.clone(), expires)];
            let mut ends = |_, ended| end = ended;
            batch_run::run(config, served, handler, members, &mut ends).await;
            return end;
        }
        Route::Fallback(fallback) => return End::NoHandler(fallback),
    };
    let timer = Timer::start();
    let running = served.router.run(handler, context);
    let running = pin!(AssertUnwindSafe(running).catch_unwind());
    let lease = served.terms.length();
    let running = Watched::new(running, message.handler(), &served.warned, lease, now);
    let limit = served.timeout(message);
    let caught = within_limit(limit, running, || context.is_ending()).await;
    let result = match caught {
        Some(Ok(result)) => result.map_err(Failure::or_retry),
        Some(Err(panic)) => Err(Failure::retry(panic_text(&*panic))),
        None => Err(batch_run::out_of_time(std::slice::from_ref(context))),
    };
    served.metrics.handled(&timer);
    end(served, context, result)
}

/// Waits for a handler up to its time limit, and then for as long as its transaction is being committed or rolled
/// back: what is durable would count as failed otherwise, and what the handler has decided be forgotten. That has the
/// store's time limit. `None`: it is timed out.
pub(super) async fn within_limit<F>(
    limit: Option<Duration>,
    mut running: F,
    is_ending: impl Fn() -> bool,
) -> Option<F::Output>
where
    F: Future + Unpin,
{
    let Some(limit) = limit else {
        return Some(running.await);
    };
    if let Ok(ended) = tokio::time::timeout(limit, &mut running).await {
        return Some(ended);
    }
    if !is_ending() {
        return None;
    }
    poll_fn(|polling| match Pin::new(&mut running).poll(polling) {
        Poll::Ready(ended) => Poll::Ready(Some(ended)),
        Poll::Pending if is_ending() => Poll::Pending,
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// How a message ends whose handler has ended so.
pub(super) fn end(served: &Served, context: &Context, result: Result<Completion, Failure>) -> End {
    let failure = match result.map(Completion::into_inner) {
        Ok(Completed::Here { result }) => return End::Outcome(Outcome::Processed { result }),
        Ok(Completed::Already) => return End::Settled,
        Err(failure) => served.router.decide(failure),
    };
    if failure.is_not_reached() {
        return End::Outcome(Outcome::Release);
    }
    if !context.is_cut_short() {
        return match failure.is_interrupted() {
            true => End::Interrupted(failure),
            false => End::Failed(failure),
        };
    }
    if failure.is_retry() {
        // It was told to stop, and the message is not to pay for that.
        let error = failure.error();
        tracing::info!(target: MESSAGE, key = %context.message().key(), error, "attempt cut short");
        return End::Outcome(Outcome::Release);
    }
    End::Failed(failure)
}

/// The text of a panic, as far as it has one.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no text"))
}
