//! What the clones of a store share, and one operation's connection: its session, its time limit, and the
//! few kinds of requests that it makes, each with its concerns.

mod held_writes;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_api::{Effect, Error, ErrorKind, Result};
use mongodb::{
    Client, ClientSession, Collection,
    bson::{Document, RawDocumentBuf, doc},
    error::{Error as DriverError, ErrorKind as Driver},
    options::{ClientOptions, Hint, ReadConcern, ReadPreference, ReturnDocument, SessionOptions},
};

pub(crate) use self::held_writes::Change;
use self::held_writes::Wait;
use crate::{
    count_cache::{
        opened::{Opened, Opening},
        sightings::Sightings,
    },
    error::{DUPLICATE_KEY, TIME_OVER, before, failed, in_reply, of_code, refused},
    layout::{self, ID_INDEX},
    operate::purge::Places,
    options::{DEFAULT_DATABASE, MongoOptions},
    patience::{LeftOut, Pace, millis},
    paused_handlers::PausedHandlers,
    paused_renewals::PausedRenewals,
    rows::number,
    server::Server,
    sessions::{read_all, read_all_in, write_concern, write_concern_document},
    wakeups::Wakers,
};

/// For how long `connect` looks for a server unless the options say otherwise.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes of statements one command takes. The server's limit is 16 MiB.
const COMMAND_BYTES: usize = 8 * 1024 * 1024;

/// How many documents the first reply to a request may have: all, where a server would give 101 and
/// leave the others for a second round trip. Its replies end at 16 MiB in any case.
const AT_ONCE: u32 = 1 << 20;

/// An inbox in a database, and what is known of both.
pub(crate) struct Database {
    pub(crate) options: MongoOptions,
    pub(crate) client: Client,
    /// Whether the client is shut down with the store.
    owns_client: bool,
    database: mongodb::Database,
    messages: Collection<Document>,
    raw_messages: Collection<RawDocumentBuf>,
    pub(crate) server: Server,
    pub(crate) opened: Opened,
    pub(crate) sightings: Sightings,
    pub(crate) left_out: LeftOut,
    pub(crate) pace: Pace,
    pub(crate) paused_renewals: PausedRenewals,
    /// The handlers that were paused when a claim looked last.
    pub(crate) paused_handlers: PausedHandlers,
    pub(crate) wakers: Wakers,
    /// Where purges of all handlers go on.
    pub(crate) purge_places: Places,
    /// How far claims spread, because others took the same messages.
    pub(crate) spread: AtomicU32,
    /// Whether a claim got no answer, perhaps because no majority confirms anything.
    pub(crate) doubtful: AtomicBool,
    /// Whether an inbox of the right version was found there.
    pub(crate) checked: AtomicBool,
    closed: AtomicBool,
}

/// A client with the connection settings of the options.
pub(crate) async fn connect(options: &MongoOptions) -> Result<Client> {
    let context = "the options name no server; read them from a URL, or hand a client in";
    let connection = options.connection.clone();
    let connection = connection.ok_or_else(|| Error::new(ErrorKind::Invalid, context))?;
    let mut settings = ClientOptions::parse(connection)
        .await
        .map_err(|error| refused(&error))?;
    settings
        .server_selection_timeout
        .get_or_insert(SERVER_SELECTION_TIMEOUT);
    settings
        .connect_timeout
        .get_or_insert(SERVER_SELECTION_TIMEOUT);
    settings.retry_writes = Some(true);
    Client::with_options(settings).map_err(|error| match error.kind.as_ref() {
        // Nothing is sent yet, and this is the only file that the driver reads so.
        Driver::Io(error) => Error::new(
            ErrorKind::Invalid,
            format!("the file of tlsCertificateKeyFile cannot be read: {error}"),
        ),
        _ => refused(&error),
    })
}

