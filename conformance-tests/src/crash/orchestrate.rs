//! One run: workers at work and killed, then left to finish, and what they did put together.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::RangeInclusive,
    path::Path,
    time::{Duration, Instant},
};

use inbox_api::{Filter, Key, Operate as _, Page, Record, State, Store as _};

use super::{
    check::{Evidence, Findings, check},
    fault::Fault,
    history::{Answered, Asked, ClockMove, History, sent},
    log::{Follower, Log, now},
    options::{Mode, Options},
    point::Point,
    target::{Opened, Site, Target},
    traffic::{messages, number_of},
    worker::{LEASES, RETENTION, Role, handlers},
    worker_pool::WorkerPool,
};
use crate::needs::{BoxError, Need, Offered, Unable};

/// Unfinished messages at which receivers hold new ones back, for each message of a batch.
const BACKLOG: u64 = 16;
/// Kills of workers for each fault of the server, unless something else is wanted.
const KILLS_PER_FAULT: u64 = 10;
/// Without any progress for so long, a run is given up: all workers may be waiting for connections that have gone
/// silent.
const STUCK: Duration = Duration::from_secs(60);
/// How far a clock jumps, in thousandths of a lease.
const JUMP: RangeInclusive<u64> = 300..=3_000;
/// For how many milliseconds the workers go on by a clock that was moved before it may be moved back.
const MOVED: RangeInclusive<u64> = 200..=1_500;
const TICK: Duration = Duration::from_millis(15);
/// A receiver's first message is so many batches behind the last one that was sent.
const OVERLAP: u64 = 3;

/// What came of one run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) mode: Mode,
    pub(crate) took: Duration,
    pub(crate) history: History,
    pub(crate) kills: BTreeMap<Point, u64>,
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// Those that are not possible here.
    pub(crate) left_out: Vec<Fault>,
    /// The longest time from the end of a fault to the next answer that was no error.
    pub(crate) recovery: Duration,
    pub(crate) processes: u32,
    pub(crate) states: BTreeMap<State, u64>,
    /// Messages that were purged, as far as was answered.
    pub(crate) purged: u64,
    /// Attempts that started and never finished, over all messages.
    pub(crate) crashes: u64,
    /// Messages that were not final when the run was given up.
    pub(crate) unfinished: u64,
    pub(crate) findings: Findings,
}

struct Run<'a> {
    options: &'a Options,
    site: &'a dyn Site,
    opened: Opened,
    pool: WorkerPool,
    history: History,
    /// The calls before this one were looked at by [`Self::next_number`].
    looked_at: usize,
    next_number: u64,
    /// The numbers behind the highest that was sent, at moments of the last while.
    sent_at: VecDeque<(Instant, u64)>,
    kills: Vec<(Point, u64)>,
    /// Those that are possible, as far as is known, and how often each was done.
    faults: Vec<(Fault, u64)>,
    /// The others.
    left_out: Vec<Fault>,
    /// When each fault ended, by the clock of the history.
    faults_ended: Vec<u64>,
    random: fastrand::Rng,
}

/// Runs `options` in `mode`; the workers' logs are kept in `directory`.
pub(crate) async fn run(
    target: &dyn Target,
    options: &Options,
    mode: Mode,
    directory: &Path,
) -> Result<Outcome, BoxError> {
    let began = Instant::now();
    let site = target.fresh().await?;
    let opened = target.open(&site.address()).await?;
    let mut random = fastrand::Rng::with_seed(options.seed);
    let pool = WorkerPool::start(mode, site.address(), directory, options, &mut random).await?;
    let possible = site.faults().iter();
    let wanted = possible.filter(|fault| options.only.is_none_or(|only| only == **fault));
    let faults = wanted.map(|fault| (*fault, 0)).collect();
    let kills = points(mode, opened.inbox.capabilities().runs);
    let mut run = Run {
        options,
        site: &*site,
        opened,
        pool,
        history: History::default(),
        looked_at: 0,
        next_number: 0,
        sent_at: VecDeque::new(),
        kills,
        faults,
        left_out: Fault::ALL.to_vec(),
        faults_ended: Vec::new(),
        random,
    };
    run.left_out.retain(|fault| !site.faults().contains(fault));
    run.work().await?;
    let unfinished = run.drain().await?;
    run.send_all_again(directory).await?;
    let listing = run.listing().await?;
    let effects = run.effects(mode).await?;
    run.opened.inbox.close().await;

    let findings = check(&Evidence {
        history: &run.history,
        listing: &listing,
        effects: effects.as_ref(),
    });
    let mut states = BTreeMap::new();
    let mut crashes = 0;
    for record in &listing {
        *states.entry(record.state).or_default() += 1;
        crashes += u64::from(record.attempts.crashed(record.state == State::Leased));
    }
    Ok(Outcome {
        mode,
        took: began.elapsed(),
        kills: run.kills.into_iter().collect(),
        faults: run.faults.into_iter().collect(),
        left_out: run.left_out,
        recovery: recovery(&run.history, &run.faults_ended),
        processes: run.pool.started(),
        purged: purged(&run.history),
        history: run.history,
        states,
        crashes,
        unfinished,
        findings,
    })
}

