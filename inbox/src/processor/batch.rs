//! Handlers that get several messages at a time, and what they answer.

use std::{collections::HashMap, fmt, ops::Deref, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{Completion, Context, Failure, handler::Hold};
use crate::{Invalid, OrderingKey};

/// Works on several messages at a time, with an answer for each.
///
/// Registered with [`Router::on_batch`](crate::Router::on_batch) for a kind, or
/// [`Router::fallback_batch_handler`](crate::Router::fallback_batch_handler) for a whole router. A batch
/// is what one claim has brought of these, up to the router's [`Batches`], in the order in which it came.
/// It has no more than one message of an ordering key, unless the router asks for
/// [runs](Batches::runs).
///
/// Each message ends as if it had been handled by itself: what a
/// [`Handler`](crate::Handler) promises of retries, [rules for errors](crate::Router::classify), dead
/// letters, deferral, circuits, rates (a batch of n takes n), leases and shutdown holds for each message
/// of a batch by its own answer.
///
/// # What each ending means
/// | the handler | the messages |
/// |---|---|
/// | returns answers, one for each | each ends as its answer says |
/// | returns [`Failure::defer`] or [`Failure::pause`] in place of answers | all are put off, without counting the attempt |
/// | returns [`Failure::interrupted`] in place of answers | all end so |
/// | returns any other error in place of answers, panics, is timed out, or gives too few or too many answers | the batch is run again in halves, see below |
///
/// When the lease of one message is lost, or it is [told to stop](Context::cancellation), its answer is
/// discarded and the others go on. The handler's future is dropped when that is so for all of
/// them, a second after the last was told; a time-out is the shortest that any of its messages has, and does
/// not end a [transaction](crate::batch_in_transaction) that is being committed.
///
/// # When a batch fails as a whole
/// One message may be at fault, and must not hold up its neighbours. So within the same attempt the
/// handler runs again on each half, and on the halves of those that fail, until what fails is a single
/// message; then the failure is that message's. A handler whose effects are in another system should be
/// idempotent there, as with every attempt that is repeated.
///
/// When eight messages in a row have failed by themselves, the fault is not in the messages: those left
/// fail without being run again, and come back with the next attempt. A message on its last attempt is
/// run by itself all the same. What is deferred, paused or interrupted does not count.
///
/// Messages that are tried again are not put together with those that come for the first time. One that
/// has crashed a worker before is alone in its batch.
///
/// Functions and closures `Fn(Batch) -> impl Future<Output = Result<A, E>>` are batch handlers too, where
/// `A` turns into [`Answers`] (`()` when all are completed, or a `Vec` of results) and `E` into a
/// [`Failure`].
///
/// ```
/// use inbox::{Batch, Batches, Failure, Router};
///
/// let router = Router::new("search")
///     .on_batch("page.changed", |batch: Batch| async move {
///         let pages = batch.iter().map(|context| context.message().payload());
///         println!("indexing {} pages", pages.len());
///         let answers = batch.iter().map(|context| {
///             let is_empty = context.message().payload().is_empty();
///             if is_empty { Err(Failure::dead("an empty page")) } else { Ok(()) }
///         });
///         Ok::<_, Failure>(answers.collect::<Vec<_>>())
///     })
///     .batches(Batches::up_to(500));
/// # let _ = router;
/// ```
#[async_trait]
pub trait BatchHandler: Send + Sync + 'static {
    /// Works on the messages of the batch, at least one. As with
    /// [`Handler::handle`](crate::Handler::handle), the future must not block its thread.
    ///
    /// # Errors
    /// [`Failure`], when there are no answers: see [the table](Self#what-each-ending-means).
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure>;
}

