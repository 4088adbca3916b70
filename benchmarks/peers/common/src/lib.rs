//! What the programs that measure a peer have in common: the same arguments, the same messages, the
//! same way of sending and timing, and one line of JSON per measured phase.

mod messages;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

pub use messages::Message;
use messages::Messages;

/// Tasks that send at the same time. The inbox is measured with as many.
const SENDERS: u64 = 2;
/// Longer than the slowest peer takes.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Parser)]
struct Arguments {
    /// The server's fresh, empty database
    #[arg(long)]
    url: String,
    /// Messages to send, and then to drain
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Characters of each message's payload
    #[arg(long, default_value_t = 1024)]
    payload: usize,
    /// Messages per call
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Milliseconds that each handler waits
    #[arg(long, default_value_t = 0)]
    handling: u64,
    /// Which of the peer's settings
    #[arg(long, default_value = "default")]
    settings: String,
}

/// One measurement of one peer.
#[derive(Debug)]
pub struct Run {
    arguments: Arguments,
    peer: &'static str,
    version: String,
}

impl Run {
    /// Takes the program's arguments. The version is that of `package` in the peer's `lock` file.
    ///
    /// # Errors
    /// If the lock file does not have the package. Wrong arguments end the program.
    pub fn new(peer: &'static str, package: &str, lock: &str) -> Result<Self> {
        let mut lines = lock.lines();
        let name = format!("name = \"{package}\"");
        lines
            .find(|line| **line == name)
            .context("no such package")?;
        let version = lines
            .next()
            .and_then(|line| line.strip_prefix("version = "))
            .context("no version")?;
        Ok(Self {
            arguments: Arguments::parse(),
            peer,
            version: version.trim_matches('"').to_owned(),
        })
    }

    /// Where the server and its empty database are.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.arguments.url
    }

    /// The name of the settings to use.
    #[must_use]
    pub fn settings(&self) -> &str {
        &self.arguments.settings
    }

    /// How many messages are sent, and are to be drained.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.arguments.messages
    }

    /// Messages per call.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.arguments.batch
    }

    /// What counts handlers of this run, and how long they wait.
    #[must_use]
    pub fn handled(&self) -> Handled {
        Handled {
            number: Arc::default(),
            handling: Duration::from_millis(self.arguments.handling),
        }
    }

    /// Measures sending all messages, batch after batch, by a few tasks at the same time.
    ///
    /// # Errors
    /// The first of `send`.
    pub async fn receive<F, Fut>(&self, send: F) -> Result<()>
    where
        F: Fn(Vec<Message>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<()>> + Send,
    {
        let (total, batch) = (self.arguments.messages, self.arguments.batch);
        let next = Arc::new(AtomicU64::new(0));
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| Messages::new(self.arguments.payload))
            .collect();
        let start = Instant::now();
        let senders: Vec<_> = senders
            .into_iter()
            .map(|mut messages| {
                let (send, next) = (send.clone(), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let from = next.fetch_add(batch, Ordering::Relaxed);
                        if from >= total {
                            return anyhow::Ok(());
                        }
                        send(messages.take(batch.min(total - from))).await?;
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.await??;
        }
        self.print("receive", start.elapsed());
        Ok(())
    }

    /// Measures a drain: from now until `work` is done, which looks into the peer's tables.
    ///
    /// # Errors
    /// That of `work`, or if it takes minutes.
    pub async fn drain(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let start = Instant::now();
        tokio::time::timeout(PATIENCE, work)
            .await
            .context("the drain does not end")??;
        self.print("drain", start.elapsed());
        Ok(())
    }

    fn print(&self, phase: &str, time: Duration) {
        let seconds = time.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = self.arguments.messages as f64 / seconds;
        let line = serde_json::json!({
            "peer": self.peer,
            "version": self.version,
            "settings": self.arguments.settings,
            "phase": phase,
            "messages": self.arguments.messages,
            "seconds": seconds,
            "rate": rate,
        });
        println!("{line}");
    }
}

/// Waits until the answer is `expected`.
///
/// # Errors
/// That of `ask`.
pub async fn until<F, Fut>(expected: u64, mut ask: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<u64>>,
{
    loop {
        if ask().await? == expected {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What handlers do, which is to wait, if that, and to be counted.
#[derive(Clone, Debug)]
pub struct Handled {
    number: Arc<AtomicU64>,
    handling: Duration,
}

impl Handled {
    /// Handles one message.
    pub async fn one(&self) {
        self.wait().await;
        self.add(1);
    }

    /// As long as a handler, or as many as run at the same time.
    pub async fn wait(&self) {
        if !self.handling.is_zero() {
            tokio::time::sleep(self.handling).await;
        }
    }

    /// That many messages were handled.
    pub fn add(&self, number: u64) {
        self.number.fetch_add(number, Ordering::Relaxed);
    }

    fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Waits until each of so many messages was handled once.
    ///
    /// # Errors
    /// If more were handled.
    pub async fn all(&self, messages: u64) -> Result<()> {
        until(messages, || async {
            let number = self.number();
            ensure!(number <= messages, "{number} handled, of {messages}");
            Ok(number)
        })
        .await
    }
}
