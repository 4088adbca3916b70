//! A transaction in a session of the driver's.

use inbox_api::{Effect, Error, ErrorKind, Result};
use mongodb::{ClientSession, bson::oid::ObjectId, error::ErrorKind as Driver};

use crate::{
    connection::Database,
    error::{before, failed},
    paused_renewals::Pause,
    sessions::{commit_transaction, start_transaction},
};

/// What a task needs of a transaction.
pub(crate) struct OpenTransaction {
    pub(crate) session: ClientSession,
    /// Messages whose ordering keys are to be looked at after the commit, and their marks.
    pub(crate) ordered: Vec<String>,
    pub(crate) marks: Vec<ObjectId>,
    /// Of the leases for whose messages it was opened.
    pub(crate) pause: Option<Pause>,
}

impl OpenTransaction {
    pub(crate) async fn open(database: &Database) -> Result<Self> {
        if !database.server.replicates() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a standalone server has no transactions; they need a replica set or a sharded \
                 cluster",
            ));
        }
        let mut session = database.client.start_session().await.map_err(before)?;
        start_transaction(&mut session).await.map_err(before)?;
        Ok(Self {
            session,
            ordered: Vec::new(),
            marks: Vec::new(),
            pause: None,
        })
    }

    pub(crate) fn note(&mut self, ordered: &[String], mark: ObjectId) {
        if !ordered.is_empty() {
            self.ordered.extend_from_slice(ordered);
            self.marks.push(mark);
        }
    }

    /// Fails when the transaction is not the one that was opened any more: a driver's session takes
    /// requests after its transaction was committed or aborted through it, and commits twice.
    pub(crate) async fn check_open(&mut self) -> Result<()> {
        match self.session.start_transaction().await {
            // This is asked of the driver, which says so without a request.
            Err(error) if matches!(error.kind.as_ref(), Driver::Transaction { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
            Ok(()) => {
                let _ = self.session.abort_transaction().await;
                let context = "the handler has ended the transaction by itself";
                Err(Error::new(ErrorKind::Other, context).with_effect(Effect::Unknown))
            }
        }
    }

    /// Answers the session, in which what follows sees what was committed.
    pub(crate) async fn commit(mut self) -> Result<ClientSession> {
        self.check_open().await?;
        let committed = commit_transaction(&mut self.session).await;
        committed.map_err(failed)?;
        Ok(self.session)
    }

    /// An abort that fails is made up for by the server, which aborts after a while.
    pub(crate) async fn abort(mut self) {
        let _ = self.session.abort_transaction().await;
    }
}