#[async_trait]
impl<F, Fut, A, E> BatchHandler for F
where
    F: Fn(Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<A, E>> + Send + 'static,
    A: Into<Answers>,
    E: Into<Failure>,
{
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure> {
        let ended = self(batch.clone()).await;
        ended.map(Into::into).map_err(Into::into)
    }
}

/// Messages under their leases, as a [`BatchHandler`] sees them: a slice of [`Context`]. Cloning is cheap
/// (two reference counts).
#[derive(Clone)]
pub struct Batch {
    contexts: Arc<[Context]>,
    /// Told when one of them is told to stop.
    told: Arc<Notify>,
}

impl Batch {
    /// Puts a batch together. Processors do this; tests of handlers, and handlers that pass on a part,
    /// may.
    #[must_use]
    pub fn new(contexts: Vec<Context>) -> Self {
        let told = contexts.first().and_then(Context::batch_told);
        let told = told.unwrap_or_default();
        if contexts.len() > 1 {
            for context in &contexts {
                context.join(&told);
            }
        }
        Self {
            contexts: contexts.into(),
            told,
        }
    }

    /// Those in these places.
    pub(super) fn part(&self, places: &[usize]) -> Self {
        if places.len() == self.len() {
            return self.clone();
        }
        let contexts = places.iter().filter_map(|place| self.get(*place));
        Self::new(contexts.cloned().collect())
    }

    /// Waits until one of the messages is told to stop.
    pub(super) async fn cancelled(&self) {
        if let [only] = &*self.contexts {
            return only.cancellation().cancelled().await;
        }
        loop {
            let mut told = std::pin::pin!(self.told.notified());
            told.as_mut().enable();
            if self.iter().any(Context::is_cancelled) {
                return;
            }
            told.await;
        }
    }

    /// Its handler begins.
    pub(super) fn begins(&self) {
        for context in self {
            context.set_untouched(false);
        }
    }

    pub(super) fn set_hold(&self, hold: Hold) {
        for context in self {
            context.set_hold(hold);
        }
    }
}

impl Deref for Batch {
    type Target = [Context];

    fn deref(&self) -> &[Context] {
        &self.contexts
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Context;
    type IntoIter = std::slice::Iter<'a, Context>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Batch").field(&&*self.contexts).finish()
    }
}

/// How one message of a batch ended.
pub(super) type Answer = Result<Completion, Failure>;

/// What a [`BatchHandler`] answers: for all of its messages, or for each in the batch's order.
#[derive(Clone, Debug)]
pub struct Answers(Given);

#[derive(Clone, Debug)]
enum Given {
    AllCompleted,
    Each(Vec<Answer>),
}

impl Answers {
    /// One for each message, if there are as many. What is answered behind a failure of the same
    /// ordering key does not count.
    pub(super) fn for_each(self, batch: &Batch) -> Result<Vec<Answer>, Failure> {
        let messages = batch.len();
        let answers = match self.0 {
            Given::AllCompleted => return Ok(vec![Ok(Completion::default()); messages]),
            Given::Each(answers) if answers.len() == messages => answers,
            // Which of them are for which messages is not known.
            Given::Each(answers) => {
                return Err(Failure::retry(format!(
                    "the batch handler gave {} answers for {messages} messages",
                    answers.len()
                )));
            }
        };
        let mut held_up = HeldUp::default();
        let in_order = |(place, (context, answer)): (usize, (&Context, Answer))| {
            let is_free = !held_up.holds(place, context) && !context.is_cancelled();
            let answer = match is_free {
                true => answer.map_err(Failure::or_retry),
                false => answer,
            };
            held_up.judge(place, context, answer)
        };
        let each = batch.iter().zip(answers).enumerate();
        Ok(each.map(in_order).collect())
    }

    /// The first message that is answered with success behind a failure of its ordering key.
    pub(super) fn first_out_of_order<'b>(&self, batch: &'b Batch) -> Option<&'b Context> {
        let Given::Each(answers) = &self.0 else {
            return None;
        };
        let mut held_up = HeldUp::default();
        let mut each = batch.iter().zip(answers).enumerate();
        let found = each.find(|(place, (context, answer))| {
            if answer.is_err() {
                held_up.hold(*place, context);
            }
            answer.is_ok() && held_up.holds(*place, context)
        });
        found.map(|(_, (context, _))| context)
    }
}

/// The ordering keys of which a message has not succeeded, with its place in the batch: those behind it are not to
/// be worked on. Those before it are, also when its end is known first.
#[derive(Default)]
pub(super) struct HeldUp(HashMap<OrderingKey, usize>);

impl HeldUp {
    pub(super) fn holds(&self, place: usize, context: &Context) -> bool {
        let key = context.message().ordering_key();
        key.and_then(|key| self.0.get(key))
            .is_some_and(|first| *first < place)
    }

    /// The answer that counts for the message.
    pub(super) fn judge(&mut self, place: usize, context: &Context, answer: Answer) -> Answer {
        if self.holds(place, context) {
            return Err(Failure::not_reached());
        }
        if answer.is_err() {
            self.hold(place, context);
        }
        answer
    }

    pub(super) fn hold(&mut self, place: usize, context: &Context) {
        if let Some(key) = context.message().ordering_key() {
            let first = self.0.entry(key.clone()).or_insert(place);
            *first = place.min(*first);
        }
    }
}

/// All messages are completed, without a result.
impl From<()> for Answers {
    fn from((): ()) -> Self {
        Self(Given::AllCompleted)
    }
}

