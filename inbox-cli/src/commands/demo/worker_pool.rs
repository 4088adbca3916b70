//! The worker processes of the demo, and their killer.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    process::{Child, Command},
    sync::watch,
    time::Instant,
};

use super::stage::Directions;
use super::worker::DEMO_WORKER;

/// Far longer than a demo takes; reached only if something hangs.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Worker processes. Dropping it kills them.
pub(super) struct WorkerPool {
    directions: Directions,
    workers: Vec<Child>,
    kills: u32,
    /// How many of them are done.
    killed: watch::Sender<u64>,
    random: fastrand::Rng,
}

impl WorkerPool {
    pub(super) fn start(
        directions: Directions,
        workers: u32,
        kills: u32,
        killed: watch::Sender<u64>,
        random: fastrand::Rng,
    ) -> Result<Self> {
        let workers = (0..workers)
            .map(|_| spawn(&directions))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            directions,
            workers,
            kills,
            killed,
            random,
        })
    }

    /// Kills and replaces workers until it has killed as many as asked and all messages are
    /// finished; returns how many it killed.
    pub(super) async fn run(
        mut self,
        finished: impl AsyncFn() -> Result<(u64, bool)>,
        progress: impl Fn(u64),
    ) -> Result<u64> {
        let (kills, mut killed) = (u64::from(self.kills), 0);
        let mut next_kill = Instant::now() + self.pause();
        let work = async {
            loop {
                let (done, all) = finished().await?;
                progress(done);
                if all && killed == kills {
                    return Ok(killed);
                }
                self.check_all_alive()?;
                tokio::time::sleep(Duration::from_millis(20)).await;
                if Instant::now() >= next_kill && killed < kills && done > 0 {
                    self.kill_one().await?;
                    killed += 1;
                    self.killed.send_replace(killed);
                    next_kill = Instant::now() + self.pause();
                }
            }
        };
        match tokio::time::timeout(GIVE_UP, work).await {
            Ok(result) => result,
            Err(_) => bail!("the workers did not finish within {} s", GIVE_UP.as_secs()),
        }
    }

    /// The time until the next kill: short enough that all kills hit workers at work.
    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.u64(100..300))
    }

    async fn kill_one(&mut self) -> Result<()> {
        let victim = self.random.usize(0..self.workers.len());
        if let Some(worker) = self.workers.get_mut(victim) {
            // SIGKILL: the worker has no chance to tidy up.
            worker.kill().await.context("cannot kill a worker")?;
            *worker = spawn(&self.directions)?;
        }
        Ok(())
    }

    /// A worker that ends by itself is a failure of the demo, not part of it.
    fn check_all_alive(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            if let Some(status) = worker.try_wait()? {
                bail!("a worker ended by itself: {status}");
            }
        }
        Ok(())
    }
}

fn spawn(directions: &Directions) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    if let Some(store) = &directions.store {
        command.env("INBOX_STORE", store);
    }
    command
        .arg(DEMO_WORKER)
        .args(&directions.arguments)
        // Ours to hold: when this process ends, however it ends, the worker's input ends too.
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        // Ctrl-C reaches the demo alone, which then ends its workers.
        .process_group(0)
        .spawn()
        .context("cannot start a worker")
}
