//! Writes a word into a server and reads it again, mostly with the server's own client program.

mod documents;
mod kafka;

use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use test_servers::{Kind, Server};

pub(crate) struct Client {
    kind: Kind,
    url: String,
    port: String,
    /// Of a set, it is for the member that is the primary whenever it runs.
    is_first: bool,
}

impl Client {
    pub(crate) fn of(server: &Server) -> Result<Self, Box<dyn Error>> {
        Self::of_node(server, 0)
    }

    pub(crate) fn of_node(server: &Server, node: usize) -> Result<Self, Box<dyn Error>> {
        let url = server.urls()[node].clone();
        let (_, rest) = url
            .split_once("127.0.0.1:")
            .ok_or("not on the loopback interface")?;
        let port = rest.split('/').next().unwrap_or(rest).to_owned();
        Ok(Self {
            kind: server.kind(),
            url,
            port,
            is_first: node == 0,
        })
    }

    pub(crate) fn write(&self, word: &str) -> Result<(), Box<dyn Error>> {
        let sql = format!(
            "DROP TABLE IF EXISTS note; CREATE TABLE note (word VARCHAR(20)); INSERT INTO note VALUES ('{word}');"
        );
        match self.kind {
            kind if is_redis(kind) => {
                // Several keys, so that a cluster has some on more than one node.
                for key in ["note", "a", "b", "c", "d"] {
                    let answer = self.run(&format!("SET {key} {word}"))?.finish()?;
                    assert_eq!(answer, "OK");
                }
            }
            kind if is_mongodb(kind) => {
                let port = self.port.parse()?;
                if self.is_first {
                    documents::wait_for_primary(port);
                }
                documents::write(port, word).map_err(|error| error.to_string())?;
            }
            Kind::Kafka => {
                let port = self.port.parse()?;
                kafka::write(port, word).map_err(|error| error.to_string())?;
            }
            Kind::Postgres | Kind::Postgres18 | Kind::Pgbouncer => {
                // Where the table is not there yet, that is worth a notice.
                self.run(&format!("SET client_min_messages = warning; {sql}"))?
                    .finish()?;
            }
            _ => {
                self.run(&sql)?.finish()?;
            }
        }
        Ok(())
    }

    pub(crate) fn read(&self) -> Result<String, Box<dyn Error>> {
        self.start_reading()?.finish()
    }

    pub(crate) fn start_reading(&self) -> Result<Running, Box<dyn Error>> {
        if is_mongodb(self.kind) {
            let port = self.port.parse()?;
            let is_first = self.is_first;
            let read = move || {
                if is_first {
                    documents::wait_for_primary(port);
                }
                documents::read(port).map_err(|error| error.to_string())
            };
            return Ok(Running::Thread(thread::spawn(read)));
        }
        if self.kind == Kind::Kafka {
            let port = self.port.parse()?;
            let read = move || kafka::read(port).map_err(|error| error.to_string());
            return Ok(Running::Thread(thread::spawn(read)));
        }
        self.run(match self.kind {
            kind if is_redis(kind) => "GET note",
            _ => "SELECT word FROM note",
        })
    }

    /// What a statement answers.
    pub(crate) fn ask(&self, statement: &str) -> Result<String, Box<dyn Error>> {
        self.run(statement)?.finish()
    }

    /// What the server's clock shows, in seconds since 1970.
    pub(crate) fn time(&self) -> Result<f64, Box<dyn Error>> {
        let answer = self.ask(match self.kind {
            kind if is_redis(kind) => "TIME",
            Kind::Postgres | Kind::Postgres18 => "SELECT extract(epoch FROM clock_timestamp())",
            _ => "SELECT unix_timestamp(sysdate(6))",
        })?;
        // Redis answers with the seconds and the microseconds, a line each.
        let mut lines = answer.lines();
        let seconds: f64 = lines.next().unwrap_or_default().parse()?;
        let micros: f64 = lines.next().unwrap_or("0").parse()?;
        Ok(seconds + micros / 1e6)
    }

