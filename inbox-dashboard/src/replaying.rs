//! Replaying messages that are named, as they are. Each is looked at first, and then replayed in the state in which it
//! was seen and in no other: the store checks that when it writes. So one that others have replayed in between, and
//! a worker has finished, is left alone.

use std::collections::BTreeMap;

use inbox::{ErrorKind, Filter, HandlerName, Intervention, Key, Operate, Record, State};

use crate::{
    jobs::{Action, Job, Verb},
    work::{SLICE, all, reason},
};

/// A message that can be replayed, as it was seen.
struct Seen {
    key: Key,
    replays: u32,
}

pub(crate) async fn replay_named(
    store: &dyn Operate,
    job: &Job,
    keys: Vec<Key>,
    also_processed: bool,
) -> inbox::Result<()> {
    let mut by_handler: BTreeMap<HandlerName, Vec<Key>> = BTreeMap::new();
    for key in keys {
        by_handler.entry(key.handler.clone()).or_default().push(key);
    }
    for (handler, keys) in by_handler {
        for keys in keys.chunks(SLICE as usize) {
            if job.stop.is_cancelled() {
                return Ok(());
            }
            for (state, seen) in look(store, job, keys, also_processed).await? {
                let filter = Filter {
                    states: vec![state],
                    handler: Some(handler.clone()),
                    ids: seen.iter().map(|one| one.key.id.clone()).collect(),
                    ..Filter::default()
                };
                let changed = all(store, job, &Action::Replay, &filter, None).await?;
                let left = (seen.len() as u64).saturating_sub(changed);
                if left > 0 && !job.stop.is_cancelled() {
                    tell_unchanged(store, job, seen, left, also_processed).await?;
                }
            }
        }
    }
    Ok(())
}

/// Those that can be replayed, by their states. The others are refused.
async fn look(
    store: &dyn Operate,
    job: &Job,
    keys: &[Key],
    also_processed: bool,
) -> inbox::Result<BTreeMap<State, Vec<Seen>>> {
    let mut by_state: BTreeMap<State, Vec<Seen>> = BTreeMap::new();
    for key in keys {
        match check(find(store, key).await?, also_processed) {
            Ok(record) => by_state.entry(record.state).or_default().push(Seen {
                key: record.key,
                replays: record.replays,
            }),
            Err(refusal) => job.refuse(key, refusal),
        }
    }
    Ok(by_state)
}

/// Says of so many of these why they were not replayed. Those whose replays are as they were certainly were not. Who
/// has replayed each of the others is not known: what others have replayed will have come further.
async fn tell_unchanged(
    store: &dyn Operate,
    job: &Job,
    seen: Vec<Seen>,
    number: u64,
    also_processed: bool,
) -> inbox::Result<()> {
    let mut refused = Vec::new();
    for one in seen {
        let found = find(store, &one.key).await?;
        let doubt = match &found {
            Ok(Some(record)) if record.replays != one.replays => {
                1 + u8::from(record.state == State::Pending)
            }
            _ => 0,
        };
        let refusal = match check(found, also_processed) {
            Ok(_) => "others have changed it at the same time; look at it again".to_owned(),
            Err(refusal) => refusal,
        };
        refused.push((doubt, one.key, refusal));
    }
    refused.sort_by_key(|(doubt, ..)| *doubt);
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    for (_, key, refusal) in refused.into_iter().take(number) {
        job.refuse(&key, refusal);
    }
    Ok(())
}

/// What there is under a key, or why that cannot be read.
async fn find(store: &dyn Operate, key: &Key) -> inbox::Result<Result<Option<Record>, String>> {
    match store.get(key).await {
        Ok(found) => Ok(Ok(found)),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The message, or why it is not replayed.
fn check(found: Result<Option<Record>, String>, also_processed: bool) -> Result<Record, String> {
    let refuse = |refusal| Err(reason(Verb::Replay, refusal));
    let Some(record) = found? else {
        return refuse(Intervention::NotFound);
    };
    let is_spared = record.state == State::Processed && !also_processed;
    if !record.state.is_final() || is_spared {
        return refuse(Intervention::WrongState(record.state));
    }
    if record.payload.is_none() {
        return refuse(Intervention::PayloadDropped);
    }
    Ok(record)
}
