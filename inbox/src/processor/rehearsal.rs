//! Running handlers without a store, for tests of them.

use std::time::SystemTime;

use tokio::time::Instant;

use super::{
    Config, Context, Processor,
    outcomes::{outcome, without_handler},
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
        rehearse(&self.config, message, attempts).await
    }

    /// [`rehearse`](Self::rehearse) for one attempt after the other, as if each delay had passed, until
    /// the message is final: the outcomes of all. At most 1,000, for one that is deferred for ever.
    pub async fn rehearse_to_the_end(&self, message: &Message) -> Vec<Outcome> {
        let mut attempts = Attempts {
            started: 1,
            finished: 0,
        };
        let mut outcomes = Vec::new();
        while outcomes.len() < LONGEST {
            let outcome = rehearse(&self.config, message, attempts).await;
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

async fn rehearse(config: &Config, message: &Message, attempts: Attempts) -> Outcome {
    let now = SystemTime::now();
    let served = config.served_for(message);
    let length = served.map_or(config.terms.length(), |served| served.terms.length());
    let leased = Leased {
        message: message.clone().with_due(Due::Now),
        lease: Lease {
            key: message.key().clone(),
            token: FencingToken::new(i64::from(attempts.started)),
            locator: 0,
            until: now + length,
        },
        attempts,
        accepted_at: now,
    };
    let context = Context::claimed(leased, config);
    let failure = match task::run(config, &context, Instant::now() + length).await {
        End::Outcome(outcome) => return outcome,
        End::Failed(failure) | End::Interrupted(failure) => Some(failure),
        End::NoHandler(fallback) => without_handler(fallback),
        End::Settled => None,
        End::Dropped => return Outcome::Release,
    };
    match failure.map(super::Failure::into_parts) {
        Some((Some(remedy), error)) => outcome(config, &context, remedy, error),
        Some((None, _)) => Outcome::Release,
        None => Outcome::Processed { result: None },
    }
}
