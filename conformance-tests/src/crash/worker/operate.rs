//! The operator: looks through the dead letters, replays or discards some of them, and purges what is old, while
//! others work.

use std::{io, time::Duration};

use inbox_api::{
    Filter, Key, Listing, Operate as _, Page, PurgeRequest, Result as StoreResult, Slice, State,
};

use super::{Worker, handlers, pause_after, process};
use crate::{
    crash::{
        history::{Answered, Asked, Change},
        point::Point,
    },
    needs::BoxError,
};

/// Dead letters of one look, where batches are as large as usual.
const PAGE: u32 = 50;
/// How long messages are final before they are purged.
pub(crate) const RETENTION: Duration = Duration::from_secs(3);
/// One of so many turns is for a purge.
const PURGES: u8 = 3;

pub(super) async fn run(worker: &Worker, mut random: fastrand::Rng) -> Result<(), BoxError> {
    let handlers = handlers()?;
    let most = 3 * worker.scale() as usize;
    while !worker.finishing() {
        tokio::time::sleep(Duration::from_millis(random.u64(20..=100))).await;
        if random.u8(..PURGES) == 0 {
            if let Err(error) = purge(worker, &mut random).await? {
                pause_after(&error).await;
            }
            continue;
        }
        let dead = Filter {
            states: vec![State::Dead],
            handler: random.choice(&handlers).cloned(),
            // Others wait for those.
            blocking: random.bool(),
            ..Filter::default()
        };
        let mut keys = match list(worker, &dead).await? {
            Ok(keys) => keys,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        random.shuffle(&mut keys);
        for key in keys.into_iter().take(random.usize(1..=most)) {
            let change = match random.u8(..4) {
                0 => Change::Discard,
                _ => Change::Replay,
            };
            if let Err(error) = change_one(worker, &key, change).await? {
                pause_after(&error).await;
            }
        }
    }
    Ok(())
}

/// Discards what blocks its ordering key, again and again, so that what is behind it comes to its end. Nothing is
/// replayed any more, so that there is an end.
pub(super) async fn unblock(worker: &Worker, mut random: fastrand::Rng) -> Result<(), BoxError> {
    let blocking = Filter {
        states: vec![State::Dead],
        blocking: true,
        ..Filter::default()
    };
    while !worker.finishing() {
        tokio::time::sleep(Duration::from_millis(random.u64(20..=100))).await;
        let mut failed = None;
        match list(worker, &blocking).await? {
            Ok(keys) => {
                for key in keys {
                    let changed = change_one(worker, &key, Change::Discard).await?;
                    failed = changed.err().or(failed);
                }
            }
            Err(error) => failed = Some(error),
        }
        if let Some(error) = failed {
            pause_after(&error).await;
        }
    }
    Ok(())
}

/// Purges a few messages or many of one handler that have been final for long enough, at times as an archiver does.
/// The other handler's are there at the end, and judged by what they have become.
async fn purge(worker: &Worker, random: &mut fastrand::Rng) -> Result<StoreResult<u64>, BoxError> {
    let state = match random.u8(..5) {
        0 => State::Dead,
        1 => State::Discarded,
        _ => State::Processed,
    };
    let [purged, _] = handlers()?;
    let limit = random.u32(1..=200 * worker.scale());
    let request = PurgeRequest::new(state, RETENTION, limit)?.for_handler(purged.clone());
    let archived = random.u8(..4) == 0;
    let asked = Asked::Purge {
        state,
        older_than: process::micros(RETENTION),
        handler: purged,
        limit,
        archived,
    };
    let inbox = &worker.opened.inbox;
    let purging = async {
        if !archived {
            return inbox.purge(&request).await;
        }
        let listing = inbox.expired(&request).await?;
        let keys: Vec<Key> = listing.records.into_iter().map(|one| one.key).collect();
        inbox.purge_archived(&request, &keys).await
    };
    let points = [Point::DuringPurge, Point::AfterPurge];
    let answered = |purged: &u64| Answered::Purged(*purged);
    Ok(worker.call(asked, points, purging, answered).await?)
}

async fn list(worker: &Worker, dead: &Filter) -> io::Result<StoreResult<Vec<Key>>> {
    let limit = PAGE * worker.scale();
    let page = Page::first(limit);
    // No point of its own; kills at any time meet it too.
    let points = [Point::AnyTime, Point::AnyTime];
    let listing = worker.opened.inbox.list(dead, &page);
    let keys = |listing: &Listing| listing.records.iter().map(|one| one.key.clone()).collect();
    let answered = |listing: &Listing| Answered::Listed {
        keys: keys(listing),
        whole: listing.next.is_none(),
        corrupt: listing.corrupt.len(),
    };
    let asked = Asked::List {
        handler: dead.handler.clone(),
        blocking: dead.blocking,
        limit,
    };
    let listing = worker.call(asked, points, listing, answered).await?;
    Ok(listing.map(|listing| keys(&listing)))
}

/// Changes the message if it is dead. By a filter, which says so: meanwhile it may be replayed, and at work.
async fn change_one(worker: &Worker, key: &Key, change: Change) -> io::Result<StoreResult<u64>> {
    let asked = Asked::Change {
        key: key.clone(),
        change,
    };
    let points = [Point::DuringChange, Point::AfterChange];
    let changing = ask_to_change(worker, key, change);
    worker
        .call(asked, points, changing, |changed| {
            Answered::Changed(*changed)
        })
        .await
}

async fn ask_to_change(worker: &Worker, key: &Key, change: Change) -> StoreResult<u64> {
    let dead = Filter {
        states: vec![State::Dead],
        handler: Some(key.handler.clone()),
        ids: vec![key.id.clone()],
        ..Filter::default()
    };
    // More than one, so that a filter that lets others through shows.
    let slice = Slice {
        after: None,
        limit: 10,
    };
    let inbox = &worker.opened.inbox;
    let progress = match change {
        Change::Replay => inbox.replay_slice(&dead, &slice).await?,
        Change::Discard => inbox.discard_slice(&dead, &slice).await?,
    };
    Ok(progress.changed)
}
