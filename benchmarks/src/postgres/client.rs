//! The store, driven batch by batch as the layouts are.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use inbox::{
    Bytes, ClaimRequest, HandlerName, Kind, LeaseTerms, Message, MessageId, Outcome, Receipt,
    Schema as _, Settled, Settlement, Store as _, WorkerName,
    postgres::{PostgresOptions, PostgresStore},
};

use crate::{
    layouts::{Shape, server::Server},
    target::handler,
};

/// The database of the inbox.
pub(crate) const DATABASE: &str = "bench_inbox";

/// Makes the database anew, with an empty inbox.
pub(crate) async fn fresh(server: &mut Server, connections: u32) -> Result<PostgresStore> {
    server.drop(DATABASE).await?;
    server.run(format!("CREATE DATABASE {DATABASE}")).await?;
    let store = connect(server, connections).await?;
    store.create().await?;
    Ok(store)
}

pub(crate) async fn connect(server: &Server, connections: u32) -> Result<PostgresStore> {
    let connection = server.plain_options(DATABASE);
    let options = PostgresOptions::new().max_connections(connections);
    Ok(PostgresStore::connect(connection, options).await?)
}

/// A task's hold on the store.
pub(crate) struct Client {
    store: Arc<PostgresStore>,
    shape: Shape,
    handler: HandlerName,
    kind: Kind,
    terms: LeaseTerms,
    random: fastrand::Rng,
    /// Random bytes of which payloads are cut, so that none can be compressed.
    bytes: Bytes,
}

impl Client {
    pub(crate) fn new(store: &Arc<PostgresStore>, shape: Shape) -> Result<Self> {
        let mut random = fastrand::Rng::new();
        let mut bytes = vec![0; shape.payload + (1 << 20)];
        random.fill(&mut bytes);
        Ok(Self {
            store: Arc::clone(store),
            shape,
            handler: handler()?,
            kind: Kind::new("bench.event")?,
            terms: LeaseTerms::new(Duration::from_secs(3600), WorkerName::new("worker-1")?)?,
            random,
            bytes: bytes.into(),
        })
    }

    pub(crate) fn messages(&mut self, number: u64) -> Result<Vec<Message>> {
        let room = self.bytes.len() - self.shape.payload;
        (0..number)
            .map(|_| {
                let from = self.random.usize(..room);
                Ok(Message::new(
                    self.handler.clone(),
                    MessageId::new(format!("{:032x}", self.random.u128(..)))?,
                    self.kind.clone(),
                    self.bytes.slice(from..from + self.shape.payload),
                ))
            })
            .collect()
    }

    /// Receives that many new messages, batch after batch, and returns them.
    pub(crate) async fn receive(&mut self, number: u64) -> Result<Vec<Vec<Message>>> {
        let batch = u64::from(self.shape.batch);
        let mut sent = Vec::new();
        for from in (0..number).step_by(self.shape.batch as usize) {
            let messages = self.messages(batch.min(number - from))?;
            self.receive_as(&messages, &Receipt::Accepted).await?;
            sent.push(messages);
        }
        Ok(sent)
    }

    pub(crate) async fn receive_as(&self, messages: &[Message], expected: &Receipt) -> Result<()> {
        let receipts = self.store.receive(messages).await?;
        ensure!(receipts.iter().all(|receipt| receipt == expected));
        Ok(())
    }

    /// Claims a batch.
    pub(crate) async fn claim(&self) -> Result<Vec<Settlement>> {
        let request = ClaimRequest {
            handlers: vec![self.handler.clone()],
            limit: self.shape.batch,
            terms: self.terms.clone(),
        };
        let claims = self.store.claim(&request).await?;
        ensure!(claims.corrupt.is_empty());
        Ok(claims
            .leased
            .into_iter()
            .map(|leased| Settlement {
                lease: leased.lease,
                outcome: Outcome::Processed { result: None },
            })
            .collect())
    }

    /// Settles what was claimed as processed.
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<()> {
        let settled = self.store.settle(settlements).await?;
        ensure!(
            settled.iter().all(|s| *s == Settled::Done),
            "a lease was lost"
        );
        Ok(())
    }

    /// Claims and settles that many messages.
    pub(crate) async fn work(&self, number: u64) -> Result<()> {
        let mut done = 0;
        while done < number {
            let claimed = self.claim().await?;
            ensure!(!claimed.is_empty(), "nothing left after {done} messages");
            done += claimed.len() as u64;
            self.settle(&claimed).await?;
        }
        Ok(())
    }
}
