//! Setting up, migrating, and telling what is there.

use std::time::Duration;

use async_trait::async_trait;
use inbox_api::{Effect, Error, ErrorKind, Migration, Result, Schema};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use tokio::time::Instant;

use crate::{
    connection::Connection,
    consistency,
    error::{before, failed, is_done_already},
    installed_schema::{
        Found, MARKER, STEPS, VERSION, WORKS_FROM, difference, expected, find, foreign, incomplete,
        present, version_of, wrong_version,
    },
    multi_statement::{Access, Script, Sets},
    options::{MySqlOptions, TABLES},
    procedures::{self, fnv},
    statement::hex,
    statements::Names,
    store::MySqlStore,
};

/// How often a step is tried when another process is at it too.
const TRIES: u32 = 10;
/// How long between two tries.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

#[async_trait]
impl Schema for MySqlStore {
    fn ddl(&self) -> String {
        self.inner.context.options.ddl()
    }

    fn exists_query(&self) -> String {
        self.inner.context.options.exists_query()
    }

    fn expected_version(&self) -> u32 {
        VERSION
    }

    fn works_from(&self) -> u32 {
        WORKS_FROM
    }

    async fn version(&self) -> Result<Option<u32>> {
        let version = version(self.connection()).await;
        version.map_err(|e| e.in_operation("version"))
    }

    async fn exists(&self) -> Result<bool> {
        let complete = is_complete(self.connection()).await;
        complete.map_err(|e| e.in_operation("exists"))
    }

    async fn create(&self) -> Result<()> {
        let created = create(self.connection()).await;
        created.map_err(|e| e.in_operation("create"))
    }

    async fn migrate(&self) -> Result<Migration> {
        let migration = set_up(self.connection(), STEPS, Apply::Upgrade).await;
        migration.map_err(|e| e.in_operation("migrate"))
    }

    async fn remove(&self) -> Result<()> {
        let removed = remove(self.connection()).await;
        removed.map_err(|e| e.in_operation("remove"))
    }
}

impl MySqlOptions {
    /// The statements that set up an empty inbox with these options: what
    /// [`Schema::ddl`](inbox_api::Schema::ddl) gives, without a connection.
    #[must_use]
    pub fn ddl(&self) -> String {
        let names = Names::new(self);
        let tables: Vec<String> = STEPS.iter().map(|step| names.expand(step)).collect();
        let mark = set_version(&names, VERSION);
        format!("{}\n{mark};\n", tables.join("\n"))
    }
}

fn set_version(names: &Names, version: u32) -> String {
    names.expand(&format!(
        "INSERT INTO {{meta}} (only_row, marker, version, works_from)\n\
         VALUES (1, '{MARKER}', {version}, {WORKS_FROM})\n\
         ON DUPLICATE KEY UPDATE version = {version}, works_from = {WORKS_FROM}"
    ))
}

/// How far to go.
#[derive(Clone, Copy, PartialEq)]
enum Apply {
    /// Sets up where there is nothing.
    FromNothing,
    /// And upgrades.
    Upgrade,
}

/// Brings the inbox to the version that `steps` make. Under a lock of the server's by the inbox's name,
/// so that of several at once one does it. In a cluster that lock would be one node's only;
/// there the statements themselves, which are harmless when repeated and run in one order on
/// all nodes, have to do.
async fn apply(connection: Connection<'_>, steps: &[&str], how: Apply) -> Result<Migration> {
    let to = version_of(steps);
    let inner = connection.inner;
    let options = &connection.context.options;
    let mut guard = connection.guard().await?;
    let work = async {
        let session = guard.session()?;
        let lock = lock(connection, session).await?;
        inner.begin_reading(session).await?;
        let (found, _) = find(session, options, steps).await.map_err(failed)?;
        inner.end_reading(session).await?;
        let from = match found {
            Found::Marked(marked)
                if marked.suits(to) || (marked.version < to && how == Apply::Upgrade) =>
            {
                Some(marked)
            }
            Found::Marked(marked) => {
                return Err(wrong_version(&options.inbox, marked.version));
            }
            Found::Foreign => return Err(foreign(&options.inbox)),
            Found::Nothing | Found::Unfinished => None,
        };
        let names = Names::new(options);
        let had = from.map_or(0, |marked| marked.version);
        let mut changed = false;
        for (step, made) in steps.iter().zip(1..).filter(|(_, made)| *made > had) {
            for statement in names.file(step) {
                match execute(session, statement.fill(&[]).into_text()).await {
                    Err(error) if is_done_already(&error) => {}
                    done => done.map_err(|error| failed(error).after_changes(changed))?,
                }
                changed = true;
            }
            // Without a mark, a set-up is known not to have come to its end.
            if from.is_some() || made == to {
                let mut mark = Script::default();
                mark.begin(Access::Write, Sets::default());
                mark.fixed(&set_version(&names, made));
                mark.commit();
                inner.run_script(&mark, session).await.map_err(failed)?;
            }
        }
        inner.begin_reading(session).await?;
        let present = present(session, options).await.map_err(failed)?;
        if let Some((table, line)) = difference(&expected(options, steps), &present) {
            return Err(incomplete(&options.inbox, had.max(to), table, line));
        }
        consistency::check(session, options).await?;
        inner.end_reading(session).await?;
        if !connection.context.server.galera {
            procedures::install(session, options, connection.context.procedures()).await?;
        }
        unlock(session, lock).await?;
        Ok(Migration {
            from: from.map(|marked| marked.version),
            to: had.max(to),
            works_from: match from {
                Some(marked) if marked.version >= to => marked.works_from,
                _ => WORKS_FROM,
            },
        })
    };
    let migration = connection.in_time(Effect::Unknown, work).await?;
    guard.give_back();
    Ok(migration)
}

