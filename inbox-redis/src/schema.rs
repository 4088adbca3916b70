//! Setting up: a marker in every shard, which every script looks at before it does anything.

use async_trait::async_trait;
use inbox_api::{Error, ErrorKind, InboxName, Migration, Result, Schema};
use redis::Value;

use crate::{
    keys::Layout,
    reply::{self, Reply, Taker, Unexpected, unexpected},
    scripts,
    store::RedisStore,
};

/// What this build sets up and works with.
pub(crate) const VERSION: u32 = 1;

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

fn standing(answer: Value) -> Reply<Standing> {
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

pub(crate) fn ddl(inbox: &InboxName, shards: u16) -> String {
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

fn wrong(operation: &'static str, context: String) -> Error {
    Error::new(ErrorKind::SchemaVersion, operation, context)
}

impl RedisStore {
    /// What stands in a shard, which is set up first if need be and `create` says so.
    async fn look(&self, operation: &'static str, create: bool, shard: u16) -> Result<Standing> {
        let call = self.inner.caller.schema_call(create, shard);
        let answer = if create {
            self.run_confirmed(operation, call).await?
        } else {
            self.run(operation, call).await?
        };
        standing(answer).map_err(unexpected(operation))
    }

    /// What stands in each shard, the first first.
    async fn look_all(&self, operation: &'static str) -> Result<Vec<Standing>> {
        let looks = self
            .layout()
            .all()
            .map(|shard| self.look(operation, false, shard));
        futures_util::future::try_join_all(looks).await
    }

    fn foreign(&self, operation: &'static str, kind: &str) -> Error {
        wrong(
            operation,
            format!(
                "found a {kind} under a key of the inbox {} without an inbox's marker; this build \
                 expects an inbox of version {VERSION}",
                self.inner.options.inbox
            ),
        )
    }

    fn refused(&self, operation: &'static str, version: u32, shards: u32) -> Error {
        let expected = self.layout().shards();
        wrong(
            operation,
            if version == VERSION {
                format!(
                    "found an inbox of version {version} in {shards} shards; this client expects \
                     {expected} shards (set shards to {shards})"
                )
            } else {
                format!("found an inbox of version {version}; this build expects {VERSION}")
            },
        )
    }

    /// Whether it is complete and ours. The marker of the first shard is written last, so
    /// without it nothing has begun to be used.
    fn judge(&self, operation: &'static str, all: &[Standing]) -> Result<bool> {
        let mut complete = true;
        for standing in all {
            match standing {
                Standing::Nothing | Standing::Incomplete => complete = false,
                Standing::Foreign(kind) => return Err(self.foreign(operation, kind)),
                Standing::Inbox { version, shards }
                    if *version != VERSION || *shards != u32::from(self.layout().shards()) =>
                {
                    return Err(self.refused(operation, *version, *shards));
                }
                Standing::Inbox { .. } => {}
            }
        }
        Ok(complete)
    }

    /// Removes the inbox with all messages in it, for good. Nobody may use it meanwhile. Where there
    /// is none, nothing happens.
    ///
    /// # Errors
    /// As [`Schema`]; after one, some of its shards may be gone: repeat it.
    pub async fn remove(&self) -> Result<()> {
        const OPERATION: &str = "remove";
        let shards = self.layout().all();
        for shard in shards {
            let handlers = self.handlers_in(OPERATION, shard).await;
            let removed = match handlers {
                Ok(handlers) => {
                    let call = self.inner.caller.call(&scripts::REMOVE, shard, &handlers);
                    self.run(OPERATION, call).await.map(drop)
                }
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if error.kind() == ErrorKind::SchemaMissing => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    async fn set_up(&self, operation: &'static str) -> Result<()> {
        let all = self.look_all(operation).await?;
        if self.judge(operation, &all)? {
            return Ok(());
        }
        let begun = !matches!(all.first(), Some(Standing::Nothing) | None);
        if begun || all.iter().any(|one| matches!(one, Standing::Incomplete)) {
            // Others may be about to complete it: what counts is how it stands now.
            let now = self.look_all(operation).await?;
            if self.judge(operation, &now)? {
                return Ok(());
            }
            return Err(wrong(
                operation,
                format!(
                    "found an incomplete inbox, a shard of which has lost its marker; this build \
                     expects version {VERSION} in {} shards",
                    self.layout().shards()
                ),
            ));
        }
        for shard in self.layout().all().rev() {
            match self.look(operation, true, shard).await? {
                Standing::Foreign(kind) => return Err(self.foreign(operation, &kind)),
                Standing::Inbox { version, shards }
                    if version != VERSION
                        || (shards != 0 && shards != u32::from(self.layout().shards())) =>
                {
                    return Err(self.refused(operation, version, shards));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Schema for RedisStore {
    fn ddl(&self) -> String {
        ddl(&self.inner.options.inbox, self.layout().shards())
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    async fn version(&self) -> Result<Option<u32>> {
        const OPERATION: &str = "version";
        match self.look(OPERATION, false, 0).await? {
            Standing::Nothing | Standing::Incomplete => Ok(None),
            Standing::Foreign(kind) => Err(self.foreign(OPERATION, &kind)),
            Standing::Inbox { version, .. } => Ok(Some(version)),
        }
    }

    async fn exists(&self) -> Result<bool> {
        const OPERATION: &str = "exists";
        self.judge(OPERATION, &self.look_all(OPERATION).await?)
    }

    async fn create(&self) -> Result<()> {
        self.set_up("create").await
    }

    async fn migrate(&self) -> Result<Migration> {
        const OPERATION: &str = "migrate";
        let from = match self.look(OPERATION, false, 0).await? {
            Standing::Inbox { version, .. } => Some(version),
            _ => None,
        };
        self.set_up(OPERATION).await?;
        Ok(Migration { from, to: VERSION })
    }
}
