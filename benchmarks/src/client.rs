//! A store, driven batch by batch as the layouts are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use inbox::{
    Bytes, ClaimRequest, HandlerName, Kind, LeaseTerms, Message, MessageId, Outcome, Receipt,
    Settled, Settlement, Store, WorkerName,
};

use crate::{layouts::Shape, target::handler};

/// Makes messages that no store has seen.
pub(crate) struct Maker {
    handler: HandlerName,
    kind: Kind,
    payload: usize,
    random: fastrand::Rng,
    /// Random bytes of which payloads are cut, so that none can be compressed.
    bytes: Bytes,
}

impl Maker {
    pub(crate) fn new(payload: usize) -> Result<Self> {
        let mut random = fastrand::Rng::new();
        let mut bytes = vec![0; payload + (1 << 20)];
        random.fill(&mut bytes);
        Ok(Self {
            handler: handler()?,
            kind: Kind::new("bench.event")?,
            payload,
            random,
            bytes: bytes.into(),
        })
    }

    pub(crate) fn message(&mut self) -> Result<Message> {
        let from = self.random.usize(..self.bytes.len() - self.payload);
        self.message_of(self.bytes.slice(from..from + self.payload))
    }

    /// A message with this payload.
    pub(crate) fn message_of(&mut self, payload: Bytes) -> Result<Message> {
        Ok(Message::new(
            self.handler.clone(),
            MessageId::new(format!("{:032x}", self.random.u128(..)))?,
            self.kind.clone(),
            payload,
        ))
    }

    pub(crate) fn messages(&mut self, number: u64) -> Result<Vec<Message>> {
        (0..number).map(|_| self.message()).collect()
    }

    /// That many messages, in batches.
    pub(crate) fn batches(&mut self, number: u64, batch: u32) -> Result<Vec<Vec<Message>>> {
        (0..number)
            .step_by(batch as usize)
            .map(|from| self.messages(u64::from(batch).min(number - from)))
            .collect()
    }
}

/// A task's hold on the store.
pub(crate) struct Client {
    store: Arc<dyn Store>,
    shape: Shape,
    handler: HandlerName,
    terms: LeaseTerms,
    maker: Maker,
}

impl Client {
    pub(crate) fn new(store: Arc<dyn Store>, shape: Shape) -> Result<Self> {
        Ok(Self {
            store,
            shape,
            handler: handler()?,
            terms: LeaseTerms::new(Duration::from_secs(3600), WorkerName::new("worker-1")?)?,
            maker: Maker::new(shape.payload)?,
        })
    }

    pub(crate) fn messages(&mut self, number: u64) -> Result<Vec<Message>> {
        self.maker.messages(number)
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

    /// Times of receiving the batches, of receiving them again, and of claiming and settling all of
    /// it, which must be all there is.
    pub(crate) async fn receive_twice_and_work(
        &self,
        batches: &[Vec<Message>],
    ) -> Result<[Duration; 3]> {
        let mut times = [Duration::ZERO; 3];
        for (time, expected) in times
            .iter_mut()
            .zip([Receipt::Accepted, Receipt::Duplicate])
        {
            let start = Instant::now();
            for batch in batches {
                self.receive_as(batch, &expected).await?;
            }
            *time = start.elapsed();
        }
        let number: usize = batches.iter().map(Vec::len).sum();
        let start = Instant::now();
        self.work(number as u64).await?;
        times[2] = start.elapsed();
        ensure!(self.claim().await?.is_empty(), "more than was received");
        Ok(times)
    }
}
