//! Handlers of whole batches.

use std::{collections::BTreeSet, pin::Pin, sync::Arc};

use inbox::{Batch, Completion, Context, Failure, Lease, LentTransaction, Remedy};

use crate::{
    handler::handle,
    history::PartId,
    scenario::Whole,
    transaction::{Effect, Transaction},
    world::World,
};

type Answered = Result<Vec<Result<Completion, Failure>>, Failure>;
type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

pub(super) fn whole_batch(
    world: Arc<World>,
    part: PartId,
    whole: Whole,
) -> impl Fn(Batch) -> Answering + Clone {
    move |batch| {
        let running = Running::new(&world, &part, batch);
        Box::pin(running.answer(whole, |_| {}))
    }
}

/// Writes what succeeds in its transaction.
pub(super) fn whole_batch_in_transaction(
    world: Arc<World>,
    part: PartId,
    whole: Whole,
) -> impl Fn(LentTransaction<Transaction>, Batch) -> Answering + Clone {
    move |mut transaction, batch| {
        let running = Running::new(&world, &part, batch);
        let write = move |lease: &Lease| transaction.write(lease, Effect::Work);
        Box::pin(running.answer(whole, write))
    }
}

/// A batch whose handler runs. What it has done is undone unless it answers.
struct Running {
    world: Arc<World>,
    part: PartId,
    batch: Batch,
    has_answered: bool,
}

impl Running {
    fn new(world: &Arc<World>, part: &PartId, batch: Batch) -> Self {
        Self {
            world: world.clone(),
            part: part.clone(),
            batch,
            has_answered: false,
        }
    }

    async fn answer(mut self, whole: Whole, mut write: impl FnMut(&Lease) + Send) -> Answered {
        let mut answers = Vec::new();
        let mut failed = BTreeSet::new();
        for context in &self.batch {
            let ordering_key = context.message().ordering_key().cloned();
            if ordering_key
                .as_ref()
                .is_some_and(|key| failed.contains(key))
            {
                answers.push(Err(Failure::not_reached()));
                continue;
            }
            let answer = self.run(context).await;
            match &answer {
                Ok(_) => write(&context.leased().lease),
                Err(failure) if whole == Whole::Fails && !is_put_off(failure) => {
                    return answer.map(|_| Vec::new());
                }
                Err(_) => failed.extend(ordering_key),
            }
            answers.push(answer);
        }
        self.has_answered = true;
        Ok(answers)
    }

    async fn run(&self, context: &Context) -> Result<Completion, Failure> {
        let (world, part) = (self.world.clone(), self.part.clone());
        let (leased, cancellation) = (context.leased().clone(), context.cancellation().clone());
        let result = handle(world, part, leased, cancellation).await?;
        Ok(result.map_or_else(Completion::default, Completion::with_result))
    }
}

/// A whole batch would be put off with it.
fn is_put_off(failure: &Failure) -> bool {
    matches!(failure.remedy(), Some(Remedy::Defer(_) | Remedy::Pause(_)))
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_answered {
            let leases = self.batch.iter().map(|context| &context.leased().lease);
            let leases: Vec<_> = leases.collect();
            self.world.history().has_not_answered(&leases);
        }
    }
}
