//! What slices change is what a listing with their filter shows.

use std::{collections::BTreeMap, time::Duration};

use inbox_api::{
    Due, ErrorType, Filter, HandlerName, Kind, Lease, Message, MessageId, OrderingKey, Outcome,
    Page, PurgeRequest, Record, Settlement, Slice, State, headers::CORRELATION_ID,
};

use crate::{
    check::{CaseResult, ensure, same},
    test_inbox::{Context, LONG, TestInbox, claim, dead, dead_blocking, message_for, processed},
};

#[derive(Clone, Copy)]
enum Change {
    Discard,
    Replay,
    Reschedule,
}

/// Longer than the suite runs, also with a clock that is moved.
const HELD: Duration = Duration::from_secs(10 * 3600);

/// Two handlers' messages in every state, with what a filter may ask for: of the first handler's
/// those are old, where the clock can be moved.
async fn population(inbox: &TestInbox) -> CaseResult<Vec<Lease>> {
    let mut held = Vec::new();
    for (n, handler) in ["a", "b"].into_iter().enumerate() {
        let messages: Vec<Message> = (0..6)
            .map(|i| {
                let plain = message_for(handler, &format!("{n}-{i}"))?;
                let kind = Kind::new(if (n + i / 2) % 2 == 0 { "even" } else { "odd" })?;
                let mut sent = Message::new(plain.handler().clone(), plain.id().clone(), kind, "x");
                if i < 4 {
                    let correlation_id = if (n + i) % 2 == 0 { "c'1" } else { "C'1" };
                    sent = sent.with_header(CORRELATION_ID, correlation_id)?;
                }
                Ok(match ["k0", "", "", "k", "K", ""][i] {
                    "" => sent,
                    _ if !inbox.capabilities().ordering => sent,
                    key => sent.with_ordering_key(OrderingKey::new(key)?),
                })
            })
            .collect::<CaseResult<_>>()?;
        inbox.accept_all(&messages).await?;
        let mut ends = Vec::new();
        for leased in claim(&*inbox.store, handler, 10, HELD).await? {
            let outcome = match leased.message.id().as_str().chars().last() {
                Some('0') => Outcome::Release,
                Some('1') => {
                    held.push(leased.lease);
                    continue;
                }
                Some('2') => processed(),
                Some('3') => dead_blocking("app::Broken_pipe: 100% Broken_pipe"),
                _ => dead("superseded"),
            };
            ends.push(Settlement {
                lease: leased.lease,
                outcome,
            });
        }
        let _ = inbox.settle(&ends).await?;
        let _ = inbox.discard(messages[5].key()).await?;
        if n == 0 && inbox.need_clock().is_ok() {
            inbox.pass(LONG).await?;
        }
    }
    Ok(held)
}

