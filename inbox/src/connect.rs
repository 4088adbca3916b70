//! From a URL to a store.

use std::sync::Arc;

use crate::{Error, ErrorKind, Inbox, Result};

/// Every scheme that the project has a store for, with the Cargo feature that adds it.
const KNOWN: &[(&str, &str)] = &[
    ("mariadb", "mysql"),
    ("memory", "memory"),
    ("mongodb", "mongodb"),
    ("mongodb+srv", "mongodb"),
    ("mysql", "mysql"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("redis", "redis"),
    ("redis+cluster", "redis"),
    ("rediss", "redis"),
    ("rediss+cluster", "redis"),
    ("sqlite", "sqlite"),
];

const BUILT: &[&str] = &[
    #[cfg(feature = "mysql")]
    "mariadb",
    #[cfg(feature = "memory")]
    "memory",
    #[cfg(feature = "mongodb")]
    "mongodb",
    #[cfg(feature = "mongodb")]
    "mongodb+srv",
    #[cfg(feature = "mysql")]
    "mysql",
    #[cfg(feature = "postgres")]
    "postgres",
    #[cfg(feature = "postgres")]
    "postgresql",
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "redis+cluster",
    #[cfg(feature = "redis")]
    "rediss",
    #[cfg(feature = "redis")]
    "rediss+cluster",
    #[cfg(feature = "sqlite")]
    "sqlite",
];

/// The URL schemes that this build can [`connect`] to, for help texts.
#[must_use]
pub fn schemes() -> &'static [&'static str] {
    BUILT
}

/// Connects to the store that `url` names.
///
/// | URL | store | Cargo feature |
/// |---|---|---|
/// | `memory://` | a new, empty one in this process | `memory` |
/// | `mongodb://user@host/database?…`, also `mongodb+srv://` | a MongoDB database | `mongodb` |
/// | `mysql://user@host/database?…`, also `mariadb://` | a MySQL or MariaDB database | `mysql` |
/// | `postgres://user@host/database?…`, also `postgresql://` | a PostgreSQL database | `postgres` |
/// | `redis://host?…`, with TLS `rediss://` | a Redis or Valkey server | `redis` |
/// | `redis+cluster://host,host?…`, with TLS `rediss+cluster://` | a cluster of them, of which some nodes are named | `redis` |
/// | `sqlite://path?…` | a SQLite file | `sqlite` |
///
/// The parameters behind `?` are those of the store's options, such as `inbox`, its name.
///
/// To a server over TLS, see [Encryption](crate#encryption).
///
/// Does not set the inbox up: call [`create`](crate::Schema::create) or
/// [`migrate`](crate::Schema::migrate) on the result, or let a deployment step do it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> inbox::Result<()> {
/// let inbox = inbox::connect("memory://").await?;
/// inbox.create().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] when the URL has no scheme, one that this build has no store for (the
/// message lists those it has, and the feature that adds a known one), or parameters that the
/// store does not take; otherwise what the store's own connecting fails with. No error repeats
/// the URL, which may hold credentials.
pub async fn connect(url: &str) -> Result<Arc<dyn Inbox>> {
    match scheme(url)?.as_str() {
        #[cfg(feature = "memory")]
        "memory" => {
            check_memory(url)?;
            Ok(Arc::new(inbox_memory::MemoryStore::new()))
        }
        #[cfg(feature = "mongodb")]
        "mongodb" | "mongodb+srv" => mongodb(url).await,
        #[cfg(feature = "mysql")]
        "mariadb" | "mysql" => mysql(url).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres(url).await,
        #[cfg(feature = "redis")]
        "redis" | "redis+cluster" | "rediss" | "rediss+cluster" => redis(url).await,
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite(url).await,
        other => Err(invalid(unknown_scheme(other, BUILT))),
    }
}

