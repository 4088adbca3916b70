//! The loop that gathers one batch while another is being stored.

use std::{future::ready, panic::AssertUnwindSafe, pin::pin, sync::Mutex, time::Duration};

use futures_util::{FutureExt as _, future::OptionFuture};
use inbox_source::{Flow, Source, SourceError};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Receiver, ReceiverError, Summary,
    batch::{Taken, lock, process},
    outage::Outage,
};
use crate::{
    BacklogGate,
    backoff::after,
    telemetry::{self, MESSAGE},
    vitals::Vitals,
};

/// How the source stands.
enum Supply {
    Open,
    Ended,
    Failed(SourceError),
}

/// How long a source may take to tell its broker what it has not told yet.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn run<S: Source>(
    receiver: &Receiver,
    source: &mut S,
    shutdown: CancellationToken,
) -> Result<Summary, ReceiverError> {
    source.set_flow(Flow::new(receiver.max_unacknowledged, receiver.batch_size));
    let ended = take(receiver, source, shutdown).await;
    match timeout(CLOSE_LIMIT, source.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(target: MESSAGE, %error, "the source did not close well"),
        Err(_) => tracing::warn!(target: MESSAGE, "the source did not close in time"),
    }
    ended
}

/// Takes from the source and stores, until it ends or is told to.
async fn take<S: Source>(
    receiver: &Receiver,
    source: &mut S,
    shutdown: CancellationToken,
) -> Result<Summary, ReceiverError> {
    let name = source.name();
    let summary = Mutex::new(Summary::default());
    let mut puller = Puller::new(source, &receiver.vitals);
    let mut supply = Supply::Open;
    let mut gathered = Vec::new();
    let mut gathered_bytes = 0;
    // Deliveries in the batch that is being stored, and their bytes; zero when none is.
    let mut storing_now = 0;
    let mut storing_bytes = 0;
    let mut storing = pin!(OptionFuture::from(None));
    // A timer would take a millisecond to say so.
    let at_once = receiver.linger.is_zero();
    let mut linger_over = false;
    let mut linger = pin!(sleep_until(Instant::now()));
    let mut stopping = false;
    let mut cancelled = pin!(shutdown.cancelled());
    let mut drain_limit = pin!(sleep_until(Instant::now()));

    loop {
        // Sources and stores that are always ready must not keep the thread to themselves.
        tokio::task::consume_budget().await;
        let room = gathered.len() < receiver.batch_size
            && gathered.len() + storing_now < receiver.max_unacknowledged
            && gathered_bytes + storing_bytes < receiver.max_unacknowledged_bytes;
        let open = matches!(supply, Supply::Open) && !stopping;
        let shut_gate = receiver
            .backlog_gate
            .as_ref()
            .filter(|gate| !gate.is_open());
        let opened = OptionFuture::from(shut_gate.map(BacklogGate::opened));
        tokio::select! {
            biased;
            () = cancelled.as_mut(), if !stopping => {
                stopping = true;
                drain_limit.as_mut().reset(after(Instant::now(), receiver.drain_limit));
            }
            () = drain_limit.as_mut(), if stopping => break,
            Some(stored) = storing.as_mut(), if storing_now > 0 => {
                storing.set(None.into());
                storing_now = 0;
                storing_bytes = 0;
                let stored: Result<(), ReceiverError> = stored;
                stored?;
                telemetry::source(&name, gathered.len(), puller.source.lag());
            }
            () = linger.as_mut(), if !at_once && !linger_over && !gathered.is_empty() => {
                linger_over = true;
            }
            Some(()) = opened, if open && room => {}
            pulled = puller.next(), if open && room && shut_gate.is_none() => match pulled {
                Ok(Some(delivery)) => {
                    if gathered.is_empty() {
                        linger_over = false;
                        linger.as_mut().reset(after(Instant::now(), receiver.linger));
                    }
                    let taken = Taken::new(delivery);
                    gathered_bytes += taken.bytes(receiver.fan_out.len().max(1));
                    gathered.push(taken);
                    lock(&summary).received += 1;
                }
                Ok(None) => supply = Supply::Ended,
                Err(error) => supply = Supply::Failed(error),
            },
            // Behind the source: what is there already belongs to the batch.
            () = ready(()), if at_once && !linger_over && storing_now == 0 && !gathered.is_empty() => {
                linger_over = true;
            }
        }
        let open = matches!(supply, Supply::Open) && !stopping;
        let full = gathered.len() >= receiver.batch_size.min(receiver.max_unacknowledged)
            || gathered_bytes >= receiver.max_unacknowledged_bytes;
        if storing_now == 0 && !gathered.is_empty() && (full || linger_over || !open) {
            let batch = std::mem::take(&mut gathered);
            storing_now = batch.len();
            storing_bytes = std::mem::take(&mut gathered_bytes);
            storing.set(Some(process(receiver, &name, batch, &summary)).into());
        }
        if !open && storing_now == 0 {
            break;
        }
    }

    let summary = lock(&summary).clone();
    if summary.abandoned() > 0 {
        tracing::warn!(target: MESSAGE,
            deliveries = summary.abandoned(),
            "receiver stopped at its drain limit; the broker will deliver these again"
        );
    }
    match supply {
        Supply::Failed(error) => Err(ReceiverError::Source(error)),
        Supply::Open | Supply::Ended => Ok(summary),
    }
}

/// Takes from the source, with a pause after each transient failure. Cancel-safe like the source.
struct Puller<'a, S> {
    source: &'a mut S,
    outage: Outage,
    paused_until: Option<Instant>,
}

impl<'a, S: Source> Puller<'a, S> {
    fn new(source: &'a mut S, vitals: &Vitals) -> Self {
        Self {
            source,
            outage: Outage::none("source", vitals),
            paused_until: None,
        }
    }

    async fn next(&mut self) -> Result<Option<S::Delivery>, SourceError> {
        loop {
            if let Some(until) = self.paused_until {
                sleep_until(until).await;
                self.paused_until = None;
            }
            let next = AssertUnwindSafe(async { self.source.next().await }).catch_unwind();
            match next.await.unwrap_or_else(|_| Err(panicked())) {
                Ok(delivery) => {
                    self.outage.over();
                    return Ok(delivery);
                }
                Err(error) if error.is_transient() => {
                    self.paused_until = Some(Instant::now() + self.outage.failed(&error));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a source is after a panic is not known, so nothing more is taken from it.
fn panicked() -> SourceError {
    SourceError::permanent("the source panicked")
}
