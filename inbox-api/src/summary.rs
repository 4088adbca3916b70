//! Dead, scheduled and other messages in groups.

use std::time::SystemTime;

use async_trait::async_trait;

use crate::{ErrorType, Filter, HandlerName, Key, Kind, Listing, Operate, Page, Record, Result};

/// How many records a summary reads at a time.
const PAGE: u32 = 500;

/// The messages that a filter means, in groups: see [`OperateExt::summarize`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageSummary {
    /// The groups, in order of handler, kind, error type and shape.
    pub groups: Vec<MessageGroup>,
    /// How many messages are in the groups.
    pub messages: u64,
    /// How many more could not be read.
    pub corrupt: u64,
    /// Whether these are all. If not, they are the latest accepted, as many as the limit said.
    pub is_complete: bool,
}

impl MessageSummary {
    /// Adds a message that was accepted before those added so far, for one who reads a listing, newest first,
    /// at a pace of their own.
    pub fn add(&mut self, record: Record) {
        self.messages += 1;
        let one = MessageGroup::of(record);
        let place = self
            .groups
            .binary_search_by(|group| group.name().cmp(&one.name()));
        match place {
            Ok(place) => self.groups[place].add(one),
            Err(place) => self.groups.insert(place, one),
        }
    }
}

/// Messages of one handler, one kind, and one type or shape of last error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageGroup {
    /// The handler.
    pub handler: HandlerName,
    /// The kind.
    pub kind: Kind,
    /// The type of their last errors; `None` for those without an error, or with one that has no type.
    pub error_type: Option<ErrorType>,
    /// The [shape](error_shape) of their last errors, where these have no type.
    pub error_shape: Option<String>,
    /// How many they are.
    pub messages: u64,
    /// When they were accepted.
    pub accepted: Span,
    /// When they are, or were, due.
    pub due: Span,
    /// When they became final; `None` while none has.
    pub finished: Option<Span>,
    /// The one that was accepted last, to look at.
    pub sample: Key,
    /// Its last error.
    pub sample_error: Option<String>,
}

impl MessageGroup {
    fn of(record: Record) -> Self {
        let error = record.last_error.as_deref();
        Self {
            error_type: error.and_then(ErrorType::of),
            error_shape: error.and_then(error_shape),
            handler: record.key.handler.clone(),
            kind: record.kind,
            messages: 1,
            accepted: Span::at(record.accepted_at),
            due: Span::at(record.due_at),
            finished: record.finished_at.map(Span::at),
            sample: record.key,
            sample_error: record.last_error,
        }
    }

    /// What tells it from other groups, in their order.
    fn name(&self) -> (&HandlerName, &Kind, &Option<ErrorType>, &Option<String>) {
        let (kind, error_type) = (&self.kind, &self.error_type);
        (&self.handler, kind, error_type, &self.error_shape)
    }

    /// Adds one of the same name. What was added first stays the sample.
    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.accepted = self.accepted.and(other.accepted);
        self.due = self.due.and(other.due);
        self.finished = match (self.finished, other.finished) {
            (Some(span), Some(other)) => Some(span.and(other)),
            (span, other) => span.or(other),
        };
    }
}

/// The first and the last of several times, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The earliest.
    pub first: SystemTime,
    /// The latest, which may be the same.
    pub last: SystemTime,
}

impl Span {
    fn at(time: SystemTime) -> Self {
        Self {
            first: time,
            last: time,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// What is made of [`Operate`]'s operations. Implemented for every store.
#[async_trait]
pub trait OperateExt: Operate {
    /// Groups the messages that `filter` means by handler, kind and [type](ErrorType::of) of the last
    /// error, or its [shape](error_shape) where it has no type. Reads the latest accepted first, page by page and without payloads, and stops after
    /// `limit` messages. What changes meanwhile is in it or not, like in any listing.
    ///
    /// # Errors
    /// As [`Operate::list`].
    async fn summarize(&self, filter: &Filter, limit: u64) -> Result<MessageSummary> {
        let mut summary = MessageSummary::default();
        let mut page = Page {
            newest_first: true,
            ..Page::first(PAGE)
        };
        while !summary.is_complete && summary.messages + summary.corrupt < limit {
            let rest = limit - summary.messages - summary.corrupt;
            page.limit = u32::try_from(rest).unwrap_or(PAGE).min(PAGE);
            let Listing {
                records,
                corrupt,
                next,
            } = self.list(filter, &page).await?;
            summary.corrupt += corrupt.len() as u64;
            summary.is_complete = next.is_none();
            page.after = next;
            records.into_iter().for_each(|record| summary.add(record));
        }
        Ok(summary)
    }
}

impl<S: Operate + ?Sized> OperateExt for S {}

/// The longest shape of an error, in characters.
const SHAPE: usize = 120;

/// What an error without a type has in common with others of its cause: its first line, with words that have
/// a digit as `#`, cut at 120 characters; never empty. `None` of one that has a [type](ErrorType::of).
///
/// ```
/// use inbox_api::error_shape;
///
/// let shape = error_shape("exit status: 65: no order 4711 of customer-12").unwrap();
/// assert_eq!(shape, "exit status: #: no order # of #");
/// assert_eq!(error_shape(""), Some("-".to_owned()));
/// assert_eq!(error_shape("std::io::error::Error: connection refused"), None);
/// ```
#[must_use]
pub fn error_shape(error: &str) -> Option<String> {
    if ErrorType::of(error).is_some() {
        return None;
    }
    let is_of_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut shape = String::new();
    let mut lines = error.lines();
    let mut rest = lines.find(|line| !line.trim().is_empty()).unwrap_or("-");
    while let Some(first) = rest.chars().next() {
        let is_word = is_of_word(first);
        let end = rest
            .find(|c| is_of_word(c) != is_word)
            .unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        let is_number = is_word && part.contains(|c: char| c.is_ascii_digit());
        shape.push_str(if is_number { "#" } else { part });
        rest = behind;
    }
    Some(shape.chars().take(SHAPE).collect())
}