impl Database {
    /// Connects, unless there is a client already, and asks the server what it is.
    pub(crate) async fn open(client: Option<Client>, options: MongoOptions) -> Result<Self> {
        // In its own task, as everything that the driver does.
        let opening = tokio::spawn(async move {
            let owns_client = client.is_none();
            let client = match client {
                Some(client) => client,
                None => connect(&options).await?,
            };
            let default = client.default_database();
            let name = options
                .database
                .as_deref()
                .or(default.as_ref().map(mongodb::Database::name))
                .unwrap_or(DEFAULT_DATABASE);
            let database = client.database(name);
            let messages = layout::messages(&options.inbox);
            Ok(Self {
                messages: database.collection(&messages),
                raw_messages: database.collection(&messages),
                server: Server::ask(&database).await.map_err(before)?,
                client,
                owns_client,
                database,
                options,
                opened: Opened::default(),
                sightings: Sightings::default(),
                left_out: LeftOut::default(),
                pace: Pace::default(),
                paused_renewals: PausedRenewals::default(),
                paused_handlers: PausedHandlers::default(),
                wakers: Wakers::new(),
                purge_places: Places::default(),
                spread: AtomicU32::new(0),
                doubtful: AtomicBool::new(false),
                checked: AtomicBool::new(false),
                closed: AtomicBool::new(false),
            })
        });
        opening.await.map_err(runtime_ends)?
    }

    pub(crate) async fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        self.wakers.stop();
        if self.owns_client {
            let client = self.client.clone();
            let closing = tokio::spawn(async move { client.shutdown().immediate(true).await });
            // The driver has no limit of its own for a server that has gone silent.
            let _ = tokio::time::timeout(self.options.operation_timeout, closing).await;
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is closed"));
        }
        Ok(())
    }

    /// Does `work` in its own task, whatever becomes of the future that waits for it: the driver's
    /// futures must not be dropped in the middle, and an operation of several requests is carried
    /// through.
    pub(crate) async fn task<T, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.check_open()?;
        let task = tokio::spawn(work(Arc::clone(self)));
        self.wait(task).await?
    }

    /// Waits for a task, for as long as an operation may take.
    pub(crate) async fn wait<T>(&self, task: tokio::task::JoinHandle<T>) -> Result<T> {
        let limit = self.options.operation_timeout;
        match tokio::time::timeout(limit, task).await {
            Ok(ended) => ended.map_err(runtime_ends),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "the server did not answer within the operation's time-out",
            )
            .with_effect(Effect::Unknown)),
        }
    }

    pub(crate) fn messages(&self) -> &Collection<Document> {
        &self.messages
    }

    pub(crate) fn handle(&self) -> &mongodb::Database {
        &self.database
    }

    pub(crate) fn message_collection(&self) -> String {
        layout::messages(&self.options.inbox)
    }

    pub(crate) fn meta_collection(&self) -> String {
        layout::meta(&self.options.inbox)
    }

    pub(crate) fn meta(&self) -> Collection<Document> {
        self.database.collection(&self.meta_collection())
    }

    /// The server's time as an aggregation expression, in microseconds since 1970. The server's
    /// clock counts milliseconds.
    pub(crate) fn now(&self) -> Document {
        let micros = doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] };
        match self.options.offset.micros() {
            0 => micros,
            ahead => doc! { "$add": [micros, ahead] },
        }
    }

    /// How far the time is ahead of the server's clock.
    pub(crate) fn ahead(&self) -> i64 {
        self.options.offset.micros()
    }

    /// Requests that are not part of a transaction.
    pub(crate) fn connection(&self) -> Connection<'_> {
        Connection {
            database: self,
            opening: None,
            session: Session::None,
            changed: false,
        }
    }

    /// Requests that see what was done in `session`, whose transaction is over.
    pub(crate) fn connection_after(&self, session: ClientSession) -> Connection<'_> {
        Connection {
            session: Session::Causal(Box::new(session)),
            ..self.connection()
        }
    }

    /// Requests in the transaction of `session`.
    pub(crate) fn in_transaction<'a>(&'a self, session: &'a mut ClientSession) -> Connection<'a> {
        Connection {
            session: Session::Transaction(session),
            ..self.connection()
        }
    }
}

