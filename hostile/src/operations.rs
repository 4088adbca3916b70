//! Every operation of a store, whatever it answers.

use std::time::Duration;

use inbox_api::{
    AfterDead, ClaimRequest, Due, Edit, Filter, HandlerName, Inbox, Key, Kind, LeaseTerms, Message,
    MessageId, OrderingKey, Outcome, Page, PurgeRequest, Result, Settlement, Slice, State,
    StoreExt as _, WorkerName,
};

const IDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "i"];

fn handler() -> Result<HandlerName> {
    Ok(HandlerName::new("h")?)
}

fn key(id: &str) -> Result<Key> {
    Ok(Key::new(handler()?, MessageId::new(id)?))
}

fn terms() -> Result<LeaseTerms> {
    Ok(LeaseTerms::new(
        Duration::from_secs(60),
        WorkerName::new("w")?,
    )?)
}

fn request() -> Result<ClaimRequest> {
    Ok(ClaimRequest {
        handlers: vec![handler()?],
        limit: 3,
        run_limit: 2,
        terms: terms()?,
    })
}

fn message(id: &str) -> Result<Message> {
    let id = MessageId::new(id)?;
    let is_ordered = ["b", "c", "d"].contains(&id.as_str());
    let message = Message::new(handler()?, id, Kind::new("k")?, "payload");
    let message = message.with_header("correlation-id", "c")?;
    Ok(match is_ordered {
        true => message.with_ordering_key(OrderingKey::new("o")?),
        false => message,
    })
}

/// Puts messages in every state into an inbox that is set up: one with a history, one behind another of its
/// ordering key, one leased; and pauses a handler.
///
/// # Errors
/// As the store.
pub async fn fill(store: &dyn Inbox) -> Result<()> {
    let messages = IDS.iter().map(|id| message(id));
    store
        .receive(&messages.collect::<Result<Vec<_>>>()?)
        .await?;
    let outcomes = [
        Outcome::Processed {
            result: Some("r".into()),
        },
        Outcome::Retry {
            after: Duration::ZERO,
            error: "e: 1".into(),
        },
        Outcome::Dead {
            reason: "d: 1".into(),
            after: AfterDead::Block,
        },
    ];
    let claims = store.claim(&request()?).await?;
    for (leased, outcome) in claims.leased.iter().zip(outcomes) {
        let _ = store.settle_one(&leased.lease, outcome).await?;
    }
    let _ = store.discard(&key("g")?).await?;
    store.pause(&HandlerName::new("paused")?).await?;
    let _ = store.claim(&request()?).await?;
    Ok(())
}

/// Uses every operation of an inbox that [`fill`] has filled and others have spoiled, set-up included. What the store
/// answers is not looked at: that it answers, and does not panic, is all that is asked.
///
/// # Errors
/// None that the store gives.
pub async fn use_every_operation(store: &dyn Inbox) -> Result<()> {
    look(store).await?;
    work(store).await?;
    operate(store).await?;
    let _ = (store.create().await, store.migrate().await);
    Ok(())
}

async fn look(store: &dyn Inbox) -> Result<()> {
    let filters = [
        Filter::default(),
        Filter {
            states: vec![State::Dead],
            kind: Some(Kind::new("k")?),
            correlation_id: Some("c".into()),
            error_contains: Some("d".into()),
            ..Filter::default()
        },
    ];
    for filter in &filters {
        for newest_first in [false, true] {
            let page = Page {
                newest_first,
                with_payload: true,
                ..Page::first(100)
            };
            let _ = store
                .list(filter, &page)
                .await
                .map(|found| format!("{found:?}"));
        }
        let _ = store.count(filter).await;
    }
    let _ = (store.statistics().await, store.paused().await);
    let _ = (store.exists().await, store.version().await);
    for id in IDS {
        let _ = store.get(&key(id)?).await.map(|found| format!("{found:?}"));
    }
    Ok(())
}

async fn work(store: &dyn Inbox) -> Result<()> {
    for id in ["a", "b", "g"] {
        let _ = store.begin(&message(id)?, &terms()?).await;
    }
    let _ = store.receive(&[message("a")?, message("new")?]).await;
    let Ok(claims) = store.claim(&request()?).await else {
        return Ok(());
    };
    let leases: Vec<_> = claims
        .leased
        .into_iter()
        .map(|leased| leased.lease)
        .collect();
    let _ = store.extend(&leases, Duration::from_secs(60)).await;
    let settlements = leases.into_iter().map(|lease| Settlement {
        lease,
        outcome: Outcome::Retry {
            after: Duration::ZERO,
            error: "again".into(),
        },
    });
    let _ = store.settle(&settlements.collect::<Vec<_>>()).await;
    Ok(())
}

async fn operate(store: &dyn Inbox) -> Result<()> {
    let slice = Slice {
        after: None,
        limit: 100,
    };
    let everything = Filter::default();
    let _ = store.replay(&key("c")?, &Edit::default()).await;
    let _ = store.reschedule(&key("e")?, Due::Now).await;
    let _ = store.discard(&key("f")?).await;
    let _ = store.reschedule_slice(&everything, &slice, Due::Now).await;
    let _ = store.replay_slice(&everything, &slice).await;
    for state in [State::Processed, State::Dead, State::Discarded] {
        let request = PurgeRequest::new(state, Duration::ZERO, 100)?;
        let _ = store.drop_payloads(&request).await;
        let _ = store.expired(&request).await;
        let _ = store.purge(&request).await;
    }
    let _ = store.discard_slice(&everything, &slice).await;
    let _ = store.clear_slice(&handler()?, &slice).await;
    let _ = store.resume(&handler()?).await;
    Ok(())
}
