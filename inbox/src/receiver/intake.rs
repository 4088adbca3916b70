//! The loop that gathers one batch while others are being stored.

use std::{
    collections::VecDeque, future::ready, panic::AssertUnwindSafe, pin::pin, sync::Mutex,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, future::OptionFuture, stream::FuturesOrdered};
use inbox_source::{Flow, Source, SourceError};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    BatchReport, Receiver, ReceiverError, Summary,
    batch::{Batch, Size, Stored, count, lock},
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

/// A source that has failed, and then does not answer for so long, is back and has nothing to hand out: no source
/// takes half of it to find out that its broker is away.
const QUIET: Duration = Duration::from_secs(60);

/// How often what a source knows of its broker is told on while nothing is taken from it.
const TELLS: Duration = Duration::from_secs(5);

/// How long a source may take to tell its broker what it has not told yet.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn run<S: Source>(
    receiver: &Receiver,
    source: &mut S,
    shutdown: CancellationToken,
) -> Result<Summary, ReceiverError> {
    let flow = Flow::new(receiver.max_unacknowledged, receiver.batch_size)
        .with_max_unacknowledged_bytes(receiver.max_unacknowledged_bytes);
    source.set_flow(flow);
    let name = source.name();
    // So that the first one of each outcome is an increase.
    count(&name, &BatchReport::default());
    let holding = Holding(&name);
    let ended = take(receiver, source, shutdown).await;
    drop(holding);
    match timeout(CLOSE_LIMIT, source.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(target: MESSAGE, %error, "the source did not close well"),
        Err(_) => tracing::warn!(target: MESSAGE, "the source did not close in time"),
    }
    ended
}

/// At the end of a run nothing is held any more, also where that fails or is dropped.
struct Holding<'a>(&'a str);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        telemetry::source(self.0, 0, None);
    }
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
    let mut gathered = Batch::with_capacity(0);
    let copies = receiver.fan_out.len().max(1);
    // A batch passes through these: it is stored, waits for those that came before it, and is finished.
    let mut storing = FuturesOrdered::new();
    let mut ordered_storing = 0;
    let mut stored = VecDeque::new();
    let mut finishing = pin!(OptionFuture::from(None));
    let mut is_finishing = false;
    // What is in any of them.
    let mut held = Size::default();
    // Nothing more is taken or stored once the run is to end behind a batch, which may wait for its turn.
    let mut is_last = false;
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
        let size = gathered.size();
        let room = size.deliveries < receiver.batch_size
            && size.deliveries + held.deliveries < receiver.max_unacknowledged
            && size.bytes + held.bytes < receiver.max_unacknowledged_bytes;
        let open = matches!(supply, Supply::Open) && !stopping && !is_last;
        let shut_gate = receiver
            .backlog_gate
            .as_ref()
            .filter(|gate| !gate.is_open());
        let opened = OptionFuture::from(shut_gate.map(BacklogGate::opened));
        let takes = open && room && shut_gate.is_none();
        tokio::select! {
            biased;
            () = cancelled.as_mut(), if !stopping => {
                stopping = true;
                drain_limit.as_mut().reset(after(Instant::now(), receiver.drain_limit));
            }
            () = drain_limit.as_mut(), if stopping => break,
            Some(finished) = finishing.as_mut(), if is_finishing => {
                finishing.set(None.into());
                is_finishing = false;
                let finished: Result<Size, ReceiverError> = finished;
                let finished = finished?;
                held.deliveries -= finished.deliveries;
                held.bytes -= finished.bytes;
                let unacknowledged = gathered.size().deliveries + held.deliveries;
                telemetry::source(&name, unacknowledged, puller.source.lag());
            }
            Some(next) = storing.next(), if !storing.is_empty() => {
                let next: Result<Stored<S::Delivery>, ReceiverError> = next;
                is_last |= next.as_ref().map_or(true, Stored::is_last);
                if next.as_ref().is_ok_and(Stored::is_ordered) {
                    ordered_storing -= 1;
                }
                stored.push_back(next);
            }
            () = linger.as_mut(), if !at_once && !linger_over && !gathered.is_empty() => {
                linger_over = true;
            }
            Some(()) = opened, if open && room => {}
            pulled = puller.next(), if takes => match pulled {
                Ok(Some(delivery)) => {
                    if gathered.is_empty() {
                        linger_over = false;
                        linger.as_mut().reset(after(Instant::now(), receiver.linger));
                    }
                    gathered.push(delivery, copies);
                    lock(&summary).received += 1;
                }
                Ok(None) => supply = Supply::Ended,
                Err(error) => supply = Supply::Failed(error),
            },
            () = sleep(TELLS), if !takes => {
                let unacknowledged = gathered.size().deliveries + held.deliveries;
                telemetry::source(&name, unacknowledged, puller.source.lag());
            }
            // Behind the source: what is there already belongs to the batch.
            () = ready(()), if at_once && !linger_over && storing.is_empty() && !gathered.is_empty() => {
                linger_over = true;
            }
        }
        if !is_finishing && let Some(next) = stored.pop_front() {
            // Boxed, as all of it would be part of this future otherwise.
            let finish = next?.finish(receiver, &name, &summary).boxed();
            finishing.set(Some(finish).into());
            is_finishing = true;
        }
        let open = matches!(supply, Supply::Open) && !stopping;
        let size = gathered.size();
        let full = size.deliveries >= receiver.batch_size.min(receiver.max_unacknowledged)
            || size.bytes >= receiver.max_unacknowledged_bytes;
        // While one is being stored, a second one is worth a call only when it is full. It must not overtake
        // another one that keeps an order, nor be stored where the receiver stops before it.
        let is_next = match storing.len() {
            0 => full || linger_over || !open,
            1 => {
                let in_order = ordered_storing == 0 || !gathered.is_ordered();
                full && in_order && !receiver.stop_at_rejected
            }
            _ => false,
        };
        if is_next && !is_last && !gathered.is_empty() {
            let batch = std::mem::replace(&mut gathered, Batch::with_capacity(size.deliveries));
            held.deliveries += size.deliveries;
            held.bytes += size.bytes;
            ordered_storing += usize::from(batch.is_ordered());
            storing.push_back(batch.store(receiver, &name));
        }
        if !open && held.deliveries == 0 && gathered.is_empty() {
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
        let Self {
            source,
            outage,
            paused_until,
        } = self;
        loop {
            if let Some(until) = *paused_until {
                sleep_until(until).await;
                *paused_until = None;
            }
            let next = AssertUnwindSafe(async { source.next().await }).catch_unwind();
            let mut next = pin!(next);
            let came = if outage.is_present() {
                match timeout(QUIET, &mut next).await {
                    Ok(came) => came,
                    Err(_) => {
                        outage.over();
                        // The same call goes on.
                        next.await
                    }
                }
            } else {
                next.await
            };
            match came.unwrap_or_else(|_| Err(panicked())) {
                Ok(delivery) => {
                    outage.over();
                    return Ok(delivery);
                }
                Err(error) if error.is_transient() => {
                    *paused_until = Some(Instant::now() + outage.failed(&error));
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
