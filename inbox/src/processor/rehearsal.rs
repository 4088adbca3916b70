//! Running handlers without a store, for tests of them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{
    BatchHandler, Config, Context, Processor, Served, batch_run,
    outcomes::{expired, outcome, without_handler},
    router::Route,
    task::{self, End},
};
use crate::{Attempts, Due, FencingToken, Lease, Leased, Message, Outcome};

/// How many attempts a rehearsal to the end makes at most.
const LONGEST: usize = 1000;

impl Processor {
    /// Runs one attempt of a message as this processor would, for tests of handlers: the router's
    /// handler for its kind with all middleware, time limit, rules for errors and retry policy.
    /// Nothing is stored, claimed or settled. Answers what would be settled.
    ///
    /// Limits in time (rate, circuit, pauses) do not apply. Handlers [in a
    /// transaction](crate::in_transaction) need a real lease, so this is not for them.
    ///
    /// ```
    /// use inbox::{Context, Failure, Message, Outcome, Processor, Router};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { order: u64 }
    /// # impl inbox::Event for OrderPlaced { const KIND: &'static str = "order.placed"; }
    ///
    /// async fn charge(event: OrderPlaced, _: Context) -> Result<(), Failure> {
    ///     match event.order {
    ///         0 => Err(Failure::dead("there is no order 0")),
    ///         _ => Err(Failure::retry("the bank does not answer")),
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let router = Router::new("billing").on_event(charge);
    /// let processor = Processor::builder(inbox::connect("memory://").await?)
    ///     .router(router)
    ///     .build()?;
    ///
    /// let wrong = Message::json("billing", "evt-1", &OrderPlaced { order: 0 })?;
    /// assert!(matches!(processor.rehearse(&wrong, 1).await, Outcome::Dead { .. }));
    ///
    /// let unlucky = Message::json("billing", "evt-2", &OrderPlaced { order: 7 })?;
    /// let attempts = processor.rehearse_to_the_end(&unlucky).await;
    /// assert_eq!(attempts.len(), 10); // nine retries, then dead
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rehearse(&self, message: &Message, attempt: u32) -> Outcome {
        let attempts = Attempts {
            started: attempt,
            finished: attempt.saturating_sub(1),
        };
        rehearse(&self.config, message, attempts, Duration::ZERO).await
    }

