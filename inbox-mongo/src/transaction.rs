//! A transaction in a session of the driver's.

use inbox_api::{Effect, Error, ErrorKind, Result};
use mongodb::{ClientSession, bson::oid::ObjectId, error::ErrorKind as Driver};

use crate::{
    connection::Database,
    count_cache::opened::Opening,
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
    /// Of all that it changes.
    opening: Option<Opening>,
    /// Whether a step failed, and may be done in part.
    has_failed: bool,
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
            opening: None,
            has_failed: false,
        })
    }

    pub(crate) fn note(&mut self, ordered: &[String], mark: ObjectId) {
        if !ordered.is_empty() {
            self.ordered.extend_from_slice(ordered);
            self.marks.push(mark);
        }
    }

    /// Notes which segments of the counts a step changes.
    pub(crate) fn note_opening(&mut self, opening: Option<Opening>) {
        self.opening = match (self.opening.take(), opening) {
            (Some(earlier), Some(later)) => Some(earlier.and(later)),
            (one, other) => one.or(other),
        };
    }

    /// Notes that a step failed: the server may have done a part of it, and would commit that.
    pub(crate) fn note_failure(&mut self) {
        self.has_failed = true;
    }

    /// Fails behind a step that failed.
    pub(crate) fn check_steps(&self) -> Result<()> {
        if self.has_failed {
            let context = "an earlier step in this transaction failed: roll the transaction back";
            return Err(Error::new(ErrorKind::Conflict, context));
        }
        Ok(())
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

    /// Answers the session, in which what follows sees what was committed. Aborts behind a step that failed.
    pub(crate) async fn commit(mut self, database: &Database) -> Result<ClientSession> {
        self.check_open().await?;
        if let Err(error) = self.check_steps() {
            self.abort().await;
            return Err(error);
        }
        let mut counted = database.connection();
        counted.opening = self.opening.take();
        let opened = counted.open_again_if_late().await;
        opened.map_err(|error| error.with_effect(Effect::None))?;
        let committed = commit_transaction(&mut self.session).await;
        committed.map_err(failed)?;
        // It is committed, whatever becomes of this.
        let _ = counted.open_again_if_late().await;
        Ok(self.session)
    }

    /// An abort that fails is made up for by the server, which aborts after a while.
    pub(crate) async fn abort(mut self) {
        let _ = self.session.abort_transaction().await;
    }
}
