//! A gate between a store and its server that lets some scripts through and holds the others back.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Semaphore,
    task::JoinHandle,
};

/// More scripts than any test runs.
const ALL: usize = 1_000_000;

pub struct Gate {
    port: u16,
    state: Arc<GateState>,
}

struct GateState {
    /// How many scripts may still pass.
    permits: Semaphore,
    /// How many wait.
    held: AtomicUsize,
}

impl Gate {
    /// An open gate before the server with this URL.
    pub async fn before(url: &str) -> Self {
        let server = url.trim_start_matches("redis://").trim_end_matches('/');
        let server = server.to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(GateState {
            permits: Semaphore::new(ALL),
            held: AtomicUsize::new(0),
        });
        let gate = Self {
            port,
            state: Arc::clone(&state),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let ((from_client, mut to_client), (mut from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
                tokio::spawn(forward(Arc::clone(&state), from_client, to_server));
            }
        });
        gate
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Lets so many scripts pass from now on, and holds back those behind.
    pub fn let_through(&self, scripts: usize) {
        self.state.permits.forget_permits(usize::MAX);
        self.state.permits.add_permits(scripts);
    }

    /// Lets all pass.
    pub fn open(&self) {
        self.state.permits.add_permits(ALL);
    }

    /// Waits until a script is held back, or until the task is over, which it answers.
    pub async fn is_reached<T>(&self, task: &JoinHandle<T>) -> bool {
        loop {
            if task.is_finished() {
                return true;
            }
            if self.state.held.load(Ordering::SeqCst) > 0 {
                // What was let through is answered.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Passes a client's commands on, one by one.
async fn forward(state: Arc<GateState>, client: OwnedReadHalf, mut server: OwnedWriteHalf) {
    let mut client = BufReader::new(client);
    while let Some(command) = command(&mut client).await {
        let is_script = command.windows(7).any(|word| word == b"EVALSHA");
        if is_script {
            if let Ok(permit) = state.permits.try_acquire() {
                permit.forget();
            } else {
                state.held.fetch_add(1, Ordering::SeqCst);
                state.permits.acquire().await.unwrap().forget();
                state.held.fetch_sub(1, Ordering::SeqCst);
            }
        }
        if server.write_all(&command).await.is_err() {
            return;
        }
    }
}

/// One command as it was sent: an array of strings.
async fn command(client: &mut BufReader<OwnedReadHalf>) -> Option<Vec<u8>> {
    let mut command = Vec::new();
    let mut parts = number(client, &mut command).await?;
    while parts > 0 {
        let length = number(client, &mut command).await?;
        let from = command.len();
        command.resize(from + length + 2, 0);
        client.read_exact(&mut command[from..]).await.ok()?;
        parts -= 1;
    }
    Some(command)
}

/// The number of a line like `*3` or `$12`, which is added to the command.
async fn number(client: &mut BufReader<OwnedReadHalf>, command: &mut Vec<u8>) -> Option<usize> {
    let from = command.len();
    client.read_until(b'\n', command).await.ok()?;
    let line = std::str::from_utf8(command.get(from + 1..)?).ok()?;
    line.trim_end().parse().ok()
}
