//! Handlers of single messages that share a transaction.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::{sync::Mutex, time::Instant};

use super::{
    Answers, Batch, BatchHandler, Completion, Context, Failure, LentTransaction,
    TransactionalHandler,
    batch::{Answer, HeldUp},
    batch_run::end_before_run,
    task::panic_text,
    transaction::{Borrowing, Closure},
    transaction_run::{Run, Work, cancelled, gone, not_settled},
};
use crate::Transactional;

/// No message begins in a transaction that has been open for so long: sharing it gains little then, and others wait
/// for what it has locked.
const LONGEST: Duration = Duration::from_millis(100);

/// A transaction is opened for that many messages at least, if there are as many, and for `MORE` times as many as have run in
/// the one before. Opening one is work for each of them, done in vain if it is cut short.
const FEW: usize = 32;
const MORE: usize = 8;

/// Makes a batch handler that runs `handler` on one message of a batch after the other, in a transaction of `store`
/// that they share: [`in_transaction`](crate::in_transaction) for many messages with one claim, one settlement and
/// one commit. `store` has to be (a clone of) the store that the processor works on.
///
/// - What was written for a message is there exactly once, together with its completion, whatever crashes, as with
///   [`in_transaction`](crate::in_transaction).
/// - A message that fails does so by itself. When one fails, panics or leaves its transaction unusable, the
///   transaction is rolled back; those before it run again, and commit without it; then it runs as the first of
///   another transaction, and only there its failure counts. So a message mostly runs twice, within one attempt, if it or
///   one behind it in the transaction fails.
/// - No message begins in a transaction that has been open for a tenth of a second: it is committed, and the next one
///   opened. So slow handlers hardly share, and what one has locked stays so for a tenth of a second and one more message.
/// - Messages run in the order of the batch. With [runs](crate::Batches::runs), those of an ordering key take effect in
///   order, and what is behind one that fails is handed back untouched.
///
/// The handler has to do without what it shares:
///
/// - It sees what those before it have written, and the time of the transaction's beginning. What it sets for the
///   transaction (`SET LOCAL`, advisory locks, temporary tables) is there for those behind it. PostgreSQL refuses
///   `SET TRANSACTION` to all but the first, so that each would have a transaction of its own in the end.
/// - It has to pass on the errors of its statements, as in every transaction, and must not end it. On MySQL and SQLite
///   some errors (a deadlock, a full disk), and DDL on MySQL, end the transaction of its neighbours, too: what these
///   write behind that commits at once, and once more when they run again.
/// - Two transactions that write the same rows in different orders can wait for each other, until the database gives one
///   up. Where messages meet in few rows, [`Batches::of_one_key`](crate::Batches::of_one_key) keeps those of a key in one
///   batch, and `at_once(1)` lets one transaction run at a time.
///
/// So it is for quick handlers whose effects are in the database. One that also acts elsewhere should not share:
/// what it did for a message is done again when a neighbour fails. Each running batch occupies a
/// connection: see [`Batches::at_once`](crate::Batches::at_once). The router's time limit is for the batch. The rest of
/// [`in_transaction`](crate::in_transaction), such as its rules for SQLite, applies here too.
///
/// [`one_by_one_in_transaction_fn`] has an example.
pub fn one_by_one_in_transaction<S, H>(store: S, handler: H) -> impl BatchHandler
where
    S: Transactional,
    H: TransactionalHandler<S::Transaction>,
{
    OneByOne {
        store,
        work: Borrowing(handler),
    }
}

