//! Compares the copy with its source, message by message, in the order of acceptance.

use std::collections::VecDeque;

use anyhow::Result;
use inbox::{Filter, HandlerName, Inbox, Page, Record, State, pace::Slices};
use tokio_util::sync::CancellationToken;

use super::{Report, step::may_be_discarded};

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

/// A comparison of the copy with its source.
pub(super) struct Verification<'a> {
    pub(super) from: &'a dyn Inbox,
    pub(super) to: &'a dyn Inbox,
    /// Those that are copied, in order of name.
    pub(super) handlers: &'a [HandlerName],
    /// Whether what only the target has is its own.
    pub(super) merge: bool,
}

impl Verification<'_> {
    /// Adds to the report what is missing in the target, or other than in the source. What the target has in addition
    /// matters only if it would run and is not its own: an earlier copy has brought it, and the source has worked it
    /// off since. Answers whether it came to the end before it was interrupted.
    pub(super) async fn run(&self, report: &mut Report, token: &CancellationToken) -> Result<bool> {
        let (mut originals, mut copies) = (Walk::of(self.from), Walk::of(self.to));
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
                && self.from.get(&copy.key).await?.is_none()
            {
                if self.would_run(copy) {
                    report.add_only_in_target(copy);
                }
                ahead = copies.next().await?;
            }
            let (copy, is_in_place) = match ahead.take_if(|copy| copy.key == original.key) {
                Some(copy) => (Some(copy), true),
                None => (self.to.get(&original.key).await?, false),
            };
            let left_discarded = copy
                .as_ref()
                .is_some_and(|copy| self.is_left_discarded(&original, copy));
            report.left_discarded += u64::from(left_discarded);
            let problem = match copy {
                None => Some("it is not in the target"),
                Some(copy) => difference(&original, &copy, left_discarded).or_else(|| {
                    let has_moved = !is_in_place && moved(&original);
                    has_moved.then_some("it has another place in the target")
                }),
            };
            let key = original.key.clone();
            if let Some(problem) = problem.filter(|_| !report.altered.contains(&key)) {
                report.problems.push((key, problem.to_owned()));
            }
        }
        if ahead.is_none() {
            ahead = copies.next().await?;
        }
        while let Some(copy) = ahead {
            if token.is_cancelled() {
                return Ok(false);
            }
            if self.would_run(&copy) && self.from.get(&copy.key).await?.is_none() {
                report.add_only_in_target(&copy);
            }
            ahead = copies.next().await?;
        }
        Ok(true)
    }

    /// Whether a message that only the target has is still to be worked on there, and is none of its own.
    fn would_run(&self, copy: &Record) -> bool {
        !self.merge
            && matches!(copy.state, State::Pending | State::Leased)
            && self.handlers.binary_search(&copy.key.handler).is_ok()
    }

    /// Whether a message is discarded in the target in place of its outcome, which a merge may leave so.
    fn is_left_discarded(&self, original: &Record, copy: &Record) -> bool {
        self.merge && copy.state == State::Discarded && may_be_discarded(original)
    }
}

/// Whether it matters that a message has another place: nothing else than an ordering key depends on it.
fn moved(original: &Record) -> bool {
    original.ordering_key.is_some()
}

/// What is other in the copy, but for its outcome where it is `left_discarded`.
fn difference(original: &Record, copy: &Record, left_discarded: bool) -> Option<&'static str> {
    let state = |record: &Record| match record.state {
        State::Leased => State::Pending,
        state => state,
    };
    let differs = [
        (
            !left_discarded && state(original) != state(copy),
            "its state differs",
        ),
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
            !left_discarded && original.state == State::Processed && original.result != copy.result,
            "its result differs",
        ),
        (
            original.blocks_ordering_key != copy.blocks_ordering_key,
            "whether it blocks its ordering key differs",
        ),
        (
            !left_discarded
                && original.state == State::Dead
                && original.last_error != copy.last_error,
            "its error differs",
        ),
    ];
    let found = differs.iter().find(|(differs, _)| *differs);
    found.map(|(_, difference)| *difference)
}