/// What a filter of a slice means: every part by itself, matching and not, and parts together.
fn filters(inbox: &TestInbox) -> CaseResult<Vec<Filter>> {
    let all = Filter::default;
    let every = || State::ALL.to_vec();
    let handler = |name| CaseResult::Ok(Some(HandlerName::new(name)?));
    let kind = |name| CaseResult::Ok(Some(Kind::new(name)?));
    let key = |name| CaseResult::Ok(Some(OrderingKey::new(name)?));
    let mut filters = vec![all()];
    for state in State::ALL {
        filters.push(Filter {
            states: vec![state],
            ..all()
        });
    }
    let two = vec![State::Discarded, State::Pending];
    filters.push(Filter {
        states: two,
        ..all()
    });
    for name in ["b", "A"] {
        filters.push(Filter {
            states: every(),
            handler: handler(name)?,
            ..all()
        });
    }
    for name in ["odd", "Even", "eve"] {
        filters.push(Filter {
            states: every(),
            kind: kind(name)?,
            ..all()
        });
    }
    if inbox.capabilities().ordering {
        for name in ["k", "K", "k0"] {
            filters.push(Filter {
                states: every(),
                ordering_key: key(name)?,
                ..all()
            });
        }
    }
    for text in ["Broken", "broken", "0% B", "s", "", "_", "superseded "] {
        let error_contains = Some(text.into());
        filters.push(Filter {
            states: every(),
            error_contains,
            ..all()
        });
    }
    let ids = ["0-3", "1-4", "0-0", "none"];
    let ids: Vec<MessageId> = ids
        .into_iter()
        .map(MessageId::new)
        .collect::<Result<_, _>>()?;
    for states in [every(), Vec::new()] {
        filters.push(Filter {
            states: states.clone(),
            ids: ids.clone(),
            ..all()
        });
        filters.push(Filter {
            states: states.clone(),
            correlation_id: Some("c'1".into()),
            ..all()
        });
        filters.push(Filter {
            states,
            error_type: Some(ErrorType::new("app::Broken_pipe")?),
            ..all()
        });
    }
    for min_started in [1, 2] {
        filters.push(Filter {
            states: every(),
            min_started: Some(min_started),
            ..all()
        });
    }
    for max_started in [0, 1] {
        filters.push(Filter {
            states: every(),
            max_started: Some(max_started),
            ..all()
        });
    }
    for states in [every(), Vec::new(), vec![State::Pending]] {
        filters.push(Filter {
            states,
            blocking: true,
            ..all()
        });
    }
    for due in [Duration::ZERO, HELD / 2, HELD * 2] {
        filters.push(Filter {
            states: every(),
            due_later_than: Some(due),
            ..all()
        });
        filters.push(Filter {
            states: every(),
            due_within: Some(due),
            ..all()
        });
    }
    for age in [Duration::ZERO, HELD] {
        filters.push(Filter {
            states: every(),
            finished_longer_ago: Some(age),
            ..all()
        });
        filters.push(Filter {
            states: every(),
            finished_within: Some(age),
            ..all()
        });
    }
    let half = Some(LONG / 2);
    if inbox.need_clock().is_ok() {
        filters.push(Filter {
            states: every(),
            older_than: half,
            ..all()
        });
        filters.push(Filter {
            states: every(),
            newer_than: half,
            ..all()
        });
        filters.push(Filter {
            states: every(),
            finished_longer_ago: half,
            ..all()
        });
        filters.push(Filter {
            states: every(),
            finished_within: half,
            ..all()
        });
        let newer_than = Some(2 * HELD);
        filters.push(Filter {
            older_than: half,
            newer_than,
            ..all()
        });
    }
    filters.push(Filter {
        older_than: Some(HELD),
        ..all()
    });
    filters.push(Filter {
        newer_than: Some(Duration::ZERO),
        ..all()
    });
    filters.push(Filter {
        states: vec![State::Dead, State::Processed],
        handler: handler("a")?,
        kind: kind("odd")?,
        newer_than: Some(HELD),
        error_contains: Some("p".into()),
        ..all()
    });
    Ok(filters)
}

/// What is asked for, and nothing else.
fn in_words(filter: &Filter) -> String {
    let mut words: Vec<String> = filter.states.iter().map(ToString::to_string).collect();
    let mut add = |part: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("{part} {value}")));
    };
    add("handler", filter.handler.as_ref().map(|h| format!("{h:?}")));
    add("kind", filter.kind.as_ref().map(|k| format!("{k:?}")));
    let key = filter.ordering_key.as_ref();
    add("ordering key", key.map(|k| format!("{k:?}")));
    add("older than", filter.older_than.map(|a| format!("{a:?}")));
    add("newer than", filter.newer_than.map(|a| format!("{a:?}")));
    let text = filter.error_contains.as_ref();
    add("error with", text.map(|t| format!("{t:?}")));
    let error_type = filter.error_type.as_ref();
    add("error of", error_type.map(ToString::to_string));
    let ids = Some(&filter.ids).filter(|ids| !ids.is_empty());
    add("ids", ids.map(|ids| format!("{ids:?}")));
    let correlation = filter.correlation_id.as_ref();
    add("correlation id", correlation.map(|id| format!("{id:?}")));
    let shown = |time: Option<Duration>| time.map(|time| format!("{time:?}"));
    add(
        "finished longer ago than",
        shown(filter.finished_longer_ago),
    );
    add("finished within", shown(filter.finished_within));
    add("due later than in", shown(filter.due_later_than));
    add("due within", shown(filter.due_within));
    add("attempts from", filter.min_started.map(|n| n.to_string()));
    add("attempts to", filter.max_started.map(|n| n.to_string()));
    add("that", filter.blocking.then(|| "blocks its key".to_owned()));
    if words.is_empty() {
        return "no filter".into();
    }
    words.join(", ")
}

