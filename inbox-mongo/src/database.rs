//! The connection: what the server can do, and the few kinds of requests that the store makes,
//! each with its concerns said.

use std::time::Duration;

use inbox_api::{ClockOffset, Error, ErrorKind, InboxName, Result};
use mongodb::{
    Client, ClientSession, Collection,
    action::Aggregate,
    bson::{Bson, Document, RawDocumentBuf, doc},
    error::ErrorKind as Driver,
    options::{Acknowledgment, Hint, ReadConcern, ReadPreference, ReturnDocument, WriteConcern},
};

use crate::{
    error::{DUPLICATE_KEY, in_operation, in_reply, of_code, reading},
    segments::{Opened, Opening},
};

/// How many bytes of statements one command takes. The server's limit is 16 MiB.
const COMMAND_BYTES: usize = 8 * 1024 * 1024;

/// How many documents the first reply to a request may have: all, where a server would give 101 and
/// leave the others for a second round trip. Its replies end at 16 MiB in any case.
const AT_ONCE: u32 = 1 << 20;

/// How a deployment is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Standalone,
    ReplicaSet,
    Sharded,
}

/// What the server said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) topology: Topology,
    /// FerretDB takes validators and forgets them.
    pub(crate) keeps_validators: bool,
}

impl Server {
    /// Reads the replies to `hello` and `buildInfo`.
    fn read(hello: &Document, build: &Document) -> Self {
        let topology = if hello.contains_key("setName") {
            Topology::ReplicaSet
        } else if hello.get_str("msg").is_ok_and(|text| text == "isdbgrid") {
            Topology::Sharded
        } else {
            Topology::Standalone
        };
        Self {
            topology,
            keeps_validators: !build.contains_key("ferretdb"),
        }
    }

    /// Whether it has transactions of several documents, and change streams.
    pub(crate) fn replicates(&self) -> bool {
        self.topology != Topology::Standalone
    }

    /// Whether an update of many documents has changed as many as it says. On a cluster it may
    /// count one that is being moved to another shard, and change only what is left behind.
    pub(crate) fn counts_updates(&self) -> bool {
        self.topology != Topology::Sharded
    }
}

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
    /// For tests: the time is the server's.
    offset: ClockOffset,
}

/// What an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updated {
    pub(crate) matched: u64,
    pub(crate) modified: u64,
}

impl Database {
    /// Asks the server what it is.
    pub(crate) async fn new(
        client: Client,
        name: &str,
        inbox: InboxName,
        offset: ClockOffset,
    ) -> Result<Self> {
        let mapped = reading("connect");
        let database = client.database(name);
        let hello = database
            .run_command(doc! { "hello": 1 })
            .await
            .map_err(mapped)?;
        let build = database
            .run_command(doc! { "buildInfo": 1 })
            .await
            .map_err(mapped)?;
        let messages = format!("{inbox}_message");
        Ok(Self {
            messages: database.collection(&messages),
            raw_messages: database.collection(&messages),
            server: Server::read(&hello, &build),
            client,
            database,
            inbox,
            opened: Opened::default(),
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
            session: None,
        }
    }

    /// Requests in the transaction of `session`.
    pub(crate) fn within<'a>(
        &'a self,
        operation: &'static str,
        session: &'a mut ClientSession,
    ) -> On<'a> {
        On {
            database: self,
            operation,
            opening: None,
            session: Some(session),
        }
    }
}

/// Where and on whose behalf requests are made.
pub(crate) struct On<'a> {
    pub(crate) database: &'a Database,
    pub(crate) operation: &'static str,
    /// The segments that were opened for what follows.
    pub(crate) opening: Option<Opening>,
    session: Option<&'a mut ClientSession>,
}

