//! One handler's run, in its own task.

use std::{any::Any, panic::AssertUnwindSafe, pin::pin, sync::Arc};

use futures_util::FutureExt as _;
use tokio::{sync::mpsc::UnboundedSender, task::AbortHandle, time::Instant};
use tracing::Instrument as _;

#[cfg(feature = "opentelemetry")]
use super::trace;
use super::{
    Completion, Config, Context, Failure, Fallback, blocking::Watched, handler::Completed,
    router::Route,
};
use crate::{
    Outcome,
    headers::TRACEPARENT,
    telemetry::{MESSAGE, Timer},
};

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

fn span(context: &Context) -> tracing::Span {
    let message = context.message();
    let span = tracing::info_span!(
        "handle",
        handler = message.handler().as_str(),
        kind = message.kind().as_str(),
        id = message.id().as_str(),
        attempt = context.attempts().started,
        traceparent = tracing::field::Empty,
    );
    if let Some(traceparent) = message.headers().get(TRACEPARENT) {
        span.record("traceparent", traceparent);
        #[cfg(feature = "opentelemetry")]
        trace::follow(&span, traceparent, message.headers().get("tracestate"));
    }
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
        Route::Fallback(fallback) => return End::NoHandler(fallback),
    };
    let timer = Timer::start();
    let running = async {
        let ended = served.router.run(handler, context).await;
        ended.map_err(|failure| served.router.decide(failure))
    };
    let running = pin!(AssertUnwindSafe(running).catch_unwind());
    let lease = served.terms.length();
    let running = Watched::new(running, message.handler(), &served.warned, lease, now);
    let caught = match served.timeout(message.kind()) {
        None => Some(running.await),
        Some(limit) => tokio::time::timeout(limit, running).await.ok(),
    };
    let result = match caught {
        Some(Ok(result)) => result,
        Some(Err(panic)) => Err(Failure::retry(panic_text(&*panic))),
        None => Err(Failure::retry("timed out")),
    };
    served.metrics.handled(&timer);
    let failure = match result.map(Completion::into_inner) {
        Ok(Completed::Here { result }) => return End::Outcome(Outcome::Processed { result }),
        Ok(Completed::Already) => return End::Settled,
        Err(failure) => failure,
    };
    if !context.is_cut_short() {
        return match failure.is_interrupted() {
            true => End::Interrupted(failure),
            false => End::Failed(failure),
        };
    }
    if failure.is_retry() {
        // It was told to stop, and the message is not to pay for that.
        let error = failure.error();
        tracing::info!(target: MESSAGE, key = %message.key(), error, "attempt cut short");
        return End::Outcome(Outcome::Release);
    }
    End::Failed(failure)
}

/// The text of a panic, as far as it has one.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no text"))
}