/// [`one_by_one_in_transaction`] for a function or a closure. It is lent the transaction, which goes back when it is
/// dropped: at the end of the closure, as a rule. One that keeps it for longer has failed.
///
/// ```
/// # #[cfg(feature = "postgres")] mod example {
/// use inbox::postgres::{PostgresStore, sqlx};
/// use inbox::{Batches, Context, Router, one_by_one_in_transaction_fn};
///
/// fn router(store: &PostgresStore) -> Router {
///     let book = one_by_one_in_transaction_fn(store.clone(), |mut transaction, context: Context| async move {
///         sqlx::query("INSERT INTO booking (message) VALUES ($1)")
///             .bind(context.message().id().as_str())
///             .execute(&mut **transaction)
///             .await?;
///         Ok::<_, sqlx::Error>(())
///     });
///     Router::new("booking")
///         .on_batch("order.placed", book)
///         .batches(Batches::up_to(100))
/// }
/// # }
/// ```
pub fn one_by_one_in_transaction_fn<S, F, Fut, C, E>(store: S, handler: F) -> impl BatchHandler
where
    S: Transactional,
    S::Transaction: 'static,
    F: Fn(LentTransaction<S::Transaction>, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<C, E>> + Send + 'static,
    C: Into<Completion> + 'static,
    E: Into<Failure> + 'static,
{
    OneByOne {
        store,
        work: Closure(handler),
    }
}

/// Runs work on single messages in transactions that they share.
struct OneByOne<S, W> {
    store: S,
    work: W,
}

#[async_trait]
impl<S, W> BatchHandler for OneByOne<S, W>
where
    S: Transactional,
    W: Work<S::Transaction> + 'static,
{
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure> {
        for context in batch {
            context.set_untouched(true);
        }
        let mut left = Left::of(batch);
        while let Some(places) = left.next_places() {
            let part = batch.part(&places);
            let (ended, cut) = self.run(&part).await;
            let cut_at = cut.as_ref().and_then(|cut| left.place_of(&cut.at));
            let is_late = cut.is_some_and(|cut| cut.is_late);
            let failure = match ended {
                Ok(answers) => {
                    left.has_committed(places, answers, cut_at.filter(|_| is_late));
                    continue;
                }
                Err(failure) => failure,
            };
            // What failed, or is not known to have begun. Of a commit in doubt, nothing runs again.
            let is_in_doubt = is_late && part.iter().any(Context::is_in_doubt);
            match cut_at.filter(|_| !is_in_doubt) {
                // Perhaps by what others have left behind in the transaction. These run without it, and then it
                // runs as the first.
                Some(place) if places.first() != Some(&place) => {
                    left.has_run(&places, place);
                    left.end = place;
                    // All are to begin again. If they do not come to it, none has failed.
                    part.iter().for_each(|context| context.set_untouched(true));
                }
                None if batch.len() == 1 || part.len() > 1 => {
                    // The batch runs in halves, unless it is of one.
                    return Err(failure);
                }
                _ => left.has_failed(&places, failure),
            }
        }
        let answers = batch.iter().map(Context::answered);
        let answers = answers.map(|answer| answer.unwrap_or_else(|| Err(cancelled())));
        Ok(answers.collect::<Vec<Answer>>().into())
    }
}

/// What is left to do of a batch.
struct Left<'b> {
    batch: &'b Batch,
    held_up: HeldUp,
    /// Those before it have their answers.
    first: usize,
    /// Behind those up to here is one that failed behind others, or nothing.
    end: usize,
    /// How many the next transaction has at the most.
    most: usize,
    /// The present one has those up to here.
    until: usize,
}

impl<'b> Left<'b> {
    fn of(batch: &'b Batch) -> Self {
        Self {
            batch,
            held_up: HeldUp::default(),
            first: 0,
            end: batch.len(),
            most: batch.len(),
            until: 0,
        }
    }

    /// The places of those that run in the next transaction, at least one. `None` when nothing is left.
    fn next_places(&mut self) -> Option<Vec<usize>> {
        while self.first < self.batch.len() {
            if self.first == self.end {
                self.end = self.batch.len();
            }
            self.until = self.end.min(self.first.saturating_add(self.most));
            let mut places = Vec::with_capacity(self.until - self.first);
            for place in self.first..self.until {
                let context = self.batch.get(place)?;
                let is_over = context.answered();
                match is_over.or_else(|| end_before_run(place, context, &self.held_up)) {
                    Some(answer) => self.give(place, answer),
                    None => places.push(place),
                }
            }
            if !places.is_empty() {
                return Some(places);
            }
            self.first = self.until;
        }
        None
    }

    fn place_of(&self, context: &Context) -> Option<usize> {
        self.batch.iter().position(|one| one.is_same(context))
    }

