//! Setting up: a marker in every shard, which every script looks at before it does anything.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, HandlerName, InboxName, Migration, Result, Schema};
use redis::Value;

use crate::{
    connection::Connection,
    keys::{Layout, VERSION, WORKS_FROM},
    operate::statistics::read_handlers,
    options::RedisOptions,
    reply::{self, Reply, Taker, Unexpected},
    scripts::{self, STEPS, Script},
    store::RedisStore,
};

/// What stands in one shard.
enum Standing {
    Nothing,
    /// Keys of these names that are not an inbox's, and of which type.
    Foreign(String),
    /// A marker without all of its parts.
    Incomplete,
    Made,
    Inbox(Marked),
}

#[derive(Clone, Copy)]
struct Marked {
    version: u32,
    /// The oldest version whose builds work with it.
    works_from: u32,
    shards: u32,
}

/// The handlers that have messages in a shard.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Those of its `counts`, each with a handler, be its name one that the rules allow or not.
    pub(crate) fields: Vec<Vec<u8>>,
    pub(crate) handlers: Vec<HandlerName>,
}

impl Counted {
    fn read(fields: Vec<Value>) -> Self {
        let texts = fields.iter().filter_map(|field| match field {
            Value::BulkString(text) => Some(text.clone()),
            _ => None,
        });
        let texts = texts.collect();
        let mut handlers = read_handlers(fields);
        handlers.sort();
        handlers.dedup();
        Self {
            fields: texts,
            handlers,
        }
    }
}

/// The version that `steps` make.
fn version_of(steps: &[Script]) -> u32 {
    u32::try_from(steps.len()).map_or(u32::MAX, |steps| steps.saturating_add(1))
}

fn read_standing(answer: Value) -> Reply<Standing> {
    let mut answer = Taker::of(answer)?;
    let what = answer.next()?;
    Ok(match reply::text(&what)?.ok_or(Unexpected)? {
        "missing" => Standing::Nothing,
        "foreign" => {
            let kind = answer.next()?;
            Standing::Foreign(reply::text(&kind)?.unwrap_or("unknown").to_owned())
        }
        "incomplete" => Standing::Incomplete,
        "made" => Standing::Made,
        "found" => {
            let mut number =
                || -> Reply<u32> { u32::try_from(answer.number()?).map_err(|_| Unexpected) };
            Standing::Inbox(Marked {
                version: number()?,
                works_from: number()?,
                shards: number()?,
            })
        }
        _ => return Err(Unexpected),
    })
}

fn ddl(inbox: &InboxName, shards: u16) -> String {
    let layout = Layout::new(inbox, shards);
    let mut text = format!("# An inbox of version {VERSION} in {shards} shards, for redis-cli.\n");
    for shard in layout.all().rev() {
        let [meta, ..] = layout.shard_keys(shard);
        text.push_str(&format!(
            "HSET {meta} inbox inbox-redis version {VERSION} works_from {WORKS_FROM} shards {shards} \
             shard {shard}\n"
        ));
    }
    text.push_str(
        "\n# Scripts need no set-up: every client loads them when it finds them missing. They are known\n\
         # to the server (SCRIPT EXISTS) as\n",
    );
    for script in scripts::all() {
        text.push_str(&format!("# {} {}\n", script.digest, script.name));
    }
    text
}

/// Redis has no query that could look at all shards of a cluster: a look at each.
fn exists_query(inbox: &InboxName, shards: u16) -> String {
    let layout = Layout::new(inbox, shards);
    let mut text = format!(
        "# A complete inbox of version {VERSION} is there if each of these answers the line behind it; one of \
         a newer version can be\n# used if each says that it works from {VERSION} or an earlier one.\n"
    );
    for shard in layout.all() {
        let meta = layout.meta(shard);
        text.push_str(&format!(
            "HMGET {meta} inbox version works_from shards shard  # inbox-redis {VERSION} {WORKS_FROM} \
             {shards} {shard}\n"
        ));
    }
    text
}

fn wrong(context: String) -> Error {
    Error::new(ErrorKind::SchemaVersion, context)
}

/// What stands in a shard, which is set up first if need be and `create` says so.
async fn look(connection: &Connection, create: bool, shard: u16) -> Result<Standing> {
    let call = connection.caller.schema_call(create, shard);
    let answer = if create {
        connection.run_confirmed(call).await?
    } else {
        connection.run(call).await?
    };
    Ok(read_standing(answer)?)
}

