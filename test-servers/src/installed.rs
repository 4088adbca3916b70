//! A server of ours, run from a program installed on the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, User};

use crate::clocks::{self, Clocks};
use crate::disk;
use crate::error::{Doing as _, Error};
use crate::kind::Kind;
use crate::kinds::Recipe;
use crate::port::{self, Port};
use crate::process::{self, Process};
use crate::program::Program;
use crate::start_up::{self, Start};
use crate::watchdog::{End, Watchdog};

const PREPARATION: Duration = Duration::from_secs(120);
const PROMOTION: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const STOP: Duration = Duration::from_secs(60);
/// The same under `libfaketime`, whose lock waits for itself when a server's signal handler asks for the time while the
/// server does (seen once, with Redis 7.0). What has not ended then is killed.
const STOP_WITH_CLOCKS: Duration = Duration::from_secs(20);
/// Longer than the watchdog gives a server before it kills it.
const FAREWELL: Duration = Duration::from_secs(20);

pub(crate) struct Installed {
    kind: Kind,
    recipe: Arc<dyn Recipe>,
    program: Program,
    /// What a test adds to the command line of every node.
    arguments: Vec<String>,
    home: PathBuf,
    user: Option<User>,
    ports: Vec<Port>,
    /// One a node: its process while it runs or is paused, `None` while it is stopped or killed.
    nodes: Vec<Option<Process>>,
    /// A program that prepares a node.
    helper: Option<Process>,
    watchdog: Watchdog,
    surroundings: Surroundings,
}

/// What is not as usual around a server.
#[derive(Default)]
pub(crate) struct Surroundings {
    /// Other clocks than the machine's.
    pub(crate) clocks: Option<Clocks>,
    /// A small disk of its own, where one can be made.
    pub(crate) small_disk: bool,
}

impl Installed {
    /// Prepares a server in its own temporary directory and starts it.
    pub(crate) fn create(
        kind: Kind,
        recipe: Arc<dyn Recipe>,
        program: Program,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        Self::within(Surroundings::default(), kind, recipe, program, arguments)
    }

    /// The same, with other surroundings than usual.
    pub(crate) fn within(
        mut surroundings: Surroundings,
        kind: Kind,
        recipe: Arc<dyn Recipe>,
        program: Program,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        let user = process::unprivileged(program.users(recipe.users()))
            .doing("looking for a user to run as")?;
        let ports = port::reserve(recipe.ports()).doing("looking for free ports")?;
        let (process, random) = (std::process::id(), fastrand::u32(..));
        let home = program
            .temporary_directory()
            .join(format!("test-servers-{process}-{random:08x}"));
        let of_clocks = surroundings.clocks.as_ref().map_or("", |_| clocks::SWEEP);
        let sweep = [recipe.sweep(), of_clocks].concat();
        let watchdog = Watchdog::over_directory(&home, &sweep)
            .doing("creating a temporary directory and its watchdog")?;
        // In a container, root may not be allowed to.
        surroundings.small_disk = surroundings.small_disk && disk::mount(&home).is_ok();
        let nodes = (0..recipe.nodes()).map(|_| None).collect();
        let mut server = Self {
            kind,
            recipe,
            program,
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            home,
            user,
            ports,
            nodes,
            helper: None,
            watchdog,
            surroundings,
        };
        server.prepare()?;
        server.launch(true)?;
        Ok(server)
    }

    /// A server of the same program and arguments that follows this one.
    pub(crate) fn standby(&self) -> Option<Result<Self, Error>> {
        let recipe = self.recipe.standby(self.port())?;
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Some(Self::create(
            self.kind,
            recipe,
            self.program.clone(),
            &arguments,
        ))
    }