/// The longest time from one of these moments to the next answer to a later call that was no error.
fn recovery(history: &History, moments: &[u64]) -> Duration {
    let answered = history.calls.iter().filter(|call| {
        // Reading may work where nothing can be written.
        let answer = call.answered.as_ref();
        answer.is_some_and(|answer| !answer.changed_nothing())
    });
    let mut answered: Vec<_> = answered.filter_map(|c| Some((c.start, c.end?))).collect();
    answered.sort_unstable();
    let after = |moment: &u64| {
        let from = answered.partition_point(|(start, _)| start < moment);
        // The calls of all workers overlap: the first to end is among the next few.
        let ends = answered.iter().skip(from).take(100).map(|(_, end)| end);
        ends.min().map(|end| end - moment)
    };
    let longest = moments.iter().filter_map(after).max();
    Duration::from_micros(longest.unwrap_or_default())
}

/// How many messages purges have told of.
fn purged(history: &History) -> u64 {
    let answers = history.calls.iter().filter_map(|call| match call.answered {
        Some(Answered::Purged(count)) => Some(count),
        _ => None,
    });
    answers.sum()
}

fn points(mode: Mode, runs: bool) -> Vec<(Point, u64)> {
    let mut points = [&Point::RECEIVER[..], &Point::PROCESSOR, &Point::OPERATOR].concat();
    if mode == Mode::Transactional {
        points.extend(Point::TRANSACTION);
    }
    if runs {
        points.extend(Point::RUNS);
    }
    points.sort_unstable();
    points.dedup();
    points.into_iter().map(|point| (point, 0)).collect()
}

