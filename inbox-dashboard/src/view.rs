//! Messages and groups of them as JSON: what the admin API answers, and `inbox --json` prints.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inbox::{
    AttemptEnd, HandlerStatistics, Headers, InterventionKind, MessageGroup, PastAttempt,
    PastIntervention, Record, State,
};
use serde::Serialize;

use crate::text::time;

/// A record without its bytes.
#[derive(Debug, Serialize)]
pub struct RecordView<'a> {
    handler: &'a str,
    id: &'a str,
    kind: &'a str,
    state: State,
    attempts_started: u32,
    attempts_finished: u32,
    replays: u32,
    content_type: Option<&'a str>,
    ordering_key: Option<&'a str>,
    blocks_ordering_key: bool,
    headers: Option<&'a Headers>,
    payload_bytes: Option<u64>,
    accepted_at: String,
    due_at: String,
    lease_until: Option<String>,
    leased_at: Option<String>,
    worker: Option<&'a str>,
    finished_at: Option<String>,
    last_error: Option<&'a str>,
    place: &'a str,
}

impl RecordView<'_> {
    /// The same without headers, whose values may be as personal as a payload.
    #[must_use]
    pub fn without_headers(self) -> Self {
        Self {
            headers: None,
            ..self
        }
    }
}

impl<'a> From<&'a Record> for RecordView<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            handler: record.key.handler.as_str(),
            id: record.key.id.as_str(),
            kind: record.kind.as_str(),
            state: record.state,
            attempts_started: record.attempts.started,
            attempts_finished: record.attempts.finished,
            replays: record.replays,
            content_type: record.content_type.as_ref().map(AsRef::as_ref),
            ordering_key: record.ordering_key.as_ref().map(AsRef::as_ref),
            blocks_ordering_key: record.blocks_ordering_key,
            headers: Some(&record.headers),
            payload_bytes: record.payload_bytes,
            accepted_at: time(record.accepted_at),
            due_at: time(record.due_at),
            lease_until: record.lease_until.map(time),
            leased_at: record.leased_at.map(time),
            worker: record.worker.as_ref().map(AsRef::as_ref),
            finished_at: record.finished_at.map(time),
            last_error: record.last_error.as_deref(),
            place: record.cursor.as_str(),
        }
    }
}

/// A past attempt.
#[derive(Debug, Serialize)]
pub struct PastAttemptView<'a> {
    attempt: u32,
    replays: u32,
    worker: &'a str,
    leased_at: String,
    ended_at: String,
    took_ms: u64,
    end: AttemptEnd,
    error: &'a str,
}

impl<'a> From<&'a PastAttempt> for PastAttemptView<'a> {
    fn from(past: &'a PastAttempt) -> Self {
        Self {
            attempt: past.attempt,
            replays: past.replays,
            worker: past.worker.as_str(),
            leased_at: time(past.leased_at),
            ended_at: time(past.ended_at),
            took_ms: u64::try_from(past.took().as_millis()).unwrap_or(u64::MAX),
            end: past.end,
            error: &past.error,
        }
    }
}

/// What an operator did.
#[derive(Debug, Serialize)]
pub struct InterventionView<'a> {
    intervention: InterventionKind,
    at: String,
    by: &'a str,
}

impl<'a> From<&'a PastIntervention> for InterventionView<'a> {
    fn from(done: &'a PastIntervention) -> Self {
        Self {
            intervention: done.kind,
            at: time(done.at),
            by: done.by.as_str(),
        }
    }
}

/// The interventions in a record.
#[must_use]
pub fn interventions(record: &Record) -> Vec<InterventionView<'_>> {
    let done = record.interventions.iter();
    done.map(InterventionView::from).collect()
}

/// The past attempts of a record.
#[must_use]
pub fn history(record: &Record) -> Vec<PastAttemptView<'_>> {
    record.history.iter().map(PastAttemptView::from).collect()
}

/// A record with its bytes and its past attempts: bytes as text where they are UTF-8, in base64 otherwise.
#[derive(Debug, Serialize)]
pub struct WholeView<'a> {
    #[serde(flatten)]
    record: RecordView<'a>,
    history: Vec<PastAttemptView<'a>>,
    interventions: Vec<InterventionView<'a>>,
    payload: Option<&'a str>,
    payload_base64: Option<String>,
    result: Option<&'a str>,
    result_base64: Option<String>,
}

impl<'a> From<&'a Record> for WholeView<'a> {
    fn from(record: &'a Record) -> Self {
        let (payload, payload_base64) = text_or_base64(record.payload.as_deref());
        let (result, result_base64) = text_or_base64(record.result.as_deref());
        Self {
            record: RecordView::from(record),
            history: history(record),
            interventions: interventions(record),
            payload,
            payload_base64,
            result,
            result_base64,
        }
    }
}

impl WholeView<'_> {
    /// The same without payload, result and headers.
    #[must_use]
    pub fn without_content(self) -> Self {
        Self {
            record: self.record.without_headers(),
            history: self.history,
            interventions: self.interventions,
            payload: None,
            payload_base64: None,
            result: None,
            result_base64: None,
        }
    }
}

fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(std::str::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(_)) => (None, bytes.map(|bytes| BASE64.encode(bytes))),
    }
}

/// A group of messages.
#[derive(Debug, Serialize)]
pub struct GroupView<'a> {
    handler: &'a str,
    kind: &'a str,
    error_type: Option<&'a str>,
    error_shape: Option<&'a str>,
    messages: u64,
    accepted: [String; 2],
    due: [String; 2],
    finished: Option<[String; 2]>,
    sample: String,
    sample_error: Option<&'a str>,
}

impl<'a> From<&'a MessageGroup> for GroupView<'a> {
    fn from(group: &'a MessageGroup) -> Self {
        let span = |span: inbox::Span| [time(span.first), time(span.last)];
        Self {
            handler: group.handler.as_str(),
            kind: group.kind.as_str(),
            error_type: group.error_type.as_ref().map(inbox::ErrorType::as_str),
            error_shape: group.error_shape.as_deref(),
            messages: group.messages,
            accepted: span(group.accepted),
            due: span(group.due),
            finished: group.finished.map(span),
            sample: group.sample.to_string(),
            sample_error: group.sample_error.as_deref(),
        }
    }
}

/// The counts of one handler.
#[derive(Debug, Serialize)]
pub struct StatisticsView<'a> {
    handler: &'a str,
    pending: u64,
    due: u64,
    leased: u64,
    processed: u64,
    dead: u64,
    discarded: u64,
    paused: bool,
    blocking: u64,
    oldest_due_age_seconds: Option<f64>,
    lag_seconds: Option<f64>,
}

impl<'a> From<&'a HandlerStatistics> for StatisticsView<'a> {
    fn from(counts: &'a HandlerStatistics) -> Self {
        Self {
            handler: counts.handler.as_str(),
            pending: counts.pending,
            due: counts.due,
            leased: counts.leased,
            processed: counts.processed,
            dead: counts.dead,
            discarded: counts.discarded,
            paused: counts.paused,
            blocking: counts.blocking,
            oldest_due_age_seconds: counts.oldest_due_age.map(|age| age.as_secs_f64()),
            lag_seconds: counts.lag.map(|lag| lag.as_secs_f64()),
        }
    }
}