    /// Where clients connect to each node, the first one's first.
    pub(crate) fn urls(&self) -> Vec<String> {
        let ports = self.port_numbers();
        let of_nodes = ports.iter().take(self.nodes.len());
        of_nodes.map(|&port| self.recipe.url(port)).collect()
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports[0].number()
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Takes up all room on its disk, if that is its own.
    pub(crate) fn fill_disk(&self) -> Result<(), Error> {
        self.with_disk(disk::fill)
    }

    /// Gives the room back.
    pub(crate) fn clear_disk(&self) -> Result<(), Error> {
        self.with_disk(disk::clear)
    }

    fn with_disk(&self, act: fn(&Path) -> io::Result<()>) -> Result<(), Error> {
        if !self.has_small_disk() {
            return Err(Error::NoSmallDisk { kind: self.kind });
        }
        act(&self.home).doing("filling or clearing a disk")
    }

    pub(crate) fn has_small_disk(&self) -> bool {
        self.surroundings.small_disk
    }

    /// Whether its nodes have one clock, which can be moved.
    pub(crate) fn has_movable_clock(&self) -> bool {
        let clocks = self.surroundings.clocks.as_ref();
        clocks.is_some_and(Clocks::is_movable)
    }

    /// Lets that clock be ahead by so many microseconds.
    pub(crate) fn move_clock(&self, ahead: i64) -> Result<(), Error> {
        if !self.has_movable_clock() {
            return Err(Error::NoMovableClock { kind: self.kind });
        }
        clocks::move_clock(&self.home, ahead).doing("moving a clock")
    }

    pub(crate) fn start(&mut self) -> Result<(), Error> {
        let running = self.running()?;
        if running.is_empty() {
            self.forget_the_dead(&running)?;
            return self.launch(false);
        }
        for node in 0..self.nodes.len() {
            self.start_node(node)?;
        }
        Ok(())
    }

    /// Whether every node's process exists, be it paused.
    pub(crate) fn is_running(&mut self) -> Result<bool, Error> {
        Ok(self.running()?.len() == self.nodes.len())
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        let signal = self.recipe.stop_signal();
        for node in self.nodes.iter().flatten() {
            node.resume().doing("resuming a server")?;
            node.signal(signal).doing("stopping a server")?;
        }
        let has_clocks = self.surroundings.clocks.is_some();
        let patience = if has_clocks { STOP_WITH_CLOCKS } else { STOP };
        for node in self.nodes.iter_mut().flatten() {
            if node.wait(patience).doing("stopping a server")?.is_none() {
                if has_clocks {
                    node.kill().doing("killing a server")?;
                    continue;
                }
                return Err(Error::DidNotStop {
                    kind: self.kind,
                    log: process::log_tail(&self.home),
                });
            }
        }
        self.forget_the_dead(&[])
    }

    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        // All at once, so that no node of several notices the others' death.
        for node in self.nodes.iter().flatten() {
            node.pause().doing("killing a server")?;
        }
        for node in self.nodes.iter_mut().flatten() {
            node.kill().doing("killing a server")?;
        }
        self.forget_the_dead(&[])
    }

    pub(crate) fn kill_node(&mut self, node: usize) -> Result<(), Error> {
        let running = self.running()?;
        self.check(node)?;
        if let Some(process) = &mut self.nodes[node] {
            process.kill().doing("killing a server")?;
        }
        let others: Vec<usize> = running.into_iter().filter(|&left| left != node).collect();
        self.forget_the_dead(&others)
    }

    pub(crate) fn pause_node(&mut self, node: usize) -> Result<(), Error> {
        self.of_running(node, Process::pause)
    }

    pub(crate) fn resume_node(&mut self, node: usize) -> Result<(), Error> {
        self.of_running(node, Process::resume)
    }

    fn of_running(
        &mut self,
        node: usize,
        act: fn(&Process) -> io::Result<()>,
    ) -> Result<(), Error> {
        self.check(node)?;
        let running = self.running()?;
        match &self.nodes[node] {
            Some(process) if running.contains(&node) => act(process).doing("signalling a server"),
            _ => Err(Error::NotRunning { kind: self.kind }),
        }
    }

    pub(crate) fn start_node(&mut self, node: usize) -> Result<(), Error> {
        self.check(node)?;
        let running = self.running()?;
        if running.contains(&node) {
            return Ok(());
        }
        self.forget_the_dead(&running)?;
        let leads = running.is_empty() && self.recipe.needs_leader();
        if leads && self.elect()? != node {
            return Err(self.did_not_start("another node knows more and has to be started first"));
        }
        if !leads {
            self.recover(node)?;
        }
        self.spawn(&[node], leads)?;
        let running = self.running()?;
        self.wait_for(&running, false)
    }

