//! The worker processes of a run, and how they are told, followed and killed.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, timeout},
};

use super::{
    history::History,
    log::Follower,
    options::{Mode, Options},
    point::Point,
    worker::{Assignment, Order, Role, VARIABLE},
};
use crate::needs::BoxError;

/// How long a worker has for coming to the point at which it is to die.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a worker has for ending what it is at: a settlement is repeated, and may meet one silent connection
/// after the other.
const LONGEST_END: Duration = Duration::from_secs(120);

struct Process {
    number: u32,
    role: Role,
    child: Child,
    orders: ChildStdin,
    announcements: Lines<BufReader<ChildStdout>>,
    log: Follower,
}

/// All workers. Dropping it kills them.
pub(crate) struct WorkerPool {
    mode: Mode,
    address: String,
    directory: PathBuf,
    batch: u32,
    started: u32,
    processes: Vec<Process>,
    hold: bool,
    /// The lowest number that is sent.
    lowest: u64,
    /// Where a worker was to be killed and did not come by in time, how often.
    missed: HashMap<Point, u64>,
}

impl WorkerPool {
    /// Starts as many workers as are asked for and an operator, which keep their logs in `directory`.
    pub(crate) async fn start(
        mode: Mode,
        address: String,
        directory: &Path,
        options: &Options,
        random: &mut fastrand::Rng,
    ) -> Result<Self, BoxError> {
        let mut pool = Self {
            mode,
            address,
            directory: directory.to_owned(),
            batch: options.batch,
            started: 0,
            processes: Vec::new(),
            hold: false,
            lowest: 0,
            missed: HashMap::new(),
        };
        let receivers = (options.workers / 3).max(1);
        let roles = (0..options.workers).map(|index| match index < receivers {
            true => Role::Receiver,
            false => Role::Processor,
        });
        for role in roles.chain([Role::Operator]) {
            pool.add(role, random).await?;
        }
        Ok(pool)
    }

    /// Starts one more worker, which sends nothing.
    pub(crate) async fn add(
        &mut self,
        role: Role,
        random: &mut fastrand::Rng,
    ) -> Result<(), BoxError> {
        let process = self.spawn(role, 0, random).await?;
        self.processes.push(process);
        Ok(())
    }

    async fn spawn(
        &mut self,
        role: Role,
        first: u64,
        random: &mut fastrand::Rng,
    ) -> Result<Process, BoxError> {
        self.started += 1;
        let log = self.directory.join(format!("{}.ndjson", self.started));
        let assignment = Assignment {
            role,
            mode: self.mode,
            address: self.address.clone(),
            log: log.clone(),
            seed: random.u64(..),
            batch: self.batch,
            first,
        };
        let mut child = Command::new(std::env::current_exe()?)
            .env(VARIABLE, serde_json::to_string(&assignment)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a worker has no pipes".into());
        };
        let mut process = Process {
            number: self.started,
            role,
            child,
            orders,
            announcements: BufReader::new(output).lines(),
            log: Follower::new(self.started, log),
        };
        process.tell(Order::Above(self.lowest)).await?;
        if self.hold {
            process.tell(Order::Hold).await?;
        }
        Ok(process)
    }

    /// How many workers were started so far, replacements included.
    pub(crate) fn started(&self) -> u32 {
        self.started
    }

    /// Reads what the workers have logged, and fails if one ended by itself.
    pub(crate) fn follow(&mut self, history: &mut History) -> Result<(), BoxError> {
        for process in &mut self.processes {
            let ended = process.child.try_wait()?;
            process.log.read(history)?;
            if let Some(status) = ended {
                let number = process.number;
                return Err(format!("worker {number} ended by itself: {status}").into());
            }
        }
        Ok(())
    }

    /// Tells the receivers to send new messages or to hold them back.
    pub(crate) async fn hold(&mut self, hold: bool) -> Result<(), BoxError> {
        if self.hold != hold {
            self.hold = hold;
            let order = if hold { Order::Hold } else { Order::Proceed };
            for process in &mut self.processes {
                process.tell(order).await?;
            }
        }
        Ok(())
    }

    /// Tells the receivers to send nothing below `lowest` any more.
    pub(crate) async fn send_above(&mut self, lowest: u64) -> Result<(), BoxError> {
        if self.lowest < lowest {
            self.lowest = lowest;
            for process in &mut self.processes {
                process.tell(Order::Above(lowest)).await?;
            }
        }
        Ok(())
    }

