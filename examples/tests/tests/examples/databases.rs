//! Servers, a database for each test, and what is in it.

use std::{path::Path, process, sync::LazyLock};

use sqlx::{MySqlPool, PgPool, SqlitePool, sqlite::SqliteConnectOptions};
use test_servers::{Error, Kind, Server, require_or_skip};
use url::Url;

use crate::wait;

type Started = LazyLock<Result<Option<Server>, Error>>;

static POSTGRES: Started = LazyLock::new(|| require_or_skip(Kind::Postgres));
static REDIS: Started = LazyLock::new(|| require_or_skip(Kind::Redis));

fn url(started: &Started) -> Option<Url> {
    let server = started.as_ref().unwrap().as_ref()?;
    Some(server.url().parse().unwrap())
}

/// A database of its own on PostgreSQL: its URL, and a way into it. `None`: skipped, and reported so.
pub(crate) fn postgres(name: &str) -> Option<(String, PgPool)> {
    let mut url = url(&POSTGRES)?;
    let name = format!("{name}_{}", process::id());
    let pool = wait(async {
        let all = PgPool::connect(url.as_str()).await.unwrap();
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create).execute(&all).await.unwrap();
        url.set_path(&name);
        PgPool::connect_lazy(url.as_str()).unwrap()
    });
    Some((url.into(), pool))
}

/// The same on a MySQL server.
pub(crate) fn mysql(server: &Server, name: &str) -> (String, MySqlPool) {
    let mut url: Url = server.url().parse().unwrap();
    let name = format!("{name}_{}", process::id());
    let pool = wait(async {
        let all = MySqlPool::connect(url.as_str()).await.unwrap();
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create).execute(&all).await.unwrap();
        url.set_path(&name);
        MySqlPool::connect_lazy(url.as_str()).unwrap()
    });
    (url.into(), pool)
}

/// A way into a file of SQLite that is there.
pub(crate) fn sqlite(file: &Path) -> SqlitePool {
    wait(async { SqlitePool::connect_lazy_with(SqliteConnectOptions::new().filename(file)) })
}

/// The database of this number on a Redis server.
pub(crate) fn redis(number: u8) -> Option<String> {
    let mut url = url(&REDIS)?;
    url.set_path(&number.to_string());
    Some(url.into())
}

/// A column of numbers in order. Empty while there is no such table.
macro_rules! numbers {
    ($pool:expr, $query:expr) => {{
        let found = sqlx::query_scalar::<_, i64>($query).fetch_all($pool);
        $crate::wait(found).unwrap_or_default()
    }};
}
pub(crate) use numbers;