/// The statements that set up an inbox at `url`, without connecting: what
/// [`Schema::ddl`](crate::Schema::ddl) of the connected store would give.
///
/// # Errors
/// [`ErrorKind::Invalid`], as [`connect`].
pub fn ddl(url: &str) -> Result<String> {
    match scheme(url)?.as_str() {
        #[cfg(feature = "memory")]
        "memory" => {
            check_memory(url)?;
            Ok(inbox_api::Schema::ddl(&inbox_memory::MemoryStore::new()))
        }
        #[cfg(feature = "mongodb")]
        "mongodb" | "mongodb+srv" => Ok(inbox_mongo::MongoOptions::from_url(url)?.1.ddl()),
        #[cfg(feature = "mysql")]
        "mariadb" | "mysql" => Ok(inbox_mysql::MySqlOptions::from_url(url)?.ddl()),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(inbox_postgres::PostgresOptions::from_url(url)?.1.ddl()),
        #[cfg(feature = "redis")]
        "redis" | "redis+cluster" | "rediss" | "rediss+cluster" => {
            Ok(inbox_redis::RedisOptions::from_url(url)?.ddl())
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(inbox_sqlite::SqliteOptions::from_url(url)?.ddl()),
        other => Err(invalid(unknown_scheme(other, BUILT))),
    }
}

fn scheme(url: &str) -> Result<String> {
    let (scheme, _) = url.split_once(':').ok_or_else(|| {
        invalid(format!(
            "the URL has no scheme (a file is sqlite://PATH); {}",
            available(BUILT)
        ))
    })?;
    Ok(scheme.to_ascii_lowercase())
}

#[cfg(feature = "memory")]
fn check_memory(url: &str) -> Result<()> {
    if !url.ends_with("://") {
        return Err(invalid(
            "nothing may follow memory://; every connection is a new, empty inbox".into(),
        ));
    }
    Ok(())
}

#[cfg(feature = "mongodb")]
async fn mongodb(url: &str) -> Result<Arc<dyn Inbox>> {
    Ok(Arc::new(inbox_mongo::MongoStore::connect_url(url).await?))
}

#[cfg(feature = "mysql")]
async fn mysql(url: &str) -> Result<Arc<dyn Inbox>> {
    let options = inbox_mysql::MySqlOptions::from_url(url)?;
    Ok(Arc::new(inbox_mysql::MySqlStore::connect(options).await?))
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<Arc<dyn Inbox>> {
    Ok(Arc::new(
        inbox_postgres::PostgresStore::connect_url(url).await?,
    ))
}

#[cfg(feature = "redis")]
async fn redis(url: &str) -> Result<Arc<dyn Inbox>> {
    let options = inbox_redis::RedisOptions::from_url(url)?;
    Ok(Arc::new(inbox_redis::RedisStore::connect(options).await?))
}

#[cfg(feature = "sqlite")]
async fn sqlite(url: &str) -> Result<Arc<dyn Inbox>> {
    let options = inbox_sqlite::SqliteOptions::from_url(url)?;
    Ok(Arc::new(inbox_sqlite::SqliteStore::connect(options).await?))
}

fn invalid(context: String) -> Error {
    Error::new(ErrorKind::Invalid, "connect", context)
}

fn available(built: &[&str]) -> String {
    if built.is_empty() {
        return "this build has no stores (enable a Cargo feature such as `memory`)".into();
    }
    let list: Vec<String> = built.iter().map(|scheme| format!("{scheme}://")).collect();
    format!("this build has {}", list.join(", "))
}

/// Repeats the scheme only when it looks like one: what stands there may be a misplaced secret.
fn unknown_scheme(scheme: &str, built: &[&str]) -> String {
    if let Some((_, feature)) = KNOWN.iter().find(|(known, _)| *known == scheme) {
        return format!(
            "{scheme}:// is not in this build (enable the Cargo feature `{feature}`); {}",
            available(built)
        );
    }
    let plain = scheme.len() <= 16
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let name = if plain { scheme } else { "this URL" };
    format!("there is no store for {name}; {}", available(built))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_scheme_that_is_not_built_in_names_its_feature() {
        assert_eq!(
            unknown_scheme("sqlite", &["memory"]),
            "sqlite:// is not in this build (enable the Cargo feature `sqlite`); \
             this build has memory://"
        );
        for scheme in ["postgres", "postgresql"] {
            let text = unknown_scheme(scheme, &["memory"]);
            assert!(text.contains("feature `postgres`"), "{text}");
        }
        for scheme in ["mongodb", "mongodb+srv"] {
            let text = unknown_scheme(scheme, &["memory"]);
            assert!(text.contains("feature `mongodb`"), "{text}");
        }
        assert!(unknown_scheme("memory", &[]).contains("no stores"));
    }

    #[test]
    fn what_does_not_look_like_a_scheme_is_not_repeated() {
        let text = unknown_scheme("user:hunter2@host", &["memory", "sqlite"]);
        assert_eq!(
            text,
            "there is no store for this URL; this build has memory://, sqlite://"
        );
    }
}