pub(super) async fn list_keys(
    inbox: &TestInbox,
    filter: &Filter,
) -> CaseResult<BTreeMap<String, Record>> {
    let records = inbox.list(filter, &Page::first(100)).await?.records;
    let named = |record: Record| (record.key.id.to_string(), record);
    Ok(records.into_iter().map(named).collect())
}

/// Takes everything out again.
async fn cleared(inbox: &TestInbox, held: Vec<Lease>) -> CaseResult {
    let end = |lease| Settlement {
        lease,
        outcome: processed(),
    };
    let _ = inbox
        .settle(&held.into_iter().map(end).collect::<Vec<_>>())
        .await?;
    let slice = Slice {
        after: None,
        limit: 100,
    };
    let unfinished = Filter {
        states: vec![State::Pending, State::Dead],
        ..Filter::default()
    };
    let _ = inbox.discard_slice(&unfinished, &slice).await?;
    for state in [State::Processed, State::Discarded] {
        let _ = inbox
            .purge(&PurgeRequest::new(state, Duration::ZERO, 100)?)
            .await?;
    }
    same(
        "messages left when all were discarded or settled, and purged",
        &inbox.count(&Filter::default()).await?,
        &0,
    )
}

async fn changes_what_is_listed(cx: &Context, change: Change) -> CaseResult {
    let inbox = cx.fresh().await?;
    let (eligible, what): (&[State], _) = match change {
        Change::Discard => (&[State::Pending, State::Dead], State::Discarded),
        Change::Replay => (
            &[State::Processed, State::Dead, State::Discarded],
            State::Pending,
        ),
        Change::Reschedule => (&[State::Pending], State::Pending),
    };
    let mut held = population(&inbox).await?;
    for filter in filters(&inbox)? {
        let before = list_keys(&inbox, &Filter::default()).await?;
        let mut meant = filter.clone();
        if meant.states.is_empty() {
            meant.states.push(match change {
                Change::Discard | Change::Replay => State::Dead,
                Change::Reschedule => State::Pending,
            });
        }
        meant.states.retain(|state| eligible.contains(state));
        let expected = if meant.states.is_empty() {
            BTreeMap::new()
        } else {
            list_keys(&inbox, &meant).await?
        };
        let mut after = None;
        let mut changed = 0;
        for step in 0.. {
            ensure!(step < 20, "slices of 4 over 12 messages: saw no end");
            let slice = Slice {
                after: after.take(),
                limit: 4,
            };
            let progress = match change {
                Change::Discard => inbox.discard_slice(&filter, &slice).await?,
                Change::Replay => inbox.replay_slice(&filter, &slice).await?,
                Change::Reschedule => {
                    let due = Due::After(HELD);
                    inbox.reschedule_slice(&filter, &slice, due).await?
                }
            };
            changed += progress.changed;
            match progress.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let asked = format!("by slices of {}", in_words(&filter));
        let now = list_keys(&inbox, &Filter::default()).await?;
        let changed_ids: Vec<&String> = now
            .iter()
            .filter(|(id, record)| before.get(*id) != Some(*record))
            .map(|(id, _)| id)
            .collect();
        let expected_ids: Vec<&String> = expected.keys().collect();
        same(&format!("changed {asked}"), &changed_ids, &expected_ids)?;
        same(
            &format!("number of messages changed {asked}"),
            &changed,
            &(expected.len() as u64),
        )?;
        for (id, record) in &expected {
            let seen = now.get(id);
            same(
                &format!("state and replays of {id}, which was changed {asked}"),
                &seen.map(|seen| (seen.state, seen.replays)),
                &Some((
                    what,
                    record.replays + u32::from(matches!(change, Change::Replay)),
                )),
            )?;
        }
        if !expected.is_empty() {
            cleared(&inbox, held).await?;
            held = population(&inbox).await?;
        }
    }
    Ok(())
}

/// Defect: a part of the filter that a bulk replay does not mind.
pub(crate) async fn a_replay_changes_what_its_filter_lists(cx: Context) -> CaseResult {
    changes_what_is_listed(&cx, Change::Replay).await
}

/// The same, of a bulk reschedule.
pub(crate) async fn a_reschedule_changes_what_its_filter_lists(cx: Context) -> CaseResult {
    changes_what_is_listed(&cx, Change::Reschedule).await
}

/// The same, of a bulk discard.
pub(crate) async fn a_discard_changes_what_its_filter_lists(cx: Context) -> CaseResult {
    changes_what_is_listed(&cx, Change::Discard).await
}