    /// [`rehearse`](Self::rehearse) for several messages, as if one claim had brought them: those of each
    /// [batch handler](crate::BatchHandler) together, in batches of the router's size, others one by
    /// one. The outcomes in the messages' order.
    ///
    /// ```
    /// use inbox::{Batch, Failure, Kind, Message, MessageId, HandlerName, Outcome, Processor, Router};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let router = Router::new("search").on_batch("page.changed", |batch: Batch| async move {
    ///     // One empty page spoils the batch: it is found, and the others are completed.
    ///     match batch.iter().any(|context| context.message().payload().is_empty()) {
    ///         true => Err(Failure::dead("an empty page")),
    ///         false => Ok(()),
    ///     }
    /// });
    /// let processor = Processor::builder(inbox::connect("memory://").await?)
    ///     .router(router)
    ///     .build()?;
    ///
    /// let (search, kind) = (HandlerName::new("search")?, Kind::new("page.changed")?);
    /// let page = |id, text: &'static str| {
    ///     Ok::<_, inbox::Invalid>(Message::new(search.clone(), MessageId::new(id)?, kind.clone(), text))
    /// };
    /// let pages = [page("1", "some text")?, page("2", "")?, page("3", "more text")?];
    /// let outcomes = processor.rehearse_batch(&pages, 1).await;
    /// assert!(matches!(outcomes[0], Outcome::Processed { .. }));
    /// assert!(matches!(outcomes[1], Outcome::Dead { .. }));
    /// assert!(matches!(outcomes[2], Outcome::Processed { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rehearse_batch(&self, messages: &[Message], attempt: u32) -> Vec<Outcome> {
        let config = &self.config;
        let attempts = Attempts {
            started: attempt,
            finished: attempt.saturating_sub(1),
        };
        let mut outcomes = vec![Outcome::Release; messages.len()];
        let mut batches: Vec<(&Served, &Arc<dyn BatchHandler>, Vec<usize>)> = Vec::new();
        for (place, message) in messages.iter().enumerate() {
            let served = config.served_for(message);
            let route = served.map(|served| (served, served.router.route(message.kind())));
            let Some((served, Route::Batch(handler))) = route else {
                if let Some(outcome) = outcomes.get_mut(place) {
                    *outcome = rehearse(config, message, attempts, Duration::ZERO).await;
                }
                continue;
            };
            let most = served.router.batching().unwrap_or_default().messages;
            let mut same = batches.iter_mut();
            let same = same.find(|(_, other, places)| {
                std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(handler)) && places.len() < most
            });
            match same {
                Some((.., places)) => places.push(place),
                None => batches.push((served, handler, vec![place])),
            }
        }
        for (served, handler, places) in batches {
            let all = places.iter().filter_map(|place| messages.get(*place));
            let members = all.map(|one| lease(config, one, attempts, Duration::ZERO));
            let members: Vec<_> = members.collect();
            let contexts: Vec<_> = members.iter().map(|(context, _)| context.clone()).collect();
            let mut ends = |nth: usize, end| {
                let outcome = places.get(nth).and_then(|place| outcomes.get_mut(*place));
                if let (Some(outcome), Some(context)) = (outcome, contexts.get(nth)) {
                    *outcome = outcome_of(config, context, end);
                }
            };
            batch_run::run(config, served, handler, members, &mut ends).await;
        }
        outcomes
    }

    /// [`rehearse`](Self::rehearse) for one attempt after the other, until the message is final: the outcomes of
    /// all. At most 1,000, for one that is deferred for ever.
    ///
    /// No delay is waited for: the message is as much older in the next attempt
    /// ([`accepted_at`](crate::Leased::accepted_at)), and dead where it has a [time to
    /// live](Message::with_time_to_live) and has outlived it. The clock of the process stands still meanwhile, but for
    /// what handlers take.
    ///
    /// ```
    /// use std::time::Duration;
    /// use inbox::{Context, Failure, Message, Outcome, Processor, Router};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Price;
    /// # impl inbox::Event for Price { const KIND: &'static str = "price"; }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let ten_minutes = Duration::from_secs(10 * 60);
    /// let closed = move |_: Context| async move { Err::<(), _>(Failure::defer(ten_minutes, "closed")) };
    /// let processor = Processor::builder(inbox::connect("memory://").await?)
    ///     .router(Router::new("exchange").on("price", closed))
    ///     .build()?;
    ///
    /// let hour = Duration::from_secs(60 * 60);
    /// let price = Message::json("exchange", "evt-1", &Price)?.with_time_to_live(hour)?;
    /// let outcomes = processor.rehearse_to_the_end(&price).await;
    /// assert_eq!(outcomes.len(), 7); // deferred six times, then too old
    /// assert!(matches!(&outcomes[6], Outcome::Dead { reason, .. } if reason.starts_with("expired")));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rehearse_to_the_end(&self, message: &Message) -> Vec<Outcome> {
        let mut attempts = Attempts {
            started: 1,
            finished: 0,
        };
        let mut outcomes = Vec::new();
        let mut age = Duration::ZERO;
        while outcomes.len() < LONGEST {
            let outcome = rehearse(&self.config, message, attempts, age).await;
            if let Outcome::Retry { after, .. } | Outcome::Defer { after, .. } = &outcome {
                age = age.saturating_add(*after);
            }
            if matches!(outcome, Outcome::Retry { .. }) {
                attempts.started = attempts.started.saturating_add(1);
                attempts.finished = attempts.finished.saturating_add(1);
            }
            let is_final = matches!(outcome, Outcome::Processed { .. } | Outcome::Dead { .. });
            outcomes.push(outcome);
            if is_final {
                break;
            }
        }
        outcomes
    }
}

/// The message, accepted so long ago, under a lease that begins now, and until when that is.
fn lease(
    config: &Config,
    message: &Message,
    attempts: Attempts,
    age: Duration,
) -> (Context, Instant) {
    let now = SystemTime::now();
    let length = served_length(config, message);
    let leased = Leased {
        message: message.clone().with_due(Due::Now),
        lease: Lease {
            key: message.key().clone(),
            token: FencingToken::new(i64::from(attempts.started)),
            locator: 0,
            until: now + length,
        },
        attempts,
        replays: 0,
        accepted_at: now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
    };
    (Context::claimed(leased, config), Instant::now() + length)
}

fn served_length(config: &Config, message: &Message) -> Duration {
    let served = config.served_for(message);
    served.map_or(config.terms.length(), |served| served.terms.length())
}

async fn rehearse(
    config: &Config,
    message: &Message,
    attempts: Attempts,
    age: Duration,
) -> Outcome {
    let (context, expires) = lease(config, message, attempts, age);
    if let Some(outcome) = expired(context.leased(), served_length(config, message)) {
        return outcome;
    }
    let end = task::run(config, &context, expires).await;
    outcome_of(config, &context, end)
}

/// What would be settled when an attempt ends so.
fn outcome_of(config: &Config, context: &Context, end: End) -> Outcome {
    let failure = match end {
        End::Outcome(outcome) | End::Concluded { outcome, .. } => return outcome,
        End::Failed(failure) | End::Interrupted(failure) => Some(failure),
        End::NoHandler(fallback) => match without_handler(fallback) {
            Ok(outcome) => return outcome,
            Err(failure) => Some(failure),
        },
        End::Settled => None,
        End::Dropped => return Outcome::Release,
    };
    let Some(failure) = failure else {
        return Outcome::Processed { result: None };
    };
    match failure.remedy_if_held() {
        Some(remedy) => outcome(config, context, remedy, &failure),
        None => Outcome::Release,
    }
}