/// Removes the inbox, under the same lock. The table that marks it comes last, so that what an earlier
/// call has left is still known as an inbox's.
async fn take_down(connection: Connection<'_>) -> Result<()> {
    let inner = connection.inner;
    let options = &connection.context.options;
    let mut guard = connection.guard().await?;
    let work = async {
        let session = guard.session()?;
        let lock = lock(connection, session).await?;
        inner.begin_reading(session).await?;
        let (found, _) = find(session, options, STEPS).await.map_err(failed)?;
        inner.end_reading(session).await?;
        match found {
            Found::Marked(marked) if marked.version > VERSION => {
                return Err(wrong_version(&options.inbox, marked.version));
            }
            Found::Foreign => return Err(foreign(&options.inbox)),
            Found::Marked(_) | Found::Nothing | Found::Unfinished => {}
        }
        let dropped = procedures::drop_all(session, options).await;
        dropped.map_err(failed)?;
        let tables = TABLES.map(|table| options.table(table));
        let drop = format!("DROP TABLE IF EXISTS {}", tables.join(", "));
        let removed = execute(session, drop).await;
        // The procedures are gone by now.
        removed.map_err(|error| failed(error).with_effect(Effect::Unknown))?;
        unlock(session, lock).await
    };
    connection.in_time(Effect::Unknown, work).await?;
    guard.give_back();
    Ok(())
}

/// Takes a step, again if another process was at it, for as long as there is time: it was preferred,
/// removed a table that had been seen, or, in a cluster, interrupted what another node was doing.
async fn persist<T, F>(connection: Connection<'_>, step: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        // Boxed, for the stack's sake: it holds a connection and much of what is done with it.
        let answer = Box::pin(step()).await;
        let again = Instant::now() + BETWEEN_TRIES;
        let disturbed = answer.as_ref().is_err_and(|error| match error.kind() {
            ErrorKind::Conflict | ErrorKind::SchemaMissing => true,
            ErrorKind::Unavailable => connection.context.server.galera,
            _ => false,
        });
        if !disturbed || tries >= TRIES || again >= connection.until {
            return answer;
        }
        tries += 1;
        tokio::time::sleep_until(again).await;
    }
}

async fn remove(connection: Connection<'_>) -> Result<()> {
    persist(connection, || take_down(connection)).await
}

async fn set_up(connection: Connection<'_>, steps: &[&str], how: Apply) -> Result<Migration> {
    persist(connection, || apply(connection, steps, how)).await
}

/// What stands there, and whether that is a complete inbox that this build works with.
async fn look(connection: Connection<'_>) -> Result<(Found, bool)> {
    persist(connection, || look_once(connection)).await
}

async fn look_once(connection: Connection<'_>) -> Result<(Found, bool)> {
    let inner = connection.inner;
    let options = &connection.context.options;
    let mut guard = connection.guard().await?;
    let work = async {
        let session = guard.session()?;
        inner.begin_reading(session).await?;
        let (found, present) = find(session, options, STEPS).await.map_err(before)?;
        let complete = match found {
            Found::Marked(marked) => {
                marked.suits(VERSION) && difference(&expected(options, STEPS), &present).is_none()
            }
            _ => false,
        };
        if complete {
            consistency::check(session, options).await?;
        }
        inner.end_reading(session).await?;
        Ok((found, complete))
    };
    let found = connection.in_time(Effect::None, work).await?;
    guard.give_back();
    Ok(found)
}

