//! The connection: what the server can do, and the few kinds of requests that the store makes,
//! each with its concerns said.

use std::time::{Duration, Instant};

use inbox_api::{ClockOffset, Effect, Error, ErrorKind, InboxName, Result};
use mongodb::{
    Client, ClientSession, Collection,
    bson::{Bson, Document, RawDocumentBuf, doc},
    error::{Error as DriverError, ErrorKind as Driver},
    options::{
        Acknowledgment, Hint, ReadConcern, ReadPreference, ReturnDocument, SessionOptions,
        WriteConcern,
    },
};

use crate::{
    error::{DUPLICATE_KEY, TIME_OVER, in_operation, in_reply, of_code},
    held::{self, LeftOut, Pace},
    resting::Resting,
    schema::ID_INDEX,
    segments::{Opened, Opening},
    server::Server,
};

mod waiting;

pub(crate) use waiting::Change;
use waiting::Wait;

/// How many bytes of statements one command takes. The server's limit is 16 MiB.
const COMMAND_BYTES: usize = 8 * 1024 * 1024;

/// How many documents the first reply to a request may have: all, where a server would give 101 and
/// leave the others for a second round trip. Its replies end at 16 MiB in any case.
const AT_ONCE: u32 = 1 << 20;

pub(crate) fn write_concern() -> WriteConcern {
    let mut concern = WriteConcern::builder().w(Acknowledgment::Majority).build();
    concern.journal = Some(true);
    concern
}

/// The same, for commands that are sent as they are.
pub(crate) fn write_concern_document() -> Document {
    doc! { "w": "majority", "j": true }
}

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) client: Client,
    database: mongodb::Database,
    messages: Collection<Document>,
    raw_messages: Collection<RawDocumentBuf>,
    pub(crate) inbox: InboxName,
    pub(crate) server: Server,
    pub(crate) opened: Opened,
    pub(crate) left_out: LeftOut,
    pub(crate) pace: Pace,
    pub(crate) resting: Resting,
    /// For tests: the time is the server's.
    offset: ClockOffset,
}

impl Database {
    /// Asks the server what it is.
    pub(crate) async fn new(
        client: Client,
        name: &str,
        inbox: InboxName,
        offset: ClockOffset,
    ) -> Result<Self> {
        let mapped = |error| in_operation("connect")(error).with_effect(Effect::None);
        let database = client.database(name);
        let server = Server::ask(&database).await.map_err(mapped)?;
        let messages = format!("{inbox}_message");
        Ok(Self {
            messages: database.collection(&messages),
            raw_messages: database.collection(&messages),
            server,
            client,
            database,
            inbox,
            opened: Opened::default(),
            left_out: LeftOut::default(),
            pace: Pace::default(),
            resting: Resting::default(),
            offset,
        })
    }

    pub(crate) fn messages(&self) -> &Collection<Document> {
        &self.messages
    }

    pub(crate) fn handle(&self) -> &mongodb::Database {
        &self.database
    }

    pub(crate) fn message_collection(&self) -> String {
        format!("{}_message", self.inbox)
    }

    pub(crate) fn meta_collection(&self) -> String {
        format!("{}_meta", self.inbox)
    }

    pub(crate) fn meta(&self) -> Collection<Document> {
        self.database.collection(&self.meta_collection())
    }

    /// The server's time as an aggregation expression, in microseconds since 1970. The server's
    /// clock counts milliseconds.
    pub(crate) fn now(&self) -> Document {
        let micros = doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] };
        match self.offset.micros() {
            0 => micros,
            ahead => doc! { "$add": [micros, ahead] },
        }
    }

    /// How far the time is ahead of the server's clock.
    pub(crate) fn ahead(&self) -> i64 {
        self.offset.micros()
    }

    /// Requests that are not part of a transaction.
    pub(crate) fn on(&self, operation: &'static str) -> On<'_> {
        On {
            database: self,
            operation,
            opening: None,
            session: Session::None,
            changed: false,
        }
    }

    /// Requests in the transaction of `session`.
    pub(crate) fn within<'a>(
        &'a self,
        operation: &'static str,
        session: &'a mut ClientSession,
    ) -> On<'a> {
        On {
            session: Session::Transaction(session),
            ..self.on(operation)
        }
    }
}

enum Session<'a> {
    None,
    /// Where members may take over from each other: each read sees at least what the requests
    /// before it saw and wrote, whichever member answers.
    Causal(Box<ClientSession>),
    /// The same in a transaction of its own.
    Own(Box<ClientSession>),
    Transaction(&'a mut ClientSession),
}

impl Session<'_> {
    fn get(&mut self) -> Option<&mut ClientSession> {
        match self {
            Self::None => None,
            Self::Causal(session) | Self::Own(session) => Some(session),
            Self::Transaction(session) => Some(session),
        }
    }

    fn is_transaction(&self) -> bool {
        matches!(self, Self::Own(_) | Self::Transaction(_))
    }
}

