//! Metrics, through the [`metrics`](https://docs.rs/metrics) facade with the feature `metrics`, and
//! at no cost without it. Install the recorder before building a
//! [`Processor`](crate::Processor), which looks its metrics up once.
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `inbox_received_total` | counter | `source`, `outcome`: `accepted`, `duplicate`, `rejected`, `kept` | deliveries of a receiver |
//! | `inbox_differing_total` | counter | `source`: that of a receiver, or the name of an [outbox](crate::outbox) | of the duplicates, those with other content than the message that was stored first |
//! | `inbox_receive_seconds` | histogram | `source` | from storing to the last acknowledgement, per batch, outages included |
//! | `inbox_unacknowledged` | gauge | `source` | deliveries taken and not acknowledged, after each batch, and each 5 seconds while nothing is taken |
//! | `inbox_source_lag` | gauge | `source` | messages that the broker has and has not handed out, where the source knows; told as often |
//! | `inbox_inline_total` | counter | `handler`, `outcome`: `ran`, `duplicate`, `busy`, `dead`, `failed`, … | calls of an inline consumer, and of `consume_in_transaction` |
//! | `inbox_purged_total` | counter | `state` | messages deleted by a janitor |
//! | `inbox_claimed_total` | counter | `handler` | messages claimed |
//! | `inbox_processed_total` | counter | `handler` | messages settled as processed |
//! | `inbox_retried_total` | counter | `handler` | attempts settled as to be tried again |
//! | `inbox_deferred_total` | counter | `handler` | attempts that were put off without being counted |
//! | `inbox_dead_total` | counter | `handler` | messages settled as dead |
//! | `inbox_lease_lost_total` | counter | `handler` | leases that another worker had taken over |
//! | `inbox_refused_total` | counter | `handler` | outcomes that the store refused to keep, also without their result or text |
//! | `inbox_corrupt_total` | counter | | rows that a claim could not read and set aside |
//! | `inbox_handler_seconds` | histogram | `handler` | time in the handler, per attempt |
//! | `inbox_claim_seconds` | histogram | | time of a claim, per batch |
//! | `inbox_settle_seconds` | histogram | | time of a settlement, per batch, repetitions included |
//! | `inbox_in_flight` | gauge | `handler` | messages that a processor holds: their handlers run, or wait for room |
//! | `inbox_last_claim_timestamp_seconds` | gauge | `handler` | when a claim for it was last answered, with messages or without, in seconds since 1970 by this process's clock |
//! | `inbox_circuit_open` | gauge | `handler` | 1 while a processor's circuit breaker is open for it, or tries messages one by one |
//! | `inbox_paused` | gauge | `handler` | 1 while a processor starts nothing of it, because its circuit is open or it asked for a pause; 0 after that |
//! | `inbox_backlog` | gauge | `handler` | messages pending or leased, from the backlog monitor |
//! | `inbox_lag_seconds` | gauge | `handler` | for how long the longest-due message has been due |
//! | `inbox_blocking_dead` | gauge | `handler` | dead messages that hold up their ordering key until they are replayed, discarded or purged |
//! | `inbox_unserved_backlog` | gauge | `handler` | messages pending or leased of handler names that this processor does not serve; trouble when no other does either |
//! | `inbox_last_sweep_timestamp_seconds` | gauge | | when a janitor's sweep last ended well, or found that it is not the time for one |
//! | `inbox_store_errors_total` | counter | `operation`, `kind`: `unavailable`, `conflict`, `denied`, … | calls of the store that failed or were given up |
//! | `inbox_messages` | gauge | `handler`, `state` | messages by state, from a [`StoreMonitor`](crate::StoreMonitor), inline ones too |
//! | `inbox_oldest_due_age_seconds` | gauge | `handler` | how long ago the longest-due message was accepted, from a `StoreMonitor` |
//! | `inbox_handler_paused` | gauge | `handler` | 1 while an operator's pause stands, from a `StoreMonitor` |
//! | `inbox_statistics_timestamp_seconds` | gauge | | when a `StoreMonitor` last had an answer |
//!
//! A [`StoreMonitor`](crate::StoreMonitor) sets `inbox_backlog`, `inbox_lag_seconds` and `inbox_blocking_dead`
//! for all handlers of the inbox. Several processes that read one inbox tell the same: take
//! the `max`, not the `sum`, of what comes from the store.
//!
//! The backlog monitor sets its gauges at every look, to zero for handlers that have no messages
//! any more. Messages behind a dead one that blocks their ordering key are in the backlog and not
//! in the lag, since nothing can be done about them before an operator intervenes:
//! `inbox_blocking_dead` is what to be woken by.
//!
//! Logs, through [`tracing`](https://docs.rs/tracing), have a module of this crate as their target, and
//! two kinds that a filter may want apart have one that stays:
//!
//! | target | what |
//! |---|---|
//! | `inbox::outage` | that the store or the source is away, that calls take long, and that this is over |
//! | `inbox::rejected` | that deliveries are no messages, and whether they are kept: the first at once, then their number once a minute at most |
//! | `inbox::message` | what becomes of one delivery or attempt other than being processed |

