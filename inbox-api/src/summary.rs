//! Dead, scheduled and other messages in groups.

use std::{
    collections::{BTreeMap, btree_map},
    time::SystemTime,
};

use async_trait::async_trait;

use crate::{ErrorType, Filter, HandlerName, Key, Kind, Listing, Operate, Page, Record, Result};

/// How many records a summary reads at a time.
const PAGE: u32 = 500;

/// The messages that a filter means, in groups: see [`OperateExt::summarize`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageSummary {
    /// The groups, in order of handler, kind and error type.
    pub groups: Vec<MessageGroup>,
    /// How many messages are in the groups.
    pub messages: u64,
    /// How many more could not be read.
    pub corrupt: u64,
    /// Whether these are all. If not, they are the latest accepted, as many as the limit said.
    pub is_complete: bool,
}

/// Messages of one handler, one kind and one type of last error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageGroup {
    /// The handler.
    pub handler: HandlerName,
    /// The kind.
    pub kind: Kind,
    /// The type of their last errors; `None` for those without an error, or with one that has no type.
    pub error_type: Option<ErrorType>,
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
    /// error. Reads the latest accepted first, page by page and without payloads, and stops after
    /// `limit` messages. What changes meanwhile is in it or not, like in any listing.
    ///
    /// # Errors
    /// As [`Operate::list`].
    async fn summarize(&self, filter: &Filter, limit: u64) -> Result<MessageSummary> {
        let mut groups = Groups::new();
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
            summary.messages += records.len() as u64;
            summary.corrupt += corrupt.len() as u64;
            summary.is_complete = next.is_none();
            page.after = next;
            records
                .into_iter()
                .for_each(|record| add(&mut groups, record));
        }
        summary.groups = groups.into_values().collect();
        Ok(summary)
    }
}

impl<S: Operate + ?Sized> OperateExt for S {}

type Groups = BTreeMap<(HandlerName, Kind, Option<ErrorType>), MessageGroup>;

/// Adds a record that was accepted before those added so far.
fn add(groups: &mut Groups, record: Record) {
    let error_type = record.last_error.as_deref().and_then(ErrorType::of);
    let one = MessageGroup {
        handler: record.key.handler.clone(),
        kind: record.kind,
        error_type,
        messages: 1,
        accepted: Span::at(record.accepted_at),
        due: Span::at(record.due_at),
        finished: record.finished_at.map(Span::at),
        sample: record.key,
    };
    let group = (
        one.handler.clone(),
        one.kind.clone(),
        one.error_type.clone(),
    );
    match groups.entry(group) {
        btree_map::Entry::Vacant(place) => {
            place.insert(one);
        }
        btree_map::Entry::Occupied(mut place) => {
            let group = place.get_mut();
            group.messages += 1;
            group.accepted = group.accepted.and(one.accepted);
            group.due = group.due.and(one.due);
            group.finished = match (group.finished, one.finished) {
                (Some(span), Some(other)) => Some(span.and(other)),
                (span, other) => span.or(other),
            };
        }
    }
}