/// What stands in each shard, the first first.
async fn look_all(connection: &Connection) -> Result<Vec<Standing>> {
    let looks = connection
        .layout()
        .all()
        .map(|shard| look(connection, false, shard));
    futures_util::future::try_join_all(looks).await
}

fn foreign_error(connection: &Connection, kind: &str) -> Error {
    wrong(format!(
        "found a {kind} under a key of the inbox {} without an inbox's marker; this build \
                 expects an inbox of version {VERSION}",
        connection.options.inbox
    ))
}

fn other_version(connection: &Connection, found: Marked) -> Error {
    let Marked {
        version, shards, ..
    } = found;
    let inbox = &connection.options.inbox;
    let expected = connection.layout().shards();
    wrong(if shards != u32::from(expected) {
        format!(
            "the inbox {inbox} has schema version {version} in {shards} shards; this client, of version \
             {VERSION}, expects {expected} shards (set shards to {shards})"
        )
    } else {
        let what = if version > VERSION {
            "use a newer build"
        } else {
            "migrate it"
        };
        format!(
            "the inbox {inbox} has schema version {version}, this build works with {VERSION}: {what}"
        )
    })
}

/// Whether it is complete, and of version `to` or a newer one that suits it. The marker of the first shard is
/// written last, so without it nothing has begun to be used.
fn judge(connection: &Connection, all: &[Standing], to: u32) -> Result<bool> {
    let mut complete = true;
    for standing in all {
        match standing {
            Standing::Nothing | Standing::Incomplete => complete = false,
            Standing::Foreign(kind) => return Err(foreign_error(connection, kind)),
            Standing::Inbox(found)
                if found.shards != u32::from(connection.layout().shards())
                    || (found.version > to && found.works_from > to) =>
            {
                return Err(other_version(connection, *found));
            }
            Standing::Inbox(found) => complete &= found.version >= to,
            Standing::Made => {}
        }
    }
    Ok(complete)
}

async fn exists(connection: &Connection) -> Result<bool> {
    judge(connection, &look_all(connection).await?, VERSION)
}

/// Sets up what is not there. With `upgrade`, also brings an older inbox to the version that `steps` make.
async fn set_up(
    connection: &Connection,
    steps: &'static [Script],
    upgrade: bool,
) -> Result<Migration> {
    let to = version_of(steps);
    let mut all = look_all(connection).await?;
    let mut complete = judge(connection, &all, to)?;
    let is_begun = |all: &[Standing]| {
        !matches!(all.first(), Some(Standing::Nothing) | None)
            || all.iter().any(|one| matches!(one, Standing::Incomplete))
    };
    if !complete && is_begun(&all) {
        // Others may be about to complete it: what counts is how it stands now.
        all = look_all(connection).await?;
        complete = judge(connection, &all, to)?;
    }
    let marked: Vec<Marked> = all
        .iter()
        .filter_map(|one| match one {
            Standing::Inbox(found) => Some(*found),
            _ => None,
        })
        .collect();
    // Of shards between two versions, the oldest counts.
    match marked.iter().min_by_key(|found| found.version) {
        Some(found) if complete => {
            return Ok(Migration {
                from: Some(found.version),
                to: found.version,
                works_from: found.works_from,
            });
        }
        Some(found) if marked.len() == all.len() && !upgrade => {
            return Err(other_version(connection, *found));
        }
        Some(found) if marked.len() == all.len() => {
            // The first shard, which says the inbox's version, comes last.
            for shard in connection.layout().all().rev() {
                upgrade_shard(connection, shard, steps).await?;
            }
            return Ok(Migration {
                from: Some(found.version),
                to,
                works_from: WORKS_FROM,
            });
        }
        _ if is_begun(&all) => {
            return Err(wrong(format!(
                "found an incomplete inbox, a shard of which has lost its marker; this build \
                 expects version {VERSION} in {} shards",
                connection.layout().shards()
            )));
        }
        _ => {}
    }
    for shard in connection.layout().all().rev() {
        // Another process may have been quicker.
        judge(connection, &[look(connection, true, shard).await?], to)?;
    }
    Ok(Migration {
        from: None,
        to,
        works_from: WORKS_FROM,
    })
}

