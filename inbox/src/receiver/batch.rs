//! One batch: stored in one call, then acknowledged in the order of delivery.

use std::{
    collections::HashSet,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;

use inbox_source::{Delivery, Rejection, SourceError};
use tracing::Instrument as _;

use super::{
    Receiver,
    finals::{self, Final},
    notice::Notice,
    outage::Outage,
    rejected::{dead_letters, keep, leave_from_rejected, stop_before_rejected},
    report::{BatchReport, ReceiverError, Summary, unanswered},
};
use crate::{
    Message, Receipt, Result, Store as _,
    telemetry::{self, MESSAGE, OUTAGE, REJECTED},
};

/// What a rejected delivery counts as that does not say what it holds.
const UNKNOWN_BYTES: usize = 1024 * 1024;

/// What is to be done with one delivery.
pub(super) enum Verdict {
    Acknowledge(Receipt),
    /// It is no message, and kept as a dead letter.
    Keep(Rejection),
    Reject(Rejection),
}

/// Where a delivery's copies are in the store call, or why it has none.
type Place = std::result::Result<Range<usize>, Rejection>;

/// Deliveries that are stored in one call.
pub(super) struct Batch<D> {
    taken: Vec<Taken<D>>,
    bytes: usize,
    is_ordered: bool,
}

impl<D: Delivery> Batch<D> {
    /// An empty one, with room for so many deliveries.
    pub(super) fn with_capacity(deliveries: usize) -> Self {
        Self {
            taken: Vec::with_capacity(deliveries),
            bytes: 0,
            is_ordered: false,
        }
    }

    /// Adds a delivery that is stored as so many copies.
    pub(super) fn push(&mut self, delivery: D, copies: usize) {
        let taken = Taken::new(delivery);
        self.bytes = self.bytes.saturating_add(taken.bytes(copies));
        self.is_ordered |=
            matches!(&taken.message, Ok(message) if message.ordering_key().is_some());
        self.taken.push(taken);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    pub(super) fn size(&self) -> Size {
        Size {
            deliveries: self.taken.len(),
            bytes: self.bytes,
        }
    }

    /// Whether it has to be stored behind batches that came before it, as it holds messages that keep
    /// an order.
    pub(super) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Stores it, however long the store is away.
    pub(super) async fn store(
        self,
        receiver: &Receiver,
        source: &str,
    ) -> std::result::Result<Stored<D>, ReceiverError> {
        let span = span(source, &self.taken);
        let storing = store_all(receiver, self, span.clone());
        storing.instrument(span).await
    }
}

/// How much there is of something.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) deliveries: usize,
    pub(super) bytes: usize,
}

/// A batch that is stored, and not acknowledged.
pub(super) struct Stored<D> {
    deliveries: Vec<D>,
    verdicts: Vec<Verdict>,
    report: BatchReport,
    /// At which delivery the receiver ends.
    stopped: Option<Rejection>,
    began: Instant,
    span: tracing::Span,
    size: Size,
    is_ordered: bool,
}

impl<D: Delivery> Stored<D> {
    /// As [`Batch::is_ordered`].
    pub(super) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Whether the receiver ends at one of its deliveries.
    pub(super) fn is_last(&self) -> bool {
        self.stopped.is_some()
    }

    /// Acknowledges and rejects its deliveries, and tells of it. Answers how much that was.
    ///
    /// May be dropped at any time: what was not acknowledged by then is delivered again.
    pub(super) async fn finish(
        self,
        receiver: &Receiver,
        source: &str,
        summary: &Mutex<Summary>,
    ) -> std::result::Result<Size, ReceiverError> {
        let (span, size) = (self.span.clone(), self.size);
        let finishing = self.finish_all(receiver, source, summary);
        finishing.instrument(span).await.map(|()| size)
    }

    async fn finish_all(
        self,
        receiver: &Receiver,
        source: &str,
        summary: &Mutex<Summary>,
    ) -> std::result::Result<(), ReceiverError> {
        let mut report = self.report;
        lock(summary).add_stored(&report);
        warn_of_kept(receiver, &self.verdicts);
        let finished = finish(self.deliveries, self.verdicts).await;
        note_failures(receiver, &finished);
        warn_of_rejected(receiver, &finished.rejected);
        report.failed_acknowledgements = finished.failures();
        lock(summary).failed_acknowledgements += finished.failures() as u64;
        report.elapsed = self.began.elapsed();
        tracing::debug!(
            accepted = report.accepted,
            duplicates = report.duplicates,
            differing = report.differing,
            unfinished = report.unfinished,
            rejected = report.rejected,
            kept = report.kept,
            "batch received"
        );
        count(source, &report);
        telemetry::batch_received(source, report.elapsed);
        receiver.vitals.success();
        if let Some(on_batch) = &receiver.on_batch
            && catch_unwind(AssertUnwindSafe(|| on_batch(&report))).is_err()
        {
            tracing::error!("the observer of batches panicked");
        }
        let stopped = self.stopped.map(ReceiverError::Rejected);
        stopped.map_or(Ok(()), Err)
    }
}

/// Counts what became of deliveries.
pub(super) fn count(source: &str, report: &BatchReport) {
    let outcomes = [
        ("accepted", report.accepted),
        ("duplicate", report.duplicates),
        ("rejected", report.rejected),
        ("kept", report.kept),
    ];
    telemetry::received(source, outcomes, report.differing);
}

fn span<D>(source: &str, taken: &[Taken<D>]) -> tracing::Span {
    let span = tracing::info_span!(
        "receive",
        source,
        deliveries = taken.len(),
        otel.kind = tracing::field::Empty,
        otel.name = tracing::field::Empty,
    );
    #[cfg(feature = "opentelemetry")]
    {
        let messages = taken.iter().filter_map(|taken| taken.message.as_ref().ok());
        crate::trace::receipt(&span, source, taken.len(), messages);
    }
    span
}

async fn store_all<D: Delivery>(
    receiver: &Receiver,
    mut batch: Batch<D>,
    span: tracing::Span,
) -> std::result::Result<Stored<D>, ReceiverError> {
    let began = Instant::now();
    let (size, is_ordered) = (batch.size(), batch.is_ordered);
    let left = receiver
        .stop_at_rejected
        .then(|| leave_from_rejected(receiver, &mut batch.taken))
        .flatten();
    let (mut deliveries, messages, places) = unpack(receiver, batch.taken);
    let stored = if receiver.record_only {
        let finals: Vec<_> = messages.iter().map(Final::record).collect();
        finals::store(receiver, &finals).await
    } else {
        store(receiver, &messages)
            .await
            .map(|receipts| finals::Stored {
                receipts,
                unfinished: HashSet::new(),
            })
    };
    let stored = stored.map_err(ReceiverError::Store)?;
    let receipts = stored.receipts;
    let mut report = BatchReport {
        deliveries: size.deliveries,
        ..BatchReport::default()
    };
    let is_left = |at: usize| stored.unfinished.contains(&at);
    let is_unfinished = |place: &Place| matches!(place, Ok(copies) if copies.clone().any(is_left));
    let unfinished: Vec<bool> = places.iter().map(is_unfinished).collect();
    let mut verdicts: Vec<Verdict> = places
        .into_iter()
        .map(|place| judge(place, &receipts, &mut report))
        .collect();
    warn_of_differing(receiver, &messages, &receipts, &report);
    if let Some(handler) = &receiver.keep_rejected {
        let (places, letters) = dead_letters(receiver, handler, &deliveries, &verdicts);
        let kept = keep(receiver, places, letters, &mut verdicts, &mut report).await;
        kept.map_err(ReceiverError::Store)?;
    }
    let stopped = receiver
        .stop_at_rejected
        .then(|| stop_before_rejected(&mut deliveries, &mut verdicts, &mut report))
        .flatten();
    let unfinished = unfinished.into_iter().take(deliveries.len());
    report.unfinished = unfinished.filter(|is_unfinished| *is_unfinished).count();
    Ok(Stored {
        deliveries,
        verdicts,
        report,
        // What the store has refused came before it.
        stopped: stopped.or(left),
        began,
        span,
        size,
        is_ordered,
    })
}

/// A delivery with its message, or why it has none.
pub(super) struct Taken<D> {
    pub(super) delivery: D,
    pub(super) message: std::result::Result<Message, Rejection>,
}

impl<D: Delivery> Taken<D> {
    /// Reads the message. A delivery that makes its reader panic has none.
    fn new(delivery: D) -> Self {
        let read = catch_unwind(AssertUnwindSafe(|| delivery.message()));
        let message = read.unwrap_or_else(|_| {
            tracing::error!("reading a delivery panicked");
            Err(Rejection::new("reading it panicked"))
        });
        Self { delivery, message }
    }

    /// What it takes in memory until it is finished, roughly: itself, or its copies on their way
    /// to the store.
    fn bytes(&self, copies: usize) -> usize {
        let asked = catch_unwind(AssertUnwindSafe(|| self.delivery.bytes()));
        let held = asked.unwrap_or_else(|_| {
            tracing::error!("asking a delivery for its size panicked");
            None
        });
        match &self.message {
            Ok(message) => held.unwrap_or(0).max(size(message).saturating_mul(copies)),
            Err(_) => held.unwrap_or(UNKNOWN_BYTES),
        }
    }
}

fn size(message: &Message) -> usize {
    let headers = message.headers().iter();
    let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
    message.payload().len() + headers
}

/// The deliveries, and the messages of all of them, the copies of one next to each other.
fn unpack<D: Delivery>(
    receiver: &Receiver,
    taken: Vec<Taken<D>>,
) -> (Vec<D>, Vec<Message>, Vec<Place>) {
    let mut messages = Vec::with_capacity(taken.len() * receiver.fan_out.len().max(1));
    let mut deliveries = Vec::with_capacity(taken.len());
    let places = taken
        .into_iter()
        .map(|taken| {
            deliveries.push(taken.delivery);
            let message = taken.message?;
            let start = messages.len();
            if receiver.fan_out.is_empty() {
                messages.push(message);
            } else {
                let copies = receiver.fan_out.iter().cloned();
                messages.extend(copies.map(|handler| message.for_handler(handler)));
            }
            Ok(start..messages.len())
        })
        .collect();
    (deliveries, messages, places)
}

/// Stores messages, however long the store is away.
async fn store(receiver: &Receiver, messages: &[Message]) -> Result<Vec<Receipt>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let mut outage = Outage::none("store", &receiver.vitals);
    loop {
        match receiver.store.receive(messages).await {
            Ok(receipts) if receipts.len() == messages.len() => {
                outage.over();
                return Ok(receipts);
            }
            Ok(_) => return Err(unanswered("receive")),
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(outage.failed(&error)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Not each of them is told: a producer that uses ids twice does it all the time.
fn warn_of_differing(
    receiver: &Receiver,
    messages: &[Message],
    receipts: &[Receipt],
    report: &BatchReport,
) {
    if report.differing == 0 {
        return;
    }
    let mut all = messages.iter().zip(receipts);
    let first = all.find(|(_, receipt)| **receipt == Receipt::Duplicate { differs: true });
    if let (Some((message, _)), Some(count)) =
        (first, receiver.differing.add(report.differing as u64))
    {
        tracing::warn!(
            key = %message.key(),
            count,
            "the key of an earlier message came again with other content, which is not stored"
        );
    }
}

fn judge(place: Place, receipts: &[Receipt], report: &mut BatchReport) -> Verdict {
    let copies = match place {
        Ok(range) => receipts.get(range).unwrap_or_default(),
        Err(rejection) => {
            tracing::warn!(target: MESSAGE, reason = %rejection, "delivery is not a valid message");
            report.rejected += 1;
            return Verdict::Reject(rejection);
        }
    };
    let refusal = copies.iter().find_map(|receipt| match receipt {
        Receipt::Refused(invalid) => Some(invalid.clone()),
        Receipt::Accepted | Receipt::Duplicate { .. } => None,
    });
    if let Some(invalid) = refusal {
        tracing::warn!(target: MESSAGE, reason = %invalid, "delivery refused by the store");
        report.rejected += 1;
        return Verdict::Reject(invalid.into());
    }
    if copies.contains(&Receipt::Accepted) {
        report.accepted += 1;
        Verdict::Acknowledge(Receipt::Accepted)
    } else {
        report.duplicates += 1;
        let differs = copies.contains(&Receipt::Duplicate { differs: true });
        report.differing += usize::from(differs);
        Verdict::Acknowledge(Receipt::Duplicate { differs })
    }
}

/// Not each of them is told, as with differing ones: of a mapping that does not fit it is every delivery.
fn warn_of_kept(receiver: &Receiver, verdicts: &[Verdict]) {
    let Some(handler) = &receiver.keep_rejected else {
        return;
    };
    let mut kept = Reasons::default();
    for verdict in verdicts {
        if let Verdict::Keep(rejection) = verdict {
            kept.add(rejection);
        }
    }
    if let Some((reason, count)) = kept.to_be_told(&receiver.kept) {
        tracing::warn!(
            target: REJECTED,
            %reason,
            count,
            %handler,
            "delivery is no message that can be stored; kept as a dead letter of the handler"
        );
    }
}

/// The same of what is in no inbox.
fn warn_of_rejected(receiver: &Receiver, rejected: &Reasons) {
    if let Some((reason, count)) = rejected.to_be_told(&receiver.rejected) {
        tracing::warn!(
            target: REJECTED,
            %reason,
            count,
            "delivery is no message that can be stored; rejected, and lost unless its source has dead letters: \
             the receiver can keep it (keep_rejected)"
        );
    }
}

/// Why deliveries were no messages.
#[derive(Default)]
struct Reasons {
    count: u64,
    first: Option<Rejection>,
}

impl Reasons {
    fn add(&mut self, rejection: &Rejection) {
        self.count += 1;
        self.first.get_or_insert_with(|| rejection.clone());
    }

    /// One of them, and how many are to be told of now, if any are.
    fn to_be_told(&self, notice: &Notice) -> Option<(&Rejection, u64)> {
        let first = self.first.as_ref()?;
        Some((first, notice.add(self.count)?))
    }
}

/// What the broker has said to acknowledgements and rejections.
#[derive(Default)]
struct Finished {
    acknowledging: Attempts,
    rejecting: Attempts,
    /// Those that it has taken.
    rejected: Reasons,
}

impl Finished {
    fn failures(&self) -> usize {
        self.acknowledging.failures + self.rejecting.failures
    }
}

/// How often something was tried, how often the broker did not take it, and why it did not first.
#[derive(Default)]
struct Attempts {
    tried: usize,
    failures: usize,
    first: Option<SourceError>,
}

impl Attempts {
    fn add(&mut self, tried: usize, errors: Vec<SourceError>) {
        self.tried += tried;
        self.failures += errors.len();
        self.first = self.first.take().or(errors.into_iter().next());
    }
}

/// Acknowledges and rejects in the order of delivery.
async fn finish<D: Delivery>(deliveries: Vec<D>, verdicts: Vec<Verdict>) -> Finished {
    let mut finished = Finished::default();
    let mut run = Vec::with_capacity(deliveries.len());
    for (mut delivery, verdict) in deliveries.into_iter().zip(verdicts) {
        match verdict {
            Verdict::Acknowledge(receipt) => {
                let tell = AssertUnwindSafe(|| delivery.stored(&receipt));
                if catch_unwind(tell).is_err() {
                    tracing::error!("a delivery panicked when it was stored");
                }
                run.push(delivery);
            }
            Verdict::Keep(_) => run.push(delivery),
            Verdict::Reject(rejection) => {
                acknowledge(std::mem::take(&mut run), &mut finished.acknowledging).await;
                let reason = rejection.clone();
                let rejecting = AssertUnwindSafe(async { delivery.reject(rejection).await });
                let rejected = rejecting.catch_unwind().await;
                let failed = rejected.unwrap_or_else(|_| Err(panicked())).err();
                if failed.is_none() {
                    finished.rejected.add(&reason);
                }
                finished.rejecting.add(1, failed.into_iter().collect());
            }
        }
    }
    acknowledge(run, &mut finished.acknowledging).await;
    finished
}

async fn acknowledge<D: Delivery>(run: Vec<D>, attempts: &mut Attempts) {
    if run.is_empty() {
        return;
    }
    let tried = run.len();
    let acknowledging = AssertUnwindSafe(async { D::acknowledge_all(run).await });
    let errors = acknowledging.catch_unwind().await.unwrap_or_else(|_| {
        // Which of them the broker has is not known; what it has not comes again.
        (0..tried).map(|_| panicked()).collect()
    });
    attempts.add(tried, errors);
}

fn panicked() -> SourceError {
    SourceError::transient("finishing a delivery panicked")
}

/// What the receiver is troubled by while acknowledgements fail.
const ACKNOWLEDGING: &str = "acknowledging";
/// The same of rejections.
const REJECTING: &str = "rejecting";
/// A receiver that gets nothing more, as one whose partitions are another's now, is not troubled for longer.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

/// Tells when they begin to fail, and when one is taken again.
fn note_failures(receiver: &Receiver, finished: &Finished) {
    let Finished {
        acknowledging,
        rejecting,
        ..
    } = finished;
    let count = acknowledging.failures;
    if let Some(error) = &acknowledging.first {
        if receiver.begins_to_fail(ACKNOWLEDGING, error) {
            tracing::warn!(
                target: OUTAGE,
                %error,
                count,
                "acknowledgement failed; the broker will deliver again and the copies be refused"
            );
        }
        tracing::debug!(target: MESSAGE, %error, count, "not acknowledged");
    } else if acknowledging.tried > 0 && receiver.vitals.over(ACKNOWLEDGING) {
        tracing::info!(target: OUTAGE, "acknowledgements are taken again");
    }
    let count = rejecting.failures;
    if let Some(error) = &rejecting.first {
        if receiver.begins_to_fail(REJECTING, error) {
            tracing::warn!(
                target: OUTAGE,
                %error,
                count,
                "what is no message could not be rejected; it is neither stored nor lost, and comes again"
            );
        }
        tracing::debug!(target: MESSAGE, %error, count, "not rejected");
    } else if rejecting.tried > 0 && receiver.vitals.over(REJECTING) {
        tracing::info!(target: OUTAGE, "rejections are taken again");
    }
}

impl Receiver {
    /// Takes note of a failure to finish deliveries. `false`: that is known already.
    fn begins_to_fail(&self, what: &'static str, error: &SourceError) -> bool {
        self.vitals
            .trouble_for(what, error.to_string(), TROUBLE_LASTS)
    }
}

/// Nothing panics while this lock is held, so a poisoned one is still whole.
pub(super) fn lock(summary: &Mutex<Summary>) -> std::sync::MutexGuard<'_, Summary> {
    summary.lock().unwrap_or_else(PoisonError::into_inner)
}
