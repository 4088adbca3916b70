//! The inbox itself: its receive, and its processor with a handler that does nothing, or waits.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{
    Bytes, CancellationToken, Context, Inbox, Kind, Message, MessageId, Processor, Receipt, Router,
    State,
};

use super::{Kind as ServerKind, Load, table::Rates};
use crate::target::handler;

/// Tasks that receive at the same time. The peers are sent to by as many.
const RECEIVERS: u64 = 2;

/// How it is used, as the peers are with their settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    server: ServerKind,
    pub(super) settings: &'static str,
    processors: usize,
}

/// The best of a server last, which the peers are held against. SQLite has one writer and Redis one
/// thread for scripts.
const OWN: &[Own] = &[
    Own {
        server: ServerKind::Postgres,
        settings: "1 processor",
        processors: 1,
    },
    Own {
        server: ServerKind::Postgres,
        settings: "2 processors",
        processors: 2,
    },
    Own {
        server: ServerKind::Sqlite,
        settings: "1 processor",
        processors: 1,
    },
    Own {
        server: ServerKind::Redis,
        settings: "1 processor",
        processors: 1,
    },
];

/// Those on one kind of server.
pub(super) fn on(server: ServerKind) -> Vec<Own> {
    OWN.iter()
        .filter(|own| own.server == server)
        .copied()
        .collect()
}

/// One run on a fresh database.
pub(super) async fn measure(own: Own, url: &str, load: Load) -> Result<Rates> {
    let store = inbox::connect(url).await?;
    store.create().await?;
    let receive = receive(&store, load).await?;
    let drain = drain(&store, own.processors, load).await?;
    store.close().await;
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    let rate = |time: Duration| load.messages as f64 / time.as_secs_f64();
    Ok(Rates {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        receive: rate(receive),
        drain: rate(drain),
    })
}

async fn receive(store: &Arc<dyn Inbox>, load: Load) -> Result<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let sources: Vec<_> = (0..RECEIVERS).map(|_| Source::new(load.payload)).collect();
    let start = Instant::now();
    let receivers: Vec<_> = sources
        .into_iter()
        .map(|mut source| {
            let (store, next) = (Arc::clone(store), Arc::clone(&next));
            let batch = u64::from(load.batch);
            tokio::spawn(async move {
                loop {
                    let from = next.fetch_add(batch, Ordering::Relaxed);
                    if from >= load.messages {
                        return anyhow::Ok(());
                    }
                    let messages = source.take(batch.min(load.messages - from))?;
                    let receipts = store.receive(&messages).await?;
                    ensure!(receipts.iter().all(|r| *r == Receipt::Accepted));
                }
            })
        })
        .collect();
    for receiver in receivers {
        receiver.await??;
    }
    Ok(start.elapsed())
}

async fn drain(store: &Arc<dyn Inbox>, processors: usize, load: Load) -> Result<Duration> {
    let start = Instant::now();
    let mut running = Vec::with_capacity(processors);
    for _ in 0..processors {
        let router = Router::new(handler()?).fallback_handler(move |_: Context| async move {
            if !load.handling.is_zero() {
                tokio::time::sleep(load.handling).await;
            }
            Ok::<_, Infallible>(())
        });
        let processor = Processor::builder(Arc::clone(store))
            .router(router)
            .concurrency(2 * load.batch as usize)
            .batch(load.batch)
            .build()?;
        let inbox = Arc::clone(store);
        running.push(tokio::spawn(async move {
            processor
                .run_until_drained(inbox, CancellationToken::new())
                .await
        }));
    }
    let mut handled = 0;
    for running in running {
        handled += running.await??.processed;
    }
    let processed = store.statistics().await?.count(State::Processed);
    let time = start.elapsed();
    ensure!(handled == load.messages && processed == load.messages);
    Ok(time)
}

/// Makes messages at little cost, as the peers' programs do.
struct Source {
    random: fastrand::Rng,
    /// Payloads are cut out of this.
    characters: Bytes,
    payload: usize,
}

impl Source {
    fn new(payload: usize) -> Self {
        let mut random = fastrand::Rng::new();
        let characters = (0..payload + (1 << 20)).map(|_| random.alphanumeric() as u8);
        Self {
            characters: characters.collect(),
            random,
            payload,
        }
    }

    fn take(&mut self, number: u64) -> Result<Vec<Message>> {
        let (handler, kind) = (handler()?, Kind::new("bench.event")?);
        (0..number)
            .map(|_| {
                let from = self.random.usize(..self.characters.len() - self.payload);
                let id = MessageId::new(format!("{:032x}", self.random.u128(..)))?;
                let payload = self.characters.slice(from..from + self.payload);
                Ok(Message::new(handler.clone(), id, kind.clone(), payload))
            })
            .collect()
    }
}
