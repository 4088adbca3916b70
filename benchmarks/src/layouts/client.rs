//! A connection that uses a layout.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use sqlx::{PgConnection, Row as _};

use super::{Layout, Shape};

const HANDLER: &str = "bench";
const LEASE: Duration = Duration::from_secs(3600);

/// A message in hand.
pub(crate) struct Lease {
    seq: i64,
    token: i64,
    until: i64,
}

pub(crate) struct Client {
    pub(crate) connection: PgConnection,
    layout: &'static Layout,
    shape: Shape,
    random: fastrand::Rng,
    /// Random bytes of which payloads are cut, so that none can be compressed.
    bytes: Vec<u8>,
}

impl Client {
    pub(crate) fn new(connection: PgConnection, layout: &'static Layout, shape: Shape) -> Self {
        let mut random = fastrand::Rng::new();
        let mut bytes = vec![0; shape.payload + (1 << 20)];
        random.fill(&mut bytes);
        Self {
            connection,
            layout,
            shape,
            random,
            bytes,
        }
    }

    /// Receives that many new messages, batch after batch.
    pub(crate) async fn receive(&mut self, number: u64) -> Result<()> {
        let batch = u64::from(self.shape.batch);
        for from in (0..number).step_by(self.shape.batch as usize) {
            self.receive_batch(batch.min(number - from)).await?;
        }
        Ok(())
    }

    async fn receive_batch(&mut self, number: u64) -> Result<()> {
        let ids: Vec<String> = (0..number)
            .map(|_| uuid_text(self.random.u128(..)))
            .collect();
        let room = self.bytes.len() - self.shape.payload;
        let payloads: Vec<&[u8]> = (0..number)
            .map(|_| {
                let from = self.random.usize(..room);
                &self.bytes[from..from + self.shape.payload]
            })
            .collect();
        let accepted = sqlx::query(self.layout.receive)
            .bind(HANDLER)
            .bind(&ids)
            .bind(&payloads)
            .fetch_all(&mut self.connection)
            .await?;
        ensure!(accepted.len() == ids.len(), "a fresh id was refused");
        Ok(())
    }

    /// Claims a batch.
    pub(crate) async fn claim(&mut self) -> Result<Vec<Lease>> {
        let rows = sqlx::query(self.layout.claim)
            .bind(HANDLER)
            .bind(i64::from(self.shape.batch))
            .bind(i64::try_from(LEASE.as_micros())?)
            .bind("worker-1")
            .fetch_all(&mut self.connection)
            .await?;
        let leases = rows.iter().map(|row| {
            let payload: &[u8] = row.try_get("payload")?;
            ensure!(!payload.is_empty(), "a payload is missing");
            Ok(Lease {
                seq: row.try_get("seq")?,
                token: row.try_get("token")?,
                until: row.try_get("lease_until")?,
            })
        });
        leases.collect()
    }

    /// Settles leases of one claim as processed.
    pub(crate) async fn settle(&mut self, mut leases: Vec<Lease>) -> Result<()> {
        leases.sort_by_key(|lease| lease.seq);
        let seqs: Vec<i64> = leases.iter().map(|lease| lease.seq).collect();
        let tokens: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
        let settled = sqlx::query(self.layout.settle)
            .bind(&seqs)
            .bind(&tokens)
            .bind(HANDLER)
            .bind(leases.first().map(|lease| lease.until))
            .fetch_all(&mut self.connection)
            .await?;
        ensure!(settled.len() == leases.len(), "a lease was lost");
        Ok(())
    }

    /// Claims and settles that many messages.
    pub(crate) async fn work(&mut self, number: u64) -> Result<()> {
        let mut done = 0;
        while done < number {
            let leases = self.claim().await?;
            ensure!(!leases.is_empty(), "nothing left after {done} messages");
            done += leases.len() as u64;
            self.settle(leases).await?;
        }
        Ok(())
    }

    /// Claims and settles until nothing is left.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        loop {
            let leases = self.claim().await?;
            if leases.is_empty() {
                return Ok(());
            }
            self.settle(leases).await?;
        }
    }

    /// Adds messages on the server, without a trip for each batch.
    pub(crate) async fn prefill(&mut self, sql: &'static str, number: u64) -> Result<()> {
        sqlx::query(sql)
            .bind(HANDLER)
            .bind(i64::try_from(number)?)
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }
}

/// Receives, claims and settles that many messages through all clients at once, each doing a batch
/// of each in turn.
pub(crate) async fn cycle(clients: Vec<Client>, number: u64) -> Result<Duration> {
    let received = Arc::new(AtomicU64::new(0));
    let settled = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let (received, settled) = (Arc::clone(&received), Arc::clone(&settled));
            tokio::spawn(async move {
                let batch = u64::from(client.shape.batch);
                loop {
                    let from = received.fetch_add(batch, Ordering::Relaxed);
                    if from < number {
                        client.receive_batch(batch.min(number - from)).await?;
                    } else if settled.load(Ordering::Relaxed) == number {
                        return anyhow::Ok(());
                    }
                    let leases = client.claim().await?;
                    if !leases.is_empty() {
                        let count = leases.len() as u64;
                        client.settle(leases).await?;
                        settled.fetch_add(count, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(start.elapsed())
}

fn uuid_text(n: u128) -> String {
    let hex = format!("{n:032x}");
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("{a}-{b}-{c}-{d}-{e}")
}