/// Takes the steps that a shard has not had, each in as many calls as it asks for.
async fn upgrade_shard(
    connection: &Connection,
    shard: u16,
    steps: &'static [Script],
) -> Result<()> {
    let version = match look(connection, false, shard).await? {
        Standing::Inbox(found) => found.version,
        _ => 0,
    };
    if version >= version_of(steps) {
        return Ok(());
    }
    let counted = match find_handlers(connection, shard).await? {
        Some((_, counted)) => counted,
        None => Counted::default(),
    };
    take_steps(connection, shard, steps, version, counted).await
}

async fn take_steps(
    connection: &Connection,
    shard: u16,
    steps: &'static [Script],
    version: u32,
    mut counted: Counted,
) -> Result<()> {
    for (step, makes) in steps.iter().zip(2..).filter(|(_, makes)| *makes > version) {
        loop {
            let call = connection.caller.step_call(step, makes, shard, &counted);
            let mut answer = Taker::of(connection.run_confirmed(call).await?)?;
            match reply::text(&answer.next()?)? {
                Some("more") => {}
                // The first messages of a handler have come since.
                Some("others") => counted = Counted::read(answer.list()?),
                _ => break,
            }
        }
    }
    Ok(())
}

async fn version(connection: &Connection) -> Result<Option<u32>> {
    match look(connection, false, 0).await? {
        Standing::Nothing | Standing::Incomplete | Standing::Made => Ok(None),
        Standing::Foreign(kind) => Err(foreign_error(connection, &kind)),
        Standing::Inbox(found) => Ok(Some(found.version)),
    }
}

impl RedisOptions {
    /// The text of [`Schema::ddl`], without a connection.
    #[must_use]
    pub fn ddl(&self) -> String {
        ddl(&self.inbox, self.shards)
    }

    /// The text of [`Schema::exists_query`], without a connection.
    #[must_use]
    pub fn exists_query(&self) -> String {
        exists_query(&self.inbox, self.shards)
    }
}

/// The version and the handlers of a shard that is there, of whatever version it is: another migration may
/// have been quicker.
async fn find_handlers(connection: &Connection, shard: u16) -> Result<Option<(u32, Counted)>> {
    let nothing = Counted::default();
    let call = connection.caller.remove_call(false, shard, &nothing);
    read_removal(connection, connection.run(call).await?)
}

fn read_removal(connection: &Connection, answer: Value) -> Result<Option<(u32, Counted)>> {
    let mut answer = Taker::of(answer)?;
    let what = answer.next()?;
    match reply::text(&what)?.ok_or(Unexpected)? {
        "found" => {
            let version = u32::try_from(answer.number()?).map_err(|_| Unexpected)?;
            Ok(Some((version, Counted::read(answer.list()?))))
        }
        "missing" | "removed" => Ok(None),
        _ => {
            let kind = answer.next()?;
            let kind = reply::text(&kind)?.unwrap_or("key");
            Err(foreign_error(connection, kind))
        }
    }
}

/// Refuses a shard that a newer build has set up or migrated: it may have keys that this one does not know.
fn refuse_newer(connection: &Connection, version: u32) -> Result<()> {
    if version <= VERSION {
        return Ok(());
    }
    let shards = u32::from(connection.layout().shards());
    let found = Marked {
        version,
        works_from: version,
        shards,
    };
    Err(other_version(connection, found))
}

async fn remove(connection: &Connection) -> Result<()> {
    let mut found = Vec::new();
    for shard in connection.layout().all() {
        if let Some((version, counted)) = find_handlers(connection, shard).await? {
            refuse_newer(connection, version)?;
            found.push((shard, counted));
        }
    }
    for (shard, counted) in found {
        remove_shard(connection, shard, counted).await?;
    }
    Ok(())
}

/// Repeated when the first messages of a handler have come since: their keys would be left.
async fn remove_shard(connection: &Connection, shard: u16, mut counted: Counted) -> Result<()> {
    loop {
        // Not confirmed, which takes a write of the marker that is gone.
        let call = connection.caller.remove_call(true, shard, &counted);
        let Some((version, current)) = read_removal(connection, connection.run(call).await?)?
        else {
            return Ok(());
        };
        refuse_newer(connection, version)?;
        counted = current;
    }
}

#[async_trait]
impl Schema for RedisStore {
    fn ddl(&self) -> String {
        self.shared.options.ddl()
    }