    /// Says how the message ended, whatever becomes of its batch.
    fn give(&mut self, place: usize, answer: Answer) {
        if let Some(context) = self.batch.get(place) {
            context.answer(self.held_up.judge(place, context, answer));
        }
    }

    /// A transaction of these has ended so, in which those from `late` on did not begin.
    fn has_committed(&mut self, places: Vec<usize>, answers: Vec<Answer>, late: Option<usize>) {
        let next = late.unwrap_or(self.until);
        self.has_run(&places, next);
        for (place, answer) in places.into_iter().zip(answers) {
            if place < next || answer.as_ref().is_err_and(Failure::is_lease_lost) {
                self.give(place, answer);
            }
        }
        self.first = next;
    }

    /// A transaction of these has come as far as that place.
    fn has_run(&mut self, places: &[usize], place: usize) {
        let begun = places.iter().filter(|one| **one <= place).count();
        self.most = begun.saturating_mul(MORE).max(FEW);
    }

    /// The first of these has failed, and it was due to nothing else.
    fn has_failed(&mut self, places: &[usize], failure: Failure) {
        if let Some(head) = places.first() {
            self.has_run(places, *head);
            self.give(*head, Err(failure));
            self.first = head + 1;
        }
    }
}

impl<S, W> OneByOne<S, W>
where
    S: Transactional,
    W: Work<S::Transaction> + 'static,
{
    /// Runs messages in a transaction. Answers where it was cut, too.
    async fn run(&self, part: &Batch) -> (Result<Vec<Answer>, Failure>, Option<Cut>) {
        let work = Turns {
            work: &self.work,
            cut: SyncMutex::default(),
        };
        let run = Run {
            store: &self.store,
            work: &work,
            outcome: None,
        };
        let ended = run.run(part).await;
        let cut = work.cut().take();
        (ended, cut)
    }
}

/// Where the work in a transaction ended before the last of its messages.
struct Cut {
    at: Context,
    /// That message did not begin, as the transaction had been open for long. Otherwise it has failed.
    is_late: bool,
}

/// Work on the messages of one transaction, one after the other.
struct Turns<'w, W> {
    work: &'w W,
    /// In the last transaction.
    cut: SyncMutex<Option<Cut>>,
}

#[async_trait]
impl<T: Send, W: Work<T>> Work<T> for Turns<'_, W> {
    async fn work(&self, transaction: &Arc<Mutex<T>>, batch: &Batch) -> Result<Answers, Failure> {
        *self.cut() = None;
        let opened = Instant::now();
        let mut answers: Vec<Answer> = Vec::with_capacity(batch.len());
        for context in batch {
            if !answers.is_empty() && opened.elapsed() >= LONGEST {
                self.set_cut(context, true);
                break;
            }
            let answer = self.work_on(transaction, context).await;
            match answer.map_err(Failure::or_retry) {
                Ok(completion) => answers.push(Ok(completion)),
                // Due to another transaction: all run again as they are.
                Err(failure) if failure.is_conflict() => return Err(failure),
                Err(failure) => {
                    self.set_cut(context, false);
                    return Err(failure);
                }
            }
        }
        answers.resize(batch.len(), Err(Failure::not_reached()));
        Ok(answers.into())
    }
}

impl<W> Turns<'_, W> {
    fn cut(&self) -> MutexGuard<'_, Option<Cut>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_cut(&self, context: &Context, is_late: bool) {
        let at = context.clone();
        *self.cut() = Some(Cut { at, is_late });
    }

    async fn work_on<T: Send>(&self, transaction: &Arc<Mutex<T>>, context: &Context) -> Answer
    where
        W: Work<T>,
    {
        let only = Batch::new(vec![context.clone()]);
        let running = AssertUnwindSafe(self.work.work(transaction, &only)).catch_unwind();
        let ended = running.await;
        let answers = ended.map_err(|panic| Failure::retry(panic_text(&*panic)))??;
        if transaction.try_lock().is_err() {
            return Err(gone());
        }
        let mut answers = answers.for_each(&only)?.into_iter();
        match answers.next().unwrap_or_else(|| Err(cancelled()))? {
            settled if settled == Completion::already_settled() => Err(not_settled()),
            completion => Ok(completion),
        }
    }
}
