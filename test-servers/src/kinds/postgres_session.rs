use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::wire;

/// Extensions take seconds to create.
const PATIENCE: Duration = Duration::from_secs(60);

/// A session of the user `postgres`, who needs no password, in the database `postgres`.
pub(super) struct Session {
    stream: TcpStream,
    /// Whether the server was a standby when the session began.
    pub(super) is_standby: bool,
}

impl Session {
    pub(super) fn open(port: u16) -> io::Result<Self> {
        const LOG_IN: &[u8] = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        let mut stream = wire::connect(port)?;
        stream.write_all(LOG_IN)?;
        let mut session = Self {
            stream,
            is_standby: false,
        };
        session.finish()?;
        Ok(session)
    }

    /// Runs statements whose results do not matter.
    pub(super) fn run(&mut self, statements: &str) -> io::Result<()> {
        let length = u32::try_from(statements.len() + 5).map_err(io::Error::other)?;
        let mut message = vec![b'Q'];
        message.extend(length.to_be_bytes());
        message.extend(statements.as_bytes());
        message.push(0);
        self.stream.set_read_timeout(Some(PATIENCE))?;
        self.stream.write_all(&message)?;
        self.finish()
    }

    /// Reads messages until the server is ready for a statement.
    fn finish(&mut self) -> io::Result<()> {
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut body = Vec::new();
            let rest = u64::from(length.saturating_sub(4));
            (&self.stream).take(rest).read_to_end(&mut body)?;
            match head[0] {
                b'Z' => return Ok(()),
                b'S' => self.is_standby |= body == b"in_hot_standby\0on\0",
                b'E' => {
                    let error = String::from_utf8_lossy(&body).replace('\0', " ");
                    return Err(io::Error::other(error));
                }
                _ => {}
            }
        }
    }
}
