//! An example as a process.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::until;

/// A program that runs.
pub(crate) struct Program {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// Starts one that serves HTTP, and notes where.
    pub(crate) fn serving(command: &mut Command, address: &Address) -> Self {
        let mut program = Self::start(command);
        let line = program.line();
        let listens = line.strip_prefix("listening on ");
        address.set(listens.unwrap_or_else(|| panic!("it says {line:?}")));
        program
    }

    /// The next line of what it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Looks until it is so, while the program runs.
    #[track_caller]
    pub(crate) fn until(&mut self, mut is_so: impl FnMut() -> bool) {
        until(|| {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "it has ended: {ended:?}");
            is_so()
        });
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends it as a service manager does, and answers what it prints at its end.
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::SIGTERM);
        let (status, rest) = self.end();
        assert!(status.success(), "{status}: {rest}");
        rest
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(id, signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end, and answers what it prints until then.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.process.wait().unwrap(), rest)
    }
}

/// One that a failed test has left behind.
impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where a program listens, another place after each start.
#[derive(Default)]
pub(crate) struct Address(Mutex<String>);

impl Address {
    fn set(&self, address: &str) {
        let mut listens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        address.clone_into(&mut listens);
    }

    /// A connection to it.
    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        let listens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        TcpStream::connect(&*listens)
    }

    /// The status, and the whole response.
    ///
    /// # Errors
    /// When the program is gone before it has answered.
    pub(crate) fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<(u16, String)> {
        let mut stream = self.connect()?;
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let status = response
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok());
        let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((status, response))
    }
}