#[cfg(feature = "metrics")]
use std::sync::OnceLock;
use std::time::Duration;

use crate::{Error, HandlerName, HandlerStatistics, State};
#[cfg(feature = "metrics")]
use crate::{ErrorKind, Statistics};

/// The target of logs about outages and their ends.
pub(crate) const OUTAGE: &str = "inbox::outage";

/// The target of logs about deliveries that are in no inbox, or only as dead letters.
pub(crate) const REJECTED: &str = "inbox::rejected";

/// The target of logs about one delivery or attempt.
pub(crate) const MESSAGE: &str = "inbox::message";

/// The metrics of one handler name, looked up once so that counting is one atomic addition.
pub(crate) struct HandlerMetrics {
    #[cfg(feature = "metrics")]
    counters: [metrics::Counter; 7],
    #[cfg(feature = "metrics")]
    seconds: metrics::Histogram,
    #[cfg(feature = "metrics")]
    in_flight: metrics::Gauge,
    #[cfg(feature = "metrics")]
    last_claim: LastClaim,
}

/// When a claim was last answered. It is not there before: a gauge is zero from when it is looked up, and that would
/// be the year 1970.
#[cfg(feature = "metrics")]
struct LastClaim {
    handler: HandlerName,
    gauge: OnceLock<metrics::Gauge>,
}

#[cfg(feature = "metrics")]
impl LastClaim {
    fn set(&self, at: f64) {
        let gauge = self.gauge.get_or_init(|| {
            let handler = self.handler.to_string();
            metrics::gauge!("inbox_last_claim_timestamp_seconds", "handler" => handler)
        });
        gauge.set(at);
    }
}

/// One message that is held; over when this is dropped.
pub(crate) struct InFlight(#[cfg(feature = "metrics")] metrics::Gauge);

#[cfg(feature = "metrics")]
impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// What is counted per handler.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Claimed,
    Processed,
    Retried,
    Deferred,
    Dead,
    LeaseLost,
    Refused,
}

#[cfg(feature = "metrics")]
impl Count {
    const ALL: [Self; 7] = [
        Self::Claimed,
        Self::Processed,
        Self::Retried,
        Self::Deferred,
        Self::Dead,
        Self::LeaseLost,
        Self::Refused,
    ];

    const FAILURES: [Self; 5] = [
        Self::Retried,
        Self::Deferred,
        Self::Dead,
        Self::LeaseLost,
        Self::Refused,
    ];

    /// What counts it for this handler.
    fn counter(self, handler: &HandlerName) -> metrics::Counter {
        let name = match self {
            Self::Claimed => "inbox_claimed_total",
            Self::Processed => "inbox_processed_total",
            Self::Retried => "inbox_retried_total",
            Self::Deferred => "inbox_deferred_total",
            Self::Dead => "inbox_dead_total",
            Self::LeaseLost => "inbox_lease_lost_total",
            Self::Refused => "inbox_refused_total",
        };
        metrics::counter!(name, "handler" => handler.to_string())
    }
}

#[cfg(feature = "metrics")]
impl HandlerMetrics {
    pub(crate) fn new(handler: &HandlerName) -> Self {
        let label = || handler.to_string();
        // So that the first one is an increase.
        metrics::counter!("inbox_corrupt_total").increment(0);
        Self {
            counters: Count::ALL.map(|what| what.counter(handler)),
            seconds: metrics::histogram!("inbox_handler_seconds", "handler" => label()),
            in_flight: metrics::gauge!("inbox_in_flight", "handler" => label()),
            last_claim: LastClaim {
                handler: handler.clone(),
                gauge: OnceLock::new(),
            },
        }
    }

