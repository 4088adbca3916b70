//! Setting up: a marker in every shard, which every script looks at before it does anything.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, InboxName, Migration, Result, Schema};
use redis::Value;

use crate::{
    connection::Connection,
    keys::{Layout, VERSION},
    operate::statistics::read_handlers,
    options::RedisOptions,
    reply::{self, Reply, Taker, Unexpected},
    scripts,
    store::RedisStore,
};

/// What stands in one shard.
enum Standing {
    Nothing,
    /// Keys of these names that are not an inbox's, and of which type.
    Foreign(String),
    /// A marker without all of its parts.
    Incomplete,
    Inbox {
        version: u32,
        shards: u32,
    },
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
        "made" => Standing::Inbox {
            version: VERSION,
            shards: 0,
        },
        "found" => {
            let mut number =
                || -> Reply<u32> { u32::try_from(answer.number()?).map_err(|_| Unexpected) };
            Standing::Inbox {
                version: number()?,
                shards: number()?,
            }
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
            "HSET {meta} inbox inbox-redis version {VERSION} shards {shards} shard {shard}\n"
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
        "# A complete inbox of version {VERSION} is there if each of these answers the line behind it.\n"
    );
    for shard in layout.all() {
        let meta = layout.meta(shard);
        text.push_str(&format!(
            "HMGET {meta} inbox version shards shard  # inbox-redis {VERSION} {shards} {shard}\n"
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

fn other_version(connection: &Connection, version: u32, shards: u32) -> Error {
    let expected = connection.layout().shards();
    wrong(if version == VERSION {
        format!(
            "found an inbox of version {version} in {shards} shards; this client expects \
                     {expected} shards (set shards to {shards})"
        )
    } else {
        format!("found an inbox of version {version}; this build expects {VERSION}")
    })
}

/// Whether it is complete and ours. The marker of the first shard is written last, so
/// without it nothing has begun to be used.
fn judge(connection: &Connection, all: &[Standing]) -> Result<bool> {
    let mut complete = true;
    for standing in all {
        match standing {
            Standing::Nothing | Standing::Incomplete => complete = false,
            Standing::Foreign(kind) => return Err(foreign_error(connection, kind)),
            Standing::Inbox { version, shards }
                if *version != VERSION || *shards != u32::from(connection.layout().shards()) =>
            {
                return Err(other_version(connection, *version, *shards));
            }
            Standing::Inbox { .. } => {}
        }
    }
    Ok(complete)
}

async fn set_up(connection: &Connection) -> Result<()> {
    let all = look_all(connection).await?;
    if judge(connection, &all)? {
        return Ok(());
    }
    let begun = !matches!(all.first(), Some(Standing::Nothing) | None);
    if begun || all.iter().any(|one| matches!(one, Standing::Incomplete)) {
        // Others may be about to complete it: what counts is how it stands now.
        let now = look_all(connection).await?;
        if judge(connection, &now)? {
            return Ok(());
        }
        return Err(wrong(format!(
            "found an incomplete inbox, a shard of which has lost its marker; this build \
                     expects version {VERSION} in {} shards",
            connection.layout().shards()
        )));
    }
    for shard in connection.layout().all().rev() {
        match look(connection, true, shard).await? {
            Standing::Foreign(kind) => return Err(foreign_error(connection, &kind)),
            Standing::Inbox { version, shards }
                if version != VERSION
                    || (shards != 0 && shards != u32::from(connection.layout().shards())) =>
            {
                return Err(other_version(connection, version, shards));
            }
            _ => {}
        }
    }
    Ok(())
}

async fn version(connection: &Connection) -> Result<Option<u32>> {
    match look(connection, false, 0).await? {
        Standing::Nothing | Standing::Incomplete => Ok(None),
        Standing::Foreign(kind) => Err(foreign_error(connection, &kind)),
        Standing::Inbox { version, .. } => Ok(Some(version)),
    }
}

async fn migrate(connection: &Connection) -> Result<Migration> {
    let from = match look(connection, false, 0).await? {
        Standing::Inbox { version, .. } => Some(version),
        _ => None,
    };
    set_up(connection).await?;
    Ok(Migration {
        from,
        to: VERSION,
        works_from: VERSION,
    })
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

async fn remove(connection: &Connection) -> Result<()> {
    for shard in connection.layout().all() {
        let call = connection.caller.remove_call(false, shard, &[]);
        let mut answer = Taker::of(connection.run(call).await?)?;
        let what = answer.next()?;
        match reply::text(&what)?.ok_or(Unexpected)? {
            "ready" => {
                let handlers = read_handlers(answer.list()?);
                // Not confirmed, which takes a write of the marker that is gone.
                connection
                    .run(connection.caller.remove_call(true, shard, &handlers))
                    .await?;
            }
            "missing" => {}
            "found" => {
                let version = u32::try_from(answer.number()?).map_err(|_| Unexpected)?;
                return Err(other_version(connection, version, 0));
            }
            _ => {
                let kind = answer.next()?;
                let kind = reply::text(&kind)?.unwrap_or("key");
                return Err(foreign_error(connection, kind));
            }
        }
    }
    Ok(())
}

#[async_trait]
impl Schema for RedisStore {
    fn ddl(&self) -> String {
        self.connection.options.ddl()
    }

    fn exists_query(&self) -> String {
        self.connection.options.exists_query()
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        let version = version(&self.connection).await;
        version.map_err(|error| error.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        let exists = async { judge(&self.connection, &look_all(&self.connection).await?) };
        exists.await.map_err(|error| error.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        let created = set_up(&self.connection).await;
        created.map_err(|error| error.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        let migrated = migrate(&self.connection).await;
        migrated.map_err(|error| error.in_operation("migrate"))
    }

    async fn remove(&self) -> Result<()> {
        let removed = remove(&self.connection).await;
        removed.map_err(|error| error.in_operation("remove"))
    }
}