    /// Kills one worker where it has been killed least so far, and starts another in its place,
    /// which begins with the message `first` if it receives. Answers where it was killed.
    pub(crate) async fn kill(
        &mut self,
        kills: &[(Point, u64)],
        first: u64,
        history: &mut History,
        random: &mut fastrand::Rng,
    ) -> Result<Point, BoxError> {
        let mut index = random.usize(0..self.processes.len());
        let Some(point) = self.least_killed(kills, &mut index, random) else {
            return Err("there is no worker to kill".into());
        };
        let Some(process) = self.processes.get_mut(index) else {
            return Err("there is no worker to kill".into());
        };
        let wanted = point;
        let point = process.kill_at(wanted, random).await?;
        if point != wanted {
            *self.missed.entry(wanted).or_default() += 1;
        }
        process.log.read(history)?;
        let role = process.role;
        let replacement = self.spawn(role, first, random).await?;
        if let Some(process) = self.processes.get_mut(index) {
            *process = replacement;
        }
        Ok(point)
    }

    /// The point with the fewest kills, and a worker that comes by there. One that was missed counts as tried, so that
    /// the others get their kills while nobody comes by.
    fn least_killed(
        &self,
        kills: &[(Point, u64)],
        index: &mut usize,
        random: &mut fastrand::Rng,
    ) -> Option<Point> {
        let mut points = kills.to_vec();
        random.shuffle(&mut points);
        let missed = |point| self.missed.get(&point).copied().unwrap_or(0);
        let tried = |(point, count): &(Point, u64)| count + missed(*point);
        let (point, _) = points.into_iter().min_by_key(tried)?;
        let comes_by = |process: &Process| match process.role {
            Role::Receiver => Point::RECEIVER.contains(&point),
            Role::Processor => {
                Point::PROCESSOR.contains(&point)
                    || Point::TRANSACTION.contains(&point)
                    || Point::RUNS.contains(&point)
            }
            Role::Operator | Role::LastOperator => Point::OPERATOR.contains(&point),
        };
        let candidates: Vec<usize> = (0..self.processes.len())
            .filter(|index| self.processes.get(*index).is_some_and(comes_by))
            .collect();
        *index = *candidates.get(random.usize(0..candidates.len().max(1)))?;
        Some(point)
    }

    /// Has the workers of `role` finish what they began and exit, and takes them off.
    pub(crate) async fn finish(
        &mut self,
        role: Role,
        history: &mut History,
    ) -> Result<(), BoxError> {
        let (mut leaving, staying): (Vec<_>, Vec<_>) = std::mem::take(&mut self.processes)
            .into_iter()
            .partition(|process| process.role == role);
        self.processes = staying;
        for process in &mut leaving {
            process.tell(Order::Finish).await?;
        }
        for process in &mut leaving {
            let status = timeout(LONGEST_END, process.child.wait())
                .await
                .map_err(|_| {
                    format!(
                        "worker {} did not finish within {LONGEST_END:?}",
                        process.number
                    )
                })??;
            process.log.read(history)?;
            if !status.success() {
                return Err(format!("worker {} failed: {status}", process.number).into());
            }
        }
        Ok(())
    }
}

impl Process {
    async fn tell(&mut self, order: Order) -> Result<(), BoxError> {
        let mut line = serde_json::to_vec(&order)?;
        line.push(b'\n');
        match self.orders.write_all(&line).await {
            // It has ended by itself; `follow` reports that.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    /// Sends SIGKILL when the worker announces `point`, or at any time if it does not.
    async fn kill_at(
        &mut self,
        point: Point,
        random: &mut fastrand::Rng,
    ) -> Result<Point, BoxError> {
        let mut killed_at = Point::AnyTime;
        if point == Point::AnyTime {
            tokio::time::sleep(Duration::from_millis(random.u64(..50))).await;
        } else {
            self.tell(Order::Die(point)).await?;
            if self.announced(point).await? {
                killed_at = point;
                if !point.stops() {
                    tokio::time::sleep(Duration::from_micros(random.u64(..1500))).await;
                }
            }
        }
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("worker {} ended by itself: {status}", self.number).into());
        }
        self.child.kill().await?;
        Ok(killed_at)
    }

    async fn announced(&mut self, point: Point) -> Result<bool, BoxError> {
        let announcement = serde_json::to_string(&point)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = tokio::time::timeout_at(deadline, self.announcements.next_line()).await;
            match line {
                Ok(Ok(Some(line))) if line == announcement => return Ok(true),
                // The store under test prints something of its own.
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) | Err(_) => return Ok(false),
                Ok(Err(error)) => return Err(error.into()),
            }
        }
    }
}
