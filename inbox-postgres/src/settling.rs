//! Settlements on their way: in one statement, or past rows that other transactions hold.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use inbox_api::{Effect, Error, Result, Settled, Settlement};
use sqlx::Row as _;

use crate::{
    error::{before, sqlstate},
    sqlstate::LOCK_NOT_AVAILABLE,
    store::{On, PostgresStore},
    work::{Arguments, Repetition, Sent, Settle, Waiting},
};

/// So long a batch waits for each lock of another transaction before the rest of it goes past.
const PATIENCE: Duration = Duration::from_secs(1);

impl PostgresStore {
    pub(crate) async fn settle_on(
        &self,
        operation: &'static str,
        mut on: On<'_>,
        settlements: &[Settlement],
        repetition: Repetition,
    ) -> Result<Vec<Settled>> {
        let settle = self.inner.work.settle(settlements);
        let mut standing = HashSet::with_capacity(settlements.len());
        let mut sending = Sending {
            store: self,
            operation,
            any_ordered: settle.any_ordered,
            repetition,
            left: self.limit(),
        };
        for (n, chunk) in settle.chunks().into_iter().enumerate() {
            let sent = match &mut on {
                On::Transaction(connection) => {
                    let on = On::Transaction(connection);
                    sending.send(on, chunk, Waiting::InTransaction).await
                }
                _ => {
                    // What was sent before is settled.
                    let sent = sending.send_alone(chunk).await;
                    sent.map_err(|error| if n > 0 { unknown(error) } else { error })
                }
            };
            standing.extend(sent?);
        }
        Ok(settle.settled(&standing, settlements))
    }
}

fn unknown(error: Error) -> Error {
    error.with_effect(Effect::Unknown)
}

struct Sending<'s> {
    store: &'s PostgresStore,
    operation: &'static str,
    any_ordered: bool,
    repetition: Repetition,
    /// Of the time for what is being sent.
    left: Duration,
}

impl Sending<'_> {
    /// Answers which of the leases stood.
    async fn send(
        &self,
        on: On<'_>,
        chunk: &[Sent<'_>],
        waiting: Waiting,
    ) -> Result<HashSet<(i64, i64)>> {
        let (operation, work) = (self.operation, &self.store.inner.work);
        let arguments = work.settle_arguments(operation, chunk, self.any_ordered, waiting)?;
        let text = &work.statements.settle;
        let answer = self
            .store
            .run_within(self.left, operation, on, text, arguments)
            .await?;
        Settle::standing(operation, chunk, &answer, self.repetition)
    }

    /// In its own transaction. A row that another one holds for longer than a moment must not
    /// keep the rest of the batch waiting, whose leases run out: it is settled behind that.
    async fn send_alone(&mut self, chunk: &[Sent<'_>]) -> Result<HashSet<(i64, i64)>> {
        let (began, limit) = (Instant::now(), self.store.limit());
        self.left = limit;
        if chunk.len() == 1 {
            return self.send(On::Pool, chunk, Waiting::ToTheEnd).await;
        }
        let patience = PATIENCE.min(limit / 4).max(Duration::from_millis(1));
        match self.send(On::Pool, chunk, Waiting::For(patience)).await {
            Err(error) if is_lock_timeout(&error) => {}
            outcome => return outcome,
        }
        let held = self.held(chunk).await?;
        let (held, free): (Vec<_>, Vec<_>) =
            chunk.iter().partition(|((seq, _), _)| held.contains(seq));
        let mut standing = HashSet::with_capacity(chunk.len());
        for (some, behind_others) in [(&free, false), (&held, !free.is_empty())] {
            if some.is_empty() {
                continue;
            }
            self.left = limit.saturating_sub(began.elapsed());
            let sent = self.send(On::Pool, some, Waiting::ToTheEnd).await;
            standing.extend(sent.map_err(|error| match behind_others {
                true => unknown(error),
                false => error,
            })?);
        }
        Ok(standing)
    }

    /// The numbers of the rows that others hold.
    async fn held(&self, chunk: &[Sent<'_>]) -> Result<HashSet<i64>> {
        let (operation, work) = (self.operation, &self.store.inner.work);
        let seqs: Vec<i64> = chunk.iter().map(|((seq, _), _)| *seq).collect();
        let arguments = Arguments::new(operation).with(seqs).finish()?;
        let text = &work.statements.held;
        let answer = self.store.run(operation, On::Pool, text, arguments).await?;
        let held: sqlx::Result<_> = answer.iter().map(|row| row.try_get(0)).collect();
        held.map_err(before(operation))
    }
}

fn is_lock_timeout(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.and_then(sqlstate).as_deref() == Some(LOCK_NOT_AVAILABLE)
}