async fn create(connection: Connection<'_>) -> Result<()> {
    if !is_complete(connection).await? {
        set_up(connection, STEPS, Apply::FromNothing).await?;
    }
    Ok(())
}

async fn version(connection: Connection<'_>) -> Result<Option<u32>> {
    match look(connection).await?.0 {
        Found::Nothing | Found::Unfinished => Ok(None),
        Found::Marked(marked) => Ok(Some(marked.version)),
        Found::Foreign => Err(foreign(&connection.context.options.inbox)),
    }
}

/// Whether a complete inbox of this version is there.
async fn is_complete(connection: Connection<'_>) -> Result<bool> {
    let options = &connection.context.options;
    let (found, complete) = look(connection).await?;
    match found {
        Found::Nothing | Found::Unfinished => Ok(false),
        Found::Foreign => Err(foreign(&options.inbox)),
        Found::Marked(marked) if marked.version > VERSION && !marked.suits(VERSION) => {
            Err(wrong_version(&options.inbox, marked.version))
        }
        Found::Marked(_) => Ok(complete),
    }
}

async fn execute(session: &mut MySqlConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await?;
    Ok(())
}

/// Takes the server's lock by the inbox's name, unless it is in a cluster.
async fn lock(connection: Connection<'_>, session: &mut MySqlConnection) -> Result<Option<String>> {
    if connection.context.server.galera {
        return Ok(None);
    }
    let options = &connection.context.options;
    let lock = lock_name(options);
    take_lock(session, &lock, options.operation_timeout.as_secs()).await?;
    Ok(Some(lock))
}

async fn unlock(session: &mut MySqlConnection, lock: Option<String>) -> Result<()> {
    if let Some(lock) = lock {
        let release = execute(session, format!("DO RELEASE_LOCK('{lock}')"));
        release.await.map_err(failed)?;
    }
    Ok(())
}

/// Names of locks have at most 64 characters and are the whole server's.
fn lock_name(options: &MySqlOptions) -> String {
    let database = options
        .database
        .as_deref()
        .or(options.connect.get_database())
        .unwrap_or_default();
    let names = database
        .bytes()
        .chain([0])
        .chain(options.inbox.as_str().bytes());
    // Two inboxes with one lock would only wait for each other.
    let hash = fnv(names);
    let mut name = "inbox.".to_owned();
    hex(&hash.to_be_bytes(), &mut name);
    name
}

async fn take_lock(session: &mut MySqlConnection, lock: &str, seconds: u64) -> Result<()> {
    let sql = format!("SELECT COALESCE(GET_LOCK('{lock}', {}), 0)", seconds.max(1));
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(session)
        .await
        .map_err(before)?;
    let taken: i64 = row.try_get_unchecked(0).map_err(before)?;
    if taken == 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        "another process has been setting the inbox up for too long",
    ))
}

#[cfg(test)]
mod tests {
    use conformance_tests::samples::work_during;
    use inbox_api::{HandlerName, InboxName, Kind, Message, MessageId, Receipt, StoreExt as _};
    use sqlx::ConnectOptions as _;
    use test_servers::{Kind as ServerKind, Server, require_or_skip};

    use super::*;

    const LONGER: &[&str] = &[
        STEPS[0],
        "ALTER TABLE {work}\n\
         ADD COLUMN priority BIGINT NOT NULL DEFAULT 0,\n\
         ADD KEY by_priority (handler, priority);\n",
        "ALTER TABLE {work}\n\
         DROP KEY by_priority,\n\
         MODIFY COLUMN priority TINYINT NOT NULL DEFAULT 0;\n\
         UPDATE {work} SET priority = 1 WHERE queue = 0;\n",
    ];
    const FAILING: &[&str] = &[
        STEPS[0],
        LONGER[1],
        "ALTER TABLE {done}\n\
         ADD COLUMN more BIGINT NULL;\n\
         SELECT nothing FROM {done};\n",
    ];

    /// A new inbox's store on each server that is there.
    async fn on_each(test: impl AsyncFn(MySqlStore)) {
        for kind in [ServerKind::Mariadb, ServerKind::Mysql] {
            let found = tokio::task::spawn_blocking(move || require_or_skip(kind));
            let server: Option<Server> = found.await.unwrap().unwrap();
            if let Some(server) = &server {
                let name = format!("steps_{:08x}", fastrand::u32(..));
                let options = MySqlOptions::from_url(server.url()).unwrap();
                let options = options.inbox_name(InboxName::new(name).unwrap());
                test(MySqlStore::connect(options).await.unwrap()).await;
            }
        }
    }