/// One for each message, in the batch's order. With another number of them, none counts.
impl<C: Into<Completion>, E: Into<Failure>> From<Vec<Result<C, E>>> for Answers {
    fn from(answers: Vec<Result<C, E>>) -> Self {
        let each = answers
            .into_iter()
            .map(|answer| answer.map(Into::into).map_err(Into::into));
        Self(Given::Each(each.collect()))
    }
}

/// How large a router's batches are, and how many run at a time: for those of its handlers that are
/// [batch handlers](BatchHandler).
///
/// ```
/// use std::time::Duration;
/// use inbox::Batches;
///
/// let batches = Batches::up_to(1000).at_once(2).linger(Duration::from_millis(20));
/// # let _ = batches;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    pub(super) messages: usize,
    pub(super) at_once: usize,
    pub(super) linger: Duration,
    /// The most messages of an ordering key.
    pub(super) run: usize,
    /// Whether a batch has messages of one ordering key only.
    pub(super) is_by_key: bool,
}

impl Default for Batches {
    fn default() -> Self {
        Self::up_to(100)
    }
}

impl Batches {
    /// At most so many messages each, two batches at a time. Up to 65,536.
    ///
    /// A claim takes as many, whatever [`ProcessorBuilder::batch`](crate::ProcessorBuilder::batch) says.
    /// While fewer are due, batches are smaller: none waits until it is full. Messages that come while
    /// batches run stay in the store, and make the next one larger.
    #[must_use]
    pub fn up_to(messages: usize) -> Self {
        Self {
            messages,
            at_once: 2,
            linger: Duration::ZERO,
            run: 1,
            is_by_key: false,
        }
    }

    /// Batches of one ordering key, at most so many messages each, in the order of acceptance; two batches at a
    /// time. Messages without one are in batches of their own. The rules are those of [`runs`](Self::runs).
    ///
    /// A claim takes as many messages as a batch may have. Where no key has as many, it brings several
    /// batches, of which no more than [`at_once`](Self::at_once) run at a time.
    #[must_use]
    pub fn of_one_key(messages: usize) -> Self {
        Self {
            is_by_key: true,
            ..Self::up_to(messages).runs(messages)
        }
    }

    /// Lets a batch have up to so many messages of an ordering key, in the order of acceptance and next to each
    /// other, where the store hands them out ([`Capabilities::runs`](crate::Capabilities::runs); otherwise one at
    /// a time). Default: 1. For ordering keys with much to do: a claim and a settlement then serve several messages of each.
    ///
    /// The handler has to keep the order, and has to stop with a key where one of its messages fails: whatever is
    /// answered behind that does not count, and these messages are handed back untouched
    /// ([`Failure::not_reached`] says so too). [`one_by_one`](crate::one_by_one) makes such a handler of one for single
    /// messages. A batch that fails as a whole runs again in halves as usual, the earlier half first, and
    /// what is behind a failure is not run.
    ///
    /// A worker that dies has an attempt counted for the first message of each key that was not settled;
    /// all that it held then comes one by one.
    #[must_use]
    pub fn runs(mut self, messages: usize) -> Self {
        self.run = messages;
        self
    }

    /// Sets how many batches run at a time: nothing is claimed for the router while as many do.
    /// Default: 2, so that one is claimed while another runs.
    ///
    /// One claim may bring more: it makes a batch of each kind or [ordering key](Self::of_one_key), and of those that
    /// are tried again. Those beyond this number wait for others to end, with their attempts counted. What has
    /// waited for a third of its lease is handed back, as at a shutdown or a pause, which takes its attempt back.
    #[must_use]
    pub fn at_once(mut self, batches: usize) -> Self {
        self.at_once = batches;
        self
    }

    /// Sets how long after a claim that found fewer messages than fit the next one is made at the
    /// soonest, so that more can gather. Default: no time. They gather in the store: nothing is
    /// leased meanwhile, and a message that comes after a pause is not delayed.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// How many messages are held at the most by default: those that run, and as many outcomes on their
    /// way to the store as a batch has.
    pub(super) fn room(&self) -> usize {
        self.messages.saturating_mul(self.at_once.saturating_add(1))
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let day = Duration::from_secs(24 * 60 * 60);
        let is_in_range = |number: usize| (1..=65_536).contains(&number);
        let numbers = [self.messages, self.at_once, self.run];
        if numbers.into_iter().all(is_in_range) && self.linger <= day {
            return Ok(());
        }
        Err(Invalid::OutOfRange {
            what: "batches",
            expected: "between 1 and 65536 messages, runs as long, as many at once, and a time up to a day",
        })
    }
}
