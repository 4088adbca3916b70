//! Running work in a transaction that settles its messages: for one message or a batch.

use std::{panic::AssertUnwindSafe, sync::Arc};

use async_trait::async_trait;
use backon::{BackoffBuilder as _, Retryable as _};
use futures_util::FutureExt as _;
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use super::{
    Answers, Batch, BatchHandler, Completion, Context, Failure, Handler,
    batch::{Answer, HeldUp},
    handler::{Completed, Hold},
    task::panic_text,
};
use crate::{
    Effect, Error, Outcome, Result, Settled, Settlement, StoreExt as _, Transactional,
    backoff::{after_conflicts, through_an_outage},
    refusal::plainer,
};

/// How often a batch runs again as it is when its transaction has given way to another one. Then it
/// runs in halves, which collide less.
const CONFLICTS_OF_A_BATCH: usize = 2;

/// Works in a transaction that nobody else has locked then.
#[async_trait]
pub(super) trait Work<T>: Send + Sync {
    /// When this gives answers, what was written is committed with the settlement of those that
    /// succeeded.
    async fn work(&self, transaction: &Arc<Mutex<T>>, batch: &Batch) -> Result<Answers, Failure>;
}

/// A handler that does its work in transactions of a store.
pub(super) struct InTransaction<S, W> {
    pub(super) store: S,
    pub(super) work: W,
}

/// Work in a transaction that settles its messages.
pub(super) struct Run<'r, S, W> {
    pub(super) store: &'r S,
    pub(super) work: &'r W,
    /// What its messages are settled as; as processed if not set.
    pub(super) outcome: Option<&'r Outcome>,
}

/// How a transaction ended in which no error occurred.
enum Ended {
    /// With an answer for each message.
    Answered(Vec<Answer>),
    /// It was rolled back because the leases in these places are lost.
    Lost(Vec<usize>),
}

/// The end of a transaction of these messages, for which their time limit waits: the handler has answered.
struct Ending<'b>(&'b Batch);

impl<'b> Ending<'b> {
    fn begin(batch: &'b Batch) -> Self {
        batch.iter().for_each(|one| one.set_ending(true));
        Self(batch)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| one.set_ending(false));
    }
}

/// A commit that settles these messages as processed. They are in doubt when its end is not known, or when this is
/// dropped before that.
struct Committing<'b> {
    ending: Ending<'b>,
    is_known: bool,
}

impl<'b> Committing<'b> {
    fn begin(settled: &'b Batch) -> Self {
        Self {
            ending: Ending::begin(settled),
            is_known: false,
        }
    }

    fn has_ended(mut self) {
        self.is_known = true;
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            self.ending.0.iter().for_each(Context::doubt);
        }
    }
}

/// What is to become of a transaction in which the work is done.
enum Worked {
    /// It is committed with these settlements, of the messages in these places.
    Done {
        answers: Vec<Answer>,
        places: Vec<usize>,
        settlements: Vec<Settlement>,
    },
    /// It is rolled back: none of its messages succeeded.
    InVain(Vec<Answer>),
}

#[async_trait]
impl<S, W> Handler for InTransaction<S, W>
where
    S: Transactional,
    W: Work<S::Transaction> + 'static,
{
    async fn handle(&self, context: &Context) -> Result<Completion, Failure> {
        let answers = self.run().run(&Batch::new(vec![context.clone()])).await?;
        let answer = answers.into_iter().next();
        answer.unwrap_or_else(|| Err(cancelled()))
    }
}

#[async_trait]
impl<S, W> BatchHandler for InTransaction<S, W>
where
    S: Transactional,
    W: Work<S::Transaction> + 'static,
{
    async fn handle(&self, batch: &Batch) -> Result<Answers, Failure> {
        self.run().run(batch).await.map(Answers::from)
    }
}

impl<S, W> InTransaction<S, W> {
    fn run(&self) -> Run<'_, S, W> {
        Run {
            store: &self.store,
            work: &self.work,
            outcome: None,
        }
    }
}

