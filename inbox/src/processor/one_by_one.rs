//! A batch handler made of one for single messages.

use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use futures_util::FutureExt as _;

use super::{
    Answers, Batch, BatchHandler, Failure, Handler,
    batch::{Answer, HeldUp},
    task::panic_text,
};

/// Makes a batch handler that runs `handler` on one message of a batch after the other, for
/// [runs](crate::Batches::runs) of ordering keys: many messages of a key for one claim and one settlement,
/// handled as if they had come one at a time.
///
/// A message that fails or panics is answered for by itself; those behind it in its ordering key are handed
/// back, and the others of the batch go on. A handler that is told to stop ends its batch; one that goes on although
/// its lease is lost is dropped only when the batch is. The router's time limit is for the batch.
///
/// What has ended counts, also when the batch is timed out or dropped after that. It is settled when the batch
/// has ended: when the worker dies before that, all of it is run again.
///
/// ```
/// use inbox::{Batches, Context, Failure, Router, one_by_one};
///
/// // Up to 50 changes of an account at a time, eight accounts at once.
/// let router = Router::new("accounts")
///     .on_batch("account.changed", one_by_one(|context: Context| async move {
///         println!("{}", context.message().id());
///         Ok::<_, Failure>(())
///     }))
///     .batches(Batches::of_one_key(50).at_once(8));
/// # let _ = router;
/// ```
pub fn one_by_one(handler: impl Handler) -> impl BatchHandler {
    OneByOne(handler)
}

struct OneByOne<H>(H);

#[async_trait]
impl<H: Handler> BatchHandler for OneByOne<H> {
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure> {
        let mut held_up = HeldUp::default();
        let mut answers: Vec<Answer> = Vec::with_capacity(batch.len());
        for context in batch {
            context.set_untouched(true);
        }
        for (place, context) in batch.iter().enumerate() {
            let answer = if held_up.holds(place, context) || context.is_cancelled() {
                Err(Failure::not_reached())
            } else {
                context.set_untouched(false);
                let running = AssertUnwindSafe(self.0.handle(context)).catch_unwind();
                let ended = running.await;
                let ended = ended.unwrap_or_else(|panic| Err(Failure::retry(panic_text(&*panic))));
                context.answer(ended.clone().map_err(Failure::or_retry));
                ended
            };
            answers.push(held_up.judge(place, context, answer));
        }
        Ok(answers.into())
    }
}