fn runtime_ends(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the runtime is ending")
        .with_effect(Effect::Unknown)
        .with_source(error)
}

enum Session<'a> {
    None,
    /// Where members may take over from each other: each read sees at least what the requests
    /// before it saw and wrote, whichever member answers.
    Causal(Box<ClientSession>),
    /// The same in its own transaction.
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

/// The connection of one operation.
pub(crate) struct Connection<'a> {
    pub(crate) database: &'a Database,
    /// The segments that were opened for what follows.
    pub(crate) opening: Option<Opening>,
    session: Session<'a>,
    /// Whether an earlier request of the operation has changed a message, for good.
    changed: bool,
}

impl Connection<'_> {
    pub(crate) fn error(
        &self,
        kind: ErrorKind,
        context: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Error {
        self.late(Error::new(kind, context))
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
        self.late(failed(error))
    }

    /// The error of a request that only reads. What fails in a transaction may have ended it.
    pub(crate) fn failed_to_read(&self, error: DriverError) -> Error {
        if self.session.is_transaction() {
            return failed(error);
        }
        self.late(before(error))
    }

    /// The session of requests that see what was done before, for others that are to see it too.
    pub(crate) fn into_session(self) -> Option<ClientSession> {
        match self.session {
            Session::Causal(session) => Some(*session),
            Session::None | Session::Own(_) | Session::Transaction(_) => None,
        }
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
                return Err(of_code(failure.code).with_effect(Effect::Unknown));
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
                command.insert("maxTimeMS", millis(patience));
            }
            self.begin_session().await?;
            let reply = match self.send(&mut command).await {
                Err(error) if wait.is_over(&error) => {
                    self.has_changed();
                    return Ok(None);
                }
                reply => reply.map_err(|error| self.failed(error))?,
            };
            if wait.is_over_in(&reply) {
                self.has_changed();
                return Ok(None);
            }
            let met = count(&reply, "n");
            if met > 0 {
                self.has_changed();
            }
            matched += met;
            self.check_confirmed(reply).await?;
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
    async fn check_confirmed(&mut self, reply: Document) -> Result<()> {
        let concern = reply.get_document("writeConcernError").ok();
        if concern.and_then(|concern| number(concern, "code")) == Some(i64::from(TIME_OVER)) {
            return self.confirm().await;
        }
        self.check_reply(reply).map(drop)
    }

    /// Waits until a majority has everything that was written here so far, by a write that changes
    /// nothing.
    pub(crate) async fn confirm(&mut self) -> Result<()> {
        let nothing = doc! { "q": { "_id": "" }, "u": { "$unset": { "lane": "" } } };
        let mut command = self.update_command(vec![nothing]);
        let reply = self.run(&mut command).await?;
        self.check_reply(reply).map(drop)
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
        let deleted = count(&self.check_reply(reply)?, "n");
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

    fn check_reply(&self, reply: Document) -> Result<Document> {
        in_reply(&reply).map_or(Ok(reply), |error| Err(self.late(error)))
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

    /// Updates documents of the inbox's own. Never part of a transaction. Answers how many it met.
    pub(crate) async fn update_meta(&self, statements: Vec<Document>) -> Result<u64> {
        let mut matched = 0;
        for chunk in chunks(statements) {
            let command = doc! {
                "update": self.database.meta_collection(),
                "updates": chunk,
                "ordered": false,
                "writeConcern": write_concern_document(),
            };
            let reply = self.database.database.run_command(command).await;
            let reply = self.check_reply(reply.map_err(|error| self.failed(error))?)?;
            matched += count(&reply, "n");
        }
        Ok(matched)
    }
}

fn count(reply: &Document, field: &str) -> u64 {
    number(reply, field)
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(0)
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
}