    pub(crate) fn pause(&mut self) -> Result<(), Error> {
        self.each_running(Process::pause)
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        self.each_running(Process::resume)
    }

    pub(crate) fn promote(&mut self) -> Result<(), Error> {
        let doing = "promoting a standby";
        let kind = self.kind;
        if !self.is_running()? {
            return Err(Error::NotRunning { kind });
        }
        if self.recipe.is_promoted(self.port()).doing(doing)? {
            return Err(Error::NoStandby { kind });
        }
        let signal = self.recipe.promote(&self.home).doing(doing)?;
        for node in self.nodes.iter().flatten() {
            node.signal(signal).doing(doing)?;
        }
        let deadline = Instant::now() + PROMOTION;
        while !self.recipe.is_promoted(self.port()).doing(doing)? {
            if Instant::now() >= deadline {
                return Err(self.did_not_start("it still is a standby"));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn each_running(&mut self, act: fn(&Process) -> io::Result<()>) -> Result<(), Error> {
        if self.running()?.is_empty() {
            return Err(Error::NotRunning { kind: self.kind });
        }
        for node in self.nodes.iter().flatten() {
            act(node).doing("signalling a server")?;
        }
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), Error> {
        let commands = self
            .recipe
            .prepare(&self.program, &self.home, &self.port_numbers())
            .doing("preparing a data directory")?;
        if let Some(clocks) = &self.surroundings.clocks {
            clocks
                .prepare(&self.home)
                .doing("preparing a server's clock")?;
        }
        self.hand_over().doing("handing over a data directory")?;
        for command in commands {
            // Killed half-way, initdb would leave shared memory; it takes only seconds.
            self.run(&command, End::Await)?;
        }
        Ok(())
    }

    /// Runs a program that prepares something to its end.
    fn run(&mut self, command: &Command, end: End) -> Result<(), Error> {
        let doing = "preparing a data directory";
        self.helper = Some(self.process(command)?);
        self.instruct(end)?;
        let Some(helper) = &mut self.helper else {
            return Ok(());
        };
        helper.release().doing(doing)?;
        let ended = helper.wait(PREPARATION).doing(doing)?;
        let reason = match ended {
            Some(status) if status.success() => {
                self.helper = None;
                return self.instruct(End::Kill);
            }
            Some(status) => format!("its data directory could not be prepared: {status}"),
            None => "its data directory is not prepared yet".to_owned(),
        };
        Err(self.did_not_start(&reason))
    }

    /// Starts all nodes.
    fn launch(&mut self, new: bool) -> Result<(), Error> {
        let mut others: Vec<usize> = (0..self.nodes.len()).collect();
        let mut started = Ok(());
        if self.recipe.needs_leader() {
            let leader = self.elect()?;
            others.retain(|&node| node != leader);
            self.spawn(&[leader], true)?;
            started = self.wait_for(&[leader], new);
        }
        if started.is_ok() {
            self.spawn(&others, false)?;
            let all: Vec<usize> = (0..self.nodes.len()).collect();
            started = self.wait_for(&all, new);
        }
        if started.is_err() {
            self.kill()?;
        }
        started
    }

    /// The node that is to be started before all others, as it knows everything they know.
    fn elect(&mut self) -> Result<usize, Error> {
        for node in 0..self.nodes.len() {
            self.recover(node)?;
        }
        self.recipe
            .leader(&self.home)
            .doing("looking for the node to start first")
    }

    fn recover(&mut self, node: usize) -> Result<(), Error> {
        match self.recipe.recover(&self.program, &self.home, node) {
            Some(command) => self.run(&command, End::Kill),
            None => Ok(()),
        }
    }

    fn wait_for(&mut self, nodes: &[usize], new: bool) -> Result<(), Error> {
        let recipe = Arc::clone(&self.recipe);
        let ports = self.port_numbers();
        let start = Start {
            ports: &ports,
            nodes,
            new,
        };
        let started = start_up::wait(&*recipe, &start, || {
            match self.exit_status().map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(status) => Err(format!("it ended with {status}")),
            }
        });
        started.map_err(|reason| self.did_not_start(&reason))
    }

    /// Starts nodes, each known to the watchdog before it runs.
    fn spawn(&mut self, nodes: &[usize], leads: bool) -> Result<(), Error> {
        let ports = self.port_numbers();
        for &node in nodes {
            let mut command = self.recipe.command(&self.program, &self.home, &ports, node);
            if leads {
                self.recipe
                    .lead(&self.home, node, &mut command)
                    .doing("preparing the node to start first")?;
            }
            command.args(&self.arguments);
            if let Some(clocks) = &self.surroundings.clocks {
                let root = self.program.root.as_deref().unwrap_or(Path::new("/"));
                command = clocks
                    .around(&self.home, root, node, &command)
                    .doing("preparing a server's clock")?;
            }
            let process = self.process(&command)?;
            if self.surroundings.clocks.is_some() {
                Clocks::note(&self.home, process.group()).doing("noting a process")?;
            }
            self.nodes[node] = Some(process);
        }
        self.instruct(End::Kill)?;
        for &node in nodes {
            if let Some(process) = &mut self.nodes[node] {
                process.release().doing("starting a server")?;
            }
        }
        Ok(())
    }

    fn process(&self, command: &Command) -> Result<Process, Error> {
        let root = self.program.root.as_deref();
        Process::prepare(command, &self.home, self.user.as_ref(), root).doing("starting a server")
    }

    /// Tells the watchdog what runs.
    fn instruct(&mut self, end: End) -> Result<(), Error> {
        let processes = self.nodes.iter().flatten().chain(&self.helper);
        let groups: Vec<Pid> = processes.map(Process::group).collect();
        self.watchdog
            .guard(end, &groups)
            .doing("instructing the watchdog")
    }

    /// Forgets all nodes but these: the numbers of processes that have ended may soon be those
    /// of others.
    fn forget_the_dead(&mut self, alive: &[usize]) -> Result<(), Error> {
        for (node, process) in self.nodes.iter_mut().enumerate() {
            if !alive.contains(&node) {
                *process = None;
            }
        }
        self.instruct(End::Kill)
    }

    /// The nodes whose process exists.
    fn running(&mut self) -> Result<Vec<usize>, Error> {
        let mut running = Vec::new();
        for (node, process) in self.nodes.iter_mut().enumerate() {
            if let Some(process) = process {
                let ended = process.exited().doing("looking after a server")?;
                if ended.is_none() {
                    running.push(node);
                }
            }
        }
        Ok(running)
    }

    fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        for node in self.nodes.iter_mut().flatten() {
            if let Some(status) = node.exited()? {
                return Ok(Some(status));
            }
        }
        Ok(None)
    }

    fn check(&self, node: usize) -> Result<(), Error> {
        if node < self.nodes.len() {
            return Ok(());
        }
        Err(Error::NoSuchNode {
            kind: self.kind,
            node,
        })
    }

    fn hand_over(&self) -> io::Result<()> {
        let user = self.user.as_ref();
        process::hand_over(&self.home, user)?;
        for entry in fs::read_dir(&self.home)? {
            process::hand_over(&entry?.path(), user)?;
        }
        Ok(())
    }

    fn port_numbers(&self) -> Vec<u16> {
        self.ports.iter().map(Port::number).collect()
    }

    fn did_not_start(&self, reason: &str) -> Error {
        Error::DidNotStart {
            kind: self.kind,
            reason: reason.to_owned(),
            log: process::log_tail(&self.home),
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // The watchdog ends the server and removes the directory; here the dead are collected,
        // without which it would take them for alive. Dropping the watchdog waits for it.
        self.watchdog.release();
        for process in self.nodes.iter_mut().flatten().chain(&mut self.helper) {
            if !matches!(process.wait(FAREWELL), Ok(Some(_))) {
                let _ = process.signal(Signal::SIGKILL);
            }
        }
    }
}
