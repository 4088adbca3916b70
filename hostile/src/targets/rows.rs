//! A SQLite file that is not as the store has left it.

use std::{path::PathBuf, time::Duration};

use inbox::{Schema as _, Store as _};
use inbox_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use sqlx::{
    AssertSqlSafe, Connection as _, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::sure;
use crate::{Target, fill, uncounted, use_every_operation};

/// No operation on a file of a few messages takes so long.
const LONGEST: Duration = Duration::from_secs(20);

struct Place {
    runtime: Runtime,
    folder: TempDir,
    /// An inbox with messages in every state.
    file: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let mut place = Self {
            runtime: sure(runtime),
            folder: sure(tempfile::tempdir()),
            file: Vec::new(),
        };
        place.runtime.block_on(async {
            let store = place.store().await;
            let store = sure(store);
            sure(store.create().await);
            sure(fill(&store).await);
            store.close().await;
        });
        place.file = sure(std::fs::read(place.path()));
        place
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("inbox.db")
    }

    async fn store(&self) -> inbox::Result<SqliteStore> {
        let options = SqliteOptions::new(self.path())
            .synchronous(Synchronous::Off)
            .operation_timeout(LONGEST);
        SqliteStore::connect(options).await
    }

    async fn connection(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.path())
            .journal_mode(SqliteJournalMode::Wal);
        sure(SqliteConnection::connect_with(&options).await)
    }

    fn write(&self, file: &[u8]) {
        for ending in ["-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(self.folder.path().join(format!("inbox.db{ending}")));
        }
        sure(std::fs::write(self.path(), file));
    }

    /// Each operation answers, be it with an error.
    fn use_store(&self) -> Result<(), String> {
        self.runtime.block_on(async {
            let Ok(store) = self.store().await else {
                return Ok(());
            };
            let used = tokio::time::timeout(20 * LONGEST, use_every_operation(&store)).await;
            store.close().await;
            let used = used.map_err(|_| "an operation does not end")?;
            used.map_err(|error| format!("a value of our own is refused: {error}"))
        })
    }
}

/// The inbox without what keeps its columns right, and how that is put back.
struct Loose {
    place: Place,
    file: Vec<u8>,
    columns: Vec<(String, String)>,
    restore: String,
}

impl Loose {
    fn new() -> Self {
        let place = Place::new();
        place.write(&place.file);
        let (columns, restore) = place.runtime.block_on(loosen(&place));
        let file = sure(std::fs::read(place.path()));
        Self {
            place,
            file,
            columns,
            restore,
        }
    }

    /// Three bytes are a column, rows of it, and what kind of value it gets; the value is what follows up to the next
    /// zero. Several such parts follow each other.
    fn corrupt(&self, input: &[u8]) {
        self.place.write(&self.file);
        self.place.runtime.block_on(async {
            let mut connection = self.place.connection().await;
            let loose = "PRAGMA ignore_check_constraints = ON";
            sure(sqlx::raw_sql(loose).execute(&mut connection).await);
            for part in input.split(|byte| *byte == 0).take(4) {
                let [column, rows, kind, value @ ..] = part else {
                    continue;
                };
                let Some((table, column)) = self
                    .columns
                    .get(usize::from(*column) % self.columns.len().max(1))
                else {
                    continue;
                };
                let rows = match rows % 4 {
                    0 => "1",
                    1 => "rowid % 2 = 0",
                    2 => "rowid = 2",
                    _ => "rowid > 3",
                };
                // Tables without numbers of rows have few.
                let rows = if table.ends_with("_message") || table.ends_with("_state") {
                    rows
                } else {
                    "1"
                };
                let sql = format!("UPDATE OR IGNORE {table} SET {column} = ? WHERE {rows}");
                let query = sqlx::query(AssertSqlSafe(sql));
                let text = String::from_utf8_lossy(value);
                let query = match kind % 5 {
                    0 => query.bind(Option::<i64>::None),
                    1 => query.bind(text.parse::<i64>().unwrap_or(i64::MIN)),
                    2 => query.bind(text.parse::<f64>().unwrap_or(f64::MAX)),
                    3 => query.bind(text.into_owned()),
                    _ => query.bind(value.to_vec()),
                };
                let _ = query.execute(&mut connection).await;
            }
            let restore = sqlx::raw_sql(AssertSqlSafe(self.restore.as_str()));
            let _ = restore.execute(&mut connection).await;
            let _ = connection.close().await;
        });
    }
}

/// Takes the types, checks and triggers away. Returns all columns, and the statements that put it back.
async fn loosen(place: &Place) -> (Vec<(String, String)>, String) {
    let mut connection = place.connection().await;
    let objects =
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name LIKE 'inbox%'";
    let objects = sure(sqlx::query(objects).fetch_all(&mut connection).await);
    let mut columns = Vec::new();
    let mut loosen = String::from("PRAGMA writable_schema = ON;");
    let mut restore = loosen.clone();
    let mut triggers = String::new();
    for object in objects {
        let (kind, name, sql): (String, String, String) =
            (object.get(0), object.get(1), object.get(2));
        match kind.as_str() {
            "table" => {
                let quoted = sql.replace('\'', "''");
                let loose = quoted
                    .replace(") STRICT, WITHOUT ROWID", ") WITHOUT ROWID")
                    .replace(") STRICT", ")")
                    .replace("TEXT NOT NULL", "TEXT")
                    .replace("INTEGER NOT NULL", "INTEGER");
                let change = |sql: &str| {
                    format!("UPDATE sqlite_schema SET sql = '{sql}' WHERE name = '{name}';")
                };
                loosen.push_str(&change(&loose));
                restore.push_str(&change(&quoted));
                let names = format!("SELECT name FROM pragma_table_info('{name}')");
                let names = sqlx::query(AssertSqlSafe(names))
                    .fetch_all(&mut connection)
                    .await;
                let names = sure(names);
                columns.extend(names.iter().map(|row| (name.clone(), row.get(0))));
            }
            "trigger" => {
                loosen.push_str(&format!("DROP TRIGGER {name};"));
                triggers.push_str(&format!("{sql};"));
            }
            _ => {}
        }
    }
    let loosen = sqlx::raw_sql(AssertSqlSafe(loosen))
        .execute(&mut connection)
        .await;
    sure(loosen);
    sure(connection.close().await);
    (columns, format!("{triggers}{restore}"))
}

pub(super) fn rows() -> Target {
    let loose = Loose::new();
    let corpus = include_str!("../../corpus/sqlite-rows.txt");
    Target::new("sqlite-rows", corpus, move |input| {
        uncounted(|| loose.corrupt(input));
        loose.place.use_store()
    })
    .limit(1024, 512 * 1024)
}

pub(super) fn file() -> Target {
    let place = Place::new();
    let corpus = include_str!("../../corpus/sqlite-file.txt");
    Target::new("sqlite-file", corpus, move |input| {
        uncounted(|| {
            let mut file = place.file.clone();
            for part in input.chunks(4) {
                let [page, high, low, byte] = part else {
                    file.truncate(file.len() / 2 + part.len());
                    continue;
                };
                let at = usize::from(*page) << 12 | usize::from(*high) << 8 | usize::from(*low);
                let length = file.len().max(1);
                if let Some(there) = file.get_mut(at % length) {
                    *there = *byte;
                }
            }
            place.write(&file);
        });
        place.use_store()
    })
    .limit(1024, 512 * 1024)
}