    pub(crate) fn count(&self, what: Count) {
        let [
            claimed,
            processed,
            retried,
            deferred,
            dead,
            lease_lost,
            refused,
        ] = &self.counters;
        let counter = match what {
            Count::Claimed => claimed,
            Count::Processed => processed,
            Count::Retried => retried,
            Count::Deferred => deferred,
            Count::Dead => dead,
            Count::LeaseLost => lease_lost,
            Count::Refused => refused,
        };
        counter.increment(1);
    }

    pub(crate) fn handled(&self, timer: &Timer) {
        self.seconds.record(timer.0.elapsed());
    }

    /// A message of this handler is held.
    pub(crate) fn hold(&self) -> InFlight {
        self.in_flight.increment(1.0);
        InFlight(self.in_flight.clone())
    }

    /// A claim for this handler was answered.
    pub(crate) fn asked(&self) {
        self.last_claim.set(now());
    }
}

/// Seconds since 1970, by this process's clock.
#[cfg(feature = "metrics")]
fn now() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

#[cfg(not(feature = "metrics"))]
impl HandlerMetrics {
    pub(crate) fn new(_: &HandlerName) -> Self {
        Self {}
    }

    pub(crate) fn count(&self, _: Count) {}

    pub(crate) fn handled(&self, _: &Timer) {}

    pub(crate) fn hold(&self) -> InFlight {
        InFlight()
    }

    pub(crate) fn asked(&self) {}
}

/// When something began.
pub(crate) struct Timer(#[cfg(feature = "metrics")] std::time::Instant);

#[cfg(feature = "metrics")]
impl Timer {
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn claimed(&self) {
        metrics::histogram!("inbox_claim_seconds").record(self.0.elapsed());
    }

    pub(crate) fn settled(&self) {
        metrics::histogram!("inbox_settle_seconds").record(self.0.elapsed());
    }
}

#[cfg(not(feature = "metrics"))]
impl Timer {
    pub(crate) fn start() -> Self {
        Self()
    }

    pub(crate) fn claimed(&self) {}

    pub(crate) fn settled(&self) {}
}

#[cfg(feature = "metrics")]
pub(crate) fn backlog(statistics: &HandlerStatistics) {
    let handler = statistics.handler.to_string();
    let lag = statistics.lag.unwrap_or_default().as_secs_f64();
    #[allow(
        clippy::cast_precision_loss,
        reason = "a gauge holds a floating-point number"
    )]
    let (backlog, blocking) = (statistics.backlog() as f64, statistics.blocking as f64);
    metrics::gauge!("inbox_backlog", "handler" => handler.clone()).set(backlog);
    metrics::gauge!("inbox_blocking_dead", "handler" => handler.clone()).set(blocking);
    metrics::gauge!("inbox_lag_seconds", "handler" => handler).set(lag);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn backlog(_: &HandlerStatistics) {}

/// What the store knows of all handlers.
#[cfg(feature = "metrics")]
pub(crate) fn statistics(statistics: &Statistics) {
    for of_handler in &statistics.handlers {
        states(of_handler);
    }
    metrics::gauge!("inbox_statistics_timestamp_seconds").set(now());
}

/// What the store knows of one handler.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn states(statistics: &HandlerStatistics) {
    backlog(statistics);
    let handler = statistics.handler.to_string();
    for state in State::ALL {
        metrics::gauge!(
            "inbox_messages", "handler" => handler.clone(), "state" => state.as_str()
        )
        .set(statistics.count(state) as f64);
    }
    let age = statistics.oldest_due_age.unwrap_or_default();
    metrics::gauge!("inbox_oldest_due_age_seconds", "handler" => handler.clone())
        .set(age.as_secs_f64());
    metrics::gauge!("inbox_handler_paused", "handler" => handler)
        .set(f64::from(u8::from(statistics.paused)));
}

