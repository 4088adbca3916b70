//! Connections that go back to their pool only when they are sound, and never wait for a server
//! without limit.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use inbox_api::Result;
use inbox_sqlx::{AtHand, Held, Spare, close_all_of};
use sqlx::{Connection as _, PgConnection, Postgres};
use tokio::time::error::Elapsed;

use crate::error::{before, no_answer};

/// A connection of the pool, for one operation.
pub(crate) struct ConnectionGuard<'a> {
    connections: &'a AtHand<Postgres>,
    connection: Option<Held<Postgres>>,
    /// A transaction may be open that the driver does not know of.
    in_transaction: bool,
}

impl<'a> ConnectionGuard<'a> {
    pub(crate) fn new(connections: &'a AtHand<Postgres>) -> Self {
        Self {
            connections,
            connection: None,
            in_transaction: false,
        }
    }

    pub(crate) async fn take(&mut self) -> sqlx::Result<&mut PgConnection> {
        let connection = self.connections.acquire().await?;
        Ok(self.connection.insert(connection))
    }

    pub(crate) async fn take_or_spare(
        &mut self,
        spare: &Spare<Postgres>,
    ) -> sqlx::Result<&mut PgConnection> {
        // Boxed, as it has room for all of connecting, twice.
        let connection = Box::pin(spare.acquire(self.connections)).await?;
        Ok(self.connection.insert(connection))
    }

    pub(crate) fn connection(&mut self) -> Option<&mut PgConnection> {
        self.connection.as_deref_mut()
    }

    /// From here to [`transaction_ended`](Self::transaction_ended), the connection is closed rather
    /// than given back: a BEGIN whose future is dropped would leave its transaction open.
    pub(crate) fn transaction_begins(&mut self) -> sqlx::Result<&mut PgConnection> {
        self.in_transaction = true;
        self.connection().ok_or(sqlx::Error::WorkerCrashed)
    }

    pub(crate) fn transaction_ended(&mut self) {
        self.in_transaction = false;
    }

    /// What came of work on this connection under the limit.
    pub(crate) fn finish<T>(
        mut self,
        outcome: std::result::Result<Result<T>, Elapsed>,
    ) -> Result<T> {
        if let Ok(Ok(_)) = &outcome
            && !self.in_transaction
            && let Some(connection) = self.connection.take_if(|held| !held.should_flush())
        {
            self.connections.release(connection);
        }
        outcome.unwrap_or_else(|_| {
            if self.connection.is_none() {
                return Err(before(sqlx::Error::PoolTimedOut));
            }
            self.close();
            Err(no_answer())
        })
    }

    pub(crate) fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection.into_inner().detach());
        }
    }
}

/// Gives the connection back. If the operation was dropped, its statement goes on, and its answer
/// is waited for.
impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        if self.in_transaction {
            self.close();
        } else if let Some(connection) = self.connection.take() {
            self.connections.give_back(connection.into_inner());
        }
    }
}

/// A future that owns a connection of a pool, in a transaction for instance, and closes it when it
/// is dropped before its end.
pub(crate) struct OrClose<F: Future>(Option<Pin<Box<F>>>);

impl<F: Future> OrClose<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future> Future for OrClose<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future> Drop for OrClose<F> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            close_all_of(future);
        }
    }
}
