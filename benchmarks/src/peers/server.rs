//! The one server that all of them use in turns, empty each time.

use anyhow::{Context as _, Result, ensure};
use inbox::redis::redis;
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use test_servers::{Kind as ServerKind, find_own};

use super::Kind;

/// The test server's own are as small as can be; some peers open many connections.
const POSTGRES: [&str; 6] = [
    "-c",
    "shared_buffers=512MB",
    "-c",
    "max_wal_size=4GB",
    "-c",
    "max_connections=200",
];

/// What matters to the figures.
const SHOWN: [&str; 6] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
];

pub(super) enum Server {
    Postgres {
        admin: PgConnection,
        /// Before the name of the database.
        url: String,
        _own: test_servers::Server,
    },
    Sqlite {
        folder: TempDir,
    },
    Redis {
        own: test_servers::Server,
        appendfsync: String,
    },
}

impl Server {
    pub(super) async fn start(kind: Kind, appendfsync: &str) -> Result<Self> {
        let start = |kind, arguments: Vec<String>| {
            tokio::task::spawn_blocking(move || {
                let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                find_own(kind, &arguments)
            })
        };
        Ok(match kind {
            Kind::Postgres => {
                let own = start(ServerKind::Postgres, POSTGRES.map(str::to_owned).to_vec());
                let own = own.await??;
                let admin = PgConnection::connect(own.url()).await?;
                let (url, _) = own
                    .url()
                    .rsplit_once('/')
                    .context("no database in the URL")?;
                Self::Postgres {
                    url: url.to_owned(),
                    admin,
                    _own: own,
                }
            }
            Kind::Sqlite => Self::Sqlite {
                folder: tempfile::tempdir()?,
            },
            Kind::Redis => {
                let arguments = vec!["--appendfsync".to_owned(), appendfsync.to_owned()];
                Self::Redis {
                    own: start(ServerKind::Redis, arguments).await??,
                    appendfsync: appendfsync.to_owned(),
                }
            }
        })
    }

    /// What it is and how durable.
    pub(super) async fn about(&mut self) -> Result<String> {
        match self {
            Self::Postgres { admin, .. } => {
                let mut about = vec!["PostgreSQL".to_owned()];
                for name in SHOWN {
                    let value: String = sqlx::query_scalar("SELECT current_setting($1)")
                        .bind(name)
                        .fetch_one(&mut *admin)
                        .await?;
                    about.push(format!("{name}={value}"));
                }
                Ok(about.join(" "))
            }
            Self::Sqlite { .. } => Ok("SQLite journal_mode=wal synchronous=full".to_owned()),
            Self::Redis { own, appendfsync } => {
                let information: String = command(own, &["INFO", "server"]).await?;
                let version = information
                    .lines()
                    .find_map(|line| line.strip_prefix("redis_version:"))
                    .context("no version")?;
                Ok(format!("Redis {version} appendfsync={appendfsync}"))
            }
        }
    }

    /// Empties it, and returns where to connect.
    pub(super) async fn fresh(&mut self) -> Result<String> {
        match self {
            Self::Postgres { admin, url, .. } => {
                for sql in [
                    "DROP DATABASE IF EXISTS bench WITH (FORCE)",
                    "CREATE DATABASE bench",
                    "CHECKPOINT",
                ] {
                    sqlx::raw_sql(sql).execute(&mut *admin).await?;
                }
                Ok(format!("{url}/bench"))
            }
            Self::Sqlite { folder } => {
                *folder = tempfile::tempdir()?;
                Ok(format!(
                    "sqlite://{}",
                    folder.path().join("bench.db").display()
                ))
            }
            Self::Redis { own, .. } => {
                let answer: String = command(own, &["FLUSHALL", "SYNC"]).await?;
                ensure!(answer == "OK");
                Ok(own.url().to_owned())
            }
        }
    }
}

/// One command to a Redis server, whose answer is text.
async fn command(server: &test_servers::Server, words: &[&str]) -> Result<String> {
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    Ok(command.query_async(&mut connection).await?)
}