impl On<'_> {
    pub(crate) fn error(
        &self,
        kind: ErrorKind,
        context: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Error {
        Error::new(kind, self.operation, context)
    }

    /// All documents that a pipeline over the messages gives.
    pub(crate) async fn aggregate(&mut self, pipeline: Vec<Document>) -> Result<Vec<Document>> {
        let database = self.database;
        let aggregate = database.messages.aggregate(pipeline);
        self.all(aggregate).await
    }

    /// Reads what a server's statistics must not talk it out of: the first documents in the order of
    /// an index.
    pub(crate) async fn aggregate_in_order_of(
        &mut self,
        index: &'static str,
        pipeline: Vec<Document>,
    ) -> Result<Vec<Document>> {
        let database = self.database;
        let aggregate = database.messages.aggregate(pipeline);
        self.all(aggregate.hint(Hint::Name(index.into()))).await
    }

    async fn all(&mut self, aggregate: Aggregate<'_>) -> Result<Vec<Document>> {
        let mapped = reading(self.operation);
        let mut documents = Vec::new();
        let aggregate = aggregate.batch_size(AT_ONCE);
        if let Some(session) = &mut self.session {
            let mut cursor = aggregate
                .session(&mut **session)
                .await
                .map_err(in_operation(self.operation))?;
            while cursor
                .advance(session)
                .await
                .map_err(in_operation(self.operation))?
            {
                documents.push(cursor.deserialize_current().map_err(mapped)?);
            }
        } else {
            let mut cursor = aggregate
                .read_concern(ReadConcern::majority())
                .selection_criteria(ReadPreference::Primary.into())
                .await
                .map_err(mapped)?;
            while cursor.advance().await.map_err(mapped)? {
                documents.push(cursor.deserialize_current().map_err(mapped)?);
            }
        }
        Ok(documents)
    }

    /// Inserts what is not there yet, by `_id`; answers which of `documents` were there. In a
    /// transaction such a one is an error, since it ends the transaction.
    pub(crate) async fn insert(&mut self, documents: &[RawDocumentBuf]) -> Result<Vec<usize>> {
        let insert = self
            .database
            .raw_messages
            .insert_many(documents)
            .ordered(false);
        let mapped = in_operation(self.operation);
        let Some(session) = &mut self.session else {
            let outcome = insert.write_concern(write_concern()).await;
            let Err(error) = outcome else {
                return Ok(Vec::new());
            };
            let Driver::InsertMany(many) = error.kind.as_ref() else {
                return Err(mapped(error));
            };
            if many.write_concern_error.is_some() {
                return Err(mapped(error).with_effect(inbox_api::Effect::Unknown));
            }
            let mut known = Vec::new();
            for failure in many.write_errors.iter().flatten() {
                if failure.code != DUPLICATE_KEY {
                    return Err(of_code(self.operation, failure.code)
                        .with_effect(inbox_api::Effect::Unknown));
                }
                known.push(failure.index);
            }
            return Ok(known);
        };
        insert.session(&mut **session).await.map_err(mapped)?;
        Ok(Vec::new())
    }

    /// Runs update statements in their order, each `{ q, u, multi }`, in as few commands as their
    /// size allows.
    pub(crate) async fn update(&mut self, statements: Vec<Document>) -> Result<Updated> {
        let mut total = Updated::default();
        for chunk in chunks(statements) {
            let mut command = doc! {
                "update": self.database.message_collection(),
                "updates": chunk,
                "ordered": true,
            };
            let reply = self.run(&mut command).await?;
            total.matched += count(&reply, "n");
            total.modified += count(&reply, "nModified");
        }
        self.open_again_if_late().await?;
        Ok(total)
    }

    /// Deletes what `filter` means; answers how many.
    pub(crate) async fn delete(&mut self, filter: Document) -> Result<u64> {
        let mut command = doc! {
            "delete": self.database.message_collection(),
            "deletes": [{ "q": filter, "limit": 0 }],
        };
        let deleted = count(&self.run(&mut command).await?, "n");
        self.open_again_if_late().await?;
        Ok(deleted)
    }

    async fn run(&mut self, command: &mut Document) -> Result<Document> {
        if self.session.is_none() {
            command.insert("writeConcern", write_concern_document());
        }
        let run = self.database.database.run_command(std::mem::take(command));
        let reply = match &mut self.session {
            Some(session) => run.session(&mut **session).await,
            None => run.await,
        }
        .map_err(in_operation(self.operation))?;
        in_reply(self.operation, &reply).map_or(Ok(reply), Err)
    }

    /// Changes the one message that `filter` means, and gives it as it is afterwards.
    pub(crate) async fn change(
        &mut self,
        filter: Document,
        pipeline: Vec<Document>,
    ) -> Result<Option<Document>> {
        let change = self
            .database
            .messages
            .find_one_and_update(filter, pipeline)
            .return_document(ReturnDocument::After);
        let changed = match &mut self.session {
            Some(session) => change.session(&mut **session).await,
            None => change.write_concern(write_concern()).await,
        }
        .map_err(in_operation(self.operation))?;
        self.open_again_if_late().await?;
        Ok(changed)
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
            .map_err(in_operation(self.operation))?;
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
            let reply = reply.map_err(in_operation(self.operation))?;
            in_reply(self.operation, &reply).map_or(Ok(()), Err)?;
        }
        Ok(())
    }
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
    fn servers_are_told_apart_by_their_replies() {
        let build = doc! { "version": "7.0.12" };
        for (hello, topology) in [
            (doc! { "isWritablePrimary": true }, Topology::Standalone),
            (doc! { "setName": "rs0" }, Topology::ReplicaSet),
            (doc! { "msg": "isdbgrid" }, Topology::Sharded),
        ] {
            let server = Server::read(&hello, &build);
            assert_eq!(server.topology, topology);
            assert_eq!(server.counts_updates(), topology != Topology::Sharded);
            assert!(server.keeps_validators);
        }
        let ferret = doc! { "version": "7.0.77", "ferretdb": { "version": "v2.7.0" } };
        let server = Server::read(&doc! {}, &ferret);
        assert!(!server.keeps_validators && !server.replicates());
    }

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
