//! Runs a batch handler until each message has its answer: as a whole first, then in halves.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc};

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{
    Batch, BatchHandler, Completion, Config, Context, Failure, Remedy, Served,
    batch::{Answer, HeldUp},
    batch_middleware,
    blocking::Watched,
    handler::Hold,
    task::{self, End, panic_text},
};
use crate::{Outcome, telemetry::Timer};

/// So many messages in a row that fail by themselves say that the fault is not in the messages.
const MOST_IN_A_ROW: usize = 8;

/// What takes the end of the message in a place.
pub(super) type Ends<'e> = &'e mut (dyn FnMut(usize, End) + Send);

/// Runs the messages of a batch, all of one router, and tells the end of each once: when no future
/// that works on it is left.
pub(super) async fn run(
    config: &Config,
    served: &Served,
    handler: &Arc<dyn BatchHandler>,
    members: Vec<(Context, Instant)>,
    ends: Ends<'_>,
) {
    let now = Instant::now();
    let (mut places, mut contexts) = (Vec::new(), Vec::new());
    let mut held_up = HeldUp::default();
    for (place, (context, expires)) in members.into_iter().enumerate() {
        if now >= expires || context.is_cancelled() || held_up.holds(place, &context) {
            held_up.hold(place, &context);
            // As for a single message.
            ends(place, End::Outcome(Outcome::Release));
        } else {
            places.push(place);
            contexts.push(context);
        }
    }
    if contexts.is_empty() {
        return;
    }
    let batch = Batch::new(contexts);
    let run = BatchRun {
        config,
        served,
        handler,
    };
    let mut end = |place: usize, answer: Answer| {
        if let (Some(context), Some(place)) = (batch.get(place), places.get(place)) {
            ends(*place, task::end(served, context, answer));
        }
    };
    if served.router.has_middleware() {
        batch_middleware::run(&run, &batch, &mut end).await;
    } else {
        run.answer_all(&batch, &mut end).await;
    }
}

/// A batch handler with what it is run with.
pub(super) struct BatchRun<'r> {
    config: &'r Config,
    pub(super) served: &'r Served,
    handler: &'r Arc<dyn BatchHandler>,
}

impl BatchRun<'_> {
    /// Answers for each message once.
    pub(super) async fn answer_all(
        &self,
        batch: &Batch,
        answer: &mut (dyn FnMut(usize, Answer) + Send),
    ) {
        let mut held_up = HeldUp::default();
        let mut answer = |held_up: &mut HeldUp, place: usize, given: Answer| {
            if let Some(context) = batch.get(place) {
                answer(place, held_up.judge(place, context, given));
            }
        };
        let mut search = Search::default();
        // The last one is the next to run.
        let mut parts: Vec<Vec<usize>> = vec![(0..batch.len()).collect()];
        while let Some(part) = parts.pop() {
            let mut left = Vec::with_capacity(part.len());
            for place in part {
                match batch
                    .get(place)
                    .and_then(|one| end_before_run(place, one, &held_up))
                {
                    Some(over) => answer(&mut held_up, place, over),
                    None => left.push(place),
                }
            }
            let mut part = left;
            if let Some(failure) = search.end() {
                let is_last = |place: &usize| batch.get(*place).is_some_and(|c| self.is_last(c));
                let rest: Vec<_> = part.extract_if(.., |place| !is_last(place)).collect();
                for place in rest {
                    answer(&mut held_up, place, Err(failure.clone()));
                }
                // Those that are left may be behind them.
                part.retain(|place| {
                    let is_held_up = batch
                        .get(*place)
                        .is_some_and(|one| held_up.holds(*place, one));
                    if is_held_up {
                        answer(&mut held_up, *place, Err(Failure::not_reached()));
                    }
                    !is_held_up
                });
            }
            if part.is_empty() {
                continue;
            }
            let failure = match self.run_once(&batch.part(&part)).await {
                Ok(answers) => {
                    search.works();
                    for (place, given) in part.into_iter().zip(answers) {
                        answer(&mut held_up, place, given);
                    }
                    continue;
                }
                Err(failure) => self.served.router.decide(failure),
            };
            // Not if it is the only one that is left without an answer.
            let ran_alone = part.len() == 1;
            part.retain(|place| {
                let Some(given) = batch.get(*place).and_then(|one| answered(one, &failure)) else {
                    return true;
                };
                answer(&mut held_up, *place, given);
                false
            });
            if part.is_empty() {
                continue;
            }
            if ran_alone || !failure.may_be_of_one_message() {
                search.failed(&failure);
                for place in part {
                    answer(&mut held_up, place, Err(failure.clone()));
                }
                continue;
            }
            let (messages, error) = (part.len(), failure.error());
            tracing::info!(messages, error, "batch failed; it runs again in halves");
            let second = part.split_off(part.len().div_ceil(2));
            parts.push(second);
            parts.push(part);
        }
    }

    /// Runs the handler on these messages, within the shortest of their time limits.
    async fn run_once(&self, batch: &Batch) -> Result<Vec<Answer>, Failure> {
        let (served, timer) = (self.served, Timer::start());
        let running = pin!(AssertUnwindSafe(self.handler.handle(batch)).catch_unwind());
        let lease = served.terms.length();
        let now = Instant::now();
        let running = Watched::new(running, &served.name, &served.warned, lease, now);
        let limits = batch.iter().map(|c| served.timeout(c.message()));
        let is_ending = || batch.iter().any(Context::is_ending);
        let caught = task::within_limit(limits.flatten().min(), running, is_ending).await;
        served.metrics.handled(&timer);
        // Whatever transaction there was has ended with the handler's future.
        batch.set_hold(Hold::Lease);
        match caught {
            Some(Ok(ended)) => ended.map_err(Failure::or_retry)?.for_each(batch),
            Some(Err(panic)) => Err(Failure::retry(panic_text(&*panic))),
            None => Err(out_of_time(batch)),
        }
    }

    fn is_last(&self, context: &Context) -> bool {
        let policy = self.config.retry(context.message());
        context.attempts().started >= policy.max_attempts()
    }
}