/// Where and on whose behalf requests are made.
pub(crate) struct On<'a> {
    pub(crate) database: &'a Database,
    pub(crate) operation: &'static str,
    /// The segments that were opened for what follows.
    pub(crate) opening: Option<Opening>,
    session: Session<'a>,
    /// Whether an earlier request of the operation has changed a message, for good.
    changed: bool,
}

impl On<'_> {
    pub(crate) fn error(
        &self,
        kind: ErrorKind,
        context: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Error {
        self.late(Error::new(kind, self.operation, context))
    }

    /// Notes that the operation has changed something.
    pub(crate) fn has_changed(&mut self) {
        self.changed |= !self.session.is_transaction();
    }

    /// An error of the operation: what earlier requests have changed is part of its effect.
    fn late(&self, error: Error) -> Error {
        if self.changed {
            error.with_effect(Effect::Unknown)
        } else {
            error
        }
    }

    /// The error of a request that changes something.
    fn failed(&self, error: DriverError) -> Error {
        self.late(in_operation(self.operation)(error))
    }

    /// The error of a request that only reads. What fails in a transaction may have ended it.
    pub(crate) fn failed_to_read(&self, error: DriverError) -> Error {
        let error = in_operation(self.operation)(error);
        if self.session.is_transaction() {
            return error;
        }
        self.late(error.with_effect(Effect::None))
    }

    /// Begins the session of the operation, if there is to be one.
    async fn begin_session(&mut self) -> Result<()> {
        if matches!(self.session, Session::None) && self.database.server.replicates() {
            let options = SessionOptions::builder().causal_consistency(true).build();
            let session = self.database.client.start_session().with_options(options);
            let session = session.await.map_err(|error| self.failed_to_read(error))?;
            self.session = Session::Causal(Box::new(session));
        }
        Ok(())
    }

    /// All documents that a pipeline over the messages gives, which begins with a look at known
    /// ones.
    pub(crate) async fn look(&mut self, pipeline: Vec<Document>) -> Result<Vec<Document>> {
        self.aggregate(Some(ID_INDEX), pipeline).await
    }

    /// All documents that a pipeline over the messages gives. The name of an index is what a
    /// server's statistics must not talk it out of.
    pub(crate) async fn aggregate(
        &mut self,
        index: Option<&'static str>,
        pipeline: Vec<Document>,
    ) -> Result<Vec<Document>> {
        self.begin_session().await?;
        let mut aggregate = self
            .database
            .messages
            .aggregate(pipeline)
            .batch_size(AT_ONCE);
        if let Some(index) = index {
            aggregate = aggregate.hint(Hint::Name(index.into()));
        }
        if !self.session.is_transaction() {
            aggregate = aggregate
                .read_concern(ReadConcern::majority())
                .selection_criteria(ReadPreference::Primary.into());
        }
        let read = match self.session.get() {
            Some(session) => read_all_in(aggregate.session(&mut *session).await, session).await,
            None => read_all(aggregate.await).await,
        };
        read.map_err(|error| self.failed_to_read(error))
    }

    /// Inserts what is not there yet, by `_id`; answers which of `documents` were there. In a
    /// transaction such a one is an error, since it ends the transaction.
    pub(crate) async fn insert(&mut self, documents: &[RawDocumentBuf]) -> Result<Vec<usize>> {
        self.begin_session().await?;
        let insert = self
            .database
            .raw_messages
            .insert_many(documents)
            .ordered(false);
        if let Session::Transaction(session) = &mut self.session {
            let inserted = insert.session(&mut **session).await;
            return match inserted {
                Ok(_) => Ok(Vec::new()),
                Err(error) => Err(self.failed(error)),
            };
        }
        let insert = insert.write_concern(write_concern());
        let outcome = match self.session.get() {
            Some(session) => insert.session(session).await,
            None => insert.await,
        };
        let Err(error) = outcome else {
            self.has_changed();
            return Ok(Vec::new());
        };
        let Driver::InsertMany(many) = error.kind.as_ref() else {
            return Err(self.failed(error));
        };
        if many.write_concern_error.is_some() {
            return Err(self.failed(error).with_effect(Effect::Unknown));
        }
        let mut known = Vec::new();
        for failure in many.write_errors.iter().flatten() {
            if failure.code != DUPLICATE_KEY {
                return Err(of_code(self.operation, failure.code).with_effect(Effect::Unknown));
            }
            known.push(failure.index);
        }
        if known.len() < documents.len() {
            self.has_changed();
        }
        Ok(known)
    }

    /// Runs update statements in their order, each `{ q, u, multi }` and about known messages, in as
    /// few commands as their size allows. Answers how many messages they met.
    pub(crate) async fn update(&mut self, statements: Vec<Document>) -> Result<u64> {
        let matched = self.run_updates(statements, Wait::Long).await?;
        Ok(matched.unwrap_or(0))
    }

    /// The same, but it does not wait long for messages that an open transaction holds. `None` when
    /// its time was over, for that reason or because the server is slow: part of it may have been
    /// done then.
    pub(crate) async fn update_unless_held(
        &mut self,
        statements: Vec<Document>,
        patience: Duration,
    ) -> Result<Option<u64>> {
        let transactions = self.database.server.replicates() && !self.session.is_transaction();
        let wait = if transactions {
            Wait::Short(patience)
        } else {
            Wait::Long
        };
        let started = Instant::now();
        let updated = self.run_updates(statements, wait).await;
        if transactions && matches!(updated, Ok(Some(_))) {
            self.database.pace.was_done(started.elapsed(), patience);
        }
        updated
    }

    async fn run_updates(&mut self, statements: Vec<Document>, wait: Wait) -> Result<Option<u64>> {
        let mut matched = 0;
        for chunk in chunks(statements) {
            let mut command = self.update_command(chunk);
            if let Wait::Short(patience) = wait {
                command.insert("maxTimeMS", held::millis(patience));
            }
            self.begin_session().await?;
            let reply = match self.send(&mut command).await {
                Err(error) if wait.is_over(&error) => {
                    self.has_changed();
                    return Ok(None);
                }
                reply => reply.map_err(|error| self.failed(error))?,
            };
            let met = count(&reply, "n");
            if met > 0 {
                self.has_changed();
            }
            matched += met;
            self.confirmed(reply).await?;
        }
        self.open_again_if_late().await?;
        Ok(Some(matched))
    }

    /// Names the index by which the messages of a statement are found.
    fn by_identifier(&self, statement: &mut Document) {
        if !self.database.server.is_ferretdb {
            statement.insert("hint", ID_INDEX);
        }
    }

    fn update_command(&self, mut statements: Vec<Document>) -> Document {
        for statement in &mut statements {
            self.by_identifier(statement);
        }
        doc! {
            "update": self.database.message_collection(),
            "updates": statements,
            "ordered": true,
        }
    }

    /// The time that a request was given includes the wait for its write concern, for which there
    /// is no reason to be impatient.
    async fn confirmed(&mut self, reply: Document) -> Result<()> {
        let concern = reply.get_document("writeConcernError").ok();
        if concern.and_then(|concern| number(concern, "code")) == Some(i64::from(TIME_OVER)) {
            return self.confirm().await;
        }
        self.succeeded(reply).map(drop)
    }

    /// Waits until a majority has everything that was written here so far, by a write that changes
    /// nothing.
    pub(crate) async fn confirm(&mut self) -> Result<()> {
        let nothing = doc! { "q": { "_id": "" }, "u": { "$unset": { "lane": "" } } };
        let mut command = self.update_command(vec![nothing]);
        let reply = self.run(&mut command).await?;
        self.succeeded(reply).map(drop)
    }

    /// Deletes what `filter` means; answers how many.
    pub(crate) async fn delete(&mut self, filter: Document) -> Result<u64> {
        let mut statement = doc! { "q": filter, "limit": 0 };
        self.by_identifier(&mut statement);
        let mut command = doc! {
            "delete": self.database.message_collection(),
            "deletes": [statement],
        };
        let reply = self.run(&mut command).await?;
        let deleted = count(&self.succeeded(reply)?, "n");
        if deleted > 0 {
            self.has_changed();
        }
        self.open_again_if_late().await?;
        Ok(deleted)
    }

    async fn run(&mut self, command: &mut Document) -> Result<Document> {
        self.begin_session().await?;
        let sent = self.send(command).await;
        sent.map_err(|error| self.failed(error))
    }

    async fn send(&mut self, command: &mut Document) -> Result<Document, DriverError> {
        if !self.session.is_transaction() {
            command.insert("writeConcern", write_concern_document());
        }
        let run = self.database.database.run_command(std::mem::take(command));
        match self.session.get() {
            Some(session) => run.session(session).await,
            None => run.await,
        }
    }

    fn succeeded(&self, reply: Document) -> Result<Document> {
        in_reply(self.operation, &reply).map_or(Ok(reply), |error| Err(self.late(error)))
    }

    /// Makes this transaction, and every other that does the same for `name`, conflict: of two that
    /// run at the same time, one commits.
    pub(crate) async fn guard(&mut self, name: &str) -> Result<()> {
        let meta = self.database.meta();
        let guard = meta
            .update_one(doc! { "_id": name }, doc! { "$inc": { "held": 1_i64 } })
            .upsert(true);
        let held = match self.session.get() {
            Some(session) => guard.session(session).await,
            None => guard.write_concern(write_concern()).await,
        };
        held.map(drop).map_err(|error| self.failed(error))
    }

    /// The first of `count` new sequence numbers, and the time. Never part of a transaction, in
    /// which all others would wait for its end.
    pub(crate) async fn draw(&self, count: usize) -> Result<(i64, i64)> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let filter = doc! { "_id": "sequence" };
        let pipeline = vec![doc! {
            "$set": { "last": { "$add": ["$last", count] }, "now": self.database.now() },
        }];
        let drawn = self
            .database
            .meta()
            .find_one_and_update(filter, pipeline)
            .return_document(ReturnDocument::After)
            .write_concern(write_concern())
            .await
            .map_err(|error| self.failed(error))?;
        let (last, now) = drawn
            .and_then(|drawn| Some((number(&drawn, "last")?, number(&drawn, "now")?)))
            .ok_or_else(|| self.no_inbox())?;
        Ok((last - count + 1, now))
    }

    pub(crate) fn no_inbox(&self) -> Error {
        self.error(
            ErrorKind::SchemaMissing,
            "there is no inbox of this name; create or migrate sets one up",
        )
    }

    /// Updates documents of the inbox's own. Never part of a transaction.
    pub(crate) async fn update_meta(&self, statements: Vec<Document>) -> Result<()> {
        for chunk in chunks(statements) {
            let command = doc! {
                "update": self.database.meta_collection(),
                "updates": chunk,
                "ordered": false,
                "writeConcern": write_concern_document(),
            };
            let reply = self.database.database.run_command(command).await;
            self.succeeded(reply.map_err(|error| self.failed(error))?)?;
        }
        Ok(())
    }
}

