//! Writes that may meet a message which an open transaction has changed.

use std::time::Duration;

use inbox_api::Result;
use mongodb::{
    bson::{Document, doc},
    error::{Error as DriverError, ErrorKind as Driver, WriteFailure},
    options::{Hint, ReturnDocument},
};

use super::{Connection, Session};
use crate::{
    error::{LOCK_TIMEOUT, TIME_OVER, WRITE_CONFLICT, code},
    layout::ID_INDEX,
    rows::those,
    sessions::{commit_transaction, start_transaction, write_concern},
};

/// What becomes of a write that meets a message which an open transaction has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It waits, or is a conflict where it is part of a transaction itself.
    Long,
    /// It gives up after a while.
    Short(Duration),
    /// It gives up at once. For its own transaction.
    None,
}

impl Wait {
    /// Whether the error says that a message is held, or that the server was slow.
    pub(super) fn is_over(self, error: &DriverError) -> bool {
        match self {
            Self::Long => false,
            Self::Short(_) => code(error) == Some(TIME_OVER),
            Self::None => matches!(code(error), Some(WRITE_CONFLICT | LOCK_TIMEOUT)),
        }
    }

    /// The same of a reply: a `mongos` tells of each statement by itself.
    pub(super) fn is_over_in(self, reply: &Document) -> bool {
        let errors = reply.get_array("writeErrors").into_iter().flatten();
        let mut codes = errors.filter_map(|error| error.as_document()?.get_i32("code").ok());
        matches!(self, Self::Short(_)) && codes.any(|code| code == TIME_OVER)
    }
}

/// What became of a change of one message.
#[derive(Debug)]
pub(crate) enum Change {
    /// The message as it is afterwards.
    Done(Document),
    /// There is none that is as the filter says.
    NoneSuch,
    /// Done, or perhaps done: what it gives was lost.
    Unread,
    /// An open transaction holds it, unless a change that was given up was made after all.
    Held,
}

impl Connection<'_> {
    /// [`update`](Self::update) in its own transaction, which waits for no other: all of it, or `None` when
    /// another transaction holds one of the messages, or has changed it just now.
    pub(crate) async fn update_at_once(
        &mut self,
        statements: Vec<Document>,
    ) -> Result<Option<u64>> {
        self.start_own().await?;
        let updated = self.run_updates(statements, Wait::None).await;
        let done = matches!(updated, Ok(Some(_)));
        let committed = self.end_own(done).await?;
        Ok(updated?.filter(|_| committed))
    }

    /// Whether no other transaction holds one of these messages, or has changed one just now. Changes
    /// nothing.
    pub(crate) async fn is_free(&mut self, ids: &[String]) -> Result<bool> {
        self.start_own().await?;
        // Eight bytes in their place, whatever the size of the message.
        let probe = doc! { "$set": { "token": -1_i64 } };
        let messages = those(ids.iter().map(String::as_str));
        let statement = doc! { "q": messages, "u": probe, "multi": true };
        let probed = self.run_updates(vec![statement], Wait::None).await;
        self.end_own(false).await?;
        Ok(probed?.is_some())
    }

    async fn start_own(&mut self) -> Result<()> {
        self.begin_session().await?;
        self.session = match std::mem::replace(&mut self.session, Session::None) {
            Session::Causal(mut session) => {
                let started = start_transaction(&mut session).await;
                if let Err(error) = started {
                    self.session = Session::Causal(session);
                    return Err(self.failed_to_read(error));
                }
                Session::Own(session)
            }
            other => other,
        };
        Ok(())
    }

    /// Commits what was `done`, or aborts. Answers whether it is committed: the server may find a
    /// conflict then only, or has no room for a transaction of this size.
    async fn end_own(&mut self, done: bool) -> Result<bool> {
        let Session::Own(mut session) = std::mem::replace(&mut self.session, Session::None) else {
            return Ok(done);
        };
        let ended = if done {
            commit_transaction(&mut session).await
        } else {
            // An abort that fails is made up for by the server, which aborts after a while.
            let _ = session.abort_transaction().await;
            Ok(())
        };
        self.session = Session::Causal(session);
        match ended {
            Err(error) if Wait::None.is_over(&error) => return Ok(false),
            Err(error) => return Err(self.failed(error)),
            Ok(()) if done => self.has_changed(),
            Ok(()) => {}
        }
        Ok(done)
    }

    /// Changes the one message that `filter` means, by its identifier. Does not wait long for an
    /// open transaction that holds it; within a transaction that is a conflict.
    pub(crate) async fn change(
        &mut self,
        filter: Document,
        pipeline: Vec<Document>,
    ) -> Result<Change> {
        if self.session.is_transaction() || !self.database.server.replicates() {
            return self.change_one(filter, pipeline, Wait::Long).await;
        }
        let short = Wait::Short(self.database.pace.patience(0));
        let changed = self.change_one(filter.clone(), pipeline.clone(), short);
        match changed.await? {
            Change::Held => {}
            changed => return Ok(changed),
        }
        // Or the server is slow.
        self.start_own().await?;
        let changed = self.change_one(filter, pipeline, Wait::None).await;
        let done = matches!(changed, Ok(Change::Done(_)));
        let committed = self.end_own(done).await?;
        match changed? {
            Change::Done(_) if !committed => Ok(Change::Held),
            Change::NoneSuch => {
                // A `mongos` gives a change up whose shard has made it.
                self.has_changed();
                self.confirm().await?;
                Ok(Change::Unread)
            }
            changed => Ok(changed),
        }
    }

    async fn change_one(
        &mut self,
        filter: Document,
        pipeline: Vec<Document>,
        wait: Wait,
    ) -> Result<Change> {
        self.begin_session().await?;
        let mut change = self
            .database
            .messages
            .find_one_and_update(filter, pipeline)
            .return_document(ReturnDocument::After);
        if !self.database.server.is_ferretdb {
            change = change.hint(Hint::Name(ID_INDEX.into()));
        }
        if !self.session.is_transaction() {
            change = change.write_concern(write_concern());
        }
        if let Wait::Short(patience) = wait {
            change = change.max_time(patience);
        }
        let changed = match self.session.get() {
            Some(session) => change.session(session).await,
            None => change.await,
        };
        let changed = match changed {
            Err(error) if wait.is_over(&error) => {
                let written = matches!(
                    error.kind.as_ref(),
                    Driver::Write(WriteFailure::WriteConcernError(_))
                );
                if !written {
                    return Ok(Change::Held);
                }
                self.has_changed();
                self.confirm().await?;
                return Ok(Change::Unread);
            }
            changed => changed.map_err(|error| self.failed(error))?,
        };
        if changed.is_some() {
            self.has_changed();
        }
        self.open_again_if_late().await?;
        Ok(changed.map_or(Change::NoneSuch, Change::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_ran_out_of_time_is_told_in_the_reply_too() {
        let short = Wait::Short(Duration::from_millis(1));
        let over = doc! { "ok": 1, "n": 1, "writeErrors": [{ "index": 0, "code": TIME_OVER }] };
        assert!(short.is_over_in(&over));
        assert!(!Wait::Long.is_over_in(&over));
        let other = doc! { "ok": 1, "n": 0, "writeErrors": [{ "index": 0, "code": 2 }] };
        assert!(!short.is_over_in(&other));
        assert!(!short.is_over_in(&doc! { "ok": 1, "n": 1 }));
    }
}
