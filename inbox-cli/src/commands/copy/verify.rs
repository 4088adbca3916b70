//! Compares the copy with its source, message by message, in the order of acceptance.

use std::collections::VecDeque;

use anyhow::Result;
use inbox::{Filter, Inbox, Page, Record, State, pace::Slices};
use tokio_util::sync::CancellationToken;

use super::Report;

/// How many messages are read at a time, with payloads, if these are small.
const PAGE: u32 = 100;

/// All messages of an inbox, one after the other.
struct Walk<'a> {
    inbox: &'a dyn Inbox,
    page: Page,
    slices: Slices,
    read: VecDeque<Record>,
    is_over: bool,
}

impl<'a> Walk<'a> {
    fn of(inbox: &'a dyn Inbox) -> Self {
        Self {
            inbox,
            page: Page {
                with_payload: true,
                ..Page::first(PAGE)
            },
            slices: Slices::new(PAGE),
            read: VecDeque::new(),
            is_over: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Record>> {
        while self.read.is_empty() && !self.is_over {
            self.page.limit = self.slices.size();
            let listing = self.inbox.list(&Filter::default(), &self.page).await?;
            self.slices.saw(&listing.records);
            self.read = listing.records.into();
            self.is_over = listing.next.is_none();
            self.page.after = listing.next;
        }
        Ok(self.read.pop_front())
    }
}

/// Adds to the report what is missing in the target, or other than in the source. What the target has in
/// addition does not matter. Answers whether it came to the end before it was interrupted.
pub(super) async fn verify(
    from: &dyn Inbox,
    to: &dyn Inbox,
    report: &mut Report,
    token: &CancellationToken,
) -> Result<bool> {
    let (mut originals, mut copies) = (Walk::of(from), Walk::of(to));
    let mut ahead: Option<Record> = None;
    while let Some(original) = originals.next().await? {
        if token.is_cancelled() {
            return Ok(false);
        }
        if ahead.is_none() {
            ahead = copies.next().await?;
        }
        // The target may have had messages before.
        while let Some(copy) = &ahead
            && copy.key != original.key
            && from.get(&copy.key).await?.is_none()
        {
            ahead = copies.next().await?;
        }
        let key = original.key.clone();
        let problem = match ahead.take_if(|copy| copy.key == original.key) {
            Some(copy) => difference(&original, &copy),
            None => match to.get(&original.key).await? {
                None => Some("it is not in the target"),
                Some(copy) => difference(&original, &copy)
                    .or_else(|| moved(&original).then_some("it has another place in the target")),
            },
        };
        if let Some(problem) = problem.filter(|_| !report.altered.contains(&key)) {
            report.problems.push((key, problem.to_owned()));
        }
    }
    Ok(true)
}

/// Whether it matters that a message has another place: nothing else than an ordering key depends on it.
fn moved(original: &Record) -> bool {
    original.ordering_key.is_some()
}

fn difference(original: &Record, copy: &Record) -> Option<&'static str> {
    let state = |record: &Record| match record.state {
        State::Leased => State::Pending,
        state => state,
    };
    let differs = [
        (state(original) != state(copy), "its state differs"),
        (original.kind != copy.kind, "its kind differs"),
        (original.headers != copy.headers, "its headers differ"),
        (
            original.ordering_key != copy.ordering_key,
            "its ordering key differs",
        ),
        (
            original.fingerprint != copy.fingerprint,
            "its fingerprint differs",
        ),
        (
            original.payload.as_deref().unwrap_or_default()
                != copy.payload.as_deref().unwrap_or_default(),
            "its payload differs",
        ),
        (
            original.state == State::Processed && original.result != copy.result,
            "its result differs",
        ),
        (
            original.blocks_ordering_key != copy.blocks_ordering_key,
            "whether it blocks its ordering key differs",
        ),
        (
            original.state == State::Dead && original.last_error != copy.last_error,
            "its error differs",
        ),
    ];
    let found = differs.iter().find(|(differs, _)| *differs);
    found.map(|(_, difference)| *difference)
}
