//! What pages read of the store, each in bounded steps.

use std::{collections::BTreeSet, time::Duration};

use inbox::{Filter, HandlerName, Inbox, Listing, OrderingKey, Page, Record, State, Statistics};
use tokio::time::timeout;

use crate::{
    fault::Fault,
    query::Selection,
    tally::{MOST, Tally},
};

/// How many messages of its ordering key are looked at for the place of one.
const PLACES: u32 = 500;

/// How long one read may take. A filter that almost nothing matches can make a store look at all it has.
const READ_TIME: Duration = Duration::from_secs(10);

/// Waits for the store, but not for ever.
pub(crate) async fn within<T>(reading: impl Future<Output = inbox::Result<T>>) -> Result<T, Fault> {
    match timeout(READ_TIME, reading).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Fault::too_slow()),
    }
}

/// One page of a selection. Of one that goes beyond filters it looks at up to ten times as many, so that a
/// page may be short though there is a next one.
pub(crate) async fn list(
    store: &dyn Inbox,
    selection: &Selection,
    page: &Page,
) -> inbox::Result<Listing> {
    if selection.beyond.is_none() {
        return store.list(&selection.filter, page).await;
    }
    let mut found = Listing::default();
    let mut next = page.clone();
    for _ in 0..10 {
        let listing = store.list(&selection.filter, &next).await?;
        found.corrupt.extend(listing.corrupt);
        found.next.clone_from(&listing.next);
        for record in listing.records {
            if !selection.means(&record) {
                continue;
            }
            let place = record.cursor.clone();
            found.records.push(record);
            if found.records.len() >= page.limit as usize {
                found.next = Some(place);
                return Ok(found);
            }
        }
        if found.next.is_none() {
            break;
        }
        next.after.clone_from(&found.next);
    }
    Ok(found)
}

/// How many messages a selection means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matching {
    pub(crate) number: u64,
    /// Whether these are all; otherwise there are at least so many.
    pub(crate) is_exact: bool,
}

impl Matching {
    pub(crate) fn exactly(number: u64) -> Self {
        let is_exact = true;
        Self { number, is_exact }
    }

    pub(crate) fn of(tally: &Tally) -> Self {
        Self {
            number: tally.summary.messages,
            is_exact: tally.is_complete(),
        }
    }
}

/// How many messages `filter` means, if the statistics tell: when it names handler and states only.
#[must_use]
pub fn total_of(statistics: &Statistics, filter: &Filter) -> Option<u64> {
    let by_handler_and_state = Filter {
        handler: filter.handler.clone(),
        states: filter.states.clone(),
        ..Filter::default()
    };
    if *filter != by_handler_and_state {
        return None;
    }
    let handlers = statistics
        .handlers
        .iter()
        .filter(|counts| filter.handler.as_ref().is_none_or(|h| *h == counts.handler));
    let states: BTreeSet<State> = match filter.states.as_slice() {
        [] => State::ALL.into_iter().collect(),
        states => states.iter().copied().collect(),
    };
    Some(
        handlers
            .flat_map(|counts| states.iter().map(|state| counts.count(*state)))
            .sum(),
    )
}

/// How many messages a selection means, if the store keeps that.
pub(crate) async fn count_kept(
    store: &dyn Inbox,
    selection: &Selection,
) -> inbox::Result<Option<u64>> {
    let is_kept = total_of(&Statistics::default(), &selection.filter).is_some();
    if !is_kept || selection.beyond.is_some() {
        return Ok(None);
    }
    let statistics = store.statistics().await?;
    Ok(total_of(&statistics, &selection.filter))
}

/// Counts a selection, as far as that is cheap.
pub(crate) async fn count(store: &dyn Inbox, selection: &Selection) -> inbox::Result<Matching> {
    if let Some(number) = count_kept(store, selection).await? {
        return Ok(Matching::exactly(number));
    }
    let tally = Tally::of(store, selection, MOST).await?;
    Ok(Matching::of(&tally))
}

/// How many dead messages hold their ordering keys up: of a handler, or of all.
pub(crate) fn holding(statistics: &Statistics, handler: Option<&HandlerName>) -> u64 {
    let all = statistics.handlers.iter();
    let meant = all.filter(|counts| handler.is_none_or(|own| *own == counts.handler));
    meant.map(|counts| counts.blocking).sum()
}

/// The dead messages that hold ordering keys up: of a handler, or of all.
pub(crate) fn blocking(handler: Option<HandlerName>) -> Selection {
    Selection::from(Filter {
        blocking: true,
        handler,
        ..Filter::default()
    })
}

/// What is leased.
pub(crate) fn leased() -> Selection {
    Selection::from(Filter {
        states: vec![State::Leased],
        ..Filter::default()
    })
}

/// How long the place of a message is looked for: the page that shows it has more to show.
const PLACE_TIME: Duration = Duration::from_secs(2);

/// Where a message that is not final stands among those of its ordering key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It has the turn.
    First,
    /// So many are before it, this one first.
    Behind(u64, Box<inbox::Key>),
    /// Further back than was looked.
    FarBehind(u64),
    /// The store did not tell, or not in time.
    Unknown,
}

/// The place of a record in its ordering key, if it has one and waits there.
pub(crate) async fn place(store: &dyn Inbox, record: &Record) -> Option<Place> {
    let ordering_key = record.ordering_key.as_ref()?;
    if record.state.is_final() {
        return None;
    }
    match timeout(PLACE_TIME, look_for_place(store, record, ordering_key)).await {
        Ok(Ok(place)) => place,
        _ => Some(Place::Unknown),
    }
}

async fn look_for_place(
    store: &dyn Inbox,
    record: &Record,
    ordering_key: &OrderingKey,
) -> inbox::Result<Option<Place>> {
    let filter = Filter {
        states: vec![State::Pending, State::Leased, State::Dead],
        handler: Some(record.key.handler.clone()),
        ordering_key: Some(ordering_key.clone()),
        ..Filter::default()
    };
    let listing = store.list(&filter, &Page::first(PLACES)).await?;
    let mut before = 0;
    let mut first = None;
    for other in listing.records {
        if other.key == record.key {
            let place = first.map_or(Place::First, |key| Place::Behind(before, Box::new(key)));
            return Ok(Some(place));
        }
        if other.state != State::Dead || other.blocks_ordering_key {
            before += 1;
            first.get_or_insert(other.key);
        }
    }
    Ok(listing.next.map(|_| Place::FarBehind(before)))
}