/// The answer for a message that is not to be run again, if it is not.
pub(super) fn end_before_run(place: usize, context: &Context, held_up: &HeldUp) -> Option<Answer> {
    if context.is_held_by(Hold::Settled) {
        return Some(Ok(Completion::already_settled()));
    }
    if held_up.holds(place, context) {
        return Some(Err(Failure::not_reached()));
    }
    match (context.is_cancelled(), context.is_untouched()) {
        (false, _) => None,
        (true, true) => Some(Err(Failure::not_reached())),
        (true, false) => Some(Err(Failure::retry("cancelled while running"))),
    }
}

/// The answer for a message that is not to be run again although its batch has failed so, if it is not.
fn answered(context: &Context, failure: &Failure) -> Option<Answer> {
    let in_doubt = || context.is_in_doubt().then(|| Err(failure.clone()));
    context.answered().or_else(in_doubt)
}

pub(super) fn timed_out() -> Failure {
    Failure::retry("timed out")
}

/// How these messages have failed, whose time limit is over. Where no handler has begun, they are not to pay for that.
pub(super) fn out_of_time(messages: &[Context]) -> Failure {
    let has_begun = messages.iter().any(|context| !context.is_untouched());
    match messages.first() {
        Some(first) if !has_begun => {
            let (key, messages) = (first.message().key(), messages.len());
            tracing::warn!(%key, messages, "no transaction within the time limit; handed back");
            Failure::not_reached()
        }
        _ => timed_out(),
    }
}

/// What the search for the messages that are at fault has found.
#[derive(Default)]
struct Search {
    /// The messages that have failed by themselves since the handler last gave an answer.
    in_a_row: usize,
    last: Option<Failure>,
}

impl Search {
    fn works(&mut self) {
        self.in_a_row = 0;
    }

    /// A part has failed that is not to be split.
    fn failed(&mut self, failure: &Failure) {
        if !failure.may_be_of_one_message() {
            // It tells nothing of the messages that are left, nor is it for them: what a stop ends, for one.
            return;
        }
        match failure.remedy() {
            // The handler has decided about the message.
            Some(Remedy::Dead) => self.works(),
            _ => {
                self.in_a_row += 1;
                self.last = Some(failure.clone());
            }
        }
    }

    /// How the rest fails when the fault is not in the messages.
    fn end(&self) -> Option<Failure> {
        let last = self
            .last
            .as_ref()
            .filter(|_| self.in_a_row >= MOST_IN_A_ROW)?;
        let before = format!("not run again after {MOST_IN_A_ROW} others of its batch failed");
        Some(last.clone().with_prefix(&before))
    }
}
