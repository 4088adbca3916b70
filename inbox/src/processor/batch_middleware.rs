//! Middleware around the messages of a batch.
//!
//! Each message has its own chain. At the end of a chain is not the handler but [`Joining`], which
//! waits for the answer of the batch. The batch begins when each chain has come to that or has ended.
//! Chains may wait for one another, as for a connection that few can have at a time. Then nothing moves
//! while some have come to their ends, and the batch is of these; a next one is of those who
//! come when they have theirs.

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{
    Batch, Completion, Context, Failure, Handler,
    batch::{Answer, HeldUp},
    batch_run::{BatchRun, timed_out},
    handler::Hold,
    task::panic_text,
};

/// How long no chain may move on before the batch begins without those that have not come to it.
const STANDSTILL: Duration = Duration::from_secs(1);

/// The same when chains of the batch are known to wait for one another.
const NEXT_STANDSTILL: Duration = Duration::from_millis(20);

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
    /// It was not run, because of one before it.
    is_not_reached: bool,
    is_told: bool,
    /// The messages before and behind it in its ordering key.
    before: Option<usize>,
    behind: Option<usize>,
}

/// The messages of a batch, and where to tell how they end.
struct Members<'m> {
    batch: &'m Batch,
    progress: Vec<Progress>,
    held_up: HeldUp,
    answer: &'m mut (dyn FnMut(usize, Answer) + Send),
}

impl<'m> Members<'m> {
    fn new(batch: &'m Batch, answer: &'m mut (dyn FnMut(usize, Answer) + Send)) -> Self {
        let mut progress: Vec<Progress> = Vec::with_capacity(batch.len());
        let mut last = HashMap::new();
        for (place, context) in batch.iter().enumerate() {
            let key = context.message().ordering_key();
            let before = key.and_then(|key| last.insert(key, place));
            if let Some(before) = before.and_then(|before| progress.get_mut(before)) {
                before.behind = Some(place);
            }
            progress.push(Progress {
                before,
                ..Progress::default()
            });
        }
        Self {
            batch,
            progress,
            held_up: HeldUp::default(),
            answer,
        }
    }

    fn joined(&mut self, place: usize, joined: oneshot::Sender<Answer>) {
        if let Some(one) = self.progress.get_mut(place) {
            one.joined = Some(joined);
        }
    }

    fn chain_ended(&mut self, place: usize, ended: Answer) {
        let context = self.batch.get(place);
        let is_settled = context.is_some_and(|context| context.is_held_by(Hold::Settled));
        if let Some(one) = self.progress.get_mut(place) {
            let ended = match one.is_not_reached {
                true => ended,
                false => ended.map_err(Failure::or_retry),
            };
            one.has_succeeded = is_settled || ended.is_ok();
            one.ended = Some(ended);
        }
        self.tell(place);
    }

    fn batch_answered(&mut self, place: usize, answer: Answer) {
        if let Some(one) = self.progress.get_mut(place) {
            one.is_in_batch = false;
            one.is_not_reached = answer.as_ref().is_err_and(Failure::is_not_reached);
            if let Some(joined) = one.joined.take() {
                // A chain that has dropped it has its own answer.
                let _ = joined.send(answer);
            }
        }
        self.tell(place);
    }

    /// Which messages the next batch has: those whose chains have joined it, unless one before them in their
    /// ordering key has not succeeded. Nobody waits behind this but they.
    fn next_batch(&mut self) -> Vec<usize> {
        let mut places = Vec::new();
        let mut held_up = HeldUp::default();
        for (place, (one, context)) in self.progress.iter_mut().zip(self.batch).enumerate() {
            // A chain that has dropped it has its own answer.
            let joined = one.joined.take_if(|_| held_up.holds(place, context));
            if let Some(joined) = joined {
                one.is_not_reached = true;
                let _ = joined.send(Err(Failure::not_reached()));
            }
            drop(one.joined.take_if(|joined| joined.is_closed()));
            one.is_in_batch = one.joined.is_some();
            if one.is_in_batch {
                places.push(place);
            } else if !one.has_succeeded {
                held_up.hold(place, context);
            }
        }
        places
    }

    /// Tells how a message ends, when neither its chain nor the batch works on it any more and those before
    /// it in its ordering key are told; then, of those behind it.
    fn tell(&mut self, place: usize) {
        let mut next = Some(place);
        while let Some(place) = next {
            let is_told = |place: usize| self.progress.get(place).is_none_or(|one| one.is_told);
            let before = self.progress.get(place).and_then(|one| one.before);
            let is_first = before.is_none_or(is_told);
            let (Some(one), Some(context)) = (self.progress.get_mut(place), self.batch.get(place))
            else {
                return;
            };
            let may_tell = is_first && !one.is_in_batch;
            let Some(ended) = one.ended.take_if(|_| may_tell) else {
                return;
            };
            one.is_told = true;
            next = one.behind;
            // What the handler's own transaction has settled stays so, whatever middleware says.
            let ended = match context.is_held_by(Hold::Settled) {
                true => ended,
                false => self.held_up.judge(place, context, ended),
            };
            (self.answer)(place, ended);
        }
    }

    /// Ends what has not come to its end in time.
    fn end_all(&mut self) {
        for place in 0..self.progress.len() {
            let one = self.progress.get(place);
            if one.is_some_and(|one| !one.is_told && one.ended.is_none()) {
                self.chain_ended(place, Err(timed_out()));
            }
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
    let members = Mutex::new(Members::new(batch, answer));
    let mut coming: HashSet<usize> = (0..batch.len()).collect();
    let (mut standstill, mut is_anyone_waiting) = (STANDSTILL, false);
    loop {
        let mut moved = Instant::now();
        while !coming.is_empty() {
            tokio::select! {
                biased;
                Some((place, joined)) = joined.recv() => {
                    coming.remove(&place);
                    is_anyone_waiting = true;
                    lock(&members).joined(place, joined);
                }
                Some((place, ended)) = chains.next() => {
                    coming.remove(&place);
                    lock(&members).chain_ended(place, ended);
                }
                () = sleep_until(moved + standstill), if is_anyone_waiting => {
                    let (handler, messages) = (served.name.as_str(), coming.len());
                    tracing::debug!(handler, messages, "a batch begins without messages whose middleware waits");
                    standstill = NEXT_STANDSTILL;
                    break;
                }
                else => break,
            }
            moved = Instant::now();
        }
        is_anyone_waiting = false;
        let places = lock(&members).next_batch();
        if places.is_empty() && coming.is_empty() {
            break;
        }
        if places.is_empty() {
            continue;
        }
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
                Some((place, ended)) = chains.next() => {
                    coming.remove(&place);
                    lock(&members).chain_ended(place, ended);
                }
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
    lock(&members).end_all();
}

fn lock<'l, 'm>(members: &'l Mutex<Members<'m>>) -> MutexGuard<'l, Members<'m>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}