/// The documents of a cursor.
pub(crate) async fn read_all(
    cursor: Result<mongodb::Cursor<Document>, DriverError>,
) -> Result<Vec<Document>, DriverError> {
    let mut cursor = cursor?;
    let mut documents = Vec::new();
    while cursor.advance().await? {
        documents.push(cursor.deserialize_current()?);
    }
    Ok(documents)
}

async fn read_all_in(
    cursor: Result<mongodb::SessionCursor<Document>, DriverError>,
    session: &mut ClientSession,
) -> Result<Vec<Document>, DriverError> {
    let mut cursor = cursor?;
    let mut documents = Vec::new();
    while cursor.advance(session).await? {
        documents.push(cursor.deserialize_current()?);
    }
    Ok(documents)
}

fn count(reply: &Document, field: &str) -> u64 {
    number(reply, field)
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(0)
}

/// A whole number, whatever type the server gave it.
pub(crate) fn number(document: &Document, field: &str) -> Option<i64> {
    match document.get(field)? {
        Bson::Int64(number) => Some(*number),
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Double(number) => {
            let whole = *number as i64;
            let same = (whole as f64 - *number).abs() < f64::EPSILON;
            same.then_some(whole)
        }
        _ => None,
    }
}

/// Statements in portions that a command takes.
fn chunks(statements: Vec<Document>) -> Vec<Vec<Document>> {
    let mut chunks: Vec<Vec<Document>> = Vec::new();
    let mut bytes = 0;
    for statement in statements {
        let size = RawDocumentBuf::try_from(&statement).map_or(0, |raw| raw.as_bytes().len());
        match chunks.last_mut() {
            Some(last) if bytes + size <= COMMAND_BYTES => {
                bytes += size;
                last.push(statement);
            }
            _ => {
                bytes = size;
                chunks.push(vec![statement]);
            }
        }
    }
    chunks
}

/// For how long `connect` looks for a server unless the options say otherwise.
pub(crate) const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use mongodb::bson::Binary;

    use super::*;

    #[test]
    fn commands_stay_below_the_servers_limit() {
        let statement = |bytes: usize| {
            doc! { "u": Binary { subtype: 0.into(), bytes: vec![0; bytes] } }
        };
        let sizes = |statements| chunks(statements).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(Vec::new()), Vec::<usize>::new());
        assert_eq!(sizes(vec![statement(10); 500]), [500]);
        assert_eq!(sizes(vec![statement(7_000_000); 3]), [1, 1, 1]);
        assert_eq!(sizes(vec![statement(3_000_000); 5]), [2, 2, 1]);
    }

    #[test]
    fn numbers_are_read_in_each_type() {
        let document = doc! { "a": 1_i32, "b": 2_i64, "c": 3.0, "d": 3.5, "e": "4" };
        let read = |field| number(&document, field);
        assert_eq!(
            (read("a"), read("b"), read("c"), read("d"), read("e")),
            (Some(1), Some(2), Some(3), None, None)
        );
    }
}
