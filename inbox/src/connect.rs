//! From a URL to a store.

use std::sync::Arc;

use crate::{Error, ErrorKind, Inbox, Result, StoreKind};

/// The URL schemes that this build can [`connect`] to, for help texts.
#[must_use]
pub fn schemes() -> Vec<&'static str> {
    let built = StoreKind::ALL.into_iter().filter(|kind| kind.is_built());
    built.flat_map(StoreKind::schemes).copied().collect()
}

/// Connects to the store that `url` names.
///
/// | URL | store | Cargo feature |
/// |---|---|---|
/// | `memory://` | a new, empty one in this process | `memory` |
/// | `mongodb://user@host/database?…`, also `mongodb+srv://` | a MongoDB database | `mongo` |
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
    match kind(url)? {
        #[cfg(feature = "memory")]
        StoreKind::Memory => {
            check_memory(url)?;
            Ok(Arc::new(inbox_memory::MemoryStore::new()))
        }
        #[cfg(feature = "mongo")]
        StoreKind::Mongo => {
            let options = inbox_mongo::MongoOptions::from_url(url)?;
            Ok(Arc::new(inbox_mongo::MongoStore::connect(options).await?))
        }
        #[cfg(feature = "mysql")]
        StoreKind::MySql => {
            let options = inbox_mysql::MySqlOptions::from_url(url)?;
            Ok(Arc::new(inbox_mysql::MySqlStore::connect(options).await?))
        }
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => {
            let options = inbox_postgres::PostgresOptions::from_url(url)?;
            Ok(Arc::new(
                inbox_postgres::PostgresStore::connect(options).await?,
            ))
        }
        #[cfg(feature = "redis")]
        StoreKind::Redis => {
            let options = inbox_redis::RedisOptions::from_url(url)?;
            Ok(Arc::new(inbox_redis::RedisStore::connect(options).await?))
        }
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => {
            let options = inbox_sqlite::SqliteOptions::from_url(url)?;
            Ok(Arc::new(inbox_sqlite::SqliteStore::connect(options).await?))
        }
        #[allow(unreachable_patterns, reason = "a build may have them all")]
        other => Err(left_out(other)),
    }
}

/// The statements that set up an inbox at `url`, without connecting: what
/// [`Schema::ddl`](crate::Schema::ddl) of the connected store would give.
///
/// # Errors
/// [`ErrorKind::Invalid`], as [`connect`].
pub fn ddl(url: &str) -> Result<String> {
    match kind(url)? {
        #[cfg(feature = "memory")]
        StoreKind::Memory => {
            check_memory(url)?;
            Ok(inbox_api::Schema::ddl(&inbox_memory::MemoryStore::new()))
        }
        #[cfg(feature = "mongo")]
        StoreKind::Mongo => Ok(inbox_mongo::MongoOptions::from_url(url)?.ddl()),
        #[cfg(feature = "mysql")]
        StoreKind::MySql => Ok(inbox_mysql::MySqlOptions::from_url(url)?.ddl()),
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => Ok(inbox_postgres::PostgresOptions::from_url(url)?.ddl()),
        #[cfg(feature = "redis")]
        StoreKind::Redis => Ok(inbox_redis::RedisOptions::from_url(url)?.ddl()),
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => Ok(inbox_sqlite::SqliteOptions::from_url(url)?.ddl()),
        #[allow(unreachable_patterns, reason = "a build may have them all")]
        other => Err(left_out(other)),
    }
}

/// The query for a complete inbox at `url`, without connecting: what
/// [`Schema::exists_query`](crate::Schema::exists_query) of the connected store would give.
///
/// # Errors
/// [`ErrorKind::Invalid`], as [`connect`].
pub fn exists_query(url: &str) -> Result<String> {
    match kind(url)? {
        #[cfg(feature = "memory")]
        StoreKind::Memory => {
            check_memory(url)?;
            Ok(inbox_api::Schema::exists_query(
                &inbox_memory::MemoryStore::new(),
            ))
        }
        #[cfg(feature = "mongo")]
        StoreKind::Mongo => Ok(inbox_mongo::MongoOptions::from_url(url)?.exists_query()),
        #[cfg(feature = "mysql")]
        StoreKind::MySql => Ok(inbox_mysql::MySqlOptions::from_url(url)?.exists_query()),
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => Ok(inbox_postgres::PostgresOptions::from_url(url)?.exists_query()),
        #[cfg(feature = "redis")]
        StoreKind::Redis => Ok(inbox_redis::RedisOptions::from_url(url)?.exists_query()),
        #[cfg(feature = "sqlite")]
        StoreKind::Sqlite => Ok(inbox_sqlite::SqliteOptions::from_url(url)?.exists_query()),
        #[allow(unreachable_patterns, reason = "a build may have them all")]
        other => Err(left_out(other)),
    }
}

fn kind(url: &str) -> Result<StoreKind> {
    let (scheme, _) = url.split_once(':').ok_or_else(|| {
        invalid(format!(
            "the URL has no scheme (a file is sqlite://PATH); {}",
            available(&schemes())
        ))
    })?;
    StoreKind::of(url).ok_or_else(|| invalid(unknown_scheme(scheme, &schemes())))
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

fn invalid(context: String) -> Error {
    Error::new(ErrorKind::Invalid, context).in_operation("connect")
}

fn available(built: &[&str]) -> String {
    if built.is_empty() {
        return "this build has no stores (enable a Cargo feature such as `memory`)".into();
    }
    let list: Vec<String> = built.iter().map(|scheme| format!("{scheme}://")).collect();
    format!("this build has {}", list.join(", "))
}

fn left_out(kind: StoreKind) -> Error {
    invalid(format!(
        "{} is not in this build (enable the Cargo feature `{}`); {}",
        kind.name(),
        kind.feature(),
        available(&schemes())
    ))
}

/// Repeats the scheme only when it looks like one: what stands there may be a misplaced secret.
fn unknown_scheme(scheme: &str, built: &[&str]) -> String {
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
    fn a_store_that_is_not_in_the_build_names_its_feature() {
        for kind in StoreKind::ALL {
            let error = left_out(kind);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error
                    .context()
                    .contains(&format!("feature `{}`", kind.feature())),
                "{error}"
            );
        }
        assert!(unknown_scheme("http", &[]).contains("no stores"));
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