    async fn run(store: &MySqlStore, sql: &str) {
        let options = &store.inner.context.options;
        let mut connection = options.connection().connect().await.unwrap();
        let sql = Names::new(options).expand(sql);
        execute(&mut connection, sql).await.unwrap();
    }

    fn message(id: &str) -> Message {
        let handler = HandlerName::new("h").unwrap();
        let id = MessageId::new(id).unwrap();
        Message::new(handler, id, Kind::new("k").unwrap(), "payload")
    }

    #[tokio::test]
    async fn an_older_inbox_is_upgraded_once_and_keeps_its_messages() {
        on_each(async |store| {
            store.create().await.unwrap();
            let _ = store.receive_one(&message("1")).await.unwrap();

            // Creating does not upgrade: that is another decision.
            let created = set_up(store.connection(), LONGER, Apply::FromNothing).await;
            assert_eq!(created.unwrap_err().kind(), ErrorKind::SchemaVersion);

            // Two at once, while a worker is busy: one upgrades, the other finds it done.
            let upgrade = || set_up(store.connection(), LONGER, Apply::Upgrade);
            let upgrades = async { tokio::join!(upgrade(), upgrade()) };
            let (one, other) = work_during(&store, upgrades).await;
            let mut from = [one.unwrap().from, other.unwrap().from];
            from.sort_unstable();
            assert_eq!(from, [Some(1), Some(3)]);

            // This build goes on with it, and sets up nothing; the message is still there.
            let restarted = MySqlStore::connect(store.inner.context.options.clone()).await;
            for store in [&store, &restarted.unwrap()] {
                assert!(store.exists().await.unwrap());
                store.create().await.unwrap();
                let expected = Migration {
                    from: Some(3),
                    to: 3,
                    works_from: 1,
                };
                assert_eq!(store.migrate().await.unwrap(), expected);
                let receipt = store.receive_one(&message("1")).await.unwrap();
                assert_eq!(receipt, Receipt::Duplicate { differs: false });
            }
            run(&store, "UPDATE {meta} SET version = 1").await;
            store.remove().await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn a_step_that_fails_leaves_what_works_and_can_be_taken_again() {
        on_each(async |store| {
            store.create().await.unwrap();
            let failed = set_up(store.connection(), FAILING, Apply::Upgrade).await;
            failed.unwrap_err();
            // The steps before it were taken.
            assert_eq!(store.version().await.unwrap(), Some(2));
            assert!(store.exists().await.unwrap());
            let receipt = store.receive_one(&message("1")).await.unwrap();
            assert_eq!(receipt, Receipt::Accepted);
            let again = [
                STEPS[0],
                LONGER[1],
                "ALTER TABLE {done}\nADD COLUMN more BIGINT NULL;\n",
            ];
            let migration = set_up(store.connection(), &again, Apply::Upgrade).await;
            assert_eq!(migration.unwrap().from, Some(2));
            run(&store, "UPDATE {meta} SET version = 1").await;
            store.remove().await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn a_set_up_that_broke_off_between_steps_is_completed() {
        on_each(async |store| {
            for step in &LONGER[..2] {
                run(&store, step).await;
            }
            assert_eq!(store.version().await.unwrap(), None);
            let created = set_up(store.connection(), LONGER, Apply::FromNothing).await;
            let created = created.unwrap();
            assert_eq!((created.from, created.to), (None, 3));
            run(&store, "UPDATE {meta} SET version = 1").await;
            store.remove().await.unwrap();
        })
        .await;
    }

    #[test]
    fn what_tables_are_like_is_read_from_all_steps() {
        let options = MySqlOptions::new(sqlx::mysql::MySqlConnectOptions::new());
        let columns = |steps| {
            let tables = expected(&options, steps);
            let of_work = tables["work"].iter();
            let priority = of_work.filter(|line| line.contains("priority"));
            priority.cloned().collect::<Vec<_>>()
        };
        assert_eq!(
            columns(&LONGER[..2]),
            [
                "index by_priority (handler,priority)",
                "priority bigint not null"
            ]
        );
        assert_eq!(columns(LONGER), ["priority tinyint not null"]);
        assert_eq!(columns(STEPS), [""; 0]);
    }
}