/// A call of the store has failed, or was given up.
#[doc(hidden)]
pub fn store_error(operation: &'static str, error: &Error) {
    #[cfg(feature = "metrics")]
    {
        let kind = match error.kind() {
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Conflict => "conflict",
            ErrorKind::SchemaMissing => "schema_missing",
            ErrorKind::SchemaVersion => "schema_version",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Denied => "denied",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Corrupt => "corrupt",
            _ => "other",
        };
        metrics::counter!("inbox_store_errors_total", "operation" => operation, "kind" => kind)
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (operation, error);
}

/// A janitor has nothing left to do for now.
pub(crate) fn swept() {
    #[cfg(feature = "metrics")]
    metrics::gauge!("inbox_last_sweep_timestamp_seconds").set(now());
}

/// The circuit of a router is open, or no longer.
pub(crate) fn circuit(handler: &HandlerName, is_open: bool) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("inbox_circuit_open", "handler" => handler.to_string())
        .set(f64::from(u8::from(is_open)));
    #[cfg(not(feature = "metrics"))]
    let _ = (handler, is_open);
}

/// Counts what happens too rarely to be looked up once. Of the handler, what else may fail is looked up as well, so that
/// the first one of it is an increase; not what is claimed and processed. It may be one that no processor works on, of
/// which all would have failed then.
#[cfg(feature = "metrics")]
pub(crate) fn count(handler: &HandlerName, what: Count) {
    for other in Count::FAILURES {
        other.counter(handler).increment(0);
    }
    what.counter(handler).increment(1);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn count(_: &HandlerName, _: Count) {}

/// A router is paused, or no longer.
pub(crate) fn paused(handler: &HandlerName, is_paused: bool) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("inbox_paused", "handler" => handler.to_string())
        .set(f64::from(u8::from(is_paused)));
    #[cfg(not(feature = "metrics"))]
    let _ = (handler, is_paused);
}

/// A claim has set a row aside.
pub(crate) fn corrupt() {
    #[cfg(feature = "metrics")]
    metrics::counter!("inbox_corrupt_total").increment(1);
}

/// The backlog of a handler that this processor does not serve.
pub(crate) fn unserved(statistics: &HandlerStatistics) {
    #[cfg(feature = "metrics")]
    {
        let handler = statistics.handler.to_string();
        #[allow(
            clippy::cast_precision_loss,
            reason = "a gauge holds a floating-point number"
        )]
        let backlog = statistics.backlog() as f64;
        metrics::gauge!("inbox_unserved_backlog", "handler" => handler).set(backlog);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = statistics;
}

/// So many deliveries of a receiver have these outcomes.
#[cfg(feature = "metrics")]
pub(crate) fn received(source: &str, outcomes: [(&'static str, usize); 4], differing: usize) {
    for (outcome, count) in outcomes {
        metrics::counter!(
            "inbox_received_total", "source" => source.to_owned(), "outcome" => outcome
        )
        .increment(count as u64);
    }
    self::differing(source, differing as u64);
}

/// A receiver has finished a batch.
#[cfg(feature = "metrics")]
pub(crate) fn batch_received(source: &str, elapsed: Duration) {
    metrics::histogram!("inbox_receive_seconds", "source" => source.to_owned()).record(elapsed);
}

/// So many duplicates had other content than the messages that were stored first.
#[cfg(feature = "metrics")]
pub(crate) fn differing(source: &str, count: u64) {
    metrics::counter!("inbox_differing_total", "source" => source.to_owned()).increment(count);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn differing(_: &str, _: u64) {}

/// How a receiver's source stands.
#[cfg(feature = "metrics")]
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn source(source: &str, unacknowledged: usize, lag: Option<u64>) {
    metrics::gauge!("inbox_unacknowledged", "source" => source.to_owned())
        .set(unacknowledged as f64);
    if let Some(lag) = lag {
        metrics::gauge!("inbox_source_lag", "source" => source.to_owned()).set(lag as f64);
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn source(_: &str, _: usize, _: Option<u64>) {}

#[cfg(not(feature = "metrics"))]
pub(crate) fn received(_: &str, _: [(&'static str, usize); 4], _: usize) {}

#[cfg(not(feature = "metrics"))]
pub(crate) fn batch_received(_: &str, _: Duration) {}

/// An inline consumer has answered.
#[cfg(feature = "metrics")]
pub(crate) fn consumed(handler: &HandlerName, outcome: &'static str) {
    metrics::counter!(
        "inbox_inline_total", "handler" => handler.to_string(), "outcome" => outcome
    )
    .increment(1);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn consumed(_: &HandlerName, _: &'static str) {}

/// A janitor has deleted messages.
#[cfg(feature = "metrics")]
pub(crate) fn purged(state: State, count: u64) {
    metrics::counter!("inbox_purged_total", "state" => state.as_str()).increment(count);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn purged(_: State, _: u64) {}
