//! The workers' logs: each worker writes events to a file of its own, and the orchestrator reads
//! them all into one history.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{
    history::{Answered, Asked, History},
    point::Point,
};
use crate::needs::BoxError;

/// Microseconds of the host's monotonic clock, which all processes on it share.
pub(crate) fn now() -> io::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(io::Error::from)?;
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    Ok(seconds * 1_000_000 + nanos / 1_000)
}

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    /// When, in microseconds of the host's monotonic clock.
    pub(super) at: u64,
    pub(super) pid: u32,
    /// Which of the worker's calls it belongs to.
    pub(super) call: u64,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    Start(Asked),
    End(Answered),
    /// The worker has come to the point at which it is to be killed.
    Point(Point),
}

/// A worker's log: one line per event, each appended by one write, so that a killed process
/// leaves at most its last line incomplete.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    pid: u32,
    calls: u64,
}

impl Log {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: OpenOptions::new()
                .append(true)
                .create_new(true)
                .open(path)?,
            pid: std::process::id(),
            calls: 0,
        })
    }

    /// Before a call; answers its number.
    pub(crate) fn start(&mut self, asked: Asked) -> io::Result<u64> {
        self.calls += 1;
        self.write(now()?, self.calls, What::Start(asked))?;
        Ok(self.calls)
    }

    /// After the call `call`, which answered at `at`.
    pub(crate) fn end(&mut self, at: u64, call: u64, answered: Answered) -> io::Result<()> {
        self.write(at, call, What::End(answered))
    }

    pub(crate) fn point(&mut self, point: Point) -> io::Result<()> {
        self.write(now()?, self.calls, What::Point(point))
    }

    fn write(&mut self, at: u64, call: u64, what: What) -> io::Result<()> {
        let event = Event {
            at,
            pid: self.pid,
            call,
            what,
        };
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// Follows one worker's log while it grows.
#[derive(Debug)]
pub(crate) struct Follower {
    worker: u32,
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Follower {
    pub(crate) fn new(worker: u32, path: PathBuf) -> Self {
        Self {
            worker,
            path,
            file: None,
            rest: Vec::new(),
        }
    }

    /// Reads what is new. An incomplete last line waits for its end, which never comes if its
    /// writer was killed.
    pub(crate) fn read(&mut self, history: &mut History) -> Result<(), BoxError> {
        let file = match &mut self.file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => self.file.insert(file),
                // The worker has not come that far.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        };
        file.read_to_end(&mut self.rest)?;
        let whole = self
            .rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        for line in lines.split(|byte| *byte == b'\n') {
            if !line.is_empty() {
                history.add(self.worker, serde_json::from_slice(line)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use inbox_api::{HandlerName, Key, MessageId};

    use super::*;
    use crate::crash::history::{Received, Sent};

    fn key() -> Key {
        Key::new(
            HandlerName::new("h").unwrap(),
            MessageId::new("m1").unwrap(),
        )
    }

    fn receive() -> Asked {
        Asked::Receive {
            messages: vec![Sent {
                key: key(),
                ordering_key: None,
            }],
            transaction: false,
        }
    }

    #[test]
    fn a_log_reads_back_while_it_grows_and_without_its_last_half_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.ndjson");
        let mut follower = Follower::new(1, path.clone());
        let mut history = History::default();
        follower.read(&mut history).unwrap();

        let mut log = Log::create(&path).unwrap();
        let first = log.start(receive()).unwrap();
        follower.read(&mut history).unwrap();
        assert_eq!(history.calls.len(), 1);
        assert_eq!(history.calls[0].answered, None);
        let second = log.start(receive()).unwrap();
        let answer = Answered::Receipts(vec![Received::Duplicate]);
        log.end(now().unwrap(), second, answer.clone()).unwrap();
        log.point(Point::AfterReceive).unwrap();
        log.file.write_all(b"{\"at\":1,\"pi").unwrap();
        follower.read(&mut history).unwrap();
        assert_ne!(first, second);
        assert_eq!(history.calls.len(), 2);
        assert_eq!(history.calls[0].end, None);
        assert_eq!(history.calls[1].answered, Some(answer));
        assert!(history.calls[1].end >= Some(history.calls[1].start));
        assert_eq!(history.operations(), 1);
        // The rest of that line makes it whole.
        log.file.write_all(b"d\":1}\n").unwrap();
        assert!(follower.read(&mut history).is_err(), "not an event");
    }
}