    fn exists_query(&self) -> String {
        self.shared.options.exists_query()
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    fn works_from(&self) -> u32 {
        WORKS_FROM
    }

    async fn version(&self) -> Result<Option<u32>> {
        let operation = self.shared.operation("version");
        let version = version(&operation).await;
        version.map_err(|error| operation.failed(error))
    }

    async fn exists(&self) -> Result<bool> {
        let operation = self.shared.operation("exists");
        let exists = exists(&operation).await;
        exists.map_err(|error| operation.failed(error))
    }

    async fn create(&self) -> Result<()> {
        let operation = self.shared.operation("create");
        let created = set_up(&operation, &STEPS, false).await.map(drop);
        created.map_err(|error| operation.failed(error))
    }

    async fn migrate(&self) -> Result<Migration> {
        let operation = self.shared.operation("migrate");
        let migrated = set_up(&operation, &STEPS, true).await;
        migrated.map_err(|error| operation.failed(error))
    }

    async fn remove(&self) -> Result<()> {
        let operation = self.shared.operation("remove");
        let removed = remove(&operation).await;
        removed.map_err(|error| operation.failed(error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use conformance_tests::samples::work_during;
    use inbox_api::{Key, Kind, Message, MessageId, Receipt, Store as _};
    use test_servers::{Server, find_own, or_skip};

    use super::*;
    use crate::keys::{HANDLER_KEYS, SHARD_KEYS};

    static LONGER: LazyLock<Vec<Script>> = LazyLock::new(|| {
        vec![
            Script::step("return redis.call('HINCRBY', meta, 'calls', 1) < 3"),
            Script::step("redis.call('HSET', meta, 'keys', #KEYS)"),
        ]
    });
    static FAILING: LazyLock<Vec<Script>> = LazyLock::new(|| {
        vec![Script::step(
            "redis.call('HSET', meta, 'half', 1)\nerror('no luck')",
        )]
    });

    async fn start() -> Option<Server> {
        let kind = test_servers::Kind::Redis;
        let found = tokio::task::spawn_blocking(move || find_own(kind, &[]));
        or_skip(kind, found.await.unwrap()).unwrap()
    }

    async fn connect(server: &Server, shards: u16) -> RedisStore {
        let options = RedisOptions::from_url(server.url()).unwrap();
        let options = options
            .inbox_name(InboxName::new(format!("of_{shards}")).unwrap())
            .shards(shards)
            .unwrap();
        RedisStore::connect(options).await.unwrap()
    }

    fn message(id: &str) -> Message {
        let handler = HandlerName::new("h").unwrap();
        let id = MessageId::new(id).unwrap();
        Message::new(handler, id, Kind::new("k").unwrap(), "payload")
    }

    /// Sets a field of every shard's marker.
    async fn mark(server: &Server, store: &RedisStore, field: &str, value: u32) {
        let client = redis::Client::open(server.url()).unwrap();
        let mut raw = client.get_multiplexed_async_connection().await.unwrap();
        let layout = store.shared.layout();
        for shard in layout.all() {
            let mut set = redis::cmd("HSET");
            set.arg(layout.meta(shard)).arg(field).arg(value);
            let _: Value = set.query_async(&mut raw).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_older_inbox_is_upgraded_once_and_keeps_its_messages() {
        let Some(server) = start().await else { return };
        for shards in [1, 3] {
            let store = connect(&server, shards).await;
            store.create().await.unwrap();
            let sent: Vec<Message> = (0..9).map(|n| message(&n.to_string())).collect();
            let _ = store.receive(&sent).await.unwrap();

            // Creating does not upgrade: that is another decision.
            let error = set_up(&store.shared.operation("migrate"), &LONGER, false)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaVersion);

            // Two at once, while a worker is busy.
            let other = connect(&server, shards).await;
            let upgrades = async {
                let migrations = [&store, &other].map(|store| store.shared.operation("migrate"));
                tokio::join!(
                    set_up(&migrations[0], &LONGER, true),
                    set_up(&migrations[1], &LONGER, true)
                )
            };
            let (one, two) = work_during(&store, Box::pin(upgrades)).await;
            for migration in [one.unwrap(), two.unwrap()] {
                assert_eq!((migration.to, migration.works_from), (3, 1));
            }
            let again = set_up(&store.shared.operation("migrate"), &LONGER, true)
                .await
                .unwrap();
            assert_eq!((again.from, again.to), (Some(3), 3));

            // This build goes on with it, and sets up nothing; the messages are still there.
            assert!(other.exists().await.unwrap());
            other.create().await.unwrap();
            let migration = other.migrate().await.unwrap();
            assert_eq!((migration.from, migration.to), (Some(3), 3));
            let receipts = other.receive(&sent).await.unwrap();
            let duplicate = Receipt::Duplicate { differs: false };
            assert!(receipts.iter().all(|receipt| *receipt == duplicate));

            // It refuses one that it cannot work with, and names both versions.
            mark(&server, &store, "works_from", 2).await;
            for error in [
                store.create().await.unwrap_err(),
                store.exists().await.unwrap_err(),
            ] {
                let both = "version 3, this build works with 1";
                assert!(error.context().contains(both), "{error}");
            }
            let error = store.receive(&sent).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        }
    }

    #[tokio::test]
    async fn a_shard_of_a_quicker_migration_is_found_and_not_removed() {
        let Some(server) = start().await else { return };
        let store = connect(&server, 2).await;
        store.create().await.unwrap();
        let sent: Vec<Message> = (0..9).map(|n| message(&n.to_string())).collect();
        let _ = store.receive(&sent).await.unwrap();
        upgrade_shard(&store.shared.operation("migrate"), 1, &LONGER)
            .await
            .unwrap();

        let operation = store.shared.operation("migrate");
        let (version, counted) = find_handlers(&operation, 1).await.unwrap().unwrap();
        assert_eq!(version, 3);
        assert_eq!(counted.handlers, [HandlerName::new("h").unwrap()]);

        let error = store.remove().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaVersion);
        assert!(error.context().contains("version 3"), "{error}");
        for message in &sent {
            let key = Key::new(message.handler().clone(), message.id().clone());
            let kept = inbox_api::Operate::get(&store, &key).await.unwrap();
            assert!(kept.is_some(), "{key}");
        }
    }

    #[tokio::test]
    async fn handlers_that_come_meanwhile_are_upgraded_and_removed_too() {
        let Some(server) = start().await else { return };
        let store = connect(&server, 1).await;
        store.create().await.unwrap();
        let operation = store.shared.operation("migrate");
        let (version, before) = find_handlers(&operation, 0).await.unwrap().unwrap();
        assert_eq!(before, Counted::default());
        let _ = store.receive(&[message("1")]).await.unwrap();
        take_steps(&operation, 0, &LONGER, version, before)
            .await
            .unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let mut raw = client.get_multiplexed_async_connection().await.unwrap();
        let mut get = redis::cmd("HGET");
        get.arg(store.shared.layout().meta(0)).arg("keys");
        let keys: usize = get.query_async(&mut raw).await.unwrap();
        assert_eq!(keys, SHARD_KEYS + HANDLER_KEYS);

        let store = connect(&server, 2).await;
        store.create().await.unwrap();
        let sent: Vec<Message> = (0..9).map(|n| message(&n.to_string())).collect();
        let _ = store.receive(&sent).await.unwrap();
        let operation = store.shared.operation("remove");
        for shard in store.shared.layout().all() {
            remove_shard(&operation, shard, Counted::default())
                .await
                .unwrap();
        }
        let mut keys = redis::cmd("KEYS");
        keys.arg("{of_2:*");
        let left: Vec<String> = keys.query_async(&mut raw).await.unwrap();
        assert_eq!(left, [""; 0]);
    }

    #[tokio::test]
    async fn an_interrupted_migration_leaves_what_works_and_is_completed() {
        let Some(server) = start().await else { return };
        let store = connect(&server, 2).await;
        store.create().await.unwrap();
        set_up(&store.shared.operation("migrate"), &FAILING, true)
            .await
            .unwrap_err();
        assert_eq!(store.version().await.unwrap(), Some(1));
        assert!(store.exists().await.unwrap());

        // The last shard has its steps, the first one does not.
        upgrade_shard(&store.shared.operation("migrate"), 1, &LONGER)
            .await
            .unwrap();
        assert_eq!(store.version().await.unwrap(), Some(1));
        let sent: Vec<Message> = (0..9).map(|n| message(&n.to_string())).collect();
        let receipts = store.receive(&sent).await.unwrap();
        assert!(receipts.iter().all(|one| *one == Receipt::Accepted));
        let migration = set_up(&store.shared.operation("migrate"), &LONGER, true)
            .await
            .unwrap();
        assert_eq!((migration.from, migration.to), (Some(1), 3));
        assert_eq!(store.version().await.unwrap(), Some(3));
        let key = Key::new(sent[0].handler().clone(), sent[0].id().clone());
        assert!(
            inbox_api::Operate::get(&store, &key)
                .await
                .unwrap()
                .is_some()
        );
    }
}