impl Run<'_> {
    fn harmed(&self) -> u64 {
        self.faults.iter().map(|(_, count)| count).sum()
    }

    fn killed(&self) -> u64 {
        self.kills.iter().map(|(_, count)| count).sum()
    }

    /// Until there were enough operations and kills, the kills spread over the operations.
    async fn work(&mut self) -> Result<(), BoxError> {
        let mut progress = (0, Instant::now());
        let mut next_look = Instant::now();
        loop {
            self.pool.follow(&mut self.history)?;
            let done = self.history.operations();
            if done > progress.0 {
                progress = (done, Instant::now());
            } else if progress.1.elapsed() > STUCK {
                return Err(format!("nothing happened for {STUCK:?}").into());
            }
            let (killed, wanted) = (self.killed(), self.options.kills);
            let faults = match self.faults.is_empty() {
                false => self.options.faults.unwrap_or(wanted / KILLS_PER_FAULT),
                true => 0,
            };
            let harmed = self.harmed();
            if done >= self.options.operations && killed >= wanted && harmed >= faults {
                return Ok(());
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + Duration::from_millis(200);
                if let Ok(backlog) = self.backlog().await {
                    let most = BACKLOG * u64::from(self.options.batch);
                    self.pool.hold(backlog > most).await?;
                }
                self.leave_old_behind().await?;
            }
            let due = |wanted: u64| {
                let operations = u128::from(self.options.operations.max(1));
                u128::from(done) * u128::from(wanted) / operations
            };
            if killed < wanted && done > 0 && u128::from(killed) <= due(wanted) {
                self.kill().await?;
            } else if harmed < faults && u128::from(harmed) < due(faults) {
                self.harm().await?;
                // What it kept waiting had nothing to do with the store.
                progress.1 = Instant::now();
            } else {
                tokio::time::sleep(TICK).await;
            }
        }
    }

    /// What was sent first so long ago that it may be purged soon is not sent again, so that few messages are
    /// accepted as new ones, whose further life few rules judge.
    async fn leave_old_behind(&mut self) -> Result<(), BoxError> {
        let newest = (Instant::now(), self.next_number());
        self.sent_at.push_back(newest);
        let is_old = |(at, _): &mut (Instant, u64)| at.elapsed() > RETENTION / 2;
        while let Some((_, number)) = self.sent_at.pop_front_if(is_old) {
            self.pool.send_above(number).await?;
        }
        Ok(())
    }

    async fn backlog(&self) -> Result<u64, inbox_api::Error> {
        let statistics = self.opened.inbox.statistics().await?;
        Ok(statistics
            .handlers
            .iter()
            .map(inbox_api::HandlerStatistics::backlog)
            .sum())
    }

    async fn kill(&mut self) -> Result<(), BoxError> {
        let overlap = OVERLAP * u64::from(self.options.batch);
        let first = self.next_number().saturating_sub(overlap);
        let point = self
            .pool
            .kill(&self.kills, first, &mut self.history, &mut self.random)
            .await?;
        if let Some((_, count)) = self.kills.iter_mut().find(|(known, _)| *known == point) {
            *count += 1;
        }
        Ok(())
    }

    /// Does one of the faults that were done least often.
    async fn harm(&mut self) -> Result<(), BoxError> {
        self.random.shuffle(&mut self.faults);
        let Some(&(fault, _)) = self.faults.iter().min_by_key(|(_, count)| *count) else {
            return Ok(());
        };
        let harmed = match fault {
            Fault::ClockMoved => self.jump().await,
            other => self.site.harm(other).await,
        };
        match harmed {
            Ok(()) => {
                let known = self.faults.iter_mut().find(|(known, _)| *known == fault);
                if let Some((_, count)) = known {
                    *count += 1;
                }
                self.faults_ended.push(now()?);
            }
            Err(Unable::NotOffered(_)) => {
                self.faults.retain(|(other, _)| *other != fault);
                self.left_out.push(fault);
            }
            Err(failed) => return Err(format!("{fault}: {failed}").into()),
        }
        Ok(())
    }

    /// Moves the store's clock from where it is, forwards or backwards, and after a while, or never, back to the true
    /// time.
    async fn jump(&mut self) -> Offered<()> {
        // Milliseconds and thousandths make microseconds.
        let far = self.random.u64(LEASES) * self.random.u64(JUMP);
        let far = i64::try_from(far).map_err(Unable::failed)?;
        let last = self.history.moves.last().map_or(0, |last| last.ahead);
        let ahead = match self.random.bool() {
            true => last + far,
            false => last - far,
        };
        self.move_clock(ahead).await?;
        tokio::time::sleep(Duration::from_millis(self.random.u64(MOVED))).await;
        match self.random.bool() {
            true => self.move_clock(0).await,
            false => Ok(()),
        }
    }

    async fn move_clock(&mut self, ahead: i64) -> Offered<()> {
        let start = now().map_err(Unable::failed)?;
        self.site.move_clock(ahead).await?;
        let end = now().map_err(Unable::failed)?;
        self.history.moves.push(ClockMove { start, end, ahead });
        Ok(())
    }

    /// The number behind the highest that was ever sent.
    fn next_number(&mut self) -> u64 {
        for call in self.history.calls.get(self.looked_at..).unwrap_or_default() {
            let sent = match &call.asked {
                Asked::Receive { messages, .. } => messages.as_slice(),
                Asked::Begin { message, .. } => std::slice::from_ref(message),
                _ => continue,
            };
            let numbers = sent.iter().filter_map(|sent| number_of(&sent.key));
            let highest = numbers.max().map_or(0, |number| number + 1);
            self.next_number = self.next_number.max(highest);
        }
        self.looked_at = self.history.calls.len();
        self.next_number
    }

    /// Lets the processors finish everything that others have left to them, and an operator free what is blocked;
    /// answers how many messages they did not.
    async fn drain(&mut self) -> Result<u64, BoxError> {
        self.pool.finish(Role::Receiver, &mut self.history).await?;
        // Whatever it was about to replay is among the backlog then.
        self.pool.finish(Role::Operator, &mut self.history).await?;
        self.pool.add(Role::LastOperator, &mut self.random).await?;
        let mut progress = (u64::MAX, Instant::now());
        let left = loop {
            // The last kill may have been the server's, so that an answer may be late.
            let left = match self.backlog().await {
                Err(error) if error.is_retryable() => progress.0,
                left => left?,
            };
            if left == 0 {
                break 0;
            }
            if left < progress.0 {
                progress = (left, Instant::now());
            } else if progress.1.elapsed() > STUCK {
                break left;
            }
            self.pool.follow(&mut self.history)?;
            tokio::time::sleep(TICK * 4).await;
        };
        for role in [Role::LastOperator, Role::Processor] {
            self.pool.finish(role, &mut self.history).await?;
        }
        Ok(left)
    }

    /// Sends every message once more. Whatever was stored must be a duplicate now.
    async fn send_all_again(&mut self, directory: &Path) -> Result<(), BoxError> {
        let handlers = handlers()?;
        let path = directory.join("orchestrator.ndjson");
        let mut log = Log::create(&path)?;
        let stored: std::collections::HashSet<Key> = self
            .listing()
            .await?
            .into_iter()
            .map(|record| record.key)
            .collect();
        let end = self.next_number();
        let mut number = 0;
        while number < end {
            let mut batch = Vec::new();
            while number < end && batch.len() < 500 {
                batch.extend(messages(number, &handlers)?);
                number += 1;
            }
            // What was never stored would be accepted now, and nobody is left to work on it.
            batch.retain(|message| stored.contains(message.key()));
            if batch.is_empty() {
                continue;
            }
            let call = log.start(Asked::Receive {
                messages: batch.iter().map(sent).collect(),
                transaction: false,
            })?;
            // All are stored, so that a repetition changes nothing.
            let receipts = patiently(|| self.opened.inbox.receive(&batch)).await?;
            log.end(now()?, call, Answered::receipts(&receipts))?;
        }
        drop(log);
        Follower::new(0, path).read(&mut self.history)
    }

    /// Everything in the inbox, in order of acceptance.
    async fn listing(&self) -> Result<Vec<Record>, BoxError> {
        let mut records = Vec::new();
        let (all, mut page) = (Filter::default(), Page::first(1_000));
        loop {
            let listing = patiently(|| self.opened.inbox.list(&all, &page)).await?;
            if let Some(corrupt) = listing.corrupt.first() {
                let (place, reason) = (&corrupt.place, &corrupt.reason);
                return Err(format!("the inbox has a corrupt row: {place}: {reason}").into());
            }
            records.extend(listing.records);
            if listing.next.is_none() {
                return Ok(records);
            }
            page.after = listing.next;
        }
    }

    /// How often each effect was written, by the text of its key.
    async fn effects(&self, mode: Mode) -> Result<Option<HashMap<String, u64>>, BoxError> {
        if mode == Mode::Plain {
            return Ok(None);
        }
        let transactions = self
            .opened
            .transactions
            .as_ref()
            .ok_or(Unable::NotOffered(Need::Transactions))?;
        let mut effects = HashMap::new();
        for note in transactions.written().await? {
            *effects.entry(note).or_default() += 1;
        }
        Ok(Some(effects))
    }
}

/// Repeats what a server that was just killed, or a slow machine, did not answer in time.
async fn patiently<T, F>(operation: impl Fn() -> F) -> inbox_api::Result<T>
where
    F: Future<Output = inbox_api::Result<T>>,
{
    let since = Instant::now();
    loop {
        match operation().await {
            Err(error) if error.is_retryable() && since.elapsed() < STUCK => {
                tokio::time::sleep(TICK * 4).await;
            }
            answer => return answer,
        }
    }
}
