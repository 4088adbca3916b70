//! A server of ours, run from a program installed on the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, User};

use crate::error::{Doing as _, Error};
use crate::kind::Kind;
use crate::kinds::{Recipe, recipe};
use crate::port::{self, Port};
use crate::process::{self, Process};
use crate::program::Program;
use crate::start_up;
use crate::watchdog::{End, Watchdog};

const PREPARATION: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);
/// Longer than the watchdog gives a server before it kills it.
const FAREWELL: Duration = Duration::from_secs(20);

pub(crate) struct Installed {
    kind: Kind,
    program: Program,
    home: PathBuf,
    user: Option<User>,
    ports: Vec<Port>,
    /// One a node while the server runs or is paused, none while it is stopped or killed.
    nodes: Vec<Process>,
    watchdog: Watchdog,
}

impl Installed {
    /// Prepares a server in a temporary directory of its own and starts it.
    pub(crate) fn create(kind: Kind, program: Program) -> Result<Self, Error> {
        let recipe = recipe(kind);
        let user = process::unprivileged(recipe.users()).doing("looking for a user to run as")?;
        let ports = port::reserve(recipe.ports()).doing("looking for free ports")?;
        let directory = tempfile::Builder::new()
            .prefix("test-servers-")
            .tempdir()
            .doing("creating a temporary directory")?;
        let watchdog = Watchdog::over_directory(directory.path(), recipe.sweep())
            .doing("starting the watchdog")?;
        let mut server = Self {
            kind,
            program,
            // From here on the watchdog removes it.
            home: directory.keep(),
            user,
            ports,
            nodes: Vec::new(),
            watchdog,
        };
        server.prepare(recipe)?;
        server.launch(true)?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        recipe(self.kind).url(&self.port_numbers())
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn start(&mut self) -> Result<(), Error> {
        if self.is_running()? {
            return Ok(());
        }
        // Some nodes of several may be left.
        self.kill()?;
        self.launch(false)
    }

    /// Whether every node's process exists, be it paused.
    pub(crate) fn is_running(&mut self) -> Result<bool, Error> {
        let dead = self.exit_status().doing("looking after a server")?;
        Ok(!self.nodes.is_empty() && dead.is_none())
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        let signal = recipe(self.kind).stop_signal();
        for node in &self.nodes {
            node.resume().doing("resuming a server")?;
            node.signal(signal).doing("stopping a server")?;
        }
        for node in &mut self.nodes {
            if node.wait(STOP).doing("stopping a server")?.is_none() {
                return Err(Error::DidNotStop {
                    kind: self.kind,
                    log: process::log_tail(&self.home),
                });
            }
        }
        self.forget_nodes()
    }

    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        // All at once, so that no node of several notices the others' death.
        for node in &self.nodes {
            node.pause().doing("killing a server")?;
        }
        for node in &mut self.nodes {
            node.kill().doing("killing a server")?;
        }
        self.forget_nodes()
    }

    pub(crate) fn pause(&mut self) -> Result<(), Error> {
        self.each_running(Process::pause)
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        self.each_running(Process::resume)
    }

    fn each_running(&mut self, act: fn(&Process) -> io::Result<()>) -> Result<(), Error> {
        if !self.is_running()? {
            return Err(Error::NotRunning { kind: self.kind });
        }
        for node in &self.nodes {
            act(node).doing("signalling a server")?;
        }
        Ok(())
    }

    fn prepare(&mut self, recipe: &dyn Recipe) -> Result<(), Error> {
        let commands = recipe
            .prepare(&self.program, &self.home)
            .doing("preparing a data directory")?;
        self.hand_over().doing("handing over a data directory")?;
        for command in commands {
            // Killed half-way, initdb would leave shared memory; it takes only seconds.
            self.spawn([command], End::Await)?;
            let ended = self.nodes[0].wait(PREPARATION);
            if !ended
                .doing("preparing a data directory")?
                .is_some_and(|status| status.success())
            {
                return Err(self.did_not_start("its data directory could not be prepared"));
            }
            self.forget_nodes()?;
        }
        Ok(())
    }

    fn launch(&mut self, new: bool) -> Result<(), Error> {
        let recipe = recipe(self.kind);
        let ports = self.port_numbers();
        let commands =
            (0..recipe.nodes()).map(|node| recipe.command(&self.program, &self.home, &ports, node));
        self.spawn(commands.collect::<Vec<_>>(), End::Kill)?;
        let started = start_up::wait(recipe, &ports, new, || {
            match self.exit_status().map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(status) => Err(format!("it ended with {status}")),
            }
        });
        started.or_else(|reason| {
            let error = self.did_not_start(&reason);
            self.kill()?;
            Err(error)
        })
    }

    /// Starts processes as the server's nodes, each known to the watchdog before it runs.
    fn spawn(
        &mut self,
        commands: impl IntoIterator<Item = Command>,
        end: End,
    ) -> Result<(), Error> {
        for command in commands {
            let node = Process::prepare(&command, &self.home, self.user.as_ref());
            self.nodes.push(node.doing("starting a server")?);
        }
        let groups: Vec<Pid> = self.nodes.iter().map(Process::group).collect();
        self.watchdog
            .guard(end, &groups)
            .doing("instructing the watchdog")?;
        for node in &mut self.nodes {
            node.release().doing("starting a server")?;
        }
        Ok(())
    }

    /// To be called when they have ended: their numbers may soon be those of other processes.
    fn forget_nodes(&mut self) -> Result<(), Error> {
        self.nodes.clear();
        self.watchdog
            .guard(End::Kill, &[])
            .doing("instructing the watchdog")
    }

    fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        for node in &mut self.nodes {
            if let Some(status) = node.exited()? {
                return Ok(Some(status));
            }
        }
        Ok(None)
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
        for node in &mut self.nodes {
            if !matches!(node.wait(FAREWELL), Ok(Some(_))) {
                let _ = node.signal(Signal::SIGKILL);
            }
        }
    }
}
