//! Middleware around the messages of a batch.
//!
//! Each message has its own chain. At the end of a chain is not the handler but [`Joining`], which
//! waits for the answer of the batch. The batch begins when each chain has come to that or has ended.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    Batch, Completion, Context, Failure, Handler,
    batch::{Answer, HeldUp},
    batch_run::{BatchRun, timed_out},
    task::panic_text,
};

/// The end of one message's chain.
struct Joining {
    place: usize,
    has_joined: Arc<AtomicBool>,
    joined: mpsc::UnboundedSender<(usize, oneshot::Sender<Answer>)>,
}

#[async_trait]
impl Handler for Joining {
    async fn handle(&self, _: &Context) -> Result<Completion, Failure> {
        let (sender, answer) = oneshot::channel();
        self.has_joined.store(true, Ordering::Relaxed);
        let _ = self.joined.send((self.place, sender));
        answer
            .await
            .unwrap_or_else(|_| Err(Failure::retry("the batch gave no answer")))
    }
}

/// What is known of one message.
#[derive(Default)]
struct Progress {
    /// Takes the answer of the batch, once it has joined that.
    joined: Option<oneshot::Sender<Answer>>,
    /// The batch works on it.
    is_in_batch: bool,
    /// How its chain has ended, until that is told.
    ended: Option<Answer>,
    has_succeeded: bool,
    is_told: bool,
}

/// The messages of a batch, and where to tell how they end.
struct Members<'m> {
    progress: Vec<Progress>,
    answer: &'m mut (dyn FnMut(usize, Answer) + Send),
}

impl Members<'_> {
    fn chain_ended(&mut self, place: usize, ended: Answer) {
        if let Some(one) = self.progress.get_mut(place) {
            one.has_succeeded = ended.is_ok();
            one.ended = Some(ended);
        }
        self.tell(place);
    }

    fn batch_answered(&mut self, place: usize, answer: Answer) {
        if let Some(one) = self.progress.get_mut(place) {
            one.is_in_batch = false;
            if let Some(joined) = one.joined.take() {
                // A chain that has dropped it has its own answer.
                let _ = joined.send(answer);
            }
        }
        self.tell(place);
    }

    /// Which messages the batch has: those whose chains have joined it, unless one before them in their ordering
    /// key has not.
    fn join(&mut self, batch: &Batch) -> Vec<usize> {
        let mut places = Vec::new();
        let mut held_up = HeldUp::default();
        for (place, (one, context)) in self.progress.iter_mut().zip(batch).enumerate() {
            if held_up.holds(context) {
                if let Some(joined) = one.joined.take() {
                    // A chain that has dropped it has its own answer.
                    let _ = joined.send(Err(Failure::not_reached()));
                }
                continue;
            }
            let joined = one.joined.as_ref();
            one.is_in_batch = joined.is_some_and(|joined| !joined.is_closed());
            if one.is_in_batch {
                places.push(place);
            } else if !one.has_succeeded {
                held_up.hold(context);
            }
        }
        places
    }

    /// Tells how a message ends, when neither its chain nor the batch works on it any more.
    fn tell(&mut self, place: usize) {
        let Some(one) = self.progress.get_mut(place) else {
            return;
        };
        let is_in_batch = one.is_in_batch;
        if let Some(ended) = one.ended.take_if(|_| !is_in_batch) {
            one.is_told = true;
            (self.answer)(place, ended);
        }
    }
}

pub(super) async fn run(
    run: &BatchRun<'_>,
    batch: &Batch,
    answer: &mut (dyn FnMut(usize, Answer) + Send),
) {
    let (sender, mut joined) = mpsc::unbounded_channel();
    let served = run.served;
    let limit = |context: &Context| served.timeout(context.message());
    let chain = |(place, context): (usize, &Context)| {
        let (context, limit) = (context.clone(), limit(context));
        let has_joined = Arc::new(AtomicBool::new(false));
        let next = served.router.chain(Arc::new(Joining {
            place,
            has_joined: has_joined.clone(),
            joined: sender.clone(),
        }));
        async move {
            let running = AssertUnwindSafe(next.run(&context)).catch_unwind();
            let mut running = Box::pin(running);
            let ended = match limit {
                None => running.await,
                Some(limit) => match timeout(limit, &mut running).await {
                    Ok(ended) => ended,
                    // From there on the batch has the limit.
                    Err(_) if has_joined.load(Ordering::Relaxed) => running.await,
                    Err(_) => Ok(Err(timed_out())),
                },
            };
            let ended = ended.unwrap_or_else(|panic| Err(Failure::retry(panic_text(&*panic))));
            (place, ended)
        }
    };
    let mut chains: FuturesUnordered<_> = batch.iter().enumerate().map(chain).collect();
    let progress = batch.iter().map(|_| Progress::default()).collect();
    let members = Mutex::new(Members { progress, answer });

    let mut coming = batch.len();
    while coming > 0 {
        tokio::select! {
            biased;
            Some((place, joined)) = joined.recv() => {
                coming -= 1;
                if let Some(one) = lock(&members).progress.get_mut(place) {
                    one.joined = Some(joined);
                }
            }
            Some((place, ended)) = chains.next() => {
                let mut members = lock(&members);
                let has_joined = members.progress.get(place).is_some_and(|p| p.joined.is_some());
                coming -= usize::from(!has_joined);
                members.chain_ended(place, ended);
            }
            else => break,
        }
    }

    let places = lock(&members).join(batch);
    if !places.is_empty() {
        let part = batch.part(&places);
        let mut answered = |place: usize, answer| {
            if let Some(place) = places.get(place) {
                lock(&members).batch_answered(*place, answer);
            }
        };
        let mut answering = Box::pin(run.answer_all(&part, &mut answered));
        loop {
            tokio::select! {
                biased;
                () = &mut answering => break,
                Some((place, ended)) = chains.next() => lock(&members).chain_ended(place, ended),
            }
        }
    }
    let rest = async {
        while let Some((place, ended)) = chains.next().await {
            lock(&members).chain_ended(place, ended);
        }
    };
    match batch.iter().filter_map(limit).min() {
        None => rest.await,
        Some(limit) => drop(timeout(limit, rest).await),
    }
    drop(chains);
    // Middleware that has not come to its end in time.
    let mut members = lock(&members);
    for place in 0..members.progress.len() {
        let is_told = members.progress.get(place).is_none_or(|one| one.is_told);
        if !is_told {
            members.chain_ended(place, Err(timed_out()));
        }
    }
}

fn lock<'l, 'm>(members: &'l Mutex<Members<'m>>) -> MutexGuard<'l, Members<'m>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}
