//! Why a pending message does not run, as far as the store tells it at little cost.

use std::time::SystemTime;

use inbox::{
    Filter, HandlerName, HandlerStatistics, Inbox, Key, MessageId, OrderingKey, Page, Record, State,
};
use serde::Serialize;

use super::process::until_resumed;
use crate::output;

/// For the first message of an ordering key, stores look at the backlog one by one. It is looked for in one of up to so
/// many.
const MOST: u64 = 10_000;

/// What a pending message waits for.
#[derive(Debug, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub(super) enum Wait {
    /// The end of its handler's pause.
    Paused {
        #[serde(skip)]
        until: String,
    },
    /// The time at which it is due.
    Due { at: String },
    /// Another message of its handler, which is before it in their ordering key.
    Behind {
        handler: HandlerName,
        id: MessageId,
        state: State,
    },
}

impl Wait {
    /// For people, in one line.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Paused { until } => format!("its handler, which is {until}"),
            Self::Due { at } => format!("{at}, when it is due"),
            Self::Behind { handler, id, state } => {
                let key = Key::new(handler.clone(), id.clone()).to_string();
                let key = output::cell(&key, usize::MAX);
                match state {
                    State::Dead => format!(
                        "{key}, which is dead and blocks the ordering key until it is replayed, discarded or purged"
                    ),
                    state => format!("{key}, which is {state} and the first of the ordering key"),
                }
            }
        }
    }
}

/// All that a message waits for, if it is pending and that is known.
pub(super) async fn waits(store: &dyn Inbox, record: &Record) -> inbox::Result<Vec<Wait>> {
    let mut waits = Vec::new();
    if record.state != State::Pending {
        return Ok(waits);
    }
    let handler = &record.key.handler;
    let paused = store.paused().await?;
    if paused.contains(handler) {
        let until = until_resumed(&paused, handler);
        waits.push(Wait::Paused { until });
    }
    if record.due_at > SystemTime::now() {
        let at = output::time(record.due_at);
        waits.push(Wait::Due { at });
    }
    if let Some(ordering_key) = &record.ordering_key {
        let before = before(store, record, ordering_key).await?;
        waits.extend(before.map(|before| Wait::Behind {
            handler: before.key.handler,
            id: before.key.id,
            state: before.state,
        }));
    }
    Ok(waits)
}

/// The message that this one is behind: a dead one that blocks the ordering key, or the first that is not final.
async fn before(
    store: &dyn Inbox,
    record: &Record,
    ordering_key: &OrderingKey,
) -> inbox::Result<Option<Record>> {
    let statistics = store.statistics().await?;
    let of_key = Filter {
        handler: Some(record.key.handler.clone()),
        ordering_key: Some(ordering_key.clone()),
        ..Filter::default()
    };
    if statistics.blocking() > 0 {
        let filter = Filter {
            blocking: true,
            ..of_key.clone()
        };
        let page = Page {
            after: Some(record.cursor.clone()),
            newest_first: true,
            ..Page::first(1)
        };
        let blocking = store.list(&filter, &page).await?.records.pop();
        if blocking.is_some() {
            return Ok(blocking);
        }
    }
    let backlog = statistics.handlers.iter().map(HandlerStatistics::backlog);
    if backlog.sum::<u64>() > MOST {
        return Ok(None);
    }
    let filter = Filter {
        states: vec![State::Pending, State::Leased],
        ..of_key
    };
    let first = store.list(&filter, &Page::first(1)).await?.records.pop();
    Ok(first.filter(|first| first.key != record.key))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use inbox::{AfterDead, Due, Kind, Message, Outcome, Settled, StoreExt as _, WorkerName};

    use super::*;

    async fn store_with(ids: &[&str]) -> Arc<dyn Inbox> {
        let store = inbox::connect("memory://").await.unwrap();
        store.create().await.unwrap();
        let message = |id: &&str| {
            let kind = Kind::new("k").unwrap();
            let message = Message::new(handler(), MessageId::new(*id).unwrap(), kind, "");
            message.with_ordering_key(OrderingKey::new("order-7").unwrap())
        };
        let messages: Vec<_> = ids.iter().map(message).collect();
        let _ = store.receive(&messages).await.unwrap();
        store
    }

    fn handler() -> HandlerName {
        HandlerName::new("h").unwrap()
    }

    fn key(id: &str) -> Key {
        Key::new(handler(), MessageId::new(id).unwrap())
    }

    async fn told(store: &dyn Inbox, id: &str) -> Vec<String> {
        let record = store.get(&key(id)).await.unwrap().unwrap();
        let waits = waits(store, &record).await.unwrap();
        waits.iter().map(Wait::text).collect()
    }

    #[tokio::test]
    async fn a_message_waits_for_its_ordering_key() {
        let store = store_with(&["a", "b", "c"]).await;
        let first = ["h/a, which is pending and the first of the ordering key"];
        assert_eq!(told(&*store, "a").await, [""; 0]);
        assert_eq!(told(&*store, "c").await, first);
        let worker = WorkerName::new("w").unwrap();
        let length = Duration::from_secs(60);
        let claims = store.claim_for(&handler(), 1, length, &worker).await;
        assert_eq!(
            told(&*store, "b").await,
            ["h/a, which is leased and the first of the ordering key"]
        );
        let dead = Outcome::Dead {
            reason: "no".into(),
            after: AfterDead::Block,
        };
        let lease = &claims.unwrap().leased[0].lease;
        let settled = store.settle_one(lease, dead).await.unwrap();
        assert_eq!(settled, Settled::Done);
        let blocks = "h/a, which is dead and blocks the ordering key until it is replayed, discarded or purged";
        assert_eq!(told(&*store, "b").await, [blocks]);
        assert_eq!(told(&*store, "c").await, [blocks]);
        assert_eq!(told(&*store, "a").await, [""; 0]);
        let _ = store.discard(&key("a")).await.unwrap();
        assert_eq!(told(&*store, "b").await, [""; 0]);
    }

    #[tokio::test]
    async fn a_message_waits_for_all_that_holds_it_up() {
        let store = store_with(&["a", "b"]).await;
        store.pause(&handler()).await.unwrap();
        let later = Due::After(Duration::from_secs(3600));
        let _ = store.reschedule(&key("b"), later).await.unwrap();
        let told = told(&*store, "b").await;
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(
            told[0],
            "its handler, which is paused until `inbox resume h`"
        );
        assert!(told[1].ends_with(", when it is due"), "{told:?}");
        assert!(told[2].starts_with("h/a, which is pending"), "{told:?}");
    }
}