impl<S, W> Run<'_, S, W>
where
    S: Transactional,
    W: Work<S::Transaction>,
{
    /// Works on the messages, in another transaction where one has given way to others, and without
    /// those that turn out to be lost or are told to stop.
    pub(super) async fn run(&self, batch: &Batch) -> Result<Vec<Answer>, Failure> {
        let mut conflicts = after_conflicts();
        if batch.len() > 1 {
            conflicts = conflicts.with_max_times(CONFLICTS_OF_A_BATCH);
        }
        let mut pauses = conflicts.build();
        let mut left: Vec<usize> = (0..batch.len()).collect();
        let mut answers: Vec<Answer> = vec![Err(cancelled()); batch.len()];
        while !left.is_empty() {
            let part = batch.part(&left);
            if self.outcome.is_none() {
                // What was done in an earlier transaction is undone. If none is opened in time, nobody pays for it.
                part.iter().for_each(|one| one.set_untouched(true));
            }
            let doubts = count_doubts(&part);
            let failure = match self.attempt(&part).await {
                Ok(Ended::Answered(given)) => {
                    for (place, answer) in left.into_iter().zip(given) {
                        set(&mut answers, place, answer);
                    }
                    break;
                }
                Ok(Ended::Lost(lost)) => {
                    for place in &lost {
                        if let Some(place) = left.get(*place) {
                            set(&mut answers, *place, Err(Failure::lease_lost()));
                        }
                    }
                    let mut place = 0..;
                    let is_left = |_: &usize| place.next().is_none_or(|p| !lost.contains(&p));
                    keep_in_order(batch, &mut left, &mut answers, is_left);
                    continue;
                }
                Err(failure) => failure,
            };
            if count_doubts(&part) > doubts {
                // Run again, a message that is processed would look like one that another worker has.
                return Err(failure);
            }
            // It is the other transaction that the messages cannot help.
            let pause = pauses.next().filter(|_| failure.is_conflict());
            let is_cancelled = |place: &usize| batch.get(*place).is_some_and(Context::is_cancelled);
            if left.len() > 1 && left.iter().any(is_cancelled) {
                keep_in_order(batch, &mut left, &mut answers, |place| !is_cancelled(place));
                continue;
            }
            let Some(pause) = pause else {
                return Err(failure);
            };
            tracing::debug!(
                error = failure.error(),
                "transaction gave way to another; again"
            );
            tokio::select! {
                biased;
                () = part.cancelled() => {
                    keep_in_order(batch, &mut left, &mut answers, |place| !is_cancelled(place));
                }
                () = sleep(pause) => {}
            }
        }
        Ok(answers)
    }

    /// One transaction, from its opening to its end.
    async fn attempt(&self, batch: &Batch) -> Result<Ended, Failure> {
        let is_exclusive = self.store.capabilities().exclusive_transactions;
        batch.set_hold(Hold::Transaction);
        let transaction = match self.open(batch).await {
            Ok(transaction) => transaction,
            Err(failure) => {
                batch.set_hold(Hold::Lease);
                return Err(failure);
            }
        };
        if is_exclusive {
            batch.set_hold(Hold::ExclusiveTransaction);
            if let Some(first) = batch.first() {
                first.patience().note_turn();
            }
        }
        let transaction = Arc::new(Mutex::new(transaction));
        let worked = self.work(&transaction, batch).await;
        let transaction = Arc::into_inner(transaction).map(Mutex::into_inner);
        let Some(transaction) = transaction else {
            batch.set_hold(Hold::Lease);
            return Err(worked.err().unwrap_or_else(gone));
        };
        let ended = match worked {
            Ok(Worked::Done {
                answers,
                places,
                settlements,
            }) => {
                let settled = batch.part(&places);
                let lost = self.settle(transaction, &settled, settlements).await;
                batch.set_hold(Hold::Lease);
                let lost = lost?;
                if lost.is_empty() {
                    let answers = answers.into_iter();
                    let settled =
                        answers.map(|answer| answer.map(|_| Completion::already_settled()));
                    return Ok(Ended::Answered(settled.collect()));
                }
                let lost = lost.into_iter().filter_map(|n| places.get(n).copied());
                return Ok(Ended::Lost(lost.collect()));
            }
            Ok(Worked::InVain(answers)) => Ok(Ended::Answered(answers)),
            Err(failure) => Err(failure),
        };
        self.roll_back(transaction, batch).await;
        batch.set_hold(Hold::Lease);
        ended
    }

    /// A transaction that cannot be rolled back was never committed either.
    async fn roll_back(&self, transaction: S::Transaction, batch: &Batch) {
        let _ending = Ending::begin(batch);
        let ending = self.store.roll_back(transaction);
        if let Some(first) = batch.first()
            && let Err(error) = first.patience().within("roll back", ending).await
        {
            tracing::warn!(%error, "transaction not rolled back; its end undoes it");
        }
    }

    /// Settles these messages, at least one, and commits, or rolls back if leases are lost. Answers which.
    async fn settle(
        &self,
        mut transaction: S::Transaction,
        settled: &Batch,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<usize>, Failure> {
        let Some(first) = settled.first() else {
            return Err(cancelled());
        };
        if settlements.iter().all(is_never_refused) {
            return self
                .settle_and_commit(transaction, settled, &settlements)
                .await;
        }
        match self.settle_in(&mut transaction, first, settlements).await {
            Ok(lost) if lost.is_empty() => {
                self.commit(transaction, settled).await?;
                Ok(lost)
            }
            lost_or_failed => {
                self.roll_back(transaction, settled).await;
                lost_or_failed
            }
        }
    }

    async fn settle_and_commit(
        &self,
        transaction: S::Transaction,
        settled: &Batch,
        settlements: &[Settlement],
    ) -> Result<Vec<usize>, Failure> {
        let ending = self.store.settle_and_commit(transaction, settlements);
        let answers = match self.ended(settled, "settle_and_commit", ending).await? {
            Some(answers) if answers.len() != settlements.len() => return Err(no_answer()),
            Some(answers) => answers,
            None => return Ok(Vec::new()),
        };
        let each = answers.iter().enumerate();
        let lost = each.filter_map(|(n, answer)| (*answer != Settled::Done).then_some(n));
        let lost: Vec<usize> = lost.collect();
        if lost.is_empty() {
            settled.iter().for_each(Context::mark_settled);
        }
        Ok(lost)
    }

    /// Commits the transaction in which these messages are settled.
    async fn commit(&self, transaction: S::Transaction, settled: &Batch) -> Result<(), Failure> {
        let committing = self.store.commit(transaction);
        self.ended(settled, "commit", committing).await?;
        settled.iter().for_each(Context::mark_settled);
        Ok(())
    }

    /// Waits for the end of a transaction in which these messages, at least one, are settled. `None` when its answer
    /// was lost and the commit is known to have taken place.
    async fn ended<T>(
        &self,
        settled: &Batch,
        operation: &'static str,
        ending: impl Future<Output = inbox_api::Result<T>> + Send,
    ) -> Result<Option<T>, Failure> {
        let Some(first) = settled.first() else {
            return Err(cancelled());
        };
        if !first.is_held_by(Hold::ExclusiveTransaction) {
            settled.set_hold(Hold::Commit);
        }
        // A failed attempt is settled the same again, however its commit ends.
        let committing = self.outcome.is_none().then(|| Committing::begin(settled));
        let error = match first.patience().within(operation, ending).await {
            Ok(answer) => {
                if let Some(committing) = committing {
                    committing.has_ended();
                }
                return Ok(Some(answer));
            }
            Err(error) => error,
        };
        settled.set_hold(Hold::Commit);
        if let Some(committing) = committing {
            // All have been settled, or none.
            let has_committed = match error.effect() {
                Effect::None => Some(false),
                Effect::Unknown => self.has_committed(first).await,
            };
            if has_committed.is_some() {
                committing.has_ended();
            }
            if has_committed == Some(true) {
                tracing::info!(%error, "the commit has taken place, though its answer was lost");
                settled.iter().for_each(Context::mark_settled);
                return Ok(None);
            }
        }
        // When the effect remains unknown, failing is still right: the processor then settles a
        // retry with the same fencing token, and tells nobody. If the commit took place, the message is no longer
        // leased and that settlement changes nothing; if it did not, the retry is what should
        // happen. A commit still under way holds the row, so the settlement waits for its end. A
        // commit future that is dropped is no different.
        Err(Failure::of_transaction(error))
    }

    /// Whether the message was settled under its present lease; `None` when that cannot be found out within the
    /// time of one call.
    async fn has_committed(&self, context: &Context) -> Option<bool> {
        let finding = timeout(context.patience().limit, self.find_commit(context));
        let found = finding
            .await
            .unwrap_or_else(|_| Err(Failure::retry("no answer in time")));
        match found {
            Ok(has_committed) => Some(has_committed),
            Err(failure) => {
                let error = failure.error();
                tracing::warn!(error, "whether the commit has taken place is not known");
                None
            }
        }
    }

    async fn find_commit(&self, context: &Context) -> Result<bool, Failure> {
        let looking = (|| self.holds_lease(context))
            .retry(through_an_outage())
            .when(Failure::is_conflict);
        if looking.await? {
            return Ok(false);
        }
        // That lease has ended, so settling once more changes nothing, and tells whether this was settled under it.
        let lease = &context.leased().lease;
        let outcome = Outcome::Processed { result: None };
        let settling = self.store.settle_one(lease, outcome);
        let settled = context.patience().within("settle", settling).await?;
        Ok(settled == Settled::Done)
    }

    /// Whether the message is still under its present lease. Settling it, for a transaction that is rolled back, waits
    /// for a commit that is still under way, or conflicts with it; a mere look could come before it.
    async fn holds_lease(&self, context: &Context) -> Result<bool, Failure> {
        let patience = context.patience();
        let only = Batch::new(vec![context.clone()]);
        let mut transaction = self.open_through_outages(&only).await?;
        let settlements = [Settlement {
            lease: context.leased().lease.clone(),
            outcome: Outcome::Processed { result: None },
        }];
        let settling = self.store.settle_in(&mut transaction, &settlements);
        let settled = patience.within("settle_in", settling).await;
        let ending = self.store.roll_back(transaction);
        patience.within("roll back", ending).await?;
        match settled.map_err(Failure::of_transaction)?.first() {
            Some(Settled::Done) => Ok(true),
            Some(Settled::LeaseLost) => Ok(false),
            Some(Settled::Refused(_)) | None => Err(no_answer()),
        }
    }

    /// Opens a transaction. An outage is no fault of the messages and costs them no attempt: it is
    /// waited for, while the processor renews the leases.
    async fn open(&self, batch: &Batch) -> Result<S::Transaction, Failure> {
        tokio::select! {
            biased;
            () = batch.cancelled() => Err(cancelled()),
            opened = self.open_through_outages(batch) => opened,
        }
    }

    async fn open_through_outages(&self, batch: &Batch) -> Result<S::Transaction, Failure> {
        let leases = batch.iter().map(|context| context.leased().lease.clone());
        let leases: Vec<_> = leases.collect();
        let Some(first) = batch.first() else {
            return Err(cancelled());
        };
        let opening = (|| {
            first
                .patience()
                .within("open", self.store.open_for(&leases))
        })
        .retry(through_an_outage())
        .when(Error::is_retryable);
        opening.await.map_err(Failure::retry)
    }

    /// Runs the work, up to the settlement.
    async fn work(
        &self,
        transaction: &Arc<Mutex<S::Transaction>>,
        batch: &Batch,
    ) -> Result<Worked, Failure> {
        let running = AssertUnwindSafe(self.work.work(transaction, batch)).catch_unwind();
        let answers = tokio::select! {
            biased;
            ended = running => ended.map_err(|panic| Failure::retry(panic_text(&*panic)))??,
            () = batch.cancelled() => {
                return Err(cancelled());
            }
        };
        // Its answer does not count, so what was written for it must not be committed.
        if let Some(context) = answers.first_out_of_order(batch) {
            let key = context.message().key();
            tracing::error!(%key, "the batch handler went on behind a failure of the ordering key; rolled back");
            return Err(out_of_order());
        }
        let answers = answers.for_each(batch)?;
        let (mut places, mut settlements) = (Vec::new(), Vec::new());
        for (place, (context, answer)) in batch.iter().zip(&answers).enumerate() {
            let Ok(completion) = answer else { continue };
            let Completed::Here { result } = completion.clone().into_inner() else {
                return Err(not_settled());
            };
            places.push(place);
            settlements.push(Settlement {
                lease: context.leased().lease.clone(),
                outcome: match self.outcome {
                    Some(outcome) => outcome.clone(),
                    None => Outcome::Processed { result },
                },
            });
        }
        if places.is_empty() {
            return Ok(Worked::InVain(answers));
        }
        Ok(Worked::Done {
            answers,
            places,
            settlements,
        })
    }

    /// Settles, without what the store refuses to keep. Answers which leases are lost.
    async fn settle_in(
        &self,
        transaction: &mut S::Transaction,
        first: &Context,
        mut settlements: Vec<Settlement>,
    ) -> Result<Vec<usize>, Failure> {
        let mut places: Vec<usize> = (0..settlements.len()).collect();
        let mut lost = Vec::new();
        while !settlements.is_empty() {
            let settling = self.store.settle_in(transaction, &settlements);
            let settled = first
                .patience()
                .within("settle_in", settling)
                .await
                .map_err(Failure::of_transaction)?;
            if settled.len() != settlements.len() {
                return Err(no_answer());
            }
            let all = std::mem::take(&mut settlements).into_iter();
            let all = std::mem::take(&mut places).into_iter().zip(all);
            for ((place, mut settlement), answer) in all.zip(settled) {
                match answer {
                    Settled::Done => {}
                    Settled::LeaseLost => lost.push(place),
                    Settled::Refused(invalid) => {
                        let Some(outcome) = plainer(settlement.outcome) else {
                            return Err(Failure::dead(invalid));
                        };
                        let key = &settlement.lease.key;
                        tracing::warn!(%key, reason = %invalid, "result or error text not kept");
                        settlement.outcome = outcome;
                        places.push(place);
                        settlements.push(settlement);
                    }
                }
            }
        }
        Ok(lost)
    }
}

/// How often commits of these messages were left in doubt.
fn count_doubts(batch: &Batch) -> u32 {
    batch.iter().map(Context::doubts).sum()
}

/// Leaves those out that are not to be worked on, and those behind them in their ordering keys.
fn keep_in_order(
    batch: &Batch,
    left: &mut Vec<usize>,
    answers: &mut [Answer],
    mut is_left: impl FnMut(&usize) -> bool,
) {
    let mut held_up = HeldUp::default();
    left.retain(|place| {
        let is_left = is_left(place);
        let Some(context) = batch.get(*place) else {
            return false;
        };
        if held_up.holds(*place, context) {
            set(answers, *place, Err(Failure::not_reached()));
            return false;
        }
        if !is_left {
            held_up.hold(*place, context);
        }
        is_left
    });
}

fn set(answers: &mut [Answer], place: usize, answer: Answer) {
    if let Some(given) = answers.get_mut(place) {
        *given = answer;
    }
}

/// Whether there is nothing in it that a store may refuse to keep.
fn is_never_refused(settlement: &Settlement) -> bool {
    matches!(settlement.outcome, Outcome::Processed { result: None })
}

fn no_answer() -> Failure {
    Failure::retry("the store gave no answer for the message")
}

pub(super) fn cancelled() -> Failure {
    Failure::retry("cancelled while running")
}

fn out_of_order() -> Failure {
    Failure::retry("the batch handler went on behind a failure of the ordering key")
}

pub(super) fn not_settled() -> Failure {
    Failure::dead("the handler says that it has settled the message, but its transaction is open")
}

pub(super) fn gone() -> Failure {
    Failure::retry("the handler has kept its transaction, which is rolled back")
}
