//! A transaction in a session of the driver's.

use std::sync::Arc;

use inbox_api::{Effect, Error, ErrorKind, Result};
use mongodb::{ClientSession, bson::oid::ObjectId, error::ErrorKind as Driver};

use crate::{
    connection::{Connection, Database},
    count_cache::opened::Opening,
    error::{before, failed},
    paused_renewals::Pause,
    sessions::{commit_transaction, start_transaction},
};

/// What a transaction has changed in one inbox.
pub(crate) struct Changes {
    pub(crate) database: Arc<Database>,
    /// Messages whose ordering keys are to be looked at after the commit, and their marks.
    pub(crate) ordered: Vec<String>,
    pub(crate) marks: Vec<ObjectId>,
    /// Of all that it changes.
    opening: Option<Opening>,
}

/// What a task needs of a transaction.
pub(crate) struct OpenTransaction {
    pub(crate) session: ClientSession,
    /// Of the leases for whose messages it was opened.
    pub(crate) pause: Option<Pause>,
    /// By inbox: one transaction may work in several of its client.
    changes: Vec<Changes>,
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
            pause: None,
            changes: Vec::new(),
            has_failed: false,
        })
    }

    fn changes_in(&mut self, database: &Arc<Database>) -> Option<&mut Changes> {
        let is_same = |changes: &Changes| Arc::ptr_eq(&changes.database, database);
        if !self.changes.iter().any(is_same) {
            self.changes.push(Changes {
                database: Arc::clone(database),
                ordered: Vec::new(),
                marks: Vec::new(),
                opening: None,
            });
        }
        self.changes.iter_mut().find(|changes| is_same(changes))
    }

    /// Notes messages of an inbox whose ordering keys are to be looked at, with their mark.
    pub(crate) fn note(&mut self, database: &Arc<Database>, ordered: &[String], mark: ObjectId) {
        if let Some(changes) = self.changes_in(database)
            && !ordered.is_empty()
        {
            changes.ordered.extend_from_slice(ordered);
            changes.marks.push(mark);
        }
    }

    /// Notes which segments of an inbox's counts a step changes.
    pub(crate) fn note_opening(&mut self, database: &Arc<Database>, opening: Option<Opening>) {
        if let Some(changes) = self.changes_in(database) {
            changes.opening = match (changes.opening.take(), opening) {
                (Some(earlier), Some(later)) => Some(earlier.and(later)),
                (one, other) => one.or(other),
            };
        }
    }

    /// The messages with ordering keys that it has changed in this inbox, through whichever store.
    pub(crate) fn ordered_in(&self, database: &Database) -> Vec<String> {
        let inbox = database.messages().namespace();
        let changes = self.changes.iter();
        changes
            .filter(|changes| changes.database.messages().namespace() == inbox)
            .flat_map(|changes| changes.ordered.iter().cloned())
            .collect()
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

    /// Answers the session, in which what follows sees what was committed, and what was changed. Aborts behind a step
    /// that failed.
    pub(crate) async fn commit(mut self) -> Result<(ClientSession, Vec<Changes>)> {
        self.check_open().await?;
        if let Err(error) = self.check_steps() {
            self.abort().await;
            return Err(error);
        }
        let mut counted: Vec<Connection<'_>> = self.changes.iter().map(Changes::counted).collect();
        for connection in &mut counted {
            let opened = connection.open_again_if_late().await;
            opened.map_err(|error| error.with_effect(Effect::None))?;
        }
        let committed = commit_transaction(&mut self.session).await;
        committed.map_err(failed)?;
        for connection in &mut counted {
            // It is committed, whatever becomes of this.
            let _ = connection.open_again_if_late().await;
        }
        drop(counted);
        Ok((self.session, self.changes))
    }

    /// Answers what it would have changed. An abort that fails is made up for by the server, which aborts after a
    /// while.
    pub(crate) async fn abort(mut self) -> Vec<Changes> {
        let _ = self.session.abort_transaction().await;
        self.changes
    }
}

impl Changes {
    /// A connection that opens segments again.
    fn counted(&self) -> Connection<'_> {
        let mut connection = self.database.connection();
        connection.opening = self.opening.clone();
        connection
    }
}