    fn run(&self, statement: &str) -> Result<Running, Box<dyn Error>> {
        let mut command = match self.kind {
            Kind::Postgres | Kind::Postgres18 | Kind::Pgbouncer => {
                let mut psql = Command::new("psql");
                psql.args([
                    "-qAtX",
                    "-v",
                    "ON_ERROR_STOP=1",
                    "-d",
                    &self.url,
                    "-c",
                    statement,
                ]);
                psql
            }
            kind if is_redis(kind) => {
                let mut redis = Command::new("redis-cli");
                redis.args(["-e", "-p", &self.port]);
                if kind.name().ends_with("-cluster") {
                    redis.arg("-c");
                }
                redis.args(statement.split(' '));
                redis
            }
            _ => {
                // MariaDB's client speaks to MySQL as well, and goes by both names.
                let mut mysql = Command::new("mysql");
                mysql.args([
                    "--no-defaults",
                    "--protocol=tcp",
                    "-h127.0.0.1",
                    "-uroot",
                    "-BN",
                ]);
                mysql.args(["-P", &self.port, "-e", statement, "inbox"]);
                mysql
            }
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Running::Program(child))
    }
}

fn is_redis(kind: Kind) -> bool {
    kind.name().starts_with("redis") || kind.name().starts_with("valkey")
}

fn is_mongodb(kind: Kind) -> bool {
    kind.name().starts_with("mongodb") || kind == Kind::Ferretdb
}

/// A client that has not been answered yet.
pub(crate) enum Running {
    Program(Child),
    Thread(JoinHandle<Result<String, String>>),
}

impl Running {
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Self::Program(child) => {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
                stat.is_ok_and(|stat| stat.contains(") Z "))
            }
            Self::Thread(thread) => thread.is_finished(),
        }
    }

    pub(crate) fn finish(self) -> Result<String, Box<dyn Error>> {
        let child = match self {
            Self::Program(child) => child,
            Self::Thread(thread) => return Ok(thread.join().map_err(|_| "it panicked")??),
        };
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output()?;
        if status.success() {
            Ok(String::from_utf8(stdout)?.trim().to_owned())
        } else {
            Err(format!("{status}: {}", String::from_utf8_lossy(&stderr)).into())
        }
    }
}

/// A raw session, to have one open without a client program that might reconnect.
pub(crate) struct PostgresSession(TcpStream);

impl PostgresSession {
    pub(crate) fn open(server: &Server) -> Result<Self, Box<dyn Error>> {
        let port = Client::of(server)?.port.parse()?;
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut session = Self(stream);
        session
            .0
            .write_all(b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0")?;
        session.finish_answer()?;
        Ok(session)
    }

    pub(crate) fn begin(&mut self, query: &str) -> io::Result<()> {
        let length = u32::try_from(query.len() + 5).map_err(io::Error::other)?;
        let mut message = vec![b'Q'];
        message.extend(length.to_be_bytes());
        message.extend(query.as_bytes());
        message.push(0);
        self.0.write_all(&message)
    }

    pub(crate) fn ask(&mut self, query: &str) -> io::Result<()> {
        self.begin(query)?;
        self.finish_answer()
    }

    /// Whether nothing comes back for a while. Not to be used after an answer has begun.
    pub(crate) fn is_silent(&mut self) -> io::Result<bool> {
        self.0.set_read_timeout(Some(Duration::from_millis(500)))?;
        let peeked = self.0.peek(&mut [0]);
        self.0.set_read_timeout(Some(Duration::from_secs(60)))?;
        match peeked {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            peeked => peeked.map(|_| false),
        }
    }

    /// Reads messages until the server is ready for the next query.
    pub(crate) fn finish_answer(&mut self) -> io::Result<()> {
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut body = vec![0; length as usize - 4];
            self.0.read_exact(&mut body)?;
            match head[0] {
                b'Z' => return Ok(()),
                b'E' => {
                    return Err(io::Error::other(
                        String::from_utf8_lossy(&body).into_owned(),
                    ));
                }
                _ => {}
            }
        }
    }
}
